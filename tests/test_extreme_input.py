"""Extreme but legal input: right, or an error that says what is wrong with it; never NaN."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import approxkmv as akmv


@pytest.mark.parametrize("shape", [(4000,), (4000, 3), (4000, 0)])
@pytest.mark.parametrize("return_info", [False, True])
@pytest.mark.usefixtures("any_size")
def test_rtol_of_nothing(shape: tuple[int, ...], return_info: bool, dtype: Any) -> None:
    """Nothing times a matrix is exactly nothing, however small an error is asked for."""
    points = np.random.default_rng(0).standard_normal((4000, 8)).astype(dtype)
    y = akmv.matvec(
        points, None, np.zeros(shape, dtype), bandwidth=4.0, rtol=0.1, return_info=return_info
    )
    found = y[0] if return_info else y
    np.testing.assert_array_equal(found, np.zeros(shape))


POINTS = np.random.default_rng(0).standard_normal((40, 3))
ONES = np.ones(40)


@pytest.mark.parametrize("huge", [10**400, -(10**400), 10**5000], ids=["1", "-1", "long"])
@pytest.mark.parametrize("name", ["bandwidth", "eps", "rtol", "delta", "max_seconds"])
def test_a_number_beyond_all_floats(name: str, huge: int) -> None:
    """Whole numbers that no float can hold are values that do not fit, not an overflow."""
    with pytest.raises(ValueError, match=rf"{name} must be below 1.8e308, got about 2\*\*\d+\."):
        akmv.matvec(POINTS, None, ONES, **({"bandwidth": 1.0} | {name: huge}))


@pytest.mark.parametrize("threads", [2**31, 10**30, 10**5000], ids=["31", "30", "5000"])
def test_more_threads_than_can_be_counted(threads: int) -> None:
    """The rule is ours, not that of the compiled loops."""
    with pytest.raises(ValueError, match="n_threads must be at most 2147483647, got "):
        akmv.matvec(POINTS, None, ONES, bandwidth=1.0, n_threads=threads)


def ridge(points: Any, values: Any) -> Any:
    return akmv.sklearn.KernelRidge(random_state=0).fit(points, values)


Taker = Callable[[Any], Any]
# Every public function, with its array arguments one at a time.
TAKERS: dict[str, Taker] = {
    "matvec queries": lambda a: akmv.matvec(a, POINTS, ONES, bandwidth=1.0),
    "matvec keys": lambda a: akmv.matvec(POINTS, a, ONES, bandwidth=1.0),
    "matvec x": lambda a: akmv.matvec(POINTS, None, a, bandwidth=1.0),
    "row_sums queries": lambda a: akmv.row_sums(a, bandwidth=1.0),
    "log_row_sums keys": lambda a: akmv.log_row_sums(POINTS, a, bandwidth=1.0),
    "log_row_sums weights": lambda a: akmv.log_row_sums(POINTS, bandwidth=1.0, weights=a[:, 0]),
    "GaussianKernel queries": lambda a: akmv.GaussianKernel(a, bandwidth=1.0) @ ONES,
    "diagnose queries": lambda a: akmv.diagnose(a, bandwidth=1.0).c,
    "attention query": lambda a: akmv.attention(a, POINTS, POINTS),
    "attention key": lambda a: akmv.attention(POINTS, a, POINTS),
    "attention value": lambda a: akmv.attention(POINTS, POINTS, a),
    "attention attn_mask": lambda a: akmv.attention(POINTS, POINTS, POINTS, attn_mask=a[:, :1]),
    "solve b": lambda a: akmv.solve(
        akmv.GaussianKernel(POINTS, bandwidth=1.0), a, noise=1.0, rng=0
    )[0],
    "solve noise": lambda a: akmv.solve(
        akmv.GaussianKernel(POINTS, bandwidth=1.0), ONES, noise=a[:, 0], rng=0
    )[0],
    "top_eigenvalue K": lambda a: akmv.spectrum.top_eigenvalue(a, bandwidth=1.0).eigenvalue,
    "AttentionMatrix query": lambda a: akmv.spectrum.AttentionMatrix(a, POINTS) @ ONES,
    "attention_singular_values key": lambda a: akmv.spectrum.attention_singular_values(
        POINTS, a, k=2, rng=0
    ),
    "KernelDensity.fit X": lambda a: akmv.sklearn.KernelDensity().fit(a).score_samples(POINTS),
    "KernelDensity.score_samples X": lambda a: (
        akmv.sklearn.KernelDensity().fit(POINTS).score_samples(a)
    ),
    "KernelDensity.fit sample_weight": lambda a: (
        akmv.sklearn.KernelDensity().fit(POINTS, sample_weight=a[:, 0]).score_samples(POINTS)
    ),
    "KernelRidge.fit X": lambda a: akmv.sklearn.KernelRidge(random_state=0).fit(a, ONES).dual_coef_,
    "KernelRidge.fit y": lambda a: (
        akmv.sklearn.KernelRidge(random_state=0).fit(POINTS, a).dual_coef_
    ),
    "KernelRidge.predict X": lambda a: (
        akmv.sklearn.KernelRidge(random_state=0).fit(POINTS, ONES).predict(a)
    ),
    "GaussianProcessRegressor.fit X": lambda a: (
        akmv.sklearn.GaussianProcessRegressor().fit(a, ONES).alpha_
    ),
    "paper.approx_kmv queries": lambda a: akmv.paper.approx_kmv(
        a, POINTS, ONES, bandwidth=1.0, eps=0.3, rng=0
    ),
}
POSITIVE = np.abs(POINTS) + 0.1


@pytest.mark.parametrize("name", TAKERS)
def test_masked_entries_are_refused(name: str) -> None:
    """What is under a mask is no data; an array of which nothing is masked is plain."""
    masked = np.ma.masked_array(POSITIVE, mask=np.zeros(POSITIVE.shape, bool))
    np.testing.assert_array_equal(TAKERS[name](masked), TAKERS[name](POSITIVE))
    masked[2, 0] = np.ma.masked
    argument = name.split()[1]
    with pytest.raises(ValueError, match=rf"{argument} must have no masked entries, .*\[2"):
        TAKERS[name](masked)


@pytest.mark.parametrize("name", TAKERS)
def test_tensors_that_require_a_gradient_are_refused(name: str) -> None:
    """It would be lost; where no gradients are recorded there is none to lose."""
    tensor = torch.tensor(POSITIVE, requires_grad=True)
    message = rf"{name.split()[1]} must not require a gradient.*\.detach\(\)"
    with pytest.raises(ValueError, match=message):
        TAKERS[name](tensor)
    expected = TAKERS[name](POSITIVE)
    with torch.no_grad():
        np.testing.assert_array_equal(TAKERS[name](tensor), expected)
    np.testing.assert_array_equal(TAKERS[name](tensor.detach()), expected)


def attention_by_definition(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, mask: np.ndarray
) -> np.ndarray:
    """Softmax attention in double precision, with products of rational numbers: none overflows."""
    products = np.array(
        [
            [
                float(
                    Fraction(scale)
                    * sum(Fraction(a) * Fraction(b) for a, b in zip(q, k, strict=True))
                )
                for k in key.tolist()
            ]
            for q in query.tolist()
        ]
    )
    scores = products + mask
    most = scores.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # what is further below than a float can say counts nothing
        weights = np.exp(scores - most)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ value)


def check_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    scale: float = 1.0,
    mask: np.ndarray | None = None,
    tensors: bool = False,
) -> None:
    """Exact attention against the definition, up to the rounding of scores."""
    added = np.zeros((1, 1)) if mask is None else mask.astype(np.float64)
    wide = [a.astype(np.float64) for a in (query, key, value)]
    expected = attention_by_definition(*wide, scale, added)
    given = [torch.from_numpy(a) if tensors else a for a in (query, key, value)]
    bias = torch.from_numpy(mask) if tensors and mask is not None else mask
    found, info = akmv.attention(*given, scale=scale, attn_mask=bias, eps=0, return_info=True)
    assert str(found.dtype).removeprefix("torch.") == query.dtype.name
    # Rounding of a sum with a number that is not so large that nothing else counts.
    size = np.abs(added[np.abs(added) < 1e6]).max(initial=1.0)
    tolerance = 100 * size * np.finfo(query.dtype).eps
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)
    assert np.isfinite([head.error_estimate for head in info.heads]).all()
    assert info.heads[0].error_estimate <= tolerance
    assert f"{scale:g}" in str(info.plan) or info.plan.numbers["scale"] == scale


SMALL = np.random.default_rng(3).standard_normal((3, 6, 3))
HUGE_MASKS = {
    "all large": np.full((6, 6), 1e39),
    "all small": np.full((6, 6), -1e39),
    "masked out": np.where(np.eye(6) > 0, 0.5, -1e39),
    "one large": np.where(np.eye(6) > 0, 1e39, 0.5),
    "two of them": np.where(np.arange(6) < 3, 1e39, 2e39) * np.ones((6, 1)),
    "two small": np.where(np.arange(6) < 3, -1e39, -2e39) * np.ones((6, 1)),
    "with infinity": np.where(np.arange(6) < 3, -np.inf, -1e39) * np.ones((6, 1)),
    "one row": np.linspace(-1e300, 1e300, 6)[None],
    "float32": np.full((6, 6), 3.4e38, np.float32),
    "two in float32": np.where(np.arange(6) < 3, 2.5e38, 3e38).astype(np.float32)[None],
    "lowest float32": np.full((6, 6), -3.4e38, np.float32),
    "float16": np.array([65504, -65504, 65504, 0, -np.inf, 1], np.float16)[None],
    "whole numbers": np.full((1, 6), 2**62),
    "largest": np.full((1, 6), 1.7e308),
    "all but largest": np.array([[-1.7e308, -1.7e308, 1.7e308, 0, 0, 0]]),
}


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("name", HUGE_MASKS)
def test_masks_of_huge_numbers(name: str, tensors: bool, dtype: Any) -> None:
    """Finite numbers count as what they are, also those that float32 cannot hold."""
    query, key, value = SMALL.astype(dtype)
    check_attention(query, key, value, mask=HUGE_MASKS[name], tensors=tensors)


# Magnitudes of queries and keys, and scales, whose scores are ordinary numbers.
ORDINARY_SCORES = [
    (1e10, 1e-310, 1e300),
    (1e-310, 1e10, 1e300),
    (1e155, 1e155, 1e-310),
    (1e300, 1e8, 1e-308),
    (1e-200, 1e-108, 1.5e308),
    (1e-150, 1e-150, 1e300),
    (1e-300, 1e300, 1.0),
    (1e300, 1e-300, -1.0),
    (1e10, 1e-44, 1e34),
    (1e-44, 1e10, 1e34),
    (1e30, 1e30, 1e-60),
    (1e-30, 1e-30, 1e60),
    (1e-40, 1e38, 1e2),
    (0.0, 1e300, 1e300),
    (1e300, 0.0, 1e300),
    (1.0, 1.0, 5e-324),
]


IN_BOTH_TYPES = [
    (kind, *case)
    for kind in (np.float32, np.float64)
    for case in ORDINARY_SCORES
    if max(case[:2]) < float(np.finfo(kind).max) / 10
]


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("kind", "of_query", "of_key", "scale"), IN_BOTH_TYPES)
def test_scores_that_are_right_whatever_they_are_made_of(
    kind: Any, of_query: float, of_key: float, scale: float, tensors: bool
) -> None:
    """The scale times a query may overflow where the score does not."""
    query, key, value = SMALL
    query, key = (query * of_query).astype(kind), (key * of_key).astype(kind)
    check_attention(query, key, value.astype(kind), scale=scale, tensors=tensors)


def test_scores_beyond_all_floats(dtype: Any) -> None:
    """Scores that are not finite are refused, with everything that they are made of."""
    query, key, value = SMALL.astype(dtype)
    message = r"query and key must be small enough for their products, got entries up to .* scale"
    with pytest.raises(ValueError, match=message):
        akmv.attention(1e20 * query, 1e20 * key, value, scale=1e300)


@pytest.mark.parametrize("name", ["two small", "two of them", "masked out", "one row"])
def test_causal_masks_of_huge_numbers(name: str, dtype: Any) -> None:
    """Of a row only what a query sees is told apart."""
    mask = HUGE_MASKS[name] * np.ones((6, 1))
    query, key, value = SMALL.astype(dtype)
    found = akmv.attention(query, key, value, attn_mask=mask, is_causal=True)
    hidden = np.where(np.tri(6) > 0, mask, -np.inf)
    wide = [a.astype(np.float64) for a in (query, key, value)]
    expected = attention_by_definition(*wide, 3**-0.5, hidden)
    np.testing.assert_allclose(found, expected, atol=100 * np.finfo(dtype).eps)


FEW_GIGABYTES = """
import resource
import numpy as np, approxkmv as akmv
points = np.random.default_rng(0).standard_normal((3000, 8))
expected = akmv.attention(points, points, points, eps=0)
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
found = akmv.attention(points, points, points, eps=0, n_threads=2**31 - 1)
assert np.array_equal(found, expected)
"""


def test_memory_does_not_grow_with_idle_threads() -> None:
    """No more scratch than there are tasks, however many threads are allowed."""
    run = subprocess.run([sys.executable, "-c", FEW_GIGABYTES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
MIXED: list[tuple[Any, Any, torch.dtype]] = [
    (HALF, HALF, HALF),
    (HALF, torch.bfloat16, SINGLE),
    (HALF, SINGLE, SINGLE),
    (HALF, np.float16, SINGLE),
    (HALF, np.float32, SINGLE),
    (HALF, np.float64, DOUBLE),
    (SINGLE, np.float64, DOUBLE),
    (HALF, np.int8, SINGLE),
    (HALF, np.int32, DOUBLE),
    (HALF, torch.int32, DOUBLE),
    (HALF, list, DOUBLE),
]


@pytest.mark.parametrize(("of_key", "of_value", "expected"), MIXED)
def test_tensors_and_arrays_together(of_key: Any, of_value: Any, expected: torch.dtype) -> None:
    """The output has a type that holds every value, so that no mean of finite ones is infinite."""
    key = torch.zeros((6, 3), dtype=of_key)
    if isinstance(of_value, torch.dtype):
        most = torch.finfo(of_value).max if of_value.is_floating_point else 2**31 - 1
        value = torch.full((6, 2), most, dtype=of_value)
    elif of_value is list:
        value, most = [[1e6, 1e6]] * 6, 1e6
    else:
        most = np.iinfo(of_value).max if of_value in (np.int8, np.int32) else 1e6
        most = min(most, 65504) if of_value is np.float16 else most
        value = np.full((6, 2), most, of_value)
    output = akmv.attention(key, key, value)
    assert output.dtype == expected
    np.testing.assert_allclose(output.double().numpy(), np.full((6, 2), float(most)), rtol=1e-2)


@pytest.mark.parametrize("kind", [HALF, torch.bfloat16, SINGLE, DOUBLE])
def test_mean_of_the_largest_number(kind: torch.dtype) -> None:
    """Rounding of the mean does not lead beyond the largest number."""
    rng = np.random.default_rng(0)
    query, key = (torch.from_numpy(rng.standard_normal((50, 3))).to(kind) for _ in range(2))
    value = torch.full((50, 2), torch.finfo(kind).max, dtype=kind)
    value[:, 1] *= -1
    output = akmv.attention(query, key, value)
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1.7e308])
def test_sampled_attention_of_extreme_values(size: float) -> None:
    """Squares of values overflow and underflow; the error promised is that of the values."""
    rng = np.random.default_rng(0)
    query, key, value = rng.uniform(-1, 1, (3, 4000, 2))  # so many that the mean is tried
    options = {"scale": 0.1, "rng": 0}
    found, info = akmv.attention(query, key, value * size, return_info=True, **options)
    assert info.method == "sampled"
    assert info.heads[0].error_estimate < 0.1
    expected = akmv.attention(query, key, value, eps=0, **options)
    assert np.linalg.norm(found / size - expected) <= 0.1 * np.linalg.norm(value)
    assert info.heads[0].output_norm == pytest.approx(
        np.linalg.norm(found / size) / np.linalg.norm(value)
    )


def unit_kernel(size: float, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """Points, and their kernel matrix if bandwidths are one over the size."""
    points = np.random.default_rng(5).standard_normal((200, 3)).astype(kind)
    distances = np.linalg.norm(points[:, None] - points.astype(np.float64), axis=2)
    with np.errstate(over="ignore", under="ignore"):
        return points, np.exp(-0.5 * np.square(distances * size))


def fits(kind: Any, bandwidth: float, size: float) -> bool:
    """Whether the type holds points of this size in bandwidths, with all their digits."""
    range_ = np.finfo(kind)
    return float(range_.tiny) / float(range_.eps) < size * bandwidth < float(range_.max) / 10


# Types of points, bandwidths, and magnitudes of points next to them.
UNITS = [
    (kind, bandwidth, size)
    for kind in (np.float32, np.float64)
    for bandwidth in (1e-300, 1e-30, 1.0, 1e30, 1e150, 1e300)
    for size in (1e-150, 1.0, 1e150)
    if fits(kind, bandwidth, size)
]


@pytest.mark.parametrize("options", [{"eps": 0.1}, {"eps": 1e300}, {"rtol": 0.1}, {"rtol": 1e300}])
@pytest.mark.parametrize(("kind", "bandwidth", "size"), UNITS)
@pytest.mark.usefixtures("any_size")
def test_products_in_any_unit(
    kind: Any, bandwidth: float, size: float, options: dict[str, float]
) -> None:
    """Whatever unit a length is measured in, and however large an error is allowed."""
    points, kernel = unit_kernel(size, kind)
    given = (points * np.float64(size * bandwidth)).astype(kind)
    x = np.random.default_rng(6).standard_normal(200)
    y = akmv.matvec(given, None, x, bandwidth=bandwidth, rng=0, **options)
    error, product = np.linalg.norm(y - kernel @ x), np.linalg.norm(kernel @ x)
    allowed = options.get("eps", 0) * np.linalg.norm(x) + options.get("rtol", 0) * product
    assert error <= allowed
    if "eps" in options:
        operator = akmv.GaussianKernel(given, bandwidth=bandwidth, rng=0, **options)
        assert np.linalg.norm(operator @ x - kernel @ x) <= allowed


@pytest.mark.parametrize(("kind", "bandwidth", "size"), UNITS)
def test_diagnosis_in_any_unit(kind: Any, bandwidth: float, size: float) -> None:
    """All that is reported is finite, and c is that of the definition."""
    points, kernel = unit_kernel(size, kind)
    given = (points * np.float64(size * bandwidth)).astype(kind)
    report = akmv.diagnose(given, bandwidth=bandwidth)
    assert report.c == pytest.approx(kernel.sum() / 200 - 1, rel=1e-4, abs=1e-12)
    assert np.isfinite([*report.log_quantiles.values(), *report.log_row_sums]).all()
    assert "Infinity" not in str(report)


def test_diagnosis_of_nothing_but_zeros() -> None:
    """Where not even the logarithm of an entry can be told there is no constant."""
    with pytest.raises(ValueError, match=r"bandwidth must be large enough .*, got 1e-200"):
        akmv.diagnose(POINTS, POINTS + 100, bandwidth=1e-200)


@pytest.mark.parametrize(
    ("bandwidth", "delta"), [(1e300, 0.05), (1e-30, 0.05), (1e30, 0.05), (1.0, 1e-300)]
)
def test_the_paper_with_extreme_numbers(bandwidth: float, delta: float) -> None:
    """The algorithm of the paper in any unit, and with next to no chance to fail."""
    x = np.array([1.0, -2.0, 0.5])
    given = SMALL[0, :3] * bandwidth
    options = {"method": "paper", "delta": delta, "rng": 0}
    y = akmv.matvec(given, None, x, bandwidth=bandwidth, **options)
    expected = akmv.matvec(SMALL[0, :3], None, x, bandwidth=1.0, method="exact")
    assert np.linalg.norm(y - expected) <= 0.1 * np.linalg.norm(x)


def test_the_paper_where_squared_distances_overflow() -> None:
    """In units of so small a bandwidth the algorithm cannot tell distances."""
    with pytest.raises(ValueError, match="bandwidth must not be so small next to the points"):
        akmv.matvec(POINTS, None, ONES, bandwidth=1e-300, method="paper", rng=0)


def log_row_sums_by_definition(
    queries: np.ndarray, keys: np.ndarray, bandwidth: float, weights: np.ndarray
) -> np.ndarray:
    """In long double, whose exponents are beyond those of a double."""
    differences = queries[:, None].astype(np.longdouble) - keys.astype(np.longdouble)
    with np.errstate(divide="ignore"):
        exponents = -0.5 * ((differences / bandwidth) ** 2).sum(axis=-1) + np.log(weights)
    largest = exponents.max(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))


# Type of points, where queries are, what keys are multiples of, and the bandwidth.
FAR = [
    (np.float32, 1e6, 1.0, 0.57),
    (np.float64, 1e6, 1.0, 0.57),
    (np.float64, 1e10, 1.0, 0.57),
    (np.float64, 1e10, 1e6, 0.57),
    (np.float32, 1e18, 1.0, 0.57),
    (np.float32, 1e18, 1e10, 0.57),
    (np.float32, 1.0, 0.1, 1e-17),
    (np.float32, 1.0, 0.1, 1e-30),
    (np.float64, 1.0, 1e-3, 4e-154),
    (np.float64, 1e160, 1.0, 1e100),
    (np.float64, 1e300, 1e290, 1e200),
]


@pytest.mark.parametrize(("kind", "at", "step", "bandwidth"), FAR)
@pytest.mark.parametrize("n_dims", [1, 4])
def test_log_row_sums_of_far_queries(
    kind: Any, at: float, step: float, bandwidth: float, n_dims: int
) -> None:
    """Logarithms are right as long as the type can hold them; log densities are doubles."""
    rng = np.random.default_rng(0)
    keys = (step * rng.integers(0, 3, (70, n_dims))).astype(kind)
    queries = (at * rng.uniform(1, 2, (5, n_dims))).astype(kind)
    weights = rng.integers(0, 4, 70).astype(kind)
    expected = log_row_sums_by_definition(queries, keys, bandwidth, weights)
    assert np.isfinite(expected.astype(np.float64)).all()
    rtol = 8 * float(np.finfo(kind).eps)
    found = akmv.log_row_sums(queries, keys, bandwidth=bandwidth, weights=weights)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found, expected.astype(kind), rtol)
    model = akmv.sklearn.KernelDensity(bandwidth=bandwidth).fit(keys, sample_weight=weights)
    volume = np.log(weights.sum()) + n_dims * np.log(bandwidth * np.sqrt(2 * np.pi))
    found = model.score_samples(queries)
    np.testing.assert_allclose(found, (expected - volume).astype(np.float64), rtol)


@pytest.mark.filterwarnings("error")
def test_tensors_and_read_only_arrays_together() -> None:
    """Only the type of the array is asked for: no warning that it cannot be written to."""
    fixed = SMALL[0].copy()
    fixed.setflags(write=False)
    found = akmv.attention(torch.from_numpy(SMALL[0].copy()), fixed, fixed)
    np.testing.assert_array_equal(found.numpy(), akmv.attention(SMALL[0], fixed, fixed))


def test_any_error_in_no_time() -> None:
    """The square of the error allowed does not overflow."""
    points = np.random.default_rng(0).standard_normal((4096, 16))
    options = {"eps": 1e300, "max_seconds": 1e-22, "rng": 0}
    y = akmv.matvec(points, None, np.ones(4096), bandwidth=1.0, **options)
    assert np.isfinite(y).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("options", [{}, {"return_info": True}])
def test_entries_that_are_not_finite_are_no_news(options: dict[str, Any]) -> None:
    """Without the check they go through without a warning of NumPy, and to every row."""
    x = np.ones((40, 2))
    x[3:6] = [[np.inf, 1.0], [1.0, -np.inf], [1.0, np.nan]]
    found = akmv.matvec(POINTS, None, x, bandwidth=1.0, rng=0, check_finite=False, **options)
    y = found[0] if options.get("return_info") else found
    assert not np.isfinite(y).any()
