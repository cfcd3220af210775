"""Draws: probabilities, unbiasedness, and the estimate of their variance.

Means over many streams are compared within z standard errors, z being the normal quantile at which
all comparisons of a test together fail by chance with probability 1e-6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered, inclusion
from scipy.stats import binom, chi2, norm

from approxkmv.engine import sample
from approxkmv.engine.neighbours.search import Missing
from approxkmv.engine.sample import (
    Draws,
    Judge,
    chi_square_quantile,
    draw,
    measured_evenness,
    rows_to_mend,
    spread,
    standing_out,
    unseen_error,
)
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import DrawPlan, FoundPairs, Geometry, SampledSums

N_STREAMS = 600


def z_of(n_comparisons: int) -> float:
    return float(norm.isf(0.5e-6 / n_comparisons))


def plan_of(case: Case, rate: np.ndarray, x: np.ndarray, stream: int) -> DrawPlan:
    return DrawPlan(
        case.query_blocks.order,
        case.query_blocks.start,
        case.key_tiles.order,
        case.key_tiles.start,
        rate.astype(np.float32),
        np.abs(x),
        11,
        stream,
    )


def product_of(geometry: Geometry, plan: DrawPlan, found: FoundPairs, x: np.ndarray) -> np.ndarray:
    return (
        Compiled(1)
        .sampled_product(
            geometry,
            plan,
            found,
            x[:, None],
        )
        .out[:, 0]
    )


def uneven_rates(case: Case, level: float) -> np.ndarray:
    shape = (len(case.query_blocks.sizes), len(case.key_tiles.sizes))
    rates = level * np.random.default_rng(5).uniform(0.5, 2.0, shape)
    return rates.astype(np.float32).astype(np.float64)


def test_inclusion_probabilities(dtype: Any) -> None:
    """A key is drawn with probability min(1, rate |x|), whatever its neighbours are.

    Queries equal keys a hundred bandwidths apart, so that an entry of the product is not 0 if and
    only if the row's own key was drawn. Counts over the streams are binomial.
    """
    n, n_streams = 120, 1000
    points = 100.0 * np.arange(n, dtype=dtype)[:, None]
    kernel = prepare(points, points, 1.0, differences=True)
    x = np.random.default_rng(0).standard_t(2, n).astype(dtype)
    x[:5] = 0
    order = np.arange(n, dtype=np.int32)
    start = np.array([0, 31, 32, n], np.int64)
    rate = np.array([[0.3, 0.5, 0.7], [1e-3, 2.0, 0.1], [0.05, 0.2, 0.9]], np.float32)
    block_of = np.repeat([0, 1, 2], np.diff(start))
    pi = np.minimum(1.0, rate.astype(np.float64)[block_of, block_of] * np.abs(x))
    drawn = np.zeros(n, np.int64)
    for stream in range(n_streams):
        plan = DrawPlan(order, start, order, start, rate, np.abs(x), 3, stream)
        y = product_of(kernel.geometry, plan, FoundPairs.none(n), x)
        hit = y != 0
        drawn += hit
        np.testing.assert_allclose(y[hit], x[hit] / pi[hit], rtol=1e-5)
    low = binom.ppf(0.5e-6 / n, n_streams, pi)
    high = binom.isf(0.5e-6 / n, n_streams, pi)
    assert ((low <= drawn) & (drawn <= high)).all()
    assert (drawn[pi == 1] == n_streams).all()
    assert (pi == 1).any()
    standard_error = np.sqrt(n_streams * pi * (1 - pi))
    within = np.abs(drawn - n_streams * pi) <= 4 * standard_error + 1e-9
    assert within[n_streams * pi * (1 - pi) > 20].all()


@pytest.mark.parametrize("recall", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("signed", [False, True])
def test_products_are_unbiased(recall: float, signed: bool) -> None:
    """The mean over 600 streams is K x in every row, whatever share of the near pairs is found."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(1)
    x = rng.standard_normal(240) if signed else np.ones(240)
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    samples = np.stack(
        [product_of(case.geometry, plan_of(case, rate, x, s), found, x) for s in range(N_STREAMS)]
    )
    error = samples.mean(axis=0) - case.K @ x
    standard_error = samples.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
    # Found values are kept in float32.
    rounding = 1e-6 * (case.K @ np.abs(x))
    assert (np.abs(error) <= z_of(120) * standard_error + rounding).all()
    assert standard_error.max() > 1e-3
    # All rows at once: the squared length of the mean error is its expectation or so.
    assert (error**2).sum() <= 4 * (standard_error**2).sum()


