"""Algorithm 3, ApproxKMV: the guarantee of Theorem 1.1."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom
from whole import Whole

from approxkmv.datasets import clusters
from approxkmv.exact import gaussian_kernel, product
from approxkmv.paper.approx_kmv import approx_kmv
from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT, PaperConstants, Parameters

VECTORS = ["ones", "top", "gaussian", "student", "one-hot", "zero"]


def dense(queries, keys, bandwidth):
    """Kernel matrix by its definition, in strips to save memory."""
    strips = [
        gaussian_kernel(queries[i : i + 64], keys, bandwidth) for i in range(0, len(queries), 64)
    ]
    return np.concatenate(strips)


def vector(name, K, rng):
    n = K.shape[1]
    if name == "ones":
        return np.ones(n)
    if name == "top":
        x = np.ones(n)
        for _ in range(60):  # power iterations: near enough to the top right singular vector
            x = K.T @ (K @ x)
            x /= np.linalg.norm(x)
        return x
    if name == "gaussian":
        return rng.standard_normal(n)
    if name == "student":
        return rng.standard_t(2, n)
    return np.eye(n)[n // 3] if name == "one-hot" else np.zeros(n)


def relative_error(K, x, y):
    return np.linalg.norm(K @ x - y) / np.linalg.norm(x)


def shell(n_queries, n_keys, eps, share, rng, delta=0.01):
    """Queries near the origin, keys where the kernel is small and even, a few keys near.

    The kernel on the shell is such that rows have a ``share`` of the second moment at which they
    would be computed exactly: they are sampled, and their light sums exceed eps.
    """
    parameters = Parameters.printed(n_keys, eps, delta, n_queries=n_queries, constants="practical")
    limit = parameters.single_failure * parameters.eps_inner**2 / parameters.n_medians
    radius = np.sqrt(np.log(n_queries / (share * limit)))
    keys = rng.standard_normal((n_keys, 6))
    keys *= radius / np.linalg.norm(keys, axis=1)[:, None]
    keys *= 1 + 0.05 * rng.standard_normal((n_keys, 1))
    keys[:10] *= 0.1
    x = rng.choice([-0.2, 0.5, 1.3], n_keys)
    return 0.1 * rng.standard_normal((n_queries, 6)), keys, x


@pytest.mark.parametrize("n", [256, 512])
@pytest.mark.parametrize("ratio", [1.0, 0.6, 1.7])
def test_theorem_1_1(n, ratio):
    """Error at most eps for every kind of vector, square and not, at two tolerances.

    Nearly all rows are computed here; :func:`test_algorithm_3_whole` computes none.
    """
    rng = np.random.default_rng(n)
    queries, keys, bandwidth = clusters(n, 6, n_queries=int(ratio * n), rng=rng, dtype=np.float64)
    K = dense(queries, keys, bandwidth)
    for name in VECTORS:
        x = vector(name, K, rng)
        for eps in (0.1, 0.5):
            y, info = approx_kmv(
                queries, keys, x, bandwidth=bandwidth, eps=eps, rng=1, return_info=True
            )
            assert np.linalg.norm(K @ x - y) <= eps * np.linalg.norm(x)
            if name != "zero":
                assert info.n_large + info.n_tiny + info.n_rest == n
                assert info.n_capped_rows + info.n_sampled_rows == len(queries)


def test_theorem_1_1_with_sampled_rows_on_a_square_case():
    """4,096 queries and keys, practical constants: over 1,000 rows are sampled, within eps.

    The run of docs/paper_walkthrough.md. The sampled rows have errors, the others rounding; a
    sampler that gave 0 would lose the light parts, which are 1.5 times the error and more.
    """
    queries, keys, bandwidth = clusters(4096, 32, mean_row_sum=2.0, rng=0, dtype=np.float64)
    x = np.random.default_rng(0).standard_t(3, 4096)
    y, info = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.3, rng=0, return_info=True)
    error = np.abs(product(queries, keys, x, bandwidth) - y) / np.linalg.norm(x)
    assert info.n_sampled_rows == 1167
    assert (info.n_large, info.n_tiny, info.n_rest, info.n_buckets) == (295, 0, 3801, 95)
    assert info.n_heavy_pairs == 53_973
    assert np.linalg.norm(error) <= 0.3
    off = error > 1e-10
    assert 1100 < off.sum() <= 1167
    K = gaussian_kernel(queries[off], keys, bandwidth)
    x[x**2 * 4096 / (x @ x) >= 4096**0.109] = 0.0
    light = np.where(info.parameters.threshold > K, K, 0.0) @ x / np.linalg.norm(x)
    assert np.linalg.norm(light) > 1.5 * np.linalg.norm(error)


@pytest.mark.slow
@pytest.mark.parametrize("constants", ["practical", "paper"])
@pytest.mark.parametrize("n_queries", [2048, 1500])
def test_theorem_1_1_at_2048(n_queries, constants):
    """As above at n = 2048, with both sets of constants."""
    rng = np.random.default_rng(0)
    queries, keys, bandwidth = clusters(2048, 6, n_queries=n_queries, rng=rng, dtype=np.float64)
    K = dense(queries, keys, bandwidth)
    for name in VECTORS:
        x = vector(name, K, rng)
        y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.1, constants=constants, rng=1)
        assert np.linalg.norm(K @ x - y) <= 0.1 * np.linalg.norm(x)


def count_failures(n_queries, n_keys, eps, delta, n_runs, share=0.2):
    rng = np.random.default_rng(11)
    queries, keys, x = shell(n_queries, n_keys, eps, share, rng, delta)
    K = dense(queries, keys, 1.0)
    light = np.where(n_keys ** (-1 / 3) > K, K, 0.0) @ x
    # the light part cannot be left out
    assert np.linalg.norm(light) > 1.2 * eps * np.linalg.norm(x)
    failures = 0
    for seed in range(n_runs):
        y, info = approx_kmv(
            queries, keys, x, bandwidth=1.0, eps=eps, delta=delta, rng=seed, return_info=True
        )
        assert info.n_sampled_rows > 0.9 * n_queries
        assert info.n_heavy_pairs > 0
        failures += relative_error(K, x, y) > eps
    return failures


def test_failures_are_as_rare_as_told():
    """25 runs with nearly all rows sampled, delta 0.05.

    Failures are at most a binomial count with probability delta; the largest count allowed has a
    false-alarm probability of 1e-6.
    """
    assert count_failures(32, 8192, 0.3, 0.05, 25) <= binom.isf(1e-6, 25, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "eps", "delta", "share"),
    [(32, 8192, 0.3, 0.01, 0.2), (200, 8192, 0.1, 0.2, 0.1), (16, 20000, 0.5, 0.05, 0.2)],
)
def test_failures_are_as_rare_as_told_over_many_runs(n_queries, n_keys, eps, delta, share):
    """250 runs each, threshold as above."""
    failures = count_failures(n_queries, n_keys, eps, delta, 250, share)
    assert failures <= binom.isf(1e-6, 250, delta)


@pytest.mark.slow
def test_failures_on_clusters_over_many_runs():
    """250 runs on clustered points, n = 512 and m = 300, vectors in turn, delta 0.01."""
    rng = np.random.default_rng(0)
    queries, keys, bandwidth = clusters(512, 6, n_queries=300, rng=rng, dtype=np.float64)
    K = dense(queries, keys, bandwidth)
    failures = 0
    for seed in range(250):
        x = vector(VECTORS[seed % 5], K, rng)
        y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.2, rng=seed)
        failures += relative_error(K, x, y) > 0.2
    assert failures <= binom.isf(1e-6, 250, 0.01)


def test_random_problems():
    """Twelve problems of random sizes and dimensions, four kinds of vectors, eps 0.2."""
    rng = np.random.default_rng(2)
    for t in range(12):
        n, m, d = int(rng.integers(200, 700)), int(rng.integers(200, 700)), int(rng.integers(3, 40))
        centres = rng.standard_normal((n // 8, d))
        keys = centres[rng.integers(0, len(centres), n)] + 0.2 * rng.standard_normal((n, d))
        queries = centres[rng.integers(0, len(centres), m)] + 0.2 * rng.standard_normal((m, d))
        x = [np.ones(n), rng.standard_normal(n), rng.standard_t(1.5, n), np.eye(n)[3]][t % 4]
        bandwidth = 0.4 * np.sqrt(d / 8)
        y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.2, rng=t)
        assert relative_error(dense(queries, keys, bandwidth), x, y) <= 0.2


@pytest.mark.parametrize("constants", ["practical", "paper"])
def test_tiny_sizes(constants):
    """From no points to five: every size, tiny entries of x included, at a strict tolerance."""
    rng = np.random.default_rng(0)
    for n_keys in (0, 1, 2, 3, 5):
        for n_queries in (0, 1, 2, 40):
            queries = rng.standard_normal((n_queries, 2))
            keys = rng.standard_normal((n_keys, 2))
            for x in (np.ones(n_keys), 0.02 ** np.arange(n_keys), -np.eye(6)[0, :n_keys]):
                y = approx_kmv(
                    queries, keys, x, bandwidth=1.0, eps=0.01, constants=constants, rng=0
                )
                assert y.shape == (n_queries,)
                exact = gaussian_kernel(queries, keys, 1.0) @ x
                assert np.linalg.norm(exact - y) <= 0.01 * np.linalg.norm(x)


def test_tiny_entries_count_where_eps_is_below_one_over_n():
    """n = 60 equal points and 59 entries just below 1/n^2: dropping them would move y by 1/n."""
    n = 60
    points = np.zeros((n, 2))
    x = np.full(n, 0.999 / n**2)
    x[0] = np.sqrt(n - (x[1:] ** 2).sum())
    y, info = approx_kmv(points, points, x, bandwidth=1.0, eps=1e-3, rng=0, return_info=True)
    assert info.n_tiny == n - 1
    assert info.heavy_x == n * n
    assert np.linalg.norm(x.sum() - y) <= 1e-3 * np.linalg.norm(x)


def test_scaling_x_scales_y():
    """The same seed gives the same answer, times the factor, from 1e-200 to 1e150."""
    queries, keys, bandwidth = clusters(300, 4, rng=0, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal(300)
    y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.3, rng=5)
    for factor in (-1.0, 1e-12, 1e150):
        scaled = approx_kmv(queries, keys, factor * x, bandwidth=bandwidth, eps=0.3, rng=5)
        np.testing.assert_allclose(scaled, factor * y, rtol=1e-9)


def test_float32_points():
    """Single precision points keep the guarantee; x may be of either type."""
    queries, keys, bandwidth = clusters(600, 8, n_queries=400, rng=3, dtype=np.float32)
    x = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.1, rng=0)
    assert relative_error(dense(queries, keys, bandwidth), x.astype(np.float64), y) <= 0.1
    sampled_queries, sampled_keys, sampled_x = shell(32, 8192, 0.3, 0.2, np.random.default_rng(0))
    q32, k32 = sampled_queries.astype(np.float32), sampled_keys.astype(np.float32)
    y, info = approx_kmv(q32, k32, sampled_x, bandwidth=1.0, eps=0.3, rng=0, return_info=True)
    assert info.n_sampled_rows == 32
    assert relative_error(dense(q32, k32, 1.0), sampled_x, y) <= 0.3


def test_same_seed_same_answer_for_any_threads():
    queries, keys, x = shell(32, 8192, 0.3, 0.2, np.random.default_rng(0))
    runs = [
        approx_kmv(queries, keys, x, bandwidth=1.0, eps=0.3, rng=4, n_threads=threads)
        for threads in (1, 2, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    other = approx_kmv(queries, keys, x, bandwidth=1.0, eps=0.3, rng=5)
    assert (other != runs[0]).any()


def test_counters():
    """Counts are Python integers and add up; the text shows each stage."""
    queries, keys, x = shell(32, 8192, 0.3, 0.2, np.random.default_rng(0))
    x[:5] = 100.0
    _, info = approx_kmv(queries, keys, x, bandwidth=1.0, eps=0.3, rng=0, return_info=True)
    counters = (info.heavy_x, info.hash, info.scan, info.density, info.density_hash, info.light)
    assert all(type(count) is int for count in counters)
    assert info.n_large == 5
    assert info.heavy_x == 32 * 5
    assert info.n_rest == 8192 - 5 - info.n_tiny
    assert info.density == 32 * info.n_rest
    assert info.n_exact_densities == info.n_buckets == 3
    assert info.pairs == info.heavy_x + info.scan + info.density + info.light
    assert info.parameters.n_keys == 8192
    for word in ("large", "heavy", "densities", "light", "exact product 262144"):
        assert word in str(info)


def test_paper_constants_hash_with_the_paper_s_number_of_tables():
    """10 n^(1/3) log n tables of the ball-carving family, and every row computed exactly."""
    queries, keys, bandwidth = clusters(200, 4, rng=0, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal(200)
    y, info = approx_kmv(
        queries, keys, x, bandwidth=bandwidth, eps=0.3, constants="paper", rng=0, return_info=True
    )
    assert info.hash > 0
    assert info.hash % info.parameters.n_tables == 0
    assert info.n_sampled_rows == 0
    np.testing.assert_allclose(y, dense(queries, keys, bandwidth) @ x, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.ones(4)}, "x must have one entry per key"),
        ({"x": np.ones((3, 2))}, "x must be one vector"),
        ({"x": np.array([1.0, np.nan, 1.0])}, "x must be finite"),
        ({"bandwidth": -1.0}, "bandwidth must be a positive"),
        ({"eps": 0.0}, "eps must be a positive"),
        ({"delta": 1.0}, "delta must lie"),
        ({"as_printed": {"E99"}}, "as_printed must name some of"),
    ],
)
def test_messages(change, message):
    points = np.zeros((3, 2))
    arguments = {"x": np.ones(3), "bandwidth": 1.0, "eps": 0.1, **change}
    x = arguments.pop("x")
    with pytest.raises(ValueError, match=message):
        approx_kmv(points, points, x, **arguments)


FEW = PaperConstants(tables=2, medians=1, repetitions=2, density_medians=1)


def whole_failures(n, n_seeds, delta, **options):
    """Runs in which nothing is computed exactly, every counter of them asserted."""
    problem = Whole(n)
    failures = 0
    for seed in range(n_seeds):
        error, info = problem.run(seed, eps=2.0, delta=delta, **options)
        problem.assert_alive(info)
        assert problem.light_norm(info) > 1.4 * 2.0  # a light part of zero would fail
        assert error > 0
        failures += error > 2.0
    return failures


def test_algorithm_3_whole():
    """Hash tables, level sets and draws in every row, n = 64 square: 25 runs within eps.

    Constants of 1 and 2 in place of 10. With delta = 0.1 the largest number of failures allowed
    has a false-alarm probability of 1e-6.
    """
    assert whole_failures(64, 25, 0.1, constants=FEW) <= binom.isf(1e-6, 25, 0.1)


def test_whole_runs_are_much_closer_than_they_must_be():
    """Three whole runs: the light part, of norm 3, is known to a tenth. Signs of x count.

    eps is 2, which half of the light part would meet: failures alone would not show a wrong sign.
    """
    problem = Whole(64)
    for seed in range(3):
        error, info = problem.run(seed, eps=2.0, delta=0.1, constants=FEW)
        assert 0 < error < 0.1 * problem.light_norm(info)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n_seeds", "constants"),
    [(64, 200, FEW), (64, 40, "practical"), (128, 200, FEW), (256, 40, FEW), (512, 10, FEW)],
)
def test_algorithm_3_whole_over_many_seeds(n, n_seeds, constants):
    """As above, to n = 512 and with the smallest constants that the proofs allow."""
    failures = whole_failures(n, n_seeds, 0.1, constants=constants)
    assert failures <= binom.isf(1e-6, n_seeds, 0.1)


@pytest.mark.slow
def test_algorithm_3_whole_with_the_paper_s_constants():
    """Nothing exact, 10 of everything: three runs at n = 64 within eps."""
    assert whole_failures(64, 3, 0.01, constants="paper") == 0


@pytest.mark.parametrize("raised", [False, True])
def test_balanced_parameters_can_be_run(raised):
    """E13: the balanced exponents, with either floor and the exponent of LevelSets, whole."""
    problem = Whole(64)
    parameters = Parameters.balanced(
        64, 2.0, constants=FEW, density_exponent=LEVEL_SETS_EXPONENT, raised_floor=raised
    )
    error, info = problem.run(0, parameters=parameters)
    assert info.parameters is parameters
    assert info.n_capped_rows == info.n_exact_densities == 0
    assert error <= 2.0
    assert parameters.exponent == pytest.approx(1.8793 if raised else 1.9416, abs=1e-4)


def test_constants_reach_their_stage():
    """Doubling one constant doubles the work of its stage, and of that stage alone."""
    problem = Whole(64)

    def work(**changes):
        _, info = problem.run(0, eps=2.0, constants=dataclasses.replace(FEW, **changes))
        return np.array([info.hash, info.density_hash, info.light], float)

    once = work()
    np.testing.assert_allclose(work(tables=4) / once, [2, 1, 1], rtol=0.02)
    np.testing.assert_allclose(work(density_medians=3) / once, [1, 3, 1], rtol=0.15)
    np.testing.assert_allclose(work(medians=2) / once, [1, 1, 9 / 5], rtol=0.05)


def test_counts_do_not_depend_on_the_dimension():
    """The same points in 24 dimensions and turned into 768: draws and pairs stay, work is O(d).

    Hash tables and level sets are random, so their counts agree within a fifth.
    """
    problem = Whole(64)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((768, 24)))[0]
    counts = []
    for points in (problem.points, problem.points @ basis.T):
        _, info = approx_kmv(
            points,
            points,
            problem.x,
            bandwidth=1.0,
            eps=2.0,
            constants=FEW,
            never_exact=True,
            rng=0,
            return_info=True,
        )
        counts.append([info.hash, info.density_hash, info.density, info.light])
    np.testing.assert_allclose(*np.array(counts, float), rtol=0.2)


def test_parameters_must_fit():
    points = np.zeros((3, 2))
    parameters = Parameters.printed(4, 0.1)
    with pytest.raises(ValueError, match="n_keys=3"):
        approx_kmv(points, points, np.ones(3), bandwidth=1.0, parameters=parameters)
    with pytest.raises(TypeError, match="eps must be"):
        approx_kmv(points, points, np.ones(3), bandwidth=1.0)


@pytest.mark.slow
def test_runs_at_4096_within_a_minute():
    """n = 4096 with either set of constants; the suite's own time limit would stop a slow run."""
    queries, keys, bandwidth = clusters(4096, 16, rng=0, dtype=np.float64)
    K = dense(queries, keys, bandwidth)
    x = np.random.default_rng(0).standard_normal(4096)
    for constants in ("practical", "paper"):
        y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=0.1, constants=constants, rng=0)
        assert relative_error(K, x, y) <= 0.1
