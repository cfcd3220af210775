"""The compiled loops of the engine against their NumPy twins.

Tolerances are worst-case rounding bounds worked out from the data, as in ``test_tile``.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from test_tile import Args, case, exponents, pair_bound

from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import (
    DrawPlan,
    FoundPairs,
    Geometry,
    PilotSums,
    Sketches,
    SmoothPart,
    Tiling,
)

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
    """With ``squares`` the first of three columns meets the exponentials, the others their squares.

    A square has twice the relative error of the value; sums add n + 6 units.
    """
    unit = float(np.finfo(dtype).eps) / 2
    for m, n, d in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (5, 50, 3), (100, 257, 64), (13, 2500, 500)]:
        a = case(m, n, 3, d, dtype, differences=differences, squares=True)
        if n > 8:
            a["key_shift"][8] = np.inf
        want = reference.tile_product(**a).out
        t, t_error = exponents(a)
        for n_threads in (1, 3):
            got = (
                Compiled(n_threads, isa)
                .tile_product(
                    **a,
                )
                .out
            )
            for column, power in enumerate((1, 2, 2)):
                e = np.exp(power * t)
                bound = (e * (np.expm1(power * t_error) + (6 + n) * unit)) @ np.abs(
                    a["x"][:, column].astype(np.float64)
                ) + np.finfo(dtype).smallest_normal * n
                assert (np.abs(got[:, column] - want[:, column]) <= bound).all()


def test_project(isa: str, dtype: Any) -> None:
    """Listed points, some twice, on any number of directions; single precision sums.

    A coordinate is moved with one rounding, d products are added: d + 2 units of the absolute sum.
    """
    rng = np.random.default_rng(0)
    unit = float(np.finfo(np.float32).eps) / 2
    for n, d, n_out in itertools.product([0, 1, 5, 5000], [1, 3, 64, 100], [0, 1, 5, 16, 33]):
        if n * d * n_out > 1_000_000:
            continue
        points = (rng.standard_normal((50, d)) + 3).astype(dtype)
        index = rng.integers(0, 50, n).astype(np.int32)
        centre, basis = rng.standard_normal(d), rng.standard_normal((d, n_out)).astype(np.float32)
        want = (points[index].astype(np.float64) - centre) @ basis.astype(np.float64)
        size = np.abs(points[index] - centre) @ np.abs(basis)
        np.testing.assert_allclose(
            reference.project(points, index, centre, basis), want, rtol=1e-7, atol=1e-7
        )
        first = Compiled(1, isa).project(
            points,
            index,
            centre,
            basis,
        )
        assert first.dtype == np.float32
        assert first.shape == (n, n_out)
        assert (np.abs(first - want) <= (d + 3) * unit * size).all()
        for n_threads in (2, 7):
            again = Compiled(n_threads, isa).project(
                points,
                index,
                centre,
                basis,
            )
            np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("repeated", [False, True])
def test_random_tiling(repeated: bool) -> None:
    """The same cells as the twin, as sets; every point in exactly one of them."""
    rng = np.random.default_rng(0)
    for (m, n), depth in itertools.product([*SHAPES, (1000, 999)], [0, 1, 2, 5]):
        keys, queries = (rng.standard_normal((k, depth)).astype(np.float32) for k in (n, m))
        if repeated:
            keys, queries = np.round(keys), np.round(queries)
        got, want = (f(keys, queries) for f in (Compiled().random_tiling, reference.random_tiling))
        np.testing.assert_array_equal(got.key_start, want.key_start)
        np.testing.assert_array_equal(got.query_start, want.query_start)
        assert cells(got.key_order, got.key_start) == cells(want.key_order, want.key_start)
        assert cells(got.query_order, got.query_start) == cells(want.query_order, want.query_start)
        np.testing.assert_array_equal(np.sort(got.key_order), np.arange(n))
        np.testing.assert_array_equal(np.sort(got.query_order), np.arange(m))


def test_some_of_many_keys_tell_the_cuts() -> None:
    """Above 2^14 keys every so many: the twin's cells, nearly even."""
    rng = np.random.default_rng(2)
    keys, queries = (rng.standard_normal((n, 4)).astype(np.float32) for n in (150_000, 999))
    got, want = (f(keys, queries) for f in (Compiled().random_tiling, reference.random_tiling))
    np.testing.assert_array_equal(got.key_start, want.key_start)
    np.testing.assert_array_equal(got.query_start, want.query_start)
    assert cells(got.key_order, got.key_start) == cells(want.key_order, want.key_start)
    assert cells(got.query_order, got.query_start) == cells(want.query_order, want.query_start)
    # The same bits for any number of threads; one side serves both where they are the same.
    for n_threads in (1, 3):
        again = Compiled(n_threads).random_tiling(
            keys,
            queries,
        )
        both = Compiled(n_threads).random_tiling(
            keys,
            keys,
        )
        for a, b in zip(got, again, strict=True):
            np.testing.assert_array_equal(a, b)
        for order, start in (
            (both.key_order, both.key_start),
            (both.query_order, both.query_start),
        ):
            np.testing.assert_array_equal(order, got.key_order)
            np.testing.assert_array_equal(start, got.key_start)
    sizes = np.diff(got.key_start)
    assert sizes.min() != sizes.max()
    assert np.abs(sizes / (150_000 / 16) - 1).max() < 0.1


