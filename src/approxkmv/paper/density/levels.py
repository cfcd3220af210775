r"""The levels of a density structure: sampling rates, hash tables, and what a query costs.

Points at kernel value :math:`[2^{-j}, 2^{1-j})` from a query form its level :math:`j`. If its
density is :math:`\mu` there are at most :math:`2^j n \mu` of them, so a sample of rate :math:`\pi_j
= 1/(2^j n \mu)` holds few, and their kernel values are within a factor 2 of one another: weighting
them by :math:`1/\pi_j` has constant relative variance. Levels that would be sampled whole are one
level. Hash tables over the sample recover a level without a look at the many points of farther
ones. Let :math:`J = \log_2(1/\mu)`.

**Exponent.** Level :math:`i > j` leaves at most :math:`2^{i-j}` points in the sample of level
:math:`j`. Let a table keep a point of level :math:`j` with probability :math:`2^{-z}`, and one of
level :math:`i` with :math:`2^{-z/\rho}`, where :math:`\rho = \rho(\sqrt{i/j})` is the exponent of
the hash family at that ratio of distances. It meets at most one point if :math:`z \ge
\rho(\sqrt{i/j})\,(i-j)`, hardest at :math:`i = J`. Recovering level :math:`j = uJ` takes
:math:`O(2^z)` tables with one point met in each, so hashes and points together are
:math:`\mu^{-\rho_\star}` up to logarithms, with

.. math:: \rho_\star = \max_u\; (1-u)\,\rho(1/\sqrt u).

The ideal :math:`\rho(c) = 1/c^2` gives 0.25, at :math:`u = 1/2`. Projections cut into cells (E2LSH)
have :math:`\rho(1.63) = 0.57` and give :data:`EXPONENT` = 0.354, at :math:`u = 0.375`, **if the
width of the cells is chosen for each level**; one width for all levels makes far points meet with
probability in proportion to 1/distance, and the exponent nearly 1.

Ball carving tends to 0.25 as the dimension of its projections grows, but at 8 it is still at 0.356
(:func:`limit_exponent`), and each further dimension multiplies the grids by about 4. The 0.173 of
Theorem 2.2 is reached by hash functions made for the points at hand, after clusters of unusual
density were cut out; that is not implemented here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from approxkmv.paper.hashing import E2LSH, HashFamily
from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT

Float = npt.NDArray[np.float64]

EXPONENT = LEVEL_SETS_EXPONENT  # of E2LSH: limit_exponent() to three digits

# Recalls of the farthest points of a level that are tried. Lower ones cost fewer tables and more
# repetitions; below 0.4, work times variance falls by a tenth at most.
RECALLS = (0.4, 0.6, 0.8)
_WIDTHS = np.geomspace(1.5, 48.0, 16)  # cells, in distances of the level: far levels need wide ones
_BITS = np.arange(1, 33)
_FUNCTIONS = np.unique(np.geomspace(2, 300, 60).astype(int))


@dataclass(frozen=True)
class Level:
    """How the points with kernel value in ``[lowest, highest)`` are sampled and recovered.

    A table is a pair of functions: ``n_functions`` make ``n_functions (n_functions - 1) / 2``
    tables, and a point is recovered if it meets the query under two functions or more.

    Attributes
    ----------
    lowest, highest : float
        Kernel values.
    rate : float
        Probability that a point is in the sample.
    family : E2LSH or None
        None: the sample is so short that it is looked through.
    n_functions : int
    recall : float
        Probability that a sampled point at ``lowest`` is recovered; nearer ones have more.
    met : float
        Largest mean number of points met for a query, over all sets of points whose density is the
        floor.
    """

    lowest: float
    highest: float
    rate: float
    family: E2LSH | None
    n_functions: int
    recall: float
    met: float

    @property
    def n_tables(self) -> int:
        """Pairs of functions."""
        return self.n_functions * (self.n_functions - 1) // 2

    @property
    def hashes(self) -> int:
        """Hash functions evaluated per point or query."""
        return self.n_functions * self.family.n_bits if self.family else 0

    @property
    def work(self) -> float:
        """Functions hashed with, tables looked up and points met by a query at the floor."""
        return self.hashes + self.n_tables + self.met

    def inclusion(self, distance: Float) -> Float:
        """Probability that a point at this distance is in the sample and recovered."""
        if self.family is None:
            return np.full(len(distance), self.rate)
        meets = self.family.collision_probability(distance)
        return self.rate * meets_twice(meets, self.n_functions)


def meets_twice(collision_probability: npt.ArrayLike, n_functions: npt.ArrayLike) -> Float:
    """Probability that a pair collides under at least two of so many independent functions.

    Examples
    --------
    >>> float(meets_twice(0.5, 2)), float(meets_twice(0.5, 3))
    (0.25, 0.5)
    """
    return np.asarray(special.bdtrc(1, n_functions, collision_probability), np.float64)


def levels_for(
    n_points: int, n_dims: int, bandwidth: float, floor: float, *, always_hash: bool = False
) -> list[Level]:
    """Levels down to the floor, and one more for all points below the last one.

    Of the plans for each of :data:`RECALLS`, the one with the least work times variance.

    Parameters
    ----------
    n_points, n_dims : int
    bandwidth, floor : float
    always_hash : bool
        Use tables also where looking through the sample is cheaper.

    Examples
    --------
    >>> levels = levels_for(1000, 8, 1.0, 0.01)
    >>> [level.lowest for level in levels]
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.0]
    >>> [level.n_tables for level in levels]
    [3, 1, 1, 0, 0, 0, 0, 0]
    """
    plans = [_levels(n_points, n_dims, bandwidth, floor, recall, always_hash) for recall in RECALLS]
    return min(plans, key=lambda levels: work(levels) * relative_variance_bound(levels))


def work(levels: list[Level]) -> float:
    """What a query at the floor costs in one repetition: hashes, lookups and points met."""
    return sum(level.work for level in levels)


def relative_variance_bound(levels: list[Level]) -> float:
    r"""Relative variance of one repetition where the density is at least the floor.

    Sampling adds :math:`\sum K^2 / (\pi_j \rho) \le 2 (n\mu)(n\mu(q))/\rho` for a recall
    :math:`\rho`, and the tables, drawn anew for each level, at most :math:`(1/\rho - 1)` of the
    squared sum.
    """
    recall = min(level.recall for level in levels)
    sampled = any(level.rate < 1 for level in levels)
    return (2 / recall if sampled else 0.0) + (1 / recall - 1)


def _levels(
    n_points: int, n_dims: int, bandwidth: float, floor: float, recall: float, always_hash: bool
) -> list[Level]:
    last = max(1, math.ceil(math.log2(1 / floor)))
    rates = [min(1.0, 1 / (2.0**j * n_points * floor)) for j in range(1, last + 1)]
    n_whole = sum(rate == 1 for rate in rates)
    levels = []
    highest = math.inf
    for j in range(max(1, n_whole), last + 1):
        rate, size = rates[j - 1], rates[j - 1] * n_points
        family, n_functions, reached, met = None, 0, 1.0, size
        if size > 0:
            plan = _tables(j, last, max(0, math.ceil(math.log2(size))), recall)
            if always_hash or plan.cost < size:
                width = plan.width * bandwidth * math.sqrt(2 * j * math.log(2))
                family = E2LSH(n_dims, plan.n_bits, width)
                n_functions, reached = plan.n_functions, plan.recall
                met = plan.met * size
        levels.append(Level(2.0**-j, highest, rate, family, n_functions, reached, met))
        highest = 2.0**-j
    tail = Level(0.0, highest, rates[-1], None, 0, 1.0, rates[-1] * n_points)
    return [*levels, tail]


@dataclass(frozen=True)
class _Tables:
    """Cells of ``width`` level distances; recall, share of the sample met, cost."""

    width: float
    n_bits: int
    n_functions: int
    recall: float
    met: float
    cost: float


@lru_cache(maxsize=4096)
def _tables(j: int, last: int, log_size: int, wanted: float) -> _Tables:
    """Cheapest tables that recover level ``j`` of ``last`` from a sample of ``2**log_size`` points.

    Distances are in units of the level's. The sets that make a query meet most have all they may,
    ``min(1, 2**(i - last))`` of the points, on one level ``i``.
    """
    i = np.arange(last + 1)
    single = E2LSH(1, 1, 1.0).collision_probability(np.sqrt(i / j) / _WIDTHS[:, None])
    p = single[:, None, :] ** _BITS[:, None]  # (widths, bits, levels)
    near = p[:, :, j]
    reached = meets_twice(near[..., None], _FUNCTIONS)
    enough = reached >= wanted
    first = np.argmax(enough, axis=-1)
    m = _FUNCTIONS[first]
    met = (meets_twice(p, m[..., None]) * np.minimum(1.0, 2.0 ** (i - last))).max(axis=-1)
    cost = m * _BITS + m * (m - 1) / 2 + 2.0**log_size * met
    cost[~enough.any(axis=-1)] = np.inf
    w, b = np.unravel_index(np.argmin(cost), cost.shape)
    recall = float(reached[w, b, first[w, b]])
    return _Tables(
        float(_WIDTHS[w]), int(_BITS[b]), int(m[w, b]), recall, float(met[w, b]), float(cost[w, b])
    )


def limit_exponent(family: HashFamily | None = None) -> float:
    r""":math:`\max_u (1-u)\rho(1/\sqrt u)`, the exponent of the work at small floors.

    Parameters
    ----------
    family : HashFamily, optional
        One function of it; :math:`\rho` is sought over distances at which it is used. E2LSH by
        default.

    Examples
    --------
    >>> round(limit_exponent(), 3)
    0.354
    """
    family = family or E2LSH(1, 1, 1.0)
    near = np.geomspace(0.02, 3.0, 120)  # distance of the level, in cells
    exponents = []
    for u in np.linspace(0.2, 0.6, 41):
        at_level = np.log(family.collision_probability(near))
        at_floor = np.log(family.collision_probability(near / math.sqrt(u)))
        exponents.append((1 - u) * (at_level / at_floor).min())
    return float(max(exponents))
