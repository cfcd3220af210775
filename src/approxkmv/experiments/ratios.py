"""Largest ratio of every head over texts and prefixes: what figures 1 and 3 both show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from approxkmv.experiments.heads import HeadTable
from approxkmv.experiments.outcome import Claim, Picture, Table
from approxkmv.experiments.svg import heatmap, number


def ratio_claims(figure: str, table: HeadTable, limits: dict[str, float]) -> list[Claim]:
    """One claim for each limit the paper gives for this model or what it stands in for."""
    largest = table.stacked("max_c").max(axis=0)
    return [
        Claim(
            figure,
            f"c < {limit:g} for every head, text and prefix ({model})",
            str(table.choice),
            f"largest {number(float(largest.max()))}; {int((largest < limit).sum())} of "
            f"{largest.size} heads below; {texts(table)}",
            bool((largest < limit).all()),
            table.choice.not_run([model]),
        )
        for model, limit in _limits(table, limits).items()
    ]


def _limits(table: HeadTable, limits: dict[str, float]) -> dict[str, float]:
    named = {m: v for m, v in limits.items() if m in (table.choice.stands_for, table.choice.label)}
    named |= {m: v for m, v in limits.items() if m in table.choice.stands_for.split(" and ")}
    return named or limits


def ratio_picture(figure: str, table: HeadTable, limits: dict[str, float]) -> Picture:
    """The heatmap of one model."""
    limit = min(_limits(table, limits).values())
    return Picture(
        f"{figure}_{slug(table.choice.label)}",
        f"Largest c of each head over {texts(table)} and all prefixes of 50 to 512 tokens. "
        f"Red frame: above {limit:g}.",
        heatmap(
            table.stacked("max_c").max(axis=0),
            f"{table.choice.label}: largest c over texts and prefixes",
            limit=limit,
        ),
    )


def layer_table(tables: Sequence[HeadTable]) -> Table:
    """Where the large ones are: layer by layer."""
    rows = []
    for table in tables:
        per_text = table.stacked("max_c")
        for layer, heads in enumerate(per_text.max(axis=0)):
            cells = (np.median(per_text[:, layer]), np.median(heads), heads.max())
            rows.append((f"{table.choice.label}, layer {layer}", *map(number, map(float, cells))))
    return Table(
        "Layer by layer",
        ("layer", "median over texts and heads", "median of the heads' largest", "largest"),
        tuple(rows),
    )


def texts(table: HeadTable) -> str:
    """How many texts, and how long."""
    lengths = [record["n_tokens"] for record in table.records]
    short = f" ({table.n_short} more had fewer than 50 tokens)" if table.n_short else ""
    return (
        f"{table.n_texts} texts of {min(lengths)} to {max(lengths)} tokens, "
        f"median {int(np.median(lengths))}{short}"
    )


def slug(label: str) -> str:
    """A label as part of a file name.

    Examples
    --------
    >>> slug("all-MiniLM/L6 v2")
    'all_minilm_l6_v2'
    """
    return "_".join("".join(c if c.isalnum() else " " for c in label.lower()).split())
