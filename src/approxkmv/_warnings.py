"""The two warnings of this package."""

from __future__ import annotations


class AssumptionWarning(UserWarning):
    """The data are not sparse: the exact product was used, or the run will be slow."""


class AccuracyWarning(UserWarning):
    """The accuracy asked for cannot be reached; the best effort was returned."""