@pytest.mark.parametrize("recall", [0.0, 0.5])
def test_estimates_are_unbiased(recall: float) -> None:
    """Over pairs that were not found, the variance is the sum of (1/pi - 1) K^2 x^2 on average over
    600 streams, and the mass that of (1 - pi) K^2 x^2, in every row; and the variance is the
    mean squared error where the signs of x are random (draws of one tile exclude each other: with
    one sign the error is smaller)."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(2)
    size = np.exp(0.5 * rng.standard_normal(240))
    found, rate = case.pairs(0.05, recall), uneven_rates(case, 0.3)
    pi = inclusion(case, rate, size)
    squares = case.K**2 * size**2
    squares[found.rows, found.cols] = 0
    variance, mass = ((1 / pi - 1) * squares).sum(axis=1), ((1 - pi) * squares).sum(axis=1)
    variances, masses, errors = [], [], []
    for stream in range(N_STREAMS):
        x = size * rng.choice([-1.0, 1.0], 240)
        plan = plan_of(case, rate, x, stream)
        sums = Compiled(1).sampled_product(
            case.geometry,
            plan,
            found,
            x[:, None],
        )
        variances.append(sums.variance)
        masses.append(sums.mass)
        errors.append((sums.out[:, 0] - case.K @ x) ** 2)
    # Found values are kept in float32.
    rounding = 1e-6 * ((1 / pi - 1) * case.K**2 * size**2).sum(axis=1)
    for values, want in (
        (np.array(variances), variance),
        (np.array(masses), mass),
        (np.array(errors), variance),
        (np.subtract(variances, errors), np.zeros(120)),
    ):
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(N_STREAMS)
        off = np.abs(values.mean(axis=0) - want)
        assert (off <= z_of(120) * standard_error + rounding).all()
        # All rows at once are known to a few hundredths.
        total = values.sum(axis=1)
        standard_error = total.std(ddof=1) / np.sqrt(N_STREAMS)
        assert abs(total.mean() - want.sum()) <= z_of(1) * standard_error + rounding.sum()
        assert standard_error < 0.1 * variance.sum()


def test_one_sign_makes_the_error_smaller_not_larger() -> None:
    """Systematic draws of keys of one sign: mean squared error at most the estimate's mean."""
    case = clustered(m=120, n=240, rows_per_block=40)
    x, rate = np.ones(240), uneven_rates(case, 0.3)
    difference = []
    for stream in range(N_STREAMS):
        plan, none = plan_of(case, rate, x, stream), FoundPairs.none(120)
        sums = Compiled(1).sampled_product(
            case.geometry,
            plan,
            none,
            x[:, None],
        )
        difference.append(((sums.out[:, 0] - case.K @ x) ** 2).sum() - sums.variance.sum())
    standard_error = np.std(difference, ddof=1) / np.sqrt(N_STREAMS)
    assert np.mean(difference) <= 4 * standard_error


@pytest.mark.parametrize("n_blocks", [1, 2, 10, 200])
def test_spread_of_equal_blocks(n_blocks: int) -> None:
    """Equal variances: the upper quantile of chi-square over its mean, with that many degrees."""
    got = spread(np.full(n_blocks, 3.7), 0.05)
    assert got == pytest.approx(chi2.ppf(0.95, n_blocks) / n_blocks)


