"""Draw, multiply, and say how large the error is.

The variance of the product is estimated without bias from the drawn values themselves. How far
the error may lie above its root mean square depends on how many independent parts it has: blocks of
queries are drawn independently, so the effective number of degrees of freedom is at least that of
their variances (Satterthwaite).
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaincinv

from approxkmv.engine.order import Blocks
from approxkmv.engine.outcome import Sample
from approxkmv.engine.pilot import Pilot
from approxkmv.leaves import (
    Array,
    DrawPlan,
    Float64,
    FoundPairs,
    Geometry,
    sampled_product,
)


def draw(
    geometry: Geometry,
    found: FoundPairs,
    x: Array,
    rate: Float64,
    query_blocks: Blocks,
    key_tiles: Blocks,
    pilot: Pilot,
    *,
    delta: float,
    seed: int,
    stream: int,
    n_threads: int | None,
) -> Sample:
    """Draw keys for every block at the given rates and multiply."""
    plan = DrawPlan(
        query_blocks.order,
        query_blocks.start,
        key_tiles.order,
        key_tiles.start,
        # A rate beyond float32 means certainty, and so does the largest rate in it.
        np.minimum(rate, np.finfo(np.float32).max).astype(np.float32),
        seed,
        stream,
    )
    sums = sampled_product(geometry, plan, found, x, n_threads=n_threads)
    per_block = np.maximum(sums.variance, 0.0)
    variance = float(per_block.sum())
    error = sums.out[pilot.rows].astype(np.float64) - pilot.products
    rows_per_pilot_row = query_blocks.sizes / np.bincount(pilot.block_of, minlength=pilot.n_blocks)
    checked = float((error**2 * rows_per_pilot_row[pilot.block_of]).sum())
    sums.out[pilot.rows] = pilot.products
    return Sample(
        y=sums.out,
        variance=variance,
        upper=variance * spread(per_block, delta),
        checked=checked,
        pairs=int((sums.n_drawn * query_blocks.sizes).sum()),
    )


def spread(variances: Float64, delta: float) -> float:
    """By how much the squared error may exceed its mean, with probability delta."""
    total = float(variances.sum())
    if total <= 0:
        return 1.0
    degrees = total**2 / float((variances**2).sum())
    # The quantile of chi-squared, without the weight of importing scipy.stats.
    return max(1.0, 2 * float(gammaincinv(degrees / 2, 1 - delta)) / degrees)
