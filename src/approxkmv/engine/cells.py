"""Near keys for queries that come later: cells around centroids, then links between keys.

Keys lie in the cell of their nearest centroid. A query looks into the cells of its nearest
centroids, each of which is a dense tile, and from the near keys it meets there follows links to the
keys near those. What it finds depends on the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from approxkmv.exact import ExactKernel
from approxkmv.leaves import (
    Array,
    Float32,
    Float64,
    FoundPairs,
    Geometry,
    Index,
    Index32,
    Tiling,
    linked_pairs,
    merge_pairs,
    nearest_keys,
    tile_hits,
)

# A query costs one pair for each centroid and for each key in the cells it looks into.
_KEYS_PER_CELL = 64
_MEAN_STEPS, _KEYS_PER_MEAN = 2, 16
# Cells that queries look into, and keys for their links. Of 65,536 rows of 4,096 clusters, 8 and 6
# leave at most one with more than 0.1 nats of error (four seeds), 12 and 6 none.
QUERY_PROBES, _KEY_PROBES = 12, 6
# The share of the keys, those with the fewest links, that are compared with all others. Without
# it up to 9 of the rows above had more than 0.1 nats of error.
_POOREST = 0.01
_KEYS_PER_TASK = 2048
# From so many of the nearest known keys links are followed: any leads to the others of a group.
_FOLLOWED = 8


@dataclass(frozen=True, eq=False)
class Cells:
    """Keys by their nearest centroid: cell c has ``key_order[key_start[c]:key_start[c + 1]]``."""

    centroids: Array
    shift: Float64
    key_order: Index32
    key_start: Index

    @property
    def sizes(self) -> Index:
        """Keys in each cell."""
        return np.diff(self.key_start)


@dataclass(frozen=True, eq=False)
class Search:
    """How near keys are found: which cells, from which value on, and by which links."""

    cells: Cells
    threshold: float
    links: FoundPairs

    def find(self, kernel: ExactKernel, bandwidth: float, alone: Index | None = None) -> FoundPairs:
        """Pairs of the kernel's queries with near keys.

        ``alone`` is for queries that are keys: the numbers of the keys they are, which then stay
        unknown to them.
        """
        nearest = nearest_cells(kernel, self.cells)
        met = probe(kernel, self.cells, nearest, self.threshold)
        if alone is not None:
            met = _without(met, alone)
        found = follow(kernel, bandwidth, met, self.links, self.threshold)
        return found if alone is None else _without(found, alone)


def make_cells(kernel: ExactKernel, rng: np.random.Generator) -> tuple[Cells, Index32]:
    """Cells for the keys of a kernel of keys with themselves, and the nearest cells of each key."""
    keys = kernel.keys
    n_cells = max(1, len(keys) // _KEYS_PER_CELL)
    centroids = keys[rng.choice(len(keys), n_cells, replace=False)]
    some = np.sort(rng.choice(len(keys), min(len(keys), n_cells * _KEYS_PER_MEAN), replace=False))
    sample = _queries(kernel, keys[some], kernel.key_shift[some])
    for _ in range(_MEAN_STEPS):
        nearest = _nearest(sample, centroids, 1)[:, 0]
        members = csr_array(
            (np.ones(len(some), keys.dtype), (nearest, np.arange(len(some)))),
            shape=(n_cells, len(some)),
        )
        count = np.bincount(nearest, minlength=n_cells)
        means = (members @ sample.queries) / np.maximum(count, 1)[:, None].astype(keys.dtype)
        centroids = np.where(count[:, None] > 0, means, centroids)
    nearest = _nearest(kernel, centroids, min(_KEY_PROBES, n_cells))
    of_key = nearest[:, 0]
    cells = Cells(
        centroids,
        kernel.frame.shift(centroids, n_threads=kernel.n_threads),
        np.argsort(of_key, kind="stable").astype(np.int32),
        np.concatenate([[0], np.cumsum(np.bincount(of_key, minlength=n_cells))]),
    )
    return cells, nearest


def make_links(
    kernel: ExactKernel, bandwidth: float, cells: Cells, nearest: Index32, threshold: float
) -> FoundPairs:
    """Near keys of each key, found in its cells or through others, in both directions.

    Keys with the fewest links may have lost theirs to a border between cells, and with them the
    queries beside them; these keys are compared with all others.
    """
    links = _both_ways(probe(kernel, cells, nearest, threshold), kernel.n_threads)
    mass = np.bincount(links.rows, links.values, len(kernel.keys))
    n_poor = max(1, round(_POOREST * len(kernel.keys)))
    poorest = np.sort(np.argpartition(mass, n_poor - 1)[:n_poor]).astype(np.int32)
    links = merge_pairs(links, *_everywhere(kernel, poorest, threshold), n_threads=kernel.n_threads)
    links = _both_ways(links, kernel.n_threads)
    return _both_ways(follow(kernel, bandwidth, links, links, threshold), kernel.n_threads)


def nearest_cells(kernel: ExactKernel, cells: Cells) -> Index32:
    """Numbers (n_queries, n_probes) of the cells nearest to each query."""
    n_probes = min(QUERY_PROBES, len(cells.sizes))
    return _nearest(kernel, cells.centroids, n_probes, cells.shift)


def probe(kernel: ExactKernel, cells: Cells, nearest: Index32, threshold: float) -> FoundPairs:
    """Near keys in the given cells of each query."""
    n_queries, n_probes = nearest.shape
    by_cell = np.argsort(nearest.ravel(), kind="stable")
    lengths = np.bincount(nearest.ravel(), minlength=len(cells.sizes))
    tiling = Tiling(
        (by_cell // n_probes).astype(np.int32),
        cells.key_order,
        np.concatenate([[0], np.cumsum(lengths)]),
        cells.key_start,
    )
    none = FoundPairs.none(n_queries)
    met = tile_hits(kernel.geometry, tiling, threshold, none, n_threads=kernel.n_threads)
    return merge_pairs(none, *met, n_threads=kernel.n_threads)


def follow(
    kernel: ExactKernel, bandwidth: float, found: FoundPairs, links: FoundPairs, threshold: float
) -> FoundPairs:
    """The found pairs, and those with keys linked to found keys."""
    met = linked_pairs(
        kernel.queries,
        kernel.keys,
        bandwidth,
        found,
        links,
        width=_FOLLOWED,
        threshold=threshold,
        n_threads=kernel.n_threads,
    )
    return merge_pairs(found, *met, n_threads=kernel.n_threads)


def _everywhere(
    kernel: ExactKernel, queries: Index32, threshold: float
) -> tuple[Index32, Index32, Float32]:
    """Near keys of a few queries, among all keys."""
    key_start = np.append(np.arange(0, len(kernel.keys), _KEYS_PER_TASK), len(kernel.keys))
    n_tasks = len(key_start) - 1
    tiling = Tiling(
        np.tile(queries, n_tasks),
        np.arange(len(kernel.keys), dtype=np.int32),
        np.arange(n_tasks + 1) * len(queries),
        key_start,
    )
    none = FoundPairs.none(len(kernel.queries))
    return tile_hits(kernel.geometry, tiling, threshold, none, n_threads=kernel.n_threads)


def _nearest(
    kernel: ExactKernel, centroids: Array, width: int, shift: Float64 | None = None
) -> Index32:
    if shift is None:
        shift = kernel.frame.shift(centroids, n_threads=kernel.n_threads)
    geometry: Geometry = kernel.geometry._replace(keys=centroids, key_shift=shift)
    return nearest_keys(geometry, width, n_threads=kernel.n_threads)


def _queries(kernel: ExactKernel, queries: Array, shift: Float64) -> ExactKernel:
    return replace(kernel, queries=queries, query_shift=shift)


def _both_ways(links: FoundPairs, n_threads: int | None) -> FoundPairs:
    return merge_pairs(links, links.cols, links.rows, links.values, n_threads=n_threads)


def _without(found: FoundPairs, alone: Index) -> FoundPairs:
    """All pairs but that of each query with the key it is."""
    kept = found.cols != np.repeat(alone, np.diff(found.indptr))
    before = np.concatenate([[0], np.cumsum(kept)])
    return FoundPairs(before[found.indptr], found.cols[kept], found.values[kept])
