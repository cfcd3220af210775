"""Products of points of which many are equal: each pair of distinct ones is computed once.

The error of a row counts as often as the row is repeated. A draw that took every row for one would
meet a smaller error than it makes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import approxkmv as akmv
from approxkmv._deadline import Deadline
from approxkmv.datasets import clusters
from approxkmv.engine.cost import CostModel
from approxkmv.engine.products import product
from approxkmv.engine.request import Request, Tolerance
from approxkmv.info import ProductInfo
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.kernel.matrix import product as exact_product

SAMPLED = CostModel(smallest_work=0.0, smallest_work_in_cells=0.0, search=400.0)


def table(n: int, n_distinct: int, d: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_distinct, d)).astype(dtype)[rng.integers(0, n_distinct, n)]


def exactly(
    queries: np.ndarray, keys: np.ndarray, x: np.ndarray, equal_point: float
) -> tuple[np.ndarray, ProductInfo]:
    """The exact product, where looking for equal points costs this much."""
    rng, cost = np.random.default_rng(0), CostModel(equal_point=equal_point)
    request = Request(queries, keys, x, 1.5, Tolerance(0.0), 0.05, rng, report=True, cost=cost)
    return product(request)[:2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sides", ["symmetric", "keys", "queries", "both"])
def test_exact_products_of_distinct_points(sides: str, dtype: Any) -> None:
    """As by the definition, with fewer pairs; the bound holds, the estimate is of this size."""
    rng = np.random.default_rng(0)
    keys, queries = table(3000, 300, 4, dtype), table(2500, 200, 4, dtype, seed=1)
    if sides == "symmetric":
        queries = keys
    if sides == "queries":
        keys = rng.standard_normal((3000, 4)).astype(dtype)
    if sides == "keys":
        queries = rng.standard_normal((2500, 4)).astype(dtype)
    K = gaussian_kernel(queries, keys, 1.5)
    for shape in ((3000,), (3000, 3)):
        x = rng.standard_normal(shape).astype(dtype)
        y, info = exactly(queries, keys, x, 0.0)
        _, plain = exactly(queries, keys, x, math.inf)
        error = float(np.linalg.norm(y - K @ x.astype(float)) / np.linalg.norm(x))
        assert info.error_bound is not None
        assert plain.error_bound is not None
        assert info.error_estimate is not None
        assert error < (1e-4 if dtype == np.float32 else 1e-12)
        assert error <= info.error_bound < 10 * plain.error_bound
        assert 0.2 < info.error_estimate / error < 5
        assert info.pairs_exact == plain.pairs == K.size
        distinct = [len(np.unique(points, axis=0)) for points in (queries, keys)]
        assert info.pairs == math.prod(distinct) < K.size
        names = ("distinct_queries", "distinct_keys")
        assert [info.plan.numbers[name] for name in names] == distinct
        assert not set(names) & set(plain.plan.numbers)
        assert info.product_norm == pytest.approx(np.linalg.norm(y) / np.linalg.norm(x))


def test_points_without_copies_are_not_touched() -> None:
    """The report has no word of it; nothing is looked for in small products."""
    points = np.random.default_rng(0).standard_normal((12_000, 3))
    _, info = akmv.matvec(points, None, np.ones(12_000), bandwidth=0.1, return_info=True)
    assert "distinct_keys" not in info.plan.numbers
    few = table(200, 20, 3)
    _, info = akmv.matvec(few, None, np.ones(200), bandwidth=0.1, return_info=True)
    assert info.pairs == 200**2


def test_entries_whose_sums_overflow() -> None:
    """Sums of entries near the largest number of the type are finite while they are added."""
    keys = np.zeros((12_000, 1), np.float32)
    keys[::2] = 5.0
    x = np.full(12_000, 3e38, np.float32)
    x[:6000:2] *= -1
    x[2] = x[0] * np.float32(0.5)
    y, info = akmv.matvec(keys, None, x, bandwidth=0.5, eps=0, return_info=True)
    assert info.pairs == 4
    K = gaussian_kernel(keys[:2], keys, 0.5)
    exact = K @ x.astype(float)
    assert abs(exact[0]) < 3e38 < exact[1]
    np.testing.assert_allclose(y[0], exact[0], rtol=1e-5)
    assert np.isinf(y[1])


def test_row_sums_of_distinct_points() -> None:
    rng = np.random.default_rng(0)
    keys = table(30_000, 700, 3)
    queries = table(30_000, 500, 3, seed=1)
    weights = rng.random(30_000) * (rng.random(30_000) < 0.5)
    (q, of_query), (k, of_key) = (
        np.unique(points, axis=0, return_inverse=True) for points in (queries, keys)
    )
    K = gaussian_kernel(q, k, 0.8)[of_query]
    sums, weighed = K @ np.bincount(of_key), K @ np.bincount(of_key, weights)
    np.testing.assert_allclose(akmv.row_sums(queries, keys, bandwidth=0.8), sums)
    logs = akmv.log_row_sums(queries, keys, bandwidth=0.8)
    np.testing.assert_allclose(logs, np.log(sums), atol=1e-12)
    logs = akmv.log_row_sums(queries, keys, bandwidth=0.8, weights=weights)
    np.testing.assert_allclose(logs, np.log(weighed), atol=1e-12)


def with_copies(n_distinct: int, kind: str, seed: int) -> tuple[np.ndarray, float]:
    """Clusters whose points are repeated: all of them four times, or one of them 10,000 times."""
    rng = np.random.default_rng(seed)
    points, _, bandwidth = clusters(n_distinct, 64, rng=seed)
    number = np.full(n_distinct, 4)
    if kind == "uneven":
        number = 1 + rng.geometric(0.4, n_distinct)
        number[n_distinct // 3] = 10_000
    place = rng.permutation(np.repeat(np.arange(n_distinct), number))
    return points[place], bandwidth


def run(
    points: np.ndarray, keys: np.ndarray, x: np.ndarray, bandwidth: float, **options: Any
) -> tuple[np.ndarray, ProductInfo, bool]:
    tolerance = Tolerance(options.pop("eps", 0.1), options.pop("rtol", None))
    rng = np.random.default_rng(options.pop("seed", 0))
    request = Request(
        points, keys, x, bandwidth, tolerance, 0.05, rng, report=True, cost=SAMPLED, **options
    )
    return product(request)


def errors_over_seeds(n_seeds: int, kind: str, vector: str) -> np.ndarray:
    """Error and estimate, over the length of all of x, of every run."""
    found = []
    for seed in range(n_seeds):
        points, bandwidth = with_copies(6000, kind, seed)
        rng = np.random.default_rng([seed, 1])
        x = np.ones(len(points)) if vector == "ones" else rng.standard_normal(len(points))
        x = x.astype(np.float32)
        y, info, _ = run(points, points, x, bandwidth, seed=seed)
        assert info.method == "sampled"
        assert info.pairs < 6000**2
        assert info.error_estimate is not None
        distinct, place = np.unique(points, axis=0, return_inverse=True)
        summed = np.bincount(place, x.astype(float))
        exact = exact_product(distinct.astype(float), distinct.astype(float), summed, bandwidth)
        found.append((np.linalg.norm(y - exact[place]) / np.linalg.norm(x), info.error_estimate))
    error, estimate = np.array(found).T
    assert np.count_nonzero(error > 0.1) <= binom.isf(1e-6, n_seeds, 0.05)
    squares = np.square(error / estimate)
    assert np.mean(squares) == pytest.approx(1, abs=0.25)
    assert np.mean(np.sqrt(squares)) > 0.3
    return estimate / error


@pytest.mark.parametrize("kind", ["four", "uneven"])
@pytest.mark.parametrize("vector", ["ones", "gauss"])
def test_errors_count_as_often_as_rows_are_repeated(kind: str, vector: str) -> None:
    """Over seeds: the error is within eps of the length of all of x, the estimate is the error.

    If each distinct row counted once, the errors of points repeated four times would be about
    twice eps, and the estimate half the error.
    """
    ratio = errors_over_seeds(12, kind, vector)
    assert np.count_nonzero(np.abs(ratio - 1) < 0.25) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["four", "uneven"])
@pytest.mark.parametrize("vector", ["ones", "gauss"])
def test_statistics_of_many_runs(kind: str, vector: str) -> None:
    """Violations at a false alarm of 1e-6, and the estimate within 25 % in 90 %, likewise."""
    ratio = errors_over_seeds(200, kind, vector)
    close = np.count_nonzero(np.abs(ratio - 1) <= 0.25)
    print(f"\n{kind}, {vector}: estimate within 25 % in {close} of 200 runs")
    assert close >= binom.ppf(1e-6, 200, 0.9)


@pytest.mark.parametrize("columns", [1, 3])
def test_queries_that_are_not_the_keys(columns: int) -> None:
    """With several columns, relative to the product, in double precision."""
    points, bandwidth = with_copies(5000, "uneven", 3)
    queries = points[np.random.default_rng(5).integers(0, len(points), 24_000)].astype(np.float64)
    queries[:8000] += 0.01
    keys = points.astype(np.float64)
    x = np.random.default_rng(6).standard_normal((len(keys), columns))
    y, info, _ = run(queries, keys, x, bandwidth, rtol=0.1)
    assert info.method == "sampled"
    assert info.error_estimate is not None
    assert info.product_norm == pytest.approx(np.linalg.norm(y) / np.linalg.norm(x))
    exact = akmv.matvec(queries, keys, x, bandwidth=bandwidth, method="exact")
    error = float(np.linalg.norm(y - exact))
    assert error <= 0.1 * np.linalg.norm(exact)
    assert error / np.linalg.norm(x) == pytest.approx(info.error_estimate, rel=0.35)


@pytest.mark.parametrize("n_looks", [1, 8, 20, 40])
def test_an_answer_whenever_the_time_ends(n_looks: int) -> None:
    points, bandwidth = with_copies(5000, "uneven", 2)
    x = np.ones(len(points), np.float32)
    looks = iter([0.0] * n_looks)
    deadline = Deadline(1.0, now=lambda: next(looks, 1e9))
    y, info, too_late = run(points, points, x, bandwidth, deadline=deadline)
    distinct, place, number = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    exact = exact_product(
        distinct.astype(float), distinct.astype(float), number.astype(float), bandwidth
    )
    error = float(np.linalg.norm(y - exact[place]) / np.linalg.norm(x))
    assert info.error_estimate is not None
    assert info.error_bound is not None
    assert error <= info.error_bound
    assert too_late or info.error_estimate <= 0.1
    assert info.error_estimate > 0.25 * error
