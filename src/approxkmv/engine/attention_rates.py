r"""How often keys are drawn for attention: one common rate for a variance asked for.

A key j is drawn for block a with probability
:math:`\pi_{aj} = \min(1, \lambda\sqrt{G_{aj}})`, G being the guarded moments of the pilot. To first
order the squared error is :math:`\sum_{aj}|a|M_{aj}(1/\pi_{aj}-1)` with the pilot's moments M. Both
are sums over bins of G, so :math:`\lambda` costs nothing to find.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from approxkmv.leaves import AttentionBlocks, PilotMoments, rate_histogram

# No key is thought to matter less than this share of the average over all blocks.
_FLOOR_OF_ALL = 1e-3
_BITS = 19


class Rate(NamedTuple):
    """The rate, and what it is predicted to give."""

    rate: float
    floor: float  # added to the guarded moments
    pairs: float  # expected, without those of the bands
    variance: float


def solve_rate(
    blocks: AttentionBlocks, pilot: PilotMoments, target: float, *, n_threads: int | None
) -> Rate:
    """The smallest rate whose predicted variance is at most ``target``."""
    tiny = float(np.finfo(np.float32).tiny)
    floor = max(tiny, _FLOOR_OF_ALL * float(pilot.means.mean()))
    pairs, variance = rate_histogram(
        blocks, pilot.moment, pilot.guarded, floor, n_threads=n_threads
    )
    used = pairs.nonzero()[0]
    pairs, variance = pairs[used], variance[used]
    middle = ((used.astype(np.uint32) << _BITS) + (1 << (_BITS - 1))).astype(np.uint32)
    root = np.sqrt(middle.view(np.float32).astype(np.float64))

    def excess(rate: float) -> float:
        return float((variance * (1 / np.minimum(1.0, rate * root) - 1)).sum())

    low, high = 1e-30, 1e30
    while high > 1.01 * low:
        between = float(np.sqrt(low * high))
        low, high = (between, high) if excess(between) > target else (low, between)
    drawn = float((pairs * np.minimum(1.0, high * root)).sum())
    return Rate(high, floor, drawn, excess(high))
