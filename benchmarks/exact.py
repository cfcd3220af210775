"""The exact product against NumPy, PyTorch and KeOps: ``python -m benchmarks.exact``.

Runs are interleaved, ratios are taken repetition by repetition, the error stands beside the time.
Each case prints the target it must reach. The exit code is 1 when one was missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv import matvec
from approxkmv.cli import compare
from approxkmv.datasets import clusters, sphere, vectors
from approxkmv.experiments.timing import interleaved
from approxkmv.kernel.matrix import prepare
from approxkmv.loops import compiled
from approxkmv.loops.compiled import Compiled
from benchmarks import harness, rivals
from benchmarks.harness import OURS, Report, Target

ROWS = 256  # on which errors are measured
ROOT = Path(__file__).resolve().parent.parent


def vector_case(args: argparse.Namespace, n: int, dtype: str, targets: dict[str, Target]) -> Report:
    """One vector, d = 64."""
    n = scaled(n, args)
    rng = np.random.default_rng(args.seed)
    queries, keys, bandwidth = clusters(n, 64, rng=rng, dtype=dtype)
    x = vectors(n, rng, dtype=dtype)["gauss"]
    rows = rng.choice(n, min(n, ROWS), replace=False)
    exact = compare.exact_rows(queries, keys, x, bandwidth, rows)

    def error(y: Any) -> float:
        return compare.error_from_rows(y[rows], exact, n, x)

    options: dict[str, Any] = {"method": "exact", "n_threads": args.threads}
    contestants = {OURS: lambda: matvec(queries, keys, x, bandwidth=bandwidth, **options)}
    others = rivals.products(queries, keys, x, bandwidth)
    contestants |= {name: run for name, run in others.items() if name not in args.without}
    report = Report("one vector", {"n": n, "d": 64, "type": dtype, "bandwidth": f"{bandwidth:.3f}"})
    harness.race(report, contestants, args.repetitions, error)
    trivial = compare.trivial_answers(queries, keys, x, bandwidth, rows, exact)
    for name, answer in trivial.items():
        report.errors[name] = compare.error_from_rows(answer, exact, n, x)
    for name, target in targets.items():
        if name in report.ratios:
            report.judge(target, report.ratios[name].median, judged=args.scale == 1)
    return report


def float32_case(args: argparse.Namespace) -> Report:
    """d = 64, n = 32,768, float32."""
    targets = {
        "NumPy blocked": Target("times NumPy blocked", 3.0),
        "torch blocked": Target("times torch blocked", 1.4),
    }
    return vector_case(args, 32_768, "float32", targets)


def float64_case(args: argparse.Namespace) -> Report:
    """d = 64, n = 16,384, float64."""
    targets = {"NumPy blocked": Target("times NumPy blocked float64", 2.0)}
    return vector_case(args, 16_384, "float64", targets)


def attention_case(args: argparse.Namespace) -> Report:
    """d = 100, 64 columns and row sums: the shape of attention, D^-1 K V."""
    n, n_columns = scaled(16_384, args), 64
    rng = np.random.default_rng(args.seed)
    queries, keys, bandwidth = sphere(n, 100, rng=rng)
    values = rng.standard_normal((n, n_columns), dtype=np.float32)
    rows = rng.choice(n, min(n, ROWS), replace=False)
    ones = np.ones((n, 1), np.float32)
    sums = compare.exact_rows(queries, keys, np.hstack([values, ones]), bandwidth, rows)
    exact = sums[:, :-1] / sums[:, -1:]

    def error(out: Any) -> float:
        return compare.error_from_rows(out[rows], exact, n, values)

    def ours() -> Any:
        kernel = prepare(queries, keys, bandwidth, backend=Compiled(args.threads))
        sums = kernel.product(values, row_sums=True)
        assert sums.totals is not None
        return sums.out / sums.totals[:, None]

    contestants = {OURS: ours}
    if harness.installed("torch"):
        contestants["torch SDPA"] = rivals.torch_attention(queries, keys, values, bandwidth)
    report = Report("attention shape", {"n": n, "d": 100, "columns": n_columns, "type": "float32"})
    harness.race(report, contestants, args.repetitions, error)
    report.errors["mean of the values"] = compare.error_from_rows(
        np.broadcast_to(values.mean(axis=0), exact.shape), exact, n, values
    )
    if "torch SDPA" in report.ratios:
        target = Target("times torch SDPA", 1.2)
        report.judge(target, report.ratios["torch SDPA"].median, judged=args.scale == 1)
    return report


def peak_case(args: argparse.Namespace) -> Report:
    """Share of the measured multiply-add peak, for several dimensions."""
    report = Report("share of the peak", {"isa": compiled.ISA, "threads": args.threads})
    for d in (16, 64, 128, 784):
        peak_share(args, d, report)
    judged = args.scale == 1 and compiled.ISA == "avx512"  # elsewhere the figure has no target
    target = Target("share at d = 128 with AVX-512", 0.6)
    report.judge(target, report.figures["share at d = 128"], judged=judged)
    return report


def peak_share(args: argparse.Namespace, d: int, report: Report) -> None:
    """Time one dimension and the peak in turn; the exponential is not counted as work."""
    n = scaled(16_384 if d <= 128 else 8192, args)
    rng = np.random.default_rng(args.seed)
    queries, keys, bandwidth = clusters(n, d, mean_row_sum=None, rng=rng)
    x = vectors(n, rng)["gauss"]
    options: dict[str, Any] = {"method": "exact", "n_threads": args.threads}
    peaks: list[float] = []
    contestants = {
        OURS: lambda: matvec(queries, keys, x, bandwidth=bandwidth, **options),
        "peak": lambda: peaks.append(compiled.fma_peak(0.1)),
    }
    seconds = interleaved(contestants, args.repetitions)[OURS].seconds
    operations = 2 * (d + 1) * n * n
    shares = [
        operations / spent / (args.threads * peak)
        for spent, peak in zip(seconds, peaks[1:], strict=True)
    ]
    report.seconds[f"d = {d}, n = {n}"] = seconds
    report.figures[f"share at d = {d}"] = statistics.median(shares)
    report.figures[f"peak of one core at d = {d}, Gflop/s"] = statistics.median(peaks) / 1e9


def memory_case(args: argparse.Namespace) -> Report:
    """Peak memory beyond inputs and output with 200,000 keys, and with 200,000 queries."""
    long, short = scaled(200_000, args), scaled(4096, args)
    report = Report("memory", {"d": 64, "type": "float32", "threads": args.threads})
    for n_queries, n_keys in ((short, long), (long, short)):
        sizes = [n_queries, n_keys, 64, args.threads]
        megabytes = float(child(["-m", "benchmarks.memory", *map(str, sizes)]))
        target = Target(f"MB for {n_queries:,} x {n_keys:,}", 64, at_least=False)
        report.judge(target, megabytes, judged=args.scale == 1)
    return report


def import_case(args: argparse.Namespace) -> Report:
    """Time to import, NumPy and SciPy loaded already: the least of several processes."""
    report = Report("import", {"processes": 7})
    code = (
        "import time, {}; t = time.perf_counter(); import approxkmv; print(time.perf_counter() - t)"
    )
    for loaded in ("numpy, scipy.sparse.linalg", "numpy, scipy"):
        seconds = min(float(child(["-c", code.format(loaded)])) for _ in range(7))
        report.figures[f"seconds after import {loaded}"] = seconds
    report.judge(Target("seconds to import", 0.3, at_least=False), seconds)
    return report


def child(arguments: list[str]) -> str:
    """Run Python in a process of its own; returns what it printed."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def scaled(n: int, args: argparse.Namespace) -> int:
    return max(64, int(n * float(args.scale)))


CASES: dict[str, Callable[[argparse.Namespace], Report]] = {
    "float32": float32_case,
    "attention": attention_case,
    "float64": float64_case,
    "peak": peak_case,
    "memory": memory_case,
    "import": import_case,
}


def main(argv: list[str] | None = None) -> int:
    """Run the cases asked for, print each as it is done, and append it to the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=2, help="for every contestant")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; 1 to be judged")
    parser.add_argument("--without", nargs="+", default=[], metavar="RIVAL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/exact.jsonl")
    args = parser.parse_args(argv)

    description = harness.machine(args.threads)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    missed = False
    with harness.threads(args.threads):
        for name in args.cases:
            report = CASES[name](args)
            harness.append(args.output, description, report)
            print(f"\n{report.text()}", flush=True)
            missed |= any("MISSED" in verdict for verdict in report.verdicts.values())
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
