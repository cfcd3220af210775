r"""How often keys are drawn: rates for every block of queries and tile of keys.

A key j is drawn for block a with probability
:math:`\pi_{aj} = \min(1, \lambda\sqrt{V_{ab}}|x_j|)`, where :math:`V_{ab}` is the mean of
:math:`K^2` over pairs of the block and the key's tile b that were not found. The variance of the
product is :math:`\sum_{ij}(1/\pi_{aj}-1)K_{ij}^2x_j^2`, its cost :math:`\sum_{aj}|a|\pi_{aj}`. This
choice has the least cost for a given variance, and one number :math:`\lambda`, found by bisection,
meets the variance asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from approxkmv.engine.survey.order import Blocks
from approxkmv.loops.types import Array, Float64, Index

# Keys that every block draws at least, on average: the variance is estimated from what is drawn,
# and an estimate from fewer is not believed. 32 of 65,536 keys are 0.05 % of the pairs.
_FEWEST_DRAWN = 32.0
# A key whose terms in one block have more than this share of the variance aimed at is always drawn.
_NEVER_LEFT = 0.1
_BIN = 0.05  # of the logarithm of a rate, when rates are solved for


@dataclass(frozen=True, eq=False)
class Rates:
    """Drawing rates, and what they are predicted to give."""

    rate: Float64  # (n_blocks, n_tiles)
    pairs: float  # expected kernel evaluations
    variance: Float64  # (n_blocks,) predicted variance of the product, summed over rows

    def scaled(self, factor: float) -> Float64:
        """Rates for a variance smaller by about ``factor``."""
        return self.rate * factor


class Entries:
    """Sizes of the entries of x: their root mean square in every tile, and one common shape.

    The means over a tile of ``pi = min(1, c |x|)`` and of ``x^2 (1/pi - 1)`` are then functions of
    one number, c times the tile's root mean square, and are tabulated.
    """

    def __init__(self, size: Array, key_tiles: Blocks) -> None:
        size = np.abs(size.astype(np.float64))
        squares = np.bincount(key_tiles.block_of, size**2, len(key_tiles.sizes))
        self.rms = np.sqrt(squares / key_tiles.sizes)
        self.total = float(size.sum())
        self.largest = np.zeros(len(key_tiles.sizes))
        np.maximum.at(self.largest, key_tiles.block_of, size)
        rms = self.rms[key_tiles.block_of]
        # Tiles of zeros have no shape, and would make all others look as if most were zero.
        shape = size[rms > 0] / rms[rms > 0]
        # Every so many of the sizes in order: their distribution.
        shape = np.sort(shape[:: max(1, len(shape) >> 16)])
        shape = shape[:: max(1, len(shape) // 1024)] if len(shape) else np.ones(1)
        self.log_grid = np.linspace(-25.0, 25.0, 251)
        pi = np.minimum(1.0, np.exp(self.log_grid)[:, None] * shape)
        self.drawn = pi.mean(axis=1)
        self.excess = np.where(pi > 0, shape**2 / np.where(pi > 0, pi, 1.0) - shape**2, 0.0).mean(
            axis=1
        )

    def mean_drawn(self, log_rate: Float64) -> Float64:
        """Share of a tile's keys that are drawn, at a rate relative to the root mean square."""
        return np.asarray(np.interp(log_rate, self.log_grid, self.drawn))

    def mean_excess(self, log_rate: Float64) -> Float64:
        """Mean of x^2 (1/pi - 1), relative to the mean square."""
        return np.asarray(np.interp(log_rate, self.log_grid, self.excess))


