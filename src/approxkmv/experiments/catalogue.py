"""The figures by name, and how to run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from approxkmv.experiments.outcome import Outcome
from approxkmv.experiments.setup import Setup
from approxkmv.files import write_text

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "beyond")


def run_figure(name: str, setup: Setup) -> Outcome:
    """Measure what is missing, derive the rest, and write pictures and numbers next to records."""
    run: Callable[[Setup], Outcome] = import_module(f"approxkmv.experiments.{name}.run").run
    outcome = run(setup)
    setup.out.mkdir(parents=True, exist_ok=True)
    for picture in outcome.pictures:
        write_text(setup.out / f"{picture.name}.svg", picture.svg + "\n", ".svg")
    summary = json.dumps(as_numbers(outcome), indent=1, ensure_ascii=False)
    write_text(setup.out / f"{name}.json", summary + "\n", ".json")
    return outcome


def as_numbers(outcome: Outcome) -> dict[str, Any]:
    """An outcome without its pictures, for JSON."""
    return {
        "figure": outcome.figure,
        "title": outcome.title,
        "claims": [
            {
                "claim": claim.claim,
                "model": claim.model,
                "measured": claim.measured,
                "holds": claim.verdict,
            }
            for claim in outcome.claims
        ],
        "tables": [
            {"title": table.title, "header": table.header, "rows": table.rows}
            for table in outcome.tables
        ],
        "pictures": {picture.name: picture.caption for picture in outcome.pictures},
        "notes": outcome.notes,
        "settings": outcome.settings,
    }
