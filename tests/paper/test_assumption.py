"""Assumption (A): exact constants, prefixes, order ratios, intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper import assumption
from approxkmv.paper.assumption import (
    attention_constant,
    constant_interval,
    kernel_constant,
    order_ratios,
    prefix_constants,
    prefix_constants_of_logs,
    softmax_constant,
    tail_to_head,
)
from approxkmv.paper.find_heavy import find_heavy, scan_all
from approxkmv.paper.hashing import E2LSH, near_radius
from approxkmv.paper.reduction import attention_to_gaussian


def points(n_queries=60, n_keys=60, n_dims=4):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_queries, n_dims)), rng.standard_normal((n_keys, n_dims))


def brute_c(K):
    entries = np.sort(K.ravel())[::-1]
    n = max(K.shape)
    return entries[n:].sum() / entries[:n].sum()


@pytest.mark.parametrize("shape", [(60, 60), (20, 70), (70, 20)])
def test_c_is_the_definition(shape, monkeypatch):
    """Tail over head by sorting the whole matrix; any blocks give the same (E17: n_head)."""
    queries, keys = points(*shape)
    expected = brute_c(gaussian_kernel(queries, keys, 0.7))
    result = kernel_constant(queries, keys, 0.7)
    assert result.c == pytest.approx(expected, rel=1e-12)
    assert result.n_head == max(shape)
    total = gaussian_kernel(queries, keys, 0.7).sum()
    assert math.exp(result.log_kernel_sum) == pytest.approx(total, rel=1e-12)
    monkeypatch.setattr(assumption, "_BLOCK", 100)
    assert kernel_constant(queries, keys, 0.7).c == pytest.approx(expected, rel=1e-12)


def test_flat_kernel_shows_that_a_small_sum_is_not_enough():
    """K = 1/n everywhere has ‖K‖₁ = n but c = n - 1: the algorithm needs the sum, not (A)."""
    n = 40
    result = tail_to_head([np.full((n, n), -math.log(n))], n)
    assert math.exp(result.log_kernel_sum) == pytest.approx(n)
    assert result.c == pytest.approx(n - 1)


def test_underflow_is_harmless():
    """E22: where every kernel value underflows to 0, c is that of the same matrix scaled up."""
    queries, keys = points()
    far = np.column_stack([queries, np.full(60, 60.0)])
    near = np.column_stack([keys, np.zeros(60)])
    assert not gaussian_kernel(far, near, 0.7).any()
    expected = kernel_constant(queries, keys, 0.7).c
    assert kernel_constant(far, near, 0.7).c == pytest.approx(expected, rel=1e-9)


def test_tiny_tail_keeps_its_digits():
    """A tail of 1e-30 of the head is not lost in 1 + 1e-30."""
    logs = np.log(np.array([1.0, 1.0, 1e-30, 2e-30]))
    assert tail_to_head([logs[:2], logs[2:]], 2).c == pytest.approx(1.5e-30, rel=1e-12)


def test_prefixes():
    """Every leading square, against sorting it."""
    queries, keys = points()
    K = gaussian_kernel(queries, keys, 0.7)
    expected = [brute_c(K[:i, :i]) for i in range(5, 61)]
    np.testing.assert_allclose(prefix_constants(queries, keys, 0.7, i_min=5), expected, rtol=1e-10)


def test_prefixes_of_a_stack():
    """Several matrices at once, at 20 random prefixes, also where everything underflows (E22)."""
    rng = np.random.default_rng(5)
    logs = rng.standard_normal((2, 3, 80, 80)) * 4
    logs[1] -= 3000
    logs[0, 0] -= np.linspace(2000, 0, 80)  # later columns are e^25 times larger each
    constants = prefix_constants_of_logs(logs, i_min=10)
    assert constants.shape == (2, 3, 71)
    for i in rng.integers(10, 81, size=20):
        for index in np.ndindex(2, 3):
            square = logs[index][:i, :i]
            expected = brute_c(np.exp(square - square.max()))
            assert constants[index][i - 10] == pytest.approx(expected, rel=1e-10)


def test_prefixes_of_short_input_are_none():
    assert prefix_constants(np.zeros((3, 1)), np.zeros((3, 1)), 1.0).shape == (0,)
    assert prefix_constants_of_logs(np.zeros((2, 3, 3))).shape == (2, 0)


@pytest.mark.alone
def test_prefixes_of_512_are_quick():
    """O(n²): BERT's longest input in 0.1 s alone; 2 s of processor at most."""
    import time

    queries, keys = points(512, 512, 65)
    start = time.process_time()
    constants = prefix_constants(queries, keys, 3.0)
    assert time.process_time() - start < 2
    assert len(constants) == 512 - 50 + 1
    assert constants[-1] == pytest.approx(kernel_constant(queries, keys, 3.0).c, rel=1e-10)


def heads():
    rng = np.random.default_rng(3)
    return 1.5 * rng.standard_normal((50, 8)), 1.5 * rng.standard_normal((50, 8))


def test_softmax_and_attention_constants():
    q, k = heads()
    A = np.exp(q @ k.T / math.sqrt(8))
    assert attention_constant(q, k).c == pytest.approx(brute_c(A), rel=1e-12)
    P = A / A.sum(axis=1, keepdims=True)
    result = softmax_constant(q, k)
    assert result.c == pytest.approx(brute_c(P), rel=1e-12)
    assert math.exp(result.log_kernel_sum) == pytest.approx(50)


