"""Ctrl-C inside each compiled loop: the exception is raised, and the loop works afterwards.

The timer counts processor time of this process, so it goes off while a loop runs, however busy the
machine is.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from test_attention_draws import SMOOTHING, blocks_of, head_of, pilot_rows
from test_reduced_product import make_case
from test_sampled_product import (
    draw_plan,
    engine_case,
    geometry_of,
    in_order,
    sketched,
    some_pairs,
)

from approxkmv.loops import compiled, reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import AttentionRates, FoundPairs, PairDraws

F32 = np.float32


@contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Ctrl-C after so much processor time."""
    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def every_pair(m: int, n: int) -> FoundPairs:
    """All pairs of m queries and n keys, but the last key's: that one has the first query only."""
    width = np.full(m, n - 1)
    width[0] = n
    cols = np.tile(np.arange(n - 1, dtype=np.int32), m)
    cols = np.insert(cols, n - 1, n - 1)
    return FoundPairs(np.append(0, np.cumsum(width)), cols, np.ones(len(cols), np.float32))


def neighbours() -> tuple[tuple[Any, ...], dict[str, Any]]:
    queries, keys = normal(30_000, 4), normal(30_000, 4)
    options = {"least": 0.0, "width": 8, "threshold": 0.2}
    rows, cols = np.random.default_rng(0).integers(30_000, size=(2, 600_000)).astype(np.int32)
    known = Compiled().merge_pairs(
        FoundPairs.none(30_000), rows, cols, np.ones(600_000, np.float32)
    )
    return (queries, keys, 1.0, known), options


