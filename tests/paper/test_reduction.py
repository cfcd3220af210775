"""Lemma 4.1 and its prefactors."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.reduction import (
    attention_product,
    attention_to_gaussian,
    weighted_attention_to_gaussian,
)


def attention(n=50, d=16, size=1.0):
    rng = np.random.default_rng(0)
    return size * rng.standard_normal((40, d)), size * rng.standard_normal((n, d))


def log_kernel(g):
    return -((g.queries[:, None] - g.keys) ** 2).sum(axis=-1) / (2 * g.bandwidth**2)


@pytest.mark.parametrize("scale", [None, 1.0, 0.02])
@pytest.mark.parametrize("size", [0.3, 1.0, 20.0])
def test_identity_in_the_log_domain(scale, size):
    """s<q, k> = log prefactor + log K to 1e-12 of the largest term, also where exp overflows."""
    q, k = attention(size=size)
    g = attention_to_gaussian(q, k, scale)
    scores = (q @ k.T) * (16**-0.5 if scale is None else scale)
    difference = g.log_prefactor[:, None] + log_kernel(g) - scores
    assert np.abs(difference).max() <= 1e-12 * max(1.0, np.abs(g.log_prefactor).max())


def test_bandwidth_and_shape():
    """2σ² = 2√d, so σ = d^(1/4) (E1); one more coordinate, 0 for queries; keys on one sphere."""
    q, k = attention()
    g = attention_to_gaussian(q, k)
    assert g.bandwidth == pytest.approx(16**0.25)
    assert g.queries.shape == (40, 17)
    assert not g.queries[:, -1].any()
    np.testing.assert_allclose((g.keys**2).sum(axis=1), (k**2).sum(axis=1).max(), rtol=1e-12)


def test_printed_prefactor_is_wrong():
    """E2: as printed, e^‖q‖² e^max‖k‖², every row is off, here by factors above 10¹⁰."""
    q, k = attention()
    right, printed = attention_to_gaussian(q, k), attention_to_gaussian(q, k, as_printed=True)
    excess = printed.log_prefactor - right.log_prefactor
    expected = ((q**2).sum(axis=1) + (k**2).sum(axis=1).max()) * (1 - 1 / (2 * 4))
    np.testing.assert_allclose(excess, expected, rtol=1e-12)
    assert excess.min() > np.log(1e10)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_product(columns):
    """A x through K for signed x, one vector or several; one reduction serves them all."""
    q, k = attention()
    x = np.random.default_rng(1).standard_normal((50, *columns))
    y, log_prefactor = attention_product(q, k, x)
    factor = np.exp(log_prefactor).reshape(-1, *[1] * len(columns))
    np.testing.assert_allclose(factor * y, np.exp(q @ k.T / 4) @ x, rtol=1e-9)


def test_any_gaussian_product_will_do():
    q, k = attention()
    x = np.ones(50)

    def dense(queries, keys, x, bandwidth):
        return gaussian_kernel(queries, keys, bandwidth) @ x

    y, log_prefactor = attention_product(q, k, x, product=dense)
    expected = np.exp(q @ k.T / 4).sum(axis=1)
    np.testing.assert_allclose(np.exp(log_prefactor) * y, expected, rtol=1e-9)


def test_prefactor_cancels_in_softmax():
    """D⁻¹A x needs K alone, so even the printed prefactor does no harm there."""
    q, k = attention()
    x = np.random.default_rng(2).standard_normal(50)
    both, _ = attention_product(q, k, np.column_stack([x, np.ones(50)]), as_printed=True)
    A = np.exp(q @ k.T / 4)
    np.testing.assert_allclose(both[:, 0] / both[:, 1], A @ x / A.sum(axis=1), atol=1e-9)


def test_float32_stays_float32():
    q, k = (a.astype(np.float32) for a in attention())
    g = attention_to_gaussian(q, k)
    assert g.queries.dtype == g.keys.dtype == np.float32


def test_weighted_reduction_needs_one_for_each_positive_vector():
    """KDEformer's way: the same sums, other points for every vector, no signs."""
    q, k = attention()
    rng = np.random.default_rng(1)
    first, second = (np.exp(rng.standard_normal(50)) for _ in range(2))
    log_scores = q @ k.T / 4
    for w in (first, second):
        g = weighted_attention_to_gaussian(q, k, w)
        logs = g.log_prefactor[:, None] + log_kernel(g)
        np.testing.assert_allclose(logs, log_scores + np.log(w), rtol=1e-12, atol=1e-12)
    one, other = (weighted_attention_to_gaussian(q, k, w).keys for w in (first, second))
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(
        weighted_attention_to_gaussian(q, k, np.ones(50)).keys, attention_to_gaussian(q, k).keys
    )
    with pytest.raises(ValueError, match="weights must be positive"):
        weighted_attention_to_gaussian(q, k, rng.standard_normal(50))


def test_lemma_41_has_larger_entries_than_the_weighted_reduction():
    """Keys of one length: densities fall by mean(w)/max(w), and with them every floor.

    And for a vector of both signs, errors relative to the products of its two halves allow more
    than 3 times the error that one relative to the norm of the vector does.
    """
    rng = np.random.default_rng(2)
    q, k = rng.standard_normal((2, 200, 16))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    w = np.abs(rng.standard_t(2, 200)) + 0.01
    plain, weighted = attention_to_gaussian(q, k), weighted_attention_to_gaussian(q, k, w)
    K, of_weights = (gaussian_kernel(g.queries, g.keys, g.bandwidth) for g in (plain, weighted))
    np.testing.assert_allclose(of_weights, K * (w / w.max()), rtol=1e-9)
    assert of_weights.mean() < 0.3 * K.mean()
    x = w * rng.choice([-1.0, 1.0], 200)
    halves = np.linalg.norm(K @ np.maximum(x, 0)) + np.linalg.norm(K @ np.maximum(-x, 0))
    assert halves > 3 * np.linalg.norm(x)
