"""Attention of one head in the time that is left: softmax over some keys, drawn for each chunk.

A chunk of neighbouring queries shares its keys. With a causal mask its own tokens are all taken,
and those before it drawn; weights of drawn keys make up for those that were not. A few rows are
computed exactly: they tell how long a pair takes, and afterwards the error.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv._deadline import Deadline
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Index

# Rows computed exactly take this share of the time at a cautious guess of pairs a second.
_CHECKED, _CAUTIOUS, _FEWEST_ROWS, _MOST_ROWS = 0.1, 5e7, 8, 128
# With a causal mask a chunk takes all of its own tokens, so it is smaller.
_ROWS_PER_CHUNK, _ROWS_IF_CAUSAL = 1024, 256
_FEWEST_KEYS = 16
# Of the time left for a chunk: a rate measured on the last one is not that of the next.
_USED = 0.8

TIME_OVER = "its share of max_seconds was over: some keys were drawn for each chunk of queries"

Mask = npt.NDArray[np.floating] | npt.NDArray[np.bool_]


class HurriedHead(NamedTuple):
    """One head as the user has it."""

    queries: Array
    keys: Array
    values: Array
    mask: Mask | None  # one row for each query, or one for all
    scale: float
    is_causal: bool


class HurriedOutput(NamedTuple):
    """Output of a head, its Frobenius error as told by exact rows, and what was done."""

    output: Array
    error_estimate: float
    pairs: int
    numbers: dict[str, object]


def hurried_attention(
    head: HurriedHead, deadline: Deadline, rng: np.random.Generator, n_threads: int | None
) -> HurriedOutput:
    """Some keys for each chunk of queries, as many as there is time for."""
    n_queries, n_keys = len(head.queries), len(head.keys)
    left = max(deadline.left(), 0.0)
    wanted = int(_CHECKED * left * _CAUTIOUS / n_keys)
    n_rows = min(n_queries, max(_FEWEST_ROWS, min(_MOST_ROWS, wanted)))
    checks = np.sort(rng.choice(n_queries, n_rows, replace=False))
    every = np.arange(n_keys)
    start = deadline.now()
    exact = _rows(head, checks, every, None, n_threads).astype(np.float64)
    rate = n_rows * n_keys / max(deadline.now() - start, 1e-9)
    output = np.empty((n_queries, head.values.shape[1]), head.values.dtype)
    pairs = n_rows * n_keys
    n_together = _ROWS_IF_CAUSAL if head.is_causal else _ROWS_PER_CHUNK
    firsts = range(0, n_queries, n_together)
    for number, first in enumerate(firsts):
        rows = np.arange(first, min(first + n_together, n_queries))
        seconds = _USED * max(deadline.left(), 0.0) / (len(firsts) - number)
        n_drawn = max(_FEWEST_KEYS, int(seconds * rate / len(rows)))
        keys, log_weights = _drawn(head, rows, n_drawn, rng)
        start = deadline.now()
        output[rows] = _rows(head, rows, keys, log_weights, n_threads)
        rate = len(rows) * len(keys) / max(deadline.now() - start, 1e-9)
        pairs += len(rows) * len(keys)
    drawn, by = _squares(output[checks], exact), "some keys"
    if head.mask is None and not head.is_causal:
        mean = head.values.mean(axis=0, dtype=np.float64)
        of_mean = _squares(np.broadcast_to(mean, exact.shape), exact)
        if of_mean < drawn:
            output[:] = mean
            drawn, by = of_mean, "the mean of the values"
    output[checks] = exact
    return HurriedOutput(
        output,
        math.sqrt(n_queries / n_rows * drawn),
        pairs,
        {"answered_by": by, "rows_checked": n_rows},
    )


def _squares(a: Array, b: Array) -> float:
    return float(np.square(a - b, dtype=np.float64).sum())


def _drawn(
    head: HurriedHead, rows: Index, n_drawn: int, rng: np.random.Generator
) -> tuple[Index, Array | None]:
    """Keys of a chunk, and logarithms of their weights; None where all weigh the same."""
    n_keys = len(head.keys)
    band = np.arange(min(int(rows[0]), n_keys), min(int(rows[-1]) + 1, n_keys))
    if not head.is_causal:
        band = band[:0]
    n_others = int(band[0]) if len(band) else n_keys
    n_drawn = min(n_others, n_drawn)
    others = np.sort(rng.choice(n_others, n_drawn, replace=False)) if n_drawn else band[:0]
    keys = np.concatenate([others, band])
    if not len(band) or n_drawn == n_others:
        return keys, None
    log_weights = np.zeros(len(keys), head.keys.dtype)
    log_weights[:n_drawn] = math.log(n_others / n_drawn)
    return keys, log_weights


def _rows(
    head: HurriedHead, rows: Index, keys: Index, log_weights: Array | None, n_threads: int | None
) -> Array:
    """Outputs of some queries over some keys."""
    mask: npt.NDArray[Any] | None = None
    if head.mask is not None:
        mask = (head.mask[rows] if len(head.mask) > 1 else head.mask)[:, keys]
    if log_weights is not None:
        if mask is not None and mask.dtype == np.bool_:
            mask = np.where(mask, log_weights, -np.inf).astype(head.keys.dtype)
        else:
            mask = log_weights[None] if mask is None else mask + log_weights
    if head.is_causal:
        seen = keys <= rows[:, None]
        if mask is None:
            mask = seen
        elif mask.dtype == np.bool_:
            mask = np.logical_and(mask, seen)
        else:
            mask = np.where(seen, mask, -np.inf).astype(head.keys.dtype)
    out: Array = (
        Compiled(n_threads)
        .attention(
            np.ascontiguousarray(head.queries[rows])[None],
            np.ascontiguousarray(head.keys[keys])[None],
            np.ascontiguousarray(head.values[keys])[None],
            np.zeros((1, 4), np.int64),
            scale=head.scale,
            mask=None if mask is None else np.ascontiguousarray(mask)[None],
        )
        .out[0]
    )
    return out
