"""NumPy twins of the compiled loops.

Every loop of :mod:`approxkmv.loops.compiled` has a function of the same name and arguments here:
the definition in a few lines, slow and plain. Tests compare the two; nothing else calls these.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.loops.compiled import LOOPS, Compiled
from approxkmv.loops.types import (
    Array,
    AttentionBlocks,
    AttentionDraws,
    AttentionHead,
    AttentionRates,
    AttentionSums,
    CellMoments,
    DrawPlan,
    Float32,
    Float64,
    FoundPairs,
    Geometry,
    Index,
    Index32,
    NewPairs,
    PairDraws,
    PilotMoments,
    PilotSums,
    SampledSums,
    Sketches,
    Smoothing,
    SmoothPart,
    TileSums,
    Tiling,
    WholePoints,
)


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
    function: KernelFunction = GAUSSIAN,
) -> TileSums:
    """Values at shifted scores times columns, in double precision throughout."""
    q = _moved(queries, query_centre, factor)
    k = _moved(keys, key_centre, factor)
    scores = _scores(q, k, differences)
    exponents = slope * scores - key_shift
    row_max = None
    if online:
        # The largest exponent first: beside the shift of a far query the others would be lost.
        largest = exponents.max(axis=1, initial=-np.inf)
        row_max = largest - query_shift
        query_shift = np.where(np.isfinite(row_max), largest, query_shift)
    exponents = exponents - query_shift[:, None]
    exponentials = function.value(np.minimum(exponents, ceiling))
    totals = exponentials.sum(axis=1) if row_sums or online else None
    columns = x.astype(np.float64)
    out = exponentials @ columns
    if squares:
        out[:, 1:] = exponentials**2 @ columns[:, 1:]
    return TileSums(out, totals, row_max)


def squared_norms(points: Array, centre: Float64, factor: float) -> Float64:
    """Squared norms of the points once moved and rounded to their own precision."""
    moved = _moved(points, centre, factor).astype(points.dtype).astype(np.float64)
    return np.asarray((moved**2).sum(axis=1))


def column_sums(x: Array) -> Float64:
    """Sums of the columns."""
    return np.asarray(x.sum(axis=0, dtype=np.float64))


def pair_kernel(
    queries: Array,
    keys: Array,
    rows: Index,
    cols: Index,
    bandwidth: float,
    function: KernelFunction = GAUSSIAN,
) -> Float64:
    """Kernel values at listed pairs."""
    difference = queries[rows].astype(np.float64) - keys[cols].astype(np.float64)
    return function.value((difference**2).sum(axis=1) * (-0.5 / bandwidth**2))


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


def tile_hits(geometry: Geometry, tiling: Tiling, threshold: float, known: FoundPairs) -> NewPairs:
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


def project(points: Array, index: Index32, centre: Float64, basis: Float32) -> Float32:
    """Inner products of moved points with directions."""
    moved = points[index].astype(np.float64) - centre
    return np.asarray(moved @ basis.astype(np.float64), np.float32)


def random_tiling(key_projections: Float32, query_projections: Float32) -> Tiling:
    """Cells of each level are cut at the upper median of their keys; below it is the left half.

    Of many keys, every so many: 2^14, or 2^6 for each cell.
    """
    n_keys, depth = key_projections.shape
    step = max(1, math.ceil(n_keys / max(2**14, 2 ** (depth + 6))))
    cells = [(np.arange(len(key_projections)), np.arange(len(query_projections)))]
    for of_key, of_query in zip(key_projections.T, query_projections.T, strict=True):
        halves = []
        for keys, queries in cells:
            some = np.sort(of_key[keys[keys % step == 0]])
            cut = some[len(some) // 2] if len(some) else 0.0
            below, left = of_key[keys] < cut, of_query[queries] < cut
            halves += [(keys[below], queries[left]), (keys[~below], queries[~left])]
        cells = halves
    return _tiling_of(cells)


def principal_tiling(keys: Array, queries: Array, depth: int) -> Tiling:
    """Each cell is cut at the upper median along about its keys' principal direction."""
    cells = [(np.arange(len(keys)), np.arange(len(queries)))]
    for _ in range(depth):
        halves = []
        for own, others in cells:
            direction = _principal_direction(keys[own].astype(np.float64))
            place, of_queries = keys[own] @ direction, queries[others] @ direction
            cut = np.sort(place)[len(place) // 2] if len(place) else 0.0
            below, left = place < cut, of_queries < cut
            halves += [(own[below], others[left]), (own[~below], others[~left])]
        cells = halves
    return _tiling_of(cells)


def _principal_direction(points: Float64) -> Float64:
    """Five steps of power iteration, from the point farthest from the mean; up to 256 points."""
    some = points[:: max(1, math.ceil(len(points) / 256))]
    if len(some) == 0:
        return np.zeros(points.shape[1])
    moved = some - some.mean(axis=0)
    direction = moved[np.argmax(np.square(moved).sum(axis=1))]
    for _ in range(5):
        direction = moved.T @ (moved @ direction)
        direction = direction / max(np.abs(direction).max(), np.finfo(float).tiny)
    return np.asarray(direction)


def _tiling_of(cells: list[tuple[Index, Index]]) -> Tiling:
    keys_of, queries_of = zip(*cells, strict=True)
    return Tiling(
        np.concatenate(queries_of).astype(np.int32),
        np.concatenate(keys_of).astype(np.int32),
        np.cumsum([0, *map(len, queries_of)]),
        np.cumsum([0, *map(len, keys_of)]),
    )


def cell_squares(queries: CellMoments, keys: CellMoments) -> Float64:
    """The product over axes, in logarithms; means over the cells of both groups."""
    mean, variance = (
        (q[:, :, None].astype(np.float64), k[:, None].astype(np.float64))
        for q, k in ((queries.mean, keys.mean), (queries.variance, keys.variance))
    )
    wide = 1 + 2 * (variance[0] + variance[1])
    square = np.exp(-(0.5 * np.log(wide) + (mean[0] - mean[1]) ** 2 / wide).sum(axis=0))
    square *= np.outer(queries.weight, keys.weight)
    of_groups = [square[a:b].sum(axis=0) for a, b in pairwise(queries.start)]
    return np.stack(
        [np.stack(of_groups)[:, a:b].sum(axis=1) for a, b in pairwise(keys.start)], axis=1
    )


def pilot_rows(
    geometry: Geometry,
    rows: Index32,
    key_order: Index32,
    tile_start: Index,
    weights: Array,
    threshold: float,
    x: Array | None = None,
) -> PilotSums:
    """Whole rows of the matrix, summed tile by tile."""
    values = np.exp(np.minimum(_exponents(geometry)[rows], 0.0))
    tiles = [key_order[a:b] for a, b in pairwise(tile_start)]
    near_row, near_col = np.nonzero(values >= threshold)

    def sums(values: Float64) -> Float64:
        return np.array([values[:, keys] @ weights[keys].astype(np.float64) for keys in tiles])

    pilot = PilotSums(
        sums(values**2),
        near_row.astype(np.int32),
        near_col.astype(np.int32),
        values[near_row, near_col].astype(np.float32),
    )
    if x is None:
        return pilot
    scale, z = (part[rows] for part in _smooth_terms(geometry))
    scale = np.where(values < threshold, scale, 0.0)
    powers = [sums(values * scale * z**k) for k in range(3)]
    powers += [sums(scale**2 * z**k) for k in range(5)]
    return pilot._replace(
        products=values[:, key_order] @ x[key_order].astype(np.float64),
        powers=np.stack(powers, axis=-1),
    )


def tile_moments(
    geometry: Geometry, key_order: Index32, tile_start: Index, weights: Array
) -> Array:
    """Sums of outer products of the points of a tile, each with a 1 appended."""
    keys = _moved(geometry.keys, geometry.centre, geometry.factor)
    weight = weights.astype(np.float64) * np.exp(-geometry.key_shift)
    # A point out of reach has no weight, but may overflow.
    points = np.where(weight[:, None] != 0, np.column_stack((keys, np.ones(len(keys)))), 0.0)
    lower = np.tril_indices(points.shape[1])
    tiles = [key_order[a:b] for a, b in pairwise(tile_start)]
    return np.array([((points[j].T * weight[j]) @ points[j])[lower] for j in tiles])


def cell_pairs(
    queries: Array,
    keys: Array,
    bandwidth: float,
    threshold: float,
    sketches: Sketches,
    tiling: Tiling,
    known: FoundPairs,
    *,
    mirrored: bool = False,
) -> NewPairs:
    """Pairs whose sketches share a cell and lie within the radius, if near and not known."""
    apart = sketches.queries[:, None].astype(np.float64) - sketches.keys
    within = (apart**2).sum(axis=-1) <= sketches.radius_squared[:, None]
    if mirrored:
        place = np.argsort(tiling.query_order)
        within = (within | within.T) & (place[:, None] < place)
    wanted = np.zeros((len(queries), len(keys)), np.bool_)
    for cell in range(len(tiling.key_start) - 1):
        some = tiling.query_order[tiling.query_start[cell] : tiling.query_start[cell + 1]]
        others = tiling.key_order[tiling.key_start[cell] : tiling.key_start[cell + 1]]
        block = np.ix_(sketches.query_index[some], sketches.key_index[others])
        wanted[block] = within[np.ix_(some, others)]
    wanted[known.rows, known.cols] = False
    rows, cols = wanted.nonzero()
    values = pair_kernel(queries, keys, rows, cols, bandwidth)
    near = values >= threshold
    return (
        rows[near].astype(np.int32),
        cols[near].astype(np.int32),
        values[near].astype(np.float32),
    )


def neighbours_of_neighbours(
    queries: Array,
    keys: Array,
    bandwidth: float,
    known: FoundPairs,
    *,
    least: float,
    width: int,
    of_keys: bool = False,
    threshold: float,
    point_order: Index32 | None = None,
) -> NewPairs:
    """Leading keys of the first ``width`` queries that share a leading key; or the other way."""
    leading = np.zeros((len(queries), len(keys)), np.bool_)
    leading[known.rows, known.cols] = known.values >= np.float32(least)
    wanted = _through_neighbours(leading, width)
    if of_keys:
        wanted = _through_neighbours(leading.T, width, backwards=True).T
        count = leading.sum(axis=0)
        most = np.max(leading * count, axis=1, initial=0)  # of the keys of each query
        wanted &= (leading & (count < most[:, None])).any(axis=0)
    wanted[known.rows, known.cols] = False
    rows, cols = wanted.nonzero()
    values = pair_kernel(queries, keys, rows, cols, bandwidth)
    kept = values >= threshold
    return (
        rows[kept].astype(np.int32),
        cols[kept].astype(np.int32),
        values[kept].astype(np.float32),
    )


def _through_neighbours(
    leading: npt.NDArray[np.bool_], width: int, *, backwards: bool = False
) -> npt.NDArray[np.bool_]:
    """Partners of the first ``width`` others, or the last, that share a partner with a point."""
    step = -1 if backwards else 1
    own = [np.flatnonzero(partners)[::step] for partners in leading]
    others_of = [np.flatnonzero(points)[::step] for points in leading.T]
    reached = np.zeros_like(leading)
    for point, partners in enumerate(own):
        sharing = [other for partner in partners for other in others_of[partner].tolist()]
        met = [other for other in dict.fromkeys(sharing) if other != point][:width]
        reached[point] = leading[met].any(axis=0)
    return reached


def nearest_keys(geometry: Geometry, width: int) -> Index32:
    """The first columns of a stable sort of the exponents, largest first."""
    order = np.argsort(-_exponents(geometry), axis=1, kind="stable")
    return np.ascontiguousarray(order[:, :width], dtype=np.int32)


def linked_pairs(
    queries: Array,
    keys: Array,
    bandwidth: float,
    known: FoundPairs,
    links: FoundPairs,
    *,
    width: int,
    threshold: float,
) -> NewPairs:
    """Keys that ``links`` lists for a query's nearest ``width`` known keys, rows ascending."""
    rows, cols = [], []
    for row, (a, b) in enumerate(pairwise(known.indptr)):
        leading = known.cols[a:b][np.argsort(-known.values[a:b], kind="stable")[:width]]
        linked = [links.cols[links.indptr[key] : links.indptr[key + 1]] for key in leading]
        new = np.setdiff1d(np.concatenate([*linked, np.empty(0, np.int32)]), known.cols[a:b])
        rows += [row] * len(new)
        cols += new.tolist()
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


def sampled_product(
    geometry: Geometry,
    plan: DrawPlan,
    found: FoundPairs,
    x: Array,
    smooth: SmoothPart | None = None,
    *,
    blocks: Index | None = None,
    into: SampledSums | None = None,
) -> SampledSums:
    """Sum of drawn terms over their probabilities, and found pairs exactly instead."""
    n_blocks, n_keys = len(plan.block_start) - 1, len(x)
    exponentials = np.exp(np.minimum(_exponents(geometry), 0.0))
    signed = x.astype(np.float64)
    lengths = np.square(signed).sum(axis=1)
    n_queries = len(geometry.queries)
    y, variance, mass, n_drawn = into or (
        np.zeros((n_queries, x.shape[1])),
        np.zeros(n_queries),
        np.zeros(n_queries),
        np.zeros(n_blocks, np.int64),
    )
    tile_of = np.empty(n_keys, np.int64)
    tiles = np.arange(len(plan.tile_start) - 1)
    tile_of[plan.key_order] = np.repeat(tiles, np.diff(plan.tile_start))
    for block in range(n_blocks) if blocks is None else blocks.tolist():
        pi = _drawn_probabilities(plan, block, plan.size.astype(np.float64))
        drawn = pi > 0
        n_drawn[block] = drawn.sum()
        inverse = np.divide(1.0, pi, out=np.zeros_like(pi), where=drawn)
        weight = signed * inverse[:, None]
        left = lengths * inverse * (1 - pi)
        spread = left * inverse
        rows = plan.query_order[plan.block_start[block] : plan.block_start[block + 1]]
        part = np.zeros((len(rows), n_keys))
        if smooth is not None:
            scale, z = (term[rows] for term in _smooth_terms(geometry))
            g = smooth.coefficients[block, tile_of].T.astype(np.float64)
            part = scale * (g[0] + g[1] * z + g[2] * z**2)
            y[rows] = part @ (signed - weight)
        for row, of_row in zip(rows, part, strict=True):
            near = found.cols[found.indptr[row] : found.indptr[row + 1]]
            value = found.values[found.indptr[row] : found.indptr[row + 1]].astype(np.float64)
            # The score of a found pair comes from its value: none where that underflows.
            found_rest = value - np.where(value > 0, of_row[near], 0.0)
            y[row] += exponentials[row] @ weight + found_rest @ (signed[near] - weight[near])
            squares = (exponentials[row] - of_row) ** 2
            squares[near] -= found_rest**2
            variance[row] = squares @ spread
            mass[row] = squares @ left
    return SampledSums(y, variance, mass, n_drawn)


def reduced_product(few: Geometry, whole: WholePoints, draws: PairDraws, x: Array) -> SampledSums:
    """All pairs of H, and drawn pairs of K - H over their probabilities."""
    exponents = _exponents(few)
    cheap = np.where(exponents >= draws.floor, np.exp(np.minimum(exponents, 0.0)), 0.0)
    queries = whole.queries[whole.query_index].astype(np.float64)
    keys = whole.keys[whole.key_index].astype(np.float64)
    exact = np.exp(-0.5 / whole.bandwidth**2 * _scores(queries, keys, differences=True))
    pi, drawn = pair_draws(cheap, draws)
    own = np.flatnonzero(whole.own >= 0), whole.own[whole.own >= 0]
    pi[own], drawn[own] = 1.0, True
    term = np.divide(exact - cheap, pi, out=np.zeros_like(pi), where=drawn)
    drawn[own] = False
    signed = x.astype(np.float64)
    lengths = np.square(signed).sum(axis=1)
    return SampledSums(
        (cheap + term) @ signed,
        ((1 - pi) * term**2) @ lengths,
        (pi * (1 - pi) * term**2) @ lengths,
        drawn.sum(axis=1),
    )


def pair_draws(cheap: Float64, draws: PairDraws) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Probabilities of all pairs of a matrix, and which of them are drawn.

    A pair has a word made of those of its query and its key, with 24 bits: probabilities are
    multiples of 2^-24. Pairs whose value is 0 are drawn by gaps, geometrically distributed.
    """
    n_queries, n_keys = cheap.shape
    pi = np.minimum(1.0, draws.size.astype(np.float64) * (draws.rate * cheap))
    pi = np.ceil(pi * 2.0**24) * 2.0**-24
    rows, cols = (
        _words(draws, side, 0, n) >> np.uint64(32) for side, n in enumerate((n_queries, n_keys))
    )
    mixed = (rows[:, None] ^ cols) * np.uint64(2654435769) % np.uint64(2**32)
    drawn = (mixed >> np.uint64(8)).astype(np.float64) * 2.0**-24 < pi
    blind = np.zeros_like(drawn)
    key, n_moves = np.full(n_queries, -1.0), 0
    while draws.least > 0 and (key < n_keys).any():
        uniform = ((_words(draws, 2, n_moves, n_queries) >> np.uint64(11)) + 0.5) * 2.0**-53
        key += 1 + np.floor(np.log(uniform) / np.log1p(-draws.least))
        n_moves += 1
        within = np.flatnonzero(key < n_keys)
        blind[within, key[within].astype(np.int64)] = True
    none = cheap == 0
    return np.where(none, draws.least, pi), np.where(none, blind, drawn)


def _words(draws: PairDraws, side: int, n_moves: int, n: int) -> npt.NDArray[np.uint64]:
    return philox(draws.seed, draws.stream, (side << 64) + (n_moves << 128), n)[:, 0]


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


def _smooth_terms(geometry: Geometry) -> tuple[Float64, Float64]:
    """Scales and scores (n_queries, n_keys) of the polynomial; no score where the scale is 0."""
    shift = geometry.query_shift[:, None] + geometry.key_shift
    scores = _exponents(geometry) + np.where(np.isfinite(shift), shift, 0.0)
    return np.exp(-shift), np.where(np.isfinite(scores), scores, 0.0)


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
    used = queries[heads[:, 0]] if queries.shape[1] else queries[:0]
    looked_at = (used, keys, values) if used.shape[0] else ()
    largest = np.zeros(3)
    for i, entries in enumerate(looked_at):
        sizes = np.abs(entries)
        largest[i] = sizes.max(initial=0.0) if np.isfinite(sizes).all() else np.nan
    return AttentionSums(out, log_normalizer, largest)


def attention_pilot(
    head: AttentionHead, blocks: AttentionBlocks, rows: Index32, smoothing: Smoothing
) -> PilotMoments:
    """Exact rows; squared error of a row that misses a key, pooled over neighbouring keys."""
    n_blocks, n_keys = len(blocks.band_start), len(head.keys)
    scores, values = _attention_scores(head, blocks), _moved_values(head)
    weights = _softmax(scores[rows])
    outputs = weights @ values
    apart = ((values - outputs[:, None]) ** 2).sum(axis=-1)
    spread = (weights * apart).sum(axis=1, keepdims=True)
    moment, guarded = (
        np.zeros((n_blocks, n_keys), np.float32),
        np.zeros((n_blocks, n_keys), np.float32),
    )
    means = np.zeros(n_blocks)
    per_block = len(rows) // n_blocks
    free = _outside_band(head, blocks)
    for b in range(n_blocks):
        used = slice(b * per_block, (b + 1) * per_block - smoothing.check_rows)
        n = int(np.isfinite(scores[_block(blocks, b)]).any(axis=0).sum())
        used_weights = weights[used][:, blocks.key_order]
        squares = (used_weights / np.maximum(1 - used_weights, 1e-3)) ** 2
        distance = apart[used][:, blocks.key_order]
        for to, guard in ((moment, smoothing.plan_guard), (guarded, smoothing.guard)):
            row = (squares * (distance + guard * spread[used])).mean(axis=0)[:n]
            row[~free[b, :n]] = 0
            to[b, :n] = row
        raw = guarded[b, :n].astype(np.float64)
        means[b] = raw.sum() / max(1, free[b].sum())
        moment[b, :n] = _pooled(moment[b, :n], smoothing.narrow)
        rest = 1 - smoothing.raw_share - smoothing.wide_share
        guarded[b, :n] = (
            smoothing.raw_share * raw
            + rest * _pooled(raw, smoothing.narrow)
            + smoothing.wide_share * _pooled(raw, smoothing.wide)
            + smoothing.floor_share * means[b]
        )
    return PilotMoments(outputs, moment, guarded, means)


def rate_histogram(
    blocks: AttentionBlocks, moment: Float32, guarded: Float32, floor: float
) -> tuple[Float64, Float64]:
    """Counts and sums of moments by the leading bits of ``guarded + floor``."""
    n_bins = 0x7F800000 >> 19
    pairs, variance = np.zeros(n_bins), np.zeros(n_bins)
    n_keys = moment.shape[1]
    for b, n_rows in enumerate(np.diff(blocks.start)):
        position = np.arange(n_keys)
        last = blocks.query_order[blocks.start[b + 1] - 1]
        free = (position < blocks.band_start[b]) | (position >= blocks.band_stop[b])
        free &= (position <= last) | (not blocks.causal)
        bins = (guarded[b, free] + np.float32(floor)).view(np.uint32) >> 19
        pairs += np.bincount(bins, minlength=n_bins) * float(n_rows)
        variance += np.bincount(bins, moment[b, free].astype(np.float64), n_bins) * float(n_rows)
    return pairs, variance


def attention_draw(
    head: AttentionHead,
    blocks: AttentionBlocks,
    rates: AttentionRates,
    *,
    chosen: Index | None = None,
    into: AttentionDraws | None = None,
) -> AttentionDraws:
    """Softmax over drawn keys, their exponentials divided by the probabilities."""
    n_queries = len(head.queries)
    scores, values = _attention_scores(head, blocks), _moved_values(head)
    out, variance, bound, total_variance, n_drawn = into or (
        np.zeros((n_queries, values.shape[1])),
        np.zeros(n_queries),
        np.zeros(n_queries),
        np.zeros(n_queries),
        np.zeros(len(blocks.band_start), np.int64),
    )
    for b in range(len(n_drawn)) if chosen is None else chosen.tolist():
        rows = _block(blocks, b)
        pi = _attention_probabilities(head, blocks, rates, b)
        drawn = pi > 0
        n_drawn[b] = drawn.sum()
        keys, pi = blocks.key_order[drawn], pi[drawn].astype(np.float64)
        weights = _softmax(scores[np.ix_(rows, keys)] - np.log(pi))
        out[rows] = weights @ values[keys]
        squares = weights**2 * (1 - pi)
        apart = ((values[keys] - out[rows][:, None]) ** 2).sum(axis=-1)
        from_point = ((values[keys] - rates.near[b]) ** 2).sum(axis=1)
        moved = ((out[rows] - rates.near[b]) ** 2).sum(axis=1)
        variance[rows] = (squares * apart).sum(axis=1)
        total_variance[rows] = squares.sum(axis=1)
        bound[rows] = squares @ from_point + moved * total_variance[rows]
    return AttentionDraws(out, variance, bound, total_variance, n_drawn)


def _attention_probabilities(
    head: AttentionHead, blocks: AttentionBlocks, rates: AttentionRates, b: int
) -> Float32:
    """Probabilities of drawn keys by position, 0 for all others.

    The running sum of the probabilities starts at the word of Philox with counter (b, 0, 0, 0); a
    key is drawn where it reaches 1, which is then taken off.
    """
    free = _outside_band(head, blocks)[b]
    least = np.float32(min(1.0, rates.least / max(1, free.sum())))
    root = np.sqrt(rates.guarded[b % len(rates.guarded)] + np.float32(rates.floor))
    pi = np.clip(np.float32(rates.rate) * root, least, np.float32(1))
    bits = np.random.Philox(counter=(b - 1) % 2**256, key=rates.seed | (rates.stream << 64))
    running = (int(bits.random_raw()) >> 11) * 2.0**-53
    drawn = np.zeros(len(pi), np.float32)
    for j in free.nonzero()[0]:
        running += float(pi[j])
        if running >= 1:
            running -= 1
            drawn[j] = pi[j]
    drawn[blocks.band_start[b] : blocks.band_stop[b]] = 1
    return drawn


def _outside_band(head: AttentionHead, blocks: AttentionBlocks) -> npt.NDArray[np.bool_]:
    """Positions that some row of a block sees and that are not in its band, (n_blocks, n_keys)."""
    position = np.arange(len(head.keys))
    last = blocks.query_order[blocks.start[1:] - 1][:, None]
    seen = (position <= last) | (not blocks.causal)
    band = (position >= blocks.band_start[:, None]) & (position < blocks.band_stop[:, None])
    return np.asarray(seen & ~band)


def _block(blocks: AttentionBlocks, b: int) -> Index32:
    return blocks.query_order[blocks.start[b] : blocks.start[b + 1]]


def _attention_scores(head: AttentionHead, blocks: AttentionBlocks) -> Float64:
    q = _moved(head.queries, head.query_centre, head.scale)
    scores = q @ _moved(head.keys, head.key_centre, 1.0).T
    if blocks.causal:
        hidden = np.arange(len(head.keys)) > np.arange(len(head.queries))[:, None]
        scores[hidden] = -np.inf
    return np.asarray(scores)


def _moved_values(head: AttentionHead) -> Float64:
    return _moved(head.values, head.value_centre, head.value_factor)


def _softmax(scores: Float64) -> Float64:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _pooled(row: npt.NDArray[np.floating], half: int) -> Float64:
    """Means over ``half`` neighbours on either side, fewer at the ends."""
    running = np.append(0.0, np.cumsum(row, dtype=np.float64))
    low = np.maximum(np.arange(len(row)) - half, 0)
    high = np.minimum(np.arange(len(row)) + half + 1, len(row))
    return np.asarray((running[high] - running[low]) / (high - low))


def exp(x: Array) -> Array:
    """The exponential."""
    return np.asarray(np.exp(x))


def power_of_two(x: Array) -> Array:
    """Powers of two."""
    return np.asarray(np.exp2(x))


def largest_magnitude(x: Array) -> float:
    """Largest absolute value of a vector; NaN where an entry is not finite."""
    return float(np.abs(x).max(initial=0.0)) if np.isfinite(x).all() else math.nan


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


class Reference(Compiled):
    """The twins as a backend: the whole engine runs on it, slowly."""


for _name in LOOPS:  # a loop without a twin is an error at import
    setattr(Reference, _name, staticmethod(globals()[_name]))
