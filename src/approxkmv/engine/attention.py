"""Softmax attention of one head from drawn keys, with an estimate of its error.

Promise: ``|O - O'|_F <= eps |V|_F`` with probability at least ``1 - delta``, where O is the exact
output. A few rows of each block of queries are computed exactly; they tell which keys matter to the
block, so how often each key should be drawn, and whether drawing pays at all.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from approxkmv.engine.attention_mean import mean_output
from approxkmv.engine.attention_order import every_nth, order_blocks, pilot_rows
from approxkmv.engine.attention_rates import solve_rate
from approxkmv.engine.sample import spread
from approxkmv.leaves import (
    Array,
    AttentionBlocks,
    AttentionDraws,
    AttentionHead,
    AttentionRates,
    Float64,
    Index32,
    PilotMoments,
    Smoothing,
    attention_draw,
    attention_pilot,
    squared_norms,
)

# Below this many pairs the exact output takes less time than finding out about the head.
_FEWEST_PAIRS = 2**22
# Rows of each block that are computed exactly: some to plan with, others to check with.
_PILOT_ROWS, _CHECK_ROWS = 2, 2
# One block in so many is looked at first, to give up early where sampling cannot pay.
_FIRST_LOOK = 8
# What a drawn pair costs in exact ones: keys are gathered, squared terms summed.
_SAMPLED_PAIR = 1.4
_SMOOTHING = Smoothing(
    check_rows=_CHECK_ROWS,
    plan_guard=0.2,
    guard=0.5,
    narrow=16,
    wide=256,
    raw_share=0.3,
    wide_share=0.2,
    floor_share=0.01,
)
_LEAST_DRAWS = 32.0
# The variance aimed at leaves room for the spread of the error and for a wrong prediction.
_AIM = 0.5
_MOST_DRAWS = 3
# Fewer rows are checked than would be needed to believe that the variance is much too large; and
# where it is out by far more than its order (rows whose one heavy key was not drawn), it says nothing.
_LEAST_RATIO, _MOST_RATIO = 0.7, 100.0
_MOST_OF_EXACT, _HOPELESS = 0.75, 0.85


@dataclass(frozen=True, eq=False)
class SampledAttention:
    """Output of one head, its estimated Frobenius error, and what was done for it."""

    output: Array
    error_estimate: float
    pairs: int
    numbers: dict[str, object]
    seconds: dict[str, float]


def sampled_attention(
    query: Array,  # (m, d)
    key: Array,  # (n, d)
    value: Array,  # (n, dv)
    *,
    scale: float,
    is_causal: bool,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> SampledAttention | None:
    """Attention of one head within ``eps * |V|_F``; None where computing every pair is better."""
    n_pairs = _pairs_seen(len(query), len(key), is_causal)
    if n_pairs < _FEWEST_PAIRS:
        return None
    clock = time.perf_counter()
    seconds: dict[str, float] = {}

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[stage] = seconds.get(stage, 0.0) + now - clock
        clock = now

    head, furthest = _prepare(query, key, value, scale, n_threads)
    zero = np.zeros(value.shape[1])
    squares = squared_norms(value, zero, head.value_factor, n_threads=n_threads)
    allowed = eps**2 * float(squares.sum())
    if furthest == 0:  # every value is the centre, and so is every output
        return SampledAttention(_all_mean(head), 0.0, 0, {"mean_of_values": True}, seconds)
    if not is_causal:
        mean = mean_output(head, allowed, rng, n_threads)
        lap("mean")
        if mean is not None:
            output = _all_mean(head)
            output[mean.rows] = mean.outputs
            return SampledAttention(
                output,
                math.sqrt(mean.squared_error) / head.value_factor,
                mean.pairs,
                {"mean_of_values": True},
                seconds,
            )
    blocks = order_blocks(query, key, is_causal=is_causal, rng=rng)
    sizes = np.diff(blocks.start)
    band = float((sizes * (blocks.band_stop - blocks.band_start)).sum())
    lap("order")
    few = every_nth(blocks, _FIRST_LOOK, int(rng.integers(_FIRST_LOOK)))
    rows = pilot_rows(few, _PILOT_ROWS + _CHECK_ROWS, rng)
    first_look = attention_pilot(head, few, rows, _SMOOTHING, n_threads=n_threads)
    part = (few.start[-1]) / len(query)
    plan = solve_rate(few, first_look, _AIM * allowed * part, n_threads=n_threads)
    lap("first look")
    if _SAMPLED_PAIR * (plan.pairs / part + band) > _HOPELESS * n_pairs:
        return None
    rows = pilot_rows(blocks, _PILOT_ROWS + _CHECK_ROWS, rng)
    pilot = attention_pilot(head, blocks, rows, _SMOOTHING, n_threads=n_threads)
    lap("pilot")
    pilot_pairs = int(_seen(rows, len(key), is_causal).sum())
    numbers: dict[str, object] = {"blocks": len(sizes), "pilot_rows": len(rows)}
    plan = solve_rate(blocks, pilot, _AIM * allowed, n_threads=n_threads)
    lap("plan")
    numbers["predicted_share_of_pairs"] = (plan.pairs + band) / n_pairs
    seed, rate, pairs = int(rng.integers(2**63)), plan.rate, pilot_pairs
    predicted, spent = plan.pairs, 0.0
    near = pilot.outputs.reshape(len(sizes), _PILOT_ROWS + _CHECK_ROWS, -1).mean(axis=1)
    for attempt in range(_MOST_DRAWS):
        if spent + _SAMPLED_PAIR * (predicted + band) > _MOST_OF_EXACT * n_pairs:
            return None
        rates = AttentionRates(pilot.guarded, near, plan.floor, rate, _LEAST_DRAWS, seed, attempt)
        draws = attention_draw(head, blocks, rates, n_threads=n_threads)
        drawn = int((draws.n_drawn * sizes).sum())
        pairs += drawn
        spent += _SAMPLED_PAIR * drawn
        variance, upper = _error(draws, pilot, rows, blocks, delta)
        lap("draw")
        worst = upper / allowed
        if worst <= 1:
            break
        factor = 1.3 * min(worst, 3.0)
        rate, predicted = rate * factor, min(predicted * factor, float(n_pairs))
    else:
        return None
    draws.out[rows] = pilot.outputs
    numbers |= {"draws": attempt + 1, "share_of_pairs": pairs / n_pairs}
    output = _moved_back(head, draws.out)
    lap("draw")
    return SampledAttention(
        output, math.sqrt(variance) / head.value_factor, pairs, numbers, seconds
    )


def _pairs_seen(n_queries: int, n_keys: int, is_causal: bool) -> int:
    if not is_causal:
        return n_queries * n_keys
    square = min(n_queries, n_keys)
    return square * (square + 1) // 2 + (n_queries - square) * n_keys


def _seen(rows: Index32, n_keys: int, is_causal: bool) -> Float64:
    return np.minimum(rows + 1, n_keys) if is_causal else np.full(len(rows), n_keys)


def _prepare(
    query: Array, key: Array, value: Array, scale: float, n_threads: int | None
) -> tuple[AttentionHead, float]:
    """Keys and values around their means, values of at most unit size; softmax does not change.

    Also how far the values are from their mean, at most.
    """
    key_centre = key[:: max(1, len(key) // 1024)].mean(axis=0, dtype=np.float64)
    # The centre of the values is subtracted in their own precision.
    value_centre = value.mean(axis=0, dtype=np.float64).astype(value.dtype).astype(np.float64)
    furthest = math.sqrt(float(squared_norms(value, value_centre, 1.0, n_threads=n_threads).max()))
    exponent = -math.frexp(furthest)[1] if furthest > 0 else 0
    head = AttentionHead(
        query,
        key,
        value,
        scale,
        np.zeros(query.shape[1]),
        key_centre,
        value_centre,
        math.ldexp(1.0, exponent),
    )
    return head, furthest


def _moved_back(head: AttentionHead, output: Array) -> Array:
    output *= output.dtype.type(1 / head.value_factor)
    output += head.value_centre.astype(output.dtype)
    return output


def _all_mean(head: AttentionHead) -> Array:
    shape = len(head.queries), head.values.shape[1]
    return np.broadcast_to(head.value_centre, shape).astype(head.values.dtype)


def _error(
    draws: AttentionDraws,
    pilot: PilotMoments,
    rows: Index32,
    blocks: AttentionBlocks,
    delta: float,
) -> tuple[float, float]:
    """Estimated squared error, and what it stays below at the confidence asked for.

    The draws tell their own variance to first order. What that misses (keys that were never drawn,
    noisy denominators) is measured on rows that were computed exactly but not planned with.
    """
    known = ~np.isnan(draws.variance)
    bound = float(draws.bound[known].sum())
    share = max(0.0, float(draws.variance[known].sum())) / bound if bound > 0 else 1.0
    per_row = share * draws.bound
    per_block = np.add.reduceat(per_row[blocks.query_order], blocks.start[:-1])
    checks = rows.reshape(len(per_block), -1)[:, _PILOT_ROWS:].ravel()
    exact = pilot.outputs.reshape(len(per_block), _PILOT_ROWS + _CHECK_ROWS, -1)[:, _PILOT_ROWS:]
    error = draws.out[checks] - exact.reshape(len(checks), -1)
    measured = (error.astype(np.float64) ** 2).sum(axis=1)
    predicted = float(per_row[checks].sum())
    variance = float(per_block.sum())
    if measured.sum() > _MOST_RATIO * predicted:
        variance = len(draws.out) * float(measured.mean())
    elif predicted > 0:
        variance *= max(_LEAST_RATIO, float(measured.sum()) / predicted)
    return variance, variance * spread(per_block, delta)
