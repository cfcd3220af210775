"""Is "auto" ever slower than exact? 200 generated and real problems, one line of JSON each.

    python -m benchmarks.sweep --seed 0                  # all that are missing in the results
    python -m benchmarks.sweep --seed 0 --minutes 3      # a slice; the next call goes on after it
    python -m benchmarks.sweep --seed 0 --draw sweep.png # the picture and the table, nothing run

Each problem: eps = 0.1, x of Gaussian numbers, the queries are the keys. The time of exact is that
of all pairs; where it would take more than two seconds some of the queries are timed, and scaled.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from approxkmv import datasets, diagnose, matvec
from approxkmv._table import table

RESULTS = Path(__file__).parent / "results"
# Nearest whole numbers on a logarithmic scale.
DIMS = (1, 2, 3, 5, 8, 13, 20, 32, 50, 75, 100, 200, 400, 800)
SIZES = (8192, 16_384, 32_768, 65_536, 131_072)
BANDWIDTHS = ("row sum 5", "row sum 50", "quarter", "median", "double")
KINDS = ("clusters", "sphere", "low", "repeated", "robot", "curves", "patches", "digits")
# Multiply-adds of the exact product, at most: half a minute with AVX2 and two threads.
MOST_WORK, EXACT_ROWS_WORK = 1.0e12, 4.0e10
ERROR_ROWS = 512


class Problem(NamedTuple):
    number: int
    kind: str
    n: int
    d: int
    bandwidth: str


def problems(seed: int, n_problems: int) -> Iterator[Problem]:
    rng = np.random.default_rng(seed)
    number = 0
    while number < n_problems:
        n, d = int(rng.choice(SIZES)), int(rng.choice(DIMS))
        kind, bandwidth = str(rng.choice(KINDS)), str(rng.choice(BANDWIDTHS))
        d = {"curves": 3, "patches": 75, "digits": 64}.get(kind, d)
        if n * n * (d + 24.0) <= MOST_WORK:
            yield Problem(number, kind, n, d, bandwidth)
            number += 1


def points_of(problem: Problem, seed: int) -> np.ndarray:
    n, d, rng = problem.n, problem.d, np.random.default_rng([seed, problem.number])
    if problem.kind == "clusters":
        return datasets.clusters(n, d, mean_row_sum=None, rng=rng).keys
    if problem.kind == "sphere":
        return datasets.sphere(n, max(d, 2), mean_row_sum=None, rng=rng).keys
    if problem.kind == "low":
        points = rng.standard_normal((n, min(d, 4))) @ rng.standard_normal((min(d, 4), d))
        return (points + 0.05 * rng.standard_normal((n, d))).astype(np.float32)
    if problem.kind == "repeated":
        return datasets.repeated_rows(n, d, rng=rng)
    if problem.kind == "robot":
        return datasets.robot_arm(n, d, rng=rng).points.astype(np.float32)
    if problem.kind == "curves":
        return datasets.curves(n, rng=rng)
    if problem.kind == "patches":
        from sklearn.datasets import load_sample_image

        return datasets.image_patches(load_sample_image("china.jpg") / 255.0, n=n, rng=rng)
    pixels = datasets.digits().images.astype(np.float32)
    shifted = pixels[rng.integers(0, len(pixels), n)]  # real digits, each with noise of its own
    return (shifted + rng.standard_normal((n, 64)) * 0.1 * pixels.std()).astype(np.float32)


def bandwidth_of(points: np.ndarray, kind: str, rng: np.random.Generator) -> float:
    if kind.startswith("row sum"):
        try:
            return datasets.bandwidth_for_row_sum(points, points, float(kind[8:]), rng)
        except ValueError:  # equal points alone have more
            kind = "quarter"
    a, b = (points[rng.integers(0, len(points), 4096)].astype(np.float64) for _ in range(2))
    median = float(np.sqrt(np.median(np.square(a - b).sum(axis=1))))
    return max(median, 1e-3) * {"quarter": 0.25, "median": 1.0, "double": 2.0}[kind]


def measured(problem: Problem, seed: int, n_threads: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, problem.number, 1])
    points = points_of(problem, seed)
    n, d = points.shape
    bandwidth = bandwidth_of(points, problem.bandwidth, rng)
    x = rng.standard_normal(n).astype(np.float32)
    # Whole blocks of rows, at least one for each thread, and all of them where that is quick.
    n_rows = min(n, max(2048, int(EXACT_ROWS_WORK / (n * (d + 24)))))
    rows = np.sort(rng.choice(n, n_rows, replace=False))
    queries = points if n_rows == n else points[rows]
    options: dict[str, Any] = {"bandwidth": bandwidth, "n_threads": n_threads}
    times: dict[str, list[float]] = {"auto": [], "exact": []}
    calls = {
        "auto": lambda: matvec(points, None, x, eps=0.1, rng=seed, **options),
        "exact": lambda: matvec(queries, points, x, method="exact", **options),
    }
    for attempt in range(12 if n * n * (d + 24.0) < 3e10 else 3):
        for name in ("auto", "exact") if attempt % 2 else ("exact", "auto"):
            start = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - start)
    # The report takes some time of its own.
    y, info = matvec(points, None, x, eps=0.1, rng=seed, return_info=True, **options)
    exact = calls["exact"]()
    ours, theirs = min(times["auto"]), min(times["exact"]) * n / n_rows
    off = y[rows].astype(np.float64) - exact
    error = np.linalg.norm(off) * math.sqrt(n / n_rows) / float(np.linalg.norm(x))
    report = diagnose(points, bandwidth=bandwidth, eps=0.1, rng=seed)
    return problem._asdict() | {
        "n_dims": d,
        "sigma": bandwidth,
        "method": info.method,
        "reason": info.plan.reason,
        "seconds": times,
        "exact_rows": n_rows,
        "stages": dict(info.seconds),
        "ratio": ours / theirs,
        "predicted": 1 / report.speed_ups[0.1] if report.speed_ups else 1.0,
        "error_over_eps": float(error) / 0.1,
        "estimate_over_eps": (info.error_estimate or 0.0) / 0.1,
    }


def summary(records: list[dict[str, Any]]) -> str:
    ratios = np.array([one["ratio"] for one in records])
    errors = np.array([one["error_over_eps"] for one in records])
    rows = []
    for name in ("all", "exact", "sampled"):
        of = np.array([name in ("all", one["method"]) for one in records])
        if of.any():
            r, e = ratios[of], errors[of]
            shares = [f"{(r > limit).mean():.1%}" for limit in (1.05, 1.15)]
            figures = [f"{np.median(r):.3f}", f"{r.max():.3f}", *shares]
            rows.append([name, str(of.sum()), *figures, f"{e.max():.2f}", str((e > 1).sum())])
    heads = ["auto chose", "problems", "median ratio", "worst", "above 1.05", "above 1.15"]
    lines = [table([*heads, "worst error/eps", "over eps"], rows)]
    for one in sorted(records, key=lambda one: -one["ratio"])[:10]:
        lines.append(
            f"  {one['ratio']:.3f} (predicted {one['predicted']:.3f}) {one['kind']} n={one['n']} "
            f"d={one['n_dims']} {one['bandwidth']}: {one['method']}, {one['reason']}"
        )
    return "\n".join(lines)


def draw(records: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    for method, colour in (("exact", "tab:gray"), ("sampled", "tab:blue")):
        of = [one for one in records if one["method"] == method]
        across, up = ([one[name] for one in of] for name in ("predicted", "ratio"))
        axes.scatter(across, up, s=12, color=colour, label=f"{method} ({len(of)})")
    low = min(min(one["ratio"], one["predicted"]) for one in records)
    axes.plot([low, 1], [low, 1], color="black", linewidth=0.8)
    for limit in (1.0, 1.15):
        axes.axhline(limit, color="black", linewidth=0.5, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="predicted time of auto, over exact")
    axes.set(ylabel="measured time of auto, over exact", title=f"{len(records)} problems, eps 0.1")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, help="default: results/sweep_SEED.jsonl")
    parser.add_argument("--draw", metavar="PICTURE", help="only draw and sum up what was measured")
    args = parser.parse_args(argv)
    place: Path = args.results or RESULTS / f"sweep_{args.seed}.jsonl"
    start = time.monotonic()
    lines = place.read_text().splitlines() if place.exists() else []
    records = [json.loads(line) for line in lines]
    done = {one["number"] for one in records}
    left = [] if args.draw else list(problems(args.seed, args.problems))
    for problem in left:
        if problem.number in done or time.monotonic() - start > 60 * args.minutes:
            continue
        records.append(measured(problem, args.seed, args.threads))
        with place.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        said = f"{records[-1]['ratio']:.3f} {records[-1]['method']}"
        print(f"{len(records)}/{args.problems}", *problem[1:], said, flush=True)
    if records:
        print(summary(records))
    if args.draw:
        draw(records, args.draw)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
