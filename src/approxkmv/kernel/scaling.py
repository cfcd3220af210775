"""Columns scaled by powers of two, so that no product overflows or underflows; and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from approxkmv.loops.types import Array

_ROWS_AT_ONCE = 1 << 22


def scaled_columns(x: Array, dtype: np.dtype[np.floating]) -> tuple[Array, npt.NDArray[np.intc]]:
    """Columns scaled by powers of two to at most 1, in ``dtype``; and the exponents taken out.

    Keeps large and tiny entries of x inside the range of float32, and makes K(2x) = 2 Kx bitwise.
    """
    columns = x[:, None] if x.ndim == 1 else x
    largest = np.maximum(columns.max(axis=0, initial=0.0), -columns.min(axis=0, initial=0.0))
    exponents = np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]
    scaled = np.empty(columns.shape, dtype)
    # In pieces: ldexp takes 8 ns an entry, and Python sees no Ctrl-C in the middle of it.
    for first in range(0, len(columns), _ROWS_AT_ONCE):
        piece = slice(first, first + _ROWS_AT_ONCE)
        scaled[piece] = np.ldexp(columns[piece], -exponents)
    return scaled, exponents


def scaled_together(x: Array, dtype: np.dtype[np.floating]) -> tuple[Array, npt.NDArray[np.intc]]:
    """All columns scaled by one power of two, as their common error asks for."""
    flat, exponent = scaled_columns(x.reshape(-1), dtype)
    return flat.reshape(len(x), -1), exponent


def unscaled(y: Array, exponents: npt.NDArray[np.intc], like: Array) -> Array:
    """Give the columns their scale back, in the common type of the product and of ``like``."""
    # A product too large for float32 is infinity there, as it would be without the scaling.
    with np.errstate(over="ignore"):
        out = np.ldexp(y.astype(np.result_type(y, like), copy=False), exponents)
    return np.asarray(out[:, 0] if like.ndim == 1 else out)
