"""Spectral density, traces and log-determinants against all eigenvalues."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator
from scipy.stats import norm
from spectrum_cases import BANDWIDTH, CASES, Frozen, exact_eigenvalues

import approxkmv as akmv
from approxkmv.spectrum import logdet, spectral_density, trace
from approxkmv.spectrum.lanczos import gauss, radau, recurrence

# Estimates of this file are means over 40 vectors, and a truthful one is this many standard errors
# off with a probability of 1e-6; Student's t for 39 degrees of freedom is about a fifth wider.
SIGMAS = 1.25 * norm.isf(5e-7)


def kernel(case: str, n: int = 200) -> tuple[akmv.GaussianKernel, np.ndarray]:
    points = CASES[case](n)
    return akmv.GaussianKernel(points, bandwidth=BANDWIDTH), exact_eigenvalues(points)


@pytest.mark.parametrize("case", CASES)
def test_estimates_of_smooth_functions(case: str) -> None:
    """Trace of K, of K squared and the effective dimension, within their standard errors."""
    K, exact = kernel(case)
    density = spectral_density(K, n_probes=40, n_steps=60, rng=0)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1, atol=1e-9)
    for f in (lambda t: t, np.square, lambda t: t / (t + 1)):
        estimate = density.estimate(f)
        rounding = 1e-9 * np.abs(f(exact)).sum()
        assert abs(estimate.value - f(exact).sum()) <= SIGMAS * estimate.standard_error + rounding


def test_counts_of_eigenvalues_that_stand_apart() -> None:
    """Clusters of 1, 2, 3, ... points give eigenvalues 1, 2, 3, ... and many near 0."""
    K, exact = kernel("tight clusters")
    edges = [-1, 0.5, 5.5, 10.5, 1000]
    counts, errors = spectral_density(K, n_probes=40, n_steps=60, rng=0).counts(edges)
    expected = np.histogram(exact, edges)[0]
    assert (np.abs(counts - expected) <= SIGMAS * errors + 1e-6).all()
    assert counts.sum() == pytest.approx(200)


def test_identity_and_constant_have_no_spread() -> None:
    """One step, two steps: the recurrence ends by itself and the rule is exact."""
    K, _ = kernel("identity")
    density = spectral_density(K, n_probes=3, n_steps=10, rng=0)
    assert np.allclose(density.nodes[density.weights > 0], 1)
    assert density.estimate(np.square).standard_error < 1e-9
    K, _ = kernel("constant")
    nodes, weights = gauss(recurrence(K, np.random.default_rng(0).choice([-1.0, 1], (200, 4)), 10))
    assert np.isin(nodes[weights > 1e-9].round(6), [0, 200]).all()


def test_rules_are_exact_for_polynomials() -> None:
    """Gauss with m nodes up to degree 2m - 1, Radau with m + 1 nodes up to degree 2m."""
    K, _ = kernel("normal", 60)
    probes = np.random.default_rng(0).standard_normal((60, 2))
    rule, dense = recurrence(K, probes, 4), K.toarray()
    for (nodes, weights), degree in ((gauss(rule), 7), (radau(rule, -0.3), 8)):
        for power in range(degree + 1):
            moments = (weights * nodes**power).sum(axis=1)
            exact = np.einsum("ip,ip->p", probes, np.linalg.matrix_power(dense, power) @ probes)
            exact /= (probes**2).sum(axis=0)
            np.testing.assert_allclose(moments, exact, rtol=1e-9)
    assert np.allclose(radau(rule, -0.3)[0].min(axis=1), -0.3)


def test_trace_of_a_kernel_is_its_number_of_points() -> None:
    K, _ = kernel("normal", 77)
    found = trace(K)
    assert (found.value, found.standard_error) == (77.0, 0.0)


def test_trace_of_any_operator() -> None:
    dense = np.random.default_rng(1).standard_normal((80, 80))
    dense = dense + dense.T
    found = trace(aslinearoperator(dense), n_probes=40, rng=0)
    assert found.standard_error > 0
    assert abs(found.value - np.trace(dense)) <= SIGMAS * found.standard_error


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_logdet(case: str, noise: float) -> None:
    K, exact = kernel(case)
    found = logdet(K, noise=noise, n_probes=40, n_steps=100, rng=0)
    assert found.quadrature_error is not None
    assert found.operator_error is not None
    allowed = SIGMAS * found.standard_error + found.quadrature_error + found.operator_error
    assert abs(found.value - np.log(exact.clip(0) + noise).sum()) <= allowed + 1e-7 * 200
    assert found.operator_error < 1e-6


def test_logdet_bracket_holds_for_each_vector() -> None:
    """Too few steps: Gauss is above, Radau below z' log(K + noise) z, vector by vector."""
    K, _ = kernel("normal", 100)
    probes = np.random.default_rng(0).choice([-1.0, 1.0], (100, 5))
    values, vectors = np.linalg.eigh(K.toarray())
    exact = ((vectors.T @ probes) ** 2 * np.log(values + 0.01)[:, None]).sum(axis=0) / 100
    rule = recurrence(K, probes, 3)
    (nodes, weights), (low, low_weights) = gauss(rule), radau(rule, -0.001)
    above = (weights * np.log(nodes + 0.01)).sum(axis=1)
    below = (low_weights * np.log(low + 0.01)).sum(axis=1)
    assert (below < exact).all()
    assert (exact < above).all()


