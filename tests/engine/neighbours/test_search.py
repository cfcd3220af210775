"""The search for near pairs, on points whose near pairs are known by construction."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from search_cases import BANDWIDTH, THRESHOLD, Groups, grouped

from approxkmv.engine.neighbours import search as near
from approxkmv.engine.neighbours.search import Search, cell_depth, diagonal
from approxkmv.engine.survey.order import norm_order
from approxkmv.engine.survey.pilot import run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import FoundPairs, NewPairs, Sketches

case = functools.cache(grouped)


def search_of(groups: Groups, seed: int = 0, n_threads: int | None = 1) -> Search:
    rng = np.random.default_rng(seed)
    g = groups
    return Search(g.geometry, BANDWIDTH, g.pilot, g.query_blocks, g.key_tiles, rng, n_threads)


def everyone(groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    if groups.pilot.symmetric:
        return groups.query_blocks.order, groups.query_blocks.order
    return groups.query_blocks.order, groups.key_tiles.order


def held(groups: Groups, found: FoundPairs) -> np.ndarray:
    """Which of the near pairs were found."""
    n_keys = len(groups.geometry.keys)
    return np.isin(groups.rows * n_keys + groups.cols, found.rows * n_keys + found.cols)


def check_found(groups: Groups, found: FoundPairs) -> None:
    """Near pairs only, each once, with their values; a point with itself where that is known."""
    n_keys = len(groups.geometry.keys)
    place = found.rows.astype(np.int64) * n_keys + found.cols
    assert (np.diff(place) > 0).all()
    wanted = dict(zip(groups.rows * n_keys + groups.cols, groups.values, strict=True))
    if groups.pilot.symmetric:
        wanted |= {i * (n_keys + 1): 1.0 for i in range(n_keys)}
    # Distances of 32 coordinates up to 5 in float32, over twice the squared bandwidth.
    rtol = 40 * 2.0**-24 * 3 / (2 * BANDWIDTH**2)
    true = np.array([wanted.get(p, 0.0) for p in place])
    assert (true >= THRESHOLD * (1 - rtol)).all()
    np.testing.assert_allclose(found.values, true, rtol=rtol)


# The radius takes in 0.95 of the near pairs' squares, as far as the pilot's rows can tell: these
# have 7 partners each, of which pairs of one row are as good as one in the worst case.
N_PILOT_ROWS = 16 * 6
WITHIN_RADIUS = 0.95 - 5 * math.sqrt(0.95 * 0.05 / N_PILOT_ROWS)


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


@pytest.mark.parametrize("symmetric", [True, False])
def test_neighbours_find_the_rest(symmetric: bool) -> None:
    """In a group of eight two points that miss each other share other partners: of the pairs missed
    by two tilings at most a tenth is left. Neighbours of nothing are nothing."""
    groups = case(symmetric=symmetric)
    search = search_of(groups)
    search.neighbours()
    assert not held(groups, search.found).any()
    search.tilings(2, *everyone(groups))
    before = held(groups, search.found)
    search.neighbours()
    after = held(groups, search.found)
    check_found(groups, search.found)
    assert (after >= before).all()
    assert (~before).any()
    assert (~after).sum() <= 0.1 * (~before).sum()


def without(groups: Groups, search: Search, lost: np.ndarray) -> FoundPairs:
    """All near pairs but those that are lost, as if a search had found them."""
    kept = [part[~lost] for part in (groups.rows, groups.cols, groups.values)]
    rows, cols, values = kept
    return Compiled().merge_pairs(
        search.found, rows.astype(np.int32), cols.astype(np.int32), values.astype(np.float32)
    )


def test_lone_queries_find_their_partners() -> None:
    """Forty queries that found none of their partners find all within the radius, and are found by
    them; nothing else changes."""
    groups = case()
    search = search_of(groups)
    lonely = np.random.default_rng(5).choice(4096, 40, replace=False)
    lost = np.isin(groups.rows, lonely) | np.isin(groups.cols, lonely)
    search.found = without(groups, search, lost)
    assert held(groups, search.found)[~lost].all()
    assert not held(groups, search.found)[lost].any()
    assert search.lone()
    check_found(groups, search.found)
    assert held(groups, search.found)[lost].mean() >= WITHIN_RADIUS
    assert held(groups, search.found)[~lost].all()
    assert search.pairs > 0
    assert search.n_tilings == 0


@pytest.mark.parametrize("scanned", [True, False])
def test_lone_keys_find_their_partners(scanned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where queries are not keys, a key that no query found is looked for by all queries: without
    cells, or in cells cut at medians of the queries."""
    groups = case(symmetric=False)
    search = search_of(groups)
    lonely = np.random.default_rng(5).choice(4096, 40, replace=False)
    lost = np.isin(groups.cols, lonely)
    search.found = without(groups, search, lost)
    if scanned:
        monkeypatch.setattr(Search, "_in_cells", None)
    else:
        monkeypatch.setattr(near, "_MOST_SCANNED", 0)
    assert search.lone()
    check_found(groups, search.found)
    found = held(groups, search.found)[lost].mean()
    # In cells those that have found three of seven partners have enough.
    assert found >= (WITHIN_RADIUS if scanned else 0.5)
    of_key = np.bincount(groups.cols[held(groups, search.found)], minlength=4096)
    assert (of_key[lonely] >= 3).mean() >= 0.9


