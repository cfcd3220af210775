"""A few whole rows of each block, exactly: what the tiles of the matrix look like.

The rows serve three times: their squared values estimate the variance of draws, tile by tile; their
near pairs tell how much the search for near pairs has missed; their products, computed exactly,
check the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.engine.statistics import sums_by_block
from approxkmv.engine.survey.order import Blocks
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float32, Float64, FoundPairs, Index, Index32

# More near pairs than this would cost more to list than they save.
_MOST_NEAR_PER_ROW = 48
_ROWS_FOR_THRESHOLD, _KEYS_FOR_THRESHOLD = 16, 2**15


@dataclass(frozen=True, eq=False)
class Pilot:
    """Rows drawn from each block of queries, with all their keys."""

    rows: Index  # original numbers, ascending within a block
    block_of: Index  # block of each row
    stands_for: Float64  # how many rows each row stands for
    light: Float64  # (n_rows, n_tiles) sums of K^2 |x| over the tile's keys that are not near
    near_weight: Float64  # |x| of each near pair's key
    tile_weight: Float64  # (n_tiles,) sums of |x|
    near_row: Index  # near pairs of the rows, by position in `rows`
    near_col: Index
    near_square: Float64  # K^2 of each near pair
    threshold: float  # from which value on a pair counts as near
    least_threshold: float  # the same before it was raised because too many pairs were near
    query_blocks: Blocks
    key_tiles: Blocks
    symmetric: bool  # the queries are the keys
    products: Float64 | None = None  # (n_rows,) with one column
    powers: Float64 | None = None  # (n_tiles, n_rows, 8) for `fit_polynomial`, without near pairs

    @property
    def n_blocks(self) -> int:
        """Number of blocks of queries."""
        return len(self.query_blocks.sizes)

    @property
    def apart(self) -> npt.NDArray[np.bool_]:
        """Which near pairs are of two points."""
        if not self.symmetric:
            return np.ones(len(self.near_row), np.bool_)
        return np.asarray(self.rows[self.near_row] != self.near_col)

    def per_pair(self, sums: Float64) -> Float64:
        """Mean over the pairs of each block and tile, from sums (n_rows, n_tiles) of the rows.

        Weighed with |x|: draws in proportion to |x| have a variance in proportion to K^2 |x|.
        """
        total = np.zeros((self.n_blocks, sums.shape[1]))
        np.add.at(total, self.block_of, sums)
        n_rows = np.bincount(self.block_of, minlength=self.n_blocks)
        weight = n_rows[:, None] * self.tile_weight
        return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)

    def known(self) -> FoundPairs:
        """The pairs known without a search: where the queries are the keys, each with itself."""
        n = len(self.query_blocks.order)
        if not self.symmetric:
            return FoundPairs.none(n)
        return FoundPairs(
            np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n, np.float32)
        )

    def missed(self, found: FoundPairs) -> npt.NDArray[np.bool_]:
        """Which near pairs of the rows the search has not found."""
        n_keys = len(self.key_tiles.order)
        lengths = found.indptr[self.rows + 1] - found.indptr[self.rows]
        row = np.repeat(np.arange(len(self.rows)), lengths)
        within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        col = found.cols[found.indptr[self.rows][row] + within]
        return ~np.isin(self.near_row * n_keys + self.near_col, row * n_keys + col)

    def near_sums(self, chosen: npt.NDArray[np.bool_], near_square: Float64) -> Float64:
        """Sums (n_rows, n_tiles) of such squares, times |x|, over some of the near pairs."""
        sums = np.zeros_like(self.light)
        tile = self.key_tiles.block_of[self.near_col[chosen]]
        mass = near_square * self.near_weight
        np.add.at(sums, (self.near_row[chosen], tile), mass[chosen])
        return sums

    def square_of_a_pair(self, size: Array, near_square: Float64) -> float:
        """Mean of such squares over near pairs of the rows, weighed by themselves, times |x|^2."""
        mean_square = float(np.square(size, dtype=np.float64).mean())
        squares = near_square[self.apart]
        total = float(squares.sum())
        if not total > 0:  # as small as a near pair can be
            return self.least_threshold**2 * mean_square
        return float(np.square(squares).sum()) / total * mean_square

    def unseen_below(self, size: Array) -> float:
        """Squared error of one value just below the threshold in some of the rows.

        In as many as there may be, at confidence 0.95, when no pilot row had it: the rule of three.
        """
        share = min(1.0, 3 / len(self.rows))
        return share * self.least_threshold**2 * float(np.square(size, dtype=np.float64).sum())


def run_pilot(
    kernel: KernelMatrix,
    row_norms: Array,
    query_blocks: Blocks,
    key_tiles: Blocks,
    *,
    rows_per_block: int,
    strata: Blocks | None = None,
    threshold: float,
    most_near: int | None = _MOST_NEAR_PER_ROW,
    column: Array | None = None,
    rng: np.random.Generator,
) -> Pilot:
    """Evaluate ``rows_per_block`` random rows of every block against all keys.

    ``row_norms`` are the lengths of the rows of x; with ``column``, the only column of x, the
    products of the rows and what it takes to fit a polynomial are computed, too. With ``strata``
    so many rows of each of these are drawn instead.

    The threshold is raised where more pairs of a row would reach it than ``most_near``.
    """
    strata = query_blocks if strata is None else strata
    rows, least_threshold = _random_rows(strata, rows_per_block, rng), threshold
    if most_near is not None:
        threshold = _seldom_reached(kernel, rows, key_tiles, row_norms, threshold, most_near)
    sums = kernel.backend.pilot_rows(
        kernel.geometry, rows, key_tiles.order, key_tiles.start, row_norms, threshold, column
    )
    near_row, near_col = sums.near_row.astype(np.int64), sums.near_col.astype(np.int64)
    near_square = sums.near_value.astype(np.float64) ** 2
    near_weight = row_norms[near_col].astype(np.float64)
    squares = np.ascontiguousarray(sums.squares.T)
    near_sums = np.zeros_like(squares)
    np.add.at(near_sums, (near_row, key_tiles.block_of[near_col]), near_square * near_weight)
    stratum_of = strata.block_of[rows]
    rows_of = np.bincount(stratum_of, minlength=len(strata.sizes))
    return Pilot(
        rows=rows.astype(np.int64),
        block_of=query_blocks.block_of[rows].astype(np.int64),
        stands_for=(strata.sizes / rows_of)[stratum_of],
        # Both sums are rounded: the difference may fall below zero by a rounding error.
        light=np.maximum(squares - near_sums, 0.0),
        near_weight=near_weight,
        tile_weight=sums_by_block(row_norms, key_tiles.block_of, len(key_tiles.sizes)),
        near_row=near_row,
        near_col=near_col,
        near_square=near_square,
        threshold=threshold,
        least_threshold=least_threshold,
        query_blocks=query_blocks,
        key_tiles=key_tiles,
        symmetric=kernel.queries is kernel.keys,
        products=sums.products,
        powers=sums.powers,
    )


def _random_rows(blocks: Blocks, rows_per_block: int, rng: np.random.Generator) -> Index32:
    """Rows of each block, by original number, in the order of the block."""
    places = [
        first + np.sort(rng.choice(n, min(rows_per_block, n), replace=False))
        for first, n in zip(blocks.start[:-1], blocks.sizes, strict=True)
    ]
    return np.asarray(blocks.order[np.concatenate(places)])


def _seldom_reached(
    kernel: KernelMatrix,
    rows: Index32,
    key_tiles: Blocks,
    row_norms: Array,
    threshold: float,
    most_near: int,
) -> float:
    """The threshold, or one that at most ``most_near`` pairs of a row reach: tried on some keys."""
    order = key_tiles.order
    some = rows[:: max(1, len(rows) // _ROWS_FOR_THRESHOLD)].copy()
    one_in = max(1, len(order) // _KEYS_FOR_THRESHOLD)
    probed = order[one_in // 2 :: one_in].copy()
    parts = np.linspace(0, len(probed), 17).astype(np.int64)
    backend = kernel.checked(None).backend
    seen = backend.pilot_rows(kernel.geometry, some, probed, parts, row_norms, threshold)
    return _raised(threshold, seen.near_value, most_near * len(some) // one_in)


def _raised(threshold: float, near: Float32, most: int) -> float:
    """The threshold, or a higher one that at most ``most`` values reach."""
    if len(near) <= most:
        return threshold
    threshold = float(np.partition(near, len(near) - most)[-most])
    # Repeated points: equal values by the million, just below the threshold from now on.
    return threshold * 1.001 if np.count_nonzero(near >= threshold) > 2 * most else threshold


def row_squares(rows: Index | Index32, values: Array, x: Array, n_rows: int) -> Float64:
    """Squared lengths of the rows of a sparse product; ``x`` has a row for each of its values."""
    squares = np.zeros(n_rows)
    for column in x.T:
        squares += np.square(np.bincount(rows, values * column.astype(np.float64), n_rows))
    return squares
