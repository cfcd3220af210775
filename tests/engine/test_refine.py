"""The loop that draws until the error is met, and how draws are added up."""

from __future__ import annotations

import numpy as np
import pytest
from draw_cases import N_STREAMS, plan_of, uneven_rates, z_of
from engine_cases import clustered, inclusion

from approxkmv.engine.policy import Margins
from approxkmv.engine.refine import Draws, Sums, Verdict, refine
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import SampledSums


class Counted:
    """Draws nothing; the error over the budget falls with the rates drawn at, and is ``needed``
    over their sum. It writes down what it was asked for."""

    def __init__(self, needed: float, *, n_blocks: int = 16, learns: int = 0, **margins: float):
        settings = {"most_draws": 4, "fewest_blocks": 64} | margins
        self.needed, self.n_blocks, self.learns = needed, n_blocks, learns
        self.margins = Margins(**settings)  # type: ignore[arg-type]
        self.block_of = np.arange(n_blocks)
        self.asked: list[tuple[float, int, str]] = []

    def first_factor(self) -> float:
        return 1.0

    def check_cost(self, factor: float) -> None:
        if factor > 100:
            raise Refusal("too dear")

    def draw(
        self,
        factor: float,
        stream: int,
        *,
        before: Draws | None = None,
        blocks: np.ndarray | None = None,
        into: Sums | None = None,
    ) -> SampledSums:
        which = "all" if blocks is None else f"{len(blocks)} blocks"
        self.asked.append((factor, stream, which))
        none = np.zeros(self.n_blocks)
        return SampledSums(none[:, None], none, none, np.ones(self.n_blocks, np.int64))

    def calibrated(self, seen: Sums, blocks: np.ndarray, factor: float) -> float:
        return 2.0 * factor

    def judge(self, drawn: Draws, new: Draws) -> Verdict[float]:
        factor = float(drawn.factor.mean())
        return Verdict(factor, self.needed / factor, pairs=10)

    def improve(self, verdict: Verdict[float], trace: Trace) -> bool:
        self.learns -= 1
        return self.learns >= 0


def test_one_draw_where_it_is_enough() -> None:
    scheme, trace = Counted(0.9), Trace()
    assert refine(scheme, trace) == 1.0
    assert scheme.asked == [(1.0, 0, "all")]
    assert trace.pairs == 10
    assert trace.numbers["draws"] == 1
    assert "draw" in trace.seconds


def test_draws_are_topped_up_by_what_is_missing() -> None:
    """Twice the rates are needed: 1.15 times what is missing is added, in a stream of its own."""
    scheme, trace = Counted(2.0), Trace()
    assert refine(scheme, trace) == pytest.approx(2.3)
    assert scheme.asked[1] == (pytest.approx(1.3), 1, "all")
    assert trace.pairs == 20


def test_draws_are_replaced_after_something_was_learnt() -> None:
    """At 1.3 times what was missing, and what was drawn before does not count."""
    scheme = Counted(2.0, learns=1)
    assert refine(scheme, Trace()) == pytest.approx(2.6)
    assert [factor for factor, *_ in scheme.asked] == [1.0, pytest.approx(2.6)]


def test_some_blocks_calibrate_the_others() -> None:
    """One block in eight is drawn first, where there are enough; the rates of these stay."""
    scheme = Counted(1.0, n_blocks=64)
    assert refine(scheme, Trace()) == pytest.approx((8 * 1 + 56 * 2) / 64)
    assert scheme.asked == [(1.0, 0, "8 blocks"), (2.0, 0, "56 blocks")]


def test_what_cannot_be_met_is_refused() -> None:
    for scheme, reason in (
        (Counted(1e9), "did not come down"),
        (Counted(1e9, largest_ratio=1e6), "too dear"),
        (Counted(5.0, hopeless=4.0), "far from"),
    ):
        trace = Trace()
        with pytest.raises(Refusal, match=reason):
            refine(scheme, trace)
        # What was spent in vain counts all the same.
        assert trace.pairs == 10 * (len(scheme.asked))


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
        both = first.with_more(second, case.query_blocks.block_of)
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
        Draws(twos, np.array([3.0, 2.0, 1.0])), case.query_blocks.block_of
    )
    a = np.array([0.25, 0.5, 0.75])[case.query_blocks.block_of]
    np.testing.assert_allclose(both.sums.out[:, 0], a + 2 * (1 - a))
    np.testing.assert_allclose(both.sums.variance, a**2 + 2 * (1 - a) ** 2)
    np.testing.assert_allclose(both.sums.mass, a + 2 * (1 - a))
    np.testing.assert_array_equal(both.sums.n_drawn, [3, 3, 3])
    np.testing.assert_array_equal(both.factor, [4.0, 4.0, 4.0])
