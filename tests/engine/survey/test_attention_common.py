"""Rates that blocks of a head have in common: what they are, and whether they keep the promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from head_cases import COST, DELTA, Case, D, N, flat, gauss, run, words
from scipy.stats import binom

from approxkmv.engine.survey.attention_common import for_all_blocks, with_common_rates
from approxkmv.engine.survey.attention_order import every_nth, order_blocks, some_blocks
from approxkmv.engine.survey.attention_pilot import HeadPilot, run_head_pilot
from approxkmv.loops.types import AttentionBlocks

COMMON = replace(COST, head_pilot_pair=1e9)  # rows of every block are never worth their price
SHARE = 1 / 3


def pilot_of(case: Case) -> tuple[HeadPilot, AttentionBlocks]:
    problem = case.problem(0.2)
    blocks = order_blocks(problem.head, problem.policy.head_shape)
    some = some_blocks(blocks, every_nth(len(blocks.band_start), 3, 1))
    return run_head_pilot(problem, some, SHARE), blocks


def test_a_key_counts_for_its_mean_over_blocks_that_do_not_always_take_it() -> None:
    pilot, _ = pilot_of(words(2048))
    found, moments, blocks = with_common_rates(pilot, SHARE), pilot.moments, pilot.blocks
    assert found.moments.guarded.shape == (1, 2048)
    assert (blocks.band_stop > blocks.band_start).any()
    for j in range(0, 2048, 37):
        left = (j < blocks.band_start) | (j >= blocks.band_stop)
        want = moments.guarded[left, j].mean() if left.any() else 0.0
        assert found.moments.guarded[0, j] == pytest.approx(want, rel=1e-5)
    # Rates of their own need fewer pairs for the variance that both are solved for.
    assert found.rate.pairs > pilot.rate.pairs


def test_all_blocks_are_checked_with_exact_rows() -> None:
    case = words(2048)
    few, blocks = pilot_of(case)
    common = with_common_rates(few, SHARE)
    pilot = for_all_blocks(common, blocks, SHARE)
    head = pilot.problem.head
    exact = (case.exact() - head.value_centre) * head.moved.value_factor
    assert len(pilot.checks) == len(pilot.near) == len(blocks.band_start)
    np.testing.assert_allclose(pilot.checked, exact[pilot.checks], atol=1e-5)
    np.testing.assert_allclose(pilot.moments.outputs, exact[pilot.rows], atol=1e-5)
    assert pilot.rate.pairs == pytest.approx(common.rate.pairs / SHARE)
    block_of = np.empty(2048, int)
    block_of[blocks.query_order] = np.repeat(np.arange(len(pilot.checks)), np.diff(blocks.start))
    assert (block_of[pilot.checks] == np.arange(len(pilot.checks))[:, None]).all()


def clusters(seed: int, n_clusters: int) -> Case:
    """Queries and keys in clusters that hardly look at each other."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.standard_normal((n_clusters, D))
    of = rng.integers(n_clusters, size=N)
    key = (centres[of] + 0.7 * rng.standard_normal((N, D))).astype(np.float32)
    return Case(key, key, gauss(N, 1, seed + 1), 0.5 / D**0.5, False)


def one_column(case: Case) -> Case:
    return case._replace(value=np.ascontiguousarray(case.value[:, :1]))


def few_sharp_rows() -> Case:
    """Four queries in a thousand look at single keys."""
    case = words(sharp=0.5)
    query = case.query.copy()
    query[::256] *= 20
    return case._replace(query=query)


def heavy_key() -> Case:
    """A key that every query looks at."""
    case = words(sharp=0.5)
    key = case.key.copy()
    key[5] = 4 * case.query.mean(axis=0)
    return case._replace(key=key)


def check_statistics(n_runs: int) -> None:
    """Errors above eps are at most as frequent as delta allows, short of chance (1e-6)."""
    cases = [words(sharp=0.5), one_column(words(seed=1)), clusters(0, 8), clusters(1, 64)]
    cases += [few_sharp_rows(), heavy_key(), one_column(flat())]
    n_common, ratios, estimates = 0, [], []
    for i in range(n_runs):
        eps = (0.1, 0.2)[i // len(cases) % 2]
        result = run(cases[i % len(cases)], eps, i, cost=COMMON)
        if result is not None:
            n_common += bool(result.numbers.get("common_rates", False))
            ratios.append(result.error / eps)
            estimates.append(result.estimate / result.error)
    print(f"{n_common} of {n_runs} with common rates; error / eps up to {max(ratios):.2f}")
    print("estimate / error", np.quantile(estimates, [0.01, 0.1, 0.5, 0.9, 0.99]).round(2))
    assert n_common >= n_runs / 3
    assert (np.array(ratios) > 1).sum() <= binom.isf(1e-6, n_runs, DELTA)


def test_statistics_of_a_few_runs() -> None:
    check_statistics(14)


@pytest.mark.slow
def test_statistics_of_many_runs() -> None:
    check_statistics(280)