def test_cells_of_a_tiling_are_even() -> None:
    """Without repeats, 2^depth cells of 1,000 keys differ by at most one key per level."""
    keys = np.random.default_rng(1).standard_normal((1000, 5)).astype(np.float32)
    tiling = Compiled().random_tiling(keys, keys)
    assert np.abs(np.diff(tiling.key_start) - 1000 / 32).max() <= 1
    np.testing.assert_array_equal(tiling.key_start, tiling.query_start)


@pytest.mark.parametrize("d", [1, 7, 40])
def test_principal_tiling(isa: str, d: int) -> None:
    """The cells of the twin in double precision, where no rounding moves a point across a cut."""
    rng = np.random.default_rng(d)
    # Of two keys both are equally far from their mean: cells are larger than that.
    for m, n, depth in [(0, 9, 0), (7, 20, 1), (300, 70, 3), (1, 400, 2), (1000, 2999, 5)]:
        keys, queries = (rng.standard_normal((k, d)) + 3.0 for k in (n, m))
        want = reference.principal_tiling(keys, queries, depth)
        for n_threads in (1, 3):
            got = Compiled(n_threads, isa).principal_tiling(
                keys,
                queries,
                depth,
            )
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_principal_tiling_keeps_clusters_together(isa: str, dtype: Any, offset: float) -> None:
    """Groups of groups, ever closer: whatever the rounding, each cell is one of them. Queries go
    with the keys of their group."""
    rng = np.random.default_rng(0)
    signs = np.array(list(itertools.product([-1, 1], repeat=4)), np.float64)
    centres = offset + signs * np.array([100.0, 30.0, 9.0, 2.7]) @ np.eye(4, 19)
    of_key = rng.permutation(np.repeat(np.arange(16), 50))
    keys = (centres[of_key] + 0.05 * rng.standard_normal((800, 19))).astype(dtype)
    some = rng.integers(0, 800, 300)
    of_query = of_key[some]
    tiling = Compiled(isa=isa).principal_tiling(
        keys,
        keys[some],
        4,
    )
    np.testing.assert_array_equal(np.diff(tiling.key_start), 50)
    keys_of = np.split(tiling.key_order, tiling.key_start[1:-1])
    queries_of = np.split(tiling.query_order, tiling.query_start[1:-1])
    for own, others in zip(keys_of, queries_of, strict=True):
        (group,) = {*of_key[own]}
        np.testing.assert_array_equal(others, np.flatnonzero(of_query == group))


