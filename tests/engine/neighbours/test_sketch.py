"""Sketches keep distances on average, and reach as far as near pairs need and crowds allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from search_cases import BANDWIDTH, N_DIMS, Groups, case

from approxkmv.engine.neighbours import sketch
from approxkmv.engine.neighbours.sketch import Sketcher, make_sketcher, sketches


def sketcher_of(groups: Groups, seed: int = 0, n_dims: int | None = None) -> Sketcher:
    return make_sketcher(groups.kernel, groups.pilot, np.random.default_rng(seed), n_dims)


def lengths(differences: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return np.asarray(((differences @ basis.astype(np.float64)) ** 2).sum(axis=1))


@pytest.mark.parametrize("n_dims", [8, 16])
def test_squared_distances_are_unbiased(n_dims: int) -> None:
    """Mean over 300 bases of the squared length of ten fixed differences, within z standard errors
    at a chance of 1e-6; along one coordinate as well as along many."""
    groups = case(512)
    rng = np.random.default_rng(1)
    differences = np.concatenate([rng.standard_normal((9, N_DIMS)), np.eye(1, N_DIMS)])
    true = (differences**2).sum(axis=1)
    values = np.array(
        [lengths(differences, sketcher_of(groups, seed, n_dims).basis) for seed in range(300)]
    )
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(300)
    assert (np.abs(values.mean(axis=0) - true) <= norm.isf(0.5e-6 / 10) * standard_error).all()
    assert (standard_error < 0.05 * true).all()


def test_as_many_directions_as_points_have_lose_nothing() -> None:
    groups = case(512)
    differences = np.random.default_rng(1).standard_normal((9, N_DIMS))
    basis = sketcher_of(groups, 0, N_DIMS).basis
    np.testing.assert_allclose(lengths(differences, basis), (differences**2).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("symmetric", [True, False])
def test_radius_covers_its_share_of_the_near_pairs(symmetric: bool) -> None:
    """0.95 of the squares of the pilot's near pairs, no more than it takes; of all near pairs about
    as many (five standard errors of the pilot's rows)."""
    groups = case(symmetric=symmetric)
    pilot, found = groups.pilot, sketcher_of(groups)
    assert found.basis.shape == (N_DIMS, 16)
    assert found.radius_squared.shape == (pilot.n_blocks,)
    g = groups.geometry

    def reached(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, factor: float) -> float:
        distance = lengths(g.queries[rows].astype(np.float64) - g.keys[cols], found.basis)
        radius = factor * found.radius_squared[groups.query_blocks.block_of[rows]]
        return float(values[distance <= radius].sum() / values.sum())

    apart = pilot.apart
    mine = pilot.rows[pilot.near_row[apart]], pilot.near_col[apart], pilot.near_square[apart]
    assert reached(*mine, 1 + 1e-5) >= sketch._WITHIN_RADIUS
    largest = float(mine[2].max() / mine[2].sum())
    assert reached(*mine, 1 - 1e-5) < sketch._WITHIN_RADIUS + largest
    assert abs(found.within - reached(*mine, 1.0)) <= largest
    share = reached(groups.rows, groups.cols, groups.values**2, 1.0)
    assert abs(share - 0.95) <= 5 * math.sqrt(0.95 * 0.05 / len(pilot.rows))


def test_crowded_blocks_look_less_far() -> None:
    """Two thousand points around the origin, none near another, would be within the radius that
    near pairs need, dozens at a time: their queries look less far, those of the groups do not."""
    groups = case(2048, noise=0.2, crowd=2048)
    found = sketcher_of(groups, n_dims=16)
    radius = found.radius_squared
    widest = radius.max()
    assert radius[-1] == widest
    assert radius[0] < 0.8 * widest
    g, crowd = groups.geometry, groups.query_blocks.order[:1000:20]
    origin = np.zeros(N_DIMS)
    of_crowd, of_keys = (
        (p.astype(np.float64) - origin) @ found.basis for p in (g.queries[crowd], g.keys)
    )
    distances = ((of_crowd[:, None] - of_keys) ** 2).sum(axis=-1)
    mine = radius[groups.query_blocks.block_of[crowd]]
    matches = np.median((distances <= mine[:, None]).sum(axis=1))
    assert 0.3 * sketch._MOST_MATCHES <= matches <= 3 * sketch._MOST_MATCHES
    assert np.median((distances <= widest).sum(axis=1)) > 3 * sketch._MOST_MATCHES


def test_sketches_of_some_points() -> None:
    """Projections of the points listed, with the radius of each query's block and a margin for
    rounding: 18 products, of numbers whose squares sum to those of the query and a near key."""
    groups = case(512, symmetric=False)
    found = sketcher_of(groups)
    queries, keys = np.arange(3, 400, 7, dtype=np.int32), np.arange(9, 500, 5, dtype=np.int32)
    got = sketches(groups.kernel, found, groups.query_blocks, queries, keys)
    centre = groups.geometry.centre
    for points, index, of in (
        (groups.geometry.queries, queries, got.queries),
        (groups.geometry.keys, keys, got.keys),
    ):
        np.testing.assert_allclose(of, (points[index] - centre) @ found.basis, atol=1e-4)
    radius = found.radius_squared[groups.query_blocks.block_of[queries]]
    radius = radius + 36 * 2.0**-23 * np.square(got.queries).sum(axis=1)
    np.testing.assert_allclose(got.radius_squared, radius, rtol=1e-6)
    np.testing.assert_array_equal(got.query_index, queries)
    np.testing.assert_array_equal(got.key_index, keys)


def test_without_near_pairs_the_radius_is_that_of_the_threshold() -> None:
    """Groups so loose that no pair is near: the distance at which a pair would be."""
    groups = case(512, noise=1.0)
    assert not groups.pilot.apart.any()
    found = sketcher_of(groups)
    widest = -2 * BANDWIDTH**2 * math.log(groups.pilot.threshold)
    assert found.radius_squared.max() == pytest.approx(widest)
    assert found.within == 1.0
