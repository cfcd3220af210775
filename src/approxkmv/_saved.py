"""Objects in files: arrays and a text in JSON, with the version of the format; never pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from approxkmv._shown import plain
from approxkmv.files import array_names, read_array, write_arrays
from approxkmv.loops.types import Array

# Raised whenever a file means something else than before.
FORMAT = 2
_HEADER = "approxkmv"


def write(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> None:
    """Write an object of some kind to a ``.npz`` file."""
    text = json.dumps({"kind": kind, "format": FORMAT, **header}, allow_nan=False)
    write_arrays(path, {_HEADER: np.frombuffer(text.encode(), np.uint8), **arrays})


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of an object of this kind."""
    name = os.fspath(path)
    names = array_names(path)
    if _HEADER not in names:
        raise ValueError(f"{name}: was not written by approxkmv ({kind}.save)")
    arrays = {member: read_array(f"{name}:{member}") for member in names}
    with broken(path):
        header = json.loads(arrays.pop(_HEADER).astype(np.uint8).tobytes().decode())
        if not isinstance(header, dict):
            raise ValueError("its header is no table")
        found, version = header.get("kind"), header.get("format")
    if found != kind:
        raise ValueError(f"{name}: expected a {kind}, got {found!r}")
    if version != FORMAT:
        raise ValueError(
            f"{name}: has version {version!r} of the format, and this approxkmv reads {FORMAT}; "
            "make the object again from its points"
        )
    return header, arrays


@contextmanager
def broken(path: str | os.PathLike[str]) -> Iterator[None]:
    """Contents that do not fit together are one ValueError that names the file."""
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        what = f"no entry {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{os.fspath(path)}: is damaged ({what})") from error


def plain_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and texts of a report as JSON has them."""
    return {name: plain(value) for name, value in numbers.items()}