def test_spread_covers_unequal_blocks() -> None:
    """Squared sums of normal errors exceed it about as often as delta says: at most 1.3 times."""
    rng = np.random.default_rng(0)
    n, delta = 20_000, 0.05
    for variances in (np.array([1.0, 0.1, 0.1]), rng.exponential(size=30)):
        squares = (rng.standard_normal((n, len(variances))) ** 2) @ variances
        above = int((squares > variances.sum() * spread(variances, delta)).sum())
        assert above <= binom.isf(1e-6, n, 1.3 * delta)
        assert above >= binom.ppf(1e-6, n, 0.5 * delta)


def test_spread_of_nothing() -> None:
    assert spread(np.zeros(4), 0.05) == 1.0
    assert spread(np.array([0.0, 2.0]), 1 - 1e-9) == 1.0  # never below 1


def even_blocks(n: int, n_blocks: int) -> Blocks:
    order = np.arange(n, dtype=np.int32)
    start = np.linspace(0, n, n_blocks + 1).astype(np.int64)
    return Blocks(order, start, np.repeat(np.arange(n_blocks, dtype=np.int32), np.diff(start)))


def upper(variance: np.ndarray, blocks: Blocks, delta: float = 0.05) -> float:
    by_block = np.bincount(blocks.block_of, variance, len(blocks.sizes))
    return float(variance.sum() * spread(by_block, delta))


@pytest.mark.parametrize("degrees", [1.0, 1.3, 2.0, 17.5, 256.0, 1000.0])
def test_quantiles_of_chi_square(degrees: float) -> None:
    for probability in (1e-3, 0.5, 0.95, 0.999, 1 - 1e-6):
        want = chi2.ppf(probability, degrees)
        # Next to 1 fewer digits of the probability tell.
        digits = 1e-8 + 1e-13 / (1 - probability)
        np.testing.assert_allclose(chi_square_quantile(degrees, probability), want, rtol=digits)
    assert chi_square_quantile(degrees, 1.0) == np.inf


def test_rows_to_mend_are_the_fewest_that_will_do() -> None:
    """Ordinary rows and a few that stand out: without the chosen ones the error is allowed; without
    one fewer it is not, but for the margin of 0.97; and the chosen ones are the largest."""
    blocks = even_blocks(1000, 20)
    rng = np.random.default_rng(0)
    variance = rng.uniform(0.5, 1.5, 1000)
    variance[rng.choice(1000, 30, replace=False)] = 10.0 ** rng.uniform(1, 4, 30)
    unseen = 1e-4 * variance
    for allowed in (1700.0, 2000.0, 3000.0):
        some = rows_to_mend(variance, unseen, blocks, allowed, 0.05, 1000)
        assert 0 < len(some) < 35
        assert (np.diff(some) > 0).all()
        kept = np.ones(1000, np.bool_)
        kept[some] = False
        assert variance[some].min() >= variance[kept].max()
        rest = np.where(kept, variance, 0.0)
        assert upper(rest, blocks) + unseen[some].sum() <= allowed
        rest[some[variance[some].argmin()]] = variance[some].min()
        assert upper(rest, blocks) + 1.3 * unseen[some].sum() > 0.97 * allowed


def test_no_row_is_mended_without_need() -> None:
    blocks = even_blocks(100, 5)
    variance = np.ones(100)
    most = upper(variance, blocks)
    none = np.zeros(100)
    assert len(rows_to_mend(variance, none, blocks, most * 1.001, 0.05, 100)) == 0
    assert len(rows_to_mend(variance, none, blocks, most * 0.999, 0.05, 0)) == 0
    assert 0 < len(rows_to_mend(variance, none, blocks, most * 0.999, 0.05, 100)) < 20


