"""Every compiled loop against its NumPy twin.

Tolerances are worst-case rounding bounds worked out from the data (`tile_bound`), not chosen.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from approxkmv.loops import compiled, reference
from approxkmv.loops.compiled import Compiled

SIZES = [0, 1, 2, 3, 5, 10, 50, 257, 300]
COLUMNS = [0, 1, 2, 3, 4, 5, 17, 64]
DIMS = [0, 1, 2, 63, 64, 100, 784, 4096]
Args = dict[str, Any]


def case(m: int, n: int, r: int, d: int, dtype: np.dtype[Any], **options: Any) -> Args:
    """Arguments of a product whose exponents stay between about -10 and 5."""
    rng = np.random.default_rng([m, n, r, d])
    scale = max(d, 1) ** -0.25
    return {
        "queries": (scale * rng.standard_normal((m, d)) + 1).astype(dtype),
        "keys": (scale * rng.standard_normal((n, d)) - 2).astype(dtype),
        "x": rng.standard_normal((n, r)).astype(dtype),
        "query_shift": rng.uniform(0, 2, m),
        "key_shift": rng.uniform(-2, 2, n),
        "query_centre": np.full(d, 1.0),
        "key_centre": np.full(d, -2.0),
        "factor": 2.0,
        "slope": -0.125 if options.get("differences") else 0.25,
    } | options


def exponents(a: Args) -> tuple[np.ndarray, np.ndarray]:
    """Exponents in double precision, and a bound of what rounding to the working type does to them.

    Coordinates are rounded once each, an inner product of d terms has relative error d + 1 units of
    its absolute terms, and the four operations on the exponent one unit of their operands each.
    """
    unit = float(np.finfo(a["keys"].dtype).eps) / 2
    q = (a["queries"].astype(np.float64) - a["query_centre"]) * a["factor"]
    k = (a["keys"].astype(np.float64) - a["key_centre"]) * a["factor"]
    d = q.shape[1]
    size = np.abs(q) @ np.abs(k).T
    if a.get("differences"):
        scores = np.stack([((row - k) ** 2).sum(axis=1) for row in q]) if len(q) else size
        moved = np.sqrt((q**2).sum(1))[:, None] + np.sqrt((k**2).sum(1))
        error = (d + 4) * scores + 2 * np.sqrt(scores) * moved
    else:
        scores = q @ k.T
        error = (d + 4) * size
    slope = abs(a["slope"])
    # An infinite shift makes the exponential 0 exactly: it has no rounding.
    shifts = np.abs(finite(a["query_shift"]))[:, None] + np.abs(finite(a["key_shift"]))
    bound = unit * (slope * error + 4 * (slope * np.abs(scores) + shifts))
    with np.errstate(invalid="ignore"):
        return a["slope"] * scores - a["query_shift"][:, None] - a["key_shift"], bound


def finite(shift: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(shift), shift, 0.0)


def check_tile(a: Args, isa: str, *, n_threads: int = 1) -> None:
    """Compiled against twin: sums, totals and row maxima, each within its rounding bound."""
    got = Compiled(n_threads, isa).tile_product(
        **a,
    )
    want = reference.tile_product(**a)
    kind = np.finfo(a["keys"].dtype)
    unit = float(kind.eps) / 2
    n = len(a["keys"])
    t, t_error = exponents(a)
    relative = np.float64(1.0)
    assert (got.row_max is None) == (want.row_max is None)
    assert (got.totals is None) == (want.totals is None)
    if want.row_max is not None:
        assert got.row_max.dtype == kind.dtype
        some = np.isfinite(want.row_max)
        np.testing.assert_array_equal(got.row_max[~some], want.row_max[~some])
        off = np.abs(got.row_max[some] - want.row_max[some])
        assert (
            off <= t_error[some].max(axis=1, initial=0.0) + unit * np.abs(want.row_max[some])
        ).all()
        # Sums are relative to the computed maximum, which may differ from the twin's by rounding.
        t = t - np.where(some, want.row_max, 0.0)[:, None]
        relative = np.exp(finite(got.row_max.astype(np.float64)) - finite(want.row_max))
        t_error = 3 * t_error + 4 * unit * np.abs(np.where(some, want.row_max, 0.0))[:, None]
    e = np.exp(np.minimum(t, a.get("ceiling", np.inf)))
    e_error = e * (np.expm1(t_error) + (4 + n) * unit) + kind.smallest_normal
    pairs = [(got.out, want.out, e_error @ np.abs(a["x"].astype(np.float64)))]
    if want.totals is not None:
        pairs.append((got.totals[:, None], want.totals[:, None], e_error.sum(axis=1)[:, None]))
    for found, wanted, bound in pairs:
        assert found.dtype == kind.dtype
        assert found.shape == wanted.shape
        error = np.abs(found.astype(np.float64) * np.atleast_1d(relative)[:, None] - wanted)
        assert (error <= bound).all(), f"{(error - bound).max():.3g} above the bound"


def test_twins_have_the_same_names_and_arguments() -> None:
    """Both backends have the same loops, with the same arguments."""
    assert len(compiled.LOOPS) > 20
    for name in compiled.LOOPS:
        assert getattr(reference.Reference(), name) is getattr(reference, name), name
        loop = inspect.signature(getattr(Compiled(), name)).parameters
        twin = inspect.signature(getattr(reference.Reference(), name)).parameters
        assert {k: (v.kind, v.default) for k, v in loop.items()} == {
            k: (v.kind, v.default) for k, v in twin.items()
        }, name


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("online", [False, True])
def test_tile_product_sizes(isa: str, dtype: Any, differences: bool, online: bool) -> None:
    """Every pair of sizes on the query and key axes, columns taken in turn."""
    columns = itertools.cycle(COLUMNS)
    for m, n in itertools.product(SIZES, SIZES):
        a = case(
            m, n, next(columns), 3, dtype, differences=differences, online=online, row_sums=True
        )
        check_tile(a, isa)


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("online", [False, True])
def test_tile_product_columns(isa: str, dtype: Any, differences: bool, online: bool) -> None:
    """Few columns are dotted, many are a second matrix product: both sides of the border."""
    for r, (m, n) in itertools.product(COLUMNS, [(13, 257), (97, 600)]):
        a = case(m, n, r, 5, dtype, differences=differences, online=online, row_sums=r % 2 == 0)
        check_tile(a, isa, n_threads=2)


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("d", DIMS)
def test_tile_product_dimensions(isa: str, dtype: Any, differences: bool, d: int) -> None:
    """Panels get narrower as the dimension grows; at 0 every exponent is a shift."""
    for n, r in [(1, 1), (50, 5), (300, 3)]:
        check_tile(case(10, n, r, d, dtype, differences=differences, row_sums=True), isa)
        check_tile(case(10, n, r, d, dtype, differences=differences, online=True), isa)


@pytest.mark.parametrize("ceiling", [-np.inf, -3.0, 0.0, 1.5, np.inf])
@pytest.mark.parametrize("online", [False, True])
def test_tile_product_ceiling(isa: str, dtype: Any, ceiling: float, online: bool) -> None:
    """The exponent is cut from above, after the largest of the row was taken out."""
    for r in (1, 3, 9):
        check_tile(case(20, 70, r, 4, dtype, ceiling=ceiling, online=online, row_sums=True), isa)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("differences", [False, True])
def test_tile_product_infinite_shifts(
    isa: str, dtype: Any, online: bool, differences: bool
) -> None:
    """A shift of +infinity means a kernel value of 0, whatever the coordinates are."""
    for r in (1, 2, 20):
        a = case(30, 280, r, 4, dtype, differences=differences, online=online, row_sums=True)
        a["query_shift"][[0, 7, 29]] = np.inf
        a["key_shift"][[0, 8, 255, 256, 279]] = np.inf
        check_tile(a, isa)
        a["key_shift"][:] = np.inf
        check_tile(a, isa)


@pytest.mark.parametrize("online", [False, True])
def test_infinite_shift_hides_coordinates_that_would_overflow(
    isa: str, dtype: Any, online: bool
) -> None:
    """A point with an infinite shift contributes exactly 0, even where its product is infinite."""
    a = case(4, 40, 3, 2, dtype, online=online, row_sums=True)
    plain = Compiled(isa=isa).tile_product(
        **a,
    )
    far = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in a.items()}
    far["keys"] = np.insert(a["keys"], 40, np.finfo(dtype).max, axis=0)
    far["key_shift"] = np.append(a["key_shift"], np.inf)
    far["x"] = np.append(a["x"], np.ones((1, 3), dtype), axis=0)
    seen = Compiled(isa=isa).tile_product(
        **far,
    )
    for before, after in zip(plain, seen, strict=True):
        assert (before is None) == (after is None)
        if before is not None:
            np.testing.assert_array_equal(before, after)


def test_tile_product_beyond_the_largest_exponent(isa: str, dtype: Any) -> None:
    """Without a ceiling, an exponent too large for the type gives infinity, as in the twin."""
    one = np.ones((1, 1), dtype)
    for shift in (-100.0, -1e3, -1e4, -1e30):
        a = {"query_shift": np.zeros(1), "key_shift": np.array([shift]), "slope": 0.0}
        got = (
            Compiled(isa=isa)
            .tile_product(
                one,
                one,
                one,
                **a,
            )
            .out
        )
        with np.errstate(over="ignore"):
            want = reference.tile_product(one, one, one, **a).out.astype(dtype)
        if np.isinf(want).any():
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_online_takes_out_large_exponents(isa: str, dtype: Any) -> None:
    """Log weights to 225 at d=64 (softmax of keys of norm 60): finite, and within the bound."""
    a = case(20, 500, 6, 64, dtype, online=True)
    a["keys"] = (a["keys"] + 2) * np.linspace(0.1, 1.0, 500)[:, None].astype(dtype)
    a["keys"] *= dtype.type(60 / np.sqrt((a["keys"] ** 2).sum(axis=1)).max())
    a["queries"] = (a["keys"][-20:] / 2).astype(dtype)
    a |= {"query_centre": np.zeros(64), "key_centre": np.zeros(64), "factor": 1.0, "slope": 0.125}
    a["key_shift"] = np.zeros(500)
    assert reference.tile_product(**a).row_max.max() > 200
    check_tile(a, isa)


def test_rows_come_in_any_order_of_size(isa: str, dtype: Any) -> None:
    """The row maximum is found whether it comes first, last or in between."""
    for order in (np.arange(600.0), -np.arange(600.0), np.abs(np.arange(600.0) - 300)):
        a = case(3, 600, 2, 1, dtype, online=True)
        a["key_shift"] = order
        check_tile(a, isa)


def test_many_chunks(isa: str, dtype: Any) -> None:
    """Keys in several chunks, as blocks of queries side by side and as chunks side by side.

    At d=500 and 5 columns a chunk has about 2,000 keys.
    """
    for m, online in itertools.product((3, 300), (False, True)):
        a = case(m, 4500, 5, 500, dtype, online=online, row_sums=True)
        one = Compiled(1, isa).tile_product(
            **a,
        )
        two = Compiled(2, isa).tile_product(
            **a,
        )
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)
        few = {k: v[:40] if k in ("queries", "query_shift") else v for k, v in a.items()}
        check_tile(few, isa)


def test_squared_norms(isa: str, dtype: Any) -> None:
    """In double precision, of the points as rounded to their own type.

    The two add d squares in different orders: d units of double precision apart at most.
    """
    rng = np.random.default_rng(0)
    for n, d in itertools.product(SIZES, [0, 1, 2, 63, 100]):
        points = (rng.standard_normal((n, d)) + 3).astype(dtype)
        centre = rng.standard_normal(d)
        got = Compiled(isa=isa).squared_norms(
            points,
            centre,
            0.25,
        )
        np.testing.assert_allclose(
            got, reference.squared_norms(points, centre, 0.25), rtol=(d + 1) * 2.0**-52, atol=0
        )
        assert got.dtype == np.float64


def test_column_sums(dtype: Any) -> None:
    """In double precision, in pieces of 1,024 rows: the same for any number of threads."""
    rng = np.random.default_rng(0)
    for n, d in itertools.product([*SIZES, 1024, 1025, 5000], [0, 1, 2, 63, 100]):
        x = (rng.standard_normal((n, d)) + 3).astype(dtype)
        got = Compiled(2).column_sums(
            x,
        )
        np.testing.assert_array_equal(
            got,
            Compiled(1).column_sums(
                x,
            ),
        )
        size = np.abs(x.astype(np.float64)).sum(axis=0)
        assert (np.abs(got - reference.column_sums(x)) <= 2 * n * 2.0**-53 * size).all()
        assert got.dtype == np.float64
    huge = np.full((3, 2), np.finfo(dtype).max / 4, dtype)
    np.testing.assert_array_equal(Compiled().column_sums(huge), 3 * huge[0].astype(np.float64))


def pair_bound(queries: np.ndarray, keys: np.ndarray, bandwidth: float) -> float:
    """Largest exponent error of a direct difference: d + 3 units of the exponent."""
    unit = float(np.finfo(keys.dtype).eps) / 2
    spread = np.abs(queries).max(initial=0) + np.abs(keys).max(initial=0)
    return (keys.shape[1] + 3) * unit * keys.shape[1] * float(spread) ** 2 / (2 * bandwidth**2)


@pytest.mark.parametrize("d", [0, 1, 2, 3, 7, 8, 9, 63, 64, 100, 784, 4096])
def test_pair_kernel(isa: str, dtype: Any, d: int) -> None:
    """Values at listed pairs, in any order and with repeats, against the twin."""
    rng = np.random.default_rng(d)
    queries = rng.standard_normal((20, d)).astype(dtype)
    keys = rng.standard_normal((30, d)).astype(dtype)
    bandwidth = float(np.sqrt(d + 1))
    for n in SIZES:
        rows, cols = rng.integers(0, 20, n), rng.integers(0, 30, n)
        got = Compiled(isa=isa).pair_kernel(
            queries,
            keys,
            rows,
            cols,
            bandwidth,
        )
        want = reference.pair_kernel(queries, keys, rows, cols, bandwidth)
        error = 4e-16 + np.expm1(pair_bound(queries, keys, bandwidth))
        np.testing.assert_allclose(got, want, rtol=error, atol=0)


def test_pair_kernel_in_parallel(isa: str, dtype: Any) -> None:
    """Several tasks of pairs, on three threads, give what one gives."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((100, 3)).astype(dtype)
    rows, cols = rng.integers(0, 100, (2, 100_000))
    one = Compiled(1, isa).pair_kernel(
        points,
        points,
        rows,
        cols,
        1.0,
    )
    three = Compiled(3, isa).pair_kernel(
        points,
        points,
        rows,
        cols,
        1.0,
    )
    np.testing.assert_array_equal(one, three)
    np.testing.assert_allclose(
        one, reference.pair_kernel(points, points, rows, cols, 1.0), rtol=1e-5
    )