def test_principal_tiling_of_few_keys(isa: str) -> None:
    """More cells than keys: every point in one of them."""
    for (m, n), depth in itertools.product(SHAPES, [2, 5]):
        keys, queries = (np.random.default_rng(k).standard_normal((k, 3)) for k in (n, m))
        tiling = Compiled(isa=isa).principal_tiling(
            keys,
            queries,
            depth,
        )
        np.testing.assert_array_equal(np.sort(tiling.key_order), np.arange(n))
        np.testing.assert_array_equal(np.sort(tiling.query_order), np.arange(m))
        assert np.diff(tiling.key_start).max() <= -(-n // 2**depth)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e25, 3e38])
def test_principal_tiling_of_extreme_points(isa: str, scale: float) -> None:
    """Every point in one cell; halves where squares do not overflow, all together where they do."""
    rng = np.random.default_rng(1)
    points = (scale * rng.uniform(-1, 1, (600, 5))).astype(np.float32)
    tiling = Compiled(isa=isa).principal_tiling(
        points,
        points,
        3,
    )
    np.testing.assert_array_equal(np.sort(tiling.key_order), np.arange(600))
    np.testing.assert_array_equal(tiling.key_order, tiling.query_order)
    np.testing.assert_array_equal(tiling.key_start, tiling.query_start)
    if scale == 0:
        np.testing.assert_array_equal(np.diff(tiling.key_start), [0] * 7 + [600])


@pytest.mark.parametrize("differences", [False, True])
def test_pilot_rows(isa: str, dtype: Any, differences: bool) -> None:
    """Sums over tiles within rounding of the twin's; its near pairs, but for those whose exponent
    is within rounding of the threshold. Some rows twice, some keys twice, some out of reach."""
    unit = float(np.finfo(dtype).eps) / 2
    n_near = 0
    for (m, n), threshold in itertools.product([*SHAPES[1:], (300, 700)], [1e-9, 0.05, 0.5]):
        a = engine_case(m, n, 5, dtype, differences)
        if n > 20 and m > 3:
            a["keys"][n // 2 :] = a["keys"][: n - n // 2]
            a["key_shift"][n // 2 :] = a["key_shift"][: n - n // 2]
            a["queries"][:3] = a["keys"][:3]
            a["query_shift"][:3] = a["key_shift"][:3]
            if not differences:
                a["key_shift"][5] = a["query_shift"][1] = np.inf
        rng = np.random.default_rng([m, n])
        rows = rng.integers(0, max(m, 1), 150 if m else 0).astype(np.int32)
        order = rng.permutation(n).astype(np.int32)
        start = np.array([0, n // 3, n // 3, n], np.int64)  # the second tile has no keys
        weights = rng.random(n).astype(dtype)
        args = (geometry_of(a), rows, order, start, weights, threshold)
        assert (
            Compiled(isa=isa)
            .pilot_rows(
                *args,
            )
            .powers
            is None
        )
        if not differences:
            args = (*args, rng.standard_normal(n).astype(dtype))
        got = Compiled(1, isa).pilot_rows(
            *args,
        )
        want = reference.pilot_rows(*args)
        t, error = (part[rows] for part in exponents(a))
        e = np.exp(np.minimum(t, 0.0))
        tiles = [order[i:j] for i, j in itertools.pairwise(start)]
        # Values below the normal numbers may be 0.
        flushed = n * float(np.finfo(dtype).smallest_normal)
        for tile, keys in enumerate(tiles):
            relative = np.expm1(2 * error[:, keys]) + (n + 8) * unit
            square = (e[:, keys] ** 2 * relative) @ weights[keys].astype(np.float64)
            assert (np.abs(got.squares[tile] - want.squares[tile]) <= square + flushed).all()
        if not differences:
            check_powers(got, want, a, rows, tiles, weights, args[-1], threshold)
        found, wanted = np.zeros((2, len(rows), n), np.int64)
        np.add.at(found, (got.near_row, got.near_col), 1)
        wanted[want.near_row, want.near_col] = 1
        # The threshold itself is rounded to the type in use.
        at_floor = np.abs(t - np.log(threshold)) <= error + unit * abs(np.log(threshold))
        assert ((found == wanted) | (at_floor & (found <= 1))).all()
        n_near += int((wanted & ~at_floor).sum())
        near = (got.near_row, got.near_col)
        # Values are kept in float32, from exponents in float32: units of both.
        single = np.finfo(np.float32).eps * (1 + np.abs(t[near]))
        assert (
            np.abs(got.near_value - e[near]) <= e[near] * (np.expm1(error[near]) + single)
        ).all()
        for n_threads in (2, 7):
            for one, other in zip(
                got,
                Compiled(n_threads, isa).pilot_rows(
                    *args,
                ),
                strict=True,
            ):
                np.testing.assert_array_equal(one, other)
    assert n_near > 1000


def check_powers(
    got: PilotSums,
    want: PilotSums,
    a: dict[str, Any],
    rows: np.ndarray,
    tiles: list[np.ndarray],
    weights: np.ndarray,
    x: np.ndarray,
    threshold: float,
) -> None:
    """Products and weighted powers, the latter without near pairs, within rounding of the twin's.

    A score is off by as much as the exponent; its k-th power by k times that and its own size. A
    value within rounding of the threshold may count or not.
    """
    unit = float(np.finfo(x.dtype).eps) / 2
    t, error = (part[rows] for part in exponents(a))
    e = np.exp(np.minimum(t, 0.0))
    relative = np.expm1(2 * error) + (len(weights) + 16) * unit
    flushed = len(weights) * float(np.finfo(x.dtype).smallest_normal)
    assert got.products is not None
    assert want.products is not None
    bound = (e * relative) @ np.abs(x.astype(np.float64)) + flushed
    assert (np.abs(got.products - want.products) <= bound).all()
    assert got.powers is not None
    assert want.powers is not None
    scale, z = (part[rows] for part in reference._smooth_terms(geometry_of(a)))
    above = t - np.log(threshold)
    at_floor = np.abs(above) <= error + unit * abs(np.log(threshold))
    scale = np.where(at_floor | (above < 0), scale, 0.0)
    most = np.abs(z) + np.where(np.isfinite(error), error, 0.0)
    for place in range(8):
        power = place if place < 3 else place - 3
        term = (e * scale if place < 3 else scale**2) * np.maximum(most, 1e-3) ** power
        # Where z is small its own error is not: what it changes, of a power.
        change = term * relative + power * term / np.maximum(most, 1e-3) * np.where(
            scale > 0, error, 0.0
        )
        change += np.where(at_floor, term, 0.0)
        for tile, keys in enumerate(tiles):
            allowed = change[:, keys] @ weights[keys].astype(np.float64)
            off = np.abs(got.powers[tile, :, place] - want.powers[tile, :, place])
            assert (off <= allowed + flushed * (1 + most.max(initial=0.0) ** power)).all()


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 30])
def test_tile_moments(isa: str, dtype: Any, d: int) -> None:
    """Within rounding of the twin, and the same bits on any number of threads."""
    unit = float(np.finfo(dtype).eps) / 2
    for n in (0, 1, 5, 40, 2500):
        a = engine_case(3, n, d, dtype, False)
        if n > 20:
            a["key_shift"][5] = np.inf
            a["keys"][5] = 1e30
        rng = np.random.default_rng([n, d])
        order = rng.permutation(n).astype(np.int32)
        start = np.array([0, n // 5, n // 5, n], np.int64)  # the second tile has no keys
        weights = rng.standard_normal(n).astype(dtype)
        args = (geometry_of(a), order, start, weights)
        want = reference.tile_moments(*args)
        got = Compiled(1, isa).tile_moments(
            *args,
        )
        assert got.dtype == dtype
        assert got.shape == want.shape == (3, (d + 1) * (d + 2) // 2)
        # What is summed, without signs.
        scale = np.exp(-a["key_shift"])
        points = np.column_stack((np.abs(a["keys"].astype(np.float64) - 1), np.ones(n)))
        points[:, :d] *= a["factor"]
        points[scale == 0] = 0.0
        lower = np.tril_indices(d + 1)
        for tile, (first, last) in enumerate(itertools.pairwise(start)):
            keys = order[first:last]
            size = np.abs(weights[keys].astype(np.float64)) * scale[keys]
            bound = ((points[keys].T * size) @ points[keys])[lower] * (n + 8) * unit
            bound += (n + 1) * float(np.finfo(dtype).smallest_normal)
            assert (np.abs(got[tile] - want[tile]) <= bound).all()
        for n_threads in THREADS[1:]:
            again = Compiled(n_threads, isa).tile_moments(
                *args,
            )
            np.testing.assert_array_equal(got, again)


def tiling_of(m: int, n: int, seed: int = 3) -> Tiling:
    rng = np.random.default_rng(seed)
    keys, queries = (rng.standard_normal((k, 2)).astype(np.float32) for k in (n, m))
    return Compiled().random_tiling(keys, queries)


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
        rows, cols, values = Compiled(2, isa).tile_hits(
            g,
            tiling,
            threshold,
            known,
        )
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
    keys, queries = (rng.standard_normal((k, 5)).astype(np.float32) for k in (1100, 900))
    tiling = Compiled().random_tiling(keys, queries)
    g, known = geometry_of(a), some_pairs(900, 1100, 0.02)
    first = in_order(
        *Compiled(1, isa).tile_hits(
            g,
            tiling,
            0.01,
            known,
        )
    )
    assert len(first[0]) > 1000
    for n_threads in THREADS[1:]:
        again = in_order(
            *Compiled(n_threads, isa).tile_hits(
                g,
                tiling,
                0.01,
                known,
            )
        )
        for left, right in zip(first, again, strict=True):
            np.testing.assert_array_equal(left, right)


def sketched(
    m: int, n: int, d: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray, Sketches, Tiling, FoundPairs]:
    """Points, sketches of about two thirds of them, a tiling of the sketches, and known pairs."""
    rng = np.random.default_rng([m, n, d])
    queries, keys = (rng.standard_normal((k, d)).astype(dtype) for k in (m, n))
    some, others = (rng.permutation(k)[: k - k // 3].astype(np.int32) for k in (m, n))
    basis = (rng.standard_normal((d, 3)) / np.sqrt(3)).astype(np.float32)
    of_queries, of_keys = (
        np.asarray(p[i] @ basis, np.float32) for p, i in ((queries, some), (keys, others))
    )
    radius = rng.uniform(0.0, 4.0, len(some)).astype(np.float32)
    radius[::7] = 100.0  # these see their whole cell
    directions = rng.standard_normal((3, 2)).astype(np.float32)
    tiling = Compiled().random_tiling(of_keys @ directions, of_queries @ directions)
    return (
        queries,
        keys,
        Sketches(of_queries, some, radius, of_keys, others),
        tiling,
        some_pairs(m, n, 0.1),
    )


def at_the_radius(points: Sketches) -> np.ndarray:
    """Sketches whose squared distance is within rounding of the radius.

    The score (radius^2 - distance^2) / 2 is an inner product of s + 2 terms, two of them sums of
    squares with s roundings of their own: 2 s + 6 units of the absolute terms.
    """
    q, k = points.queries.astype(np.float64), points.keys.astype(np.float64)
    radius = points.radius_squared.astype(np.float64)[:, None]
    score = (radius - ((q[:, None] - k) ** 2).sum(axis=-1)) / 2
    squares = (q**2).sum(axis=1)[:, None] + (k**2).sum(axis=1) + radius
    size = np.abs(q) @ np.abs(k).T + squares / 2
    unit = float(np.finfo(np.float32).eps) / 2
    return np.asarray(np.abs(score) <= (2 * q.shape[1] + 6) * unit * size)


def test_cell_pairs(isa: str, dtype: Any) -> None:
    """The twin's pairs, each once and none that is known, but for those whose sketches are within
    rounding of the radius, or whose value is of the threshold. The tiling numbers the sketches, the
    answer the points."""
    n_met = 0
    for (m, n), threshold in itertools.product([*SHAPES, (400, 900)], [1e-6, 0.2]):
        queries, keys, points, tiling, known = sketched(m, n, 4, dtype)
        args = (queries, keys, 1.5, threshold, points, tiling, known)
        want = reference.cell_pairs(*args)
        got = Compiled(1, isa).cell_pairs(
            *args,
        )
        assert [part.dtype for part in got] == [np.int32, np.int32, np.float32]
        found, wanted = np.zeros((2, m, n), np.int64)
        np.add.at(found, got[:2], 1)
        wanted[want[:2]] = 1
        value = np.exp(((queries[:, None].astype("f8") - keys) ** 2).sum(axis=-1) * (-0.5 / 1.5**2))
        error = np.expm1(pair_bound(queries, keys, 1.5)) + 1e-15
        unsure = np.abs(value / threshold - 1) <= error
        unsure[np.ix_(points.query_index, points.key_index)] |= at_the_radius(points)
        assert ((found == wanted) | (unsure & (found <= 1))).all()
        assert not found[known.rows, known.cols].any()
        n_met += int((wanted * ~unsure).sum())
        np.testing.assert_allclose(got[2], value[got[:2]], rtol=error + 2e-7)
        for n_threads in THREADS[1:]:
            again = Compiled(n_threads, isa).cell_pairs(
                *args,
            )
            for left, right in zip(got, again, strict=True):
                np.testing.assert_array_equal(left, right)
    assert n_met > 1000


def test_mirrored_cell_pairs(isa: str, dtype: Any) -> None:
    """Points among themselves: each pair once, from the one that comes first in the tiling, if one
    of them lies within the other's radius; with their mirror images all that both sides see."""
    n_met = 0
    for n, threshold in itertools.product([1, 5, 33, 130, 900], [1e-6, 0.2]):
        points, _, some, _, known = sketched(n, n, 4, dtype)
        some = some._replace(keys=some.queries, key_index=some.query_index)
        directions = np.random.default_rng(n).standard_normal((3, 2)).astype(np.float32)
        projections = some.keys @ directions
        tiling = Compiled().random_tiling(projections, projections)
        args = (points, points, 1.5, threshold, some, tiling, known)
        found, wanted, one_way = np.zeros((3, n, n), np.int64)
        got = Compiled(2, isa).cell_pairs(
            *args,
            mirrored=True,
        )
        np.add.at(found, got[:2], 1)
        wanted[reference.cell_pairs(*args, mirrored=True)[:2]] = 1
        one_way[reference.cell_pairs(*args)[:2]] = 1
        np.fill_diagonal(one_way, 0)
        distance = ((points[:, None].astype("f8") - points) ** 2).sum(axis=-1)
        value = np.exp(distance * (-0.5 / 1.5**2))
        unsure = np.abs(value / threshold - 1) <= np.expm1(pair_bound(points, points, 1.5)) + 1e-15
        edge = at_the_radius(some)
        unsure[np.ix_(some.query_index, some.query_index)] |= edge | edge.T
        assert ((found == wanted) | (unsure & (found <= 1))).all()
        assert not (found & found.T).any()
        assert not found[known.rows, known.cols].any()
        unknown = np.ones((n, n), np.bool_)
        unknown[known.rows, known.cols] = False
        both = (one_way | one_way.T) & unknown & unknown.T
        assert (((found | found.T) >= both) | unsure).all()
        n_met += int(found.sum())
    assert n_met > 1000


@functools.cache
def neighbour_case(
    m: int, n: int, least: float, width: int, threshold: float, of_keys: bool
) -> tuple[Any, ...]:
    """Small integer coordinates, so that no distance is rounded and the pairs are the twin's."""
    rng = np.random.default_rng([m, n])
    queries, keys = rng.integers(-2, 3, (m, 2)), rng.integers(-2, 3, (n, 2))
    known = some_pairs(m, n, 5 / max(n, 5))
    options = {"least": least, "width": width, "threshold": threshold, "of_keys": of_keys}
    found = reference.neighbours_of_neighbours(queries, keys, 1.5, known, **options)
    return queries, keys, known, options, in_order(*found)


@pytest.mark.parametrize("width", [1, 3, 1000])
@pytest.mark.parametrize("least", [0.0, 0.3, 2.0])
def test_neighbours_of_neighbours(isa: str, dtype: Any, width: int, least: float) -> None:
    """The pairs of the twin, on any number of threads, asked from either side."""
    shapes = [*SHAPES[:-1], (60, 80)]
    if (width, least) == (3, 0.3):
        shapes += [(300, 70), (70, 300)]  # more than one task
    for (m, n), of_keys in itertools.product(shapes, [False, True]):
        case = neighbour_case(m, n, least, width, 0.2, of_keys)
        queries, keys, known, options, want = case
        if max(m, n) == 300:
            assert len(want[0]) > 100
            other = neighbour_case(m, n, least, width, 0.2, not of_keys)[-1]
            assert {*zip(*want[:2], strict=True)} != {*zip(*other[:2], strict=True)}
        for n_threads in THREADS:
            n_points = n if of_keys else m
            order = np.random.default_rng(n_threads).permutation(n_points).astype(np.int32)
            got = in_order(
                *Compiled(n_threads, isa).neighbours_of_neighbours(
                    queries.astype(dtype),
                    keys.astype(dtype),
                    1.5,
                    known,
                    **options,
                    point_order=None if n_threads == 1 else order,
                )
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
            got = Compiled(n_threads).merge_pairs(
                known,
                rows,
                cols,
                values,
            )
            for left, right in zip(got, want, strict=True):
                np.testing.assert_array_equal(left, right)
                assert left.dtype == right.dtype


def test_merge_pairs_of_nothing() -> None:
    """No queries; no known pairs; no new pairs."""
    empty = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))
    for m in (0, 3):
        got = Compiled().merge_pairs(FoundPairs.none(m), *empty)
        np.testing.assert_array_equal(got.indptr, np.zeros(m + 1))
        assert len(got.cols) == len(got.values) == 0


def draw_plan(
    m: int, size: np.ndarray, n_blocks: int, n_tiles: int, rate: float, **seeds: int
) -> DrawPlan:
    """Blocks and tiles of random order, some of them empty, with rates around ``rate``."""
    n = len(size)
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
        size,
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
@pytest.mark.parametrize("n_columns", [1, 2, 4, 5, 19])
def test_sampled_product(
    isa: str, dtype: Any, differences: bool, share: float, n_columns: int
) -> None:
    """The same draws, the same numbers of them; product, variance and mass of every query within
    rounding of the twin.

    Weights have two roundings, the sum n + 8 units; a square has twice the error of a value.
    Counter words 0 and 1 are block and tile: permuting either would change the draws.
    """
    unit = float(np.finfo(dtype).eps) / 2
    n_drawn = 0
    shapes = [*SHAPES, (300, 1500)] if n_columns == 1 else [(130, 1100)]
    for (m, n), (n_blocks, n_tiles), rate in itertools.product(
        shapes, [(1, 1), (4, 3)], [0.05, 0.5, 1e6]
    ):
        a = engine_case(m, n, 3, dtype, differences)
        x = np.random.default_rng(0).standard_normal((n, n_columns)).astype(dtype)
        x[: n // 10] = 0
        size = np.linalg.norm(x.astype(np.float64), axis=1).astype(dtype)
        if n > 20 and m > 3 and not differences:
            a["key_shift"][5] = a["query_shift"][1] = np.inf
        g, plan = geometry_of(a), draw_plan(m, size, n_blocks, n_tiles, rate)
        found = true_pairs(a, share)
        want = reference.sampled_product(g, plan, found, x)
        got = Compiled(2, isa).sampled_product(
            g,
            plan,
            found,
            x,
        )
        assert got.out.dtype == dtype
        np.testing.assert_array_equal(got.n_drawn, want.n_drawn)
        n_drawn += int(got.n_drawn.sum())
        t, error = exponents(a)
        largest = np.abs(x.astype(np.float64)).max(axis=1, initial=0.0)
        for b in range(n_blocks):
            rows = plan.query_order[plan.block_start[b] : plan.block_start[b + 1]]
            pi = reference._drawn_probabilities(plan, b, size.astype(np.float64))
            inverse = np.divide(1.0, pi, out=np.zeros(n), where=pi > 0)
            weight = largest * inverse
            e = np.exp(np.minimum(t[rows], 0.0))
            relative = np.expm1(error[rows]) + (n + 8) * unit
            # The correction takes rounded weights out once more.
            bound = (e * relative) @ weight * (1 + share * 2) + np.finfo(dtype).smallest_normal * n
            bound += unit * np.abs(want.out[rows]).max(axis=1, initial=0.0)
            if share:
                bound += (n + 8) * unit * (e @ largest)
            assert (np.abs(got.out[rows] - want.out[rows]) <= bound[:, None]).all()
            lengths = np.square(x.astype(np.float64)).sum(axis=1)
            for estimate, wanted, of_key in (
                (got.variance, want.variance, lengths * inverse**2 * (1 - pi)),
                (got.mass, want.mass, lengths * inverse * (1 - pi)),
            ):
                allowed = (e**2 * 2 * relative) @ of_key * (1 + share * 2)
                allowed += float(np.finfo(dtype).smallest_normal) * (n + of_key.sum())
                assert (np.abs(estimate[rows] - wanted[rows]) <= allowed).all()
    assert n_drawn > 1000


def smooth_part(g: Geometry, plan: DrawPlan, x: np.ndarray) -> SmoothPart:
    """Random coefficients, and the moments that belong to them."""
    shape = (len(plan.block_start) - 1, len(plan.tile_start) - 1, 3)
    coefficients = np.random.default_rng(2).uniform(-1.0, 1.5, shape).astype(np.float32)
    sums = reference.tile_moments(g, plan.key_order, plan.tile_start, x)
    d = g.keys.shape[1]
    power = np.repeat([2, 1, 0], [d * (d + 1) // 2, d, 1])
    moments = np.einsum("btm,tm->bm", coefficients[:, :, power].astype(np.float64), sums)
    return SmoothPart(np.ascontiguousarray(moments, x.dtype), coefficients)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("d", [1, 3, 8, 17])
def test_sampled_product_without_a_smooth_part(isa: str, dtype: Any, share: float, d: int) -> None:
    """Within rounding of the twin, which sums the smooth part pair by pair; bits as ever."""
    unit = float(np.finfo(dtype).eps) / 2
    for (m, n), rate in itertools.product([(1, 1), (7, 50), (130, 1300)], [0.05, 0.5, 1e6]):
        a = engine_case(m, n, d, dtype, False)
        x = np.random.default_rng(0).standard_normal((n, 1)).astype(dtype)
        if n > 20 and m > 3:
            a["key_shift"][5] = a["query_shift"][1] = np.inf
        g, plan = geometry_of(a), draw_plan(m, np.abs(x[:, 0]), 4, 3, rate)
        found, smooth = true_pairs(a, share), smooth_part(g, plan, x[:, 0])
        want = reference.sampled_product(g, plan, found, x, smooth)
        got = Compiled(1, isa).sampled_product(
            g,
            plan,
            found,
            x,
            smooth,
        )
        for n_threads in THREADS[1:]:
            again = Compiled(n_threads, isa).sampled_product(
                g,
                plan,
                found,
                x,
                smooth,
            )
            for left, right in zip(got, again, strict=True):
                np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(got.n_drawn, want.n_drawn)
        t, error = exponents(a)
        error = np.where(np.isfinite(error), error, 0.0)
        q, k = (np.abs(p.astype(np.float64) - 1) * a["factor"] for p in (g.queries, g.keys))
        scale, z = reference._smooth_terms(g)
        reach = np.where(scale > 0, g.slope * (q @ k.T), 0.0)
        tile_of = np.empty(n, np.int64)
        tile_of[plan.key_order] = np.repeat(np.arange(3), np.diff(plan.tile_start))
        size = np.abs(x[:, 0].astype(np.float64))
        for b in range(4):
            rows = plan.query_order[plan.block_start[b] : plan.block_start[b + 1]]
            pi = reference._drawn_probabilities(plan, b, size)
            inverse = np.divide(1.0, pi, out=np.zeros(n), where=pi > 0)
            coefficients = smooth.coefficients[b, tile_of].T.astype(np.float64)
            e = np.exp(np.minimum(t[rows], 0.0))
            relative = np.expm1(error[rows]) + (2 * n + 4 * d + 40) * unit
            g0, g1, g2 = np.abs(coefficients)
            part = scale[rows] * (g0 + g1 * reach[rows] + g2 * reach[rows] ** 2)
            flushed = float(np.finfo(dtype).smallest_normal) * (n + (size * inverse).sum())
            bound = (e * relative) @ (size * inverse) * (1 + 2 * share)
            bound += (n + 8) * unit * (e @ size) + unit * np.abs(want.out[rows, 0]) + flushed
            bound += (part * (2 * n + 4 * d + 40) * unit) @ (size * (1 + inverse))
            # The score of a found pair is worked out from its value, in float32.
            depth = np.where(np.isfinite(t[rows]), np.abs(t[rows]), 0.0)
            single = np.finfo(np.float32).eps * (2 + depth) * (share > 0)
            slope = scale[rows] * (g1 + 2 * g2 * reach[rows])
            of_found = slope * (error[rows] + single) + part * single
            bound += share * (of_found @ (size * (1 + inverse)))
            assert (np.abs(got.out[rows, 0] - want.out[rows, 0]) <= bound).all()
            signed = scale[rows] * np.polynomial.polynomial.polyval(
                z[rows], coefficients[:, None, :], tensor=False
            )
            off = e * (relative + single) + part * (relative + single)
            off += slope * (error[rows] + single)
            for estimate, wanted, of_key in (
                (got.variance, want.variance, size**2 * inverse**2 * (1 - pi)),
                (got.mass, want.mass, size**2 * inverse * (1 - pi)),
            ):
                allowed = (2 * np.abs(e - signed) * off + off**2) @ of_key
                allowed += share * 4 * (((e + np.abs(signed)) * off + off**2) @ of_key)
                allowed += float(np.finfo(dtype).smallest_normal) * (n + of_key.sum())
                assert (np.abs(estimate[rows] - wanted[rows]) <= allowed).all()


def test_sampled_product_of_some_blocks(isa: str, dtype: Any) -> None:
    """What all blocks together draw; the other blocks are left alone, or are 0."""
    n_blocks = 5
    a = engine_case(300, 400, 3, dtype, False)
    x = np.random.default_rng(0).standard_normal((400, 1)).astype(dtype)
    g, plan = geometry_of(a), draw_plan(300, np.abs(x[:, 0]), n_blocks, 3, 0.3)
    found = true_pairs(a, 0.1)
    whole = Compiled(isa=isa).sampled_product(
        g,
        plan,
        found,
        x,
    )
    first, others = np.array([1, n_blocks - 1]), np.array([0, *range(2, n_blocks - 1)])
    part = Compiled(isa=isa).sampled_product(
        g,
        plan,
        found,
        x,
        blocks=first,
    )
    want = reference.sampled_product(g, plan, found, x, blocks=first)
    for got, twin, every in zip(part, want, whole, strict=True):
        np.testing.assert_array_equal(got != 0, twin != 0)
        np.testing.assert_array_equal(got[got != 0], every[got != 0])
    assert (part.out == 0).any()
    rest = Compiled(isa=isa).sampled_product(
        g,
        plan,
        found,
        x,
        blocks=others,
        into=part,
    )
    for got, every in zip(rest, whole, strict=True):
        np.testing.assert_array_equal(got, every)
    twins = reference.sampled_product(g, plan, found, x, blocks=others, into=want)
    for got, every in zip(twins, reference.sampled_product(g, plan, found, x), strict=True):
        np.testing.assert_array_equal(got, every)


@pytest.mark.parametrize("differences", [False, True])
def test_sampled_product_does_not_depend_on_threads(
    isa: str, dtype: Any, differences: bool
) -> None:
    """Bits are equal for 1, 2, 3 and 7 threads, and differ for another stream or seed."""
    a = engine_case(700, 3000, 4, dtype, differences)
    x = np.random.default_rng(0).standard_normal((3000, 6)).astype(dtype)
    plan = draw_plan(700, np.abs(x[:, 0]), 9, 5, 0.5)
    g, found = geometry_of(a), true_pairs(a, 0.02)
    first = Compiled(1, isa).sampled_product(
        g,
        plan,
        found,
        x,
    )
    for n_threads in THREADS[1:]:
        again = Compiled(n_threads, isa).sampled_product(
            g,
            plan,
            found,
            x,
        )
        for left, right in zip(first, again, strict=True):
            np.testing.assert_array_equal(left, right)
    for other in (plan._replace(seed=4), plan._replace(stream=7)):
        assert (
            Compiled(isa=isa)
            .sampled_product(
                g,
                other,
                found,
                x,
            )
            .out
            != first.out
        ).any()


def test_every_found_pair_makes_the_product_exact(isa: str, dtype: Any) -> None:
    """With all pairs found the draws do not matter: they are taken out again.

    What is left is the rounding of values kept in float32, weighed with |x| and with the weights.
    """
    a = engine_case(40, 60, 3, dtype, True)
    x = np.random.default_rng(0).standard_normal(60).astype(dtype)
    g, found = geometry_of(a), true_pairs(a, 1.0)
    exact = np.exp(exponents(a)[0]) @ x.astype(np.float64)
    for stream in range(5):
        plan = draw_plan(40, np.abs(x), 2, 2, 0.5, stream=stream)
        got = Compiled(isa=isa).sampled_product(
            g,
            plan,
            found,
            x[:, None],
        )
        largest = max(
            np.divide(abs(x), p, out=np.zeros(60), where=p > 0).sum()
            for p in (reference._drawn_probabilities(plan, b, np.abs(x)) for b in range(2))
        )
        error = np.expm1(exponents(a)[1].max()) + 70 * np.finfo(np.float32).eps
        assert np.abs(got.out[:, 0] - exact).max() <= error * (largest + np.abs(x).sum())


def test_largest_rate_draws_every_key(isa: str, dtype: Any) -> None:
    """At the largest rate float32 can hold each key is certain, whatever its entry of x."""
    a = engine_case(20, 50, 3, dtype, False)
    x = (10.0 ** -np.linspace(0, 10, 50)).astype(dtype)
    most = np.full((1, 1), np.finfo(np.float32).max)
    plan = draw_plan(20, x, 1, 1, 1.0)._replace(rate=most.astype(np.float32))
    got = Compiled(isa=isa).sampled_product(
        geometry_of(a),
        plan,
        FoundPairs.none(20),
        x[:, None],
    )
    assert got.n_drawn[0] == 50
    assert (got.variance == 0).all()
    assert (got.mass == 0).all()
