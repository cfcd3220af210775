"""The simpler algorithm: shared draws by x^2 and heavy sets (docs/simpler_algorithm.md)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom

from approxkmv.datasets import clusters
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.find_heavy import find_heavy, scan_all
from approxkmv.paper.shared_draws import (
    largest_mean,
    pilot_size,
    residual_frobenius_bound,
    shared_draws_matvec,
    shared_weights,
)


@pytest.fixture(scope="module")
def problem():
    queries, keys, bandwidth = clusters(300, 4, n_queries=200, rng=0, dtype=np.float64)
    return queries, keys, bandwidth, gaussian_kernel(queries, keys, bandwidth)


@pytest.fixture(scope="module")
def residual(problem):
    """Kernel with the pairs found heavy taken out, at a recall of 0.7."""
    queries, keys, bandwidth, K = problem
    heavy = find_heavy(
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=0.2,
        rng=np.random.default_rng(0),
        constants="paper",
        recall=0.7,
    )
    K_res = K.copy()
    K_res[heavy.rows, heavy.indices] = 0.0
    assert (K_res >= 0.2).any()  # some were missed
    return heavy, K_res


@pytest.mark.parametrize("kind", ["gaussian", "student", "ones"])
def test_error_has_mean_zero_and_the_variance_of_the_formula(residual, kind):
    """E|e|^2 = (|x|^2 F^2 - |K_res x|^2)/m exactly, for any x, at any recall.

    1,000 seeds: squared errors within 4 standard errors of the formula, and their mean vector, in
    the direction of the exact product, within 3 of zero.
    """
    _, K_res = residual
    rng = np.random.default_rng(1)
    n = K_res.shape[1]
    x = {
        "gaussian": rng.standard_normal(n),
        "student": rng.standard_t(2, n),
        "ones": np.ones(n),
    }[kind]
    m = 50
    errors = np.array([K_res @ (shared_weights(x, m, rng) - x) for _ in range(1000)])
    squared = (errors**2).sum(axis=1)
    formula = (x @ x * (K_res**2).sum() - ((K_res @ x) ** 2).sum()) / m
    assert abs(squared.mean() - formula) < 4 * squared.std(ddof=1) / np.sqrt(len(squared))
    along = errors @ (K_res @ x)
    assert abs(along.mean()) < 3 * along.std(ddof=1) / np.sqrt(len(along))


def test_frobenius_norm_is_below_threshold_times_sum(problem):
    """F^2 <= threshold * sum of K for what is left of the pairs found: where the assumption enters.

    A heavy pair that was not found would be above it here, since there are few of them.
    """
    queries, keys, bandwidth, K = problem
    for threshold in (0.5, 0.1, 0.01):
        heavy = scan_all(queries, keys, bandwidth=bandwidth, threshold=threshold)
        rest = K.copy()
        rest[heavy.rows, heavy.indices] = 0.0
        assert rest.max() < threshold
        assert 0 < (rest**2).sum() <= threshold * K.sum()


def test_bound_on_the_residual_holds_as_often_as_told(problem, residual):
    """The bound is above F^2 except with probability 0.1: 200 runs, threshold at 1e-6."""
    queries, keys, bandwidth, _ = problem
    heavy, K_res = residual
    exact = (K_res**2).sum()
    bounds = np.array(
        [
            residual_frobenius_bound(
                queries, keys, heavy, bandwidth, 3000, 0.1, np.random.default_rng(seed)
            )
            for seed in range(200)
        ]
    )
    assert np.count_nonzero(bounds < exact) <= binom.isf(1e-6, 200, 0.1)
    assert np.median(bounds) < 3 * exact + 60_000 * 2 * np.log(10) / 3000


def test_largest_mean_is_chernoff():
    """At the returned mean the divergence equals log(1/delta)/N, and it covers the binomial."""
    for mean, count in ((0.0, 50), (0.02, 1000), (0.3, 40)):
        u = largest_mean(mean, count, 0.01)
        kl = (1 - mean) * np.log((1 - mean) / (1 - u)) + (mean * np.log(mean / u) if mean else 0.0)
        assert kl == pytest.approx(np.log(100) / count, rel=1e-6)
        assert binom.cdf(round(mean * count), count, u) <= 0.01
    assert largest_mean(1.0, 10, 0.1) == 1.0


def test_guarantee_where_keys_are_really_drawn():
    """eps 0.5 and delta 0.2 with 6,000 keys: 30 runs, none computed exactly.

    Failures are at most a binomial count with probability 0.2; the threshold has a false-alarm
    probability of 1e-6. The light part alone is larger than eps.
    """
    check_guarantee(30)


@pytest.mark.slow
def test_guarantee_where_keys_are_really_drawn_over_many_runs():
    """As above, 300 runs."""
    check_guarantee(300)


def check_guarantee(n_runs):
    rng = np.random.default_rng(0)
    n, n_queries = 6000, 300
    queries = 0.1 * rng.standard_normal((n_queries, 6))
    keys = rng.standard_normal((n, 6))
    keys *= np.sqrt(2 * np.log(1 / 0.001)) / np.linalg.norm(keys, axis=1)[:, None]
    keys[:20] *= 0.1
    x = rng.choice([-0.2, 0.5, 1.3], n)
    K = gaussian_kernel(queries, keys, 1.0)
    light = np.where(n ** (-1 / 3) > K, K, 0.0) @ x
    assert np.linalg.norm(light) > 0.5 * np.linalg.norm(x)
    exact = K @ x
    failures = 0
    for seed in range(n_runs):
        y, info = shared_draws_matvec(
            queries, keys, x, bandwidth=1.0, eps=0.5, delta=0.2, rng=seed, return_info=True
        )
        assert not info.exact
        assert info.n_samples < n
        assert info.n_heavy_pairs > 0
        failures += np.linalg.norm(exact - y) > 0.5 * np.linalg.norm(x)
    assert failures <= binom.isf(1e-6, n_runs, 0.2)


@pytest.mark.parametrize("n", [1, 2, 50, 400])
def test_guarantee_at_small_sizes(n):
    """Every kind of vector, computed exactly where draws cost as much."""
    rng = np.random.default_rng(n)
    queries, keys, bandwidth = clusters(
        n, 3, n_queries=n + 3, mean_row_sum=None, rng=rng, dtype=np.float64
    )
    K = gaussian_kernel(queries, keys, bandwidth)
    for x in (np.ones(n), rng.standard_t(2, n), np.eye(n)[0], np.zeros(n)):
        for constants in ("practical", "paper"):
            y = shared_draws_matvec(
                queries, keys, x, bandwidth=bandwidth, eps=0.1, constants=constants, rng=0
            )
            assert np.linalg.norm(K @ x - y) <= 0.1 * np.linalg.norm(x)


def test_one_hot_vectors_are_exact():
    """One key carries all of x, so every draw is that key and the answer is its column."""
    rng = np.random.default_rng(0)
    points = 30 * rng.standard_normal((1500, 3))
    x = np.eye(1500)[17]
    y, info = shared_draws_matvec(
        points, points, x, bandwidth=1.0, eps=0.5, delta=0.2, rng=0, return_info=True
    )
    assert not info.exact
    assert info.light == 1500
    np.testing.assert_allclose(y, gaussian_kernel(points, points[17:18], 1.0)[:, 0], atol=1e-12)


def test_missed_heavy_pairs_are_drawn(problem, residual, monkeypatch):
    """With no heavy pair found the answer stays unbiased: 300 runs, 3 standard errors."""
    queries, keys, bandwidth, K = problem
    heavy, _ = residual
    none = dataclasses.replace(
        heavy,
        indptr=np.zeros(len(queries) + 1, np.int64),
        indices=np.empty(0, np.int64),
        values=np.empty(0),
    )
    monkeypatch.setattr("approxkmv.paper.shared_draws.find_heavy", lambda *_, **__: none)
    monkeypatch.setattr("approxkmv.paper.shared_draws.residual_frobenius_bound", lambda *_: 1.0)
    x = np.random.default_rng(2).standard_normal(len(keys))
    runs = np.array(
        [
            shared_draws_matvec(queries, keys, x, bandwidth=bandwidth, eps=0.5, delta=0.2, rng=seed)
            for seed in range(300)
        ]
    )
    along = runs @ (K @ x) / np.linalg.norm(K @ x)
    standard_error = along.std(ddof=1) / np.sqrt(len(along))
    assert standard_error > 0
    assert abs(along.mean() - np.linalg.norm(K @ x)) < 3 * standard_error


def test_pilot_size_balances_pairs_and_draws():
    """Halving or doubling the pilot never lowers pairs plus the draws its looseness costs."""
    m, n, eps, delta = 5000, 20_000, 0.3, 0.05

    def cost(pairs):
        return pairs + m * (m * n * np.log(1 / delta) / pairs) / (eps**2 * delta)

    best = pilot_size(m, n, eps, delta, delta)
    assert best < m * n
    assert cost(best) <= min(cost(best / 2), cost(2 * best))


def test_info_counts_are_integers():
    points = 30 * np.random.default_rng(0).standard_normal((1500, 3))
    _, info = shared_draws_matvec(
        points, points, np.ones(1500), bandwidth=1.0, eps=0.5, delta=0.2, rng=0, return_info=True
    )
    for count in (info.hash, info.scan, info.pilot, info.light, info.n_samples):
        assert type(count) is int
    assert info.pairs == info.scan + info.pilot + info.light
    assert info.light < 1500**2
