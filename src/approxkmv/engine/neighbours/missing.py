"""Squared error of the near pairs that were not found, estimated by one tiling more."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from approxkmv.engine.neighbours.search import Search, cell_depth
from approxkmv.engine.problem import Problem
from approxkmv.engine.statistics import sums_by_block
from approxkmv.engine.survey.control_variate import Polynomial
from approxkmv.engine.survey.pilot import Pilot, row_squares
from approxkmv.loops.types import Array, Float64, FoundPairs, NewPairs

# One query in this many is checked; all of them if there are few.
_CHECKED, _CHECKED_ALL = 4, 16_384
# Draws of a smaller probability may miss a pair without a trace.
_SELDOM = 0.1


class Missing(NamedTuple):
    """Squared error of what was not found."""

    expected: float
    at_most: float
    looked_at: float = 0.0  # share of all pairs among which it was looked for, where that counts


def check_missing(
    search: Search, problem: Problem, rate: Float64, polynomial: Polynomial | None
) -> Missing:
    """Squared error of leaving out the near pairs not found, or what the polynomial leaves of them.

    A tiling more, for one query in a few: it shows a near pair with the probability p with
    which the first one showed the pairs now known, so that for each new pair there are
    (1 - p) / p that stay unseen. Pairs of one query are added with their signs first. Pairs
    that the rates draw often enough show in the variance, and do not count here. What the tiling
    meets is found from then on.

    To have met none does not mean there is none. The estimate reckons with half a pair more
    than was met, the mean of a rate whose count is known; the limit reckons with one more, and
    with one value just below the threshold in every row for which the pilot cannot exclude it.
    """
    pilot, row_norms = search.pilot, problem.row_norms
    n_queries = problem.n_queries
    one_in = 1 if n_queries <= _CHECKED_ALL else _CHECKED
    met = _one_tiling_more(search, one_in)
    rows, cols, values = met
    search.add(met)
    block, tile = pilot.query_blocks.block_of[rows], pilot.key_tiles.block_of[cols]
    left: Array = values
    near_square = pilot.near_square
    if polynomial is not None:
        left = polynomial.left_of(problem.kernel.geometry, block, tile, (rows, cols, values))
        near_square = polynomial.near_square
    near_square = problem.weighed(near_square, pilot.rows[pilot.near_row])
    seldom = rate[block, tile] * row_norms[cols] < _SELDOM
    lacking = row_squares(rows[seldom], left[seldom], problem.x[cols[seldom]], n_queries)
    lacking = problem.weighed(lacking)
    p = _share_shown(search)
    factor = one_in * (1 - p) / p
    share = _drawn_seldom(pilot, row_norms, rate)
    one_pair = share * factor * pilot.square_of_a_pair(row_norms, near_square)
    expected = factor * float(lacking.sum()) + 0.5 * one_pair
    below = share * problem.mean_weight * pilot.unseen_below(row_norms)
    return Missing(expected, expected + 0.5 * one_pair + below)


def missing_in_rows(pilot: Pilot, found: FoundPairs, problem: Problem, rate: Float64) -> Missing:
    """The same from the pilot rows alone, without a search.

    They show a near pair that is neither found nor drawn often enough in proportion to the rows
    they stand for. As above half a pair more than was met is reckoned with, and one in the limit.
    """
    seldom = pilot.missed(found)
    block = pilot.block_of[pilot.near_row]
    tile = pilot.key_tiles.block_of[pilot.near_col]
    seldom &= rate[block, tile] * pilot.near_weight < _SELDOM
    rows, values = pilot.near_row[seldom], np.sqrt(pilot.near_square[seldom])
    lacking = row_squares(rows, values, problem.x[pilot.near_col[seldom]], len(pilot.rows))
    lacking = problem.weighed(lacking, pilot.rows)
    near_square = problem.weighed(pilot.near_square, pilot.rows[pilot.near_row])
    share = _drawn_seldom(pilot, problem.row_norms, rate)
    one_row = share * float(pilot.stands_for.max())
    one_pair = one_row * pilot.square_of_a_pair(problem.row_norms, near_square)
    expected = float(pilot.stands_for @ lacking) + 0.5 * one_pair
    below = share * problem.mean_weight * pilot.unseen_below(problem.row_norms)
    looked_at = len(pilot.rows) / problem.n_queries
    return Missing(expected, expected + 0.5 * one_pair + below, looked_at)


def _one_tiling_more(search: Search, one_in: int) -> NewPairs:
    """New pairs of some queries."""
    queries, keys = search.everywhere
    some = queries[int(search.rng.integers(one_in)) :: one_in].copy()
    return search.in_cells(search.sketches(some, keys), cell_depth(len(keys)))


def _share_shown(search: Search) -> float:
    """Share of the near pairs that one tiling shows."""
    known = search.known_squares()
    if known > 0 and search.n_tilings > 0:
        return min(0.9, max(0.05, search.first_squares / known))
    return 0.5


def _drawn_seldom(pilot: Pilot, row_norms: Array, rate: Float64) -> float:
    """Share of all pairs that the draws do not show."""
    tiles, sizes = pilot.key_tiles, pilot.query_blocks.sizes
    mean_norm = sums_by_block(row_norms, tiles.block_of, len(tiles.sizes)) / tiles.sizes
    n_pairs = np.outer(sizes, tiles.sizes)
    return float(n_pairs[rate * mean_norm < _SELDOM].sum() / n_pairs.sum())
