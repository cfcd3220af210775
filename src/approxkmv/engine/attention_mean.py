r"""Where attention is nearly uniform, the mean of all values is the answer, at next to no cost.

Its error is estimated from exact rows. The more a query's scores vary over the keys, the sharper
its row (on word vectors ten rows of 16,384 were half of the squared error). So the rows of largest
variance are computed and keep their exact outputs; the others are drawn from strata of decreasing
variance, each twice as large as the one before, and the largest error met in a stratum must do for
all of it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from approxkmv.leaves import (
    Array,
    AttentionHead,
    Float64,
    Index,
    Index32,
    TileSums,
    project,
    tile_product,
)

# At most so many rows, and such a part of the exact work, for rows of largest variance and others.
_MOST_ROWS, _LEAST_KEYS_PER_ROW = 256, 128
# Where a few values are larger than all others, so are the errors of the few rows that look at
# their keys, and rows drawn would miss them. At least such a share of all values must matter.
_LEAST_THAT_MATTER = 1 / 32
# A prediction and a few rows decide only whether more rows are worth computing: the rows see sharp
# heads that the prediction takes for flat.
# Of 15 heads with more than 1.5 times the squared error allowed predicted, the mean did for one.
_POINTS_FOR_PREDICTION, _FIRST_ROWS, _HOPELESS = 256, 16, 1.5
_KEYS_FOR_ORDER = 1024
# Where the first rows find so much less than is allowed, a few rows are sharper than the others.
# Then a quarter of the rows is enough if they find far less, too; and if all of them find nearly
# what is allowed, four times as many: the next strata are four times as large, but the sharpest
# rows are out of them.
_FIRST_SAY, _FEW_ROWS, _FAR_MORE, _SECOND_TRY, _NEARLY = 8.0, 4, 4.0, 4, 2.0


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
    n_largest = min(_MOST_ROWS, n_keys // _LEAST_KEYS_PER_ROW) // 2
    matter = float(squares.sum()) ** 2 / float((squares**2).sum())
    if n_largest < 2 or not matter >= _LEAST_THAT_MATTER * n_keys:
        return None
    n_queries = len(head.queries)
    some = np.arange(0, n_queries, max(1, n_queries // _POINTS_FOR_PREDICTION), dtype=np.int32)
    variance = _score_variance(head, some, _POINTS_FOR_PREDICTION, n_threads)
    spread = float(squares.mean())
    predicted = n_queries * _predicted_share(n_keys, variance) * spread
    if not predicted <= _HOPELESS * allowed:  # it may not be a number
        return None
    first = computed_rows(head, rng.integers(n_queries, size=_FIRST_ROWS), n_threads)
    first_say = n_queries * float(first.squares.mean())
    if not first_say <= _HOPELESS * allowed:
        return None
    everyone = np.arange(n_queries, dtype=np.int32)
    variance = _score_variance(head, everyone, _KEYS_FOR_ORDER, n_threads)
    order = np.argsort(-variance, kind="stable")
    few_are_sharp = _FIRST_SAY * first_say <= allowed
    if few_are_sharp and n_largest >= 2 * _FEW_ROWS:
        found, most = _from_rows(head, spread, order, n_largest // _FEW_ROWS, rng, n_threads)
        if _FAR_MORE * most <= allowed:
            return found
    found, most = _from_rows(head, spread, order, n_largest, rng, n_threads)
    if few_are_sharp and allowed < most <= _NEARLY * allowed:
        found, most = _from_rows(head, spread, order, _SECOND_TRY * n_largest, rng, n_threads)
    return found if most <= allowed else None


def _from_rows(
    head: AttentionHead,
    spread: float,
    order: Index,
    n_largest: int,
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[MeanOutput, float]:
    """The mean with the first rows exact, and what its squared error is surely below.

    That of a row is at least what it would be on average if each key had the value of another one:
    whether the few keys that it looks at have large values is chance.
    """
    n_queries, n_keys = len(order), len(head.keys)
    edges = n_largest * 2 ** np.arange(64, dtype=np.float64)
    edges = np.append(edges[edges < n_queries], n_queries).astype(np.int64)
    per_stratum = max(4, n_largest // max(1, len(edges) - 1))
    drawn = [rng.choice(order[a:b], per_stratum) for a, b in pairwise(edges)]
    rows = np.concatenate([order[:n_largest], *drawn])
    found = computed_rows(head, rows, n_threads)
    by_stratum = found.squares[n_largest:].reshape(len(drawn), per_stratum)
    uneven = _unevenness(head, rows[n_largest:], found.totals[n_largest:], n_threads)
    shuffled = spread * uneven.reshape(by_stratum.shape)
    error = float(np.diff(edges) @ by_stratum.mean(axis=1))
    most = float(np.diff(edges) @ np.maximum(by_stratum, shuffled).max(axis=1))
    return MeanOutput(rows, found.outputs, error, len(rows) * n_keys), most


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
    return tile_product(
        head.queries[rows],
        head.keys,
        x,
        query_shift=np.zeros(len(rows)),
        key_shift=np.zeros(len(head.keys)),
        slope=slope,
        key_centre=head.key_centre,
        online=True,
        n_threads=n_threads,
    )


def _score_variance(
    head: AttentionHead, rows: Index32, n_points: int, n_threads: int | None
) -> Float64:
    """Variance of the scores of some queries over the keys, from some of the keys.

    By ``project``: after a matrix product of NumPy, the threads of its BLAS spin for a while on the
    cores that are needed next.
    """
    sample = head.keys[:: max(1, len(head.keys) // n_points)]
    moved = sample - sample.mean(axis=0)
    largest = float(np.abs(moved).max())
    points = (moved / (largest if largest > 0 else 1.0)).astype(np.float32)
    dims = np.arange(points.shape[1], dtype=np.int32)
    columns = np.ascontiguousarray(points.T)
    covariance = project(columns, dims, np.zeros(len(points)), points, n_threads=n_threads)
    covariance /= np.float32(max(1, len(points) - 1))
    images = project(head.queries, rows, np.zeros(len(dims)), covariance, n_threads=n_threads)
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
    which stand for all. Then :math:`\sum_j (p_{ij} - 1/n)^2 = (e^{s_i} - 1)/n` for scores of
    variance :math:`s_i` over the keys.
    """
    return float(np.expm1(np.minimum(variance, math.log(n_keys))).mean()) / n_keys