@pytest.mark.parametrize("threshold", [1e-300, 0.1, 0.5, 1.0])
def test_scan_ranges(isa: str, dtype: Any, threshold: float) -> None:
    """Rows ascending, keys in scan order, values; queries with empty ranges among them.

    Coordinates are small integers, so distances are exact and no pair is on the wrong side of the
    threshold by rounding.
    """
    rng = np.random.default_rng(1)
    for m, n in itertools.product([0, 1, 5, 257, 600], [1, 3, 50]):
        queries = rng.integers(-1, 2, (m, 3)).astype(dtype)
        keys = rng.integers(-1, 2, (n, 3)).astype(dtype)
        order = rng.integers(0, n, 4 * n)
        start = rng.integers(0, 4 * n, m)
        stop = np.minimum(start + rng.integers(0, 2 * n, m), 4 * n)
        args = (queries, keys, order, start, stop, 1.5, threshold)
        want = reference.scan_ranges(*args)
        for n_threads in (1, 3):
            rows, cols, values = Compiled(n_threads, isa).scan_ranges(
                *args,
            )
            np.testing.assert_array_equal(rows, want[0])
            np.testing.assert_array_equal(cols, want[1])
            np.testing.assert_allclose(values, want[2], rtol=1e-15)
            assert rows.dtype == cols.dtype == np.int64


