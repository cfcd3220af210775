"""The introduction's motivation: spectra of attention matrices from approximate products."""

from __future__ import annotations

import numpy as np

from approxkmv.datasets import clusters
from approxkmv.exact import gaussian_kernel
from approxkmv.paper.reduction import attention_to_gaussian
from approxkmv.paper.shared_draws import shared_draws_operator
from approxkmv.spectrum import singular_values


def head(n):
    """Queries and keys of one length around common centres, lifted; rows of K sum to about 5."""
    queries, keys, bandwidth = clusters(n, 16, rng=0, dtype=np.float64)
    q, k = (4 * a / np.linalg.norm(a, axis=1, keepdims=True) for a in (queries, keys))
    return attention_to_gaussian(q, k, 1 / bandwidth**2)


def test_singular_values_of_a_head_within_the_error_of_the_operator():
    """A quarter of 512 columns drawn, heavy pairs kept: the top 4 within 3 %, not by rounding.

    Weyl: no value is off by more than the norm of the difference, which is measured here.
    """
    g = head(512)
    K = gaussian_kernel(g.queries, g.keys, g.bandwidth)
    options = {"bandwidth": g.bandwidth, "threshold": 0.02, "n_draws": 128}
    operator = shared_draws_operator(g.queries, g.keys, rng=0, **options)
    found = singular_values(operator, 4, rng=0).values
    exact = np.linalg.svd(K, compute_uv=False)[:4]
    off = np.linalg.norm(operator @ np.eye(512) - K, 2)
    assert (np.abs(found - exact) <= off * (1 + 1e-9)).all()
    assert (np.abs(found / exact - 1) < 0.03).all()
    assert np.abs(found - exact).max() > 1e-6


def test_operator_is_unbiased_and_has_its_transpose():
    g = head(128)
    K = gaussian_kernel(g.queries, g.keys, g.bandwidth)
    x = np.random.default_rng(0).standard_normal(128)
    products = []
    for seed in range(20):
        operator = shared_draws_operator(
            g.queries, g.keys, bandwidth=g.bandwidth, threshold=0.05, n_draws=16, rng=seed
        )
        products.append(operator @ x)
    error = np.std(products, axis=0, ddof=1) / np.sqrt(20)
    off = np.mean(products, axis=0) - K @ x
    assert (np.abs(off) < 5 * error + 1e-12).all()
    y = np.random.default_rng(1).standard_normal(128)
    assert abs(y @ (operator @ x) - x @ (operator.T @ y)) < 1e-9
