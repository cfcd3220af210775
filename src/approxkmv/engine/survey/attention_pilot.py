"""A few rows of each block of a head, exactly: how often each key should be drawn, and checks.

Some rows of a block show which keys matter to it. The others are kept out of the plan, and show
what the variance estimated from draws misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from approxkmv.engine.head import HeadProblem
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.attention_order import pilot_rows, some_blocks
from approxkmv.engine.survey.attention_rates import Rate, solve_rate
from approxkmv.loops.types import (
    Array,
    AttentionBlocks,
    AttentionDraws,
    AttentionRates,
    Float64,
    Index,
    Index32,
    PilotMoments,
    Smoothing,
)


class SquaredError(NamedTuple):
    """Estimate of a squared error, and what it stays below at the confidence asked for."""

    variance: float
    upper: float


@dataclass(frozen=True, eq=False)
class HeadPilot:
    """Rows computed exactly, and the rate at which the variance of draws meets its target."""

    problem: HeadProblem
    blocks: AttentionBlocks
    rows: Index32  # of all blocks, in their order
    moments: PilotMoments
    rate: Rate
    near: Array  # (n_blocks, n_columns) the mean output of each block's rows
    checks: Index32  # (n_blocks, n_checks) rows that were not planned with
    checked: Array  # (n_blocks, n_checks, n_columns) and their outputs

    def of(self, chosen: Index) -> HeadPilot:
        """The same to estimate the error of some of the blocks with."""
        return replace(
            self,
            blocks=some_blocks(self.blocks, chosen),
            checks=self.checks[chosen],
            checked=self.checked[chosen],
        )

    def draw(
        self,
        factor: float,
        seed: int,
        stream: int,
        *,
        blocks: Index | None = None,
        into: AttentionDraws | None = None,
    ) -> AttentionDraws:
        """Draw keys for every block, or for some, at this multiple of the rate."""
        shape, head = self.problem.policy.head_shape, self.problem.head
        rates = AttentionRates(
            self.moments.guarded,
            self.near,
            self.rate.floor,
            factor * self.rate.rate,
            shape.least_draws,
            seed,
            stream,
        )
        return head.backend.attention_draw(head.moved, self.blocks, rates, chosen=blocks, into=into)

    def error(self, draws: AttentionDraws, below: float = math.inf) -> SquaredError:
        """How large the error of these draws is, over the rows whose bound is below a limit.

        Draws estimate their own variance to first order. What that misses (keys that were never
        drawn, noisy denominators) is measured on the check rows.
        """
        margins, delta = self.problem.margins, self.problem.budget.delta
        rows, of_checks = self.blocks.query_order, draws.bound[self.checks]
        bounds, variances = draws.bound[rows], draws.variance[rows]
        usual, to_check = bounds < below, of_checks < below
        known = usual & ~np.isnan(variances)
        bound = float(bounds[known].sum())
        share = max(0.0, float(variances[known].sum())) / bound if bound > 0 else 1.0
        per_block = share * np.add.reduceat(bounds * usual, self.blocks.start[:-1])
        errors = (draws.out[self.checks] - self.checked)[to_check]
        measured = (errors.astype(np.float64) ** 2).sum(axis=-1)
        predicted = share * float(of_checks[to_check].sum())
        variance = float(per_block.sum())
        if measured.sum() > margins.most_correction * predicted:
            variance = len(rows) * float(measured.mean())
        elif predicted > 0:
            variance *= max(margins.least_correction, float(measured.sum()) / predicted)
        return SquaredError(variance, variance * spread(per_block, delta))

    def usual_error(self, draws: AttentionDraws) -> SquaredError:
        """The error without the rows that are usually recomputed."""
        share = self.problem.margins.usually_recomputed
        return self.error(draws, largest(draws.bound[self.blocks.query_order], share))


def run_head_pilot(problem: HeadProblem, blocks: AttentionBlocks, share: float) -> HeadPilot:
    """Compute some rows of each block, and solve for the rate.

    ``share`` is the part of all rows that the blocks have, and so of the error budget.
    """
    shape, head = problem.policy.head_shape, problem.head
    n_blocks, per_block = len(blocks.band_start), shape.pilot_rows + shape.check_rows
    rows = pilot_rows(blocks, per_block, problem.rng)
    smoothing = Smoothing(
        shape.check_rows,
        shape.plan_guard,
        shape.guard,
        shape.narrow_pool,
        shape.wide_pool,
        shape.own_share,
        shape.wide_share,
        shape.all_share,
    )
    moments = head.backend.attention_pilot(head.moved, blocks, rows, smoothing)
    target = problem.margins.aim * share * problem.squared_error
    rate = solve_rate(blocks, moments, target, shape.floor, head.backend)
    outputs = moments.outputs.reshape(n_blocks, per_block, -1)
    return HeadPilot(
        problem=problem,
        blocks=blocks,
        rows=rows,
        moments=moments,
        rate=rate,
        near=outputs.mean(axis=1),
        checks=rows.reshape(n_blocks, per_block)[:, shape.pilot_rows :],
        checked=outputs[:, shape.pilot_rows :],
    )


def largest(bounds: Float64, share: float) -> float:
    """What this share of the rows, at least one of them, reaches."""
    place = len(bounds) - math.ceil(share * len(bounds))
    return float(np.partition(bounds, place)[place])
