"""Forecasts from pilots that hold every row, so that all sums are known from the kernel matrix."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import Case, clustered, problem_of

from approxkmv.engine.cost import CostModel
from approxkmv.engine.survey import forecast as module
from approxkmv.engine.survey.calibration import Pooled, pooled
from approxkmv.engine.survey.forecast import Forecaster
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import Entries, solve_rates
from approxkmv.loops.types import FoundPairs

THRESHOLD = 0.03
NONE = FoundPairs.none(300)


@functools.cache
def case_and_pilot(rows_per_block: int = 1000) -> tuple[Case, Pilot]:
    case = clustered()
    pilot = run_pilot(
        case.kernel,
        np.ones(400),
        case.query_blocks,
        case.key_tiles,
        rows_per_block=rows_per_block,
        threshold=THRESHOLD,
        rng=np.random.default_rng(0),
    )
    return case, pilot


def forecaster_of(x: np.ndarray, target: float, rows_per_block: int = 1000) -> Forecaster:
    case, pilot = case_and_pilot(rows_per_block)
    return Forecaster(problem_of(case.kernel, x), pilot, target, Pooled(pilot))


def rates_by_definition(x: np.ndarray, left: np.ndarray, target: float) -> np.ndarray:
    """Rates for the pairs left to the draws (a mask), from the kernel matrix."""
    case, _ = case_and_pilot()
    of_block = case.query_blocks.block_of[:, None] == np.arange(len(case.query_blocks.sizes))
    of_tile = case.key_tiles.block_of[:, None] == np.arange(len(case.key_tiles.sizes))
    sums = of_block.T.astype(float) @ np.where(left, case.K**2, 0.0) @ of_tile
    moment = pooled(sums / np.outer(case.query_blocks.sizes, case.key_tiles.sizes))
    entries = Entries(x, case.key_tiles)
    rates = solve_rates(moment, entries, case.query_blocks, case.key_tiles, target).rate
    return np.maximum(rates, 32 / np.abs(x).sum())  # every block draws 32 keys


def squares_of_near(x: np.ndarray) -> float:
    case, _ = case_and_pilot()
    return float((np.where(case.K >= THRESHOLD, case.K, 0.0) ** 2 @ x**2).sum())


@pytest.mark.parametrize("recall", [0.0, 0.5, 1.0])
def test_missed_near_pairs_raise_the_rates(recall: float) -> None:
    """The rates are those of all pairs that were not found: light ones and missed near ones. At
    this target no near pair is rare."""
    case, _ = case_and_pilot()
    x = np.ones(400)
    target = 0.1 * squares_of_near(x)
    found = case.pairs(THRESHOLD, recall)
    left = np.ones(case.K.shape, np.bool_)
    left[found.rows, found.cols] = False
    forecast = forecaster_of(x, target)(found)
    assert forecast.rare_from == np.inf
    # Near values are kept in float32; the bisection ends within 0.001.
    want = rates_by_definition(x, left, target)
    np.testing.assert_allclose(forecast.rates.rate, want, rtol=2e-3)
    # As if the pairs missed did not exist, the rates would be far too low.
    careless = rates_by_definition(x, case.K < THRESHOLD, target)
    if recall < 1:
        assert (forecast.rates.rate > 2 * careless).mean() > 0.5


def test_rates_keep_the_variance_of_missed_pairs_below_the_target() -> None:
    """Variance by the formula, over all pairs: near the target with the forecast's rates (pooled
    tiles differ by a factor of a few), several times as much with those for known pairs."""
    case, _ = case_and_pilot()
    x = np.ones(400)
    target = 0.1 * squares_of_near(x)
    forecaster = forecaster_of(x, target)

    def variance(rate: np.ndarray) -> float:
        pi = np.minimum(1.0, rate[case.query_blocks.block_of][:, case.key_tiles.block_of])
        return float(((1 / pi - 1) * case.K**2).sum())

    assert variance(forecaster(NONE).rates.rate) <= 2 * target
    assert variance(forecaster.all_known().rates.rate) > 6 * target


def test_finding_pairs_makes_the_forecast_cheaper() -> None:
    """Down to that of perfect knowledge, which is what a search can gain at most."""
    case, _ = case_and_pilot()
    x = np.ones(400)
    forecaster = forecaster_of(x, 0.1 * squares_of_near(x))
    costs = [
        forecaster(found).cost
        for found in (NONE, *(case.pairs(THRESHOLD, r) for r in (0.3, 0.6, 0.9, 1.0)))
    ]
    assert (np.diff(costs) < 0).all()
    best = forecaster.all_known()
    assert costs[-1] == pytest.approx(best.cost, rel=1e-9)
    assert best.cost == pytest.approx(CostModel().drawn(6) * best.rates.pairs)


def few_missed(n_missed: int) -> FoundPairs:
    """All near pairs but a few of the largest ones, each of another row."""
    case, _ = case_and_pilot()
    found = case.pairs(THRESHOLD)
    order = np.argsort(found.values)[::-1]
    _, first = np.unique(found.rows[order], return_index=True)
    lost = order[np.sort(first)[:n_missed]]
    kept = np.ones(len(found.cols), np.bool_)
    kept[lost] = False
    indptr = np.append(0, np.cumsum(np.bincount(found.rows[kept], minlength=300))).astype(np.int64)
    return FoundPairs(indptr, found.cols[kept], found.values[kept])


@pytest.mark.parametrize("allowance", [20.0, 7.0, 6.0, 1.0])
def test_rare_pairs_take_their_share_of_the_error_and_no_more(allowance: float) -> None:
    """Pairs left out of the rates cost twice their squares, at most 0.3 of the target: where it is
    6.7 times their squares or more they may be left out, and not where it is less. Then the rates
    are made for what is left of the target, and for the pairs that are left."""
    case, _ = case_and_pilot()
    x = np.ones(400)
    found = few_missed(3)
    held = np.zeros(case.K.shape, np.bool_)
    held[found.rows, found.cols] = True
    missed = (case.K >= THRESHOLD) & ~held
    assert missed.sum() == 3
    assert case.K[missed].min() >= 0.5
    mass = float((case.K[missed] ** 2).sum())
    target = allowance * mass
    forecast = forecaster_of(x, target)(found)
    assert 2 * forecast.rare_mass <= 0.3 * target * (1 + 1e-6)
    if 2 * mass > 0.3 * target:
        assert forecast.rare_from == np.inf
        assert forecast.rare_mass == 0
        return
    assert forecast.rare_from <= 0.5
    assert forecast.rare_mass == pytest.approx(mass, rel=1e-5)
    want = rates_by_definition(x, ~held & ~missed, target - 2 * mass)
    np.testing.assert_allclose(forecast.rates.rate, want, rtol=2e-3)


def test_rare_pairs_are_mended_at_the_cost_of_a_row() -> None:
    """Of the rows with a rare pair those are mended in which it is drawn."""
    case, pilot = case_and_pilot()
    x = np.ones(400)
    found = few_missed(3)
    forecast = forecaster_of(x, 100.0)(found)
    assert forecast.rare_from <= 0.5
    missed = pilot.missed(found)
    block, tile = pilot.block_of[pilot.near_row], case.key_tiles.block_of[pilot.near_col]
    drawn = np.minimum(1.0, forecast.rates.rate[block, tile])[missed].sum()
    assert drawn > 0
    assert forecast.cost == pytest.approx(CostModel().drawn(6) * forecast.rates.pairs + drawn * 400)


@pytest.mark.parametrize("rows_per_block", [1000, 8])
def test_rare_pairs_of_a_row_add_up_with_their_signs(rows_per_block: int) -> None:
    """What a row lacks is the sum of its terms: pairs of one sign weigh more than their squares,
    pairs of opposite signs less. Each row of the pilot stands for several."""
    case, pilot = case_and_pilot(rows_per_block)
    near = np.where(case.K >= THRESHOLD, case.K, 0.0)[pilot.rows]
    everything = np.ones(len(pilot.near_row), np.bool_)
    rng = np.random.default_rng(0)
    of_rows = case.query_blocks.sizes[pilot.block_of] / np.bincount(pilot.block_of)[pilot.block_of]
    squares = float(of_rows @ (near**2).sum(axis=1))
    for x in (np.ones(400), rng.choice([-1.0, 1.0], 400)):
        forecaster = forecaster_of(x, 1.0, rows_per_block)
        got = forecaster._square_of(everything)
        assert got == pytest.approx(float(of_rows @ (near @ x) ** 2), rel=1e-5)
        if (x > 0).all():
            assert got > 3 * squares
        else:
            assert got < 3 * squares
        assert forecaster._square_of(~everything) == 0


def test_opposite_signs_make_pairs_rare_that_would_not_be_otherwise() -> None:
    """Two equal keys next to a query: with opposite signs nothing is lost by leaving both out."""
    case, pilot = case_and_pilot()
    row = np.flatnonzero(np.bincount(pilot.near_row) >= 2)[0]
    two = np.flatnonzero(pilot.near_row == row)[:2]
    pair = replace(
        pilot,
        near_row=pilot.near_row[two],
        near_col=pilot.near_col[two],
        near_square=np.array([0.81, 0.81]),
        near_weight=np.ones(2),
    )
    target = 5.0
    for sign, rare in ((1.0, False), (-1.0, True)):
        x = np.full(400, 1.0)
        x[pair.near_col[1]] = sign
        forecaster = Forecaster(problem_of(case.kernel, x), pair, target, Pooled(pair))
        options = forecaster(NONE)
        allowed = module._RARE_FACTOR * forecaster._square_of(np.ones(2, np.bool_))
        assert (allowed <= module._MOST_RARE * target) == rare
        assert (options.rare_from < np.inf) == rare
