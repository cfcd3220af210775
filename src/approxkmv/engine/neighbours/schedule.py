"""How long to search for near pairs: everywhere a little, and then on while it pays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from approxkmv.engine.neighbours.expand import expand
from approxkmv.engine.neighbours.isolated import search_isolated
from approxkmv.engine.neighbours.missing import Missing, check_missing, missing_in_rows
from approxkmv.engine.neighbours.search import Search, cell_depth
from approxkmv.engine.policy import Schedule
from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.forecast import Forecast
from approxkmv.engine.survey.moments import moving_mean
from approxkmv.engine.survey.survey import Survey, searched_cost
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Index32


@dataclass(eq=False)
class NearSearch:
    """A search, what drawing costs with the pairs found so far, and what is still missing."""

    problem: Problem
    survey: Survey
    search: Search
    trace: Trace
    forecast: Forecast
    missing: Missing

    @property
    def schedule(self) -> Schedule:
        """Numbers of tilings, and when to stop."""
        return self.problem.policy.schedule

    @property
    def too_much_missing(self) -> bool:
        """Whether near pairs not found have too much of the error."""
        budget = self.problem.budget.squared_error
        return self.missing.at_most > self.schedule.most_missing * budget

    @property
    def may_go_on(self) -> bool:
        """Whether there are more tilings to be had."""
        return self.search.n_tilings < self.schedule.most_tilings

    def learn(self) -> None:
        """Forecast anew."""
        self.forecast = self.survey.forecaster(self.search.found)

    def check(self) -> None:
        """Estimate anew what is missing; what the check finds is found."""
        rate = self.forecast.rates.rate
        self.missing = check_missing(self.search, self.problem, rate, self.survey.polynomial)
        self.trace.lap("check")

    def another_round(self) -> None:
        """Tilings of all points, expansion, and what both have shown."""
        self.round(*self.search.everywhere)
        self.learn()
        self.check()

    def round(self, query_index: Index32, key_index: Index32) -> None:
        """Tilings of some points, and expansion."""
        self.search.tilings(self.schedule.more_tilings, query_index, key_index)
        self.trace.lap("tilings")
        expand(self.search)
        self.trace.lap("neighbours")

    def round_cost(self, n_queries: int, n_keys: int) -> float:
        """What a round costs."""
        cost, all_queries = self.problem.cost, self.problem.n_queries
        cell = n_keys >> cell_depth(n_keys)
        tilings = n_queries * self.schedule.more_tilings
        tilings_cost = tilings * (cost.tiling + cost.sketched_pair * cell)
        scale = cost.pairs_of_64(self.problem.n_dims)
        return scale * (tilings_cost + all_queries * cost.neighbours)

    @property
    def spent(self) -> float:
        """What pilot and search have cost, in pairs of the exact product."""
        of_pilot = self.problem.cost.pilot_pair * len(self.survey.pilot.rows) * self.problem.n_keys
        rounds = self.search.n_tilings / self.schedule.more_tilings
        return of_pilot + rounds * self.round_cost(*map(len, self.search.everywhere))


def search_near_pairs(problem: Problem, survey: Survey, search: Search, trace: Trace) -> NearSearch:
    """Search while it pays; ``Refusal`` where near pairs are too hard to find."""
    limit = problem.budget.limit
    near = NearSearch(problem, survey, search, trace, survey.best, Missing(0.0, 0.0))
    if _without_search(near):
        return near
    worth = worth_searching(problem, survey)
    trace.lap("plan")
    if survey.polynomial is None or not survey.polynomial.explains_near_pairs:
        _search_everywhere(near)
        near.learn()
        trace.lap("plan")
        _search_while_it_pays(near, worth)
    else:
        near.learn()
    near.check()
    while near.too_much_missing and near.may_go_on and limit.allows(near.forecast.cost):
        near.another_round()
    if near.too_much_missing and limit.allows(problem.n_pairs):
        raise Refusal("near pairs are too hard to find")
    trace.note(
        threshold=survey.pilot.threshold,
        sketch_dims=search.sketch_dims,
        worth_searching=len(worth[0]) / problem.n_queries,
        tilings=search.n_tilings,
        found_pairs_per_query=len(search.found.cols) / problem.n_queries,
        rare_from=near.forecast.rare_from,
        predicted_share_of_pairs=near.forecast.cost / problem.n_pairs,
    )
    return near


def _without_search(near: NearSearch) -> bool:
    """Leave near pairs to the draws where that is cheaper, and safe as the pilot rows show."""
    survey, problem = near.survey, near.problem
    drawn = survey.drawn
    if drawn is None or drawn.cost > searched_cost(problem, survey.best):
        return False
    found, rate = near.search.found, drawn.rates.rate
    before = near.forecast, near.missing
    near.forecast, near.missing = drawn, missing_in_rows(survey.pilot, found, problem, rate)
    near.trace.lap("check")
    if near.too_much_missing:
        near.forecast, near.missing = before
        return False
    near.trace.note(
        threshold=survey.pilot.threshold,
        tilings=0,
        rare_from=drawn.rare_from,
        predicted_share_of_pairs=drawn.cost / problem.n_pairs,
    )
    return True


def _search_everywhere(near: NearSearch) -> None:
    """Search every point at least a little.

    Clusters of points that the pilot never met would show neither in rates nor in variances.
    """
    search, schedule, n_keys = near.search, near.schedule, near.problem.n_keys
    search.tilings(schedule.tilings_for(n_keys), *search.everywhere)
    if not search_isolated(search):
        search.tilings(schedule.without_isolated - search.n_tilings, *search.everywhere)
        left = cell_depth(n_keys) - 2 - search.n_tilings
        few_found = search.share_found() < schedule.leads_on
        search.tilings(left if few_found else 0, *search.everywhere)
    near.trace.lap("tilings")
    expand(search)
    near.trace.lap("neighbours")


def worth_searching(problem: Problem, survey: Survey) -> tuple[Index32, Index32]:
    """Which queries and keys are searched again: those with enough near pairs."""
    pilot = survey.pilot
    mass = survey.forecaster.mass[pilot.apart]
    rows = pilot.block_of[pilot.near_row[pilot.apart]]
    tiles = survey.key_tiles.block_of[pilot.near_col[pilot.apart]]
    indices = []
    for blocks, of in ((survey.query_blocks, rows), (survey.key_tiles, tiles)):
        total = np.asarray(np.bincount(of, mass, len(blocks.sizes)), np.float64)
        # Few rows say little about one block: neighbours are pooled.
        per_point = moving_mean(total, 9) / blocks.sizes
        share = problem.budget.squared_error / len(blocks.order)
        enough = per_point > problem.policy.schedule.not_searched * share
        indices.append(blocks.order[np.repeat(enough, blocks.sizes)])
    return indices[0], indices[0] if pilot.symmetric else indices[1]


def _search_while_it_pays(near: NearSearch, worth: tuple[Index32, Index32]) -> None:
    """Search on while the saving forecast is larger than the cost of searching."""
    n_pairs, best = near.problem.n_pairs, near.survey.best
    gap = min(near.forecast.cost, n_pairs) - best.cost
    closing = near.schedule.first_closing
    # A step closes about as much of the gap to perfect knowledge as the one before.
    for step in search_steps(near, worth):
        if step.cost >= max(closing, step.least) * gap or not near.may_go_on:
            break
        step.take()
        near.learn()
        near.trace.lap("plan")
        left = min(near.forecast.cost, n_pairs) - best.cost
        closing, gap = 1 - left / max(gap, 1.0), left


class Step(NamedTuple):
    """One more search: what to do, what it costs, and the least share of the gap it may close."""

    take: Callable[[], None]
    cost: float
    least: float


def search_steps(near: NearSearch, worth: tuple[Index32, Index32]) -> Iterator[Step]:
    """Expansion from the other side, isolated points, and then round after round."""
    search, schedule, problem = near.search, near.schedule, near.problem

    def expansion() -> None:
        expand(search)
        near.trace.lap("neighbours")

    def isolated() -> None:
        search_isolated(search)
        near.trace.lap("tilings")

    scale = problem.cost.pairs_of_64(problem.n_dims)
    keys_expanded = scale * problem.n_queries * problem.cost.keys_expanded
    yield Step(expansion, keys_expanded, schedule.first_closing)
    if search.isolation_shows:
        yield Step(isolated, problem.cost.isolated * problem.n_queries, schedule.next_closing)
    more = partial(near.round, *worth)
    cost = near.round_cost(*map(len, worth))
    yield Step(more, cost, schedule.next_closing)
    while True:
        yield Step(more, cost, 0.0)