def test_scan_ranges_keeps_every_pair_that_reaches_the_threshold(isa: str, dtype: Any) -> None:
    """On random data the pairs differ from the twin's only where rounding decides."""
    rng = np.random.default_rng(2)
    points = rng.standard_normal((200, 10)).astype(dtype)
    start, stop = np.zeros(200, np.int64), np.full(200, 200)
    args = (points, points, np.arange(200), start, stop, 2.0)
    slack = np.expm1(pair_bound(points, points, 2.0))
    rows, cols, values = Compiled(isa=isa).scan_ranges(
        *args,
        0.3,
    )
    found = set(zip(rows.tolist(), cols.tolist(), strict=True))
    assert (values >= 0.3).all()
    sure, possible = (
        set(zip(*(a.tolist() for a in reference.scan_ranges(*args, t)[:2]), strict=True))
        for t in (0.3 * (1 + slack), 0.3 * (1 - slack))
    )
    assert sure <= found <= possible
    assert len(sure) > 500


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="instruction set not available here: sse9"):
        Compiled(isa="sse9").exp(
            np.zeros(3),
        )


def test_wrong_types_are_never_converted_silently() -> None:
    """A leaf trusts its arrays and therefore refuses another type, order or number of axes."""
    with pytest.raises(TypeError):
        Compiled().squared_norms(np.zeros((3, 2), np.int64), np.zeros(2), 1.0)
    with pytest.raises(TypeError):
        Compiled().squared_norms(np.asfortranarray(np.zeros((3, 2))), np.zeros(2), 1.0)
    with pytest.raises(TypeError):
        Compiled().squared_norms(np.zeros(3), np.zeros(2), 1.0)  # type: ignore[arg-type]


