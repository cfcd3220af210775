"""Choose hash tables, or an exhaustive scan, for FindHeavy with practical constants.

The paper's tables are sized for every pair of every input. Here the family is E2LSH, the number of
tables follows from the recall wanted at the threshold, and (n_bits, bucket_width) minimise a
predicted time; when that is no less than the time of looking at every pair, every pair is looked
at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.paper.hashing import E2LSH, HashFamily, n_tables_for_recall, recall

Array = npt.NDArray[np.floating]

# Nanoseconds on one 2.6 GHz core (AMD EPYC, family 25), float32, 65,536 points. The first three
# were fitted roughly by a line to 16, 64 and 128 dimensions, the last was measured at 64. Only
# their ratios matter to the choice.
HASH_BIT = (1.5, 0.085)  # per point and bit: constant, per dimension
JOIN_POINT = 65.0  # per point and table: sort, join
CANDIDATE = (8.0, 0.17)  # per pair met in a table
DENSE_PAIR = (0.5, 0.029)  # per pair of the exhaustive scan

_BITS = range(1, 33)
_WIDTHS = (1.4, 1.7, 2.0, 2.4, 2.8, 3.3, 4.0, 5.0)  # of the near radius
_SAMPLE = 8192


@dataclass(frozen=True)
class HeavyPlan:
    """What FindHeavy will do and what it should cost.

    Attributes
    ----------
    family : HashFamily or None
        None: look at every pair.
    n_tables : int
    recall : float
        Probability that a pair at the threshold is found; nearer pairs do better.
    seconds, exhaustive_seconds : float
        Predicted time of the best tables and of the exhaustive scan, on one core.
    """

    family: HashFamily | None
    n_tables: int
    recall: float
    seconds: float
    exhaustive_seconds: float


def plan_heavy(
    queries: Array,
    keys: Array,
    *,
    radius: float,
    wanted_recall: float,
    rng: np.random.Generator,
    always_hash: bool = False,
) -> HeavyPlan:
    """Cheapest way to find pairs up to ``radius`` with probability ``wanted_recall`` each.

    The number of candidates is predicted from the distances of random pairs, so near-duplicates
    that such a sample misses are not counted; they are few, or the sample would see them.
    ``always_hash`` takes tables also where looking at every pair is cheaper.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((200, 3))
    >>> plan_heavy(points, points, radius=0.5, wanted_recall=0.9, rng=rng).family is None
    True
    """
    m, (n, n_dims) = len(queries), keys.shape
    exhaustive = m * n * _per(DENSE_PAIR, n_dims) * 1e-9
    best = HeavyPlan(None, 0, 1.0, np.inf, exhaustive)
    if not 0 < radius < np.inf or wanted_recall >= 1:
        return best
    distances = _sample_distances(queries, keys, rng)
    for width in _WIDTHS:
        one_bit = E2LSH(n_dims, 1, width * radius).collision_probability(distances)
        collide = np.ones_like(one_bit)
        for n_bits in _BITS:
            family = E2LSH(n_dims, n_bits, width * radius)
            at_radius = float(family.collision_probability(radius))
            tables = n_tables_for_recall(at_radius, wanted_recall)
            collide *= one_bit
            met = float(collide.mean())
            per_table = (m + n) * (n_bits * _per(HASH_BIT, n_dims) + JOIN_POINT)
            per_table += m * n * met * _per(CANDIDATE, n_dims)
            seconds = tables * per_table * 1e-9
            if seconds < best.seconds:
                achieved = float(recall(at_radius, tables))
                best = HeavyPlan(family, tables, achieved, seconds, exhaustive)
    if best.seconds >= exhaustive and not always_hash:
        return HeavyPlan(None, 0, 1.0, best.seconds, exhaustive)
    return best


def _per(cost: tuple[float, float], n_dims: int) -> float:
    return cost[0] + cost[1] * n_dims


def _sample_distances(
    queries: Array, keys: Array, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    rows = rng.integers(len(queries), size=_SAMPLE)
    cols = rng.integers(len(keys), size=_SAMPLE)
    difference = queries[rows].astype(np.float64) - keys[cols]
    return np.asarray(np.linalg.norm(difference, axis=1))