def test_no_more_rows_are_mended_than_agreed() -> None:
    blocks = even_blocks(100, 5)
    variance = np.arange(100.0)
    some = rows_to_mend(variance, np.zeros(100), blocks, 1.0, 0.05, 7)
    np.testing.assert_array_equal(some, np.arange(93, 100))


def test_rows_that_leave_much_unseen_do_not_help() -> None:
    """A mended row whose like were not drawn leaves their squares: more rows must be mended."""
    blocks = even_blocks(1000, 20)
    variance = np.ones(1000)
    variance[:50] = 100.0
    allowed = 3000.0
    few = rows_to_mend(variance, np.zeros(1000), blocks, allowed, 0.05, 1000)
    more = rows_to_mend(variance, 0.2 * variance, blocks, allowed, 0.05, 1000)
    assert 0 < len(few) < len(more)


@pytest.mark.parametrize("n_missed", [1, 2, 4, 8])
@pytest.mark.parametrize("pi", [0.01, 0.002])
def test_unseen_error(n_missed: int, pi: float) -> None:
    """Rows with several equal missed pairs of one sign, each drawn with probability pi: the rows in
    which one was drawn are mended, and tell of the error of those in which none was, n_missed^2 in
    each, on average.
    """
    n = 400_000
    drawn = np.random.default_rng([n_missed, int(1 / pi)]).binomial(n_missed, pi, n)
    value = 1.5
    exact = np.full(n, 7.0 + n_missed * value)
    y = 7.0 + drawn * value / pi
    variance = drawn * value**2 * (1 - pi) / pi**2
    mass = drawn * value**2 * (1 - pi) / pi
    seen = drawn > 0
    truth = float(((y - exact)[~seen] ** 2).sum())
    got = unseen_error(y[seen, None], exact[seen, None], variance[seen], mass[seen])
    # The number of rows that were seen is binomial.
    standard_error = truth * np.sqrt((1 - seen.mean()) / seen.sum())
    # Rows with two drawn pairs, a share of n_missed pi, tell more than one or less.
    chance = z_of(1) * standard_error + 2 * n_missed * pi * truth
    assert truth - chance <= got <= truth + chance
    # Their squares alone would be too little where a row lacks several.
    assert mass.sum() == pytest.approx(truth / n_missed, rel=0.2)


def test_unseen_error_of_ordinary_rows() -> None:
    """An error as large as the term leaves nothing unseen but the mass; it is never negative."""
    drawn, exact = np.array([[10.0], [-10.0], [0.0]]), np.zeros((3, 1))
    none = np.zeros(3)
    assert unseen_error(drawn, exact, np.array([100.0, 81.0, 0.0]), none) == 0
    assert unseen_error(drawn, exact, np.array([100.0, 81.0, 0.0]), np.full(3, 2.0)) == 6
    assert unseen_error(drawn, exact, np.array([144.0, 81.0, 0.0]), none) == pytest.approx(24.0)


def draw_of(case: Case, x: np.ndarray, rate: np.ndarray, found: FoundPairs, **options: Any) -> Any:
    pilot = run_pilot(
        case.geometry,
        np.abs(x),
        case.query_blocks,
        case.key_tiles,
        rows_per_block=4,
        threshold=0.05,
        rng=np.random.default_rng(0),
        n_threads=1,
    )
    products = case.kernel.at_queries(pilot.rows).product(x[:, None]).out
    allowed, delta = options.pop("allowed", np.inf), options.pop("delta", 0.05)
    judge = Judge(case.kernel, x[:, None], case.query_blocks, pilot, products, allowed, delta)
    settings = {"missing": Missing(0.0, 0.0), "most_rows": 0} | options
    sums = draw(judge, found, np.abs(x), rate, case.key_tiles, seed=1, stream=0)
    pairs = int((sums.n_drawn * case.query_blocks.sizes).sum())
    drawn = sums.out.copy()
    sample = judge(sums, pairs=pairs, evenly=True, **settings)
    np.testing.assert_array_equal(sums.out, drawn)
    return replace(sample, y=sample.y[:, 0]), pilot


