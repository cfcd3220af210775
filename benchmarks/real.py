"""Real data, and rivals beside ours: ``python -m benchmarks.real``.

Each set comes from a package that is named where it is missing, or is generated like a set that no
package has. Bandwidths are those that people choose: the median distance, and those with few near
points, a mean row sum of 5 or 50. Of ours the slowest of three vectors counts (ones, Gaussian, and
one that is smooth in the points). Rivals multiply the vector of ones, at the smallest setting
that reaches the tolerance, or the last before the next would take longer than our exact product.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from approxkmv import datasets, matvec
from approxkmv.experiments.timing import interleaved
from benchmarks import harness, real_rivals
from benchmarks.record import Row, markdown, rounded, times

ERROR_PAIRS = 2**29
EXACT_PAIRS = 2**30  # exact products of more pairs are timed on some of the queries


class Set(NamedTuple):
    """How points are had, how many, what they are, and the bandwidths and tolerances tried."""

    load: Callable[[int], Any]
    n: int
    about: str
    cases: tuple[tuple[str, str, float], ...]


def picture(name: str) -> Any:
    from sklearn.datasets import load_sample_image

    return load_sample_image(name).astype(np.float32) / np.float32(255)


def pixels(n: int) -> Any:
    """Place and colour of pixels: the five coordinates of a bilateral filter."""
    image = picture("china.jpg")
    down, across = np.indices(image.shape[:2])
    places = np.stack([down, across], axis=-1) / max(image.shape)
    return some(np.concatenate([places, image], axis=-1).reshape(-1, 5).astype(np.float32), n)


def some(points: Any, n: int) -> Any:
    """n of the points, at random: the order of a file says much about its points."""
    chosen = np.random.default_rng(0).permutation(len(points))[:n]
    return np.ascontiguousarray(points[chosen], np.float32)


def standardised(points: Any) -> Any:
    return ((points - points.mean(axis=0)) / points.std(axis=0)).astype(np.float32)


SPARSE, DENSE = ("row sum 5", "eps", 0.1), ("median", "rtol", 1e-3)
WIDE = ("median", "eps", 0.1)
HALF = ("row sum 50", "eps", 0.1)
SETS = {
    "curves": Set(lambda n: datasets.curves(n, rng=0), 65_536, "generated", (SPARSE, HALF)),
    "pixels": Set(pixels, 65_536, "photograph, place and colour", (SPARSE, HALF, DENSE)),
    "robot arm": Set(
        lambda n: standardised(datasets.robot_arm(n, 8, rng=0).points),
        40_000,
        "generated, like kin40k",
        (SPARSE, DENSE),
    ),
    "table": Set(
        lambda n: datasets.repeated_rows(n, 20, rng=0),
        65_536,
        "generated, with equal rows",
        (WIDE, DENSE),
    ),
    "patches": Set(
        lambda n: datasets.image_patches(picture("flower.jpg"), n=n, rng=0),
        65_536,
        "photograph, 5 x 5 pixels",
        (SPARSE, HALF, DENSE),
    ),
    "GloVe 50": Set(
        lambda n: some(datasets.glove(dim=50).vectors, n), 65_536, "words", (SPARSE, HALF, DENSE)
    ),
    "GloVe 100": Set(lambda n: some(datasets.glove().vectors, n), 65_536, "words", (SPARSE, DENSE)),
    "Fashion-MNIST": Set(
        lambda n: some(datasets.fashion_mnist().images, n), 60_000, "pictures", (SPARSE, DENSE)
    ),
    "MNIST": Set(lambda n: some(datasets.mnist().images, n), 60_000, "pictures", (DENSE,)),
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each set and bandwidth that is installed and asked for."""
    for name, kind in SETS.items():
        asked = {*(args.cases or [name])}
        chosen = [c for c in kind.cases if asked & {name, f"{name}, {c[0]}"}]
        if not chosen:
            continue
        try:
            points = kind.load(min(kind.n, args.largest))
        except (FileNotFoundError, ImportError) as error:
            print(f"{name}: skipped. {error}", file=sys.stderr)
            continue
        for bandwidth, relative, tolerance in chosen:
            case = f"{name}, {bandwidth}, {relative} {tolerance:g}"
            row = measured(points, bandwidth, {relative: tolerance}, args)
            yield {"case": case, "set": name, "about": kind.about, **row}


def bandwidth_of(points: Any, kind: str) -> float:
    if kind.startswith("row sum"):
        return datasets.bandwidth_for_row_sum(points, points, float(kind[8:]), 0)
    rng = np.random.default_rng(0)
    a, b = (points[rng.integers(0, len(points), 4096)].astype(np.float64) for _ in range(2))
    return float(np.sqrt(np.median(np.square(a - b).sum(axis=1))))


