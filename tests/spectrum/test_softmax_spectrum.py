"""Attention matrices as operators against the dense softmax, and their singular values."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.reduction import attention_to_gaussian
from approxkmv.spectrum import AttentionMatrix, attention_singular_values

# Around the width of a triangle (128), and more queries than keys and fewer.
SHAPES = [(1, 1), (5, 7), (128, 128), (129, 129), (300, 300), (400, 150), (150, 400), (1000, 513)]


def head(n_queries: int, n_keys: int, norm: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return norm * rng.standard_normal((n_queries, 8)), norm * rng.standard_normal((n_keys, 8))


def dense(query: np.ndarray, key: np.ndarray, scale: float, causal: bool) -> np.ndarray:
    """Softmax of the scores, query i seeing keys 0 to i if causal."""
    scores = scale * query @ key.T
    if causal:
        scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
    return softmax(scores, axis=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_matrix(shape: tuple[int, int], is_causal: bool) -> None:
    """Products and adjoint products, vectors and columns; rows add up to 1."""
    query, key = head(*shape)
    exact = dense(query, key, 8**-0.5, is_causal)
    P = AttentionMatrix(query, key, is_causal=is_causal)
    x, y = np.random.default_rng(1).standard_normal((2, max(shape), 3))
    np.testing.assert_allclose(P @ x[: shape[1]], exact @ x[: shape[1]], atol=1e-12)
    np.testing.assert_allclose(P.T @ y[: shape[0]], exact.T @ y[: shape[0]], atol=1e-12)
    np.testing.assert_allclose(P @ np.ones(shape[1]), 1, atol=1e-12)
    np.testing.assert_allclose(P.rmatvec(np.ones(shape[0])), exact.sum(axis=0), atol=1e-11)


@pytest.mark.parametrize("is_causal", [False, True])
def test_norms_at_which_exponentials_overflow(is_causal: bool) -> None:
    """Scores of several thousand: the matrix is nearly a permutation, and finite."""
    query, key = head(200, 200, norm=40.0)
    exact = dense(query, key, 8**-0.5, is_causal)
    P = AttentionMatrix(query, key, is_causal=is_causal)
    np.testing.assert_allclose(P @ np.eye(200), exact, atol=1e-9)


@pytest.mark.parametrize("is_causal", [False, True])
def test_lifted_matrix(is_causal: bool) -> None:
    """The Gaussian kernel of the lifted points of Lemma 4.1."""
    query, key = head(140, 150)
    lifted = attention_to_gaussian(query, key, 0.4)
    exact = gaussian_kernel(lifted.queries, lifted.keys, lifted.bandwidth)
    exact = np.tril(exact) if is_causal else exact
    K = AttentionMatrix(query, key, scale=0.4, is_causal=is_causal, matrix="lifted")
    np.testing.assert_allclose(K @ np.eye(150), exact, atol=1e-12)


@pytest.mark.parametrize("matrix", ["softmax", "lifted"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_singular_values_of_every_head(matrix: str, is_causal: bool) -> None:
    rng = np.random.default_rng(2)
    query, key = rng.standard_normal((2, 3, 140, 8)), rng.standard_normal((2, 3, 150, 8))
    found = attention_singular_values(query, key, k=4, is_causal=is_causal, matrix=matrix, rng=0)
    assert found.shape == (2, 3, 4)
    for b, h in np.ndindex(2, 3):
        A = AttentionMatrix(query[b, h], key[b, h], is_causal=is_causal, matrix=matrix)
        exact = np.linalg.svd(A @ np.eye(150), compute_uv=False)[:4]
        np.testing.assert_allclose(found[b, h], exact, rtol=1e-5)


def test_grouped_queries() -> None:
    """Six query heads, two key heads: heads 0 to 2 use the first."""
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((6, 40, 4)), rng.standard_normal((2, 40, 4))
    grouped = attention_singular_values(query, key, k=2, rng=0)
    repeated = attention_singular_values(query, np.repeat(key, 3, axis=0), k=2, rng=0)
    np.testing.assert_array_equal(grouped, repeated)


def test_float32_and_one_matrix() -> None:
    query, key = (a.astype(np.float32) for a in head(200, 200))
    found = attention_singular_values(query, key, k=3, rng=0)
    exact = np.linalg.svd(dense(query, key, 8**-0.5, False), compute_uv=False)[:3]
    np.testing.assert_allclose(found, exact, rtol=1e-4)
    P = pickle.loads(pickle.dumps(AttentionMatrix(query, key)))
    assert (P @ np.ones(200, np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": np.ones((3, 5))}, "key must have 4 columns, as query, got 5"),
        ({"key": np.ones((2, 3, 4))}, "the same number of axes"),
        ({"key": np.full((3, 4), np.nan)}, "key must be finite"),
        ({"scale": 0.0}, "scale must be a positive"),
        ({"k": 4}, "k must be between 1 and 3, got 4"),
        ({"matrix": "other"}, "matrix must be one of 'softmax', 'lifted', got 'other'"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments = {"query": np.ones((3, 4)), "key": np.ones((3, 4)), "k": 1} | change
    with pytest.raises(ValueError, match=message):
        attention_singular_values(**arguments)
    with pytest.raises(ValueError, match="leading axes of query"):
        attention_singular_values(np.ones((3, 2, 2)), np.ones((2, 2, 2)))
