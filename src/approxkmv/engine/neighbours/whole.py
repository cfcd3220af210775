"""Some queries or keys compared with all others, in full."""

from __future__ import annotations

import numpy as np

from approxkmv.engine.neighbours.search import Search
from approxkmv.loops.types import Index, Index32, Tiling

_POINTS_PER_SCAN = 4096


def search_rows(search: Search, query_index: Index32, threshold: float) -> None:
    """Compare some queries with all keys: all their pairs from ``threshold`` on are found.

    Where the queries are the keys both places of a pair are.
    """
    for some in np.split(query_index, cuts(len(query_index))[1:-1]):
        _compare(search, some, search.pilot.key_tiles.order, threshold)


def search_columns(search: Search, key_index: Index32, threshold: float) -> None:
    """Compare some keys with all queries."""
    for some in np.split(key_index, cuts(len(key_index))[1:-1]):
        _compare(search, search.pilot.query_blocks.order, some, threshold)


def _compare(search: Search, query_index: Index32, key_index: Index32, threshold: float) -> None:
    kernel = search.kernel
    pairs = every_pair(query_index, key_index)
    search.add(kernel.backend.tile_hits(kernel.geometry, pairs, threshold, search.found))
    search.pairs += len(query_index) * len(key_index)


def every_pair(queries: Index32, keys: Index32) -> Tiling:
    """Cells that share the work out evenly: the longer side is cut, the shorter one is in all."""
    if len(queries) < len(keys):
        start = cuts(len(keys))
        n_cells = len(start) - 1
        return Tiling(np.tile(queries, n_cells), keys, np.arange(n_cells + 1) * len(queries), start)
    start = cuts(len(queries))
    n_cells = len(start) - 1
    return Tiling(queries, np.tile(keys, n_cells), start, np.arange(n_cells + 1) * len(keys))


def cuts(n: int) -> Index:
    """Where points are cut into pieces."""
    return np.append(np.arange(0, n, _POINTS_PER_SCAN), n).astype(np.int64)
