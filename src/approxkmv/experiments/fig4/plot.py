"""Figure 4 from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from approxkmv.experiments.fits import Fit, power_law
from approxkmv.experiments.heads import LENGTHS, SETTINGS, HeadTable
from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table
from approxkmv.experiments.ratios import slug
from approxkmv.experiments.svg import Series, curves, number


class Growth(NamedTuple):
    """Over texts of at least each length: the largest c of all heads, and that of the median."""

    lengths: list[int]
    n_texts: list[int]
    mean: list[float]
    deviation: list[float]
    median_head: list[float]


def outcome(tables: Sequence[HeadTable], settings: dict[str, Any]) -> Outcome:
    """Curves of c against the length of the context."""
    claims, pictures, rows = [], [], []
    for table in tables:
        growth = _growth(table)
        label = table.choice.label
        claims.append(_claim(table, growth, settings))
        pictures.append(_picture(label, growth))
        rows += [
            (f"{label}, {length}", str(n), number(mean), number(deviation), number(median))
            for length, n, mean, deviation, median in zip(*growth, strict=True)
        ]
    header = ("length", "texts", "mean of the largest c", "standard deviation", "median head")
    return Outcome(
        "fig4",
        "Figure 4: c against the length of the context",
        tuple(claims),
        tuple(pictures),
        (Table("c by length", header, tuple(rows)),),
        notes=(
            "At each length: for every text at least as long, the largest c of all heads on the "
            "leading square of that size; then mean and standard deviation over texts. Long "
            "lengths have fewer texts.",
        ),
        settings=settings | SETTINGS,
    )


def _growth(table: HeadTable) -> Growth:
    found = Growth([], [], [], [], [])
    for i, length in enumerate(LENGTHS):
        at = [
            np.array([[head[i] for head in layer] for layer in record["c_at"]], dtype=np.float64)
            for record in table.records
            if record["n_tokens"] >= length
        ]
        if not at:
            break
        largest = np.array([c.max() for c in at])
        found.lengths.append(length)
        found.n_texts.append(len(at))
        found.mean.append(float(largest.mean()))
        found.deviation.append(float(largest.std()))
        found.median_head.append(float(np.mean([np.median(c) for c in at])))
    return found


def _claim(table: HeadTable, growth: Growth, settings: dict[str, Any]) -> Claim:
    limit = settings["largest_exponent"]
    claim = "c stays constant as the context grows"
    if len(growth.lengths) < 3:
        measured = f"texts reach {growth.lengths[-1]} tokens only"
        return Claim("fig4", claim, str(table.choice), measured, None)
    fit = power_law(growth.lengths, growth.mean)
    typical = power_law(growth.lengths, growth.median_head)
    return Claim(
        "fig4",
        claim,
        str(table.choice),
        f"mean of the largest c from {number(growth.mean[0])} at {growth.lengths[0]} to "
        f"{number(growth.mean[-1])} at {growth.lengths[-1]} tokens, ~ n^({fit}); "
        f"median head ~ n^({typical}); constant means an exponent of at most {limit:g}",
        fit.exponent <= limit,
        table.choice.not_run(settings["models"]),
    )


def _picture(label: str, growth: Growth) -> Picture:
    fit: Fit | None = None
    if len(growth.lengths) >= 3:
        fit = power_law(growth.lengths, growth.mean)
    exponent = f" Fitted: n^({fit})." if fit else ""
    return Picture(
        f"fig4_{slug(label)}",
        f"Mean and standard deviation over texts of the largest c of all heads.{exponent} "
        f"Texts: {growth.n_texts[0]} at {growth.lengths[0]} tokens, {growth.n_texts[-1]} at "
        f"{growth.lengths[-1]}.",
        curves(
            [
                Series("largest of all heads", growth.lengths, growth.mean, growth.deviation),
                Series("median head", growth.lengths, growth.median_head, dashed=True),
            ],
            f"{label}: c against length",
            "tokens",
            "c",
        ),
    )
