"""A product as it was asked for, and as the engine computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv._deadline import Deadline
from approxkmv._lazy import lazy_property
from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import Policy
from approxkmv.engine.problem import Budget, Limit, Problem
from approxkmv.engine.trace import Refusal
from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.kernel.equal_points import Copies, find_copies
from approxkmv.kernel.frame import usual_units
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.kernel.rounding import frobenius
from approxkmv.kernel.scaling import scaled_together
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, Index


class Merged(NamedTuple):
    """Distinct points; None where hardly any are equal."""

    queries: Array
    keys: Array
    of_queries: Copies | None
    of_keys: Copies | None


def merge_equal(queries: Array, keys: Array, cost: CostModel | None = None) -> Merged:
    """Look for equal points where that takes no time to speak of; the same arrays stay the same."""
    of_queries = of_keys = None
    same, n_pairs = queries is keys, len(queries) * len(keys)
    n_points = len(keys) if same else len(queries) + len(keys)
    if (cost or CostModel()).worth_merging(n_points, n_pairs):
        of_keys = find_copies(keys)
        of_queries = of_keys if same else find_copies(queries)
    return Merged(
        queries if of_queries is None else of_queries.distinct,
        keys if of_keys is None else of_keys.distinct,
        of_queries,
        of_keys,
    )


class Tolerance(NamedTuple):
    """Error allowed relative to the length of x, or to that of the product."""

    eps: float
    rtol: float | None = None

    @property
    def is_zero(self) -> bool:
        """Whether the exact product is asked for."""
        return (self.eps if self.rtol is None else self.rtol) == 0


@dataclass(frozen=True, eq=False)
class Request:
    """One product as the user asked for it: checked arguments.

    Where equal points are merged, ``queries`` and ``keys`` are the distinct ones, and x is still
    that of all keys.
    """

    queries: Array
    keys: Array
    x: Array  # one or two dimensions
    bandwidth: float
    tolerance: Tolerance
    delta: float
    rng: np.random.Generator
    n_threads: int | None = None
    deadline: Deadline = field(default_factory=Deadline)
    report: bool = False  # whether the error of an exact product is measured
    cost: CostModel = field(default_factory=CostModel)
    policy: Policy = field(default_factory=Policy)
    query_copies: Copies | None = None
    key_copies: Copies | None = None
    function: KernelFunction = GAUSSIAN

    @property
    def n_pairs(self) -> int:
        """Pairs of the exact product."""
        return len(self.queries) * len(self.keys)

    @property
    def pairs_asked(self) -> int:
        """The same before equal points were merged."""
        return self.n_queries * len(self.x)

    @property
    def n_queries(self) -> int:
        """Rows of the answer."""
        return len(self.queries if self.query_copies is None else self.query_copies.place)

    def merged(self) -> Request:
        """The same product of distinct points; itself where hardly any are equal."""
        if not (self.query_copies is None and self.key_copies is None):
            return self
        found = merge_equal(self.queries, self.keys, self.cost)
        if found.of_queries is None and found.of_keys is None:
            return self
        return replace(
            self,
            queries=found.queries,
            keys=found.keys,
            query_copies=found.of_queries,
            key_copies=found.of_keys,
        )

    def summed(self, columns: Array) -> Array:
        """Columns of x for the distinct keys."""
        return columns if self.key_copies is None else self.key_copies.summed(columns)

    def copied(self, y: Array) -> Array:
        """Rows of the answer for all queries."""
        return y if self.query_copies is None else self.query_copies.copied(y)

    def length(self, y: Array) -> float:
        """Frobenius norm of the answer for all queries, from the rows of distinct ones."""
        if self.query_copies is None:
            return frobenius(y)
        squares = np.square(y, dtype=np.float64).reshape(len(y), -1).sum(axis=1)
        return math.sqrt(float(squares @ self.query_copies.number))

    def some_rows(self, n_rows: int) -> Index:
        """Random rows of the answer, as numbers of distinct queries."""
        some = self.rng.choice(self.n_queries, n_rows, replace=False)
        return some if self.query_copies is None else self.query_copies.place[some]

    @property
    def worth_a_survey(self) -> bool:
        """Whether the exact product takes longer than finding out about the data."""
        return self.cost.worth_a_survey(len(self.queries), *self.keys.shape)

    @property
    def worth_a_look(self) -> bool:
        """Whether the exact product takes longer than a look at the rank of the matrix."""
        return self.cost.worth_a_look(len(self.queries), *self.keys.shape)

    @property
    def worth_searching(self) -> bool:
        """Whether the exact product takes longer than a search for near pairs, too."""
        return self.cost.worth_searching(len(self.queries), *self.keys.shape)

    @property
    def needs_a_clock(self) -> bool:
        """Whether the exact product may take longer than the user allows."""
        width = self.keys.shape[1] + self.cost.pair_overhead
        work = len(self.queries) * (len(self.keys) * width + self.x.size)
        return self.x.size > 0 and self.deadline.matters(work)

    @lazy_property
    def kernel(self) -> KernelMatrix:
        """The matrix, in the user's units."""
        return prepare(
            self.queries,
            self.keys,
            self.bandwidth,
            function=self.function,
            backend=Compiled(self.n_threads),
        )

    @lazy_property
    def scaled(self) -> Scaled:
        """The product in usual units; ``Refusal`` where there are none."""
        units = usual_units(self.queries, self.keys, self.bandwidth)
        if units is None:
            raise Refusal("the points are too many bandwidths apart")
        kernel = self.kernel
        if units[2] != self.bandwidth:
            kernel = prepare(*units, function=self.function, backend=Compiled(self.n_threads))
        columns, exponent = scaled_together(self.x, self.keys.dtype)
        weights = None if self.query_copies is None else self.query_copies.number
        return Scaled(kernel, self.summed(columns), exponent, frobenius(columns), weights)


@dataclass(frozen=True, eq=False)
class Scaled:
    """A product in units in which nothing overflows: its matrix, and scaled columns of x."""

    kernel: KernelMatrix
    columns: Array
    exponent: npt.NDArray[np.intc]
    x_norm: float  # of all keys
    row_weights: Float64 | None = None

    def within_reach(self, most_far: float) -> tuple[Scaled, Index]:
        """The product without its far keys, by inner products, and these keys.

        The product as it is where they are more than this share of all keys, or none.
        """
        kernel, far = self.kernel.within_reach(int(most_far * len(self.columns)))
        if len(far) == 0:
            return self, far
        columns = self.columns.copy()
        columns[far] = 0
        return replace(self, kernel=kernel, columns=columns), far

    def problem(
        self, request: Request, rng: np.random.Generator, error: float, limit: Limit
    ) -> Problem:
        """The product with an error of at most this length."""
        budget = Budget(error**2, request.delta, limit)
        return Problem(
            self.kernel,
            self.columns,
            budget,
            rng,
            request.cost,
            request.policy,
            self.row_weights,
            request.worth_searching,
        )
