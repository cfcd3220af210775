"""NumPy twins of the compiled leaves.

Every loop of :mod:`approxkmv.leaves` has a function of the same name and arguments here: the
definition in a few lines, slow and plain. Tests compare the two; nothing else calls these.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from approxkmv.leaves import (
    Array,
    AttentionSums,
    DrawPlan,
    Float32,
    Float64,
    FoundPairs,
    Geometry,
    Index,
    Index32,
    SampledSums,
    TileSums,
    Tiling,
)

__all__ = [
    "attention",
    "exp",
    "merge_pairs",
    "neighbours_of_neighbours",
    "pair_kernel",
    "philox",
    "random_tiling",
    "sampled_product",
    "scan_ranges",
    "squared_norms",
    "tile_hits",
    "tile_product",
]


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
    squares: bool = False,
) -> TileSums:
    """Exponentials of shifted scores times columns, in double precision throughout."""
    q = _moved(queries, query_centre, factor)
    k = _moved(keys, key_centre, factor)
    scores = _scores(q, k, differences)
    exponents = slope * scores - query_shift[:, None] - key_shift
    row_max = None
    if online:
        row_max = exponents.max(axis=1, initial=-np.inf)
        exponents = exponents - np.where(np.isfinite(row_max), row_max, 0.0)[:, None]
    exponentials = np.exp(np.minimum(exponents, ceiling))
    totals = exponentials.sum(axis=1) if row_sums or online else None
    columns = x.astype(np.float64)
    out = exponentials @ columns
    if squares:
        out[:, 1] = exponentials**2 @ columns[:, 1]
    return TileSums(out, totals, row_max)


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


def random_tiling(key_projections: Float32, query_projections: Float32) -> Tiling:
    """Cells of each level are cut at the upper median of their keys; below it is the left half."""
    cells = [(np.arange(key_projections.shape[1]), np.arange(query_projections.shape[1]))]
    for of_key, of_query in zip(key_projections, query_projections, strict=True):
        halves = []
        for keys, queries in cells:
            cut = np.sort(of_key[keys])[len(keys) // 2] if len(keys) else 0.0
            below, left = of_key[keys] < cut, of_query[queries] < cut
            halves += [(keys[below], queries[left]), (keys[~below], queries[~left])]
        cells = halves
    keys_of, queries_of = zip(*cells, strict=True)
    return Tiling(
        np.concatenate(queries_of).astype(np.int32),
        np.concatenate(keys_of).astype(np.int32),
        np.cumsum([0, *map(len, queries_of)]),
        np.cumsum([0, *map(len, keys_of)]),
    )


def tile_hits(
    geometry: Geometry, tiling: Tiling, threshold: float, known: FoundPairs
) -> tuple[Index32, Index32, Float32]:
    """Pairs of the same cell with kernel value >= threshold that are not known."""
    n_queries, n_keys = len(geometry.queries), len(geometry.keys)
    exponents = _exponents(geometry)
    wanted = np.zeros((n_queries, n_keys), np.bool_)
    for cell in range(len(tiling.key_start) - 1):
        queries = tiling.query_order[tiling.query_start[cell] : tiling.query_start[cell + 1]]
        keys = tiling.key_order[tiling.key_start[cell] : tiling.key_start[cell + 1]]
        wanted[np.ix_(queries, keys)] = True
    wanted &= exponents >= np.log(threshold)
    wanted[known.rows, known.cols] = False
    rows, cols = wanted.nonzero()
    values = np.exp(np.minimum(exponents[rows, cols], 0.0))
    return rows.astype(np.int32), cols.astype(np.int32), values.astype(np.float32)


def neighbours_of_neighbours(
    queries: Array,
    keys: Array,
    bandwidth: float,
    known: FoundPairs,
    sharing_indptr: Index,
    sharing: Index32,
    *,
    least: float,
    width: int,
    threshold: float,
) -> tuple[Index32, Index32, Float32]:
    """Keys of queries that share one of a query's first ``width`` leading keys, rows ascending."""
    leading = known.values >= np.float32(least)
    of_query = [known.cols[a:b] for a, b in pairwise(known.indptr)]
    leading_of = [known.cols[a:b][leading[a:b]] for a, b in pairwise(known.indptr)]
    rows, cols = [], []
    for row in range(len(queries)):
        candidates: set[int] = set()
        for key in leading_of[row][:width]:
            others = sharing[sharing_indptr[key] : sharing_indptr[key + 1]]
            for other in others[others != row][:width]:
                candidates.update(leading_of[other].tolist())
        new = sorted(candidates.difference(of_query[row].tolist()))
        rows += [row] * len(new)
        cols += new
    values = pair_kernel(
        queries, keys, np.array(rows, np.int64), np.array(cols, np.int64), bandwidth
    )
    kept = values >= threshold
    return (
        np.array(rows, np.int32)[kept],
        np.array(cols, np.int32)[kept],
        values[kept].astype(np.float32),
    )


def merge_pairs(known: FoundPairs, rows: Index32, cols: Index32, values: Float32) -> FoundPairs:
    """Union by query, keys ascending; a pair that is known keeps its value."""
    all_rows = np.concatenate([known.rows, rows])
    all_cols = np.concatenate([known.cols, cols])
    all_values = np.concatenate([known.values, values])
    n_keys = int(all_cols.max(initial=0)) + 1
    _, first = np.unique(all_rows.astype(np.int64) * n_keys + all_cols, return_index=True)
    n_queries = len(known.indptr) - 1
    lengths = np.bincount(all_rows[first], minlength=n_queries)
    return FoundPairs(np.append(0, np.cumsum(lengths)), all_cols[first], all_values[first])


