r"""Products of dense kernels through few columns: ``K(q, S) W^-1 K(S, k) x``.

With the pivots S known this takes two thin exact products. What is left of K is a fixed matrix, so
nothing is drawn; its error is measured on rows that are computed exactly. Rows far from all pivots
may have larger errors than others, and a uniform sample may miss them. So each row has a number d,
the square of its distance from the first pivots as the kernel has it: its squared error is at most
d times the same number H for all rows (:math:`|e_i|^2\le d_i\,x^TRx`, where R is what is left of
the matrix between keys). Rows are drawn in proportion to d, to d |x| squared and evenly, one third
each; those in which these are largest are computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.ranks import (
    Ranks,
    better_ranks,
    first_ranks,
    of_keys,
    steps,
    wider,
)
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Array, Float64, Index

# Bandwidths from which on kernel values in double precision are too inexact to be inverted.
_FAR = 1e4
NOT_LOW = "the matrix is not close enough to one of low rank"


def cost_of_rank(problem: Problem, rank: float) -> float:
    """What a product through this many pivots costs, with finding and judging it, in pairs."""
    margins, cost = problem.policy.low_rank, problem.cost
    rows = margins.checked_rows + margins.recomputed_rows
    pairs = rank * (problem.n_queries + problem.n_keys) + rows * problem.n_keys
    pool = margins.pool_per_pivot * max(rank, 2 * margins.first_rank)
    return pairs + cost.dense_pairs(problem.n_dims, rank * rank * (pool / 2 + rank / 3))


@dataclass(frozen=True, eq=False)
class LowRankPlan:
    """Pivots whose error is expected to be small enough, and what is known of each point."""

    problem: Problem
    ranks: Ranks
    left: Float64  # of each query, by the first pivots
    left_of_keys: Float64

    @property
    def cost(self) -> float:
        """Of the product, in pairs."""
        return cost_of_rank(self.problem, self.ranks.rank)


def plan_low_rank(problem: Problem, trace: Trace) -> LowRankPlan:
    """Look for the rank that is needed; ``Refusal`` as soon as it is seen to be too high."""
    margins = problem.policy.low_rank
    target = margins.aim * problem.budget.squared_error
    if not problem.kernel.frame.radius < _FAR:
        raise Refusal(NOT_LOW)
    _affordable(problem, margins.first_rank / 2)
    ranks = first_ranks(problem)
    for rank in (margins.first_rank // 2, margins.first_rank):
        ranks.grow(rank)
        trace.note(rank_looked_at=ranks.rank)
    trace.lap("rank")
    needed = ranks.needed(target) / margins.optimism
    _affordable(problem, needed)
    first = ranks.pivots()
    kernel, symmetric = problem.kernel, problem.kernel.queries is problem.kernel.keys
    left = first.left_of_diagonal(of_keys(kernel))
    of_queries = left if symmetric else first.left_of_diagonal(kernel)
    size = margins.pool_per_pivot * max(needed, 2 * margins.first_rank)
    seen = ranks.seen[0]
    ranks = better_ranks(problem, first, left, int(min(size, problem.n_keys)))
    ranks.seen.append(seen)
    ranks.grow(margins.first_rank)
    ranks = grow_to(ranks, target, trace)
    trace.lap("rank")
    trace.note(
        rank=ranks.rank,
        predicted_cost_of_low_rank=cost_of_rank(problem, ranks.rank) / problem.n_pairs,
    )
    return LowRankPlan(problem, ranks, of_queries, left)


def grow_to(ranks: Ranks, target: float, trace: Trace) -> Ranks:
    """Add pivots until the forecast of the squared error is at most ``target``."""
    problem, margins = ranks.problem, ranks.problem.policy.low_rank
    error = ranks.seen[-1][1]
    while error > target:
        _affordable(problem, ranks.needed(target) / margins.optimism)
        if ranks.cholesky.exhausted:
            raise Refusal(NOT_LOW)
        ranks = wider(ranks) if ranks.narrow else ranks
        error = ranks.grow(steps(ranks.rank, margins.step))
        trace.note(rank_looked_at=ranks.rank)
    _affordable(problem, ranks.rank)
    return ranks


def _affordable(problem: Problem, rank: float) -> None:
    cost = cost_of_rank(problem, rank)
    if cost > problem.policy.low_rank.too_many * problem.n_pairs:
        raise Refusal(NOT_LOW)
    problem.budget.limit.needs(cost)


def through_low_rank(plan: LowRankPlan, trace: Trace) -> Result:
    """The product, with more pivots until its error is small enough; ``Refusal`` if it stays."""
    problem, ranks = plan.problem, plan.ranks
    margins, budget = problem.policy.low_rank, problem.budget.squared_error
    checks = Checks.drawn(problem, plan.left)
    trace.pairs += (len(checks.rows) + len(checks.recomputed)) * problem.n_keys
    trace.lap("check rows")
    target = margins.aim * budget
    for _ in range(margins.most_rounds):
        pivots = ranks.pivots()
        y = pivots.product(problem.kernel, problem.x)
        pairs = len(pivots.index) * (problem.n_queries + problem.n_keys)
        trace.lap("product")
        result = checks.judged(y, pairs)
        trace.pairs += pairs
        trace.note(rank=ranks.rank, rows_recomputed=result.n_recomputed)
        if result.worst <= budget:
            return result
        # What was seen, and not what was forecast, is to come down.
        target *= min(margins.aim * budget / max(result.worst, 1e-300), 0.5)
        ranks = grow_to(ranks, min(target, 0.5 * ranks.seen[-1][1]), trace)
        trace.lap("rank")
    raise Refusal("the error of what few columns span did not come down")


@dataclass(frozen=True, eq=False)
class Checks:
    """Rows computed exactly: those that are most likely wrong, and a sample of all others."""

    problem: Problem
    recomputed: Index
    of_recomputed: Array
    rows: Index  # drawn with replacement, each one once
    chance: Float64  # with which each of them is one draw
    times: Index  # how often it was drawn
    products: Array

    @staticmethod
    def drawn(problem: Problem, left: Float64, n_recomputed: int | None = None) -> Checks:
        """Choose the rows, by what is left of them and by x, and compute them."""
        margins, kernel = problem.policy.low_rank, problem.kernel
        measures = [problem.weighed(left)]
        if kernel.queries is kernel.keys:
            measures.append(problem.weighed(np.square(left * problem.row_norms)))
        most = margins.recomputed_rows if n_recomputed is None else n_recomputed
        chosen = [_largest(m, most // len(measures)) for m in measures]
        recomputed = np.unique(np.concatenate(chosen))
        others = np.ones(len(left))
        others[recomputed] = 0.0
        shares = [m * others / (m * others).sum() for m in measures if (m * others).any()]
        evenly = problem.weighed(others)
        shares.append(evenly / evenly.sum())
        chance = np.mean(shares, axis=0)
        drawn = problem.rng.choice(len(left), margins.checked_rows, p=chance / chance.sum())
        rows, times = np.unique(drawn, return_counts=True)
        both = np.concatenate([recomputed, rows])
        products = kernel.at_queries(both).product(problem.x).out
        n = len(recomputed)
        return Checks(problem, recomputed, products[:n], rows, chance[rows], times, products[n:])

    def squares(self, y: Array) -> Float64:
        """For each draw and column, the squared error of all rows that it stands for."""
        off = np.square(y[self.rows].astype(np.float64) - self.products)
        squares = self.problem.weighed(off, self.rows) / self.chance[:, None]
        return np.repeat(squares, self.times, axis=0)

    def judged(self, y: Array, pairs: int) -> Result:
        """The product with its exact rows put in, and its error."""
        y[self.recomputed] = self.of_recomputed
        squares = self.squares(y).sum(axis=1)
        mean = float(squares.mean())
        return Result(
            y=y,
            variance=mean,
            upper=mean * spread(squares, self.problem.budget.delta),
            left_out=0.0,
            checked=mean,
            pairs=pairs,
            n_recomputed=len(self.recomputed),
            exact_rows=self.recomputed,
            reason="the kernel is dense: few of its columns span the product",
        )


def _largest(measure: Float64, most: int) -> Index:
    most = min(most, len(measure) // 4)
    if most == 0:
        return np.empty(0, np.int64)
    return np.argpartition(measure, len(measure) - most)[len(measure) - most :]
