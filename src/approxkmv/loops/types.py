"""The arrays and tuples that the loops take and give; all of them C-contiguous and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.functions import GAUSSIAN, KernelFunction

Array = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Index32 = npt.NDArray[np.int32]
Check = Callable[[], None] | None  # called by long loops now and then; what it raises ends them
NewPairs = tuple[Index32, Index32, Float32]  # rows, columns, values


class TileSums(NamedTuple):
    """Sums of exponentials times columns, of the exponentials alone, and the exponent taken out."""

    out: Array  # (n_queries, n_columns)
    totals: Array | None  # (n_queries,)
    row_max: Array | None  # (n_queries,)


class Exponents(NamedTuple):
    """How the exact product makes exponents of scores (see ``Compiled.tile_product``)."""

    query_shift: Float64
    key_shift: Float64
    query_centre: Float64
    key_centre: Float64
    factor: float
    slope: float
    ceiling: float
    differences: bool
    online: bool
    squares: bool
    function: KernelFunction


class Geometry(NamedTuple):
    """Points, and what turns the score of a pair into its exponent (see :func:`tile_product`)."""

    queries: Array
    keys: Array
    query_shift: Float64
    key_shift: Float64
    centre: Float64
    factor: float
    slope: float
    differences: bool
    function: KernelFunction = GAUSSIAN


class PairKernel(NamedTuple):
    r"""The kernel pair by pair, of which the Gaussian is :math:`\exp(slope\cdot|q_i-k_j|^2)`."""

    queries: Array
    keys: Array
    slope: float
    function: KernelFunction


class FoundPairs(NamedTuple):
    """Pairs by query: keys ascending in each row, with their kernel values."""

    indptr: Index  # (n_queries + 1,)
    cols: Index32
    values: Float32

    @classmethod
    def none(cls, n_queries: int) -> FoundPairs:
        """No pair at all."""
        return cls(
            np.zeros(n_queries + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
        )

    @property
    def rows(self) -> Index32:
        """The query of each pair."""
        return np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int32), np.diff(self.indptr))


class Tiling(NamedTuple):
    """Orders of queries and keys, cut into cells: cell c has ``order[start[c]:start[c + 1]]``."""

    query_order: Index32
    key_order: Index32
    query_start: Index
    key_start: Index


class CellMoments(NamedTuple):
    """Means and variances of cells of points along some axes, in bandwidths.

    Group g has the cells ``start[g]:start[g + 1]``, whose weights add up to 1 (or are all 0).
    """

    mean: Float32  # (n_axes, n_cells)
    variance: Float32  # (n_axes, n_cells)
    weight: Float32  # (n_cells,)
    start: Index  # (n_groups + 1,)


class Sketches(NamedTuple):
    """Few coordinates of some queries and keys, the numbers of these points, and how far to look.

    The squared distances of sketches are compared to ``radius_squared`` of the query.
    """

    queries: Float32
    query_index: Index32
    radius_squared: Float32  # (n_queries,)
    keys: Float32
    key_index: Index32


class Expansion(NamedTuple):
    """Which points are expanded, in which order, and how far: see ``neighbours_of_neighbours``."""

    order: Index32
    least: float
    width: int
    of_keys: bool
    threshold: float


class PilotRows(NamedTuple):
    """Rows against all keys, in tiles ``key_order[tile_start[t]:tile_start[t + 1]]``."""

    rows: Index32
    key_order: Index32
    tile_start: Index
    weights: Array  # (n_keys,)
    x: Array | None  # (n_keys,)
    threshold: float


class PilotSums(NamedTuple):
    """Sums over tiles of keys for some rows, and the near pairs of these rows."""

    squares: Float64  # (n_tiles, n_rows) of K^2 times the weights of the keys
    near_row: Index32  # position among the rows
    near_col: Index32
    near_value: Float32
    products: Float64 | None = None  # (n_rows,)
    powers: Float64 | None = None  # (n_tiles, n_rows, 8): see pilot_rows


class DrawPlan(NamedTuple):
    """For each block of queries and tile of keys, the rate at which keys are drawn.

    Key j is drawn for a block with probability ``min(1, rate * size_j)``.
    """

    query_order: Index32
    block_start: Index
    key_order: Index32
    tile_start: Index
    rate: Float32  # (n_blocks, n_tiles)
    size: Array  # (n_keys,), not negative
    seed: int
    stream: int


class SmoothPart(NamedTuple):
    r"""A part :math:`C_{ij}=e^{-u_i-v_j}(g_0+g_1z_{ij}+g_2z_{ij}^2)` of the kernel.

    Here u and v are ``query_shift`` and ``key_shift``, z is ``slope`` times the inner product, and
    g the coefficients of the query's block and the key's tile.
    """

    moments: Array  # (n_blocks, n_moments) of all keys times x, each with its power's coefficient
    coefficients: Float32  # (n_blocks, n_tiles, 3)


class SampledSums(NamedTuple):
    """The product, estimates for each of its entries, and each block's drawn keys."""

    out: Array  # (n_queries, n_columns)
    variance: Float64  # (n_queries,), all columns together
    # (n_queries,) of sum_j (1 - pi_j) (K_ij - C_ij)^2 |x_j|^2, where found pairs count as K_ij = 0
    mass: Float64
    n_drawn: Index  # (n_blocks,)

    def averaged(self, more: SampledSums, share: Float64) -> SampledSums:
        """Means of two independent draws, this one weighed with ``share`` of each row."""
        a, b = share, 1 - share
        return SampledSums(
            (a[:, None] * self.out + b[:, None] * more.out).astype(self.out.dtype),
            a**2 * self.variance + b**2 * more.variance,
            a * self.mass + b * more.mass,
            self.n_drawn + more.n_drawn,
        )


