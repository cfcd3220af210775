"""Figure 3 from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from approxkmv.experiments.heads import SETTINGS, HeadTable
from approxkmv.experiments.outcome import Outcome
from approxkmv.experiments.ratios import layer_table, ratio_claims, ratio_picture


def outcome(tables: Sequence[HeadTable], settings: dict[str, Any]) -> Outcome:
    """Heatmaps of the largest ratio, and whether it stays below the paper's."""
    limits = settings["limits"]
    return Outcome(
        "fig3",
        "Figure 3: the largest c of every head, other models",
        tuple(claim for table in tables for claim in ratio_claims("fig3", table, limits)),
        tuple(ratio_picture("fig3", table, limits) for table in tables),
        (layer_table(tables),),
        settings=settings | SETTINGS,
    )
