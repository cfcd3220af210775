"""What to do with these data: sample, or compute every pair.

Everything is counted in pairs of the exact product, the unit in which a saving shows. The pilot
costs about one pair in a hundred; whatever it predicts to be dearer than the exact product is
computed exactly, so the worst case is exact plus the pilot and a few tilings.
"""

from __future__ import annotations

import math
import time

import numpy as np

from approxkmv.engine.near import (
    KEYS_PER_CELL,
    NewPairs,
    diagonal,
    search_neighbours,
    search_tilings,
)
from approxkmv.engine.order import norm_order
from approxkmv.engine.outcome import Outcome
from approxkmv.engine.pilot import run_pilot
from approxkmv.engine.probability import Entries, Rates, smoothed, solve_rates
from approxkmv.engine.sample import draw
from approxkmv.exact import ExactKernel
from approxkmv.leaves import Array, FoundPairs, Geometry, merge_pairs

_ROWS_PER_BLOCK, _KEYS_PER_TILE, _PILOT_ROWS = 512, 512, 3
_MOST_BLOCKS = 256
_FIRST_TILINGS, _MORE_TILINGS, _MOST_TILINGS = 4, 2, 24
# What a tiling and a search among neighbours cost per query, in pairs of 64 dimensions (measured
# at 32,768 clustered points, where a pair takes 1 ns: 0.028 s and 0.035 s). A cell alone would be
# 128 pairs; cutting, gathering and merging are the rest.
_TILING_PAIRS, _NEIGHBOUR_PAIRS = 850, 1000
_FEW_NEIGHBOURS = 3e-4
# Where the first round leaves more than this of the near pairs' mass, further ones are hopeless.
_MOST_MISSED = 0.6
# Sampled pairs cost this much more than exact ones: gathered keys, squares, corrections.
_SAMPLED_PAIR = 1.4
# The variance aimed at leaves room for the spread of the error and for a wrong prediction.
_AIM = 0.6
_MOST_DRAWS = 4


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
    pilot = run_pilot(
        geometry,
        x,
        query_blocks,
        key_tiles,
        rows_per_block=_PILOT_ROWS,
        threshold=min(0.5, 4 * eps / math.sqrt(n_keys)),
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
    search = _Search(geometry, bandwidth, found, pilot.threshold, rng, n_threads)
    plan, removed = rates(search.found), 0.0
    missed_before = float(pilot.missed_squares(search.found).sum())
    clock.lap("plan")
    round_pairs = n_queries * (_MORE_TILINGS * _TILING_PAIRS + _NEIGHBOUR_PAIRS)
    round_pairs *= 88 / (kernel.keys.shape[1] + 24)
    while search.n_tilings < _MOST_TILINGS:
        before, first = plan, search.n_tilings == 0
        met = search.round(_FIRST_TILINGS if first else _MORE_TILINGS, clock)
        removed = before.variance_of(met, x, query_blocks, key_tiles) / (_AIM * allowed)
        plan = rates(search.found)
        clock.lap("plan")
        # What tilings met, although tilings and neighbours had been searched before, tells what
        # another round would gain: in variance over all rows, or in cost as the pilot rows see it.
        gained = _SAMPLED_PAIR * max(before.pairs - plan.pairs, plan.pairs * removed)
        if not first and min(gained, n_pairs) < round_pairs:
            break
        missed = float(pilot.missed_squares(search.found).sum())
        if first and plan.pairs > n_pairs / 4 and missed > _MOST_MISSED * missed_before:
            outcome.reason = "near pairs are too many or too hard to find for sampling to pay"
            return outcome
    # As much as the last tilings met may be expected to be still out there.
    seed, factor = int(rng.integers(2**63)), 1 + removed
    outcome.numbers |= {
        "threshold": pilot.threshold,
        "blocks": len(query_blocks.sizes),
        "tiles": len(key_tiles.sizes),
        "pilot_rows": len(pilot.rows),
        "predicted_share_of_pairs": factor * plan.pairs / n_pairs,
    }
    for attempt in range(_MOST_DRAWS):
        if _SAMPLED_PAIR * plan.pairs * factor > 0.8 * n_pairs:
            outcome.reason = "near pairs that the search missed would need almost every pair"
            break
        sample = draw(
            geometry,
            search.found,
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
        worst = max(sample.upper, sample.checked) / allowed
        if worst <= 1:
            outcome.sample = sample
            break
        # The draws met pairs that neither pilot nor search had seen: look again, and draw more.
        search.round(_MORE_TILINGS, clock)
        plan = rates(search.found)
        factor *= 1.3 * min(worst, 2.0)
    else:
        outcome.reason = "the error estimate did not come down"
    outcome.pairs += search.n_tilings * n_queries * KEYS_PER_CELL
    outcome.numbers |= {
        "tilings": search.n_tilings,
        "found_pairs_per_query": len(search.found.cols) / n_queries,
        "draws": attempt + 1,
        "share_of_pairs": outcome.pairs / n_pairs,
    }
    return outcome


class _Search:
    """The near pairs found so far, and one round more."""

    def __init__(
        self,
        geometry: Geometry,
        bandwidth: float,
        found: FoundPairs,
        threshold: float,
        rng: np.random.Generator,
        n_threads: int | None,
    ) -> None:
        self.geometry, self.bandwidth = geometry, bandwidth
        self.found, self.threshold = found, threshold
        self.rng, self.n_threads = rng, n_threads
        self.n_tilings = 0
        self.neighbours_known = False  # a search among neighbours would hardly find more

    def round(self, n_tilings: int, clock: _Clock) -> NewPairs:
        """Search further tilings, then among neighbours; returns what the tilings met."""
        met = search_tilings(
            self.geometry,
            self.found,
            n_tilings,
            threshold=self.threshold,
            rng=self.rng,
            n_threads=self.n_threads,
        )
        self.found = merge_pairs(self.found, *met, n_threads=self.n_threads)
        self.n_tilings += n_tilings
        clock.lap("tilings")
        if self.neighbours_known:
            return met
        beyond = search_neighbours(
            self.geometry,
            self.bandwidth,
            self.found,
            threshold=self.threshold,
            n_threads=self.n_threads,
        )
        self.neighbours_known = len(beyond.rows) < _FEW_NEIGHBOURS * len(self.found.cols)
        self.found = merge_pairs(self.found, *beyond, n_threads=self.n_threads)
        clock.lap("neighbours")
        return met


class _Clock:
    """Adds the time since the last lap to the stage that has just ended."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now
