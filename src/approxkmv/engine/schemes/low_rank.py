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

import math
from dataclasses import dataclass

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.ranks import FirstPivots, rank_needed
from approxkmv.engine.survey.span import Span, of_keys
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Array, Float64, Index

# Bandwidths from which on kernel values in double precision are too inexact to be inverted.
_FAR = 1e4
# Of the mean, what a key counts that is in the span of the first pivots.
_EVENLY = 1e-3
NOT_LOW = "the matrix is not close enough to one of low rank"


def cost_of_rank(problem: Problem, rank: float) -> float:
    """What a product through this many pivots costs, with finding and judging it, in pairs."""
    margins, cost = problem.policy.low_rank, problem.cost
    rows = margins.checked_rows + margins.recomputed_rows
    pairs = rank * (problem.n_queries + problem.n_keys) + rows * problem.n_keys
    return pairs + cost.dense_pairs(problem.n_dims, rank**3 / 6)


class Trial:
    """Products of rows with more and more pivots: what error they have, and how many it takes."""

    def __init__(self, problem: Problem, span: Span, checks: Checks) -> None:
        self.problem, self.span, self.checks = problem, span, checks
        self.sums = np.empty((0, problem.x.shape[1]))  # K(S, k) x
        self.seen: list[tuple[int, float]] = []
        self.upper = math.inf

    def grow(self, rank: int) -> None:
        """Take more pivots, and measure the squared error that they leave."""
        problem = self.problem
        self.span.grow(rank)
        new = self.span.index[len(self.sums) :]
        sums = of_keys(problem.kernel).at_queries(new).product(problem.x).out
        self.sums = np.concatenate([self.sums, sums.astype(np.float64)])
        squares = self.checks.squares(self.product(self.checks.rows)).sum(axis=1)
        mean = float(squares.mean())
        self.seen.append((self.span.rank, mean))
        self.upper = mean * spread(squares, problem.budget.delta)

    def product(self, rows: Index | None = None) -> Array:
        """The product with the pivots taken so far, or some rows of it."""
        kernel, pivots = self.problem.kernel, self.span.pivots()
        weights = pivots.weights(self.sums, kernel.backend.threads)
        columns = np.ascontiguousarray(weights, dtype=self.problem.x.dtype)
        kernel = kernel if rows is None else kernel.at_queries(rows)
        return kernel.at_keys(pivots.index).product(columns).out

    def grow_until(self, budget: float, trace: Trace) -> None:
        """Take pivots until the error is this small; ``Refusal`` where they would be too many."""
        problem, margins = self.problem, self.problem.policy.low_rank
        while self.upper > budget:
            rank, needed = self.span.rank, rank_needed(self.seen, margins.aim * budget)
            # Errors of few pivots say little of those of many: some are tried whatever they say.
            looked = cost_of_rank(problem, rank) / problem.n_pairs
            if looked > margins.look:
                early = looked <= margins.early * margins.look
                _affordable(problem, needed / (margins.optimism if early else 1.0))
            if self.span.exhausted:
                raise Refusal(NOT_LOW)
            more = min(max(needed, margins.step * rank), 2 * rank)
            _affordable(problem, more)
            self.grow(math.ceil(more))
            trace.note(rank_looked_at=self.span.rank)


@dataclass(frozen=True, eq=False)
class LowRankPlan:
    """Pivots whose error is small enough on rows, and what is known of each point."""

    problem: Problem
    trial: Trial
    left: Float64  # of each query, by the first pivots
    left_of_keys: Float64

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return self.trial.span.rank

    @property
    def cost(self) -> float:
        """Of the product, in pairs."""
        return cost_of_rank(self.problem, self.rank)

    @property
    def squared_error(self) -> float:
        """As measured on rows."""
        return self.trial.seen[-1][1]


