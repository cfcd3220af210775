"""The pivoted factor and the preconditioner made of it, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.nystroem import Preconditioner, pivoted_cholesky


def kernel_matrix(n: int, d: int, bandwidth: float) -> np.ndarray:
    points = np.random.default_rng(0).standard_normal((n, d))
    return gaussian_kernel(points, points, bandwidth)


@pytest.mark.parametrize("rank", [1, 40, 130])
def test_factor_stays_below_the_matrix_and_comes_close(rank: int) -> None:
    """K - FF^T is positive semidefinite, and its trace is near the best any rank can leave."""
    K = kernel_matrix(300, 3, 1.5)
    F = pivoted_cholesky(lambda j: K[:, j], np.ones(300), rank, np.random.default_rng(1))
    assert F.shape[0] == 300
    assert F.shape[1] <= rank
    left = K - F @ F.T
    assert np.linalg.eigvalsh(left).min() > -1e-9
    best = np.sort(np.linalg.eigvalsh(K))[: 300 - F.shape[1]].sum()
    # Randomly pivoted Cholesky of a rank k is within a small factor of the best rank k / 2.
    half = np.sort(np.linalg.eigvalsh(K))[: 300 - F.shape[1] // 2].sum()
    assert best - 1e-9 <= np.trace(left) <= 2 * half


def test_repeated_points_end_the_search() -> None:
    """A matrix of rank 5 needs five columns, however many are asked for."""
    points = np.repeat(np.random.default_rng(0).standard_normal((5, 2)), 30, axis=0)
    K = gaussian_kernel(points, points, 1.0)
    F = pivoted_cholesky(lambda j: K[:, j], np.ones(150), 100, np.random.default_rng(0))
    np.testing.assert_allclose(F @ F.T, K, atol=1e-6)


def test_preconditioner_is_the_inverse() -> None:
    rng = np.random.default_rng(0)
    F, noise = rng.standard_normal((60, 7)), rng.uniform(0.1, 2.0, 60)
    v = rng.standard_normal((60, 3))
    dense = np.linalg.solve(F @ F.T + np.diag(noise), v)
    np.testing.assert_allclose(Preconditioner(F, noise)(v), dense, rtol=1e-10, atol=1e-12)
