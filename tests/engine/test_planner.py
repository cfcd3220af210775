from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from approxkmv.datasets import clusters
from approxkmv.engine import planner
from approxkmv.engine.neighbours.search import Missing, Search
from approxkmv.engine.result import Clock, Outcome, worth_a_look
from approxkmv.engine.sample import Draws, spread
from approxkmv.engine.survey.forecast import Forecast
from approxkmv.engine.survey.rates import Rates
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.types import SampledSums


def outcome_of(points: Any, x: np.ndarray, *, eps: float = 0.1, seed: int = 0) -> Outcome:
    kernel = prepare(points.queries, points.keys, points.bandwidth)
    return planner.sampled(
        kernel, points.bandwidth, x[:, None], eps=eps, delta=0.05, rng=np.random.default_rng(seed)
    )


def test_small_products_are_not_looked_at() -> None:
    assert not worth_a_look(100, 100, 64)
    assert not worth_a_look(4096, 4096, 64)
    assert worth_a_look(10**6, 10**6, 2)


def test_zero_needs_no_draws() -> None:
    outcome = outcome_of(clusters(2048, 16, rng=0), np.zeros(2048, np.float32))
    assert outcome.sample is None
    assert outcome.pairs == 0
    assert "zero" in outcome.reason


def test_sampled_product_says_what_it_did() -> None:
    """Pairs are counted, stages timed, and the estimate is below what is allowed."""
    points = clusters(8192, 64, rng=0)
    x = np.random.default_rng(0).standard_normal(8192).astype(np.float32)
    outcome = outcome_of(points, x)
    assert outcome.sample is not None
    assert outcome.sample.pairs < outcome.pairs < 8192**2
    assert {"order", "pilot", "draw"} <= set(outcome.seconds)
    assert min(outcome.seconds.values()) >= 0
    allowed = (0.1 * float(np.linalg.norm(x))) ** 2
    assert max(outcome.sample.upper, outcome.sample.checked) <= allowed
    assert outcome.sample.variance <= outcome.sample.upper


def test_a_larger_error_costs_fewer_pairs() -> None:
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    samples = [outcome_of(points, x, eps=eps).sample for eps in (0.3, 0.03)]
    pairs = [math.inf if sample is None else sample.pairs for sample in samples]
    assert pairs[0] < pairs[1]


@pytest.mark.parametrize("mean_row_sum", [500.0, 3000.0])
def test_dense_kernels_are_left_to_the_exact_product(mean_row_sum: float) -> None:
    """Rows that sum to a large share of the number of keys: no draws are made."""
    points = clusters(4096, 8, mean_row_sum=mean_row_sum, rng=0)
    outcome = outcome_of(points, np.ones(4096, np.float32), eps=0.03)
    assert outcome.sample is None
    assert "draw" not in outcome.seconds


def test_draws_that_fall_short_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a draw that is too small by design the next ones add what is missing, rather than
    start anew. Together they have the error asked for."""
    rates, sums = [], []

    def spy(judge: Any, found: Any, size: Any, rate: np.ndarray, *args: Any, **options: Any) -> Any:
        rates.append(rate)
        sums.append(draw(judge, found, size, rate, *args, **options))
        return sums[-1]

    draw = planner.draw
    monkeypatch.setattr(planner, "draw", spy)
    monkeypatch.setattr(planner, "first_factor", lambda *_: 0.5)
    monkeypatch.setattr(planner, "least_factor", lambda *_: 0.0)
    points, x = clusters(16_384, 64, rng=0), np.ones(16_384, np.float32)
    outcome = outcome_of(points, x, eps=0.04)
    assert outcome.sample is not None
    assert outcome.numbers["draws"] == len(rates) == 2
    ratio = float(np.median(rates[1] / rates[0]))
    exact = prepare(points.queries, points.keys, points.bandwidth).product(x[:, None]).out
    squared = [np.square(y - exact).sum() for y in (*(s.out for s in sums), outcome.sample.y)]
    assert squared[-1] <= 0.04**2 * 16_384
    assert squared[-1] < squared[0]
    # Pilot and mended rows are exact: all others are what both draws say together.
    weight = 1 / (1 + ratio)
    both = weight * sums[0].out + (1 - weight) * sums[1].out
    assert (np.abs(outcome.sample.y - both) < 1e-4).mean() > 0.9


def test_rates_of_more_draws() -> None:
    """In proportion to what is missing; at least as high as before where keys are drawn often, by
    the sizes of the entries of x."""
    rates = Rates(np.array([[0.01, 0.2, 0.5]]), 1.0, np.ones(1))
    learnt: Any = SimpleNamespace(
        forecaster=SimpleNamespace(entries=SimpleNamespace(rms=np.array([1.0, 2.0, 0.3])))
    )
    drawn = Draws(SampledSums(*(np.zeros(0),) * 4), np.ones(1))
    for factor, before, want in (
        (0.2, None, [0.002, 0.04, 0.1]),
        (0.2, drawn, [0.002, 0.2, 0.1]),
        (3.0, drawn, [0.03, 0.6, 1.5]),
    ):
        got = planner._rates(rates, learnt, factor, before)
        np.testing.assert_allclose(got, [want])


def test_more_first_tilings_where_few_pairs_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three where points that found too few partners are known by that, and searched again. Where
    they are not four, if these found half of the near pairs, or seven, of keys cut nine times."""
    monkeypatch.setattr(planner, "cell_depth", lambda _: 9)
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    assert outcome_of(points, x).numbers["tilings"] == 3
    monkeypatch.setattr(Search, "lone", lambda _: False)
    assert outcome_of(points, x).numbers["tilings"] == 4
    monkeypatch.setattr(planner, "_LEADS_ON", 1.1)
    assert outcome_of(points, x).numbers["tilings"] == 7


