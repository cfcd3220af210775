"""Attention of one head from drawn keys: numerator and denominator come from the same keys.

A few rows of each block of queries are computed exactly; they show which keys matter to the block,
so how often each key should be drawn. A few blocks are tried before all, so that a head on which
drawing cannot pay costs little before it is computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from approxkmv.engine.head import HeadProblem
from approxkmv.engine.policy import HeadMargins
from approxkmv.engine.refine import Draws, Sums, Verdict, refine
from approxkmv.engine.result import Result
from approxkmv.engine.survey.attention_common import for_all_blocks, with_common_rates
from approxkmv.engine.survey.attention_order import every_nth, order_blocks, some_blocks
from approxkmv.engine.survey.attention_pilot import HeadPilot, SquaredError, run_head_pilot
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Array, AttentionBlocks, AttentionDraws, Index, Index32

TOO_SHARP = "drawing keys would need too many of them"
UNEVEN = "some rows look at single keys, which draws would miss"


def draw_keys_of_head(problem: HeadProblem, trace: Trace) -> Result:
    """Draw keys until the error is met; ``Refusal`` where that does not pay."""
    head = problem.head
    blocks = order_blocks(head, problem.policy.head_shape)
    trace.lap("order")
    seed = int(problem.rng.integers(2**63))
    factor, pilot = Trial(problem, blocks, seed).run(trace)
    if pilot is None:
        pilot = run_head_pilot(problem, blocks, 1.0)
        trace.pairs += head.pairs_of(pilot.rows)
    trace.lap("pilot")
    predicted = (pilot.rate.pairs + band_pairs(blocks)) / head.n_pairs
    trace.note(
        blocks=len(blocks.band_start),
        pilot_rows=len(pilot.rows),
        predicted_share_of_pairs=predicted,
    )
    scheme = DrawnKeysOfHead(pilot, seed, factor)
    return scheme.result(refine(scheme, trace), trace)


def band_pairs(blocks: AttentionBlocks) -> float:
    """Pairs of each block with the keys that it always takes."""
    return float((np.diff(blocks.start) * (blocks.band_stop - blocks.band_start)).sum())


class Recomputed(NamedTuple):
    """Rows computed exactly, their outputs for the moved values, and the error of all others."""

    rows: Index
    outputs: Array
    error: SquaredError


class DrawnOutput(NamedTuple):
    """Draws, their error, and what was recomputed."""

    draws: AttentionDraws
    error: SquaredError
    rows: Index
    outputs: Array


@dataclass(frozen=True, eq=False)
class DrawnKeysOfHead:
    """The scheme that :func:`approxkmv.engine.refine.refine` runs; rates are multiples."""

    pilot: HeadPilot
    seed: int
    start: float  # the multiple of the predicted rate for the first draw
    block_of: Index32 = field(init=False)

    def __post_init__(self) -> None:
        blocks = self.pilot.blocks
        block_of = np.empty(len(blocks.query_order), np.int32)
        block_of[blocks.query_order] = np.repeat(
            np.arange(self.n_blocks, dtype=np.int32), np.diff(blocks.start)
        )
        object.__setattr__(self, "block_of", block_of)

    @property
    def margins(self) -> HeadMargins:
        """How far predictions are trusted."""
        return self.pilot.problem.margins

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.pilot.blocks.band_start)

    def first_factor(self) -> float:
        """After what the trial blocks have shown."""
        return self.start

    def check_cost(self, factor: float) -> None:
        """Raise ``Refusal`` where draws are too dear; what was drawn before is spent either way."""
        problem, n_pairs = self.pilot.problem, self.pilot.problem.head.n_pairs
        drawn = min(factor * self.pilot.rate.pairs, float(n_pairs))
        cost = problem.cost.drawn_head_pair * (drawn + band_pairs(self.pilot.blocks))
        if cost > self.margins.too_many * n_pairs:
            raise Refusal(TOO_SHARP)

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
        # Stream 0 is that of the trial.
        return self.pilot.draw(factor, self.seed, stream + 1, blocks=blocks, into=into)

    def calibrated(self, seen: Sums, blocks: Index, factor: float) -> float:
        """The factor for all other blocks, after the error of these was seen."""
        some = self.pilot.of(blocks)
        share = len(some.blocks.query_order) / len(self.block_of)
        ratio = some.usual_error(seen).variance / (share * self.pilot.problem.squared_error)
        lowest, highest = self.margins.calibration
        needed = (ratio / self.margins.aim) ** self.margins.calibration_power
        return float(factor * min(highest, max(lowest, needed)))

    def judge(self, drawn: Draws, new: Draws) -> Verdict[DrawnOutput]:
        """Estimate the error, and recompute rows where that is enough to meet it."""
        draws, blocks = drawn.sums, self.pilot.blocks
        pairs = int((new.sums.n_drawn * np.diff(blocks.start)).sum())
        error = self.pilot.error(draws)
        answer = DrawnOutput(draws, error, np.empty(0, np.int64), draws.out[:0])
        budget = self.pilot.problem.squared_error
        if error.upper > budget:
            recomputed = recompute(self.pilot.problem, draws, error)
            if recomputed is not None:
                rows, outputs, error = recomputed
                answer = DrawnOutput(draws, error, rows, outputs)
                pairs += self.pilot.problem.head.pairs_of(rows)
        return Verdict(answer, error.upper / budget, pairs, len(answer.rows))

    def improve(self, verdict: Verdict[DrawnOutput], trace: Trace) -> bool:
        """There is nothing to learn beside the draws."""
        return False

    def result(self, answer: DrawnOutput, trace: Trace) -> Result:
        """All that was computed exactly is used."""
        problem, pilot = self.pilot.problem, self.pilot
        out = answer.draws.out
        errors = out[pilot.checks].astype(np.float64) - pilot.checked
        out[pilot.rows] = pilot.moments.outputs
        out[answer.rows] = answer.outputs
        y, unit = problem.head.moved_back(out), problem.head.moved.value_factor**-2
        trace.lap("draw")
        return Result(
            y=y,
            variance=unit * answer.error.variance,
            upper=unit * answer.error.upper,
            left_out=0.0,
            checked=unit * float(np.square(errors).sum()) * len(out) / pilot.checks.size,
            pairs=trace.pairs,
            n_recomputed=len(answer.rows),
            exact_rows=pilot.rows.astype(np.int64),
            reason="drawing keys is cheaper",
        )


def recompute(
    problem: HeadProblem, draws: AttentionDraws, error: SquaredError
) -> Recomputed | None:
    """The fewest rows without which the error is within its budget; None where these are too many.

    What they had in error, and no more, is taken from the error of all. The draws say too much of
    rows in which a small probability came true: such rows stand for others in which it did not,
    which the error of all has to cover.
    """
    margins, head = problem.margins, problem.head
    order = np.argsort(draws.bound)[::-1]
    said = np.cumsum(draws.bound[order])
    wanted = (1 - margins.enough * problem.squared_error / error.upper) / margins.overstated
    rows = order[: int(np.searchsorted(said, wanted * said[-1])) + 1]
    # Where all bounds are 0 the draws say nothing of any row.
    if len(rows) > margins.recomputed_rows * len(order) or not said[-1] > 0:
        return None
    outputs = (head.exact_rows(rows) - head.value_centre) * head.moved.value_factor
    gone = float(np.square(draws.out[rows] - outputs).sum())
    by_bound = float(said[len(rows) - 1] / said[-1]) * error.variance
    left = 1 - min(gone, by_bound) / error.variance
    return Recomputed(rows, outputs, SquaredError(left * error.variance, left * error.upper))


@dataclass(frozen=True, eq=False)
class Trial:
    """Some blocks that are tried before all: whether drawing pays, and at which rates."""

    problem: HeadProblem
    blocks: AttentionBlocks
    seed: int

    def run(self, trace: Trace) -> tuple[float, HeadPilot | None]:
        """What the predicted rates are to be multiplied by, and the pilot if it is known by now.

        ``Refusal`` where drawing cannot pay. The blocks are evenly spread over all.
        """
        policy, head = self.problem.policy.head_trial, self.problem.head
        fewest = policy.fewest_blocks if head.is_causal else policy.fewest_for_common
        some = some_blocks(self.blocks, self._some_of(len(self.blocks.band_start), fewest))
        share = float(some.start[-1] / head.n_queries)
        pilot = run_head_pilot(self.problem, some, share)
        trace.pairs += head.pairs_of(pilot.rows)
        found = None
        if not head.is_causal:
            common = with_common_rates(pilot, share)
            if self._cost(common) <= self._cost(pilot) + self._cost_of_pilot():
                pilot = common
                trace.note(common_rates=True)
                found = for_all_blocks(common, self.blocks, share)
                trace.pairs += head.pairs_of(found.checks.ravel())
        few = self._some_of(len(some.band_start), policy.fewest_blocks)
        factor, ratio = self._tried(pilot, few, trace)
        if ratio > policy.hopeless:
            raise Refusal(UNEVEN)
        return factor, found

    def _some_of(self, n_blocks: int, fewest: int) -> Index:
        one_in = max(1, min(self.problem.policy.head_trial.one_in, n_blocks // fewest))
        return every_nth(n_blocks, one_in, int(self.problem.rng.integers(one_in)))

    def _tried(self, pilot: HeadPilot, few: Index, trace: Trace) -> tuple[float, float]:
        """The factor that these blocks need, and the upper limit of their error over its budget."""
        policy = self.problem.policy.head_trial
        self._check_cost(self._cost(pilot))
        draws = pilot.draw(1.0, self.seed, 0, blocks=few)
        trace.pairs += int((draws.n_drawn * np.diff(pilot.blocks.start))[few].sum())
        tried = pilot.of(few)
        error = tried.usual_error(draws)
        trace.lap("trial")
        share = float(tried.blocks.start[-1] / self.problem.head.n_queries)
        budget = share * self.problem.squared_error
        factor, ratio = 1.0, error.variance / budget
        if ratio > policy.short:
            factor = (ratio / self.problem.margins.aim) ** policy.rate_power
        self._check_cost(self._cost(pilot, factor))
        return factor, error.upper / budget

    def _cost(self, pilot: HeadPilot, factor: float = 1.0) -> float:
        """Of drawing for all blocks, next to exact attention.

        By the pairs that the blocks of the pilot see: with a causal mask early ones see few.
        """
        head = self.problem.head
        share = factor * pilot.rate.pairs / head.pairs_of(pilot.blocks.query_order)
        share += band_pairs(self.blocks) / head.n_pairs
        return self.problem.cost.drawn_head_pair * share

    def _cost_of_pilot(self) -> float:
        """Of rows of every block, next to exact attention."""
        shape, head = self.problem.policy.head_shape, self.problem.head
        n_rows = len(self.blocks.band_start) * (shape.pilot_rows + shape.check_rows)
        return self.problem.cost.head_pilot_pair * n_rows / head.n_queries

    def _check_cost(self, cost: float) -> None:
        if cost > self.problem.policy.head_trial.most:
            raise Refusal(TOO_SHARP)
