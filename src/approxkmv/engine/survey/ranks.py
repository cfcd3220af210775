"""Whether a kernel matrix may be of low rank: what a few pivots leave between a few points.

Pivots are picked among a few thousand keys, so that the cost hardly depends on the number of
points. What they leave of K between a few hundred other points tells the error for an x of random
signs, which that for any other x with these entries hardly falls below.
"""

from __future__ import annotations

import math

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.pivots import PivotedCholesky
from approxkmv.engine.survey.span import Pivots
from approxkmv.engine.survey.thin import times
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float64, Index


def values_among(kernel: KernelMatrix, points: Array) -> Float64:
    """Kernel values between points that are not many bandwidths apart, in double precision."""
    scaled = points.astype(np.float64)
    if math.isinf(kernel.function.steepest):  # inner products would cost half of the digits
        values = kernel.between(scaled, scaled).product(np.eye(len(points))).out
        return np.asarray(values, np.float64)
    scaled = (scaled - scaled.mean(axis=0)) / kernel.bandwidth
    squares = np.einsum("ij,ij->i", scaled, scaled)
    exponents = times(scaled, scaled.T) - squares / 2 - squares[:, None] / 2
    return kernel.function.value(np.minimum(exponents, 0.0))


class FirstPivots:
    """Pivots among a uniform sample of the keys, and forecasts of the error that they leave."""

    def __init__(self, problem: Problem) -> None:
        self.problem, kernel, margins = problem, problem.kernel, problem.policy.low_rank
        self.symmetric = kernel.queries is kernel.keys
        sample = min(margins.sample, problem.n_keys // 2)
        self.keys = np.unique(problem.rng.integers(problem.n_keys, size=sample))
        n_test = min(margins.test_points, problem.n_keys, problem.n_queries)
        test = problem.rng.choice(problem.n_keys, n_test, replace=False)
        others = test if self.symmetric else problem.rng.choice(problem.n_queries, n_test)
        self.test_queries = others
        self.rows = _rows_at(kernel, np.concatenate([self.keys, test]), others)
        chance = np.zeros(len(self.rows.queries))
        chance[: len(self.keys)] = 1.0
        self.cholesky = PivotedCholesky(
            self._columns,
            self._entries,
            np.ones(len(self.rows.queries)),
            problem.rng,
            chance,
            unit=float(np.finfo(kernel.keys.dtype).eps),
            n_threads=kernel.backend.threads,
        )
        test_kernel = kernel.at_queries(others).at_keys(test)
        # What the pivots counted so far leave of the kernel values between test points.
        self._left = test_kernel.product(np.eye(n_test, dtype=kernel.keys.dtype)).out
        self._left, self._counted = self._left.astype(np.float64), 0
        self.seen: list[tuple[int, float]] = []

    def _columns(self, j: Index) -> Array:
        return self.rows.at_keys(j).product(np.eye(len(j))).out

    def _entries(self, j: Index) -> Float64:
        kernel = self.problem.kernel
        return values_among(kernel, kernel.keys[self.keys[j]])

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return self.cholesky.rank

    def pivots(self) -> Pivots:
        """Those picked so far."""
        picked = self.cholesky.pivots
        return Pivots(self.keys[picked], np.tril(self.cholesky.factor[picked]))

    def grow(self, rank: int) -> float:
        """Add pivots, and forecast the squared error that they leave."""
        self.cholesky.grow(rank)
        error = self._forecast()
        self.seen.append((self.rank, error))
        return error

    def _forecast(self) -> float:
        """The squared error of all rows for an x of random signs, if only these are used."""
        problem, n_test = self.problem, len(self._left)
        new = self.cholesky.factor[len(self.keys) :, self._counted :]
        of_keys = new[:n_test]
        of_queries = of_keys if self.symmetric else new[n_test:]
        self._left -= times(of_queries, of_keys.T)
        self._counted = self.rank
        squares = np.square(self._left)
        x_square = float(np.square(problem.row_norms, dtype=np.float64).sum())
        of_itself, n_others = np.zeros(n_test), n_test
        if self.symmetric:
            of_itself = squares.diagonal() * x_square / problem.n_keys
            squares[np.diag_indices(n_test)] = 0.0
            n_others -= 1
        of_rows = of_itself + squares.sum(axis=1) / max(n_others, 1) * x_square
        # In rows as often as they count.
        return problem.n_queries * float(problem.weighed(of_rows, self.test_queries).mean())

    def needed(self, target: float) -> float:
        """The rank at which the squared error is expected to be ``target``; may be infinite."""
        met = self.seen[-1][1] <= target
        return math.inf if self.cholesky.exhausted and not met else rank_needed(self.seen, target)


def rank_needed(seen: list[tuple[int, float]], target: float) -> float:
    """The rank at which the squared error is ``target``, if it goes on falling as it did.

    As a power of the rank, from what was seen at half the last rank or less.
    """
    rank, error = seen[-1]
    if error <= target:
        return rank
    earlier = [one for one in seen if 2 * one[0] <= rank]
    if not earlier or not earlier[-1][1] > error:
        return math.inf
    first, before = earlier[-1]
    power = math.log(before / error) / math.log(rank / first)
    return float(rank * math.exp(min(math.log(error / max(target, 1e-300)) / power, 50.0)))


def _rows_at(kernel: KernelMatrix, keys: Index, queries: Index) -> KernelMatrix:
    """The matrix of some of the keys and then some of the queries, in double precision."""
    points = kernel.keys[keys].astype(np.float64)
    if kernel.queries is not kernel.keys:
        points = np.concatenate([points, kernel.queries[queries].astype(np.float64)])
    return kernel.between(points, points)
