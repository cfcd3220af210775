"""Algorithm 1 and Lemma 3.4."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from approxkmv.datasets import clusters
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.find_heavy import find_heavy, scan_all
from approxkmv.paper.hashing import E2LSH, BallCarving, CrossPolytope, near_radius, recall
from approxkmv.paper.heavy_plan import plan_heavy
from approxkmv.paper.parameters import n_tables

module = importlib.import_module("approxkmv.paper.find_heavy")  # the function has its name


def cloud(n_queries=120, n_keys=200, n_dims=5, dtype=np.float64):
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((12, n_dims))
    queries = centres[rng.integers(12, size=n_queries)] + 0.6 * rng.standard_normal(
        (n_queries, n_dims)
    )
    keys = centres[rng.integers(12, size=n_keys)] + 0.6 * rng.standard_normal((n_keys, n_dims))
    return queries.astype(dtype), keys.astype(dtype)


def as_matrix(pairs, n_keys):
    found = np.zeros((len(pairs.indptr) - 1, n_keys))
    found[pairs.rows, pairs.indices] = pairs.values
    return found


def planted(count, radius, n_dims, rng):
    """Queries far apart, each with one key at ``radius``."""
    queries = 1000 * radius * rng.standard_normal((count, n_dims))
    direction = rng.standard_normal((count, n_dims))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return queries, queries + radius * direction


def test_paper_constants_find_all_heavy_pairs():
    """Lemma 3.4: with 10 n^α log n tables every S_i comes out whole, and nothing else.

    A pair is missed with n^-10 at most: 10^-18 for all 24,000 pairs together. Queries and keys
    differ in number and place, so hashing keys where line 7 means queries (E3) would fail.
    """
    queries, keys = cloud()
    n = 200
    threshold = n ** (-1 / 3)
    rng = np.random.default_rng(1)
    pairs = find_heavy(queries, keys, bandwidth=1.0, threshold=threshold, rng=rng)
    K = gaussian_kernel(queries, keys, 1.0)
    heavy = threshold <= K
    assert 500 < heavy.sum() < 20_000
    np.testing.assert_allclose(as_matrix(pairs, n), np.where(heavy, K, 0), rtol=1e-12)
    assert isinstance(pairs.family, BallCarving)
    assert pairs.n_tables == n_tables(n, 1 / 3)
    assert pairs.recall >= 1 - n**-10.0
    assert pairs.hashes == pairs.n_tables * pairs.family.n_bits * 320
    assert type(pairs.scanned_pairs) is int
    assert pairs.scanned_pairs > heavy.sum()


def test_rows_are_sorted_and_distinct():
    queries, keys = cloud()
    pairs = find_heavy(queries, keys, bandwidth=1.0, threshold=0.3, rng=np.random.default_rng(0))
    code = pairs.rows * len(keys) + pairs.indices
    assert (np.diff(code) > 0).all()
    assert pairs.indptr[-1] == len(pairs.indices) == len(pairs.values)
    assert "tables" in str(pairs)


FAMILIES = {
    "e2lsh": lambda radius: E2LSH(16, 6, 3.0 * radius),
    "ball carving": lambda radius: BallCarving(16, 2, 3, 1.2 * radius, 100),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_recall_on_planted_pairs(name):
    """Measured recall at the threshold is 1 - (1 - p^k)^L, within 3 standard errors of 30 runs.

    Runs are independent; pairs of one run share their tables and are not.
    """
    threshold = 0.05
    radius = near_radius(1.0, threshold) * (1 - 1e-9)
    rng = np.random.default_rng(2)
    family = FAMILIES[name](radius)
    measured, expected = [], 0.0
    for _ in range(30):
        queries, keys = planted(100, radius, 16, rng)
        pairs = find_heavy(
            queries, keys, bandwidth=1.0, threshold=threshold, family=family, recall=0.7, rng=rng
        )
        measured.append(len(pairs.indices) / 100)
        expected = pairs.recall
    assert expected == pytest.approx(
        float(recall(family.collision_probability(radius), pairs.n_tables))
    )
    assert 0.7 <= expected < 0.8
    standard_error = np.std(measured, ddof=1) / math.sqrt(30)
    assert abs(np.mean(measured) - expected) < 3 * standard_error


def test_paper_tables_miss_nothing_planted():
    """At the paper's T the worst pairs, exactly at the threshold, are all found: 300 of 300."""
    n = 300
    threshold = n ** (-1 / 3)
    radius = near_radius(1.0, threshold) * (1 - 1e-9)
    rng = np.random.default_rng(3)
    queries, keys = planted(n, radius, 6, rng)
    pairs = find_heavy(queries, keys, bandwidth=1.0, threshold=threshold, rng=rng)
    np.testing.assert_array_equal(pairs.indices, np.arange(n))


