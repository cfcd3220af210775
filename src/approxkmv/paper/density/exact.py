"""The density computed from its definition: what a structure becomes when it would cost more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from approxkmv.kernel.matrix import product
from approxkmv.paper.density.protocol import DensityEstimate, Points, median_above_floor


@dataclass(frozen=True)
class ExactDensity:
    """Mean of the kernel over all points, one evaluation per point and query.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0.0], [3.0]])
    >>> ExactDensity(points, bandwidth=1.0, floor=0.1).estimate(np.array([[0.0], [9.0]])).values
    array([0.5055545, 0.       ])
    """

    points: Points
    bandwidth: float
    floor: float
    relative_error: float = 0.0
    build_hashes: int = 0

    def estimate(self, queries: Points, *, n_threads: int | None = None) -> DensityEstimate:
        """Density at each query."""
        equal = np.full(len(self.points), 1 / len(self.points), self.points.dtype)
        row_sum = product(queries, self.points, equal, self.bandwidth, n_threads=n_threads)
        means = np.asarray(row_sum, dtype=np.float64)[None]
        values = median_above_floor(means, self.floor, 0.0)
        return DensityEstimate(means, values, len(queries) * len(self.points), 0)
