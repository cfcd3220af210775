"""Cells of points that lie together, and what is predicted for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import problem_of

from approxkmv.engine.policy import Cells, Policy
from approxkmv.engine.survey.calibration import Calibrated
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import run_pilot
from approxkmv.engine.survey.spatial import spatial_order
from approxkmv.kernel.matrix import gaussian_kernel, prepare

SMALL = Policy(cells=Cells(points_per_cell=8, points_per_group=32))


def curve(n: int, seed: int = 0, d: int = 5) -> np.ndarray:
    """Points along a curve in some dimensions, and a little beside it."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.random((n, 1)))
    points = np.cos(t * np.arange(1, d + 1) * 3) + 0.02 * rng.standard_normal((n, d))
    return points[rng.permutation(n)].astype(np.float32)


def is_partition(blocks: Blocks, n: int) -> bool:
    in_order = blocks.block_of[blocks.order]
    return bool(
        (np.sort(blocks.order) == np.arange(n)).all()
        and blocks.start[0] == 0
        and blocks.start[-1] == n
        and (blocks.sizes > 0).all()
        and (in_order == np.repeat(np.arange(len(blocks.sizes)), blocks.sizes)).all()
    )


@pytest.mark.parametrize(("m", "n"), [(1, 200), (700, 1000), (1000, 300)])
def test_every_point_is_in_one_block(m: int, n: int) -> None:
    queries, keys = curve(m, 1), curve(n, 2)
    for other in (keys, queries):
        kernel = prepare(queries, other, 0.1)
        order = spatial_order(problem_of(kernel, np.ones(len(other), np.float32), policy=SMALL))
        assert order is not None
        assert is_partition(order.query_blocks, m)
        assert is_partition(order.key_tiles, len(other))
        shape = len(order.query_blocks.sizes), len(order.key_tiles.sizes)
        assert order.squares.shape == shape
        assert np.isfinite(order.squares).all()


@pytest.mark.parametrize("kind", ["all equal", "two values", "one far away"])
def test_blocks_of_equal_points_are_not_large(kind: str) -> None:
    n = 2000
    points = np.zeros((n, 3), np.float32)
    if kind == "two values":
        points[::3] = 1
    if kind == "one far away":
        points[7] = 1e6
    kernel = prepare(points, points, 1.0)
    order = spatial_order(problem_of(kernel, np.ones(n, np.float32), policy=SMALL))
    assert order is not None
    assert is_partition(order.query_blocks, n)
    assert order.query_blocks.sizes.max() <= 3 * SMALL.cells.points_per_group


def test_predictions_are_near_the_truth_where_they_matter() -> None:
    n, bandwidth = 4000, 0.05
    points = curve(n)
    x = np.ones(n, np.float32)
    kernel = prepare(points, points, bandwidth)
    order = spatial_order(problem_of(kernel, x, policy=SMALL))
    assert order is not None
    blocks, tiles, squares = order
    K2 = gaussian_kernel(points.astype("f8"), points.astype("f8"), bandwidth) ** 2
    in_order = K2[blocks.order][:, tiles.order]
    of_rows = np.add.reduceat(in_order, blocks.start[:-1], axis=0)
    true = np.add.reduceat(of_rows, tiles.start[:-1], axis=1)
    true /= np.outer(blocks.sizes, tiles.sizes)
    assert squares.sum() == pytest.approx(true.sum(), rel=0.1)
    assert (true > 1e-3).mean() < 0.2  # most of the matrix is known to be small
    right = (squares > true / 2) & (squares < 2 * true)
    assert true[right].sum() >= 0.9 * true.sum()


def test_weights_of_x_count() -> None:
    """Keys that x leaves out do not say what the tile's second moment is."""
    points = np.concatenate([np.zeros((40, 2)), np.full((40, 2), 5.0)]).astype(np.float32)
    policy = Policy(cells=Cells(points_per_cell=40, points_per_group=80))
    squares = []
    for x in (np.arange(80) < 40, np.arange(80) >= 40):
        kernel = prepare(points[:40].copy(), points, 1.0)
        order = spatial_order(problem_of(kernel, x.astype(np.float32), policy=policy))
        assert order is not None
        squares.append(float(order.squares[0, 0]))
    assert squares[0] == pytest.approx(1.0, rel=1e-5)
    assert squares[1] < 1e-10


def test_none_where_points_vary_in_every_direction() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4000, 60)).astype(np.float32)
    x = np.ones(4000, np.float32)
    assert spatial_order(problem_of(prepare(points, points, 5.0), x)) is None
    points[:, 4:] *= 0.01
    assert spatial_order(problem_of(prepare(points, points, 1.0), x)) is not None


def test_same_order_on_any_number_of_threads() -> None:
    from approxkmv.loops.compiled import Compiled

    points, x = curve(3000), np.ones(3000, np.float32)
    runs: list[Any] = []
    for n_threads in (1, 2, 5):
        kernel = prepare(points, points, 0.1, backend=Compiled(n_threads))
        runs.append(spatial_order(problem_of(kernel, x, policy=SMALL)))
    for run in runs[1:]:
        np.testing.assert_array_equal(run.query_blocks.order, runs[0].query_blocks.order)
        np.testing.assert_array_equal(run.squares, runs[0].squares)


def test_calibration_follows_the_rows_and_keeps_a_floor() -> None:
    """A prediction that is wrong by a factor is put right; where nothing was met little is left."""
    n, bandwidth = 3000, 0.05
    points = curve(n)
    kernel = prepare(points, points, bandwidth)
    x = np.ones(n, np.float32)
    order = spatial_order(problem_of(kernel, x, policy=SMALL))
    assert order is not None
    pilot = run_pilot(
        kernel,
        x,
        order.query_blocks,
        order.key_tiles,
        rows_per_block=2,
        threshold=0.01,
        rng=np.random.default_rng(0),
    )
    sums = pilot.light + pilot.near_sums(np.ones(len(pilot.near_row), bool), pilot.near_square)
    right = Calibrated(pilot, order.squares)(sums)
    wrong = Calibrated(pilot, order.squares / np.float32(8))(sums)
    large = order.squares > 1e-4
    assert np.median(wrong[large] / right[large]) == pytest.approx(1.0, rel=0.1)
    nothing = Calibrated(pilot, order.squares)(np.zeros_like(sums))
    assert nothing.min() > 0
    # One pair just below the threshold among all pairs of the rows, or more where there are fewer.
    assert nothing.min() >= 0.9 * 0.01**2 / (len(pilot.rows) * n)
