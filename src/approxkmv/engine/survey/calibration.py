"""Second moments of every block and tile, from the few rows of the pilot."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.moments import moving_mean
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.loops.types import Float32, Float64

# Raw means over a few rows are heavy-tailed: neighbouring tiles are pooled, narrowly and widely,
# and no tile is thought to be more than a thousand times lighter than its block.
_NARROW, _WIDE = 3, 13
_WIDE_SHARE = 0.2
_FLOOR_OF_BLOCK, _FLOOR_OF_ALL = 1e-3, 1e-4
# Predictions are calibrated by bins of a factor of two. Below this power of two nothing is said: a
# mean of K^2 that is smaller cannot be told from none by a pilot of a thousand million pairs.
_FARTHEST = -30


class Calibration(Protocol):
    """Makes second moments (n_blocks, n_tiles) of sums (n_rows, n_tiles) over the pilot's rows."""

    def __call__(self, sums: Float64) -> Float64:
        """Means of K^2 over pairs, weighed with |x|."""

    def drawn_pair(self, problem: Problem) -> float:
        """What a drawn pair costs in these blocks."""


class Pooled:
    """Means over neighbouring blocks and tiles: for points in the order of their norms."""

    def __init__(self, pilot: Pilot) -> None:
        self.pilot = pilot

    def __call__(self, sums: Float64) -> Float64:
        """Means of the rows of a block, pooled."""
        return pooled(self.pilot.per_pair(sums))

    def drawn_pair(self, problem: Problem) -> float:
        """What a drawn pair costs in blocks of 512 or more."""
        return problem.cost.drawn(problem.n_dims)


class Calibrated:
    """What was predicted for cells, times what the rows show where as much was predicted.

    One more pair just below the threshold from which pairs are near is reckoned with in every bin:
    rows that show nothing do not say that there is nothing.
    """

    def __init__(self, pilot: Pilot, squares: Float32) -> None:
        self.pilot = pilot
        predicted = squares.astype(np.float64)
        octave = np.frexp(np.maximum(squares, np.finfo(np.float32).tiny))[1]
        self.bins = np.maximum(octave, _FARTHEST) - _FARTHEST
        # Too little to be told from less: all the same.
        self.predicted = np.where(self.bins > 0, predicted, 2.0**_FARTHEST)
        self.n_bins = int(self.bins.max()) + 1
        of_rows = pilot.block_of
        self.of_rows = self.bins[of_rows].ravel()
        weight = pilot.stands_for[:, None] * pilot.tile_weight
        self.weight = np.bincount(self.of_rows, weight.ravel(), self.n_bins)
        expected = (weight * self.predicted[of_rows]).ravel()
        self.expected = np.bincount(self.of_rows, expected, self.n_bins)
        n_keys = len(pilot.key_tiles.order)
        mean_weight = float(pilot.stands_for.mean() * pilot.tile_weight.sum()) / n_keys
        self.one_pair = pilot.least_threshold**2 * mean_weight

    def __call__(self, sums: Float64) -> Float64:
        """The prediction, calibrated."""
        seen = (self.pilot.stands_for[:, None] * sums).ravel()
        met = np.bincount(self.of_rows, seen, self.n_bins)
        known = self.weight > 0
        # Where no row has as much predicted, the prediction is taken as it is.
        ratio = np.divide(met, self.expected, out=np.ones_like(met), where=known)
        one_more = np.divide(self.one_pair, self.weight, out=np.zeros_like(met), where=known)
        return np.asarray(self.predicted * ratio[self.bins] + one_more[self.bins])

    def drawn_pair(self, problem: Problem) -> float:
        """What a drawn pair costs in blocks of few rows."""
        rows_per_block = problem.n_queries / self.pilot.n_blocks
        return problem.cost.drawn_pair_in(rows_per_block, problem.n_dims)


def pooled(second_moment: Float64) -> Float64:
    """Second moments per pair, pooled over neighbouring tiles, with a floor."""
    narrow, wide = (
        moving_mean(moving_mean(second_moment, width), width, axis=1) for width in (_NARROW, _WIDE)
    )
    return np.asarray(
        (1 - _WIDE_SHARE) * narrow
        + _WIDE_SHARE * wide
        + _FLOOR_OF_BLOCK * second_moment.mean(axis=1, keepdims=True)
        + _FLOOR_OF_ALL * second_moment.mean()
        + np.finfo(np.float64).tiny
    )
