"""Rounding under hostile coordinates: offsets, outliers, huge and tiny scales.

Errors are against direct differences in double precision of the very numbers the library was given,
relative to the length of x, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel


def error(queries: np.ndarray, keys: np.ndarray, x: np.ndarray, bandwidth: float) -> float:
    y = akmv.matvec(queries, keys, x, bandwidth=bandwidth)
    exact = gaussian_kernel(queries, keys, bandwidth) @ x.astype(np.float64)
    return float(np.linalg.norm(y - exact) / np.linalg.norm(x))


@pytest.mark.parametrize(
    ("offset", "allowed"), [(0, 1e-5), (1, 1e-5), (10, 1e-5), (100, 1e-4), (1000, 1e-3)]
)
@pytest.mark.parametrize("sign", ["ones", "gauss"])
def test_offsets_in_float32(offset: float, allowed: float, sign: str) -> None:
    """<= 1e-5 |x| at offset 10 and <= 1e-3 |x| at 1000, at distances about 1 and d=64."""
    rng = np.random.default_rng(0)
    queries, keys = (
        (rng.standard_normal((n, 64)) / 11 + offset).astype(np.float32) for n in (200, 300)
    )
    x = np.ones(300, np.float32) if sign == "ones" else rng.standard_normal(300).astype(np.float32)
    assert error(queries, keys, x, 1.0) <= allowed


@pytest.mark.parametrize("offset", [0, 1, 10, 100, 1000])
def test_offsets_in_float64(offset: float) -> None:
    rng = np.random.default_rng(0)
    queries, keys = (rng.standard_normal((n, 64)) / 11 + offset for n in (200, 300))
    assert error(queries, keys, rng.standard_normal(300), 1.0) <= 1e-12


@pytest.mark.parametrize("apart", [1e2, 1e3, 1e4, 1e6])
def test_two_clusters_far_apart(dtype: Any, apart: float) -> None:
    """Neither cluster is near the origin; distances within each are still right.

    Allowed: an exponent may be off by 2e-4 (float32) or 1e-9 (float64), where inner products are
    still used, or by d + 4 units of its size, at most about 10 here; sums of 200 terms add a unit
    each; and the norm of K is at most 200.
    """
    rng = np.random.default_rng(1)
    points = rng.standard_normal((400, 16)) / 4
    points[200:] += apart
    points = points.astype(dtype)
    x = rng.standard_normal(400).astype(dtype)
    rounding = (20 * 10 + 200) * np.finfo(dtype).eps
    allowed = 200 * max(rounding, 2e-4 if dtype == np.float32 else 1e-9)
    assert error(points, points, x, 1.0) <= allowed


def test_one_key_of_norm_a_million(dtype: Any) -> None:
    """One key of norm 1e6 among norm 1: the others keep their digits, the far one counts as 0."""
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((300, 8)) / 3
    keys[123] *= 1e6 / np.linalg.norm(keys[123])
    keys = keys.astype(dtype)
    x = rng.standard_normal(300).astype(dtype)
    assert error(keys[:100], keys, x, 1.0) <= 1e3 * np.finfo(dtype).eps
    own = akmv.matvec(keys[123:124], keys, x, bandwidth=1.0)
    assert own[0] == x[123]


@pytest.mark.parametrize("who", ["query", "key", "both"])
@pytest.mark.parametrize(
    ("dtype_name", "norm"), [("f4", 1e19), ("f4", 3e38), ("f8", 1e200), ("f8", 1e308)]
)
def test_norms_whose_square_overflows(dtype_name: str, norm: float, who: str) -> None:
    """Norms 1e19 float32 and 1e200 float64, up to the largest number: 0 there, right elsewhere."""
    rng = np.random.default_rng(3)
    queries, keys = (rng.standard_normal((n, 4)).astype(dtype_name) for n in (50, 60))
    far = np.array([norm, -norm / 2, 0, 1], dtype_name)
    if who in ("query", "both"):
        queries[7] = far
    if who in ("key", "both"):
        keys[9] = -far if who == "both" else far
    x = rng.standard_normal(60).astype(dtype_name)
    y = akmv.matvec(queries, keys, x, bandwidth=1.0)
    assert np.isfinite(y).all()
    if who != "key":
        assert y[7] == 0
    with np.errstate(over="ignore"):
        exact = gaussian_kernel(queries, keys, 1.0) @ x.astype(np.float64)
    assert np.linalg.norm(y - exact) <= 300 * np.finfo(dtype_name).eps * np.linalg.norm(x)


def test_two_equal_points_of_huge_norm_see_each_other(dtype: Any) -> None:
    """Distance 0 is distance 0 at any norm: K = 1, not NaN."""
    huge = np.full((3, 5), np.finfo(dtype).max, dtype)
    np.testing.assert_array_equal(akmv.row_sums(huge, bandwidth=1.0), np.full(3, 3, dtype))


@pytest.mark.parametrize("bandwidth", [1e-30, 1e-20, 1e-10, 1e-3, 1e3, 1e10, 1e20, 1e30])
def test_huge_and_tiny_bandwidth_with_data_of_that_size(dtype: Any, bandwidth: float) -> None:
    """Everything multiplied by one number: the kernel is the same."""
    rng = np.random.default_rng(4)
    keys = (bandwidth * rng.standard_normal((100, 6))).astype(dtype)
    x = rng.standard_normal(100).astype(dtype)
    assert error(keys, keys, x, bandwidth) <= 300 * np.finfo(dtype).eps


@pytest.mark.parametrize("bandwidth", [1e-300, 1e-30, 1e-20, 1e20, 1e30, 1e300])
def test_huge_and_tiny_bandwidth_with_ordinary_data(dtype: Any, bandwidth: float) -> None:
    """Tiny: only equal points see each other. Huge: every entry is 1."""
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((100, 6)).astype(dtype)
    keys[40] = keys[3]
    sums = akmv.row_sums(keys, bandwidth=bandwidth)
    expected = np.full(100, 100.0)
    if bandwidth < 1:
        expected = np.ones(100)
        expected[[3, 40]] = 2
    np.testing.assert_array_equal(sums, expected)


def test_denormal_coordinates_and_weights() -> None:
    """Denormals 1e-310 in points and x are numbers like any other."""
    keys = np.array([[0.0], [1e-310], [3e-310]])
    x = np.array([1e-310, 2e-310, -5e-310])
    y = akmv.matvec(keys, keys, x, bandwidth=1e-310)
    exact = gaussian_kernel(keys / 1e-310, keys / 1e-310, 1.0) @ (x / 1e-310)
    # A denormal has an absolute precision of 2^-1074.
    np.testing.assert_allclose(y / 1e-310, exact, atol=3 * 2.0**-1074 / 1e-310 + 1e-13)
    single = akmv.matvec(np.float32([[1e-40]]), None, np.float32([3e-42]), bandwidth=1.0)
    assert single[0] == np.float32(3e-42)


def test_floating_point_state_is_unchanged(run_python: Callable[..., str]) -> None:
    """1e-310 * 0.5 is 5e-311 after import and after a call, in this thread and in a new one."""
    script = """