@pytest.mark.parametrize("level", [0.2, 1e60])
def test_draw(level: float) -> None:
    """Pilot rows are exact in the answer and check it; rates beyond float32 mean certainty."""
    case = clustered()
    x = np.random.default_rng(0).standard_normal(400)
    rate = uneven_rates(case, 1.0) * level
    found = case.pairs(0.1)
    sample, pilot = draw_of(case, x, rate, found)
    exact = case.K @ x
    np.testing.assert_allclose(sample.y[pilot.rows], exact[pilot.rows], rtol=0, atol=1e-10)
    assert sample.n_mended == sample.left_out == 0
    if level > 1:
        np.testing.assert_allclose(sample.y, exact, atol=1e-5)
        assert sample.variance == sample.upper == 0
        assert sample.checked < 1e-9
        assert sample.pairs == case.K.size + 16 * 400
        return
    assert sample.upper > sample.variance > 0
    plan = plan_of(case, rate, x, 0)._replace(seed=1)
    plain = Compiled(1).sampled_product(
        case.geometry,
        plan,
        found,
        x[:, None],
    )
    off = (plain.out[:, 0] - exact)[pilot.rows] ** 2
    weight = case.query_blocks.sizes[pilot.block_of] / 4
    variance = np.maximum(plain.variance, 0)
    others = np.setdiff1d(np.arange(300), pilot.rows)
    largest = others[np.argsort(np.abs(plain.out[others, 0]))[-16:]]
    np.testing.assert_allclose(sample.y[largest], exact[largest], rtol=0, atol=1e-10)
    surprise = (plain.out[:, 0] - exact)[largest] ** 2 - 16 * variance[largest]
    checked = (off * weight).sum() + surprise[surprise > 0].sum()
    assert sample.checked == pytest.approx(checked, rel=1e-4)
    evenness = measured_evenness((off * weight).sum(), variance[pilot.rows] @ weight, pilot)
    variance[pilot.rows] = variance[largest] = 0
    assert sample.variance == pytest.approx(evenness * variance.sum())
    assert sample.upper == pytest.approx(upper(variance, case.query_blocks))
    assert sample.pairs == (plain.n_drawn * case.query_blocks.sizes).sum() + 16 * 400


def test_rows_that_stand_out_are_mended() -> None:
    """With few pairs found some rows have most of the variance: these become exact, cost a row of
    pairs each, and leave an error below what is allowed by the estimate and in truth."""
    case = clustered()
    x = np.ones(400)
    rate, found = uneven_rates(case, 0.5), case.pairs(0.05, recall=0.97)
    exact = case.K @ x
    drawn = Compiled(1).sampled_product(
        case.geometry,
        plan_of(case, rate, x, 0)._replace(seed=1),
        found,
        x[:, None],
    )
    _, pilot = draw_of(case, x, rate, found)
    variance = np.maximum(drawn.variance, 0.0)
    variance[pilot.rows] = 0.0
    allowed = 0.5 * upper(variance, case.query_blocks)
    sample, _ = draw_of(
        case, x, rate, found, allowed=allowed, missing=Missing(0.0, 0.0), most_rows=300
    )
    assert 0 < sample.n_mended < 150
    n_pairs = (drawn.n_drawn * case.query_blocks.sizes).sum()
    assert sample.pairs == n_pairs + (sample.n_mended + 16) * 400
    changed = np.setdiff1d(np.flatnonzero(sample.y != drawn.out[:, 0]), pilot.rows)
    assert len(changed) == sample.n_mended + 16
    np.testing.assert_allclose(sample.y[changed], exact[changed], rtol=1e-9)
    assert sample.upper <= allowed
    assert 0 < sample.left_out <= sample.variance <= sample.upper
    assert ((sample.y - exact) ** 2).sum() <= allowed
    # Pilot rows with a variance like theirs are not held against the others.
    worst = np.argsort(variance)[-sample.n_mended :]
    kept = drawn.variance[pilot.rows] < variance[worst].min()
    off = (drawn.out[:, 0] - exact) ** 2
    others = np.setdiff1d(changed, worst)
    surprise = np.maximum(off[others] - 16 * variance[others], 0.0)
    checked = (off[pilot.rows] * pilot.stands_for)[kept].sum() + surprise.sum()
    assert sample.checked == pytest.approx(checked, rel=1e-4)


