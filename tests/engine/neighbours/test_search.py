"""Tilings, on points whose near pairs are known by construction."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import problem_of
from search_cases import (
    N_PILOT_ROWS,
    THRESHOLD,
    WITHIN_RADIUS,
    case,
    check_found,
    everyone,
    held,
    search_of,
    without,
)

from approxkmv.engine.neighbours import search as near
from approxkmv.engine.neighbours.expand import expand
from approxkmv.engine.neighbours.isolated import search_isolated
from approxkmv.engine.neighbours.missing import check_missing
from approxkmv.engine.neighbours.search import Search, cell_depth, diagonal
from approxkmv.engine.neighbours.whole import search_rows
from approxkmv.engine.survey.order import norm_order
from approxkmv.engine.survey.pilot import run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Sketches


@pytest.mark.parametrize("symmetric", [True, False])
def test_tilings_find_what_is_within_the_radius(symmetric: bool) -> None:
    """A cut parts a pair of points 0.8 apart among centres 8 apart with probability about
    0.8 / 8 / pi = 0.03. Sixteen cells take four cuts, so six tilings miss a pair by 0.13^6; what is
    missed lies beyond the radius. One tiling finds less, and never a pair that is not near."""
    groups = case(symmetric=symmetric)
    assert (groups.pilot.threshold, len(groups.pilot.rows)) == (THRESHOLD, N_PILOT_ROWS)
    shares = []
    for n_tilings in (1, 6):
        search = search_of(groups)
        search.tilings(n_tilings, *everyone(groups))
        assert search.n_tilings == n_tilings
        assert search.pairs > 0
        check_found(groups, search.found)
        shares.append(held(groups, search.found).mean())
    assert shares[0] < shares[1]
    assert shares[1] >= WITHIN_RADIUS


@pytest.mark.parametrize("symmetric", [True, False])
def test_share_found(symmetric: bool) -> None:
    """Of the pilot rows' near pairs, about as much as of all; without tilings nothing."""
    groups = case(symmetric=symmetric)
    search = search_of(groups)
    search.tilings(0, *everyone(groups))
    assert search.share_found() == search.n_tilings == 0
    search.tilings(1, *everyone(groups))
    share = held(groups, search.found).mean()
    of_pilot = np.isin(groups.rows, groups.pilot.rows)
    assert search.share_found() == pytest.approx(held(groups, search.found)[of_pilot].mean())
    assert 0 < search.share_found() < 1
    assert abs(search.share_found() - share) < 0.1
    search.found = without(groups, search, np.zeros(len(groups.rows), np.bool_))
    assert search.share_found() == 1


def test_what_one_point_has_found_the_other_has() -> None:
    """Where queries are keys: tilings, isolated points, neighbours, the check, whole rows."""
    groups = case(symmetric=True)
    search = search_of(groups)
    problem = problem_of(groups.kernel, np.ones(4096))
    rate = np.full((len(groups.query_blocks.sizes), len(groups.key_tiles.sizes)), 1e-3)
    steps = (
        lambda: search.tilings(1, *search.everywhere),
        lambda: search_isolated(search),
        lambda: expand(search),
        lambda: check_missing(search, problem, rate, None),
        lambda: search_rows(search, np.arange(5, dtype=np.int32), 1e-3),
    )
    for step in steps:
        step()
        rows, cols = search.found.rows, search.found.cols
        pairs = {*zip(rows.tolist(), cols.tolist(), strict=True)}
        assert len(pairs) > 4096
        assert pairs == {(col, row) for row, col in pairs}


def test_cells_are_cut_at_medians_of_the_larger_side() -> None:
    """As many points of it in every cell, whichever side it is."""
    rng = np.random.default_rng(0)
    many, few = (rng.standard_normal((n, 5)).astype(np.float32) for n in (4096, 100))
    directions = rng.standard_normal((5, 4)).astype(np.float32)
    radius = np.ones(4096, np.float32)
    numbers = np.arange(4096, dtype=np.int32)
    of_queries = near._tiling(
        Sketches(few, numbers[:100], radius[:100], many, numbers), directions, Compiled(1)
    )
    of_keys = near._tiling(
        Sketches(many, numbers, radius, few, numbers[:100]), directions, Compiled(1)
    )
    assert (np.diff(of_queries.key_start) == 256).all()
    assert (np.diff(of_keys.query_start) == 256).all()
    np.testing.assert_array_equal(of_queries.query_order, of_keys.key_order)
    np.testing.assert_array_equal(of_queries.query_start, of_keys.key_start)
    np.testing.assert_array_equal(of_queries.key_order, of_keys.query_order)


@pytest.mark.parametrize("n_groups", [3, 40, 64])
def test_equal_points_meet_in_a_tiling(n_groups: int) -> None:
    """Sketches of equal points are equal: their distance, worked out from inner products, is 0 but
    for rounding, and so is the radius. A tiling finds every pair that shares a cell: with few cuts
    nearly all, and the neighbours the others."""
    n = 2000
    points = np.eye(64)[np.random.default_rng(0).integers(n_groups, size=n)]
    kernel = prepare(points, points, 0.2828, backend=Compiled(1))
    blocks, tiles = norm_order(kernel.geometry, 512, 512)
    pilot = run_pilot(
        kernel,
        np.ones(n),
        blocks,
        tiles,
        rows_per_block=3,
        threshold=0.5,
        most_near=None,
        rng=np.random.default_rng(1),
    )
    equal = points @ points.T > 0.5
    for seed in range(5):
        search = Search(kernel, pilot, np.random.default_rng(seed))
        search.tilings(3, *search.everywhere)
        expand(search)
        got = np.zeros((n, n), np.bool_)
        got[search.found.rows, search.found.cols] = True
        np.testing.assert_array_equal(got, equal)


def test_only_the_points_asked_for_are_searched() -> None:
    groups = case(symmetric=False)
    search = search_of(groups)
    queries, keys = everyone(groups)
    search.tilings(2, queries[:1000].copy(), keys[500:3000].copy())
    assert len(search.found.cols) > 1000
    assert np.isin(search.found.rows, queries[:1000]).all()
    assert np.isin(search.found.cols, keys[500:3000]).all()


def test_bits_do_not_depend_on_threads() -> None:
    groups = case()
    results = []
    for n_threads in (1, 2, 7):
        search = search_of(groups, 3, n_threads)
        search.tilings(2, *everyone(groups))
        search_isolated(search)
        expand(search)
        results.append(search.found)
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(left, right)


def test_diagonal() -> None:
    """Known without search where the queries are the keys, and only there."""
    pairs = diagonal(5)
    np.testing.assert_array_equal(pairs.rows, pairs.cols)
    np.testing.assert_array_equal(pairs.cols, np.arange(5))
    assert (pairs.values == 1).all()
    assert len(search_of(case()).found.cols) == 4096
    assert len(search_of(case(symmetric=False)).found.cols) == 0


def test_cells_grow_with_the_square_root_up_to_1024_keys() -> None:
    sizes = {0: 0, 1: 1, 32: 32, 2048: 256, 32_768: 1024, 65_536: 1024, 2**21: 1024}
    assert {n: n >> cell_depth(n) for n in sizes} == sizes
