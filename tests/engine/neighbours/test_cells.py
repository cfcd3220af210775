"""Cells and links: what is found is near, everything found is right, and batches do not matter."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.engine.neighbours import cells as cells_module
from approxkmv.engine.neighbours.cells import Near, Search, make_cells, make_links, make_sketches
from approxkmv.kernel.matrix import KernelMatrix, gaussian_kernel, prepare
from approxkmv.loops.types import FoundPairs

BANDWIDTH, THRESHOLD = 2.1, 0.01


def clustered(n: int, seed: int = 0) -> np.ndarray:
    """Groups in 64 dimensions, near inside, far apart."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).standard_normal((256, 64))
    return (centres[rng.integers(0, 256, n)] + 0.35 * rng.standard_normal((n, 64))).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def search() -> tuple[Search, KernelMatrix]:
    keys = clustered(2048)
    kernel = prepare(keys, keys, BANDWIDTH)
    rng = np.random.default_rng(1)
    cells, nearest = make_cells(kernel, rng)
    pilot = gaussian_kernel(keys[:96], keys, BANDWIDTH)
    rows, cols = np.nonzero((pilot >= THRESHOLD) & (pilot < 1))
    sketches = make_sketches(kernel, Near(rows, cols, pilot[rows, cols]), rng)
    links = make_links(kernel, BANDWIDTH, cells, sketches, nearest, THRESHOLD)
    return Search(cells, sketches, THRESHOLD, links), kernel


def pairs(found: FoundPairs) -> set[tuple[int, int]]:
    return set(zip(found.rows.tolist(), found.cols.tolist(), strict=True))


def test_every_key_lies_in_one_cell(search: tuple[Search, KernelMatrix]) -> None:
    cells = search[0].cells
    np.testing.assert_array_equal(np.sort(cells.key_order), np.arange(2048))
    assert cells.key_start[0] == 0
    assert cells.key_start[-1] == 2048
    assert (cells.sizes >= 0).all()


def test_links_go_both_ways(search: tuple[Search, KernelMatrix]) -> None:
    links = pairs(search[0].links)
    assert links == {(b, a) for a, b in links}
    assert {(i, i) for i in range(2048)} <= links


def test_found_pairs_are_near_and_hardly_any_is_missed(search: tuple[Search, KernelMatrix]) -> None:
    """Values are the kernel's; of the near pairs of fresh queries at least 99.9 % are found."""
    finder, kernel = search
    queries = clustered(400, seed=2)
    found = finder.find(prepare(queries, kernel.keys, BANDWIDTH), BANDWIDTH)
    K = gaussian_kernel(queries, kernel.keys, BANDWIDTH)
    np.testing.assert_allclose(found.values, K[found.rows, found.cols], rtol=1e-3)
    near = set(map(tuple, np.argwhere(K >= 1.001 * THRESHOLD).tolist()))
    assert len(near - pairs(found)) <= 0.001 * len(near)
    assert len(near) > 3000  # otherwise nothing was tested


def test_links_complete_what_few_cells_find(
    search: tuple[Search, KernelMatrix], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two cells a query meets some near keys; links lead on to most of the others."""
    monkeypatch.setattr(cells_module, "QUERY_PROBES", 2)
    finder, kernel = search
    of_queries = prepare(clustered(400, seed=2), kernel.keys, BANDWIDTH)
    K = gaussian_kernel(of_queries.queries, kernel.keys, BANDWIDTH)
    n_near = np.count_nonzero(K >= THRESHOLD)
    nearest = cells_module.nearest_cells(of_queries, finder.cells)
    met = len(
        cells_module.probe(
            of_queries, BANDWIDTH, finder.cells, finder.sketches, nearest, THRESHOLD
        )[1]
    )
    found = len(finder.find(of_queries, BANDWIDTH).cols)
    assert met < 0.95 * n_near
    assert n_near - found < 0.25 * (n_near - met)


def test_what_is_found_does_not_depend_on_the_batch(search: tuple[Search, KernelMatrix]) -> None:
    finder, kernel = search
    queries = clustered(300, seed=3)
    whole = finder.find(prepare(queries, kernel.keys, BANDWIDTH), BANDWIDTH)
    for first, last in ((0, 1), (1, 20), (20, 300)):
        part = finder.find(prepare(queries[first:last], kernel.keys, BANDWIDTH), BANDWIDTH)
        a, b = whole.indptr[first], whole.indptr[last]
        np.testing.assert_array_equal(part.cols, whole.cols[a:b])
        np.testing.assert_array_equal(part.values, whole.values[a:b])


def test_a_query_that_is_a_key_does_not_find_itself(search: tuple[Search, KernelMatrix]) -> None:
    finder, kernel = search
    alone = np.array([5, 100, 2000])
    found = finder.find(
        prepare(np.ascontiguousarray(kernel.keys[alone]), kernel.keys, BANDWIDTH), BANDWIDTH, alone
    )
    assert len(found.cols) > 0
    assert not (found.cols == alone[found.rows]).any()
