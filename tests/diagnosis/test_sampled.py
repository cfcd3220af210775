"""Constants from random rows: intervals that hold, estimates without bias."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import approxkmv as akmv
from approxkmv.diagnosis import matrix, sampled
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.assumption import kernel_constant

DELTA = 0.05


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_EXACT_PAIRS", 1 << 14)


def clustered(rng: np.random.Generator, n: int) -> np.ndarray:
    centres = 3 * rng.standard_normal((n // 12, 6))
    return centres[rng.integers(len(centres), size=n)] + 0.5 * rng.standard_normal((n, 6))


def one_clump(rng: np.random.Generator, n: int) -> np.ndarray:
    """Far points and one clump of √n: the few rows that have it all are easily missed."""
    far = 40 * rng.standard_normal((n, 6))
    far[: math.isqrt(n)] = 0.05 * rng.standard_normal((math.isqrt(n), 6))
    return rng.permutation(far)


def cloud(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal((n, 6))


def repeated(rng: np.random.Generator, n: int) -> np.ndarray:
    return 10 * rng.standard_normal((n // 5, 6))[rng.integers(n // 5, size=n)]


KINDS = [clustered, one_clump, cloud, repeated]


def missed(seeds: range, *, symmetric: bool, n: int) -> int:
    """How many intervals miss the exact constant."""
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        kind = KINDS[seed % len(KINDS)]
        queries = kind(rng, n)
        # Half of the keys are near queries, as words are near words.
        keys = None if symmetric else queries[rng.permutation(n)] + 0.1 * kind(rng, n)
        bandwidth = float(rng.uniform(0.3, 1.5))
        exact = kernel_constant(queries, queries if keys is None else keys, bandwidth).c
        report = akmv.diagnose(queries, keys, bandwidth=bandwidth, delta=DELTA, rng=seed)
        assert not report.is_exact
        low, high = report.c_interval
        assert low <= report.c <= high
        count += not low <= exact <= high
    return count


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """√n rows, so that a clump of √n is often missed: intervals must hold for any number."""
    monkeypatch.setattr(sampled, "_ROWS_PER_ROOT", 1)
    monkeypatch.setattr(sampled, "_MOST_ROWS", 32)


@pytest.mark.parametrize("symmetric", [True, False])
def test_intervals_hold(symmetric: bool, few_rows: None) -> None:
    seeds = range(16)
    assert missed(seeds, symmetric=symmetric, n=400) <= DELTA * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
def test_intervals_hold_in_200_cases(symmetric: bool, few_rows: None) -> None:
    assert missed(range(200), symmetric=symmetric, n=600) <= DELTA * 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_allowed_for(dtype: type[np.floating]) -> None:
    """Far points: c is below 1e-100, far below the rounding errors of row sums of 1."""
    points = (30 * cloud(np.random.default_rng(8), 500)).astype(dtype)
    exact = kernel_constant(points, points, 0.5).c
    assert exact < 1e-100
    low, high = akmv.diagnose(points, bandwidth=0.5, rng=0).c_interval
    assert low <= exact <= high


def test_estimate_has_no_bias_where_the_head_is_known() -> None:
    """The mean over seeds is c, within five standard errors."""
    points = clustered(np.random.default_rng(0), 400)
    exact = kernel_constant(points, points, 0.8).c
    found = [akmv.diagnose(points, bandwidth=0.8, rng=seed).c for seed in range(20)]
    assert abs(np.mean(found) - exact) < 5 * stats.sem(found)


def test_interval_is_useful() -> None:
    """On mild data the interval of a symmetric matrix is within 30 % of c."""
    points = cloud(np.random.default_rng(1), 3000)
    report = akmv.diagnose(points, bandwidth=0.9, rng=0)
    low, high = report.c_interval
    assert high - low < 0.6 * report.c


def test_less_confidence_is_narrower() -> None:
    points = clustered(np.random.default_rng(2), 600)
    wide = akmv.diagnose(points, bandwidth=0.8, delta=0.001, rng=0).c_interval
    narrow = akmv.diagnose(points, bandwidth=0.8, delta=0.2, rng=0).c_interval
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_row_sums_are_at_most_the_root_of_the_keys_own_sum() -> None:
    """The inequality that the intervals rest on, for queries of any kind."""
    rng = np.random.default_rng(3)
    keys = clustered(rng, 300)
    queries = np.concatenate([keys, 2 * cloud(rng, 300), np.zeros((1, 6))])
    most = math.sqrt(gaussian_kernel(keys, keys, 1.0).sum())
    assert gaussian_kernel(queries, keys, 1.0).sum(axis=1).max() <= most


def test_row_sums_drawn_are_row_sums() -> None:
    rng = np.random.default_rng(4)
    points = cloud(rng, 300)
    look = sampled._Look(0.7, 200, np.random.default_rng(5), None)
    rows = np.random.default_rng(5).integers(300, size=200)
    K = gaussian_kernel(points, points, 0.7)
    np.testing.assert_allclose(np.exp(look.log_row_sums(points, points)), K.sum(1)[rows])
    look = sampled._Look(0.7, 200, np.random.default_rng(5), None)
    squares = np.exp(look.log_row_sums(points, points, squared=True))
    np.testing.assert_allclose(squares, (K**2).sum(1)[rows])
    assert look.pairs == 200 * 300


@pytest.mark.parametrize(("m", "n"), [(40, 40), (30, 90), (90, 30)])
def test_group_sums_bound_the_head_from_below(m: int, n: int) -> None:
    """Over all rows, shares of groups add up to no more than the n largest entries."""
    rng = np.random.default_rng(6)
    queries, keys = cloud(rng, m), cloud(rng, n)
    head = np.sort(gaussian_kernel(queries, keys, 0.9).ravel())[-max(m, n) :].sum()
    tops = sampled._tops(queries, keys, 0.9, rng)
    assert tops.n_groups * tops.group_sums.mean() <= head * (1 + 5 * stats.sem(tops.group_sums))


def test_sampled_estimates_are_near_the_exact_ones() -> None:
    """Row sums, quantiles and growth of 1,200 points, from rows and from all entries."""
    points = cloud(np.random.default_rng(7), 1200)
    rows = akmv.diagnose(points, bandwidth=1.0, rng=0)
    K = gaussian_kernel(points, points, 1.0)
    sums = K.sum(axis=1)
    error = 5 * sums.std() / math.sqrt(1100)
    assert abs(rows.mean_row_sum - sums.mean()) < error
    assert rows.max_row_sum <= sums.max() * (1 + 1e-9)
    whole = kernel_constant(points[:600], points[:600], 1.0).c
    assert rows.growth.sizes[-2] == 600
    assert rows.growth.constants[-2] == pytest.approx(whole, rel=0.3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quarter_of_a_million_points_in_little_memory(run_python: object) -> None:
    script = """
import resource, numpy as np, approxkmv as akmv
points = np.random.default_rng(0).standard_normal((262_144, 100)).astype(np.float32)
report = akmv.diagnose(points, bandwidth=4.0, rng=0)
assert not report.is_exact and report.c_interval[0] <= report.c <= report.c_interval[1]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    assert int(run_python(script, timeout=590)) < 1e9  # type: ignore[operator]
