from __future__ import annotations

import numpy as np
import pytest
from engine_cases import clustered

from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.kernel.matrix import prepare


def check_blocks(blocks: Blocks, n: int, size: int) -> None:
    np.testing.assert_array_equal(np.sort(blocks.order), np.arange(n))
    assert blocks.start[0] == 0
    assert blocks.start[-1] == n
    assert len(blocks.sizes) == max(1, round(n / size))
    assert np.ptp(blocks.sizes) <= 1
    for b, (first, last) in enumerate(zip(blocks.start[:-1], blocks.start[1:], strict=True)):
        assert (blocks.block_of[blocks.order[first:last]] == b).all()


@pytest.mark.parametrize("differences", [False, True])
def test_points_come_by_norm(differences: bool) -> None:
    """Ascending distance from the centre of the keys, in blocks of equal size up to one point."""
    case = clustered(301, 403, differences=differences)
    blocks, tiles = norm_order(case.geometry, 60, 45)
    check_blocks(blocks, 301, 60)
    check_blocks(tiles, 403, 45)
    centre = np.median(case.kernel.keys, axis=0)
    for points, cut in ((case.kernel.queries, blocks), (case.kernel.keys, tiles)):
        norms = np.linalg.norm(points - centre, axis=1)[cut.order]
        assert (np.diff(norms) >= -1e-12).all()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 500), (7, 3), (0, 4)])
def test_few_points(m: int, n: int) -> None:
    rng = np.random.default_rng(0)
    kernel = prepare(rng.standard_normal((m, 2)), rng.standard_normal((n, 2)), 1.0)
    blocks, tiles = norm_order(kernel.geometry, 64, 64)
    check_blocks(blocks, m, 64)
    check_blocks(tiles, n, 64)


def test_a_query_out_of_reach_comes_last() -> None:
    """Its shift is infinite; it has a block like every other point."""
    queries = np.array([[1e30], [0.0], [1.0]], np.float32)
    kernel = prepare(queries, np.zeros((2, 1), np.float32), 1.0)
    blocks, _ = norm_order(kernel.geometry, 2, 2)
    np.testing.assert_array_equal(blocks.order, [1, 2, 0])


def test_points_of_equal_norm_keep_their_order() -> None:
    """On any machine: the order must not depend on how it is sorted."""
    points = np.tile(np.array([[3.0, 0.0], [0.0, -1.0], [0.0, 1.0], [-3.0, 0.0]]), (50, 1))
    blocks, tiles = norm_order(prepare(points, points.copy(), 1.0).geometry, 64, 64)
    near, far = (np.flatnonzero(np.abs(points).max(axis=1) == size) for size in (1.0, 3.0))
    for cut in (blocks, tiles):
        np.testing.assert_array_equal(cut.order, np.append(near, far))


def test_where_queries_are_keys_both_have_one_order() -> None:
    points = np.random.default_rng(0).standard_normal((300, 3))
    blocks, tiles = norm_order(prepare(points, points, 1.0).geometry, 60, 45)
    others, _ = norm_order(prepare(points, points.copy(), 1.0).geometry, 60, 45)
    np.testing.assert_array_equal(blocks.order, tiles.order)
    np.testing.assert_array_equal(blocks.order, others.order)
