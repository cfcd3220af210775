"""What the engine costs on this machine: ``python -m benchmarks.costs``.

First what each number of ``engine/cost.py`` is here, beside the one in the model: a stage of a
product, its seconds over those of a pair of the exact product. Then the same products with single
costs halved and doubled: how many times as long they take. A cost whose factor of two changes
little may stay what it is on another machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from approxkmv import datasets
from approxkmv._table import table
from approxkmv.engine.cost import CostModel
from approxkmv.engine.products import Answer, product
from approxkmv.engine.request import Request, Tolerance
from approxkmv.kernel.equal_points import find_copies
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled

VARIED = (
    "pilot_pair",
    "drawn_pair",
    "gathered_key",
    "search",
    "draws_after_search",
    "tiling",
    "sketched_pair",
    "neighbours",
    "isolated",
    "polynomial_per_dim",
    "pair_overhead",
    "dense",
)
_EXACT_ROWS = 2048  # queries of the exact product whose time is that of a pair


class Case(NamedTuple):
    """A product whose stages are timed."""

    name: str
    queries: Any
    keys: Any
    bandwidth: float
    n_threads: int

    def request(self, cost: CostModel, seed: int) -> Request:
        return Request(
            self.queries,
            self.keys,
            np.ones(len(self.keys), self.keys.dtype),
            self.bandwidth,
            Tolerance(0.1),
            0.05,
            np.random.default_rng(seed),
            n_threads=self.n_threads,
            cost=cost,
        )

    def exact_pair(self) -> float:
        """Seconds of a pair of the exact product."""
        return _exact_pair(self.queries[:_EXACT_ROWS], self.keys, self.bandwidth, self.n_threads)


def cases(n: int, n_threads: int) -> list[Case]:
    """Sparse in the order of norms, sparse in cells, and dense."""
    clusters = datasets.clusters(n, 64, rng=0, dtype=np.float32)
    curves = datasets.curves(n, rng=0)
    rng = np.random.default_rng(0)
    cloud = rng.standard_normal((n, 20), dtype=np.float32)
    return [
        Case("clusters, d = 64", *clusters, n_threads),
        Case("curves, d = 3", curves, curves, 0.05, n_threads),
        Case("normal, d = 20, median distance", cloud, cloud, 20**0.5 * 1.4, n_threads),
    ]


def _timed(work: Callable[[], Any], repetitions: int = 3) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def _exact_pair(queries: Any, keys: Any, bandwidth: float, n_threads: int) -> float:
    kernel = prepare(queries, keys, bandwidth, backend=Compiled(n_threads))
    ones = np.ones((len(keys), 1), keys.dtype)
    return _timed(lambda: kernel.product(ones)) / (len(queries) * len(keys))


def by_dimension(n_threads: int, n_keys: int) -> list[list[str]]:
    """What does not depend on a survey: overhead of a pair, dense algebra, equal points."""
    rng, model = np.random.default_rng(0), CostModel()
    dims = np.array([2, 8, 32, 128, 512])
    seconds = []
    for d in dims:
        points = rng.standard_normal((n_keys, d), dtype=np.float32)
        seconds.append(_exact_pair(points[:_EXACT_ROWS], points, float(d) ** 0.5, n_threads))
    # Relative residuals, so that the longest time does not decide alone.
    weight = 1 / np.array(seconds)
    (slope, offset), *_ = np.linalg.lstsq(
        np.stack([dims * weight, weight], axis=1), np.ones(len(dims)), rcond=None
    )
    square = rng.standard_normal((1024, 1024))
    multiply_add = _timed(lambda: square @ square) / 1024**3
    points = rng.standard_normal((n_keys, 20), dtype=np.float32)
    of_20 = _exact_pair(points[:_EXACT_ROWS], points, 20**0.5, n_threads)
    copies = _timed(lambda: find_copies(points)) / n_keys
    return [
        ["pair_overhead", "multiply-adds", f"{model.pair_overhead:g}", f"{offset / slope:.3g}"],
        ["dense", "multiply-adds", f"{model.dense:g}", f"{multiply_add / slope:.3g}"],
        ["equal_point", "pairs, d = 20", f"{model.equal_point:g}", f"{copies / of_20:.3g}"],
    ]


def by_stage(case: Case, answer: Answer) -> list[list[str]]:
    """Costs seen in the stages of one product."""
    info, model, pair = answer.info, CostModel(), case.exact_pair()
    numbers, seconds = info.plan.numbers, info.seconds
    n_queries, n_keys, n_dims = len(case.queries), len(case.keys), case.keys.shape[1]
    rows: list[list[str]] = []

    def add(name: str, unit: str, modelled: float, stages: tuple[str, ...], units: float) -> None:
        taken = sum(seconds.get(stage, 0.0) for stage in stages)
        if taken and units:
            found = taken / units / pair
            rows.append([name, unit, f"{modelled:.3g}", f"{found:.3g}"])

    pilot_pairs = float(numbers.get("pilot_rows", 0)) * n_keys
    add("pilot_pair", "pair of a pilot row", model.pilot_pair, ("pilot",), pilot_pairs)
    drawn = info.pairs - pilot_pairs
    add("drawn", "pair drawn or recomputed", model.drawn(n_dims), ("draw",), drawn)
    search = ("tilings", "neighbours", "isolated")
    if "tilings" in numbers:
        each = model.search_cost(n_queries, n_keys, n_dims) / n_queries
        add("search_cost", "query", each, search, n_queries)
    moments = model.polynomial_cost(n_queries, n_keys, n_dims) / n_queries
    add("polynomial_cost", "query", moments, ("polynomial",), n_queries)
    return rows


def flatness(case: Case, repetitions: int, seed: int) -> list[list[str]]:
    """Times with single costs halved and doubled, over those with the model."""
    rows, model = [], CostModel()
    for name in VARIED:
        value = getattr(model, name)
        halved, doubled = (
            dataclasses.replace(model, **{name: factor * value}) for factor in (0.5, 2.0)
        )
        times: list[list[float]] = [[], [], []]
        for repetition in range(repetitions):
            for some, cost in zip(times, (model, halved, doubled), strict=True):
                request = case.request(cost, seed + repetition)
                start = time.perf_counter()
                product(request)
                some.append(time.perf_counter() - start)
        of_model, *others = map(median, times)
        rows.append([name, *(f"{other / of_model:.2f}" for other in others)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"instruction set {Compiled(1).isa}, {arguments.threads} threads, n = {arguments.n}")
    print(table(["cost", "unit", "model", "here"], by_dimension(arguments.threads, arguments.n)))
    for case in cases(arguments.n, arguments.threads):
        answer = product(case.request(CostModel(), arguments.seed))
        print(f"\n{case.name}: {answer.info.method}, {answer.info.plan.reason}")
        rows = by_stage(case, answer)
        if rows:
            print(table(["cost", "unit", "model", "here"], rows))
        of_two = flatness(case, arguments.repetitions, arguments.seed)
        print(table(["cost", "time if halved", "if doubled"], of_two), flush=True)


if __name__ == "__main__":
    main()
