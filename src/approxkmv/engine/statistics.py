"""Chi-squared limits: how far a sum of squared errors may lie above its mean."""

from __future__ import annotations

import math

import numpy as np

from approxkmv.loops.types import Array, Float64, Index, Index32


def spread(variances: Float64, delta: float) -> float:
    """By how much a squared error may exceed its mean, with probability ``delta``.

    ``variances`` are those of its independent parts, such as the blocks of queries. The effective
    number of degrees of freedom is at least that of their variances (Satterthwaite).
    """
    total = float(variances.sum())
    if total <= 0:
        return 1.0
    # Shares first: squares of tiny variances underflow.
    degrees = 1 / float(np.square(variances / total).sum())
    return max(1.0, chi_square_quantile(degrees, 1 - delta) / degrees)


def sums_by_block(values: Array, block_of: Index | Index32, n_blocks: int) -> Float64:
    """Sums of values over the rows of each block."""
    return np.asarray(np.bincount(block_of, values, n_blocks), np.float64)


def chi_square_quantile(degrees: float, probability: float) -> float:
    """The value that chi-squared stays below with this probability; infinite where that is 1.

    SciPy's takes a tenth of a second to import, a third of a whole product of 65,536 points.
    """
    if probability > 1 - 1e-12:  # beyond what sums in double precision can tell
        return math.inf
    low, high = 0.0, degrees
    while _chi_square_below(degrees, high) < probability:
        low, high = high, 2 * high
    # Newton's steps, and halves where they would leave the interval.
    value, step = high, high
    while abs(step) > 1e-9 * high:
        off = probability - _chi_square_below(degrees, value)
        low, high = (value, high) if off > 0 else (low, value)
        density = _chi_square_density(degrees, value)
        step = off / density if density > 0 else math.inf
        if not low <= value + step <= high:
            step = (low + high) / 2 - value
        value += step
    return value


def _chi_square_density(degrees: float, value: float) -> float:
    a, x = degrees / 2, value / 2
    return math.exp((a - 1) * math.log(x) - x - math.lgamma(a)) / 2 if x > 0 else 0.0


def _chi_square_below(degrees: float, value: float) -> float:
    """Probability that chi-squared is below a value: the power series of the incomplete gamma."""
    a, x = degrees / 2, value / 2
    if x == 0:
        return 0.0
    term = total = 1 / a
    power = a
    while term > 1e-17 * total:
        power += 1
        term *= x / power
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))
