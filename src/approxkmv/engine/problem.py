"""What is asked for: a matrix, what it is multiplied with, an error, a time; all of it fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._lazy import lazy_property
from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import Policy
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float64, Index

_ALL = slice(None)


class Limit:
    """Seconds that may pass, counted in pairs as soon as a rate of pairs is known."""

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self.rate = math.inf  # pairs a second

    def learn(self, pairs: int, seconds: float) -> None:
        """A number of pairs took this long."""
        self.rate = pairs / max(seconds, 1e-9)

    def pairs_left(self) -> float:
        """Pairs that can still be computed; the smallest number of draws is always allowed."""
        return max(self.deadline.left() * self.rate, 1.0) if self.deadline else math.inf

    def allows(self, pairs: float) -> bool:
        """Whether there is time for this many pairs."""
        return pairs <= self.pairs_left()

    def needs(self, pairs: float) -> None:
        """Raise :class:`OutOfTime` if what comes next is not expected to fit."""
        if not self.allows(pairs):
            raise OutOfTime


@dataclass(frozen=True, eq=False)
class Budget:
    """The squared error that may be made, how surely, and the time and memory it may take."""

    squared_error: float  # summed over the rows of the answer
    delta: float
    limit: Limit = field(default_factory=Limit)
    max_bytes: float = math.inf  # kernel values kept between products


@dataclass(frozen=True, eq=False)
class Problem:
    """The product of a kernel matrix with one column or several."""

    kernel: KernelMatrix
    x: Array  # (n_keys, n_columns)
    budget: Budget
    rng: np.random.Generator
    cost: CostModel = field(default_factory=CostModel)
    policy: Policy = field(default_factory=Policy)
    # How often the squared error of each row of the answer counts; None: once.
    row_weights: Float64 | None = None
    may_search: bool = True  # for near pairs: in small products that costs more than it saves

    def weighed(self, squares: Float64, rows: Index | slice = _ALL) -> Float64:
        """Squares of some rows, each as often as its row counts."""
        if self.row_weights is None:
            return squares
        weights = self.row_weights[rows]
        return np.asarray(squares * (weights[:, None] if squares.ndim == 2 else weights))

    def lengthened(self, values: Array, rows: Index | slice = _ALL) -> Array:
        """Some rows of a product times the roots of their weights: squares are weighed then."""
        if self.row_weights is None:
            return values
        return np.asarray(values * np.sqrt(self.row_weights[rows])[:, None])

    @property
    def mean_weight(self) -> float:
        """How often the squared error of a row counts on average."""
        return 1.0 if self.row_weights is None else float(self.row_weights.mean())

    @lazy_property
    def row_norms(self) -> Array:
        """Lengths of the rows of x, in its own type."""
        return row_norms(self.x)

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return len(self.kernel.queries)

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return len(self.kernel.keys)

    @property
    def n_dims(self) -> int:
        """Number of coordinates."""
        return int(self.kernel.keys.shape[1])

    @property
    def n_pairs(self) -> int:
        """Pairs of the exact product."""
        return self.n_queries * self.n_keys

    @lazy_property
    def eps(self) -> float:
        """The error that may be made, relative to the length of x, in rows of mean weight."""
        square = float(np.square(self.row_norms, dtype=np.float64).sum()) * self.mean_weight
        return math.sqrt(self.budget.squared_error / square) if square > 0 else 0.0


def row_norms(x: Array) -> Array:
    """Lengths of the rows of x, in its own type."""
    if x.shape[1] == 1:
        return np.asarray(np.abs(x[:, 0]))
    lengths = np.sqrt(np.square(x, dtype=np.float64).sum(axis=1))
    return np.asarray(lengths.astype(x.dtype))
