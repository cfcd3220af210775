"""Measure what figure 3 needs."""

from __future__ import annotations

from approxkmv.experiments.fig3.plot import outcome
from approxkmv.experiments.heads import head_tables, measure_heads
from approxkmv.experiments.outcome import Outcome
from approxkmv.experiments.setup import Setup


def run(setup: Setup) -> Outcome:
    """Measure the texts that are not on record yet, then plot all of them."""
    settings = setup.settings("fig3")
    choices = setup.models.choose(settings["models"])
    measure_heads(setup, choices)
    return outcome(head_tables(setup, choices), settings)
