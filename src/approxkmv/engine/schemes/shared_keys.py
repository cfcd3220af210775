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
from dataclasses import dataclass, field, replace

import numpy as np

from approxkmv.engine.neighbours.cells import (
    Near,
    Search,
    make_cells,
    make_links,
    make_sketches,
    nearest_cells,
)
from approxkmv.engine.policy import SharedDraw
from approxkmv.engine.survey.keyside import KeySide
from approxkmv.engine.survey.shared_draw import (
    SumsChoice,
    SumsPilot,
    SumsProblem,
    cheapest_draw,
    probabilities,
    run_pilot,
)
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.info import Plan
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, FoundPairs, Index, Index32

TOO_DENSE = "too many samples count in each sum: computing all of them is faster"


@dataclass(frozen=True, eq=False)
class Draw:
    """Keys drawn for every query, with 1/pi and the weights of their variances."""

    drawn: Index
    weights: Float64  # (n_keys,) w / pi where drawn, else 0
    variances: Float64  # (n_keys,) w^2 (1 - pi) / pi^2 where drawn, else 0


@dataclass(frozen=True, eq=False)
class FittedSums:
    """Keys with weights, ready for queries; ``search`` and ``draw`` are None for exact answers."""

    side: KeySide
    weights: Float64 | None
    plan: Plan
    rtol: float = 0.0
    log_floor: float = -math.inf
    least: float = 0.0  # smaller sums may have lost their near keys
    search: Search | None = None
    draw: Draw | None = None
    settings: SharedDraw = field(default_factory=SharedDraw)

    @property
    def keys(self) -> Array:
        """The keys."""
        return self.side.keys

    def on(self, backend: Compiled) -> FittedSums:
        """The same sums, computed by other threads."""
        return replace(self, side=self.side.on(backend))

    def log_row_sums(self, queries: Array) -> Float64:
        """Logarithms of sum_j w_j K_ij for each query."""
        if self.search is None:
            return self._exact(queries)
        at_once = self.settings.rows_at_once
        parts = [
            self._settled(queries[first : first + at_once])
            for first in range(0, len(queries), at_once)
        ]
        return np.concatenate([*parts, np.empty(0)])

    def estimate(self, queries: Array, alone: Index | None = None) -> tuple[Float64, Float64]:
        """Sums and the variances of what was drawn; ``alone`` as in :meth:`Search.find`."""
        assert self.search is not None
        assert self.draw is not None
        kernel = self.side.matrix(queries)
        found = self.search.find(kernel, self.side.bandwidth, alone)
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
        """Which rows are known within the tolerance."""
        # Below, entries that were flushed to zero would count.
        smallest = 1e8 * float(np.finfo(self.keys.dtype).smallest_normal)
        visible = y > max(smallest, self.least)
        return np.asarray(visible & (self.settings.deviations * np.sqrt(variance) <= self.rtol * y))

    def _settled(self, queries: Array) -> Float64:
        y, variance = self.estimate(queries)
        log_y = np.log(np.maximum(y, np.finfo(np.float64).tiny))
        highest = np.log(
            np.maximum(y + self.settings.deviations * np.sqrt(variance), np.finfo(float).tiny)
        )
        below = highest < self.log_floor
        log_y[below] = np.minimum(log_y[below], self.log_floor)
        rest = ~(self.is_settled(y, variance) | below)
        log_y[rest] = self._exact(np.ascontiguousarray(queries[rest]))
        return np.asarray(log_y)

    def _exact(self, queries: Array) -> Float64:
        log_weights = None if self.weights is None else np.log(self.weights)
        return self.side.matrix(queries).log_row_sums(log_weights)


def exact_sums(problem: SumsProblem, reason: str = "every pair is computed") -> FittedSums:
    """Sums of every pair."""
    return FittedSums(problem.side, problem.weights, Plan("exact", reason))


def fit_sums(problem: SumsProblem) -> FittedSums:
    """Search for near keys and draw the others, if that is predicted to pay; else exact sums."""
    trace = Trace()
    try:
        sums = _sampled(problem, trace)
    except Refusal as refusal:
        return replace(exact_sums(problem), plan=Plan("exact", refusal.reason, trace.numbers))
    trace.note(seconds_to_fit=sum(trace.seconds.values()))
    reason = "near keys are summed exactly, the others by a draw"
    return replace(sums, plan=Plan("sampled", reason, trace.numbers))


