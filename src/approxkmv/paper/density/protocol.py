r"""What every kernel density structure of Theorem 2.2 offers.

For a set of points, a bandwidth, a floor :math:`\mu` and a relative error :math:`\beta`, a
structure answers a query :math:`q` with an approximation, within :math:`1 \pm \beta`, of
:math:`\mu(q) \mathbf 1\{\mu(q) \ge \mu\}`, where :math:`\mu(q)` is the mean of the kernel over
the points. The kernel :math:`k^2` that Algorithm 2 asks for is the Gaussian of bandwidth
:math:`\sigma / \sqrt 2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from approxkmv.paper.median_of_means import MedianOfMeans

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DensityEstimate:
    """Answer of a structure to a batch of queries.

    Attributes
    ----------
    means : ndarray, shape (n_groups, n_queries)
        One unbiased estimate of the density per group.
    values : ndarray, shape (n_queries,)
        Median of the means, and zero where that is below the floor.
    kernel_evaluations, hashes : int
        Work done for this batch. A hash is one point under one function of a table.
    """

    means: Float
    values: Float
    kernel_evaluations: int
    hashes: int


class DensityStructure(Protocol):
    """A data structure for kernel density (Theorem 2.2)."""

    @property
    def floor(self) -> float:
        """Density below which the answer may be zero."""

    @property
    def relative_error(self) -> float:
        """Relative error the answer keeps to above the floor; 0 when exact."""

    @property
    def build_hashes(self) -> int:
        """Hashes computed while building."""

    def estimate(self, queries: Points, *, n_threads: int | None = None) -> DensityEstimate:
        """Density at each query."""


class DensityFactory(Protocol):
    """Builds a structure of stated accuracy; ``UniformSampling.for_accuracy`` is one.

    Where ``approx_kmv`` is told ``never_exact``, it passes ``never_exact=True`` on; other calls do
    not name it.
    """

    def __call__(
        self,
        points: Points,
        *,
        bandwidth: float,
        floor: float,
        relative_error: float,
        sizes: MedianOfMeans,
        rng: np.random.Generator,
        never_exact: bool = False,
    ) -> DensityStructure:
        """Build the structure over ``points``."""


def squared_kernel_bandwidth(bandwidth: float) -> float:
    """Bandwidth of the square of a Gaussian kernel.

    Examples
    --------
    >>> s = squared_kernel_bandwidth(3.0)
    >>> bool(np.isclose(np.exp(-(2.0**2) / (2 * s**2)), np.exp(-(2.0**2) / (2 * 3.0**2)) ** 2))
    True
    """
    return bandwidth / math.sqrt(2)


def median_above_floor(means: Float, floor: float, relative_error: float) -> Float:
    """Median over the groups, zeroed where even the error cannot lift it to the floor."""
    median = np.median(means, axis=0)
    return np.asarray(np.where(median >= (1 - relative_error) * floor, median, 0.0))
