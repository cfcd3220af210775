"""The mean of the values as output: where it is taken, and where it must not be."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
from head_cases import DELTA, Case, D, N, exact_of, flat, gauss, hostile, run, words
from scipy.stats import poisson

from approxkmv.engine.policy import MeanMargins, Policy
from approxkmv.engine.schemes.mean_of_values import (
    MeanRows,
    in_the_way,
    mean_at_most,
    sharpness,
    take_mean,
    unmet,
)
from approxkmv.engine.trace import Refusal, Trace


def test_nearly_uniform_attention_is_the_mean() -> None:
    """A few rows tell that the mean of the values will do for all others."""
    head = flat()
    result = run(head, 0.05)
    assert result is not None
    mean = head.value.mean(axis=0, dtype="f8").astype("f4")
    assert (result.output == mean).all(axis=1).mean() > 0.9
    assert result.error <= 0.05
    assert abs(result.estimate / result.error - 1) <= 0.25


@functools.cache
def long_words(n_long: int = 12) -> Case:
    """Words that are keys. The first few are long, where others hardly vary: they see themselves.

    Their scores vary less over the keys than those of most others.
    """
    points = gauss(N, 64, 5) * (1 + np.arange(64, dtype=np.float32)) ** -0.7
    points *= 4 / np.linalg.norm(points, axis=1, keepdims=True)
    points[:n_long, :32] = 0
    points[:n_long] *= 9 / np.linalg.norm(points[:n_long], axis=1, keepdims=True)
    return Case(points, points, gauss(N, 48, 6), 1 / 8, False)


def test_long_words_that_see_themselves_are_among_the_sharpest_rows() -> None:
    """Which their exact rows tell, and the scores of the longest keys; the variance does not."""
    head = long_words()
    scores = head.scale * (head.query.astype("f8") @ head.key.astype("f8").T)
    weights = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    exact = ((weights - 1 / N) ** 2).sum(axis=1)
    assert set(np.argsort(-exact)[:12]) == set(range(12))
    found = sharpness(head.problem(0.1))
    assert set(np.argsort(-found)[:12]) == set(range(12))
    assert found[:12] == pytest.approx(exact[:12], rel=0.5)
    assert set(np.argsort(-scores.var(axis=1))[:1024]).isdisjoint(range(12))


def test_the_mean_does_if_the_sharpest_rows_are_exact() -> None:
    """Whichever rows are drawn; and what they say of the error is right."""
    head = long_words()
    mean = np.tile(head.value.mean(axis=0, dtype="f8").astype("f4"), (N, 1))
    size = np.linalg.norm(head.value)
    assert np.linalg.norm(mean - head.exact()) > 2 * 0.02 * size
    for seed in range(12):
        found = run(head, 0.02, seed)
        assert found is not None
        assert (found.output == mean).all(axis=1).mean() > 0.9
        assert found.error <= 0.02
        assert abs(found.estimate / found.error - 1) <= 0.25


def test_what_a_mean_is_surely_below() -> None:
    """The largest number met, or less if it is one of many; more than a part not met can be."""
    assert mean_at_most(np.full(7, 3.0), 5.0) == 3
    assert mean_at_most(np.array([0, 0, 0, 8.0]), 5.0) == 8
    assert mean_at_most(np.array([1.0] + 99 * [0]), 5.0) == pytest.approx(0.06)
    for n_rows, expected in ((16, 5), (64, 5), (64, 8)):
        draws = np.random.default_rng(n_rows).random((10_000, n_rows)) < expected / n_rows
        most = np.array([mean_at_most(row.astype(float), unmet(DELTA)) for row in draws])
        assert (most < expected / n_rows).mean() <= DELTA


@pytest.mark.parametrize("delta", [0.3, 0.04, 1e-6])
def test_rows_of_a_kind_that_are_not_met_twice(delta: float) -> None:
    """A Poisson variable of this mean is 0 or 1 with probability delta."""
    assert poisson.cdf(1, unmet(delta)) == pytest.approx(delta, rel=1e-6)


def test_strata_in_the_way() -> None:
    """The fewest parts without which half of the budget is left."""
    parts = np.array([0.1, 3.0, 0.3, 1.0])
    for budget, wanted in ((8.0, [1]), (3.0, [1]), (2.0, [1, 3]), (0.3, [1, 3, 2])):
        assert in_the_way(parts, budget).tolist() == wanted


def test_strata_looked_at_more_closely() -> None:
    """They get four times as many rows, or as many more as they have; all are exact, none lost."""
    head = long_words()
    problem, trace = head.problem(0.1), Trace()
    found = MeanRows(problem, trace, np.arange(N), 16)
    sizes = [len(stratum) for stratum in found.strata]
    assert sizes == [16 * 2**i for i in range(8)]
    assert [len(errors) for errors in found.errors] == 8 * [4]
    found.look_closer(np.array([0, 5]))
    found.look_closer(np.array([0]))
    wanted = [16 + 16, 4, 4, 4, 4, 16, 4, 4]
    assert [len(errors) for errors in found.errors] == wanted
    assert [len(errors) for errors in found.at_least] == wanted
    assert len(found.rows) == 16 + sum(wanted)
    assert trace.pairs == len(found.rows) * N
    exact = exact_of(head)
    np.testing.assert_allclose(found.outputs, exact[found.rows], atol=1e-5)
    mean = head.value.mean(axis=0, dtype="f8")
    errors = problem.head.moved.value_factor**2 * ((exact - mean) ** 2).sum(axis=1)
    for stratum, drawn in zip(found.strata, found.errors, strict=True):
        assert np.isclose(drawn[:, None], errors[stratum], rtol=1e-3).any(axis=1).all()


@pytest.mark.parametrize("guarded", [True, False])
def test_rows_that_look_at_few_large_values_are_not_missed(guarded: bool) -> None:
    """One value in forty is not zero: few rows have all of the mean's error, and few are drawn.

    From what the rows drawn find alone, three of these 16 heads got a mean that is not within eps.
    """
    policy = Policy() if guarded else Policy(mean=MeanMargins(least_that_matter=0.0))
    n_sampled = 0
    for seed in range(8):
        value = np.zeros((N, 48), np.float32)
        value[np.random.default_rng(seed).permutation(N)[: N // 40]] = 1
        head = words(sharp=0.6)._replace(value=value)
        for eps in (0.1, 0.03):
            found = run(head, eps, seed, policy=policy)
            assert found is None or found.error <= eps
            n_sampled += found is not None
    assert n_sampled >= 8


def two_groups(share: float, *, blunt: float) -> Case:
    """Queries of one norm: a share of them looks at one key in sixteen, whose values have 1 added.

    The others look at as many other keys, with scores of size ``blunt``; their values are noise.
    """
    rng = np.random.default_rng(0)
    query, key = np.zeros((2, N, D), np.float32)
    apart = rng.permutation(N)[: N // 8]
    key[apart[::2], 0] = key[apart[1::2], 1] = 1
    query[:, 1], query[:, 2] = blunt, np.sqrt(16 - blunt**2)
    query[rng.permutation(N)[: round(share * N)], :3] = 4, 0, 0
    value = 0.1 * gauss(N, 48, 3)
    value[apart[::2], 0] += 1
    return Case(query, key, value, 1.0, False)


def means_taken(head: Case, eps: float, n_runs: int) -> int:
    taken = 0
    for seed in range(n_runs):
        with contextlib.suppress(Refusal):
            take_mean(head.problem(eps, seed), Trace())
            taken += 1
    return taken


@pytest.mark.parametrize(("share", "blunt", "eps"), [(0.4, 4.0, 0.14), (0.03, 0.0, 0.1)])
def test_the_mean_is_not_taken_for_some_rows_far_from_it(
    share: float, blunt: float, eps: float
) -> None:
    """Two in five rows that nothing tells from the others; or few rows, of no larger norm.

    The mean would be wrong even if the 64 sharpest rows were exact. Of the first head 32 rows are
    drawn, and all of the five largest strata miss the bad rows with probability 4e-5. Without what
    is added to the values, the same scores leave the mean as the answer.
    """
    head = two_groups(share, blunt=blunt)
    squares = ((exact_of(head) - head.value.mean(axis=0)) ** 2).sum(axis=1)
    assert np.sort(squares)[:-64].sum() > (eps * np.linalg.norm(head.value)) ** 2
    assert means_taken(head, eps, 10) == 0
    assert means_taken(head._replace(value=0.1 * gauss(N, 48, 3)), eps, 10) == 10


def test_equal_values_are_the_output() -> None:
    for name, head in hostile():
        if name == "equal values":
            result = run(head, 0.1)
            assert result is not None
            assert (result.output == np.float32(3.7)).all()
            assert result.estimate == 0
