"""What users hand in, as chunks that a graph can refer to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection, tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from approxkmv import _check
from approxkmv.blocks.cut import merged_keys, merged_queries
from approxkmv.blocks.keyside import key_side
from approxkmv.blocks.rows import FileRows, as_rows

# Rows of a file that one task reads or maps: enough to hide the cost of a task, small next to
# the memory of a worker.
_PIECE_BYTES, _KEY_BYTES = 2**26, 2**30


@dataclass(frozen=True)
class Chunks:
    """Chunks of rows, each something that a task of the graph can take as its argument.

    Attributes
    ----------
    parts : tuple
        A key of the graph, an array, or rows of a file, for each chunk.
    sizes : tuple of int or None
        Rows of each chunk; None where only the task will know.
    dtype : dtype or None
        As stored; None where only the task will know.
    row : tuple of int
        Shape of a row; that of a vector where only the task will know.
    needs : tuple
        Dask collections that the parts refer to.
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    row: tuple[int, ...]
    needs: tuple[Any, ...] = ()


def from_npy(path: Any, rows: int | None = None) -> da.Array:
    """Lazy array of the rows of a ``.npy`` file; tasks carry the path, never the data.

    Parameters
    ----------
    path : str, path or memmap
        A C-ordered file, which every worker must see under this name.
    rows : int or None
        Rows of a chunk; None means chunks of 64 MB.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from approxkmv.dask import from_npy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "points.npy")
    ...     np.save(path, np.ones((10, 3)))
    ...     array = from_npy(path, rows=4)
    ...     array.chunks, float(array.sum().compute())
    (((4, 4, 2), (3,)), 30.0)
    """
    found = as_rows(path, "path")
    if not isinstance(found, FileRows):
        raise ValueError(
            f"path must be a C-ordered .npy file that is not empty, got {path!r}: "
            "read it with approxkmv.files.read_array and use dask.array.from_array."
        )
    at_once = max(1, _PIECE_BYTES // found.row_bytes) if rows is None else rows
    length = _check.count(at_once, "rows")
    pieces = [found.piece(a, a + length) for a in range(0, len(found), length)]
    sizes = tuple(len(piece) for piece in pieces)
    name = f"from_npy-{tokenize(found, sizes)}"
    rest = tuple((length,) for length in found.shape[1:])
    zeros = (0,) * len(rest)
    layer: dict[Any, Any] = {
        (name, i, *zeros): (FileRows.read, piece) for i, piece in enumerate(pieces)
    }
    graph = HighLevelGraph.from_collections(name, layer)
    return da.Array(graph, name, chunks=(sizes, *rest), dtype=found.dtype)


def query_array(value: Any, name: str = "queries") -> da.Array:
    """The queries: a Dask array of known chunks, cut by rows only."""
    if not isinstance(value, da.Array):
        raise TypeError(
            f"{name} must be a Dask array, got {type(value).__name__}: use dask.array.from_array("
            f"{name}, chunks=(rows, -1)), approxkmv.dask.from_npy(path), or approxkmv.matvec."
        )
    if value.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions, one point per row, got shape {value.shape}."
        )
    check_type(value.dtype, name)
    is_known(value, name)
    if len(value.chunks[1]) > 1:
        raise ValueError(
            f"{name} must have its columns in one chunk, got chunks {value.chunks[1]}: "
            f"use {name}.rechunk({{1: -1}})."
        )
    return value


def check_type(dtype: np.dtype[Any], name: str) -> None:
    """Reject what is known not to hold real numbers, before anything is computed."""
    if dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {dtype}.")


def fewer_queries(queries: da.Array, keys: Chunks) -> da.Array:
    """Queries in chunks worth going through the keys for; as they are where that is not known."""
    if keys.sizes is None or not queries.shape[1]:
        return queries
    row_bytes = queries.dtype.itemsize * queries.shape[1]
    sizes = merged_queries(queries.chunks[0], row_bytes, max(keys.sizes, default=0))
    return queries if sizes == queries.chunks[0] else queries.rechunk({0: sizes})


def key_chunks(keys: Any, queries: da.Array, *, merge: bool = False) -> Chunks:
    """The keys in chunks of their own, or of some of these; None means the queries."""
    if keys is None:
        keys = queries
    if isinstance(keys, da.Array):
        array = query_array(keys, "keys")
        if merge and array.shape[1]:
            sizes = merged_keys(array.chunks[0], array.dtype.itemsize * array.shape[1])
            array = array if sizes == array.chunks[0] else array.rechunk({0: sizes})
        found = _of_array(array)
    elif isinstance(keys, Delayed):
        return Chunks((keys.key,), None, None, (), (keys,))
    else:
        found = _in_memory_or_file(keys, "keys")
        if len(found.row) != 1:
            raise ValueError("keys must have two dimensions, one point per row.")
    if found.row != queries.shape[1:]:
        raise ValueError(
            f"keys must have {queries.shape[1]} columns to match queries, got {found.row[0]}."
        )
    return found


