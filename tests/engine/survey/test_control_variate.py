"""The polynomial control variate: its fit, its product, and draws of what it leaves."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draw_cases import N_STREAMS, plan_of, uneven_rates, z_of
from engine_cases import Case, clustered, inclusion

from approxkmv.datasets import clusters
from approxkmv.engine.cost import CostModel
from approxkmv.engine.survey.control_variate import (
    _GROUP,
    _LEAST,
    _RIDGE,
    Polynomial,
    _least_squares,
    fit_polynomial,
    worth_fitting,
)
from approxkmv.engine.survey.order import norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import FoundPairs


@functools.cache
def many_blocks(dtype: Any = np.float64) -> Case:
    """Ten blocks and eleven tiles: groups of four and what is left over."""
    return clustered(m=200, n=275, rows_per_block=20, keys_per_tile=25, dtype=dtype)


def column(n: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(n).astype(dtype)


def pilot_of(case: Case, x: np.ndarray, threshold: float, rows_per_block: int = 3) -> Pilot:
    return run_pilot(
        case.kernel,
        np.abs(x),
        case.query_blocks,
        case.key_tiles,
        rows_per_block=rows_per_block,
        threshold=threshold,
        most_near=None,
        column=x,
        rng=np.random.default_rng(0),
    )


def powers_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Scales and scores from the points themselves."""
    g = case.geometry
    q, k = g.queries - g.centre, g.keys - g.centre
    squares = (q**2).sum(axis=1)[:, None] + (k**2).sum(axis=1)
    return np.exp(-squares / (2 * case.bandwidth**2)), q @ k.T / case.bandwidth**2


def polynomial_matrix(case: Case, fitted: Polynomial) -> np.ndarray:
    scale, z = powers_of(case)
    of_pair = fitted.coefficients.astype(np.float64)[case.query_blocks.block_of]
    g = of_pair[:, case.key_tiles.block_of]
    return scale * (g[..., 0] + g[..., 1] * z + g[..., 2] * z**2)


@pytest.mark.parametrize("threshold", [0.05, 2.0])
def test_what_is_left_of_the_pilot_rows(threshold: float) -> None:
    """Sums of (K - C)^2 |x| over each tile without near pairs, with C from a fit to every other
    row: the same as a fit to those rows alone gives."""
    case, x = many_blocks(), column(275)
    pilot = pilot_of(case, x, threshold)
    fitted = fit_polynomial(pilot, case.geometry)
    light = threshold > case.K
    # The values of near pairs, which are taken out of sums over all, are kept in float32.
    rounding = 1e-6 * (case.K[pilot.rows] ** 2 @ np.abs(x)).max()
    for half in (0, 1):
        rows, others = (np.arange(k, 30, 2) for k in (half, 1 - half))
        of_half = replace(
            pilot,
            rows=pilot.rows[rows],
            block_of=pilot.block_of[rows],
            light=pilot.light[rows],
            powers=pilot.powers[:, rows],  # type: ignore[index]
            near_row=pilot.near_row[:0],
            near_col=pilot.near_col[:0],
            near_square=pilot.near_square[:0],
        )
        part = polynomial_matrix(case, fit_polynomial(of_half, case.geometry))
        left = (light * (case.K - part) ** 2)[pilot.rows[others]] * np.abs(x)
        sums = np.stack([left[:, tile].sum(axis=1) for tile in tiles_of(case)], axis=1)
        np.testing.assert_allclose(fitted.light[others], sums, rtol=1e-4, atol=rounding)
    np.testing.assert_allclose(fitted.left, fitted.light.sum() / pilot.light.sum(), rtol=1e-12)
    near = pilot.rows[pilot.near_row], pilot.near_col
    whole = fit_polynomial(pilot, case.geometry)
    rest = (case.K - polynomial_matrix(case, whole))[near]
    np.testing.assert_allclose(whole.near_square, rest**2, rtol=1e-4, atol=1e-6)
    if len(rest):
        share = (rest**2).sum() / (case.K[near] ** 2).sum()
        assert whole.leaves_near == pytest.approx(share, rel=1e-4)
    assert pilot.products is not None
    np.testing.assert_allclose(pilot.products, case.K[pilot.rows] @ x, rtol=1e-10)


