"""Rates against the formulae they come from."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import Case, clustered, inclusion

from approxkmv.engine.survey.calibration import pooled
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.rates import Entries, Rates, not_left_to_few, solve_rates


def even_vector(case: Case) -> np.ndarray:
    """Signed entries with the same sizes in every tile of 50 keys, but for a factor of the tile."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.standard_normal(50))
    x = np.empty(len(case.key_tiles.order))
    for tile, (a, b) in enumerate(
        zip(case.key_tiles.start[:-1], case.key_tiles.start[1:], strict=True)
    ):
        x[case.key_tiles.order[a:b]] = rng.permutation(sizes) * (1 + tile) / 50
    return x * rng.choice([-1.0, 1.0], len(x))


def true_moments(case: Case) -> np.ndarray:
    """Means of K^2 over the pairs of each block and tile."""
    of_block = case.query_blocks.block_of[:, None] == np.arange(len(case.query_blocks.sizes))
    of_tile = case.key_tiles.block_of[:, None] == np.arange(len(case.key_tiles.sizes))
    sums = of_block.T.astype(float) @ case.K**2 @ of_tile
    return sums / np.outer(case.query_blocks.sizes, case.key_tiles.sizes)


def expanded(case: Case, of_tiles: np.ndarray) -> np.ndarray:
    return of_tiles[case.query_blocks.block_of][:, case.key_tiles.block_of]


def direct(case: Case, rate: np.ndarray, x: np.ndarray) -> tuple[float, float]:
    """Variance and cost by the formulae, pair by pair, with V in place of K^2."""
    pi = inclusion(case, rate, x)
    terms = expanded(case, true_moments(case)) * x**2
    return float(((1 / pi - 1) * terms).sum()), float(pi.sum())


def solved(case: Case, x: np.ndarray, share: float) -> tuple[Rates, float]:
    target = share * float((case.K**2 @ x**2).sum())
    entries = Entries(x, case.key_tiles)
    return (
        solve_rates(true_moments(case), entries, case.query_blocks, case.key_tiles, target),
        target,
    )


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0, 10.0])
def test_predicted_variance_is_the_target_and_is_true(share: float) -> None:
    """With true second moments V in place of K^2 the prediction equals the direct formula.

    x has the same sizes in every tile of 50 keys, so that only three errors are left, all of the
    logarithm of a rate, which moves the variance by no more than that share of sum V x^2 / pi:
    bisection to 0.001; bins of 0.05, hence 0.025; and interpolation between rates h = 0.2 apart, by
    at most h^2/8 of the same sum (plus h/4 V x^2 where pi passes through 1 within h).
    """
    case = clustered()
    x = even_vector(case)
    rates, target = solved(case, x, share)
    of_pair = expanded(case, rates.rate) * np.abs(x)
    terms = expanded(case, true_moments(case)) * x**2
    whole = float((terms / np.minimum(1.0, of_pair)).sum())
    kinks = float(terms[np.abs(np.log(of_pair)) < 0.2].sum())
    assert abs(rates.variance.sum() - target) <= 1e-3 * whole
    variance, cost = direct(case, rates.rate, x)
    allowed = (0.2**2 / 8 * np.exp(0.2) + 0.025 + 1e-3) * whole + 0.2 / 4 * kinks
    assert abs(variance - target) <= allowed < 0.2 * target + 0.05 * whole
    assert abs(rates.pairs - cost) <= 0.03 * cost


@pytest.mark.parametrize("share", [0.1, 3.0])
def test_no_other_rates_are_better(share: float) -> None:
    """Twenty random changes of the rates, scaled back to the same cost, all raise the variance."""
    case = clustered()
    x = even_vector(case)
    rates, _ = solved(case, x, share)
    variance, cost = direct(case, rates.rate, x)
    rng = np.random.default_rng(0)
    for _ in range(20):
        changed = rates.rate * np.exp(0.3 * rng.standard_normal(rates.rate.shape))
        low, high = -2.0, 2.0
        for _ in range(40):
            middle = (low + high) / 2
            too_dear = direct(case, np.exp(middle) * changed, x)[1] > cost
            low, high = (low, middle) if too_dear else (middle, high)
        other, same_cost = direct(case, np.exp(high) * changed, x)
        assert same_cost == pytest.approx(cost, rel=1e-9)
        assert other > variance


def test_a_smaller_target_costs_more() -> None:
    case = clustered()
    x = np.random.default_rng(0).standard_normal(400)
    pairs = [solved(case, x, share)[0].pairs for share in (100.0, 1.0, 0.1, 0.001, 0.0)]
    assert (np.diff(pairs) > 0).all()
    assert pairs[-1] <= case.K.size * (1 + 1e-9)