class PairDraws(NamedTuple):
    """Pair (i, j) is drawn with probability ``min(1, size[j] * rate * H[i, j])``.

    Where the exponent of H is below ``floor``, H is 0 and the probability ``least``.
    """

    size: Array  # (n_keys,)
    floor: float
    rate: float
    least: float
    seed: int
    stream: int


class WholePoints(NamedTuple):
    """The points that points of few coordinates stand for."""

    queries: Array
    keys: Array
    query_index: Index32  # where the few's queries are among `queries`
    key_index: Index32  # where the few's keys are among `keys`
    own: Index32  # for each of the few's queries the few's key of the same point, or -1
    bandwidth: float

    @property
    def slope(self) -> float:
        """The exponent of a pair, divided by its squared distance."""
        return -0.5 / self.bandwidth**2

    @property
    def function(self) -> KernelFunction:
        """The Gaussian: few coordinates stand for the points of no other kernel."""
        return GAUSSIAN


class HeadSets(NamedTuple):
    """Sets of queries, keys and values, and heads that choose among them: see ``attention``."""

    queries: Array  # (n_query_sets, m, d)
    keys: Array  # (n_key_sets, n, d)
    values: Array  # (n_value_sets, n, r)
    heads: Index  # (n_heads, 4)
    scale: float
    is_causal: bool
    added: Array | npt.NDArray[np.bool_] | None  # a mask of numbers
    kept: npt.NDArray[np.uint8] | None  # a mask of truth values


class AttentionSums(NamedTuple):
    """Rows of softmax-weighted means, and the logarithm of what their weights were divided by."""

    out: Array  # (n_heads, n_queries, n_columns)
    log_normalizer: Array  # (n_heads, n_queries), -infinity for a row that sees no key
    largest: Array  # (3,) magnitudes of queries, keys and values; NaN if one is not finite


class AttentionHead(NamedTuple):
    """One head: scores are ``scale`` times inner products, values are moved and scaled."""

    queries: Array
    keys: Array
    values: Array
    scale: float
    query_centre: Float64
    key_centre: Float64
    value_centre: Float64
    value_factor: float


class AttentionBlocks(NamedTuple):
    """Blocks of queries; keys ``key_order[band_start[b]:band_stop[b]]`` are always taken for b.

    With ``causal`` both orders are those of the tokens, and query i sees keys 0 to i.
    """

    query_order: Index32
    start: Index  # (n_blocks + 1,)
    key_order: Index32
    band_start: Index  # (n_blocks,)
    band_stop: Index
    causal: bool


class Smoothing(NamedTuple):
    """How the moments of a few rows become moments to plan with."""

    check_rows: int  # of each block, the last: kept out of the moments
    plan_guard: float  # share of a row's own spread that every key counts for, in ``moment``
    guard: float  # and in ``guarded``
    narrow: int  # keys pooled on either side
    wide: int
    raw_share: float
    wide_share: float
    floor_share: float


class PilotMoments(NamedTuple):
    """Exact outputs of the pilot rows, and what each key adds to the squared error of a block.

    Outputs are those of the moved values. ``moment[b, j]`` is the mean over the block's pilot rows
    of ``(p_ij / (1 - p_ij))**2 * |v_j - o_i|**2``, the squared error of a row that misses the key,
    pooled over neighbouring keys; ``guarded`` counts keys whose
    value is near the output as well, and has a floor.
    """

    outputs: Array
    moment: Float32  # (n_blocks, n_keys)
    guarded: Float32
    means: Float64  # (n_blocks,) of the guarded moments, before the floor


class AttentionRates(NamedTuple):
    """A key is drawn for a block with probability ``rate * sqrt(guarded + floor)``, at most 1.

    At least ``least`` of the keys outside the band are expected to be drawn for each block.
    """

    guarded: Float32  # (n_blocks, n_keys), or (1, n_keys) for all blocks
    near: Array  # (n_blocks, n_columns) a point near the outputs of each block
    floor: float
    rate: float
    least: float
    seed: int
    stream: int


class AttentionDraws(NamedTuple):
    """Outputs for the moved values, and for each row of a block its estimated squared error.

    ``variance`` is known for one strip of rows in four, and NaN for the others. ``bound`` is the
    same without inner products of values and outputs, at least half of it, and known for all rows.
    ``total_variance`` is the estimated relative variance of each row's denominator.
    """

    out: Array
    variance: Float64  # (n_queries,)
    bound: Float64  # (n_queries,)
    total_variance: Float64  # (n_queries,)
    n_drawn: Index  # (n_blocks,)

    def averaged(self, more: AttentionDraws, share: Float64) -> AttentionDraws:
        """Means of two independent draws, this one weighed with ``share`` of each row."""
        a, b = share, 1 - share
        return AttentionDraws(
            (a[:, None] * self.out + b[:, None] * more.out).astype(self.out.dtype),
            a**2 * self.variance + b**2 * more.variance,
            a**2 * self.bound + b**2 * more.bound,
            a**2 * self.total_variance + b**2 * more.total_variance,
            self.n_drawn + more.n_drawn,
        )
