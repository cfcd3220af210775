"""The answer that is given when the time is over: keys drawn with what is known, and no more.

There is always such an answer. With nothing known keys are drawn in proportion to the rows of x
alone; with pilot rows, near pairs or a smooth part at the rates that these ask for. It is unbiased
in either case, and its variance is estimated from the draws; a few rows, computed exactly at the
start, check it. These rows also say how long a pair takes on this machine at this moment.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from approxkmv._deadline import OutOfTime
from approxkmv.engine.neighbours.search import diagonal
from approxkmv.engine.planner import Look, row_lengths
from approxkmv.engine.result import Limit, Outcome, Sample
from approxkmv.engine.sample import Draws, spread
from approxkmv.engine.survey.control_variate import smooth_cost
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import (
    Array,
    DrawPlan,
    Float64,
    FoundPairs,
    Index,
    SampledSums,
    SmoothPart,
)

# Share of the time that is kept for this answer while a better one is looked for.
KEPT = 0.35
# Rows computed exactly: as many as take this share of the time at a cautious guess of multiply-adds
# a second (two cores with AVX2 make 2e10 to 6e10), within these numbers.
_PROBED, _CAUTIOUS, _FEWEST_ROWS, _MOST_ROWS = 0.05, 1e10, 4, 256
_ROWS_PER_BLOCK, _KEYS_PER_TILE, _MOST_BLOCKS = 512, 512, 256
# Draws are made in a few rounds: the first takes this share of the time left and tells how long a
# pair takes; each further one takes this share of what is left then. A round that would add less
# than this share to all before it is not worth its overhead.
_FIRST, _LATER, _ROUNDS, _WORTHWHILE = 0.25, 0.8, 4, 0.2
# Keys expected for each block, at least: fewer would not tell their own variance.
_LEAST_KEYS = 16.0
# A drawn pair costs this many exact ones.
_SAMPLED_PAIR = 1.4
# Of the pairs left, for a smooth part.
_FOR_SMOOTH = 0.2
# Seconds to put the answer together, for each of its entries.
_PER_ENTRY = 1e-7


class Probe(NamedTuple):
    """Some rows of the product, exactly."""

    rows: Index
    products: Array

    @property
    def length(self) -> float:
        """Frobenius norm of their product."""
        return float(np.linalg.norm(self.products.astype(np.float64)))


def probe(kernel: KernelMatrix, x: Array, limit: Limit, rng: np.random.Generator) -> Probe:
    """A few random rows, in a small part of the time; the limit learns how long a pair takes."""
    n_queries, (n_keys, n_dims) = len(kernel.queries), kernel.keys.shape
    work = n_keys * (n_dims + 24)
    wanted = _PROBED * limit.deadline.max_seconds * _CAUTIOUS / work
    n_rows = min(n_queries, max(_FEWEST_ROWS, min(_MOST_ROWS, int(wanted))))
    rows = np.sort(rng.choice(n_queries, n_rows, replace=False))
    start = limit.deadline.now()
    products = kernel.at_queries(rows).product(x).out
    limit.learn(n_rows * n_keys, limit.deadline.now() - start)
    return Probe(rows, products)


class _Scheme(NamedTuple):
    """Where keys are drawn, and at which rates relative to each other."""

    query_blocks: Blocks
    key_tiles: Blocks
    rate: Float64
    found: FoundPairs
    smooth: SmoothPart | None
    words: str

    def factor(self, pairs: float, size: Array) -> float:
        """What the rates are multiplied by for about this many pairs, and hardly more."""
        tiles = self.key_tiles
        mean = np.bincount(tiles.block_of, size, len(tiles.sizes)) / tiles.sizes
        chance = self.rate * mean
        n_pairs = np.outer(self.query_blocks.sizes, tiles.sizes).astype(np.float64)
        low, high = -80.0, 300.0
        while high - low > 1e-2:
            middle = (low + high) / 2
            # The mean of min(1, c |x|) over a tile is at most min(1, c) of the mean of |x|.
            made = float((n_pairs * np.minimum(1.0, math.exp(middle) * chance)).sum())
            low, high = (middle, high) if made < pairs else (low, middle)
        return math.exp(high)


def hurried_sample(
    kernel: KernelMatrix,
    x: Array,
    checks: Probe,
    outcome: Outcome,
    *,
    allowed: float,
    delta: float,
    limit: Limit,
    rng: np.random.Generator,
) -> Sample:
    """An answer in the time that is left, or soon after; also says in the outcome what it is."""
    seed = int(rng.integers(2**63))
    scheme = _scheme(kernel, x, outcome, limit)
    size = row_lengths(x)
    outcome.numbers["drawn_by"] = scheme.words
    n_pairs = len(kernel.queries) * len(kernel.keys)
    deadline = limit.deadline.keeping(_PER_ENTRY * len(kernel.queries) * x.shape[1])
    best, draws = outcome.best_effort, None
    spent = 0.0
    for stream in range(_ROUNDS):
        share = _FIRST if draws is None else _LATER
        pairs = share * max(deadline.left(), 0.0) * limit.rate / _SAMPLED_PAIR
        if draws is None:
            pairs = max(pairs, _LEAST_KEYS * len(kernel.queries))
        elif pairs < _WORTHWHILE * spent or spent >= n_pairs:
            break
        factor = scheme.factor(min(pairs, n_pairs), size)
        start = deadline.now()
        # The first round is small, and finished in any case.
        patient = kernel.checked(None if draws is None else deadline.polled)
        try:
            sums = _draw(patient, x, size, scheme, factor, seed, stream)
        except OutOfTime:
            break
        more = Draws(sums, np.full(len(scheme.query_blocks.sizes), factor))
        made = int((sums.n_drawn * scheme.query_blocks.sizes).sum())
        limit.learn(int(_SAMPLED_PAIR * made), deadline.now() - start)
        draws = more if draws is None else draws.with_more(more, scheme.query_blocks)
        spent += made
        sample = _judged(draws.sums, scheme.query_blocks, checks, round(spent), delta)
        if max(sample.upper, sample.checked) <= allowed:
            break
    outcome.numbers |= {"draws": stream + 1, "rows_checked": len(checks.rows)}
    outcome.pairs += sample.pairs
    if best is not None and best.upper < sample.upper:
        sample = replace(best, variance=max(best.variance, best.checked))
    outcome.stopped = max(sample.upper, sample.checked) > allowed
    outcome.numbers["share_of_pairs"] = outcome.pairs / n_pairs
    return sample


def _scheme(kernel: KernelMatrix, x: Array, outcome: Outcome, limit: Limit) -> _Scheme:
    """With all that is known; what would take too long to use is left out."""
    n_queries, (n_keys, n_dims) = len(kernel.queries), kernel.keys.shape
    same = kernel.queries is kernel.keys
    found = diagonal(n_keys) if same else FoundPairs.none(n_queries)
    look: Look | None = outcome.look
    if look is None:
        n_rows = max(_ROWS_PER_BLOCK, math.ceil(n_queries / _MOST_BLOCKS))
        blocks, tiles = norm_order(kernel.geometry, n_rows, max(_KEYS_PER_TILE, n_rows // 2))
        mean = max(float(row_lengths(x).mean(dtype=np.float64)), np.finfo(np.float32).tiny)
        rate = np.full((len(blocks.sizes), len(tiles.sizes)), 1 / n_keys / mean)
        return _Scheme(blocks, tiles, rate, found, None, "the rows of x alone")
    words = "pilot rows"
    if outcome.search is not None:
        found, words = outcome.search.found, "pilot rows and near pairs"
    smooth = None
    forecaster = look.forecaster
    if look.smooth is not None:
        # Without the smooth part its forecast would be of the wrong matrix.
        if limit.allows(smooth_cost(n_queries, n_keys, n_dims) / _FOR_SMOOTH):
            smooth = look.smooth.of(kernel.geometry, x, look.key_tiles, kernel.backend.n_threads)
            words += " and a smooth part"
        else:
            forecaster = forecaster.without(look.pilot.light, look.pilot.near_square)
    rate = forecaster(found).rates.rate
    return _Scheme(look.query_blocks, look.key_tiles, rate, found, smooth, words)


def _draw(
    kernel: KernelMatrix,
    x: Array,
    size: Array,
    scheme: _Scheme,
    factor: float,
    seed: int,
    stream: int,
) -> SampledSums:
    rate = np.minimum(factor * scheme.rate, np.finfo(np.float32).max).astype(np.float32)
    plan = DrawPlan(
        scheme.query_blocks.order,
        scheme.query_blocks.start,
        scheme.key_tiles.order,
        scheme.key_tiles.start,
        rate,
        size,
        seed,
        stream,
    )
    return kernel.backend.sampled_product(
        kernel.geometry,
        plan,
        scheme.found,
        x,
        scheme.smooth,
    )


def _judged(
    sums: SampledSums, query_blocks: Blocks, checks: Probe, pairs: int, delta: float
) -> Sample:
    """The product and its error: what the draws say, or the exact rows if they say more."""
    variance = np.maximum(sums.variance, 0.0)
    kept = float(variance.sum())
    by_block = np.bincount(query_blocks.block_of, variance, len(query_blocks.sizes))
    above = spread(np.asarray(by_block, np.float64), delta)
    off = sums.out[checks.rows].astype(np.float64) - checks.products
    checked = len(sums.out) / len(checks.rows) * float(np.square(off).sum())
    y = sums.out.copy()
    y[checks.rows] = checks.products
    return Sample(
        y=y,
        variance=max(kept, checked),
        upper=kept * above,
        left_out=0.0,
        checked=checked,
        pairs=pairs,
        n_mended=0,
        exact_rows=checks.rows,
    )
