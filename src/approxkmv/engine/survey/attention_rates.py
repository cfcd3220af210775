r"""How often keys are drawn for attention: one common rate for a variance asked for.

A key j is drawn for block a with probability
:math:`\pi_{aj} = \min(1, \lambda\sqrt{G_{aj}})`, G being the guarded moments of the pilot. To first
order the squared error is :math:`\sum_{aj}|a|M_{aj}(1/\pi_{aj}-1)` with the pilot's moments M. Both
are sums over bins of G, and :math:`\lambda` is found from running sums over them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import AttentionBlocks, PilotMoments

_BITS = 19  # of the histogram of moments: see `Compiled.rate_histogram`
_SMALLEST = 1e-30  # where there is nothing to draw for


class Rate(NamedTuple):
    """The rate, and what it is predicted to give."""

    rate: float
    floor: float  # added to the guarded moments
    pairs: float  # expected, without those of the bands


def solve_rate(
    blocks: AttentionBlocks,
    pilot: PilotMoments,
    target: float,
    floor_share: float,
    backend: Compiled,
) -> Rate:
    """The smallest rate whose predicted variance is at most ``target``.

    No key is thought to matter less than ``floor_share`` of the mean over all blocks and keys.
    """
    tiny = float(np.finfo(np.float32).tiny)
    floor = max(tiny, floor_share * float(pilot.means.mean()))
    pairs, variance = backend.rate_histogram(blocks, pilot.moment, pilot.guarded, floor)
    used = pairs.nonzero()[0]
    pairs, variance = pairs[used], variance[used]
    middle = ((used.astype(np.uint32) << _BITS) + (1 << (_BITS - 1))).astype(np.uint32)
    root = np.sqrt(middle.view(np.float32).astype(np.float64))

    # Once 1 / rate is between two roots, the k smaller ones leave by_root[k] / rate - plain[k].
    by_root, plain = np.append(0.0, np.cumsum(variance / root)), np.append(0.0, np.cumsum(variance))
    at_roots = by_root[1:] * root - plain[1:]  # the variance at rate = 1 / root
    k = int(np.searchsorted(at_roots, target, side="right"))
    rate = max(_SMALLEST, float(by_root[k] / (target + plain[k]))) if plain[k] > 0 else _SMALLEST
    drawn = float((pairs * np.minimum(1.0, rate * root)).sum())
    return Rate(rate, floor, drawn)
