"""What a few rows show about a matrix, and what drawing keys would cost at best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.control_variate import Polynomial, fit_polynomial, worth_fitting
from approxkmv.engine.survey.forecast import Forecast, Forecaster
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.trace import Refusal, Trace


@dataclass(frozen=True, eq=False)
class Survey:
    """A few rows computed exactly, and the cheapest rates to draw keys with."""

    query_blocks: Blocks
    key_tiles: Blocks
    pilot: Pilot
    forecaster: Forecaster
    best: Forecast  # as if every near pair were known
    polynomial: Polynomial | None  # a control variate, taken out before keys are drawn


def orders(problem: Problem) -> tuple[Blocks, Blocks]:
    """Blocks of queries and tiles of keys, in the order of their norms."""
    shape = problem.policy.shape
    n_rows = max(shape.rows_per_block, math.ceil(problem.n_queries / shape.most_blocks))
    n_keys = max(shape.keys_per_tile, n_rows // 2)
    return norm_order(problem.kernel.geometry, n_rows, n_keys)


def make_survey(problem: Problem, trace: Trace, *, one_shot: bool = True) -> Survey:
    """Compute a few rows and forecast the draws; ``Refusal`` where there is nothing to compute.

    ``one_shot`` says that the matrix is wanted for one product: with one column a polynomial is
    taken out where that pays.
    """
    if problem.budget.squared_error == 0:
        raise Refusal("the product is exactly zero")
    blocks, tiles = orders(problem)
    trace.lap("order")
    pilot = _pilot(problem, blocks, tiles, one_shot and problem.x.shape[1] == 1)
    trace.pairs += len(pilot.rows) * problem.n_keys
    trace.lap("pilot")
    trace.note(blocks=len(blocks.sizes), tiles=len(tiles.sizes), pilot_rows=len(pilot.rows))
    forecaster = Forecaster(problem, pilot, problem.policy.shape.aim * problem.budget.squared_error)
    survey = Survey(blocks, tiles, pilot, forecaster, forecaster.all_known(), None)
    survey = _with_polynomial(problem, survey, trace)
    trace.note(share_if_all_near_pairs_were_known=survey.best.rates.pairs / problem.n_pairs)
    trace.lap("plan")
    problem.budget.limit.learn(2 * len(pilot.rows) * problem.n_keys, trace.seconds["pilot"])
    return survey


def _pilot(problem: Problem, blocks: Blocks, tiles: Blocks, with_products: bool) -> Pilot:
    shape = problem.policy.shape
    n_blocks = len(blocks.sizes)
    cost = problem.cost.pilot_pair * shape.pilot_rows * n_blocks * problem.n_keys
    problem.budget.limit.needs(cost)
    return run_pilot(
        problem.kernel,
        problem.row_norms,
        blocks,
        tiles,
        rows_per_block=shape.pilot_rows - (n_blocks >= shape.most_blocks),
        threshold=min(0.5, shape.near * problem.eps / math.sqrt(problem.n_keys)),
        column=np.ascontiguousarray(problem.x[:, 0]) if with_products else None,
        rng=problem.rng,
    )


def _with_polynomial(problem: Problem, survey: Survey, trace: Trace) -> Survey:
    """The survey with a polynomial taken out, if that is cheaper."""
    pilot, geometry = survey.pilot, problem.kernel.geometry
    without = drawing_cost(problem, survey.best)
    # In exact products; what is not listed is not possible with these points.
    trace.note(
        predicted_cost_of_exact=1.0, predicted_cost_of_drawing_keys=without / problem.n_pairs
    )
    # Its powers take twenty megabytes that nobody needs any more.
    survey = replace(survey, pilot=replace(pilot, powers=None))
    if pilot.powers is None or not worth_fitting(geometry):
        return survey
    part = fit_polynomial(pilot, geometry)
    of_rest = survey.forecaster.without(part.light, part.near_square)
    rest = of_rest.all_known()
    extra = problem.cost.polynomial_cost(problem.n_queries, problem.n_keys, problem.n_dims)
    trace.note(
        squares_left_by_polynomial=part.left,
        predicted_cost_with_polynomial=(drawing_cost(problem, rest) + extra) / problem.n_pairs,
    )
    if rest.cost + extra >= survey.best.cost:
        return survey
    return replace(survey, forecaster=of_rest, best=rest, polynomial=part)


def drawing_cost(problem: Problem, best: Forecast) -> float:
    """What finding near pairs and drawing keys costs, before anything was searched."""
    return problem.cost.draws_after_search * best.cost + search_cost(problem)


def search_cost(problem: Problem) -> float:
    """What finding near pairs usually costs."""
    return problem.cost.search_cost(problem.n_queries, problem.n_keys, problem.n_dims)
