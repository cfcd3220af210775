"""``diagnose`` on points: the definition of every number, sizes, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import approxkmv as akmv
from approxkmv.diagnosis import matrix
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.assumption import log_kernel, prefix_constants


def points(n: int, d: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def by_sorting(logs: np.ndarray) -> float:
    """c by the definition, in exact fractions of the largest entry."""
    entries = np.sort(np.exp(logs - logs.max()).ravel())[::-1]
    n = max(logs.shape)
    return math.fsum(entries[n:]) / math.fsum(entries[:n])


def test_c_of_matrices_made_by_hand() -> None:
    """Points at distances that give the entries 1, 1/2 and 1/4 (bandwidth 1)."""
    step = math.sqrt(2 * math.log(2))
    line = np.array([[0.0], [step]])  # K = [[1, 1/2], [1/2, 1]]
    assert akmv.diagnose(line, bandwidth=1.0).c == pytest.approx(0.5, rel=1e-12)
    apart = akmv.diagnose(line[:1], line, bandwidth=1.0)  # K = [[1, 1/2]], n = 2: no tail
    assert apart.c == 0
    same = akmv.diagnose(np.zeros((6, 2)), bandwidth=1.0)
    assert same.c == pytest.approx(5, rel=1e-12)
    assert same.top_n_share == pytest.approx(1 / 6, rel=1e-12)


@given(
    m=st.integers(1, 30),
    n=st.integers(1, 30),
    log_bandwidth=st.floats(-3, 3),
    seed=st.integers(0, 1000),
)
def test_c_is_the_definition(m: int, n: int, log_bandwidth: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, keys = rng.standard_normal((m, 3)), rng.standard_normal((n, 3))
    bandwidth = math.exp(log_bandwidth)
    report = akmv.diagnose(queries, keys, bandwidth=bandwidth, rng=0)
    expected = by_sorting(log_kernel(queries, keys, bandwidth))
    assert report.c == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert report.c_interval == (report.c, report.c)
    assert report.is_exact
    assert report.confidence == 1


def test_nothing_underflows() -> None:
    """Lifted heads of attention: entries below e^-1000, all 0 as doubles, and still a constant."""
    rng = np.random.default_rng(1)
    q, k = 12 * rng.standard_normal((60, 8)), 12 * rng.standard_normal((60, 8))
    lift = np.sqrt((k**2).sum(1).max() - (k**2).sum(1))
    queries, keys = np.column_stack([q, np.full(60, 150.0)]), np.column_stack([k, lift])
    logs = log_kernel(queries, keys, 8**0.25)
    assert logs.max() < -1000
    report = akmv.diagnose(queries, keys, bandwidth=8**0.25)
    assert report.c == pytest.approx(by_sorting(logs), rel=1e-9)
    assert math.isfinite(report.ratios.log_to_next)
    assert report.mean_row_sum >= 0


def test_row_sums_quantiles_and_ratios_are_the_definitions() -> None:
    queries, keys = points(40), points(50, seed=1)
    K = gaussian_kernel(queries, keys, 1.2)
    report = akmv.diagnose(queries, keys, bandwidth=1.2)
    sums = K.sum(axis=1)
    assert report.mean_row_sum == pytest.approx(sums.mean())
    # The median of logarithms of 40 sums lies between the two middle ones.
    assert np.sort(sums)[19] <= report.median_row_sum <= np.sort(sums)[20]
    assert report.max_row_sum == pytest.approx(sums.max())
    for share, value in report.log_quantiles.items():
        assert value == pytest.approx(np.quantile(np.log(K), share))
    entries = np.sort(K.ravel())[::-1]
    assert report.ratios.to_next == pytest.approx(entries[49] / entries[50])
    assert report.ratios.to_twice == pytest.approx(entries[49] / entries[99])


def test_growth_agrees_with_the_prefix_scan() -> None:
    """Constants of nested prefixes, and the scan of all prefixes, at the sizes of both."""
    queries, keys = points(160), points(160, seed=1)
    growth = akmv.diagnose(queries, keys, bandwidth=0.8).growth
    assert growth.sizes == (10, 20, 40, 80, 160)
    scan = prefix_constants(queries, keys, 0.8, i_min=1)
    np.testing.assert_allclose(growth.constants, scan[np.array(growth.sizes) - 1], rtol=1e-9)


def test_prefix_scan_agrees_with_diagnosis_at_random_prefixes() -> None:
    queries, keys = points(120), points(120, seed=1)
    scan = prefix_constants(queries, keys, 0.8, i_min=1)
    for i in np.random.default_rng(2).integers(1, 121, 20):
        fresh = akmv.diagnose(queries[:i], keys[:i], bandwidth=0.8)
        assert scan[i - 1] == pytest.approx(fresh.c, rel=1e-9, abs=1e-12)


def test_growth_exponent_of_a_flat_matrix_is_one() -> None:
    """All entries 1: c = n - 1."""
    report = akmv.diagnose(np.zeros((1600, 1)), bandwidth=1.0)
    assert report.growth.constants == pytest.approx((99, 199, 399, 799, 1599))
    assert report.growth.exponent == pytest.approx(1, abs=0.01)


def test_growth_exponent_of_far_points_is_not_a_number() -> None:
    far = 1e6 * np.arange(64.0)[:, None]
    report = akmv.diagnose(far, bandwidth=1.0)
    assert report.c == 0
    assert math.isnan(report.growth.exponent)


def test_equal_keys_are_the_queries() -> None:
    some = points(30)
    assert akmv.diagnose(some, some.copy(), bandwidth=1.0).c == pytest.approx(
        akmv.diagnose(some, bandwidth=1.0).c, rel=1e-12
    )


@pytest.mark.parametrize("keys_too", [False, True])
def test_same_seed_same_report(keys_too: bool, small_limit: None) -> None:
    some, others = points(900), points(800, seed=1)
    reports = [
        akmv.diagnose(some, others if keys_too else None, bandwidth=1.0, rng=3, n_threads=t)
        for t in (1, 2)
    ]
    assert reports[0].c == reports[1].c
    assert reports[0].c_interval == reports[1].c_interval
    assert reports[0].log_quantiles == reports[1].log_quantiles


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample from 2^16 entries on, so that sampled reports can be compared with exact ones."""
    monkeypatch.setattr(matrix, "_EXACT_PAIRS", 1 << 16)


