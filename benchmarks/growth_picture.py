"""The picture of README: time against n for the exact product, ours and NumPy's.

``python -m benchmarks.growth_picture`` measures and draws; ``--draw`` draws what was measured.
Exact products of more than 65,536 queries are timed on that many of them, and scaled: their time is
linear in the queries. The errors are those of 2,048 rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv
from approxkmv.cli.compare import error_from_rows, folded, numpy_blocked
from approxkmv.datasets import clusters
from benchmarks import harness

RECORD = Path("benchmarks/results/reference_growth.jsonl")
PICTURE = Path("docs/_static/growth.svg")
BANDWIDTH, D, EPS, ROWS = 2.1, 64, 0.1, 2048
MOST_QUERIES = {"exact": 65_536, "NumPy": 8_192}


def main() -> int:
    """Measure, write the record, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="draw the committed measurement")
    parser.add_argument("--largest", type=int, default=2**20)
    args = parser.parse_args()
    if not args.draw:
        sizes = [2**p for p in range(14, 23, 2) if 2**p <= args.largest]
        found = {
            "machine": harness.machine(2),
            "when": time.strftime("%Y-%m-%d"),
            "d": D,
            "eps": EPS,
            "sizes": [_measured(n) for n in sizes],
        }
        RECORD.write_text(json.dumps(found) + "\n")
    _draw(json.loads(RECORD.read_text()))
    return 0


def _measured(n: int) -> dict[str, Any]:
    queries, keys, _ = clusters(n, D, n_queries=n, rng=1)
    x = np.ones(n, np.float32)
    seconds: dict[str, float] = {}
    with harness.threads(2):
        start = time.perf_counter()
        y, info = akmv.matvec(
            queries, keys, x, bandwidth=BANDWIDTH, eps=EPS, rng=1, n_threads=2, return_info=True
        )
        seconds["ours"] = time.perf_counter() - start
        for name, most in MOST_QUERIES.items():
            some = queries[: min(n, most)]
            start = time.perf_counter()
            if name == "exact":
                akmv.matvec(some, keys, x, bandwidth=BANDWIDTH, method="exact", n_threads=2)
            else:
                numpy_blocked(*folded(some, keys, BANDWIDTH), x)
            seconds[name] = (time.perf_counter() - start) * n / len(some)
    rows = np.sort(np.random.default_rng(2).choice(n, ROWS, replace=False))
    at_rows = np.ascontiguousarray(queries[rows])
    exact = akmv.matvec(at_rows, keys, x, bandwidth=BANDWIDTH, method="exact", n_threads=2)
    error = error_from_rows(y[rows], exact, n, x)
    print(
        n, {name: round(value, 3) for name, value in seconds.items()}, info.method, f"{error:.3f}"
    )
    return {
        "n": n,
        "seconds": seconds,
        "method": info.method,
        "error": error,
        "estimate": info.error_estimate,
    }


def _draw(found: dict[str, Any]) -> None:
    sizes = [entry["n"] for entry in found["sizes"]]
    figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
    styles = {"NumPy": ("0.55", "s"), "exact": ("tab:blue", "o"), "ours": ("tab:red", "D")}
    labels = {
        "NumPy": "NumPy, every pair",
        "exact": "approxkmv, eps=0",
        "ours": "approxkmv, eps=0.1",
    }
    for name, (color, marker) in styles.items():
        times = [entry["seconds"][name] for entry in found["sizes"]]
        ax.loglog(sizes, times, marker=marker, color=color, label=labels[name])
    for entry in found["sizes"]:
        ax.annotate(
            f"{entry['error']:.2g}",
            (entry["n"], entry["seconds"]["ours"]),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            color="tab:red",
            fontsize=8,
        )
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.set(
        xlabel="queries and keys (64 dimensions, clusters)",
        ylabel="seconds, 2 threads",
        title="One product; below the red line: its true error / |x|",
    )
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(PICTURE, metadata={"Date": None})
    figure.savefig(PICTURE.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    sys.exit(main())
