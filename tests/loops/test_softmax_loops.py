"""The compiled softmax loop against its NumPy twin, and what its rows may not depend on.

Tolerances are worst-case rounding bounds worked out from the data (`bound`), not chosen.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled

SIZES = [0, 1, 2, 5, 6, 7, 12, 13, 97, 257, 300]
COLUMNS = [0, 1, 3, 15, 16, 17, 64]
DIMS = [0, 1, 2, 63, 64, 100, 784]
Args = dict[str, Any]


def case(m: int, n: int, r: int, d: int, dtype: Any, *, n_heads: int = 1, **options: Any) -> Args:
    """Heads whose scores have standard deviation 2."""
    rng = np.random.default_rng([m, n, r, d, n_heads])
    return {
        "queries": rng.standard_normal((n_heads, m, d)).astype(dtype),
        "keys": rng.standard_normal((n_heads, n, d)).astype(dtype),
        "values": rng.standard_normal((n_heads, n, r)).astype(dtype),
        "heads": np.repeat(np.arange(n_heads)[:, None], 4, axis=1),
        "scale": 2.0 / max(d, 1) ** 0.5,
    } | options


def bound(a: Args, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest rounding error of each output row relative to |v|, and of each log normalizer.

    A score of d terms is off by d + 2 units of its absolute terms, the mask and the maximum cost
    three more roundings of what is added; a weight then by the exponential of that and 4 units, and
    sums by at most one unit for each key and rescaling.
    """
    unit = float(np.finfo(a["keys"].dtype).eps) / 2
    query, key, _, mask_of = a["heads"][head]
    q, k = a["queries"][query].astype(np.float64), a["keys"][key].astype(np.float64)
    size = abs(a["scale"]) * (np.abs(q) @ np.abs(k).T)
    mask = a.get("mask")
    added = 0.0
    if mask is not None and mask.dtype != np.bool_:
        added = np.abs(np.where(np.isfinite(mask[mask_of]), mask[mask_of], 0.0))
    error = unit * ((q.shape[1] + 4) * size + 4 * (size + added)).max(axis=1, initial=0.0)
    n = k.shape[0]
    weights = np.expm1(4 * error) + unit * (2 * n + 40)
    return 2 * weights, error + weights


def check(a: Args, isa: str, *, n_threads: int = 1) -> None:
    got = Compiled(n_threads, isa).attention(
        **a,
    )
    want = reference.attention(**a)
    assert got.out.shape == want.out.shape
    assert got.out.dtype == got.log_normalizer.dtype == got.largest.dtype == a["keys"].dtype
    np.testing.assert_array_equal(got.largest, want.largest)
    for head, (_, _, value_of, _) in enumerate(a["heads"]):
        off, off_log = bound(a, head)
        most = np.abs(a["values"][value_of]).max(axis=0, initial=0.0).astype(np.float64)
        error = np.abs(got.out[head] - want.out[head])
        assert (error <= off[:, None] * most).all(), (error - off[:, None] * most).max()
        empty = np.isneginf(want.log_normalizer[head])
        np.testing.assert_array_equal(np.isneginf(got.log_normalizer[head]), empty)
        assert (got.out[head, empty] == 0).all()
        unit = float(np.finfo(a["keys"].dtype).eps)
        log_error = np.abs(got.log_normalizer[head, ~empty] - want.log_normalizer[head, ~empty])
        size = np.abs(want.log_normalizer[head, ~empty])
        assert (log_error <= off_log[~empty] + 4 * unit * (size + 1)).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_sizes(isa: str, dtype: Any, is_causal: bool) -> None:
    """Every pair of sizes around the micro tiles, the groups and the panels."""
    columns = itertools.cycle(COLUMNS)
    for m, n in itertools.product(SIZES, SIZES):
        check(case(m, n, next(columns), 3, dtype, is_causal=is_causal), isa)


@pytest.mark.parametrize("d", DIMS)
def test_dimensions(isa: str, dtype: Any, d: int) -> None:
    """Panels get narrower as the dimension grows; at 0 the output is the mean."""
    for is_causal, r in itertools.product([False, True], [5, 64]):
        check(case(40, 300, r, d, dtype, is_causal=is_causal), isa, n_threads=2)


@pytest.mark.parametrize("kind", ["truth", "numbers"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rows", ["each", "one"])
def test_masks(isa: str, dtype: Any, kind: str, is_causal: bool, rows: str) -> None:
    """Truth values and numbers with -infinity, for each query or one row for all; also both."""
    for m, n in [(1, 1), (5, 300), (100, 17), (130, 280)]:
        rng = np.random.default_rng([m, n])
        shape = (2, m if rows == "each" else 1, n)
        kept = rng.random(shape) < 0.5
        kept[:, 0] = rows == "one"  # with a row for each query, the first sees nothing
        added = np.where(kept, rng.standard_normal(shape), -np.inf).astype(dtype)
        mask = kept if kind == "truth" else added
        check(case(m, n, 7, 4, dtype, n_heads=2, mask=mask, is_causal=is_causal), isa)


def test_heads_may_share_sets(isa: str, dtype: Any) -> None:
    """The table says which queries, keys, values and mask a head uses."""
    a = case(20, 30, 5, 4, dtype, n_heads=3)
    a["mask"] = np.random.default_rng(0).random((2, 20, 30)) < 0.7
    a["keys"] = a["keys"][:2]
    a["heads"] = np.array([[0, 1, 2, 1], [2, 0, 0, 0], [2, 1, 1, 1], [1, 1, 0, 0]])
    check(a, isa)


@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-30])
def test_any_scale(isa: str, dtype: Any, scale: float) -> None:
    for is_causal in (False, True):
        check(case(30, 50, 5, 4, dtype, is_causal=is_causal) | {"scale": scale}, isa)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", [None, "truth", "numbers"])
