"""Candidates and the choice among them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import outcome_of

from approxkmv import diagnose, matvec
from approxkmv.datasets import clusters
from approxkmv.engine.cost import CostModel
from approxkmv.engine.planner import approximate, candidates, predicted
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.survey.survey import make_survey
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.kernel.matrix import prepare


def test_small_products_are_not_surveyed() -> None:
    cost = CostModel()
    assert not cost.worth_a_survey(100, 100, 64)
    assert not cost.worth_a_survey(4096, 4096, 64)
    assert cost.worth_a_survey(10**6, 10**6, 2)


def test_zero_needs_no_draws() -> None:
    found = outcome_of(clusters(2048, 16, rng=0), np.zeros(2048, np.float32))
    assert found.result is None
    assert found.trace.pairs == 0
    assert "zero" in found.refusal


def test_sampled_product_says_what_it_did() -> None:
    """Pairs are counted, stages timed, and the estimate is within the error asked for."""
    points = clusters(8192, 64, rng=0)
    x = np.random.default_rng(0).standard_normal(8192).astype(np.float32)
    found = outcome_of(points, x)
    assert found.result is not None
    assert found.result.pairs < found.trace.pairs < 8192**2
    assert {"order", "pilot", "draw"} <= set(found.trace.seconds)
    assert min(found.trace.seconds.values()) >= 0
    budget = (0.1 * float(np.linalg.norm(x))) ** 2
    assert found.result.worst <= budget
    assert found.result.variance <= found.result.upper


@pytest.mark.parametrize("mean_row_sum", [500.0, 3000.0])
def test_dense_kernels_are_left_to_the_exact_product(mean_row_sum: float) -> None:
    """Rows that sum to a large share of the number of keys: no draws are made."""
    points = clusters(4096, 8, mean_row_sum=mean_row_sum, rng=0)
    found = outcome_of(points, np.ones(4096, np.float32), eps=0.03)
    assert found.result is None
    assert "too dense" in found.refusal
    assert "draw" not in found.trace.seconds


def problem_of(points: Any, x: np.ndarray, eps: float = 0.1, **options: Any) -> Problem:
    kernel = prepare(points.queries, points.keys, points.bandwidth)
    budget = Budget(float((eps * np.linalg.norm(x)) ** 2), 0.05)
    return Problem(kernel, x[:, None], budget, np.random.default_rng(0), **options)


def test_candidates_are_the_cheapest_first_and_say_why_not() -> None:
    """Where draws cost next to nothing drawing keys leads; where they cost too much it says why."""
    points, x = clusters(4096, 256, rng=0), np.ones(4096, np.float32)
    for drawn_pair, taken in ((1e-3, True), (1e3, False)):
        problem = problem_of(points, x, cost=CostModel(drawn_pair=drawn_pair, search=0.0))
        survey = make_survey(problem, Trace())
        found = candidates(problem, survey, Trace(), Progress())
        costs = [candidate.cost for candidate in found if not candidate.why_not]
        assert costs == sorted(costs)
        keys = next(candidate for candidate in found if candidate.name == "drawing keys")
        assert (not keys.why_not) == taken
        assert taken or "too dense" in keys.why_not
        assert not taken or found[0] is keys


def test_what_was_considered_is_told(any_size: None) -> None:
    """What is taken is the first that pays, of what is not it says why; the report prints it."""
    for row_sum, taken in ((5.0, "drawing keys"), (3000.0, "exact")):
        points = clusters(16_384, 64, mean_row_sum=row_sum, rng=0)
        x = np.ones(16_384, np.float32)
        _, info = matvec(*points[:2], x, bandwidth=points.bandwidth, rng=0, return_info=True)
        told = {one.name: one for one in info.plan.candidates}
        outcomes = [one.outcome for one in told.values()]
        assert list(told) == ["drawing keys", "exact"]
        assert outcomes.count("taken") == 1
        assert told[taken].outcome == "taken"
        assert (told["drawing keys"].cost < 1) == (taken == "drawing keys")
        assert 0.5 < told["drawing keys"].error <= 1
        assert all(str(one.outcome) in info.explain() for one in told.values())
        assert pickle.loads(pickle.dumps(info.plan)) == info.plan
        report = diagnose(*points[:2], bandwidth=points.bandwidth, rng=0)
        assert [one.outcome for one in report.plan.candidates] == outcomes
        assert f"{taken}, cost" in str(report)


def test_what_is_refused_is_followed_by_the_next_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """All refuse: the first reason is told, and nothing but a refusal comes out."""
    points, x = clusters(4096, 256, rng=0), np.ones(4096, np.float32)
    problem = problem_of(points, x, cost=CostModel(drawn_pair=1e-3, search=0.0))
    problem = replace(problem, policy=replace(problem.policy, keys=_never(problem)))
    with pytest.raises(Refusal, match="did not come down"):
        approximate(problem, Trace(), Progress())


def _never(problem: Problem) -> Any:
    """No draw is allowed."""
    return replace(problem.policy.keys, most_draws=0)


def test_prediction_is_the_choice() -> None:
    """What is predicted is what is done: the same survey, the same candidates."""
    for mean_row_sum, chosen in ((5.0, "drawing keys"), (3000.0, "exact")):
        points = clusters(16_384, 64, mean_row_sum=mean_row_sum, rng=0)
        x = np.ones(16_384, np.float32)
        cost = CostModel(search=400.0, smallest_work=0.0)
        prediction = predicted(problem_of(points, x, eps=1.0, cost=cost), [0.1])[0.1]
        assert prediction.chosen == chosen
        assert (prediction.cost < 1) == (chosen != "exact")
        if chosen == "exact":
            with pytest.raises(Refusal):
                approximate(problem_of(points, x, cost=cost), Trace(), Progress())
        else:
            assert approximate(problem_of(points, x, cost=cost), Trace(), Progress()).worst > 0