def test_reduction_changes_c():
    """E18: K, A and softmax differ by row factors, so they have different constants.

    A factor for the whole matrix, e^(-max‖k‖²/(2√d)), changes nothing.
    """
    q, k = heads()
    g = attention_to_gaussian(q, k)
    c = [
        kernel_constant(g.queries, g.keys, g.bandwidth).c,
        attention_constant(q, k).c,
        softmax_constant(q, k).c,
    ]
    assert min(abs(c[0] / c[1] - 1), abs(c[1] / c[2] - 1), abs(c[0] / c[2] - 1)) > 0.1
    logs = np.random.default_rng(0).standard_normal((9, 9))
    assert tail_to_head([logs], 9).c == pytest.approx(tail_to_head([logs - 40], 9).c, rel=1e-12)


def test_order_ratios(monkeypatch):
    queries, keys = points(30, 45)
    entries = np.sort(gaussian_kernel(queries, keys, 0.7).ravel())[::-1]
    monkeypatch.setattr(assumption, "_BLOCK", 300)
    ratios = order_ratios(queries, keys, 0.7)
    assert ratios.to_next == pytest.approx(entries[44] / entries[45], rel=1e-12)
    assert ratios.to_twice == pytest.approx(entries[44] / entries[89], rel=1e-12)
    assert 1 <= ratios.to_next <= ratios.to_twice


def test_order_ratios_do_not_divide_by_zero():
    """E22: where entries underflow, division gives infinity or nan and logarithms the ratio."""
    queries, keys = points()
    far = np.column_stack([queries, np.full(60, 60.0)])
    near = np.column_stack([keys, np.zeros(60)])
    entries = np.sort(gaussian_kernel(far, near, 0.7).ravel())[::-1]
    with np.errstate(invalid="ignore"):
        assert np.isnan(entries[59] / entries[119])
    expected = order_ratios(queries, keys, 0.7)
    assert order_ratios(far, near, 0.7).to_twice == pytest.approx(expected.to_twice, rel=1e-9)

    apart = 100.0 * np.arange(20)[:, None]  # diagonal 1, neighbours exp(-5000)
    ratios = order_ratios(apart, apart, 1.0)
    assert ratios.log_to_next == 5000
    assert ratios.to_next == math.inf


def test_order_ratios_need_2n_entries():
    with pytest.raises(ValueError, match="2n = 4"):
        order_ratios(np.zeros((1, 1)), np.zeros((2, 1)), 1.0)


def sparse_cloud(n=400):
    rng = np.random.default_rng(5)
    centres = 2.0 * rng.standard_normal((n // 8, 6))
    queries = centres[rng.integers(n // 8, size=n)] + 0.5 * rng.standard_normal((n, 6))
    keys = centres[rng.integers(n // 8, size=n)] + 0.5 * rng.standard_normal((n, 6))
    return queries, keys


@pytest.mark.parametrize("exhaustive", [True, False])
def test_interval_covers(exhaustive):
    """c lies in the interval in at least 1 - δ of the runs.

    With δ = 0.1 and 100 runs, more than 27 failures would have probability below 1e-6.
    """
    queries, keys = sparse_cloud()
    n, bandwidth, threshold = len(keys), 0.8, 0.05
    rng = np.random.default_rng(6)
    c = kernel_constant(queries, keys, bandwidth).c
    if exhaustive:
        found = scan_all(queries, keys, bandwidth=bandwidth, threshold=threshold)
    else:
        family = E2LSH(6, 6, 2.8 * near_radius(bandwidth, threshold))
        found = find_heavy(
            queries,
            keys,
            bandwidth=bandwidth,
            threshold=threshold,
            family=family,
            recall=0.8,
            rng=rng,
        )
        assert found.recall < 1
    failures = 0
    widths = []
    for _ in range(100):
        interval = constant_interval(
            queries, keys, bandwidth, found=found, n_pairs=n * 20, delta=0.1, rng=rng
        )
        failures += not interval.low <= c <= interval.high
        widths.append(interval.high - interval.low)
    assert failures <= stats.binom.isf(1e-6, 100, 0.1)
    assert interval.confidence == 0.9
    assert np.mean(widths) < 6 * (1 + c)


def test_interval_knows_what_an_exhaustive_scan_means():
    """An exhaustive scan caps what is left at the threshold, which narrows the interval."""
    queries, keys = sparse_cloud()
    found = scan_all(queries, keys, bandwidth=0.8, threshold=0.05)
    from dataclasses import replace

    def width(pairs):
        interval = constant_interval(
            queries, keys, 0.8, found=pairs, n_pairs=8000, rng=np.random.default_rng(0)
        )
        return interval.high - interval.low

    assert width(found) < 0.5 * width(replace(found, family=E2LSH(6, 1, 1.0)))


def test_interval_head_bounds():
    """The lower bound of the head is certain; both hold the head."""
    queries, keys = sparse_cloud()
    found = scan_all(queries, keys, bandwidth=0.8, threshold=0.3)
    interval = constant_interval(
        queries, keys, 0.8, found=found, n_pairs=8000, rng=np.random.default_rng(0)
    )
    entries = np.sort(gaussian_kernel(queries, keys, 0.8).ravel())[::-1]
    low, high = interval.head
    assert low <= entries[:400].sum() * (1 + 1e-12)
    assert entries[:400].sum() <= high
    assert interval.kernel_sum[0] <= entries.sum() <= interval.kernel_sum[1]


def test_upper_bounds_cover():
    """The bound exceeds the true mean of rare values in at least 1 - 2δ of 2000 samples.

    It is the better of two bounds that fail with δ each. With δ = 0.05, more failures than allowed
    below would have probability under 1e-6.
    """
    rng = np.random.default_rng(8)
    failures = 0
    for _ in range(2000):
        sample = rng.random(200) * (rng.random(200) < 0.02)
        failures += assumption._upper_mean(sample, 1.0, 0.05) < 0.01
    assert failures <= stats.binom.isf(1e-6, 2000, 0.1)
