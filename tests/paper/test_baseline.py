"""The algorithms of Backurs, Indyk, Musco and Wagner (2021)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper import baseline
from approxkmv.paper.baseline import (
    kernel_noisy_power_method,
    kernel_sum,
    nonnegative_matvec,
    subset_size,
    sum_from_subset,
)
from approxkmv.paper.density import LevelSets, UniformSampling


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).standard_normal((400, 3))


@pytest.fixture(scope="module")
def K(points):  # noqa: N802
    return gaussian_kernel(points, points, 0.5)


def vectors(n):
    rng = np.random.default_rng(1)
    return {
        "ones": np.ones(n),
        "one-hot": np.eye(n)[n // 3],
        "uniform": rng.random(n),
        "heavy": np.abs(rng.standard_t(1.5, n)),
        "wide": np.exp(rng.normal(0, 6, n)),
    }


@pytest.mark.parametrize("name", vectors(2))
@pytest.mark.parametrize("eps", [0.05, 0.5, 1.0])
def test_product_is_within_eps_of_the_product_and_from_above(points, K, name, eps):
    """0 <= y - Kx, and its norm is at most eps norms of Kx."""
    x = vectors(400)[name]
    result = nonnegative_matvec(points, points, x, bandwidth=0.5, eps=eps, rng=0)
    exact = K @ x
    assert (result.y >= exact * (1 - 1e-12)).all()
    assert np.linalg.norm(result.y - exact) <= eps * np.linalg.norm(exact)
    assert result.n_dropped == np.count_nonzero(x <= eps / 4 * np.linalg.norm(x) / 400**1.5)


def cloud(n):
    """Points whose kernel values are about 0.1, and one each on the diagonal."""
    points = 0.31 * np.random.default_rng(0).standard_normal((n, 24))
    return points, gaussian_kernel(points, points, 1.0)


def alive(n, seed, density):
    """A product with nothing exact, under its own floors; its relative errors."""
    points, K = cloud(n)
    x = np.random.default_rng(1).choice([0.5, 1.0, 0.0], n, p=[0.4, 0.5, 0.1])
    result = nonnegative_matvec(
        points,
        points,
        x,
        bandwidth=1.0,
        eps=1.0,
        delta=0.1,
        density=density,
        never_exact=True,
        rng=seed,
    )
    assert result.n_exact_densities == 0
    assert result.n_buckets == 2
    # more than one draw for each pair: the floor is about eps/n, and the price is what it is
    assert result.kernel_evaluations > n**2
    exact = K @ x
    return (result.y - exact) / np.linalg.norm(exact), result


def test_product_samples_under_its_own_floor():
    """Uniform draws, as many as its own floors ask for: 12 runs, delta 0.1, threshold at 1e-6."""
    errors = [alive(24, seed, UniformSampling.for_accuracy)[0] for seed in range(12)]
    failures = sum((e < 0).any() or np.linalg.norm(e) > 1.0 for e in errors)
    assert failures <= binom.isf(1e-6, 12, 0.1)
    assert np.std(errors, axis=0).min() > 1e-6  # every row has noise


def test_product_with_level_sets_alive():
    """The default structure, nothing exact: hashes are computed, and y is above Kx within eps."""
    first, result = alive(8, 0, LevelSets.for_accuracy)
    assert result.hashes > 0
    assert (first > 0).all()
    assert np.linalg.norm(first) <= 1.0
    assert (first != alive(8, 1, LevelSets.for_accuracy)[0]).all()


def test_power_method_has_noise():
    """Every product sampled: the eigenvalue is still within eps, and differs between seeds."""
    points, K = cloud(10)
    exact = np.linalg.eigvalsh(K)[-1]
    tops = [
        kernel_noisy_power_method(
            points,
            bandwidth=1.0,
            eps=1.0,
            delta=0.1,
            density=UniformSampling.for_accuracy,
            never_exact=True,
            rng=seed,
        )
        for seed in range(3)
    ]
    for top in tops:
        assert top.n_exact_densities == 0
        assert top.kernel_evaluations > top.n_iterations * 10**2
        assert 0 < top.eigenvalue / exact - 1 <= 1.0  # the noise is not negative
    assert len({top.eigenvalue for top in tops}) == 3


def test_negative_entries_are_refused(points):
    with pytest.raises(ValueError, match="x must have no negative entries"):
        nonnegative_matvec(points, points, -np.ones(400), bandwidth=1.0, eps=0.1)


def test_zero_vector(points):
    result = nonnegative_matvec(points, points, np.zeros(400), bandwidth=1.0, eps=0.1)
    np.testing.assert_array_equal(result.y, 0.0)


def test_the_unit_diagonal_is_needed(points):
    """E11: with queries far from the keys, |Kx| < |x| and the error exceeds eps |Kx|.

    With one point set |Kx| >= |x| for every non-negative x.
    """
    far = points + 100.0
    x = np.ones(400)
    result = nonnegative_matvec(far, points, x, bandwidth=0.5, eps=0.1, rng=0)
    exact = gaussian_kernel(far, points, 0.5) @ x
    assert np.linalg.norm(exact) < np.linalg.norm(x)
    assert np.linalg.norm(result.y - exact) > 0.1 * np.linalg.norm(exact)
    assert np.linalg.norm(result.y - exact) <= 0.1 * np.linalg.norm(x)


def test_unit_diagonal_makes_products_long(K):
    for x in vectors(400).values():
        assert np.linalg.norm(K @ x) >= np.linalg.norm(x)


@pytest.mark.parametrize(("eps", "n_starts"), [(0.1, 1), (0.3, 4)])
def test_top_eigenvalue(points, K, eps, n_starts):
    """Within eps of the largest eigenvalue of 100 points, from each start."""
    points, K = points[:100], K[:100, :100]
    exact = np.linalg.eigvalsh(K)[-1]
    for seed in range(n_starts):
        top = kernel_noisy_power_method(points, bandwidth=0.5, eps=eps, rng=seed)
        assert abs(top.eigenvalue / exact - 1) <= eps
        assert top.n_iterations == math.ceil(math.log(100 / eps) / eps)
        assert top.kernel_evaluations == top.n_iterations * 100**2
        assert top.eigenvector @ K @ top.eigenvector >= (1 - eps) * exact


def test_top_eigenvalue_of_two_clusters():
    """Two clusters of 30 and 20 equal points: eigenvalues 30 and 20, from any start."""
    points = np.concatenate([np.zeros((30, 1)), np.full((20, 1), 100.0)])
    top = kernel_noisy_power_method(points, bandwidth=1.0, eps=0.1, rng=2)
    assert abs(top.eigenvalue / 30 - 1) <= 0.1


def test_sum_from_a_subset_has_the_mean_and_variance_of_the_formulae(points, K):
    """4,000 subsets at rate 0.1: mean within 3, variance within 4 standard errors.

    Variance: 4 (1/p - 1) sum_i (r_i^2 - sum_j K_ij^2) + 2 (1/p^2 - 1) sum K_ij^2 over i != j.
    """
    rate = 0.1
    rng = np.random.default_rng(0)
    runs = np.array([sum_from_subset(points, 0.5, rate, rng)[0] for _ in range(4000)])
    standard_error = runs.std(ddof=1) / np.sqrt(len(runs))
    assert abs(runs.mean() - K.sum()) < 3 * standard_error
    off = K - np.eye(400)
    squares = (off**2).sum()
    row = off.sum(axis=1)
    variance = 4 * (1 / rate - 1) * ((row**2).sum() - squares) + 2 * (1 / rate**2 - 1) * squares
    deviation = (runs - K.sum()) ** 2
    assert abs(deviation.mean() - variance) < 4 * deviation.std(ddof=1) / np.sqrt(len(runs))
    # and the bound the subset size is chosen by
    n, size = 400, rate * 400
    assert variance / K.sum() ** 2 <= 4 * math.sqrt(n) / size + 2 * n / size**2


def test_kernel_sum_is_within_eps():
    """20,000 points, subsets really drawn: 30 runs, delta 0.1, binomial threshold at 1e-6."""
    points = 20 * np.random.default_rng(0).standard_normal((20_000, 2))
    ones = np.ones(len(points))
    exact = float(baseline.product(points, points, ones, 1.0).sum())
    failures = 0
    for seed in range(30):
        result = kernel_sum(points, bandwidth=1.0, eps=0.9, delta=0.1, rng=seed)
        assert result.n_samples < 20_000
        assert result.kernel_evaluations < 20_000**2
        failures += abs(result.value / exact - 1) > 0.9
    assert failures <= binom.isf(1e-6, 30, 0.1)


def test_kernel_sum_is_exact_where_subsets_cost_as_much(points, K):
    result = kernel_sum(points, bandwidth=0.5, eps=0.1, rng=0)
    assert result.kernel_evaluations == 400**2
    assert result.value == pytest.approx(K.sum(), rel=1e-12)


def test_subset_size_grows_like_the_root():
    assert subset_size(4 * 10**10, 0.5, 0.1) == pytest.approx(
        2 * subset_size(10**10, 0.5, 0.1), rel=1e-5
    )


def test_default_structure_is_level_sets():
    """Only tables count hashes, and exact densities and uniform draws have none."""
    points = np.zeros((3, 2))
    result = nonnegative_matvec(
        points, points, np.ones(3), bandwidth=1.0, eps=1.0, never_exact=True, rng=0
    )
    assert result.hashes > 0


def test_dropped_entries_are_bounded_from_above():
    """Equal points, one entry of 1 and the rest just small enough to drop: y still covers them."""
    n, eps = 200, 0.5
    x = np.full(n, 0.99 * eps / 4 / n**1.5)
    x[0] = 1.0
    points = np.zeros((n, 2))
    result = nonnegative_matvec(points, points, x, bandwidth=1.0, eps=eps, rng=0)
    assert result.n_dropped == n - 1
    assert (result.y >= x.sum() * (1 - 1e-12)).all()
    assert (result.y <= (1 + eps) * x.sum()).all()
