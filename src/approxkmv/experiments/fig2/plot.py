"""Figure 2 from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.experiments.heads import SETTINGS, HeadTable
from approxkmv.experiments.outcome import Claim, Outcome, Picture
from approxkmv.experiments.ratios import slug, texts
from approxkmv.experiments.svg import heatmap, number


def outcome(tables: Sequence[HeadTable], settings: dict[str, Any]) -> Outcome:
    """Heatmaps of the median ratios of the n-th largest entry to later ones."""
    claims, pictures = [], []
    for table in tables:
        twice, following = _median(table, "log_to_twice"), _median(table, "log_to_next")
        claims += [_claim_twice(table, twice, settings), _claim_next(table, following, settings)]
        label = table.choice.label
        pictures += [
            Picture(
                f"fig2_{slug(label)}_to_twice",
                f"Median over {texts(table)} of n-th over 2n-th largest entry. "
                f"Red frame: above {settings['to_twice']:g}.",
                heatmap(twice, f"{label}: n-th / 2n-th largest", limit=settings["to_twice"]),
            ),
            Picture(
                f"fig2_{slug(label)}_to_next",
                f"Median over {texts(table)} of n-th over (n+1)-th largest entry. "
                f"Red frame: above {settings['to_next']:g}.",
                heatmap(following, f"{label}: n-th / (n+1)-th largest", limit=settings["to_next"]),
            ),
        ]
    return Outcome(
        "fig2",
        "Figure 2: how far entries fall behind the n-th largest",
        tuple(claims),
        tuple(pictures),
        notes=(
            "Ratios are differences of logarithms, so that none is a division by an underflowed 0; "
            "the paper's figure has blank cells there.",
        ),
        settings=settings | SETTINGS,
    )


def _median(table: HeadTable, name: str) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):  # beyond 1e308
        return np.asarray(np.exp(np.median(table.stacked(name), axis=0)))


def _claim_twice(
    table: HeadTable, ratios: npt.NDArray[np.float64], settings: dict[str, Any]
) -> Claim:
    limit = settings["to_twice"]
    share = float((ratios <= limit).mean())
    return Claim(
        "fig2",
        f"n-th / 2n-th largest is about {limit:g} or less for most heads",
        str(table.choice),
        f"{_of(ratios <= limit)} heads at most {limit:g}; median head "
        f"{number(float(np.median(ratios)))}, largest {number(float(ratios.max()))}",
        share > settings["most"],
        table.choice.not_run(settings["models"]),
    )


def _claim_next(
    table: HeadTable, ratios: npt.NDArray[np.float64], settings: dict[str, Any]
) -> Claim:
    limit = settings["to_next"]
    share = float((ratios <= limit).mean())
    return Claim(
        "fig2",
        "n-th / (n+1)-th largest is about 1 for almost all heads",
        str(table.choice),
        f"{_of(ratios <= limit)} heads at most {limit:g}; largest {number(float(ratios.max()))}",
        share >= settings["almost_all"],
        table.choice.not_run(settings["models"]),
    )


def _of(true: npt.NDArray[np.bool_]) -> str:
    return f"{int(true.sum())} of {true.size}"
