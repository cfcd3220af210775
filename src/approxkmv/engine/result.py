"""An answer of the engine and its estimated error."""

from __future__ import annotations

from dataclasses import dataclass

from approxkmv.loops.types import Array, Index


@dataclass(frozen=True, eq=False)
class Result:
    """A product and its estimated error; squares are summed over the rows."""

    y: Array
    variance: float  # estimate of the mean squared error
    upper: float  # what the squared error stays below at the confidence asked for
    left_out: float  # part of the variance: missed pairs that were not drawn
    checked: float  # squared error measured on the pilot rows, scaled to all rows
    pairs: int  # drawn, and in rows recomputed exactly
    n_recomputed: int  # rows computed exactly because their variance stood out
    exact_rows: Index  # pilot rows: computed exactly, chosen before anything was drawn
    reason: str  # why this was the way to the answer
    # Where nothing is left to chance, and `upper` is certain but for rounding: the squared length
    # of the product of what was computed with |x|, which bounds the rounding.
    without_signs: float | None = None

    @property
    def worst(self) -> float:
        """The larger of the two limits of the squared error."""
        return max(self.upper, self.checked)