def test_cross_polytope_on_the_sphere():
    """Points on a sphere, as after Lemma 4.1: everything found at high recall."""
    rng = np.random.default_rng(4)
    points = rng.standard_normal((150, 4))
    points *= 2 / np.linalg.norm(points, axis=1, keepdims=True)
    pairs = find_heavy(
        points,
        points,
        bandwidth=0.5,
        threshold=0.3,
        family=CrossPolytope(4, 1, 4, radius=2.0),
        recall=1 - 1e-9,
        rng=rng,
    )
    K = gaussian_kernel(points, points, 0.5)
    np.testing.assert_allclose(as_matrix(pairs, 150), np.where(K >= 0.3, K, 0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_scan_all(dtype, offset):
    """Every pair above the threshold and no other, also far from the origin."""
    queries, keys = cloud(dtype=dtype)
    queries, keys = queries + dtype(offset), keys + dtype(offset)
    K = gaussian_kernel(queries, keys, 1.0)
    threshold = 0.037
    away = np.abs(K / threshold - 1).min()  # no pair so near the threshold that rounding decides
    assert away > 1e-5 or dtype == np.float64
    pairs = scan_all(queries, keys, bandwidth=1.0, threshold=threshold)
    np.testing.assert_allclose(
        as_matrix(pairs, len(keys)), np.where(threshold <= K, K, 0), rtol=1e-4
    )
    assert pairs.recall == 1
    assert pairs.scanned_pairs == queries.shape[0] * keys.shape[0]
    assert "exhaustive" in str(pairs)


def test_scan_all_over_many_tiles(monkeypatch):
    queries, keys = cloud()
    whole = scan_all(queries, keys, bandwidth=1.0, threshold=0.1)
    monkeypatch.setattr(module, "_TILE", (7, 11))
    tiled = scan_all(queries, keys, bandwidth=1.0, threshold=0.1)
    np.testing.assert_array_equal(whole.indptr, tiled.indptr)
    np.testing.assert_array_equal(whole.indices, tiled.indices)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1.5])
def test_extreme_thresholds(threshold):
    """0: all pairs; 1: copies only; above: none."""
    queries, keys = cloud()
    keys[:3] = queries[:3]
    pairs = find_heavy(
        queries, keys, bandwidth=1.0, threshold=threshold, rng=np.random.default_rng(0)
    )
    K = gaussian_kernel(queries, keys, 1.0)
    assert len(pairs.indices) == (threshold <= K).sum()


def test_scanning_in_parts_changes_nothing(monkeypatch):
    """Small parts and frequent merges give the same pairs as one pass."""
    queries, keys = cloud()

    def run():
        return find_heavy(
            queries,
            keys,
            bandwidth=1.0,
            threshold=0.1,
            family=E2LSH(5, 3, 6.0),
            recall=0.9,
            rng=np.random.default_rng(7),
        )

    whole = run()
    monkeypatch.setattr(module, "_SCAN_AT_ONCE", 50)
    parts = run()
    np.testing.assert_array_equal(whole.indices, parts.indices)
    np.testing.assert_array_equal(whole.values, parts.values)
    assert whole.scanned_pairs == parts.scanned_pairs


def test_practical_plan_reaches_the_recall_with_the_fewest_seconds():
    """Few points are looked at pair by pair; many get tables at the recall asked."""
    rng = np.random.default_rng(5)
    small = rng.standard_normal((500, 8))
    assert plan_heavy(small, small, radius=1.0, wanted_recall=0.95, rng=rng).family is None
    many = np.repeat(small, 1000, axis=0)  # only the number and the distances matter to the plan
    plan = plan_heavy(many, many, radius=0.5, wanted_recall=0.95, rng=rng)
    assert plan.family is not None
    assert plan.seconds < plan.exhaustive_seconds
    assert 0.95 <= plan.recall < 0.97


def test_practical_tables_on_clusters():
    """Tables chosen by the plan find at least the recall promised at the threshold.

    All heavy pairs are nearer than the threshold radius, so recall must not be below it by more
    than the binomial error: with about 8,000 pairs, 4 standard errors are 0.01.
    """
    queries, keys, bandwidth = clusters(1000, 16, rng=0, dtype=np.float64)
    radius = near_radius(bandwidth, 0.05)
    pairs = find_heavy(
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=0.05,
        constants="practical",
        recall=0.9,
        family=E2LSH(16, 8, 2.8 * radius),
        rng=np.random.default_rng(0),
    )
    exact = scan_all(queries, keys, bandwidth=bandwidth, threshold=0.05)
    assert len(pairs.indices) / len(exact.indices) > 0.9 - 0.01
    assert np.isin(pairs.rows * 1000 + pairs.indices, exact.rows * 1000 + exact.indices).all()


