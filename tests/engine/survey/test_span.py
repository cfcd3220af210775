"""Pivots from proposals, triangular systems half after half, and ranks extrapolated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from approxkmv.engine.survey.ranks import rank_needed
from approxkmv.engine.survey.span import Span, of_keys
from approxkmv.engine.survey.thin import lower_root, solve_lower, solve_transposed
from approxkmv.kernel.matrix import gaussian_kernel, prepare


def points(n: int = 700, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def test_root_is_that_of_the_pivots_however_they_are_taken() -> None:
    keys = points() + 100.0
    kernel, order = prepare(keys, keys, 1.0), np.random.default_rng(1).permutation(700)
    at_once, slowly = Span(kernel, order), Span(kernel, order)
    at_once.grow(310)
    for rank in (5, 130, 131, 310):
        slowly.grow(rank)
        assert slowly.rank == rank
    root, index = at_once.pivots().root, at_once.index
    np.testing.assert_array_equal(index, slowly.index)
    np.testing.assert_allclose(
        root @ root.T, gaussian_kernel(keys[index], keys[index], 1.0), atol=1e-9
    )
    np.testing.assert_allclose(root, slowly.pivots().root, atol=1e-5)
    assert np.abs(np.triu(root, 1)).max() == 0


def test_keys_in_the_span_of_others_are_left_out() -> None:
    """Equal ones in the same block and in a later one, and all of them at last."""
    keys = np.repeat(points(9), 100, axis=0)
    span = Span(prepare(keys, keys, 1.0), np.random.default_rng(0).permutation(900))
    span.grow(20)
    assert span.rank == 9
    assert span.exhausted
    span.take(np.arange(50))
    assert span.rank == 9


@pytest.mark.parametrize("transposed", [False, True])
def test_product_with_other_queries(transposed: bool) -> None:
    """As by dense linear algebra; what is left of the diagonal and coordinates of points, too."""
    keys, queries = points(600), points(400, seed=2)
    kernel = prepare(queries, keys, 1.5)
    span = Span(kernel, np.arange(600))
    span.grow(60)
    pivots, S = span.pivots(), keys[span.index]
    across, W = gaussian_kernel(queries, S, 1.5), gaussian_kernel(S, S, 1.5)
    low = across @ np.linalg.solve(W, gaussian_kernel(S, keys, 1.5))
    low = low.T if transposed else low
    x = np.random.default_rng(3).standard_normal((low.shape[1], 2))
    np.testing.assert_allclose(pivots.product(kernel, x, transposed=transposed), low @ x, atol=1e-6)
    left = 1 - np.einsum("ij,ij->i", across, np.linalg.solve(W, across.T).T)
    np.testing.assert_allclose(pivots.left_of_diagonal(kernel), left, atol=1e-7)
    inside = pivots.of_points(kernel).T @ pivots.of_points(of_keys(kernel))
    np.testing.assert_allclose(inside, low.T if transposed else low, atol=1e-7)


@pytest.mark.parametrize("n", [0, 1, 64, 65, 300])
def test_triangular_systems(n: int) -> None:
    rng = np.random.default_rng(0)
    matrix = np.cov(rng.standard_normal((max(n, 1), 4 * n + 2))).reshape(max(n, 1), -1)[:n, :n]
    root = lower_root(matrix)
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-12)
    assert np.abs(np.triu(root, 1)).max(initial=0) == 0
    b = rng.standard_normal((n, 3))
    np.testing.assert_allclose(root @ solve_lower(root, b), b, atol=1e-10)
    np.testing.assert_allclose(root.T @ solve_transposed(root, b), b, atol=1e-10)
    np.testing.assert_array_equal(solve_lower(root, b, 3), solve_lower(root, b))


def test_a_matrix_that_is_not_positive_has_no_root() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        lower_root(np.ones((130, 130)) - 2 * np.eye(130))


def test_errors_are_thought_to_fall_as_they_did() -> None:
    """By the power between the last rank and the last one of at most its half."""
    seen = [(64, 9.0), (100, 5.0), (200, 1.0)]
    power = math.log(5.0) / math.log(2.0)
    assert rank_needed(seen, 0.1) == pytest.approx(200 * 10 ** (1 / power))
    assert rank_needed(seen, 1.0) == 200
    assert math.isinf(rank_needed([(64, 1.0)], 0.5))
    assert math.isinf(rank_needed([(64, 1.0), (128, 1.0)], 0.5))