def test_a_smooth_part_is_taken_out_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many draws or fewer on clusters; none where the costs of moments exceed the gain, nor
    of several columns."""
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    # The moments cost what they save here, of so few points.
    monkeypatch.setattr(planner, "smooth_cost", lambda *_: 0.0)
    with_part = outcome_of(points, x)
    assert "smooth part" in with_part.reason
    assert with_part.sample is not None
    numbers = with_part.numbers
    assert numbers["squares_left_by_smooth_part"] < 0.5
    assert numbers["predicted_cost_with_smooth_part"] < numbers["predicted_cost_of_drawing_keys"]
    monkeypatch.setattr(planner, "smooth_cost", lambda *_: np.inf)
    without = outcome_of(points, x)
    assert "smooth part" not in without.reason
    share = "share_if_all_near_pairs_were_known"
    assert numbers[share] < 0.5 * without.numbers[share]
    monkeypatch.setattr(planner, "worth_fitting", lambda _: False)
    assert "squares_left_by_smooth_part" not in outcome_of(points, x).numbers


def test_least_factor() -> None:
    """A share of what was spent, so many times the forecast at most; more where few entries of x
    are large."""
    even, few = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    few[:3] = 1.0
    (share, larger_share), (most, larger_most) = planner._FIRST_SHARE, planner._AT_MOST_LARGER
    assert planner.least_factor(even, 10.0, 1.0) == pytest.approx(10 * share)
    assert planner.least_factor(few, 10.0, 1.0) == pytest.approx(10 * larger_share)
    assert planner.least_factor(even, 1e9, 1.0) == most
    assert planner.least_factor(few, 1e9, 1.0) == larger_most


def test_told_factor() -> None:
    """Blocks that vary half as much as was predicted halve the rates, with what is missing and one
    standard error in mind; not below what is least, nor farther than is believed."""
    variance, some = np.full(640, 2.0), np.arange(4, 640, 8)
    seen, above = np.full(80, 1.0), spread(variance, 0.5)
    room = planner._ROOM * 1000.0

    def told(
        seen: np.ndarray,
        factor: float = 1.0,
        missing: float = 0.0,
        rare: float = 0.0,
        least: float = 0.0,
    ) -> float:
        forecast = Forecast(Rates(np.ones((640, 1)), 1.0, variance), 1.0, np.inf, rare)
        learnt: Any = SimpleNamespace(
            forecast=forecast, allowed=1000.0, missing=Missing(0.0, missing)
        )
        return planner.told_factor(learnt, seen, some, factor, delta=0.5, least=least)

    assert told(seen) == pytest.approx(0.5 * 1280 * above / room)
    assert told(seen, missing=100.0) == pytest.approx(640 * above / (room - 100))
    assert told(seen, rare=200.0) == pytest.approx(640 * above / (room - 200))
    uneven = np.tile([0.5, 1.5], 40)
    error = np.sqrt(80 * 0.25) / 160
    assert told(uneven) == pytest.approx((0.5 + error) * 1280 * above / room)
    # Blocks drawn at twice the rates have half the variance.
    assert told(0.9 * seen, 2.0) == pytest.approx(0.9 * 1280 * above / room)
    lowest, highest = planner._TOLD
    assert told(1e-9 * seen) == lowest
    assert told(1e9 * seen) == highest
    assert told(seen, least=2.5) == 2.5


@pytest.mark.parametrize("n_blocks", [16, 64])
def test_some_blocks_tell_the_rates_of_others(
    monkeypatch: pytest.MonkeyPatch, n_blocks: int
) -> None:
    """Where there are enough blocks: those that tell keep the first rates."""
    calls = []

    def spy(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return draw(*args, **options)

    draw = planner.draw
    monkeypatch.setattr(planner, "draw", spy)
    monkeypatch.setattr(planner, "_ROWS_PER_BLOCK", 8192 // n_blocks)
    monkeypatch.setattr(planner, "told_factor", lambda *_, **__: 1.75)
    monkeypatch.setattr(planner, "first_factor", lambda *_: 1.25)
    monkeypatch.setattr(planner, "least_factor", lambda *_: 0.0)
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    outcome = outcome_of(points, x)
    assert outcome.numbers["blocks"] == n_blocks
    assert outcome.sample is not None
    if n_blocks == 16:
        assert len(calls) == 1
        return
    first, others = calls
    assert {*first["blocks"], *others["blocks"]} == {*range(64)}
    assert len(first["blocks"]) == 8
    ratio = others["rate"] / first["rate"]
    np.testing.assert_allclose(ratio[first["blocks"]], 1.0)
    np.testing.assert_allclose(ratio[others["blocks"]], 1.4)
    exact = prepare(points.queries, points.keys, points.bandwidth).product(x[:, None]).out
    assert np.square(outcome.sample.y - exact).sum() <= 0.1**2 * 8192


def test_first_draws_are_not_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)

    def drawn_pairs() -> int:
        sample = outcome_of(points, x).sample
        assert sample is not None
        return sample.pairs

    monkeypatch.setattr(planner, "least_factor", lambda *_: 0.0)
    usual = drawn_pairs()
    monkeypatch.setattr(planner, "least_factor", lambda *_: 2.0)
    assert drawn_pairs() > 1.3 * usual


@pytest.mark.parametrize("partners", [True, False])
@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ([1.1], []),
        ([9.0, 8.9, 1.01], ["neighbours", "next"]),
        ([9.0, 1.01], ["neighbours"]),
        ([9.0, 8.0, 7.0, 6.0, 1.01], ["neighbours", "next", "round", "round"]),
        ([9.0, 8.9, 8.9, 8.9, 8.9], ["neighbours", "lone", "round"]),
    ],
)
def test_search_goes_on_while_it_pays(
    costs: list[float], taken: list[str], partners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours, the points that are still alone (where anyone has partners), rounds; until a step
    costs more than the share of the gap that the one before has closed, or three tenths of it."""
    done: list[str] = []
    search = SimpleNamespace(
        found=None,
        n_tilings=0,
        anyone_has_partners=partners,
        neighbours=lambda: done.append("neighbours"),
        lone=lambda: done.append("lone"),
        query_blocks=SimpleNamespace(order=np.arange(10)),
        geometry=SimpleNamespace(keys=np.zeros((10, 64))),
    )
    monkeypatch.setattr(planner, "_round", lambda *_: done.append("round"))
    for name in ("_few_know_cost", "_lone_cost", "_round_cost"):
        monkeypatch.setattr(planner, name, lambda *_: 0.2)
    forecasts = iter([SimpleNamespace(cost=cost) for cost in costs])
    look = SimpleNamespace(forecaster=lambda _: next(forecasts), best=SimpleNamespace(cost=1.0))
    worth = np.arange(10, dtype=np.int32), np.arange(10, dtype=np.int32)
    forecast = planner._searched_until_it_pays_no_more(search, look, worth, 100, Clock({}))
    if not partners:
        taken = [step for step in taken if step != "lone"]
    second = "lone" if partners else "round"
    assert done == [second if step == "next" else step for step in taken]
    assert forecast.cost == costs[len(taken)]


def test_first_tilings() -> None:
    """Three, or two where that is as good; four where nobody can be told to be alone."""
    assert [planner.first_tilings(n) for n in (4096, 32768, 65536, 262144, 2**20)] == [
        3,
        3,
        2,
        2,
        3,
    ]
