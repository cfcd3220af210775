"""Densities on an interval or a box: samples reflected at its sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv.loops.types import Array, Float64

# Each side doubles the samples; this many copies of them are the most that is sensible.
_MOST_COPIES = 64


def bounds(given: Any, points: Array) -> Float64 | None:
    """Lower and upper end of each feature, with all samples between them."""
    if given is None:
        return None
    ends = np.asarray(_check.plain(given, "bounds"), dtype=np.float64)
    d = points.shape[1]
    if ends.shape != (d, 2) or not (ends[:, 0] < ends[:, 1]).all():
        raise ValueError(
            f"bounds must have shape ({d}, 2), a lower and a larger upper end for each feature, "
            f"got shape {ends.shape}."
        )
    outside = (points < ends[:, 0]) | (points > ends[:, 1])
    if outside.any():
        i, j = (int(a) for a in np.argwhere(outside)[0])
        raise ValueError(f"X must lie within bounds, but X[{i}, {j}] is {points[i, j]}.")
    copies = np.prod(1.0 + np.isfinite(ends).sum(axis=1))
    if copies > _MOST_COPIES:
        raise ValueError(
            f"bounds must not ask for more than {_MOST_COPIES} reflections of the samples, "
            f"but these ask for {copies:.0f}: leave out ends that no sample comes near."
        )
    return ends


def reflected(points: Array, ends: Float64) -> Array:
    """The samples and their images in all finite sides; the samples themselves come first."""
    for j, (low, high) in enumerate(ends):
        images = [points]
        for end in (low, high):
            if np.isfinite(end):
                image = points.copy()
                image[:, j] = 2 * end - image[:, j]
                images.append(image)
        points = np.concatenate(images)
    return points


def inside(points: Array, ends: Float64) -> Any:
    """Which points the density is positive at."""
    return ((points >= ends[:, 0]) & (points <= ends[:, 1])).all(axis=1)


def folded(points: Array, ends: Float64) -> Array:
    """Points outside put back by reflection, however far outside they are."""
    low, high = ends.T
    both = np.isfinite(low) & np.isfinite(high)
    period = np.where(both, 2 * (high - low), 1.0)
    start = np.where(both, low, 0.0)
    phase = np.mod(points - start, period)
    in_box = start + np.minimum(phase, period - phase)
    with np.errstate(invalid="ignore"):
        at_low = np.where(np.isfinite(low), low + np.abs(points - low), points)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, not taken
        at_high = np.where(np.isfinite(high), high - np.abs(high - points), at_low)
    return np.where(both, in_box, at_high)
