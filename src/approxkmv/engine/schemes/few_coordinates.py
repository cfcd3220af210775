r"""Points of hundreds of coordinates: all pairs in a few coordinates, and some pairs in full.

Points of many coordinates mostly vary in few directions. Let two points have the coordinates z
along these, and the lengths r outside of them; then

.. math::

   H_{ij} = \exp\bigl(-(|q_i|^2 + |k_j|^2 - 2\langle z_i,z_j\rangle - 2\rho r_ir_j)/2\sigma^2\bigr)

looks like the kernel matrix and costs a fraction of it. Its product is computed with all pairs, and
pairs of K - H are drawn, one by one, with probabilities in proportion to H: which pairs matter is
known beforehand. Queries that lie far outside the few directions get more of them, for there H
would overlook near keys: that of a query with itself is :math:`e^{-(1-\rho)r^2/\sigma^2}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from approxkmv.engine.neighbours.search import Missing
from approxkmv.engine.result import Sample
from approxkmv.engine.sample import Judge
from approxkmv.engine.survey.pilot import Pilot, row_squares
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import (
    Array,
    Float32,
    Float64,
    Geometry,
    Index,
    Index32,
    PairDraws,
    SampledSums,
    Tiling,
    WholePoints,
)

# With fewer coordinates H costs too much of K.
_LEAST_DIMS = 128
_DIMS = (32, 48, 64, 96, 128, 192, 256)
_MOST_COORDINATES = 1 << 25  # of all points together
# What a pair costs beside its coordinates, in coordinates: in the exact product and in H; and what
# a look at a pair in full costs, in pairs of the exact product.
_PER_PAIR, _PER_DRAWN_PAIR, _LOOK = 24, 14, 8.0
# How much two points are thought to agree outside the few directions. On images of clothes 0 asks
# for a fifth more looks, 0.3 for a third more.
_AGREEMENT = 0.15
# Squared length outside the few directions, in bandwidths, up to which a query makes do with them,
# and with the most there are: a key at its place then has H > 0.014, and 0.001.
_OUTSIDE, _OUTSIDE_OF_ALL = 5.0, 8.0
_POINTS_FOR_DIRECTIONS, _STEPS = 4096, 2
# Pairs drawn for every query, whatever H says.
_BLIND_LOOKS = 32
# Pairs of a smaller probability may not be seen at all; more frequent ones show in the variance.
_HARDLY_EVER = 0.01
# Rates are tried on the pilot rows.
_MOST_TRIALS, _MORE, _LEAST_CHANGE, _WASTED = 3, 1.2, 0.5, 0.5
_FIRST_ROWS, _HOPELESS = 16, 0.7
# Points are put in order by cutting along the first few directions in turn, down to so many keys.
_CUT_ALONG, _GROUP = 4, 16


class Points(NamedTuple):
    """Points along directions of falling variance, and their lengths outside the first of them."""

    coordinates: Float32
    outside: dict[int, Float32]  # by number of directions, as a coordinate

    def at(self, some: Index | Index32) -> Points:
        """Some of the points."""
        return Points(
            self.coordinates[some], {n: lengths[some] for n, lengths in self.outside.items()}
        )

    def few(self, n_dims: int, room: Array) -> Array:
        """Some coordinates, and one more for what lies outside of them; in this room."""
        shape = len(self.coordinates), n_dims + 1
        few = room[: math.prod(shape)].reshape(shape)
        few[:, :n_dims] = self.coordinates[:, :n_dims]
        few[:, n_dims] = self.outside[n_dims]
        return few


@dataclass(frozen=True, eq=False)
class Likeness:
    """The matrix H, with as many coordinates as each query needs."""

    kernel: KernelMatrix
    bandwidth: float
    order: Tiling  # pairs that are looked at in full share their points in it
    levels: tuple[int, ...]  # numbers of coordinates in use
    dims_of: Index  # (n_queries,) one of them, or 0 for queries computed exactly
    queries: Points
    keys: Points  # in order
    key_shift: Float64  # in order
    place: Index32  # of each key in the order
    room: Array  # for a few coordinates of all keys: making it anew takes longer than filling it

    def at(self, rows: Index, cols: Index) -> Float64:
        """Values of H at pairs of a query and a key; 1 for queries computed exactly."""
        kernel = self.kernel
        values = np.ones(len(rows))
        for n_dims in self.levels:
            of = np.flatnonzero(self.dims_of[rows] == n_dims)
            query_shift, key_shift = kernel.query_shift[rows[of]], kernel.key_shift[cols[of]]
            rooms = np.empty((2, len(of) * (n_dims + 1)), self.room.dtype)
            queries = self.queries.at(rows[of]).few(n_dims, rooms[0])
            keys = self.keys.at(self.place[cols[of]]).few(n_dims, rooms[1])
            scores = np.einsum("ij,ij->i", queries, keys, dtype=np.float64)
            exponents = _slope(kernel) * scores - query_shift - key_shift
            values[of] = np.exp(np.minimum(exponents, 0.0))
        return values

    def product(self, rows: Index32, draws: PairDraws, x: Array) -> SampledSums:
        """The product of some queries; ``draws`` has the sizes in the order of the keys."""
        kernel, keys = self.kernel, self.order.key_order
        same = kernel.queries is kernel.keys
        ordered = x[keys]
        sums = SampledSums(
            np.empty((len(rows), x.shape[1]), x.dtype),
            np.zeros(len(rows)),
            np.zeros(len(rows)),
            np.zeros(len(rows), np.int64),
        )
        for level, n_dims in enumerate(self.levels):
            at = np.flatnonzero(self.dims_of[rows] == n_dims)
            if len(at) == 0:
                continue
            some = rows[at]
            few = Geometry(
                self.queries.at(some).few(n_dims, np.empty(len(some) * (n_dims + 1), x.dtype)),
                self.keys.few(n_dims, self.room),
                kernel.query_shift[some],
                self.key_shift,
                np.zeros(n_dims + 1),
                kernel.frame.factor,
                kernel.frame.slope,
                differences=False,
            )
            own = self.place[some] if same else np.full(len(some), -1, np.int32)
            whole = WholePoints(kernel.queries, kernel.keys, some, keys, own, self.bandwidth)
            stream = len(_DIMS) * draws.stream + level
            part = kernel.backend.reduced_product(
                few,
                whole,
                draws._replace(stream=stream),
                ordered,
            )
            for all_rows, some_rows in zip(sums, part, strict=True):
                all_rows[at] = some_rows
        at = np.flatnonzero(self.dims_of[rows] == 0)
        sums.out[at] = kernel.at_queries(rows[at].astype(np.int64)).product(x).out
        return sums


@dataclass(frozen=True, eq=False)
class Reduction:
    """A likeness, and how pairs are drawn for a certain variance."""

    likeness: Likeness
    draws: PairDraws
    looks: float  # expected number of pairs looked at in full
    cost: float  # in pairs of the exact product


def make_likeness(
    kernel: KernelMatrix, bandwidth: float, rng: np.random.Generator
) -> Likeness | None:
    """Coordinates of the points; None where the points have too few to save any."""
    n_queries, (n_keys, n_dims) = len(kernel.queries), kernel.keys.shape
    most = _MOST_COORDINATES // max(n_queries, n_keys)
    levels = [n for n in _DIMS if n <= min(n_dims // 3, most)]
    if kernel.frame.differences or n_dims < _LEAST_DIMS or not levels:
        return None
    basis = principal_directions(kernel, levels[-1], rng)
    keys, outside = _along(kernel, kernel.keys, kernel.key_shift, basis, levels)
    queries = keys
    if kernel.queries is not kernel.keys:
        queries, outside = _along(kernel, kernel.queries, kernel.query_shift, basis, levels)
    cuts = np.arange(max(0, round(math.log2(n_keys / _GROUP)))) % _CUT_ALONG
    order = kernel.backend.random_tiling(
        *(np.ascontiguousarray(side.coordinates[:, cuts]) for side in (keys, queries)),
    )
    limits = np.full(len(levels), _OUTSIDE)
    limits[-1] = _OUTSIDE_OF_ALL
    enough = outside <= limits
    dims_of = np.where(enough.any(axis=1), np.array(levels)[enough.argmax(axis=1)], 0)
    place = np.empty(n_keys, np.int32)
    place[order.key_order] = np.arange(n_keys, dtype=np.int32)
    return Likeness(
        kernel,
        bandwidth,
        order,
        tuple(n for n in levels if (dims_of == n).any()),
        dims_of,
        queries,
        keys.at(order.key_order),
        kernel.key_shift[order.key_order],
        place,
        np.empty(n_keys * (levels[-1] + 1), kernel.keys.dtype),
    )


def make_reduction(
    likeness: Likeness, x: Array, size: Array, pilot: Pilot, target: float, seed: int
) -> Reduction | None:
    """Draws for a variance of at most ``target``, as trials on the pilot rows tell; or None.

    ``size`` has the lengths of the rows of x. Near pairs of the pilot rows are known: what they
    contribute is computed, for trials seldom draw those that H overlooks.
    """
    kernel = likeness.kernel
    n_keys, n_dims = kernel.keys.shape
    # Of queries computed exactly nothing is drawn.
    drawn = likeness.dims_of[pilot.rows[pilot.near_row]] > 0
    apart = np.flatnonzero(pilot.apart & drawn)
    rows, cols = pilot.near_row[apart], pilot.near_col[apart]
    values = likeness.at(pilot.rows[rows], cols)
    squares = np.square((np.sqrt(pilot.near_square[apart]) - values) * size[cols])
    near = _Near(values * size[cols], squares * pilot.stands_for[rows])
    keys = likeness.order.key_order
    least = min(0.5, _BLIND_LOOKS / n_keys)
    typical = _typical(size)
    draws = PairDraws(size[keys], 0.0, 0.0, least, seed, 0)
    # Rates found too small and large enough so far, and the looks at the latter.
    too_small, enough, looks = 0.0, math.inf, math.inf
    # A pair of typical size with H = 1 is drawn: the only hint where no near pairs are known.
    rate = max(near.rate(target / 2), 1 / typical)
    coordinates = np.where(
        likeness.dims_of > 0, likeness.dims_of + 1 + _PER_DRAWN_PAIR, n_dims + _PER_PAIR
    )
    scan = n_keys * float(coordinates.sum()) / (n_dims + _PER_PAIR)
    # A rate made for the near pairs alone, on a few rows: where that asks for too many looks there
    # is no need to try further. Dense kernels end here.
    few_rows = pilot.rows[:: -(-len(pilot.rows) // _FIRST_ROWS)].astype(np.int32)
    first = likeness.product(few_rows, _at_rate(draws, rate, typical), x)
    too_many = (_HOPELESS * n_keys * len(likeness.dims_of) - scan) / _LOOK
    if float(first.n_drawn.mean()) * len(likeness.dims_of) > too_many:
        return None
    for stream in range(_MOST_TRIALS):
        draws = _at_rate(draws._replace(stream=stream), rate, typical)
        trial = likeness.product(pilot.rows.astype(np.int32), draws, x)
        variance = max(near.variance(rate), float(pilot.stands_for @ trial.variance))
        made = float(pilot.stands_for @ trial.n_drawn)
        if variance <= target:
            enough, looks = rate, made
        elif made > too_many:
            return None
        else:
            too_small = rate
        if _WASTED * target <= variance <= target:
            break
        # The variance falls about with the square of the rate.
        rate *= max(_LEAST_CHANGE, math.sqrt(_MORE * variance / target))
        if not too_small < rate < enough:
            rate = math.sqrt(too_small * enough)
    if enough == math.inf:
        enough, looks = rate, made * rate / too_small
    draws = _at_rate(draws, enough, typical)
    return Reduction(likeness, draws, looks, scan + _LOOK * looks)


def draw_reduced(
    judge: Judge, reduction: Reduction, size: Array, *, factor: float, most_rows: int, stream: int
) -> Sample:
    """The product with H, and with drawn pairs of K - H at ``factor`` times the rate."""
    likeness, kernel = reduction.likeness, judge.kernel
    n_keys, n_dims = kernel.keys.shape
    rows = likeness.order.query_order
    # Trials had the first streams.
    draws = _at_rate(reduction.draws, factor * reduction.draws.rate, _typical(size))
    draws = draws._replace(stream=_MOST_TRIALS + stream)
    ordered = likeness.product(rows, draws, judge.x)
    back = np.empty_like(rows)
    back[rows] = np.arange(len(rows), dtype=rows.dtype)
    sums = SampledSums(
        ordered.out[back], ordered.variance[back], ordered.mass[back], ordered.n_drawn[back]
    )
    dims = np.where(likeness.dims_of > 0, likeness.dims_of, n_dims)
    pairs = round(n_keys * float(dims.sum()) / n_dims) + int(sums.n_drawn.sum())
    missing = overlooked(judge.pilot, likeness, draws, judge.x, size)
    return judge(sums, missing, pairs=pairs, most_rows=most_rows, evenly=False)


def overlooked(
    pilot: Pilot, likeness: Likeness, draws: PairDraws, x: Array, size: Array
) -> Missing:
    """Squared error of leaving out near pairs that are hardly ever drawn, told by pilot rows.

    To have met none does not mean there is none: the limit reckons with one more, like the pair
    that came closest to being overlooked.
    """
    apart = np.flatnonzero(pilot.apart)
    rows, cols = pilot.near_row[apart], pilot.near_col[apart]
    cheap = likeness.at(pilot.rows[rows], cols)
    chance = np.maximum(size[cols] * draws.rate * cheap, draws.least)
    # Of queries computed exactly nothing is overlooked.
    chance[likeness.dims_of[pilot.rows[rows]] == 0] = 1.0
    difference = np.sqrt(pilot.near_square[apart]) - cheap
    hardly = chance < _HARDLY_EVER
    lacking = row_squares(rows[hardly], difference[hardly], x[cols[hardly]], len(pilot.rows))
    met = float(pilot.stands_for @ lacking)
    squares = np.square(difference * size[cols])
    closest = float((squares * _HARDLY_EVER / np.maximum(chance, _HARDLY_EVER)).max(initial=0.0))
    return Missing(met, met + float(pilot.stands_for.mean()) * closest)


def principal_directions(kernel: KernelMatrix, n_dims: int, rng: np.random.Generator) -> Float32:
    """Orthonormal directions of falling variance of some points, by subspace iteration."""
    sides = [(kernel.keys, kernel.key_shift)]
    if kernel.queries is not kernel.keys:
        sides.append((kernel.queries, kernel.query_shift))
    samples = []
    for points, shift in sides:
        # Points with infinite shifts have kernel values of 0, wherever they are.
        some = np.flatnonzero(np.isfinite(shift))
        if len(some) > _POINTS_FOR_DIRECTIONS:
            some = rng.choice(some, _POINTS_FOR_DIRECTIONS, replace=False)
        samples.append((points[some] - kernel.frame.centre).astype(np.float32))
    sample = np.concatenate(samples)
    basis = rng.standard_normal((sample.shape[1], n_dims)).astype(np.float32)
    for _ in range(_STEPS):
        basis, _ = np.linalg.qr(sample.T @ (sample @ basis))
    along = sample @ basis
    _, turn = np.linalg.eigh(along.T @ along)
    return np.ascontiguousarray(basis @ turn[:, ::-1])


def _along(
    kernel: KernelMatrix, points: Array, shift: Float64, basis: Float32, levels: list[int]
) -> tuple[Points, Float64]:
    """Points along the directions; squared lengths outside of each level's, in bandwidths."""
    everyone = np.arange(len(points), dtype=np.int32)
    along = kernel.backend.project(
        points,
        everyone,
        kernel.frame.centre,
        basis,
    )
    pieces = [along[:, first:last] for first, last in pairwise([0, *levels])]
    inside = np.cumsum([np.einsum("ij,ij->i", some, some) for some in pieces], axis=0).T
    outside = 2 * shift[:, None] - _slope(kernel) * inside
    # Points with infinite shifts have kernel values of 0, whatever their coordinates.
    outside = np.where(np.isfinite(outside), np.maximum(outside, 0.0), 0.0)
    agreeing = np.sqrt(_AGREEMENT / _slope(kernel) * outside).astype(np.float32)
    return Points(along, dict(zip(levels, agreeing.T, strict=True))), outside