def test_few_points_look_for_partners_in_large_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer comparisons than without cells; cells are the larger the fewer points there are."""
    groups = case()
    monkeypatch.setattr(near, "_MOST_SCANNED", 0)
    depths = []
    in_cells = Search._in_cells

    def noted(search: Search, points: Sketches, depth: int) -> NewPairs:
        depths.append((len(points.queries), depth))
        return in_cells(search, points, depth)

    monkeypatch.setattr(Search, "_in_cells", noted)
    for n_lonely in (2000, 300):
        lonely = np.random.default_rng(5).choice(4096, n_lonely, replace=False)
        lost = np.isin(groups.rows, lonely)
        search = search_of(groups)
        search.found = without(groups, search, lost)
        assert search.lone()
        check_found(groups, search.found)
        assert 0 < search.pairs < 6 * n_lonely * 4096 * search.sketch_dims / 32
    first = {n: depth for n, depth in depths if n in (2000, 300)}
    assert first == {2000: cell_depth(4096), 300: cell_depth(4096) - 2}


def test_in_the_end_only_points_without_a_partner_are_lone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three tilings for all that lack partners, one more for those that found none, if there are
    too many for a comparison with all."""
    groups = case()
    monkeypatch.setattr(near, "_MOST_SCANNED", 0)
    tried = []

    def nothing(_: Search, points: Sketches) -> NewPairs:
        tried.append(len(points.queries))
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)

    monkeypatch.setattr(Search, "_partners", nothing)
    search = search_of(groups)
    # Fifty queries without a partner, and forty with two each.
    lost = groups.rows < 50
    for query in range(50, 90):
        lost[np.flatnonzero(groups.rows == query)[2:]] = True
    search.found = without(groups, search, lost)
    assert search.lone()
    assert tried == [90, 90, 90, 50]


def test_points_that_may_have_no_partner_are_not_lone() -> None:
    """Where one pilot row in ten has no near pair, having found none says nothing."""
    groups = case()
    pilot = groups.pilot
    kept = pilot.near_row % 10 != 0
    parts = {
        name: getattr(pilot, name)[kept]
        for name in ("near_row", "near_col", "near_square", "near_weight")
    }
    search = search_of(replace(groups, pilot=replace(pilot, **parts)))
    assert not search.lone()
    assert search.pairs == 0
    assert len(search.found.cols) == 4096


