"""FindHeavy for machines: the near pairs found so far, and tilings that find more.

A tiling cuts the points into cells along random directions; near points often share a cell. Inside
a cell all pairs of short sketches are compared in a dense tile, and only pairs whose sketches are
close are computed in full.

Whatever share of the near pairs is found, draws are unbiased: found pairs are counted exactly, all
others are left to the draws. ``missing.py`` estimates what was missed.
"""

from __future__ import annotations

import math

import numpy as np

from approxkmv.engine.neighbours.sketch import make_sketcher, sketches
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Float32, FoundPairs, Index32, NewPairs, Sketches, Tiling

# Points with fewer partners than this are isolated, and searched again.
_FEW = 4.0
_SQUARED = 2**16


class Search:
    """The near pairs found so far; what was done to find them."""

    def __init__(self, kernel: KernelMatrix, pilot: Pilot, rng: np.random.Generator) -> None:
        self.kernel, self.pilot, self.rng = kernel, pilot, rng
        n_queries, n_keys = len(kernel.queries), len(kernel.keys)
        self.found = diagonal(n_keys) if pilot.symmetric else FoundPairs.none(n_queries)
        self.sketch_dims: int | None = None
        self.n_tilings = self.n_expansions = 0
        self.by_cells = self.everywhere  # in the order of some tiling, as soon as there is one
        self.first_squares = 0.0  # sum of K^2 over the pairs of the first tiling
        self.pairs = 0  # in full dimension, as far as they are worth counting
        per_row = np.bincount(pilot.near_row[pilot.apart], minlength=len(pilot.rows))
        # Fewer partners than this, and far fewer than pilot rows have: an isolated point.
        self.few = min(_FEW, float(np.quantile(per_row, 0.05)) / 2)

    @property
    def everywhere(self) -> tuple[Index32, Index32]:
        """All queries and all keys, in order; one and the same array where they are the same."""
        queries = self.pilot.query_blocks.order
        return queries, queries if self.pilot.symmetric else self.pilot.key_tiles.order

    @property
    def isolation_shows(self) -> bool:
        """Whether nearly all pilot rows have near pairs: a point without any is to be searched."""
        return self.few > 0

    def tilings(self, n_tilings: int, query_index: Index32, key_index: Index32) -> None:
        """Search some points in further tilings, with sketches of their own."""
        if n_tilings <= 0:
            return
        points = self.sketches(query_index, key_index)
        depth = cell_depth(max(len(query_index), len(key_index)))
        for _ in range(n_tilings):
            self.add(self.in_cells(points, depth))
            if self.n_tilings == 0:
                self.first_squares = self.known_squares()
            self.n_tilings += 1

    def share_found(self) -> float:
        """Share of the pilot rows' near pairs that were found."""
        missed = self.pilot.missed(self.found)[self.pilot.apart]
        return 1 - float(missed.mean()) if len(missed) else 1.0

    def known_squares(self) -> float:
        """Sum of K^2 over the pairs of two points that were found."""
        of_themselves = self.pilot.symmetric * len(self.pilot.query_blocks.order)
        # Pieces stay in the cache: a sixth of the time for millions of pairs.
        values = self.found.values
        parts = (values[i : i + _SQUARED] for i in range(0, len(values), _SQUARED))
        return sum(float(np.square(part).sum(dtype=np.float64)) for part in parts) - of_themselves

    def sketches(self, query_index: Index32, key_index: Index32) -> Sketches:
        """New sketches of some points."""
        sketcher = make_sketcher(self.kernel, self.pilot, self.rng, self.sketch_dims)
        self.sketch_dims = sketcher.basis.shape[1]
        return sketches(self.kernel, sketcher, self.pilot.query_blocks, query_index, key_index)

    def in_cells(self, points: Sketches, depth: int) -> NewPairs:
        """New pairs of a tiling that is cut ``depth`` times."""
        directions = self.rng.standard_normal((points.keys.shape[1], depth)).astype(np.float32)
        n_sketched = len(points.queries) * len(points.keys) >> depth
        self.count(n_sketched // 2 if points.queries is points.keys else n_sketched)
        tiling = _tiling(points, directions, self.kernel.backend)
        if (len(points.queries), len(points.keys)) == tuple(map(len, self.everywhere)):
            self.by_cells = (
                points.query_index[tiling.query_order],
                points.key_index[tiling.key_order],
            )
        return self.in_tiling(points, tiling)

    def in_tiling(self, points: Sketches, tiling: Tiling) -> NewPairs:
        """New pairs in the cells of a tiling; of two points among themselves one pair."""
        return self.kernel.backend.cell_pairs(
            self.kernel.queries,
            self.kernel.keys,
            self.kernel.bandwidth,
            self.pilot.threshold,
            points,
            tiling,
            self.found,
            mirrored=points.queries is points.keys,
        )

    def add(self, met: NewPairs) -> None:
        """Where the queries are the keys, what one point has found the other has found."""
        if self.pilot.symmetric:
            met = both_ways(met)
        self.found = self.kernel.backend.merge_pairs(self.found, *met)

    def count(self, n_sketched: int) -> None:
        """Add pairs of sketches to the pairs spent."""
        assert self.sketch_dims is not None
        self.pairs += round(n_sketched * self.sketch_dims / self.kernel.keys.shape[1])


def cell_depth(n_keys: int) -> int:
    """Number of cuts of keys: into cells of about 1,024 keys, smaller ones below 32,768 keys.

    More cuts part more neighbours, but small cells make room for more tilings: at 262,144 keys six
    tilings of 1,024 find as much as four of 4,096, in three quarters of the time.
    """
    depth = math.log2(max(1, n_keys) / 32) / 2
    return max(0, round(depth if n_keys <= 32768 else math.log2(n_keys / 1024)))


def diagonal(n: int) -> FoundPairs:
    """Every point with itself: known without search where the queries are the keys."""
    return FoundPairs(
        np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n, np.float32)
    )


def both_ways(pairs: NewPairs) -> NewPairs:
    """Pairs and their mirror images, where the queries are the keys."""
    rows, cols, values = pairs
    return (
        np.concatenate([rows, cols]),
        np.concatenate([cols, rows]),
        np.concatenate([values, values]),
    )


def _tiling(points: Sketches, directions: Float32, backend: Compiled) -> Tiling:
    """Cells cut along directions in the space of the sketches, at medians of the larger side."""
    of_keys = _projections(points.keys, directions, backend)
    if points.queries is points.keys:
        return backend.random_tiling(
            of_keys,
            of_keys,
        )
    of_queries = _projections(points.queries, directions, backend)
    if len(of_queries) > len(of_keys):
        keys, queries, key_start, query_start = backend.random_tiling(
            of_queries,
            of_keys,
        )
        return Tiling(queries, keys, query_start, key_start)
    return backend.random_tiling(
        of_keys,
        of_queries,
    )


def _projections(points: Float32, directions: Float32, backend: Compiled) -> Float32:
    everyone, origin = np.arange(len(points), dtype=np.int32), np.zeros(points.shape[1])
    return backend.project(
        points,
        everyone,
        origin,
        directions,
    )
