"""Chi-squared limits, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chi2

from approxkmv.engine.statistics import chi_square_quantile, spread


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


@pytest.mark.parametrize("degrees", [1.0, 1.3, 2.0, 17.5, 256.0, 1000.0])
def test_quantiles_of_chi_square(degrees: float) -> None:
    for probability in (1e-3, 0.5, 0.95, 0.999, 1 - 1e-6):
        want = chi2.ppf(probability, degrees)
        # Next to 1 fewer digits of the probability tell.
        digits = 1e-8 + 1e-13 / (1 - probability)
        np.testing.assert_allclose(chi_square_quantile(degrees, probability), want, rtol=digits)
    assert chi_square_quantile(degrees, 1.0) == np.inf
