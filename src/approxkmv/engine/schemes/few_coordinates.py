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

from approxkmv.engine.exact_rows import ExactRows
from approxkmv.engine.neighbours.missing import Missing
from approxkmv.engine.problem import Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.refine import Draws, Sums, Verdict, refine
from approxkmv.engine.result import Result
from approxkmv.engine.survey.pilot import Pilot, row_squares
from approxkmv.engine.trace import Refusal, Trace
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
# How much two points are thought to agree outside the few directions. On images of clothes 0 asks
# for a fifth more full pairs, 0.3 for a third more.
_AGREEMENT = 0.15
# Squared length outside the few directions, in bandwidths, up to which a query makes do with them,
# and with the most there are: a key at its place then has H > 0.014, and 0.001.
_OUTSIDE, _OUTSIDE_OF_ALL = 5.0, 8.0
_POINTS_FOR_DIRECTIONS, _STEPS = 4096, 2
# Pairs drawn for every query, whatever H says.
_BLIND_DRAWS = 32
# Pairs of a smaller probability may not be seen at all; more frequent ones show in the variance.
_HARDLY_EVER = 0.01
# Of the squared error budget, the variance aimed at; the rest is for its spread.
_AIM = 0.6
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
class Surrogate:
    """The matrix H, with as many coordinates as each query needs."""

    kernel: KernelMatrix
    order: Tiling  # pairs that are computed in full share their points in it
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
            whole = WholePoints(kernel.queries, kernel.keys, some, keys, own, kernel.bandwidth)
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
    """A surrogate, and how pairs are drawn for a certain variance."""

    surrogate: Surrogate
    draws: PairDraws
    n_full: float  # expected number of pairs computed in full
    cost: float  # in pairs of the exact product
    aim: float = _AIM  # share of the squared error budget


def make_surrogate(kernel: KernelMatrix, rng: np.random.Generator) -> Surrogate | None:
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
    return Surrogate(
        kernel,
        order,
        tuple(n for n in levels if (dims_of == n).any()),
        dims_of,
        queries,
        keys.at(order.key_order),
        kernel.key_shift[order.key_order],
        place,
        np.empty(n_keys * (levels[-1] + 1), kernel.keys.dtype),
    )