def _slope(kernel: KernelMatrix) -> float:
    """What turns an inner product of coordinates into an exponent."""
    return float(kernel.frame.slope * kernel.frame.factor**2)


def _at_rate(draws: PairDraws, rate: float, typical: float) -> PairDraws:
    """H counts as 0 where draws in proportion to it would be rarer than those without it."""
    return draws._replace(rate=rate, floor=math.log(draws.least / (rate * typical)))


def _typical(size: Array) -> float:
    """Mean of |x|, in proportion to what it contributes to |x|^2."""
    cubes = float(np.power(size, 3, dtype=np.float64).sum())
    return cubes / _sum_of_squares(size)


def _sum_of_squares(size: Array) -> float:
    return float(np.square(size, dtype=np.float64).sum())


class _Near(NamedTuple):
    """Near pairs of the pilot rows: H |x|, and (K - H)^2 |x|^2 times the rows they stand for."""

    weights: Float64
    squares: Float64

    def variance(self, rate: float) -> float:
        """What they contribute to the variance."""
        chance = np.minimum(1.0, np.maximum(rate * self.weights, np.finfo(np.float64).tiny))
        return float(self.squares @ (1 / chance - 1))

    def rate(self, target: float) -> float:
        """The smallest rate at which that is at most ``target``."""
        low, high = -60.0, 300.0
        while high - low > 1e-2:
            middle = (low + high) / 2
            enough = self.variance(math.exp(middle)) <= target
            low, high = (low, middle) if enough else (middle, high)
        return math.exp(high)
