"""Rows recomputed exactly, and the error of all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draw_cases import plan_of, uneven_rates, z_of
from engine_cases import Case, clustered

from approxkmv.engine import exact_rows
from approxkmv.engine.exact_rows import (
    ExactRows,
    measured_evenness,
    rows_to_recompute,
    standing_out,
    unseen_error,
    usual_variance,
)
from approxkmv.engine.neighbours.missing import Missing
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.result import Result
from approxkmv.engine.statistics import spread
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import FoundPairs, SampledSums


def even_blocks(n: int, n_blocks: int) -> Blocks:
    order = np.arange(n, dtype=np.int32)
    start = np.linspace(0, n, n_blocks + 1).astype(np.int64)
    return Blocks(order, start, np.repeat(np.arange(n_blocks, dtype=np.int32), np.diff(start)))


def upper(variance: np.ndarray, blocks: Blocks, delta: float = 0.05) -> float:
    by_block = np.bincount(blocks.block_of, variance, len(blocks.sizes))
    return float(variance.sum() * spread(by_block, delta))


def test_rows_to_recompute_are_the_fewest_that_will_do() -> None:
    """Ordinary rows and a few that stand out: without the chosen ones the error is within its
    budget; without one fewer it is not, but for the margin of 0.97. They are the largest.
    """
    blocks = even_blocks(1000, 20)
    rng = np.random.default_rng(0)
    variance = rng.uniform(0.5, 1.5, 1000)
    variance[rng.choice(1000, 30, replace=False)] = 10.0 ** rng.uniform(1, 4, 30)
    unseen = 1e-4 * variance
    for budget in (1700.0, 2000.0, 3000.0):
        some = rows_to_recompute(variance, unseen, blocks, budget, 0.05, 1000)
        assert 0 < len(some) < 35
        assert (np.diff(some) > 0).all()
        kept = np.ones(1000, np.bool_)
        kept[some] = False
        assert variance[some].min() >= variance[kept].max()
        rest = np.where(kept, variance, 0.0)
        assert upper(rest, blocks) + unseen[some].sum() <= budget
        rest[some[variance[some].argmin()]] = variance[some].min()
        assert upper(rest, blocks) + 1.3 * unseen[some].sum() > 0.97 * budget


def test_no_row_is_recomputed_without_need() -> None:
    blocks = even_blocks(100, 5)
    variance = np.ones(100)
    most = upper(variance, blocks)
    none = np.zeros(100)
    assert len(rows_to_recompute(variance, none, blocks, most * 1.001, 0.05, 100)) == 0
    assert len(rows_to_recompute(variance, none, blocks, most * 0.999, 0.05, 0)) == 0
    assert 0 < len(rows_to_recompute(variance, none, blocks, most * 0.999, 0.05, 100)) < 20


def test_no_more_rows_are_recomputed_than_agreed() -> None:
    blocks = even_blocks(100, 5)
    variance = np.arange(100.0)
    some = rows_to_recompute(variance, np.zeros(100), blocks, 1.0, 0.05, 7)
    np.testing.assert_array_equal(some, np.arange(93, 100))


def test_rows_that_leave_much_unseen_do_not_help() -> None:
    """A recomputed row whose like were not drawn leaves their squares: more must be recomputed."""
    blocks = even_blocks(1000, 20)
    variance = np.ones(1000)
    variance[:50] = 100.0
    budget = 3000.0
    few = rows_to_recompute(variance, np.zeros(1000), blocks, budget, 0.05, 1000)
    more = rows_to_recompute(variance, 0.2 * variance, blocks, budget, 0.05, 1000)
    assert 0 < len(few) < len(more)


@pytest.mark.parametrize("n_missed", [1, 2, 4, 8])
@pytest.mark.parametrize("pi", [0.01, 0.002])
def test_unseen_error(n_missed: int, pi: float) -> None:
    """Rows with several equal missed pairs of one sign, each drawn with probability pi: the rows in
    which one was drawn are recomputed, and show the error of those in which none was, n_missed^2 in
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


def rows_of(case: Case, x: np.ndarray, pilot: Pilot, budget: float) -> ExactRows:
    products = case.kernel.at_queries(pilot.rows).product(x).out
    rng = np.random.default_rng(0)
    return ExactRows(Problem(case.kernel, x, Budget(budget, 0.05), rng), pilot, products)


