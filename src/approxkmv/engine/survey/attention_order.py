"""Blocks of similar queries for attention, and the keys near them.

With a causal mask the order is that of the tokens: neighbours in a text attend alike, and most to
their own neighbourhood. Without one, keys are cut into small cells, each at the median along the
direction in which it spreads most, and queries follow, so that a block's near keys are mostly in
its own cells. (Cuts along directions that all cells share need twice the pairs on word vectors.)
"""

from __future__ import annotations

import math

import numpy as np

from approxkmv.engine.head import Head
from approxkmv.engine.policy import HeadShape
from approxkmv.loops.types import AttentionBlocks, Index, Index32


def order_blocks(head: Head, shape: HeadShape) -> AttentionBlocks:
    """Cut queries into blocks of some rows, or of a multiple of them where there are many."""
    n_queries, n_keys = head.n_queries, head.n_keys
    size = shape.rows_per_block * max(
        1,
        round(n_queries / shape.rows_per_block / shape.most_blocks),
        math.ceil(n_queries * n_keys / shape.rows_per_block / shape.most_moments),
    )
    start = np.append(np.arange(0, n_queries, size), n_queries).astype(np.int64)
    if head.is_causal:
        stop = np.minimum(start[1:], n_keys)
        before = np.minimum(np.maximum(start[:-1] - size, 0), stop)
        tokens = np.arange(max(n_queries, n_keys), dtype=np.int32)
        return AttentionBlocks(tokens[:n_queries], start, tokens[:n_keys], before, stop, True)
    depth = max(0, int(math.log2(n_keys / size)))
    tiling = head.backend.principal_tiling(head.keys, head.queries, depth)
    first = np.searchsorted(tiling.query_start, start[:-1], side="right") - 1
    last = np.searchsorted(tiling.query_start, start[1:] - 1, side="right")
    band_start, band_stop = tiling.key_start[first], tiling.key_start[last]
    near = band_stop - band_start <= shape.most_band_blocks * size
    band_start, band_stop = np.where(near, band_start, 0), np.where(near, band_stop, 0)
    return AttentionBlocks(
        tiling.query_order, start, tiling.key_order, band_start, band_stop, False
    )


def every_nth(n_blocks: int, n: int, first: int) -> Index:
    """Numbers of some blocks, evenly spread."""
    return np.arange(first % min(n, n_blocks), n_blocks, n)


def some_blocks(
    blocks: AttentionBlocks, chosen: Index, most_rows: int | None = None
) -> AttentionBlocks:
    """Some of the blocks, or at most ``most_rows`` of each."""
    start, stop = blocks.start[:-1][chosen], blocks.start[1:][chosen]
    if most_rows is not None:
        stop = np.minimum(stop, start + most_rows)
    queries = [blocks.query_order[a:b] for a, b in zip(start, stop, strict=True)]
    return blocks._replace(
        query_order=np.concatenate(queries),
        start=np.append(0, np.cumsum(stop - start)),
        band_start=blocks.band_start[chosen],
        band_stop=blocks.band_stop[chosen],
    )


def pilot_rows(blocks: AttentionBlocks, per_block: int, rng: np.random.Generator) -> Index32:
    """Random queries of each block, the same number of each and evenly spread, in random order."""
    sizes = np.diff(blocks.start)
    within = (np.arange(per_block) + rng.random((len(sizes), per_block))) / per_block
    within = rng.permuted(within, axis=1)
    positions = blocks.start[:-1, None] + (within * sizes[:, None]).astype(np.int64)
    return blocks.query_order[positions.ravel()]
