"""The predicted plan: exact where it must be, faster where the data are sparse and many."""

from __future__ import annotations

import itertools
import time
from functools import partial

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv import datasets
from approxkmv.diagnosis.predict import TOLERANCES, predict
from approxkmv.experiments.timing import interleaved, ratio


def points(n: int, d: int = 8) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d))


def test_small_matrices_are_exact() -> None:
    some = points(500)
    plan, speed_ups = predict(some, some, 0.3, 0.1, np.random.default_rng(0))
    assert plan.method == "exact"
    assert "prediction" in plan.reason
    assert set(speed_ups) == set(TOLERANCES)
    assert set(speed_ups.values()) == {1.0}


def test_sparse_is_sampled_and_dense_is_exact(any_size: None) -> None:
    """Of 60,000 points: far apart, nothing is left to draw; closer, nearly every pair; so close
    that a polynomial is nearly the kernel, next to nothing again."""
    many = points(60_000, 64).astype(np.float32)
    sparse, fast = predict(many, many, 0.5, 0.1, np.random.default_rng(0))
    dense, slow = predict(many, many, 5.0, 0.1, np.random.default_rng(0))
    flat, _ = predict(many, many, 30.0, 0.1, np.random.default_rng(0))
    assert sparse.method == "sampled"
    assert "drawing keys" in sparse.reason
    assert fast[0.1] > 3
    assert flat.method == "sampled"
    assert dense.method == "exact"
    # Looking costs a little.
    assert 0.9 < slow[0.1] < 1.0


def test_points_of_many_coordinates_that_vary_in_few(any_size: None) -> None:
    """What the planner does with them is what is predicted, and so is what it tells of the cost."""
    rng = np.random.default_rng(0)
    many = rng.standard_normal((6000, 12)) @ rng.standard_normal((12, 400))
    many = (many + 0.05 * rng.standard_normal((6000, 400))).astype(np.float32)
    bandwidth = datasets.bandwidth_for_row_sum(many, many, 5.0, 0)
    plan, _ = predict(many, many, bandwidth, 0.1, np.random.default_rng(0))
    assert plan.method == "sampled"
    assert "few coordinates" in plan.reason
    few = plan.numbers["predicted_cost_of_few_coordinates"]
    assert isinstance(few, float)
    assert few < plan.numbers["predicted_cost_of_drawing_keys"]  # type: ignore[operator]


def test_tighter_tolerances_are_slower(any_size: None) -> None:
    many = points(60_000).astype(np.float32)
    _, speed_ups = predict(many, many, 0.4, 0.05, np.random.default_rng(0))
    values = [speed_ups[eps] for eps in sorted(speed_ups, reverse=True)]
    # Each has a pilot of its own.
    assert all(a > 0.9 * b for a, b in itertools.pairwise(values))
    assert values[0] > 1.2 * values[-1]
    assert 0.05 in speed_ups


def test_no_tolerance_asks_for_exact(any_size: None) -> None:
    some = points(2000)
    plan, speed_ups = predict(some, some, 1.0, 0.0, np.random.default_rng(0))
    assert plan.method == "exact"
    assert 0.0 not in speed_ups


@pytest.mark.alone
@pytest.mark.slow
def test_predicted_speed_ups_are_near_measured_ones() -> None:
    """Clusters of 32,768 points, in CPU time of all threads: within a factor of 2."""
    queries, keys, bandwidth = datasets.clusters(32_768, 64, rng=0)
    ones = np.ones(len(keys), np.float32)

    def product(method: str, eps: float) -> object:
        return akmv.matvec(queries, keys, ones, bandwidth=bandwidth, method=method, eps=eps, rng=0)

    contestants = {str(eps): partial(product, "auto", eps) for eps in TOLERANCES}
    contestants["exact"] = partial(product, "exact", 0.0)
    timings = interleaved(contestants, 3, clock=time.process_time)
    exact = timings.pop("exact")
    _, predicted = predict(queries, keys, bandwidth, 0.1, np.random.default_rng(1))
    measured = {eps: ratio(exact, timings[str(eps)]).median for eps in TOLERANCES}
    assert measured[0.3] > 2  # there is something to predict
    for eps, speed_up in measured.items():
        assert speed_up / 2 < predicted[eps] < speed_up * 2
