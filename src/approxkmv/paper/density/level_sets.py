r"""Level sets, the structure of Charikar, Kapralov, Nouri and Siminelakis (2020), Theorem 2.2.

Each repetition samples every level of :mod:`~approxkmv.paper.density.levels` at its own rate, and
recovers the level of a query from hash tables over the sample. Each recovered point is divided by
its exact probability of being in the sample and of being recovered, so the estimate is unbiased at
any recall. The work of a query at the floor grows like the floor to the power -0.354
(:data:`~approxkmv.paper.density.levels.EXPONENT`, derived there), hashes, lookups and kernel values
together; Theorem 2.2 has 0.173. A query of higher density meets more points, at most in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.loops.compiled import Compiled
from approxkmv.paper.density.exact import ExactDensity
from approxkmv.paper.density.levels import (
    RECALLS,
    Level,
    levels_for,
    relative_variance_bound,
    work,
)
from approxkmv.paper.density.protocol import (
    DensityEstimate,
    DensityStructure,
    Float,
    Points,
    median_above_floor,
)
from approxkmv.paper.median_of_means import MedianOfMeans

Index = npt.NDArray[np.int64]
Labels = npt.NDArray[np.uint64]

_AT_ONCE = 1 << 20  # pairs in memory at a time: 8 MB for each array of them
_LABELS = 1 << 15  # labels sorted together, so that searches stay within a core's cache
_UNION = 1 / 8  # rate from which all points are hashed for many repetitions at once,
_FEW = 1 << 14  # as they are when that is few hashes for each repetition


class LevelSets:
    """Density from sampled level sets, exponent 0.354 in the floor.

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth : float
    floor, relative_error : float
        Promise of the answer, see :class:`DensityStructure`.
    n_groups, group_size : int
        Means taken, and repetitions in each.
    rng : numpy.random.Generator
    always_hash : bool
        Use tables also where looking through a sample is cheaper.

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
        always_hash: bool = False,
    ) -> None:
        self.bandwidth, self.floor, self.relative_error = bandwidth, floor, relative_error
        self._points, self._n_groups, self._group_size = points, n_groups, group_size
        self.levels = levels_for(
            len(points), points.shape[1], bandwidth, floor, always_hash=always_hash
        )
        self._samples = [
            _Sample.draw(points, level, first, count, rng)
            for level in self.levels
            for first, count in _blocks(level, points.shape, n_groups * group_size)
        ]
        self.build_hashes = sum(len(s.member) * s.level.hashes for s in self._samples)

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
        """Structure of stated accuracy, or the exact density where that costs no more.

        The cost of a query is reckoned at the floor: hashes, tables looked up and points met.
        """
        fewest = sizes.n_groups * sizes.group_size(1 / max(RECALLS) - 1, relative_error)
        if (floor >= 1 or fewest >= len(points)) and not never_exact:
            return ExactDensity(points, bandwidth, floor)
        levels = levels_for(
            len(points), points.shape[1], bandwidth, min(floor, 1.0), always_hash=never_exact
        )
        group_size = sizes.group_size(relative_variance_bound(levels), relative_error)
        if not never_exact and sizes.n_groups * group_size * work(levels) >= len(points):
            return ExactDensity(points, bandwidth, floor)
        return cls(
            points,
            bandwidth,
            min(floor, 1.0),
            relative_error,
            n_groups=sizes.n_groups,
            group_size=group_size,
            rng=rng,
            always_hash=never_exact,
        )

    def estimate(self, queries: Points, *, n_threads: int | None = None) -> DensityEstimate:
        """Density at each query."""
        loops = Compiled(n_threads)
        total = np.zeros((self._n_groups, len(queries)))
        evaluations = hashes = 0
        for sample in self._samples:
            hashes += len(queries) * sample.n_repetitions * sample.level.hashes
            for row, entry in sample.met(queries):
                evaluations += len(row)
                self._add(total, sample, queries, row, entry, loops)
        means = total / (self._group_size * len(self._points))
        values = median_above_floor(means, self.floor, self.relative_error)
        return DensityEstimate(means, values, evaluations, hashes)

    def _add(
        self,
        total: Float,
        sample: _Sample,
        queries: Points,
        row: Index,
        entry: Index,
        loops: Compiled,
    ) -> None:
        """Add the pairs that are in the level, each over its probability, to their means."""
        level = sample.level
        kernel = loops.pair_kernel(queries, self._points, row, sample.member[entry], self.bandwidth)
        inside = np.flatnonzero((kernel >= level.lowest) & (kernel < level.highest) & (kernel > 0))
        row, entry, kernel = row[inside], entry[inside], kernel[inside]
        distance = self.bandwidth * np.sqrt(-2 * np.log(np.minimum(kernel, 1.0)))
        group = sample.repetition[entry] // self._group_size
        total += np.bincount(
            group * total.shape[1] + row, kernel / level.inclusion(distance), total.size
        ).reshape(total.shape)