def plan_low_rank(problem: Problem, trace: Trace) -> LowRankPlan:
    """Look for the rank that is needed; ``Refusal`` as soon as it is seen to be too high."""
    margins, budget = problem.policy.low_rank, problem.budget.squared_error
    if not problem.kernel.frame.radius < _FAR:
        raise Refusal(NOT_LOW)
    _affordable(problem, margins.first_rank / 2)
    first = FirstPivots(problem)
    for rank in (margins.first_rank // 2, margins.first_rank):
        first.grow(rank)
        trace.note(rank_looked_at=first.rank)
    trace.lap("rank")
    _affordable(problem, first.needed(budget) / margins.optimism)
    pivots = first.pivots()
    kernel, symmetric = problem.kernel, problem.kernel.queries is problem.kernel.keys
    left = pivots.left_of_diagonal(of_keys(kernel))
    of_queries = left if symmetric else pivots.left_of_diagonal(kernel)
    span = Span(kernel, _proposals(problem, pivots.index, left))
    trace.lap("rank")
    checks = Checks.drawn(problem, of_queries)
    trace.pairs += (len(checks.rows) + len(checks.recomputed)) * problem.n_keys
    trace.lap("check rows")
    trial = Trial(problem, span, checks)
    for rank in (margins.first_rank // 2, margins.first_rank):
        trial.grow(rank)
    trial.grow_until(budget, trace)
    trace.lap("rank")
    trace.note(
        rank=span.rank,
        predicted_cost_of_low_rank=cost_of_rank(problem, span.rank) / problem.n_pairs,
    )
    return LowRankPlan(problem, trial, of_queries, left)


def _proposals(problem: Problem, first: Index, left: Float64) -> Index:
    """The first pivots, and then keys in proportion to what these leave of them.

    Keys far from all of these, which a uniform sample of a few thousand does not meet, are met.
    """
    chance = left + _EVENLY * max(float(left.mean()), _EVENLY)
    chance[first] = 0.0
    # The smallest of exponential times at these rates are a weighted draw without replacement.
    with np.errstate(divide="ignore"):
        times = problem.rng.exponential(size=len(chance)) / chance
    size = min(problem.policy.low_rank.most_rank, len(chance)) - len(first)
    size = min(size, int(np.isfinite(times).sum()))
    some = np.argpartition(times, size - 1)[:size] if size > 0 else first[:0]
    return np.concatenate([first, some[np.argsort(times[some], kind="stable")]])


def _affordable(problem: Problem, rank: float) -> None:
    cost = cost_of_rank(problem, rank)
    if cost > problem.policy.low_rank.too_many * problem.n_pairs:
        raise Refusal(NOT_LOW)
    problem.budget.limit.needs(cost)


def through_low_rank(plan: LowRankPlan, trace: Trace) -> Result:
    """The product, with more pivots until its error is small enough; ``Refusal`` if it stays."""
    problem, trial = plan.problem, plan.trial
    margins, budget = problem.policy.low_rank, problem.budget.squared_error
    for _ in range(margins.most_rounds):
        y = trial.product()
        pairs = plan.rank * (problem.n_queries + problem.n_keys)
        trace.lap("product")
        result = trial.checks.judged(y, pairs)
        trace.pairs += pairs
        trace.note(rank=plan.rank, rows_recomputed=result.n_recomputed)
        if result.worst <= budget:
            return result
        trial.upper = result.worst
        trial.grow_until(0.5 * min(budget, result.worst), trace)
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

    def squares(self, of_rows: Array) -> Float64:
        """For each draw and column, the squared error of all rows that it stands for."""
        off = np.square(of_rows.astype(np.float64) - self.products)
        squares = self.problem.weighed(off, self.rows) / self.chance[:, None]
        return np.repeat(squares, self.times, axis=0)

    def judged(self, y: Array, pairs: int) -> Result:
        """The product with its exact rows put in, and its error."""
        y[self.recomputed] = self.of_recomputed
        squares = self.squares(y[self.rows]).sum(axis=1)
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
