"""Reports for other eyes than a terminal's: as JSON, and as HTML in a notebook."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from html import escape
from typing import Any

# Colours are the reader's own, so that a dark notebook stays dark.
_CELL = "text-align:left;vertical-align:top;padding:.15em .9em .15em 0;overflow-wrap:anywhere"


def as_json(report: Any) -> str:
    """A dataclass as JSON; null for NaN and infinity, which JSON does not have."""
    return json.dumps(plain(report), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Dictionaries, lists, texts, numbers and None only."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # a number or an array of NumPy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def as_html(title: str, facts: Mapping[str, str], more: Mapping[str, str] | None = None) -> str:
    """A table of texts, all escaped, with further rows behind a fold."""
    body = f"<strong>{escape(title)}</strong>{_table(facts)}"
    if more:
        body += f"<details><summary>every number</summary>{_table(more)}</details>"
    return f'<div style="font-size:.95em;max-width:46em">{body}</div>'


def _table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};white-space:nowrap">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(fact)}</td></tr>'
        for name, fact in facts.items()
    )
    return f'<table style="border-collapse:collapse">{rows}</table>'
