"""What came of an experiment: claims with verdicts, pictures, tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what was measured, and whether it holds.

    ``holds`` is None where what was measured cannot tell.
    """

    figure: str
    claim: str
    model: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """In a word."""
        return {True: "yes", False: "no", None: "cannot tell"}[self.holds]


@dataclass(frozen=True)
class Picture:
    """An SVG picture; ``name`` is that of its file."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Table:
    """Cells of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """Everything one figure shows."""

    figure: str
    title: str
    claims: tuple[Claim, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
