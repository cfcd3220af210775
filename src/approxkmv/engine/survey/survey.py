"""What a few rows show about a matrix, and what drawing keys would cost at best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.calibration import Calibrated, Pooled
from approxkmv.engine.survey.control_variate import Polynomial, fit_polynomial, worth_fitting
from approxkmv.engine.survey.forecast import Forecast, Forecaster, predicted_cost
from approxkmv.engine.survey.order import Blocks, blocks_of, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.spatial import SpatialOrder, spatial_order
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
    drawn: Forecast | None = None  # with no pairs known, where blocks and tiles are cells


def orders(problem: Problem) -> tuple[Blocks, Blocks]:
    """Blocks of queries and tiles of keys, in the order of their norms."""
    shape = problem.policy.shape
    n_rows = max(shape.rows_per_block, math.ceil(problem.n_queries / shape.most_blocks))
    n_keys = max(shape.keys_per_tile, n_rows // 2)
    return norm_order(problem.kernel.geometry, n_rows, n_keys)


def make_survey(problem: Problem, trace: Trace, *, one_shot: bool = True) -> Survey:
    """Compute a few rows and forecast the draws; ``Refusal`` where there is nothing to compute.

    ``one_shot`` says that the matrix is wanted for one product: points may then be in the order of
    cells, and with one column a polynomial is taken out where that pays. What draws cost in cells
    is predicted before any row is computed: the order by norms, which needs a search for near
    pairs, is not tried where that alone would cost more.
    """
    if problem.budget.squared_error == 0:
        raise Refusal("the product is exactly zero")
    order, guess = None, math.inf
    if one_shot:
        order = spatial_order(problem)
        trace.lap("order")
    if order is not None:
        guess = predicted_cost(problem, order)
        trace.note(predicted_cost_in_cells=guess / problem.n_pairs)
        trace.lap("plan")
        if guess <= problem.policy.choice.surely_in_cells * search_cost(problem):
            return _survey_of_cells(problem, order, trace)
    if not problem.may_search:
        raise Refusal("the product is too small for sampling to pay")
    by_norm = _survey_by_norm(problem, trace, one_shot=one_shot)
    if order is None or guess >= problem.policy.choice.too_many * problem.n_pairs:
        return by_norm
    in_cells = _survey_of_cells(problem, order, trace)
    if drawing_cost(problem, by_norm) <= drawing_cost(problem, in_cells):
        _note(by_norm, problem, trace)
        return by_norm
    return in_cells


def _survey_by_norm(problem: Problem, trace: Trace, *, one_shot: bool) -> Survey:
    blocks, tiles = orders(problem)
    trace.lap("order")
    shape, n_blocks = problem.policy.shape, len(blocks.sizes)
    per_block = shape.pilot_rows - (n_blocks >= shape.most_blocks)
    with_products = one_shot and problem.x.shape[1] == 1
    pilot = _pilot(problem, (blocks, tiles, blocks), per_block, with_products, trace)
    forecaster = Forecaster(problem, pilot, _target(problem), Pooled(pilot))
    survey = Survey(blocks, tiles, pilot, forecaster, forecaster.all_known(), None)
    _note(survey, problem, trace)
    survey = _with_polynomial(problem, survey, trace)
    trace.note(share_if_all_near_pairs_were_known=survey.best.rates.pairs / problem.n_pairs)
    trace.lap("plan")
    return survey


def _survey_of_cells(problem: Problem, order: SpatialOrder, trace: Trace) -> Survey:
    blocks, tiles, squares = order
    n_rows = rows_for_cells(problem, order)
    parts = np.linspace(0, problem.n_queries, n_rows + 1).astype(np.int64)
    strata = blocks_of(blocks.order, parts)
    pilot = _pilot(problem, (blocks, tiles, strata), 1, False, trace)
    forecaster = Forecaster(problem, pilot, _target(problem), Calibrated(pilot, squares))
    best = drawn = forecaster(pilot.known())
    if drawn.cost > search_cost(problem):  # otherwise nothing is searched
        best = forecaster.all_known()
    survey = Survey(blocks, tiles, pilot, forecaster, best, None, drawn)
    _note(survey, problem, trace)
    trace.lap("plan")
    return survey


def rows_for_cells(problem: Problem, order: SpatialOrder) -> int:
    """So many that a pair unlike all others, in one more row, would take little of the error."""
    n_rows = 1 / (problem.policy.cells.unseen * problem.eps**2)
    most = search_cost(problem) / (problem.cost.pilot_pair * problem.n_keys)
    least = len(order.query_blocks.sizes)
    return min(math.ceil(min(n_rows, max(most, least))), problem.n_queries)


def _target(problem: Problem) -> float:
    return problem.policy.shape.aim * problem.budget.squared_error


def _pilot(
    problem: Problem,
    order: tuple[Blocks, Blocks, Blocks],
    rows_of_each: int,
    with_products: bool,
    trace: Trace,
) -> Pilot:
    """Some rows of each stratum, the last of the ``order`` of blocks, tiles and strata."""
    blocks, tiles, strata = order
    shape, limit = problem.policy.shape, problem.budget.limit
    limit.needs(problem.cost.pilot_pair * rows_of_each * len(strata.sizes) * problem.n_keys)
    before = trace.seconds.get("pilot", 0.0)
    pilot = run_pilot(
        problem.kernel,
        problem.row_norms,
        blocks,
        tiles,
        rows_per_block=rows_of_each,
        strata=strata,
        threshold=min(0.5, shape.near * problem.eps / math.sqrt(problem.n_keys)),
        column=np.ascontiguousarray(problem.x[:, 0]) if with_products else None,
        rng=problem.rng,
    )
    n_pairs = len(pilot.rows) * problem.n_keys
    trace.pairs += n_pairs
    trace.lap("pilot")
    limit.learn(2 * n_pairs, trace.seconds["pilot"] - before)
    return pilot


def _note(survey: Survey, problem: Problem, trace: Trace) -> None:
    """What was found out."""
    trace.note(
        order="norms" if survey.drawn is None else "cells",
        blocks=len(survey.query_blocks.sizes),
        tiles=len(survey.key_tiles.sizes),
        pilot_rows=len(survey.pilot.rows),
        predicted_cost_of_exact=1.0,  # in exact products
        predicted_cost_of_drawing_keys=drawing_cost(problem, survey) / problem.n_pairs,
        share_if_all_near_pairs_were_known=survey.best.rates.pairs / problem.n_pairs,
    )


def _with_polynomial(problem: Problem, survey: Survey, trace: Trace) -> Survey:
    """The survey with a polynomial taken out, if that is cheaper."""
    pilot, geometry = survey.pilot, problem.kernel.geometry
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
        predicted_cost_with_polynomial=(searched_cost(problem, rest) + extra) / problem.n_pairs,
    )
    if rest.cost + extra >= survey.best.cost:
        return survey
    return replace(survey, forecaster=of_rest, best=rest, polynomial=part)


def drawing_cost(problem: Problem, survey: Survey) -> float:
    """What finding near pairs and drawing keys costs, before anything was searched."""
    searched = searched_cost(problem, survey.best)
    return searched if survey.drawn is None else min(searched, survey.drawn.cost)


def draws_cost(problem: Problem, survey: Survey) -> float:
    """The same without the search."""
    draws = problem.cost.draws_after_search * survey.best.cost
    return draws if survey.drawn is None else min(draws, survey.drawn.cost)


def searched_cost(problem: Problem, best: Forecast) -> float:
    """What finding near pairs and drawing keys usually costs."""
    return problem.cost.draws_after_search * best.cost + search_cost(problem)


def search_cost(problem: Problem) -> float:
    """What finding near pairs usually costs."""
    return problem.cost.search_cost(problem.n_queries, problem.n_keys, problem.n_dims)
