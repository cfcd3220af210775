"""One head of softmax attention: what is computed, and what error it may have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from approxkmv._heads import pairs_seen
from approxkmv._lazy import lazy_property
from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import HeadMargins, Policy
from approxkmv.engine.problem import Budget
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, AttentionHead, AttentionSums, Float64, Index, Index32

# Rows computed together with a causal mask: their keys are those of the last of them.
_ROWS_TOGETHER = 64


@dataclass(frozen=True, eq=False)
class Head:
    """Queries, keys and values of one head, and the loops that compute with them."""

    queries: Array  # (n_queries, n_dims)
    keys: Array  # (n_keys, n_dims)
    values: Array  # (n_keys, n_columns)
    scale: float
    is_causal: bool = False
    backend: Compiled = field(default_factory=Compiled)

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return len(self.keys)

    @property
    def n_pairs(self) -> int:
        """Scores of exact attention."""
        return pairs_seen(self.n_queries, self.n_keys, self.is_causal)

    def pairs_of(self, rows: Index | Index32) -> int:
        """Scores of some rows."""
        if not self.is_causal:
            return len(rows) * self.n_keys
        return int(np.minimum(rows.astype(np.int64) + 1, self.n_keys).sum())

    @lazy_property
    def value_centre(self) -> Float64:
        """Mean of the values, in their own precision, in which it is taken from them."""
        means = self.backend.column_sums(self.values) / self.n_keys
        return np.asarray(means.astype(self.values.dtype), np.float64)

    @lazy_property
    def value_spread(self) -> Float64:
        """Squared distance of each value from their mean."""
        return self.backend.squared_norms(self.values, self.value_centre, 1.0)

    @lazy_property
    def value_square(self) -> float:
        """Squared Frobenius norm of the values: around any point c, |v|^2 is |v - c|^2 + |c|^2."""
        centre = self.value_centre
        return float(self.value_spread.sum()) + self.n_keys * float(centre @ centre)

    @lazy_property
    def moved(self) -> AttentionHead:
        """Keys and values around their means, values of at most unit size.

        Softmax does not change where all keys are moved.
        """
        key_centre = self.keys[:: max(1, self.n_keys // 256)].mean(axis=0, dtype=np.float64)
        furthest = math.sqrt(float(self.value_spread.max()))
        exponent = -math.frexp(furthest)[1] if furthest > 0 else 0
        return AttentionHead(
            self.queries,
            self.keys,
            self.values,
            self.scale,
            np.zeros(self.queries.shape[1]),
            key_centre,
            self.value_centre,
            math.ldexp(1.0, exponent),
        )

    def moved_back(self, output: Array) -> Array:
        """The output, from that of the moved values, whose place it takes."""
        output *= output.dtype.type(1 / self.moved.value_factor)
        output += self.value_centre.astype(output.dtype)
        return output

    @property
    def mean_output(self) -> Array:
        """The mean of the values for every query; not to be written to."""
        shape = self.n_queries, self.values.shape[1]
        return np.broadcast_to(self.value_centre, shape).astype(self.values.dtype)

    def exact_rows(self, rows: Index | Index32) -> Array:
        """Exact outputs of some rows."""
        if not self.is_causal:
            return np.asarray(self.attended(rows, self.values, self.scale).out[0])
        outputs = np.empty((len(rows), self.values.shape[1]), self.values.dtype)
        order = np.argsort(rows, kind="stable")
        for first in range(0, len(rows), _ROWS_TOGETHER):
            some = order[first : first + _ROWS_TOGETHER]
            outputs[some] = self._up_to_the_diagonal(rows[some])
        return outputs

    def attended(self, rows: Index | Index32, values: Array, scale: float) -> AttentionSums:
        """Some rows over all keys, whatever the mask."""
        only = np.zeros((1, 4), np.int64)
        return self.backend.attention(
            self.queries[rows][None], self.keys[None], values[None], only, scale=scale
        )

    def _up_to_the_diagonal(self, rows: Index | Index32) -> Array:
        n_keys = min(int(rows[-1]) + 1, self.n_keys)
        sums = self.backend.attention(
            self.queries[rows][None],
            self.keys[None, :n_keys],
            self.values[None, :n_keys],
            np.zeros((1, 4), np.int64),
            scale=self.scale,
            mask=(np.arange(n_keys) <= rows[:, None])[None],
        )
        return np.asarray(sums.out[0])


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """Attention of one head within an error; the budget is one of the given values."""

    head: Head
    budget: Budget
    rng: np.random.Generator
    cost: CostModel = field(default_factory=CostModel)
    policy: Policy = field(default_factory=Policy)

    @property
    def margins(self) -> HeadMargins:
        """How far predictions are trusted."""
        return self.policy.causal_head if self.head.is_causal else self.policy.head

    @property
    def squared_error(self) -> float:
        """The budget for the moved values."""
        return self.head.moved.value_factor**2 * self.budget.squared_error