def measured(points: Any, kind: str, tolerance: dict[str, float], args: argparse.Namespace) -> Row:
    n, d = points.shape
    bandwidth, rng = bandwidth_of(points, kind), np.random.default_rng(args.seed)
    direction = rng.standard_normal(d) / math.sqrt(d)
    xs = {
        "ones": np.ones(n, np.float32),
        "gauss": rng.standard_normal(n).astype(np.float32),
        "smooth": np.tanh(points @ direction).astype(np.float32),
    }
    rows = np.sort(rng.choice(n, min(n, max(1024, ERROR_PAIRS // n)), replace=False))
    columns = np.stack(list(xs.values()), axis=1).astype(np.float64)
    double = points[rows].astype(np.float64), points.astype(np.float64), columns
    truth = matvec(*double, bandwidth=bandwidth, method="exact", n_threads=args.threads)
    ((relative, allowed),) = tolerance.items()
    scale = math.sqrt(n / len(rows))
    (lengths,) = (np.linalg.norm(columns, axis=0),)
    if relative == "rtol":
        lengths = np.linalg.norm(truth, axis=0) * scale

    def error(y: Any, x: str) -> float:
        column = [*xs].index(x)
        difference = np.linalg.norm(y[rows].astype(np.float64) - truth[:, column])
        return float(difference * scale / lengths[column])

    problem = real_rivals.Problem(
        points, points, bandwidth, xs["ones"], allowed, args.threads, args.seed
    )
    found: Row = {"n": n, "d": d, "kind": kind, "relative": relative, "allowed": allowed}
    found["bandwidth"] = bandwidth
    found |= race(points, xs, tolerance, problem, error, args)
    found["rivals"] = {
        name: climbed(rival, sizes, problem, functools.partial(error, x="ones"), found["exact"])
        for name, (rival, sizes) in real_rivals.rivals(d).items()
        if args.rivals and kind != HALF[0]
    }
    return found


def race(
    points: Any,
    xs: dict[str, Any],
    tolerance: dict[str, float],
    problem: real_rivals.Problem,
    error: Callable[..., float],
    args: argparse.Namespace,
) -> Row:
    """Ours for every vector against our exact product, interleaved."""
    n = len(points)
    few = np.ascontiguousarray(points[: max(1024, min(n, EXACT_PAIRS // n))])

    def ours(x: Any) -> Any:
        options: dict[str, Any] = {"rng": args.seed, "n_threads": args.threads, **tolerance}
        return matvec(points, None, x, bandwidth=problem.bandwidth, return_info=True, **options)

    contestants: dict[str, Callable[[], Any]] = {
        name: functools.partial(ours, x) for name, x in xs.items()
    }
    contestants["exact"] = lambda: problem.product(few, points, xs["ones"])
    timings = interleaved(contestants, args.repetitions)
    exact = min(timings["exact"].seconds) * n / len(few)
    by_vector = {}
    for name in xs:
        y, info = timings[name].result
        spent = min(timings[name].seconds) - info.seconds.get("report", 0.0)
        by_vector[name] = {
            "seconds": spent,
            "error": error(y, name),
            "method": info.method,
            "reason": info.plan.reason,
            "pairs": info.pairs / info.pairs_exact,
        }
    return {"exact": exact, "exact_queries": len(few), "ours": by_vector}


def climbed(
    rival: Callable[..., Any],
    sizes: Any,
    problem: real_rivals.Problem,
    error: Callable[[Any], float],
    most: float,
) -> Row | None:
    try:
        found = real_rivals.climb(rival, sizes, problem, error, most)
    except (MemoryError, real_rivals.TooLargeError):
        return None
    return found._asdict() if found else None


def tables(rows: list[Row]) -> dict[str, str]:
    head = ["data", "n × d", "bandwidth", "allowed", "times exact", "largest error / allowed"]
    names = [*real_rivals.NAMES]
    lines = []
    for r in rows:
        ours = r["ours"].values()
        norm = "‖x‖" if r["relative"] == "eps" else "‖Kx‖"
        exactly = all(o["method"] == "exact" for o in ours)
        slowest = min(r["exact"] / o["seconds"] for o in ours)
        lines.append(
            [
                f"{r['set']} ({r['about']})",
                f"{r['n']:,} × {r['d']}",
                r["kind"],
                f"{r['allowed']:g} {norm}",
                times(slowest) + (", exact" if exactly else ""),
                rounded(max(o["error"] for o in ours) / r["allowed"]),
                *(_rival(r, name) for name in names),
            ]
        )
    return {"real": markdown([*head, *names], lines)}


def _rival(r: Row, name: str) -> str:
    found = r["rivals"].get(name)
    if found is None:
        return "–"
    quotient = times(r["exact"] / found["seconds"]) if found["seconds"] else ""
    reached = found["error"] <= r["allowed"]
    return quotient if reached else f"({quotient}: {rounded(found['error'] / r['allowed'])})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", help="names of sets, or 'SET, BANDWIDTH'")
    parser.add_argument("--largest", type=int, default=2**17, help="points at most")
    parser.add_argument("--no-rivals", action="store_false", dest="rivals")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with harness.threads(args.threads):
        print(tables([*measure(args)])["real"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
