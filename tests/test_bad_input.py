"""Bad and extreme input: a clear error, never NaN from finite input, inputs never modified.

Numbered as in the list of reliability checks of the project; each test names its item.
"""

from __future__ import annotations

import hashlib
import itertools
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled

POSITIONS = [(0, 0), (0, 3), (11, 1), (29, 3)]


def clean() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((30, 4)) for name in ("queries", "keys", "x")}


def times(a: dict[str, Any], **options: Any) -> np.ndarray:
    return np.asarray(akmv.matvec(a["queries"], a["keys"], a["x"], bandwidth=1.0, **options))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("name", ["queries", "keys", "x"])
def test_01_02_not_finite(name: str, at: tuple[int, int], value: float, dtype: Any) -> None:
    """1. NaN in Q, K or x: ValueError naming array and first index. 2. Inf: same."""
    a = {k: v.astype(dtype) for k, v in clean().items()}
    a[name][at] = value
    a[name][29, 3] = value  # a later one: the first is named
    first = f"{at[0]}, {at[1]}"
    message = rf"{name} must be finite, but {name}\[{first}\] is {value}\."
    with pytest.raises(ValueError, match=message):
        times(a)
    if name != "x":
        for function in (akmv.row_sums, akmv.log_row_sums, akmv.GaussianKernel):
            with pytest.raises(ValueError, match=message):
                function(a["queries"], a["keys"], bandwidth=1.0)


@pytest.mark.parametrize("at", POSITIONS)
def test_01_opt_out_propagates_to_affected_rows(at: tuple[int, int], dtype: Any) -> None:
    """1. With check_finite=False NaN goes to the rows (of a query) or columns (of x) it touches."""
    a = {k: v.astype(dtype) for k, v in clean().items()}
    plain = times(a)
    a["queries"][at] = np.nan
    y = times(a, check_finite=False)
    assert np.isnan(y[at[0]]).all()
    np.testing.assert_array_equal(np.delete(y, at[0], 0), np.delete(plain, at[0], 0))
    sums = akmv.row_sums(a["queries"], a["keys"], bandwidth=1.0, check_finite=False)
    logs = akmv.log_row_sums(a["queries"], a["keys"], bandwidth=1.0, check_finite=False)
    for found in (sums, logs):
        np.testing.assert_array_equal(np.isnan(found), np.arange(30) == at[0])
    a = {k: v.astype(dtype) for k, v in clean().items()}
    a["x"][at] = np.nan
    y = times(a, check_finite=False)
    assert np.isnan(y[:, at[1]]).all()
    np.testing.assert_array_equal(np.delete(y, at[1], 1), np.delete(plain, at[1], 1))
    a = {k: v.astype(dtype) for k, v in clean().items()}
    a["keys"][at] = np.nan
    assert np.isnan(times(a, check_finite=False)).all()


@pytest.mark.parametrize("n_dims", [0, 1, 4])
def test_03_empty(n_dims: int, dtype: Any) -> None:
    """3. Empty: n=0 -> shape (0,); m=0 -> zeros; d=0 -> every entry sum(x)."""
    some, none = np.ones((5, n_dims), dtype), np.ones((0, n_dims), dtype)
    assert akmv.matvec(none, some, np.ones(5, dtype), bandwidth=1.0).shape == (0,)
    assert akmv.matvec(none, none, np.ones(0, dtype), bandwidth=1.0).shape == (0,)
    np.testing.assert_array_equal(akmv.matvec(some, none, np.ones(0), bandwidth=1.0), np.zeros(5))
    assert akmv.matvec(some, some, np.ones((5, 0), dtype), bandwidth=1.0).shape == (5, 0)
    assert akmv.row_sums(none, some, bandwidth=1.0).shape == (0,)
    np.testing.assert_array_equal(akmv.row_sums(some, none, bandwidth=1.0), np.zeros(5))
    if n_dims == 0:
        x = np.array([1, 2, -7, 0.5, 3], dtype)
        np.testing.assert_array_equal(akmv.matvec(some, some, x, bandwidth=1.0), np.full(5, -0.5))
    for m, n in itertools.product((0, 5), (0, 5)):
        y, info = akmv.matvec(some[:m], some[:n], np.ones(n), bandwidth=1.0, return_info=True)
        assert np.isfinite(y).all()
        assert info.pairs == m * n
        assert str(info)


