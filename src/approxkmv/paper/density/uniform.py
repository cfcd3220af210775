r"""Uniform sampling, the structure every other one is measured against.

The mean of the kernel over ``group_size`` points drawn with replacement. Since the kernel is at
most 1, :math:`E[K^2] \le \mu(q)` and one draw has relative variance at most :math:`1/\mu(q) - 1`:
:math:`O(1 / (\beta^2 \mu))` draws for a relative error :math:`\beta` above the floor.
"""

from __future__ import annotations

import numpy as np

from approxkmv.kernel.matrix import product
from approxkmv.paper.density.exact import ExactDensity
from approxkmv.paper.density.protocol import (
    DensityEstimate,
    DensityStructure,
    Points,
    median_above_floor,
)
from approxkmv.paper.median_of_means import MedianOfMeans


def relative_variance_bound(density: float) -> float:
    """Relative variance of one uniform draw where the density is at least ``density``."""
    return 1 / density - 1


class UniformSampling:
    """Density from points drawn uniformly when the structure is built.

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth : float
    floor, relative_error : float
        Promise of the answer, see :class:`DensityStructure`.
    n_groups, group_size : int
        Means taken, and draws in each.
    rng : numpy.random.Generator

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((1000, 2))
    >>> structure = UniformSampling(points, 1.0, 0.01, 0.1, n_groups=9, group_size=400, rng=rng)
    >>> answer = structure.estimate(np.zeros((1, 2)))
    >>> bool(abs(answer.values[0] - 0.5) < 0.05), answer.kernel_evaluations
    (True, 3600)
    """

    build_hashes: int = 0

    def __init__(
        self,
        points: Points,
        bandwidth: float,
        floor: float,
        relative_error: float,
        *,
        n_groups: int,
        group_size: int,
        rng: np.random.Generator,
    ) -> None:
        self.bandwidth, self.floor, self.relative_error = bandwidth, floor, relative_error
        drawn = rng.integers(len(points), size=n_groups * group_size)
        self._drawn = points[drawn]
        # one column per group, so that all means come from one product
        self._average = np.repeat(np.eye(n_groups, dtype=points.dtype), group_size, 0) / group_size

    @classmethod
    def for_accuracy(
        cls,
        points: Points,
        *,
        bandwidth: float,
        floor: float,
        relative_error: float,
        sizes: MedianOfMeans,
        rng: np.random.Generator,
        never_exact: bool = False,
    ) -> DensityStructure:
        """Structure of stated accuracy, or the exact density where that costs no more."""
        floor = min(floor, 1.0) if never_exact else floor
        group_size = sizes.group_size(relative_variance_bound(floor), relative_error)
        cheaper = floor >= 1 or sizes.n_groups * group_size >= len(points)
        if cheaper and not never_exact:
            return ExactDensity(points, bandwidth, floor)
        return cls(
            points,
            bandwidth,
            floor,
            relative_error,
            n_groups=sizes.n_groups,
            group_size=group_size,
            rng=rng,
        )

    def estimate(self, queries: Points, *, n_threads: int | None = None) -> DensityEstimate:
        """Density at each query."""
        by_group = product(queries, self._drawn, self._average, self.bandwidth, n_threads=n_threads)
        means = np.asarray(by_group, dtype=np.float64).T
        values = median_above_floor(means, self.floor, self.relative_error)
        return DensityEstimate(means, values, len(queries) * len(self._drawn), 0)
