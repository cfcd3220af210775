"""Draw keys for blocks of queries, at rates made for the data and for x.

Near pairs are searched for and counted exactly; a polynomial control variate is taken out where
that pays; of all other pairs keys are drawn, the same for all queries of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from approxkmv.engine.exact_rows import (
    ExactRows,
    rows_to_recompute,
    standing_out,
    usual_variance,
)
from approxkmv.engine.neighbours.missing import Missing
from approxkmv.engine.neighbours.schedule import NearSearch, search_near_pairs
from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.policy import KeyMargins
from approxkmv.engine.problem import Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.refine import Draws, Sums, Verdict, refine
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread, sums_by_block
from approxkmv.engine.survey.forecast import Forecast
from approxkmv.engine.survey.survey import Survey, search_cost
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import (
    Array,
    DrawPlan,
    Float64,
    FoundPairs,
    Index,
    Index32,
    SampledSums,
    SmoothPart,
)


@dataclass(frozen=True, eq=False)
class Drawing:
    """What a draw needs beside its rates."""

    problem: Problem
    survey: Survey
    found: FoundPairs
    polynomial: SmoothPart | None
    seed: int

    def __call__(
        self,
        rate: Float64,
        stream: int,
        *,
        blocks: Index | None = None,
        into: SampledSums | None = None,
    ) -> SampledSums:
        """Draw keys for every block, or for some into the sums of others, and multiply."""
        queries, keys = self.survey.query_blocks, self.survey.key_tiles
        plan = DrawPlan(
            queries.order,
            queries.start,
            keys.order,
            keys.start,
            # A rate beyond float32 means certainty, and so does the largest rate in it.
            np.minimum(rate, np.finfo(np.float32).max).astype(np.float32),
            self.problem.row_norms,
            self.seed,
            stream,
        )
        kernel, x = self.problem.kernel, self.problem.x
        return kernel.backend.sampled_product(
            kernel.geometry, plan, self.found, x, self.polynomial, blocks=blocks, into=into
        )


class DrawnKeys:
    """The scheme that :func:`approxkmv.engine.refine.refine` runs; rates are multiples."""

    def __init__(self, near: NearSearch, rows: ExactRows, progress: Progress) -> None:
        self.near, self.rows, self.progress = near, rows, progress
        problem, survey = near.problem, near.survey
        self.margins = margins = problem.policy.keys
        self.problem, self.survey, self.trace = problem, survey, near.trace
        self.seed = int(problem.rng.integers(2**63))
        self.reason, self.polynomial = "sampling is cheaper", None
        if survey.polynomial is not None:
            self.polynomial = survey.polynomial.of(problem.kernel, problem.x, survey.key_tiles)
            self.reason = "sampling is cheaper, with a polynomial control variate taken out first"
            self.trace.lap("polynomial")
        forecast = near.forecast
        pairs = forecast.rates.pairs
        self.least_factor = least_factor(problem.row_norms, near.spent, pairs, margins)

    @property
    def block_of(self) -> Index32:
        """The block of each row."""
        return self.survey.query_blocks.block_of

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.survey.query_blocks.sizes)

    def first_factor(self) -> float:
        """By how much the rates of the forecast are raised for the first draw."""
        first = first_factor(self.near.forecast, self.near.missing, self.problem, self.margins)
        return max(self.least_factor, first)

    def check_cost(self, factor: float) -> None:
        """Raise ``Refusal`` where the draw is too dear, ``OutOfTime`` where it does not fit."""
        cost, limit = self.near.forecast.cost * factor, self.problem.budget.limit
        n_pairs = self.problem.n_pairs
        if cost > self.problem.policy.choice.too_many * n_pairs and limit.allows(n_pairs):
            raise Refusal("near pairs are too many or too hard to find for sampling to pay")
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
        """Draw for every block, or for ``blocks`` into the sums of others."""
        assert into is None or isinstance(into, SampledSums)
        draw = Drawing(
            self.problem, self.survey, self.near.search.found, self.polynomial, self.seed
        )
        return draw(self.rates(factor, before), stream, blocks=blocks, into=into)

    def rates(self, factor: float, before: Draws | None) -> Float64:
        """Rates of draws, or of more draws."""
        rates = self.near.forecast.rates
        if before is None:
            return rates.scaled(factor)
        earlier = before.factor[:, None]
        rms = self.survey.forecaster.entries.rms
        often = rates.rate * earlier * rms > self.margins.often
        return rates.rate * np.where(often, np.maximum(factor, earlier), factor)

    def calibrated(self, seen: Sums, blocks: Index, factor: float) -> float:
        """The factor for all other blocks, after the variance of these was seen."""
        variance = self.problem.weighed(seen.variance)
        variance = usual_variance(variance, self.survey.query_blocks, blocks)
        needed = calibration_factor(self.near, self.margins, variance, blocks, factor)
        return max(self.least_factor, needed)

    def judge(self, drawn: Draws, new: Draws) -> Verdict[Result]:
        """Recompute rows, and estimate the error of all others."""
        assert isinstance(drawn.sums, SampledSums)
        problem = self.problem
        result = self.rows.result(
            drawn.sums,
            self.near.missing,
            pairs=int((new.sums.n_drawn * self.survey.query_blocks.sizes).sum()),
            most_rows=self._most_rows(drawn),
            evenly=True,
            reason=self.reason,
        )
        self.progress.keep(result)
        ratio = result.worst / problem.budget.squared_error
        return Verdict(result, ratio, result.pairs, result.n_recomputed)

    def _most_rows(self, drawn: Draws) -> int:
        """Rows that may be recomputed: those that stand out, and all it needs if that is cheaper.

        Cheaper than drawing more, that is: of a million rows the 5,238 of largest variance took as
        long to recompute as all draws before, where a fifth more draws would do.
        """
        problem, blocks = self.problem, self.survey.query_blocks
        parts = drawn.sums.variance, drawn.sums.mass
        variance, mass = (problem.weighed(np.maximum(part, 0.0)).copy() for part in parts)
        variance[self.survey.pilot.rows] = 0.0  # exact in any case
        outstanding = standing_out(variance, problem.n_queries)
        variance[outstanding] = mass[outstanding] = 0.0
        room = problem.budget.squared_error - self.near.missing.at_most
        affordable = int(self._instead_of_draws(variance, room, drawn) / problem.n_keys)
        needed = rows_to_recompute(
            variance, mass, blocks, room, problem.budget.delta, problem.n_queries
        )
        return len(outstanding) + (affordable if len(needed) <= affordable else 0)

    def _instead_of_draws(self, variance: Float64, room: float, drawn: Draws) -> float:
        """Pairs worth spending on rows: those of the draws that would bring the error down."""
        margins, n_blocks = self.margins, self.n_blocks
        by_block = sums_by_block(variance, self.block_of, n_blocks)
        upper = float(by_block.sum()) * spread(by_block, self.problem.budget.delta)
        draws = self.near.forecast.cost * float(drawn.factor.mean())
        ratio = upper / max(room, np.finfo(np.float64).tiny)
        most = max(margins.recomputing * draws, margins.least_recomputing * self.problem.n_pairs)
        return float(min(most, max(margins.top_up * ratio - 1, 0.0) * draws))

    def improve(self, verdict: Verdict[Result], trace: Trace) -> bool:
        """Search more where the draws met more missed pairs than pilot and search had seen."""
        budget = self.problem.budget.squared_error
        too_much = verdict.answer.left_out > self.margins.most_left_out * budget
        if not (too_much and self.near.may_go_on):
            return False
        self.near.another_round()
        return True


def draw_keys(
    problem: Problem, survey: Survey, products: Array, trace: Trace, progress: Progress
) -> Result:
    """Search for near pairs, and draw keys until the error is met; ``Refusal`` if it cannot pay."""
    problem.budget.limit.needs(search_cost(problem))
    search = Search(problem.kernel, survey.pilot, problem.rng)
    progress.search = search
    rows = ExactRows(problem, survey.pilot, products)
    try:
        near = search_near_pairs(problem, survey, search, trace)
        return refine(DrawnKeys(near, rows, progress), trace)
    finally:
        trace.pairs += search.pairs


def first_factor(
    forecast: Forecast, missing: Missing, problem: Problem, margins: KeyMargins
) -> float:
    """By how much the rates of the forecast are raised, or lowered, for the first draw.

    The forecast aims at a mean squared error; what must be met is its upper limit, which is the
    nearer to the mean the more blocks share in the error, and what is missing takes its part.
    """
    predicted = forecast.rates.variance
    above = spread(predicted, problem.budget.delta)
    # Where few blocks share in the error, the prediction is less certain, too.
    room = margins.room / above * problem.budget.squared_error
    room -= max(missing.at_most, forecast.rare_mass)
    upper = float(predicted.sum()) * above
    if upper >= margins.raised * room:
        return margins.raised
    return max(upper / room, margins.lowered)


def calibration_factor(
    near: NearSearch, margins: KeyMargins, seen: Float64, blocks: Index, factor: float
) -> float:
    """By how much the rates of the forecast are raised, after some blocks' variances were seen."""
    forecast, budget = near.forecast, near.problem.budget
    predicted = forecast.rates.variance
    of_some = predicted[blocks] / factor
    if not of_some.sum() > 0:  # nothing is left to chance
        return factor
    ratio = float(seen.sum() / of_some.sum())
    # By one standard error more: to fall short costs more than to draw too much.
    ratio += math.sqrt(np.square(seen - ratio * of_some).sum()) / float(of_some.sum())
    room = margins.room * budget.squared_error - max(near.missing.at_most, forecast.rare_mass)
    room = max(room, margins.least_room * budget.squared_error)
    needed = ratio * float(predicted.sum()) * spread(predicted, budget.delta) / room
    lowest, highest = (factor * limit for limit in margins.calibration)
    return min(highest, max(lowest, needed))


def least_factor(row_norms: Array, spent: float, pairs: float, margins: KeyMargins) -> float:
    """The least factor for a first draw of ``pairs``, after others were ``spent`` before it."""
    root_mean_square = math.sqrt(np.square(row_norms, dtype=np.float64).mean())
    if row_norms.mean() < margins.few_large * root_mean_square:
        return min(margins.first_share_few * spent / pairs, margins.at_most_larger_few)
    return min(margins.first_share * spent / pairs, margins.at_most_larger)