def solve_rates(
    second_moment: Float64, entries: Entries, query_blocks: Blocks, key_tiles: Blocks, target: float
) -> Rates:
    """The cheapest rates whose predicted variance, over all rows, is ``target``."""
    n_pairs = np.outer(query_blocks.sizes, key_tiles.sizes).astype(np.float64)
    root = np.sqrt(second_moment)
    with np.errstate(divide="ignore"):
        log_root = np.maximum(np.log(root * entries.rms), -700.0)
    # Tiles of nearly the same rate are treated as one, so that bisection is cheap.
    lowest = float(log_root.min())
    bins = np.rint((log_root - lowest) / _BIN).astype(np.int64).ravel()
    centres = lowest + _BIN * np.arange(int(bins.max()) + 1, dtype=np.float64)
    pairs_of = np.bincount(bins, n_pairs.ravel())
    weight = n_pairs * second_moment * entries.rms**2
    weight_of = np.bincount(bins, weight.ravel())

    def variance(log_factor: float) -> float:
        return float(weight_of @ entries.mean_excess(centres + log_factor))

    low, high = -60.0, 800.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) > target else (low, middle)
    pairs = float(pairs_of @ entries.mean_drawn(centres + high))
    excess = entries.mean_excess(np.minimum(centres + high, 300.0))[bins]
    by_block = (weight * excess.reshape(weight.shape)).sum(axis=1)
    # Without the bins, which matter little: all together it is what was solved for.
    by_block *= variance(high) / max(float(by_block.sum()), np.finfo(float).tiny)
    return Rates(math.exp(min(high, 300.0)) * root, pairs, by_block)


def not_left_to_few(
    rates: Rates,
    second_moment: Float64,
    entries: Entries,
    query_blocks: Blocks,
    key_tiles: Blocks,
    target: float,
) -> Rates:
    """The same rates, raised where the error would depend on a few draws.

    A block that draws hardly any keys does not tell its variance: second moments come from a few
    rows, and where these show next to nothing other rows may have something. And if a single key
    has much of the error, its variance is seen when it is drawn and its error made when it is not.
    """
    least = _FEWEST_DRAWN / entries.total
    squares = query_blocks.sizes[:, None] * second_moment
    with np.errstate(divide="ignore", over="ignore"):
        most = np.sqrt(_NEVER_LEFT * target / squares)  # |x| of a key with its share
        floor = np.where(entries.largest > most, 1 / most, least)
    if not (rates.rate < floor).any():
        return rates
    rate = np.maximum(rates.rate, floor)
    with np.errstate(divide="ignore"):
        log_rate = np.clip(np.log(rate * entries.rms), -700.0, 300.0)
    n_pairs = np.outer(query_blocks.sizes, key_tiles.sizes).astype(np.float64)
    squares = n_pairs * second_moment * entries.rms**2
    return Rates(
        rate,
        float((n_pairs * entries.mean_drawn(log_rate)).sum()),
        (squares * entries.mean_excess(log_rate)).sum(axis=1),
    )


def balanced_rates(
    second_moment: Float64, query_blocks: Blocks, key_tiles: Blocks, target: float
) -> Float64:
    r"""Probabilities (n_blocks, n_tiles) for which no key's column and no query's row varies more.

    For every tile the cheapest :math:`\pi_{ab}=\min(1,\lambda_b\sqrt{V_{ab}})` with
    :math:`\sum_a|a|V_{ab}(1/\pi_{ab}-1)` at most ``target``, for every block the same the other way
    round, and of both the larger one.
    """
    by_column = _balanced(second_moment, query_blocks.sizes, target)
    by_row = _balanced(second_moment.T, key_tiles.sizes, target).T
    return np.asarray(np.maximum(by_column, by_row))


def _balanced(second_moment: Float64, sizes: Index, target: float) -> Float64:
    root = np.sqrt(second_moment)
    low, high = (np.full(second_moment.shape[1], value) for value in (-60.0, 800.0))
    while float((high - low).max()) > 1e-3:
        middle = (low + high) / 2
        with np.errstate(over="ignore"):
            pi = np.minimum(1.0, np.exp(middle) * root)
        enough = sizes @ (second_moment * (1 / np.maximum(pi, 1e-300) - 1)) <= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(1.0, np.exp(high) * root))
