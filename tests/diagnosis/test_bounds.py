"""Confidence bounds for means: they hold, and they are not much wider than they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from approxkmv.diagnosis.bounds import lower_mean, upper_mean

DELTA = 0.05
DRAWS = {
    "uniform": (lambda rng, n: rng.random(n), 0.5, 1.0),
    "coin": (lambda rng, n: (rng.random(n) < 0.02).astype(float), 0.02, 1.0),
    "rare and large": (lambda rng, n: 50.0 * (rng.random(n) < 0.01) + 1.0, 1.5, 51.0),
    "nearly constant": (lambda rng, n: 3 + 0.01 * rng.random(n), 3.005, 100.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_bounds_hold(name: str) -> None:
    """Each bound fails in at most 5 % of samples: not more often than chance allows at 1e-6."""
    draw, mean, ceiling = DRAWS[name]
    rng = np.random.default_rng(0)
    n_runs = 60
    low = high = 0
    for _ in range(n_runs):
        sample = draw(rng, 400)
        low += lower_mean(sample, DELTA) > mean
        high += upper_mean(sample, lambda m: ceiling, DELTA) < mean
    allowed = stats.binom.isf(1e-6, n_runs, DELTA)
    assert max(low, high) <= allowed


def test_width_is_near_that_of_the_normal_law() -> None:
    """Below twice the normal width, where a bound from the range alone is five times as wide."""
    sample = np.random.default_rng(1).beta(12, 12, 2000)  # standard deviation 0.1
    half = 0.1 * math.sqrt(2 * math.log(1 / DELTA) / 2000)
    assert 0 < sample.mean() - lower_mean(sample, DELTA) < 2 * half
    assert 0 < upper_mean(sample, lambda m: 1.0, DELTA) - sample.mean() < 2 * half


def test_more_samples_and_less_confidence_are_narrower() -> None:
    sample = np.random.default_rng(2).random(4000)
    assert lower_mean(sample[:400], DELTA) < lower_mean(sample, DELTA)
    assert lower_mean(sample, 0.001) < lower_mean(sample, 0.1) < sample.mean()
    highs = [upper_mean(sample, lambda m: 1.0, delta) for delta in (0.001, 0.1)]
    assert highs[0] > highs[1] > sample.mean()


def test_a_ceiling_that_grows_with_the_mean() -> None:
    """A larger possible mean allows larger values, so the bound is wider than for a fixed one."""
    sample = np.random.default_rng(3).random(500)
    fixed = upper_mean(sample, lambda m: 1.0, DELTA)
    growing = upper_mean(sample, lambda m: math.sqrt(400 * m), DELTA)
    assert fixed < growing < math.inf


def test_nothing_but_zeros() -> None:
    """The lower bound is 0, the upper one the largest mean that 0 hits leave possible."""
    zeros = np.zeros(1000)
    assert lower_mean(zeros, DELTA) == 0
    high = upper_mean(zeros, lambda m: 1.0, DELTA)
    # A coin of this chance would show 0 heads in 1000 with probability delta at best.
    assert 1 - DELTA ** (1 / 1000) <= high < 0.02


def test_upper_bound_below_the_largest_value_seen() -> None:
    """Where the sample itself says that the ceiling, and so the mean, is larger."""
    sample = np.append(np.zeros(50), 30.0)
    bound = upper_mean(sample, lambda m: math.sqrt(100 * m), DELTA)
    assert math.sqrt(100 * bound) >= 30