def tiles_of(case: Case) -> list[np.ndarray]:
    start = case.key_tiles.start
    return [case.key_tiles.order[a:b] for a, b in itertools.pairwise(start)]


def test_coefficients_are_those_of_least_squares() -> None:
    """In each group of blocks and tiles what is left is orthogonal to 1, z and z^2, up to the small
    number added to the diagonal."""
    case, x = many_blocks(), column(275)
    pilot = pilot_of(case, x, 0.05)
    fitted = fit_polynomial(pilot, case.geometry)
    scale, z = powers_of(case)
    left = np.where(case.K >= 0.05, 0.0, case.K - polynomial_matrix(case, fitted))
    scale = np.where(case.K >= 0.05, 0.0, scale)
    assert fitted.coefficients.shape == (10, 11, 3)
    row_group = case.query_blocks.block_of[pilot.rows] // _GROUP
    key_group = case.key_tiles.block_of // _GROUP
    for a in range(3):
        for b in range(3):
            same = fitted.coefficients[a * _GROUP : (a + 1) * _GROUP, b * _GROUP : (b + 1) * _GROUP]
            assert (same == same[0, 0]).all()
            part = np.ix_(pilot.rows[row_group == a], np.flatnonzero(key_group == b))
            weight = np.abs(x)[part[1]]
            for power in range(3):
                term = scale[part] * z[part] ** power
                if same[0, 0, power] == 0:  # too small to be worth a fit
                    light = np.where(case.K >= 0.05, 0.0, case.K)[part]
                    most = max((weight * light**2).sum(), (weight * scale[part] ** 2).sum())
                    assert (weight * term**2).sum() <= 1.01 * _LEAST * most
                    continue
                product = (weight * left[part] * term).sum()
                sizes = np.sqrt(
                    (weight * term**2).sum() * (weight * np.minimum(case.K[part], 0.05) ** 2).sum()
                )
                ridge = _RIDGE * abs(float(same[0, 0, power])) * (weight * term**2).sum()
                assert abs(product) <= 1e-4 * sizes + 1.01 * ridge


@pytest.mark.parametrize("recall", [0.0, 0.5, 1.0])
def test_draws_of_what_is_left_are_unbiased(recall: float) -> None:
    """The mean over 600 streams is K x in every row; the variance is that of K - C, and of nothing
    at found pairs."""
    case = clustered(m=120, n=240, rows_per_block=40)
    size = np.exp(0.5 * np.random.default_rng(2).standard_normal(240))
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    fitted = fit_polynomial(pilot_of(case, size, 0.05), case.geometry)
    part = polynomial_matrix(case, fitted)
    pi = inclusion(case, rate, size)
    rest = case.K - part
    rest[found.rows, found.cols] = 0.0
    squares = rest**2 * size**2
    variance, mass = ((1 / pi - 1) * squares).sum(axis=1), ((1 - pi) * squares).sum(axis=1)
    rng = np.random.default_rng(3)
    errors, variances, masses = [], [], []
    for stream in range(N_STREAMS):
        x = size * rng.choice([-1.0, 1.0], 240)
        polynomial = fitted.of(case.kernel, x[:, None], case.key_tiles)
        plan = plan_of(case, rate, x, stream)
        sums = Compiled(1).sampled_product(
            case.geometry,
            plan,
            found,
            x[:, None],
            polynomial,
        )
        errors.append(sums.out[:, 0] - case.K @ x)
        variances.append(sums.variance)
        masses.append(sums.mass)
    # Found values are kept in float32.
    rounding = 1e-6 * ((1 / pi - 1) * case.K**2 * size**2).sum(axis=1)
    for values, want in (
        (np.array(errors), np.zeros(120)),
        (np.array(variances), variance),
        (np.array(masses), mass),
        (np.square(errors) - variances, np.zeros(120)),
    ):
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
        off = np.abs(values.mean(axis=0) - want)
        assert (off <= z_of(120) * standard_error + rounding + 1e-6 * np.sqrt(variance)).all()


