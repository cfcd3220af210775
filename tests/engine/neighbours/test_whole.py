"""Rows and columns compared in full."""

from __future__ import annotations

import numpy as np
import pytest
from search_cases import THRESHOLD, case, held, search_of

from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.neighbours.whole import search_columns, search_rows


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
    search_rows(search, some, THRESHOLD)
    check(search, of_queries | (of_keys & symmetric))
    if not symmetric:
        search = search_of(groups)
        search_columns(search, some, THRESHOLD)
        check(search, of_keys)
    search = search_of(groups)
    search_rows(search, np.arange(4096, dtype=np.int32), 0.4)
    clear = np.abs(groups.values - 0.4) > 1e-3  # but for rounding
    wanted = groups.values >= 0.4
    np.testing.assert_array_equal(held(groups, search.found)[clear], wanted[clear])
    assert 0 < wanted.sum() < len(wanted)
