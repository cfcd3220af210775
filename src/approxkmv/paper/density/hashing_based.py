r"""The hashing-based estimator of Charikar and Siminelakis (2017).

Every table keeps, for each bucket, its size :math:`B` and one of its points :math:`X` chosen
uniformly. A query in that bucket is answered with

.. math:: Z = \frac{B}{n} \frac{K(q, X)}{p(\|q - X\|)},

where :math:`p` is the exact collision probability, and with zero if its bucket is empty. Each point
is the chosen one with probability :math:`E[1/B]` given a collision, so :math:`E Z` is the density
whatever the family: near points are met often and weighted down.

A family with :math:`p = \sqrt K` has relative variance :math:`O(\mu^{-1/2})`, against
:math:`\mu^{-1}` for uniform draws; ball carving has it in the limit of many dimensions. The
projections used here have :math:`\ln p` linear in the distance where :math:`\ln K` is quadratic,
and reach :math:`\mu^{-0.7}` (:func:`relative_variance_bound`: 20, 100, 498, 2544 at densities
:math:`10^{-1}` to :math:`10^{-4}`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.loops.compiled import Compiled
from approxkmv.paper.density.exact import ExactDensity
from approxkmv.paper.density.protocol import (
    DensityEstimate,
    DensityStructure,
    Float,
    Points,
    median_above_floor,
)
from approxkmv.paper.hashing import E2LSH, HashFamily, HashFunction, Labels
from approxkmv.paper.median_of_means import MedianOfMeans

Index = npt.NDArray[np.int64]


def family_for(n_dims: int, bandwidth: float, floor: float) -> E2LSH:
    r"""Hash family with the least relative variance for densities down to ``floor``.

    In units where the kernel is :math:`e^{-r^2}` and with :math:`t = \sqrt{\ln(1/\mu)}`:
    :math:`\lceil t^2 \rceil` projections, of the width at which their collision probability starts
    as :math:`e^{-0.4 t r}`. Within 3% of the best numbers of projections and widths for floors from
    :math:`10^{-1}` to :math:`10^{-7}`.

    Examples
    --------
    >>> family_for(8, 1.0, 0.01).n_bits
    5
    """
    t = math.sqrt(math.log(1 / floor))
    n_bits = math.ceil(t * t)
    # a projection loses sqrt(2/pi) r/w for small r; sqrt(2) bandwidths are one unit of r
    width = n_bits / (0.4 * t) * math.sqrt(2 / math.pi) * math.sqrt(2) * bandwidth
    return E2LSH(n_dims, n_bits, width)


def relative_variance_bound(family: HashFamily, bandwidth: float, floor: float) -> float:
    r"""Bound on :math:`E[Z^2]/\mu(q)^2` over all point sets with density at least ``floor``.

    :math:`E[Z^2] \le n^{-2} \sum_{j,l} K_j^2 p_j^{-2} \min(p_j, p_l)`. For a density :math:`\mu` a
    share :math:`f_r` of the points at distance :math:`r` is at most :math:`\min(1, \mu / K_r)`, and
    the worst sets put their points at two distances, so four times the largest term bounds the sum.
    The largest term is sought on a grid of 400 distances and over densities floor, 2 floor, ..., 1.

    Examples
    --------
    >>> bounds = [relative_variance_bound(family_for(8, 1.0, mu), 1.0, mu) for mu in (1e-2, 1e-4)]
    >>> bool(20 < bounds[1] / bounds[0] < 30)  # about 100**0.7 = 25
    True
    """
    r = bandwidth * np.linspace(0, math.sqrt(2 * math.log(1e3 / floor**2)), 400)
    kernel = np.exp(-(r**2) / (2 * bandwidth**2))
    p = family.collision_probability(r)
    both = np.minimum(p[:, None], p[None, :])
    largest = 0.0
    for density in floor * 2.0 ** np.arange(math.floor(math.log2(1 / floor)) + 1):
        share = np.minimum(1.0, density / kernel)
        terms = (share * (kernel / p) ** 2)[:, None] * share[None, :] * both
        largest = max(largest, float(terms.max()) / density**2)
    return 4 * largest


@dataclass(frozen=True, eq=False)
class _Table:
    function: HashFunction
    labels: Labels  # of the non-empty buckets, ascending
    size: Index
    chosen: Index


class HashingBasedEstimator:
    """Density from hash tables that keep one random point per bucket.

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth : float
    floor, relative_error : float
        Promise of the answer, see :class:`DensityStructure`.
    family : HashFamily
    n_groups, group_size : int
        Means taken, and tables in each.
    rng : numpy.random.Generator

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((1000, 2))
    >>> structure = HashingBasedEstimator(points, 1.0, 0.1, 0.1, family=family_for(2, 1.0, 0.1),
    ...                                   n_groups=5, group_size=100, rng=rng)
    >>> answer = structure.estimate(np.zeros((1, 2)))
    >>> bool(abs(answer.values[0] - 0.5) < 0.05), answer.kernel_evaluations <= 500
    (True, True)
    """

    def __init__(
        self,
        points: Points,
        bandwidth: float,
        floor: float,
        relative_error: float,
        *,
        family: HashFamily,
        n_groups: int,
        group_size: int,
        rng: np.random.Generator,
    ) -> None:
        self.bandwidth, self.floor, self.relative_error = bandwidth, floor, relative_error
        self._points, self._family, self._n_groups = points, family, n_groups
        self._tables = [_build_table(points, family, rng) for _ in range(n_groups * group_size)]
        self.build_hashes = len(self._tables) * len(points) * family.n_bits

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
        floor = min(floor, 0.5) if never_exact else floor
        hopeless = sizes.n_groups * sizes.group_size(1.0, relative_error) >= len(points)
        if (floor >= 1 or hopeless) and not never_exact:
            return ExactDensity(points, bandwidth, floor)
        family = family_for(points.shape[1], bandwidth, floor)
        variance = relative_variance_bound(family, bandwidth, floor)
        group_size = sizes.group_size(variance, relative_error)
        if sizes.n_groups * group_size * family.n_bits >= len(points) and not never_exact:
            return ExactDensity(points, bandwidth, floor)
        return cls(
            points,
            bandwidth,
            floor,
            relative_error,
            family=family,
            n_groups=sizes.n_groups,
            group_size=group_size,
            rng=rng,
        )

    def estimate(self, queries: Points, *, n_threads: int | None = None) -> DensityEstimate:
        """Density at each query."""
        total = np.zeros((self._n_groups, len(queries)))
        group_size = len(self._tables) // self._n_groups
        evaluations = 0
        for i, table in enumerate(self._tables):
            met, answer = self._ask(table, queries, n_threads)
            total[i // group_size, met] += answer
            evaluations += len(met)
        means = total / group_size
        values = median_above_floor(means, self.floor, self.relative_error)
        hashes = len(self._tables) * len(queries) * self._family.n_bits
        return DensityEstimate(means, values, evaluations, hashes)

    def _ask(self, table: _Table, queries: Points, n_threads: int | None) -> tuple[Index, Float]:
        """Return the queries with a non-empty bucket, and Z for each of them."""
        labels = table.function(queries)
        bucket = np.minimum(np.searchsorted(table.labels, labels), len(table.labels) - 1)
        met = np.flatnonzero(table.labels[bucket] == labels)
        bucket = bucket[met]
        kernel = Compiled(n_threads).pair_kernel(
            queries,
            self._points,
            met,
            table.chosen[bucket],
            self.bandwidth,
        )
        # a kernel that underflows adds nothing, and has no distance to divide by
        seen = kernel > 0
        met, bucket, kernel = met[seen], bucket[seen], kernel[seen]
        distance = self.bandwidth * np.sqrt(-2 * np.log(np.minimum(kernel, 1.0)))
        p = self._family.collision_probability(distance)
        return met, table.size[bucket] / len(self._points) * kernel / p


def _build_table(points: Points, family: HashFamily, rng: np.random.Generator) -> _Table:
    function = family.draw(rng)
    labels = function(points)
    order = np.argsort(labels, kind="stable")
    found, first, size = np.unique(labels[order], return_index=True, return_counts=True)
    return _Table(function, found, size, order[first + rng.integers(size)])