def test_fewer_squares_are_left() -> None:
    """On clusters in 64 dimensions less than a quarter of those of the kernel, of all rows as of
    the pilot's: the forecast is within a quarter of the truth."""
    points = clusters(4096, 64, rng=0)
    kernel = prepare(points.queries, points.keys, points.bandwidth)
    blocks, tiles = norm_order(kernel.geometry, 256, 256)
    case = Case(kernel, points.bandwidth, np.empty(0), blocks, tiles)
    scale, z = powers_of(case)
    K = scale * np.exp(z)
    pilot = pilot_of(case, np.ones(4096, np.float32), 0.02)
    fitted = fit_polynomial(pilot, case.geometry)
    light = pilot.threshold > K
    left = (light * (K - polynomial_matrix(case, fitted)) ** 2).sum() / (light * K**2).sum()
    assert left < 0.25
    assert fitted.left == pytest.approx(left, rel=0.25)


def test_without_draws_there_is_the_polynomial() -> None:
    """At rate 0 nothing is drawn: the product is C x, found pairs added; at the largest rate every
    key is, and C cancels."""
    for dtype, tolerance in ((np.float64, 1e-7), (np.float32, 3e-5)):
        case, x = many_blocks(dtype), column(275, dtype)
        fitted = fit_polynomial(pilot_of(case, x, 0.05), case.geometry)
        part = fitted.of(case.kernel, x[:, None], case.key_tiles)
        assert part.moments.dtype == dtype
        plan = plan_of(case, np.zeros((10, 11)), x, 0)
        got = Compiled().sampled_product(
            case.geometry, plan, FoundPairs.none(200), x[:, None], part
        )
        want = polynomial_matrix(case, fitted) @ x
        scale = np.abs(polynomial_matrix(case, fitted)) @ np.abs(x)
        assert (np.abs(got.out[:, 0] - want) <= tolerance * scale.max()).all()
        assert (got.variance == 0).all()
        every = plan_of(case, np.full((10, 11), 1e30), x, 0)
        got = Compiled().sampled_product(
            case.geometry, every, FoundPairs.none(200), x[:, None], part
        )
        most = (case.K @ np.abs(x)).max() + scale.max()
        assert (np.abs(got.out[:, 0] - case.K @ x) <= tolerance * most).all()
        assert (got.variance == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rate", [0.0, 1e-11, 0.3])
def test_found_pairs_are_exact_whatever_is_drawn(rate: float, dtype: Any) -> None:
    """With every pair found the product is K x and its variance 0, drawn or not: C, far from 0 at
    these pairs, has no part in it."""
    case, x = many_blocks(dtype), column(275, dtype)
    fitted = fit_polynomial(pilot_of(case, x, 2.0), case.geometry)
    part = fitted.of(case.kernel, x[:, None], case.key_tiles)
    plan = plan_of(case, np.full((10, 11), rate), x, 0)
    got = Compiled(1).sampled_product(
        case.geometry,
        plan,
        case.pairs(0.0, 1.0),
        x[:, None],
        part,
    )
    largest = 1 / rate if rate > 0.1 else 1.0  # what rounding errors of drawn terms count for
    rounding = (1e-7 if dtype == np.float64 else 3e-5) * largest
    assert np.abs(polynomial_matrix(case, fitted)).max() > 0.3
    scale = case.K @ np.abs(x)
    assert (np.abs(got.out[:, 0] - case.K @ x) <= rounding * scale).all()
    assert (np.abs(got.variance) <= rounding * (case.K**2 @ x**2) * largest).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_points_with_nothing_to_fit(dtype: Any) -> None:
    """All points at the centre, or so near that z is below every square; points so far out that
    their scales vanish: coefficients stay finite, and the product is right."""
    rng = np.random.default_rng(0)
    shapes = {
        "one point": np.zeros((300, 4)),
        "close": 1e-12 * rng.standard_normal((300, 4)),
        "far": 30 * rng.standard_normal((300, 4)),
    }
    for name, points in shapes.items():
        keys = points.astype(dtype)
        kernel = prepare(keys, keys, 1.0, differences=False)
        if kernel.geometry.differences:
            continue
        base = clustered(m=300, n=300, d=4, rows_per_block=64, keys_per_tile=50)
        distances = ((points[:, None] - points) ** 2).sum(axis=2)
        case = Case(kernel, 1.0, np.exp(-distances / 2), base.query_blocks, base.key_tiles)
        x = np.ones(300, dtype)
        fitted = fit_polynomial(pilot_of(case, x, 2.0), case.geometry)
        assert np.isfinite(fitted.coefficients).all()
        assert np.isfinite(fitted.light).all()
        part = fitted.of(case.kernel, x[:, None], case.key_tiles)
        rate = np.full((len(base.query_blocks.sizes), len(base.key_tiles.sizes)), 1e30)
        plan = plan_of(case, rate, x, 0)
        got = Compiled().sampled_product(
            case.geometry, plan, FoundPairs.none(300), x[:, None], part
        )
        np.testing.assert_allclose(got.out[:, 0], case.K @ x, rtol=1e-3, err_msg=name)
        if name == "far":
            assert (fitted.coefficients == 0).any()


def test_rounding_errors_are_not_fitted() -> None:
    """Where all pairs are near nothing is left but what rounding leaves of their sums: no fit."""
    case, x = many_blocks(np.float32), column(275, np.float32)
    pilot = pilot_of(case, x, 1e-30)
    fitted = fit_polynomial(pilot, case.geometry)
    assert np.abs(fitted.coefficients).max() < 1e7
    blown_up = replace(pilot, powers=pilot.powers * 1e-60 + 1e-290)  # type: ignore[operator]
    assert np.isfinite(fit_polynomial(blown_up, case.geometry).coefficients).all()


def test_powers_too_small_to_be_fitted() -> None:
    """Sums of z and z^2 that are rounding errors of those of 1 have no part in the fit; where they
    are a little more than that, but ask for huge coefficients, there is none."""
    sums = np.array([3.0, 1e-8, 1e-8, 4.0, 0.0, 1e-30, 0.0, 1e-60])
    g = _least_squares(sums, np.array(9.0))
    np.testing.assert_allclose(g, [0.75, 0.0, 0.0], rtol=1e-5)
    sums = np.array([3.0, 1.0, 1e-8, 4.0, 0.0, 1e-10, 0.0, 1e-60])
    assert (_least_squares(sums, np.array(9.0)) == 0).all()


def test_dense_kernels_have_no_near_pairs_to_find() -> None:
    """At the median distance a polynomial explains pairs of two points and of one alike; at a
    third of it, and among clusters, it does not: near pairs must be found."""
    points = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
    among = clusters(4096, 64, rng=0)
    for queries, bandwidth, explained in (
        (points, 11.0, True),
        (points, 3.7, False),
        (among.queries, among.bandwidth, False),
    ):
        kernel = prepare(queries, queries, bandwidth)
        blocks, tiles = norm_order(kernel.geometry, 256, 256)
        case = Case(kernel, bandwidth, np.empty(0), blocks, tiles)
        scale, z = powers_of(case)
        threshold = float(np.quantile(scale[:16] * np.exp(z[:16]), 1 - 48 / 4096))
        fitted = fit_polynomial(
            pilot_of(case, np.ones(4096, np.float32), threshold), kernel.geometry
        )
        assert fitted.explains_near_pairs == explained


def test_near_values_that_underflow_explain_nothing() -> None:
    """At a threshold of 0 pairs of value 0 are near, too, and there may be no others."""
    case, x = many_blocks(), column(275)
    pilot = pilot_of(case, x, 0.05)
    underflown = replace(pilot, near_square=np.zeros_like(pilot.near_square))
    fitted = fit_polynomial(underflown, case.geometry)
    assert fitted.leaves_near == 1.0
    assert not fitted.explains_near_pairs


def test_where_a_polynomial_is_looked_for() -> None:
    """With inner products, in not too many dimensions; the cost grows with them."""
    cost = CostModel().polynomial_cost
    assert worth_fitting(clustered().geometry)
    assert not worth_fitting(clustered(differences=True).geometry)
    assert worth_fitting(clustered(d=128).geometry)
    assert not worth_fitting(clustered(d=129).geometry)
    assert cost(10, 20, 6) == 2 * cost(10, 20, 3) > 0
