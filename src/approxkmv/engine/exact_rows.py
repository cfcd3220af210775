"""Recompute the rows that stand out exactly, and say how large the error of the others is.

The variance of every entry of the product is estimated without bias from the drawn values
themselves. How far the error may lie above its root mean square depends on how many independent
parts it has: blocks of queries are drawn independently.

A near pair that the search missed shows when it is drawn: its row has a variance far above all
others. Such rows are few, and are computed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from approxkmv.engine.neighbours.missing import Missing
from approxkmv.engine.problem import Problem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread, sums_by_block
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.loops.types import Array, Float64, Index, SampledSums

# Recomputed rows show what else is missing, which may ask for more of them.
_MOST_PASSES = 8
# Rows of this many times the mean variance are recomputed in any case, at most this share of them
# and this number: the few rows that happened to draw a missed pair with a small inclusion
# probability may have a third of the squared error of all. Among a million rows more of them would
# cost more than more draws for them.
_STANDS_OUT, _ALWAYS_RECOMPUTED, _MOST_ALWAYS_RECOMPUTED = 30.0, 1e-3, 128
# Of the squared error budget: where recomputed rows show that others lack more than this, more of
# them would show more, and draws must do it.
_TOO_MUCH_UNSEEN = 0.5
# Rows with the largest entries of x, and of y, that are computed exactly whatever their variance;
# an error there beyond this many standard deviations is not due to chance.
_CONSPICUOUS, _NOT_CHANCE = 16, 4.0
# Shrinkage of the measured evenness towards 1, in pseudo-blocks.
_PSEUDO_BLOCKS = 12


@dataclass(eq=False)
class _Rows:
    """A product whose rows are recomputed one after another."""

    y: Array
    variance: Float64
    unseen: Float64
    looked_at: float = 0.0  # share of all pairs among which missed ones were looked for before
    recomputed: Index = field(default_factory=lambda: np.empty(0, np.int64))
    left_out: float = 0.0  # squared error of missed pairs in rows like those recomputed
    least: float = np.inf  # the smallest variance of a recomputed row

    def replace(self, problem: Problem, rows: Index) -> None:
        """Compute some rows exactly, and learn from their errors."""
        if len(rows) == 0:
            return
        exact = problem.kernel.at_queries(rows).product(problem.x).out
        drawn, truth = (problem.lengthened(of, rows) for of in (self.y[rows], exact))
        of_rows = self.variance[rows], self.unseen[rows]
        self.left_out += unseen_error(drawn, truth, *of_rows, self.looked_at)
        self.least = min(self.least, float(self.variance[rows].min()))
        self.y[rows] = exact
        self.variance[rows] = 0.0
        self.recomputed = np.append(self.recomputed, rows)


@dataclass(frozen=True, eq=False)
class ExactRows:
    """Turns drawn sums into a result: recomputes rows, and estimates the error of all others."""

    problem: Problem
    pilot: Pilot
    products: Array  # exact products of the pilot rows

    def result(
        self,
        sums: SampledSums,
        missing: Missing,
        *,
        pairs: int,
        most_rows: int,
        evenly: bool,
        reason: str,
    ) -> Result:
        """Recompute at most ``most_rows``; ``evenly`` says that the draws were evenly spaced."""
        pilot, blocks, delta = self.pilot, self.pilot.query_blocks, self.problem.budget.delta
        weighed = self.problem.weighed
        variance, mass = (weighed(np.maximum(of, 0.0)) for of in (sums.variance, sums.mass))
        rows = _Rows(sums.out.copy(), variance, mass, missing.looked_at)
        drawn, expected = rows.y[pilot.rows].astype(np.float64), rows.variance[pilot.rows]
        rows.y[pilot.rows] = self.products
        rows.variance[pilot.rows] = 0.0
        self._recompute(rows, missing, most_rows)
        # The error that was made where it can be seen, in rows like those not recomputed.
        usual = pilot.stands_for * (expected < rows.least)
        off = np.square(drawn - self.products).sum(axis=1)
        checked = float(usual @ weighed(off, pilot.rows))
        evenness = measured_evenness(checked, float(usual @ expected), pilot) if evenly else 1.0
        n_recomputed = len(rows.recomputed)
        n_conspicuous, unexplained = self._look_at_conspicuous(rows)
        kept = float(rows.variance.sum())
        by_block = sums_by_block(rows.variance, blocks.block_of, len(blocks.sizes))
        left_out = max(missing.at_most, rows.left_out)
        return Result(
            y=rows.y,
            variance=evenness * kept + max(missing.expected, rows.left_out),
            upper=kept * spread(by_block, delta) + left_out,
            checked=checked + unexplained,
            left_out=left_out,
            pairs=pairs + (n_recomputed + n_conspicuous) * self.problem.n_keys,
            n_recomputed=n_recomputed,
            exact_rows=pilot.rows,
            reason=reason,
        )

    def _recompute(self, rows: _Rows, missing: Missing, most_rows: int) -> None:
        """Rows that stand out, and then the fewest without which the error is within its budget."""
        budget = self.problem.budget
        # Two ways to see the same pairs: by a tiling more, and by what the draws met.
        some = standing_out(rows.variance, most_rows)
        for _ in range(_MOST_PASSES):
            rows.replace(self.problem, some)
            if rows.left_out > _TOO_MUCH_UNSEEN * budget.squared_error:
                break
            some = rows_to_recompute(
                rows.variance,
                rows.unseen,
                self.pilot.query_blocks,
                budget.squared_error - max(missing.at_most, rows.left_out),
                budget.delta,
                most_rows - len(rows.recomputed),
            )
            if len(some) == 0:
                break

    def _look_at_conspicuous(self, rows: _Rows) -> tuple[int, float]:
        """Compute conspicuous rows; their number, and the error that chance does not explain."""
        known = np.zeros(len(rows.y), np.bool_)
        known[self.pilot.rows] = known[rows.recomputed] = True
        x = self.problem.x
        some = conspicuous_rows([rows.y, x] if self.pilot.symmetric else [rows.y], known)
        exact = self.problem.kernel.at_queries(some).product(x).out
        drawn, truth = (self.problem.lengthened(of, some) for of in (rows.y[some], exact))
        unexplained = unexplained_error(drawn, truth, rows.variance[some])
        rows.y[some] = exact
        rows.variance[some] = 0.0
        return len(some), unexplained


def usual_variance(variance: Float64, query_blocks: Blocks, blocks: Index) -> Float64:
    """Variances of some blocks, without those of rows that would be recomputed in any case."""
    rows = np.flatnonzero(np.isin(query_blocks.block_of, blocks))
    kept = np.maximum(variance[rows], 0.0)
    share = len(rows) / len(variance)
    kept[standing_out(kept, math.ceil(share * _MOST_ALWAYS_RECOMPUTED))] = 0.0
    summed = np.bincount(query_blocks.block_of[rows], kept, len(query_blocks.sizes))
    return np.asarray(summed[blocks], np.float64)


def measured_evenness(checked: float, predicted: float, pilot: Pilot) -> float:
    """How much smaller the error of evenly spaced draws is than that of independent ones.

    The variance is estimated for independent draws. Evenly spaced ones do better where kernel
    values change smoothly along the order of the keys: the squared error of the pilot rows tells by
    how much. It varies like a mean over as many parts as there are blocks, and is mixed with 1
    accordingly; it makes the estimate of the error smaller, never the limit that must be met.
    """
    if not predicted > 0:
        return 1.0
    weight = pilot.n_blocks / (pilot.n_blocks + _PSEUDO_BLOCKS)
    return min(1.0, max(0.25, weight * checked / predicted + 1 - weight))


def standing_out(variance: Float64, most_rows: int) -> Index:
    """Rows that are recomputed whether the error is within its budget or not."""
    most = min(most_rows, int(_ALWAYS_RECOMPUTED * len(variance)), _MOST_ALWAYS_RECOMPUTED)
    worst = np.argsort(variance, kind="stable")[::-1][: max(0, most)]
    return np.sort(worst[variance[worst] > _STANDS_OUT * variance.mean()])


def rows_to_recompute(
    variance: Float64,
    unseen: Float64,
    query_blocks: Blocks,
    budget: float,
    delta: float,
    most_rows: int,
) -> Index:
    """The fewest rows of largest variance without which the error is within ``budget``.

    A missed pair of probability pi that was drawn makes its row stand out; for each of them there
    are 1 / pi that were not drawn and stay unseen: the error keeps their squares, which the mass
    of the recomputed rows estimates.
    """
    n_blocks = len(query_blocks.sizes)
    factor = spread(sums_by_block(variance, query_blocks.block_of, n_blocks), delta)
    if factor * float(variance.sum()) <= budget or most_rows <= 0:
        return np.empty(0, np.int64)
    worst = np.argsort(variance, kind="stable")[::-1][:most_rows]
    left = float(variance.sum()) - np.cumsum(variance[worst]) + np.cumsum(unseen[worst])
    # Without its few largest terms the error has more independent parts: count anew.
    for _ in range(3):
        enough = np.flatnonzero(factor * left <= 0.97 * budget)
        chosen = worst[: int(enough[0]) + 1] if len(enough) else worst
        rest = variance.copy()
        rest[chosen] = 0.0
        factor = spread(sums_by_block(rest, query_blocks.block_of, n_blocks), delta)
    return np.sort(chosen)


def conspicuous_rows(arrays: list[Array], known: npt.NDArray[np.bool_]) -> Index:
    """Rows with the largest entries of y and, where the queries are the keys, of x.

    An error that the draws do not show, in pairs left out or counted twice, is largest there.
    """
    others, chosen = np.flatnonzero(~known), []
    for array in arrays:
        lengths = np.square(array, dtype=np.float64).sum(axis=1)[others]
        n = min(_CONSPICUOUS, len(others))
        chosen.append(others[np.argpartition(lengths, len(others) - n)[len(others) - n :]])
    return np.unique(np.concatenate(chosen))


def unexplained_error(drawn: Array, exact: Array, variance: Float64) -> float:
    """Squared error of some rows beyond what their variances allow for."""
    squares = np.square(drawn.astype(np.float64) - exact).sum(axis=1)
    return float(np.maximum(squares - _NOT_CHANCE**2 * variance, 0.0).sum())


def unseen_error(
    drawn: Array, exact: Array, variance: Float64, mass: Float64, looked_at: float = 0.0
) -> float:
    """Squared error of the rows like the recomputed ones whose missed pairs were not drawn.

    A missed pair K x of probability pi that was drawn adds t = K x / pi to the row, and t^2 to its
    variance. What the row lacks without it, r, is then t less the error seen: more than K x if the
    row has other missed pairs. One of pi such rows is seen: the others have the squared error
    r^2 / (pi r / (K x)) = t r together. It is at least the mass K^2 x^2 / pi = t K x.

    Where a share of all pairs was looked at before, what rows lack is known from there, and only
    the mass counts here: a pair is seen with the probability pi and with this share.
    """
    # The variance of the drawn pair is t^2 (1 - pi), and its mass is pi times that.
    share = np.divide(mass, variance, out=np.zeros_like(mass), where=variance > 0)
    term = np.sqrt(variance / np.maximum(1 - share, 0.5))
    seen = np.linalg.norm(drawn.astype(np.float64) - exact, axis=1)
    lacking = np.maximum(term - seen, 0.0)
    if looked_at > 0:
        return float((mass * share / (share + looked_at)).sum())
    return float(np.maximum(term * lacking, mass).sum())
