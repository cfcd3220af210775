"""What the planner is expected to do: a prediction from a few rows, before any product.

The planner decides from a pilot of its own with the vector at hand. Here x is all ones, nearly all
near pairs are taken to be found, and costs are in pairs of the exact product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter

from approxkmv.info import Plan
from approxkmv.leaves import Array
from approxkmv.paper.assumption import log_kernel

Float = npt.NDArray[np.float64]

TOLERANCES = (0.3, 0.1, 0.03, 0.01)

_PILOT_ROWS, _KEYS_PER_TILE = 64, 512
_SMALLEST_WORK = 6e10  # multiply-adds below which no plan is faster than the exact product
# Two rounds of search per query, in pairs of 64 dimensions; rows of the planner's own pilot; share
# of the near pairs' squares that the search leaves. With these, predictions at eps 0.1 are within a
# factor of 2 of the speed-ups measured on clusters of 32,768 and 262,144 points and on 65,536 and
# 262,144 GloVe vectors; at 0.03 they are too high on GloVe, by 3.
_SEARCH_PAIRS, _PILOT_SHARE, _MISSED_SHARE = 8800, 6 / 512, 0.003
_SAMPLED_PAIR = 1.4  # a drawn pair over an exact one
_AIM = 0.6  # share of the variance allowed that is aimed at


def predict(
    queries: Array, keys: Array, bandwidth: float, eps: float, rng: np.random.Generator
) -> tuple[Plan, Mapping[float, float]]:
    """Plan for ``eps``, and speed-ups over the exact product at the usual tolerances."""
    tolerances = sorted({*TOLERANCES, eps} - {0.0}, reverse=True)
    speed_ups = dict.fromkeys(tolerances, 1.0)
    n_multiply_adds = len(queries) * len(keys) * (queries.shape[1] + 24)
    if n_multiply_adds < _SMALLEST_WORK:
        reason = "so small that computing every pair is the fastest"
    else:
        speed_ups = _speed_ups(queries, keys, bandwidth, tolerances, rng)
        reason = "no sampled product is expected to be faster"
    at_eps = speed_ups.get(eps, 1.0)
    if at_eps > 1:
        reason = f"expected to take 1/{at_eps:.3g} of the time of the exact product"
    numbers = {f"predicted speed-up at eps {e:g}": round(s, 2) for e, s in speed_ups.items()}
    method = "sampled" if at_eps > 1 else "exact"
    return Plan(method, f"prediction: {reason}", numbers), speed_ups


def _speed_ups(
    queries: Array, keys: Array, bandwidth: float, tolerances: list[float], rng: np.random.Generator
) -> dict[float, float]:
    centre = keys.mean(axis=0)
    key_order = np.argsort(_norms(keys, centre), kind="stable")
    # A random row of each of 64 slices of the queries by norm stands for its slice.
    slices = np.array_split(np.argsort(_norms(queries, centre), kind="stable"), _PILOT_ROWS)
    rows = [int(rng.choice(part)) for part in slices]
    starts = np.arange(0, len(keys), _KEYS_PER_TILE)
    n_pairs = len(queries) * np.diff(np.append(starts, len(keys))) / _PILOT_ROWS
    left = np.zeros((len(tolerances), _PILOT_ROWS, len(starts)))
    ordered = keys[key_order].astype(np.float64)
    for at, row in enumerate(rows):
        values = np.exp(log_kernel(queries[row : row + 1], ordered, bandwidth)[0])
        if queries is keys:
            values[key_order == row] = 0.0  # the diagonal is known
        for i, eps in enumerate(tolerances):
            near = values >= min(0.5, 4 * eps / math.sqrt(len(keys)))
            squares = np.where(near, _MISSED_SHARE, 1.0) * values**2
            left[i, at] = np.add.reduceat(squares, starts)
    exact = len(queries) * len(keys)
    search = len(queries) * _SEARCH_PAIRS * 88 / (keys.shape[1] + 24)
    overhead = search + _PILOT_SHARE * exact
    means = left / np.diff(np.append(starts, len(keys)))
    return {
        eps: max(1.0, exact / (overhead + _SAMPLED_PAIR * _drawn(moment, n_pairs, eps, len(keys))))
        for eps, moment in zip(tolerances, means, strict=True)
    }


def _drawn(second_moment: Float, n_pairs: Float, eps: float, n_keys: int) -> float:
    """Pairs drawn at rates min(1, λ√V) that meet the variance aimed at for x = 1."""
    # Running sums leave rounding errors below zero where there is nothing.
    root = np.sqrt(np.maximum(uniform_filter(second_moment, 3, mode="nearest"), 0.0))
    root += 1e-3 * root.mean() + np.finfo(np.float64).tiny
    target = _AIM * eps**2 * n_keys
    low, high = -60.0, 60.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        rate = np.minimum(1.0, math.exp(middle) * root)
        variance = float((n_pairs * root**2 * (1 / rate - 1)).sum())
        low, high = (middle, high) if variance > target else (low, middle)
    return float((n_pairs * np.minimum(1.0, math.exp(high) * root)).sum())


def _norms(points: Array, centre: Array) -> Float:
    return np.asarray(np.linalg.norm(points - centre, axis=1))
