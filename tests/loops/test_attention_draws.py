"""The compiled loops of sampled attention against their NumPy twins.

Tolerances are rounding bounds: a softmax weight has a relative error of twice what its score may be
off, and of as many units as sums have terms; squares and their sums follow from that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import AttentionBlocks, AttentionHead, AttentionRates, Smoothing

SHAPES = [(1, 1, 1, 1), (5, 40, 3, 2), (200, 130, 8, 64), (130, 200, 64, 17), (210, 600, 5, 70)]
SMOOTHING = Smoothing(
    check_rows=1,
    plan_guard=0.2,
    guard=0.5,
    narrow=4,
    wide=40,
    raw_share=0.3,
    wide_share=0.2,
    floor_share=0.01,
)


def head_of(m: int, n: int, d: int, r: int, dtype: Any, seed: int = 0) -> AttentionHead:
    rng = np.random.default_rng([seed, m, n, d, r])
    centre = rng.standard_normal(r).astype(dtype).astype(np.float64)
    return AttentionHead(
        rng.standard_normal((m, d)).astype(dtype),
        (rng.standard_normal((n, d)) + 1).astype(dtype),
        (centre + rng.standard_normal((n, r))).astype(dtype),
        2 / d**0.5,
        np.zeros(d),
        np.ones(d),
        centre,
        0.25,
    )


def blocks_of(m: int, n: int, causal: bool, size: int = 50) -> AttentionBlocks:
    start = np.append(np.arange(0, m, size), m).astype(np.int64)
    if causal:
        tokens = np.arange(max(m, n), dtype=np.int32)
        stop = np.minimum(start[1:], n)
        before = np.minimum(np.maximum(start[:-1] - 20, 0), stop)
        return AttentionBlocks(tokens[:m], start, tokens[:n], before, stop, True)
    rng = np.random.default_rng(m + n)
    band = np.minimum(np.arange(len(start) - 1) * 7, n)
    return AttentionBlocks(
        rng.permutation(m).astype(np.int32),
        start,
        rng.permutation(n).astype(np.int32),
        band,
        np.minimum(band + 10, n),
        False,
    )


def pilot_rows(blocks: AttentionBlocks) -> np.ndarray:
    """The first, the last and the middle query of each block."""
    first, last = blocks.start[:-1], blocks.start[1:] - 1
    at = np.stack([first, last, (first + last) // 2], axis=1)
    return np.ascontiguousarray(blocks.query_order[at.ravel()])


def relative_error(head: AttentionHead) -> float:
    """What rounding may do to a softmax weight, relatively."""
    unit = float(np.finfo(head.keys.dtype).eps) / 2
    q = np.abs(head.queries.astype(np.float64)) * head.scale
    k = np.abs(head.keys.astype(np.float64) - head.key_centre)
    score = unit * (q.shape[1] + 6) * float((q @ k.T).max())
    return 4 * score + 2 * (len(k) + 8) * unit


def value_size(head: AttentionHead) -> float:
    moved = (head.values - head.value_centre) * head.value_factor
    return float(np.sqrt((moved**2).sum(axis=1).max()))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_pilot(shape: tuple[int, int, int, int], causal: bool, isa: str, dtype: Any) -> None:
    m, n, d, r = shape
    head, blocks = head_of(m, n, d, r, dtype), blocks_of(m, n, causal)
    rows = pilot_rows(blocks)
    want = reference.attention_pilot(head, blocks, rows, SMOOTHING)
    got = Compiled(1, isa).attention_pilot(
        head,
        blocks,
        rows,
        SMOOTHING,
    )
    relative, size = relative_error(head), value_size(head)
    unit = float(np.finfo(dtype).eps) / 2
    np.testing.assert_allclose(got.outputs, want.outputs, rtol=0, atol=relative * size)
    # Squared distances up to (2 size)^2 from three terms of that order, stored in single precision.
    # They are divided by squares of 1 - p, which is as much off as p and at least 0.001.
    weights = reference._softmax(reference._attention_scores(head, blocks))[rows]
    rest = np.maximum(1 - weights.max(), 1e-3)
    bound = 4 * size**2 * (4 * relative / rest + (r + 8) * unit) / rest**2
    np.testing.assert_allclose(got.moment, want.moment, rtol=1e-5, atol=bound)
    np.testing.assert_allclose(got.guarded, want.guarded, rtol=1e-5, atol=bound)
    np.testing.assert_allclose(got.means, want.means, rtol=1e-5, atol=bound)
    if dtype == np.float64:  # where single precision is the only rounding
        np.testing.assert_allclose(got.moment, want.moment, rtol=1e-4, atol=1e-9 * size**2)
        np.testing.assert_allclose(got.guarded, want.guarded, rtol=1e-4, atol=1e-9 * size**2)
    for n_threads in (2, 5):
        again = Compiled(n_threads, isa).attention_pilot(
            head,
            blocks,
            rows,
            SMOOTHING,
        )
        for a, b in zip(got, again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("causal", [True, False])
def test_rate_histogram(causal: bool) -> None:
    m, n = 210, 300
    blocks = blocks_of(m, n, causal)
    rng = np.random.default_rng(0)
    shape = len(blocks.band_start), n
    moment = rng.random(shape, np.float32)
    guarded = np.exp(rng.uniform(-60, 20, shape)).astype(np.float32)
    want = reference.rate_histogram(blocks, moment, guarded, 1e-20)
    for n_threads in (1, 2, 7):
        got = Compiled(n_threads).rate_histogram(
            blocks,
            moment,
            guarded,
            1e-20,
        )
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-12)
    free = want[0].sum()
    assert 0 < free < m * n


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("least", [0.0, 5.0])
def test_draw(
    shape: tuple[int, int, int, int], causal: bool, least: float, isa: str, dtype: Any
) -> None:
    m, n, d, r = shape
    head, blocks = head_of(m, n, d, r, dtype), blocks_of(m, n, causal)
    rng = np.random.default_rng(1)
    n_blocks = len(blocks.band_start)
    guarded = rng.random((n_blocks, n), np.float32) ** 4
    near = rng.standard_normal((n_blocks, r)).astype(dtype)
    rates = AttentionRates(guarded, near, 1e-4, 0.7, least + 1, 2**62 + 5, 3)
    want = reference.attention_draw(head, blocks, rates)
    got = Compiled(1, isa).attention_draw(
        head,
        blocks,
        rates,
    )
    relative = relative_error(head)
    unit = float(np.finfo(dtype).eps) / 2
    size = value_size(head) + float(np.sqrt((near**2).sum(axis=1).max()))
    np.testing.assert_array_equal(got.n_drawn, want.n_drawn)
    np.testing.assert_allclose(got.out, want.out, rtol=0, atol=relative * size)
    bound = 4 * size**2 * (4 * relative + (r + 8) * unit)
    np.testing.assert_allclose(got.bound, want.bound, rtol=0, atol=bound)
    np.testing.assert_allclose(got.total_variance, want.total_variance, rtol=0, atol=4 * relative)
    known = ~np.isnan(got.variance)
    assert known.any()
    np.testing.assert_allclose(got.variance[known], want.variance[known], rtol=0, atol=bound)
    for n_threads in (2, 5):
        again = Compiled(n_threads, isa).attention_draw(
            head,
            blocks,
            rates,
        )
        for a, b in zip(got, again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("causal", [True, False])
def test_draws_of_some_blocks(causal: bool, isa: str, dtype: Any) -> None:
    """What all blocks together draw; rows of other blocks are left alone, or have no variance.

    Several threads share the rows of a block where there are more of them than blocks.
    """
    m, n, d, r = 300, 280, 5, 6
    head, blocks = head_of(m, n, d, r, dtype), blocks_of(m, n, causal, size=100)
    n_blocks = len(blocks.band_start)
    assert n_blocks >= 3
    guarded = np.random.default_rng(1).random((n_blocks, n), np.float32) ** 4
    rates = AttentionRates(guarded, np.zeros((n_blocks, r), dtype), 1e-4, 0.7, 5.0, 11, 3)
    whole = Compiled(isa=isa).attention_draw(
        head,
        blocks,
        rates,
    )
    some, others = np.array([1]), np.array([0, *range(2, n_blocks)])
    part = Compiled(1, isa).attention_draw(
        head,
        blocks,
        rates,
        chosen=some,
    )
    want = reference.attention_draw(head, blocks, rates, chosen=some)
    np.testing.assert_array_equal(part.n_drawn, want.n_drawn)
    rows = blocks.query_order[blocks.start[1] : blocks.start[2]]
    np.testing.assert_array_equal(part.out[rows], whole.out[rows])
    assert not np.delete(part.bound, rows).any()
    for n_threads in (2, 3, 8):
        again = Compiled(n_threads, isa).attention_draw(
            head,
            blocks,
            rates,
            chosen=some,
        )
        np.testing.assert_array_equal(again.out[rows], part.out[rows])
        for a, b in zip(again[1:], part[1:], strict=True):
            np.testing.assert_array_equal(a, b)
    rest = Compiled(isa=isa).attention_draw(
        head,
        blocks,
        rates,
        chosen=others,
        into=part,
    )
    for a, b in zip(rest, whole, strict=True):
        np.testing.assert_array_equal(a, b)
    twins = reference.attention_draw(head, blocks, rates, chosen=others, into=want)
    for a, b in zip(twins, reference.attention_draw(head, blocks, rates), strict=True):
        np.testing.assert_array_equal(a, b)


def test_long_rows_decay_their_squares(isa: str) -> None:
    """Scores that grow along the keys rescale every sum again and again, also after the draws."""
    m, n, d, r = 100, 2000, 4, 8
    head = head_of(m, n, d, r, np.float64)
    growing = np.linspace(0, 30, n)[:, None] * np.ones(d) / d
    head = head._replace(
        queries=np.abs(head.queries) + 1,
        keys=head.keys + growing,
        scale=1.0,
        key_centre=np.zeros(d),
    )
    blocks = blocks_of(m, n, False)._replace(key_order=np.arange(n, dtype=np.int32))
    blocks = blocks._replace(
        band_start=np.full_like(blocks.band_start, n - 600),
        band_stop=np.full_like(blocks.band_stop, n),
    )
    guarded = np.full((len(blocks.band_start), n), 0.04, np.float32)
    rates = AttentionRates(guarded, np.zeros((len(guarded), r)), 0.0, 1.0, 1.0, 7, 0)
    want = reference.attention_draw(head, blocks, rates)
    got = Compiled(isa=isa).attention_draw(
        head,
        blocks,
        rates,
    )
    known = ~np.isnan(got.variance)
    np.testing.assert_allclose(got.out, want.out, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.bound, want.bound, rtol=1e-9)
    np.testing.assert_allclose(got.variance[known], want.variance[known], rtol=1e-7, atol=1e-20)


@pytest.mark.parametrize("causal", [True, False])
def test_one_row_of_rates_serves_all_blocks(causal: bool, isa: str, dtype: Any) -> None:
    """The same draws as from a matrix with that row for each block."""
    m, n, d, r = 300, 280, 5, 6
    head, blocks = head_of(m, n, d, r, dtype), blocks_of(m, n, causal)
    n_blocks = len(blocks.band_start)
    common = np.random.default_rng(1).random((1, n), np.float32) ** 4
    every = np.repeat(common, n_blocks, axis=0)
    rates = AttentionRates(every, np.zeros((n_blocks, r), dtype), 1e-4, 0.7, 5.0, 11, 3)
    for backend in (Compiled(2, isa).attention_draw, reference.attention_draw):
        want = backend(head, blocks, rates)
        got = backend(head, blocks, rates._replace(guarded=common))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
