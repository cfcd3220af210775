"""Isolated points: those that found far fewer partners than the pilot rows have, searched again.

A point that shared no cell with its neighbours is not reached through them either, and lacks all of
them at once. Such points go through tilings of their own, and the last few of them are compared
with all others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from approxkmv.engine.neighbours.search import Search, both_ways, cell_depth
from approxkmv.engine.neighbours.whole import every_pair
from approxkmv.loops.types import Index, Index32, NewPairs, Sketches

# Tilings of their own, at most; where there are not more comparisons left, without cells.
_MOST_TILINGS, _MOST_SCANNED = 3, 2**29
_COUNTED = 2**22


def search_isolated(search: Search) -> bool:
    """Search isolated points again; False if points without near pairs are common: no sign then."""
    if not search.isolation_shows:
        return False
    met = _met_by_isolated(search)
    if met:
        rows, cols, values = zip(*met, strict=True)
        search.add((np.concatenate(rows), np.concatenate(cols), np.concatenate(values)))
    return True


def _met_by_isolated(search: Search) -> list[NewPairs]:
    """Pairs of isolated points, in any order and some of them twice."""
    symmetric = search.pilot.symmetric
    n_queries, n_keys = map(len, search.everywhere)
    everyone = search.sketches(*search.everywhere)
    of_query = np.diff(search.found.indptr) - symmetric
    of_key = counts(search.found.cols, n_keys) - symmetric
    met: list[NewPairs] = []
    for attempt in range(_MOST_TILINGS + 1):
        # In the end those that are left without any.
        least = search.few if attempt < _MOST_TILINGS else min(search.few, 1.0)
        isolated = [some_queries(everyone, of_query < least)]
        if not symmetric:
            isolated.append(some_keys(everyone, of_key < least * n_queries / n_keys))
        isolated = [points for points in isolated if len(points.queries) and len(points.keys)]
        for points in isolated:
            pairs = _partners(search, points)
            met.append(pairs)
            rows, cols, _ = both_ways(pairs) if symmetric else pairs
            # Pairs met twice count twice, which does not matter.
            of_query += np.bincount(rows, minlength=n_queries)
            of_key += np.bincount(cols, minlength=n_keys)
        if all(map(_are_few, isolated)):
            break
    return met


def _partners(search: Search, points: Sketches) -> NewPairs:
    """Near pairs of a few points with many."""
    n_queries, n_keys = len(points.queries), len(points.keys)
    if _are_few(points):
        search.count(n_queries * n_keys)
        everyone = (np.arange(n, dtype=np.int32) for n in (n_queries, n_keys))
        return search.in_tiling(points, every_pair(*everyone))
    # The fewer there are, the larger the cells in which they can look for partners.
    many, few = max(n_queries, n_keys), min(n_queries, n_keys)
    fewer_cuts = max(0, int(math.log2(many / few)) - 1)
    return search.in_cells(points, max(0, cell_depth(many) - fewer_cuts))


def counts(numbers: Index32, n: int) -> Index:
    """How often each number below n occurs, a part at a time: NumPy makes a wider copy of all."""
    found = np.zeros(n, np.int64)
    for first in range(0, len(numbers), _COUNTED):
        found += np.bincount(numbers[first : first + _COUNTED], minlength=n)
    return found


def some_queries(points: Sketches, chosen: npt.NDArray[np.bool_]) -> Sketches:
    """Sketches of some queries, chosen by their numbers, and all keys."""
    some = np.flatnonzero(chosen[points.query_index])
    return points._replace(
        queries=points.queries[some],
        query_index=points.query_index[some],
        radius_squared=points.radius_squared[some],
    )


def some_keys(points: Sketches, chosen: npt.NDArray[np.bool_]) -> Sketches:
    """Sketches of all queries and some keys, chosen by their numbers."""
    some = np.flatnonzero(chosen[points.key_index])
    return points._replace(keys=points.keys[some], key_index=points.key_index[some])


def _are_few(points: Sketches) -> bool:
    """Whether all pairs of these points can be compared."""
    return len(points.queries) * len(points.keys) <= _MOST_SCANNED
