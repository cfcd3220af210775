r"""Level sets, the structure of Charikar, Kapralov, Nouri and Siminelakis (2020), Theorem 2.2.

Points at kernel value :math:`[2^{-j}, 2^{-j+1})` from a query form its level :math:`j`. If its
density is :math:`\mu` there are at most :math:`2^j n \mu` of them, so a sample of rate
:math:`\pi_j = 1/(2^j n \mu)` holds few, and their kernel values are within a factor 2 of one
another: weighting them by :math:`1/\pi_j` has constant relative variance. Hash tables over the
sample recover the level without looking at the many points of farther levels. With :math:`J =
\log_2(1/\mu)`,

* level :math:`i > j` leaves :math:`2^{i-j}` points in the sample of level :math:`j`, and a table
  whose collision probability is :math:`2^{-z}` at level :math:`j` meets :math:`2^{i-j-z i/j}` of
  them, at most one if :math:`z_j = j (1 - j/J)`;
* recovering level :math:`j` then takes :math:`O(2^{z_j})` tables, at most
  :math:`2^{J/4} = \mu^{-0.25}`.

This is the version whose hash functions do not depend on the points, with exponent **0.25**.
The 0.173 of Theorem 2.2 needs data-dependent hashing, which is not implemented here.

Each recovered point is divided by its exact probability of being in the sample and of being
recovered, so the estimate is unbiased at any recall.
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
from approxkmv.paper.hashing import E2LSH, HashFunction, Labels, n_tables_for_recall, recall
from approxkmv.paper.median_of_means import MedianOfMeans

Index = npt.NDArray[np.int64]

RECALL = 0.9  # of the farthest points of a level; nearer ones have more
WIDTH = 2.8  # cell width in units of the level's distance: within 2% of the best exponent


@dataclass(frozen=True)
class Level:
    """How the points with kernel value in ``[2**-j, 2**(1-j))`` are sampled and recovered.

    Attributes
    ----------
    j : int
    rate : float
        Probability that a point is in the sample.
    family : E2LSH or None
        None: the sample is so short that it is looked through.
    n_tables : int
    """

    j: int
    rate: float
    family: E2LSH | None
    n_tables: int

    def inclusion(self, distance: Float) -> Float:
        """Probability that a point at this distance is in the sample and recovered."""
        if self.family is None:
            return np.full(len(distance), self.rate)
        return self.rate * recall(self.family.collision_probability(distance), self.n_tables)


def levels_for(n_points: int, n_dims: int, bandwidth: float, floor: float) -> list[Level]:
    """Levels down to the floor, and one more, ``j = J + 1``, for all points below the last level.

    Examples
    --------
    >>> [level.j for level in levels_for(1000, 8, 1.0, 0.1)]
    [1, 2, 3, 4, 5]
    """
    last = max(1, math.ceil(math.log2(1 / floor)))
    levels = []
    for j in range(1, last + 1):
        rate = min(1.0, 1 / (2**j * n_points * floor))
        distance = bandwidth * math.sqrt(2 * j * math.log(2))
        single = float(E2LSH(n_dims, 1, WIDTH * distance).collision_probability(distance))
        n_bits = round(j * (1 - j / last) * math.log(2) / -math.log(single))
        n_tables = n_tables_for_recall(single**n_bits, RECALL) if n_bits else 1
        # tables only where they cost fewer hashes than looking at the whole sample
        worth = n_bits > 0 and n_tables * n_bits < rate * n_points
        family = E2LSH(n_dims, n_bits, WIDTH * distance) if worth else None
        levels.append(Level(j, rate, family, n_tables if worth else 0))
    return [*levels, Level(last + 1, levels[-1].rate, None, 0)]


def relative_variance_bound() -> float:
    r"""Relative variance of one repetition where the density is at least the floor.

    Sampling adds :math:`\sum K^2 / (\pi_j \rho) \le 2 (n\mu)(n\mu(q))/\rho` for a recall
    :math:`\rho`, and the tables, drawn anew for each level, at most :math:`(1/\rho - 1)` of the
    squared sum.
    """
    return 2 / RECALL + (1 / RECALL - 1)


@dataclass(frozen=True, eq=False)
class _Sample:
    """One level of one repetition: the sampled points and their tables."""

    level: Level
    points: Points
    tables: list[tuple[HashFunction, Labels, Index]]  # function, sorted labels, order


class LevelSets:
    """Density from sampled level sets, exponent 0.25 in the floor.

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth : float
    floor, relative_error : float
        Promise of the answer, see :class:`DensityStructure`.
    n_groups, group_size : int
        Means taken, and repetitions in each.
    rng : numpy.random.Generator

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((1000, 2))
    >>> structure = LevelSets(points, 1.0, 0.1, 0.2, n_groups=5, group_size=20, rng=rng)
    >>> answer = structure.estimate(np.zeros((1, 2)))
    >>> bool(abs(answer.values[0] - 0.5) < 0.1)
    True
    """

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
        self._n_points, self._n_groups = len(points), n_groups
        levels = levels_for(len(points), points.shape[1], bandwidth, floor)
        self._repetitions = [
            [_build_sample(points, level, rng) for level in levels]
            for _ in range(n_groups * group_size)
        ]
        self.build_hashes = sum(
            len(sample.points) * sample.level.n_tables * sample.level.family.n_bits
            for samples in self._repetitions
            for sample in samples
            if sample.level.family is not None
        )

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
    ) -> DensityStructure:
        """Structure of stated accuracy, or the exact density where that costs no more."""
        group_size = sizes.group_size(relative_variance_bound(), relative_error)
        n_repetitions = sizes.n_groups * group_size
        if floor >= 1 or n_repetitions >= len(points):
            return ExactDensity(points, bandwidth, floor)
        per_repetition = sum(
            level.rate * len(points)
            if level.family is None
            else level.n_tables * level.family.n_bits
            for level in levels_for(len(points), points.shape[1], bandwidth, floor)
        )
        if n_repetitions * per_repetition >= len(points):
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
        total = np.zeros((self._n_groups, len(queries)))
        group_size = len(self._repetitions) // self._n_groups
        evaluations = hashes = 0
        for i, samples in enumerate(self._repetitions):
            for sample in samples:
                part, looked_at = self._level_sum(sample, queries, n_threads)
                total[i // group_size] += part
                evaluations += looked_at
                if sample.level.family is not None:
                    hashes += len(queries) * sample.level.n_tables * sample.level.family.n_bits
        means = total / (group_size * self._n_points)
        values = median_above_floor(means, self.floor, self.relative_error)
        return DensityEstimate(means, values, evaluations, hashes)

    def _level_sum(
        self, sample: _Sample, queries: Points, n_threads: int | None
    ) -> tuple[Float, int]:
        """Unbiased sum of the kernel over one level, and the pairs looked at."""
        j = sample.level.j
        lowest = 0.0 if j == self._n_levels + 1 else 2.0**-j
        highest = 2.0 ** (1 - j)
        pairs = []
        looked_at = 0
        for order, start, stop in _ranges(sample, queries):
            row, col, kernel = Compiled(n_threads).scan_ranges(
                queries,
                sample.points,
                order,
                start,
                stop,
                self.bandwidth,
                lowest,
            )
            inside = (kernel < highest) | (j == 1)
            pairs.append((row[inside], col[inside], kernel[inside]))
            looked_at += int((stop - start).sum())
        row, col, kernel = (np.concatenate(part) for part in zip(*pairs, strict=True))
        _, once = np.unique(row * len(sample.points) + col, return_index=True)
        row, kernel = row[once], kernel[once]
        seen = kernel > 0
        row, kernel = row[seen], kernel[seen]
        distance = self.bandwidth * np.sqrt(-2 * np.log(np.minimum(kernel, 1.0)))
        weighted = kernel / sample.level.inclusion(distance)
        return np.asarray(np.bincount(row, weighted, len(queries)), np.float64), looked_at

    @property
    def _n_levels(self) -> int:
        return len(self._repetitions[0]) - 1


def _build_sample(points: Points, level: Level, rng: np.random.Generator) -> _Sample:
    kept = points[rng.random(len(points)) < level.rate]
    tables = []
    for _ in range(level.n_tables):
        assert level.family is not None
        function = level.family.draw(rng)
        labels = function(kept)
        order = np.argsort(labels, kind="stable")
        tables.append((function, labels[order], order))
    return _Sample(level, kept, tables)


def _ranges(sample: _Sample, queries: Points) -> list[tuple[Index, Index, Index]]:
    """Order of the sampled points and the range of it to look at, for each table and query."""
    if sample.level.family is None:
        everything = np.arange(len(sample.points), dtype=np.int64)
        start = np.zeros(len(queries), dtype=np.int64)
        return [(everything, start, start + len(sample.points))]
    ranges = []
    for function, labels, order in sample.tables:
        wanted = function(queries)
        ranges.append(
            (
                order,
                np.searchsorted(labels, wanted, side="left"),
                np.searchsorted(labels, wanted, side="right"),
            )
        )
    return ranges
