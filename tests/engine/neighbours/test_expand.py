"""Neighbours of neighbours, from queries and from keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from search_cases import case, check_found, everyone, held, search_of

from approxkmv.engine.neighbours.expand import _WIDTH, expand
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import FoundPairs, NewPairs


@pytest.mark.parametrize("symmetric", [True, False])
def test_neighbours_find_the_rest(symmetric: bool) -> None:
    """In a group of eight two points that miss each other share other partners: of the pairs missed
    by two tilings at most a tenth is left. Neighbours of nothing are nothing."""
    groups = case(symmetric=symmetric)
    search = search_of(groups)
    expand(search)
    assert not held(groups, search.found).any()
    search.tilings(2, *everyone(groups))
    before = held(groups, search.found)
    expand(search)
    after = held(groups, search.found)
    check_found(groups, search.found)
    assert (after >= before).all()
    assert (~before).any()
    assert (~after).sum() <= 0.1 * (~before).sum()


def test_keys_are_asked_every_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All points of a side, in the order of cells as soon as there are any."""
    ways, orders = [], []
    passed = Compiled.neighbours_of_neighbours

    def noted(*args: Any, of_keys: bool, point_order: np.ndarray, **options: Any) -> NewPairs:
        ways.append(of_keys)
        orders.append(point_order)
        return passed(*args, of_keys=of_keys, point_order=point_order, **options)

    monkeypatch.setattr(Compiled, "neighbours_of_neighbours", noted)
    groups = case(symmetric=False)
    search = search_of(groups)
    expand(search)
    search.tilings(1, *search.everywhere)
    for _ in range(3):
        expand(search)
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
    options: dict[str, Any] = {"least": 0.05, "width": _WIDTH, "threshold": 0.5}
    from_queries = Compiled().neighbours_of_neighbours(points, points.copy(), 1.0, found, **options)
    from_keys = Compiled().neighbours_of_neighbours(
        points, points.copy(), 1.0, found, of_keys=True, **options
    )
    assert len(from_queries[0]) == 0
    met = {*zip(from_keys[0].tolist(), from_keys[1].tolist(), strict=True)}
    assert met == {*map(tuple, np.argwhere(near_pairs & ~known).tolist())}
