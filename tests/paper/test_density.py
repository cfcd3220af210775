"""Kernel density structures (Theorem 2.2): unbiased, of known variance, and as accurate as told."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.density import (
    ExactDensity,
    HashingBasedEstimator,
    LevelSets,
    UniformSampling,
    hashing_based,
    level_sets,
    squared_kernel_bandwidth,
    uniform,
)
from approxkmv.paper.median_of_means import MedianOfMeans

BANDWIDTH = 1.0
STRUCTURES = [UniformSampling, HashingBasedEstimator, LevelSets]


@pytest.fixture(scope="module")
def points():
    """Two clouds: one near the queries, one at the edge of the kernel."""
    rng = np.random.default_rng(7)
    near = 0.8 * rng.standard_normal((150, 4))
    far = rng.standard_normal((450, 4)) + 1.2
    return np.concatenate([near, far])


@pytest.fixture(scope="module")
def queries():
    return np.array([[0.0, 0, 0, 0], [1.0, 1, 0, 0], [-1.5, 0, 0, 1.0]])


@pytest.fixture(scope="module")
def exact(points, queries):
    return gaussian_kernel(queries, points, BANDWIDTH).mean(axis=1)


def build(structure, points, floor, rng, n_groups=1, group_size=1, relative_error=0.1):
    extra = {}
    if structure is HashingBasedEstimator:
        extra["family"] = hashing_based.family_for(points.shape[1], BANDWIDTH, floor)
    return structure(
        points,
        BANDWIDTH,
        floor,
        relative_error,
        n_groups=n_groups,
        group_size=group_size,
        rng=rng,
        **extra,
    )


def single_estimates(structure, points, queries, floor, n_seeds):
    """One repetition per seed: the basic estimator itself, before means and medians."""
    return np.array(
        [
            build(structure, points, floor, np.random.default_rng(seed)).estimate(queries).means[0]
            for seed in range(n_seeds)
        ]
    )


def assert_mean(runs, exact, n_errors=3.0):
    standard_error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert (standard_error > 0).all()
    assert (np.abs(runs.mean(axis=0) - exact) < n_errors * standard_error).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_is_unbiased(structure, points, queries, exact):
    """The mean of 400 single repetitions is within 3 standard errors of the density."""
    assert_mean(single_estimates(structure, points, queries, 0.01, 400), exact)


def test_level_sets_are_unbiased_at_low_recall(points, queries, exact, monkeypatch):
    """With tables that recover only 30% of a level the mean is still the density.

    The recall is divided out exactly; leaving that out would lose up to 70% of the levels that have
    tables, which the test makes sure exist. 600 seeds, 3 standard errors.
    """
    monkeypatch.setattr(level_sets, "RECALL", 0.3)
    levels = level_sets.levels_for(len(points), 4, BANDWIDTH, 0.001)
    assert sum(level.family is not None for level in levels) >= 3
    assert_mean(single_estimates(LevelSets, points, queries, 0.001, 600), exact)


def test_level_sets_count_every_point_once_at_full_rate(points, queries, exact, monkeypatch):
    """With a floor so low that nothing is sampled away, and no tables, the answer is exact."""
    monkeypatch.setattr(
        level_sets,
        "levels_for",
        lambda *_: [level_sets.Level(j, 1.0, None, 0) for j in range(1, 12)],
    )
    answer = build(LevelSets, points, 1e-3, np.random.default_rng(0)).estimate(queries)
    np.testing.assert_allclose(answer.means[0], exact, rtol=1e-12)


def test_uniform_variance_is_the_formula(points, queries):
    """Variance of one draw: mean of K^2 minus squared density, within 4 standard errors.

    The standard error of a sample variance follows from the fourth central moment.
    """
    kernel = gaussian_kernel(queries, points, BANDWIDTH)
    variance = (kernel**2).mean(axis=1) - kernel.mean(axis=1) ** 2
    fourth = ((kernel - kernel.mean(axis=1)[:, None]) ** 4).mean(axis=1)
    runs = single_estimates(UniformSampling, points, queries, 0.01, 2000)
    standard_error = np.sqrt((fourth - variance**2) / len(runs))
    assert (np.abs(runs.var(axis=0, ddof=1) - variance) < 4 * standard_error).all()
    bound = uniform.relative_variance_bound(kernel.mean(axis=1).min())
    assert (variance / kernel.mean(axis=1) ** 2 <= bound).all()


def second_moment_bound(points, queries, family):
    kernel = gaussian_kernel(queries, points, BANDWIDTH)
    p = family.collision_probability(BANDWIDTH * np.sqrt(-2 * np.log(kernel)))
    bounds = [
        ((k / q) ** 2 @ np.minimum(q[:, None], q)).sum() / len(points) ** 2
        for k, q in zip(kernel, p, strict=True)
    ]
    return np.array(bounds)


def test_hashing_based_second_moment_is_below_its_bound(points, queries, exact):
    """E[Z^2] is at most the sum over pairs for these points, and that the bound over all points.

    800 seeds; the sample second moment may exceed the bound by 3 of its standard errors.
    """
    floor = float(exact.min())
    family = hashing_based.family_for(4, BANDWIDTH, floor)
    runs = single_estimates(HashingBasedEstimator, points, queries, floor, 800)
    bound = second_moment_bound(points, queries, family)
    standard_error = (runs**2).std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert ((runs**2).mean(axis=0) <= bound + 3 * standard_error).all()
    over_all = hashing_based.relative_variance_bound(family, BANDWIDTH, floor)
    assert (bound / exact**2 <= over_all).all()


@pytest.mark.parametrize("floor", [0.1, 0.01, 0.001])
def test_hashing_based_bound_holds_for_two_distances(floor):
    """The bound covers sets at two distances of any mixture with density at least the floor."""
    family = hashing_based.family_for(8, BANDWIDTH, floor)
    bound = hashing_based.relative_variance_bound(family, BANDWIDTH, floor)
    rng = np.random.default_rng(0)
    checked = 0
    while checked < 2000:
        distance = rng.uniform(0, 6, 2)
        share = np.array([1, 0]) + np.array([-1, 1]) * np.exp(rng.uniform(-12, 0))
        kernel = np.exp(-(distance**2) / 2)
        density = share @ kernel
        if density < floor:
            continue
        p = family.collision_probability(distance)
        moment = (share * (kernel / p) ** 2) @ np.minimum(p[:, None], p) @ share
        assert moment / density**2 <= bound * 1.01  # the bound is read off a grid of distances
        checked += 1


def test_hashing_based_bound_grows_like_the_documented_power():
    """From floor 0.1 to 1e-7 the bound grows like floor^-0.7, between -0.65 and -0.75."""
    floors = 10.0 ** -np.arange(1, 8)
    bounds = [
        hashing_based.relative_variance_bound(
            hashing_based.family_for(8, BANDWIDTH, floor), BANDWIDTH, floor
        )
        for floor in floors
    ]
    slope = np.polyfit(np.log(floors), np.log(bounds), 1)[0]
    assert -0.75 < slope < -0.65


def test_level_sets_variance_is_below_its_bound(points, queries, exact):
    """Relative variance of one repetition is at most 2.34 wherever the density is above the floor.

    800 seeds, allowing 3 standard errors of the sample variance.
    """
    runs = single_estimates(LevelSets, points, queries, float(exact.min()), 800)
    relative = (runs / exact - 1) ** 2
    standard_error = relative.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert (
        relative.mean(axis=0) <= level_sets.relative_variance_bound() + 3 * standard_error
    ).all()
    assert level_sets.relative_variance_bound() == pytest.approx(7 / 3)


def test_level_sets_use_few_tables():
    """No level needs more than about floor^-0.25 tables, times the log for the recall."""
    for floor in 10.0 ** -np.arange(2.0, 10.0):
        most = max(level.n_tables for level in level_sets.levels_for(10**9, 8, 1.0, floor))
        # log(1/(1-recall)) tables per unit of 1/p, and a rounded number of projections
        assert most <= 2.5 * np.log(10) * floor**-0.25


# Points, dimensions and spread at which each structure is cheaper than the exact density.
CHEAPER = {
    UniformSampling: (40_000, 3, 1.3),
    HashingBasedEstimator: (8_000, 2, 1.0),
    LevelSets: (40_000, 3, 1.3),
}


def check_promise(structure, n_seeds):
    n, n_dims, spread = CHEAPER[structure]
    rng = np.random.default_rng(3)
    points = spread * rng.standard_normal((n, n_dims))
    queries = rng.standard_normal((4, n_dims))
    exact = gaussian_kernel(queries, points, BANDWIDTH).mean(axis=1)
    sizes = MedianOfMeans.cheapest(0.1)
    failures = np.zeros(4)
    for seed in range(n_seeds):
        built = structure.for_accuracy(
            points,
            bandwidth=BANDWIDTH,
            floor=float(exact.min()),
            relative_error=0.5,
            sizes=sizes,
            rng=np.random.default_rng(seed),
        )
        assert isinstance(built, structure)
        answer = built.estimate(queries)
        assert answer.kernel_evaluations < len(queries) * len(points) / 2
        failures += np.abs(answer.values / exact - 1) > 0.5
    assert failures.max() <= binom.isf(1e-6, n_seeds, 0.1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_for_accuracy_keeps_its_promise(structure):
    """Relative error at most 0.5 except with probability 0.1, at densities near the floor.

    30 structures, 4 queries above the floor. Failures of a query are a binomial count with
    probability 0.1: the largest allowed has a false-alarm probability of 1e-6.
    """
    check_promise(structure, 30)


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_for_accuracy_keeps_its_promise_over_many_seeds(structure):
    """As above with 300 structures."""
    check_promise(structure, 300)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_is_exact_where_sampling_costs_as_much(structure, points):
    """A floor of 1e-6 over 600 points asks for more work than looking at all of them."""
    built = structure.for_accuracy(
        points,
        bandwidth=BANDWIDTH,
        floor=1e-6,
        relative_error=0.1,
        sizes=MedianOfMeans.cheapest(0.01),
        rng=np.random.default_rng(0),
    )
    assert isinstance(built, ExactDensity)
    assert built.relative_error == 0


def test_floor_zeroes_what_is_below_it(points, queries, exact):
    """Densities below the floor are answered with zero, others are kept."""
    floor = float(np.sort(exact)[1])
    values = ExactDensity(points, BANDWIDTH, floor).estimate(queries).values
    np.testing.assert_allclose(values, np.where(exact >= floor, exact, 0.0), rtol=1e-12)
    assert (values == 0).sum() == 1


def test_a_query_far_from_everything_is_zero(points):
    """Kernel values that underflow give zero and no warnings from any structure."""
    far = np.full((2, 4), 1e4)
    for structure in STRUCTURES:
        answer = build(structure, points, 0.1, np.random.default_rng(0), 3, 2).estimate(far)
        np.testing.assert_array_equal(answer.values, 0.0)


def test_squared_kernel_is_a_gaussian(points, queries):
    """k^2 is the Gaussian of bandwidth sigma over root 2."""
    squared = gaussian_kernel(queries, points, squared_kernel_bandwidth(BANDWIDTH))
    np.testing.assert_allclose(
        squared, gaussian_kernel(queries, points, BANDWIDTH) ** 2, rtol=1e-12
    )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_counts_its_work(structure, points, queries):
    """Evaluations and hashes are integers, and grow in proportion to the queries."""
    built = build(structure, points, 0.01, np.random.default_rng(0), 3, 5)
    once, twice = built.estimate(queries), built.estimate(np.concatenate([queries, queries]))
    assert type(once.kernel_evaluations) is int
    assert type(once.hashes) is int
    assert once.kernel_evaluations > 0
    assert twice.kernel_evaluations == 2 * once.kernel_evaluations
    assert twice.hashes == 2 * once.hashes
    if structure is UniformSampling:
        assert once.kernel_evaluations == 3 * 15
    if structure is HashingBasedEstimator:
        assert once.hashes == 3 * 15 * built._family.n_bits
        assert built.build_hashes == 600 * 15 * built._family.n_bits


@pytest.mark.parametrize("structure", STRUCTURES)
def test_takes_float32(structure, points, queries, exact):
    """Single precision points give the same density to 1% of its spread."""
    built = build(structure, points.astype(np.float32), 0.01, np.random.default_rng(0), 1, 40)
    double = build(structure, points, 0.01, np.random.default_rng(0), 1, 40)
    single = built.estimate(queries.astype(np.float32)).means
    np.testing.assert_allclose(single, double.estimate(queries).means, rtol=0.01)
