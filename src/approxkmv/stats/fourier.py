"""Gaussian sums in one or two dimensions from a Fourier series, with a bound of their error.

Repeated with a period P the Gaussian is a Fourier series,

    sum_m exp(-(u + mP)^2 / 2) = sqrt(2 pi) / P  sum_k exp(-(2 pi k / P)^2 / 2) exp(2 pi i k u / P),

so a sum over keys is a few coefficients, each a sum over keys, and costs nothing for each pair. Two
things are left out: what the repetitions add, and the terms beyond the last k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from approxkmv.loops.types import Float64

# Left out for each coordinate, and the rounding of sums of 1e5 terms: together below 1e-11 of the
# sum of the weights.
_LEFT_OUT = 3e-12
ERROR = 1e-11
# Rows at a time: their functions, 2 MB, stay in the second-level cache.
_ROWS = 1024
# Most functions of a coordinate: more are a table larger than that.
_MOST_FUNCTIONS = 255
# Nanoseconds of two cores with AVX-512: a function of a point, a multiply-add of BLAS, a pair of
# the exact product in double precision. Estimates, not measured one by one: they only choose.
_FUNCTION, _MULTIPLY_ADD, _PAIR = 5.0, 0.04, 0.3


class Series(NamedTuple):
    """The functions 1, cos, sin of one coordinate, and the weights of their products."""

    frequency: float
    n_waves: int

    @property
    def n_functions(self) -> int:
        """Functions of one point."""
        return 2 * self.n_waves + 1

    def weights(self) -> Float64:
        """Coefficients of the Gaussian, one for each function."""
        k = self.frequency * np.arange(self.n_waves + 1)
        half = np.exp(-(k**2) / 2) * (self.frequency / math.sqrt(2 * math.pi))
        return np.concatenate([half[:1], 2 * half[1:], 2 * half[1:]])

    def functions(self, x: Float64) -> Float64:
        """Values at some points, shape (n_functions, n_points)."""
        powers = np.empty((self.n_waves, len(x)), complex)
        powers[0] = np.exp(1j * self.frequency * x)
        have = 1
        while have < self.n_waves:
            more = min(have, self.n_waves - have)
            np.multiply(powers[:more], powers[have - 1], out=powers[have : have + more])
            have += more
        return np.concatenate([np.ones((1, len(x))), powers.real, powers.imag])


def series_of(queries: Float64, keys: Float64) -> list[Series] | None:
    """The series for each coordinate, or None where the exact product takes less time."""
    n, m, n_dims = len(queries), len(keys), keys.shape[1]
    if n_dims > 2 or n == 0:
        return None
    reach = math.sqrt(2 * math.log(4 / _LEFT_OUT))
    found = []
    for c in range(n_dims):
        of_both = queries[:, c], keys[:, c]
        spread = max(float(x.max()) for x in of_both) - min(float(x.min()) for x in of_both)
        period = spread + reach
        n_waves = math.ceil(reach * period / (2 * math.pi)) if period < 1e6 else _MOST_FUNCTIONS
        found.append(Series(2 * math.pi / period, n_waves))
    counts = [s.n_functions for s in found]
    if max(counts) > _MOST_FUNCTIONS:
        return None
    cost = (n + m) * (_FUNCTION * sum(counts) + _MULTIPLY_ADD * math.prod(counts))
    return found if cost < _PAIR * n * m else None


def sums(queries: Float64, keys: Float64, weights: Float64, series: list[Series]) -> Float64:
    """Sums of weights times Gaussians of bandwidth 1, to :data:`ERROR` times the sum of weights."""
    middle = keys.mean(axis=0)
    coefficients = np.zeros([s.n_functions for s in series])
    for start in range(0, len(keys), _ROWS):
        first, *second = _functions(keys[start : start + _ROWS] - middle, series)
        weighted = first * weights[start : start + _ROWS]
        coefficients += weighted @ second[0].T if second else weighted.sum(axis=1)
    for c, s in enumerate(series):
        coefficients *= s.weights().reshape([-1 if i == c else 1 for i in range(len(series))])
    out = np.empty(len(queries))
    for start in range(0, len(queries), _ROWS):
        first, *second = _functions(queries[start : start + _ROWS] - middle, series)
        some = out[start : start + _ROWS]
        if second:
            np.einsum("in,in->n", coefficients @ second[0], first, out=some)
        else:
            np.matmul(coefficients, first, out=some)
    return out


def _functions(points: Float64, series: list[Series]) -> list[Float64]:
    return [s.functions(points[:, c]) for c, s in enumerate(series)]
