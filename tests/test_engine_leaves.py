"""The compiled loops of the engine against their NumPy twins.

Tolerances are worst-case rounding bounds worked out from the data, as in ``test_leaves``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from test_leaves import Args, case, exponents

from approxkmv import leaves, reference
from approxkmv.leaves import DrawPlan, FoundPairs, Geometry, Tiling

THREADS = (1, 2, 3, 7)
SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (2, 3), (50, 7), (7, 50), (130, 300)]


def geometry_of(a: Args) -> Geometry:
    return Geometry(
        a["queries"],
        a["keys"],
        a["query_shift"],
        a["key_shift"],
        a["query_centre"],
        a["factor"],
        a["slope"],
        a.get("differences", False),
    )


def engine_case(m: int, n: int, d: int, dtype: Any, differences: bool) -> Args:
    """Queries and keys in one frame, with exponents below 0 as a kernel has them."""
    a = case(m, n, 1, d, dtype, differences=differences)
    a["keys"] = (a["keys"] + 3).astype(dtype)  # around 1, as the queries
    a |= {"query_centre": np.full(d, 1.0), "key_centre": np.full(d, 1.0)}
    q, k = ((p.astype(np.float64) - 1) * a["factor"] for p in (a["queries"], a["keys"]))
    if not differences:
        a["slope"] = 0.25
        a["query_shift"] = a["slope"] / 2 * (q**2).sum(axis=1)
        a["key_shift"] = a["slope"] / 2 * (k**2).sum(axis=1)
    else:
        a |= {"query_shift": np.zeros(m), "key_shift": np.zeros(n)}
    return a


def some_pairs(m: int, n: int, share: float, seed: int = 0) -> FoundPairs:
    """A random set of pairs with random values."""
    rng = np.random.default_rng(seed)
    rows, cols = (rng.random((m, n)) < share).nonzero()
    values = rng.random(len(rows)).astype(np.float32)
    indptr = np.searchsorted(rows, np.arange(m + 1)).astype(np.int64)
    return FoundPairs(indptr, cols.astype(np.int32), values)


def in_order(rows: np.ndarray, cols: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    order = np.lexsort((cols, rows))
    return [part[order] for part in (rows, cols, values)]


def cells(order: np.ndarray, start: np.ndarray) -> list[set[int]]:
    return [set(order[a:b].tolist()) for a, b in itertools.pairwise(start)]


@pytest.mark.parametrize("differences", [False, True])
def test_tile_product_squares(isa: str, dtype: Any, differences: bool) -> None:
    """With ``squares`` the second column meets squared exponentials, the first plain ones.

    A square has twice the relative error of the value; sums add n + 6 units.
    """
    unit = float(np.finfo(dtype).eps) / 2
    for m, n, d in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (5, 50, 3), (100, 257, 64), (13, 2500, 500)]:
        a = case(m, n, 2, d, dtype, differences=differences, squares=True)
        if n > 8:
            a["key_shift"][8] = np.inf
        want = reference.tile_product(**a).out
        t, t_error = exponents(a)
        for column, power in ((0, 1), (1, 2)):
            e = np.exp(power * t)
            bound = (e * (np.expm1(power * t_error) + (6 + n) * unit)) @ np.abs(
                a["x"][:, column].astype(np.float64)
            ) + np.finfo(dtype).smallest_normal * n
            for n_threads in (1, 3):
                got = leaves.tile_product(**a, isa=isa, n_threads=n_threads).out
                assert (np.abs(got[:, column] - want[:, column]) <= bound).all()


@pytest.mark.parametrize("repeated", [False, True])
def test_random_tiling(repeated: bool) -> None:
    """The same cells as the twin, as sets; every point in exactly one of them."""
    rng = np.random.default_rng(0)
    for (m, n), depth in itertools.product([*SHAPES, (1000, 999)], [0, 1, 2, 5]):
        keys, queries = (rng.standard_normal((depth, k)).astype(np.float32) for k in (n, m))
        if repeated:
            keys, queries = np.round(keys), np.round(queries)
        got, want = (f(keys, queries) for f in (leaves.random_tiling, reference.random_tiling))
        np.testing.assert_array_equal(got.key_start, want.key_start)
        np.testing.assert_array_equal(got.query_start, want.query_start)
        assert cells(got.key_order, got.key_start) == cells(want.key_order, want.key_start)
        assert cells(got.query_order, got.query_start) == cells(want.query_order, want.query_start)
        np.testing.assert_array_equal(np.sort(got.key_order), np.arange(n))
        np.testing.assert_array_equal(np.sort(got.query_order), np.arange(m))


def test_cells_of_a_tiling_are_even() -> None:
    """Without repeats, 2^depth cells of 1,000 keys differ by at most one key per level."""
    keys = np.random.default_rng(1).standard_normal((5, 1000)).astype(np.float32)
    tiling = leaves.random_tiling(keys, keys)
    assert np.abs(np.diff(tiling.key_start) - 1000 / 32).max() <= 1
    np.testing.assert_array_equal(tiling.key_start, tiling.query_start)


def tiling_of(m: int, n: int, seed: int = 3) -> Tiling:
    rng = np.random.default_rng(seed)
    keys, queries = (rng.standard_normal((2, k)).astype(np.float32) for k in (n, m))
    return leaves.random_tiling(keys, queries)


@pytest.mark.parametrize("differences", [False, True])
def test_tile_hits(isa: str, dtype: Any, differences: bool) -> None:
    """The twin's pairs, but for those whose exponent is within rounding of the threshold."""
    for (m, n), threshold in itertools.product([*SHAPES, (400, 600)], [1e-9, 0.05, 0.5]):
        a = engine_case(m, n, 5, dtype, differences)
        if n > 20 and m > 3:
            a["keys"][n // 2 :] = a["keys"][: n - n // 2]  # every key twice
            a["key_shift"][n // 2 :] = a["key_shift"][: n - n // 2]
            a["queries"][:3] = a["keys"][:3]
            a["query_shift"][:3] = a["key_shift"][:3]
            if not differences:
                a["key_shift"][5] = a["query_shift"][1] = np.inf
        g, tiling, known = geometry_of(a), tiling_of(m, n), some_pairs(m, n, 0.1)
        t, error = exponents(a)
        found = np.zeros((m, n), np.int64)
        rows, cols, values = leaves.tile_hits(g, tiling, threshold, known, isa=isa, n_threads=2)
        assert (rows.dtype, cols.dtype, values.dtype) == (np.int32, np.int32, np.float32)
        np.add.at(found, (rows, cols), 1)
        assert found.max(initial=0) <= 1
        want = np.zeros((m, n), np.int64)
        wanted = reference.tile_hits(g, tiling, threshold, known)
        want[wanted[0], wanted[1]] = 1
        near_floor = np.abs(t - np.log(threshold)) <= error
        assert ((found == want) | near_floor).all()
        if m == 400:
            assert want.sum() > near_floor[want > 0].sum()
        value = np.exp(np.minimum(t[rows, cols], 0.0))
        off = np.abs(values - value)
        # Values are kept in float32, from exponents in float32: units of both.
        single = np.finfo(np.float32).eps * (1 + np.abs(t[rows, cols]))
        assert (off <= value * (np.expm1(error[rows, cols]) + single)).all()


@pytest.mark.parametrize("differences", [False, True])
def test_tile_hits_do_not_depend_on_threads(isa: str, dtype: Any, differences: bool) -> None:
    """The same pairs and bits of values on 1, 2, 3 and 7 threads. The order of the list may differ:
    ``merge_pairs`` sorts it."""
    a = engine_case(900, 1100, 4, dtype, differences)
    rng = np.random.default_rng(0)
    keys, queries = (rng.standard_normal((5, k)).astype(np.float32) for k in (1100, 900))
    tiling = leaves.random_tiling(keys, queries)
    g, known = geometry_of(a), some_pairs(900, 1100, 0.02)
    first = in_order(*leaves.tile_hits(g, tiling, 0.01, known, isa=isa, n_threads=1))
    assert len(first[0]) > 1000
    for n_threads in THREADS[1:]:
        again = in_order(*leaves.tile_hits(g, tiling, 0.01, known, isa=isa, n_threads=n_threads))
        for left, right in zip(first, again, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("differences", [False, True])
def test_value_of_a_hit_does_not_depend_on_its_cell(
    isa: str, dtype: Any, differences: bool
) -> None:
    """A pair met in two tilings has the same bits, so it does not matter which one is kept."""
    a = engine_case(300, 300, 7, dtype, differences)
    g, none = geometry_of(a), FoundPairs.none(300)
    seen: dict[tuple[int, int], float] = {}
    met_again = 0
    for seed in range(4):
        for row, col, value in zip(
            *leaves.tile_hits(g, tiling_of(300, 300, seed), 1e-3, none, isa=isa), strict=True
        ):
            met_again += (row, col) in seen
            assert seen.setdefault((row, col), value) == value
    assert met_again > 100


def sharing_of(known: FoundPairs, n_keys: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((known.rows, known.cols))
    indptr = np.searchsorted(known.cols[order], np.arange(n_keys + 1)).astype(np.int64)
    return indptr, known.rows[order]


@pytest.mark.parametrize("width", [1, 2, 4, 1000])
@pytest.mark.parametrize("least", [0.0, 0.3, 2.0])
def test_neighbours_of_neighbours(isa: str, dtype: Any, width: int, least: float) -> None:
    """Small integer coordinates, so that no distance is rounded and the pairs are the twin's."""
    rng = np.random.default_rng(0)
    for (m, n), threshold in itertools.product([*SHAPES, (600, 500)], [1e-3, 0.2]):
        queries = rng.integers(-2, 3, (m, 2)).astype(dtype)
        keys = rng.integers(-2, 3, (n, 2)).astype(dtype)
        known = some_pairs(m, n, 5 / max(n, 5))
        args = (queries, keys, 1.5, known, *sharing_of(known, n))
        options = {"least": least, "width": width, "threshold": threshold}
        want = in_order(*reference.neighbours_of_neighbours(*args, **options))
        if (m, least, width) == (600, 0.3, 4):
            assert len(want[0]) > 100
        for n_threads in THREADS:
            got = in_order(
                *leaves.neighbours_of_neighbours(*args, **options, isa=isa, n_threads=n_threads)
            )
            np.testing.assert_array_equal(got[0], want[0])
            np.testing.assert_array_equal(got[1], want[1])
            np.testing.assert_allclose(got[2], want[2], rtol=2e-7)


def test_merge_pairs() -> None:
    """Known values stay; new pairs in any order, with repeats and with pairs that are known."""
    rng = np.random.default_rng(0)
    for m, n, n_new in [(1, 1, 0), (1, 1, 3), (5, 9, 20), (300, 50, 4000), (9000, 400, 30_000)]:
        known = some_pairs(m, n, 0.05)
        rows = rng.integers(0, m, n_new).astype(np.int32)
        cols = rng.integers(0, n, n_new).astype(np.int32)
        # A repeated pair has one value, as in the searches.
        values = ((rows * 7 + cols) % 101 / 101).astype(np.float32)
        want = reference.merge_pairs(known, rows, cols, values)
        assert len(want.cols) == len(
            {*zip(known.rows, known.cols, strict=True)} | {*zip(rows, cols, strict=True)}
        )
        for n_threads in THREADS:
            got = leaves.merge_pairs(known, rows, cols, values, n_threads=n_threads)
            for left, right in zip(got, want, strict=True):
                np.testing.assert_array_equal(left, right)
                assert left.dtype == right.dtype


def test_merge_pairs_of_nothing() -> None:
    """No queries; no known pairs; no new pairs."""
    empty = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))
    for m in (0, 3):
        got = leaves.merge_pairs(FoundPairs.none(m), *empty)
        np.testing.assert_array_equal(got.indptr, np.zeros(m + 1))
        assert len(got.cols) == len(got.values) == 0


def draw_plan(m: int, n: int, n_blocks: int, n_tiles: int, rate: float, **seeds: int) -> DrawPlan:
    """Blocks and tiles of random order, some of them empty, with rates around ``rate``."""
    rng = np.random.default_rng([m, n, n_blocks, n_tiles])
    rates = rate * rng.lognormal(0.0, 1.0, (n_blocks, n_tiles))
    rates[rng.random(rates.shape) < 0.1] = 0.0
    rates[rng.random(rates.shape) < 0.1] *= 1e20
    cut = [np.sort(rng.integers(0, k + 1, c - 1)) for k, c in ((m, n_blocks), (n, n_tiles))]
    return DrawPlan(
        rng.permutation(m).astype(np.int32),
        np.array([0, *cut[0], m], np.int64),
        rng.permutation(n).astype(np.int32),
        np.array([0, *cut[1], n], np.int64),
        rates.astype(np.float32),
        seeds.get("seed", 5),
        seeds.get("stream", 6),
    )


def true_pairs(a: Args, share: float) -> FoundPairs:
    """Some pairs with their right values."""
    m, n = len(a["queries"]), len(a["keys"])
    pairs = some_pairs(m, n, share)
    t, _ = exponents(a)
    return pairs._replace(values=np.exp(np.minimum(t[pairs.rows, pairs.cols], 0)).astype("f4"))


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_sampled_product(isa: str, dtype: Any, differences: bool, share: float) -> None:
    """The same draws, the same numbers of them; product and variance within rounding of the twin.

    Weights have two roundings, the sum n + 8 units; a square has twice the error of a value.
    Counter words 0 and 1 are block and tile: permuting either would change the draws.
    """
    unit = float(np.finfo(dtype).eps) / 2
    n_drawn = 0
    for (m, n), (n_blocks, n_tiles), rate in itertools.product(
        [*SHAPES, (300, 1500)], [(1, 1), (4, 3)], [0.05, 0.5, 1e6]
    ):
        a = engine_case(m, n, 3, dtype, differences)
        x = np.random.default_rng(0).standard_normal(n).astype(dtype)
        x[: n // 10] = 0
        if n > 20 and m > 3 and not differences:
            a["key_shift"][5] = a["query_shift"][1] = np.inf
        g, plan = geometry_of(a), draw_plan(m, n, n_blocks, n_tiles, rate)
        found = true_pairs(a, share)
        want = reference.sampled_product(g, plan, found, x)
        got = leaves.sampled_product(g, plan, found, x, isa=isa, n_threads=2)
        assert got.out.dtype == dtype
        np.testing.assert_array_equal(got.n_drawn, want.n_drawn)
        n_drawn += int(got.n_drawn.sum())
        t, error = exponents(a)
        block_of = np.empty(m, np.int64)
        block_of[plan.query_order] = np.repeat(np.arange(n_blocks), np.diff(plan.block_start))
        size = np.abs(x.astype(np.float64))
        for b in range(n_blocks):
            rows = plan.query_order[plan.block_start[b] : plan.block_start[b + 1]]
            pi = reference._drawn_probabilities(plan, b, size)
            weight = np.divide(size, pi, out=np.zeros(n), where=pi > 0)
            e = np.exp(np.minimum(t[rows], 0.0))
            relative = np.expm1(error[rows]) + (n + 8) * unit
            # The correction takes rounded weights out once more.
            bound = (e * relative) @ weight * (1 + share * 2) + np.finfo(dtype).smallest_normal * n
            bound += unit * np.abs(want.out[rows])
            if share:
                bound += (n + 8) * unit * (e @ size)
            assert (np.abs(got.out[rows] - want.out[rows]) <= bound).all()
            squared = (e**2 * 2 * relative) @ (weight**2 * (1 - pi)) * (1 + share * 2)
            allowed = squared.sum() + np.finfo(dtype).smallest_normal * n
            assert abs(got.variance[b] - want.variance[b]) <= allowed
    assert n_drawn > 1000


@pytest.mark.parametrize("differences", [False, True])
def test_sampled_product_does_not_depend_on_threads(
    isa: str, dtype: Any, differences: bool
) -> None:
    """Bits are equal for 1, 2, 3 and 7 threads, and differ for another stream or seed."""
    a = engine_case(700, 3000, 4, dtype, differences)
    x = np.random.default_rng(0).standard_normal(3000).astype(dtype)
    g, plan, found = geometry_of(a), draw_plan(700, 3000, 9, 5, 0.5), true_pairs(a, 0.02)
    first = leaves.sampled_product(g, plan, found, x, isa=isa, n_threads=1)
    for n_threads in THREADS[1:]:
        again = leaves.sampled_product(g, plan, found, x, isa=isa, n_threads=n_threads)
        for left, right in zip(first, again, strict=True):
            np.testing.assert_array_equal(left, right)
    for other in (plan._replace(seed=4), plan._replace(stream=7)):
        assert (leaves.sampled_product(g, other, found, x, isa=isa).out != first.out).any()


def test_every_found_pair_makes_the_product_exact(isa: str, dtype: Any) -> None:
    """With all pairs found the draws do not matter: they are taken out again.

    What is left is the rounding of values kept in float32, weighed with |x| and with the weights.
    """
    a = engine_case(40, 60, 3, dtype, True)
    x = np.random.default_rng(0).standard_normal(60).astype(dtype)
    g, found = geometry_of(a), true_pairs(a, 1.0)
    exact = np.exp(exponents(a)[0]) @ x.astype(np.float64)
    for stream in range(5):
        plan = draw_plan(40, 60, 2, 2, 0.5, stream=stream)
        got = leaves.sampled_product(g, plan, found, x, isa=isa)
        largest = max(
            np.divide(abs(x), p, out=np.zeros(60), where=p > 0).sum()
            for p in (reference._drawn_probabilities(plan, b, np.abs(x)) for b in range(2))
        )
        error = np.expm1(exponents(a)[1].max()) + 70 * np.finfo(np.float32).eps
        assert np.abs(got.out - exact).max() <= error * (largest + np.abs(x).sum())


def test_largest_rate_draws_every_key(isa: str, dtype: Any) -> None:
    """At the largest rate float32 can hold each key is certain, whatever its entry of x."""
    a = engine_case(20, 50, 3, dtype, False)
    x = (10.0 ** -np.linspace(0, 10, 50)).astype(dtype)
    most = np.full((1, 1), np.finfo(np.float32).max)
    plan = draw_plan(20, 50, 1, 1, 1.0)._replace(rate=most.astype(np.float32))
    got = leaves.sampled_product(geometry_of(a), plan, FoundPairs.none(20), x, isa=isa)
    assert got.n_drawn[0] == 50
    assert got.variance[0] == 0
