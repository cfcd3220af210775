"""The answer that is given when the time is over: keys drawn with what is known, and no more.

There is always such an answer. With nothing known keys are drawn in proportion to the rows of x
alone; with pilot rows, near pairs or a polynomial at the rates made for these. It is unbiased in
either case, and its variance is estimated from the draws; a few rows, computed exactly at the
start, check it. These rows also show how long a pair takes on this machine at this moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.engine.neighbours.search import diagonal
from approxkmv.engine.problem import Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.refine import Draws
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread, sums_by_block
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.survey import Survey, orders
from approxkmv.engine.trace import Trace
from approxkmv.kernel.rounding import frobenius
from approxkmv.loops.types import (
    Array,
    DrawPlan,
    Float64,
    FoundPairs,
    Index,
    SampledSums,
    SmoothPart,
)

# Share of the time that is kept for this answer while a better one is looked for.
KEPT = 0.35
# Rows computed exactly: as many as take this share of the time at a cautious guess of multiply-adds
# a second (two cores with AVX2 make 2e10 to 6e10), within these numbers.
_PROBED, _CAUTIOUS, _FEWEST_ROWS, _MOST_ROWS = 0.05, 1e10, 4, 256
# Draws are made in a few rounds: the first takes this share of the time left and shows how long a
# pair takes; each further one takes this share of what is left then. A round that would add less
# than this share to all before it is not worth its overhead.
_FIRST, _LATER, _ROUNDS, _WORTHWHILE = 0.25, 0.8, 4, 0.2
# Keys expected for each block, at least: from fewer their variance cannot be estimated.
_LEAST_KEYS = 16.0
# Of the pairs left, for a polynomial.
_FOR_POLYNOMIAL = 0.2
# Seconds to put the answer together, for each of its entries.
_PER_ENTRY = 1e-7
TOO_SHORT = "max_seconds was too short for the error asked for"


class Probe(NamedTuple):
    """Some rows of the product, exactly."""

    rows: Index
    products: Array
    length: float  # of the product of all rows, from that of these


def probe(problem: Problem) -> Probe:
    """A few random rows, in a small part of the time; the limit learns how long a pair takes."""
    limit = problem.budget.limit
    work = problem.n_keys * (problem.n_dims + problem.cost.pair_overhead)
    wanted = _PROBED * limit.deadline.max_seconds * _CAUTIOUS / work
    n_rows = min(problem.n_queries, max(_FEWEST_ROWS, min(_MOST_ROWS, int(wanted))))
    rows = np.sort(problem.rng.choice(problem.n_queries, n_rows, replace=False))
    start = limit.deadline.now()
    products = problem.kernel.at_queries(rows).product(problem.x).out
    limit.learn(n_rows * problem.n_keys, limit.deadline.now() - start)
    of_rows = frobenius(problem.lengthened(products, rows))
    return Probe(rows, products, of_rows * math.sqrt(problem.n_queries / max(n_rows, 1)))


class _Known(NamedTuple):
    """Where keys are drawn, and at which rates relative to each other."""

    query_blocks: Blocks
    key_tiles: Blocks
    rate: Float64
    found: FoundPairs
    polynomial: SmoothPart | None
    words: str

    def factor(self, pairs: float, row_norms: Array) -> float:
        """What the rates are multiplied by for about this many pairs, and hardly more."""
        tiles = self.key_tiles
        mean = sums_by_block(row_norms, tiles.block_of, len(tiles.sizes)) / tiles.sizes
        chance = self.rate * mean
        n_pairs = np.outer(self.query_blocks.sizes, tiles.sizes).astype(np.float64)
        low, high = -80.0, 300.0
        while high - low > 1e-2:
            middle = (low + high) / 2
            # The mean of min(1, c |x|) over a tile is at most min(1, c) of the mean of |x|.
            made = float((n_pairs * np.minimum(1.0, math.exp(middle) * chance)).sum())
            low, high = (middle, high) if made < pairs else (low, middle)
        return math.exp(high)


@dataclass(eq=False)
class _Rounds:
    """What was drawn so far, round after round."""

    problem: Problem
    known: _Known
    deadline: Deadline
    seed: int
    draws: Draws | None = None
    spent: float = 0.0

    def next_pairs(self) -> float | None:
        """Pairs of the next round; None where it is not worth its overhead."""
        limit, cost, n_pairs = self.problem.budget.limit, self.problem.cost, self.problem.n_pairs
        share = _FIRST if self.draws is None else _LATER
        pairs = share * max(self.deadline.left(), 0.0) * limit.rate / cost.drawn_pair_in_time
        if self.draws is None:
            return min(max(pairs, _LEAST_KEYS * self.problem.n_queries), n_pairs)
        if pairs < _WORTHWHILE * self.spent or self.spent >= n_pairs:
            return None
        return min(pairs, n_pairs)

    def draw(self, pairs: float, stream: int) -> None:
        """One round more; ``OutOfTime`` where it does not end in time."""
        problem, blocks = self.problem, self.known.query_blocks
        factor = self.known.factor(pairs, problem.row_norms)
        start = self.deadline.now()
        # The first round is small, and finished in any case.
        check = None if self.draws is None else self.deadline.polled
        patient = replace(problem, kernel=problem.kernel.checked(check))
        sums = _draw(patient, self.known, factor, self.seed, stream)
        more = Draws(sums, np.full(len(blocks.sizes), factor))
        made = int((sums.n_drawn * blocks.sizes).sum())
        took = self.deadline.now() - start
        problem.budget.limit.learn(int(problem.cost.drawn_pair_in_time * made), took)
        self.draws = more if self.draws is None else self.draws.with_more(more, blocks.block_of)
        self.spent += made


def answer_in_time(problem: Problem, checks: Probe, progress: Progress, trace: Trace) -> Result:
    """An answer in the time that is left, or soon after; its reason says whether it is enough."""
    seed = int(problem.rng.integers(2**63))
    known = _known(problem, progress)
    kept = _PER_ENTRY * problem.n_queries * problem.x.shape[1]
    rounds = _Rounds(problem, known, problem.budget.limit.deadline.keeping(kept), seed)
    result: Result | None = None
    for stream in range(_ROUNDS):
        pairs = rounds.next_pairs()
        if pairs is None:
            break
        try:
            rounds.draw(pairs, stream)
        except OutOfTime:
            break
        result = _judged(rounds, checks)
        if result.worst <= problem.budget.squared_error:
            break
    assert result is not None  # the first round always ends
    trace.note(drawn_by=known.words, draws=stream + 1, rows_checked=len(checks.rows))
    trace.pairs += result.pairs
    best = progress.best
    if best is not None and best.upper < result.upper:
        result = replace(best, variance=max(best.variance, best.checked))
    enough = result.worst <= problem.budget.squared_error
    reason = "the time was enough to draw keys for the error asked for" if enough else TOO_SHORT
    return replace(result, reason=reason)


def _known(problem: Problem, progress: Progress) -> _Known:
    """With all that is known; what would take too long to use is left out."""
    same = problem.kernel.queries is problem.kernel.keys
    found = diagonal(problem.n_keys) if same else FoundPairs.none(problem.n_queries)
    survey = progress.survey
    if survey is None:
        blocks, tiles = orders(problem)
        mean = float(problem.row_norms.mean(dtype=np.float64))
        mean = max(mean, float(np.finfo(np.float32).tiny))
        rate = np.full((len(blocks.sizes), len(tiles.sizes)), 1 / problem.n_keys / mean)
        return _Known(blocks, tiles, rate, found, None, "the rows of x alone")
    words = "pilot rows"
    if progress.search is not None:
        found, words = progress.search.found, "pilot rows and near pairs"
    forecaster, polynomial = survey.forecaster, _polynomial(problem, survey)
    if polynomial is not None:
        words += " and a polynomial control variate"
    elif survey.polynomial is not None:
        # Without the polynomial its forecast would be of the wrong matrix.
        forecaster = forecaster.without(survey.pilot.light, survey.pilot.near_square)
    rate = forecaster(found).rates.rate
    return _Known(survey.query_blocks, survey.key_tiles, rate, found, polynomial, words)


def _polynomial(problem: Problem, survey: Survey) -> SmoothPart | None:
    """The control variate, if there is one and time for it."""
    if survey.polynomial is None:
        return None
    cost = problem.cost.polynomial_cost(problem.n_queries, problem.n_keys, problem.n_dims)
    if not problem.budget.limit.allows(cost / _FOR_POLYNOMIAL):
        return None
    return survey.polynomial.of(problem.kernel, problem.x, survey.key_tiles)


def _draw(problem: Problem, known: _Known, factor: float, seed: int, stream: int) -> SampledSums:
    rate = np.minimum(factor * known.rate, np.finfo(np.float32).max).astype(np.float32)
    queries, keys = known.query_blocks, known.key_tiles
    plan = DrawPlan(
        queries.order,
        queries.start,
        keys.order,
        keys.start,
        rate,
        problem.row_norms,
        seed,
        stream,
    )
    kernel = problem.kernel
    return kernel.backend.sampled_product(
        kernel.geometry, plan, known.found, problem.x, known.polynomial
    )


def _judged(rounds: _Rounds, checks: Probe) -> Result:
    """The product and its error: what the draws show, or the exact rows if they show more."""
    assert rounds.draws is not None
    sums, blocks = rounds.draws.sums, rounds.known.query_blocks
    problem = rounds.problem
    variance = problem.weighed(np.maximum(sums.variance, 0.0))
    kept = float(variance.sum())
    by_block = sums_by_block(variance, blocks.block_of, len(blocks.sizes))
    above = spread(by_block, problem.budget.delta)
    off = sums.out[checks.rows].astype(np.float64) - checks.products
    off = problem.lengthened(off, checks.rows)
    checked = len(sums.out) / len(checks.rows) * float(np.square(off).sum())
    y = sums.out.copy()
    y[checks.rows] = checks.products
    return Result(
        y=y,
        variance=max(kept, checked),
        upper=kept * above,
        left_out=0.0,
        checked=checked,
        pairs=round(rounds.spent),
        n_recomputed=0,
        exact_rows=checks.rows,
        reason="",
    )
