"""Pivots, against dense linear algebra; products in pieces, against whole ones."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.engine.survey.pivots import PivotedCholesky, accepted_pivots
from approxkmv.engine.survey.thin import inverse_of_lower, times
from approxkmv.kernel.matrix import gaussian_kernel


def factored(K: np.ndarray, rank: int, seed: int = 0, entries: bool = True) -> PivotedCholesky:
    found = PivotedCholesky(
        lambda j: K[:, j],
        (lambda j: K[np.ix_(j, j)]) if entries else None,
        np.ones(len(K)),
        np.random.default_rng(seed),
        unit=2.0**-52,
    )
    found.grow(rank)
    return found


@pytest.mark.parametrize("entries", [True, False])
def test_factor_is_exact_in_the_columns_of_the_pivots(entries: bool) -> None:
    points = np.random.default_rng(0).standard_normal((400, 3))
    K = gaussian_kernel(points, points, 1.0)
    found = factored(K, 150, entries=entries)
    left = K - found.factor @ found.factor.T
    assert found.rank == 150
    assert len(np.unique(found.pivots)) == 150
    np.testing.assert_allclose(left[:, found.pivots], 0, atol=1e-9)
    np.testing.assert_allclose(left.diagonal(), found.left, atol=1e-9)
    assert np.linalg.eigvalsh(left).min() > -1e-9
    # Lower triangular in the order of the pivots: the Cholesky factor of their kernel values.
    assert np.abs(np.triu(found.factor[found.pivots], 1)).max() < 1e-7


def test_equal_points_are_picked_once() -> None:
    points = np.repeat(np.random.default_rng(0).standard_normal((7, 2)), 60, axis=0)
    K = gaussian_kernel(points, points, 1.0)
    found = factored(K, 100)
    assert found.exhausted
    assert found.rank == 7
    np.testing.assert_allclose(found.factor @ found.factor.T, K, atol=1e-10)


def test_one_dense_cluster_takes_few_pivots() -> None:
    """Without rejection a block of 64 proposals would be spent on 900 near points."""
    rng = np.random.default_rng(0)
    points = np.concatenate(
        [0.01 * rng.standard_normal((900, 2)), 9 * rng.standard_normal((64, 2))]
    )
    K = gaussian_kernel(points, points, 1.0)
    found = factored(K, 64)
    assert np.count_nonzero(found.pivots < 900) <= 8


def test_pivots_are_distributed_as_one_by_one() -> None:
    """Which two of four points are picked, over many seeds, against the exact probabilities."""
    points = np.array([[0.0], [0.2], [1.0], [4.0]])
    K = gaussian_kernel(points, points, 1.0)
    expected = np.zeros((4, 4))
    for i in range(4):
        left = np.clip(K.diagonal() - K[:, i] ** 2, 0, None)
        expected[i] = left / left.sum() / 4
    counts, n_runs = np.zeros((4, 4)), 4000
    for seed in range(n_runs):
        first, second = factored(K, 2, seed).pivots
        counts[first, second] += 1
    deviation = np.sqrt(n_runs * expected * (1 - expected))
    assert np.all(np.abs(counts - n_runs * expected) <= 5.5 * deviation + 1e-9)


def test_accepted_are_those_with_enough_left() -> None:
    core = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.0], [0.0, 0.0, 0.5]])
    np.testing.assert_array_equal(accepted_pivots(core, np.array([0.5, 0.5, 0.4]), 0.0), [0, 2])
    np.testing.assert_array_equal(accepted_pivots(core, np.zeros(3), 0.01), [0, 2])
    np.testing.assert_array_equal(accepted_pivots(core, np.zeros(3), 0.0), [0, 1, 2])


@pytest.mark.parametrize("shape", [(1, 1, 1), (0, 3, 2), (5, 0, 4), (700, 1030, 130), (3000, 7, 9)])
def test_products_in_pieces_are_products(shape: tuple[int, int, int]) -> None:
    n, inner, m = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, inner + 3))[:, :inner], rng.standard_normal((inner, m))
    np.testing.assert_allclose(times(a, b), a @ b, rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(times(a, b, 3), times(a, b))


def test_inverse_of_a_lower_triangle() -> None:
    root = np.tril(np.random.default_rng(0).standard_normal((150, 150)), -1) / 10 + np.eye(150)
    np.testing.assert_allclose(inverse_of_lower(root) @ root, np.eye(150), atol=1e-9)
