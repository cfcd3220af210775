"""The frozen matrix: one fixed matrix whose products are close to those of K."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered
from scipy.sparse.linalg import eigsh
from scipy.stats import norm

import approxkmv as akmv
from approxkmv.datasets import clusters
from approxkmv.engine.schemes.bernoulli import bernoulli, draw_pairs
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import balanced_rates

N = 8192
pytestmark = pytest.mark.usefixtures("any_size")


@functools.cache
def points(symmetric: bool = True) -> Any:
    data = clusters(N, 64, rng=0)
    if symmetric:
        return data.queries, None, data.bandwidth
    rng = np.random.default_rng(1)
    nearby = data.queries[rng.permutation(N)[: N // 2]]
    return (
        nearby + 0.1 * rng.standard_normal(nearby.shape).astype("f4"),
        data.queries,
        data.bandwidth,
    )


def operator(symmetric: bool = True, seed: int = 0, **options: Any) -> akmv.GaussianKernel:
    queries, keys, bandwidth = points(symmetric)
    settings = {"eps": 0.1, "method": "sampled", "rng": seed} | options
    return akmv.GaussianKernel(queries, keys, bandwidth=bandwidth, **settings)


def exact(symmetric: bool = True) -> akmv.GaussianKernel:
    queries, keys, bandwidth = points(symmetric)
    return akmv.GaussianKernel(queries, keys, bandwidth=bandwidth, method="exact")


def blocks_of(start: np.ndarray) -> Blocks:
    n = start[-1]
    block_of = np.repeat(np.arange(len(start) - 1), np.diff(start)).astype(np.int32)
    return Blocks(np.arange(n, dtype=np.int32), start, block_of)


def vectors(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    few = np.zeros(n)
    few[rng.choice(n, 10, replace=False)] = rng.standard_normal(10)
    return {
        "ones": np.ones(n),
        "gauss": rng.standard_normal(n),
        "t2": rng.standard_t(2, n),
        "few": few,
        "zero": np.zeros(n),
    }


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("transposed", [False, True])
def test_error_of_products(symmetric: bool, transposed: bool) -> None:
    """At most eps |x|, for vectors fixed before the draws; the estimate is that for |x_j| = 1."""
    K, K_exact = operator(symmetric), exact(symmetric)
    assert K.info.method == "sampled"
    if transposed:
        K, K_exact = K.T, K_exact.T
    assert K.shape == K_exact.shape
    for name, x in vectors(K.shape[1]).items():
        error = np.linalg.norm(K @ x - K_exact @ x)
        assert error <= 0.1 * np.linalg.norm(x), name
        if name == "gauss":
            assert 0.75 < K.info.error_estimate * np.linalg.norm(x) / error < 1.33


def test_top_singular_vector() -> None:
    K, K_exact = operator(), exact()
    x = np.ones(N)
    for _ in range(8):
        x = K_exact @ x
        x /= np.linalg.norm(x)
    assert np.linalg.norm(K @ x - K_exact @ x) <= 0.1


def test_linear_symmetric_and_fixed() -> None:
    """K(ax + by) = a Kx + b Ky, <Kx, y> = <x, Ky>, the same bits at every product."""
    K = operator()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, N))
    combined = K @ (2 * x - 3 * y)
    np.testing.assert_allclose(combined, 2 * (K @ x) - 3 * (K @ y), rtol=0, atol=1e-3)
    assert (K @ x) @ y == pytest.approx(x @ (K @ y), rel=1e-4)
    np.testing.assert_array_equal(K @ x, K @ x)
    two = K @ np.stack([x, y], axis=1)
    np.testing.assert_allclose(two[:, 1], K @ y, rtol=1e-4, atol=1e-4)


def test_adjoint_of_a_matrix_of_its_own() -> None:
    K = operator(symmetric=False)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(K.shape[1]), rng.standard_normal(K.shape[0])
    assert (K @ x) @ y == pytest.approx(x @ (K.T @ y), rel=1e-4, abs=1e-3)
    assert K.T.T.shape == K.shape
    np.testing.assert_array_equal(K.T.T @ x, K @ x)


def test_same_seed_same_bits_on_any_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal(N)
    products = [operator(n_threads=n) @ x for n in (1, 2, 3)]
    np.testing.assert_array_equal(products[0], products[1])
    np.testing.assert_array_equal(products[0], products[2])
    assert (operator(seed=1) @ x != products[0]).any()


def test_eigenvalues_are_within_eps() -> None:
    got = eigsh(operator(), k=3, return_eigenvectors=False)
    want = eigsh(exact(), k=3, return_eigenvectors=False)
    np.testing.assert_allclose(got, want, rtol=0, atol=0.1)


def test_memory_and_data_that_do_not_allow_it() -> None:
    queries, _, bandwidth = points()
    with pytest.warns(akmv.AssumptionWarning, match="bytes, more than"):
        K = operator(max_memory=1000)
    assert K.info.method == "exact"
    with pytest.warns(akmv.AssumptionWarning, match="too dense"):
        K = akmv.GaussianKernel(queries, bandwidth=20 * bandwidth, method="sampled", rng=0)
    x = np.ones(N, "f4")
    np.testing.assert_allclose(K @ x, akmv.row_sums(queries, bandwidth=20 * bandwidth), rtol=1e-5)
    assert akmv.GaussianKernel(queries, bandwidth=bandwidth, eps=0).info.method == "exact"


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_key_of_a_dense_core_has_its_error(symmetric: bool) -> None:
    """One-hot vectors on keys with many partners: compared in full, and each within eps."""
    rng = np.random.default_rng(0)
    reach = np.exp(0.3 * rng.standard_normal((2 * N, 1)))
    both = (0.5 * reach * rng.standard_normal((2 * N, 32))).astype("f4")
    queries, keys = (both[:N], None) if symmetric else (both[:N], both[N:])
    K = akmv.GaussianKernel(queries, keys, bandwidth=0.8, eps=0.1, rng=0)
    numbers = K.info.plan.numbers
    assert K.info.method == "sampled"
    assert numbers["dense_blocks"] > 0
    assert numbers["kept_from"] < numbers["threshold"]
    K_exact = akmv.GaussianKernel(queries, keys, bandwidth=0.8, method="exact")
    for matrix, exact_matrix in ((K, K_exact), (K.T, K_exact.T)):
        points = both[N:] if matrix is K and not symmetric else both[:N]
        core = np.argsort(np.linalg.norm(points, axis=1))[:256]
        x = np.zeros((N, len(core)), "f4")
        x[core, np.arange(len(core))] = 1
        errors = np.linalg.norm(matrix @ x - exact_matrix @ x, axis=0)
        assert errors.max() <= 0.1
        assert errors.mean() > 0.02  # not by keeping everything


def test_draws_are_independent_with_their_probabilities() -> None:
    """Counts of every place over many seeds are binomial, and pairs of places do not correlate."""
    start = np.array([0, 5, 6, 16])
    tiles = blocks_of(start)
    pi, n_runs = np.array([0.3, 1.0, 0.07]), 4000
    drawn = np.zeros((n_runs, 3, 16))
    for seed in range(n_runs):
        row, col, tile = bernoulli(pi, 3, tiles, np.random.default_rng(seed))
        assert (np.diff(row * 16 + col) > 0).all()
        np.testing.assert_array_equal(tile, np.repeat([0, 1, 2], [5, 1, 10])[col])
        drawn[seed, row, col] = 1
    p = np.broadcast_to(np.repeat(pi, [5, 1, 10]), (3, 16)).reshape(-1)
    off = drawn.reshape(n_runs, -1) - p
    z = norm.isf(0.5e-6 / 48**2)
    assert (np.abs(off.mean(axis=0)) <= z * np.sqrt(p * (1 - p) / n_runs)).all()
    together = np.abs(off.T @ off / n_runs - np.diag(p * (1 - p)))
    assert (together <= z * np.sqrt(np.outer(p * (1 - p), p * (1 - p)) / n_runs) + 0.02).all()


def pilot_of(case: Case) -> Pilot:
    rng, size = np.random.default_rng(0), np.ones(len(case.kernel.keys))
    blocks = case.query_blocks, case.key_tiles
    return run_pilot(case.kernel, size, *blocks, rows_per_block=1, threshold=0.5, rng=rng)


@pytest.mark.parametrize("once", [False, True])
def test_drawn_pairs_are_unbiased_and_know_their_variance(once: bool) -> None:
    """Means over seeds are K, or K above the diagonal; sums of (1/pi - 1) K^2 by key and query."""
    case = clustered(m=120, n=120, rows_per_block=40, keys_per_tile=40)
    kernel = case.kernel
    K, pi = case.K, np.array([[0.5, 0.2, 0.1], [0.3, 1.0, 0.2], [0.1, 0.4, 0.6]])
    if once:
        kernel = replace(kernel, queries=kernel.keys, query_shift=kernel.key_shift)
        case = replace(case, kernel=kernel, query_blocks=case.key_tiles)
        K = np.exp(-0.5 * ((kernel.keys[:, None] - kernel.keys) ** 2).sum(-1) / case.bandwidth**2)
    pilot = pilot_of(case)
    assert pilot.symmetric == once
    rows, cols = case.query_blocks.order, case.key_tiles.order
    n_runs, total, of_key, of_query = 400, np.zeros((120, 120)), 0.0, 0.0
    for seed in range(n_runs):
        drawn = draw_pairs(kernel, pilot, pi, np.random.default_rng(seed))
        total += drawn.values.toarray() / n_runs
        of_key, of_query = of_key + drawn.of_key / n_runs, of_query + drawn.of_query / n_runs
    want = K[np.ix_(rows, cols)]
    p = np.kron(pi, np.ones((40, 40)))
    if once:
        want = np.triu(want, 1)
    variance = (1 / p - 1) * want**2
    z = norm.isf(0.5e-6 / want.size)
    assert (np.abs(total - want) <= z * np.sqrt(variance / n_runs) + 1e-6).all()
    np.testing.assert_allclose(of_key.sum(), variance.sum(), rtol=0.1)
    for got, truth in ((of_key, variance.sum(axis=0)), (of_query, variance.sum(axis=1))):
        assert np.corrcoef(got, truth)[0, 1] > 0.95


def test_pairs_counted_elsewhere_are_taken_out() -> None:
    case = clustered(m=120, n=120, rows_per_block=40, keys_per_tile=40)
    pi, rng = np.full((3, 3), 0.5), np.random.default_rng(0)
    drawn = draw_pairs(case.kernel, pilot_of(case), pi, rng)
    before = drawn.values.toarray()
    found = case.pairs(0.05)
    drawn.take_out(found)
    after = np.empty_like(before)
    after[np.ix_(case.query_blocks.order, case.key_tiles.order)] = drawn.values.toarray()
    kept = np.empty_like(before)
    kept[np.ix_(case.query_blocks.order, case.key_tiles.order)] = before
    kept[found.rows, found.cols] = 0
    np.testing.assert_array_equal(after, kept)
    np.testing.assert_allclose(drawn.of_key.sum(), 0.5 * (kept**2).sum(), rtol=1e-5)


def test_balanced_rates() -> None:
    """No column and no row of the predicted variance exceeds the target, and some reach it."""
    rng = np.random.default_rng(0)
    moment = np.exp(3 * rng.standard_normal((6, 9)) - 8)
    pi = balanced_rates(moment, blocks_of(10 * np.arange(7)), blocks_of(10 * np.arange(10)), 0.05)
    assert ((pi > 0) & (pi <= 1)).all()
    variance = moment * (1 / pi - 1) * 10
    assert variance.sum(axis=0).max() <= 0.05 * (1 + 1e-6)
    assert variance.sum(axis=1).max() <= 0.05 * (1 + 1e-6)
    assert max(variance.sum(axis=0).max(), variance.sum(axis=1).max()) > 0.04


@pytest.mark.parametrize("n_started", [0, 1])
def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, n_started: int) -> None:
    """The calling thread then does it alone, with the same bits."""
    x = vectors(N)["gauss"]
    expected = operator(n_threads=4) @ x
    start, started = threading.Thread.start, []

    def fails(thread: threading.Thread) -> None:
        if len(started) == n_started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    np.testing.assert_array_equal(operator(n_threads=4) @ x, expected)
    assert len(started) == n_started
