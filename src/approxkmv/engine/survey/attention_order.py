"""Blocks of similar queries for attention, and the keys near them.

With a causal mask the order is that of the tokens: neighbours in a text attend alike, and most to
their own neighbourhood. Without one, keys are cut into small cells, each at the median along the
direction in which it spreads most, and queries follow, so that a block's near keys are mostly in
its own cells. (Cuts along directions that all cells share need twice the pairs on word vectors.)
"""

from __future__ import annotations

import math

import numpy as np

from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, AttentionBlocks, Index, Index32

# A multiple of every micro tile's rows; larger blocks would share keys between unlike queries.
_ROWS_PER_BLOCK = 96
# The pilot computes as many rows for each block, whatever its size.
_MOST_BLOCKS = 180
# Moments are kept for every block and key: two matrices of at most 128 MiB each.
_MOST_MOMENTS = 2**25
# Beyond this many blocks' worth of keys, cells that a block touches are no neighbourhood.
_MOST_BAND_BLOCKS = 4


def order_blocks(
    query: Array, key: Array, *, is_causal: bool, n_threads: int | None = None
) -> AttentionBlocks:
    """Cut queries into blocks of 96, or a multiple where there are many."""
    n_queries, n_keys = len(query), len(key)
    size = _ROWS_PER_BLOCK * max(
        1,
        round(n_queries / _ROWS_PER_BLOCK / _MOST_BLOCKS),
        math.ceil(n_queries * n_keys / _ROWS_PER_BLOCK / _MOST_MOMENTS),
    )
    start = np.append(np.arange(0, n_queries, size), n_queries).astype(np.int64)
    if is_causal:
        stop = np.minimum(start[1:], n_keys)
        before = np.minimum(np.maximum(start[:-1] - size, 0), stop)
        tokens = np.arange(max(n_queries, n_keys), dtype=np.int32)
        return AttentionBlocks(tokens[:n_queries], start, tokens[:n_keys], before, stop, True)
    depth = max(0, int(math.log2(n_keys / size)))
    tiling = Compiled(n_threads).principal_tiling(
        key,
        query,
        depth,
    )
    first = np.searchsorted(tiling.query_start, start[:-1], side="right") - 1
    last = np.searchsorted(tiling.query_start, start[1:] - 1, side="right")
    band_start, band_stop = tiling.key_start[first], tiling.key_start[last]
    near = band_stop - band_start <= _MOST_BAND_BLOCKS * size
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
    """Some of the blocks, or so many rows of each."""
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
    """Random queries of each block, equally many and evenly spread, in random order."""
    sizes = np.diff(blocks.start)
    within = (np.arange(per_block) + rng.random((len(sizes), per_block))) / per_block
    within = rng.permuted(within, axis=1)
    positions = blocks.start[:-1, None] + (within * sizes[:, None]).astype(np.int64)
    return blocks.query_order[positions.ravel()]
