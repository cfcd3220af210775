"""Whole jobs, against what people use: ``python -m benchmarks.everyday [--cases ...]``.

Choosing a bandwidth, a density on a grid, SciPy's interface, a kernel regression, a two-sample
test: from arrays to the answer, with an error or an outcome beside the time. Contestants run in
turn. What would take minutes is timed on a part, where its time is linear in that part, and is
marked as scaled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks import everyday_jobs as jobs
from benchmarks import harness
from benchmarks.record import Row, duration, markdown, times

JOBS: dict[str, tuple[str, Callable[[argparse.Namespace], Row]]] = {
    "grid search": (
        "bandwidth by `GridSearchCV`: 5,000 points in 2-D, 10 values, 5 folds",
        jobs.grid_search,
    ),
    "density 2-d": (
        "density of 100,000 points on a 100 × 100 grid, rtol 1e-3",
        jobs.density_on_grid,
    ),
    "density 64-d": (
        "density at 65,536 places from 65,536 clustered points in 64-D, rtol 0.1",
        jobs.density_of_clusters,
    ),
    "gaussian_kde": ("`gaussian_kde`, 20,000 × 20,000 in 2-D", jobs.scipy_face),
    "ridge": ("kernel ridge regression, 40,000 rows × 8", jobs.ridge),
    "mmd": ("MMD of 7,207 and 93,070 rows × 79, 200 permutations", jobs.mmd),
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    for name, (_, job) in JOBS.items():
        if not args.cases or name in args.cases:
            yield {"case": name, **job(args)}


def tables(rows: Sequence[Row]) -> dict[str, str]:
    head = ["job", "with", "time", "times as long", "outcome"]
    lines = []
    for r in rows:
        ours = r["contestants"]["approxkmv"]["seconds"]
        title = JOBS[r["case"]][0]
        for name, one in r["contestants"].items():
            scaled = ", scaled" if one.get("scaled") else ""
            quotient = "" if name == "approxkmv" else times(one["seconds"] / ours)
            lines.append([title, name, duration(one["seconds"]) + scaled, quotient, one["outcome"]])
            title = ""
    return {"everyday": markdown(head, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=JOBS)
    parser.add_argument("--largest", type=int, default=2**20, help="rows at most, for a trial")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="for every contestant")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with harness.threads(args.threads):
        print(tables([*measure(args)])["everyday"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