@pytest.mark.parametrize("ascending", [False, True])
def test_what_is_taken_out_of_scores(
    isa: str, dtype: Any, ascending: bool, mask: str | None, is_causal: bool
) -> None:
    """The largest of the first few where no other can be 60 ln 2 above it, else that of all.

    In one dimension bounds are reached. Each row also alone: other queries do not count.
    """
    a = case(60, 300, 5, 1, dtype, is_causal=is_causal)
    a["keys"] = np.clip(a["keys"], -1, 1)
    if ascending:
        a["keys"].sort(axis=1)
    a["queries"] = np.linspace(-200, 200, 60).reshape(1, 60, 1).astype(dtype)
    a["scale"] = np.log(2)
    if mask is not None:
        kept = np.random.default_rng(0).random((1, 60, 300)) < 0.5
        a["mask"] = kept if mask == "truth" else np.where(kept, 1, -np.inf).astype(dtype)
    check(a, isa)
    whole = (
        Compiled(isa=isa)
        .attention(
            **a,
        )
        .out
    )
    if not is_causal:
        for row in range(60):
            part = a | {"queries": a["queries"][:, row : row + 1].copy()}
            if mask is not None:
                part["mask"] = a["mask"][:, row : row + 1].copy()
            alone = (
                Compiled(isa=isa)
                .attention(
                    **part,
                )
                .out
            )
            np.testing.assert_array_equal(whole[:, row], alone[:, 0])


@pytest.mark.parametrize("which", ["queries", "keys", "values"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_reported(isa: str, dtype: Any, which: str, bad: float) -> None:
    """Wherever it stands, and nothing is said of the others."""
    for head, row, column in [(0, 0, 0), (1, 129, 32), (1, 64, 7)]:
        a = case(130, 130, 33, 33, dtype, n_heads=2)
        a[which][head, row, column] = bad
        for n_threads in (1, 2):
            got = (
                Compiled(n_threads, isa)
                .attention(
                    **a,
                )
                .largest
            )
            wanted = [
                np.nan if name == which else np.abs(a[name]).max()
                for name in ("queries", "keys", "values")
            ]
            np.testing.assert_array_equal(got, np.array(wanted, dtype))


def test_huge_scores(isa: str, dtype: Any) -> None:
    """Scores of +-1e4 neither overflow nor make a row empty: the largest is taken out first."""
    a = case(30, 300, 5, 4, dtype)
    a["scale"] = 1e4 / np.abs(a["queries"][0] @ a["keys"][0].T).max()
    got = Compiled(isa=isa).attention(
        **a,
    )
    assert np.isfinite(got.out).all()
    assert np.isfinite(got.log_normalizer).all()
    # Each row is the value of its best key, where that is ahead by 50.
    scores = np.sort(a["scale"] * (a["queries"][0].astype(np.float64) @ a["keys"][0].T), axis=1)
    clear = scores[:, -1] - scores[:, -2] > 50
    assert clear.sum() > 5
    best = (a["queries"][0].astype(np.float64) @ a["keys"][0].T).argmax(axis=1)
    expected = a["values"][0][best[clear]]
    unit = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(got.out[0, clear], expected, rtol=4 * unit)


def test_bits_do_not_depend_on_threads_nor_on_other_rows(isa: str, dtype: Any) -> None:
    """Same bits for 1, 2, 3 and 7 threads, and for each query alone with its causal prefix."""
    for is_causal in (False, True):
        a = case(201, 301, 9, 33, dtype, n_heads=3, is_causal=is_causal)
        whole = Compiled(1, isa).attention(
            **a,
        )
        for n_threads in (2, 3, 7):
            again = Compiled(n_threads, isa).attention(
                **a,
            )
            np.testing.assert_array_equal(whole.out, again.out)
            np.testing.assert_array_equal(whole.log_normalizer, again.log_normalizer)
        for first in (0, 5, 100, 200):
            part = dict(a, queries=np.ascontiguousarray(a["queries"][:, first : first + 1]))
            if is_causal:
                mask = np.arange(301) <= first
                part |= {"is_causal": False, "mask": np.tile(mask, (3, 1, 1))}
            alone = Compiled(isa=isa).attention(
                **part,
            )
            np.testing.assert_array_equal(whole.out[:, first], alone.out[:, 0])


def test_causal_rows_do_not_see_later_keys(isa: str, dtype: Any) -> None:
    """Changing a later key, even to NaN or infinity, leaves the bits of earlier rows alone."""
    a = case(150, 150, 5, 4, dtype, is_causal=True)
    before = (
        Compiled(isa=isa)
        .attention(
            **a,
        )
        .out
    )
    a["keys"][0, 100:] = np.nan
    after = (
        Compiled(isa=isa)
        .attention(
            **a,
        )
        .out
    )
    np.testing.assert_array_equal(before[0, :100], after[0, :100])
    assert np.isnan(after[0, 100:]).all()
    a["keys"][0, 100:] = 1e3
    after = (
        Compiled(isa=isa)
        .attention(
            **a,
        )
        .out
    )
    np.testing.assert_array_equal(before[0, :100], after[0, :100])