def calls() -> dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Arguments for each loop with which it takes some tens of milliseconds or more."""
    n = 6000

    def geometry(n: int, d: int = 16) -> Any:
        return geometry_of(engine_case(n, n, d, F32, False))

    def starts(n: int) -> np.ndarray:
        return np.append(np.arange(0, n, 500), n).astype(np.int64)

    def order(n: int) -> np.ndarray:
        return np.arange(n, dtype=np.int32)

    def tile_product() -> Any:
        a = engine_case(n, n, 32, F32, False) | {"x": normal(n, 4)}
        return (), a

    def listed_pairs() -> Any:
        pairs = np.random.default_rng(0).integers(2000, size=(2, 400_000))
        return (normal(2000, 64), normal(2000, 64), *pairs, 1.0), {}

    def scanned() -> Any:
        stop = np.full(2000, 4000)
        return (normal(2000, 32), normal(4000, 32), np.arange(4000), stop * 0, stop, 1.0, 0.1), {}

    def tile_hits() -> Any:
        p = normal(20_000, 3)
        tiling = Compiled().random_tiling(p, p)
        return (geometry(20_000, 8), tiling, 0.5, FoundPairs.none(20_000)), {}

    def pilot() -> Any:
        return (geometry(n), order(n)[:2000], order(n), starts(n), np.ones(n, F32), 0.5), {}

    def moments() -> Any:
        return (geometry(40_000, 32), order(40_000), starts(40_000), np.ones(40_000, F32)), {}

    def cell_pairs() -> Any:
        queries, keys, points, tiling, _ = sketched(6000, 8000, 16, F32)
        return (queries, keys, 1.0, 1e-3, points, tiling, FoundPairs.none(6000)), {}

    def linked() -> Any:
        known, links = some_pairs(6000, 1000, 0.02), some_pairs(1000, 1000, 0.1, seed=1)
        return (normal(6000, 16), normal(1000, 16), 1.0, known, links), {
            "width": 10,
            "threshold": 0.2,
        }

    def merged() -> Any:
        rows, cols = np.random.default_rng(0).integers(20_000, size=(2, 1_500_000), dtype=np.int32)
        return (FoundPairs.none(20_000), rows, cols, np.ones(len(rows), F32)), {}

    def sampled() -> Any:
        plan = draw_plan(n, np.ones(n, F32), 60, 40, 0.1)
        return (geometry(n), plan, FoundPairs.none(n), normal(n, 2)), {}

    def reduced() -> Any:
        case = make_case(4000, 6000, 24, 9, 1, F32, False)
        return (case.few, case.whole, PairDraws(case.size, -4.0, 3.0, 0.05, 5, 6), case.x), {}

    def attention() -> Any:
        heads = np.array([[0, 0, 0, 0]])
        return (normal(1, n, 32), normal(1, n, 32), normal(1, n, 32), heads), {"scale": 0.1}

    def attention_pilot() -> Any:
        blocks = blocks_of(40_000, 4000, False, 200)
        return (head_of(40_000, 4000, 32, 32, F32), blocks, pilot_rows(blocks), SMOOTHING), {}

    def histogram() -> Any:
        blocks = blocks_of(20_000, 20_000, False)
        shape = len(blocks.band_start), 20_000
        return (blocks, np.ones(shape, F32), np.ones(shape, F32), 1e-20), {}

    def attention_draw() -> Any:
        blocks = blocks_of(n, n, False)
        shape = len(blocks.band_start), n
        rates = AttentionRates(np.ones(shape, F32), normal(shape[0], 32), 1e-4, 0.3, 1.0, 5, 3)
        return (head_of(n, n, 32, 32, F32), blocks, rates), {}

    return {
        "attention": attention,
        "attention_draw": attention_draw,
        "attention_pilot": attention_pilot,
        "cell_pairs": cell_pairs,
        "column_sums": lambda: ((normal(1_000_000, 20),), {}),
        "largest_magnitude": lambda: ((np.ones(60_000_000, F32),), {"isa": "baseline"}),
        "linked_pairs": linked,
        "merge_pairs": merged,
        "nearest_keys": lambda: ((geometry(n), 10), {}),
        "neighbours_of_neighbours": neighbours,
        "pair_kernel": listed_pairs,
        "pilot_rows": pilot,
        "principal_tiling": lambda: ((normal(100_000, 32), normal(100_000, 32), 8), {}),
        "project": lambda: (
            (normal(20_000, 64), order(2_000_000) % 20_000, np.zeros(64), normal(64, 8)),
            {},
        ),
        "random_tiling": lambda: ((normal(600_000, 10), normal(600_000, 10)), {}),
        "rate_histogram": histogram,
        "reduced_product": reduced,
        "sampled_product": sampled,
        "scan_ranges": scanned,
        "squared_norms": lambda: ((normal(600_000, 32), np.zeros(32), 1.0), {}),
        "tile_hits": tile_hits,
        "tile_moments": moments,
        "tile_product": tile_product,
    }


def for_ever(call: Callable[[], Any]) -> None:
    while True:
        call()


def loops() -> list[str]:
    """The compiled loops that run on the threads of the pool."""
    return [
        name
        for name in compiled.LOOPS
        if "self.threads" in inspect.getsource(getattr(Compiled, name))
    ]


@pytest.mark.parametrize("name", loops())
def test_every_loop_raises_the_interrupt(name: str) -> None:
    """Interrupted at several times, on one thread and on two."""
    arguments, options = calls()[name]()
    for n_threads, seconds in ((1, 0.005), (2, 0.02), (1, 0.04), (2, 0.08)):
        with interrupt_after(seconds), pytest.raises(KeyboardInterrupt):
            for_ever(lambda n=n_threads: getattr(Compiled(n), name)(*arguments, **options))


def test_interrupt_while_keys_that_fall_behind_are_looked_for() -> None:
    """The first loop of `neighbours_of_neighbours`, with no point left for the second.

    It takes about 0.1 s and looks for Ctrl-C after 0.02 s; that has come before it begins.
    """
    known = every_pair(5000, 4000)
    queries, keys = normal(5000, 2), normal(4000, 2)
    options = {"least": 0.5, "width": 3, "threshold": 0.1, "of_keys": True}
    nothing = np.empty(0, np.int32)
    with interrupt_after(0.001), pytest.raises(KeyboardInterrupt):
        Compiled(1).neighbours_of_neighbours(
            queries,
            keys,
            1.0,
            known,
            **options,
            point_order=nothing,
        )
    few = (queries[:9], keys[:7], 1.0, every_pair(9, 7))
    again = in_order(*Compiled().neighbours_of_neighbours(*few, **options))
    twin = in_order(*reference.neighbours_of_neighbours(*few, **options))
    assert len(twin[0]) > 0
    np.testing.assert_array_equal(again[:2], twin[:2])
