"""Vectors to multiply with: flat and concentrated, smooth and cancelling, of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from approxkmv.kernel.matrix import prepare

from .families import Data

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _one_hot(data: Data, n: int, rng: Rng) -> Array:
    return (np.arange(n) == rng.integers(n)).astype(float)


def _few(data: Data, n: int, rng: Rng) -> Array:
    x = 1e-3 * rng.standard_normal(n)
    x[rng.choice(n, min(n, 10), replace=False)] = 1
    return x


def _smooth(data: Data, n: int, rng: Rng) -> Array:
    first = data.all_keys[:, 0].astype(float)
    return np.cos((first - first.mean()) / (first.std() or 1.0))


def _alternating(data: Data, n: int, rng: Rng) -> Array:
    """Plus and minus in turn, by place or by distance from the middle."""
    signs = 1.0 - 2.0 * (np.arange(n) % 2)
    if rng.integers(2):
        keys = data.all_keys.astype(float)
        order = np.argsort(((keys - np.median(keys, axis=0)) ** 2).sum(axis=1))
        signs[order] = signs.copy()
    return signs


def _null(data: Data, n: int, rng: Rng) -> Array:
    """Differences of near pairs: K x is small next to x."""
    keys = data.all_keys.astype(float)
    x = np.zeros(n)
    for i in rng.choice(n, min(n, 48), replace=False):
        distances = ((keys - keys[i]) ** 2).sum(axis=1)
        distances[i] = np.inf
        j = int(distances.argmin())
        x[i] += 1
        x[j] -= 1
    return x


def _singular(data: Data, n: int, rng: Rng) -> Array:
    """Nearly the top right singular vector: three power iterations from all ones."""
    kernel = prepare(data.queries, data.all_keys, data.bandwidth)
    x = np.ones((n, 1), data.queries.dtype)
    for _ in range(3):
        x = kernel.transposed.product(kernel.product(x).out).out
        x /= np.linalg.norm(x) or 1.0
    return x[:, 0].astype(float)


VECTORS: dict[str, Callable[[Data, int, Rng], Array]] = {
    "ones": lambda data, n, rng: np.ones(n),
    "signs": lambda data, n, rng: rng.choice([-1.0, 1.0], n),
    "gauss": lambda data, n, rng: rng.standard_normal(n),
    "one-hot": _one_hot,
    "few large": _few,
    "cauchy": lambda data, n, rng: rng.standard_cauchy(n),
    "t2": lambda data, n, rng: rng.standard_t(2, n),
    "lognormal": lambda data, n, rng: rng.lognormal(0, 5, n),
    "log-uniform": lambda data, n, rng: 10 ** rng.uniform(-20, 20, n),
    "smooth": _smooth,
    "alternating": _alternating,
    "null": _null,
    "singular": _singular,
    "zero": lambda data, n, rng: np.zeros(n),
}


def vector(kind: str, columns: int, data: Data, rng: Rng) -> Array:
    """One vector, or columns of which the others are normal, one of them tiny."""
    n = len(data.all_keys)
    x = VECTORS[kind](data, n, rng)
    if columns > 1:
        others = rng.standard_normal((n, columns - 1)) * np.std(x)
        others[:, -1] *= 1e-3
        x = np.column_stack([x, others])
    return np.ascontiguousarray(x, data.queries.dtype)
