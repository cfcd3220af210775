r"""Cells of points: pairs of cells too far apart are left out, with a bound that assumes nothing.

Two cells whose bounding boxes are a distance g apart have :math:`K\le e^{-g^2/2\sigma^2}`. Every
row of a block of queries, a, lacks at most
:math:`E_a=\sum_b e^{-g_{ab}^2/2\sigma^2}\sum_{j\in b}|x_j|` over the tiles b that are left out for
the block, whatever the points and x, and the squared error is at most :math:`\sum_a|a|E_a^2`. All
other pairs are computed: nothing is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.engine.problem import Problem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import sums_by_block
from approxkmv.engine.survey.forecast import predicted_cost
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.spatial import spatial_order
from approxkmv.engine.survey.survey import rows_for_cells
from approxkmv.engine.trace import Trace
from approxkmv.info import Considered
from approxkmv.loops.types import Array, DrawPlan, Float32, Float64, FoundPairs, Index

REASON = "cells of points far apart are left out; the bound of the error assumes nothing"
# Of the squared error that may be made.
_OF_BUDGET = 0.98
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class CellPlan:
    """Which pairs of cells are computed, and what is known before any is."""

    query_blocks: Blocks
    key_tiles: Blocks
    computed: npt.NDArray[np.bool_]  # (n_blocks, n_tiles)
    squared_error: float  # at most this is left out
    cost: float


def plan_cells(problem: Problem, query_blocks: Blocks, key_tiles: Blocks) -> CellPlan:
    """The pairs of cells that have to be computed."""
    kernel = problem.kernel
    largest = largest_values(
        boxes(kernel.queries, query_blocks), boxes(kernel.keys, key_tiles), kernel.bandwidth
    )
    n_tiles, sizes = len(key_tiles.sizes), query_blocks.sizes
    mass = sums_by_block(problem.row_norms.astype(np.float64), key_tiles.block_of, n_tiles)
    weights = problem.weighed(np.ones(problem.n_queries))
    weight = sums_by_block(weights, query_blocks.block_of, len(sizes))
    left_out, squared_error = leave_out(
        largest * mass, key_tiles.sizes, weight, _OF_BUDGET * problem.budget.squared_error
    )
    n_pairs = float(sizes @ (~left_out @ key_tiles.sizes.astype(np.float64)))
    each = problem.cost.drawn_pair_in(problem.n_queries / len(sizes), problem.n_dims)
    return CellPlan(
        query_blocks,
        key_tiles,
        ~left_out,
        squared_error,
        n_pairs * each,
    )


def boxes(points: Array, blocks: Blocks) -> tuple[Float64, Float64]:
    """The least and the largest coordinates (n_blocks, n_dims) of each block."""
    ordered = points[blocks.order].astype(np.float64)
    first = blocks.start[:-1]
    return np.minimum.reduceat(ordered, first), np.maximum.reduceat(ordered, first)


def largest_values(
    of_queries: tuple[Float64, Float64], of_keys: tuple[Float64, Float64], bandwidth: float
) -> Float64:
    """Values (n_blocks, n_tiles) that no pair of points in two boxes exceeds."""
    squares = np.zeros((len(of_queries[0]), len(of_keys[0])))
    for low_q, high_q, low_k, high_k in zip(
        *(side.T for side in (*of_queries, *of_keys)), strict=True
    ):
        gap = np.maximum(low_k - high_q[:, None], low_q[:, None] - high_k)
        squares += np.square(np.maximum(gap, 0.0) / bandwidth)
    # A little more than the distance itself, whatever its rounding.
    return np.asarray(np.exp(-0.5 * squares * (1 - 1e-12)))


def leave_out(
    most: Float64, tile_sizes: Index, weight: Float64, squared_error: float
) -> tuple[npt.NDArray[np.bool_], float]:
    """Pairs of cells to leave out, and the squared error of that at most.

    ``most`` bounds what a row lacks for each tile. Every row may lack the same: tiles are left out
    from the least bound for each of their keys on, until the sum would be larger.
    """
    order = np.argsort(most / tile_sizes, axis=1, kind="stable")
    lacking = np.cumsum(np.take_along_axis(most, order, axis=1), axis=1)
    low, high = 0.0, math.sqrt(squared_error / float(weight.max()))

    def error(allowed: float) -> tuple[float, npt.NDArray[np.bool_]]:
        out = lacking <= allowed
        of_rows = np.where(out, lacking, 0.0).max(axis=1)
        return float(weight @ np.square(of_rows)), out

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle)[0] <= squared_error else (low, middle)
    total, out = error(low)
    left_out = np.zeros(most.shape, np.bool_)
    np.put_along_axis(left_out, order, out, axis=1)
    return left_out, total


def far_cells_left_out(problem: Problem, trace: Trace) -> Result | None:
    """The product in cells, where that is predicted to be the cheapest; decided before a survey.

    Compared with draws in the same cells, whose pilot rows and large entries of x are computed
    exactly: for errors below 1 / sqrt(n) these are nearly all.
    """
    policy, size = problem.policy.cells, (problem.n_queries, problem.n_keys, problem.n_dims)
    if problem.n_dims > policy.most_dims_of_boxes or not problem.cost.worth_a_survey(*size):
        return None
    if problem.budget.squared_error == 0:
        return None
    order = spatial_order(problem)
    trace.lap("order")
    if order is None:
        return None
    plan = plan_cells(problem, order.query_blocks, order.key_tiles)
    drawn = predicted_cost(problem, order) + problem.cost.pilot_pair * problem.n_keys * (
        rows_for_cells(problem, order)
    )
    large = problem.row_norms > math.sqrt(problem.budget.squared_error)
    drawn += int(large.sum()) * problem.n_queries
    trace.lap("plan")
    most = problem.policy.choice.too_many * problem.n_pairs
    taken = plan.cost <= min(policy.certain * drawn, most)
    trace.consider(
        Considered(
            "cells",
            plan.cost / problem.n_pairs,
            math.sqrt(plan.squared_error / problem.budget.squared_error),
            "taken" if taken else "another one is cheaper",
        )
    )
    return through_cells(problem, plan, trace) if taken else None


def through_cells(problem: Problem, plan: CellPlan, trace: Trace) -> Result:
    """The product over all pairs of cells that are not left out, and its error on some rows."""
    blocks, tiles, kernel = plan.query_blocks, plan.key_tiles, problem.kernel
    problem.budget.limit.needs(plan.cost)
    rate: Float32 = np.where(plan.computed, np.finfo(np.float32).max, 0).astype(np.float32)
    draw = DrawPlan(
        blocks.order, blocks.start, tiles.order, tiles.start, rate, problem.row_norms, 0, 0
    )
    none = FoundPairs.none(problem.n_queries)
    # With one column more, of the lengths of the rows of x: it bounds the rounding of the others.
    x = np.column_stack([problem.x, problem.row_norms])
    sums = kernel.backend.sampled_product(kernel.geometry, draw, none, x, None)
    y, without_signs = np.ascontiguousarray(sums.out[:, :-1]), sums.out[:, -1].astype(np.float64)
    n_pairs = int((sums.n_drawn * blocks.sizes).sum())
    n_rows = min(problem.policy.cells.checked_rows, problem.n_queries)
    rows = np.sort(problem.rng.choice(problem.n_queries, n_rows, replace=False))
    exact = kernel.at_queries(rows).product(problem.x).out
    off = np.square(y[rows].astype(np.float64) - exact).sum(axis=1)
    checked = float(problem.weighed(off, rows).mean()) * problem.n_queries
    y[rows] = exact
    trace.pairs += n_pairs + n_rows * problem.n_keys
    trace.lap("cells")
    trace.note(order="cells", blocks=len(blocks.sizes), tiles=len(tiles.sizes))
    return Result(
        y=y,
        variance=min(checked, plan.squared_error),
        upper=plan.squared_error,
        left_out=plan.squared_error,
        checked=checked,
        pairs=n_pairs,
        n_recomputed=0,
        exact_rows=rows,
        reason=REASON,
        without_signs=float(problem.weighed(np.square(without_signs)).sum()),
    )
