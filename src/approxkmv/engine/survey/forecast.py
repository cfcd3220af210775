"""What the draws would cost, from the pilot rows and the near pairs found so far.

A near pair that was missed is either left to the draws, which must then be frequent enough for it,
or counted among the rare ones: as long as it is not drawn, leaving it out costs its own square and
nothing more; if it is drawn, its row stands out by its variance and is computed exactly.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.engine.problem import Problem
from approxkmv.engine.survey.calibration import Calibration
from approxkmv.engine.survey.pilot import Pilot, row_squares
from approxkmv.engine.survey.rates import (
    Entries,
    Rates,
    not_left_to_few,
    solve_rates,
)
from approxkmv.engine.survey.spatial import SpatialOrder
from approxkmv.loops.types import Float64, FoundPairs

# Rare pairs may take this share of the error allowed; the pilot sees few of them, hence the factor.
_MOST_RARE, _RARE_FACTOR = 0.3, 2.0
_RARE_FROM = (np.inf, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)


@dataclass(frozen=True)
class Forecast:
    """Rates to draw with, and the cost of drawing and of recomputing rows, in pairs."""

    rates: Rates
    cost: float
    rare_from: float  # near pairs from this value on are not reckoned with in the rates
    rare_mass: float  # squared error of leaving them out


def predicted_cost(problem: Problem, order: SpatialOrder) -> float:
    """What drawing would cost if what was predicted for cells were true."""
    blocks = order.query_blocks, order.key_tiles
    entries = Entries(problem.row_norms, order.key_tiles)
    moment = order.squares.astype(np.float64) + np.finfo(np.float32).tiny
    target = problem.policy.shape.aim * problem.budget.squared_error
    pairs = solve_rates(moment, entries, *blocks, target).pairs
    rows_per_block = problem.n_queries / len(order.query_blocks.sizes)
    return pairs * problem.cost.drawn_pair_in(rows_per_block, problem.n_dims)


class Forecaster:
    """Forecasts for the columns of a problem and one mean squared error, the ``target``."""

    def __init__(
        self, problem: Problem, pilot: Pilot, target: float, calibration: Calibration
    ) -> None:
        self.pilot, self.target, self.calibration = pilot, target, calibration
        self.query_blocks, self.key_tiles = pilot.query_blocks, pilot.key_tiles
        self.problem = problem
        self.drawn_pair = calibration.drawn_pair(problem)
        size, x = problem.row_norms, problem.x
        self.entries = Entries(size, self.key_tiles)
        self._take(pilot.light, pilot.near_square)
        self.size = size[pilot.near_col].astype(np.float64)
        self.weight = pilot.stands_for[pilot.near_row]
        self.near_x = x[pilot.near_col].astype(np.float64)

    def _take(self, light: Float64, near_square: Float64) -> None:
        """Squares of the pilot's pairs, weighed with their rows."""
        pilot, weighed = self.pilot, self.problem.weighed
        self.light = weighed(light, pilot.rows)
        self.near_square = weighed(near_square, pilot.rows[pilot.near_row])

    @property
    def mass(self) -> Float64:
        """Squared error of leaving out each near pair of the pilot, with those it stands for."""
        return np.asarray(self.weight * self.near_square * self.size**2)

    def without(self, light: Float64, near_square: Float64) -> Forecaster:
        """The same where draws have to do with these squares of the pilot's pairs only."""
        other = copy(self)
        other._take(light, near_square)
        return other

    def all_known(self) -> Forecast:
        """As if the search had found every near pair."""
        rates = self._rates(self.light, self.target)
        return Forecast(rates, self.drawn_pair * rates.pairs, np.inf, 0.0)

    def __call__(self, found: FoundPairs) -> Forecast:
        """The cheapest way, given what was found."""
        missed = self.pilot.missed(found)
        options = []
        for value in _RARE_FROM:
            rare = missed & (self.near_square >= value**2)
            mass = self._square_of(rare)
            left = self.target - _RARE_FACTOR * mass
            if left < (1 - _MOST_RARE) * self.target:
                break
            common = self.pilot.near_sums(missed & ~rare, self.near_square)
            rates = self._rates(self.light + common, left)
            block = self.pilot.block_of[self.pilot.near_row[rare]]
            tile = self.key_tiles.block_of[self.pilot.near_col[rare]]
            drawn = np.minimum(1.0, rates.rate[block, tile] * self.size[rare])
            rows = float((self.weight[rare] * drawn).sum())
            cost = self.drawn_pair * rates.pairs + rows * len(self.key_tiles.order)
            options.append(Forecast(rates, cost, value, mass))
        return min(options, key=lambda option: option.cost)

    def _square_of(self, chosen: npt.NDArray[np.bool_]) -> float:
        """Squared error, over all rows, of leaving these near pairs out."""
        rows, values = self.pilot.near_row[chosen], np.sqrt(self.near_square[chosen])
        squares = row_squares(rows, values, self.near_x[chosen], len(self.pilot.rows))
        return float(self.pilot.stands_for @ squares)

    def _rates(self, sums: Float64, target: float) -> Rates:
        moment = self.calibration(sums)
        of_blocks = self.entries, self.query_blocks, self.key_tiles
        rates = solve_rates(moment, *of_blocks, target)
        return not_left_to_few(rates, moment, *of_blocks, target)