def draw_of(
    case: Case,
    x: np.ndarray,
    rate: np.ndarray,
    found: FoundPairs,
    *,
    budget: float = np.inf,
    missing: Missing = Missing(0.0, 0.0),  # noqa: B008
    most_rows: int = 0,
) -> tuple[Result, Pilot]:
    pilot = run_pilot(
        case.kernel,
        np.abs(x),
        case.query_blocks,
        case.key_tiles,
        rows_per_block=4,
        threshold=0.05,
        rng=np.random.default_rng(0),
    )
    plan = plan_of(case, np.minimum(rate, np.finfo(np.float32).max), x, 0)._replace(seed=1)
    sums = Compiled(1).sampled_product(case.geometry, plan, found, x[:, None])
    drawn = sums.out.copy()
    result = rows_of(case, x[:, None], pilot, budget).result(
        sums,
        missing,
        pairs=int((sums.n_drawn * case.query_blocks.sizes).sum()),
        most_rows=most_rows,
        evenly=True,
        reason="",
    )
    np.testing.assert_array_equal(sums.out, drawn)
    return replace(result, y=result.y[:, 0]), pilot


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
    assert sample.n_recomputed == sample.left_out == 0
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


def test_rows_that_stand_out_are_recomputed() -> None:
    """With few pairs found some rows have most of the variance: these become exact, cost a row of
    pairs each, and leave an error below what is budget by the estimate and in truth."""
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
    budget = 0.5 * upper(variance, case.query_blocks)
    sample, _ = draw_of(
        case, x, rate, found, budget=budget, missing=Missing(0.0, 0.0), most_rows=300
    )
    assert 0 < sample.n_recomputed < 150
    n_pairs = (drawn.n_drawn * case.query_blocks.sizes).sum()
    assert sample.pairs == n_pairs + (sample.n_recomputed + 16) * 400
    changed = np.setdiff1d(np.flatnonzero(sample.y != drawn.out[:, 0]), pilot.rows)
    assert len(changed) == sample.n_recomputed + 16
    np.testing.assert_allclose(sample.y[changed], exact[changed], rtol=1e-9)
    assert sample.upper <= budget
    assert 0 < sample.left_out <= sample.variance <= sample.upper
    assert ((sample.y - exact) ** 2).sum() <= budget
    # Pilot rows with a variance like theirs are not held against the others.
    worst = np.argsort(variance)[-sample.n_recomputed :]
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
        kernel,
        size,
        blocks,
        tiles,
        rows_per_block=3,
        threshold=2.0,
        rng=rng,
    )
    exact, error = kernel.product(x).out, float(np.square(x).sum())
    assert float(pilot.stands_for @ x[pilot.rows, 0] ** 2) < 0.1 * error
    budget = 0.25 * error
    rows = ExactRows(Problem(kernel, x, Budget(budget, 0.05), rng), pilot, exact[pilot.rows])
    none, n_drawn = np.zeros(n), np.zeros(len(blocks.sizes), np.int64)
    for off, above in ((x, True), (np.zeros_like(x), False)):
        sums = SampledSums(exact + off, none, none, n_drawn)
        sample = rows.result(sums, Missing(0.0, 0.0), pairs=0, most_rows=0, evenly=True, reason="")
        assert sample.upper <= budget
        assert (sample.checked > budget) == above


def judged(variance: np.ndarray, off: np.ndarray) -> tuple[Any, Any]:
    """A made-up draw of 300 rows: variances, and by how much each row is off."""
    case = clustered()
    x = np.ones((400, 1))
    _, pilot = draw_of(case, x[:, 0], np.ones((5, 8)), FoundPairs.none(300))
    exact = case.kernel.product(x).out
    rows = rows_of(case, x, pilot, 1.0)
    n_drawn = np.zeros(len(case.query_blocks.sizes), np.int64)
    sums = SampledSums(exact + off[:, None], variance, np.zeros(300), n_drawn)
    result = rows.result(sums, Missing(0.0, 0.0), pairs=0, most_rows=300, evenly=False, reason="")
    return result, pilot


