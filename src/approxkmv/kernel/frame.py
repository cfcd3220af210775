"""Where the origin is put and in which form distances are computed, so that rounding stays small.

Inner products are fastest: ``|q - k|^2 = |q|^2 + |k|^2 - 2 <q, k>`` is one matrix product. But the
three terms cancel: with keys at R bandwidths from the origin the exponent is off by about the
machine epsilon times R^2. So the origin is put among the keys, and where R is still too large
(clusters far apart, one key far away) squared differences are summed instead, which never cancel
and cost 10 % (AMD) to 100 % (Intel) more time.

The choice depends on the keys only. A row of the product is therefore the same in any batch of
queries; and it is safe, because a query much farther out than every key has no kernel value
above the smallest number anyway; of a kernel with a longer tail the relative error of a squared
distance counts there, which is a few units of rounding.

Other kernels are steeper near distance 0 than the Gaussian, by a factor that says how much closer
to the origin the keys must be. The Laplacian has a kink there: an error e of the squared distance
would be one of the root of e in the value. Its differences are always taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, Index

_CENTRE_SAMPLE = 1024
# Largest error of an exponent that inner products may cause, as epsilon * R^2.
_TOLERANCE = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-9}
# Coordinates are kept below 2^this where differences are taken: a difference is then finite, and
# its square overflows to infinity only where the kernel value is 0.
_LARGEST_EXPONENT = {np.dtype(np.float32): 126, np.dtype(np.float64): 1022}
# Exponents are up to twice the squared differences of coordinates in the usual scale.
_FAR_SCALE = 0.25
# Bandwidths from two to minus this to two to this are taken as they are.
_USUAL_EXPONENT = 24


@dataclass(frozen=True)
class Frame:
    """The map ``p -> (p - centre) * factor`` and the exponent ``slope * score - shifts``.

    ``differences`` says whether the score of a pair is its squared distance (and the shifts are 0)
    or its inner product. ``factor`` is a power of two, so scaling is exact.
    """

    centre: Float64
    factor: float
    slope: float
    differences: bool
    radius: float  # largest distance of a key from the centre, in bandwidths
    bandwidth: float

    def shift(self, points: Array, backend: Compiled) -> Float64:
        """What is subtracted from the exponent for each point."""
        if self.differences:
            return np.zeros(len(points))
        with np.errstate(over="ignore"):
            half = (
                0.5
                * self.slope
                * backend.squared_norms(
                    points,
                    self.centre,
                    self.factor,
                )
            )
        # Beyond this the kernel is 0 for every key in the frame; infinity keeps such a point out
        # of the products, where its coordinates could overflow.
        half[half > float(np.finfo(points.dtype).max) / 4] = np.inf
        return half

    def for_far_pairs(self, largest: float) -> Frame:
        """Differences in double precision whose squares overflow only where exponents do.

        ``largest`` as in :func:`make_frame`. Small distances may become 0.
        """
        double = np.dtype(np.float64)
        factor, slope = of_differences(self.bandwidth, largest, double)
        slope = max(slope / _FAR_SCALE**2, -float(np.finfo(double).max))
        return replace(
            self,
            centre=np.zeros_like(self.centre),
            factor=factor * _FAR_SCALE,
            slope=slope,
            differences=True,
        )


def make_frame(
    keys: Array,
    bandwidth: float,
    largest: float,
    *,
    function: KernelFunction = GAUSSIAN,
    differences: bool = False,
    backend: Compiled,
) -> Frame:
    """Choose centre, scale and form for these keys.

    ``largest`` is the largest absolute coordinate among queries and keys. ``differences`` asks for
    squared differences whatever the keys are.
    """
    centre = _centre(keys)
    factor = _power_of_two(bandwidth)
    norms = backend.squared_norms(
        keys,
        centre,
        factor,
    )
    radius = math.sqrt(norms.max(initial=0.0)) / factor / bandwidth
    if radius <= _farthest(keys.dtype, function) and not differences:
        return Frame(
            centre, factor, _slope(bandwidth * factor, keys.dtype), False, radius, bandwidth
        )
    # Raw coordinates: a centre would round them, differences do not need one.
    factor, slope = of_differences(bandwidth, largest, keys.dtype)
    return Frame(np.zeros_like(centre), factor, slope, True, radius, bandwidth)


def within_reach(
    keys: Array,
    bandwidth: float,
    most_far: int,
    backend: Compiled,
    function: KernelFunction = GAUSSIAN,
) -> tuple[Frame, Index] | None:
    """Inner products, and the keys too far away for them; None where these are more than so many.

    With the values of far keys left out, all others are as exact as in any frame.
    """
    centre, factor = _centre(keys), _power_of_two(bandwidth)
    with np.errstate(over="ignore"):
        norms = np.sqrt(backend.squared_norms(keys, centre, factor)) / factor / bandwidth
    far = norms > _farthest(keys.dtype, function)
    if np.count_nonzero(far) > most_far:
        return None
    radius = float(norms[~far].max(initial=0.0))
    frame = Frame(centre, factor, _slope(bandwidth * factor, keys.dtype), False, radius, bandwidth)
    return frame, np.flatnonzero(far)


def _farthest(dtype: np.dtype[np.floating], function: KernelFunction) -> float:
    """Bandwidths from the centre up to which inner products are exact enough; -1 if nowhere."""
    if math.isinf(function.steepest):
        return -1.0
    return math.sqrt(_TOLERANCE[dtype] / float(np.finfo(dtype).eps) / function.steepest)


def of_differences(
    bandwidth: float, largest: float, dtype: np.dtype[np.floating]
) -> tuple[float, float]:
    """A power of two for coordinates up to ``largest``, and the slope over their squared distance.

    Scaled differences are finite; their squares are infinite only where the kernel is 0.
    """
    room = _LARGEST_EXPONENT[dtype] - math.frexp(largest)[1]
    factor = min(_power_of_two(bandwidth), math.ldexp(1.0, min(room, 1000)))
    return factor, -0.5 * _slope(bandwidth * factor, dtype)


def usual_units(queries: Array, keys: Array, bandwidth: float) -> tuple[Array, Array, float] | None:
    """The same kernel matrix with a bandwidth whose square is an ordinary number.

    Points are multiplied by a power of two; None where they would be too many bandwidths from 0.
    ``queries is keys`` stays so.
    """
    exponent = math.frexp(bandwidth)[1]
    if abs(exponent) <= _USUAL_EXPONENT:
        return queries, keys, bandwidth
    highest = _LARGEST_EXPONENT[keys.dtype] // 2
    for points in (keys, queries):
        largest = max(float(points.max(initial=0.0)), -float(points.min(initial=0.0)))
        if math.frexp(largest)[1] - exponent > highest:
            return None
    scaled = np.ldexp(keys, -exponent)
    others = scaled if queries is keys else np.ldexp(queries, -exponent)
    return others, scaled, math.ldexp(bandwidth, -exponent)


def in_usual_units(queries: Array, keys: Array, bandwidth: float) -> tuple[Array, Array, float]:
    """As :func:`usual_units`, and a ValueError where there are none."""
    units = usual_units(queries, keys, bandwidth)
    if units is None:
        raise ValueError(
            "bandwidth must not be so small next to the points that squared distances in it "
            f"overflow, got {bandwidth!r}."
        )
    return units


def _centre(keys: Array) -> Float64:
    """Coordinate-wise median of a sample: one far key would drag a mean away from the others."""
    if len(keys) == 0:
        return np.zeros(keys.shape[1])
    sample = keys[:: max(1, len(keys) // _CENTRE_SAMPLE)]
    return np.asarray(np.median(sample.astype(np.float64), axis=0))


def _power_of_two(bandwidth: float) -> float:
    """The power of two that brings the bandwidth to [1/2, 1), as far as there is one."""
    return math.ldexp(1.0, min(-math.frexp(bandwidth)[1], 1000))


def _slope(bandwidth: float, dtype: np.dtype[np.floating]) -> float:
    """1 / bandwidth^2, kept finite: a zero distance must still give exp(0)."""
    most = float(np.finfo(dtype).max)
    return min(1.0 / bandwidth / bandwidth, most) if bandwidth * most > 1 else most
