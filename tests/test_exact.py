"""The definition and the exact product, as public functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel, product


def test_the_definition_entry_by_entry():
    """exp(-|q - k|^2 / (2 sigma^2)) by Python's own arithmetic, queries and keys in their roles."""
    queries, keys = [[0.0, 1.0], [2.0, -1.0]], [[0.5, 0.5], [1.0, 1.0], [-3.0, 0.0]]
    K = gaussian_kernel(queries, keys, 0.7)
    for i, q in enumerate(queries):
        for j, k in enumerate(keys):
            expected = math.exp(-sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) / (2 * 0.49))
            assert K[i, j] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [None, 3])
def test_product_is_the_definition_times_x(dtype, columns):
    rng = np.random.default_rng(0)
    queries, keys = rng.standard_normal((70, 5)), rng.standard_normal((90, 5))
    x = rng.standard_normal(90 if columns is None else (90, columns))
    y = product(queries.astype(dtype), keys.astype(dtype), x, 1.3)
    assert y.dtype == dtype
    expected = gaussian_kernel(queries, keys, 1.3) @ x
    error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    assert error < (1e-13 if dtype is np.float64 else 1e-5)


def test_product_is_what_matvec_computes_exactly():
    """Lists and transposed points are converted; no keys means the queries."""
    rng = np.random.default_rng(1)
    points, x = rng.standard_normal((4, 60)).T, rng.standard_normal(60)
    exact = akmv.matvec(points, None, x, bandwidth=2.0, method="exact")
    np.testing.assert_allclose(product(points, None, x, 2.0), exact, rtol=1e-13)
    np.testing.assert_array_equal(
        product(points.tolist(), points.tolist(), x.tolist(), 2.0, n_threads=1),
        product(points, None, x, 2.0, n_threads=2),
    )


def test_any_bandwidth():
    """Points and bandwidth in units of 1e-200: the same matrix."""
    points, x = np.arange(6.0).reshape(3, 2), np.array([1.0, -2.0, 0.5])
    tiny = product(1e-200 * points, None, x, 1e-200)
    np.testing.assert_allclose(tiny, product(points, None, x, 1.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": np.zeros((3, 4))}, "keys must have 2 columns"),
        ({"x": np.ones(4)}, "x must have one entry per key"),
        ({"queries": np.array([[np.nan, 0.0]])}, "queries must be finite"),
        ({"bandwidth": 0.0}, "bandwidth must be a positive"),
    ],
)
def test_messages(change, message):
    arguments = {"queries": np.zeros((3, 2)), "keys": np.zeros((3, 2)), "x": np.ones(3)}
    with pytest.raises(ValueError, match=message):
        product(**(arguments | {"bandwidth": 1.0} | change))
