"""Operators of dense kernels: one matrix of low rank, its error, and what uses it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.linalg import eigsh
from test_low_rank import table

import approxkmv as akmv
from approxkmv.engine.cost import CostModel
from approxkmv.kernel.matrix import product

N, BANDWIDTH = 6000, 3.0


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CostModel, "worth_a_look", lambda *_: True)


def operator(eps: float = 0.1, seed: int = 0, **options: object) -> akmv.GaussianKernel:
    return akmv.GaussianKernel(table(N), bandwidth=BANDWIDTH, eps=eps, rng=seed, **options)  # type: ignore[arg-type]


def test_operator_is_linear_symmetric_and_within_its_error() -> None:
    K, rng = operator(), np.random.default_rng(1)
    assert K.info.method == "sampled"
    assert "few of its columns" in K.info.plan.reason
    x = rng.standard_normal((N, 3)).astype(np.float32)
    x[:, 0] = 1
    y = K @ x
    exact = product(table(N).astype("f8"), table(N).astype("f8"), x.astype("f8"), BANDWIDTH)
    errors = np.linalg.norm(y - exact, axis=0) / np.linalg.norm(x, axis=0)
    assert errors.max() <= 0.1
    assert K.info.error_estimate is not None
    assert 0.5 <= errors[1:].mean() / K.info.error_estimate <= 2
    np.testing.assert_allclose(K @ (x[:, 1] + 2 * x[:, 2]), y[:, 1] + 2 * y[:, 2], atol=1e-2)
    assert float(x[:, 1] @ y[:, 2]) == pytest.approx(float(x[:, 2] @ y[:, 1]), abs=0.5)
    np.testing.assert_array_equal(K.T @ x, y)


def test_worst_vector_is_nearly_among_those_tried() -> None:
    """The norm of what is left, by power iterations with exact products."""
    K, points = operator(seed=3), table(N)
    x = np.random.default_rng(0).standard_normal(N)
    double = points.astype(np.float64)
    for _ in range(8):
        x /= np.linalg.norm(x)
        x = product(double, double, x, BANDWIDTH) - (K @ x.astype(np.float32))
    assert np.linalg.norm(x) <= 1.6 * K.info.plan.numbers["largest_error_of_vectors_tried"]  # type: ignore[operator]


def test_isolated_points_are_pivots() -> None:
    points = table(N)
    points[:30] = 60 * np.random.default_rng(0).standard_normal((30, 6))
    points[7] = points[8]  # equal ones are picked once
    K = akmv.GaussianKernel(points, bandwidth=BANDWIDTH, eps=0.1, rng=0)
    assert K.info.method == "sampled"
    for j in (0, 7, 8, 29):
        column = np.zeros(N, np.float32)
        column[j] = 1
        exact = product(points.astype("f8"), points.astype("f8"), column.astype("f8"), BANDWIDTH)
        assert np.linalg.norm(K @ column - exact) <= 0.1


def test_rectangular_operator_and_its_adjoint() -> None:
    points = table(N + 5000)
    queries, keys = points[N:], points[:N]
    K = akmv.GaussianKernel(queries, keys, bandwidth=BANDWIDTH, eps=0.1, rng=0)
    assert "few of its columns" in K.info.plan.reason
    rng = np.random.default_rng(0)
    x, u = (rng.standard_normal(n).astype(np.float32) for n in (N, 5000))
    exact = product(keys.astype("f8"), queries.astype("f8"), u.astype("f8"), BANDWIDTH)
    assert np.linalg.norm(K.T @ u - exact) <= 0.1 * np.linalg.norm(u)
    assert float(u @ (K @ x)) == pytest.approx(float(x @ (K.T @ u)), rel=1e-3, abs=0.5)


def test_saved_operator_gives_the_same_bits(tmp_path: Path) -> None:
    K, x = operator(), np.ones(N, np.float32)
    K.save(tmp_path / "kernel.npz")
    again = akmv.GaussianKernel.load(tmp_path / "kernel.npz")
    np.testing.assert_array_equal(again @ x, K @ x)
    assert again.info.plan.reason == K.info.plan.reason


def test_eigenvalues_and_solutions() -> None:
    K = operator(eps=0.02)
    exact = akmv.GaussianKernel(table(N), bandwidth=BANDWIDTH, method="exact")
    ours, theirs = (eigsh(k, k=3, return_eigenvectors=False, tol=1e-3) for k in (K, exact))
    np.testing.assert_allclose(ours, theirs, rtol=5e-3)
    b = np.sin(table(N)[:, 1])
    x, info = akmv.solve(K, b, noise=1.0, tol=1e-4, rng=0, return_info=True)
    assert info.converged
    assert math.isfinite(float(np.linalg.norm(x)))