def test_zero_entries_are_never_drawn() -> None:
    """They cost nothing and have no variance, whole tiles of them too."""
    case = clustered()
    x = np.random.default_rng(0).standard_normal(400)
    x[case.key_tiles.order[:100]] = 0
    rates, _ = solved(case, x, 0.5)
    assert np.isfinite(rates.rate).all()
    assert np.isfinite([rates.pairs, *rates.variance]).all()
    assert rates.pairs <= 300 * 300


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [1.0, 1e3, 1e30, 1e300])
def test_every_block_draws_a_few_keys(share: float) -> None:
    """However large the error allowed: 32 keys by their |x|, with what that costs and gives; and
    rates that are larger stay as they are."""
    case = clustered()
    x = even_vector(case)
    moment, entries = true_moments(case), Entries(x, case.key_tiles)
    rates, target = solved(case, x, share)
    got = not_left_to_few(rates, moment, entries, case.query_blocks, case.key_tiles, target)
    least = 32 / np.abs(x).sum()
    np.testing.assert_array_equal(got.rate, np.maximum(rates.rate, least))
    assert (rates.rate < least).any()
    variance, cost = direct(case, got.rate, x)
    assert got.pairs == pytest.approx(cost, rel=0.03)
    assert got.variance.sum() == pytest.approx(variance, rel=0.05)
    of_pair = np.minimum(1.0, expanded(case, got.rate) * np.abs(x))
    assert of_pair.sum(axis=1).min() > 24  # of 32, less where |x| is above the rate's reach


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_no_key_with_much_of_the_error_is_left_to_chance(share: float) -> None:
    """A key whose terms in a block have a tenth of the variance aimed at is drawn for certain: its
    error would be made when it is not drawn, and its variance seen when it is."""
    case = clustered()
    x = np.zeros(400)
    x[::70] = 1.0
    moment, entries = true_moments(case), Entries(x, case.key_tiles)
    rates, target = solved(case, x, share)
    got = not_left_to_few(rates, moment, entries, case.query_blocks, case.key_tiles, target)
    of_block = (case.query_blocks.sizes[:, None] * moment)[:, case.key_tiles.block_of] * x**2
    much = of_block >= 0.1 * target * (1 + 1e-9)
    chance = got.rate[:, case.key_tiles.block_of] * np.abs(x)
    before = rates.rate[:, case.key_tiles.block_of] * np.abs(x)
    assert (chance[much] >= 1 - 1e-9).all()
    assert (before[much] < 1).any()


@pytest.mark.parametrize("share", [0.003, 0.1, 1.0, 30.0])
def test_rates_are_those_of_a_direct_bisection(share: float) -> None:
    """Bins of 0.05 in the logarithm of a rate move it by 0.025 at most, interpolation and the end
    of the bisection less: a bisection over all pairs of the same formula needs the same factor
    within 0.04, and its cost differs by no more. All rates are one factor times the root of the
    moment."""
    case = clustered()
    x = even_vector(case)
    rates, target = solved(case, x, share)
    root = np.sqrt(true_moments(case))
    factor = rates.rate / root
    np.testing.assert_allclose(factor, factor[0, 0], rtol=1e-12)
    low, high = -30.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        above = direct(case, np.exp(middle) * root, x)[0] > target
        low, high = (middle, high) if above else (low, middle)
    assert abs(np.log(factor[0, 0]) - high) <= 0.04
    assert abs(rates.pairs / direct(case, np.exp(high) * root, x)[1] - 1) <= 0.04


def test_pooled_moments() -> None:
    """Never 0, never below a thousandth of the block's mean; a flat surface stays flat."""
    flat = pooled(np.full((6, 9), 2.0))
    np.testing.assert_allclose(flat, flat[0, 0])
    assert 2.0 <= flat[0, 0] <= 2.01
    peak = np.zeros((20, 30))
    peak[10, 15] = 1.0
    spread = pooled(peak)
    assert (spread > 0).all()
    assert (spread[10] >= 1e-3 * peak[10].mean()).all()
    assert spread.argmax() == peak.argmax() or spread.max() == pytest.approx(spread[10, 15])
    assert (pooled(np.zeros((3, 3))) > 0).all()


def test_tiles_of_zeros_do_not_change_the_others() -> None:
    """x on a tenth of the tiles: the rates there are those of a matrix that has no other tiles."""
    rng = np.random.default_rng(0)
    start = 50 * np.arange(11)
    block_of = np.repeat(np.arange(10), 50).astype(np.int32)
    tiles = Blocks(np.arange(500, dtype=np.int32), start, block_of)
    first = Blocks(np.arange(50, dtype=np.int32), start[:2], block_of[:50])
    blocks = Blocks(np.arange(50, dtype=np.int32), start[:2], block_of[:50])
    size = np.zeros(500)
    size[:50] = np.abs(rng.standard_normal(50))
    moment = np.full((1, 10), 0.01)
    got = solve_rates(moment, Entries(size, tiles), blocks, tiles, 1.0)
    want = solve_rates(moment[:, :1], Entries(size[:50], first), blocks, first, 1.0)
    # Rates are solved for in bins of 5 %.
    assert got.rate[0, 0] == pytest.approx(want.rate[0, 0], rel=0.05)
    assert got.pairs == pytest.approx(want.pairs, rel=0.05)
