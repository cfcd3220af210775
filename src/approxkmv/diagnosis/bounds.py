r"""Confidence bounds for a mean of bounded values, from bets that lose if the mean is as supposed.

If independent :math:`x_t \ge 0` have mean m, :math:`\prod_t(1+\lambda(x_t-m))` has expectation 1
for any fixed :math:`\lambda\in[0,1/m)`, and so has the average of such products over several
:math:`\lambda`. By Markov it exceeds :math:`1/\delta` with probability at most :math:`\delta`, so
an m for which it does is no candidate (Waudby-Smith and Ramdas, 2024). Nothing is assumed beyond
the bounds of the values, and the width adapts to their variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

# Shares of the largest stake that cannot lose everything: one of them is near the best for any
# variance from that of the range down to 1e-7 of it, at the price of log(12) in log(1/delta).
_STAKES = 0.75 * 0.5 ** np.arange(12)
_STEPS = 30  # halvings of an interval: to nine digits


def lower_mean(sample: Float, delta: float) -> float:
    """Lower bound of the mean of values that are not negative.

    Examples
    --------
    >>> import numpy as np
    >>> 0.4 < lower_mean(np.random.default_rng(0).random(2000), 0.05) < 0.5
    True
    """
    mean = float(sample.mean())

    def kept(m: float) -> bool:
        return _log_capital(sample - m, 1 / m) < -math.log(delta)

    smallest = mean * 1e-12
    return 0.0 if mean == 0 or kept(smallest) else _bisect(kept, smallest, mean)[0]


def upper_mean(sample: Float, ceiling: Callable[[float], float], delta: float) -> float:
    """Upper bound of the mean of values in [0, ceiling(m)], where m is their mean.

    Parameters
    ----------
    sample : ndarray
    ceiling : callable
        What no value exceeds if the mean is m; ``ceiling(m) / m`` must not increase with m, and
        the mean cannot lie where it falls below 1.
    delta : float

    Examples
    --------
    >>> import numpy as np
    >>> 0.5 < upper_mean(np.random.default_rng(0).random(2000), lambda mean: 1.0, 0.05) < 0.6
    True
    """

    def rejected(m: float) -> bool:
        room = ceiling(m) - m
        if sample.max() > ceiling(m):  # such a mean is too small, not too large
            return False
        return room <= 0 or _log_capital(m - sample, 1 / room) >= -math.log(delta)

    start = max(float(sample.mean()), np.finfo(np.float64).tiny)
    high = start
    while not rejected(high):
        if high > 1e300:
            return math.inf
        high *= 2
    return _bisect(rejected, start, high)[1]


def _log_capital(gain: Float, largest_stake: float) -> float:
    """Logarithm of what is left of 1, bet in twelve parts with twelve stakes."""
    logs = np.log1p(np.outer(_STAKES * largest_stake, gain)).sum(axis=1)
    return float(np.logaddexp.reduce(logs)) - math.log(len(_STAKES))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Last place where a statement fails, at low or behind, and first where it holds."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
