"""Which way to a product is taken, and what it gains: ``python -m benchmarks.page regime_map``.

Clustered points, x = ones, eps = 0.1, over dimensions and mean row sums: the way that "auto" took
and how many times as fast as the exact product it was. Everything in the picture was measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv import datasets, matvec
from approxkmv.cli.compare import error_from_rows
from benchmarks.against_n import best
from benchmarks.record import Row, times

N, EPS = 65_536, 0.1
DIMS = (1, 2, 3, 5, 8, 16, 32, 64, 128, 512)
ROW_SUMS = (2, 5, 20, 100, 1000, 10_000)
EXACT_QUERIES = 8192  # timed; the time of exact is linear in them
WAYS = ("exact", "cells", "norms", "few coordinates", "low rank")
NAMES = ("exact", "cells in space", "order by norm", "few coordinates", "few columns")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each dimension and mean row sum."""
    for d in DIMS:
        asked = {*(args.cases or [str(d)])}
        chosen = [r for r in ROW_SUMS if asked & {str(d), f"{d}, {r}"}]
        if not chosen:
            continue
        points = datasets.clusters(min(N, args.largest), d, mean_row_sum=None, rng=args.seed).keys
        for row_sum in chosen:
            try:
                bandwidth = datasets.bandwidth_for_row_sum(points, points, row_sum, args.seed)
            except ValueError:  # no bandwidth gives so small a sum
                continue
            yield {"case": f"{d}, {row_sum}", **measured(points, bandwidth, row_sum, args)}


def measured(points: Any, bandwidth: float, row_sum: float, args: argparse.Namespace) -> Row:
    n, d = points.shape
    x = np.ones(n, np.float32)
    options: dict[str, Any] = {"bandwidth": bandwidth, "n_threads": args.threads}

    def ours() -> Any:
        return matvec(points, None, x, eps=EPS, rng=args.seed, **options)

    y, info = matvec(points, None, x, eps=EPS, rng=args.seed, return_info=True, **options)
    rows = np.arange(0, n, max(1, n // EXACT_QUERIES))[:EXACT_QUERIES]
    few = np.ascontiguousarray(points[rows])
    exact = matvec(few, points, x, method="exact", **options)
    seconds = best(lambda: matvec(few, points, x, method="exact", **options), 2) * n / len(few)
    return {
        "d": d,
        "row_sum": row_sum,
        "way": way(info),
        "gain": seconds / best(ours, 2),
        "error": error_from_rows(y[rows], exact, n, x),
        "predicted": [[c.name, c.cost, c.outcome] for c in info.plan.candidates],
    }


def way(info: Any) -> str:
    """The candidate that was taken; drawn keys by the order that they are drawn in."""
    if info.method == "exact":
        return "exact"
    taken = [c.name for c in info.plan.candidates if c.outcome == "taken"]
    name = taken[-1] if taken else "drawing keys"
    return str(info.plan.numbers["order"]) if name == "drawing keys" else name


def tables(rows: list[Row]) -> dict[str, str]:
    """One sentence: the picture has the rest."""
    largest = max(r["error"] for r in rows) / EPS
    sampled = [r for r in rows if r["way"] != "exact"]
    slowest = min(r["gain"] for r in rows)
    fastest = times(max(r["gain"] for r in rows))
    words = (
        f"{len(sampled)} of these {len(rows)} products were approximated. The largest error was "
        f"{largest:.2f} of the one allowed. The slowest took {1 / slowest:.2f} times as long as "
        f"the exact product; the fastest was {fastest} times as fast."
    )
    return {"regime_map": words}


COLOURS = {
    "light": ("#e4e7eb", "#bfe3c0", "#b9d6f2", "#f6dcae", "#e3c4ee"),
    "dark": ("#2b3138", "#23522b", "#1d4468", "#66480f", "#53305f"),
}


def draw(rows: list[Row], folder: Path) -> None:
    """A field for each product, coloured by the way, with the gain in it."""
    from benchmarks.pictures import THEMES, themed

    for theme in THEMES:
        path = folder / f"regime_map_{theme}.svg"
        with themed(theme, path, size=(8.0, 4.4)) as (axes, colours):
            _draw(rows, axes, colours, COLOURS[theme])


def _draw(rows: list[Row], axes: Any, colours: Any, fills: tuple[str, ...]) -> None:
    from matplotlib.patches import Patch, Rectangle

    dims = sorted({r["d"] for r in rows})
    sums = sorted({r["row_sum"] for r in rows})
    for r in rows:
        i, j = dims.index(r["d"]), sums.index(r["row_sum"])
        fill = fills[WAYS.index(r["way"])]
        axes.add_patch(Rectangle((i - 0.47, j - 0.45), 0.94, 0.9, facecolor=fill))
        axes.text(i, j, times(r["gain"]), ha="center", va="center", color=colours.text)
    axes.set_xlim(-0.55, len(dims) - 0.45)
    axes.set_ylim(-0.55, len(sums) - 0.45)
    axes.set_xticks(range(len(dims)), [str(d) for d in dims])
    axes.set_yticks(range(len(sums)), [f"{s:,}" for s in sums])
    axes.set(xlabel="coordinates of a point", ylabel="mean row sum: how many points are near")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    used = [k for k, name in enumerate(WAYS) if any(r["way"] == name for r in rows)]
    patches = [Patch(facecolor=fills[k], label=NAMES[k]) for k in used]
    axes.legend(
        handles=patches,
        ncols=len(patches),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
        fontsize=9.5,
        handlelength=1.2,
        borderaxespad=0.2,
    )