@pytest.mark.parametrize("d", [0, 1, 2, 3, 5, 10, 50])
def test_04_small_sizes_on_each_axis(d: int, dtype: Any) -> None:
    """4. Sizes 0,1,2,3,5,10,50 on each axis."""
    sizes = [0, 1, 2, 3, 5, 10, 50]
    rng = np.random.default_rng(d)
    for m, n, r in itertools.product(sizes, sizes, [0, 1, 2, 5, 10]):
        queries, keys, x = (rng.standard_normal(s).astype(dtype) for s in ((m, d), (n, d), (n, r)))
        y = akmv.matvec(queries, keys, x, bandwidth=2.0)
        assert y.shape == (m, r)
        exact = gaussian_kernel(queries, keys, 2.0) @ x
        np.testing.assert_allclose(y, exact, atol=100 * (1 + n) * np.finfo(dtype).eps)


def test_05_zero_x_gives_exactly_zero(dtype: Any) -> None:
    """5. x=0 -> exactly 0."""
    a = {k: v.astype(dtype) for k, v in clean().items()}
    a["x"][:] = 0
    assert (times(a) == 0).all()
    assert (akmv.GaussianKernel(a["queries"], bandwidth=1.0) @ a["x"] == 0).all()


@pytest.mark.parametrize("eps", [-1, np.nan, np.inf, -np.inf, -1e-300])
def test_06_impossible_eps(eps: float) -> None:
    """6. eps in {-1, NaN, inf}: error that says the rule and the value."""
    with pytest.raises(ValueError, match=r"eps must be a finite number >= 0, got "):
        times(clean(), eps=eps)
    with pytest.raises(ValueError, match=r"eps must be a finite number >= 0, got "):
        akmv.GaussianKernel(clean()["queries"], bandwidth=1.0, eps=eps)


