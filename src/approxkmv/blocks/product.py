"""One block of a product: a chunk of queries, a chunk of keys, its share of the error allowed.

Let query chunk i have n_i of the n queries, and key chunk b the entries x_b of x. A block is
computed with error at most ``eps * sqrt(n_i / n)`` relative to ``|x_b|``. Draws of different blocks
are independent and unbiased, so over key chunks the mean squares of the errors add, and over
query chunks squares add anyway:

    sum_i sum_b  eps^2 (n_i / n) |x_b|^2  =  eps^2 |x|^2.

Some blocks are multiplied by a fixed matrix instead: of low rank, or without cells far apart. Their
errors may all point the same way, so over B key chunks these are allowed ``eps / sqrt(B)`` each:
their lengths then add to at most ``eps |x|`` (Cauchy and Schwarz).

Each block may fail with probability ``delta / n_blocks``. Its seed is a counter: a block has the
same bits whoever computes it, in whatever order, and however often.
"""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.blocks.keyside import KeySide, with_place
from approxkmv.blocks.memory import kept_memory
from approxkmv.info import ProductInfo
from approxkmv.loops.types import Array
from approxkmv.product import log_row_sums, matvec, row_sums

METHODS = ("auto", "exact", "sampled")
# Ways to a product whose error is that of a fixed matrix, and has no mean of zero.
_FIXED = ("low rank", "cells")


@dataclass(frozen=True)
class Request:
    """What is asked of the whole product, and into how many blocks it is cut.

    Attributes
    ----------
    bandwidth, eps, delta, method, n_threads, check_finite
        As in :func:`approxkmv.matvec`.
    entropy : int
        Seed of the whole product.
    n_queries : int
        Queries of all chunks.
    n_blocks : int
        Blocks of the whole product.
    n_key_chunks : int
        Blocks that are added up for each chunk of queries.
    """

    bandwidth: float
    eps: float
    delta: float
    method: str
    entropy: int
    n_threads: int | None
    check_finite: bool
    n_queries: int
    n_blocks: int
    n_key_chunks: int = 1

    def generator(self, query_chunk: int, key_chunk: int) -> np.random.Generator:
        """Random numbers of one block, from a counter."""
        seed = np.random.SeedSequence(self.entropy, spawn_key=(query_chunk, key_chunk))
        return np.random.Generator(np.random.Philox(seed))

    def share(self, n_queries: int) -> float:
        """Error allowed to a block with so many of the queries, relative to its part of x."""
        return self.eps * math.sqrt(n_queries / max(1, self.n_queries))


@dataclass(frozen=True)
class BlockInfo:
    """What one block did.

    Attributes
    ----------
    query_chunk, key_chunk : int
        Which block.
    n_queries, n_keys : int
        Its size.
    x_norm : float
        Length of its part of x, to which the errors in ``info`` are relative.
    info : ProductInfo
        The report of :func:`approxkmv.matvec` for the block.
    """

    query_chunk: int
    key_chunk: int
    n_queries: int
    n_keys: int
    x_norm: float
    info: ProductInfo

    @property
    def is_fixed(self) -> bool:
        """Whether the error is that of a fixed matrix: other blocks do not average it out."""
        return has_fixed_error(self.info)


@dataclass(frozen=True)
class Block:
    """Product of one block and its report."""

    y: Array
    info: BlockInfo

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.y.nbytes


def checked_request(
    *,
    bandwidth: float,
    eps: float = 0.0,
    delta: float = 0.05,
    method: str = "exact",
    rng: Rng = None,
    n_threads: int | None = None,
    check_finite: bool = True,
    n_queries: int,
    n_blocks: int,
    n_key_chunks: int = 1,
) -> Request:
    """The request, after the same checks as in :func:`approxkmv.matvec`."""
    return Request(
        _check.positive(bandwidth, "bandwidth"),
        _check.tolerance(eps),
        _check.probability(delta),
        _check.one_of(method, "method", METHODS),
        entropy_of(rng),
        _check.threads(n_threads),
        _check.truth(check_finite, "check_finite"),
        n_queries,
        max(1, n_blocks),
        max(1, n_key_chunks),
    )