class _Trials:
    """Rates tried on the pilot rows, until the variance is what is aimed at."""

    def __init__(self, problem: Problem, surrogate: Surrogate, pilot: Pilot, seed: int) -> None:
        self.problem, self.surrogate, self.pilot = problem, surrogate, pilot
        row_norms, n_keys = problem.row_norms, problem.n_keys
        self.target = _AIM * problem.budget.squared_error
        self.typical = _typical(row_norms)
        keys = surrogate.order.key_order
        least = min(0.5, _BLIND_DRAWS / n_keys)
        self.draws = PairDraws(row_norms[keys], 0.0, 0.0, least, seed, 0)
        self.near = _near_pairs(problem, surrogate, pilot)
        cost = problem.cost
        coordinates = np.where(
            surrogate.dims_of > 0,
            surrogate.dims_of + 1 + cost.surrogate_overhead,
            problem.n_dims + cost.pair_overhead,
        )
        # All pairs through few coordinates, in pairs of the exact product.
        self.scan = n_keys * float(coordinates.sum()) / (problem.n_dims + cost.pair_overhead)
        self.too_many = (_HOPELESS * problem.n_pairs - self.scan) / cost.surrogate_full_pair

    def product(self, rows: Index | Index32, rate: float, stream: int) -> SampledSums:
        """The product of some rows at a rate."""
        draws = _at_rate(self.draws._replace(stream=stream), rate, self.typical)
        return self.surrogate.product(rows.astype(np.int32), draws, self.problem.x)

    def first_rate(self) -> float:
        """A rate made for the near pairs alone; without any, a typical pair with H = 1 is drawn."""
        return max(self.near.rate(self.target / 2), 1 / self.typical)

    def hopeless(self, rate: float) -> bool:
        """Whether a few rows show that this rate draws too many pairs: dense kernels end here."""
        few_rows = self.pilot.rows[:: -(-len(self.pilot.rows) // _FIRST_ROWS)]
        n_drawn = float(self.product(few_rows, rate, 0).n_drawn.mean())
        return n_drawn * len(self.surrogate.dims_of) > self.too_many

    def settled(self, rate: float) -> tuple[float, float] | None:
        """A rate whose variance is small enough, and its pairs; None where they are too many."""
        too_small, enough, n_enough = 0.0, math.inf, math.inf
        for stream in range(_MOST_TRIALS):
            trial = self.product(self.pilot.rows, rate, stream)
            variances = self.problem.weighed(trial.variance, self.pilot.rows)
            shown = float(self.pilot.stands_for @ variances)
            variance = max(self.near.variance(rate), shown)
            n_drawn = float(self.pilot.stands_for @ trial.n_drawn)
            if variance <= self.target:
                enough, n_enough = rate, n_drawn
            elif n_drawn > self.too_many:
                return None
            else:
                too_small = rate
            if _WASTED * self.target <= variance <= self.target:
                break
            # The variance falls about with the square of the rate.
            rate *= max(_LEAST_CHANGE, math.sqrt(_MORE * variance / self.target))
            if not too_small < rate < enough:
                rate = math.sqrt(too_small * enough)
        if enough == math.inf:
            enough, n_enough = rate, n_drawn * rate / too_small
        return enough, n_enough


def make_reduction(
    problem: Problem, surrogate: Surrogate, pilot: Pilot, seed: int
) -> Reduction | None:
    """Draws for the variance aimed at, as trials on the pilot rows show; None if too many.

    Near pairs of the pilot rows are known: what they contribute is computed, for trials seldom draw
    those that H overlooks.
    """
    trials = _Trials(problem, surrogate, pilot, seed)
    rate = trials.first_rate()
    if trials.hopeless(rate):
        return None
    settled = trials.settled(rate)
    if settled is None:
        return None
    draws = _at_rate(trials.draws, settled[0], trials.typical)
    cost = trials.scan + problem.cost.surrogate_full_pair * settled[1]
    return Reduction(surrogate, draws, settled[1], cost)


def _near_pairs(problem: Problem, surrogate: Surrogate, pilot: Pilot) -> _Near:
    """Near pairs of the pilot rows; of queries computed exactly nothing is drawn."""
    row_norms = problem.row_norms
    drawn = surrogate.dims_of[pilot.rows[pilot.near_row]] > 0
    apart = np.flatnonzero(pilot.apart & drawn)
    rows, cols = pilot.near_row[apart], pilot.near_col[apart]
    values = surrogate.at(pilot.rows[rows], cols)
    squares = np.square((np.sqrt(pilot.near_square[apart]) - values) * row_norms[cols])
    squares = problem.weighed(squares, pilot.rows[rows]) * pilot.stands_for[rows]
    return _Near(values * row_norms[cols], squares)


class FewCoordinates:
    """The scheme that :func:`approxkmv.engine.refine.refine` runs."""

    def __init__(
        self, problem: Problem, reduction: Reduction, rows: ExactRows, progress: Progress
    ) -> None:
        self.problem, self.reduction, self.rows = problem, reduction, rows
        self.progress, self.margins = progress, problem.policy.pairs
        self.block_of = np.zeros(problem.n_queries, np.int64)
        self.n_blocks = 1

    def first_factor(self) -> float:
        """Trials have found the rate."""
        return 1.0

    def check_cost(self, factor: float) -> None:
        """Raise ``Refusal`` where the draw is too dear, ``OutOfTime`` where it does not fit."""
        n_pairs, limit = self.problem.n_pairs, self.problem.budget.limit
        if factor > 1:
            cost = factor * self.reduction.cost
            if cost > self.margins.too_many * n_pairs and limit.allows(n_pairs):
                raise Refusal("too many pairs would have to be drawn in full")
            limit.needs(cost)

    def draw(
        self,
        factor: float,
        stream: int,
        *,
        before: Draws | None = None,
        blocks: Index | None = None,
        into: Sums | None = None,
    ) -> Sums:
        """The product with H, and with drawn pairs of K - H at ``factor`` times the rate."""
        surrogate = self.reduction.surrogate
        rows = surrogate.order.query_order
        ordered = surrogate.product(rows, self._draws(factor, stream), self.problem.x)
        back = np.empty_like(rows)
        back[rows] = np.arange(len(rows), dtype=rows.dtype)
        return SampledSums(
            ordered.out[back], ordered.variance[back], ordered.mass[back], ordered.n_drawn[back]
        )

    def _draws(self, factor: float, stream: int) -> PairDraws:
        draws, typical = self.reduction.draws, _typical(self.problem.row_norms)
        # Trials had the first streams.
        at_rate = _at_rate(draws, factor * draws.rate, typical)
        return at_rate._replace(stream=_MOST_TRIALS + stream)

    def calibrated(self, seen: Sums, blocks: Index, factor: float) -> float:
        """There is one block."""
        return factor

    def judge(self, drawn: Draws, new: Draws) -> Verdict[Result]:
        """Recompute rows, and estimate the error of all others."""
        assert isinstance(drawn.sums, SampledSums)
        problem, surrogate = self.problem, self.reduction.surrogate
        dims = np.where(surrogate.dims_of > 0, surrogate.dims_of, problem.n_dims)
        pairs = round(problem.n_keys * float(dims.sum()) / problem.n_dims)
        draws = self._draws(float(drawn.factor[0]), 0)
        result = self.rows.result(
            drawn.sums,
            overlooked(problem, self.rows.pilot, surrogate, draws),
            pairs=pairs + int(drawn.sums.n_drawn.sum()),
            most_rows=math.ceil(self.margins.recomputed_rows * problem.n_queries),
            evenly=False,
            reason="the leading principal coordinates show which pairs matter",
        )
        self.progress.keep(result)
        ratio = result.worst / problem.budget.squared_error
        return Verdict(result, ratio, result.pairs, result.n_recomputed)

    def improve(self, verdict: Verdict[Result], trace: Trace) -> bool:
        """Draw all anew."""
        return True


def through_few_coordinates(
    problem: Problem, reduction: Reduction, rows: ExactRows, trace: Trace, progress: Progress
) -> Result:
    """The product with the surrogate, and drawn pairs of the difference, until the error is met."""
    surrogate = reduction.surrogate
    trace.note(
        coordinates=float(surrogate.dims_of.mean()),
        rows_computed_exactly=int((surrogate.dims_of == 0).sum()),
        full_pairs_per_query=reduction.n_full / problem.n_queries,
    )
    return refine(FewCoordinates(problem, reduction, rows, progress), trace)


def overlooked(problem: Problem, pilot: Pilot, surrogate: Surrogate, draws: PairDraws) -> Missing:
    """Squared error of leaving out near pairs that are hardly ever drawn, told by pilot rows.

    To have met none does not mean there is none: the limit reckons with one more, like the pair
    that came closest to being overlooked.
    """
    apart, row_norms = np.flatnonzero(pilot.apart), problem.row_norms
    rows, cols = pilot.near_row[apart], pilot.near_col[apart]
    cheap = surrogate.at(pilot.rows[rows], cols)
    chance = np.maximum(row_norms[cols] * draws.rate * cheap, draws.least)
    # Of queries computed exactly nothing is overlooked.
    chance[surrogate.dims_of[pilot.rows[rows]] == 0] = 1.0
    difference = np.sqrt(pilot.near_square[apart]) - cheap
    hardly = chance < _HARDLY_EVER
    x = problem.x[cols[hardly]]
    lacking = row_squares(rows[hardly], difference[hardly], x, len(pilot.rows))
    met = float(pilot.stands_for @ problem.weighed(lacking, pilot.rows))
    squares = problem.weighed(np.square(difference * row_norms[cols]), pilot.rows[rows])
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
