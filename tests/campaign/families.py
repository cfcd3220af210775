"""Point sets of many kinds, each from a seed: what the engine meets, and what could mislead it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from approxkmv.datasets import bandwidth_for_row_sum, clusters, low_intrinsic_dimension

# Test folders are no packages: what two of them share is found by its folder.
sys.path.append(str(Path(__file__).parents[1] / "engine"))
from engine_cases import picture_points

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Pair = tuple[Array, Array | None]  # queries, keys; None: the queries


class Data(NamedTuple):
    queries: Array
    keys: Array | None
    bandwidth: float

    @property
    def all_keys(self) -> Array:
        return self.queries if self.keys is None else self.keys


class Family(NamedTuple):
    make: Callable[[int, int, Rng], Array]  # n, d, rng
    dims: tuple[int, ...]


def _one_hot(n: int, d: int, rng: Rng) -> Array:
    return np.eye(d)[rng.integers(d, size=n)]


def _lattice(n: int, d: int, rng: Rng) -> Array:
    side = round(n ** (1 / d)) + 1
    grid = np.stack(np.meshgrid(*[np.arange(side)] * d), axis=-1).reshape(-1, d)
    return grid[rng.permutation(len(grid))[np.arange(n) % len(grid)]].astype(float)


def _circle(n: int, d: int, rng: Rng) -> Array:
    angle = rng.uniform(0, 2 * np.pi, n)
    plane = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) @ plane.T


def _sphere(n: int, d: int, rng: Rng) -> Array:
    p = rng.standard_normal((n, d))
    return p / np.linalg.norm(p, axis=1, keepdims=True)


def _shells(n: int, d: int, rng: Rng) -> Array:
    return _sphere(n, d, rng) * rng.choice([0.5, 1.0, 2.0, 4.0], (n, 1))


def _two_scales(n: int, d: int, rng: Rng) -> Array:
    centres = rng.standard_normal((max(1, n // 64), d))
    p = centres[rng.integers(len(centres), size=n)]
    return p + rng.choice([1e-3, 0.3], (n, 1)) * rng.standard_normal((n, d))


def _unequal_clusters(n: int, d: int, rng: Rng) -> Array:
    centres = rng.standard_normal((max(1, n // 20), d))
    share = 1 / (1 + np.arange(len(centres)))
    return centres[rng.choice(len(centres), n, p=share / share.sum())] + 0.3 * rng.standard_normal(
        (n, d)
    )


def _planted(n: int, d: int, rng: Rng) -> Array:
    p = rng.standard_normal((n, d)) * np.exp(0.4 * rng.standard_normal((n, 1)))
    rows = rng.permutation(n)[: 2 * (n // rng.choice([4, 20, 100]) // 2)].reshape(-1, 2)
    p[rows[:, 0]] = p[rows[:, 1]] + 0.1 * rng.standard_normal((len(rows), d))
    return p


def _sorted(n: int, d: int, rng: Rng) -> Array:
    p = rng.standard_normal((n, d))
    return p[np.lexsort(p.T[::-1])]


def _jittered(n: int, d: int, rng: Rng) -> Array:
    few = rng.standard_normal((n // int(rng.choice([2, 10, 100])) + 1, d))
    return few[rng.integers(len(few), size=n)] + 1e-9 * rng.standard_normal((n, d))


def _words(n: int, d: int, rng: Rng) -> Array:
    spectrum = (1 + np.arange(d)) ** -0.5
    return rng.standard_normal((n, d)) * spectrum * np.exp(0.35 * rng.standard_normal((n, 1)))


def _huge_and_tiny(n: int, d: int, rng: Rng) -> Array:
    tiny = n // 4
    centres = 3 * rng.standard_normal((max(1, tiny // 4), d))
    few = centres[rng.integers(len(centres), size=tiny)] + 0.1 * rng.standard_normal((tiny, d))
    return np.concatenate([0.5 * rng.standard_normal((n - tiny, d)), few])[rng.permutation(n)]


def _bags(n: int, d: int, rng: Rng) -> Array:
    return rng.poisson(3 / (1 + np.arange(d)), (n, d)).astype(float)


def _table(name: str) -> Callable[[int, int, Rng], Array]:
    def make(n: int, d: int, rng: Rng) -> Array:
        from sklearn import datasets

        p = getattr(datasets, f"load_{name}")().data.astype(float)
        p = (p - p.mean(axis=0)) / np.maximum(p.std(axis=0), 1e-9)
        return p[np.arange(n) % len(p)] + rng.choice([1e-6, 0.05, 0.3]) * rng.standard_normal(
            (n, p.shape[1])
        )

    return make


_ANY = (2, 3, 5, 8, 16, 32, 64)
_HIGH = (8, 16, 32, 64, 100)
FAMILIES: dict[str, Family] = {
    "equal": Family(lambda n, d, rng: np.tile(rng.standard_normal(d), (n, 1)), (3, 64)),
    "one-hot": Family(_one_hot, (16, 64, 128)),
    "lattice": Family(_lattice, (1, 2, 3)),
    "binary": Family(lambda n, d, rng: rng.integers(0, 2, (n, d)).astype(float), (8, 16, 64)),
    "integers": Family(lambda n, d, rng: rng.integers(-4, 5, (n, d)).astype(float), (2, 4, 16, 64)),
    "line": Family(lambda n, d, rng: rng.uniform(size=(n, 1)) * rng.standard_normal(d), _ANY),
    "circle": Family(_circle, (2, 3, 16)),
    "sphere": Family(_sphere, _HIGH),
    "shells": Family(_shells, _HIGH),
    "two scales": Family(_two_scales, _HIGH),
    "power-law norms": Family(
        lambda n, d, rng: _sphere(n, d, rng) * (1 + rng.pareto(1.5, (n, 1))), _HIGH
    ),
    "unequal clusters": Family(_unequal_clusters, _HIGH),
    "clusters": Family(lambda n, d, rng: clusters(n, d, mean_row_sum=None, rng=rng)[1], _HIGH),
    "planted pairs": Family(_planted, (*_HIGH, 128)),
    "sorted": Family(_sorted, _ANY),
    "jittered duplicates": Family(_jittered, _HIGH),
    "low intrinsic": Family(
        lambda n, d, rng: low_intrinsic_dimension(n, d, mean_row_sum=None, rng=rng).keys, _HIGH
    ),
    "heavy-tailed": Family(lambda n, d, rng: rng.standard_t(2, (n, d)), _ANY),
    "cube": Family(lambda n, d, rng: rng.uniform(size=(n, d)), _ANY),
    "gauss": Family(lambda n, d, rng: rng.standard_normal((n, d)), (*_ANY, 100, 200)),
    "words": Family(_words, (32, 64, 100)),
    "pictures": Family(
        lambda n, d, rng: picture_points(n, int(rng.integers(2**31)), d), (256, 784)
    ),
    "offset": Family(
        lambda n, d, rng: clusters(n, d, mean_row_sum=None, rng=rng)[1] + rng.choice([30, 1e3]),
        _HIGH,
    ),
    "huge and tiny": Family(_huge_and_tiny, _HIGH),
    "bags": Family(_bags, (16, 64, 200)),
    "digits": Family(_table("digits"), (64,)),
    "breast cancer": Family(_table("breast_cancer"), (30,)),
    "wine": Family(_table("wine"), (13,)),
    "diabetes": Family(_table("diabetes"), (10,)),
    "far queries": Family(lambda n, d, rng: rng.standard_normal((n, d)), _HIGH),
    "one far key": Family(_words, (16, 64)),
}
ROW_SUMS = ("1.2", "5", "50", "n/4", "median")


def data(family: str, n: int, m: int | None, d: int, dtype: str, row_sum: str, rng: Rng) -> Data:
    """Keys, and ``m`` other queries from the same source, with a bandwidth for the row sum."""
    points = FAMILIES[family].make(n + (m or 0), d, rng)
    if m is not None:  # queries and keys of one distribution, in the order of the source
        chosen = np.zeros(n + m, bool)
        chosen[rng.choice(n + m, m, replace=False)] = True
        queries, keys = points[chosen], points[~chosen]
    else:
        queries, keys = points, None
    if family == "far queries":
        queries = queries.copy()
        queries[: len(queries) // 2] += 100
    if family == "one far key":
        (queries if keys is None else keys)[0] = 1e4
    queries = np.ascontiguousarray(queries, dtype)
    keys = None if keys is None else np.ascontiguousarray(keys, dtype)
    return Data(queries, keys, _bandwidth(queries, keys, row_sum, rng))


def _bandwidth(queries: Array, keys: Array | None, row_sum: str, rng: Rng) -> float:
    """For the mean row sum, or a share of the median distance where no bandwidth gives it."""
    k = queries if keys is None else keys
    some = [p[rng.integers(len(p), size=256)].astype(float) for p in (queries, k)]
    median = float(np.median(np.linalg.norm(some[0][:, None] - some[1], axis=-1)))
    if row_sum != "median":
        target = len(k) / 4 if row_sum == "n/4" else float(row_sum)
        try:
            return float(bandwidth_for_row_sum(queries, k, target, rng))
        except ValueError:  # equal points: their row sums are larger at any bandwidth
            median *= 0.2
    return median if median > 0 else 1.0
