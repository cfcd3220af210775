"""Softmax attention of one head from drawn keys, with an estimate of its error.

Promise: ``|O - O'|_F <= eps |V|_F`` with probability at least ``1 - delta``, where O is the exact
output. A few rows of each block of queries are computed exactly; they tell which keys matter to the
block, so how often each key should be drawn, and whether drawing pays at all.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from approxkmv.engine.schemes.mean_of_values import computed_rows, mean_output
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.attention_order import every_nth, order_blocks, pilot_rows, some_blocks
from approxkmv.engine.survey.attention_rates import solve_rate
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import (
    Array,
    AttentionBlocks,
    AttentionDraws,
    AttentionHead,
    AttentionRates,
    Check,
    Float64,
    Index,
    Index32,
    Smoothing,
)

# Up to so many pairs finding out about a head takes too long next to computing it: whether the mean
# of the values will do (3,464 tokens), and whether keys can be drawn (9,486, or 6,928 if causal).
# At 8,192 tokens a look in vain takes a tenth of the exact time with a causal mask, where blocks
# need no tree, and 0.12 of it without.
_FEWEST_FOR_MEAN, _FEWEST_FOR_DRAWS, _FEWEST_IF_CAUSAL = 12_000_000, 90_000_000, 24_000_000
# Rows of each block that are computed exactly: some to plan with, others to check with.
_PILOT_ROWS, _CHECK_ROWS = 2, 2
# One block in so many, at least three, is tried first, to give up early where sampling cannot pay;
# before these so many rows of a single one, in case sampling is out of the question by this factor.
_FIRST_LOOK, _FEWEST_TRIED, _FIRST_ROWS, _OUT_OF_THE_QUESTION = 29, 3, 48, 1.6
_TRIAL_CHECK_ROWS, _HOPELESS_TRIAL = 6, 6.0
# A trial with more than this share of the variance allowed says that the rates are too low.
_TRIAL_SHORT, _TRIAL_AIM = 0.8, 0.65
# Then the variance falls more slowly than the rate grows: on word vectors, whose near keys a pilot
# of two rows does not all see, 2.5 times the rate left 0.56 of it, 3.6 times 0.38.
_RATE_POWER = 1.3
# What a drawn pair costs in exact ones: keys are gathered, squared terms summed.
_SAMPLED_PAIR = 1.4
_SMOOTHING = Smoothing(
    check_rows=0,
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
_AIM = 0.65
_MOST_DRAWS, _HOPELESS_ERROR = 3, 6.0
# The first draws are for one block in so many, where there are at least so many blocks. What they
# show tells the rates for the others, at most by so much lower or higher. Not with a causal mask,
# where rows are not mended: to aim nearer there led to second draws.
_ONE_TELLS, _ENOUGH_BLOCKS, _TOLD, _TOLD_POWER = 4, 64, (0.5, 2.5), 1.15
# The rows of largest variance are computed exactly where few of them are enough, by a margin: one
# in a hundred had a quarter of the squared error on word vectors, of which the draws say a third.
_MOST_MENDED, _USUALLY_MENDED, _ENOUGH_MENDED, _SAID_TOO_MUCH = 0.02, 0.01, 0.97, 0.7
# Draws that fall short get so much more than would be missing if all went on as it did.
_ENOUGH_MORE, _LEAST_MORE = 1.15, 0.25
# Fewer rows are checked than would be needed to believe that the variance is much too large; and
# where it is far out (rows whose one heavy key was not drawn), it says nothing.
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


def too_few_pairs(n_pairs: int, is_causal: bool) -> bool:
    """Whether finding out about a head takes too long next to computing it."""
    return n_pairs <= (_FEWEST_IF_CAUSAL if is_causal else _FEWEST_FOR_MEAN)


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
    check: Check = None,
) -> SampledAttention | None:
    """Attention of one head within ``eps * |V|_F``; None where computing every pair is better.

    ``check`` is called between stages and inside the long ones, and may raise to end them.
    """
    n_pairs = _pairs_seen(len(query), len(key), is_causal)
    if too_few_pairs(n_pairs, is_causal):
        return None
    clock = time.perf_counter()
    seconds: dict[str, float] = {}

    def lap(stage: str) -> None:
        nonlocal clock
        if check is not None:
            check()
        now = time.perf_counter()
        seconds[stage] = seconds.get(stage, 0.0) + now - clock
        clock = now

    head, squares, square = _prepare(query, key, value, scale, n_threads)
    allowed = eps**2 * head.value_factor**2 * square
    if not squares.any():  # every value is the centre, and so is every output
        return SampledAttention(_all_mean(head), 0.0, 0, {"mean_of_values": True}, seconds)
    if not is_causal:
        mean = mean_output(head, head.value_factor**2 * squares, allowed, rng, n_threads)
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
    if not is_causal and n_pairs <= _FEWEST_FOR_DRAWS:
        return None
    blocks = order_blocks(query, key, is_causal=is_causal, n_threads=n_threads)
    sizes = np.diff(blocks.start)
    band = float((sizes * (blocks.band_stop - blocks.band_start)).sum())
    lap("order")
    n_blocks = len(sizes)
    seed = int(rng.integers(2**63))
    more = 1.0
    for few, slack in _looks(blocks, rng):
        part = few.start[-1] / len(query)
        trial = _Plan(head, few, part * allowed, _TRIAL_CHECK_ROWS, rng, n_threads, check)
        predicted = _SAMPLED_PAIR * (trial.rate.pairs / part + band)
        if predicted > slack * _HOPELESS * n_pairs:
            return None
        error = trial.usual_error(trial.draw(trial.rate.rate, seed, 0), delta)
        lap("first look")
        found = error.variance / (part * allowed)
        more = (found / _TRIAL_AIM) ** _RATE_POWER if found > _TRIAL_SHORT else 1.0
        predicted = _SAMPLED_PAIR * (more * trial.rate.pairs / part + band)
        if predicted > slack * _MOST_OF_EXACT * n_pairs:
            return None
    if error.upper > _HOPELESS_TRIAL * part * allowed:
        return None
    plan = _Plan(head, blocks, allowed, _CHECK_ROWS, rng, n_threads, check)
    lap("pilot")
    pairs = int(_seen(plan.rows, len(key), is_causal).sum())
    numbers: dict[str, object] = {
        "blocks": n_blocks,
        "pilot_rows": len(plan.rows),
        "predicted_share_of_pairs": (plan.rate.pairs + band) / n_pairs,
    }
    rate = more * plan.rate.rate
    made: _Made | None = None
    for attempt in range(_MOST_DRAWS):
        mended: _Mended | None = None
        predicted = min(rate / plan.rate.rate * plan.rate.pairs, float(n_pairs))
        # What was drawn before is spent in either case.
        if _SAMPLED_PAIR * (predicted + band) > _MOST_OF_EXACT * n_pairs:
            return None
        if attempt == 0 and not is_causal and n_blocks >= _ENOUGH_BLOCKS:
            new = _first_draws(plan, rate, seed, allowed / len(query), delta)
        else:
            new = _Made(plan.draw(rate, seed, attempt + 1), np.full(len(query), rate))
        made = new if made is None else made.with_more(new)
        draws, error = made.draws, plan.error(made.draws, delta)
        lap("draw")
        pairs += int((new.draws.n_drawn * sizes).sum())
        if error.upper > allowed and not is_causal:
            mended = plan.mend(draws, error, allowed)
            if mended is not None:
                pairs += len(mended.rows) * len(key)
                error = mended.error
        worst = error.upper / allowed
        if worst <= 1:
            break
        if worst > _HOPELESS_ERROR:
            return None  # heavy keys differ from row to row: drawing more of all would not help
        rate = max(_ENOUGH_MORE * worst - 1, _LEAST_MORE) * float(made.rate.mean())
    else:
        return None
    draws.out[plan.rows] = plan.pilot.outputs
    if mended is not None:
        draws.out[mended.rows] = mended.outputs
    numbers |= {
        "draws": attempt + 1,
        "mended_rows": 0 if mended is None else len(mended.rows),
        "share_of_pairs": pairs / n_pairs,
    }
    output = _moved_back(head, draws.out)
    lap("draw")
    return SampledAttention(
        output, math.sqrt(error.variance) / head.value_factor, pairs, numbers, seconds
    )


def _looks(
    blocks: AttentionBlocks, rng: np.random.Generator
) -> Iterator[tuple[AttentionBlocks, float]]:
    """Blocks to try before all, and by how much they may fall short of what would pay."""
    n_blocks = len(blocks.band_start)
    # The one in the middle: with a causal mask it sees half of the keys, as all do on average.
    middle = np.array([n_blocks // 2])
    yield some_blocks(blocks, middle, _FIRST_ROWS), _OUT_OF_THE_QUESTION
    one_in = max(1, min(_FIRST_LOOK, n_blocks // _FEWEST_TRIED))
    yield some_blocks(blocks, every_nth(n_blocks, one_in, int(rng.integers(one_in)))), 1.0


class _Error(NamedTuple):
    """Estimated squared error, and what it stays below at the confidence asked for."""

    variance: float
    upper: float


class _Mended(NamedTuple):
    """Rows that were computed exactly, and the error of all others."""

    rows: Index
    outputs: Array
    error: _Error


class _Made(NamedTuple):
    """What was drawn so far, at these rates in all."""

    draws: AttentionDraws
    rate: Float64  # of each query

    def with_more(self, more: _Made) -> _Made:
        """Both together, weighed by their rates, which do not depend on what a query has drawn."""
        rate = self.rate + more.rate
        a, b = self.rate / rate, more.rate / rate
        old, new = self.draws, more.draws
        draws = AttentionDraws(
            (a[:, None] * old.out + b[:, None] * new.out).astype(old.out.dtype),
            a**2 * old.variance + b**2 * new.variance,
            a**2 * old.bound + b**2 * new.bound,
            a**2 * old.total_variance + b**2 * new.total_variance,
            old.n_drawn + new.n_drawn,
        )
        return _Made(draws, rate)


class _Plan:
    """Some rows of each block computed exactly, and the rate for half the error allowed."""

    def __init__(
        self,
        head: AttentionHead,
        blocks: AttentionBlocks,
        allowed: float,
        check_rows: int,
        rng: np.random.Generator,
        n_threads: int | None,
        check: Check = None,
    ) -> None:
        self.head, self.blocks, self.n_threads, self.check = head, blocks, n_threads, check
        self.rows = pilot_rows(blocks, _PILOT_ROWS + check_rows, rng)
        smoothing = _SMOOTHING._replace(check_rows=check_rows)
        self.pilot = Compiled(n_threads, check=check).attention_pilot(
            head,
            blocks,
            self.rows,
            smoothing,
        )
        self.rate = solve_rate(blocks, self.pilot, _AIM * allowed, n_threads=n_threads)
        shape = len(blocks.band_start), _PILOT_ROWS + check_rows
        outputs = self.pilot.outputs.reshape(*shape, -1)
        self.guarded, self.near = self.pilot.guarded, outputs.mean(axis=1)
        self.checks = self.rows.reshape(shape)[:, _PILOT_ROWS:]
        self.checked = outputs[:, _PILOT_ROWS:]

    def of(self, chosen: Index) -> _Plan:
        """The same plan to judge the draws of some of the blocks by."""
        some = copy.copy(self)
        some.blocks = some_blocks(self.blocks, chosen)
        some.checks, some.checked = self.checks[chosen], self.checked[chosen]
        return some

    def draw(
        self,
        rate: float,
        seed: int,
        stream: int,
        chosen: Index | None = None,
        into: AttentionDraws | None = None,
    ) -> AttentionDraws:
        """Draw keys for every block at this rate, or for some."""
        rates = AttentionRates(
            self.guarded, self.near, self.rate.floor, rate, _LEAST_DRAWS, seed, stream
        )
        return Compiled(self.n_threads, check=self.check).attention_draw(
            self.head,
            self.blocks,
            rates,
            chosen=chosen,
            into=into,
        )

    def error(self, draws: AttentionDraws, delta: float, below: float = math.inf) -> _Error:
        """How large the error of these draws is, over the rows whose bound is below something.

        They tell their own variance to first order. What that misses (keys that were never drawn,
        noisy denominators) is measured on rows computed exactly but not planned with.
        """
        rows, checks = self.blocks.query_order, draws.bound[self.checks]
        bounds, variances = draws.bound[rows], draws.variance[rows]
        usual, to_check = bounds < below, checks < below
        known = usual & ~np.isnan(variances)
        bound = float(bounds[known].sum())
        share = max(0.0, float(variances[known].sum())) / bound if bound > 0 else 1.0
        per_block = share * np.add.reduceat(bounds * usual, self.blocks.start[:-1])
        errors = (draws.out[self.checks] - self.checked)[to_check]
        measured = (errors.astype(np.float64) ** 2).sum(axis=-1)
        predicted = share * float(checks[to_check].sum())
        variance = float(per_block.sum())
        if measured.sum() > _MOST_RATIO * predicted:
            variance = len(self.blocks.query_order) * float(measured.mean())
        elif predicted > 0:
            variance *= max(_LEAST_RATIO, float(measured.sum()) / predicted)
        return _Error(variance, variance * spread(per_block, delta))

    def usual_error(self, draws: AttentionDraws, delta: float) -> _Error:
        """The error without the rows that would be mended; with a causal mask none are."""
        bounds = draws.bound[self.blocks.query_order]
        if self.blocks.causal:
            return self.error(draws, delta)
        return self.error(draws, delta, _largest(bounds, _USUALLY_MENDED))

    def mend(self, draws: AttentionDraws, error: _Error, allowed: float) -> _Mended | None:
        """Rows computed exactly, so few that it pays, without which the error is allowed.

        What they had in error, and no more, is taken from the error of all. The draws say too much
        of rows in which a small probability came true: such rows stand for others in which it did
        not, which the error of all has to cover.
        """
        order = np.argsort(draws.bound)[::-1]
        said = np.cumsum(draws.bound[order])
        wanted = (1 - _ENOUGH_MENDED * allowed / error.upper) / _SAID_TOO_MUCH
        rows = order[: int(np.searchsorted(said, wanted * said[-1])) + 1]
        # Where all bounds are 0 the draws say nothing of any row.
        if len(rows) > _MOST_MENDED * len(order) or not said[-1] > 0:
            return None
        found = computed_rows(self.head, rows, self.n_threads).outputs
        outputs = (found - self.head.value_centre) * self.head.value_factor
        gone = float(np.square(draws.out[rows] - outputs).sum())
        by_bound = float(said[len(rows) - 1] / said[-1]) * error.variance
        left = 1 - min(gone, by_bound) / error.variance
        return _Mended(rows, outputs, _Error(left * error.variance, left * error.upper))


def _first_draws(
    plan: _Plan, rate: float, seed: int, allowed_per_row: float, delta: float
) -> _Made:
    """Draw for some blocks, and for the others at the rate that these tell.

    What a block draws does not depend on what it has drawn itself.
    """
    n_blocks, n_queries = len(plan.near), len(plan.blocks.query_order)
    some = every_nth(n_blocks, _ONE_TELLS, _ONE_TELLS // 2)
    told_by = plan.of(some)
    draws = plan.draw(rate, seed, 1, some)
    n_told_by = len(told_by.blocks.query_order)
    found = told_by.usual_error(draws, delta).variance / (n_told_by * allowed_per_row)
    factor = min(_TOLD[1], max(_TOLD[0], (found / _TRIAL_AIM) ** _TOLD_POWER))
    others = np.setdiff1d(np.arange(n_blocks), some)
    draws = plan.draw(factor * rate, seed, 1, others, into=draws)
    rates = np.full(n_queries, factor * rate)
    rates[told_by.blocks.query_order] = rate
    return _Made(draws, rates)


def _largest(bounds: Float64, share: float) -> float:
    """What this share of the rows, at least one of them, reaches."""
    place = len(bounds) - math.ceil(share * len(bounds))
    return float(np.partition(bounds, place)[place])


def _pairs_seen(n_queries: int, n_keys: int, is_causal: bool) -> int:
    if not is_causal:
        return n_queries * n_keys
    square = min(n_queries, n_keys)
    return square * (square + 1) // 2 + (n_queries - square) * n_keys


def _seen(rows: Index32, n_keys: int, is_causal: bool) -> Index:
    return np.minimum(rows + np.int64(1), n_keys) if is_causal else np.full(len(rows), n_keys)


def _prepare(
    query: Array, key: Array, value: Array, scale: float, n_threads: int | None
) -> tuple[AttentionHead, Float64, float]:
    """Keys and values around their means, values of at most unit size; softmax does not change.

    Also squared distances of the values from their mean, and their squared Frobenius norm.
    """
    key_centre = key[:: max(1, len(key) // 256)].mean(axis=0, dtype=np.float64)
    # The centre of the values is subtracted in their own precision.
    means = Compiled(n_threads).column_sums(
        value,
    ) / len(value)
    value_centre = means.astype(value.dtype).astype(np.float64)
    squares = Compiled(n_threads).squared_norms(
        value,
        value_centre,
        1.0,
    )
    furthest = math.sqrt(float(squares.max()))
    # Around any point c: |v|^2 is |v - c|^2 + |c|^2 on average if c is the mean, to rounding.
    square = float(squares.sum()) + len(value) * float(value_centre @ value_centre)
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
    return head, squares, square


def _moved_back(head: AttentionHead, output: Array) -> Array:
    output *= output.dtype.type(1 / head.value_factor)
    output += head.value_centre.astype(output.dtype)
    return output


def _all_mean(head: AttentionHead) -> Array:
    shape = len(head.queries), head.values.shape[1]
    return np.broadcast_to(head.value_centre, shape).astype(head.values.dtype)