def test_an_error_that_the_variance_does_not_show_is_seen() -> None:
    """Rows whose error is the entry of x itself, at no variance at all: with entries of very
    different sizes nearly all of it is in rows that no pilot meets, and it is seen all the same.
    """
    n, rng = 600, np.random.default_rng(5)
    points, x = rng.standard_normal((n, 3)), rng.standard_cauchy((n, 1))
    kernel = prepare(points, points, 1.0)
    blocks, tiles = norm_order(kernel.geometry, 100, 100)
    size = np.abs(x[:, 0])
    pilot = run_pilot(
        kernel.geometry,
        size,
        blocks,
        tiles,
        rows_per_block=3,
        threshold=2.0,
        rng=rng,
        n_threads=1,
    )
    exact, error = kernel.product(x).out, float(np.square(x).sum())
    assert float(pilot.stands_for @ x[pilot.rows, 0] ** 2) < 0.1 * error
    allowed = 0.25 * error
    judge = Judge(kernel, x, blocks, pilot, exact[pilot.rows], allowed, 0.05)
    none, n_drawn = np.zeros(n), np.zeros(len(blocks.sizes), np.int64)
    for off, above in ((x, True), (np.zeros_like(x), False)):
        sums = SampledSums(exact + off, none, none, n_drawn)
        sample = judge(sums, Missing(0.0, 0.0), pairs=0, most_rows=0, evenly=True)
        assert sample.upper <= allowed
        assert (sample.checked > allowed) == above


def judged(variance: np.ndarray, off: np.ndarray) -> tuple[Any, Any]:
    """A made-up draw of 300 rows: variances, and by how much each row is off."""
    case = clustered()
    x = np.ones((400, 1))
    _, pilot = draw_of(case, x[:, 0], np.ones((5, 8)), FoundPairs.none(300))
    exact = case.kernel.product(x).out
    judge = Judge(case.kernel, x, case.query_blocks, pilot, exact[pilot.rows], 1.0, 0.05)
    n_drawn = np.zeros(len(case.query_blocks.sizes), np.int64)
    sums = SampledSums(exact + off[:, None], variance, np.zeros(300), n_drawn)
    return judge(sums, Missing(0.0, 0.0), pairs=0, most_rows=300, evenly=False), pilot


def test_only_rows_like_those_kept_check_the_answer() -> None:
    """A pilot row that would have been mended is not held against the rows that were not."""
    variance, off = np.full(300, 1e-3), np.full(300, 0.02)
    _, pilot = judged(variance, off)
    pilot_row, other = pilot.rows[0], np.setdiff1d(np.arange(300), pilot.rows)[:2]
    usual = float((pilot.stands_for * 0.02**2).sum())
    assert judged(variance, off)[0].checked == pytest.approx(usual)
    off[pilot_row], variance[pilot_row] = 7.0, 50.0
    # No other row has such a variance: nothing says that it would have been mended.
    assert judged(variance, off)[0].checked > 49 * pilot.stands_for[0]
    off[other], variance[other] = np.sqrt([40.0, 60.0]), [40.0, 60.0]
    sample, _ = judged(variance, off)
    assert sample.n_mended == 2
    assert sample.checked == pytest.approx(usual - pilot.stands_for[0] * 0.02**2)
    # With a smaller variance than theirs, it counts.
    variance[pilot_row] = 39.0
    assert judged(variance, off)[0].checked > 49 * pilot.stands_for[0]