import threading
import numpy as np
state = np.array([1e-310]), np.float32([1e-40])
halves = lambda: (float(state[0][0] * 0.5), float((state[1] * np.float32(0.5))[0]))
before = halves()
assert before[0] == 5e-311 and before[1] > 0
import approxkmv as akmv
assert halves() == before, "after import"
points = np.random.default_rng(0).standard_normal((500, 3))
for dtype in (np.float32, np.float64):
    akmv.matvec(points.astype(dtype), None, np.ones(500, dtype), bandwidth=1e-3, n_threads=2)
    akmv.log_row_sums(points.astype(dtype), bandwidth=1e-3, n_threads=2)
assert halves() == before, "after calls"
later = []
thread = threading.Thread(target=lambda: later.append(halves()))
thread.start(); thread.join()
assert later == [before], "in a new thread"
with np.errstate(all="raise"):
    try:
        np.float64(1.0) / np.float64(0.0)
    except FloatingPointError:
        print("ok")
"""
    assert run_python(script) == "ok\n"


def test_denormal_points_with_a_smaller_bandwidth() -> None:
    """The smallest numbers there are: equal points see each other, others do not."""
    points = np.array([[0.0], [1e-310], [1e-310]])
    sums = akmv.row_sums(points, bandwidth=5e-324)
    np.testing.assert_array_equal(sums, [1, 2, 2])
