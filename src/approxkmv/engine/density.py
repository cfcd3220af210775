"""Log sums of weighted kernel values for queries that come later: the work behind densities.

Everything random is drawn when the keys are known. A query's answer then depends on nothing but
the query: where a row is computed exactly, it is so in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from approxkmv.exact import prepare
from approxkmv.info import Plan
from approxkmv.leaves import Array, Float64


@dataclass(frozen=True, eq=False)
class FittedSums:
    """Keys with weights, ready for queries."""

    keys: Array
    weights: Float64 | None
    bandwidth: float
    plan: Plan
    n_threads: int | None

    def log_row_sums(self, queries: Array) -> Float64:
        """Logarithms of sum_j w_j K_ij for each query."""
        return self._exact(queries)

    def _exact(self, queries: Array) -> Float64:
        kernel = prepare(queries, self.keys, self.bandwidth, n_threads=self.n_threads)
        return kernel.log_row_sums(None if self.weights is None else np.log(self.weights))


def fit_sums(
    keys: Array,
    weights: Float64 | None,
    bandwidth: float,
    *,
    rtol: float,
    log_floor: float,
    method: str,
    rng: np.random.Generator,
    n_threads: int | None,
) -> FittedSums:
    """Prepare sums over these keys, with an error of at most ``rtol`` in their logarithms."""
    plan = Plan("exact", "every pair is computed")
    return FittedSums(keys, weights, bandwidth, plan, n_threads)
