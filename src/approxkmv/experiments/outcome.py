"""What came of an experiment: claims with verdicts, pictures, tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what was measured, and whether it holds.

    ``holds`` is about what was measured, and None where that cannot tell. ``not_run``
    names the models the sentence is about where others were measured: the verdict on the sentence
    is then that it was not tested, and what was found is said about the model it was found on.
    """

    figure: str
    claim: str
    model: str
    measured: str
    holds: bool | None
    not_run: str = ""

    @property
    def verdict(self) -> str:
        """In a word; where the model of the sentence was not run, in five."""
        found = {True: "yes", False: "no", None: "cannot tell"}[self.holds]
        if not self.not_run or self.holds is None:
            return found
        return f"not tested: {self.not_run} not run; on this model {found}"


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