@pytest.mark.parametrize(("n_queries", "n_keys"), [(0, 5), (5, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("constants", ["paper", "practical"])
def test_tiny_sizes(n_queries, n_keys, constants):
    points = np.zeros((5, 2))
    pairs = find_heavy(
        points[:n_queries],
        points[:n_keys],
        bandwidth=1.0,
        threshold=0.5,
        constants=constants,
        rng=0,
    )
    assert len(pairs.indptr) == n_queries + 1
    assert len(pairs.indices) == n_queries * n_keys


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": np.zeros((4, 3))}, "keys must have 2 columns"),
        ({"keys": np.array([[np.nan, 0.0]])}, "keys must be finite"),
        ({"bandwidth": 0.0}, "bandwidth must be a positive"),
        ({"recall": 1.0}, "recall must lie strictly between"),
        ({"constants": "mine"}, "constants must be one of"),
    ],
)
def test_messages(change, message):
    arguments = {
        "queries": np.zeros((4, 2)),
        "keys": np.zeros((4, 2)),
        "bandwidth": 1.0,
        "threshold": 0.5,
        "rng": 0,
    }
    with pytest.raises(ValueError, match=message):
        find_heavy(**(arguments | change))


def test_integers_and_strided_arrays():
    """Whatever holds real numbers is taken; the answer is that of the same numbers in order."""
    queries, keys = cloud()
    strided = np.asfortranarray(queries)[::2]
    pairs = find_heavy(strided, keys, bandwidth=1.0, threshold=0.3, rng=0)
    again = find_heavy(np.ascontiguousarray(strided), keys, bandwidth=1.0, threshold=0.3, rng=0)
    np.testing.assert_array_equal(pairs.indices, again.indices)
    whole = find_heavy(np.zeros((3, 1), int), [[0], [1]], bandwidth=1.0, threshold=0.9, rng=0)
    assert whole.indices.tolist() == [0, 0, 0]


def test_practical_falls_back_to_every_pair():
    queries, keys = cloud()
    pairs = find_heavy(
        queries,
        keys,
        bandwidth=1.0,
        threshold=0.1,
        constants="practical",
        rng=np.random.default_rng(0),
    )
    assert pairs.family is None
    assert pairs.recall == 1


def test_heavy_rows_are_bounded_by_markov():
    """|S_i| <= n^(1+α) μ_i (Lemma 3.4), and Σ|S_i| <= n^α ‖K‖₁."""
    queries, keys = cloud()
    n, alpha = len(keys), 0.3
    pairs = scan_all(queries, keys, bandwidth=1.0, threshold=n**-alpha)
    mean = gaussian_kernel(queries, keys, 1.0).mean(axis=1)
    sizes = np.diff(pairs.indptr)
    assert (sizes <= n ** (1 + alpha) * mean).all()
    assert sizes.max() > 0


def test_keys_below_the_row_mean():
    """E16: the proof's levels stop at μ_i, but most keys lie below, and are met like all others.

    40 runs of 25 tables each: the pairs scanned are the sum of the collision probabilities of all
    pairs, within 4 standard errors; without the keys below the mean of their row they would not be.
    """
    queries, keys = cloud()
    K = gaussian_kernel(queries, keys, 1.0)
    below = K.mean(axis=1, keepdims=True) > K
    assert below.mean() > 0.5
    runs = [
        find_heavy(
            queries,
            keys,
            bandwidth=1.0,
            threshold=0.2,
            n_tables=25,
            never_exact=True,
            rng=np.random.default_rng(seed),
        )
        for seed in range(40)
    ]
    distance = np.sqrt(-2 * np.log(K))
    rates = runs[0].family.collision_probability(distance.ravel()).reshape(K.shape)
    scanned = np.array([run.scanned_pairs for run in runs])
    standard_error = scanned.std(ddof=1) / np.sqrt(len(scanned))
    assert abs(scanned.mean() - 25 * rates.sum()) < 4 * standard_error
    assert 25 * rates[below].sum() > 8 * standard_error


@pytest.mark.alone
@pytest.mark.slow
def test_large_clusters_in_time():
    """16,384 points of 64 dimensions, K >= 0.01, recall 0.95 by hash tables: two minutes' work.

    Looking at every pair would be cheaper here, as it is at any size with such a threshold. The
    limit is on processor time, so that other work on the machine does not count.
    """
    import time

    queries, keys, bandwidth = clusters(16_384, 64, rng=0)
    start = time.process_time()
    pairs = find_heavy(
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=0.01,
        constants="practical",
        recall=0.95,
        never_exact=True,
        rng=np.random.default_rng(0),
    )
    assert time.process_time() - start < 120
    assert pairs.family is not None
    assert pairs.hashes > 0
    assert pairs.recall >= 0.95
    every = scan_all(queries, keys, bandwidth=bandwidth, threshold=0.01)
    assert len(pairs.indices) >= 0.95 * len(every.indices)
