"""How a product is cut into chunks that fit in memory."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

# Beside its coordinates a point needs about this much: its shifts, its place in two orders, near
# pairs, sums and variances. A million queries and a million keys of 64 coordinates in single
# precision take 490 MB beyond inputs (``accept/engine_million`` of the benchmarks), 245 bytes each.
_BYTES_OF_A_POINT = 256
# Points are held twice: as they were read, and as they are packed or moved.
_COPIES = 2
# Sums, variances and exact rows of one column, in double precision.
_BYTES_OF_A_COLUMN = 32
# The interpreter with NumPy and SciPy, and scratch that does not depend on the chunks.
_FIXED_BYTES = 200e6
# Rows of a chunk at most, so that a run that is killed loses minutes, not hours.
_MOST_ROWS = 2**20

# Chunks are merged up to this size: a million points of 64 coordinates in single precision.
_MERGED_BYTES = 2**28
# A search for near pairs goes through all keys of a block, whatever the number of queries. With
# half as many queries as keys it takes 3/2 of the time that it takes in one block of as many: two
# blocks of 65,536 queries took 1.4 times the processor time of one of 131,072, eight of 16,384 took
# 3.5 times as much (64 coordinates, as many keys, eps = 0.1).
_QUERIES_PER_KEY = 0.5


class Cut(NamedTuple):
    """Ends of the chunks of queries and of keys, beginning with 0."""

    queries: list[int]
    keys: list[int]

    @property
    def query_chunks(self) -> list[tuple[int, int]]:
        """First row and last row + 1 of each."""
        return list(pairwise(self.queries))

    @property
    def key_chunks(self) -> list[tuple[int, int]]:
        """First row and last row + 1 of each."""
        return list(pairwise(self.keys))


def cut_to_fit(
    n_queries: int, n_keys: int, row_bytes: int, n_columns: int, max_memory: float
) -> Cut:
    """Chunks whose product needs at most ``max_memory`` bytes; the keys whole where half is enough.

    Every chunk of keys is gone through once for each chunk of queries, so long chunks are better.
    """
    of_point = _COPIES * row_bytes + _BYTES_OF_A_POINT + _BYTES_OF_A_COLUMN * n_columns
    points = (max_memory - _FIXED_BYTES) / of_point
    if points < 2:
        least = math.ceil((_FIXED_BYTES + 2 * of_point) / 1e6)
        raise ValueError(f"max_memory must be at least {least} MB for these points.")
    keys = _pieces(n_keys, points / 2)
    of_keys = max(b - a for a, b in pairwise(keys))
    return Cut(_pieces(n_queries, min(points - of_keys, _MOST_ROWS)), keys)


def merged_keys(sizes: tuple[int, ...], row_bytes: int) -> tuple[int, ...]:
    """Chunks of keys, neighbours put together as far as one task should hold them."""
    return _merged(sizes, math.inf, _MERGED_BYTES / row_bytes)


def merged_queries(sizes: tuple[int, ...], row_bytes: int, keys_of_chunk: int) -> tuple[int, ...]:
    """Chunks of queries, neighbours put together until the keys are worth going through for."""
    return _merged(sizes, _QUERIES_PER_KEY * keys_of_chunk, _MERGED_BYTES / row_bytes)


def _merged(sizes: tuple[int, ...], enough: float, most: float) -> tuple[int, ...]:
    """Neighbours put together while a chunk has less than enough rows and stays below the most."""
    n, longest = sum(sizes), max(sizes, default=0)
    n_chunks = max(1, math.ceil(n / max(most, longest, 1)), math.floor(n / max(enough, 1)))
    if n_chunks >= len(sizes):
        return sizes
    found = [0]
    for size in sizes:
        ends = sum(found)
        # A new chunk where the middle of this one lies beyond the end of an even cut.
        if found[-1] and ends + size / 2 > n * len(found) / n_chunks:
            found.append(0)
        found[-1] += size
    return tuple(found)


def _pieces(n: int, at_most: float) -> list[int]:
    n_pieces = max(1, math.ceil(n / max(1.0, at_most)))
    return [n * i // n_pieces for i in range(n_pieces + 1)]
