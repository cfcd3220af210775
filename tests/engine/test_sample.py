"""Draws: probabilities, unbiasedness, and the estimate of their variance.

Means over many streams are compared within z standard errors, z being the normal quantile at which
all comparisons of a test together fail by chance with probability 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered, inclusion
from scipy.stats import binom, chi2, norm

from approxkmv.engine.pilot import run_pilot
from approxkmv.engine.sample import draw, spread
from approxkmv.exact import prepare
from approxkmv.leaves import DrawPlan, FoundPairs, sampled_product

N_STREAMS = 600


def z_of(n_comparisons: int) -> float:
    return float(norm.isf(0.5e-6 / n_comparisons))


def plan_of(case: Case, rate: np.ndarray, stream: int) -> DrawPlan:
    return DrawPlan(
        case.query_blocks.order,
        case.query_blocks.start,
        case.key_tiles.order,
        case.key_tiles.start,
        rate.astype(np.float32),
        11,
        stream,
    )


def uneven_rates(case: Case, level: float) -> np.ndarray:
    shape = (len(case.query_blocks.sizes), len(case.key_tiles.sizes))
    rates = level * np.random.default_rng(5).uniform(0.5, 2.0, shape)
    return rates.astype(np.float32).astype(np.float64)


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
        plan = DrawPlan(order, start, order, start, rate, 3, stream)
        y = sampled_product(kernel.geometry, plan, FoundPairs.none(n), x, n_threads=1).out
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
        [
            sampled_product(case.geometry, plan_of(case, rate, s), found, x, n_threads=1).out
            for s in range(N_STREAMS)
        ]
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
def test_variance_estimate_is_unbiased(recall: float) -> None:
    """Its mean over 600 streams is the sum of (1/pi - 1) K^2 x^2 over pairs that were not found,
    within 4 standard errors in every block; and it is the mean squared error where the signs of x
    are random (draws of one tile exclude each other: with one sign the error is smaller)."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(2)
    size = np.exp(0.5 * rng.standard_normal(240))
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    pi = inclusion(case, rate, size)
    terms = (1 / pi - 1) * case.K**2 * size**2
    terms[found.rows, found.cols] = 0
    per_row = terms.sum(axis=1)
    want = np.bincount(case.query_blocks.block_of, per_row)
    estimates, errors = [], []
    for stream in range(N_STREAMS):
        x = size * rng.choice([-1.0, 1.0], 240)
        sums = sampled_product(case.geometry, plan_of(case, rate, stream), found, x, n_threads=1)
        estimates.append(sums.variance)
        error = (sums.out - case.K @ x) ** 2
        errors.append(np.bincount(case.query_blocks.block_of, error))
    for values in (np.array(estimates), np.array(errors), np.subtract(estimates, errors)):
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
        expected = 0.0 if (values < 0).any() else want
        assert (np.abs(values.mean(axis=0) - expected) <= 4 * standard_error + 1e-6 * want).all()
        assert (standard_error < 0.2 * want).all()


def test_one_sign_makes_the_error_smaller_not_larger() -> None:
    """Systematic draws of keys of one sign: mean squared error at most the estimate's mean."""
    case = clustered(m=120, n=240, rows_per_block=40)
    x, rate = np.ones(240), uneven_rates(case, 0.3)
    difference = []
    for stream in range(N_STREAMS):
        sums = sampled_product(
            case.geometry, plan_of(case, rate, stream), FoundPairs.none(120), x, n_threads=1
        )
        difference.append(((sums.out - case.K @ x) ** 2).sum() - sums.variance.sum())
    standard_error = np.std(difference, ddof=1) / np.sqrt(N_STREAMS)
    assert np.mean(difference) <= 4 * standard_error


@pytest.mark.parametrize("n_blocks", [1, 2, 10, 200])
def test_spread_of_equal_blocks(n_blocks: int) -> None:
    """Equal variances: the upper quantile of chi-square over its mean, with that many degrees."""
    got = spread(np.full(n_blocks, 3.7), 0.05)
    assert got == pytest.approx(chi2.ppf(0.95, n_blocks) / n_blocks)


def test_spread_covers_unequal_blocks() -> None:
    """Squared sums of normal errors exceed it about as often as delta says: at most 1.3 times."""
    rng = np.random.default_rng(0)
    n, delta = 20_000, 0.05
    for variances in (np.array([1.0, 0.1, 0.1]), rng.exponential(size=30)):
        squares = (rng.standard_normal((n, len(variances))) ** 2) @ variances
        above = int((squares > variances.sum() * spread(variances, delta)).sum())
        assert above <= binom.isf(1e-6, n, 1.3 * delta)
        assert above >= binom.ppf(1e-6, n, 0.5 * delta)


def test_spread_of_nothing() -> None:
    assert spread(np.zeros(4), 0.05) == 1.0
    assert spread(np.array([0.0, 2.0]), 1 - 1e-9) == 1.0  # never below 1


@pytest.mark.parametrize("level", [0.2, 1e60])
def test_draw(level: float) -> None:
    """Pilot rows are exact in the answer and check it; rates beyond float32 mean certainty."""
    case = clustered()
    x = np.random.default_rng(0).standard_normal(400)
    pilot = run_pilot(
        case.geometry,
        x,
        case.query_blocks,
        case.key_tiles,
        rows_per_block=4,
        threshold=0.05,
        rng=np.random.default_rng(0),
        n_threads=1,
    )
    rate = uneven_rates(case, 1.0) * level
    found = case.pairs(0.1)
    sample = draw(
        case.geometry,
        found,
        x,
        rate,
        case.query_blocks,
        case.key_tiles,
        pilot,
        delta=0.05,
        seed=1,
        stream=0,
        n_threads=1,
    )
    exact = case.K @ x
    np.testing.assert_array_equal(sample.y[pilot.rows], pilot.products)
    if level > 1:
        np.testing.assert_allclose(sample.y, exact, atol=1e-5)
        assert sample.variance == sample.upper == 0
        assert sample.checked < 1e-9
        assert sample.pairs == case.K.size
        return
    assert sample.upper > sample.variance > 0
    plain = sampled_product(
        case.geometry, plan_of(case, rate, 0)._replace(seed=1), found, x, n_threads=1
    )
    assert sample.variance == pytest.approx(plain.variance.sum())
    off = (plain.out - exact)[pilot.rows] ** 2
    weight = case.query_blocks.sizes[pilot.block_of] / 4
    assert sample.checked == pytest.approx((off * weight).sum(), rel=1e-4)
    assert sample.pairs == (plain.n_drawn * case.query_blocks.sizes).sum()
