"""Predicted against measured speed-ups: ``python -m benchmarks.prediction``.

``approxkmv diagnose`` predicts how many times faster than the exact product the engine will be. For
every data set the exact product and the engine at the errors predicted for are run in turn, with
x = 1, and the table sets the prediction beside it. Times are CPU time of all threads, so that other
work on the machine disturbs less. What the search and the draws cost, in the units of the constants
of ``approxkmv.engine.planner``, stands beside. The exit code is 1 when a prediction for eps of 0.03
or more is off by more than a factor of 2.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv import matvec
from approxkmv._table import table
from approxkmv.diagnosis.predict import TOLERANCES
from approxkmv.engine.planner import predicted
from approxkmv.engine.problem import Budget, Problem
from approxkmv.experiments.timing import interleaved, ratio
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from benchmarks import harness
from benchmarks.engine import ROOT, clothes, clustered, words

DATA = {
    "clusters": (clustered, 32_768),
    "GloVe": (words(0.5**0.5), 32_768),
    "Fashion-MNIST": (clothes, 20_000),
}
SEARCH = ("order", "plan", "tilings", "neighbours", "check")  # stages of the engine
WITHIN, JUDGED_FROM = 2.0, 0.03


@dataclass
class Report:
    """What was measured on one data set, ready for JSON."""

    data: str
    n: int
    d: int
    exact_cpu_seconds: tuple[float, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """A table."""
        title = f"== {self.data}, n = {self.n:,}, d = {self.d}"
        header = ["eps", "method", "predicted method", "measured", "predicted"]
        header += ["predicted / measured", "error", "search, pairs / query", "draws"]
        return f"{title}\n{table(header, [*map(self._row, self.rows)])}"

    @staticmethod
    def _row(r: dict[str, Any]) -> list[str]:
        return [
            f"{r['eps']:g}",
            r["method"],
            r["predicted_method"],
            f"{r['measured']:.2f}",
            f"{r['predicted']:.2f}",
            f"{r['predicted'] / r['measured']:.2f}",
            f"{r['error']:.2g}",
            f"{r['search_pairs']:.0f}",
            str(r["draws"]),
        ]


def run_case(name: str, args: argparse.Namespace) -> Report:
    """Times, what the engine did, and what was predicted."""
    load, n = DATA[name]
    n = args.n or n
    data = load(n, args)
    x = np.ones(n, data.keys.dtype)
    options = {"bandwidth": data.bandwidth, "rng": args.seed, "n_threads": args.threads}

    def product(eps: float) -> Any:
        method = "auto" if eps else "exact"
        return matvec(*data[:2], x, eps=eps, method=method, return_info=True, **options)

    contestants = {f"{e:g}": lambda e=e: product(e) for e in (0.0, *TOLERANCES)}
    timings = interleaved(contestants, args.repetitions, clock=time.process_time)
    exact = timings.pop("0")
    kernel = prepare(*data, backend=Compiled(args.threads))
    # Not the engine's own random numbers: the prediction has a pilot of its own.
    rng = np.random.default_rng(args.seed + 1)
    budget = Budget(float(n), 0.05)  # of x = 1: an error of |x|
    predictions = predicted(Problem(kernel, x[:, None], budget, rng), TOLERANCES)
    report = Report(name, n, data.keys.shape[1], exact.seconds)
    for (eps, prediction), timing in zip(predictions.items(), timings.values(), strict=True):
        y, info = timing.result
        # Stages have wall times: their shares are taken of the CPU time.
        search = sum(info.seconds.get(stage, 0.0) for stage in SEARCH)
        share = search / max(sum(info.seconds.values()), 1e-9)
        few = "coordinates" in info.plan.numbers
        method = "few coordinates" if few else "drawing keys"
        report.rows.append(
            {
                "eps": eps,
                "method": method if info.method == "sampled" else "exact",
                "predicted_method": prediction.chosen,
                "measured": ratio(exact, timing).median,
                "predicted": prediction.speed_up,
                "error": float(np.linalg.norm(y - exact.result[0]) / np.linalg.norm(x)),
                "seconds": dict(info.seconds),
                "search_pairs": 0.0 if few else share * timing.median / exact.median * n,
                "draws": info.plan.numbers.get("draws", 0),
            }
        )
    return report


def main(argv: list[str] | None = None) -> int:
    """Run the data sets asked for, print each as it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--n", type=int, help="another number of points")
    parser.add_argument("--glove", type=Path, help="GloVe, if the package is not installed")
    parser.add_argument("--fashion-mnist", type=Path, help="folder of the images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/prediction.jsonl")
    args = parser.parse_args(argv)
    description = harness.machine(args.threads)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    rows = []
    for name in args.data:
        report = run_case(name, args)
        harness.append(args.output, description, report)
        print(f"\n{report.text()}", flush=True)
        rows += [row for row in report.rows if row["eps"] >= JUDGED_FROM]
    worst = max(rows, key=off)
    print(f"\nworst prediction: off by {off(worst):.2f} at eps = {worst['eps']:g}")
    return int(off(worst) > WITHIN)


def off(row: dict[str, Any]) -> float:
    """Factor between prediction and measurement, at least 1."""
    quotient: float = row["predicted"] / row["measured"]
    return max(quotient, 1 / quotient)


if __name__ == "__main__":
    sys.exit(main())
