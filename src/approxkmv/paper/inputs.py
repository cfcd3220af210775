"""Checks at the edge of this package's own products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import _check

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]


def checked(queries: Any, keys: Any, x: Any) -> tuple[Points, Points, Float]:
    """Points of one floating type, contiguous and finite, and one vector in double precision."""
    queries, keys = _check.point_pair(queries, keys)
    vector = _check.vector(x, len(keys))
    if vector.ndim != 1:
        raise ValueError(f"x must be one vector, shape ({len(keys)},), got shape {vector.shape}.")
    for array, name in ((queries, "queries"), (keys, "keys"), (vector, "x")):
        _check.finite(array, name)
    return queries, keys, vector.astype(np.float64)
