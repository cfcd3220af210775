"""What an unfinished run has on disk: rows of the answer, and a line for every chunk that is done.

``y.npy.part`` is the answer with gaps; it becomes ``y.npy`` in one step when nothing is missing.
``y.npy.journal`` begins with what was asked for, so that another product is never mixed in. A chunk
counts as done when its line is on disk, and that is written after its rows have reached the disk: a
run that is killed at any moment loses the chunk it was at, and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from approxkmv.blocks.product import BlockInfo
from approxkmv.files import sync_folder
from approxkmv.info import Plan, ProductInfo
from approxkmv.loops.types import Array


class Journal:
    """The files of one run; made by :func:`opened`."""

    def __init__(self, target: Path, part: IO[bytes], lines: IO[str], first: int) -> None:
        self.target, self._part, self._lines, self._first = target, part, lines, first
        self.done: dict[int, list[BlockInfo]] = {}

    def write(self, chunk: int, start: int, rows: Array, infos: list[BlockInfo]) -> None:
        """Rows of the answer from ``start`` on, and what their chunk of queries did."""
        line = {"chunk": chunk, "infos": [_packed(info) for info in infos]}
        try:
            self._part.seek(self._first + start * rows[:1].nbytes)
            self._part.write(np.ascontiguousarray(rows).data)
            self._part.flush()
            os.fsync(self._part.fileno())
            self._lines.write(json.dumps(line, default=_number) + "\n")
            self._lines.flush()
            os.fsync(self._lines.fileno())
        except OSError as error:
            kept = f"{len(self.done)} chunks are on disk and resume=True goes on after them"
            raise OSError(error.errno, f"{error.strerror}: {kept}", str(self.target)) from None
        self.done[chunk] = infos

    def finish(self) -> None:
        """Nothing is missing: the answer takes its name."""
        os.replace(part_of(self.target), self.target)
        journal_of(self.target).unlink()
        sync_folder(self.target.parent)


@contextmanager
def opened(
    target: Path, request: Mapping[str, Any], shape: tuple[int, ...], dtype: Any
) -> Iterator[Journal]:
    """Begin a run, or go on with the one that is on disk if it asks for the same."""
    fresh = not (journal_of(target).exists() and part_of(target).exists())
    descriptor = os.open(part_of(target), os.O_RDWR | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "rb+") as part:
        _lock(part, target)
        with open(journal_of(target), "w+" if fresh else "a+") as lines:
            try:
                first = _reserve(part, target, shape, dtype)
            except BaseException:
                if fresh:
                    remove(target)
                raise
            journal = Journal(target, part, lines, first)
            if fresh:
                lines.write(json.dumps(request, default=_number) + "\n")
                lines.flush()
                os.fsync(lines.fileno())
                sync_folder(target.parent)
            else:
                lines.seek(0)
                journal.done = _read(lines, request, target)
            yield journal


def unfinished(target: Path) -> dict[str, Any] | None:
    """What the unfinished run on disk was asked for; None where there is none."""
    if not (journal_of(target).exists() and part_of(target).exists()):
        remove(target)  # killed before anything was computed, or after all was
        return None
    with open(journal_of(target)) as lines:
        asked = lines.readline()
    if not asked.endswith("\n"):
        remove(target)
        return None
    return dict(json.loads(asked))


def remove(target: Path) -> None:
    """Forget an unfinished run."""
    journal_of(target).unlink(missing_ok=True)
    part_of(target).unlink(missing_ok=True)


def part_of(target: Path) -> Path:
    """Where the answer is while it has gaps."""
    return target.with_name(target.name + ".part")


def journal_of(target: Path) -> Path:
    """Where it is written down what is done."""
    return target.with_name(target.name + ".journal")


def _lock(part: IO[bytes], target: Path) -> None:
    try:
        fcntl.lockf(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"{target}: another process is writing this product") from None


def _reserve(part: IO[bytes], target: Path, shape: tuple[int, ...], dtype: Any) -> int:
    """Write the header and take the whole space now: a full disk is found before the work."""
    part.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
    np.lib.format.write_array_header_1_0(part, header | {"shape": shape})
    part.flush()
    first = part.tell()
    size = first + int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        os.posix_fallocate(part.fileno(), 0, size)
    except OSError as error:
        wanted = f"{error.strerror}, and the answer needs {size / 1e6:.3g} MB"
        raise OSError(error.errno, wanted, str(target)) from None
    return first


def _read(lines: IO[str], request: Mapping[str, Any], target: Path) -> dict[int, list[BlockInfo]]:
    asked = json.loads(lines.readline())
    now = json.loads(json.dumps(request, default=_number))
    changed = [name for name in now if now[name] != asked.get(name)]
    if changed:
        name = changed[0]
        raise ValueError(
            f"{target}: the unfinished run had {name} {asked.get(name)}, now it is {now[name]}; "
            f"finish that one, or delete {journal_of(target).name} and {part_of(target).name}."
        )
    done: dict[int, list[BlockInfo]] = {}
    while True:
        whole = lines.tell()
        line = lines.readline()
        if not line:
            return done
        if not line.endswith("\n"):  # of a process that was killed while it wrote
            lines.seek(whole)
            lines.truncate()
            return done
        entry = json.loads(line)
        done[entry["chunk"]] = [_unpacked(info) for info in entry["infos"]]


def _packed(block: BlockInfo) -> dict[str, Any]:
    info = block.info
    plain = {name.name: getattr(info, name.name) for name in fields(info)}
    plain |= {"plan": [info.plan.method, info.plan.reason, dict(info.plan.numbers)]}
    plain |= {"seconds": dict(info.seconds)}
    return {name.name: getattr(block, name.name) for name in fields(block)} | {"info": plain}


def _unpacked(entry: dict[str, Any]) -> BlockInfo:
    info = entry["info"]
    return BlockInfo(**entry | {"info": ProductInfo(**info | {"plan": Plan(*info["plan"])})})


def _number(value: Any) -> Any:
    """Numbers of NumPy, and other things only as what they look like."""
    return value.item() if isinstance(value, np.generic) else str(value)