def test_mending_ends_where_it_shows_too_much_unseen() -> None:
    """Rows whose variance is not their error lack what others lack, too: after the first of them
    the limit is told as it is, and no more are computed."""
    variance = np.linspace(1e-3, 2e-3, 300)
    variance[::10] = 0.05
    sample, _ = judged(variance, np.zeros(300))
    right, _ = judged(variance, np.sqrt(variance))
    assert 0 < sample.n_mended == right.n_mended < 30
    assert sample.left_out > 0.5
    assert sample.upper > 1 >= right.upper
    assert right.left_out < 1e-9


def test_more_draws_are_one_larger_draw() -> None:
    """Draws at two rates, weighed by these: products, variances and masses are right on average
    over 600 streams, the mean squared error is the variance, and about that of one draw at the
    sum of the rates."""
    case = clustered(m=120, n=240, rows_per_block=40)
    rng = np.random.default_rng(3)
    size, found, rate = np.ones(240), case.pairs(0.05, 0.5), uneven_rates(case, 0.1)
    squares = case.K**2
    squares[found.rows, found.cols] = 0
    once, more, all_in_one = (inclusion(case, f * rate, size) for f in (1.0, 0.5, 1.5))
    a, b = 2 / 3, 1 / 3
    variance = (a**2 * (1 / once - 1) + b**2 * (1 / more - 1)) * squares
    mass = (a * (1 - once) + b * (1 - more)) * squares
    variances, masses, errors = [], [], []
    for stream in range(N_STREAMS):
        x = rng.choice([-1.0, 1.0], 240)
        first, second = (
            Draws(
                Compiled(1).sampled_product(
                    case.geometry,
                    plan_of(case, f * rate, x, 2 * stream + i),
                    found,
                    x[:, None],
                ),
                np.full(len(case.query_blocks.sizes), f),
            )
            for i, f in enumerate((1.0, 0.5))
        )
        both = first.with_more(second, case.query_blocks)
        assert (both.factor == 1.5).all()
        np.testing.assert_array_equal(both.sums.n_drawn, first.sums.n_drawn + second.sums.n_drawn)
        variances.append(both.sums.variance.sum())
        masses.append(both.sums.mass.sum())
        errors.append(both.sums.out[:, 0] - case.K @ x)
    squared = np.square(errors).sum(axis=1)
    for values, want in ((variances, variance), (masses, mass), (squared, variance)):
        standard_error = np.std(values, ddof=1) / np.sqrt(N_STREAMS)
        assert abs(np.mean(values) - want.sum()) <= z_of(3) * standard_error
        assert standard_error < 0.05 * want.sum()
    standard_error = np.std(errors, axis=0, ddof=1) / np.sqrt(N_STREAMS)
    assert (np.abs(np.mean(errors, axis=0)) <= z_of(120) * standard_error).all()
    assert variance.sum() == pytest.approx(((1 / all_in_one - 1) * squares).sum(), rel=0.15)


def test_more_draws_are_weighed_block_by_block() -> None:
    case = clustered(m=120, n=240, rows_per_block=40)
    ones = SampledSums(np.ones((120, 1)), np.ones(120), np.ones(120), np.ones(3, np.int64))
    twos = SampledSums(*(2 * part for part in ones))
    both = Draws(ones, np.array([1.0, 2.0, 3.0])).with_more(
        Draws(twos, np.array([3.0, 2.0, 1.0])), case.query_blocks
    )
    a = np.array([0.25, 0.5, 0.75])[case.query_blocks.block_of]
    np.testing.assert_allclose(both.sums.out[:, 0], a + 2 * (1 - a))
    np.testing.assert_allclose(both.sums.variance, a**2 + 2 * (1 - a) ** 2)
    np.testing.assert_allclose(both.sums.mass, a + 2 * (1 - a))
    np.testing.assert_array_equal(both.sums.n_drawn, [3, 3, 3])
    np.testing.assert_array_equal(both.factor, [4.0, 4.0, 4.0])


