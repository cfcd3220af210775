"""What to do with these data: sample, or compute every pair.

Everything is counted in pairs of the exact product, the unit in which a saving shows. The pilot
costs about one pair in a hundred; whatever it predicts to be dearer than the exact product is
computed exactly, so the worst case is exact plus the pilot and a few tilings.
"""

from __future__ import annotations

import math
import time

import numpy as np

from approxkmv.engine.near import KEYS_PER_CELL, diagonal, search_neighbours, search_tilings
from approxkmv.engine.order import norm_order
from approxkmv.engine.outcome import Outcome
from approxkmv.engine.pilot import run_pilot
from approxkmv.engine.probability import Entries, Rates, smoothed, solve_rates
from approxkmv.engine.sample import draw
from approxkmv.exact import ExactKernel
from approxkmv.leaves import Array, FoundPairs, merge_pairs

# Below this many multiply-adds the exact product takes less time than the pilot and the search.
_SMALLEST_WORK = 2.5e10
_ROWS_PER_BLOCK, _KEYS_PER_TILE, _PILOT_ROWS = 512, 512, 4
_MOST_BLOCKS = 256
_TILINGS_PER_ROUND, _MOST_TILINGS = 2, 24
# One tiling costs its cells and about as much again in cutting, packing and merging, in pairs of
# 64 dimensions per query (measured: 0.03 s at 32,768 points, where a pair takes 1 ns).
_TILING_PAIRS = 5 * KEYS_PER_CELL
# Sampled pairs cost this much more than exact ones: gathered keys, squares, corrections.
_SAMPLED_PAIR = 1.4
# The variance aimed at leaves room for the spread of the error and for a wrong prediction.
_AIM = 0.6
_MOST_DRAWS = 4


def worth_a_look(n_queries: int, n_keys: int, n_dims: int) -> bool:
    """Whether the exact product takes longer than finding out about the data."""
    return n_queries * n_keys * (n_dims + 24) >= _SMALLEST_WORK


def sampled(
    kernel: ExactKernel,
    bandwidth: float,
    x: Array,
    *,
    eps: float,
    delta: float,
    rng: np.random.Generator,
) -> Outcome:
    """Try to meet ``eps`` by sampling; say so if computing every pair is the better choice."""
    geometry, n_threads = kernel.geometry, kernel.n_threads
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    n_pairs = n_queries * n_keys
    allowed = (eps * float(np.linalg.norm(x.astype(np.float64)))) ** 2
    if allowed == 0:
        return Outcome("the product is exactly zero")
    outcome = Outcome("sampling is cheaper")
    clock = _Clock(outcome.seconds)

    size = max(_ROWS_PER_BLOCK, math.ceil(n_queries / _MOST_BLOCKS))
    query_blocks, key_tiles = norm_order(geometry, size, max(_KEYS_PER_TILE, size // 2))
    entries = Entries(x, key_tiles)
    clock.lap("order")
    threshold = min(0.5, 4 * eps / math.sqrt(n_keys))
    pilot = run_pilot(
        geometry,
        x,
        query_blocks,
        key_tiles,
        rows_per_block=_PILOT_ROWS,
        threshold=threshold,
        rng=rng,
        n_threads=n_threads,
    )
    clock.lap("pilot")
    outcome.pairs = 2 * len(pilot.rows) * n_keys
    light = pilot.per_pair(pilot.light)

    def rates(found: FoundPairs) -> Rates:
        missed = pilot.per_pair(pilot.missed_squares(found))
        moment = smoothed(light + missed)
        return solve_rates(moment, entries, query_blocks, key_tiles, _AIM * allowed)

    cheapest = solve_rates(smoothed(light), entries, query_blocks, key_tiles, _AIM * allowed)
    outcome.numbers["share_if_all_near_pairs_were_known"] = cheapest.pairs / n_pairs
    if _SAMPLED_PAIR * cheapest.pairs > 0.7 * n_pairs:
        outcome.reason = "the kernel is too dense: sampling would need almost every pair"
        return outcome

    same = kernel.queries is kernel.keys
    found = diagonal(n_keys) if same else FoundPairs.none(n_queries)
    plan, n_tilings = rates(found), 0
    clock.lap("plan")
    round_pairs = _TILINGS_PER_ROUND * n_queries * _TILING_PAIRS * 88 / (kernel.keys.shape[1] + 24)
    while n_tilings < _MOST_TILINGS:
        could_save = _SAMPLED_PAIR * (plan.pairs - cheapest.pairs)
        if n_tilings == 0 and could_save < round_pairs / 10:
            break
        before = plan
        new = search_tilings(
            geometry, found, _TILINGS_PER_ROUND, threshold=threshold, rng=rng, n_threads=n_threads
        )
        removed = before.variance_of(new, x, query_blocks, key_tiles)
        found = merge_pairs(found, *new, n_threads=n_threads)
        n_tilings += _TILINGS_PER_ROUND
        clock.lap("tilings")
        new = search_neighbours(
            geometry, bandwidth, found, threshold=threshold, n_threads=n_threads
        )
        found = merge_pairs(found, *new, n_threads=n_threads)
        clock.lap("neighbours")
        plan = rates(found)
        clock.lap("plan")
        # What the tilings met, although tilings and neighbours had been searched before, tells what
        # another round would gain: in variance over all rows, or in cost as the pilot rows see it.
        gained = max(before.pairs - plan.pairs, plan.pairs * removed / (_AIM * allowed))
        if n_tilings >= 4 and _SAMPLED_PAIR * min(gained, n_pairs) < round_pairs:
            break
    outcome.pairs += n_tilings * n_queries * KEYS_PER_CELL
    outcome.numbers |= {
        "tilings": n_tilings,
        "found_pairs_per_query": len(found.cols) / n_queries,
        "threshold": threshold,
        "blocks": len(query_blocks.sizes),
        "tiles": len(key_tiles.sizes),
        "pilot_rows": len(pilot.rows),
        "predicted_share_of_pairs": plan.pairs / n_pairs,
    }
    seed, factor = int(rng.integers(2**63)), 1.0
    for attempt in range(_MOST_DRAWS):
        if _SAMPLED_PAIR * plan.pairs * factor > 0.9 * n_pairs:
            outcome.reason = "near pairs that the search missed would need almost every pair"
            return outcome
        sample = draw(
            geometry,
            found,
            x,
            plan.scaled(factor),
            query_blocks,
            key_tiles,
            pilot,
            delta=delta,
            seed=seed,
            stream=attempt,
            n_threads=n_threads,
        )
        clock.lap("draw")
        outcome.pairs += sample.pairs
        worst = max(sample.upper, sample.checked)
        if worst <= allowed:
            outcome.sample = sample
            outcome.numbers |= {"draws": attempt + 1, "share_of_pairs": outcome.pairs / n_pairs}
            return outcome
        factor *= 1.3 * worst / allowed
    outcome.reason = "the error estimate did not come down"
    return outcome


class _Clock:
    """Adds the time since the last lap to the stage that has just ended."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now
