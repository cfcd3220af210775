"""Median of means: the stated failure probability is kept by the worst distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from approxkmv.paper.median_of_means import MedianOfMeans


@pytest.mark.parametrize("failure", [0.1, 1e-3, 1e-8])
def test_cheapest_keeps_its_failure_probability(failure):
    sizes = MedianOfMeans.cheapest(failure)
    assert sizes.failure_probability <= failure
    assert sizes.n_groups % 2 == 1


def test_group_size_makes_chebyshev_hold():
    sizes = MedianOfMeans(0.1, 5)
    for variance, tolerance in ((3.0, 0.5), (0.2, 0.01), (1e-9, 1.0)):
        size = sizes.group_size(variance, tolerance)
        assert size >= 1
        assert variance / size / tolerance**2 <= 0.1 or size == 1


def test_failures_of_a_skewed_variable_are_as_rare_as_told():
    """Rare large values, Chebyshev's worst case: failures over 4000 medians are at most binomial.

    A variable that is 1/p with probability p and else 0 has variance 1/p - 1. The largest count
    allowed has a false-alarm probability of 1e-6 if medians fail with probability 0.05.
    """
    rng = np.random.default_rng(0)
    p, tolerance = 0.02, 0.8
    sizes = MedianOfMeans.cheapest(0.05)
    size = sizes.group_size(1 / p - 1, tolerance)
    means = rng.binomial(size, p, (4000, sizes.n_groups)) / (size * p)
    failures = np.count_nonzero(np.abs(np.median(means, axis=1) - 1) > tolerance)
    assert failures <= binom.isf(1e-6, 4000, 0.05)