def test_few_tilings_and_neighbours_leave_nobody_alone() -> None:
    """After two tilings some points lack all of their partners, and would so after neighbours."""
    groups = case()
    lacking = []
    for lone in (False, True):
        search = search_of(groups)
        search.tilings(2, *everyone(groups))
        if lone:
            assert search.lone()
        search.neighbours()
        lacking.append(np.bincount(groups.rows[~held(groups, search.found)], minlength=4096))
        check_found(groups, search.found)
    assert 5 <= (lacking[0] > 3).sum() <= 0.02 * 4096
    assert (lacking[1] > 3).sum() <= 0.2 * (lacking[0] > 3).sum()


def test_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same whether all are counted at once or a few at a time."""
    numbers = np.random.default_rng(0).integers(0, 7, 1000).astype(np.int32)
    for at_once in (10, 10_000):
        monkeypatch.setattr(near, "_COUNTED", at_once)
        np.testing.assert_array_equal(near.counts(numbers, 9), np.bincount(numbers, minlength=9))
        assert near.counts(numbers[:0], 3).tolist() == [0, 0, 0]


def test_what_one_point_has_found_the_other_has() -> None:
    """Where the queries are the keys: tilings, lone points, neighbours, the tiling that checks."""
    groups = case(symmetric=True)
    search = search_of(groups)
    x = np.ones((4096, 1))
    rate = np.full((len(groups.query_blocks.sizes), len(groups.key_tiles.sizes)), 1e-3)
    steps = (
        lambda: search.tilings(1, *search.everywhere),
        search.lone,
        search.neighbours,
        lambda: search.missing(x, x[:, 0], rate),
        lambda: search.whole_rows(np.arange(5, dtype=np.int32), 1e-3),
    )
    for step in steps:
        step()
        rows, cols = search.found.rows, search.found.cols
        pairs = {*zip(rows.tolist(), cols.tolist(), strict=True)}
        assert len(pairs) > 4096
        assert pairs == {(col, row) for row, col in pairs}


def test_keys_are_asked_every_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All points of a side, in the order of cells as soon as there are any."""
    ways, orders = [], []
    passed = near.neighbours_of_neighbours

    def noted(*args: Any, of_keys: bool, point_order: np.ndarray, **options: Any) -> NewPairs:
        ways.append(of_keys)
        orders.append(point_order)
        return passed(*args, of_keys=of_keys, point_order=point_order, **options)

    monkeypatch.setattr(near, "neighbours_of_neighbours", noted)
    groups = case(symmetric=False)
    search = search_of(groups)
    search.neighbours()
    search.tilings(1, *search.everywhere)
    for _ in range(3):
        search.neighbours()
    assert ways == [False, True, False, True]
    sides = search.everywhere
    for of_keys, order in zip(ways, orders, strict=True):
        np.testing.assert_array_equal(np.sort(order), np.sort(sides[of_keys]))
    np.testing.assert_array_equal(orders[1], search.by_cells[1])
    np.testing.assert_array_equal(orders[2], search.by_cells[0])
    assert (search.by_cells[0] != search.by_cells[1]).any()
    assert (orders[2] != sides[0]).any()
    assert (orders[1] != sides[1]).any()


def test_a_key_that_few_know_is_found_from_its_side() -> None:
    """In groups of sixteen queries and keys one key is known to the last query only. Queries look
    through the first few others they meet, and most do not meet that one."""
    n_groups, size = 50, 16
    centres = 100.0 * np.arange(n_groups)[:, None]
    points = np.repeat(centres, size, axis=0).astype(np.float32)
    near_pairs = np.kron(np.eye(n_groups), np.ones((size, size))).astype(bool)
    known = near_pairs.copy()
    last = size - 1 + size * np.arange(n_groups)
    known[:, last] = False
    known[last, last] = True
    cols = known.nonzero()[1]
    found = FoundPairs(
        np.concatenate([[0], np.cumsum(known.sum(axis=1))]),
        cols.astype(np.int32),
        np.ones(len(cols), np.float32),
    )
    options: dict[str, Any] = {"least": 0.05, "width": near._WIDTH, "threshold": 0.5}
    from_queries = near.neighbours_of_neighbours(points, points.copy(), 1.0, found, **options)
    from_keys = near.neighbours_of_neighbours(
        points, points.copy(), 1.0, found, of_keys=True, **options
    )
    assert len(from_queries[0]) == 0
    met = {*zip(from_keys[0].tolist(), from_keys[1].tolist(), strict=True)}
    assert met == {*map(tuple, np.argwhere(near_pairs & ~known).tolist())}


