"""Errata that concern a claim of the paper rather than one function (docs/errata.md)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.assumption import kernel_constant, prefix_constants
from approxkmv.paper.parameters import Parameters
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
    """Halving eps quadruples the repetitions of a row, so n^(2+γ-α) carries 1/ε² too."""
    coarse, fine = Parameters.printed(1000, 0.2), Parameters.printed(1000, 0.1)
    assert fine.n_repetitions(2.0) == pytest.approx(4 * coarse.n_repetitions(2.0), rel=1e-6)


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
    """Points divided by 10^(1/4) each have scores divided by √10, not by √d = 10."""
    q, k = np.random.default_rng(2).standard_normal((2, 100))
    scaled = (q / 10**0.25) @ (k / 10**0.25)
    assert scaled == pytest.approx(q @ k / math.sqrt(10))
    assert scaled != pytest.approx(q @ k / math.sqrt(100))


def test_e24_pooling_the_pilot_is_biased():
    """Taking more samples where the pilot looked variable, and pooling, shrinks skewed means.

    Lognormal samples, pilot of 8, 4 more if its variance is above the true one. Over 400,000 rows
    the pooled mean is off by more than 10 standard errors; decided by an independent pilot, by
    less than 4.
    """
    rng = np.random.default_rng(3)
    rows = 400_000
    truth, variance = math.exp(0.5), (math.e - 1) * math.e
    pilot, extra = rng.lognormal(size=(rows, 8)), rng.lognormal(size=(rows, 4))
    other = rng.lognormal(size=(rows, 8))

    def pooled(decide):
        more = decide.var(axis=1, ddof=1) > variance
        longer = (pilot.sum(axis=1) + extra.sum(axis=1)) / 12
        means = np.where(more, longer, pilot.mean(axis=1))
        return (means.mean() - truth) / (means.std() / math.sqrt(rows))

    assert pooled(pilot) < -10
    assert abs(pooled(other)) < 4


def test_e27_absolute_error_can_be_vacuous_for_attention():
    """Long queries shrink rows of K: then y = 0 is within eps for every x, and says nothing."""
    rng = np.random.default_rng(4)
    q, k = 3 * rng.standard_normal((40, 16)), rng.standard_normal((40, 16))
    g = attention_to_gaussian(q, k)
    K = gaussian_kernel(g.queries, g.keys, g.bandwidth)
    assert np.linalg.norm(K, 2) < 0.1
    softmax = K / K.sum(axis=1, keepdims=True)
    assert np.linalg.norm(softmax, 2) > 0.9
