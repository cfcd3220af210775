"""Near keys for queries that come later: cells around centroids, then links between keys.

Keys lie in the cell of their nearest centroid. A query looks into the cells of its nearest
centroids, where short sketches are compared and those within a radius looked at in full; from the
near keys it meets there it follows links to the keys near those. What it finds depends on the query
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from approxkmv.engine.neighbours.sketch import random_basis, weighted_quantile
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import (
    Array,
    Float32,
    Float64,
    FoundPairs,
    Geometry,
    Index,
    Index32,
    NewPairs,
    Sketches,
    Tiling,
)

# A query costs one pair for each centroid, and a sketch for each key in the cells it looks into.
_KEYS_PER_CELL = 128
_SKETCH_DIMS = 16
# Share of the squares of the pilot rows' near values whose sketches lie within the radius: farther
# ones are left to links.
_WITHIN_RADIUS = 0.99
_MEAN_STEPS, _KEYS_PER_MEAN = 2, 16
# Cells that queries look into, and keys for their links: one near key of a group is enough to be
# led to the others.
QUERY_PROBES, _KEY_PROBES = 8, 6
# The share of the keys, those with the fewest links, that are compared with all others. Without
# it up to 9 of the rows above had more than 0.1 nats of error.
_POOREST = 0.01
_KEYS_PER_TASK = 2048
# From so many of the nearest known keys links are followed: any leads to the others of a group.
_FOLLOWED = 8


class Near(NamedTuple):
    """Pairs of keys near each other, to learn from."""

    rows: Index
    cols: Index
    values: Float64


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
class KeySketches:
    """Few coordinates of every key, and how far from a query's own they are looked at."""

    basis: Float32
    keys: Float32
    radius_squared: float

    def of(self, kernel: KernelMatrix, queries: Index32) -> Sketches:
        """Sketches of some of the kernel's queries beside those of all keys."""
        everyone = np.arange(len(self.keys), dtype=np.int32)
        if kernel.queries is kernel.keys:
            sketched = self.keys[queries]
        else:
            sketched = _sketched(kernel, kernel.queries, queries, self.basis)
        radius = np.full(len(queries), self.radius_squared, np.float32)
        return Sketches(sketched, queries, radius, self.keys, everyone)


@dataclass(frozen=True, eq=False)
class Search:
    """How near keys are found: which cells, by which sketches, from which value on, which links."""

    cells: Cells
    sketches: KeySketches
    threshold: float
    links: FoundPairs

    def find(
        self, kernel: KernelMatrix, bandwidth: float, alone: Index | None = None
    ) -> FoundPairs:
        """Pairs of the kernel's queries with near keys.

        ``alone`` is for queries that are keys: the numbers of the keys they are, which then stay
        unknown to them.
        """
        nearest = nearest_cells(kernel, self.cells)
        met = probe(kernel, bandwidth, self.cells, self.sketches, nearest, self.threshold)
        none = FoundPairs.none(len(kernel.queries))
        known = kernel.backend.merge_pairs(
            none,
            *met,
        )
        if alone is not None:
            known = _without(known, alone)
        met = follow(kernel, bandwidth, known, self.links, self.threshold)
        found = kernel.backend.merge_pairs(
            known,
            *met,
        )
        return found if alone is None else _without(found, alone)


def make_cells(kernel: KernelMatrix, rng: np.random.Generator) -> tuple[Cells, Index32]:
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
        kernel.frame.shift(centroids, kernel.backend),
        np.argsort(of_key, kind="stable").astype(np.int32),
        np.concatenate([[0], np.cumsum(np.bincount(of_key, minlength=n_cells))]),
    )
    return cells, nearest


def make_sketches(kernel: KernelMatrix, pilot: Near, rng: np.random.Generator) -> KeySketches:
    """Sketches of the keys of a kernel of keys with themselves; the radius is from pilot rows."""
    keys, n_dims = kernel.keys, kernel.keys.shape[1]
    basis = random_basis(n_dims, min(_SKETCH_DIMS, n_dims), rng)
    sketched = _sketched(kernel, keys, np.arange(len(keys), dtype=np.int32), basis)
    distances = np.square(sketched[pilot.rows] - sketched[pilot.cols]).sum(axis=1)
    radius = 0.0
    if len(distances):
        radius = weighted_quantile(distances, np.square(pilot.values), _WITHIN_RADIUS)
    return KeySketches(basis, sketched, radius)


