"""Single entries, rows, columns and blocks of a kernel matrix, by NumPy's rules of indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Index

# A block is a product with columns of the identity matrix. Each takes a multiply-add for every pair
# whatever the dimension, so a block costs about twice its kernel values in 64 dimensions.
_COLUMNS = 64


def entries(kernel: KernelMatrix, index: Any) -> Array:
    """What ``K[index]`` is for the dense matrix, computed without it.

    Integer arrays on both sides are pairs, broadcast together, as in NumPy; ``numpy.ix_`` gives
    blocks.
    """
    rows, cols = _both(index)
    if _is_list(rows) and _is_list(cols):
        i = _numbers(rows, len(kernel.queries), "row")
        j = _numbers(cols, len(kernel.keys), "column")
        if i.ndim == 2 and j.ndim == 2 and i.shape[1] == 1 and j.shape[0] == 1:
            return block(kernel, i[:, 0], j[0])
        i, j = np.broadcast_arrays(i, j)
        values = kernel.pairs(i.reshape(-1), j.reshape(-1)).reshape(i.shape)
        return np.asarray(values)[()]
    i = _numbers(rows, len(kernel.queries), "row")
    j = _numbers(cols, len(kernel.keys), "column")
    if i.ndim > 1 or j.ndim > 1:
        raise IndexError("with a slice, the other index must have at most one dimension.")
    return block(kernel, i.reshape(-1), j.reshape(-1)).reshape(i.shape + j.shape)


def block(kernel: KernelMatrix, rows: Index, cols: Index) -> Array:
    """The dense matrix of some rows and columns."""
    if len(rows) < len(cols):
        return np.ascontiguousarray(block(kernel.transposed, cols, rows).T)
    out = np.empty((len(rows), len(cols)), kernel.keys.dtype)
    part = kernel.at_queries(rows)
    for first in range(0, len(cols), _COLUMNS):
        some = cols[first : first + _COLUMNS]
        unit = np.eye(len(some), dtype=out.dtype)
        out[:, first : first + _COLUMNS] = part.at_keys(some).product(unit).out
    return out


def _both(index: Any) -> tuple[Any, Any]:
    """Row and column index; what is not given is everything."""
    given = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [g for g in given if not isinstance(g, np.ndarray)]:
        at = next(n for n, g in enumerate(given) if g is Ellipsis)
        filling = (slice(None),) * (3 - len(given))
        given = (*given[:at], *filling, *given[at + 1 :])
    if len(given) > 2:
        raise IndexError(f"a kernel matrix has two dimensions, got {len(given)} indices.")
    return given[0] if given else slice(None), given[1] if len(given) == 2 else slice(None)


def _is_list(index: Any) -> bool:
    return not isinstance(index, slice)


def _numbers(index: Any, length: int, side: str) -> npt.NDArray[np.intp]:
    """Indices from 0 to the length, checked."""
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    given = np.asarray(index)
    if given.dtype == np.bool_:
        if given.shape != (length,):
            raise IndexError(f"a mask of {side}s must have shape ({length},), got {given.shape}.")
        return np.flatnonzero(given)
    if given.size and given.dtype.kind not in "iu":
        raise IndexError(
            f"{side}s must be integers, slices or masks, got {type(index).__name__} of "
            f"{given.dtype}."
        )
    numbers = given.astype(np.intp)
    wrong = (numbers < -length) | (numbers >= length)
    if wrong.any():
        found = int(numbers[wrong].reshape(-1)[0])
        raise IndexError(f"{side} {found} is out of bounds: there are {length} {side}s.")
    return np.where(numbers < 0, numbers + length, numbers)