def test_logdet_of_a_sampled_operator() -> None:
    points = CASES["normal"](150)
    exact = np.log(exact_eigenvalues(points) + 0.5).sum()
    found = logdet(Frozen(points, eps=0.05), noise=0.5, n_probes=40, rng=0)
    assert found.quadrature_error is not None
    assert found.operator_error == pytest.approx(-150 * np.log(1 - 0.05 / 0.5))
    allowed = SIGMAS * found.standard_error + found.quadrature_error + found.operator_error
    assert abs(found.value - exact) <= allowed
    with pytest.raises(ValueError, match="noise must be larger than the error of the operator"):
        logdet(Frozen(points, eps=0.05), noise=0.05)


def test_float32_and_one_vector() -> None:
    K = akmv.GaussianKernel(CASES["normal"](100).astype(np.float32), bandwidth=1.0)
    found = logdet(K, noise=0.1, n_probes=40, rng=0)
    exact = np.linalg.slogdet(K.toarray().astype(np.float64) + 0.1 * np.eye(100))[1]
    assert found.operator_error is not None
    assert abs(found.value - exact) <= SIGMAS * found.standard_error + found.operator_error
    assert logdet(K, noise=0.1, n_probes=1, rng=0).standard_error == np.inf


def test_seed_pickle_print() -> None:
    K, _ = kernel("normal", 60)
    first, second = (spectral_density(K, rng=3) for _ in range(2))
    np.testing.assert_array_equal(first.nodes, second.nodes)
    assert str(pickle.loads(pickle.dumps(first))) == str(first)
    assert "60 eigenvalues" in str(first)
    estimate = logdet(K, noise=0.1, rng=3)
    assert pickle.loads(pickle.dumps(estimate)) == estimate
    assert "standard error" in str(estimate)


def test_bad_input() -> None:
    points = CASES["normal"](20)
    K = akmv.GaussianKernel(points, bandwidth=1.0)
    with pytest.raises(ValueError, match="noise must be a positive finite number, got 0"):
        logdet(K, noise=0)
    with pytest.raises(ValueError, match="n_probes must be at least 1, got 0"):
        spectral_density(K, n_probes=0)
    with pytest.raises(ValueError, match="n_steps must be at least 1, got -1"):
        trace(K, np.square, n_steps=-1)
    with pytest.raises(ValueError, match="kernel of one point set"):
        trace(akmv.GaussianKernel(points, points + 1, bandwidth=1.0))
    with pytest.raises(ValueError, match="at least one row"):
        spectral_density(akmv.GaussianKernel(points[:0], bandwidth=1.0))
    with pytest.raises(ValueError, match="K must have no negative eigenvalue below -noise"):
        logdet(aslinearoperator(-np.eye(5)), noise=0.5)
    with pytest.raises(TypeError, match="LinearOperator"):
        spectral_density(points)
