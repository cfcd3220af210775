"""One block of attention: some heads, a chunk of their queries, all of their keys.

The error of a head is relative to its values, so chunks of heads share nothing. A chunk with n_i of
the n queries of a head may have an error of ``eps * sqrt(n_i / n)``: squares of errors add over
rows. The chunks of a head share its delta evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.attention import attention
from approxkmv.blocks.memory import kept_memory
from approxkmv.blocks.product import METHODS, entropy_of, threads_here
from approxkmv.info import AttentionInfo
from approxkmv.loops.types import Array


@dataclass(frozen=True)
class HeadsRequest:
    """What is asked of every head, and into how many chunks its queries are cut.

    Attributes
    ----------
    scale, is_causal, enable_gqa, eps, delta, method, n_threads
        As in :func:`approxkmv.attention`.
    entropy : int
        Seed of the whole.
    n_queries, n_chunks : int
        Queries of a head, and their chunks.
    """

    scale: float | None
    is_causal: bool
    enable_gqa: bool
    eps: float
    delta: float
    method: str
    entropy: int
    n_threads: int | None
    n_queries: int
    n_chunks: int

    def generator(self, place: tuple[int, ...]) -> np.random.Generator:
        """Random numbers of one block, from a counter."""
        seed = np.random.SeedSequence(self.entropy, spawn_key=place)
        return np.random.Generator(np.random.Philox(seed))

    def share(self, n_queries: int) -> float:
        """Error allowed to this many queries of a head, relative to its values."""
        return self.eps * math.sqrt(n_queries / max(1, self.n_queries))


def checked_heads(
    *,
    scale: float | None,
    is_causal: bool,
    enable_gqa: bool,
    eps: float,
    delta: float,
    method: str,
    rng: Rng,
    n_threads: int | None,
    n_queries: int,
    n_chunks: int,
) -> HeadsRequest:
    """The request, after the same checks as in :func:`approxkmv.attention`."""
    return HeadsRequest(
        None if scale is None else _check.number(scale, "scale"),
        _check.truth(is_causal, "is_causal"),
        _check.truth(enable_gqa, "enable_gqa"),
        _check.tolerance(eps),
        _check.probability(delta),
        _check.one_of(method, "method", METHODS),
        entropy_of(rng),
        _check.threads(n_threads),
        n_queries,
        max(1, n_chunks),
    )


def attention_block(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    request: HeadsRequest,
    place: tuple[int, ...],
) -> tuple[Array, AttentionInfo]:
    """Attention of one block, with its share of the error and of delta, and its own seed."""
    n_queries = np.shape(query)[-2]
    with kept_memory():
        output, info = attention(
            query,
            key,
            value,
            scale=request.scale,
            is_causal=request.is_causal,
            attn_mask=mask,
            enable_gqa=request.enable_gqa,
            eps=request.share(n_queries),
            delta=request.delta / request.n_chunks,
            method=request.method,
            rng=request.generator(place),
            n_threads=threads_here(request.n_threads),
            return_info=True,
        )
    return output, info
