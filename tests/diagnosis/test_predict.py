"""The predicted plan: exact where it must be, faster where the data are sparse and many."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.diagnosis import predict as module
from approxkmv.diagnosis.predict import TOLERANCES, predict


def points(n: int, d: int = 8) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d))


def test_small_matrices_are_exact() -> None:
    some = points(500)
    plan, speed_ups = predict(some, some, 0.3, 0.1, np.random.default_rng(0))
    assert plan.method == "exact"
    assert "prediction" in plan.reason
    assert set(speed_ups) == set(TOLERANCES)
    assert set(speed_ups.values()) == {1.0}


@pytest.fixture
def no_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALLEST_WORK", 0.0)


def test_sparse_is_sampled_and_dense_is_exact(no_smallest: None) -> None:
    """Of 60,000 points: far apart, nothing is left to draw; close together, nearly every pair."""
    many = points(60_000, 64)
    sparse, fast = predict(many, many, 0.5, 0.1, np.random.default_rng(0))
    dense, slow = predict(many, many, 30.0, 0.1, np.random.default_rng(0))
    assert sparse.method == "sampled"
    assert fast[0.1] > 3
    assert dense.method == "exact"
    assert slow[0.1] == 1.0


def test_tighter_tolerances_are_slower(no_smallest: None) -> None:
    many = points(60_000)
    _, speed_ups = predict(many, many, 0.4, 0.05, np.random.default_rng(0))
    values = [speed_ups[eps] for eps in sorted(speed_ups, reverse=True)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    assert 0.05 in speed_ups


def test_drawn_pairs_solve_the_variance_equation() -> None:
    """Uniform squares V: rates π with n²V(1/π - 1) = 0.6 eps² n."""
    n, square, eps = 1024, 1e-4, 0.3
    n_pairs = np.full((64, 2), n * n / 128.0)
    drawn = module._drawn(np.full((64, 2), square), n_pairs, eps, n)
    rate = drawn / n**2
    # The root is raised by a thousandth, so V by two; bisection stops at a thousandth of the rate,
    # which is three of 1/π - 1 = 0.53.
    assert n**2 * square * (1 / rate - 1) == pytest.approx(0.6 * eps**2 * n, rel=0.006)


def test_no_tolerance_asks_for_exact() -> None:
    some = points(50)
    plan, speed_ups = predict(some, some, 1.0, 0.0, np.random.default_rng(0))
    assert plan.method == "exact"
    assert 0.0 not in speed_ups
