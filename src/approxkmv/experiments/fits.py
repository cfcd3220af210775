"""Growth with n as a power: fitted exponents with their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Fit(NamedTuple):
    """y ~ n^exponent, with the standard error of the exponent."""

    exponent: float
    error: float

    def __str__(self) -> str:
        return f"{round(self.exponent, 2) + 0.0:.2f} ± {self.error:.2f}"  # never -0.00


def power_law(n: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares of log y on log n.

    Examples
    --------
    >>> print(power_law([1, 2, 4], [3, 12, 48]))
    2.00 ± 0.00
    """
    x, z = np.log(np.asarray(n, np.float64)), np.log(np.asarray(y, np.float64))
    x = x - x.mean()
    spread = float(x @ x)
    slope = float(x @ z) / spread
    rest = z - z.mean() - slope * x
    free = len(x) - 2
    error = math.sqrt(float(rest @ rest) / free / spread) if free > 0 else math.nan
    return Fit(slope, error)
