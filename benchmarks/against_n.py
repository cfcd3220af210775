"""Time against the number of points: ``python -m benchmarks.page against_n``.

The picture of README. Products with the vector of ones: ours with eps = 0.1, our exact one, and
NumPy in blocks. Where one of the last two would take long, some of the queries are timed and the
time scaled: it is linear in them. Errors are measured on rows in double precision.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv import matvec
from approxkmv.cli.compare import error_from_rows, folded, numpy_blocked
from approxkmv.datasets import clusters
from benchmarks.record import Row, duration, markdown, rounded, times

D, EPS = 64, 0.1
MEAN_ROW_SUM = 5.0
SIZES = tuple(2**p for p in range(12, 21))
MOST_PAIRS = {"exact": 2**31, "numpy": 2**29}  # timed: about two seconds each
ERROR_PAIRS = 2**30
# A block of 512 rows takes 2 GB from here on, and most of the time: not what anyone would run.
TOO_MANY_FOR_NUMPY = 2**20


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each size."""
    for n in SIZES:
        if n <= args.largest and (not args.cases or str(n) in args.cases):
            yield measured(n, args)


def measured(n: int, args: argparse.Namespace) -> Row:
    rng = np.random.default_rng(args.seed)
    queries, keys, bandwidth = clusters(n, D, mean_row_sum=MEAN_ROW_SUM, rng=rng)
    x = np.ones(n, np.float32)
    options: dict[str, Any] = {"bandwidth": bandwidth, "n_threads": args.threads}

    def ours() -> Any:
        return matvec(queries, keys, x, eps=EPS, rng=args.seed, return_info=True, **options)

    def exact(some: Any) -> Any:
        return matvec(some, keys, x, method="exact", **options)

    def numpy(some: Any) -> Any:
        return numpy_blocked(*folded(some, keys, bandwidth), x)

    y, info = ours()  # not timed: a first call loads modules
    rows = np.sort(rng.choice(n, min(n, max(1024, ERROR_PAIRS // n)), replace=False))
    double = queries[rows].astype(np.float64), keys.astype(np.float64), x.astype(np.float64)
    truth = matvec(*double, bandwidth=bandwidth, method="exact", n_threads=args.threads)
    found: Row = {"case": str(n), "n": n, "method": info.method, "bandwidth": bandwidth}
    # The report of an exact product measures its rounding; without a report nothing does.
    found["seconds"] = best(ours, args.repetitions) - info.seconds.get("report", 0.0)
    found["error"] = error_from_rows(y[rows], truth, n, x)
    found["estimate"] = info.error_estimate
    for name, product in (("exact", exact), ("numpy", numpy)):
        if name == "numpy" and n >= TOO_MANY_FOR_NUMPY:
            continue
        m = min(n, MOST_PAIRS[name] // n)
        some = np.sort(rng.choice(n, m, replace=False)) if m < n else slice(None)
        part = np.ascontiguousarray(queries[some])
        spent = best(lambda p=product, q=part: p(q), args.repetitions)
        found[f"{name}_seconds"], found[f"{name}_queries"] = spent * n / m, m
        at_rows = product(np.ascontiguousarray(queries[rows]))
        found[f"{name}_error"] = error_from_rows(at_rows, truth, n, x)
    return found


def best(run: Callable[[], Any], repetitions: int) -> float:
    """The shortest time of a few runs; of one where it takes seconds."""
    spent: list[float] = []
    while len(spent) < repetitions and sum(spent) < 4:
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return min(spent)


def tables(rows: list[Row]) -> dict[str, str]:
    head = ["n", "approxkmv, eps = 0.1", "error / ‖x‖", "estimated", "exact", "NumPy, blocked"]
    head += ["times exact", "times NumPy"]
    lines = [
        [
            f"{r['n']:,}",
            duration(r["seconds"]),
            rounded(r["error"]),
            rounded(r["estimate"]) if r["estimate"] is not None else "",
            duration(r["exact_seconds"]),
            duration(r["numpy_seconds"]) if "numpy_seconds" in r else "",
            times(r["exact_seconds"] / r["seconds"]),
            times(r["numpy_seconds"] / r["seconds"]) if "numpy_seconds" in r else "",
        ]
        for r in rows
    ]
    return {"against_n": markdown(head, lines)}


def draw(rows: list[Row], folder: Path) -> None:
    """One picture for light and one for dark pages."""
    from benchmarks.pictures import THEMES, themed

    for theme in THEMES:
        with themed(theme, folder / f"against_n_{theme}.svg", size=(7.2, 4.0)) as (axes, colours):
            _draw(rows, axes, colours)


def _draw(rows: list[Row], axes: Any, colours: Any) -> None:
    every = [r["n"] for r in rows]
    lines = (
        ("numpy_seconds", "NumPy", colours.faint, "s--"),
        ("exact_seconds", "approxkmv, exact", colours.second, "o-"),
        ("seconds", "approxkmv, eps = 0.1", colours.first, "o-"),
    )
    for name, label, colour, style in lines:
        seconds = [r[name] for r in rows if name in r]
        n = every[: len(seconds)]
        axes.loglog(n, seconds, style, color=colour, markersize=5)
        place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        words = f"{label}\n{duration(seconds[-1])}"
        if name == "seconds":
            words += f", error {rows[-1]['error']:.3f}"
        axes.annotate(words, (n[-1], seconds[-1]), color=colour, fontsize=9.5, **place)
    for r in rows[:-1]:
        error = r["error"]
        shown = f"{error:.3f}" if error >= 1e-3 else f"{error:.0e}".replace("e-0", "e-")
        axes.annotate(
            shown,
            (r["n"], r["seconds"]),
            xytext=(3, -13),
            textcoords="offset points",
            color=colours.first,
            fontsize=8,
        )
    axes.set_xlim(every[0] * 0.8, every[-1] * 9)
    axes.set_xticks(every[::2], [f"{value:,}" for value in every[::2]])
    axes.set_ylim(bottom=0.3 * min(r["seconds"] for r in rows))
    axes.minorticks_off()
    axes.set(xlabel="points, in 64 dimensions", ylabel="seconds for one product")
    title = "Below the line: the error made, relative to the length of x (0.1 allowed)"
    axes.set_title(title, fontsize=9.5, color=colours.text, loc="left")