def test_the_peak_of_a_core_is_a_plausible_number() -> None:
    """Between 0.1 and 1,000 GFLOP/s, and float32 ahead of float64."""
    single, double = compiled.fma_peak(0.05, np.float32), compiled.fma_peak(0.05, np.float64)
    assert 1e8 < double < single < 1e12


@given(
    m=st.integers(0, 40),
    n=st.integers(0, 300),
    r=st.integers(0, 40),
    d=st.integers(0, 40),
    single=st.booleans(),
    differences=st.booleans(),
    online=st.booleans(),
    n_threads=st.integers(1, 4),
)
def test_tile_product_of_any_shape(
    m: int, n: int, r: int, d: int, single: bool, differences: bool, online: bool, n_threads: int
) -> None:
    """Any shape, either type, either form: twin and leaf agree."""
    dtype = np.dtype(np.float32 if single else np.float64)
    a = case(m, n, r, d, dtype, differences=differences, online=online, row_sums=True)
    check_tile(a, compiled.ISA, n_threads=n_threads)


@pytest.mark.parametrize("n", [0, 1, 3, 16, 37, 65_536, 200_001])
def test_largest_magnitude(isa: str, dtype: Any, n: int) -> None:
    """The same number as the twin, wherever the largest entry stands and whatever its sign."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(dtype)
    for at in {0, n // 2, n - 1} if n else ():
        for sign in (-1, 1):
            x[at] = sign * 17
            assert (
                Compiled(2, isa).largest_magnitude(
                    x,
                )
                == 17
            )
            x[at] = 0
    assert Compiled(isa=isa).largest_magnitude(
        x,
    ) == reference.largest_magnitude(x)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 16, 37, 200_001])
def test_largest_magnitude_of_what_is_not_finite(isa: str, dtype: Any, n: int, bad: float) -> None:
    """One such entry is enough, with larger ones before and after it."""
    for at in {0, n // 2, n - 1}:
        x = np.full(n, np.finfo(dtype).max, dtype)
        x[at] = bad
        assert np.isnan(
            Compiled(2, isa).largest_magnitude(
                x,
            )
        )
        assert np.isnan(reference.largest_magnitude(x))