def make_links(
    kernel: KernelMatrix,
    bandwidth: float,
    cells: Cells,
    sketches: KeySketches,
    nearest: Index32,
    threshold: float,
) -> FoundPairs:
    """Near keys of each key, found in its cells or through others, in both directions.

    Keys with the fewest links may have lost theirs to a border between cells, and with them the
    queries beside them; these keys are compared with all others.
    """
    n, n_threads = len(kernel.keys), kernel.backend.n_threads
    met = probe(kernel, bandwidth, cells, sketches, nearest, threshold)
    links = _both_ways(FoundPairs.none(n), met, n_threads)
    mass = np.bincount(links.rows, links.values, n)
    n_poor = max(1, round(_POOREST * n))
    poorest = np.sort(np.argpartition(mass, n_poor - 1)[:n_poor]).astype(np.int32)
    met = _everywhere(kernel, bandwidth, sketches, poorest, threshold)
    links = _both_ways(links, met, n_threads)
    return _both_ways(links, follow(kernel, bandwidth, links, links, threshold), n_threads)


def nearest_cells(kernel: KernelMatrix, cells: Cells) -> Index32:
    """Numbers (n_queries, n_probes) of the cells nearest to each query."""
    n_probes = min(QUERY_PROBES, len(cells.sizes))
    return _nearest(kernel, cells.centroids, n_probes, cells.shift)


def probe(
    kernel: KernelMatrix,
    bandwidth: float,
    cells: Cells,
    sketches: KeySketches,
    nearest: Index32,
    threshold: float,
) -> NewPairs:
    """Near keys in the given cells of each query."""
    n_queries, n_probes = nearest.shape
    # Sixteen bits are sorted in one pass for each eight of them.
    small = nearest.ravel().astype(np.uint16) if len(cells.sizes) <= 1 << 16 else nearest.ravel()
    by_cell = np.argsort(small, kind="stable")
    lengths = np.bincount(nearest.ravel(), minlength=len(cells.sizes))
    tiling = Tiling(
        (by_cell // n_probes).astype(np.int32),
        cells.key_order,
        np.concatenate([[0], np.cumsum(lengths)]),
        cells.key_start,
    )
    everyone = np.arange(n_queries, dtype=np.int32)
    return _met(kernel, bandwidth, sketches.of(kernel, everyone), tiling, threshold)


def follow(
    kernel: KernelMatrix, bandwidth: float, known: FoundPairs, links: FoundPairs, threshold: float
) -> NewPairs:
    """Near keys that are linked to known ones, and not known yet."""
    return kernel.backend.linked_pairs(
        kernel.queries,
        kernel.keys,
        bandwidth,
        known,
        links,
        width=_FOLLOWED,
        threshold=threshold,
    )


def _everywhere(
    kernel: KernelMatrix,
    bandwidth: float,
    sketches: KeySketches,
    queries: Index32,
    threshold: float,
) -> NewPairs:
    """Near keys of a few queries, among all keys."""
    key_start = np.append(np.arange(0, len(kernel.keys), _KEYS_PER_TASK), len(kernel.keys))
    n_tasks = len(key_start) - 1
    tiling = Tiling(
        np.tile(np.arange(len(queries), dtype=np.int32), n_tasks),
        np.arange(len(kernel.keys), dtype=np.int32),
        np.arange(n_tasks + 1) * len(queries),
        key_start,
    )
    return _met(kernel, bandwidth, sketches.of(kernel, queries), tiling, threshold)


def _met(
    kernel: KernelMatrix, bandwidth: float, points: Sketches, tiling: Tiling, threshold: float
) -> NewPairs:
    none = FoundPairs.none(len(kernel.queries))
    return kernel.backend.cell_pairs(
        kernel.queries,
        kernel.keys,
        bandwidth,
        threshold,
        points,
        tiling,
        none,
    )


def _sketched(kernel: KernelMatrix, points: Array, index: Index32, basis: Float32) -> Float32:
    return kernel.backend.project(
        points,
        index,
        kernel.frame.centre,
        basis,
    )


def _nearest(
    kernel: KernelMatrix, centroids: Array, width: int, shift: Float64 | None = None
) -> Index32:
    if shift is None:
        shift = kernel.frame.shift(centroids, kernel.backend)
    geometry: Geometry = kernel.geometry._replace(keys=centroids, key_shift=shift)
    return kernel.backend.nearest_keys(
        geometry,
        width,
    )


def _queries(kernel: KernelMatrix, queries: Array, shift: Float64) -> KernelMatrix:
    return replace(kernel, queries=queries, query_shift=shift)


def _both_ways(known: FoundPairs, met: NewPairs, n_threads: int | None) -> FoundPairs:
    """Known pairs, and new ones in both directions."""
    rows, cols, values = met
    return Compiled(n_threads).merge_pairs(
        known,
        np.concatenate([rows, cols]),
        np.concatenate([cols, rows]),
        np.concatenate([values, values]),
    )


def _without(found: FoundPairs, alone: Index) -> FoundPairs:
    """All pairs but that of each query with the key it is."""
    kept = found.cols != np.repeat(alone, np.diff(found.indptr))
    before = np.concatenate([[0], np.cumsum(kept)])
    return FoundPairs(before[found.indptr], found.cols[kept], found.values[kept])
