"""``KernelDensity`` against exact densities and scikit-learn's: ``python -m benchmarks.density``.

Fitting and evaluating together, interleaved in one run. scikit-learn's estimator with
``leaf_size`` of all samples, the setting with which it is right in high dimension, is timed on
1,024 of the queries and scaled: its time is linear in them. Errors are in nats, the largest over
all queries, beside those of two trivial answers. The exit code is 1 when a target was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.neighbors import KernelDensity as TreeDensity

from approxkmv import datasets
from approxkmv.loops.types import Array, Float64
from approxkmv.sklearn import KernelDensity
from benchmarks import harness
from benchmarks.harness import Report, Target

CASES = ("clusters", "fashion-mnist")
# Within a cluster values of 0.17, between clusters 1e-7: row sums of about 3.
CLUSTER_BANDWIDTH = 2.1
TREE_QUERIES = 1024
RTOL = 0.1


class Data(NamedTuple):
    """What to fit, where to evaluate, how wide."""

    samples: Array
    queries: Array
    bandwidth: float


def clusters(args: argparse.Namespace) -> Data:
    n = args.n
    queries, samples, _ = datasets.clusters(n, 64, mean_row_sum=None, rng=args.seed)
    return Data(samples, queries, args.bandwidth or CLUSTER_BANDWIDTH)


def fashion_mnist(args: argparse.Namespace) -> Data:
    """Clothes not seen before among those seen; pixels from 0 to 1."""
    folder = args.fashion_mnist
    samples = datasets.fashion_mnist(folder, "train").images
    queries = datasets.fashion_mnist(folder, "test").images
    return Data(samples, queries, args.bandwidth or 1.0)


def run(case: str, args: argparse.Namespace) -> Report:
    data = clusters(args) if case == "clusters" else fashion_mnist(args)
    samples, queries = data.samples, data.queries
    report = Report(
        f"density, {case}",
        {
            "samples": len(samples),
            "queries": len(queries),
            "d": samples.shape[1],
            "bandwidth": data.bandwidth,
            "seed": args.seed,
            "threads": args.threads,
        },
    )

    def densities(method: str) -> Float64:
        model = KernelDensity(
            data.bandwidth,
            rtol=RTOL,
            method=method,
            random_state=args.seed,
            n_threads=args.threads,
        ).fit(samples)
        if method == "auto":
            report.parameters["method"] = model.method_
        return model.score_samples(queries)

    exact = densities("exact")

    def error(found: Float64) -> float:
        return float(np.abs(found - exact).max())

    contestants = {"exact": lambda: densities("exact"), harness.OURS: lambda: densities("auto")}
    harness.race(report, contestants, args.repetitions, error)
    report.errors["mean of the log-densities"] = error(np.full_like(exact, exact.mean()))
    report.errors["its own kernel alone"] = error(_one_kernel(data, len(queries)))
    report.judge(Target("times exact", 5.0), report.ratios["exact"].median, judged=_judged(case))
    report.judge(Target("largest error in nats", RTOL, at_least=False), report.errors[harness.OURS])
    if args.tree:
        whole, of_tree = _tree(data)
        ours = sorted(report.seconds[harness.OURS])[len(report.seconds[harness.OURS]) // 2]
        report.figures["largest difference from scikit-learn"] = float(
            np.abs(of_tree - exact[: len(of_tree)]).max()
        )
        report.judge(Target("times scikit-learn", 50.0), whole / ours, judged=_judged(case))
    return report


def _tree(data: Data) -> tuple[float, Float64]:
    """Seconds for all queries, from the faster of two runs on some, and the answers for these."""
    few = data.queries[:TREE_QUERIES]
    start = time.perf_counter()
    tree = TreeDensity(bandwidth=data.bandwidth, leaf_size=len(data.samples)).fit(data.samples)
    to_fit = time.perf_counter() - start
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        answers = tree.score_samples(few)
        spent.append(time.perf_counter() - start)
    return to_fit + min(spent) * len(data.queries) / len(few), answers


def _one_kernel(data: Data, n: int) -> Float64:
    """What a sample's own kernel contributes at its centre, the same for every query."""
    d = data.samples.shape[1]
    volume = d * np.log(data.bandwidth * np.sqrt(2 * np.pi))
    return np.full(n, -np.log(len(data.samples)) - volume)


def _judged(case: str) -> bool:
    return case == "clusters"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["clusters"])
    parser.add_argument("--n", type=int, default=65_536, help="samples and queries of clusters")
    parser.add_argument("--bandwidth", type=float, help="instead of the one of the case")
    parser.add_argument("--fashion-mnist", type=Path, help="its folder, if not installed")
    parser.add_argument("--tree", action="store_true", help="scikit-learn's estimator too")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    reached = True
    with harness.threads(args.threads):
        for case in args.cases:
            report = run(case, args)
            print(report.text(), flush=True)
            reached &= not any("MISSED" in verdict for verdict in report.verdicts.values())
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
