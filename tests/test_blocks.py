"""Errors of blocks add up to no more than what the whole product may have."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from approxkmv.blocks.combine import combine_infos
from approxkmv.blocks.keyside import KeySide
from approxkmv.blocks.product import Block, Request, checked_request, kernel_block, kernel_sum
from approxkmv.exact import product
from approxkmv.info import Considered

N_CHUNKS, EPS = 9, 0.05


def blocks_of(request: Request, queries: np.ndarray, side: KeySide) -> list[Block]:
    return [kernel_block(queries, side, request, (0, chunk)) for chunk in range(N_CHUNKS)]


@pytest.fixture(scope="module")
def dense() -> tuple[Request, np.ndarray, KeySide]:
    """Nine chunks of the same keys, x = 1, a kernel of low rank: errors of one sign."""
    rng = np.random.default_rng(3)
    queries = rng.standard_normal((30_000, 8), dtype=np.float32)
    keys = rng.standard_normal((30_000, 8), dtype=np.float32)
    x = np.ones(len(keys), np.float32)
    request = checked_request(
        bandwidth=4.0,
        eps=EPS,
        method="auto",
        rng=0,
        n_queries=len(queries),
        n_blocks=N_CHUNKS,
        n_key_chunks=N_CHUNKS,
    )
    return request, queries, KeySide(keys, x, float(np.linalg.norm(x)))


def errors(y: np.ndarray, queries: np.ndarray, side: KeySide) -> float:
    """Estimated from some rows, relative to all nine parts of x."""
    rows = np.random.default_rng(5).integers(0, len(queries), 2000)
    exact = N_CHUNKS * product(
        queries[rows].astype(np.float64), side.points().astype(np.float64), side.x, bandwidth=4.0
    )
    length = np.linalg.norm(y[rows] - exact) * math.sqrt(len(queries) / len(rows))
    return float(length / (math.sqrt(N_CHUNKS) * side.x_norm))


def test_errors_of_fixed_matrices_add(dense: tuple[Request, np.ndarray, KeySide]) -> None:
    """Chunks of low rank share the error as lengths; the estimate of the whole says so."""
    request, queries, side = dense
    blocks = blocks_of(request, queries, side)
    assert all(block.info.is_fixed for block in blocks)
    info = combine_infos([block.info for block in blocks])
    error = errors(kernel_sum(blocks, np.float64), queries, side)
    assert info.error_estimate is not None
    assert info.error_bound is not None
    assert error <= EPS
    assert error <= info.error_bound
    assert info.error_estimate <= EPS
    # Every block has its share of the lengths, not of the squares.
    for block in blocks:
        assert block.info.info.error_estimate is not None
        assert block.info.info.error_estimate <= EPS / math.sqrt(N_CHUNKS)


def test_estimates_add_as_lengths_where_errors_are_fixed(
    dense: tuple[Request, np.ndarray, KeySide],
) -> None:
    """Four blocks of error e: 2 e where they are drawn, 4 e where their matrix is fixed."""
    request, queries, side = dense
    one = kernel_block(queries[:50], side, replace(request, n_key_chunks=4, n_blocks=4), (0, 0))

    def whole(name: str) -> float:
        plan = replace(one.info.info.plan, candidates=(Considered(name, 0.1, 0.5, "taken"),))
        info = replace(one.info.info, plan=plan, error_estimate=0.01)
        infos = [replace(one.info, key_chunk=chunk, info=info) for chunk in range(4)]
        estimate = combine_infos(infos).error_estimate
        assert estimate is not None
        return estimate

    # Relative to x of four equal parts, which is twice as long as each of them.
    assert whole("drawing keys") == pytest.approx(0.01)
    assert whole("low rank") == pytest.approx(0.02)
    assert whole("cells") == pytest.approx(0.02)