def vector_chunks(x: Any, keys: Chunks, name: str = "x") -> Chunks:
    """The vector, or the columns, cut where the keys are."""
    if isinstance(x, Delayed):
        if len(keys.parts) > 1:
            raise ValueError(f"{name} must not be delayed where keys have several chunks.")
        return Chunks((x.key,), None, None, (), (x,))
    if isinstance(x, da.Array):
        is_known(x, name)
        n, row, dtype = x.shape[0] if x.ndim else 0, x.shape[1:], x.dtype
    else:
        refuse_collection(x, name)
        x = as_rows(x, name)
        n, row, dtype = len(x) if x.ndim else 0, tuple(x.shape[1:]), x.dtype
    check_type(dtype, name)
    n_keys = None if keys.sizes is None else sum(keys.sizes)
    if len(row) > 1 or (n_keys is not None and n != n_keys) or x.ndim == 0:
        raise ValueError(
            f"{name} must have one entry per key, shape ({n_keys},) or ({n_keys}, n_columns), "
            f"got shape {tuple(x.shape)}."
        )
    sizes = (n,) if keys.sizes is None else keys.sizes
    if isinstance(x, da.Array):
        return _of_array(x.rechunk((sizes, *((length,) for length in row))))
    ends = np.cumsum(sizes).tolist()
    spans = zip([0, *ends[:-1]], ends, strict=True)
    cut = tuple(x.piece(a, b) if isinstance(x, FileRows) else x[a:b] for a, b in spans)
    return Chunks(cut, sizes, dtype, row)


def key_sides(
    keys: Chunks, x: Chunks | None, dtype: np.dtype[Any], *, weights: bool, check_finite: bool
) -> da.Array:
    """One task for each key chunk, whose result all blocks of that chunk share."""
    entries = x.parts if x is not None else (None,) * len(keys.parts)
    options = {"weights": weights, "check_finite": check_finite}
    common = None if keys.dtype is None else computing_type(dtype, keys.dtype)
    name = f"key_side-{tokenize(keys.parts, entries, str(common), options)}"
    layer = {
        (name, b): (_key_side, part, entry, common, options, b)
        for b, (part, entry) in enumerate(zip(keys.parts, entries, strict=True))
    }
    needs = [*keys.needs, *(x.needs if x is not None else ())]
    return objects(name, layer, (len(keys.parts),), needs)


def _key_side(keys: Any, x: Any, dtype: Any, options: dict[str, bool], chunk: int) -> Any:
    return key_side(keys, x, dtype, chunk=chunk, **options)


def objects(name: str, layer: dict[Any, Any], shape: tuple[int, ...], needs: list[Any]) -> da.Array:
    """Tasks that return an object each, as an array of one cell for each of them."""
    graph = HighLevelGraph.from_collections(name, layer, dependencies=needs)
    return da.Array(graph, name, chunks=tuple((1,) * n for n in shape), dtype=object)


def computing_type(*dtypes: np.dtype[Any] | None) -> np.dtype[Any]:
    """Type in which points or vectors of these types are computed, as far as they are known."""
    known = [_check.computing_type(dtype) for dtype in dtypes if dtype is not None]
    return np.result_type(*known)


def _of_array(array: da.Array) -> Chunks:
    zeros = (0,) * (array.ndim - 1)
    parts = tuple((array.name, b, *zeros) for b in range(len(array.chunks[0])))
    return Chunks(parts, array.chunks[0], array.dtype, array.shape[1:], (array,))


def _in_memory_or_file(value: Any, name: str) -> Chunks:
    """One chunk for an array, several for a file that is larger than a task should map."""
    refuse_collection(value, name)
    rows = as_rows(value, name)
    check_type(rows.dtype, name)
    row = tuple(rows.shape[1:])
    if isinstance(rows, FileRows):
        sizes, pieces = _cut(rows, max(1, _KEY_BYTES // rows.row_bytes))
        return Chunks(tuple(pieces), sizes, rows.dtype, row)
    # In the graph once, under a key of its own.
    source = f"{name}-{tokenize(rows)}"
    graph = HighLevelGraph.from_collections(source, {source: rows})
    return Chunks((source,), (len(rows),), rows.dtype, row, (Delayed(source, graph),))


def refuse_collection(value: Any, name: str) -> None:
    """Chunked objects of other packages would be loaded by NumPy without a word."""
    if is_dask_collection(value):
        raise TypeError(
            f"{name} must be an array, a file or a Dask array, got a chunked "
            f"{type(value).__name__}: hand in its Dask array (.data or .to_dask_array)."
        )


def _cut(rows: FileRows, at_once: int) -> tuple[tuple[int, ...], list[FileRows]]:
    """Pieces of nearly equal length, at most so many rows each."""
    n_pieces = max(1, math.ceil(len(rows) / at_once))
    ends = [len(rows) * i // n_pieces for i in range(n_pieces + 1)]
    pieces = [rows.piece(a, b) for a, b in pairwise(ends)]
    return tuple(len(piece) for piece in pieces), pieces


def is_known(array: da.Array, name: str) -> None:
    """Reject chunks of unknown sizes."""
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise ValueError(
            f"{name} must have chunks of known sizes, by which the error allowed is shared: "
            f"use {name}.compute_chunk_sizes()."
        )
