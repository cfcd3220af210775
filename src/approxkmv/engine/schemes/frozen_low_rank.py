r"""One fixed matrix of low rank close to a dense K: columns of pivots, and nothing drawn.

What it leaves of K is one fixed matrix, too. Its error depends on x, so it is measured for several:
entries that are all equal, random ones, and a vector close to the worst of all, the leading
singular vector of what is left between a few hundred points, continued to all keys. Keys that the
pivots leave much of become pivots themselves, so that single keys are right as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.engine.problem import Problem
from approxkmv.engine.schemes.low_rank import Checks, LowRankPlan, plan_low_rank
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.span import Pivots, Span, of_keys
from approxkmv.engine.survey.thin import times
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float64

# Random vectors whose error is measured, and, of eps, what may be left of a key's own value 1.
_RANDOM, _OF_A_KEY = 3, 0.5
_AT_ONCE = 256  # keys taken together
_POWERS = 30  # of what is left between test points, to find its leading singular vector
TOO_MANY_FAR = "too many points are far from all others for a matrix of low rank"


@dataclass(frozen=True, eq=False)
class LowRankMatrix:
    """``K(q, S) W^-1 K(S, k)``: linear, and symmetric where the queries are the keys."""

    kernel: KernelMatrix
    pivots: Pivots

    def product(self, x: Array, *, transposed: bool = False) -> Array:
        """The matrix, or its transpose, times the columns of x."""
        return self.pivots.product(self.kernel, x, transposed=transposed)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that it is made of beside the points, to be kept in a file."""
        return {"pivots": self.pivots.index, "root": self.pivots.root}

    @classmethod
    def from_arrays(cls, parts: dict[str, Any], kernel: KernelMatrix) -> LowRankMatrix:
        """What :meth:`arrays` gave, after a check that it fits the points."""
        index, root = parts["pivots"], parts["root"]
        inside = index.ndim == 1 and ((index >= 0) & (index < len(kernel.keys))).all()
        if not inside or root.shape != (len(index), len(index)) or root.dtype != np.float64:
            raise ValueError("the pivots do not fit the points")
        if not (np.isfinite(root).all() and (root.diagonal() > 0).all()):
            raise ValueError("the factor of the pivots is not one")
        return cls(kernel, Pivots(index, root))


def freeze_low_rank(problem: Problem, trace: Trace) -> LowRankMatrix:
    """A matrix of low rank whose products have an error of at most ``problem.eps`` |x|.

    ``Refusal`` where the rank needed is too high; ``problem.x`` is all ones.
    """
    margins, budget = problem.policy.low_rank, problem.budget.squared_error
    plan = plan_low_rank(problem, trace)
    span = _with_far_keys(plan)
    for _ in range(margins.most_rounds):
        matrix = LowRankMatrix(problem.kernel.checked(None), span.pivots())
        worst = _judged(problem, matrix, plan.left, trace)
        trace.lap("product")
        if worst <= budget:
            return matrix
        # What was seen on rows of one vector is to fall by as much as what all of them left.
        plan.trial.upper = worst
        plan.trial.grow_until(plan.squared_error * min(0.5, margins.aim * budget / worst), trace)
        trace.lap("rank")
    raise Refusal("the error of what few columns span did not come down")


def _with_far_keys(plan: LowRankPlan) -> Span:
    """The pivots, and keys of which they leave much."""
    problem, span = plan.problem, plan.trial.span
    most, between = _OF_A_KEY * problem.eps, of_keys(problem.kernel)
    # Further pivots leave less: only those are looked at of which the first ones left more.
    far = np.flatnonzero(plan.left_of_keys > most)
    far = far[span.pivots().left_of_diagonal(between.at_queries(far)) > most]
    if len(far) > span.rank:
        raise Refusal(TOO_MANY_FAR)
    for first in range(0, len(far), _AT_ONCE):
        span.take(far[first : first + _AT_ONCE])
    return span


def _judged(problem: Problem, matrix: LowRankMatrix, left: Float64, trace: Trace) -> float:
    """The largest squared error of all vectors that were tried, for an x of this length."""
    n = problem.n_keys
    random = problem.rng.standard_normal((n, _RANDOM))
    x = np.column_stack([np.ones(n), _worst(problem, matrix), random])
    x *= math.sqrt(n) / np.linalg.norm(x, axis=0)
    tried = replace(problem, x=np.ascontiguousarray(x, dtype=problem.x.dtype))
    checks = Checks.drawn(tried, left, n_recomputed=0)
    trace.pairs += len(checks.rows) * n
    squares = checks.squares(matrix.product(tried.x)[checks.rows])
    means = squares.mean(axis=0)
    of_keys = math.sqrt(float(means[2:].mean()) / n)
    trace.note(
        rank=len(matrix.pivots.index),
        error_of_a_key=of_keys,
        error_of_a_query=of_keys * math.sqrt(n / problem.n_queries),
        error_of_equal_entries=math.sqrt(means[0] / n),
        largest_error_of_vectors_tried=math.sqrt(float(means.max()) / n),
    )
    limits = [
        mean * spread(of, problem.budget.delta) for mean, of in zip(means, squares.T, strict=True)
    ]
    return float(max(limits))


def _worst(problem: Problem, matrix: LowRankMatrix) -> Float64:
    """Nearly the leading right singular vector of what the matrix leaves of K."""
    kernel, n_test = problem.kernel, problem.policy.low_rank.test_points
    some = problem.rng.choice(problem.n_queries, min(n_test, problem.n_queries), replace=False)
    keys = some
    if kernel.queries is not kernel.keys:
        keys = problem.rng.choice(problem.n_keys, min(n_test, problem.n_keys), replace=False)
    between = kernel.at_queries(some).at_keys(keys)
    left = between.product(np.eye(len(keys), dtype=problem.x.dtype)).out.astype(np.float64)
    across = matrix.pivots.of_points(kernel.at_queries(some))
    left -= times(across.T, matrix.pivots.of_points(of_keys(kernel).at_queries(keys)))
    # Not by a BLAS, whose threads would keep the cores busy.
    vector = problem.rng.standard_normal(len(keys))
    for _ in range(_POWERS):
        vector = np.einsum("ij,i->j", left, np.einsum("ij,j->i", left, vector))
        vector /= max(float(np.sqrt(np.square(vector).sum())), np.finfo(np.float64).tiny)
    columns = np.einsum("ij,j->i", left, vector)[:, None]
    columns = np.ascontiguousarray(columns, dtype=problem.x.dtype)
    queries = kernel.at_queries(some)
    exact = queries.transposed.product(columns).out
    few = LowRankMatrix(queries, matrix.pivots)
    off = exact.astype(np.float64) - few.product(columns, transposed=True)
    return off[:, 0] if off.any() else np.ones(problem.n_keys)
