"""Draws of keys by the compiled loop, with plans made by hand.

Means over many streams are compared within z standard errors, z being the normal quantile at which
all comparisons of a test together fail by chance with probability 1e-6.
"""

from __future__ import annotations

import numpy as np
from engine_cases import Case
from scipy.stats import norm

from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import DrawPlan, FoundPairs, Geometry

N_STREAMS = 600


def z_of(n_comparisons: int) -> float:
    return float(norm.isf(0.5e-6 / n_comparisons))


def plan_of(case: Case, rate: np.ndarray, x: np.ndarray, stream: int) -> DrawPlan:
    return DrawPlan(
        case.query_blocks.order,
        case.query_blocks.start,
        case.key_tiles.order,
        case.key_tiles.start,
        rate.astype(np.float32),
        np.abs(x),
        11,
        stream,
    )


def product_of(geometry: Geometry, plan: DrawPlan, found: FoundPairs, x: np.ndarray) -> np.ndarray:
    return (
        Compiled(1)
        .sampled_product(
            geometry,
            plan,
            found,
            x[:, None],
        )
        .out[:, 0]
    )


def uneven_rates(case: Case, level: float) -> np.ndarray:
    shape = (len(case.query_blocks.sizes), len(case.key_tiles.sizes))
    rates = level * np.random.default_rng(5).uniform(0.5, 2.0, shape)
    return rates.astype(np.float32).astype(np.float64)
