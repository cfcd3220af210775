"""Drawing keys: rates of the first draw, of more draws, and after some blocks were seen."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_cases import outcome_of

from approxkmv.datasets import clusters
from approxkmv.engine.cost import CostModel
from approxkmv.engine.exact_rows import standing_out
from approxkmv.engine.neighbours.missing import Missing
from approxkmv.engine.neighbours.schedule import NearSearch
from approxkmv.engine.policy import KeyMargins, Policy, Shape
from approxkmv.engine.problem import Budget
from approxkmv.engine.refine import Draws
from approxkmv.engine.schemes import drawn_keys
from approxkmv.engine.schemes.drawn_keys import (
    Drawing,
    DrawnKeys,
    calibration_factor,
    least_factor,
)
from approxkmv.engine.statistics import spread, sums_by_block
from approxkmv.engine.survey.forecast import Forecast
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.rates import Rates
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.types import SampledSums

# A first draw of exactly this size: neither raised nor lowered by what was spent before.
AT_ONCE = {"first_share": 0.0, "first_share_few": 0.0}


def keys_at(factor: float, **margins: float) -> Policy:
    """The first draw at this factor."""
    fixed = {"lowered": factor, "raised": factor, "room": 1e9, **AT_ONCE, **margins}
    return Policy(keys=KeyMargins(**fixed))  # type: ignore[arg-type]


def test_a_larger_error_costs_fewer_pairs() -> None:
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    results = [outcome_of(points, x, eps=eps).result for eps in (0.3, 0.03)]
    pairs = [math.inf if result is None else result.pairs for result in results]
    assert pairs[0] < pairs[1]


class Spy:
    """Writes down the rates and sums of every draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates: list[np.ndarray] = []
        self.sums: list[SampledSums] = []
        self.options: list[dict[str, Any]] = []
        draw = Drawing.__call__

        def noted(drawing: Drawing, rate: np.ndarray, stream: int, **options: Any) -> SampledSums:
            self.rates.append(rate)
            self.options.append(options)
            self.sums.append(draw(drawing, rate, stream, **options))
            return self.sums[-1]

        monkeypatch.setattr(Drawing, "__call__", noted)


