"""What rank a kernel matrix needs: pivots among some keys, and what they leave at other points.

A dense kernel is nearly of low rank. Pivots are picked among a few thousand keys, so that the cost
hardly depends on the number of points, and their error is forecast from the kernel values between a
few hundred other points: second moments of what is left of K for an x of random signs, and its
products with these entries of x for an x that is smooth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from approxkmv._interrupts import interrupt_deferred
from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.pivots import BLOCK, PivotedCholesky
from approxkmv.engine.survey.thin import inverse_of_lower, times
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.types import Array, Float64, Index

_ROWS_AT_ONCE = 1 << 16
# Of the mean, what a key counts that is in the span of the first pivots.
_EVENLY = 1e-3


@dataclass(frozen=True, eq=False)
class Pivots:
    """Keys whose columns span an approximation: ``K(q, S) W^-1 K(S, k)`` with ``W = K(S, S)``."""

    index: Index
    root: Float64  # lower Cholesky factor of W

    def product(self, kernel: KernelMatrix, x: Array, *, transposed: bool = False) -> Array:
        """The product of the approximation, or of its transpose, with the columns of x."""
        between = of_keys(kernel)
        if transposed:
            sums = kernel.at_keys(self.index).transposed.product(x).out
        else:
            sums = between.at_queries(self.index).product(x).out
        with interrupt_deferred():  # a tenth of a second, where no product may need it
            from scipy.linalg import solve_triangular
        inner = solve_triangular(self.root, sums.astype(np.float64), lower=True)
        weights = solve_triangular(self.root, inner, lower=True, trans="T")
        weights = np.ascontiguousarray(weights, dtype=x.dtype)
        return (between if transposed else kernel).at_keys(self.index).product(weights).out

    def left_of_diagonal(self, kernel: KernelMatrix) -> Float64:
        """For each query, what the approximation leaves of the kernel's value 1 with itself.

        This is the squared distance of the query, as the kernel has it, from the span of the
        pivots: what is left of its row of K is at most its root times that of the key.
        """
        columns = kernel.at_keys(self.index)
        inverse = np.ascontiguousarray(inverse_of_lower(self.root).T, dtype=kernel.keys.dtype)
        left = np.empty(len(kernel.queries))
        for first in range(0, len(left), _ROWS_AT_ONCE):
            rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(left)))
            factor = columns.at_queries(rows).product(inverse).out
            left[rows] = 1.0 - np.einsum("ij,ij->i", factor, factor)
        return np.clip(left, 0.0, 1.0)


def gaussian_values(points: Array, bandwidth: float) -> Float64:
    """Kernel values between points that are not many bandwidths apart, in double precision."""
    scaled = points.astype(np.float64)
    scaled = (scaled - scaled.mean(axis=0)) / bandwidth
    squares = np.einsum("ij,ij->i", scaled, scaled)
    exponents = times(scaled, scaled.T) - squares / 2 - squares[:, None] / 2
    return np.asarray(np.exp(np.minimum(exponents, 0.0)))


def of_keys(kernel: KernelMatrix) -> KernelMatrix:
    """The kernel matrix between keys."""
    return replace(kernel, queries=kernel.keys, query_shift=kernel.key_shift)


class Ranks:
    """Pivots among some keys, and forecasts of the error that they leave."""

    def __init__(
        self, problem: Problem, keys: Index, weight: Float64, pivots: Index | None = None
    ) -> None:
        self.problem, self.weight, kernel = problem, weight, problem.kernel
        self.symmetric = kernel.queries is kernel.keys
        n_test = min(problem.policy.low_rank.test_points, problem.n_keys, problem.n_queries)
        test = problem.rng.choice(problem.n_keys, n_test, replace=False)
        others = test if self.symmetric else problem.rng.choice(problem.n_queries, n_test)
        self.test_keys, self.test_queries = test, others
        # Pivots that are known already come first, then those that may be picked, then the tests.
        known = np.empty(0, np.int64) if pivots is None else pivots
        self.keys = np.concatenate([known, np.setdiff1d(keys, known)])
        chance = np.zeros(len(self.keys))
        chance[len(known) :] = weight[self.keys[len(known) :]]
        self.rows = _rows_at(kernel, np.concatenate([self.keys, test]), others)
        self.cholesky = PivotedCholesky(
            self._columns,
            self._entries,
            np.ones(len(self.rows.queries)),
            problem.rng,
            np.concatenate([chance, np.zeros(len(self.rows.queries) - len(chance))]),
            unit=float(np.finfo(kernel.keys.dtype).eps),
            n_threads=kernel.backend.threads,
        )
        test_kernel = kernel.at_queries(others).at_keys(test)
        # What the pivots counted so far leave of the kernel values between test points.
        self._left = test_kernel.product(np.eye(n_test, dtype=kernel.keys.dtype)).out
        self._left, self._counted = self._left.astype(np.float64), 0
        self.cholesky.append(np.arange(len(known)))
        self.seen: list[tuple[int, float]] = []

    def _columns(self, j: Index) -> Array:
        return self.rows.at_keys(j).product(np.eye(len(j))).out

    def _entries(self, j: Index) -> Float64:
        kernel = self.problem.kernel
        return gaussian_values(kernel.keys[self.keys[j]], kernel.bandwidth)

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return self.cholesky.rank

    @property
    def left_between_tests(self) -> Array:
        """What the pivots leave of the kernel values between test points."""
        return self._left

    @property
    def narrow(self) -> bool:
        """Whether more pivots are better picked among more keys."""
        return 2 * self.rank > len(self.keys) < self.problem.n_keys // 2

    def pivots(self) -> Pivots:
        """Those picked so far."""
        picked = self.cholesky.pivots
        return Pivots(self.keys[picked], np.tril(self.cholesky.factor[picked]))

    def grow(self, rank: int) -> float:
        """Add pivots, and forecast the squared error that they leave."""
        self.cholesky.grow(rank)
        error = self.forecast()
        self.seen.append((self.rank, error))
        return error

    def forecast(self) -> float:
        """The squared error of all rows, if only these pivots are used."""
        problem, n_test = self.problem, len(self.test_keys)
        new = self.cholesky.factor[len(self.keys) :, self._counted :]
        of_keys = new[:n_test]
        of_queries = of_keys if self.symmetric else new[n_test:]
        self._left -= times(of_queries, of_keys.T)
        self._counted, left = self.rank, self._left.copy()
        x_square = float(np.square(problem.row_norms, dtype=np.float64).sum())
        of_itself, n_others = np.zeros(n_test), n_test
        if self.symmetric:
            of_itself = np.square(left.diagonal()) * x_square / problem.n_keys
            left[np.diag_indices(n_test)] = 0.0
            n_others -= 1
        squares = left * left
        by_chance = squares.sum(axis=1) / n_others * x_square
        # Products with the entries of x at the test points, without what these have by chance.
        x = problem.x[self.test_keys].astype(np.float64)
        together = np.square(np.einsum("ij,jk->ik", left, x)).sum(axis=1)
        together -= np.einsum("ij,jk->i", squares, np.square(x))
        together *= (problem.n_keys / n_others) ** 2
        # In rows as often as they count.
        rows, n_queries = self.test_queries, problem.n_queries
        alone = float(problem.weighed(of_itself + by_chance, rows).mean())
        return n_queries * (alone + max(float(problem.weighed(together, rows).mean()), 0.0))

    def needed(self, target: float) -> float:
        """The rank at which the squared error is expected to be ``target``; may be infinite."""
        (first, before), (rank, error) = self.seen[0], self.seen[-1]
        if error <= target:
            return rank
        if self.cholesky.exhausted or not before > error or rank == first:
            return math.inf
        # From first to last: forecasts from a few points go up and down on the way.
        power = math.log(before / error) / math.log(rank / first)
        return float(rank * math.exp(min(math.log(error / target) / power, 700.0)))


def _rows_at(kernel: KernelMatrix, keys: Index, queries: Index) -> KernelMatrix:
    """The matrix of some of the keys and then some of the queries, in double precision."""
    points = kernel.keys[keys].astype(np.float64)
    if kernel.queries is not kernel.keys:
        points = np.concatenate([points, kernel.queries[queries].astype(np.float64)])
    return prepare(points, points, kernel.bandwidth, backend=kernel.backend)


def first_ranks(problem: Problem) -> Ranks:
    """Pivots among a uniform sample of the keys: whether low rank may do at all."""
    sample = min(problem.policy.low_rank.sample, problem.n_keys // 2)
    some = np.unique(problem.rng.integers(problem.n_keys, size=sample))
    return Ranks(problem, some, np.ones(problem.n_keys))


def better_ranks(problem: Problem, first: Pivots, left: Float64, size: int) -> Ranks:
    """More pivots, among keys in proportion to what the first pivots leave of them.

    Keys far from all of these, which a uniform sample of a few thousand does not meet, are met.
    """
    chance = left + _EVENLY * max(float(left.mean()), _EVENLY)
    chance /= chance.sum()
    some = np.unique(problem.rng.choice(problem.n_keys, size, p=chance))
    return Ranks(problem, some, 1 / chance, first.index)


def wider(ranks: Ranks) -> Ranks:
    """The same pivots, and twice as many keys to pick others from."""
    problem, chance = ranks.problem, 1 / ranks.weight
    size = 2 * len(ranks.keys)
    some = np.unique(problem.rng.choice(problem.n_keys, size, p=chance / chance.sum()))
    found = Ranks(problem, some, ranks.weight, ranks.keys[ranks.cholesky.pivots])
    found.seen = ranks.seen
    return found


def steps(rank: int, step: float) -> int:
    """The next rank to look at."""
    return max(rank + BLOCK, math.ceil(step * rank / BLOCK) * BLOCK)
