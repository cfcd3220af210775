"""FindHeavy for machines: near pairs in dense tiles of random tilings, then through neighbours.

Whatever share of the near pairs is found, the product stays unbiased: found pairs are counted
exactly, all others are left to the draws. A missed pair costs variance, never bias.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from approxkmv._threads import default_threads
from approxkmv.leaves import (
    Array,
    Float32,
    FoundPairs,
    Geometry,
    Index,
    Index32,
    Tiling,
    neighbours_of_neighbours,
    random_tiling,
    tile_hits,
)

KEYS_PER_CELL = 128
# Closer pairs lead on to neighbours; farther ones share keys by accident.
_LEADING_VALUE = 0.05
_WIDTH = 4


class NewPairs(NamedTuple):
    """A list of pairs met in a search, possibly with repeats."""

    rows: Index32
    cols: Index32
    values: Float32


def search_tilings(
    geometry: Geometry,
    found: FoundPairs,
    n_tilings: int,
    *,
    threshold: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> NewPairs:
    """Pairs that further random tilings find."""
    depth = max(0, round(math.log2(max(1, len(geometry.keys)) / KEYS_PER_CELL)))
    shape = (n_tilings, depth, geometry.keys.shape[1])
    directions = rng.standard_normal(shape).astype(np.float32)
    with ThreadPoolExecutor(n_threads or default_threads()) as pool:
        tilings = list(pool.map(lambda some: _tiling(geometry, some), directions))
    hits = [
        tile_hits(geometry, tiling, threshold, found, n_threads=n_threads) for tiling in tilings
    ]
    return NewPairs(*(np.concatenate(parts) for parts in zip(*hits, strict=True)))


def _tiling(geometry: Geometry, directions: Float32) -> Tiling:
    of_keys = _projections(directions, geometry.keys)
    same = geometry.queries is geometry.keys
    return random_tiling(of_keys, of_keys if same else _projections(directions, geometry.queries))


def search_neighbours(
    geometry: Geometry,
    bandwidth: float,
    found: FoundPairs,
    *,
    threshold: float,
    n_threads: int | None,
) -> NewPairs:
    """Pairs with the keys of queries that share a key."""
    sharing_indptr, sharing = _queries_of_keys(found, len(geometry.keys))
    pairs = neighbours_of_neighbours(
        geometry.queries,
        geometry.keys,
        bandwidth,
        found,
        sharing_indptr,
        sharing,
        least=_LEADING_VALUE,
        width=_WIDTH,
        threshold=threshold,
        n_threads=n_threads,
    )
    return NewPairs(*pairs)


def diagonal(n: int) -> FoundPairs:
    """Every point with itself: known without search where the queries are the keys."""
    return FoundPairs(
        np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n, np.float32)
    )


def _projections(directions: Float32, points: Array) -> Float32:
    return np.ascontiguousarray(directions @ points.T.astype(np.float32, copy=False))


def _queries_of_keys(found: FoundPairs, n_keys: int) -> tuple[Index, Index32]:
    """The queries of each key, over pairs close enough to lead on."""
    n_queries = len(found.indptr) - 1
    leading = found.values >= _LEADING_VALUE
    kept = np.concatenate([[0], np.cumsum(leading)])[found.indptr]
    pairs = csr_array(
        (found.values[leading], found.cols[leading], kept), shape=(n_queries, n_keys)
    ).tocsc()
    return pairs.indptr.astype(np.int64), pairs.indices.astype(np.int32)
