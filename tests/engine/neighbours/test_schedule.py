"""How long near pairs are searched for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_cases import outcome_of

from approxkmv.datasets import clusters
from approxkmv.engine.cost import CostModel
from approxkmv.engine.neighbours import schedule as module
from approxkmv.engine.neighbours.schedule import NearSearch, _search_while_it_pays
from approxkmv.engine.policy import Policy, Schedule
from approxkmv.engine.trace import Trace


def test_more_first_tilings_where_few_pairs_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three where points that found too few partners are known by that, and searched again. Where
    they are not four, if these found half of the near pairs, or seven, of keys cut nine times."""
    monkeypatch.setattr(module, "cell_depth", lambda _: 9)
    points, x = clusters(8192, 64, rng=0), np.ones(8192, np.float32)
    assert outcome_of(points, x).trace.numbers["tilings"] == 3
    monkeypatch.setattr(module, "search_isolated", lambda _: False)
    assert outcome_of(points, x).trace.numbers["tilings"] == 4
    never_enough = Policy(schedule=Schedule(leads_on=1.1))
    assert outcome_of(points, x, policy=never_enough).trace.numbers["tilings"] == 7


@pytest.mark.parametrize("isolation_shows", [True, False])
@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ([1.1], []),
        ([9.0, 8.9, 1.01], ["expansion", "next"]),
        ([9.0, 1.01], ["expansion"]),
        ([9.0, 8.0, 7.0, 6.0, 1.01], ["expansion", "next", "round", "round"]),
        ([9.0, 8.9, 8.9, 8.9, 8.9], ["expansion", "isolated", "round"]),
    ],
)
def test_search_goes_on_while_it_pays(
    costs: list[float], taken: list[str], isolation_shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expansion, the points that are still isolated (where that shows), rounds; until a step costs
    more than the share of the gap that the one before has closed, or three tenths of it."""
    done: list[str] = []
    search: Any = SimpleNamespace(found=None, n_tilings=0, isolation_shows=isolation_shows)
    # Each step costs a fifth of a pair.
    cost = CostModel(keys_expanded=0.02, isolated=0.02)
    problem: Any = SimpleNamespace(cost=cost, n_queries=10, n_dims=64, n_pairs=100, policy=Policy())
    forecasts = iter([SimpleNamespace(cost=cost) for cost in costs])
    survey: Any = SimpleNamespace(
        forecaster=lambda _: next(forecasts), best=SimpleNamespace(cost=1.0)
    )
    monkeypatch.setattr(module, "expand", lambda _: done.append("expansion"))
    monkeypatch.setattr(module, "search_isolated", lambda _: done.append("isolated"))
    monkeypatch.setattr(NearSearch, "round", lambda *_: done.append("round"))
    monkeypatch.setattr(NearSearch, "round_cost", lambda *_: 0.2)
    near = NearSearch(problem, survey, search, Trace(), None, None)  # type: ignore[arg-type]
    near.learn()
    _search_while_it_pays(near, (np.arange(10, dtype=np.int32),) * 2)
    if not isolation_shows:
        taken = [step for step in taken if step != "isolated"]
    second = "isolated" if isolation_shows else "round"
    assert done == [second if step == "next" else step for step in taken]
    assert near.forecast.cost == costs[len(taken)]


def test_first_tilings() -> None:
    """Three, or two where that is as good."""
    sizes = (4096, 32768, 65536, 262144, 2**20)
    assert [Schedule().tilings_for(n) for n in sizes] == [3, 3, 2, 2, 3]
