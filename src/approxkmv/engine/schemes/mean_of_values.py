r"""Where attention is nearly uniform, the mean of all values is the answer, at next to no cost.

Its error is estimated from exact rows. Few rows are much sharper than others: those with scores
that vary a lot over the keys, and those with a high score for one of the longest keys (on 32,768
word vectors 32 rows were 73 % of the squared error, most of them the longest words, which look at
themselves). So the rows that are expected to be the sharpest are computed and keep their
exact outputs; the others are drawn from strata of decreasing sharpness, each twice as large as the
one before. A stratum in which a large error was met may hold more such rows than were met, and gets
more rows if its upper limit dominates that of all.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from approxkmv.engine.head import Head, HeadProblem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import chi_square_quantile
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Array, Float64, Index, Index32

FEW_VALUES = "few of the values matter, so that a mean of all cannot be checked by some rows"
EQUAL = "all values are equal"
TOO_FAR = "the outputs are too far from the mean of the values"


def take_mean(problem: HeadProblem, trace: Trace) -> Result:
    """The mean of the values for nearly all rows; ``Refusal`` unless it is surely good enough."""
    head, output = problem.head, problem.head.mean_output
    if not head.value_spread.any():  # every value is the mean, and so is every output
        trace.note(mean_of_values=True)
        return Result(output, 0.0, 0.0, 0.0, 0.0, 0, 0, np.empty(0, np.int64), EQUAL)
    try:
        rows = _enough_rows(problem, trace)
    finally:
        trace.lap("mean")
    trace.note(mean_of_values=True, rows_recomputed=len(rows.rows))
    output[rows.rows] = rows.outputs
    unit = head.moved.value_factor**-2
    return Result(
        y=output,
        variance=unit * rows.squared_error(),
        upper=unit * float(rows.surely_below().sum()),
        left_out=0.0,
        checked=0.0,
        pairs=trace.pairs,
        n_recomputed=len(rows.rows),
        exact_rows=rows.rows,
        reason="the mean of the values is enough for nearly all rows",
    )


def _sharpest(problem: HeadProblem, trace: Trace) -> tuple[int, bool]:
    """How many of the sharpest rows to compute, and whether a part of them is likely to be enough.

    ``Refusal`` if a prediction, or the first rows, say that the mean will not do.
    """
    head, margins, budget = problem.head, problem.policy.mean, problem.squared_error
    n_queries, n_keys = head.n_queries, head.n_keys
    n_sharpest = min(margins.most_rows, n_keys // margins.keys_per_row) // 2
    squares = head.value_spread * head.moved.value_factor**2
    matter = float(squares.sum()) ** 2 / float((squares**2).sum())
    if n_sharpest < 2 or not matter >= margins.least_that_matter * n_keys:
        raise Refusal(FEW_VALUES)
    n_points = margins.points_for_prediction
    some = np.arange(0, n_queries, max(1, n_queries // n_points), dtype=np.int32)
    variance = _score_variance(head, some, _some_keys(head, n_points))
    predicted = n_queries * _predicted_share(n_keys, variance) * float(squares.mean())
    if not predicted <= margins.hopeless * budget:  # it may not be a number
        raise Refusal(TOO_FAR)
    first = computed_rows(head, problem.rng.integers(n_queries, size=margins.first_rows))
    trace.pairs += margins.first_rows * n_keys
    # Without the largest: one sharp row among them says little about the others.
    first_say = n_queries * float(np.sort(first.squares)[:-1].mean())
    if not first_say <= margins.hopeless * budget:
        raise Refusal(TOO_FAR)
    fewer = n_sharpest >= 2 * margins.fewer_rows and margins.first_say * first_say <= budget
    return n_sharpest, fewer


def _enough_rows(problem: HeadProblem, trace: Trace) -> MeanRows:
    """Rows computed exactly until the error of the others is surely within the budget."""
    margins, budget = problem.policy.mean, problem.squared_error
    n_sharpest, fewer = _sharpest(problem, trace)
    order = np.argsort(-sharpness(problem))
    if fewer:
        rows = MeanRows(problem, trace, order, n_sharpest // margins.fewer_rows)
        if margins.far_less * rows.surely_below().sum() <= budget:
            return rows
    rows = MeanRows(problem, trace, order, n_sharpest)
    while (most := rows.surely_below()).sum() > budget:
        too_many = len(rows.rows) > margins.share_of_rows * problem.head.n_queries
        if too_many or margins.looks_fine * rows.squared_error() > budget:
            raise Refusal(TOO_FAR)
        rows.look_closer(in_the_way(most, budget))
    return rows


def in_the_way(parts: Float64, budget: float) -> Index:
    """The fewest of some parts without which at most half of the budget would be left."""
    order = np.argsort(-parts, kind="stable")
    others = parts.sum() - np.cumsum(parts[order])
    return order[: 1 + int((others > budget / 2).sum())]


class MeanRows:
    """The sharpest rows exactly, and what rows drawn of the others say about the mean."""

    def __init__(self, problem: HeadProblem, trace: Trace, order: Index, n_sharpest: int) -> None:
        self.problem, self.trace, head = problem, trace, problem.head
        self.spread = float(head.value_spread.mean()) * head.moved.value_factor**2
        self.unmet = unmet(min(problem.budget.delta, 1 - problem.policy.mean.met_twice))
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
        rng, head = self.problem.rng, self.problem.head
        drawn = {s: rng.choice(self.strata[s], n) for s, n in n_rows.items()}
        every = np.concatenate([rows, *drawn.values()])
        found = computed_rows(head, every)
        self.trace.pairs += len(every) * head.n_keys
        self.rows = np.append(self.rows, every)
        self.outputs = np.concatenate([self.outputs, found.outputs])
        shuffled = self.spread * _unevenness(head, every, found.normalizers)
        start = len(rows)
        for stratum, part in drawn.items():
            stop = start + len(part)
            errors = found.squares[start:stop]
            self.errors[stratum] = np.append(self.errors[stratum], errors)
            at_least = np.maximum(errors, shuffled[start:stop])
            self.at_least[stratum] = np.append(self.at_least[stratum], at_least)
            start = stop

    def look_closer(self, strata: Index) -> None:
        """More rows of these, but not more than they have."""
        n_rows = {}
        for stratum in strata.tolist():
            more = (self.problem.policy.mean.more_rows - 1) * len(self.errors[stratum])
            n_rows[stratum] = min(more, len(self.strata[stratum]))
        self.compute(self.rows[:0], n_rows)

    def squared_error(self) -> float:
        """As it looks."""
        parts = zip(self.strata, self.errors, strict=True)
        return math.fsum(len(stratum) * float(errors.mean()) for stratum, errors in parts)

    def surely_below(self) -> Float64:
        """Of each stratum, what its squared error is surely below."""
        parts = zip(self.strata, self.at_least, strict=True)
        return np.array([len(part) * mean_at_most(found, self.unmet) for part, found in parts])


def unmet(delta: float) -> float:
    """Of a kind of rows of which more than this are to be expected, two are met at least.

    Except with probability ``delta``: that of a Poisson variable of this mean to be 0 or 1, which
    is that of chi-squared with four degrees of freedom to be above twice the mean.
    """
    return chi_square_quantile(4, 1 - delta) / 2


def mean_at_most(found: Float64, unmet: float) -> float:
    """What a mean is surely below, from some of the numbers.

    The largest that was met, or less where most others were not as large.
    """
    largest = float(found.max())
    return min(largest, float(found.mean()) + unmet * largest / len(found))


class ComputedRows(NamedTuple):
    """Some rows in full."""

    outputs: Array
    squares: Float64  # errors of the mean there, for moved values
    normalizers: Array  # logarithms of sums of exponentials


def computed_rows(head: Head, rows: Index) -> ComputedRows:
    """Exact outputs of some rows."""
    sums = head.attended(rows, head.values, head.scale)
    moved = (sums.out[0] - head.value_centre) * head.moved.value_factor
    return ComputedRows(sums.out[0], (moved**2).sum(axis=1), sums.log_normalizer[0])


def _unevenness(head: Head, rows: Index, normalizers: Array) -> Float64:
    r""":math:`\sum_j (p_{ij} - 1/n)^2` of some rows, from exponentials of twice the scores."""
    no_values = head.values[:, :0]
    of_squares = head.attended(rows, no_values, 2 * head.scale).log_normalizer[0]
    squares = np.exp(of_squares.astype(np.float64) - 2 * normalizers.astype(np.float64))
    return np.asarray(np.maximum(squares - 1 / head.n_keys, 0.0))


def _some_keys(head: Head, n_keys: int) -> Array:
    return head.keys[:: max(1, len(head.keys) // n_keys)]


def sharpness(problem: HeadProblem) -> Float64:
    r""":math:`\sum_j (p_{ij} - 1/n)^2` of every row, as far as it can be had without the row.

    If scores were normally distributed, but for the longest keys: of these the highest score.
    """
    head, margins = problem.head, problem.policy.mean
    n_keys = head.n_keys
    everyone = np.arange(head.n_queries, dtype=np.int32)
    sample = _some_keys(head, margins.keys_for_order)
    variance = _score_variance(head, everyone, sample)
    lengths = head.backend.squared_norms(head.keys, head.moved.key_centre, 1.0)
    n_longest = min(margins.longest_keys, n_keys)
    longest = np.argpartition(-lengths, n_longest - 1)[:n_longest]
    moved = head.scale * (head.keys[longest] - sample.mean(axis=0))
    no_centre = np.zeros(head.queries.shape[1])
    with np.errstate(over="ignore"):
        columns = np.ascontiguousarray(moved.T, np.float32)
    highest = head.backend.project(head.queries, everyone, no_centre, columns).max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        # The mean of exponentials of normally distributed scores is that of half the variance.
        largest = np.minimum(np.exp(highest.astype(np.float64) - variance / 2) / n_keys, 1.0)
        found = _normal_unevenness(n_keys, variance) + largest**2
        return np.where(np.isnan(found), np.inf, found)


def _score_variance(head: Head, rows: Index32, sample: Array) -> Float64:
    """Variance of the scores of some queries over the keys, from some of the keys.

    By ``project``: after a matrix product of NumPy, the threads of its BLAS spin for a while on the
    cores that are needed next.
    """
    moved = sample - sample.mean(axis=0)
    largest = float(np.abs(moved).max())
    points = (moved / (largest if largest > 0 else 1.0)).astype(np.float32)
    dims = np.arange(points.shape[1], dtype=np.int32)
    columns, project = np.ascontiguousarray(points.T), head.backend.project
    covariance = project(columns, dims, np.zeros(len(points)), points)
    covariance /= np.float32(max(1, len(points) - 1))
    images = project(head.queries, rows, np.zeros(len(dims)), covariance)
    with np.errstate(over="ignore", invalid="ignore"):  # huge scores: infinite or not a number
        queries = head.queries if len(rows) == head.n_queries else head.queries[rows]
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