def test_cells_are_cut_at_medians_of_the_larger_side() -> None:
    """As many points of it in every cell, whichever side it is."""
    rng = np.random.default_rng(0)
    many, few = (rng.standard_normal((n, 5)).astype(np.float32) for n in (4096, 100))
    directions = rng.standard_normal((5, 4)).astype(np.float32)
    radius = np.ones(4096, np.float32)
    numbers = np.arange(4096, dtype=np.int32)
    of_queries = near._tiling(
        Sketches(few, numbers[:100], radius[:100], many, numbers), directions, 1
    )
    of_keys = near._tiling(Sketches(many, numbers, radius, few, numbers[:100]), directions, 1)
    assert (np.diff(of_queries.key_start) == 256).all()
    assert (np.diff(of_keys.query_start) == 256).all()
    np.testing.assert_array_equal(of_queries.query_order, of_keys.key_order)
    np.testing.assert_array_equal(of_queries.query_start, of_keys.key_start)
    np.testing.assert_array_equal(of_queries.key_order, of_keys.query_order)


@pytest.mark.parametrize("symmetric", [True, False])
def test_whole_rows_and_columns(symmetric: bool) -> None:
    """All near pairs of some queries, or of some keys, and no others; in both places if they are
    the same points. A higher threshold finds fewer."""
    groups = case(symmetric=symmetric)
    some = np.random.default_rng(6).choice(4096, 100, replace=False).astype(np.int32)
    of_queries, of_keys = (np.isin(index, some) for index in (groups.rows, groups.cols))
    n_known = 4096 if symmetric else 0  # each point with itself

    def check(search: Search, wanted: np.ndarray) -> None:
        np.testing.assert_array_equal(held(groups, search.found), wanted)
        assert len(search.found.cols) == n_known + wanted.sum()

    search = search_of(groups)
    search.whole_rows(some, THRESHOLD)
    check(search, of_queries | (of_keys & symmetric))
    if not symmetric:
        search = search_of(groups)
        search.whole_columns(some, THRESHOLD)
        check(search, of_keys)
    search = search_of(groups)
    search.whole_rows(np.arange(4096, dtype=np.int32), 0.4)
    clear = np.abs(groups.values - 0.4) > 1e-3  # but for rounding
    wanted = groups.values >= 0.4
    np.testing.assert_array_equal(held(groups, search.found)[clear], wanted[clear])
    assert 0 < wanted.sum() < len(wanted)


def test_missing_estimates_what_is_still_not_found() -> None:
    """Of the near pairs two in a hundred are lost at random; a tiling more meets some of them, and
    tells of those it does not meet: their squares, on average over seeds, within five standard
    errors and a tenth for rows that lost two. Pairs that are drawn often do not count."""
    groups = case()
    ones, shape = np.ones(4096, np.float32), (16, 16)
    off, truths = [], []
    for seed in range(12):
        search = search_of(groups, seed)
        search.tilings(1, *everyone(groups))
        lost = np.random.default_rng(seed).random(len(groups.rows)) < 0.02
        search.found = without(groups, search_of(groups), lost)
        missing = search.missing(ones[:, None], ones, np.zeros(shape))
        left = ~held(groups, search.found)
        lacking = np.bincount(groups.rows[left], groups.values[left], 4096)
        truths.append((lacking**2).sum())
        off.append(missing.expected - truths[-1])
        assert 0 < missing.expected < missing.at_most
    standard_error = np.std(off, ddof=1) / math.sqrt(12)
    assert abs(np.mean(off)) <= 5 * standard_error + 0.1 * np.mean(truths)
    assert standard_error < 0.2 * np.mean(truths)
    search = search_of(groups)
    search.tilings(1, *everyone(groups))
    often = search.missing(ones[:, None], ones, np.ones(shape))
    assert often == (0.0, 0.0)


