"""A few whole rows of each block, exactly: what the tiles of the matrix look like.

The rows serve three times: their squared values estimate the variance of draws, tile by tile; their
near pairs tell how much the search for near pairs has missed; their products check the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from approxkmv.engine.order import Blocks
from approxkmv.leaves import (
    Array,
    Float64,
    FoundPairs,
    Geometry,
    Index,
    Tiling,
    tile_hits,
    tile_product,
)

_KEYS_PER_CELL = 4096
# More near pairs than this would cost more to list than they save.
_MOST_NEAR_PER_ROW = 48
_ROWS_FOR_THRESHOLD = 16


@dataclass(frozen=True, eq=False)
class Pilot:
    """Rows drawn from each block of queries, with all their keys."""

    rows: Index  # original numbers, ascending within a block
    block_of: Index  # block of each row
    products: Float64  # exact K x of each row
    light: Float64  # (n_rows, n_tiles) sums of K^2 over the tile's keys that are not near
    near_row: Index  # near pairs of the rows, by position in `rows`
    near_col: Index
    near_square: Float64  # K^2 of each near pair
    threshold: float  # from which value on a pair counts as near
    n_blocks: int
    key_tiles: Blocks

    def per_pair(self, sums: Float64) -> Float64:
        """Mean over the pairs of each block and tile, from sums (n_rows, n_tiles) of the rows."""
        total = np.zeros((self.n_blocks, sums.shape[1]))
        np.add.at(total, self.block_of, sums)
        n_rows = np.bincount(self.block_of, minlength=self.n_blocks)
        return np.asarray(total / (n_rows[:, None] * self.key_tiles.sizes))

    def missed(self, found: FoundPairs) -> npt.NDArray[np.bool_]:
        """Which near pairs of the rows the search has not found."""
        n_keys = len(self.key_tiles.order)
        lengths = found.indptr[self.rows + 1] - found.indptr[self.rows]
        row = np.repeat(np.arange(len(self.rows)), lengths)
        within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        col = found.cols[found.indptr[self.rows][row] + within]
        return ~np.isin(self.near_row * n_keys + self.near_col, row * n_keys + col)

    def missed_squares(self, found: FoundPairs) -> Float64:
        """Sums (n_rows, n_tiles) of K^2 over near pairs that were not found."""
        missed = self.missed(found)
        sums = np.zeros_like(self.light)
        tile = self.key_tiles.block_of[self.near_col[missed]]
        np.add.at(sums, (self.near_row[missed], tile), self.near_square[missed])
        return sums


def run_pilot(
    geometry: Geometry,
    x: Array,
    query_blocks: Blocks,
    key_tiles: Blocks,
    *,
    rows_per_block: int,
    threshold: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> Pilot:
    """Evaluate ``rows_per_block`` random rows of every block against all keys.

    The threshold is raised where more pairs would reach it than are worth listing.
    """
    places = np.concatenate(
        [
            first + np.sort(rng.choice(size, min(rows_per_block, size), replace=False))
            for first, size in zip(query_blocks.start[:-1], query_blocks.sizes, strict=True)
        ]
    )
    rows = query_blocks.order[places].astype(np.int64)
    products, squares = _row_sums(geometry, x, rows, key_tiles, n_threads)
    some = rows[:: max(1, len(rows) // _ROWS_FOR_THRESHOLD)]
    near_value = _near(geometry, some, key_tiles, threshold, n_threads)[2]
    most = _MOST_NEAR_PER_ROW * len(some)
    if len(near_value) > most:
        threshold = float(np.partition(near_value, len(near_value) - most)[-most])
        # Repeated points: equal values by the million, just below the threshold from now on.
        if np.count_nonzero(near_value >= threshold) > 2 * most:
            threshold *= 1.001
    near_row, near_col, near_value = _near(geometry, rows, key_tiles, threshold, n_threads)
    near_square = near_value.astype(np.float64) ** 2
    near = np.zeros_like(squares)
    np.add.at(near, (near_row, key_tiles.block_of[near_col]), near_square)
    return Pilot(
        rows=rows,
        block_of=query_blocks.block_of[rows].astype(np.int64),
        products=products,
        # Both sums are rounded: the difference may fall below zero by a rounding error.
        light=np.maximum(squares - near, 0.0),
        near_row=near_row,
        near_col=near_col,
        near_square=near_square,
        threshold=threshold,
        n_blocks=len(query_blocks.sizes),
        key_tiles=key_tiles,
    )


def _row_sums(
    geometry: Geometry, x: Array, rows: Index, key_tiles: Blocks, n_threads: int | None
) -> tuple[Float64, Float64]:
    """Exact K x of the rows, and their sums of K^2 over every tile of keys."""
    queries = np.ascontiguousarray(geometry.queries[rows])
    products = np.zeros(len(rows))
    squares = np.empty((len(rows), len(key_tiles.sizes)))
    for tile, (first, last) in enumerate(pairwise(key_tiles.start)):
        keys = key_tiles.order[first:last]
        columns = np.ones((len(keys), 2), x.dtype)
        columns[:, 0] = x[keys]
        sums = tile_product(
            queries,
            np.ascontiguousarray(geometry.keys[keys]),
            columns,
            query_shift=geometry.query_shift[rows],
            key_shift=geometry.key_shift[keys],
            slope=geometry.slope,
            query_centre=geometry.centre,
            key_centre=geometry.centre,
            factor=geometry.factor,
            ceiling=0.0,
            differences=geometry.differences,
            squares=True,
            n_threads=n_threads,
        ).out
        products += sums[:, 0]
        squares[:, tile] = sums[:, 1]
    return products, squares


def _near(
    geometry: Geometry, rows: Index, key_tiles: Blocks, threshold: float, n_threads: int | None
) -> tuple[Index, Index, Float64]:
    """All pairs of the rows with value >= threshold: (position in rows, key, value)."""
    n_keys = len(key_tiles.order)
    key_start = np.append(np.arange(0, n_keys, _KEYS_PER_CELL), n_keys).astype(np.int64)
    some = geometry._replace(
        queries=np.ascontiguousarray(geometry.queries[rows]),
        query_shift=geometry.query_shift[rows],
    )
    every_row = np.arange(len(rows), dtype=np.int32)
    position, cols, values = [], [], []
    for first, last in pairwise(key_start):
        cell = Tiling(
            every_row,
            key_tiles.order[first:last],
            np.array([0, len(rows)], np.int64),
            np.array([0, last - first], np.int64),
        )
        r, c, v = tile_hits(some, cell, threshold, FoundPairs.none(len(rows)), n_threads=n_threads)
        position.append(r)
        cols.append(c)
        values.append(v)
    return (
        np.concatenate(position).astype(np.int64),
        np.concatenate(cols).astype(np.int64),
        np.concatenate(values).astype(np.float64),
    )
