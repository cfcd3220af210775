"""``matvec``, ``row_sums`` and ``log_row_sums``: the contract, the bits, the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

import approxkmv as akmv
from approxkmv import _check
from approxkmv.datasets import clusters
from approxkmv.kernel.matrix import gaussian_kernel

# Chunks of keys are cut by the number of elements; at d=3 and one column one has 209,664 keys.
KEYS_IN_SEVERAL_CHUNKS = 500_000


def points(n: int, d: int, dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def allowed(dtype: Any, n: int) -> float:
    """Rounding of the exponents (at most about 30 units here) and of a sum of n terms."""
    return (100 + n) * float(np.finfo(dtype).eps)


@pytest.mark.parametrize("d", [1, 2, 3, 17, 64, 100, 784])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 300), (300, 1), (97, 130), (40, 513)])
def test_the_contract(dtype: Any, m: int, n: int, d: int) -> None:
    """|Kx - y| <= eps |x| at the precision of the type, m != n, one and several columns.

    Row by row: a sum of terms K_ij x_j with relative error `allowed` each.
    """
    queries, keys = points(m, d, dtype), points(n, d, dtype, 1)
    bandwidth = math.sqrt(d)
    K = gaussian_kernel(queries, keys, bandwidth)
    for shape in [(n,), (n, 1), (n, 3), (n, 20)]:
        x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
        y = akmv.matvec(queries, keys, x, bandwidth=bandwidth)
        assert y.shape == (m, *shape[1:])
        assert y.dtype == dtype
        exact = K @ x.astype(np.float64)
        assert (np.abs(y - exact) <= allowed(dtype, n) * (K @ np.abs(x))).all()


def test_dimension_4096(dtype: Any) -> None:
    queries, keys = points(20, 4096, dtype), points(70, 4096, dtype, 1)
    x = points(70, 1, dtype, 2)[:, 0]
    K = gaussian_kernel(queries, keys, 64.0)
    y = akmv.matvec(queries, keys, x, bandwidth=64.0)
    assert (np.abs(y - K @ x) <= 10 * allowed(dtype, 70) * (K @ np.abs(x))).all()


@pytest.mark.parametrize("kind", ["ones", "gauss", "t2", "one-hot", "zero", "alternating", "top"])
def test_every_kind_of_x(dtype: Any, kind: str) -> None:
    """Signs, heavy tails, a single entry, and the singular vector that K stretches most."""
    queries, keys = points(120, 6, dtype), points(150, 6, dtype, 1)
    K = gaussian_kernel(queries, keys, 2.0)
    rng = np.random.default_rng(3)
    x = {
        "ones": np.ones(150),
        "gauss": rng.standard_normal(150),
        "t2": rng.standard_t(2, 150),
        "one-hot": np.eye(150)[77],
        "zero": np.zeros(150),
        "alternating": (-1.0) ** np.arange(150),
        "top": np.linalg.svd(K)[2][0],
    }[kind].astype(dtype)
    y, info = akmv.matvec(queries, keys, x, bandwidth=2.0, return_info=True)
    norm = float(np.linalg.norm(x))
    error = float(np.linalg.norm(y - K @ x.astype(np.float64)))
    assert error <= allowed(dtype, 150) * np.linalg.norm(K @ np.abs(x))
    assert error <= info.error_bound * norm
    if kind == "zero":
        assert (y == 0).all()
        assert info.error_estimate == info.product_norm == 0
    else:
        assert info.product_norm == pytest.approx(np.linalg.norm(K @ x) / norm, rel=1e-4)


def test_keys_none_means_the_queries(dtype: Any) -> None:
    p, x = points(80, 4, dtype), points(80, 2, dtype, 1)
    expected = akmv.matvec(p, p.copy(), x, bandwidth=1.0)
    np.testing.assert_array_equal(akmv.matvec(p, None, x, bandwidth=1.0), expected)
    np.testing.assert_array_equal(akmv.matvec(p, p, x, bandwidth=1.0), expected)


def test_row_sums(dtype: Any) -> None:
    queries, keys = points(90, 5, dtype), points(400, 5, dtype, 1)
    sums = akmv.row_sums(queries, keys, bandwidth=1.5)
    exact = gaussian_kernel(queries, keys, 1.5).sum(axis=1)
    assert sums.dtype == dtype
    np.testing.assert_allclose(sums, exact, rtol=allowed(dtype, 400))
    np.testing.assert_array_equal(
        akmv.row_sums(keys, bandwidth=1.5), akmv.row_sums(keys, keys, bandwidth=1.5)
    )


@pytest.mark.parametrize("apart", [0.0, 3.0, 20.0, 200.0, 1430.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_log_row_sums(dtype: Any, apart: float, weighted: bool) -> None:
    """Against SciPy's logsumexp in double precision, down to logarithms of -1e6.

    Allowed: a few units of the logarithm's own size, and the error of a sum.
    """
    queries, keys = points(40, 4, dtype), points(300, 4, dtype, 1)
    queries[:, 0] += dtype.type(apart)
    weights = None
    if weighted:
        weights = np.random.default_rng(2).uniform(0, 1e3, 300).astype(dtype)
        weights[::3] = 0
    got = akmv.log_row_sums(queries, keys, bandwidth=1.0, weights=weights)
    q, k = queries.astype(np.float64), keys.astype(np.float64)
    exact = logsumexp(-0.5 * ((q[:, None] - k) ** 2).sum(axis=-1), axis=1, b=weights)
    assert got.dtype == dtype
    assert np.isfinite(got).all()
    assert apart < 1000 or exact.min() < -1e6
    assert (np.abs(got - exact) <= allowed(dtype, 0) * np.abs(exact) + allowed(dtype, 300)).all()


def test_log_row_sums_agree_with_row_sums(dtype: Any) -> None:
    p = points(200, 3, dtype)
    np.testing.assert_allclose(
        akmv.log_row_sums(p, bandwidth=0.5),
        np.log(akmv.row_sums(p, bandwidth=0.5)),
        atol=allowed(dtype, 200),
    )


def test_log_of_nothing_is_minus_infinity(dtype: Any) -> None:
    """No keys, or only keys of weight 0."""
    p = points(5, 3, dtype)
    expected = np.full(5, -np.inf, dtype)
    np.testing.assert_array_equal(akmv.log_row_sums(p, p[:0], bandwidth=1.0), expected)
    np.testing.assert_array_equal(
        akmv.log_row_sums(p, p, bandwidth=1.0, weights=np.zeros(5)), expected
    )


def test_weights_are_checked() -> None:
    p = points(5, 3, np.float64)
    with pytest.raises(ValueError, match=r"weights must not be negative, but weights\[2\] is -1"):
        akmv.log_row_sums(p, p, bandwidth=1.0, weights=[1, 1, -1, 1, 1])
    with pytest.raises(ValueError, match=r"weights must have one entry per key.*\(4,\)"):
        akmv.log_row_sums(p, p, bandwidth=1.0, weights=np.ones(4))
    with pytest.raises(ValueError, match=r"weights must have shape \(5,\)"):
        akmv.log_row_sums(p, p, bandwidth=1.0, weights=np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"weights must be finite, but weights\[0\] is nan"):
        akmv.log_row_sums(p, p, bandwidth=1.0, weights=[np.nan, 1, 1, 1, 1])


def unaligned(a: np.ndarray) -> np.ndarray:
    """A copy that starts one byte into its memory."""
    memory = np.zeros(a.nbytes + 1, np.uint8)
    b = memory[1:].view(a.dtype).reshape(a.shape)
    b[...] = a
    assert not b.flags.aligned
    return b


def on_disk(a: np.ndarray, path: Path) -> np.ndarray:
    np.save(path, a)
    return np.load(path, mmap_mode="r")


def test_compiled_loops_get_aligned_numbers(dtype: Any) -> None:
    """Reading others is undefined in C++, though this machine can."""
    a = unaligned(points(5, 3, dtype))
    for checked in (
        _check.points(a, "keys"),
        *_check.point_pair(a, None),
        _check.vector(a, 5),
        _check.vector(unaligned(points(5, 1, dtype)[:, 0]), 5),
        _check.matrices(a, "query"),
        _check.mask(a),
    ):
        assert checked.flags.aligned


LAYOUTS = ["fortran", "strided", "negative", "swapped", "read-only", "unaligned", "memmap"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_does_not_change_the_bits(tmp_path: Path, dtype: Any, layout: str) -> None:
    """Fortran order, strides, byte order, alignment, read-only and mapped files."""

    def laid_out(a: np.ndarray, name: str) -> np.ndarray:
        if layout == "fortran":
            return np.asfortranarray(a)
        if layout == "strided":
            return np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3]
        if layout == "negative":
            return a[::-1, ::-1].copy()[::-1, ::-1]
        if layout == "swapped":
            return a.astype(a.dtype.newbyteorder())
        if layout == "read-only":
            b = a.copy()
            b.flags.writeable = False
            return b
        return unaligned(a) if layout == "unaligned" else on_disk(a, tmp_path / f"{name}.npy")

    plain = points(70, 5, dtype), points(110, 5, dtype, 1), points(110, 7, dtype, 2)
    other = [laid_out(a, str(i)) for i, a in enumerate(plain)]
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_array_equal(a, b)
    for columns in (slice(0, 7), slice(0, 1), 3):
        y = akmv.matvec(*plain[:2], plain[2][:, columns], bandwidth=1.3)
        np.testing.assert_array_equal(
            akmv.matvec(*other[:2], other[2][:, columns], bandwidth=1.3), y
        )
        assert y.flags.writeable
    for function in (akmv.row_sums, akmv.log_row_sums):
        np.testing.assert_array_equal(
            function(*other[:2], bandwidth=1.3), function(*plain[:2], bandwidth=1.3)
        )


@pytest.mark.parametrize("batch", [1, 7, 19, 20, 21])
@pytest.mark.parametrize("columns", [1, 3, 20])
def test_a_row_does_not_depend_on_its_batch(dtype: Any, batch: int, columns: int) -> None:
    """1, 7, 19, 20, 21 and 1,000 queries: bitwise equal rows."""
    queries, keys, x = (
        points(1000, 8, dtype),
        points(700, 8, dtype, 1),
        points(700, columns, dtype, 2),
    )
    whole = akmv.matvec(queries, keys, x, bandwidth=2.0)
    logs = akmv.log_row_sums(queries, keys, bandwidth=2.0)
    for first in range(0, 1000, 20 * batch):
        part = queries[first : first + batch]
        rows = slice(first, first + batch)
        np.testing.assert_array_equal(akmv.matvec(part, keys, x, bandwidth=2.0), whole[rows])
        np.testing.assert_array_equal(akmv.log_row_sums(part, keys, bandwidth=2.0), logs[rows])


def test_a_row_does_not_depend_on_a_far_query(dtype: Any) -> None:
    """One query of norm 1e6 in the batch, or 1e18, leaves the bits of the others alone."""
    queries, keys, x = points(50, 8, dtype), points(70, 8, dtype, 1), points(70, 1, dtype, 2)
    alone = akmv.matvec(queries, keys, x, bandwidth=2.0)
    for norm in (1e6, 1e18):
        far = np.vstack([queries, np.full((1, 8), norm, dtype)])
        np.testing.assert_array_equal(akmv.matvec(far, keys, x, bandwidth=2.0)[:50], alone)


@pytest.mark.parametrize(
    ("m", "n", "d"), [(5, KEYS_IN_SEVERAL_CHUNKS, 3), (3000, 900, 3), (480, 24_000, 300)]
)
@pytest.mark.parametrize("columns", [1, 6])
def test_bits_do_not_depend_on_the_number_of_threads(
    dtype: Any, m: int, n: int, d: int, columns: int
) -> None:
    """1, 2, 3 and 7 threads: few queries and many keys, many queries and few keys, and between.

    In the last case one thread takes blocks of queries in turn and two take chunks of keys side by
    side; so does a batch of three queries.
    """
    queries, keys, x = points(m, d, dtype), points(n, d, dtype, 1), points(n, columns, dtype, 2)
    bandwidth = math.sqrt(d)
    first = akmv.matvec(queries, keys, x, bandwidth=bandwidth, n_threads=1)
    logs = akmv.log_row_sums(queries, keys, bandwidth=bandwidth, n_threads=1)
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(
            akmv.matvec(queries, keys, x, bandwidth=bandwidth, n_threads=n_threads), first
        )
        np.testing.assert_array_equal(
            akmv.log_row_sums(queries, keys, bandwidth=bandwidth, n_threads=n_threads), logs
        )
    few = akmv.matvec(queries[:3], keys, x, bandwidth=bandwidth, n_threads=1)
    np.testing.assert_array_equal(few, first[:3])


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0, 2.0**100, 2.0**-100])
def test_powers_of_two_come_out_to_the_bit(dtype: Any, factor: float) -> None:
    """K(2x) = 2 Kx, also for factors that would leave the range of float32 on the way."""
    p, x = points(90, 5, dtype), points(90, 3, dtype, 1)
    scaled = akmv.matvec(p, p, x * dtype.type(factor), bandwidth=1.0)
    np.testing.assert_array_equal(scaled, akmv.matvec(p, p, x, bandwidth=1.0) * dtype.type(factor))


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 30),
    n=st.integers(1, 60),
    d=st.integers(0, 10),
    log_bandwidth=st.floats(-3, 6),
)
def test_exact_for_anything(seed: int, m: int, n: int, d: int, log_bandwidth: float) -> None:
    """Double precision agrees with the definition, is additive, and commutes with permutations."""
    rng = np.random.default_rng(seed)
    queries, keys, x, z = (rng.standard_normal(s) for s in ((m, d), (n, d), (n,), (n,)))
    bandwidth = math.exp(log_bandwidth)

    def times(v: np.ndarray, order: Any = slice(None)) -> np.ndarray:
        return np.asarray(akmv.matvec(queries, keys[order], v[order], bandwidth=bandwidth))

    K = gaussian_kernel(queries, keys, bandwidth)
    # Exponents up to 745 count, and their relative error is a few units; inner products of keys
    # at R bandwidths add 1e-9 at most.
    rounding = 1e-9 * (K @ (np.abs(x) + np.abs(z))) + 1e-300
    assert (np.abs(times(x) - K @ x) <= rounding).all()
    assert (np.abs(times(x + z) - times(x) - times(z)) <= rounding).all()
    assert (np.abs(times(x, rng.permutation(n)) - times(x)) <= rounding).all()


def test_permuting_keys_and_queries(dtype: Any) -> None:
    """Keys: within rounding. Queries: the same bits in the new order."""
    queries, keys, x = (
        points(60, 4, dtype),
        points(3000, 4, dtype, 1),
        points(3000, 1, dtype, 2)[:, 0],
    )
    y = akmv.matvec(queries, keys, x, bandwidth=1.0)
    rng = np.random.default_rng(3)
    p = rng.permutation(3000)
    total = akmv.matvec(queries, keys, np.abs(x), bandwidth=1.0)
    moved = akmv.matvec(queries, keys[p], x[p], bandwidth=1.0)
    assert (np.abs(moved - y) <= allowed(dtype, 300) * total).all()
    r = rng.permutation(60)
    np.testing.assert_array_equal(akmv.matvec(queries[r], keys, x, bandwidth=1.0), y[r])


@pytest.mark.parametrize(
    ("q", "k", "x", "expected"),
    [
        ("f4", "f4", "f4", "f4"),
        ("f4", "f8", "f4", "f8"),
        ("f8", "f4", "f4", "f8"),
        ("f4", "f4", "f8", "f8"),
        ("f2", "f2", "f2", "f4"),
        ("i1", "f4", "u1", "f4"),
        ("i8", "i8", "i8", "f8"),
        ("f4", "f4", "i8", "f8"),
    ],
)
def test_mixed_types(q: str, k: str, x: str, expected: str) -> None:
    """The result has the common type; what is computed is as good as the points' type."""
    rng = np.random.default_rng(0)
    queries, keys, vector = (
        rng.integers(-3, 4, s).astype(t) for s, t in (((20, 3), q), ((30, 3), k), (30, x))
    )
    y = akmv.matvec(queries, keys, vector, bandwidth=2.0)
    assert y.dtype == expected
    exact = gaussian_kernel(queries, keys, 2.0) @ vector.astype(np.float64)
    computed_in = np.float64 if {"f8", "i8"} & {q, k} else np.float32
    np.testing.assert_allclose(y, exact, atol=allowed(computed_in, 30) * 50)


