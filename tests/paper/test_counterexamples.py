"""What the instances of approxkmv.datasets.counterexamples are made to show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reckoned import Reckoned

from approxkmv.datasets import (
    below_the_floors,
    hidden_one,
    isolated,
    large_entry,
    null_space,
    rounded_squares,
    row_of_ones,
)
from approxkmv.exact import gaussian_kernel
from approxkmv.paper.approx_kmv import approx_kmv
from approxkmv.paper.approx_light import approx_light
from approxkmv.paper.baseline import nonnegative_matvec
from approxkmv.paper.density import ExactDensity
from approxkmv.paper.find_heavy import scan_all
from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT, PaperConstants, Parameters
from approxkmv.paper.preprocess import preprocess

ONES = PaperConstants(tables=1, medians=1, repetitions=1, density_medians=1)


def exact(instance):
    return gaussian_kernel(instance.queries, instance.keys, instance.bandwidth) @ instance.x


def error(instance, eps, **options):
    """Of Algorithm 3, in norms of x."""
    queries, keys, x, bandwidth = instance
    y = approx_kmv(queries, keys, x, bandwidth=bandwidth, eps=eps, rng=0, **options)
    return np.linalg.norm(exact(instance) - y) / np.linalg.norm(x)


def light(instance, eps, as_printed, **options):
    """Algorithm 2 after the steps before it, with every heavy pair found."""
    queries, keys, x, bandwidth = instance
    parameters = Parameters.printed(len(keys), eps, constants="practical")
    split = preprocess(queries, keys, x, bandwidth=bandwidth, gamma=parameters.gamma)
    heavy = scan_all(queries, keys, bandwidth=bandwidth, threshold=parameters.threshold)
    return approx_light(
        queries,
        keys,
        split.x,
        heavy,
        split.T,
        bandwidth=bandwidth,
        parameters=parameters,
        as_printed=as_printed,
        rng=np.random.default_rng(0),
        **options,
    )


def test_matrices_are_what_they_are_called():
    rows = gaussian_kernel(*row_of_ones(5)[:2], 1.0)
    np.testing.assert_array_equal(rows, np.eye(5)[[0] * 5].T)
    instance = null_space(20, rng=0)
    assert np.linalg.norm(exact(instance)) < 1e-14 * np.linalg.norm(instance.x)
    assert gaussian_kernel(*instance[:2], 1.0).min() > 0
    for hidden in (True, False):
        K = gaussian_kernel(*hidden_one(30, hidden=hidden, rng=3)[:2], 1.0)
        assert np.count_nonzero(K) == K.sum() == hidden
    np.testing.assert_array_equal(gaussian_kernel(*isolated(np.ones(4))[:2], 1.0), np.eye(4))
    with pytest.raises(ValueError, match="n must be even"):
        null_space(3, rng=0)


def test_row_of_ones_makes_the_product_longer_than_x_by_the_root_of_n():
    """So that an error of eps |Kx| is sqrt(n) errors of eps |x|."""
    for n in (16, 64):
        instance = row_of_ones(n)
        ratio = np.linalg.norm(exact(instance)) / np.linalg.norm(instance.x)
        assert ratio == pytest.approx(np.sqrt(n))


def work_on_one_row_of_ones(n):
    """Work of both algorithms for an error of |x|, densities reckoned: Backurs et al., ours."""
    queries, keys, x, _ = row_of_ones(n)
    theirs = nonnegative_matvec(
        queries, keys, x, bandwidth=1.0, eps=n**-0.5, density=Reckoned.for_accuracy, rng=0
    )
    parameters = Parameters.balanced(
        n, 1.0, constants=ONES, density_exponent=LEVEL_SETS_EXPONENT, raised_floor=True
    )
    _, ours = approx_kmv(
        queries,
        keys,
        x,
        bandwidth=1.0,
        parameters=parameters,
        never_exact=True,
        density=Reckoned.for_accuracy,
        rng=0,
        return_info=True,
    )
    return theirs.kernel_evaluations, ours.pairs + ours.hash


def test_row_of_ones_costs_the_baseline_more_and_more():
    """At the same absolute error their work over ours grows with n, by n^0.25 and more."""
    (theirs, ours), (theirs_later, ours_later) = map(work_on_one_row_of_ones, (32, 128))
    assert theirs_later / theirs > 4**2  # above n^2 at once
    assert (theirs_later / ours_later) / (theirs / ours) > 4**0.25


def test_null_space_is_out_of_reach_for_relative_errors():
    """x has both signs, which the baseline refuses; Algorithm 3 is within eps |x|, sampled too."""
    instance = null_space(64, rng=0)
    queries, keys, x, _ = instance
    with pytest.raises(ValueError, match="no negative entries"):
        nonnegative_matvec(queries, keys, x, bandwidth=1.0, eps=0.5)
    assert error(instance, 0.5) <= 0.5
    sampled = error(instance, 2.0, constants=ONES, never_exact=True)
    assert 0 < sampled <= 2.0


def test_hidden_one_is_all_of_the_product():
    """y = 0 has a relative error of 1 where the 1 is, and an error of |x|/sqrt(n).

    Hash tables find it, because the other points are far: looking at entries alone would not.
    """
    instance = hidden_one(300, rng=1)
    assert np.linalg.norm(exact(instance)) == 1
    assert np.linalg.norm(instance.x) == pytest.approx(np.sqrt(300))
    queries, keys, x, _ = instance
    y, info = approx_kmv(
        queries, keys, x, bandwidth=1.0, eps=0.5, constants="paper", rng=0, return_info=True
    )
    assert info.n_heavy_pairs == 1
    assert info.hash > 0
    np.testing.assert_array_equal(y, exact(instance))


def test_e4_large_entry_is_counted_twice():
    """As printed the output is off by the large entry: 1/sqrt(2) norms of x, whatever eps is."""
    instance = large_entry(400)
    assert error(instance, 0.1) < 1e-12
    assert error(instance, 0.1, as_printed={"E4"}) == pytest.approx(np.sqrt(0.5))


def test_e7_rounded_squares_are_drawn_for():
    """No light key has any weight, yet the printed rows ask for over 30,000 times the draws."""
    instance = rounded_squares(400, 0.2)
    corrected, printed = light(instance, 0.2, False), light(instance, 0.2, {"E7"})
    at_edges = slice(0, 399)
    ratio = printed.repetitions[at_edges] / corrected.repetitions[at_edges]
    assert ratio.min() > 30_000
    # what is left over: eps/2 of each square
    square = instance.x[0] ** 2
    left = printed.s[at_edges] - corrected.s[at_edges]
    np.testing.assert_allclose(left, 0.1 * square, rtol=1e-6)


class LowEnd(ExactDensity):
    """A density at the low end of its promise."""

    def estimate(self, queries, *, n_threads=None):
        answer = super().estimate(queries, n_threads=n_threads)
        return replace(answer, values=(1 - self.relative_error) * answer.values)


def low_end(points, *, bandwidth, floor, relative_error, sizes, rng):
    del sizes, rng
    return LowEnd(points, bandwidth, floor, relative_error)


def test_e8_printed_estimates_are_negative():
    """Signs on isolated points: with densities as low as allowed every printed s_i is below 0."""
    instance = isolated(np.random.default_rng(0).choice([-1.0, 1.0], 100))
    printed = light(instance, 0.2, {"E8", "E9"}, density=low_end)
    corrected = light(instance, 0.2, False, density=low_end)
    b = 100**-0.218
    np.testing.assert_allclose(printed.s, -(b**2), rtol=1e-6)
    assert (corrected.s >= 0).all()


def test_e9_buckets_below_their_floors():
    """The row's light keys are all in buckets below their floors, and make twice the tolerance."""
    n, eps = 2000, 0.1
    instance = below_the_floors(n, eps)
    printed = light(instance, eps, {"E9", "E15"})
    assert len(printed.buckets) > 200
    assert printed.s[0] == 0
    small = instance.x.copy()
    small[-1] = 0.0
    missed = (gaussian_kernel(instance.queries[:1], instance.keys, 1.0) @ small)[0]
    assert missed > 1.8 * eps / 2
    assert printed.z[0] == 0
    assert abs(light(instance, eps, False).z[0] - missed) <= eps / 2
