r"""Where attention is nearly uniform, the mean of all values is the answer, at next to no cost.

Its error is estimated from exact rows. Only queries of large norm can be sharp where the others are
not, so half of the rows are those of largest norm (on word vectors ten rows of 16,384 were half of
the squared error), and these keep their exact output; the other half stands for all the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from approxkmv.leaves import Array, AttentionHead, Index, tile_product

_MOST_ROWS = 256
_LEAST_KEYS_PER_ROW = 128  # at most this part of the exact work
_POINTS_FOR_PREDICTION = 1024
# The prediction decides only whether rows are worth computing.
_HOPELESS = 4.0
_STANDARD_ERRORS = 4.0


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
    half = min(_MOST_ROWS, n_keys // _LEAST_KEYS_PER_ROW, n_queries) // 2
    if half < 2 or _predicted_error(head) > _HOPELESS * allowed:
        return None
    order = np.argsort(-np.einsum("ij,ij->i", head.queries, head.queries), kind="stable")
    rest = rng.choice(order[half:], half, replace=False)
    rows = np.concatenate([order[:half], rest])
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
    moved = (outputs[half:] - head.value_centre) * head.value_factor
    squares = (moved**2).sum(axis=1)
    n_left = n_queries - len(rows)
    error = n_left * float(squares.mean())
    noise = n_left * float(squares.std()) / math.sqrt(half)
    if error + _STANDARD_ERRORS * noise > allowed:
        return None
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
