"""Error against time, from what ``python -m benchmarks.attention`` has written.

    python -m benchmarks.attention --cases "model heads" "GloVe 32,768 sharp" "GloVe 32,768 flat" \
        --heads heads.npz --eps 0.3 0.2 0.1 0.05 0.03 0.02 0.01 --output curves.jsonl
    python -m benchmarks.attention_pictures curves.jsonl

Draws docs/_static/attention_heads.png and attention_words.png. Of each method the points on its own
lower envelope are kept, over sizes and settings. The fastest run of each counts: rivals run after
the race, and the machine may not be as idle as it was. Heads of a model are taken together: the
times of all heads are added, and the error is that of the worst head.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator
from PIL import Image

from benchmarks.attention import SDPA, rival_name
from benchmarks.attention_rivals import FREE
from benchmarks.harness import OURS

OUT = Path(__file__).resolve().parent.parent / "docs/_static"
EXACT = f"{OURS}, exact"
STYLES = {
    OURS: ("#0072b2", "o"),
    "uniform keys": ("#e69f00", "^"),
    "KDEformer": ("#009e73", "v"),
    "HyperAttention": ("#d55e00", "s"),
    "Nystroem": ("#cc79a7", "D"),
    "WildCat": ("#56b4e9", "X"),
    "Thinformer": ("#b8a000", "<"),
    "Performer": ("#767676", "P"),
}
# Below this an error is rounding: exact contestants are drawn as lines at their time.
_ROUNDING = 1e-4


class Point(NamedTuple):
    """One setting of a method: time in units of SDPA's, and the error of the worst head."""

    time: float
    error: float


def points(records: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """All settings that every head was run with, by method; unlabelled settings are ours."""
    labels = set.intersection(*(set(r["seconds"]) for r in records))
    unit = sum(min(r["seconds"][SDPA]) for r in records)
    found = defaultdict(list)
    for label in labels:
        name = OURS if label.startswith(f"{OURS}, eps") else rival_name(label)
        spent = sum(min(r["seconds"][label]) for r in records)
        found[name].append(Point(spent / unit, max(r["errors"][label] for r in records)))
    return found


def envelope(found: list[Point]) -> list[Point]:
    """Points that no other of the same method beats in both time and error."""
    best: list[Point] = []
    for point in sorted(found):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best


def draw(axes: plt.Axes, title: str, records: list[dict[str, Any]]) -> None:
    found = points(records)
    for name, (colour, marker) in STYLES.items():
        curve = [p for p in envelope(found.get(name, [])) if p.error > _ROUNDING]
        if curve:
            times, errors = zip(*curve, strict=True)
            width = 2.2 if name == OURS else 1.2
            axes.plot(times, errors, color=colour, marker=marker, lw=width, ms=5, label=name)
    for name, style in ((SDPA, "-"), (EXACT, "--")):
        (point,) = found[name]
        axes.axvline(point.time, color="black", ls=style, lw=1, label=f"{name} (exact)")
    for name, style in zip(FREE, (":", "-."), strict=True):
        errors = [p.error for p in found.get(name, [])]
        if errors:
            axes.axhline(errors[0], color="black", ls=style, lw=1, label=f"y = {name}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("time / time of PyTorch's SDPA")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)


def picture(name: str, panels: dict[str, list[dict[str, Any]]], y: str) -> None:
    """Panels side by side with one legend, as a PNG of few colours."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 2.4, 3.6), squeeze=False, layout="constrained"
    )
    for panel, (title, records) in zip(axes[0], panels.items(), strict=True):
        draw(panel, title, records)
    axes[0, 0].set_ylabel(y)
    handles = {
        label: handle
        for panel in axes[0]
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False
    )
    full = io.BytesIO()
    figure.savefig(full, dpi=110)
    plt.close(figure)
    Image.open(full).convert("RGB").quantize(64).save(OUT / f"{name}.png", optimize=True)
    print(OUT / f"{name}.png")


def main(argv: list[str] | None = None) -> int:
    """Draw the cases that are in the file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention_pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, help="what benchmarks.attention has written")
    args = parser.parse_args(argv)
    cases = defaultdict(list)
    for line in args.results.read_text().splitlines():
        record = json.loads(line)
        cases[record["case"]].append(record)
    heads = cases.get("model heads")
    if heads:
        title = f"{len(heads)} heads, causal"
        picture("attention_heads", {title: heads}, "largest error / ‖V‖ of a head")
    words = {name: cases[name] for name in cases if name in WORDS}
    if words:
        picture("attention_words", words, "error / ‖V‖")
    return 0


WORDS = ("GloVe 16,384 sharp", "GloVe 32,768 sharp", "GloVe 32,768 flat")


if __name__ == "__main__":
    sys.exit(main())
