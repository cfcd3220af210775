"""Cells whose boxes are far apart are left out: the bound holds whatever the points and x."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_cases import problem_of

import approxkmv as akmv
from approxkmv.engine.problem import Problem
from approxkmv.engine.schemes.cells import (
    boxes,
    largest_values,
    leave_out,
    plan_cells,
    through_cells,
)
from approxkmv.engine.survey.order import blocks_of
from approxkmv.engine.survey.spatial import spatial_order
from approxkmv.engine.trace import Trace
from approxkmv.kernel.matrix import prepare

N = 3000
FAMILIES = ["uniform", "curve", "heavy tails", "half dense", "equal", "grid"]


def points_of(family: str, d: int, rng: np.random.Generator) -> np.ndarray:
    if family == "curve":
        t = rng.uniform(0, 20, N)
        some = [np.cos(t), np.sin(t), t / 5]
        points = np.stack(some[:d], axis=1) + 0.01 * rng.standard_normal((N, d))
    elif family == "heavy tails":
        points = rng.standard_t(2, (N, d))
    elif family == "half dense":
        points = rng.standard_normal((N, d)) * np.where(np.arange(N) % 2, 0.01, 3.0)[:, None]
    elif family == "equal":
        points = rng.integers(0, 5, (N, d)).astype(float)
    elif family == "grid":
        points = np.round(rng.uniform(0, 10, (N, d)), 1)
    else:
        points = rng.uniform(0, 5, (N, d))
    return points.astype(np.float32)


def vector_of(name: str, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if name == "one cell":
        far = np.argsort(points[:, 0])[: N // 50]
        return np.isin(np.arange(N), far).astype(np.float32)
    if name == "two columns":
        return rng.standard_normal((N, 2)).astype(np.float32)
    return np.ones(N, np.float32)


def error_and_bound(problem: Problem, exact: np.ndarray) -> tuple[float, float, float]:
    """Squared error, its bound, and the share of the pairs that was computed."""
    order = spatial_order(problem)
    assert order is not None
    blocks, tiles, _ = order
    result = through_cells(problem, plan_cells(problem, blocks, tiles), Trace())
    error = float(np.square(result.y.astype(np.float64) - exact).sum())
    return error, result.upper, result.pairs / problem.n_pairs


@pytest.mark.parametrize("x_name", ["ones", "one cell", "two columns"])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_error_is_never_above_the_bound(family: str, d: int, x_name: str) -> None:
    rng = np.random.default_rng(FAMILIES.index(family))
    points = points_of(family, d, rng)
    queries = points if x_name != "one cell" else points_of(family, d, rng)
    x = vector_of(x_name, points, rng)
    columns = x if x.ndim == 2 else x[:, None]
    bandwidth = 0.2
    exact = akmv.matvec(
        queries.astype("f8"),
        points.astype("f8"),
        columns.astype("f8"),
        bandwidth=bandwidth,
        method="exact",
    )
    for eps in (0.1, 1e-3):
        allowed = (eps * float(np.linalg.norm(columns))) ** 2
        problem = problem_of(prepare(queries, points, bandwidth), columns, allowed)
        error, bound, share = error_and_bound(problem, exact)
        rounding = (1e-5 * float(np.linalg.norm(exact))) ** 2
        assert error <= bound + rounding
        assert bound <= allowed
        assert share <= 1


def test_worst_points_reach_half_of_the_bound() -> None:
    """Equal points in each of two cells: what is left out is as much as the bound says."""
    points = np.repeat([[0.0], [1.0]], 100, axis=0).astype(np.float32)
    blocks = blocks_of(np.arange(200, dtype=np.int32), np.array([0, 100, 200]))
    box = boxes(points, blocks)
    largest = largest_values(box, box, 0.25)
    true = math.exp(-8.0)
    np.testing.assert_allclose(largest, [[1, true], [true, 1]], rtol=1e-9)
    most = largest * 100
    out, error = leave_out(most, blocks.sizes, np.full(2, 100.0), 200 * (100 * true) ** 2 * 1.01)
    np.testing.assert_array_equal(out, [[False, True], [True, False]])
    assert error == pytest.approx(200 * (100 * true) ** 2)
    out, error = leave_out(most, blocks.sizes, np.full(2, 100.0), 200 * (100 * true) ** 2 * 0.99)
    assert not out.any()
    assert error == 0


def test_values_in_boxes_are_bounded() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((120, 3)).astype(np.float32)
    blocks = blocks_of(rng.permutation(120).astype(np.int32), np.arange(0, 121, 10))
    box = boxes(points, blocks)
    K = np.exp(-0.5 * np.square(points[:, None] - points[None].astype("f8")).sum(-1) / 0.3**2)
    bound = largest_values(box, box, 0.3)[blocks.block_of][:, blocks.block_of]
    assert (bound >= K).all()


def test_small_errors_are_met_in_cells_and_the_report_says_so() -> None:
    """Draws for a small error would need most pairs; cells leave out nearly all of them."""
    n = 60_000
    rng = np.random.default_rng(1)
    points, x = rng.uniform(0, 1, (n, 2)), rng.standard_normal(n)
    y, info = akmv.matvec(points, points, x, bandwidth=0.01, eps=1e-3, rng=0, return_info=True)
    rows = np.arange(0, n, 117)
    exact = akmv.matvec(points[rows], points, x, bandwidth=0.01, method="exact")
    error = np.linalg.norm(y[rows] - exact) * math.sqrt(117) / np.linalg.norm(x)
    assert "assumes nothing" in info.plan.reason
    assert info.confidence == 1.0
    assert info.error_bound is not None
    assert error <= info.error_bound <= 1e-3
    assert info.pairs < 0.2 * info.pairs_exact
    assert "cells" in info.explain()


def test_tails_of_a_density_on_a_grid() -> None:
    """Every value on the grid is within its share of the bound, in empty corners as well."""
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((100_000, 2))
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-6, 6, 100)]), axis=-1).reshape(-1, 2)
    y, info = akmv.matvec(
        grid, keys, np.ones(len(keys)), bandwidth=0.1, eps=1e-6, rng=0, return_info=True
    )
    rows = np.append(np.arange(0, 10_000, 97), [0, 99, 9_900, 9_999])
    exact = akmv.matvec(grid[rows], keys, np.ones(len(keys)), bandwidth=0.1, method="exact")
    assert info.error_bound is not None
    assert np.abs(y[rows] - exact).max() <= info.error_bound * math.sqrt(len(keys))
    assert info.method == "exact" or info.confidence == 1.0


def test_cells_are_taken_where_draws_are_no_surer_saving() -> None:
    """A curve in space: the forecast of draws differs by a factor of ten from seed to seed."""
    rng = np.random.default_rng(3)
    t = rng.uniform(0, 2 * np.pi, 65_536)
    points = np.stack([np.cos(t), np.sin(2 * t), t / 6], axis=1)
    points = (points + 0.003 * rng.standard_normal(points.shape)).astype(np.float32)
    x = rng.standard_normal(len(points)).astype(np.float32)
    y, info = akmv.matvec(points, points, x, bandwidth=0.01, eps=0.1, rng=0, return_info=True)
    rows = np.arange(0, len(points), 128)
    exact = akmv.matvec(points[rows], points, x, bandwidth=0.01, method="exact")
    assert info.confidence == 1.0
    assert info.pairs < 0.1 * info.pairs_exact
    assert np.linalg.norm(y[rows] - exact) * math.sqrt(128) <= 0.1 * np.linalg.norm(x)