def entropy_of(rng: Rng) -> int:
    """The number that seeds every block: fixed here, so that a block computed again is the same."""
    seed = _check.seed(rng)
    if isinstance(seed, np.random.Generator):
        return int.from_bytes(seed.bytes(16), "little")
    return int(np.random.SeedSequence(seed).entropy)  # type: ignore[arg-type]


def kernel_block(queries: Any, side: KeySide, request: Request, place: tuple[int, int]) -> Block:
    """Multiply one block, with its share of the error and of delta, and its own seed."""
    points = _checked(queries, request, place)
    eps = request.share(len(points))
    with kept_memory():
        y, info = _multiplied(points, side, request, place, eps)
        if request.n_key_chunks > 1 and has_fixed_error(info):
            first = info
            y, info = _multiplied(
                points, side, request, place, eps / math.sqrt(request.n_key_chunks)
            )
            info = _with_first_try(info, first)
    return Block(y, BlockInfo(*place, len(points), len(side), side.x_norm, info))


def _multiplied(
    points: Array, side: KeySide, request: Request, place: tuple[int, int], eps: float
) -> tuple[Array, ProductInfo]:
    """The one place where a block meets the engine, and where all known of the keys enters."""
    return matvec(
        points,
        side.points(),
        side.x,
        bandwidth=request.bandwidth,
        eps=eps,
        delta=request.delta / request.n_blocks,
        method=request.method,
        rng=request.generator(*place),
        n_threads=threads_here(request.n_threads),
        check_finite=False,
        return_info=True,
    )


def has_fixed_error(info: ProductInfo) -> bool:
    """Whether a product was made with a fixed matrix instead of draws that are right on average."""
    return any(one.outcome == "taken" and one.name in _FIXED for one in info.plan.candidates)


def _with_first_try(info: ProductInfo, first: ProductInfo) -> ProductInfo:
    """The report with what was spent on a first try."""
    seconds = Counter(first.seconds) + Counter(info.seconds)
    return replace(info, pairs=first.pairs + info.pairs, seconds=dict(seconds))


def row_sum_block(queries: Any, side: KeySide, request: Request, place: tuple[int, int]) -> Array:
    """Row sums over one chunk of the keys, exactly."""
    return row_sums(
        _checked(queries, request, place),
        side.points(),
        bandwidth=request.bandwidth,
        n_threads=threads_here(request.n_threads),
        check_finite=False,
    )


def log_row_sum_block(
    queries: Any, side: KeySide, request: Request, place: tuple[int, int]
) -> Array:
    """Logarithms of row sums over one chunk of the keys, exactly."""
    return log_row_sums(
        _checked(queries, request, place),
        side.points(),
        bandwidth=request.bandwidth,
        weights=side.x if side.x.ndim == 1 else None,
        n_threads=threads_here(request.n_threads),
        check_finite=False,
    )


def kernel_sum(parts: Sequence[Block | Array], dtype: Any) -> Array:
    """Sum over key chunks, always in their order."""
    arrays = [part.y if isinstance(part, Block) else part for part in parts]
    total = arrays[0].astype(dtype)
    for array in arrays[1:]:
        total += array
    return total


def log_sum(parts: Sequence[Array], dtype: Any) -> Array:
    """Logarithm of the sum over key chunks of what has these logarithms."""
    total = parts[0].astype(np.float64)
    for part in parts[1:]:
        np.logaddexp(total, part, out=total)
    with np.errstate(over="ignore"):  # below the smallest number of float32: minus infinity
        return total.astype(dtype)


def threads_here(n_threads: int | None) -> int | None:
    """Threads of one block: as told; else one where other blocks run beside it, else all cores.

    Schedulers with threads and the workers of a cluster run blocks outside the main thread, pools
    of processes outside the main process.
    """
    if n_threads is not None:
        return n_threads
    alone = threading.current_thread() is threading.main_thread()
    return None if alone and multiprocessing.parent_process() is None else 1


def _checked(queries: Any, request: Request, place: tuple[int, int]) -> Array:
    """A chunk of queries in its computing type; what is wrong is said with the chunk's number."""
    points = _check.points(queries, "queries")
    if request.check_finite:
        with_place(lambda: _check.finite(points, "queries"), f"query chunk {place[0]}")
    return points