def test_lists_are_arrays_too() -> None:
    expected = math.exp(-0.5) * 2
    assert akmv.matvec([[0.0]], [[1.0]], [2.0], bandwidth=1)[0] == pytest.approx(expected)
    assert akmv.matvec([[0]], [[1]], [2], bandwidth=1)[0] == pytest.approx(expected)


CASES = {
    "offset": (np.float32, 100.0, 1.0, 1.0),
    "plain": (np.float32, 0.0, 1.0, 1.0),
    "wide": (np.float32, 0.0, 12.0, 1.0),
    "far": (np.float32, 0.0, 30.0, 8.0),
    "underflow": (np.float32, 0.0, 1.0, 0.12),
    "double": (np.float64, 0.0, 1.0, 1.0),
    "double wide": (np.float64, 0.0, 300.0, 1.0),
    "double offset": (np.float64, 1e6, 1.0, 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_report_of_the_error(name: str) -> None:
    """error_bound is above the true error always; error_estimate is near it.

    The estimate is a root mean square over 16 of 300 rows. The rows' errors are of one size here,
    so a factor 4 either way is many standard errors. Below 1e-18 the true error is not known.
    """
    dtype, offset, spread, bandwidth = CASES[name]
    rng = np.random.default_rng(5)
    queries = (rng.standard_normal((300, 4)) * spread + offset).astype(dtype)
    keys = np.concatenate(
        [queries, (rng.standard_normal((200, 4)) * spread + offset).astype(dtype)]
    )
    x = rng.standard_normal(500).astype(dtype)
    y, info = akmv.matvec(queries, keys, x, bandwidth=bandwidth, rng=0, return_info=True)
    wide = np.longdouble
    squared = (((queries[:, None].astype(wide) - keys.astype(wide)) / wide(bandwidth)) ** 2).sum(
        axis=-1
    )
    exact = np.exp(-squared / 2) @ x.astype(wide)
    true = float(np.linalg.norm((y - exact).astype(np.float64)) / np.linalg.norm(x))
    assert true <= info.error_bound
    assert info.error_bound <= 0.1
    if true > 1e-18:
        assert true / 4 <= info.error_estimate <= 4 * true + 1e-15


@pytest.mark.parametrize("columns", [1, 3])
def test_report_does_not_depend_on_the_size_of_x(dtype: Any, columns: int) -> None:
    """Norms of x beyond the range of its type overflow nothing in the report."""
    p, x = points(90, 5, dtype), points(90, columns, dtype, 1)
    _, plain = akmv.matvec(p, p, x, bandwidth=1.0, rng=0, return_info=True)
    exponent = 110 if dtype == np.float32 else 900
    for factor in (2.0**exponent, 2.0**-exponent):
        _, info = akmv.matvec(p, p, x * dtype.type(factor), bandwidth=1.0, rng=0, return_info=True)
        assert info.error_estimate == pytest.approx(plain.error_estimate, rel=1e-12)
        assert info.product_norm == pytest.approx(plain.product_norm, rel=1e-12)
        assert info.error_bound == plain.error_bound


def test_bound_holds_where_every_entry_underflows() -> None:
    """Entries below the normal numbers are returned as 0: the bound counts them."""
    queries = np.zeros((4, 1), np.float32)
    keys = np.full((5, 1), 13.3, np.float32)
    y, info = akmv.matvec(queries, keys, np.ones(5, np.float32), bandwidth=1.0, return_info=True)
    exact = gaussian_kernel(queries, keys, 1.0) @ np.ones(5)
    error = float(np.linalg.norm(y - exact) / np.sqrt(5))
    assert 0 < error <= info.error_bound < 1e-30


def test_info_says_what_was_done() -> None:
    p = points(50, 3, np.float32)
    _, info = akmv.matvec(p, p[:20], np.ones(20), bandwidth=1.0, n_threads=2, return_info=True)
    assert info.method == info.plan.method == "exact"
    assert info.pairs == info.pairs_exact == 1000
    assert info.confidence == 1.0
    assert set(info.seconds) == {"prepare", "product", "report"}
    assert all(s >= 0 for s in info.seconds.values())
    assert info.plan.numbers["n_threads"] == 2
    assert info.plan.numbers["dtype"] == "float32"
    assert info.plan.numbers["form"] == "inner products"
    text = str(info)
    for word in ("exact product", "1,000 of 1,000", "error / |x|", "|y| / |x|", "at most"):
        assert word in text
    explained = info.explain()
    for name, value in info.plan.numbers.items():
        assert name in explained
        assert str(value) in explained
    with pytest.raises(AttributeError):
        info.pairs = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        info.plan.numbers["isa"] = "other"  # type: ignore[index]


def test_info_of_far_keys_names_the_other_form() -> None:
    p = points(50, 3, np.float32) * np.float32(1e4)
    _, info = akmv.matvec(p, p, np.ones(50), bandwidth=1.0, return_info=True)
    assert info.plan.numbers["form"] == "squared differences"


@pytest.mark.parametrize("n_columns", [1, 2])
def test_a_few_far_keys_are_computed_exactly(n_columns: int) -> None:
    """All others have inner products. What the far keys have of the product is counted: together
    it is more than the error allowed."""
    n, far = 32_768, np.arange(5) * 1000 + 77
    points, x = clusters(n, 64, rng=0), np.ones((n, n_columns), np.float32)
    keys, queries = points.keys.copy(), points.queries.copy()
    # Beyond the 41 bandwidths that inner products reach; five pairs of equal points, alone there.
    keys[far] += np.float32(60 * points.bandwidth) * np.arange(1, 6, dtype=np.float32)[:, None]
    queries[far] = keys[far]
    x[far] = 15.0
    assert np.linalg.norm(x[far]) > 0.15 * np.linalg.norm(x)
    exact = akmv.matvec(queries, keys, x, bandwidth=points.bandwidth, method="exact")
    y, info = akmv.matvec(
        queries, keys, x, bandwidth=points.bandwidth, eps=0.1, rng=1, return_info=True
    )
    assert info.method == "sampled"
    assert info.pairs < 0.5 * n * n
    assert info.plan.numbers["form"] == "inner products"
    assert info.plan.numbers["far_keys"] == 5
    assert np.linalg.norm(y - exact) <= 0.1 * np.linalg.norm(x)
    np.testing.assert_allclose(y[far], 15.0, rtol=1e-5)


def test_many_far_keys_leave_the_other_form() -> None:
    n, points = 32_768, clusters(32_768, 64, rng=0)
    keys = points.keys.copy()
    keys[:100] += np.float32(60 * points.bandwidth)
    _, info = akmv.matvec(
        keys, keys, np.ones(n, np.float32), bandwidth=points.bandwidth, eps=0.1, return_info=True
    )
    assert info.plan.numbers["form"] == "squared differences"
    assert "far_keys" not in info.plan.numbers


def test_the_seed_of_the_report_changes_no_bit_of_the_product() -> None:
    p, x = points(500, 3, np.float32), points(500, 1, np.float32, 1)
    answers = [akmv.matvec(p, p, x, bandwidth=1.0, rng=r, return_info=True) for r in (0, 0, 1)]
    for y, _ in answers[1:]:
        np.testing.assert_array_equal(y, answers[0][0])
    assert answers[0][1].error_estimate == answers[1][1].error_estimate
    assert answers[0][1].error_estimate != answers[2][1].error_estimate
    generator = np.random.default_rng(0)
    assert (
        akmv.matvec(p, p, x, bandwidth=1.0, rng=generator, return_info=True)[1].error_estimate
        == answers[0][1].error_estimate
    )
