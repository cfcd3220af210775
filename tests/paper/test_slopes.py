"""The exponents of the lemmas, seen in counts of real runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from approxkmv.exact import gaussian_kernel
from approxkmv.experiments.fits import power_law
from approxkmv.paper import slopes
from approxkmv.paper.parameters import ALPHA, GAMMA, exponents
from approxkmv.paper.slopes import STAGES, stage_count

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("stage", STAGES)
def test_counts_grow_with_the_exponent_of_the_lemma(stage):
    """From 512 to 1,728 keys and queries: within 0.02, logarithms taken out."""
    small, large = (stage_count(stage, n) for n in (512, 1728))
    slope = math.log(large.power / small.power) / math.log(1728 / 512)
    assert slope == pytest.approx(small.exponent, abs=0.02)
    lemma = {"large entries": "Lemma 3.2, large entries of x", "heavy keys": "Lemma 3.4, finding"}
    name = lemma.get(stage, "Lemma 3.5, light samples")
    printed = exponents(GAMMA, ALPHA, 0.218)
    assert small.exponent == next(e for key, e in printed.items() if key.startswith(name))


def test_the_points_are_the_worst_case_that_the_assumption_allows():
    """Light keys: entries just below the threshold, and a sum of K of at most n."""
    n = 512
    threshold = n**-ALPHA
    queries, keys, x = slopes._barely_light(n, threshold)
    K = gaussian_kernel(queries, keys, 1.0)
    assert 0.98 * threshold < K.max() < threshold
    assert 0.9 * n < K.sum() <= n
    assert (x**2).max() < n**GAMMA
    assert 0.8 * n < x @ x <= n
    np.testing.assert_array_equal((K[:, x > 0] > 0).sum(axis=1), round(n**ALPHA))


def test_numbers_of_the_page_are_those_of_the_runs():
    """The committed counts give the slopes that the walkthrough quotes, next to the lemmas'."""
    found = json.loads((DOCS / "results" / "paper" / "slopes.json").read_text(encoding="utf-8"))
    page = (DOCS / "paper_walkthrough.md").read_text(encoding="utf-8")
    assert set(found["stages"]) == set(STAGES)
    for stage, numbers in found["stages"].items():
        fit = power_law(numbers["n"], numbers["power"])
        assert numbers["measured_exponent"] == pytest.approx(fit.exponent, abs=2e-3)
        assert numbers["measured_exponent"] == pytest.approx(numbers["exponent"], abs=0.03)
        row = f"| {stage} | {max(numbers['n']):,} | {numbers['measured_exponent']:.3f} | "
        assert f"{row}{numbers['exponent']:.3f}" in page
    # and one of the counts again
    assert (
        stage_count("large entries", 1000).counted == found["stages"]["large entries"]["counted"][0]
    )
