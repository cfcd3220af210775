"""Time against the number of points: ``python -m benchmarks.engine --growth [LARGEST]``.

The time model of a sampled product: every stage takes so many units of work, of constant cost. What
grows faster than n is then the number of units; a cost that grows is the memory's. The tables print
both for three sizes, four times as many points each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from approxkmv import datasets, matvec
from approxkmv._table import table

EPS = 0.1
CHECKED_ROWS = 8192  # of fewer a handful may have much of the error
_BANDWIDTH = 2.1  # of the clusters at every size: the background grows with n
_ROW_SUM = 5.0  # of the word-like points at every size: the bandwidth falls with n


class Points(NamedTuple):
    """Queries, keys and bandwidth."""

    queries: Any
    keys: Any
    bandwidth: float


class Run(NamedTuple):
    """One product: number of points, seconds and numbers of its report, its error."""

    n: int
    seconds: Mapping[str, float]
    numbers: Mapping[str, Any]
    pairs: int
    error: float

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())


def _pilot_pairs(run: Run) -> float:
    return float(run.numbers.get("pilot_rows", 0)) * run.n


def _tiled_points(run: Run) -> float:
    return float(run.numbers.get("tilings", 0)) * run.n


def _drawn_pairs(run: Run) -> float:
    return run.pairs - _pilot_pairs(run)


def _points(run: Run) -> float:
    return float(run.n)


# What each stage is counted in; all others are counted in points.
UNITS: dict[str, tuple[str, Callable[[Run], float]]] = {
    "pilot": ("pair of a pilot row", _pilot_pairs),
    "tilings": ("point in a tiling", _tiled_points),
    "draw": ("pair drawn or recomputed", _drawn_pairs),
}
OTHERS = ("point", _points)


def clustered(n: int, seed: int) -> Points:
    """Clusters of 16 in 64 dimensions, at one bandwidth."""
    points = datasets.clusters(n, 64, mean_row_sum=None, rng=seed)
    return Points(points.queries, points.keys, _BANDWIDTH)


def word_like(n: int, seed: int) -> Points:
    """Coordinates of falling variance and norms of heavy tails, as word vectors have them."""
    rng = np.random.default_rng(seed)
    scale = (1 / np.sqrt(1 + np.arange(64))).astype(np.float32)
    norms = np.exp(0.35 * rng.standard_normal((n, 1))).astype(np.float32)
    points = rng.standard_normal((n, 64), dtype=np.float32) * scale * norms
    return Points(points, points, _bandwidth_of(points))


def _bandwidth_of(points: Any) -> float:
    """For a mean row sum of `_ROW_SUM`, of some rows with some keys."""
    rows = points[:256].astype(np.float64)
    keys = points[:: max(1, len(points) // 65_536)].astype(np.float64)
    squares = np.square(rows).sum(1)[:, None] + np.square(keys).sum(1) - 2 * rows @ keys.T
    low, high = 0.01, 10.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        row_sum = np.exp(-squares / (2 * middle**2)).sum(1).mean() * len(points) / len(keys)
        low, high = (middle, high) if row_sum < _ROW_SUM else (low, middle)
    return middle


KINDS = {"clusters": clustered, "word-like": word_like}


def measured(points: Points, seed: int, n_threads: int) -> Run:
    """One product with x = 1, and its error on some rows."""
    n, x = len(points.keys), np.ones(len(points.keys), np.float32)
    y, info = matvec(
        points.queries,
        points.keys,
        x,
        bandwidth=points.bandwidth,
        eps=EPS,
        rng=seed,
        n_threads=n_threads,
        return_info=True,
    )
    some = np.random.default_rng(seed + 1).integers(0, n, CHECKED_ROWS)
    exact = matvec(points.queries[some], points.keys, x, bandwidth=points.bandwidth, method="exact")
    error = float(np.sqrt(np.square(y[some] - exact).mean()))
    return Run(n, info.seconds, info.plan.numbers, info.pairs, error)


def report(name: str, runs: list[Run]) -> str:
    """Seconds of every stage, nanoseconds of each unit of it, and exponents of growth."""
    header = ["stage", "unit"]
    for run in runs:
        header += [f"{run.n:,}: s", "ns a unit"]
    header += [f"growth to {run.n:,}" for run in runs[1:]]
    stages = list(dict.fromkeys(stage for run in runs for stage in run.seconds))
    rows = [_row(stage, *UNITS.get(stage, OTHERS), runs) for stage in stages]
    rows.append(["all", "", *(cell for run in runs for cell in (f"{run.total:.3g}", ""))])
    rows[-1] += _exponents([run.total for run in runs], runs)
    errors = ", ".join(f"{run.error:.3f}" for run in runs)
    share = ", ".join(f"{run.pairs / run.n**2:.3%}" for run in runs)
    return f"== {name}: errors {errors} (eps {EPS}); {share} of all pairs\n{table(header, rows)}"


def _row(stage: str, unit: str, work: Callable[[Run], float], runs: list[Run]) -> list[str]:
    row = [stage, unit]
    for run in runs:
        seconds, units = run.seconds.get(stage, 0.0), work(run)
        row += [f"{seconds:.3g}", f"{1e9 * seconds / units:.3g}" if units > 0 else ""]
    return row + _exponents([run.seconds.get(stage, 0.0) for run in runs], runs)


def _exponents(seconds: list[float], runs: list[Run]) -> list[str]:
    """Powers of n with which the seconds grow, from each size to the next."""
    cells = []
    for i in range(1, len(runs)):
        before, after = seconds[i - 1 : i + 1]
        growth = math.log(runs[i].n / runs[i - 1].n)
        cells.append(f"{math.log(after / before) / growth:.2f}" if before > 0 < after else "")
    return cells


def run(largest: int, seed: int, n_threads: int) -> list[str]:
    """Measure both kinds of data at three sizes, and print each table when it is done."""
    texts = []
    for name, make in KINDS.items():
        sizes = (largest // 16, largest // 4, largest)
        texts.append(report(name, [measured(make(n, seed), seed, n_threads) for n in sizes]))
        print(f"\n{texts[-1]}", flush=True)
    return texts
