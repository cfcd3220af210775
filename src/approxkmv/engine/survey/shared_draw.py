"""What a few rows show about sums that all queries share one draw of keys for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from approxkmv.engine.cost import CostModel
from approxkmv.engine.policy import Policy, SharedDraw
from approxkmv.engine.survey.keyside import KeySide
from approxkmv.loops.types import Array, Float64, Index


@dataclass(frozen=True, eq=False)
class SumsProblem:
    """Sums over weighted keys for queries that come later, and the error they may have."""

    side: KeySide
    weights: Float64 | None  # None: all 1
    rtol: float  # in the logarithm of a sum
    log_floor: float  # of what is below only that is asked
    rng: np.random.Generator
    cost: CostModel = field(default_factory=CostModel)
    policy: Policy = field(default_factory=Policy)

    @property
    def settings(self) -> SharedDraw:
        """How draws for all queries are made."""
        return self.policy.shared

    @property
    def mass(self) -> Float64:
        """The weight of each key."""
        return np.ones(len(self.side)) if self.weights is None else self.weights


class SumsPilot(NamedTuple):
    """Some keys as queries: their kernel values with all other keys."""

    rows: Index
    values: Array  # (n_rows, n_keys), 0 with themselves
    sums: Float64  # (n_rows,) of the weighted values
    share: Float64  # (n_keys,) how often keys should be drawn, relative to each other

    def near(self, threshold: float) -> tuple[Index, Index]:
        """Places of the values from the threshold on."""
        row, col = np.nonzero(self.values >= threshold)
        return row, col


def run_pilot(problem: SumsProblem) -> SumsPilot:
    """Compute some columns of the symmetric kernel, as products with unit vectors."""
    kernel, settings = problem.side.among, problem.settings
    rows = np.sort(problem.rng.choice(len(problem.side), settings.pilot_rows, replace=False))
    columns = kernel.at_keys(rows).product(np.eye(len(rows), dtype=kernel.keys.dtype)).out
    values: Array = np.ascontiguousarray(columns.T)
    values[np.arange(len(rows)), rows] = 0
    sums = (values @ problem.mass.astype(values.dtype)).astype(np.float64)
    share = problem.mass * importance(values, kernel.key_shift, settings)
    return SumsPilot(rows, values, sums, share)


class SumsChoice(NamedTuple):
    """One key in ``one_in`` is drawn; values from the threshold on are searched."""

    one_in: int
    threshold: float
    n_near: float  # near keys of a row


def importance(values: Array, key_shift: Float64, settings: SharedDraw) -> Float64:
    """How often keys should be drawn, relative to each other: as their far values weigh.

    Root mean squares over the pilot rows, for keys alike in their distance from the origin of the
    frame, which is what tells a key's far values most: half of the draws go by these, the other
    half is even, so that no key is drawn more seldom than half as often as it would be.
    """
    n = values.shape[1]
    far = np.where(values < settings.far, values, 0)
    of_key = np.einsum("ij,ij->j", far, far, dtype=np.float64)
    order = np.argsort(key_shift, kind="stable")
    bounds = np.linspace(0, n, min(n, settings.rings) + 1).astype(np.int64)
    rings = np.add.reduceat(of_key[order], bounds[:-1]) / np.diff(bounds)
    rms = np.empty(n)
    rms[order] = np.repeat(np.sqrt(rings), np.diff(bounds))
    mean = float(rms.mean())
    return np.asarray(0.5 + 0.5 * rms / mean) if mean > 0 else np.ones(n)


def cheapest_draw(problem: SumsProblem, pilot: SumsPilot) -> SumsChoice | None:
    """The cheapest draw, with its threshold of near keys; None where none pays."""
    settings, n = problem.settings, len(problem.side)
    best, least = None, settings.worth * n
    levels = _Levels(problem, pilot)
    for one_in in settings.one_in:
        cost = levels.cost(one_in)
        deepest = int(np.argmin(cost))
        if cost[deepest] < least:
            least = float(cost[deepest])
            threshold, n_near = levels.thresholds[deepest], levels.near[deepest]
            best = SumsChoice(one_in, float(threshold), float(n_near))
    return best


class _Levels:
    """Values of the pilot rows by powers of two: level l holds those in [2^-l-1, 2^-l)."""

    def __init__(self, problem: SumsProblem, pilot: SumsPilot) -> None:
        self.problem, self.pilot, values = problem, pilot, pilot.values
        n_levels = problem.settings.levels
        row, self.col = np.nonzero(values >= math.ldexp(1.0, -n_levels))  # smaller ones have none
        self.large = values[row, self.col].astype(np.float64)
        self.place = row * n_levels - np.minimum(np.frexp(self.large)[1], 0)
        self.shape = (len(values), n_levels)
        self.near = np.cumsum(self.sums(None).mean(axis=0))
        self.squares, self.thresholds = values**2, np.ldexp(0.5, -np.arange(n_levels))

    def sums(self, of: Float64 | None) -> Float64:
        """Sums, or numbers, of values by row and level."""
        found = np.bincount(self.place, of, math.prod(self.shape))
        return np.asarray(found.reshape(self.shape), np.float64)

    def cost(self, one_in: int) -> Float64:
        """Pairs of a row for each threshold; infinite where it must not be chosen."""
        problem, pilot, settings = self.problem, self.pilot, self.problem.settings
        n = len(problem.side)
        excess = problem.mass**2 * (1 / probabilities(pilot.share, n // one_in) - 1)
        by_level = self.sums(self.large**2 * excess[self.col])
        # Variance of a row if all its values of levels 0 .. l were found, and who would not settle.
        all_levels = self.squares @ excess.astype(self.squares.dtype)
        left = all_levels[:, None] - np.cumsum(by_level, axis=1)
        deviation = settings.deviations * np.sqrt(np.maximum(left, 0))
        unsettled = deviation > problem.rtol * pilot.sums[:, None]
        cost = n / one_in + problem.cost.near_pair * self.near + n * unsettled.mean(axis=0)
        # As many keys as one is drawn from, all just below the threshold, can go undrawn together.
        highest = 0.5 * problem.rtol * float(np.quantile(pilot.sums, 0.1)) / one_in
        cost[(self.near > settings.most_near) | (self.thresholds > highest)] = np.inf
        return np.asarray(cost)


def probabilities(share: Float64, n_drawn: int) -> Float64:
    """Probabilities of being drawn, in proportion to the shares, at most 1."""
    pi = np.minimum(1.0, share * (n_drawn / float(share.sum())))
    return np.asarray(np.maximum(pi, np.finfo(np.float64).tiny))
