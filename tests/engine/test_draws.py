"""Draws: probabilities, unbiasedness, and the estimate of their variance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draw_cases import N_STREAMS, plan_of, product_of, uneven_rates, z_of
from engine_cases import clustered, inclusion
from scipy.stats import binom

from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import DrawPlan, FoundPairs


def test_inclusion_probabilities(dtype: Any) -> None:
    """A key is drawn with probability min(1, rate |x|), whatever its neighbours are.

    Queries equal keys a hundred bandwidths apart, so that an entry of the product is not 0 if and
    only if the row's own key was drawn. Counts over the streams are binomial.
    """
    n, n_streams = 120, 1000
    points = 100.0 * np.arange(n, dtype=dtype)[:, None]
    kernel = prepare(points, points, 1.0, differences=True)
    x = np.random.default_rng(0).standard_t(2, n).astype(dtype)
    x[:5] = 0
    order = np.arange(n, dtype=np.int32)
    start = np.array([0, 31, 32, n], np.int64)
    rate = np.array([[0.3, 0.5, 0.7], [1e-3, 2.0, 0.1], [0.05, 0.2, 0.9]], np.float32)
    block_of = np.repeat([0, 1, 2], np.diff(start))
    pi = np.minimum(1.0, rate.astype(np.float64)[block_of, block_of] * np.abs(x))
    drawn = np.zeros(n, np.int64)
    for stream in range(n_streams):
        plan = DrawPlan(order, start, order, start, rate, np.abs(x), 3, stream)
        y = product_of(kernel.geometry, plan, FoundPairs.none(n), x)
        hit = y != 0
        drawn += hit
        np.testing.assert_allclose(y[hit], x[hit] / pi[hit], rtol=1e-5)
    low = binom.ppf(0.5e-6 / n, n_streams, pi)
    high = binom.isf(0.5e-6 / n, n_streams, pi)
    assert ((low <= drawn) & (drawn <= high)).all()
    assert (drawn[pi == 1] == n_streams).all()
    assert (pi == 1).any()
    standard_error = np.sqrt(n_streams * pi * (1 - pi))
    within = np.abs(drawn - n_streams * pi) <= 4 * standard_error + 1e-9
    assert within[n_streams * pi * (1 - pi) > 20].all()


@pytest.mark.parametrize("recall", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("signed", [False, True])
def test_products_are_unbiased(recall: float, signed: bool) -> None:
    """The mean over 600 streams is K x in every row, whatever share of the near pairs is found."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(1)
    x = rng.standard_normal(240) if signed else np.ones(240)
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    samples = np.stack(
        [product_of(case.geometry, plan_of(case, rate, x, s), found, x) for s in range(N_STREAMS)]
    )
    error = samples.mean(axis=0) - case.K @ x
    standard_error = samples.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
    # Found values are kept in float32.
    rounding = 1e-6 * (case.K @ np.abs(x))
    assert (np.abs(error) <= z_of(120) * standard_error + rounding).all()
    assert standard_error.max() > 1e-3
    # All rows at once: the squared length of the mean error is its expectation or so.
    assert (error**2).sum() <= 4 * (standard_error**2).sum()


@pytest.mark.parametrize("recall", [0.0, 0.5])
def test_estimates_are_unbiased(recall: float) -> None:
    """Over pairs that were not found, the variance is the sum of (1/pi - 1) K^2 x^2 on average over
    600 streams, and the mass that of (1 - pi) K^2 x^2, in every row; and the variance is the
    mean squared error where the signs of x are random (draws of one tile exclude each other: with
    one sign the error is smaller)."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(2)
    size = np.exp(0.5 * rng.standard_normal(240))
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    pi = inclusion(case, rate, size)
    squares = case.K**2 * size**2
    squares[found.rows, found.cols] = 0
    variance, mass = ((1 / pi - 1) * squares).sum(axis=1), ((1 - pi) * squares).sum(axis=1)
    variances, masses, errors = [], [], []
    for stream in range(N_STREAMS):
        x = size * rng.choice([-1.0, 1.0], 240)
        plan = plan_of(case, rate, x, stream)
        sums = Compiled(1).sampled_product(
            case.geometry,
            plan,
            found,
            x[:, None],
        )
        variances.append(sums.variance)
        masses.append(sums.mass)
        errors.append((sums.out[:, 0] - case.K @ x) ** 2)
    # Found values are kept in float32.
    rounding = 1e-6 * ((1 / pi - 1) * case.K**2 * size**2).sum(axis=1)
    for values, want in (
        (np.array(variances), variance),
        (np.array(masses), mass),
        (np.array(errors), variance),
        (np.subtract(variances, errors), np.zeros(120)),
    ):
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
        off = np.abs(values.mean(axis=0) - want)
        assert (off <= z_of(120) * standard_error + rounding).all()
        # All rows at once are known to a few hundredths.
        total = values.sum(axis=1)
        standard_error = total.std(ddof=1) / np.sqrt(N_STREAMS)
        assert abs(total.mean() - want.sum()) <= z_of(1) * standard_error + rounding.sum()
        assert standard_error < 0.1 * variance.sum()


def test_one_sign_makes_the_error_smaller_not_larger() -> None:
    """Systematic draws of keys of one sign: mean squared error at most the estimate's mean."""
    case = clustered(m=120, n=240, rows_per_block=40)
    x, rate = np.ones(240), uneven_rates(case, 0.3)
    difference = []
    for stream in range(N_STREAMS):
        plan, none = plan_of(case, rate, x, stream), FoundPairs.none(120)
        sums = Compiled(1).sampled_product(
            case.geometry,
            plan,
            none,
            x[:, None],
        )
        difference.append(((sums.out[:, 0] - case.K @ x) ** 2).sum() - sums.variance.sum())
    standard_error = np.std(difference, ddof=1) / np.sqrt(N_STREAMS)
    assert np.mean(difference) <= 4 * standard_error
