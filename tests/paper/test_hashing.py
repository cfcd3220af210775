"""Lemma 2.1: collision probabilities are what the families say they are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from approxkmv.exact import gaussian_kernel
from approxkmv.paper.hashing import (
    E2LSH,
    BallCarving,
    CrossPolytope,
    n_tables_for_recall,
    near_radius,
    recall,
)

PRIVATE = np.uint64(1 << 63)


def pairs_at(distance, count, n_dims, rng, *, sphere):
    """Pairs of points at one distance: on the unit sphere, or anywhere."""
    p = rng.standard_normal((count, n_dims))
    direction = rng.standard_normal((count, n_dims))
    if not sphere:
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return 3 * p, 3 * p + distance * direction
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    direction -= (direction * p).sum(axis=1, keepdims=True) * p
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    cosine = 1 - distance**2 / 2
    return p, cosine * p + math.sqrt(1 - cosine**2) * direction


def check_rate(family, distance, *, n_draws, sphere=False, seed=0):
    """The collision rate over draws lies within 3 standard errors of the formula.

    Each draw hashes 100 pairs; the standard error is that of the means of draws, since pairs hashed
    by one function are not independent.
    """
    rng = np.random.default_rng(seed)
    rates = np.empty(n_draws)
    for i in range(n_draws):
        p, q = pairs_at(distance, 100, family.n_dims, rng, sphere=sphere)
        h = family.draw(rng)
        rates[i] = (h(p) == h(q)).mean()
    standard_error = rates.std(ddof=1) / math.sqrt(n_draws)
    assert standard_error > 0
    expected = float(family.collision_probability(distance))
    assert abs(rates.mean() - expected) < 3 * standard_error, (rates.mean(), expected)


@pytest.mark.parametrize("n_bits", [1, 3])
@pytest.mark.parametrize("distance", [0.5, 2.0, 6.0])
def test_e2lsh_rate(distance, n_bits):
    check_rate(E2LSH(n_dims=6, n_bits=n_bits, bucket_width=4.0), distance, n_draws=1000)


@pytest.mark.parametrize(("n_projections", "n_bits"), [(1, 1), (3, 1), (3, 2), (5, 1)])
@pytest.mark.parametrize("distance", [0.4, 1.0, 1.8])
def test_ball_carving_rate(distance, n_projections, n_bits):
    """Thirty grids: at three projections 13% of the points stay uncovered, so U counts."""
    family = BallCarving(
        n_dims=7, n_bits=n_bits, n_projections=n_projections, ball_radius=1.1, n_grids=30
    )
    check_rate(family, distance, n_draws=400)


@pytest.mark.parametrize("n_bits", [1, 2])
@pytest.mark.parametrize("cosine", [0.95, 0.7, 0.2])
def test_cross_polytope_rate(cosine, n_bits):
    family = CrossPolytope(n_dims=10, n_bits=n_bits, n_directions=12)
    check_rate(family, math.sqrt(2 - 2 * cosine), n_draws=800, sphere=True)


def test_cross_polytope_radius():
    """Points on a sphere of radius 5 collide as on the unit sphere at a fifth of the distance."""
    unit, wide = CrossPolytope(4, 1, 8), CrossPolytope(4, 1, 8, radius=5.0)
    chords = np.array([0.0, 0.3, 1.0, 2.0])
    np.testing.assert_allclose(
        wide.collision_probability(5 * chords), unit.collision_probability(chords)
    )
    assert unit.collision_probability(0.0) == 1
    assert unit.collision_probability(2.0) == 0


@pytest.mark.parametrize("n_directions", [1, 4, 64])
def test_cross_polytope_orthogonal_points(n_directions):
    """Independent projections: each of the 2D values is equally likely, so 1/(2D)."""
    family = CrossPolytope(3, 1, n_directions)
    expected = 1 / (2 * n_directions)
    assert float(family.collision_probability(math.sqrt(2))) == pytest.approx(expected, rel=1e-9)


def test_uncovered_fraction():
    """Ball carving leaves (1-v)^U of the points uncovered, within 3 standard errors of draws."""
    family = BallCarving(n_dims=5, n_bits=1, n_projections=3, ball_radius=0.8, n_grids=25)
    v = 4 / 3 * math.pi / 4**3
    rng = np.random.default_rng(3)
    points = 10 * rng.standard_normal((500, 5))
    fractions = np.array([(family.draw(rng)(points) >= PRIVATE).mean() for _ in range(400)])
    standard_error = fractions.std(ddof=1) / math.sqrt(len(fractions))
    assert abs(fractions.mean() - (1 - v) ** 25) < 3 * standard_error
    assert 1 - family.covered == pytest.approx((1 - v) ** 25)


def test_uncovered_points_never_collide():
    """Not with each other, not with covered ones, and not with themselves hashed again."""
    family = BallCarving(n_dims=2, n_bits=2, n_projections=2, ball_radius=0.5, n_grids=5)
    h = family.draw(np.random.default_rng(0))
    points = np.zeros((300, 2)) + np.arange(300)[:, None] * 0.01
    first, again = h(points), h(points)
    alone = first >= PRIVATE
    assert 0 < alone.sum() < 300
    assert len(np.unique(np.concatenate([first[alone], again[alone]]))) == 2 * alone.sum()
    np.testing.assert_array_equal(first[~alone], again[~alone])


@pytest.mark.parametrize("n", [50, 1000, 4096, 65536, 10**6])
@pytest.mark.parametrize("alpha", [0.2, 1 / 3, 0.5])
def test_lemma_21_near(n, alpha):
    """Lemma 2.1 (i) at finite n: at least n^-α everywhere up to r_near, with equality there."""
    threshold = n**-alpha
    family = BallCarving.for_lemma(n, threshold=threshold, bandwidth=1.7, n_dims=10)
    radius = near_radius(1.7, threshold)
    assert float(family.collision_probability(radius)) == pytest.approx(threshold, rel=1e-9)
    nearer = family.collision_probability(radius * np.linspace(0, 1, 15))
    assert (nearer >= threshold * (1 - 1e-9)).all()
    assert (np.diff(nearer) < 0).all()


def test_lemma_21_far_is_weaker_than_its_limit():
    """Lemma 2.1 (ii): at finite n the exponent at c r_near is above α but below the limit α c².

    The o(1) of the lemma, lnln n / ln^(1/3) n with constant 1, is at least 1 for every n from 10³
    to 10⁴⁰, so the lemma promises nothing there; the family itself still gains over c = 1.
    """
    for n in 10.0 ** np.arange(3, 41):
        assert math.log(math.log(n)) / math.log(n) ** (1 / 3) >= 1
    n, alpha = 10**6, 1 / 3
    family = BallCarving.for_lemma(n, threshold=n**-alpha, bandwidth=1.0, n_dims=10)
    radius = near_radius(1.0, n**-alpha)
    for c in [math.sqrt(2), math.sqrt(3)]:
        exponent = -math.log(float(family.collision_probability(c * radius))) / math.log(n)
        assert alpha < exponent < alpha * c**2


def test_ball_carving_is_no_better_than_e2lsh_at_affordable_dimension():
    """The exponent ln p(r)/ln p(√3 r), best width of each: 0.53 both, where the limit says 1/3."""

    def exponent(make):
        widths = np.arange(0.6, 5, 0.1)
        near = np.array([float(make(w).collision_probability(1.0)) for w in widths])
        far = np.array([float(make(w).collision_probability(math.sqrt(3))) for w in widths])
        return (np.log(near) / np.log(far)).min()

    balls = exponent(lambda w: BallCarving(9, 1, 8, w, 10**7))
    lines = exponent(lambda w: E2LSH(9, 1, w))
    assert lines < balls < 0.54
    assert lines > 0.52


def test_e2lsh_limits():
    family = E2LSH(3, 2, 1.5)
    assert family.collision_probability(0.0) == 1
    assert family.collision_probability(1e300) == 0
    assert family.collision_probability(1e-300) == 1
    assert (np.diff(family.collision_probability(np.geomspace(1e-3, 1e3, 50))) < 0).all()


def test_labels_agree_exactly_when_codes_do():
    """One label per distinct code, no more and no fewer, over 50,000 points of a coarse grid."""
    family = E2LSH(n_dims=4, n_bits=5, bucket_width=1.0)
    h = family.draw(np.random.default_rng(5))
    points = np.random.default_rng(6).integers(-8, 8, (50_000, 4)).astype(float)
    codes = np.floor(points @ h.directions + h.offsets)
    assert len(np.unique(h(points))) == len(np.unique(codes, axis=0)) > 10_000


@pytest.mark.alone
def test_hashing_is_fast():
    """65,536 points of 64 dimensions and 16 bits: 10 ms alone; 0.2 s of processor at most."""
    import time

    points = np.random.default_rng(0).standard_normal((65_536, 64), dtype=np.float32)
    h = E2LSH(64, 16, 4.0).draw(np.random.default_rng(1))
    h(points)
    start = time.process_time()
    h(points)
    assert time.process_time() - start < 0.2


def test_recall_and_its_inverse():
    """The number of tables is the smallest that reaches the recall."""
    for p in [1e-4, 0.03, 0.5, 1.0]:
        for wanted in [0.5, 0.95, 0.999]:
            tables = n_tables_for_recall(p, wanted)
            assert recall(p, tables) >= wanted * (1 - 1e-12)
            assert tables == 1 or recall(p, tables - 1) < wanted
    np.testing.assert_allclose(recall([0.1, 0.2], 7), 1 - np.array([0.9, 0.8]) ** 7)


def test_near_radius():
    """E1: K(r_near) = n^-α with 2σ² in the exponent; with the introduction's 2σ it is not."""
    n, alpha, sigma = 1000, 1 / 3, 2.5
    r = near_radius(sigma, n**-alpha)
    assert gaussian_kernel([[0.0]], [[r]], sigma)[0, 0] == pytest.approx(n**-alpha, rel=1e-14)
    assert math.exp(-(r**2) / (2 * sigma)) < 0.1 * n**-alpha


def test_threshold_above_cover_is_refused():
    with pytest.raises(ValueError, match="grids cover"):
        BallCarving.for_lemma(100, threshold=0.9999, bandwidth=1.0, n_dims=3)
