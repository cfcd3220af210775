"""Pairs drawn one by one, each with the probability of its block and tile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from approxkmv._threads import default_threads
from approxkmv.engine.schemes.frozen_matrix import Drawn, sparse
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, Index32


def draw_pairs(kernel: KernelMatrix, pilot: Pilot, pi: Float64, rng: np.random.Generator) -> Drawn:
    """Every pair with the probability of its block and tile.

    Where the queries are the keys, one of the two places of a pair is drawn.
    """
    query_blocks, key_tiles, once = pilot.query_blocks, pilot.key_tiles, pilot.symmetric
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    check = kernel.backend.check or _no_limit

    def of_block(block: int, rng: np.random.Generator) -> tuple[Any, ...]:
        check()
        first, last = query_blocks.start[block : block + 2]
        of_tiles = np.where(key_tiles.start[1:] > first, pi[block], 0.0) if once else pi[block]
        row, col, tile = bernoulli(of_tiles, last - first, key_tiles, rng)
        if once:
            above = first + row < col
            row, col, tile = row[above], col[above], tile[above]
        values = Compiled(1).pair_kernel(
            kernel.queries,
            kernel.keys,
            query_blocks.order[first + row].astype(np.int64),
            key_tiles.order[col].astype(np.int64),
            kernel.bandwidth,
        )
        probability = of_tiles[tile]
        values /= probability
        variance = (1 - probability) * values**2
        drawn.of_query[first:last] = np.bincount(row, variance, last - first)
        lengths = np.bincount(row, minlength=last - first)
        of_key = np.bincount(col, variance, n_keys)
        return lengths, col, values.astype(kernel.keys.dtype), of_key

    drawn = Drawn(query_blocks, key_tiles, pi, n_queries, n_keys)
    lengths, cols, values = [np.zeros(1, np.int64)], list[Index32](), list[Array]()
    # A generator for each block: the draws do not depend on who makes them first.
    rngs = rng.spawn(len(pi))
    for n_drawn, col, value, of_key in _mapped(of_block, rngs, kernel.backend.n_threads):
        lengths.append(n_drawn)
        cols.append(col)
        values.append(value)
        drawn.of_key += of_key
    drawn.values = sparse(
        np.concatenate(values), np.concatenate(cols), np.cumsum(np.concatenate(lengths)), n_keys
    )
    return drawn


def _no_limit() -> None:
    """No limit of time."""


def _mapped(
    of_block: Callable[[int, np.random.Generator], tuple[Any, ...]],
    rngs: Sequence[np.random.Generator],
    n_threads: int | None,
) -> Iterator[tuple[Any, ...]]:
    """Results of all blocks in order; by the calling thread alone where no other can be started."""
    with ThreadPoolExecutor(n_threads or default_threads()) as pool:
        try:
            # Copies: some blocks may be done already when a thread cannot be started.
            results = pool.map(of_block, range(len(rngs)), copy.deepcopy(rngs))
        except RuntimeError:
            pool.shutdown(cancel_futures=True)
            results = map(of_block, range(len(rngs)), rngs)
        yield from results


def bernoulli(
    pi: Float64, n_rows: int, tiles: Blocks, rng: np.random.Generator
) -> tuple[Index32, Index32, Index32]:
    """Rows, columns and tiles of places drawn in ``n_rows`` rows of tiles, by row and column.

    Each with its tile's probability, independently: the gaps between them are geometric.
    """
    rows, cols, lengths = [], [], []
    for p, size, first in zip(pi, tiles.sizes, tiles.start[:-1], strict=True):
        row, col = np.divmod(_in_tile(p, n_rows * size, rng), np.int32(size))
        rows.append(row.astype(np.int16 if n_rows < 2**15 else np.int32))
        cols.append(col + np.int32(first))
        lengths.append(len(row))
    tile = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    row = np.concatenate(rows)
    by_row = np.argsort(row, kind="stable")  # a radix sort for short integers
    return row[by_row].astype(np.int32), np.concatenate(cols)[by_row], tile[by_row]


def _in_tile(p: float, size: int, rng: np.random.Generator) -> Index32:
    if p <= 0 or p >= 1:
        return np.arange(size if p >= 1 else 0, dtype=np.int32)
    mean, scale = p * size, -1 / np.log1p(-p)
    at_once = int(mean + 4 * np.sqrt(mean) + 4)
    places = np.empty(0)
    while len(places) == 0 or places[-1] < size:
        gaps = np.ceil(scale * rng.standard_exponential(at_once))
        places = np.append(places, np.cumsum(gaps) + (places[-1] if len(places) else -1.0))
    return places[: np.searchsorted(places, size)].astype(np.int32)