def _sampled(problem: SumsProblem, trace: Trace) -> FittedSums:
    """The sums, tried on the pilot rows; ``Refusal`` where exact sums are better."""
    side = problem.side
    if problem.rtol == 0:
        raise Refusal("no error is allowed")
    if not problem.cost.worth_searching(len(side), *side.keys.shape):
        raise Refusal("there are too few keys for a search to pay")
    if side.among.frame.differences:
        raise Refusal("the keys are too far apart for their cells to be told by products")
    pilot = run_pilot(problem)
    trace.lap("pilot")
    choice = cheapest_draw(problem, pilot)
    trace.lap("choose")
    if choice is None:
        raise Refusal(TOO_DENSE)
    sums = _searched(problem, pilot, choice, trace)
    trace.lap("search")
    _check(problem, sums, pilot, trace)
    return sums


def _searched(
    problem: SumsProblem, pilot: SumsPilot, choice: SumsChoice, trace: Trace
) -> FittedSums:
    """Search and draw; ``Refusal`` where the cells of a row have too many keys."""
    side, kernel, rng = problem.side, problem.side.among, problem.rng
    n, threshold = len(side), choice.threshold
    cells, nearest = make_cells(kernel, rng)
    pi = probabilities(pilot.share, n // choice.one_in)
    draw = draw_keys(problem.mass, pi, cells.key_order, rng)
    queries = side.matrix(np.ascontiguousarray(side.keys[pilot.rows]))
    scanned = float(cells.sizes[nearest_cells(queries, cells)].sum(axis=1).mean())
    trace.note(
        drawn_keys=len(draw.drawn),
        threshold=threshold,
        near_keys_per_row=choice.n_near,
        cells=len(cells.sizes),
        keys_in_the_cells_of_a_row=scanned,
    )
    if scanned > problem.settings.worth * n / 2:
        raise Refusal("the cells are too uneven")
    row, col = pilot.near(threshold)
    near = Near(pilot.rows[row], col, pilot.values[row, col].astype(np.float64))
    sketches = make_sketches(kernel, near, rng)
    links = make_links(kernel, side.bandwidth, cells, sketches, nearest, threshold)
    trace.note(links_per_key=len(links.cols) / n)
    return FittedSums(
        side=side,
        weights=problem.weights,
        plan=Plan("sampled", ""),
        rtol=problem.rtol,
        log_floor=problem.log_floor,
        least=problem.settings.least * float(pilot.sums.min()),
        search=Search(cells, sketches, threshold, links),
        draw=draw,
        settings=problem.settings,
    )


def _check(problem: SumsProblem, sums: FittedSums, pilot: SumsPilot, trace: Trace) -> None:
    """Try the sums on the pilot rows; ``Refusal`` where they are wrong, or too dear."""
    assert sums.search is not None
    assert sums.draw is not None
    side, settings, n = problem.side, problem.settings, len(problem.side)
    queries = np.ascontiguousarray(side.keys[pilot.rows])
    found = sums.search.find(side.matrix(queries), side.bandwidth, pilot.rows)
    y, variance = sums.estimate(queries, pilot.rows)
    settled = sums.is_settled(y, variance)
    missed = missed_share(pilot, sums.search.threshold, found, problem.mass)
    unsettled = float(1 - settled.mean())
    trace.note(missed_share_of_pilot_rows=missed, unsettled_share_of_pilot_rows=unsettled)
    trace.lap("check")
    if missed > settings.most_missed:
        raise Refusal("near keys are too hard to find")
    error = float(np.abs(np.log(y[settled] / pilot.sums[settled])).max(initial=0.0))
    trace.note(largest_error_of_pilot_rows=error)
    if error > problem.rtol:
        raise Refusal("the pilot rows came out with too large an error")
    numbers = trace.numbers
    scanned, n_near = numbers["keys_in_the_cells_of_a_row"], numbers["near_keys_per_row"]
    assert isinstance(scanned, float)
    assert isinstance(n_near, float)
    drawn = int(sums.draw.drawn.size)
    pairs = len(sums.search.cells.sizes) + scanned + drawn + problem.cost.near_pair * n_near
    trace.note(cost_of_a_row_in_exact_rows=pairs / n + unsettled)
    if pairs / n + unsettled > settings.worth:
        raise Refusal("too many rows would have to be computed exactly")


def draw_keys(weights: Float64, pi: Float64, order: Index32, rng: np.random.Generator) -> Draw:
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


def missed_share(pilot: SumsPilot, threshold: float, found: FoundPairs, weights: Float64) -> float:
    """What share of their sums the rows missed in near keys, on average."""
    row, col = pilot.near(threshold)
    n = pilot.values.shape[1]
    missed = ~np.isin(row * n + col, found.rows.astype(np.int64) * n + found.cols)
    row, col = row[missed], col[missed]
    mass = np.bincount(row, pilot.values[row, col] * weights[col], len(pilot.values))
    seen = pilot.sums > 0
    return float((mass[seen] / pilot.sums[seen]).mean())