def test_progress_rises_to_one(small_limit: None) -> None:
    for n in (100, 900):
        seen: list[float] = []
        akmv.diagnose(points(n), points(n, seed=1), bandwidth=1.0, rng=0, progress=seen.append)
        assert all(a <= b for a, b in itertools.pairwise(seen))
        assert seen[-1] == pytest.approx(1)
        assert len(seen) > 2


def test_inputs_are_left_alone(small_limit: None) -> None:
    for n in (50, 600):
        some, others = points(n), points(n, seed=1)
        before = some.copy(), others.copy()
        akmv.diagnose(some, others, bandwidth=1.0, rng=0)
        np.testing.assert_array_equal(some, before[0])
        np.testing.assert_array_equal(others, before[1])


def test_integers_and_half_precision() -> None:
    whole = np.arange(12).reshape(6, 2)
    expected = akmv.diagnose(whole.astype(float), bandwidth=4.0).c
    assert akmv.diagnose(whole, bandwidth=4.0).c == pytest.approx(expected)
    assert akmv.diagnose(whole.astype(np.float16), bandwidth=4.0).c == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"queries": np.zeros(3)}, ValueError, "queries must have two dimensions"),
        ({"queries": np.zeros((0, 2))}, ValueError, "queries must have at least one point"),
        ({"keys": np.zeros((0, 2))}, ValueError, "keys must have at least one point"),
        ({"keys": np.zeros((4, 3))}, ValueError, "keys must have 2 columns"),
        ({"queries": [[0.0, math.nan]]}, ValueError, r"queries\[0, 1\] is nan"),
        ({"keys": [[math.inf, 0.0]]}, ValueError, r"keys\[0, 0\] is inf"),
        ({"bandwidth": 0.0}, ValueError, "bandwidth must be a positive"),
        ({"eps": -1.0}, ValueError, "eps must be a finite number"),
        ({"delta": 1.0}, ValueError, "delta must lie strictly"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1"),
        ({"rng": "seed"}, TypeError, "rng must be an integer"),
        ({"queries": [["a"]]}, TypeError, "queries must hold real numbers"),
    ],
)
def test_bad_input(change: dict[str, object], error: type[Exception], message: str) -> None:
    good: dict[str, object] = {"queries": np.zeros((3, 2)), "keys": None, "bandwidth": 1.0}
    arguments = good | change
    queries, keys = arguments.pop("queries"), arguments.pop("keys")
    with pytest.raises(error, match=message):
        akmv.diagnose(queries, keys, **arguments)  # type: ignore[arg-type]
