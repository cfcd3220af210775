"""Perplexity against time: ``python -m benchmarks.model_picture RECORD``.

The record is what ``python -m benchmarks.model run`` writes. A point for each text and way to
attend at the largest number of tokens; lines join the errors that are the same for all heads. The
time is that of attention: the rest of the model differs by more from run to run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.model import EXACT, SDPA

OUT = Path(__file__).resolve().parent.parent / "docs/_static/model.png"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def points(records: list[dict[str, Any]], text: str) -> dict[str, tuple[float, float]]:
    """Time of attention over that of SDPA and change of the perplexity in percent, by way."""
    own = [r for r in records if r["text"] == text]
    sdpa = next(r["attention"] for r in own if r["way"] == SDPA)
    return {r["way"]: (r["attention"] / sdpa, 100 * r["change"]) for r in own}


def main(argv: list[str] | None = None) -> int:
    """Draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_picture", description=__doc__)
    parser.add_argument("record", type=Path)
    lines = parser.parse_args(argv).record.read_text(encoding="utf-8").splitlines()
    records = [r for r in map(json.loads, lines) if not r["busy"]]
    n = max(r["tokens"] for r in records)
    records = [r for r in records if r["tokens"] == n]
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    texts = dict.fromkeys(r["text"] for r in records)
    for text, colour in zip(texts, COLOURS, strict=False):
        found = points(records, text)
        same = {way: at for way, at in found.items() if way == EXACT or way.startswith("eps")}
        curve = list(same.values())  # from the record: exact, then from the largest eps down
        curve = [*curve[1:], curve[0]]
        axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=text, ms=5)
        for way, at in found.items():
            if way not in (*same, SDPA):
                axes.plot(*at, "D", color=colour, mfc="white", ms=8, label=f"{text}, calibrated")
            elif text == next(iter(texts)):
                axes.annotate(way, at, xytext=(4, 6), textcoords="offset points", fontsize=8)
    axes.axhline(1, color="0.6", ls="--", lw=1)
    axes.set(
        xlabel=f"time of attention to {n:,} tokens / that of SDPA", ylabel="perplexity, change in %"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(OUT, dpi=110)
    print(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
