"""Log sums for queries that come later: unbiased, settled rows within the error, batches alike."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_cells import BANDWIDTH, clustered

from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import Policy, SharedDraw
from approxkmv.engine.schemes.shared_keys import FittedSums, draw_keys, exact_sums, fit_sums
from approxkmv.engine.survey.keyside import KeySide
from approxkmv.engine.survey.shared_draw import SumsProblem, importance, probabilities
from approxkmv.loops.compiled import Compiled

N = 4096
RTOL = 0.1


# A few thousand keys are worth a search, so that tests are quick.
ANY_SIZE = CostModel(smallest_work=0)
PAYS = Policy(shared=SharedDraw(worth=3.0))


def problem_of(
    keys: np.ndarray,
    weights: Any = None,
    *,
    rtol: float = RTOL,
    log_floor: float = -math.inf,
    n_threads: int | None = None,
    cost: CostModel = ANY_SIZE,
    policy: Policy = PAYS,
) -> SumsProblem:
    side = KeySide.of(keys, BANDWIDTH, Compiled(n_threads))
    return SumsProblem(side, weights, rtol, log_floor, np.random.default_rng(1), cost, policy)


def fitted(keys: np.ndarray, weights: Any = None, **changes: Any) -> FittedSums:
    return fit_sums(problem_of(keys, weights, **changes))


def exact(keys: np.ndarray, queries: np.ndarray, weights: Any = None) -> np.ndarray:
    return exact_sums(problem_of(keys, weights)).log_row_sums(queries)


@pytest.mark.parametrize("weighted", [False, True])
def test_error_is_within_what_was_allowed(weighted: bool, dtype: np.dtype[Any]) -> None:
    keys, queries = clustered(N).astype(dtype), clustered(1000, seed=5).astype(dtype)
    weights = np.random.default_rng(2).gamma(1.0, size=N) if weighted else None
    sums = fitted(keys, weights)
    assert sums.plan.method == "sampled"
    y = sums.log_row_sums(queries)
    error = np.abs(y - exact(keys, queries, weights))
    assert error.max() <= RTOL
    assert np.median(error) > 1e-5  # it was sampled, not computed exactly


def test_estimate_is_unbiased_and_knows_its_variance() -> None:
    """Over 200 draws the mean is within 5 standard errors of the exact sum, for every query.

    The variance estimate is that of independent draws; a systematic draw is not worse here, so the
    mean estimate must not fall below 0.7 of what is seen (chi-square with 199 degrees of freedom
    stays above 0.7 of its mean with probability 1 - 1e-6 and the sum over queries is steadier).
    """
    keys, queries = clustered(N), clustered(40, seed=5)
    sums = fitted(keys)
    assert sums.search is not None
    order = sums.search.cells.key_order
    # Only pairs of value 0.2 count as near, so that much is left to the draw.
    sums = replace(sums, search=replace(sums.search, threshold=0.2))
    rng = np.random.default_rng(3)
    # Some keys are drawn three times as often as others.
    share = np.where(np.arange(N) % 2, 0.5, 1.5)
    pi = probabilities(share, N // 8)
    runs = [
        replace(sums, draw=draw_keys(np.ones(N), pi, order, rng)).estimate(queries)
        for _ in range(200)
    ]
    y, variance = (np.array(part) for part in zip(*runs, strict=True))
    expected = np.exp(exact(keys, queries))
    standard_error = y.std(axis=0, ddof=1) / math.sqrt(200)
    assert (np.abs(y.mean(axis=0) - expected) < 5 * standard_error + 1e-4 * expected).all()
    assert variance.mean() > 0.7 * y.var(axis=0, ddof=1).mean()


def test_rows_do_not_depend_on_their_batch_nor_on_threads() -> None:
    keys = clustered(N)
    queries = np.concatenate([clustered(200, seed=5), clustered(30, seed=6) * 3])
    whole = fitted(keys).log_row_sums(queries)
    for n_threads in (1, 3):
        sums = fitted(keys, n_threads=n_threads)
        parts = [sums.log_row_sums(queries[a:b]) for a, b in ((0, 1), (1, 8), (8, 230), (230, 230))]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_far_rows_are_computed_exactly_and_below_the_floor_are_said_so() -> None:
    keys = clustered(N)
    far = clustered(20, seed=7) + 30
    expected = exact(keys, far)
    assert (expected < -100).all()
    np.testing.assert_array_equal(fitted(keys).log_row_sums(far), expected)
    floor = -50.0
    assert (fitted(keys, log_floor=floor).log_row_sums(far) <= floor).all()


def test_error_is_within_what_was_allowed_without_structure() -> None:
    """One ball, in which no key is near: whatever is chosen, the error holds."""
    keys = np.random.default_rng(0).standard_normal((N, 32)).astype(np.float32)
    sums = fitted(keys)
    queries = keys[:50] + np.float32(0.1)
    error = np.abs(sums.log_row_sums(queries) - exact(keys, queries))
    assert error.max() <= RTOL


def test_settled_means_five_standard_deviations() -> None:
    sums = replace(exact_sums(problem_of(clustered(500))), rtol=RTOL)
    y = np.array([1.0, 1.0, 0.0, 1e-40, 1e-20])
    deviation = np.array([0.0199, 0.0201, 0.0, 0.0, 1e-22])
    np.testing.assert_array_equal(
        sums.is_settled(y, deviation**2), [True, False, False, False, True]
    )


def test_sums_below_those_of_all_pilot_rows_are_not_settled() -> None:
    """Such a row may have lost all its near keys, of which its variance knows nothing."""
    sums = replace(exact_sums(problem_of(clustered(500))), rtol=RTOL, least=0.5)
    np.testing.assert_array_equal(sums.is_settled(np.array([0.4, 0.6]), np.zeros(2)), [False, True])


def test_keys_are_drawn_as_their_far_values_weigh() -> None:
    """The half nearer to the origin has ten times the far values: 2.4 times the other's rate.

    Root mean squares 1 and 10 have a mean of 5.5; half of the rate is even. A near value in the
    outer half does not count.
    """
    key_shift = np.random.default_rng(0).permutation(640) / 640.0
    values = np.where(key_shift < 0.5, 1e-3, 1e-4) * np.ones((96, 1))
    values[:, np.argmax(key_shift)] = 0.5
    found = importance(values, key_shift, SharedDraw())
    ring_of_the_near_key = key_shift >= 630 / 640
    near, outer = key_shift < 0.5, (key_shift >= 0.5) & ~ring_of_the_near_key
    np.testing.assert_allclose(found[near], 0.5 + 0.5 * 10 / 5.5, rtol=2e-3)
    np.testing.assert_allclose(found[outer], 0.5 + 0.5 * 1 / 5.5, rtol=2e-3)
    assert (found >= 0.5).all()
    np.testing.assert_array_equal(importance(np.zeros((2, 640)), key_shift, SharedDraw()), 1.0)


def test_reasons_for_exact_answers() -> None:
    """Each names what stood in the way, with the numbers known by then."""
    keys = clustered(N)
    ball = np.random.default_rng(0).standard_normal((N, 32)).astype(np.float32)
    for changes, points, reason, number in (
        ({"rtol": 0.0}, keys, "no error is allowed", None),
        ({"cost": CostModel()}, keys, "too few keys", None),
        ({"policy": Policy()}, ball, "too many samples count in each sum", None),
        ({"policy": shared(most_missed=-1.0)}, keys, "hard to find", "missed_share_of_pilot_rows"),
    ):
        plan = fitted(points, **changes).plan
        assert plan.method == "exact"
        assert reason in plan.reason
        assert number is None or number in plan.numbers


def shared(**changes: float) -> Policy:
    return Policy(shared=replace(PAYS.shared, **changes))


def test_the_key_side_is_pickled_and_serves_many_batches() -> None:
    """Copies in another process answer as the original does, batch by batch and for any x."""
    keys, queries = clustered(N), clustered(300, seed=5)
    side = KeySide.of(keys, BANDWIDTH, Compiled(2))
    copy: KeySide = pickle.loads(pickle.dumps(side))
    rng = np.random.default_rng(0)
    batches = queries[:1], queries[1:40], queries[40:]
    for n_columns in (1, 3):
        x = rng.standard_normal((N, n_columns)).astype(keys.dtype)
        whole = side.matrix(queries).product(x).out
        parts = [copy.matrix(batch).product(x).out for batch in batches]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    sums = fitted(keys)
    again: FittedSums = pickle.loads(pickle.dumps(sums))
    assert again.plan.method == "sampled"
    parts = [again.log_row_sums(batch) for batch in batches]
    np.testing.assert_array_equal(np.concatenate(parts), sums.log_row_sums(queries))


def test_draws_are_systematic() -> None:
    """As many keys as asked for, to one; heavy ones always; probabilities as promised."""
    rng = np.random.default_rng(0)
    weights = rng.gamma(0.5, size=1000)
    weights[17] = 500.0
    order = rng.permutation(1000).astype(np.int32)
    pi = probabilities(weights, 50)
    drawn = np.zeros(1000)
    for _ in range(2000):
        draw = draw_keys(weights, pi, order, rng)
        assert abs(len(draw.drawn) - pi.sum()) <= 1
        drawn[draw.drawn] += 1
    assert drawn[17] == 2000
    # 1,000 frequencies, each within 5.6 standard errors: a false alarm has probability 2e-5.
    assert (np.abs(drawn / 2000 - pi) <= 5.6 * np.sqrt(pi * (1 - pi) / 2000) + 1e-3).all()


@pytest.mark.slow
def test_clusters_at_full_size() -> None:
    """65,536 keys in 4,096 clusters of 64 dimensions: no row is off by more than 0.1 nats."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((4096, 64))
    keys, queries = (
        (centres[rng.integers(0, 4096, 65536)] + 0.35 * rng.standard_normal((65536, 64))).astype(
            np.float32
        )
        for _ in range(2)
    )
    sums = fitted(keys)
    assert sums.plan.method == "sampled"
    error = np.abs(sums.log_row_sums(queries[:16384]) - exact(keys, queries[:16384]))
    assert error.max() <= RTOL
