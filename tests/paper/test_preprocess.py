"""Definition 3.1 and Lemma 3.2."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.preprocess import preprocess

GAMMA = 0.109


def vectors(n):
    rng = np.random.default_rng(0)
    most = np.zeros(n)
    most[: int(n ** (1 - GAMMA))] = 1.0  # as many equal entries as Lemma 3.2 allows to be large
    return {
        "normal": rng.standard_normal(n),
        "heavy tailed": rng.standard_t(2, n),
        "one entry": np.eye(n)[3],
        "most large entries": most,
        "tiny and large": np.concatenate([np.full(n - 1, 1e-9), [5.0]]),
        "signs": rng.choice([-1.0, 1.0], n),
    }


@pytest.fixture
def points():
    rng = np.random.default_rng(1)
    return rng.standard_normal((40, 3)), rng.standard_normal((300, 3))


@pytest.mark.parametrize("name", vectors(300))
def test_sets(points, name):
    """H_1, H_2, T are as defined, part [n], and |H_1| <= n^(1-γ)."""
    queries, keys = points
    n = len(keys)
    x = vectors(n)[name]
    split = preprocess(queries, keys, x, bandwidth=1.0, gamma=GAMMA)

    squares = x**2 * n / (x**2).sum()
    np.testing.assert_array_equal(split.H_1, np.flatnonzero(squares >= n**GAMMA))
    np.testing.assert_array_equal(split.H_2, np.flatnonzero(squares <= n**-4.0))
    together = np.concatenate([split.H, split.T])
    np.testing.assert_array_equal(np.sort(together), np.arange(n))
    assert len(split.H_1) <= n ** (1 - GAMMA)
    assert split.n_pairs == len(queries) * len(split.H_1)
    assert (split.x**2).sum() == pytest.approx(n)
    np.testing.assert_allclose(split.x * split.norm_ratio, x, rtol=1e-14)


def test_bound_on_large_entries_is_reached():
    """Markov's inequality is tight: n^(1-γ) entries of squared size n^γ are all large."""
    n = 1024
    x = np.zeros(n)
    x[: int(n ** (1 - GAMMA))] = 1.0
    split = preprocess(np.zeros((1, 1)), np.zeros((n, 1)), x, bandwidth=1.0, gamma=GAMMA)
    assert len(split.H_1) == int(n ** (1 - GAMMA))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_columns_are_exact(points, dtype):
    queries, keys = (p.astype(dtype) for p in points)
    x = vectors(len(keys))["heavy tailed"]
    split = preprocess(queries, keys, x, bandwidth=0.8, gamma=GAMMA)
    K = gaussian_kernel(queries, keys, 0.8)
    expected = K[:, split.H_1] @ split.x[split.H_1]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(split.y_H, expected, atol=tolerance * np.abs(expected).max())
    assert len(split.H_1) > 0


@pytest.mark.parametrize("name", vectors(300))
def test_leaving_tiny_entries_out(points, name):
    """Lemma 3.2 as corrected by E5: ‖Kx - (y_H + y_T)‖ <= ‖x‖/n."""
    queries, keys = points
    split = preprocess(queries, keys, vectors(300)[name], bandwidth=1.0, gamma=GAMMA)
    K = gaussian_kernel(queries, keys, 1.0)
    error = K @ split.x - split.y_H - K[:, split.T] @ split.x[split.T]
    assert np.linalg.norm(error) <= np.linalg.norm(split.x) / 300 * (1 + 1e-12) + 1e-12


def test_printed_bound_on_tiny_entries_fails():
    """E5: the proof's n^-3 per row is exceeded n² fold by n - 1 entries of size n^-2.

    Squared entries n^-4 are entries n^-2; where all kernel values are 1 they add to (n-1)/n² in
    each row.
    """
    n = 100
    x = np.full(n, n**-2.0)
    x[0] = np.sqrt(n - (n - 1) * n**-4.0)  # so that scaling leaves the others at n^-2
    x[1:] *= 1 - 1e-12
    points = np.zeros((n, 1))
    split = preprocess(points, points, x, bandwidth=1.0, gamma=GAMMA)
    assert len(split.H_2) == n - 1
    per_row = split.x[split.H_2].sum()
    assert per_row == pytest.approx((n - 1) / n**2, rel=1e-9)
    assert per_row > 1000 * n**-3.0


def test_zero_vector(points):
    queries, keys = points
    split = preprocess(queries, keys, np.zeros(300), bandwidth=1.0, gamma=GAMMA)
    assert len(split.T) == 0
    assert not split.y_H.any()
    assert split.norm_ratio == 0