def test_only_rows_like_those_kept_check_the_answer() -> None:
    """A pilot row that would have been recomputed is not held against the rows that were not."""
    variance, off = np.full(300, 1e-3), np.full(300, 0.02)
    _, pilot = judged(variance, off)
    pilot_row, other = pilot.rows[0], np.setdiff1d(np.arange(300), pilot.rows)[:2]
    usual = float((pilot.stands_for * 0.02**2).sum())
    assert judged(variance, off)[0].checked == pytest.approx(usual)
    off[pilot_row], variance[pilot_row] = 7.0, 50.0
    # No other row has such a variance: nothing says that it would have been recomputed.
    assert judged(variance, off)[0].checked > 49 * pilot.stands_for[0]
    off[other], variance[other] = np.sqrt([40.0, 60.0]), [40.0, 60.0]
    sample, _ = judged(variance, off)
    assert sample.n_recomputed == 2
    assert sample.checked == pytest.approx(usual - pilot.stands_for[0] * 0.02**2)
    # With a smaller variance than theirs, it counts.
    variance[pilot_row] = 39.0
    assert judged(variance, off)[0].checked > 49 * pilot.stands_for[0]


def test_recomputing_ends_where_it_shows_too_much_unseen() -> None:
    """Rows whose variance is not their error lack what others lack, too: after the first of them
    the limit is told as it is, and no more are computed."""
    variance = np.linspace(1e-3, 2e-3, 300)
    variance[::10] = 0.05
    sample, _ = judged(variance, np.zeros(300))
    right, _ = judged(variance, np.sqrt(variance))
    assert 0 < sample.n_recomputed == right.n_recomputed < 30
    assert sample.left_out > 0.5
    assert sample.upper > 1 >= right.upper
    assert right.left_out < 1e-9


def test_usual_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some blocks, as many of the rows that stand out left out as their share of all rows."""
    monkeypatch.setattr(exact_rows, "_ALWAYS_RECOMPUTED", 1.0)
    monkeypatch.setattr(exact_rows, "_MOST_ALWAYS_RECOMPUTED", 6)
    order = np.random.default_rng(0).permutation(600).astype(np.int32)
    blocks = Blocks(order, np.array([0, 200, 400, 600]), np.empty(600, np.int32))
    blocks.block_of[order] = np.repeat(np.arange(3, dtype=np.int32), 200)
    variance = np.full(600, 2.0)
    variance[order[[5, 6, 250, 251]]] = -1.0, 900.0, 1000.0, 1100.0
    # In the first two blocks four of six may be left out; in the second alone two.
    for some, want in (([0, 1], [396.0, 396.0]), ([1], [396.0]), ([2], [400.0])):
        got = usual_variance(variance, blocks, np.array(some))
        np.testing.assert_allclose(got, want)
    monkeypatch.setattr(exact_rows, "_MOST_ALWAYS_RECOMPUTED", 1)
    got = usual_variance(variance, blocks, np.array([0, 1]))
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
    # Less is left for the draws: rows are recomputed that would not be otherwise.
    most = {"budget": plain.upper + 1, "most_rows": 300}
    assert draw_of(case, x, rate, found, **most)[0].n_recomputed == 0
    assert draw_of(case, x, rate, found, **most, missing=Missing(2.0, 3.0))[0].n_recomputed > 0


def test_evenness_makes_the_estimate_smaller_never_larger() -> None:
    """As measured where there are many blocks, nearly 1 where there are few, never above 1."""
    _, pilot = draw_of(clustered(), np.ones(400), np.ones((5, 8)), clustered().pairs(0.05))
    many, few = (
        replace(pilot, query_blocks=even_blocks(100_000, n_blocks)) for n_blocks in (100_000, 1)
    )
    assert measured_evenness(0.5, 1.0, many) == pytest.approx(0.5, abs=1e-3)
    assert 0.9 < measured_evenness(0.5, 1.0, few) < 1
    assert measured_evenness(5.0, 1.0, many) == measured_evenness(1.0, 0.0, many) == 1
    assert measured_evenness(0.0, 1.0, many) == 0.25


def test_rows_that_stand_out_are_recomputed_in_any_case() -> None:
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
