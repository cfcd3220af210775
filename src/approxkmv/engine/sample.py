"""Draw, multiply, mend the rows that stand out, and say how large the error is.

The variance of every entry of the product is estimated without bias from the drawn values
themselves. How far the error may lie above its root mean square depends on how many independent
parts it has: blocks of queries are drawn independently, so the effective number of degrees of
freedom is at least that of their variances (Satterthwaite).

A near pair that the search missed shows when it is drawn: its row has a variance far above all
others. Such rows are few, and are computed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.engine.neighbours.search import Missing
from approxkmv.engine.result import Sample
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import (
    Array,
    DrawPlan,
    Float64,
    FoundPairs,
    Index,
    SampledSums,
    SmoothPart,
)

# Mending shows what else is missing, which may ask for more mending.
_MOST_PASSES = 8
# Rows with so many times the mean variance are mended in any case, at most this share of them and
# so many: the few in which a small probability came true may have a third of the squared error of
# all. Among a million rows more of them would cost more than to draw more for them.
_STANDS_OUT, _ALWAYS_MENDED, _MOST_ALWAYS_MENDED = 30.0, 1e-3, 128
# Of the squared error allowed: where mended rows show that others lack more than this, mending more
# of them shows more, and draws must do it.
_TOO_MUCH_UNSEEN = 0.5
# Rows with the largest entries of x, and of y, that are computed exactly whatever their variance;
# an error there beyond so many standard deviations is not due to chance.
_CONSPICUOUS, _NOT_CHANCE = 16, 4.0
# As if so many blocks had said that even spacing gains nothing.
_PARTS_OF_ONE = 12


@dataclass(frozen=True, eq=False)
class Judge:
    """Mends rows of a drawn product and says how large its error is."""

    kernel: KernelMatrix
    x: Array
    query_blocks: Blocks
    pilot: Pilot
    products: Array  # exact products of the pilot rows
    allowed: float
    delta: float

    def __call__(
        self,
        sums: SampledSums,
        missing: Missing,
        *,
        pairs: int,
        most_rows: int,
        evenly: bool,
    ) -> Sample:
        """Mend at most so many rows; ``evenly`` says that the draws were evenly spaced."""
        pilot, y = self.pilot, sums.out.copy()
        variance, unseen = np.maximum(sums.variance, 0.0), np.maximum(sums.mass, 0.0)
        drawn, expected = y[pilot.rows].astype(np.float64), variance[pilot.rows]
        y[pilot.rows] = self.products
        variance[pilot.rows] = 0.0

        mended, left_out, mendable = np.empty(0, np.int64), 0.0, np.inf
        # Two ways to see the same pairs: by a tiling more, and by what the draws met.
        some = standing_out(variance, most_rows)
        for _ in range(_MOST_PASSES):
            if len(some):
                exact = self.kernel.at_queries(some).product(self.x).out
                left_out += unseen_error(y[some], exact, variance[some], unseen[some])
                mendable = min(mendable, float(variance[some].min()))
                y[some] = exact
                variance[some] = 0.0
                mended = np.append(mended, some)
            if left_out > _TOO_MUCH_UNSEEN * self.allowed:
                break
            some = rows_to_mend(
                variance,
                unseen,
                self.query_blocks,
                self.allowed - max(missing.at_most, left_out),
                self.delta,
                most_rows - len(mended),
            )
            if len(some) == 0:
                break
        # The error that was made where it can be seen, in rows like those that were not mended.
        usual = pilot.stands_for * (expected < mendable)
        checked = float(usual @ np.square(drawn - self.products).sum(axis=1))
        evenness = measured_evenness(checked, float(usual @ expected), pilot) if evenly else 1.0
        known = np.zeros(len(y), np.bool_)
        known[pilot.rows] = known[mended] = True
        some = conspicuous_rows([y, self.x] if pilot.symmetric else [y], known)
        exact = self.kernel.at_queries(some).product(self.x).out
        checked += unexplained_error(y[some], exact, variance[some])
        y[some] = exact
        variance[some] = 0.0
        kept = float(variance.sum())
        by_block = _by_block(variance, self.query_blocks)
        return Sample(
            y=y,
            variance=evenness * kept + max(missing.expected, left_out),
            upper=kept * spread(by_block, self.delta) + max(missing.at_most, left_out),
            checked=checked,
            left_out=max(missing.at_most, left_out),
            pairs=pairs + (len(mended) + len(some)) * len(self.kernel.keys),
            n_mended=len(mended),
            exact_rows=pilot.rows,
        )


class Draws(NamedTuple):
    """What was drawn so far, at how many times the rates of the forecast in all."""

    sums: SampledSums
    factor: Float64  # (n_blocks,)

    def with_more(self, more: Draws, query_blocks: Blocks) -> Draws:
        """Both together, weighed by their rates: what one draw at the sum of the rates would be.

        The weights of a block must not depend on what it drew, or the sum would be biased.
        """
        factor = self.factor + more.factor
        a = (self.factor / factor)[query_blocks.block_of]
        b = 1 - a
        old, new = self.sums, more.sums
        sums = SampledSums(
            (a[:, None] * old.out + b[:, None] * new.out).astype(old.out.dtype),
            a**2 * old.variance + b**2 * new.variance,
            a * old.mass + b * new.mass,
            old.n_drawn + new.n_drawn,
        )
        return Draws(sums, factor)


def draw(
    judge: Judge,
    found: FoundPairs,
    size: Array,
    rate: Float64,
    key_tiles: Blocks,
    smooth: SmoothPart | None = None,
    *,
    seed: int,
    stream: int,
    blocks: Index | None = None,
    into: SampledSums | None = None,
) -> SampledSums:
    """Draw keys for every block, or for some into the sums of others, and multiply.

    ``size`` has the lengths of the rows of x.
    """
    query_blocks = judge.query_blocks
    plan = DrawPlan(
        query_blocks.order,
        query_blocks.start,
        key_tiles.order,
        key_tiles.start,
        # A rate beyond float32 means certainty, and so does the largest rate in it.
        np.minimum(rate, np.finfo(np.float32).max).astype(np.float32),
        size,
        seed,
        stream,
    )
    kernel = judge.kernel
    return kernel.backend.sampled_product(
        kernel.geometry,
        plan,
        found,
        judge.x,
        smooth,
        blocks=blocks,
        into=into,
    )


def usual_variance(variance: Float64, query_blocks: Blocks, blocks: Index) -> Float64:
    """Variances of some blocks, without those of rows that would be mended in any case."""
    rows = np.flatnonzero(np.isin(query_blocks.block_of, blocks))
    kept = np.maximum(variance[rows], 0.0)
    share = len(rows) / len(variance)
    kept[standing_out(kept, math.ceil(share * _MOST_ALWAYS_MENDED))] = 0.0
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
    weight = pilot.n_blocks / (pilot.n_blocks + _PARTS_OF_ONE)
    return min(1.0, max(0.25, weight * checked / predicted + 1 - weight))


def standing_out(variance: Float64, most_rows: int) -> Index:
    """Rows that are mended whether the error is allowed or not."""
    most = min(most_rows, int(_ALWAYS_MENDED * len(variance)), _MOST_ALWAYS_MENDED)
    worst = np.argsort(variance, kind="stable")[::-1][: max(0, most)]
    return np.sort(worst[variance[worst] > _STANDS_OUT * variance.mean()])


def rows_to_mend(
    variance: Float64,
    unseen: Float64,
    query_blocks: Blocks,
    allowed: float,
    delta: float,
    most_rows: int,
) -> Index:
    """The fewest rows of largest variance without which the error is allowed.

    A missed pair of probability pi that was drawn makes its row stand out; for each of them there
    are 1 / pi that were not drawn and stay unseen: the error keeps their squares, which the mass
    of the mended rows estimates.
    """
    factor = spread(_by_block(variance, query_blocks), delta)
    if factor * float(variance.sum()) <= allowed or most_rows <= 0:
        return np.empty(0, np.int64)
    worst = np.argsort(variance, kind="stable")[::-1][:most_rows]
    left = float(variance.sum()) - np.cumsum(variance[worst]) + np.cumsum(unseen[worst])
    # Without its few largest terms the error has more independent parts: count anew.
    for _ in range(3):
        enough = np.flatnonzero(factor * left <= 0.97 * allowed)
        chosen = worst[: int(enough[0]) + 1] if len(enough) else worst
        rest = variance.copy()
        rest[chosen] = 0.0
        factor = spread(_by_block(rest, query_blocks), delta)
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


def unseen_error(drawn: Array, exact: Array, variance: Float64, mass: Float64) -> float:
    """Squared error of the rows like the mended ones whose missed pairs were not drawn.

    A missed pair K x of probability pi that was drawn adds t = K x / pi to the row, and t^2 to its
    variance. What the row lacks without it, r, is then t less the error seen: more than K x if the
    row has other missed pairs. One of pi such rows is seen: the others have the squared error
    r^2 / (pi r / (K x)) = t r together. It is at least the mass K^2 x^2 / pi = t K x.
    """
    # The variance of the drawn pair is t^2 (1 - pi), and its mass is pi times that.
    share = np.divide(mass, variance, out=np.zeros_like(mass), where=variance > 0)
    term = np.sqrt(variance / np.maximum(1 - share, 0.5))
    seen = np.linalg.norm(drawn.astype(np.float64) - exact, axis=1)
    lacking = np.maximum(term - seen, 0.0)
    return float(np.maximum(term * lacking, mass).sum())


def spread(variances: Float64, delta: float) -> float:
    """By how much the squared error may exceed its mean, with probability delta."""
    total = float(variances.sum())
    if total <= 0:
        return 1.0
    # Shares first: squares of tiny variances underflow.
    degrees = 1 / float(np.square(variances / total).sum())
    return max(1.0, chi_square_quantile(degrees, 1 - delta) / degrees)


def chi_square_quantile(degrees: float, probability: float) -> float:
    """The value that chi-squared stays below with this probability; infinite where that is 1.

    SciPy's takes a tenth of a second to import, a third of a whole product of 65,536 points.
    """
    if probability > 1 - 1e-12:  # beyond what sums in double precision can tell
        return math.inf
    low, high = 0.0, degrees
    while _chi_square_below(degrees, high) < probability:
        low, high = high, 2 * high
    # Newton's steps, and halves where they would leave the interval.
    value, step = high, high
    while abs(step) > 1e-9 * high:
        off = probability - _chi_square_below(degrees, value)
        low, high = (value, high) if off > 0 else (low, value)
        density = _chi_square_density(degrees, value)
        step = off / density if density > 0 else math.inf
        if not low <= value + step <= high:
            step = (low + high) / 2 - value
        value += step
    return value


def _chi_square_density(degrees: float, value: float) -> float:
    a, x = degrees / 2, value / 2
    return math.exp((a - 1) * math.log(x) - x - math.lgamma(a)) / 2 if x > 0 else 0.0


def _chi_square_below(degrees: float, value: float) -> float:
    """Probability that chi-squared is below a value: the power series of the incomplete gamma."""
    a, x = degrees / 2, value / 2
    if x == 0:
        return 0.0
    term = total = 1 / a
    power = a
    while term > 1e-17 * total:
        power += 1
        term *= x / power
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))


def _by_block(variance: Float64, query_blocks: Blocks) -> Float64:
    return np.asarray(
        np.bincount(query_blocks.block_of, variance, len(query_blocks.sizes)), np.float64
    )
