"""Blocks of queries and tiles of keys, and both in the order of their norms.

In high dimension, once the data are centred, inner products are small next to norms, so the norm of
a point says most about its kernel values: points of similar norm are treated alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from approxkmv.loops.types import Float64, Geometry, Index, Index32


class Blocks(NamedTuple):
    """Points in order, cut into blocks: block b has ``order[start[b]:start[b + 1]]``."""

    order: Index32
    start: Index
    block_of: Index32  # by original number

    @property
    def sizes(self) -> Index:
        """Points in each block."""
        return np.diff(self.start)


def blocks_of(order: Index32, start: Index) -> Blocks:
    """Points in this order, a block beginning at every start."""
    sizes = np.diff(start)
    block_of = np.empty(len(order), np.int32)
    block_of[order] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Blocks(order, start, block_of)


def norm_order(
    geometry: Geometry, rows_per_block: int, keys_per_tile: int
) -> tuple[Blocks, Blocks]:
    """Queries in blocks and keys in tiles of about the given sizes."""
    of_keys = _sorted(_squared_norms(geometry, queries=False))
    of_queries = of_keys
    if geometry.queries is not geometry.keys:
        of_queries = _sorted(_squared_norms(geometry, queries=True))
    return _blocks(of_queries, rows_per_block), _blocks(of_keys, keys_per_tile)


def _squared_norms(geometry: Geometry, *, queries: bool) -> Float64:
    """Anything that grows with the norm: the shifts, where they are not all zero."""
    if not geometry.differences:
        return geometry.query_shift if queries else geometry.key_shift
    points = geometry.queries if queries else geometry.keys
    centre = np.median(geometry.keys[:: max(1, len(geometry.keys) // 1024)], axis=0)
    moved = points - centre
    return np.asarray(np.einsum("ij,ij->i", moved, moved, dtype=np.float64))


def _sorted(measure: Float64) -> Index32:
    """Numbers of points by a measure that is not negative, and those of equal ones ascending.

    In single precision, with the number of the point as further digits: no two are equal then, and
    any sorting algorithm gives the same order. This takes a fifth of a stable sort.
    """
    single = np.minimum(measure, np.finfo(np.float32).max).astype(np.float32)
    digits = single.view(np.uint32).astype(np.uint64) << np.uint64(32)
    digits |= np.arange(len(measure), dtype=np.uint64)
    digits.sort()
    return np.asarray(digits & np.uint64(0xFFFFFFFF), np.int32)


def _blocks(order: Index32, size: int) -> Blocks:
    n_blocks = max(1, round(len(order) / size))
    return blocks_of(order, np.linspace(0, len(order), n_blocks + 1).astype(np.int64))
