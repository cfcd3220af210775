"""Second moments predicted for cells, against the NumPy twin and against what they predict."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import CellMoments


def cells(n: int, n_groups: int, n_axes: int, scale: float, seed: int) -> CellMoments:
    rng = np.random.default_rng(seed)
    start = np.linspace(0, n, n_groups + 1).astype(np.int64)
    weight = rng.random(n)
    weight /= np.repeat(np.add.reduceat(weight, start[:-1]), np.diff(start))
    mean = scale * rng.standard_normal((n_axes, n))
    variance = scale * rng.random((n_axes, n)) ** 2
    return CellMoments(*(a.astype(np.float32) for a in (mean, variance, weight)), start)


@pytest.mark.parametrize("n_axes", [1, 3, 16])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 16), (33, 70)])
def test_like_the_twin_for_any_number_of_threads(m: int, n: int, n_axes: int, isa: str) -> None:
    for scale in (0.1, 1.0, 5.0):
        queries = cells(m, min(m, 4), n_axes, scale, 0)
        keys = cells(n, min(n, 7), n_axes, scale, 1)
        twin = reference.cell_squares(queries, keys)
        runs = [Compiled(n_threads, isa).cell_squares(queries, keys) for n_threads in (1, 2, 7)]
        for run in runs[1:]:
            np.testing.assert_array_equal(run, runs[0])
        np.testing.assert_allclose(runs[0], twin, rtol=1e-4, atol=1e-30)


def test_far_cells_have_nothing(isa: str) -> None:
    """Exponents and products of variances beyond single precision."""
    keys = CellMoments(
        np.array([[0.0, 1e4, 0.0]] * 8, np.float32),
        np.array([[1.0, 1.0, 1e12]] * 8, np.float32),
        np.ones(3, np.float32),
        np.arange(4),
    )
    found = Compiled(isa=isa).cell_squares(keys, keys)
    assert found[0, 0] == pytest.approx(5.0**-4, rel=1e-5)
    assert found[0, 1] == 0
    assert 0 <= found[0, 2] < 1e-18


def test_mean_of_squares_of_normal_points(isa: str) -> None:
    rng = np.random.default_rng(0)
    spread, apart = np.array([0.3, 1.0]), np.array([0.5, 1.5])
    points = spread * rng.standard_normal((2, 4000, 2)) + [[[0.0, 0.0]], [apart]]
    distances = ((points[0][:, None] - points[1]) ** 2).sum(axis=2)
    q, k = (
        CellMoments(
            p.mean(axis=0)[:, None].astype(np.float32),
            p.var(axis=0)[:, None].astype(np.float32),
            np.ones(1, np.float32),
            np.arange(2),
        )
        for p in points
    )
    found = Compiled(isa=isa).cell_squares(q, k)
    assert found[0, 0] == pytest.approx(np.exp(-distances).mean(), rel=0.02)
