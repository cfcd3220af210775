"""Small cases whose kernel matrix fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv.engine.cost import CostModel
from approxkmv.engine.planner import approximate
from approxkmv.engine.policy import Policy
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.result import Result
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.kernel.matrix import KernelMatrix, gaussian_kernel, prepare
from approxkmv.loops.types import FoundPairs, Geometry


@dataclass(frozen=True, eq=False)
class Case:
    kernel: KernelMatrix
    bandwidth: float
    K: np.ndarray  # as the definition has it
    query_blocks: Blocks
    key_tiles: Blocks

    @property
    def geometry(self) -> Geometry:
        return self.kernel.geometry

    def rounding(self, dtype: Any) -> float:
        """Largest relative error of a kernel value: what rounding does to its exponent.

        Inner products of d terms are off by d + 4 units of the product of the norms, the shifts
        and the last operations by 4 more; R bounds the norms, in bandwidths.
        """
        g = self.geometry
        centre = np.median(g.keys, axis=0)
        norms = [((p - centre) ** 2).sum(axis=1).max() for p in (g.queries, g.keys)]
        radius = max(norms) / self.bandwidth**2
        unit = float(np.finfo(dtype).eps) / 2
        return float(np.expm1((g.keys.shape[1] + 8) * unit * radius)) + 4 * unit

    def pairs(self, threshold: float, recall: float = 1.0) -> FoundPairs:
        """A share of the pairs with value >= threshold."""
        near = np.greater_equal(self.K, threshold)
        near &= np.random.default_rng(9).random(near.shape) < recall
        rows, cols = near.nonzero()
        indptr = np.searchsorted(rows, np.arange(len(self.K) + 1)).astype(np.int64)
        return FoundPairs(indptr, cols.astype(np.int32), self.K[rows, cols].astype(np.float32))


def problem_of(
    kernel: KernelMatrix,
    x: np.ndarray,
    squared_error: float = 1.0,
    *,
    delta: float = 0.05,
    seed: int = 0,
    cost: CostModel | None = None,
    policy: Policy | None = None,
) -> Problem:
    """The product with one column, or several, within an error."""
    return Problem(
        kernel,
        x[:, None] if x.ndim == 1 else x,
        Budget(squared_error, delta),
        np.random.default_rng(seed),
        cost or CostModel(),
        policy or Policy(),
    )


def clustered(
    m: int = 300,
    n: int = 400,
    d: int = 6,
    *,
    rows_per_block: int = 64,
    keys_per_tile: int = 50,
    seed: int = 0,
    dtype: Any = np.float64,
    differences: bool = False,
) -> Case:
    """Points around n/16 centres, with norms spread over a factor of a few; row sums about 10."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n // 16, d)) * np.exp(0.5 * rng.standard_normal((n // 16, 1)))
    queries, keys = (
        (centres[rng.integers(0, n // 16, k)] + 0.3 * rng.standard_normal((k, d))).astype(dtype)
        for k in (m, n)
    )
    bandwidth = 0.6
    kernel = prepare(queries, keys, bandwidth, differences=differences)
    blocks, tiles = norm_order(kernel.geometry, rows_per_block, keys_per_tile)
    return Case(kernel, bandwidth, gaussian_kernel(queries, keys, bandwidth), blocks, tiles)


def inclusion(case: Case, rate: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Probabilities (n_queries, n_keys) with which a key is drawn for a query's block."""
    of_pair = rate[case.query_blocks.block_of][:, case.key_tiles.block_of]
    return np.minimum(1.0, of_pair * np.abs(x))


def picture_points(n: int, seed: int = 0, n_dims: int = 256) -> np.ndarray:
    """Points like pictures: ten kinds, few directions of variation, texture of its own in each."""
    rng = np.random.default_rng(seed)
    spectrum = (1 + np.arange(n_dims)) ** -1.0
    kinds = 12 * rng.standard_normal((10, n_dims)) * spectrum
    variation = 3 * rng.standard_normal((n, n_dims)) * spectrum
    texture = 0.02 * rng.standard_normal((n, n_dims)) * rng.lognormal(0, 0.8, (n, 1))
    rotation, _ = np.linalg.qr(rng.standard_normal((n_dims, n_dims)))
    points = (kinds[rng.integers(0, 10, n)] + variation + texture) @ rotation
    return np.ascontiguousarray(points, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Found:
    """What the engine made of a product: a result, or why there is none."""

    result: Result | None
    refusal: str
    trace: Trace


def outcome_of(
    points: Any, x: np.ndarray, *, eps: float = 0.1, seed: int = 0, **options: Any
) -> Found:
    """The engine's answer, whatever the size; ``options`` are a cost model or a policy."""
    kernel = prepare(points.queries, points.keys, points.bandwidth)
    columns = x[:, None] if x.ndim == 1 else x
    budget = Budget(float(np.square(eps * np.linalg.norm(columns))), 0.05)
    problem = Problem(kernel, columns, budget, np.random.default_rng(seed), **options)
    trace = Trace()
    try:
        return Found(approximate(problem, trace, Progress()), "", trace)
    except Refusal as refusal:
        return Found(None, refusal.reason, trace)