@pytest.mark.usefixtures("any_size")
def test_draws_that_fall_short_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a draw that is too small by design the next ones add what is missing, rather than
    start anew. Together they have the error asked for."""
    spy = Spy(monkeypatch)
    points, x = clusters(16_384, 64, rng=0), np.ones(16_384, np.float32)
    found = outcome_of(points, x, eps=0.04, policy=keys_at(0.5))
    assert found.result is not None
    assert found.trace.numbers["draws"] == len(spy.rates) == 2
    ratio = float(np.median(spy.rates[1] / spy.rates[0]))
    exact = prepare(points.queries, points.keys, points.bandwidth).product(x[:, None]).out
    answers = [*(sums.out for sums in spy.sums), found.result.y]
    squared = [np.square(y - exact).sum() for y in answers]
    assert squared[-1] <= 0.04**2 * 16_384
    assert squared[-1] < squared[0]
    # Pilot and recomputed rows are exact: all others are what both draws say together.
    weight = 1 / (1 + ratio)
    both = weight * spy.sums[0].out + (1 - weight) * spy.sums[1].out
    assert (np.abs(found.result.y - both) < 1e-4).mean() > 0.9


def test_rates_of_more_draws() -> None:
    """In proportion to what is missing; at least as high as before where keys are drawn often, by
    the sizes of the entries of x."""
    scheme = object.__new__(DrawnKeys)
    scheme.margins = KeyMargins()
    rates = Rates(np.array([[0.01, 0.2, 0.5]]), 1.0, np.ones(1))

    class Known:
        forecast = Forecast(rates, 1.0, np.inf, 0.0)

        class forecaster:  # noqa: N801
            class entries:  # noqa: N801
                rms = np.array([1.0, 2.0, 0.3])

    scheme.near = scheme.survey = Known  # type: ignore[assignment]
    drawn = Draws(SampledSums(*(np.zeros(0),) * 4), np.ones(1))
    for factor, before, want in (
        (0.2, None, [0.002, 0.04, 0.1]),
        (0.2, drawn, [0.002, 0.2, 0.1]),
        (3.0, drawn, [0.03, 0.6, 1.5]),
    ):
        np.testing.assert_allclose(scheme.rates(factor, before), [want])


@pytest.mark.parametrize(
    ("draws", "worst", "recomputed"),
    [
        # All rows too large by a tenth: 1,200 of 10,000 rows, or a third more draws.
        (0.05, 1.15, False),
        (0.9, 1.15, True),
        # A few rows have all that is too much.
        (0.05, 34.0, True),
    ],
)
def test_rows_are_recomputed_where_more_draws_would_cost_more(
    draws: float, worst: float, recomputed: bool
) -> None:
    n, block_of = 10_000, np.repeat(np.arange(100, dtype=np.int32), 100)
    variance = np.ones(n)
    variance[:: n // 30 if worst > 2 else 1] = worst
    allowed = 1.05 * n * spread(sums_by_block(np.full(n, 1.0), block_of, 100), 0.01)
    scheme = object.__new__(DrawnKeys)
    scheme.margins = KeyMargins()
    scheme.problem = SimpleNamespace(  # type: ignore[assignment]
        n_queries=n,
        n_keys=n,
        n_pairs=n * n,
        budget=Budget(allowed, 0.01),
        weighed=lambda squares: squares,
    )
    blocks = Blocks(np.arange(n, dtype=np.int32), np.arange(0, n + 1, 100), block_of)
    pilot = SimpleNamespace(rows=np.empty(0, np.int64))
    scheme.survey = SimpleNamespace(query_blocks=blocks, pilot=pilot)  # type: ignore[assignment]
    scheme.near = SimpleNamespace(  # type: ignore[assignment]
        missing=Missing(0.0, 0.0), forecast=SimpleNamespace(cost=draws * n * n)
    )
    drawn = Draws(SampledSums(np.zeros(n), variance, np.zeros(n), np.zeros(100)), np.ones(100))
    most = scheme._most_rows(drawn)
    outstanding = len(standing_out(variance, n))
    needed = 1000 if worst < 2 else 20
    assert (most >= needed) == recomputed
    assert recomputed or most == outstanding
    assert most < 0.25 * n


def test_a_polynomial_is_taken_out_where_it_pays() -> None:
    """Half as many draws or fewer on clusters; none where the costs of moments exceed the gain."""
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    # The moments cost what they save here, of so few points.
    with_part = outcome_of(points, x, cost=CostModel(polynomial_per_dim=0.0))
    assert with_part.result is not None
    assert "polynomial" in with_part.result.reason
    numbers = with_part.trace.numbers
    assert numbers["squares_left_by_polynomial"] < 0.5
    assert numbers["predicted_cost_with_polynomial"] < numbers["predicted_cost_of_drawing_keys"]
    without = outcome_of(points, x, cost=CostModel(polynomial_per_dim=np.inf))
    assert without.result is not None
    assert "polynomial" not in without.result.reason
    share = "share_if_all_near_pairs_were_known"
    assert numbers[share] < 0.5 * without.trace.numbers[share]


def test_several_columns_have_no_polynomial() -> None:
    points, x = clusters(8192, 64, rng=0), np.ones((8192, 2), np.float32)
    found = outcome_of(points, x, cost=CostModel(polynomial_per_dim=0.0))
    assert found.result is not None
    assert "squares_left_by_polynomial" not in found.trace.numbers


def test_least_factor() -> None:
    """A share of what was spent, so many times the forecast at most; more where few entries of x
    are large."""
    even, few, margins = np.ones(1000, np.float32), np.zeros(1000, np.float32), KeyMargins()
    few[:3] = 1.0
    assert least_factor(even, 10.0, 1.0, margins) == pytest.approx(10 * margins.first_share)
    assert least_factor(few, 10.0, 1.0, margins) == pytest.approx(10 * margins.first_share_few)
    assert least_factor(even, 1e9, 1.0, margins) == margins.at_most_larger
    assert least_factor(few, 1e9, 1.0, margins) == margins.at_most_larger_few


def test_calibration_factor() -> None:
    """Blocks that vary half as much as was predicted halve the rates, with what is missing and one
    standard error in mind; no farther than is believed."""
    variance, some = np.full(640, 2.0), np.arange(4, 640, 8)
    seen, above, margins = np.full(80, 1.0), spread(variance, 0.5), KeyMargins()
    room = margins.room * 1000.0

    def factor(
        seen: np.ndarray, factor: float = 1.0, missing: float = 0.0, rare: float = 0.0
    ) -> float:
        near = object.__new__(NearSearch)
        near.forecast = Forecast(Rates(np.ones((640, 1)), 1.0, variance), 1.0, np.inf, rare)
        near.missing = Missing(0.0, missing)
        near.problem = type("P", (), {"budget": Budget(1000.0, 0.5)})()
        return calibration_factor(near, margins, seen, some, factor)

    assert factor(seen) == pytest.approx(0.5 * 1280 * above / room)
    assert factor(seen, missing=100.0) == pytest.approx(640 * above / (room - 100))
    assert factor(seen, rare=200.0) == pytest.approx(640 * above / (room - 200))
    uneven = np.tile([0.5, 1.5], 40)
    error = np.sqrt(80 * 0.25) / 160
    assert factor(uneven) == pytest.approx((0.5 + error) * 1280 * above / room)
    # Blocks drawn at twice the rates have half the variance.
    assert factor(0.9 * seen, 2.0) == pytest.approx(0.9 * 1280 * above / room)
    lowest, highest = margins.calibration
    assert factor(1e-9 * seen) == lowest
    assert factor(1e9 * seen) == highest


@pytest.mark.parametrize("n_blocks", [16, 64])
def test_some_blocks_calibrate_others(monkeypatch: pytest.MonkeyPatch, n_blocks: int) -> None:
    """Where there are enough blocks: those drawn first keep the first rates."""
    spy = Spy(monkeypatch)
    monkeypatch.setattr(drawn_keys, "calibration_factor", lambda *_: 1.75)
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    policy = replace(keys_at(1.25), shape=Shape(rows_per_block=8192 // n_blocks))
    found = outcome_of(points, x, policy=policy)
    assert found.trace.numbers["blocks"] == n_blocks
    assert found.result is not None
    if n_blocks == 16:
        assert len(spy.options) == 1
        return
    first, others = (options["blocks"] for options in spy.options)
    assert {*first, *others} == {*range(64)}
    assert len(first) == 8
    np.testing.assert_allclose(spy.rates[1] / spy.rates[0], 1.4)
    exact = prepare(points.queries, points.keys, points.bandwidth).product(x[:, None]).out
    assert np.square(found.result.y - exact).sum() <= 0.1**2 * 8192


def test_first_draws_are_not_too_small() -> None:
    """Draws cost more than half of what was spent before them."""
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)

    def drawn_pairs(**margins: float) -> int:
        policy = Policy(keys=KeyMargins(**margins))  # type: ignore[arg-type]
        result = outcome_of(points, x, policy=policy).result
        assert result is not None
        return result.pairs

    usual = drawn_pairs(**AT_ONCE)
    assert drawn_pairs(first_share=1e9, at_most_larger=2.0) > 1.3 * usual
