from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered

from approxkmv.engine import near
from approxkmv.engine.near import NewPairs, diagonal, search_neighbours, search_tilings
from approxkmv.leaves import FoundPairs, merge_pairs

THRESHOLD = 0.02


def case_of(dtype: Any, differences: bool = False) -> Case:
    """Sixteen cells of keys; about eleven near keys of each query."""
    return clustered(1500, 2048, 12, dtype=dtype, differences=differences)


def tilings(case: Case, found: FoundPairs, n: int, seed: int = 0, n_threads: int = 2) -> NewPairs:
    return search_tilings(
        case.geometry,
        found,
        n,
        threshold=THRESHOLD,
        rng=np.random.default_rng(seed),
        n_threads=n_threads,
    )


def neighbours(case: Case, found: FoundPairs) -> NewPairs:
    return search_neighbours(case.geometry, case.bandwidth, found, threshold=THRESHOLD, n_threads=2)


def check_true(case: Case, new: NewPairs, found: FoundPairs, dtype: Any) -> None:
    """Pairs are near, up to rounding at the threshold; values are right; none was known."""
    error = case.rounding(dtype) + 8 * float(np.finfo(np.float32).eps)  # values in float32
    true = case.K[new.rows, new.cols]
    assert (true >= THRESHOLD * (1 - error)).all()
    np.testing.assert_allclose(new.values, true, rtol=error)
    known = {*zip(found.rows.tolist(), found.cols.tolist(), strict=True)}
    assert known.isdisjoint(zip(new.rows.tolist(), new.cols.tolist(), strict=True))


@pytest.mark.parametrize("differences", [False, True])
def test_found_pairs_are_near_and_recall_rises(dtype: Any, differences: bool) -> None:
    """Every tiling adds true pairs; neighbours add more. Six tilings find more than 70 % of
    all near pairs here, one tiling does not; no search lists a pair that is known."""
    case = case_of(dtype, differences)
    n_near = (case.K >= THRESHOLD).sum()
    found, recall = FoundPairs.none(1500), [0.0]
    for seed in range(6):
        new = tilings(case, found, 1, seed)
        check_true(case, new, found, dtype)
        found = merge_pairs(found, *new)
        recall.append(len(found.cols) / n_near)
    assert (np.diff(recall) > 0).all()
    assert recall[1] < 0.7 < recall[-1]
    new = neighbours(case, found)
    check_true(case, new, found, dtype)
    found = merge_pairs(found, *new)
    assert recall[-1] < len(found.cols) / n_near <= 1


def test_one_cell_finds_all() -> None:
    """With few keys there is a single cell: the search is exact."""
    case = clustered(200, 128)
    new = tilings(case, FoundPairs.none(200), 1)
    assert {*zip(new.rows, new.cols, strict=True)} == {
        *zip(*(case.K >= THRESHOLD).nonzero(), strict=True)
    }


def test_several_tilings_at_once_are_the_same_as_one_by_one() -> None:
    """One call with three tilings draws what three calls draw from one generator."""
    case = case_of(np.float32)
    found = FoundPairs.none(1500)
    at_once = merge_pairs(found, *tilings(case, found, 3))
    rng = np.random.default_rng(0)
    one_by_one = found
    for _ in range(3):
        new = search_tilings(
            case.geometry, one_by_one, 1, threshold=THRESHOLD, rng=rng, n_threads=1
        )
        one_by_one = merge_pairs(one_by_one, *new)
    for left, right in zip(at_once, one_by_one, strict=True):
        np.testing.assert_array_equal(left, right)


def test_searches_do_not_depend_on_threads() -> None:
    case, none = case_of(np.float32), FoundPairs.none(1500)
    first = merge_pairs(none, *tilings(case, none, 2, n_threads=1))
    for n_threads in (2, 3, 7):
        again = merge_pairs(none, *tilings(case, none, 2, n_threads=n_threads))
        for left, right in zip(first, again, strict=True):
            np.testing.assert_array_equal(left, right)


def test_diagonal() -> None:
    pairs = diagonal(5)
    np.testing.assert_array_equal(pairs.rows, pairs.cols)
    np.testing.assert_array_equal(pairs.cols, np.arange(5))
    assert (pairs.values == 1).all()


def test_queries_of_keys() -> None:
    """The transposed list, without pairs too weak to lead on."""
    case = clustered()
    found = case.pairs(0.01)
    indptr, queries = near._queries_of_keys(found, 400)
    leading = case.K.astype(np.float32) >= np.float32(near._LEADING_VALUE)
    for key in range(400):
        np.testing.assert_array_equal(
            queries[indptr[key] : indptr[key + 1]], leading[:, key].nonzero()[0]
        )
