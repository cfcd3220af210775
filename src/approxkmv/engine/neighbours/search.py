"""FindHeavy for machines: near pairs in dense tiles of random tilings, then through neighbours.

A tiling cuts the points into cells along random directions; near points often share a cell. Inside
a cell all pairs of short sketches are compared in a dense tile, and only pairs whose sketches are
close are looked at in full.

Whatever share of the near pairs is found, draws are unbiased: found pairs are counted exactly, all
others are left to the draws. What was missed is estimated, by a tiling more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.engine.neighbours.sketch import make_sketcher, sketches
from approxkmv.engine.survey.control_variate import Smooth
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot, row_squares
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import (
    Array,
    Check,
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

# Closer pairs lead on to neighbours; farther ones share keys by accident.
_LEADING_VALUE = 0.05
_WIDTH = 4
# Points with fewer partners than this are searched again, in so many tilings of their own at most;
# where not more comparisons than this are left, without cells.
_FEW, _LONE_TILINGS, _MOST_SCANNED = 4.0, 3, 2**29
# One query in so many tells what was missed; all of them if there are few.
_CHECKED, _CHECKED_ALL = 4, 16_384
# Draws of a smaller probability may miss a pair without a trace.
_SELDOM = 0.1
_POINTS_PER_SCAN, _SQUARED, _COUNTED = 4096, 2**16, 2**22


class Missing(NamedTuple):
    """Squared error of what was not found."""

    expected: float
    at_most: float


class Search:
    """The near pairs found so far, and one round more."""

    def __init__(
        self,
        geometry: Geometry,
        bandwidth: float,
        pilot: Pilot,
        query_blocks: Blocks,
        key_tiles: Blocks,
        rng: np.random.Generator,
        n_threads: int | None,
        check: Check = None,
    ) -> None:
        n_keys = len(geometry.keys)
        same = geometry.queries is geometry.keys
        self.found = diagonal(n_keys) if same else FoundPairs.none(len(geometry.queries))
        self.geometry, self.bandwidth = geometry, bandwidth
        self.pilot, self.query_blocks, self.key_tiles = pilot, query_blocks, key_tiles
        self.sketch_dims: int | None = None
        self.rng, self.n_threads, self.check = rng, n_threads, check
        self.n_tilings = self.n_neighbours = 0
        per_row = np.bincount(pilot.near_row[pilot.apart], minlength=len(pilot.rows))
        self._few = min(_FEW, float(np.quantile(per_row, 0.05)) / 2)
        self.by_cells = self.everywhere  # in the order of some tiling, as soon as there is one
        self.first_squares = 0.0  # sum of K^2 over the pairs of the first tiling
        self.pairs = 0  # in full dimension, as far as they are worth counting

    @property
    def everywhere(self) -> tuple[Index32, Index32]:
        """All queries and all keys, in order; one and the same array where they are the same."""
        queries = self.query_blocks.order
        return queries, queries if self.pilot.symmetric else self.key_tiles.order

    def tilings(self, n_tilings: int, query_index: Index32, key_index: Index32) -> None:
        """Search some points in further tilings, with a sketch of their own."""
        if n_tilings <= 0:
            return
        points = self._sketches(query_index, key_index)
        depth = cell_depth(max(len(query_index), len(key_index)))
        for _ in range(n_tilings):
            self._add(self._in_cells(points, depth))
            if self.n_tilings == 0:
                self.first_squares = self._known_squares()
            self.n_tilings += 1

    def share_found(self) -> float:
        """Share of the pilot rows' near pairs that were found."""
        apart = self.pilot.apart
        missed = self.pilot.missed(self.found)[apart]
        return 1 - float(missed.mean()) if len(missed) else 1.0

    def lone(self) -> bool:
        """Search points that found far fewer partners than the pilot rows have; False if all may.

        A point that shared no cell with its neighbours is not reached through them either, and
        lacks all of them at once. Such points go through tilings of their own, and the last few of
        them are compared with all others.
        """
        if not self.anyone_has_partners:
            return False
        met = self._met_by_lone_points(self._few)
        if met:
            rows, cols, values = zip(*met, strict=True)
            self._add((np.concatenate(rows), np.concatenate(cols), np.concatenate(values)))
        return True

    @property
    def anyone_has_partners(self) -> bool:
        """Whether nearly all pilot rows have near pairs: a point without any is to be searched."""
        return self._few > 0

    def _met_by_lone_points(self, few: float) -> list[NewPairs]:
        """Pairs of points with fewer partners than that, in any order and some of them twice."""
        n_queries, n_keys = len(self.query_blocks.order), len(self.key_tiles.order)
        everyone = self._sketches(*self.everywhere)
        of_query = np.diff(self.found.indptr) - self.pilot.symmetric
        of_key = counts(self.found.cols, n_keys) - self.pilot.symmetric
        met: list[NewPairs] = []
        for attempt in range(_LONE_TILINGS + 1):
            # In the end those that are left without any.
            least = few if attempt < _LONE_TILINGS else min(few, 1.0)
            lone = [some_queries(everyone, of_query < least)]
            if not self.pilot.symmetric:
                lone.append(some_keys(everyone, of_key < least * n_queries / n_keys))
            lone = [points for points in lone if len(points.queries) and len(points.keys)]
            for points in lone:
                pairs = self._partners(points)
                met.append(pairs)
                rows, cols, _ = _both_ways(pairs) if self.pilot.symmetric else pairs
                # Pairs met twice count twice, which does not matter.
                of_query += np.bincount(rows, minlength=n_queries)
                of_key += np.bincount(cols, minlength=n_keys)
            if all(map(_are_few, lone)):
                break
        return met

    def _partners(self, points: Sketches) -> NewPairs:
        """Near pairs of a few points with many."""
        n_queries, n_keys = len(points.queries), len(points.keys)
        if _are_few(points):
            self._count(n_queries * n_keys)
            everyone = (np.arange(n, dtype=np.int32) for n in (n_queries, n_keys))
            return self._search(points, _every_pair(*everyone))
        # The fewer there are, the larger the cells in which they can look for partners.
        many, few = max(n_queries, n_keys), min(n_queries, n_keys)
        fewer_cuts = max(0, int(math.log2(many / few)) - 1)
        return self._in_cells(points, max(0, cell_depth(many) - fewer_cuts))

    def whole_rows(self, query_index: Index32, threshold: float) -> None:
        """Compare some queries with all keys, in full: all their pairs from a value on are found.

        Where the queries are the keys both places of a pair are.
        """
        for some in np.split(query_index, _cuts(len(query_index))[1:-1]):
            self._compare(some, self.key_tiles.order, threshold)

    def whole_columns(self, key_index: Index32, threshold: float) -> None:
        """Compare some keys with all queries, in full."""
        for some in np.split(key_index, _cuts(len(key_index))[1:-1]):
            self._compare(self.query_blocks.order, some, threshold)

    def _compare(self, query_index: Index32, key_index: Index32, threshold: float) -> None:
        met = Compiled(self.n_threads, check=self.check).tile_hits(
            self.geometry,
            _every_pair(query_index, key_index),
            threshold,
            self.found,
        )
        self._add(met)
        self.pairs += len(query_index) * len(key_index)

    def missing(self, x: Array, size: Array, rate: Float64, part: Smooth | None = None) -> Missing:
        """Squared error of leaving out the near pairs that were not found, or what ``part`` leaves.

        A tiling more, for one query in a few: it shows a near pair with the probability p with
        which the first one showed the pairs now known, so that for each new pair there are
        (1 - p) / p that stay unseen. Pairs of one query are added with their signs first. Pairs
        that the rates draw often enough show in the variance, and do not count here.

        To have met none does not mean there is none. The estimate reckons with half a pair more
        than was met, the mean of a rate whose count is known; the limit reckons with one more, and
        with one value just below the threshold in every row for which the pilot cannot exclude it.
        """
        queries, keys = self.everywhere
        n_queries = len(queries)
        one_in = 1 if n_queries <= _CHECKED_ALL else _CHECKED
        some = queries[int(self.rng.integers(one_in)) :: one_in].copy()
        # Sketches have no name here: they are gone before the pairs are added.
        met = self._in_cells(self._sketches(some, keys), cell_depth(len(keys)))
        rows, cols, values = met
        self._add(met)
        block, tile = self.query_blocks.block_of[rows], self.key_tiles.block_of[cols]
        left: Array = values
        near_square = self.pilot.near_square
        if part is not None:
            left = part.left_of(self.geometry, block, tile, (rows, cols, values))
            near_square = part.near_square
        seldom = rate[block, tile] * size[cols] < _SELDOM
        shown = float(row_squares(rows[seldom], left[seldom], x[cols[seldom]], n_queries).sum())
        known = self._known_squares()
        p = 0.5
        if known > 0 and self.n_tilings > 0:
            p = min(0.9, max(0.05, self.first_squares / known))
        factor = one_in * (1 - p) / p
        share = self._drawn_seldom(size, rate)
        one_pair = share * factor * self.pilot.square_of_a_pair(size, near_square)
        expected = factor * shown + 0.5 * one_pair
        below = share * self.pilot.unseen_below(size)
        return Missing(expected, expected + 0.5 * one_pair + below)

    def _drawn_seldom(self, size: Array, rate: Float64) -> float:
        """Share of all pairs that the draws do not show."""
        tiles = self.key_tiles
        mean_size = np.bincount(tiles.block_of, size, len(tiles.sizes)) / tiles.sizes
        n_pairs = np.outer(self.query_blocks.sizes, tiles.sizes)
        return float(n_pairs[rate * mean_size < _SELDOM].sum() / n_pairs.sum())

    def _sketches(self, query_index: Index32, key_index: Index32) -> Sketches:
        sketcher = make_sketcher(
            self.geometry, self.bandwidth, self.pilot, self.key_tiles, self.rng, self.sketch_dims
        )
        self.sketch_dims = sketcher.basis.shape[1]
        return sketches(
            self.geometry, sketcher, self.query_blocks, query_index, key_index, self.n_threads
        )

    def _in_cells(self, points: Sketches, depth: int) -> NewPairs:
        """New pairs of a tiling that is cut so many times."""
        directions = self.rng.standard_normal((points.keys.shape[1], depth)).astype(np.float32)
        n_sketched = len(points.queries) * len(points.keys) >> depth
        self._count(n_sketched // 2 if points.queries is points.keys else n_sketched)
        tiling = _tiling(points, directions, self.n_threads)
        if (len(points.queries), len(points.keys)) == tuple(map(len, self.everywhere)):
            self.by_cells = (
                points.query_index[tiling.query_order],
                points.key_index[tiling.key_order],
            )
        return self._search(points, tiling)

    def _search(self, points: Sketches, tiling: Tiling) -> NewPairs:
        """New pairs in the cells of a tiling; of two points among themselves one pair."""
        return Compiled(self.n_threads, check=self.check).cell_pairs(
            self.geometry.queries,
            self.geometry.keys,
            self.bandwidth,
            self.pilot.threshold,
            points,
            tiling,
            self.found,
            mirrored=points.queries is points.keys,
        )

    def _known_squares(self) -> float:
        """Sum of K^2 over the pairs of two points that were found."""
        of_themselves = self.pilot.symmetric * len(self.query_blocks.order)
        # Squares of so many at a time stay in the cache: a sixth of the time for millions of pairs.
        values = self.found.values
        parts = (values[i : i + _SQUARED] for i in range(0, len(values), _SQUARED))
        return sum(float(np.square(part).sum(dtype=np.float64)) for part in parts) - of_themselves

    def _add(self, met: NewPairs) -> None:
        """Where the queries are the keys, what one point has found the other has found."""
        if self.pilot.symmetric:
            met = _both_ways(met)
        self.found = Compiled(self.n_threads).merge_pairs(
            self.found,
            *met,
        )

    def _count(self, n_sketched: int) -> None:
        assert self.sketch_dims is not None
        self.pairs += round(n_sketched * self.sketch_dims / self.geometry.keys.shape[1])

    def neighbours(self) -> None:
        """Search among the keys of queries that share a key; every other time the other way round.

        A key that few queries know of may not be known to those through which a query looks for
        it. It is asked for the queries of its neighbours itself, where more of them know those.
        """
        of_keys = self.n_neighbours % 2 == 1
        met = Compiled(self.n_threads, check=self.check).neighbours_of_neighbours(
            self.geometry.queries,
            self.geometry.keys,
            self.bandwidth,
            self.found,
            least=_LEADING_VALUE,
            width=_WIDTH,
            of_keys=of_keys,
            threshold=self.pilot.threshold,
            point_order=self.by_cells[of_keys],
        )
        self._add(met)
        self.n_neighbours += 1


def cell_depth(n_keys: int) -> int:
    """How often keys are cut: into cells of about 1,024 keys, smaller ones below 32,768 keys.

    More cuts part more neighbours, but small cells make room for more tilings: at 262,144 keys six
    tilings of 1,024 find as much as four of 4,096, in three quarters of the time.
    """
    depth = math.log2(max(1, n_keys) / 32) / 2
    return max(0, round(depth if n_keys <= 32768 else math.log2(n_keys / 1024)))


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


def _both_ways(pairs: NewPairs) -> NewPairs:
    """Pairs and their mirror images, where the queries are the keys."""
    rows, cols, values = pairs
    return (
        np.concatenate([rows, cols]),
        np.concatenate([cols, rows]),
        np.concatenate([values, values]),
    )


def _every_pair(queries: Index32, keys: Index32) -> Tiling:
    """Cells that share the work out evenly: the longer side is cut, the shorter one is in all."""
    if len(queries) < len(keys):
        start = _cuts(len(keys))
        n_cells = len(start) - 1
        return Tiling(np.tile(queries, n_cells), keys, np.arange(n_cells + 1) * len(queries), start)
    start = _cuts(len(queries))
    n_cells = len(start) - 1
    return Tiling(queries, np.tile(keys, n_cells), start, np.arange(n_cells + 1) * len(keys))


def _cuts(n: int) -> Index:
    return np.append(np.arange(0, n, _POINTS_PER_SCAN), n).astype(np.int64)


def diagonal(n: int) -> FoundPairs:
    """Every point with itself: known without search where the queries are the keys."""
    return FoundPairs(
        np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n, np.float32)
    )


def _tiling(points: Sketches, directions: Float32, n_threads: int | None) -> Tiling:
    """Cells cut along directions in the space of the sketches, at medians of the larger side."""
    of_keys = _projections(points.keys, directions, n_threads)
    if points.queries is points.keys:
        return Compiled(n_threads).random_tiling(
            of_keys,
            of_keys,
        )
    of_queries = _projections(points.queries, directions, n_threads)
    if len(of_queries) > len(of_keys):
        keys, queries, key_start, query_start = Compiled(n_threads).random_tiling(
            of_queries,
            of_keys,
        )
        return Tiling(queries, keys, query_start, key_start)
    return Compiled(n_threads).random_tiling(
        of_keys,
        of_queries,
    )


def _projections(points: Float32, directions: Float32, n_threads: int | None) -> Float32:
    everyone, origin = np.arange(len(points), dtype=np.int32), np.zeros(points.shape[1])
    return Compiled(n_threads).project(
        points,
        everyone,
        origin,
        directions,
    )
