"""Rates common to all blocks of a head: what keys matter to some blocks stands for all of them.

Without a causal mask most of what a block of queries looks at beyond its own cells are keys that
all blocks look at. Then rows of some blocks tell how often a key should be drawn for any block, and
the rows of all others need not be computed. Each block has the band of its own cells as before.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from approxkmv.engine.survey.attention_order import pilot_rows
from approxkmv.engine.survey.attention_pilot import HeadPilot
from approxkmv.engine.survey.attention_rates import solve_rate
from approxkmv.loops.types import AttentionBlocks


def with_common_rates(pilot: HeadPilot, share: float) -> HeadPilot:
    """The same blocks with one rate for each key: the root of what it matters to them on average.

    A block that always takes a key says nothing about it. The variance is predicted from each
    block's own moments; ``share`` is the part of all rows that the blocks have.
    """
    problem, blocks, moments = pilot.problem, pilot.blocks, pilot.moments
    n_blocks, n_keys = moments.guarded.shape
    position = np.arange(n_keys)
    band = (position >= blocks.band_start[:, None]) & (position < blocks.band_stop[:, None])
    left_to_draws = n_blocks - band.sum(axis=0)
    common = np.where(band, 0, moments.guarded).sum(axis=0) / np.maximum(left_to_draws, 1)
    guarded = common.astype(np.float32)[None]
    every = moments._replace(guarded=np.repeat(guarded, n_blocks, axis=0))
    target = problem.margins.aim * share * problem.squared_error
    shape, backend = problem.policy.head_shape, problem.head.backend
    rate = solve_rate(blocks, every, target, shape.floor, backend)
    return replace(pilot, moments=moments._replace(guarded=guarded), rate=rate)


def for_all_blocks(pilot: HeadPilot, blocks: AttentionBlocks, share: float) -> HeadPilot:
    """The rates that some blocks have in common for all blocks, with a row of each to check with.

    The rows that the rates come from are exact, and not checked with.
    """
    problem, head = pilot.problem, pilot.problem.head
    n_checks = math.ceil(problem.policy.head_shape.check_rows / 2)
    checks = pilot_rows(blocks, n_checks, problem.rng)
    outputs = (head.exact_rows(checks) - head.value_centre) * head.moved.value_factor
    outputs = outputs.astype(head.values.dtype)
    checked = outputs.reshape(len(blocks.band_start), n_checks, -1)
    moments = pilot.moments
    return replace(
        pilot,
        blocks=blocks,
        rows=np.append(pilot.rows, checks),
        moments=moments._replace(outputs=np.concatenate([moments.outputs, outputs])),
        rate=pilot.rate._replace(pairs=pilot.rate.pairs / share),
        near=np.ascontiguousarray(checked.mean(axis=1)),
        checks=checks.reshape(len(checked), n_checks),
        checked=checked,
    )
