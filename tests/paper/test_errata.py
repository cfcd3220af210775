"""Errata that concern a claim of the paper rather than one function (docs/errata.md)."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
from whole import Whole

from approxkmv.exact import gaussian_kernel
from approxkmv.experiments.fig5.contestants import numpy_exact, word_problem
from approxkmv.paper.approx_kmv import approx_kmv
from approxkmv.paper.assumption import kernel_constant, prefix_constants
from approxkmv.paper.parameters import PaperConstants
from approxkmv.paper.reduction import attention_to_gaussian


def test_e11_product_may_be_shorter_than_x():
    """‖Kx‖ >= ‖x‖ for x >= 0 needs the unit diagonal of queries = keys."""
    rng = np.random.default_rng(0)
    keys, x = rng.standard_normal((50, 3)), rng.random(50)
    symmetric = gaussian_kernel(keys, keys, 1.0)
    assert np.linalg.norm(symmetric @ x) >= np.linalg.norm(x)
    shifted = gaussian_kernel(keys + 8.0, keys, 1.0)
    assert np.linalg.norm(shifted @ x) < 1e-6 * np.linalg.norm(x)


def test_e12_light_samples_carry_eps_squared():
    """Halving eps quadruples the draws of a run, so n^(2+γ-α) carries 1/ε² too."""
    problem, few = Whole(64), PaperConstants(tables=1, medians=1, repetitions=1, density_medians=1)
    coarse, fine = (problem.run(0, eps=eps, constants=few)[1].light for eps in (1.6, 0.8))
    assert fine == pytest.approx(4 * coarse, rel=0.2)


def test_where_the_assumption_fails_everything_is_computed():
    """Limitation: all entries of K alike, c = n - 1. The answer is right, and costs n^2 and more.

    With 16 times as many points the mean of a row does not fall, so no row is ever light enough.
    """
    for n in (64, 1024):
        points = 0.01 * np.random.default_rng(0).standard_normal((n, 3))
        x = np.random.default_rng(1).standard_normal(n)
        assert kernel_constant(points, points, 1.0).c == pytest.approx(n - 1, rel=1e-3)
        y, info = approx_kmv(points, points, x, bandwidth=1.0, eps=0.3, rng=0, return_info=True)
        assert info.n_heavy_pairs == n * n
        assert info.pairs > n * n
        exact = gaussian_kernel(points, points, 1.0) @ x
        assert np.linalg.norm(exact - y) <= 1e-9 * np.linalg.norm(x)


def test_e19_longest_key_does_not_matter_to_c():
    """Lifting with the longest key of the prefix, or of the whole input, gives one constant."""
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 60, 8))
    k[-1] *= 5  # the longest key is outside the prefix
    whole, prefix = attention_to_gaussian(q, k), attention_to_gaussian(q[:40], k[:40])
    sliced = prefix_constants(whole.queries, whole.keys, whole.bandwidth, i_min=40)[0]
    own = kernel_constant(prefix.queries, prefix.keys, prefix.bandwidth).c
    assert sliced == pytest.approx(own, rel=1e-9)


def test_e23_two_readings_of_the_runtime_scale():
    """Figure 5 runs both: scores over sqrt(d) = 10 as printed, over sqrt(10) as the demonstration.

    The demonstration divides points by 10^(1/4), which the contestants see as a scale of scores.
    """
    text = files("approxkmv.experiments").joinpath("fig5/settings.json").read_text(encoding="utf-8")
    scalings = json.loads(text)["scalings"]
    vectors = np.random.default_rng(2).standard_normal((2 * 40, 100)).astype(np.float32)
    answers = {}
    for name, scale in scalings.items():
        problem = word_problem(vectors, 40, 1, 40, scale)
        answers[name] = numpy_exact(problem)[0]
    divided = vectors[:40].astype(float) / 10**0.25
    weights = np.exp(divided @ divided.T)
    np.testing.assert_allclose(
        answers["1/sqrt(10)"], weights @ vectors[40:, 1] / weights.sum(axis=1), rtol=2e-3, atol=1e-4
    )
    assert set(scalings) == {"1/sqrt(d)", "1/sqrt(10)"}
    assert np.abs(answers["1/sqrt(d)"] - answers["1/sqrt(10)"]).max() > 0.01


def test_e27_absolute_error_can_be_vacuous_for_attention():
    """Long queries shrink rows of K: then y = 0 is within eps for every x, and says nothing."""
    rng = np.random.default_rng(4)
    q, k = 3 * rng.standard_normal((40, 16)), rng.standard_normal((40, 16))
    g = attention_to_gaussian(q, k)
    K = gaussian_kernel(g.queries, g.keys, g.bandwidth)
    assert np.linalg.norm(K, 2) < 0.1
    softmax = K / K.sum(axis=1, keepdims=True)
    assert np.linalg.norm(softmax, 2) > 0.9
