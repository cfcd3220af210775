r"""Log sums of weighted kernel values for queries that come later: the work behind densities.

.. math:: s_i = \sum_{j\ \mathrm{found}} w_jK_{ij}
          + \sum_{j\ \mathrm{drawn,\ not\ found}} w_jK_{ij}/\pi_j

Near keys are found by :mod:`approxkmv.engine.neighbours.cells`, the others are left to one draw of
keys that all queries share. The values drawn also tell the variance of a row; a row that they do
not settle is computed exactly. Everything random is drawn when the keys are known, so a query's
answer depends on nothing but the query.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from approxkmv.engine.cost import CostModel
from approxkmv.engine.neighbours.cells import (
    Near,
    Search,
    make_cells,
    make_links,
    make_sketches,
    nearest_cells,
)
from approxkmv.info import Plan
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, FoundPairs, Index

# A row is settled when its error allowed is this many standard deviations of its draw.
_DEVIATIONS = 5.0
_PILOT_ROWS = 96
_MOST_NEAR = 64  # more near keys than this would cost more to list than they save
_LEVELS = 14  # powers of two among which the threshold of near keys is chosen
_SAMPLES = (64, 48, 32, 24, 16)  # one key in so many is drawn
_FAR = 2.0**-7  # values that tell how often a key should be drawn are below
_RINGS = 64  # groups of keys by distance from the origin, for how often they are drawn
# Cost in pairs: a found pair (met, merged and linked, once in fit and once for a query), and what
# exact answers must cost more than.
_NEAR_PAIR = 120
_WORTH = 0.4
# Near pairs the search may miss, as a share of the pilot rows' sums.
_MOST_MISSED = 0.002
# A row that finds none of its near keys has no variance that would tell: rows below this share of
# the smallest sum of a pilot row are computed exactly. Without it one row of 65,536 (one of two
# seeds) was off by 2.5 nats.
_LEAST = 1.0
_ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True, eq=False)
class Draw:
    """Keys drawn for every query, with 1/pi and the weights of their variances."""

    drawn: Index
    weights: Float64  # (n_keys,) w / pi where drawn, else 0
    variances: Float64  # (n_keys,) w^2 (1 - pi) / pi^2 where drawn, else 0


@dataclass(frozen=True, eq=False)
class FittedSums:
    """Keys with weights, ready for queries; ``search`` and ``draw`` are None for exact answers."""

    kernel: KernelMatrix  # of the keys with themselves
    weights: Float64 | None
    bandwidth: float
    plan: Plan
    rtol: float = 0.0
    log_floor: float = -math.inf
    least: float = 0.0  # smaller sums may have lost their near keys
    search: Search | None = None
    draw: Draw | None = None

    @property
    def keys(self) -> Array:
        """The keys."""
        return self.kernel.keys

    def log_row_sums(self, queries: Array) -> Float64:
        """Logarithms of sum_j w_j K_ij for each query."""
        if self.search is None:
            return self._exact(queries)
        parts = [
            self._settled(queries[first : first + _ROWS_AT_ONCE])
            for first in range(0, len(queries), _ROWS_AT_ONCE)
        ]
        return np.concatenate([*parts, np.empty(0)])

    def estimate(self, queries: Array, alone: Index | None = None) -> tuple[Float64, Float64]:
        """Sums and the variances of what was drawn; ``alone`` as in :meth:`Search.find`."""
        assert self.search is not None
        assert self.draw is not None
        kernel = self._kernel(queries)
        found = self.search.find(kernel, self.bandwidth, alone)
        sums = _drawn_sums(kernel, self.draw)
        rows, cols, values = found.rows, found.cols, found.values.astype(np.float64)
        weights = np.ones(len(cols)) if self.weights is None else self.weights[cols]
        y, variance = sums[:, 0], sums[:, 1]
        y = y + np.bincount(rows, values * (weights - self.draw.weights[cols]), len(queries))
        variance = variance - np.bincount(rows, values**2 * self.draw.variances[cols], len(queries))
        if alone is not None:
            # A query that is a key met itself among the drawn.
            y, variance = y - self.draw.weights[alone], variance - self.draw.variances[alone]
        return y, np.maximum(variance, 0.0)

    def is_settled(self, y: Float64, variance: Float64) -> np.typing.NDArray[np.bool_]:
        """Which rows are known within the error allowed."""
        # Below, entries that were flushed to zero would count.
        smallest = 1e8 * float(np.finfo(self.keys.dtype).smallest_normal)
        visible = y > max(smallest, self.least)
        return np.asarray(visible & (_DEVIATIONS * np.sqrt(variance) <= self.rtol * y))

    def _settled(self, queries: Array) -> Float64:
        y, variance = self.estimate(queries)
        log_y = np.log(np.maximum(y, np.finfo(np.float64).tiny))
        highest = np.log(np.maximum(y + _DEVIATIONS * np.sqrt(variance), np.finfo(float).tiny))
        below = highest < self.log_floor
        log_y[below] = np.minimum(log_y[below], self.log_floor)
        rest = ~(self.is_settled(y, variance) | below)
        log_y[rest] = self._exact(np.ascontiguousarray(queries[rest]))
        return np.asarray(log_y)

    def _exact(self, queries: Array) -> Float64:
        log_weights = None if self.weights is None else np.log(self.weights)
        return self._kernel(queries).log_row_sums(log_weights)

    def _kernel(self, queries: Array) -> KernelMatrix:
        kernel = self.kernel
        if kernel.frame.differences:  # their scale depends on the queries too
            return prepare(queries, self.keys, self.bandwidth, backend=kernel.backend)
        shift = kernel.frame.shift(queries, kernel.backend)
        return replace(kernel, queries=queries, query_shift=shift)


def fit_sums(
    keys: Array,
    weights: Float64 | None,
    bandwidth: float,
    *,
    rtol: float,
    log_floor: float,
    method: str,
    rng: np.random.Generator,
    n_threads: int | None,
) -> FittedSums:
    """Prepare sums over these keys, with an error of at most ``rtol`` in their logarithms."""
    kernel = prepare(keys, keys, bandwidth, backend=Compiled(n_threads))
    exact = FittedSums(kernel, weights, bandwidth, Plan("exact", "every pair is computed"))
    if method == "exact":
        return exact
    if rtol == 0:
        return _because(exact, "no error is allowed")
    if not CostModel().worth_a_survey(len(keys), *keys.shape):
        return _because(exact, "there are too few keys for a search to pay")
    if kernel.frame.differences:
        return _because(exact, "the keys are too far apart for their cells to be told by products")
    return _sampled(replace(exact, rtol=rtol, log_floor=log_floor), rng)


def _because(sums: FittedSums, reason: str, numbers: dict[str, object] | None = None) -> FittedSums:
    plan = Plan("exact", reason, numbers or {})
    return replace(sums, plan=plan, search=None, draw=None)


def _sampled(sums: FittedSums, rng: np.random.Generator) -> FittedSums:
    """Search and draw, if they are predicted to pay."""
    kernel, bandwidth = sums.kernel, sums.bandwidth
    n = len(kernel.keys)
    start = time.perf_counter()
    rows = np.sort(rng.choice(n, _PILOT_ROWS, replace=False))
    values = _pilot_values(kernel, rows)
    w = np.ones(n) if sums.weights is None else sums.weights
    exact = (values @ w.astype(values.dtype)).astype(np.float64)
    share = w * _importance(values, kernel.key_shift)
    choice = _choose(values, w, share, exact, sums.rtol)
    if choice is None:
        return _because(sums, "too many keys share in a sum for a search and a draw to pay")
    one_in, threshold, n_near = choice
    cells, nearest = make_cells(kernel, rng)
    draw = _draw_keys(w, _probabilities(share, n // one_in), cells.key_order, rng)
    queries = np.ascontiguousarray(kernel.keys[rows])
    scanned = float(cells.sizes[nearest_cells(sums._kernel(queries), cells)].sum(axis=1).mean())
    numbers: dict[str, object] = {
        "drawn_keys": len(draw.drawn),
        "threshold": threshold,
        "near_keys_per_row": n_near,
        "cells": len(cells.sizes),
        "keys_in_the_cells_of_a_row": scanned,
    }
    if scanned > _WORTH * n / 2:
        return _because(sums, "the cells are too uneven", numbers)
    row, col = np.nonzero(values >= threshold)
    near = Near(rows[row], col, values[row, col].astype(np.float64))
    sketches = make_sketches(kernel, near, rng)
    links = make_links(kernel, bandwidth, cells, sketches, nearest, threshold)
    search = Search(cells, sketches, threshold, links)
    trial = replace(sums, search=search, draw=draw, least=_LEAST * float(exact.min()))
    found = search.find(trial._kernel(queries), bandwidth, rows)
    y, variance = trial.estimate(queries, rows)
    settled = trial.is_settled(y, variance)
    missed = _missed(values, (row, col), found, w, exact)
    numbers |= {
        "links_per_key": len(search.links.cols) / n,
        "missed_share_of_pilot_rows": missed,
        "unsettled_share_of_pilot_rows": float(1 - settled.mean()),
    }
    if missed > _MOST_MISSED:
        return _because(sums, "near keys are too hard to find", numbers)
    error = float(np.abs(np.log(y[settled] / exact[settled])).max(initial=0.0))
    numbers["largest_error_of_pilot_rows"] = error
    if error > sums.rtol:
        return _because(sums, "the pilot rows came out with too large an error", numbers)
    pairs = len(cells.sizes) + scanned + n // one_in + _NEAR_PAIR * n_near
    cost = pairs / n + (1 - float(settled.mean()))
    numbers["cost_of_a_row_in_exact_rows"] = cost
    if cost > _WORTH:
        return _because(sums, "too many rows would have to be computed exactly", numbers)
    numbers["seconds_to_fit"] = time.perf_counter() - start
    reason = "near keys are summed exactly, the others by a draw"
    return replace(trial, plan=Plan("sampled", reason, numbers))


def _pilot_values(kernel: KernelMatrix, rows: Index) -> Array:
    """Kernel values (n_rows, n_keys) of some keys with all others, 0 with themselves."""
    # The kernel is symmetric: columns of it, as products with unit vectors.
    columns = kernel.at_keys(rows).product(np.eye(len(rows), dtype=kernel.keys.dtype)).out
    values: Array = np.ascontiguousarray(columns.T)
    values[np.arange(len(rows)), rows] = 0
    return values


def _importance(values: Array, key_shift: Float64) -> Float64:
    """How often keys should be drawn, relative to each other: as their far values weigh.

    Root mean squares over the pilot rows, for keys alike in their distance from the origin of the
    frame, which is what tells a key's far values most: half of the draws go by these, the other
    half is even, so that no key is drawn more seldom than half as often as it would be.
    """
    n = values.shape[1]
    far = np.where(values < _FAR, values, 0)
    of_key = np.einsum("ij,ij->j", far, far, dtype=np.float64)
    order = np.argsort(key_shift, kind="stable")
    bounds = np.linspace(0, n, min(n, _RINGS) + 1).astype(np.int64)
    rings = np.add.reduceat(of_key[order], bounds[:-1]) / np.diff(bounds)
    importance = np.empty(n)
    importance[order] = np.repeat(np.sqrt(rings), np.diff(bounds))
    mean = float(importance.mean())
    return np.asarray(0.5 + 0.5 * importance / mean) if mean > 0 else np.ones(n)


def _choose(
    values: Array, w: Float64, share: Float64, sums: Array, rtol: float
) -> tuple[int, float, float] | None:
    """The cheapest draw, with the threshold of near keys that goes with it and their number."""
    n = values.shape[1]
    # Values by powers of two: level l holds those in [2^-l-1, 2^-l). Smaller ones have none.
    row, col = np.nonzero(values >= math.ldexp(1.0, -_LEVELS))
    large = values[row, col].astype(np.float64)
    place = row * _LEVELS - np.minimum(np.frexp(large)[1], 0)
    shape = (len(values), _LEVELS)
    near = np.cumsum(np.bincount(place, minlength=math.prod(shape)).reshape(shape).mean(axis=0))
    squares, thresholds = values**2, np.ldexp(0.5, -np.arange(_LEVELS))
    best: tuple[float, int, float, float] | None = None
    for one_in in _SAMPLES:
        excess = w**2 * (1 / _probabilities(share, n // one_in) - 1)
        by_level = np.bincount(place, large**2 * excess[col], math.prod(shape)).reshape(shape)
        # Variance of a row if all its values of levels 0 .. l were found, and who would not settle.
        left = (squares @ excess.astype(values.dtype))[:, None] - np.cumsum(by_level, axis=1)
        unsettled = _DEVIATIONS * np.sqrt(np.maximum(left, 0)) > rtol * sums[:, None]
        cost = n / one_in + _NEAR_PAIR * near + n * unsettled.mean(axis=0)
        # As many keys as one is drawn from, all just below the threshold, can go undrawn together.
        allowed = 0.5 * rtol * float(np.quantile(sums, 0.1)) / one_in
        cost[(near > _MOST_NEAR) | (thresholds > allowed)] = np.inf
        deepest = int(np.argmin(cost))
        if cost[deepest] < min(_WORTH * n, math.inf if best is None else best[0]):
            best = cost[deepest], one_in, float(thresholds[deepest]), near[deepest]
    return None if best is None else best[1:]


def _probabilities(share: Float64, n_drawn: int) -> Float64:
    """Probabilities of being drawn, in proportion to the shares, at most 1."""
    pi = np.minimum(1.0, share * (n_drawn / float(share.sum())))
    return np.asarray(np.maximum(pi, np.finfo(np.float64).tiny))


def _draw_keys(
    weights: Float64, pi: Float64, order: np.typing.NDArray[np.int32], rng: np.random.Generator
) -> Draw:
    """A systematic draw along the cells, so that every region is represented."""
    # Whole numbers lie on the running sum of pi, from a random start: a key is drawn if one falls
    # on its stretch.
    passed = np.floor(np.cumsum(pi[order]) + rng.random())
    chosen = np.zeros(len(weights), np.bool_)
    chosen[order] = np.diff(passed, prepend=0.0) > 0
    return Draw(
        np.flatnonzero(chosen),
        np.where(chosen, weights / pi, 0.0),
        np.where(chosen, weights**2 * (1 - pi) / pi**2, 0.0),
    )


def _drawn_sums(kernel: KernelMatrix, draw: Draw) -> Float64:
    """Sums (n_queries, 2) over the drawn keys: of values, and of squares for the variance."""
    some = kernel.at_keys(draw.drawn)
    # The tiles take two columns for squares; one is enough here.
    columns = np.zeros((len(draw.drawn), 3))
    columns[:, 0], columns[:, 1] = draw.weights[draw.drawn], draw.variances[draw.drawn]
    frame = kernel.frame
    sums = kernel.backend.tile_product(
        some.queries,
        some.keys,
        np.ascontiguousarray(columns, dtype=kernel.keys.dtype),
        query_shift=some.query_shift,
        key_shift=some.key_shift,
        slope=frame.slope,
        query_centre=frame.centre,
        key_centre=frame.centre,
        factor=frame.factor,
        ceiling=0.0,
        differences=frame.differences,
        squares=True,
    )
    return sums.out[:, :2].astype(np.float64)


def _missed(
    values: Array, near: tuple[Index, Index], found: FoundPairs, weights: Float64, sums: Float64
) -> float:
    """What share of their sums the rows missed in near keys, on average."""
    row, col = near
    n = values.shape[1]
    missed = ~np.isin(row * n + col, found.rows.astype(np.int64) * n + found.cols)
    row, col = row[missed], col[missed]
    mass = np.bincount(row, values[row, col] * weights[col], len(values))
    return float((mass[sums > 0] / sums[sums > 0]).mean())