def sampled_product(geometry: Geometry, plan: DrawPlan, found: FoundPairs, x: Array) -> SampledSums:
    """Sum of drawn terms over their probabilities, and found pairs exactly instead."""
    n_blocks = len(plan.block_start) - 1
    exponentials = np.exp(np.minimum(_exponents(geometry), 0.0))
    signed = x.astype(np.float64)
    y = np.zeros(len(geometry.queries))
    variance = np.zeros(n_blocks)
    n_drawn = np.zeros(n_blocks, np.int64)
    for block in range(n_blocks):
        pi = _drawn_probabilities(plan, block, np.abs(signed))
        drawn = pi > 0
        n_drawn[block] = drawn.sum()
        weight, spread = np.zeros_like(signed), np.zeros_like(signed)
        weight[drawn] = signed[drawn] / pi[drawn]
        spread[drawn] = (signed[drawn] / pi[drawn]) ** 2 * (1 - pi[drawn])
        for row in plan.query_order[plan.block_start[block] : plan.block_start[block + 1]]:
            near = found.cols[found.indptr[row] : found.indptr[row + 1]]
            value = found.values[found.indptr[row] : found.indptr[row + 1]].astype(np.float64)
            y[row] = exponentials[row] @ weight + value @ (signed[near] - weight[near])
            variance[block] += exponentials[row] ** 2 @ spread - value**2 @ spread[near]
    return SampledSums(y, variance, n_drawn)


def _drawn_probabilities(plan: DrawPlan, block: int, size: Float64) -> Float64:
    """Inclusion probabilities of the keys drawn for a block, 0 for all others.

    In each tile points ``(u + 0, 1, 2, ...) / rate`` fall on the running sums of ``size``, u being
    the word of Philox with counter (block, tile, 0, 0); a key is drawn if one falls on its part.
    """
    edges = np.append(0.0, np.cumsum(size[plan.key_order]))
    pi = np.zeros_like(size)
    for tile, rate in enumerate(plan.rate[block].astype(np.float64)):
        first, last = plan.tile_start[tile], plan.tile_start[tile + 1]
        if not rate * (edges[last] - edges[first]) > 0:
            continue
        # NumPy's generator advances its counter before the first word.
        counter = (block + (tile << 64) - 1) % 2**256
        bits = np.random.Philox(counter=counter, key=plan.seed | (plan.stream << 64))
        start = (int(bits.random_raw()) >> 11) * 2.0**-53 / rate
        part = edges[first : last + 1] - edges[first]
        points = np.maximum(0.0, np.ceil((part[:-1] - start) * rate))
        keys = plan.key_order[first:last][start + points / rate < part[1:]]
        pi[keys] = np.minimum(1.0, rate * size[keys])
    return pi


def _exponents(geometry: Geometry) -> Float64:
    q = _moved(geometry.queries, geometry.centre, geometry.factor)
    k = _moved(geometry.keys, geometry.centre, geometry.factor)
    scores = _scores(q, k, geometry.differences)
    return np.asarray(geometry.slope * scores - geometry.query_shift[:, None] - geometry.key_shift)


def attention(
    queries: Array,
    keys: Array,
    values: Array,
    heads: Index,
    *,
    scale: float,
    is_causal: bool = False,
    mask: Array | npt.NDArray[np.bool_] | None = None,
) -> AttentionSums:
    """Softmax of masked scores times values, in double precision, one head after the other."""
    n_queries, n_keys = queries.shape[1], keys.shape[1]
    out = np.zeros((len(heads), n_queries, values.shape[2]))
    log_normalizer = np.full((len(heads), n_queries), -np.inf)
    for head, (of_query, of_key, of_value, of_mask) in enumerate(heads):
        scores = scale * (queries[of_query].astype(np.float64) @ keys[of_key].T.astype(np.float64))
        if mask is not None and mask.dtype == np.bool_:
            scores = np.where(mask[of_mask], scores, -np.inf)
        elif mask is not None:
            scores = scores + mask[of_mask]
        if is_causal:
            scores = np.where(np.tri(n_queries, n_keys, dtype=np.bool_), scores, -np.inf)
        largest = scores.max(axis=1, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0)[:, None])
        totals = weights.sum(axis=1)
        seen = totals > 0
        out[head, seen] = weights[seen] @ values[of_value].astype(np.float64) / totals[seen, None]
        log_normalizer[head, seen] = largest[seen] + np.log(totals[seen])
    return AttentionSums(out, log_normalizer)


def exp(x: Array) -> Array:
    """The exponential."""
    return np.asarray(np.exp(x))


def philox(seed: int, stream: int, first: int, n: int) -> npt.NDArray[np.uint64]:
    """Philox4x64-10 words; NumPy's generator advances its counter before each block."""
    counter = (first - 1) % 2**256
    bits = np.random.Philox(counter=counter, key=seed | (stream << 64))
    return np.asarray(bits.random_raw(4 * n).reshape(n, 4))


def _scores(queries: Float64, keys: Float64, differences: bool) -> Float64:
    if differences:
        return np.asarray(((queries[:, None] - keys) ** 2).sum(axis=-1))
    return np.asarray(queries @ keys.T)


def _moved(points: Array, centre: Float64 | None, factor: float) -> Float64:
    return np.asarray((points.astype(np.float64) - (0.0 if centre is None else centre)) * factor)