def test_to_have_met_nothing_is_not_to_have_missed_nothing() -> None:
    """With every near pair found the estimate is half a pair, the limit one and what no pilot row
    can exclude: one value below the threshold in three of as many rows as there are."""
    groups = case()
    search = search_of(groups)
    search.found = without(groups, search_of(groups), np.zeros(len(groups.rows), np.bool_))
    ones, pilot = np.ones(4096, np.float32), search.pilot
    missing = search.missing(ones[:, None], ones, np.zeros((16, 16)))
    squares = pilot.near_square[pilot.apart]
    factor = 0.5 / 0.5  # without a tiling before it nothing says how much one shows
    pair = factor * (squares**2).sum() / squares.sum()
    assert missing.expected == pytest.approx(0.5 * pair)
    below = 3 / len(pilot.rows) * 4096 * pilot.least_threshold**2
    assert missing.at_most == pytest.approx(pair + below)


@pytest.mark.parametrize("n_groups", [3, 40, 64])
def test_equal_points_meet_in_a_tiling(n_groups: int) -> None:
    """Sketches of equal points are equal: their distance, worked out from inner products, is 0 but
    for rounding, and so is the radius. A tiling finds every pair that shares a cell: with few cuts
    nearly all, and the neighbours the others."""
    n = 2000
    points = np.eye(64)[np.random.default_rng(0).integers(n_groups, size=n)]
    kernel = prepare(points, points, 0.2828)
    blocks, tiles = norm_order(kernel.geometry, 512, 512)
    pilot = run_pilot(
        kernel.geometry,
        np.ones(n),
        blocks,
        tiles,
        rows_per_block=3,
        threshold=0.5,
        most_near=None,
        rng=np.random.default_rng(1),
        n_threads=1,
    )
    equal = points @ points.T > 0.5
    for seed in range(5):
        rng = np.random.default_rng(seed)
        search = Search(kernel.geometry, 0.2828, pilot, blocks, tiles, rng, 1)
        search.tilings(3, *search.everywhere)
        search.neighbours()
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
        search.lone()
        search.neighbours()
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


def test_missing_estimates_what_was_not_found() -> None:
    """After one tiling and the one that looks for missing pairs, hundreds of pairs are unfound.

    Members of a group are missed together, and a probability common to all pairs is too simple a
    picture: the estimate is asked to be within a factor of three of the truth. The limit reckons
    with one pair more. Pairs that are drawn often show in the variance, and do not count.
    """
    groups = case(symmetric=False)
    x = np.random.default_rng(1).standard_normal(len(groups.geometry.keys)).astype(np.float32)
    rate = np.zeros((len(groups.query_blocks.sizes), len(groups.key_tiles.sizes)))
    search = search_of(groups)
    search.tilings(1, *everyone(groups))
    missing = search.missing(x[:, None], np.abs(x), rate)
    lost = ~held(groups, search.found)
    assert lost.sum() > 100
    terms = np.bincount(groups.rows[lost], (groups.values * x[groups.cols])[lost])
    truth = float(np.square(terms).sum())
    assert truth / 3 <= missing.expected <= 3 * truth
    assert missing.at_most > missing.expected
    often = search_of(groups)
    often.tilings(1, *everyone(groups))
    assert often.missing(x[:, None], np.abs(x), rate + 1e9) == (0.0, 0.0)