def test_usual_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some blocks, as many of the rows that stand out left out as their share of all rows."""
    monkeypatch.setattr(sample, "_ALWAYS_MENDED", 1.0)
    monkeypatch.setattr(sample, "_MOST_ALWAYS_MENDED", 6)
    order = np.random.default_rng(0).permutation(600).astype(np.int32)
    blocks = sample.Blocks(order, np.array([0, 200, 400, 600]), np.empty(600, np.int32))
    blocks.block_of[order] = np.repeat(np.arange(3, dtype=np.int32), 200)
    variance = np.full(600, 2.0)
    variance[order[[5, 6, 250, 251]]] = -1.0, 900.0, 1000.0, 1100.0
    # In the first two blocks four of six may be left out; in the second alone two.
    for some, want in (([0, 1], [396.0, 396.0]), ([1], [396.0]), ([2], [400.0])):
        got = sample.usual_variance(variance, blocks, np.array(some))
        np.testing.assert_allclose(got, want)
    monkeypatch.setattr(sample, "_MOST_ALWAYS_MENDED", 1)
    got = sample.usual_variance(variance, blocks, np.array([0, 1]))
    np.testing.assert_allclose(got, [396.0 + 900, 396.0 + 1000])


def test_what_the_search_misses_counts_as_error() -> None:
    """What is expected to be missing is part of the estimate, and its limit part of the limit."""
    case = clustered()
    x, rate, found = np.ones(400), uneven_rates(case, 0.5), case.pairs(0.05)
    plain, _ = draw_of(case, x, rate, found)
    sample, _ = draw_of(case, x, rate, found, missing=Missing(2.0, 3.0))
    assert sample.variance == pytest.approx(plain.variance + 2)
    assert sample.upper == pytest.approx(plain.upper + 3)
    assert sample.left_out == 3
    # Less is left for the draws: rows are mended that would not be otherwise.
    most = {"allowed": plain.upper + 1, "most_rows": 300}
    assert draw_of(case, x, rate, found, **most)[0].n_mended == 0
    assert draw_of(case, x, rate, found, **most, missing=Missing(2.0, 3.0))[0].n_mended > 0


def test_evenness_makes_the_estimate_smaller_never_larger() -> None:
    """As measured where there are many blocks, nearly 1 where there are few, never above 1."""
    _, pilot = draw_of(clustered(), np.ones(400), np.ones((5, 8)), clustered().pairs(0.05))
    many, few = replace(pilot, n_blocks=100_000), replace(pilot, n_blocks=1)
    assert measured_evenness(0.5, 1.0, many) == pytest.approx(0.5, abs=1e-3)
    assert 0.9 < measured_evenness(0.5, 1.0, few) < 1
    assert measured_evenness(5.0, 1.0, many) == measured_evenness(1.0, 0.0, many) == 1
    assert measured_evenness(0.0, 1.0, many) == 0.25


def test_rows_that_stand_out_are_mended_in_any_case() -> None:
    """Those with 30 times the mean, at most one in a thousand and 128, the largest first."""
    variance = np.ones(10_000)
    variance[[7, 70, 700]] = 1000, 3000, 2000
    np.testing.assert_array_equal(standing_out(variance, 100), [7, 70, 700])
    np.testing.assert_array_equal(standing_out(variance, 2), [70, 700])
    variance[100:120] = 5000
    np.testing.assert_array_equal(standing_out(variance, 100), np.arange(110, 120))
    for nothing in (np.ones(10_000), np.zeros(10_000), variance[:999]):
        assert len(standing_out(nothing, 100)) == 0
    assert len(standing_out(variance, -3)) == 0
    many = np.ones(1_000_000)
    many[:500] = 1e6 + np.arange(500)
    np.testing.assert_array_equal(standing_out(many, 10_000), np.arange(372, 500))
