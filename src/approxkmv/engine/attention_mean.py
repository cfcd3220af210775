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

from approxkmv.leaves import Array, AttentionHead, Float64, Index, Index32, project, tile_product

# At most so many rows, and such a part of the exact work, for rows of largest variance and others.
_MOST_ROWS, _LEAST_KEYS_PER_ROW = 256, 128
_POINTS_FOR_PREDICTION = 1024
# A prediction and a few rows decide only whether more rows are worth computing. The rows see sharp
# heads that the prediction takes for flat, the prediction a few large values that the rows miss.
_FIRST_ROWS, _HOPELESS = 16, 4.0
# Where it is a near thing, four times as many rows: the next strata are four times as large, but
# the sharpest rows are out of them.
_SECOND_TRY, _NEARLY = 4, 2.0
# A quarter of the rows is enough where far more is allowed than they find.
_FEW_ROWS, _FAR_MORE, _FIRST_SAY = 4, 4.0, 8.0


class MeanOutput(NamedTuple):
    """Rows with their exact outputs; all others get the mean, with this squared error in sum."""

    rows: Index
    outputs: Array
    squared_error: float  # for moved values
    pairs: int


def mean_output(
    head: AttentionHead, allowed: float, rng: np.random.Generator, n_threads: int | None
) -> MeanOutput | None:
    """The mean of all values as output, if its squared error is surely below ``allowed``."""
    n_keys = len(head.keys)
    n_largest = min(_MOST_ROWS, n_keys // _LEAST_KEYS_PER_ROW) // 2
    if n_largest < 2:
        return None
    n_queries = len(head.queries)
    some = np.arange(0, n_queries, max(1, n_queries // _POINTS_FOR_PREDICTION), dtype=np.int32)
    variance = _score_variance(head, some, n_threads)
    if not _predicted_error(head, variance) <= _HOPELESS * allowed:  # it may not be a number
        return None
    _, squares = computed_rows(head, rng.integers(n_queries, size=_FIRST_ROWS), n_threads)
    first_say = n_queries * float(squares.mean())
    if not first_say <= _HOPELESS * allowed:
        return None
    everyone = np.arange(n_queries, dtype=np.int32)
    order = np.argsort(-_score_variance(head, everyone, n_threads), kind="stable")
    if _FIRST_SAY * first_say <= allowed and n_largest >= 2 * _FEW_ROWS:
        found, most = _from_rows(head, order, n_largest // _FEW_ROWS, rng, n_threads)
        if _FAR_MORE * most <= allowed:
            return found
    for size in (n_largest, _SECOND_TRY * n_largest):
        found, most = _from_rows(head, order, size, rng, n_threads)
        if most <= allowed:
            return found
        if most > _NEARLY * allowed:
            break
    return None


def _from_rows(
    head: AttentionHead,
    order: Index,
    n_largest: int,
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[MeanOutput, float]:
    """The mean with the first rows exact, and what its squared error is surely below."""
    n_queries, n_keys = len(order), len(head.keys)
    edges = n_largest * 2 ** np.arange(64, dtype=np.float64)
    edges = np.append(edges[edges < n_queries], n_queries).astype(np.int64)
    per_stratum = max(4, n_largest // max(1, len(edges) - 1))
    drawn = [rng.choice(order[a:b], per_stratum) for a, b in pairwise(edges)]
    rows = np.concatenate([order[:n_largest], *drawn])
    outputs, squares = computed_rows(head, rows, n_threads)
    by_stratum = squares[n_largest:].reshape(len(drawn), per_stratum)
    error = float(np.diff(edges) @ by_stratum.mean(axis=1))
    most = float(np.diff(edges) @ by_stratum.max(axis=1))
    return MeanOutput(rows, outputs, error, len(rows) * n_keys), most


def computed_rows(head: AttentionHead, rows: Index, n_threads: int | None) -> tuple[Array, Float64]:
    """Exact outputs of some rows, and squared errors of the mean there, for moved values."""
    sums = tile_product(
        head.queries[rows],
        head.keys,
        head.values,
        query_shift=np.zeros(len(rows)),
        key_shift=np.zeros(len(head.keys)),
        slope=head.scale,
        key_centre=head.key_centre,
        online=True,
        n_threads=n_threads,
    )
    assert sums.totals is not None
    outputs = sums.out / sums.totals[:, None]
    moved = (outputs - head.value_centre) * head.value_factor
    return outputs, (moved**2).sum(axis=1)


def _score_variance(head: AttentionHead, rows: Index32, n_threads: int | None) -> Float64:
    """Variance of the scores of some queries over the keys, from some of the keys.

    By ``project``: after a matrix product of NumPy, the threads of its BLAS spin for a while on the
    cores that are needed next.
    """
    sample = head.keys[:: max(1, len(head.keys) // _POINTS_FOR_PREDICTION)]
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


def _predicted_error(head: AttentionHead, variance: Float64) -> float:
    r"""Squared error of the mean if scores and values were normally distributed.

    ``variance`` is of the scores of some queries, which stand for all.
    Then :math:`\sum_j p_{ij}^2 = e^{s_i}/n` for scores of variance :math:`s_i` over the keys.
    """
    n_keys = len(head.keys)
    values = head.values[:: max(1, n_keys // _POINTS_FOR_PREDICTION)]
    squares = np.exp(np.minimum(variance, math.log(n_keys))) / n_keys
    moved = (values - head.value_centre) * head.value_factor
    return len(head.queries) * float(squares.mean() * (moved**2).sum(axis=1).mean())
