"""The engine against our own exact product: ``python -m benchmarks.engine [--quick | --large]``.

For every data set one interleaved run: the exact product, and products with several errors allowed
and several vectors. True errors are measured on all rows in double precision, on random ones above
65,536 points (a few rows may have much of the error: 2,000 are too few); the pairs computed are
compared with n^2 and with those of an oracle; trivial answers stand beside; rivals follow on the
smaller sizes. The exit code is 1 when a target was missed. With ``--growth`` see ``growth.py``.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from approxkmv import datasets, matvec
from approxkmv._table import table
from approxkmv.cli import compare
from approxkmv.experiments.timing import Spread, Timing, interleaved, ratio
from benchmarks import approximations, growth, harness
from benchmarks.harness import Target

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("ones", "gauss", "t2", "top")
ORACLE_PAIRS = 2**23  # from which the oracle's share is estimated
# Above this size the exact product is timed on some of the queries: its time is linear in them.
MOST_EXACT_QUERIES = 262_144
EXACT_QUERIES = 65_536
MOST_RIVAL_KEYS = 65_536
MOST_CHECKED_PAIRS = 2**32


class Data(NamedTuple):
    """Points and bandwidth."""

    queries: Any
    keys: Any
    bandwidth: float


@dataclass(frozen=True)
class Case:
    """A data set, its size, and how many times as fast as exact eps = 0.1 must be."""

    load: Callable[[int, argparse.Namespace], Data]
    n: int
    at_least: float
    tier: str  # quick, standard or large


@dataclass
class Report:
    """What a case found, ready for JSON."""

    case: str
    parameters: dict[str, Any]
    exact_seconds: tuple[float, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    rivals: list[dict[str, Any]] = field(default_factory=list)
    trivial: dict[str, dict[str, float]] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        title = ", ".join(f"{k} = {v}" for k, v in self.parameters.items())
        header = ["eps", "x", "method", "seconds", "times exact", "error", "estimate"]
        parts = [
            f"== {self.case}: {title}",
            f"exact product: {statistics.median(self.exact_seconds):.3g} s",
            table([*header, "pairs / n^2", "pairs / oracle's"], [*map(self._row, self.rows)]),
            "trivial answers, error / |x|:",
            *(
                f"  x = {x}: " + ", ".join(f"{name}: {e:.2g}" for name, e in answers.items())
                for x, answers in self.trivial.items()
            ),
        ]
        if self.rivals:
            rows = [*map(self._rival, self.rivals)]
            header = ["rival", "x", "eps", "size", "seconds", "times exact", "error"]
            parts.append(table(header, rows))
        return "\n".join([*parts, *self.verdicts.values()])

    @staticmethod
    def _row(r: dict[str, Any]) -> list[str]:
        return [
            f"{r['eps']:g}",
            r["x"],
            r["method"],
            f"{r['median']:.3g}",
            str(Spread(*r["times_exact"])),
            f"{r['error']:.2g}",
            "" if r["estimate"] is None else f"{r['estimate']:.2g}",
            f"{r['pairs_share']:.2%}",
            f"{r['pairs_over_oracle']:.3g}",
        ]

    def _rival(self, r: dict[str, Any]) -> list[str]:
        quotient = statistics.median(self.exact_seconds) / r["seconds"]
        return [
            r["name"],
            r["x"],
            f"{r['eps']:g}",
            f"{r['size']:,}",
            f"{r['seconds']:.3g}",
            f"{quotient:.2f}",
            f"{r['error']:.2g}",
        ]


def clustered(n: int, args: argparse.Namespace) -> Data:
    """Clusters in 64 dimensions with a mean row sum of 5."""
    return Data(*datasets.clusters(n, 64, rng=args.seed))


def words(bandwidth: float) -> Callable[[int, argparse.Namespace], Data]:
    """Random words of GloVe, 100 dimensions, queries and keys the same."""

    def load(n: int, args: argparse.Namespace) -> Data:
        every = datasets.glove(args.glove, 100).vectors
        chosen = np.random.default_rng(args.seed).permutation(len(every))[:n]
        points = np.ascontiguousarray(every[chosen])
        return Data(points, points, bandwidth)

    return load


def clothes(n: int, args: argparse.Namespace) -> Data:
    """Images of Fashion-MNIST, 784 dimensions, with a mean row sum of 5."""
    points = datasets.fashion_mnist(args.fashion_mnist).images[:n]
    bandwidth = datasets.bandwidth_for_row_sum(points, points, 5.0, args.seed)
    return Data(points, points, bandwidth)


def run_case(name: str, case: Case, args: argparse.Namespace) -> Report:
    """Race, measure, judge."""
    n = max(64, int(case.n * args.scale))
    data = case.load(n, args)
    n = len(data.keys)
    rng = np.random.default_rng(args.seed)
    xs = {kind: vector(kind, data, args) for kind in args.x}
    report = Report(name, {"n": n, "d": data.keys.shape[1], "bandwidth": f"{data.bandwidth:.4g}"})
    chosen = rng.choice(n, min(n, args.rows or MOST_CHECKED_PAIRS // n), replace=False)
    columns = np.stack(list(xs.values()), axis=1)
    queries, keys = (points.astype(np.float64) for points in (data.queries[chosen], data.keys))
    exact = matvec(queries, keys, columns, bandwidth=data.bandwidth, method="exact")
    exact_of = dict(zip(xs, exact.T, strict=True))

    def error(y: Any, kind: str) -> float:
        return compare.error_from_rows(y[chosen], exact_of[kind], n, xs[kind])

    timings = race(data, xs, args)
    exact_timing = timings.pop("exact")
    report.exact_seconds = exact_timing.seconds
    for kind, x in xs.items():
        sizes = pair_sizes(data, x, args.seed)
        length = float(np.linalg.norm(x.astype(np.float64)))
        for eps in args.eps:
            oracle = oracle_pairs(sizes, (eps * length) ** 2)
            row = described(timings[kind, eps], exact_timing, oracle)
            row["error"] = error(timings[kind, eps].result[0], kind)
            report.rows.append({"eps": eps, "x": kind} | row)
        answers = compare.trivial_answers(
            data.queries, data.keys, x, data.bandwidth, chosen, exact_of[kind]
        )
        report.trivial[kind] = {
            answer: compare.error_from_rows(found, exact_of[kind], n, x)
            for answer, found in answers.items()
        }
    if args.rivals and n <= MOST_RIVAL_KEYS:
        run_rivals(report, data, xs, error, args)
    judge(report, case, judged=args.scale == 1)
    return report


def described(timing: Timing, exact: Timing, oracle: float) -> dict[str, Any]:
    """Times, estimate and pairs of one product."""
    info = timing.result[1]
    quotient = ratio(exact, timing)
    return {
        "method": info.method,
        "seconds": timing.seconds,
        "median": timing.median,
        "times_exact": (quotient.median, quotient.low, quotient.high),
        "estimate": info.error_estimate,
        "product_norm": info.product_norm,
        "pairs_share": info.pairs / info.pairs_exact,
        "pairs_over_oracle": info.pairs / oracle,
        "stages": dict(info.seconds),
        "numbers": dict(info.plan.numbers),
    }


def race(data: Data, xs: dict[str, Any], args: argparse.Namespace) -> dict[Any, Timing]:
    """The exact product and ours for every x and eps, interleaved."""
    n = len(data.queries)
    n_exact = EXACT_QUERIES if n > MOST_EXACT_QUERIES else n

    def product(kind: str, **options: Any) -> Any:
        some = data.queries[:n_exact] if options.get("method") == "exact" else data.queries
        return matvec(
            some, data.keys, xs[kind], bandwidth=data.bandwidth, n_threads=args.threads, **options
        )

    first = next(iter(xs))
    contestants: dict[Any, Callable[[], Any]] = {"exact": lambda: product(first, method="exact")}
    for kind in xs:
        for eps in args.eps:
            contestants[kind, eps] = lambda kind=kind, eps=eps: product(
                kind, eps=eps, rng=args.seed, return_info=True
            )
    timings = interleaved(contestants, args.repetitions)
    exact = timings.pop("exact")
    scaled = tuple(spent * n / n_exact for spent in exact.seconds)
    return {"exact": Timing(scaled, None)} | {
        name: without_report(timing) for name, timing in timings.items()
    }


def without_report(timing: Timing) -> Timing:
    """Times less what an exact product spent on measuring its rounding for the report."""
    spent = timing.result[1].seconds.get("report", 0.0)
    return Timing(tuple(seconds - spent for seconds in timing.seconds), timing.result)


def vector(kind: str, data: Data, args: argparse.Namespace) -> Any:
    """Ones, gauss or t2; or top: four steps towards the top right singular vector."""
    n = len(data.keys)
    if kind != "top":
        return datasets.vectors(n, args.seed, dtype=data.keys.dtype)[kind]
    x = np.ones(n, data.keys.dtype)
    options: dict[str, Any] = {"bandwidth": data.bandwidth, "n_threads": args.threads, "rng": 0}
    for _ in range(4):
        y = matvec(data.queries, data.keys, x, **options)
        x = matvec(data.keys, data.queries, y / np.linalg.norm(y), **options)
        x /= np.linalg.norm(x)
    return x


class Sizes(NamedTuple):
    """How many pairs have which K_ij |x_j|."""

    size: Any
    count: Any


def pair_sizes(data: Data, x: Any, seed: int) -> Sizes:
    """Histogram of K_ij |x_j| over all pairs, estimated from random rows."""
    n_queries, n_keys = len(data.queries), len(data.keys)
    n_rows = min(n_queries, max(16, ORACLE_PAIRS // n_keys))
    rows = np.random.default_rng(seed).choice(n_queries, n_rows, replace=False)
    edges = np.linspace(-60, 30, 4001)  # of the logarithm: steps of 2 %
    counts = np.zeros(len(edges) - 1)
    with np.errstate(divide="ignore"):
        log_x = np.log(np.abs(x.astype(np.float64)))
    for some in np.array_split(rows, max(1, n_rows // 16)):
        squares = cdist(data.queries[some].astype(np.float64), data.keys, "sqeuclidean")
        counts += np.histogram(squares * (-0.5 / data.bandwidth**2) + log_x, edges)[0]
    return Sizes(np.exp((edges[:-1] + edges[1:]) / 2), counts * (n_queries / n_rows))


def oracle_pairs(sizes: Sizes, allowed: float) -> float:
    """Pairs of an oracle that knows K and draws every pair by itself, for a squared error.

    With a = K_ij |x_j| the best probabilities are min(1, f a), where f is such that
    sum a^2 (1/pi - 1) is the squared error allowed.
    """
    a, count = sizes

    def pi(log_factor: float) -> Any:
        return np.minimum(1.0, np.exp(log_factor) * a)

    low, high = -60.0, 60.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        variance = float((count * a**2 * (1 / pi(middle) - 1)).sum())
        low, high = (middle, high) if variance > allowed else (low, middle)
    return max(1.0, float((count * pi(high)).sum()))


def run_rivals(
    report: Report,
    data: Data,
    xs: dict[str, Any],
    error: Callable[..., float],
    args: argparse.Namespace,
) -> None:
    """Each rival at the smallest size that reaches eps, or the first that is slower than exact."""
    most = statistics.median(report.exact_seconds)
    eps = min(args.eps, key=lambda e: abs(e - 0.1))
    for kind in [k for k in ("ones", "gauss") if k in xs]:
        problem = approximations.Problem(*data, xs[kind], eps, args.threads, args.seed)
        for name, (rival, sizes) in approximations.rivals(len(data.keys)).items():
            error_here = functools.partial(error, kind=kind)
            found = approximations.climb(rival, sizes, problem, error_here, most)
            report.rivals.append(
                {
                    "name": name,
                    "x": kind,
                    "eps": eps,
                    "size": found.size,
                    "seconds": found.seconds,
                    "error": found.error,
                }
            )


def judge(report: Report, case: Case, *, judged: bool) -> None:
    """The slowest x at eps = 0.1 against the target; the largest error of all against eps."""
    at_tenth = [row["times_exact"][0] for row in report.rows if row["eps"] == 0.1]
    verdicts = {
        "times exact at eps = 0.1, slowest x": (case.at_least, True, min(at_tenth, default=None)),
        "error / eps, largest": (1.0, False, max(row["error"] / row["eps"] for row in report.rows)),
    }
    for name, (value, at_least, found) in verdicts.items():
        if found is not None:
            line = Target(name, value, at_least).line(found, judged=judged)
            report.verdicts[name] = line


NEVER_MUCH_SLOWER = 1 / 1.1
CASES = {
    "clusters 32,768": Case(clustered, 32_768, 3.0, "quick"),
    "clusters 4,096": Case(clustered, 4096, NEVER_MUCH_SLOWER, "quick"),
    "GloVe dense 16,384": Case(words(math.sqrt(10)), 16_384, NEVER_MUCH_SLOWER, "quick"),
    "GloVe 65,536": Case(words(math.sqrt(0.5)), 65_536, 8.0, "standard"),
    "GloVe dense 65,536": Case(words(math.sqrt(10)), 65_536, NEVER_MUCH_SLOWER, "standard"),
    "Fashion-MNIST 60,000": Case(clothes, 60_000, 5.0, "standard"),
    "clusters 262,144": Case(clustered, 262_144, 20.0, "standard"),
    "GloVe 262,144": Case(words(math.sqrt(0.35)), 262_144, 30.0, "large"),
    "clusters 1,048,576": Case(clustered, 1_048_576, 60.0, "large"),
}
TIERS = {"quick": ("quick",), "standard": ("quick", "standard"), "large": ("large",)}


def main(argv: list[str] | None = None) -> int:
    """Run the cases asked for, print each as it is done, and append it to the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--quick", action="store_const", const="quick", dest="tier")
    tier.add_argument("--large", action="store_const", const="large", dest="tier")
    tier.add_argument(
        "--growth",
        type=int,
        nargs="?",
        const=2**20,
        metavar="LARGEST",
        help="instead: time against the number of points, up to this many (1,048,576)",
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE")
    parser.add_argument("--eps", nargs="+", type=float, default=[0.3, 0.1, 0.03])
    parser.add_argument("--x", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--no-rivals", action="store_false", dest="rivals")
    parser.add_argument("--glove", type=Path, help="GloVe, if the package is not installed")
    parser.add_argument("--fashion-mnist", type=Path, help="its folder, if not installed")
    parser.add_argument("--threads", type=int, default=2, help="for every contestant")
    parser.add_argument("--repetitions", type=int, help="default: 3; quick and large: 1")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; 1 to be judged")
    parser.add_argument("--rows", type=int, help="on which errors are measured; default: 2^32 / n")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/engine.jsonl")
    args = parser.parse_args(argv)
    args.repetitions = args.repetitions or (1 if args.tier else 3)
    tiers = TIERS[args.tier or "standard"]
    names = args.cases or [name for name, case in CASES.items() if case.tier in tiers]

    description = harness.machine(args.threads)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    missed = False
    with harness.threads(args.threads):
        if args.growth:
            growth.run(args.growth, args.seed, args.threads)
            return 0
        for name in names:
            try:
                report = run_case(name, CASES[name], args)
            except FileNotFoundError as reason:
                print(f"\n== {name}: skipped. {reason}", flush=True)
                continue
            harness.append(args.output, description, report)
            print(f"\n{report.text()}", flush=True)
            missed |= any("MISSED" in verdict for verdict in report.verdicts.values())
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
