"""NumPy twins of the compiled leaves.

Every loop of :mod:`approxkmv.leaves` has a function of the same name and arguments here: the
definition in a few lines, slow and plain. Tests compare the two; nothing else calls these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from approxkmv.leaves import Array, Float64, Index, TileSums

__all__ = ["exp", "pair_kernel", "philox", "scan_ranges", "squared_norms", "tile_product"]


def tile_product(
    queries: Array,
    keys: Array,
    x: Array,
    *,
    query_shift: Float64,
    key_shift: Float64,
    slope: float,
    query_centre: Float64 | None = None,
    key_centre: Float64 | None = None,
    factor: float = 1.0,
    ceiling: float = np.inf,
    differences: bool = False,
    online: bool = False,
    row_sums: bool = False,
) -> TileSums:
    """Exponentials of shifted scores times columns, in double precision throughout."""
    q = _moved(queries, query_centre, factor)
    k = _moved(keys, key_centre, factor)
    scores = ((q[:, None] - k) ** 2).sum(axis=-1) if differences else q @ k.T
    exponents = slope * scores - query_shift[:, None] - key_shift
    row_max = None
    if online:
        row_max = exponents.max(axis=1, initial=-np.inf)
        exponents = exponents - np.where(np.isfinite(row_max), row_max, 0.0)[:, None]
    exponentials = np.exp(np.minimum(exponents, ceiling))
    totals = exponentials.sum(axis=1) if row_sums or online else None
    return TileSums(exponentials @ x.astype(np.float64), totals, row_max)


def squared_norms(points: Array, centre: Float64, factor: float) -> Float64:
    """Squared norms of the points once moved and rounded to their own precision."""
    moved = _moved(points, centre, factor).astype(points.dtype).astype(np.float64)
    return np.asarray((moved**2).sum(axis=1))


def pair_kernel(queries: Array, keys: Array, rows: Index, cols: Index, bandwidth: float) -> Float64:
    """Kernel values at listed pairs."""
    difference = queries[rows].astype(np.float64) - keys[cols].astype(np.float64)
    return np.asarray(np.exp((difference**2).sum(axis=1) * (-0.5 / bandwidth**2)))


def scan_ranges(
    queries: Array,
    keys: Array,
    order: Index,
    start: Index,
    stop: Index,
    bandwidth: float,
    threshold: float,
) -> tuple[Index, Index, Float64]:
    """Pairs with kernel value >= threshold among a range of keys of each query."""
    lengths = stop - start
    rows = np.repeat(np.arange(len(queries), dtype=np.int64), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cols = order[np.repeat(start, lengths) + within]
    values = pair_kernel(queries, keys, rows, cols, bandwidth)
    kept = values >= threshold
    return rows[kept], cols[kept], values[kept]


def exp(x: Array) -> Array:
    """The exponential."""
    return np.asarray(np.exp(x))


def philox(seed: int, stream: int, first: int, n: int) -> npt.NDArray[np.uint64]:
    """Philox4x64-10 words; NumPy's generator advances its counter before each block."""
    counter = (first - 1) % 2**256
    bits = np.random.Philox(counter=counter, key=seed | (stream << 64))
    return np.asarray(bits.random_raw(4 * n).reshape(n, 4))


def _moved(points: Array, centre: Float64 | None, factor: float) -> Float64:
    return np.asarray((points.astype(np.float64) - (0.0 if centre is None else centre)) * factor)
