"""Moving means over neighbours, the ends repeated.

SciPy's take a tenth of a second to import, a third of a whole product of 65,536 points; and its
running sums lose a small mean next to a large one, where these are sums of what they are means of.
"""

from __future__ import annotations

import numpy as np

from approxkmv.loops.types import Float64


def moving_mean(values: Float64, width: int, axis: int = 0) -> Float64:
    """Means over ``width`` (odd) neighbours along an axis; beyond the ends are more of the last."""
    along = np.moveaxis(values, axis, 0)
    half, n = width // 2, len(along)
    padded = np.concatenate([along[:1]] * half + [along] + [along[-1:]] * half)
    total = padded[:n].copy()
    for first in range(1, width):
        total += padded[first : first + n]
    return np.ascontiguousarray(np.moveaxis(total / width, 0, axis))
