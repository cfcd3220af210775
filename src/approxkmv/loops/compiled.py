"""The compiled loops: one method each, with the instruction set and the threads they run with.

Each method of :class:`Compiled` has a NumPy twin of the same name and arguments in
:mod:`approxkmv.loops.reference`. Arrays are C-contiguous and already checked. The core reads named
tuples, and how a loop runs (``self``), by the names of their fields: see ``cpp/bindings``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from inspect import isfunction

import numpy as np
import numpy.typing as npt

from approxkmv import _core
from approxkmv._threads import default_threads
from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.loops.types import (
    Array,
    AttentionBlocks,
    AttentionDraws,
    AttentionHead,
    AttentionRates,
    AttentionSums,
    CellMoments,
    Check,
    DrawPlan,
    Expansion,
    Exponents,
    Float32,
    Float64,
    FoundPairs,
    Geometry,
    HeadSets,
    Index,
    Index32,
    NewPairs,
    PairDraws,
    PairKernel,
    PilotMoments,
    PilotRows,
    PilotSums,
    SampledSums,
    Sketches,
    Smoothing,
    SmoothPart,
    TileSums,
    Tiling,
    WholePoints,
)


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


@dataclass(frozen=True)
class Compiled:
    """The loops, and how they run: what they compute depends on none of these but the rounding.

    Long loops call ``check`` about fifty times a second; what it raises ends them.
    """

    n_threads: int | None = None  # None: all cores, or threadpoolctl's limit
    isa: str = ISA
    check: Check = None

    @property
    def threads(self) -> int:
        """Threads of the next loop."""
        return self.n_threads or default_threads()

    def checked(self, check: Check) -> Compiled:
        """The same loops, ended by what ``check`` raises."""
        return replace(self, check=check)

    def tile_product(
        self,
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
        squares: bool = False,
        function: KernelFunction = GAUSSIAN,
    ) -> TileSums:
        r"""Sum over keys of :math:`\exp(slope\cdot s_{ij} - a_i - b_j)\,x_j`, without the matrix.

        Here :math:`s_{ij}` is the inner product of ``(q_i - query_centre) * factor`` and ``(k_j -
        key_centre) * factor``, or their squared distance with ``differences``; a and b are
        ``query_shift`` and ``key_shift``; the exponent is cut at ``ceiling``. With ``online`` the
        largest exponent of each row is taken out and returned as ``row_max``. With ``squares`` x
        has three columns, and the last two are multiplied by the squared exponentials.

        For another ``function`` than the Gaussian the exponential is its value at this exponent,
        which is at most 0; neither ``online`` nor ``squares`` may be asked for.
        """
        dtype = keys.dtype
        zero = np.zeros(keys.shape[1])
        exponents = Exponents(
            query_shift,
            key_shift,
            zero if query_centre is None else query_centre,
            zero if key_centre is None else key_centre,
            factor,
            slope,
            ceiling,
            differences,
            online,
            squares,
            function,
        )
        sums = TileSums(
            np.empty((len(queries), x.shape[1]), dtype),
            np.empty(len(queries), dtype) if row_sums or online else None,
            np.empty(len(queries), dtype) if online else None,
        )
        _core.tile_product(queries, keys, x, exponents, sums, self)
        return sums

    def squared_norms(self, points: Array, centre: Float64, factor: float) -> Float64:
        """Squared norms of ``(points - centre) * factor`` as the tiles see them, in double."""
        out = np.empty(len(points))
        _core.squared_norms(points, centre, factor, out, self)
        return out

    def column_sums(self, x: Array) -> Float64:
        """Sums of the columns in double precision, where NumPy converts an entry at a time."""
        out = np.empty(x.shape[1])
        _core.column_sums(x, out, self)
        return out

    def pair_kernel(
        self,
        queries: Array,
        keys: Array,
        rows: Index,
        cols: Index,
        bandwidth: float,
        function: KernelFunction = GAUSSIAN,
    ) -> Float64:
        """Kernel values at listed pairs, by direct differences."""
        out = np.empty(len(rows))
        kernel = PairKernel(queries, keys, -0.5 / bandwidth**2, function)
        _core.pair_kernel(kernel, rows, cols, out, self)
        return out

    def scan_ranges(
        self,
        queries: Array,
        keys: Array,
        order: Index,
        start: Index,
        stop: Index,
        bandwidth: float,
        threshold: float,
    ) -> tuple[Index, Index, Float64]:
        """Pairs of value >= threshold among keys ``order[start[i]:stop[i]]`` of each query."""
        kernel = PairKernel(queries, keys, -0.5 / bandwidth**2, GAUSSIAN)
        rows, cols, values = _core.scan_ranges(kernel, order, start, stop, threshold, self)
        return rows, cols, values

    def tile_hits(
        self, geometry: Geometry, tiling: Tiling, threshold: float, known: FoundPairs
    ) -> NewPairs:
        """Pairs (rows, cols, values) from the threshold on in cells of the tiling, not known."""
        return _core.tile_hits(geometry, tiling, float(np.log(threshold)), known, self)

    def project(self, points: Array, index: Index32, centre: Float64, basis: Float32) -> Float32:
        """Projections (len(index), n_directions) of listed points on the columns of ``basis``."""
        out = np.empty((len(index), basis.shape[1]), np.float32)
        _core.project(points, index, centre, basis, out, self)
        return out

    def random_tiling(self, key_projections: Float32, query_projections: Float32) -> Tiling:
        """Cut keys at the medians of their projections, level by level; queries follow the cuts.

        Projections are (n_points, depth): all cells of one level are cut along the same direction.
        Of more than 2^14 keys some tell the medians, 2^6 or more for each cell.
        """
        n_keys, depth = key_projections.shape
        tiling = _empty_tiling(len(query_projections), n_keys, depth)
        _core.random_tiling(key_projections, query_projections, tiling, self)
        return tiling

    def principal_tiling(self, keys: Array, queries: Array, depth: int) -> Tiling:
        """Cut keys at medians along the direction in which those of each cell spread most.

        Queries follow the cuts. A direction is found by five steps of power iteration with up to
        256 keys of the cell, from the one farthest from their mean.
        """
        tiling = _empty_tiling(len(queries), len(keys), depth)
        _core.principal_tiling(keys, queries, depth, tiling, self)
        return tiling

    def cell_squares(self, queries: CellMoments, keys: CellMoments) -> Float32:
        r"""Means of K^2 over pairs of groups of cells, as if cells were normally distributed.

        With means :math:`\delta` apart and both variances together :math:`s^2` a pair of cells has
        :math:`\prod_l(1+2s_l^2)^{-1/2}\exp(-\delta_l^2/(1+2s_l^2))`.
        """
        out = np.empty((len(queries.start) - 1, len(keys.start) - 1), np.float32)
        _core.cell_squares(queries, keys, out, self)
        return out

    def pilot_rows(
        self,
        geometry: Geometry,
        rows: Index32,
        key_order: Index32,
        tile_start: Index,
        weights: Array,
        threshold: float,
        x: Array | None = None,
    ) -> PilotSums:
        r"""Weighted squares of some rows of the matrix, summed over tiles, and their near pairs.

        With ``x`` also the product of these rows, and the weighted sums of :math:`KDz^k` for k = 0,
        1, 2 and of :math:`D^2z^k` for k = 0 to 4, where :math:`D_{ij}=e^{-u_i-v_j}` and z are those
        of :class:`SmoothPart`.
        """
        sums = np.empty((len(tile_start) - 1, len(rows), 1 if x is None else 10))
        pilot = PilotRows(rows, key_order, tile_start, weights, x, threshold)
        near = _core.pilot_rows(geometry, pilot, sums.reshape(-1), self)
        if x is None:
            return PilotSums(sums[:, :, 0], *near)
        return PilotSums(sums[:, :, 1], *near, sums[:, :, 0].sum(axis=0), sums[:, :, 2:])

    def tile_moments(
        self, geometry: Geometry, key_order: Index32, tile_start: Index, weights: Array
    ) -> Array:
        r"""Sums over tiles of :math:`w_je^{-v_j}p_jp_j^T`, where :math:`p_j=(k_j,1)`.

        Keys are centred and scaled; of the symmetric matrix the lower triangle is kept, row by row:
        products of coordinates, then the d coordinates themselves, then 1.
        """
        n_rows = geometry.keys.shape[1] + 1
        out = np.empty((len(tile_start) - 1, n_rows * (n_rows + 1) // 2), geometry.keys.dtype)
        _core.tile_moments(geometry, key_order, tile_start, weights, out, self)
        return out

    def cell_pairs(
        self,
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
        """Pairs (rows, cols, values) with value >= threshold, not yet known, that a tiling shows.

        Candidates are pairs in the same cell whose sketches lie within the query's radius; the
        tiling numbers the sketches, the answer the points. With ``mirrored`` the queries are the
        keys, and so are both sides of the tiling: two points are candidates if one lies within the
        other's radius, and are met once, as the pair whose query comes first in the tiling.
        """
        kernel = PairKernel(queries, keys, -0.5 / bandwidth**2, GAUSSIAN)
        return _core.cell_pairs(kernel, threshold, sketches, tiling, mirrored, known, self)

    def neighbours_of_neighbours(
        self,
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
        """Pairs with value >= threshold among keys of queries that share a key, not yet known.

        Only pairs of value >= ``least`` lead on, through the first ``width`` queries met.
        ``of_keys`` goes the other way, through the last keys met that share a query, for keys that
        fall behind: fewer queries lead to them than to another key of one of these. Points are
        taken in ``point_order``: neighbours one after the other find what they read in cache.
        """
        kernel = PairKernel(queries, keys, -0.5 / bandwidth**2, GAUSSIAN)
        if point_order is None:
            point_order = np.arange(len(keys if of_keys else queries), dtype=np.int32)
        expansion = Expansion(point_order, least, width, of_keys, threshold)
        return _core.neighbours_of_neighbours(kernel, known, expansion, self)

    def nearest_keys(self, geometry: Geometry, width: int) -> Index32:
        """Numbers (n_queries, width) of the nearest keys, nearest first; at most n_keys of them."""
        out = np.empty((len(geometry.queries), width), np.int32)
        _core.nearest_keys(geometry, out, self)
        return out

    def linked_pairs(
        self,
        queries: Array,
        keys: Array,
        bandwidth: float,
        known: FoundPairs,
        links: FoundPairs,
        *,
        width: int,
        threshold: float,
    ) -> NewPairs:
        """Pairs from the threshold on among keys that ``links`` lists for known keys, not known.

        Row j of ``links`` lists the keys linked to key j. The nearest ``width`` known keys lead on,
        the lower number first among equals.
        """
        kernel = PairKernel(queries, keys, -0.5 / bandwidth**2, GAUSSIAN)
        return _core.linked_pairs(kernel, known, links, width, threshold, self)

    def merge_pairs(
        self, known: FoundPairs, rows: Index32, cols: Index32, values: Float32
    ) -> FoundPairs:
        """Union of known pairs and a list of new ones, in any order and possibly repeated."""
        return FoundPairs(*_core.merge_pairs(known, rows, cols, values, self))

    def sampled_product(
        self,
        geometry: Geometry,
        plan: DrawPlan,
        found: FoundPairs,
        x: Array,
        smooth: SmoothPart | None = None,
        *,
        blocks: Index | None = None,
        into: SampledSums | None = None,
    ) -> SampledSums:
        """Unbiased product from drawn keys, with found pairs counted exactly.

        Of one column a polynomial may be taken out first: draws then estimate what is left. With
        ``blocks`` only these are drawn for; with ``into`` the sums of other blocks stay what they
        are there, otherwise they are 0.
        """
        n_blocks = len(plan.block_start) - 1
        n_queries = len(geometry.queries)
        sums = into or SampledSums(
            np.zeros((n_queries, x.shape[1]), x.dtype),
            np.zeros(n_queries),
            np.zeros(n_queries),
            np.zeros(n_blocks, np.int64),
        )
        listed = np.arange(n_blocks) if blocks is None else blocks
        _core.sampled_product(geometry, plan, listed, found, smooth, x, sums, self)
        return sums

    def reduced_product(
        self, few: Geometry, whole: WholePoints, draws: PairDraws, x: Array
    ) -> SampledSums:
        """Product with the matrix H of ``few``, and drawn pairs of K - H over their probabilities.

        ``few`` has inner products of points of few coordinates, K is the kernel matrix of the whole
        ones; rows and columns are in the order of the few. Pairs of a point with itself are not
        drawn, but counted exactly. Numbers of drawn pairs are those of every query.
        """
        n_queries = len(few.queries)
        sums = SampledSums(
            np.empty((n_queries, x.shape[1]), x.dtype),
            np.empty(n_queries),
            np.empty(n_queries),
            np.empty(n_queries, np.int64),
        )
        _core.reduced_product(few, whole, draws, x, sums, self)
        return sums

    def attention(
        self,
        queries: Array,  # (n_query_sets, m, d)
        keys: Array,  # (n_key_sets, n, d)
        values: Array,  # (n_value_sets, n, r)
        heads: Index,  # (n_heads, 4)
        *,
        scale: float,
        is_causal: bool = False,
        mask: Array | npt.NDArray[np.bool_] | None = None,  # (n_masks, m or 1, n)
    ) -> AttentionSums:
        r"""Softmax attention of many heads: means of values weighed with :math:`e^{s_{ij}}`.

        A row of ``heads`` says which queries, keys, values and mask a head uses. The score
        :math:`s_{ij}` is ``scale`` times the inner product, plus a mask of numbers; with a mask of
        truth values only pairs where it is True count. With ``is_causal`` query i sees keys 0 to i.
        A row that sees no key is 0. Magnitudes are those of all keys and values and of the queries
        of these heads; without a query they are 0.
        """
        shape = (len(heads), queries.shape[1])
        sums = AttentionSums(
            np.empty((*shape, values.shape[2]), keys.dtype),
            np.empty(shape, keys.dtype),
            np.zeros(3, keys.dtype),
        )
        truth = mask is not None and mask.dtype == np.bool_
        sets = HeadSets(
            queries,
            keys,
            values,
            heads,
            scale,
            is_causal,
            None if truth else mask,
            mask.view(np.uint8) if mask is not None and truth else None,
        )
        _core.attention(sets, sums, self)
        return sums

    def attention_pilot(
        self, head: AttentionHead, blocks: AttentionBlocks, rows: Index32, smoothing: Smoothing
    ) -> PilotMoments:
        """Some rows of each block, exactly: ``rows`` has equally many of each, in block order."""
        n_blocks, n_keys = len(blocks.band_start), len(head.keys)
        to = PilotMoments(
            np.empty((len(rows), head.values.shape[1]), head.values.dtype),
            np.empty((n_blocks, n_keys), np.float32),
            np.empty((n_blocks, n_keys), np.float32),
            np.empty(n_blocks),
        )
        _core.attention_pilot(head, blocks, rows, smoothing, to, self)
        return to

    def rate_histogram(
        self, blocks: AttentionBlocks, moment: Float32, guarded: Float32, floor: float
    ) -> tuple[Float64, Float64]:
        """Pairs left to the draws, and the sum of their moments, by size of ``guarded + floor``.

        Bin b holds float32 numbers whose bits, shifted right by 19, are b: sixteen to a factor of
        two.
        """
        return _core.rate_histogram(blocks, moment, guarded, floor, self)

    def attention_draw(
        self,
        head: AttentionHead,
        blocks: AttentionBlocks,
        rates: AttentionRates,
        *,
        chosen: Index | None = None,
        into: AttentionDraws | None = None,
    ) -> AttentionDraws:
        """Draw keys for every block; softmax over the drawn keys, weighted by 1 over probability.

        With ``chosen`` only for these blocks; with ``into`` rows of others stay what they are
        there, without their outputs are not set and their variances are NaN and 0.
        """
        n_queries, n_blocks = len(head.queries), len(blocks.band_start)
        to = into or AttentionDraws(
            np.empty((n_queries, head.values.shape[1]), head.values.dtype),
            np.full(n_queries, np.nan),
            np.zeros(n_queries),
            np.zeros(n_queries),
            np.zeros(n_blocks, np.int64),
        )
        listed = np.arange(n_blocks) if chosen is None else chosen
        _core.attention_draw(head, blocks, rates, listed, to, self)
        return to

    def exp(self, x: Array) -> Array:
        """Exponential of the tiles: error below 2 ulp, 0 below the normal numbers."""
        out = np.empty_like(x)
        _core.exp(x, out, self)
        return out

    def power_of_two(self, x: Array) -> Array:
        """Powers of two as attention computes its weights, for exponents below 127: below 2 ulp."""
        out = np.empty_like(x)
        _core.power_of_two(x, out, self)
        return out

    def largest_magnitude(self, x: Array) -> float:
        """Largest absolute value of a vector; NaN where an entry is not finite."""
        return _core.largest_magnitude(x, self)

    def philox(self, seed: int, stream: int, first: int, n: int) -> npt.NDArray[np.uint64]:
        """Philox4x64-10 words ``(n, 4)`` for key (seed, stream) and counters from ``first`` on."""
        out = np.empty((n, 4), np.uint64)
        _core.philox(seed, stream, first, out)
        return out


# What a backend can compute: each of these has a twin in :mod:`approxkmv.loops.reference`.
LOOPS = sorted(
    name
    for name, method in vars(Compiled).items()
    if isfunction(method) and not name.startswith("_") and name != "checked"
)


def _empty_tiling(n_queries: int, n_keys: int, depth: int) -> Tiling:
    return Tiling(
        np.empty(n_queries, np.int32),
        np.empty(n_keys, np.int32),
        np.empty(2**depth + 1, np.int64),
        np.empty(2**depth + 1, np.int64),
    )


def fma_peak(
    seconds: float = 0.2, dtype: npt.DTypeLike = np.float32, *, isa: str | None = None
) -> float:
    """Measured peak of one core in floating-point operations per second (two per multiply-add)."""
    rate = _core.fma_rate_float32 if np.dtype(dtype) == np.float32 else _core.fma_rate_float64
    return 2 * float(rate(seconds, isa or ISA))