def _blocks(level: Level, shape: tuple[int, ...], n_repetitions: int) -> Iterator[tuple[int, int]]:
    """First repetition and number of repetitions drawn and hashed together."""
    n_points, n_dims = shape
    hashes = n_points * level.hashes
    each = max(1, hashes, n_points * level.n_tables, n_dims * level.hashes)
    if level.family is None:
        each = math.ceil(level.rate * n_points)
    together = level.rate >= _UNION or hashes <= _FEW
    at_once = max(1, _LABELS // each) if together else 1
    for first in range(0, n_repetitions, at_once):
        yield first, min(at_once, n_repetitions - first)


@dataclass(frozen=True, eq=False)
class _Functions:
    """The hash functions of some repetitions, and the labels of their tables.

    A label is a random linear form of the cells of two functions, as in
    :mod:`approxkmv.paper.hashing`, with a random constant for each function and repetition.
    """

    directions: Float  # (n_dims, repetitions * functions * bits)
    offsets: Float
    multipliers: npt.NDArray[np.int64]  # (repetitions, functions, bits)
    constants: Labels  # (repetitions, functions)

    @classmethod
    def draw(cls, level: Level, n_repetitions: int, rng: np.random.Generator) -> _Functions:
        assert level.family is not None
        shape = (n_repetitions, level.n_functions, level.family.n_bits)
        count = math.prod(shape)
        return cls(
            rng.standard_normal((level.family.n_dims, count)) / level.family.bucket_width,
            rng.random(count),
            rng.integers(-(2**63), 2**63 - 1, size=shape, endpoint=True),
            rng.integers(0, 2**64 - 1, size=shape[:2], endpoint=True, dtype=np.uint64),
        )

    def __call__(self, points: Points) -> Labels:
        """Label of each point in each table: (points, repetitions, tables)."""
        cells = points @ self.directions.astype(points.dtype, copy=False)
        cells += self.offsets.astype(points.dtype, copy=False)
        codes = np.floor(cells).astype(np.int64).reshape(len(points), *self.multipliers.shape)
        single = (
            np.einsum("prfb,rfb->prf", codes, self.multipliers).view(np.uint64) + self.constants
        )
        one, other = np.triu_indices(self.multipliers.shape[1], 1)
        return np.asarray(single[..., one] + _ODD * single[..., other])


_ODD = np.uint64(0x9E3779B97F4A7C15)  # so that a pair of equal labels does not cancel


def _keep(n: int, rate: float, rng: np.random.Generator) -> Index:
    """Each of n points with probability ``rate``, as many of them as the mean, rounded up or down.

    With sizes k and k + 1 two points are kept together less often than independent ones, so the
    variance is no larger: k + f^2 >= (k + f)^2 / n for a mean size k + f <= n.
    """
    if rate == 1:
        return np.arange(n)
    size = int(rate * n + rng.random())
    return rng.choice(n, size, replace=False, shuffle=False)


@dataclass(frozen=True, eq=False)
class _Sample:
    """One level of some repetitions: the points kept, and their labels in order."""

    level: Level
    n_repetitions: int
    repetition: Index  # of each point kept
    member: Index  # and its position among all points
    functions: _Functions | None
    labels: Labels  # ascending, of every point kept and table
    entry: Index  # the point kept that has this label

    @classmethod
    def draw(
        cls, points: Points, level: Level, first: int, n_repetitions: int, rng: np.random.Generator
    ) -> _Sample:
        kept = [_keep(len(points), level.rate, rng) for _ in range(n_repetitions)]
        repetition = np.repeat(np.arange(n_repetitions), [len(part) for part in kept])
        member = np.concatenate(kept)
        if level.family is None:
            none = np.empty(0, np.uint64), np.empty(0, np.int64)
            return cls(level, n_repetitions, first + repetition, member, None, *none)
        functions = _Functions.draw(level, n_repetitions, rng)
        union, position = np.unique(member, return_inverse=True)
        labels = functions(points[union])[position, repetition].ravel()
        order = np.argsort(labels)
        return cls(
            level,
            n_repetitions,
            first + repetition,
            member,
            functions,
            labels[order],
            order // level.n_tables,
        )

    def met(self, queries: Points) -> Iterator[tuple[Index, Index]]:
        """Distinct pairs of a query and a point kept that share a label, some queries at a time."""
        n_kept = len(self.member)
        each = max(1, n_kept, self.n_repetitions * self.level.n_tables)
        step = max(1, _AT_ONCE // each)
        for first in range(0, len(queries), step):
            part = queries[first : first + step]
            if self.functions is None:
                row = np.repeat(np.arange(len(part)), n_kept)
                entry = np.tile(np.arange(n_kept), len(part))
            else:
                row, entry = self._collisions(part)
            yield first + row, entry

    def _collisions(self, queries: Points) -> tuple[Index, Index]:
        assert self.functions is not None
        wanted = self.functions(queries).ravel()
        start = np.searchsorted(self.labels, wanted, "left")
        length = np.searchsorted(self.labels, wanted, "right") - start
        row = np.repeat(np.arange(len(wanted)), length)
        position = np.arange(len(row)) + np.repeat(start - (np.cumsum(length) - length), length)
        row, entry = row // (self.n_repetitions * self.level.n_tables), self.entry[position]
        if self.level.n_tables == 1:
            return row, entry
        pairs = np.unique(row * len(self.member) + entry)
        row, entry = np.divmod(pairs, max(1, len(self.member)))
        return row, entry
