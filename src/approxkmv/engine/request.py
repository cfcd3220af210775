"""A product as it was asked for, and as the engine computes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv._deadline import Deadline
from approxkmv._lazy import lazy_property
from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import Policy
from approxkmv.engine.problem import Budget, Limit, Problem
from approxkmv.engine.trace import Refusal
from approxkmv.kernel.frame import usual_units
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.kernel.rounding import frobenius
from approxkmv.kernel.scaling import scaled_together
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array


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
    """One product as the user asked for it: checked arguments."""

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

    @property
    def n_pairs(self) -> int:
        """Pairs of the exact product."""
        return len(self.queries) * len(self.keys)

    @property
    def worth_a_survey(self) -> bool:
        """Whether the exact product takes longer than finding out about the data."""
        return self.cost.worth_a_survey(len(self.queries), *self.keys.shape)

    @property
    def needs_a_clock(self) -> bool:
        """Whether the exact product may take longer than the user allows."""
        width = self.keys.shape[1] + self.cost.pair_overhead
        work = len(self.queries) * (len(self.keys) * width + self.x.size)
        return self.x.size > 0 and self.deadline.matters(work)

    @lazy_property
    def kernel(self) -> KernelMatrix:
        """The matrix, in the user's units."""
        return prepare(self.queries, self.keys, self.bandwidth, backend=Compiled(self.n_threads))

    @lazy_property
    def scaled(self) -> Scaled:
        """The product in usual units; ``Refusal`` where there are none."""
        units = usual_units(self.queries, self.keys, self.bandwidth)
        if units is None:
            raise Refusal("the points are too many bandwidths apart")
        kernel = self.kernel
        if units[2] != self.bandwidth:
            kernel = prepare(*units, backend=Compiled(self.n_threads))
        columns, exponent = scaled_together(self.x, self.keys.dtype)
        return Scaled(kernel, columns, exponent, frobenius(columns))


@dataclass(frozen=True, eq=False)
class Scaled:
    """A product in units in which nothing overflows: its matrix, and scaled columns of x."""

    kernel: KernelMatrix
    columns: Array
    exponent: npt.NDArray[np.intc]
    x_norm: float

    def problem(
        self, request: Request, rng: np.random.Generator, error: float, limit: Limit
    ) -> Problem:
        """The product with an error of at most this length."""
        budget = Budget(error**2, request.delta, limit)
        return Problem(self.kernel, self.columns, budget, rng, request.cost, request.policy)