def test_06_eps_zero_is_exact_and_silent() -> None:
    """6. eps = 0: exact path."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(times(clean(), eps=0), times(clean()))


@pytest.mark.parametrize(("kind", "eps"), [("f4", 1e-300), ("f8", 1e-300), ("f4", 1e-8)])
def test_06_eps_below_the_rounding_floor(kind: str, eps: float) -> None:
    """6. AccuracyWarning when eps is below the rounding floor; the best effort is returned."""
    a = {k: v.astype(kind) for k, v in clean().items()}
    with pytest.warns(
        akmv.AccuracyWarning, match=f"eps={eps:g} is below the rounding of float"
    ) as seen:
        y = times(a, eps=eps)
    assert len(seen) == 1
    np.testing.assert_array_equal(y, times(a))


P = np.zeros((3, 2))
WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "object",
        {"queries": P.astype(object)},
        TypeError,
        "queries must hold real numbers, got dtype object",
    ),
    (
        "string",
        {"keys": np.full((3, 2), "a")},
        TypeError,
        "keys must hold real numbers, got dtype <U1",
    ),
    (
        "complex",
        {"x": np.ones(3) * 1j},
        TypeError,
        "x must hold real numbers, got dtype complex128",
    ),
    (
        "bool",
        {"queries": P.astype(bool)},
        TypeError,
        "queries must hold real numbers, got dtype bool",
    ),
    ("none", {"queries": None}, TypeError, "queries must hold real numbers, got dtype object"),
    (
        "dates",
        {"x": np.zeros(3, "M8[s]")},
        TypeError,
        "x must hold real numbers, got dtype datetime64",
    ),
    (
        "1-d points",
        {"queries": P[0]},
        ValueError,
        r"queries must have two dimensions.*got shape \(2,\)",
    ),
    (
        "3-d points",
        {"keys": P[None]},
        ValueError,
        r"keys must have two dimensions.*got shape \(1, 3, 2\)",
    ),
    ("dims", {"keys": P[:, :1]}, ValueError, "keys must have 2 columns to match queries, got 1"),
    (
        "length",
        {"x": np.ones(4)},
        ValueError,
        r"x must have one entry per key, shape \(3,\).*\(4,\)",
    ),
    (
        "row x",
        {"x": np.ones((1, 3))},
        ValueError,
        r"x must have one entry per key.*got shape \(1, 3\)",
    ),
    ("3-d x", {"x": np.ones((3, 1, 1))}, ValueError, r"x must have one entry per key.*\(3, 1, 1\)"),
    ("scalar x", {"x": 2.0}, ValueError, r"x must have one entry per key.*got shape \(\)"),
    (
        "bandwidth 0",
        {"bandwidth": 0},
        ValueError,
        "bandwidth must be a positive finite number, got 0",
    ),
    (
        "bandwidth -1",
        {"bandwidth": -1.0},
        ValueError,
        "bandwidth must be a positive finite number, got -1.0",
    ),
    (
        "bandwidth nan",
        {"bandwidth": np.nan},
        ValueError,
        "bandwidth must be a positive finite .*nan",
    ),
    (
        "bandwidth inf",
        {"bandwidth": np.inf},
        ValueError,
        "bandwidth must be a positive finite .*inf",
    ),
    ("bandwidth str", {"bandwidth": "1"}, TypeError, "bandwidth must be a number, got str"),
    (
        "bandwidth list",
        {"bandwidth": [1.0]},
        ValueError,
        "one for each of the 2 coordinates, got shape .1,.",
    ),
    ("bandwidth bool", {"bandwidth": True}, TypeError, "bandwidth must be a number, got bool"),
    ("bandwidth none", {"bandwidth": None}, TypeError, "bandwidth must be a number, got NoneType"),
    ("bandwidth j", {"bandwidth": 1j}, TypeError, "bandwidth must be a number, got complex"),
    ("delta 0", {"delta": 0.0}, ValueError, "delta must lie strictly between 0 and 1, got 0.0"),
    ("delta 1", {"delta": 1}, ValueError, "delta must lie strictly between 0 and 1, got 1"),
    (
        "delta nan",
        {"delta": np.nan},
        ValueError,
        "delta must lie strictly between 0 and 1, got nan",
    ),
    ("eps str", {"eps": "small"}, TypeError, "eps must be a number, got str"),
    (
        "method",
        {"method": "magic"},
        ValueError,
        "method must be one of 'auto', 'exact'.*got 'magic'",
    ),
    ("method kind", {"method": 3}, TypeError, "method must be a string, got int"),
    ("threads 0", {"n_threads": 0}, ValueError, "n_threads must be at least 1, got 0"),
    ("threads -2", {"n_threads": -2}, ValueError, "n_threads must be at least 1, got -2"),
    ("threads 1.5", {"n_threads": 1.5}, TypeError, "n_threads must be an integer, got float"),
    ("threads bool", {"n_threads": True}, TypeError, "n_threads must be an integer, got bool"),
    ("rng", {"rng": "seed"}, TypeError, "rng must be an integer, got str"),
    ("rng -1", {"rng": -1}, ValueError, "rng must be None, a Generator or an integer >= 0, got -1"),
]


@pytest.mark.parametrize(
    ("change", "kind", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_07_mistakes_are_named(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    """7. Shape, dtype (object, str, complex, bool) mistakes: TypeError/ValueError with the rule."""
    good = {"queries": P, "keys": P, "x": np.ones(3), "bandwidth": 1.0}
    with pytest.raises(kind, match=message):
        akmv.matvec(**(good | change))


@pytest.mark.alone
def test_07_mistakes_are_found_at_once() -> None:
    """7. ... in <10 ms, nothing allocated: 256 MB of points and a mistake elsewhere."""
    big = np.zeros((1_000_000, 64), np.float32)
    small = np.zeros((10, 63), np.float32)
    x = np.ones(1_000_000, np.float32)
    mistakes: list[Callable[[], object]] = [
        lambda: akmv.matvec(big, small, x, bandwidth=1.0),
        lambda: akmv.matvec(big, big, x[:-1], bandwidth=1.0),
        lambda: akmv.matvec(big, big, x, bandwidth=-1.0),
        lambda: akmv.matvec(big, big, x, bandwidth=1.0, eps=-1.0),
        lambda: akmv.matvec(big, big, x, bandwidth=1.0, method="none"),
        lambda: akmv.matvec(big, big.view(np.complex64), x, bandwidth=1.0),
        lambda: akmv.matvec(big.view(np.bool_), big, x, bandwidth=1.0),
        lambda: akmv.GaussianKernel(big, bandwidth=0.0),
        lambda: akmv.row_sums(big, big, bandwidth=1.0, n_threads=0),
    ]
    for mistake in mistakes:
        spent = []
        for _ in range(3):
            tracemalloc.start()
            start = time.perf_counter()
            with pytest.raises((ValueError, TypeError)):
                mistake()
            spent.append(time.perf_counter() - start)
            allocated = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert allocated < 1e6
        assert min(spent) < 0.01


@pytest.mark.parametrize("which", ["keys", "queries", "both", "duplicates"])
@pytest.mark.parametrize("offset", [0.0, 5.0, 1e4])
def test_08_identical_points(which: str, offset: float, dtype: Any) -> None:
    """8. All keys identical; all queries identical; duplicates x1000."""
    rng = np.random.default_rng(1)
    queries, keys = (
        rng.standard_normal((50, 5)).astype(dtype) + dtype.type(offset) for _ in range(2)
    )
    if which in ("keys", "both"):
        keys[:] = keys[0]
    if which in ("queries", "both"):
        queries[:] = keys[0] if which == "both" else queries[0]
    if which == "duplicates":
        keys = np.repeat(keys, 1000, axis=0)
    x = rng.standard_normal(len(keys)).astype(dtype)
    y = akmv.matvec(queries, keys, x, bandwidth=2.0)
    exact = gaussian_kernel(queries, keys, 2.0) @ x.astype(np.float64)
    scale = gaussian_kernel(queries, keys, 2.0) @ np.abs(x)
    assert (np.abs(y - exact) <= 1000 * np.finfo(dtype).eps * scale).all()
    if which in ("queries", "both"):
        assert (y == y[0]).all()
    if which == "both":
        np.testing.assert_array_equal(
            akmv.row_sums(queries, keys, bandwidth=2.0), np.full(50, 50.0)
        )


def test_09_one_key_of_norm_a_million(dtype: Any) -> None:
    """9. One key of norm 1e6 among norm 1."""
    rng = np.random.default_rng(2)
    keys = (rng.standard_normal((200, 6)) / 3).astype(dtype)
    keys[50] *= dtype.type(1e6 / np.linalg.norm(keys[50]))
    y = akmv.matvec(keys, keys, np.ones(200, dtype), bandwidth=0.5)
    exact = gaussian_kernel(keys, keys, 0.5).sum(axis=1)
    np.testing.assert_allclose(y, exact, rtol=1000 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("offset", "allowed"), [(0, 1e-5), (1, 1e-5), (10, 1e-5), (100, 1e-3), (1000, 1e-3)]
)
def test_10_offsets(offset: float, allowed: float) -> None:
    """10. Offset 0,1,10,100,1000: error <=1e-3||x|| f32 at 1000, 1e-5 at 10."""
    rng = np.random.default_rng(3)
    points = (rng.standard_normal((300, 16)) / 5 + offset).astype(np.float32)
    x = rng.standard_normal(300).astype(np.float32)
    y = akmv.matvec(points, None, x, bandwidth=1.0)
    exact = gaussian_kernel(points, points, 1.0) @ x.astype(np.float64)
    assert np.linalg.norm(y - exact) <= allowed * np.linalg.norm(x)


@pytest.mark.parametrize(("kind", "norm"), [("f4", 1e19), ("f8", 1e200)])
def test_11_norms_whose_square_overflows(kind: str, norm: float) -> None:
    """11. Norms 1e19 f32 (square overflows): result 0 or documented error, never NaN."""
    rng = np.random.default_rng(4)
    points = (norm * rng.standard_normal((40, 5))).astype(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = akmv.matvec(points, None, np.arange(40.0), bandwidth=1.0)
        logs = akmv.log_row_sums(points, bandwidth=1.0)
    np.testing.assert_array_equal(y, np.arange(40.0))  # each sees itself only
    np.testing.assert_array_equal(logs, np.zeros(40))


def test_12_denormals() -> None:
    """12. Denormals 1e-310 in inputs: as good as zero coordinates, kept in x."""
    points = np.full((3, 2), 1e-310)
    y = akmv.matvec(points, points, np.full(3, 1e-310), bandwidth=1.0)
    np.testing.assert_allclose(y, np.full(3, 3e-310), rtol=1e-13)


def test_12_floating_point_environment() -> None:
    """12. FP environment unchanged after a call: 1e-310 * 0.5 is 5e-311, not 0."""
    times(clean(), n_threads=2)
    assert np.float64(1e-310) * 0.5 == 5e-311


def test_13_underflow(dtype: Any) -> None:
    """13. Gaussian underflow: all exponents >104 f32 (>746 f64): 0; log path finite to -1e6."""
    limit = 104 if dtype == np.float32 else 746
    queries = np.zeros((5, 1), dtype)
    keys = np.sqrt(2 * np.linspace(limit, 1e6, 40)).astype(dtype)[:, None]
    assert (akmv.matvec(queries, keys, np.ones(40, dtype), bandwidth=1.0) == 0).all()
    for j in (0, 20, 39):
        logs = akmv.log_row_sums(queries, keys[j:], bandwidth=1.0)
        np.testing.assert_allclose(
            logs, -(float(keys[j, 0]) ** 2) / 2, rtol=4 * np.finfo(dtype).eps
        )


def test_14_softmax_weights() -> None:
    """14. Softmax weights: ||k|| to 60 at d=64 (log weight 225; f32 overflows above 88.7)."""
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((400, 64))
    keys *= np.linspace(1, 60, 400)[:, None] / np.linalg.norm(keys, axis=1, keepdims=True)
    queries = keys[-30:] / 2
    keys, queries = keys.astype(np.float32), queries.astype(np.float32)
    values = rng.standard_normal((400, 8)).astype(np.float32)
    args = {"query_shift": np.zeros(30), "key_shift": np.zeros(400), "slope": 0.125, "online": True}
    got = Compiled().tile_product(queries, keys, values, **args)
    want = reference.tile_product(queries, keys, values, **args)
    assert want.row_max.max() > 200
    attention = got.out / got.totals[:, None]
    exact = want.out / want.totals[:, None]
    # Exponents of 225 in float32 are off by 64 units of 225 at most: 9e-4, twice.
    assert np.abs(attention - exact).max() <= 2e-3 * np.abs(values).max()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "uint8", "int16"])
def test_15_narrow_types(kind: str) -> None:
    """15. fp16, bf16, int8 input: upcast to f32, stated."""
    rng = np.random.default_rng(6)
    wide = rng.integers(0, 5, (3, 20, 4)).astype(np.float32)
    narrow = torch.tensor(wide).to(getattr(torch, kind))
    if kind != "bfloat16":
        narrow = narrow.numpy()
    y, info = akmv.matvec(narrow[0], narrow[1], narrow[2], bandwidth=2.0, return_info=True)
    assert y.dtype == np.float32
    assert info.plan.numbers["dtype"] == "float32"
    np.testing.assert_array_equal(y, akmv.matvec(*wide, bandwidth=2.0))


def test_16_layouts(tmp_path: Path) -> None:
    """16. Fortran, strided, negative stride, byte-swapped, read-only, unaligned, memmap: bits."""
    a = clean()
    plain = times(a)
    np.save(tmp_path / "a.npy", a["keys"])
    frozen = a["keys"].copy()
    frozen.flags.writeable = False
    shifted = np.zeros(a["keys"].nbytes + 3, np.uint8)[3:].view(np.float64).reshape(30, 4)
    shifted[...] = a["keys"]
    for keys in (
        np.asfortranarray(a["keys"]),
        np.repeat(a["keys"], 2, axis=0)[::2],
        a["keys"][::-1].copy()[::-1],
        a["keys"].astype(">f8"),
        a["keys"].astype("<f8"),
        frozen,
        shifted,
        np.load(tmp_path / "a.npy", mmap_mode="r"),
    ):
        np.testing.assert_array_equal(times(a | {"keys": keys}), plain)


def digest(arrays: dict[str, np.ndarray]) -> list[str]:
    return [hashlib.sha256(a.tobytes()).hexdigest() for a in arrays.values()]


def test_17_inputs_are_never_modified(dtype: Any) -> None:
    """17. Inputs never modified (checksum)."""
    a = {k: v.astype(dtype) for k, v in clean().items()}
    a["keys"][3] = 1e5  # so that both forms of the distance run
    near = {k: v.astype(dtype) for k, v in clean().items()}
    for arrays in (a, near):
        weights = np.abs(arrays["x"][:, 0])
        before = digest(arrays | {"weights": weights})
        times(arrays, return_info=False)
        akmv.matvec(arrays["queries"], arrays["keys"], arrays["x"], bandwidth=1.0, return_info=True)
        akmv.row_sums(arrays["queries"], arrays["keys"], bandwidth=1.0)
        akmv.log_row_sums(arrays["queries"], arrays["keys"], bandwidth=1.0, weights=weights)
        K = akmv.GaussianKernel(arrays["queries"], arrays["keys"], bandwidth=1.0)
        _ = K @ arrays["x"], K.T @ arrays["x"], K.info
        assert digest(arrays | {"weights": weights}) == before
