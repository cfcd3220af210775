"""Run the stages of Algorithm 3 on their worst cases: python docs/make_slopes_picture.py [--draw].

Writes docs/results/paper/slopes.json, and docs/_static/paper_slopes.png from it; with --draw the
picture only. Needs matplotlib. About a minute on two cores.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from approxkmv.experiments.fits import power_law
from approxkmv.paper.slopes import stage_count

HERE = Path(__file__).parent
NUMBERS = HERE / "results" / "paper" / "slopes.json"
# Cubes. Heavy keys take n^(5/3) log n values one by one, 20 seconds at 8,000.
SIZES = {
    "large entries": [1000, 2744, 8000, 21952, 97336],
    "heavy keys": [1000, 1728, 2744, 4096, 8000],
    "light keys": [1000, 2744, 8000, 21952],
}


def measure() -> None:
    """Run every stage at every size, and write what was counted."""
    stages = {}
    for stage, sizes in SIZES.items():
        counts = [stage_count(stage, n) for n in sizes]
        fit = power_law(sizes, [count.power for count in counts])
        stages[stage] = {
            "n": sizes,
            "counted": [count.counted for count in counts],
            "power": [round(count.power, 1) for count in counts],
            "measured_exponent": round(fit.exponent, 3),
            "exponent": round(counts[0].exponent, 3),
        }
        print(stage, stages[stage], flush=True)
    NUMBERS.parent.mkdir(parents=True, exist_ok=True)
    command = "python docs/make_slopes_picture.py"
    NUMBERS.write_text(json.dumps({"command": command, "stages": stages}, indent=1) + "\n")


def draw() -> None:
    """Counts and the slopes of the lemmas, both axes logarithmic."""
    stages = json.loads(NUMBERS.read_text())["stages"]
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    colours = ("#e69f00", "#009e73", "#0072b2")
    for (stage, found), colour in zip(stages.items(), colours, strict=True):
        n, power = np.array(found["n"], float), np.array(found["power"])
        line = power[0] * (n / n[0]) ** found["exponent"]
        axes.plot(n, line, color=colour, lw=1)
        name = f"{stage}: {found['measured_exponent']:.2f}, lemma {found['exponent']:.3f}"
        axes.plot(n, power, "o", color=colour, ms=5, label=name)
    n = np.array([1000.0, 97336.0])
    axes.plot(n, n**2, color="#767676", lw=1, ls="--", label="exact product: 2")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("n")
    axes.set_ylabel("kernel values or draws, over logarithms")
    axes.set_title("Stages of Algorithm 3, each on its worst case", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "_static" / "paper_slopes.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    assert math.isclose(97336 ** (1 / 3), 46)
    if "--draw" not in sys.argv:
        measure()
    draw()
