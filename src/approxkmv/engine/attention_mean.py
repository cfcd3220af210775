r"""Where attention is nearly uniform, the mean of all values is the answer, at next to no cost.

Its error is estimated from exact rows. The larger the norm of a query, the sharper its row can be
(on word vectors ten rows of 16,384 were half of the squared error). So the rows of largest norm are
computed and keep their exact outputs; the others are drawn from strata of decreasing norm, each
twice as large as the one before, and the largest error met in a stratum must do for all of it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from approxkmv.leaves import Array, AttentionHead, Index, tile_product

# At most so many rows, and such a part of the exact work, for rows of largest norm and others.
_MOST_ROWS, _LEAST_KEYS_PER_ROW = 256, 128
_POINTS_FOR_PREDICTION = 1024
# The prediction decides only whether rows are worth computing.
_HOPELESS = 4.0


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
    n_queries, n_keys = len(head.queries), len(head.keys)
    n_largest = min(_MOST_ROWS, n_keys // _LEAST_KEYS_PER_ROW) // 2
    if n_largest < 2 or _predicted_error(head) > _HOPELESS * allowed:
        return None
    order = np.argsort(-np.einsum("ij,ij->i", head.queries, head.queries), kind="stable")
    edges = n_largest * 2 ** np.arange(64, dtype=np.float64)
    edges = np.append(edges[edges < n_queries], n_queries).astype(np.int64)
    per_stratum = max(4, n_largest // max(1, len(edges) - 1))
    drawn = [rng.choice(order[a:b], per_stratum) for a, b in pairwise(edges)]
    rows = np.concatenate([order[:n_largest], *drawn])
    sums = tile_product(
        head.queries[rows],
        head.keys,
        head.values,
        query_shift=np.zeros(len(rows)),
        key_shift=np.zeros(n_keys),
        slope=head.scale,
        key_centre=head.key_centre,
        online=True,
        n_threads=n_threads,
    )
    assert sums.totals is not None
    outputs = sums.out / sums.totals[:, None]
    moved = (outputs[n_largest:] - head.value_centre) * head.value_factor
    squares = (moved**2).sum(axis=1).reshape(len(drawn), per_stratum)
    if float(np.diff(edges) @ squares.max(axis=1)) > allowed:
        return None
    error = float(np.diff(edges) @ squares.mean(axis=1))
    return MeanOutput(rows, outputs, error, len(rows) * n_keys)


def _predicted_error(head: AttentionHead) -> float:
    r"""Squared error of the mean if scores and values were normally distributed.

    Then :math:`\sum_j p_{ij}^2 = e^{s_i}/n` for scores of variance :math:`s_i` over the keys.
    """
    n_keys = len(head.keys)
    keys, values = (a[:: max(1, n_keys // _POINTS_FOR_PREDICTION)] for a in head[1:3])
    queries = head.queries[:: max(1, len(head.queries) // _POINTS_FOR_PREDICTION)]
    spread = head.scale**2 * ((queries @ np.cov(keys, rowvar=False)) * queries).sum(axis=1)
    squares = np.exp(np.minimum(spread, math.log(n_keys))) / n_keys
    moved = (values - head.value_centre) * head.value_factor
    return len(head.queries) * float(squares.mean() * (moved**2).sum(axis=1).mean())
