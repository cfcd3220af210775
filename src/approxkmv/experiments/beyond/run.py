"""Measure what the paper left out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from approxkmv.capture import capture_heads
from approxkmv.experiments.beyond.long import long_tokens, measured_heads
from approxkmv.experiments.beyond.plot import outcome
from approxkmv.experiments.heads import head_tables, measure_heads
from approxkmv.experiments.models import Choice
from approxkmv.experiments.outcome import Outcome
from approxkmv.experiments.records import Record
from approxkmv.experiments.setup import Setup


def run(setup: Setup) -> Outcome:
    """Measure short texts and one long one, as far as they are not on record, then plot."""
    settings = setup.settings("beyond")
    choices = setup.models.choose(settings["models"])
    measure_heads(setup, choices)
    long_choices = setup.models.choose_any(settings["long_models"])
    notes = measure_long(setup, long_choices, settings)
    records = [r for r in setup.records("long") if r["settings"] == settings]
    wanted = {choice.key: choice for choice in long_choices}
    of_models = [
        (choice, [r for r in records if r["model_key"] == key]) for key, choice in wanted.items()
    ]
    return outcome(head_tables(setup, choices), of_models, settings, notes)


def measure_long(
    setup: Setup, choices: Iterable[Choice], settings: dict[str, Any]
) -> tuple[str, ...]:
    """Measure every layer looked at that has no record yet; returns what could not be done."""
    records = setup.records("long")
    longest = max(settings["lengths"])
    notes = []
    for choice in choices:
        key, name = choice.key, setup.corpus.name
        if choice.loaded.max_tokens < longest:
            limit = f"{choice.loaded.max_tokens:,} of {longest:,} tokens"
            notes.append(f"{choice.label} has positions for {limit}: no long contexts.")
            continue
        tokens = long_tokens(choice.loaded, (text.body for text in setup.corpus.texts), longest)
        if tokens is None:
            notes.append(f"{name} has fewer than {longest:,} tokens: no long contexts.")
            continue
        done = {r["layer"] for r in records if _is_layer(r, key, name, settings)}
        steps = range(0, choice.loaded.n_layers, settings["layers_step"])
        left = [layer for layer in steps if layer not in done]
        about = {"model": choice.label, "model_key": key, "corpus": name, "settings": settings}
        with setup.progress(f"{choice.label}, layers", len(left)) as progress:
            # One pass of the model for all layers; at 4,096 tokens it takes longer than a layer.
            heads = capture_heads(choice.loaded, tokens, layers=left) if left else ()
            for layer, group in groupby(heads, key=lambda head: head.layer):
                numbers = measured_heads(group, settings, setup.n_threads)
                records.append(about | setup.provenance() | {"layer": layer, "heads": numbers})
                progress.advance()
    return tuple(notes)


def _is_layer(record: Record, key: str, corpus: str, settings: dict[str, Any]) -> bool:
    return bool(
        record["model_key"] == key and record["corpus"] == corpus and record["settings"] == settings
    )
