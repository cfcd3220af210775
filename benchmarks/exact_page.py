"""The cases of ``benchmarks.exact`` as rows of the pages."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

from benchmarks import exact
from benchmarks.harness import OURS
from benchmarks.record import Row, duration, markdown, times

NAMES = {
    "float32": "one vector, n = 32,768, d = 64, float32",
    "float64": "one vector, n = 16,384, d = 64, float64",
    "attention": "64 columns and row sums, n = 16,384, d = 100, float32",
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    # KeOps takes a minute here; ``benchmarks.everyday`` has it.
    scale = min(1.0, args.largest / 32_768)
    options = argparse.Namespace(**vars(args), scale=scale, without=["KeOps"])
    for case in NAMES:
        if args.cases and case not in args.cases:
            continue
        report = exact.CASES[case](options)
        rivals = {
            name: {"times": [r.median, r.low, r.high], "error": report.errors[name]}
            for name, r in report.ratios.items()
        }
        seconds = statistics.median(report.seconds[OURS])
        yield {"case": case, "seconds": seconds, "error": report.errors[OURS], "rivals": rivals}


def tables(rows: list[Row]) -> dict[str, str]:
    head = ["case", "time", "error / ‖x‖", "against", "times as fast", "its error / ‖x‖"]
    lines = []
    for r in rows:
        ours = [NAMES[r["case"]], duration(r["seconds"]), f"{r['error']:.1e}"]
        for name, rival in r["rivals"].items():
            middle, low, high = (times(value) for value in rival["times"])
            lines.append([*ours, name, f"{middle} ({low} to {high})", f"{rival['error']:.1e}"])
            ours = ["", "", ""]
    return {"exact": markdown(head, lines)}
