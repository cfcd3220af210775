"""The compiled loops, with instruction set and threads filled in.

Each function here has a NumPy twin of the same name and arguments in :mod:`approxkmv.reference`
(without ``n_threads`` and ``isa``, which say how to run, not what to compute). Arrays are
C-contiguous and already checked.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv import _core
from approxkmv._threads import default_threads

Array = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

__all__ = ["exp", "pair_kernel", "philox", "scan_ranges", "squared_norms", "tile_product"]


def available_isas() -> tuple[str, ...]:
    """Instruction sets this machine can run, the widest last."""
    return tuple(_core.available_isas())


def _choose_isa() -> str:
    wanted = os.environ.get("APPROXKMV_ISA")
    if wanted is None:
        return available_isas()[-1]
    if wanted not in available_isas():
        raise ImportError(
            f"APPROXKMV_ISA must be one of {', '.join(available_isas())} on this machine, "
            f"got {wanted!r}."
        )
    return wanted


ISA = _choose_isa()


class TileSums(NamedTuple):
    """Sums of exponentials times columns, of the exponentials alone, and the exponent taken out."""

    out: Array  # (n_queries, n_columns)
    totals: Array | None  # (n_queries,)
    row_max: Array | None  # (n_queries,)


def tile_product(
    queries: Array,  # (m, d)
    keys: Array,  # (n, d)
    x: Array,  # (n, r)
    *,
    query_shift: Float64,  # (m,)
    key_shift: Float64,  # (n,)
    slope: float,
    query_centre: Float64 | None = None,  # (d,)
    key_centre: Float64 | None = None,  # (d,)
    factor: float = 1.0,
    ceiling: float = np.inf,
    differences: bool = False,
    online: bool = False,
    row_sums: bool = False,
    n_threads: int | None = None,
    isa: str | None = None,
) -> TileSums:
    r"""Sum over keys of :math:`\exp(slope\cdot s_{ij} - a_i - b_j)\,x_j`, never writing the matrix.

    Here :math:`s_{ij}` is the inner product of ``(q_i - query_centre) * factor`` and
    ``(k_j - key_centre) * factor``, or their squared distance with ``differences``; a and b are
    ``query_shift`` and ``key_shift``; the exponent is cut at ``ceiling``. With ``online`` the
    largest exponent of each row is taken out and returned as ``row_max``.
    """
    n_dims = keys.shape[1]
    dtype = keys.dtype
    zero = np.zeros(n_dims)
    out = np.empty((len(queries), x.shape[1]), dtype)
    totals = np.empty(len(queries), dtype) if row_sums or online else None
    row_max = np.empty(len(queries), dtype) if online else None
    _core.tile_product(
        queries,
        keys,
        x,
        query_shift,
        key_shift,
        zero if query_centre is None else query_centre,
        zero if key_centre is None else key_centre,
        factor,
        slope,
        ceiling,
        differences,
        online,
        out,
        totals,
        row_max,
        isa or ISA,
        n_threads or default_threads(),
    )
    return TileSums(out, totals, row_max)


def squared_norms(
    points: Array, centre: Float64, factor: float, *, n_threads: int | None = None
) -> Float64:
    """Squared norms of ``(points - centre) * factor`` as the tiles see them, in double."""
    out = np.empty(len(points))
    _core.squared_norms(points, centre, factor, out, n_threads or default_threads())
    return out


def pair_kernel(
    queries: Array,
    keys: Array,
    rows: Index,
    cols: Index,
    bandwidth: float,
    *,
    n_threads: int | None = None,
    isa: str | None = None,
) -> Float64:
    """Kernel values at listed pairs, by direct differences."""
    out = np.empty(len(rows))
    slope = -0.5 / bandwidth**2
    _core.pair_kernel(
        queries, keys, rows, cols, slope, out, isa or ISA, n_threads or default_threads()
    )
    return out


def scan_ranges(
    queries: Array,
    keys: Array,
    order: Index,
    start: Index,
    stop: Index,
    bandwidth: float,
    threshold: float,
    *,
    n_threads: int | None = None,
    isa: str | None = None,
) -> tuple[Index, Index, Float64]:
    """Pairs with kernel value >= threshold among keys ``order[start[i]:stop[i]]`` of each query."""
    slope = -0.5 / bandwidth**2
    rows, cols, values = _core.scan_ranges(
        queries,
        keys,
        order,
        start,
        stop,
        slope,
        threshold,
        isa or ISA,
        n_threads or default_threads(),
    )
    return rows, cols, values


def exp(x: Array, *, isa: str | None = None) -> Array:
    """Exponential as the tiles compute it: below 2 ulp, flushed to 0 below the normal numbers."""
    out = np.empty_like(x)
    _core.exp(x, out, isa or ISA)
    return out


def philox(seed: int, stream: int, first: int, n: int) -> npt.NDArray[np.uint64]:
    """Philox4x64-10 words ``(n, 4)`` for key (seed, stream) and counters first, first + 1, ..."""
    out = np.empty((n, 4), np.uint64)
    _core.philox(seed, stream, first, out)
    return out


def fma_peak(
    seconds: float = 0.2, dtype: npt.DTypeLike = np.float32, *, isa: str | None = None
) -> float:
    """Measured peak of one core in floating-point operations per second (two per multiply-add)."""
    rate = _core.fma_rate_float32 if np.dtype(dtype) == np.float32 else _core.fma_rate_float64
    return 2 * float(rate(seconds, isa or ISA))
