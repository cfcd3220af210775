r"""Where attention is nearly uniform, the mean of all values is the answer, at next to no cost.

Its error is estimated from exact rows. Few rows are much sharper than others: those with scores
that vary a lot over the keys, and those with a high score for one of the longest keys (on 32,768
word vectors 32 rows were 73 % of the squared error, most of them the longest words, which look at
themselves). So the rows that are expected to be the sharpest are computed and keep their
exact outputs; the others are drawn from strata of decreasing sharpness, each twice as large as the
one before. A stratum in which a large error was met may hold more of them than were met, and gets
more rows where that is what is in the way.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, AttentionHead, Float64, Index, Index32, TileSums

# At most so many rows, and such a part of the exact work, for the sharpest rows and others.
_MOST_ROWS, _LEAST_KEYS_PER_ROW = 256, 128
# Where a few values are larger than all others, so are the errors of the few rows that look at
# their keys, and rows drawn would miss them. At least such a share of all values must matter.
_LEAST_THAT_MATTER = 1 / 32
# A prediction and a few rows decide only whether more rows are worth computing: the rows see sharp
# heads that the prediction takes for flat.
# Of 15 heads with more than 1.5 times the squared error allowed predicted, the mean did for one.
_POINTS_FOR_PREDICTION, _FIRST_ROWS, _HOPELESS = 256, 16, 1.5
_KEYS_FOR_ORDER, _LONGEST_KEYS = 1024, 32
# Where the first rows find so much less than is allowed, a quarter of the rows is enough if they
# find far less, too.
_FIRST_SAY, _FEW_ROWS, _FAR_MORE = 8.0, 4, 4.0
# Of a kind of rows of which more than so many are to be expected, two are met at least: with 96 %.
_UNMET = 5.0
# Strata get so many times as many rows as long as the error looks so much smaller than allowed and
# only such a share of all rows is computed.
_TIMES_AS_MANY, _LOOKS_FINE, _SHARE_OF_ROWS = 4, 2.0, 1 / 64


class MeanOutput(NamedTuple):
    """Rows with their exact outputs; all others get the mean, with this squared error in sum."""

    rows: Index
    outputs: Array
    squared_error: float  # for moved values
    pairs: int


def mean_output(
    head: AttentionHead,
    squares: Float64,  # of the moved values
    allowed: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> MeanOutput | None:
    """The mean of all values as output, if its squared error is surely below ``allowed``."""
    n_keys = len(head.keys)
    n_sharpest = min(_MOST_ROWS, n_keys // _LEAST_KEYS_PER_ROW) // 2
    matter = float(squares.sum()) ** 2 / float((squares**2).sum())
    if n_sharpest < 2 or not matter >= _LEAST_THAT_MATTER * n_keys:
        return None
    n_queries = len(head.queries)
    some = np.arange(0, n_queries, max(1, n_queries // _POINTS_FOR_PREDICTION), dtype=np.int32)
    variance = _score_variance(head, some, _some_keys(head, _POINTS_FOR_PREDICTION), n_threads)
    spread = float(squares.mean())
    predicted = n_queries * _predicted_share(n_keys, variance) * spread
    if not predicted <= _HOPELESS * allowed:  # it may not be a number
        return None
    first = computed_rows(head, rng.integers(n_queries, size=_FIRST_ROWS), n_threads)
    # Without the largest: one sharp row among them says little about the others.
    first_say = n_queries * float(np.sort(first.squares)[:-1].mean())
    if not first_say <= _HOPELESS * allowed:
        return None
    order = np.argsort(-_sharpness(head, n_threads))
    if _FIRST_SAY * first_say <= allowed and n_sharpest >= 2 * _FEW_ROWS:
        found = _FromRows(head, spread, order, n_sharpest // _FEW_ROWS, rng, n_threads)
        if _FAR_MORE * found.surely_below().sum() <= allowed:
            return found.output()
    found = _FromRows(head, spread, order, n_sharpest, rng, n_threads)
    while (most := found.surely_below()).sum() > allowed:
        too_many = len(found.rows) > _SHARE_OF_ROWS * n_queries
        if too_many or _LOOKS_FINE * found.squared_error() > allowed:
            return None
        found.look_closer(_in_the_way(most, allowed))
    return found.output()


def _in_the_way(parts: Float64, allowed: float) -> Index:
    """The fewest of some parts without which half of what is allowed would be left."""
    order = np.argsort(-parts, kind="stable")
    others = parts.sum() - np.cumsum(parts[order])
    return order[: 1 + int((others > allowed / 2).sum())]


class _FromRows:
    """The mean with the sharpest rows exact, and what rows drawn of the others say."""

    def __init__(
        self,
        head: AttentionHead,
        spread: float,
        order: Index,
        n_sharpest: int,
        rng: np.random.Generator,
        n_threads: int | None,
    ) -> None:
        self.head = head
        self.spread = spread
        self.rng = rng
        self.n_threads = n_threads
        edges = n_sharpest * 2 ** np.arange(64, dtype=np.float64)
        edges = np.append(edges[edges < len(order)], len(order)).astype(np.int64)
        self.strata = [order[a:b] for a, b in pairwise(edges)]
        self.errors = [np.empty(0) for _ in self.strata]  # squared, of rows drawn
        self.at_least = [np.empty(0) for _ in self.strata]  # what the same rows count for
        self.rows = order[:0]
        self.outputs = np.empty((0, head.values.shape[1]), head.values.dtype)
        each = max(4, n_sharpest // max(1, len(self.strata)))
        self.compute(order[:n_sharpest], {stratum: each for stratum in range(len(self.strata))})

    def compute(self, rows: Index, n_rows: dict[int, int]) -> None:
        """These rows, and more of some strata.

        A row counts for at least what its error would be on average if each key had the value of
        another one: whether the few keys that it looks at have large values is chance.
        """
        drawn = {s: self.rng.choice(self.strata[s], n) for s, n in n_rows.items()}
        every = np.concatenate([rows, *drawn.values()])
        found = computed_rows(self.head, every, self.n_threads)
        self.rows = np.append(self.rows, every)
        self.outputs = np.concatenate([self.outputs, found.outputs])
        uneven = _unevenness(
            self.head, every[len(rows) :], found.totals[len(rows) :], self.n_threads
        )
        start = 0
        for stratum, part in drawn.items():
            stop = start + len(part)
            errors = found.squares[len(rows) :][start:stop]
            shuffled = self.spread * uneven[start:stop]
            self.errors[stratum] = np.append(self.errors[stratum], errors)
            at_least = np.maximum(errors, shuffled)
            self.at_least[stratum] = np.append(self.at_least[stratum], at_least)
            start = stop

    def look_closer(self, strata: Index) -> None:
        """More rows of these, but not more than they have."""
        n_rows = {}
        for stratum in strata.tolist():
            more = (_TIMES_AS_MANY - 1) * len(self.errors[stratum])
            n_rows[stratum] = min(more, len(self.strata[stratum]))
        self.compute(self.rows[:0], n_rows)

    def squared_error(self) -> float:
        """As it looks."""
        parts = zip(self.strata, self.errors, strict=True)
        return math.fsum(len(stratum) * float(errors.mean()) for stratum, errors in parts)

    def surely_below(self) -> Float64:
        """Of each stratum, what its squared error is surely below."""
        parts = zip(self.strata, self.at_least, strict=True)
        return np.array([len(stratum) * _mean_at_most(found) for stratum, found in parts])

    def output(self) -> MeanOutput:
        """All that was computed is used."""
        pairs = len(self.rows) * len(self.head.keys)
        return MeanOutput(self.rows, self.outputs, self.squared_error(), pairs)


def _mean_at_most(found: Float64) -> float:
    """What a mean is surely below, from some of the numbers.

    The largest that was met, or less if so many others were not as large.
    """
    largest = float(found.max())
    return min(largest, float(found.mean()) + _UNMET * largest / len(found))


class ComputedRows(NamedTuple):
    """Some rows in full."""

    outputs: Array
    squares: Float64  # errors of the mean there, for moved values
    totals: Array  # of exponentials, the largest being 1


def computed_rows(head: AttentionHead, rows: Index, n_threads: int | None) -> ComputedRows:
    """Exact outputs of some rows."""
    sums = _exponentials(head, rows, head.values, head.scale, n_threads)
    assert sums.totals is not None
    outputs = sums.out / sums.totals[:, None]
    moved = (outputs - head.value_centre) * head.value_factor
    return ComputedRows(outputs, (moved**2).sum(axis=1), sums.totals)


def _unevenness(head: AttentionHead, rows: Index, totals: Array, n_threads: int | None) -> Float64:
    r""":math:`\sum_j (p_{ij} - 1/n)^2` of some rows, from exponentials of twice the scores."""
    n_keys = len(head.keys)
    no_values = np.empty((n_keys, 0), head.keys.dtype)
    sums = _exponentials(head, rows, no_values, 2 * head.scale, n_threads)
    assert sums.totals is not None
    squares = sums.totals.astype(np.float64) / totals.astype(np.float64) ** 2
    return np.maximum(squares - 1 / n_keys, 0.0)


def _exponentials(
    head: AttentionHead, rows: Index, x: Array, slope: float, n_threads: int | None
) -> TileSums:
    return Compiled(n_threads).tile_product(
        head.queries[rows],
        head.keys,
        x,
        query_shift=np.zeros(len(rows)),
        key_shift=np.zeros(len(head.keys)),
        slope=slope,
        key_centre=head.key_centre,
        online=True,
    )


def _some_keys(head: AttentionHead, n_keys: int) -> Array:
    return head.keys[:: max(1, len(head.keys) // n_keys)]


def _sharpness(head: AttentionHead, n_threads: int | None) -> Float64:
    r""":math:`\sum_j (p_{ij} - 1/n)^2` of every row, as far as it can be had without the row.

    If scores were normally distributed, but for the longest keys: of these the highest score.
    """
    n_keys = len(head.keys)
    everyone = np.arange(len(head.queries), dtype=np.int32)
    sample = _some_keys(head, _KEYS_FOR_ORDER)
    variance = _score_variance(head, everyone, sample, n_threads)
    lengths = Compiled(n_threads).squared_norms(
        head.keys,
        head.key_centre,
        1.0,
    )
    longest = np.argpartition(-lengths, min(_LONGEST_KEYS, n_keys) - 1)[:_LONGEST_KEYS]
    moved = head.scale * (head.keys[longest] - sample.mean(axis=0))
    no_centre = np.zeros(head.queries.shape[1])
    with np.errstate(over="ignore"):
        columns = np.ascontiguousarray(moved.T, np.float32)
    highest = (
        Compiled(n_threads)
        .project(
            head.queries,
            everyone,
            no_centre,
            columns,
        )
        .max(axis=1)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        # The mean of exponentials of normally distributed scores is that of half the variance.
        largest = np.minimum(np.exp(highest.astype(np.float64) - variance / 2) / n_keys, 1.0)
        sharpness = _normal_unevenness(n_keys, variance) + largest**2
        return np.where(np.isnan(sharpness), np.inf, sharpness)


def _score_variance(
    head: AttentionHead, rows: Index32, sample: Array, n_threads: int | None
) -> Float64:
    """Variance of the scores of some queries over the keys, from some of the keys.

    By ``project``: after a matrix product of NumPy, the threads of its BLAS spin for a while on the
    cores that are needed next.
    """
    moved = sample - sample.mean(axis=0)
    largest = float(np.abs(moved).max())
    points = (moved / (largest if largest > 0 else 1.0)).astype(np.float32)
    dims = np.arange(points.shape[1], dtype=np.int32)
    columns = np.ascontiguousarray(points.T)
    covariance = Compiled(n_threads).project(
        columns,
        dims,
        np.zeros(len(points)),
        points,
    )
    covariance /= np.float32(max(1, len(points) - 1))
    images = Compiled(n_threads).project(
        head.queries,
        rows,
        np.zeros(len(dims)),
        covariance,
    )
    with np.errstate(over="ignore", invalid="ignore"):  # huge scores: infinite or not a number
        queries = head.queries if len(rows) == len(head.queries) else head.queries[rows]
        products = np.einsum("ij,ij->i", images, queries.astype(np.float32, copy=False))
        factor = np.square(np.float64(head.scale * largest))
        # What is not a number was too large for one.
        variance = factor * np.maximum(products, 0.0).astype(np.float64)
        return np.where(np.isnan(variance), np.inf, variance)


def _predicted_share(n_keys: int, variance: Float64) -> float:
    r"""Mean squared error of the mean of the values, next to their own mean square.

    If scores and values were normally distributed; ``variance`` is of the scores of some queries,
    which stand for all.
    """
    return float(_normal_unevenness(n_keys, variance).mean())


def _normal_unevenness(n_keys: int, variance: Float64) -> Float64:
    r""":math:`\sum_j (p_{ij} - 1/n)^2`, which is :math:`(e^s - 1)/n` for scores of variance s."""
    return np.asarray(np.expm1(np.minimum(variance, math.log(n_keys))) / n_keys)
