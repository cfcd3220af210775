"""Isolated points find the partners that they lack, and only they are searched again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from search_cases import WITHIN_RADIUS, case, check_found, everyone, held, search_of, without

from approxkmv.engine.neighbours import isolated
from approxkmv.engine.neighbours.expand import expand
from approxkmv.engine.neighbours.isolated import counts, search_isolated
from approxkmv.engine.neighbours.search import Search, cell_depth
from approxkmv.loops.types import NewPairs, Sketches


def test_isolated_queries_find_their_partners() -> None:
    """Forty queries that found none of their partners find all within the radius, and are found by
    them; nothing else changes."""
    groups = case()
    search = search_of(groups)
    lonely = np.random.default_rng(5).choice(4096, 40, replace=False)
    lost = np.isin(groups.rows, lonely) | np.isin(groups.cols, lonely)
    search.found = without(groups, search, lost)
    assert held(groups, search.found)[~lost].all()
    assert not held(groups, search.found)[lost].any()
    assert search_isolated(search)
    check_found(groups, search.found)
    assert held(groups, search.found)[lost].mean() >= WITHIN_RADIUS
    assert held(groups, search.found)[~lost].all()
    assert search.pairs > 0
    assert search.n_tilings == 0


@pytest.mark.parametrize("scanned", [True, False])
def test_isolated_keys_find_their_partners(scanned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where queries are not keys, a key that no query found is looked for by all queries: without
    cells, or in cells cut at medians of the queries."""
    groups = case(symmetric=False)
    search = search_of(groups)
    lonely = np.random.default_rng(5).choice(4096, 40, replace=False)
    lost = np.isin(groups.cols, lonely)
    search.found = without(groups, search, lost)
    if scanned:
        monkeypatch.setattr(Search, "in_cells", None)
    else:
        monkeypatch.setattr(isolated, "_MOST_SCANNED", 0)
    assert search_isolated(search)
    check_found(groups, search.found)
    found = held(groups, search.found)[lost].mean()
    # In cells those that have found three of seven partners have enough.
    assert found >= (WITHIN_RADIUS if scanned else 0.5)
    of_key = np.bincount(groups.cols[held(groups, search.found)], minlength=4096)
    assert (of_key[lonely] >= 3).mean() >= 0.9


def test_few_points_look_for_partners_in_large_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer comparisons than without cells; cells are the larger the fewer points there are."""
    groups = case()
    monkeypatch.setattr(isolated, "_MOST_SCANNED", 0)
    depths = []
    in_cells = Search.in_cells

    def noted(search: Search, points: Sketches, depth: int) -> NewPairs:
        depths.append((len(points.queries), depth))
        return in_cells(search, points, depth)

    monkeypatch.setattr(Search, "in_cells", noted)
    for n_lonely in (2000, 300):
        lonely = np.random.default_rng(5).choice(4096, n_lonely, replace=False)
        lost = np.isin(groups.rows, lonely)
        search = search_of(groups)
        search.found = without(groups, search, lost)
        assert search_isolated(search)
        check_found(groups, search.found)
        assert 0 < search.pairs < 6 * n_lonely * 4096 * search.sketch_dims / 32
    first = {n: depth for n, depth in depths if n in (2000, 300)}
    assert first == {2000: cell_depth(4096), 300: cell_depth(4096) - 2}


def test_in_the_end_only_points_without_a_partner_are_isolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three tilings for all that lack partners, one more for those that found none, if there are
    too many for a comparison with all."""
    groups = case()
    monkeypatch.setattr(isolated, "_MOST_SCANNED", 0)
    tried = []

    def nothing(_: Search, points: Sketches) -> NewPairs:
        tried.append(len(points.queries))
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)

    monkeypatch.setattr(isolated, "_partners", nothing)
    search = search_of(groups)
    # Fifty queries without a partner, and forty with two each.
    lost = groups.rows < 50
    for query in range(50, 90):
        lost[np.flatnonzero(groups.rows == query)[2:]] = True
    search.found = without(groups, search, lost)
    assert search_isolated(search)
    assert tried == [90, 90, 90, 50]


def test_points_that_may_have_no_partner_are_not_isolated() -> None:
    """Where one pilot row in ten has no near pair, having found none says nothing."""
    groups = case()
    pilot = groups.pilot
    kept = pilot.near_row % 10 != 0
    parts = {
        name: getattr(pilot, name)[kept]
        for name in ("near_row", "near_col", "near_square", "near_weight")
    }
    search = search_of(replace(groups, pilot=replace(pilot, **parts)))
    assert not search_isolated(search)
    assert search.pairs == 0
    assert len(search.found.cols) == 4096


def test_few_tilings_and_neighbours_leave_nobody_alone() -> None:
    """After two tilings some points lack all of their partners, and would so after neighbours."""
    groups = case()
    lacking = []
    for searched in (False, True):
        search = search_of(groups)
        search.tilings(2, *everyone(groups))
        if searched:
            assert search_isolated(search)
        expand(search)
        lacking.append(np.bincount(groups.rows[~held(groups, search.found)], minlength=4096))
        check_found(groups, search.found)
    assert 5 <= (lacking[0] > 3).sum() <= 0.02 * 4096
    assert (lacking[1] > 3).sum() <= 0.2 * (lacking[0] > 3).sum()


def test_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same whether all are counted at once or a few at a time."""
    numbers = np.random.default_rng(0).integers(0, 7, 1000).astype(np.int32)
    for at_once in (10, 10_000):
        monkeypatch.setattr(isolated, "_COUNTED", at_once)
        np.testing.assert_array_equal(counts(numbers, 9), np.bincount(numbers, minlength=9))
        assert counts(numbers[:0], 3).tolist() == [0, 0, 0]
