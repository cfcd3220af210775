r"""Locality-sensitive hash families with exact collision probabilities (Lemma 2.1).

Three families satisfy one protocol, :class:`HashFamily`: ``BallCarving`` is the one the paper's
lemma is about (Andoni and Indyk 2006, as Claim 19 of Charikar et al. 2020); ``E2LSH`` is the
p-stable projection of Datar et al. 2004; ``CrossPolytope`` is for points on a sphere. Each
concatenates ``n_bits`` independent functions and returns one 64-bit label per point.

Labels mix the codes c_1, ..., c_k of a point as Σ r_i c_i mod 2^64 with random r_i. Two different
codes then get one label with probability 2^(s-64), where 2^s is the largest power of two that
divides all the differences: below 2^-40 while codes stay below 2^24 in size. Such a clash makes one
more candidate to look at and nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

Array = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint64]

_PRIVATE = np.uint64(1 << 63)  # labels with the top bit set belong to one uncovered point each

_CARVE_AT_ONCE = 1 << 15  # points times grids: 256 kB of distances, inside the cache


class HashFunction(Protocol):
    """One function drawn from a family: points in, one label per point out."""

    def __call__(self, points: Array, /) -> Labels:
        """Labels of the rows of ``points``; two points collide when their labels are equal."""
        ...


class HashFamily(Protocol):
    """A family of hash functions whose collision probability depends on the distance only."""

    @property
    def n_bits(self) -> int:
        """Independent functions joined in one label."""
        ...

    def draw(self, rng: np.random.Generator, /) -> HashFunction:
        """One function at random."""
        ...

    def collision_probability(self, distance: npt.ArrayLike, /) -> Float:
        """Exact probability that two points at this distance get one label."""
        ...


def near_radius(bandwidth: float, threshold: float) -> float:
    """Distance at which the kernel equals ``threshold``: r_near of Lemma 2.1 for threshold n^-α.

    Examples
    --------
    >>> import math
    >>> r = near_radius(2.0, 0.1)
    >>> round(math.exp(-(r**2) / (2 * 2.0**2)), 12)
    0.1
    """
    return bandwidth * math.sqrt(2 * math.log(1 / threshold))


def recall(collision_probability: npt.ArrayLike, n_tables: int) -> Float:
    """Probability that a pair meets in at least one of ``n_tables`` independent tables.

    Examples
    --------
    >>> float(recall(0.5, 3))
    0.875
    """
    p = np.asarray(collision_probability, dtype=np.float64)
    with np.errstate(divide="ignore"):  # p = 1 gives log 0: certain to meet
        return np.asarray(-np.expm1(n_tables * np.log1p(-p)))


def n_tables_for_recall(collision_probability: float, wanted: float) -> int:
    """Smallest number of tables in which such a pair meets with probability ``wanted`` at least.

    Examples
    --------
    >>> n_tables_for_recall(0.5, 0.875)
    3
    """
    return n_tables_for_miss(collision_probability, 1 - wanted)


def n_tables_for_miss(collision_probability: float, miss: float) -> int:
    """Smallest number of tables that such a pair misses with probability ``miss`` at most.

    The same as :func:`n_tables_for_recall` where the recall is too near 1 for a float.

    Examples
    --------
    >>> n_tables_for_miss(0.5, 2.0**-100)
    100
    """
    if collision_probability >= 1:
        return 1
    tables = math.log(miss) / math.log1p(-collision_probability)
    return max(1, math.ceil(tables * (1 - 1e-12)))  # 3.0000000000000004 is 3


def _mix(codes: npt.NDArray[np.int64], multipliers: npt.NDArray[np.int64]) -> Labels:
    """One label per row of codes: a random linear form mod 2^64, top bit cleared."""
    label = codes[:, 0] * multipliers[0]
    for i in range(1, len(multipliers)):
        label += codes[:, i] * multipliers[i]
    return np.asarray(label.view(np.uint64) & ~_PRIVATE)


def _multipliers(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    return rng.integers(-(2**63), 2**63 - 1, size=count, endpoint=True)


# --- p-stable projections -----------------------------------------------------------------------


@dataclass(frozen=True)
class E2LSH:
    """Projections on random directions, cut into cells of one width: ⌊(a·v + b)/w⌋.

    Parameters
    ----------
    n_dims : int
    n_bits : int
        Projections joined in one label.
    bucket_width : float
        The width w, in the unit of the points.

    Examples
    --------
    >>> import numpy as np
    >>> family = E2LSH(n_dims=2, n_bits=3, bucket_width=4.0)
    >>> h = family.draw(np.random.default_rng(0))
    >>> labels = h(np.array([[0.0, 0.0], [0.0, 0.0], [90.0, 0.0]]))
    >>> labels[0] == labels[1], labels[0] == labels[2]
    (np.True_, np.False_)
    >>> float(family.collision_probability(0.0))
    1.0
    """

    n_dims: int
    n_bits: int
    bucket_width: float

    def draw(self, rng: np.random.Generator, /) -> HashFunction:
        """Draw directions from N(0, I), offsets uniformly from a cell."""
        return _Projections(
            directions=rng.standard_normal((self.n_dims, self.n_bits)) / self.bucket_width,
            offsets=rng.random(self.n_bits),
            multipliers=_multipliers(rng, self.n_bits),
        )

    def collision_probability(self, distance: npt.ArrayLike, /) -> Float:
        """Datar et al.'s closed form to the power ``n_bits``."""
        r = np.asarray(distance, dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            cells = self.bucket_width / r  # inf at distance 0: certain to collide
            spill = np.where(cells > 0, 1 / cells, np.inf)
            single = (
                1
                - 2 * special.ndtr(-cells)
                + 2 / math.sqrt(2 * math.pi) * spill * np.expm1(-(cells**2) / 2)
            )
        return np.asarray(np.clip(np.where(r == 0, 1.0, single), 0.0, 1.0) ** self.n_bits)


@dataclass(frozen=True, eq=False)
class _Projections:
    directions: Float
    offsets: Float
    multipliers: npt.NDArray[np.int64]

    def __call__(self, points: Array, /) -> Labels:
        cells = points @ self.directions.astype(points.dtype, copy=False)
        cells += self.offsets.astype(points.dtype, copy=False)
        np.floor(cells, out=cells)
        return _mix(np.asarray(cells.T, np.int64, order="C").T, self.multipliers)


# --- ball carving -------------------------------------------------------------------------------


def _ball_cover(n_projections: int) -> float:
    """Share v of space that balls of radius w on a grid of side 4w cover: Vol(B_1) / 4^t."""
    t = n_projections
    return math.exp(t / 2 * math.log(math.pi) - math.lgamma(t / 2 + 1) - t * math.log(4))


@dataclass(frozen=True)
class BallCarving:
    """Balls around randomly shifted grids in a random low-dimensional projection (Andoni-Indyk).

    A point is projected to u = Gv with entries of G from N(0, 1/t). Grids 1, 2, ..., U with uniform
    shifts carry balls of radius w at side 4w; the label is the first grid whose ball holds u, and
    which ball. A point that no grid covers gets a label of its own that never collides with
    anything, not even with the same point hashed again.

    Parameters
    ----------
    n_dims : int
    n_bits : int
        Carvings joined in one label.
    n_projections : int
        Dimension t of the projected space.
    ball_radius : float
        Radius w, in the unit of the points.
    n_grids : int
        Number of grids U.

    Examples
    --------
    The family of Lemma 2.1 at n = 1000, α = 1/3 and bandwidth 1: property (i) holds with equality.

    >>> family = BallCarving.for_lemma(1000, threshold=1000 ** (-1 / 3), bandwidth=1.0, n_dims=8)
    >>> round(float(family.collision_probability(near_radius(1.0, 0.1))), 9)
    0.1
    """

    n_dims: int
    n_bits: int
    n_projections: int
    ball_radius: float
    n_grids: int

    @classmethod
    def for_lemma(
        cls, n: int, *, threshold: float, bandwidth: float, n_dims: int, uncovered: float = 1e-3
    ) -> BallCarving:
        """Return the family that realises Lemma 2.1 at a finite n.

        t = ln^(2/3) n as in Andoni and Indyk; U leaves at most ``uncovered`` of the points without
        a ball; starting from w = 1.2 r_near (within 1% of the best exponent at √3 r_near for t = 4
        to 8), k is the largest number with p(r_near)^k >= threshold, and w is then set so that
        p(r_near)^k = threshold: property (i) holds, and no more than that.
        """
        t = max(1, round(math.log(max(n, 2)) ** (2 / 3)))
        n_grids = math.ceil(math.log(uncovered) / math.log1p(-_ball_cover(t)))
        radius = near_radius(bandwidth, threshold)

        def probability(width: float, n_bits: int = 1) -> float:
            family = cls(n_dims, n_bits, t, width * radius, n_grids)
            return float(family.collision_probability(radius))

        n_bits = max(1, math.floor(math.log(threshold) / math.log(probability(1.2))))
        highest = 1.2
        while probability(highest, n_bits) < threshold:  # thresholds near 1 need wide balls
            highest *= 2
            if highest > 1e6:
                raise ValueError(
                    f"threshold={threshold} is above the share of points that {n_grids} grids "
                    f"cover; use a smaller threshold or uncovered < {uncovered}."
                )
        width = optimize.brentq(
            lambda w: probability(w, n_bits) - threshold,
            highest / 64,
            highest,
            xtol=1e-14,
            rtol=1e-14,
        )
        while probability(width, n_bits) < threshold:  # the root may lie a rounding error short
            width = math.nextafter(width, math.inf)
        return cls(n_dims, n_bits, t, width * radius, n_grids)

    @property
    def covered(self) -> float:
        """Probability that a point is covered in one carving: 1 - (1 - v)^U."""
        return -math.expm1(self.n_grids * math.log1p(-_ball_cover(self.n_projections)))

    def draw(self, rng: np.random.Generator, /) -> HashFunction:
        """Projections, and a seed for the shifts of the grids."""
        t = self.n_projections
        return _Carvings(
            family=self,
            projection=rng.standard_normal((self.n_bits, self.n_dims, t)) / math.sqrt(t),
            shifts=rng.random((self.n_bits, self.n_grids, t)),
            multipliers=_multipliers(rng, self.n_bits * (t + 1)),
            private=itertools.count(1 << 63),
        )

    def collision_probability(self, distance: npt.ArrayLike, /) -> Float:
        """Exact probability of one label, to the power ``n_bits``.

        At projected distance Δ two balls overlap in a share I(Δ) (an incomplete beta function), the
        pair is decided by the first grid that covers either point, and is in one ball with
        probability I/(2-I). With U grids some pairs are never decided. Δ is distributed as the
        distance times χ_t/√t; the integral runs over Δ, where far pairs have their mass near 0.
        """
        r = np.asarray(distance, dtype=np.float64)
        flat = np.array([self._single(value) for value in r.ravel()])
        return np.asarray(flat.reshape(r.shape) ** self.n_bits)

    def _single(self, distance: float) -> float:
        if distance == 0:
            return self.covered
        nodes, weights = _legendre(256)
        share = (nodes + 1) / 2  # of the longest distance that can collide, or that occurs
        t = self.n_projections
        longest = min(2 * self.ball_radius, distance * (1 + 12 / math.sqrt(t)))
        chi = share * longest * math.sqrt(t) / distance
        density = np.exp(
            (t - 1) * np.log(chi) - chi**2 / 2 - (t / 2 - 1) * math.log(2) - math.lgamma(t / 2)
        )
        apart = share * longest / (2 * self.ball_radius)
        overlap = special.betainc((t + 1) / 2, 0.5, 1 - apart**2)
        decided = -np.expm1(self.n_grids * np.log1p(-_ball_cover(t) * (2 - overlap)))
        inside = density * overlap / (2 - overlap) * decided
        return float(weights @ inside) / 2 * longest * math.sqrt(t) / distance


@lru_cache(maxsize=8)
def _legendre(n_nodes: int) -> tuple[Float, Float]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return nodes, weights


@dataclass(frozen=True, eq=False)
class _Carvings:
    family: BallCarving
    projection: Float
    shifts: Float
    multipliers: npt.NDArray[np.int64]
    private: Iterator[int]  # the next label that no other point has

    def __call__(self, points: Array, /) -> Labels:
        t = self.family.n_projections
        codes = np.zeros((self.family.n_bits * (t + 1), len(points)), np.int64)
        covered = np.ones(len(points), bool)
        for i in range(self.family.n_bits):
            cells = points.astype(np.float64, copy=False) @ self.projection[i]
            cells /= 4 * self.family.ball_radius
            covered &= _carve(cells, self.shifts[i], codes[i * (t + 1) : (i + 1) * (t + 1)])
        labels = _mix(codes.T, self.multipliers)
        alone = np.flatnonzero(~covered)
        labels[alone] = [next(self.private) for _ in alone]
        return labels


def _carve(cells: Float, shifts: Float, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Write (grid, ball) of the first ball that holds each point; say which points have one.

    Lengths are in grid sides, so a ball's radius is 1/4. Grids are tried in groups that grow as
    fewer points are left: one at a time is five times slower at a thousand points.
    """
    left = np.arange(len(cells))
    grid = 0
    while len(left) and grid < len(shifts):
        group = shifts[grid : grid + max(1, _CARVE_AT_ONCE // len(left))]
        squared = np.zeros((len(left), len(group)))
        for axis in range(shifts.shape[1]):
            offset = cells[left, axis, None] - group[:, axis]
            offset -= np.rint(offset)
            squared += offset * offset
        inside = squared <= 1 / 16
        covered = inside.any(axis=1)
        first, found = inside.argmax(axis=1)[covered], left[covered]
        codes[0, found] = grid + first
        codes[1:, found] = np.rint(cells[found] - group[first]).T
        left = left[~covered]
        grid += len(group)
    is_covered = np.ones(len(cells), bool)
    is_covered[left] = False
    return is_covered


# --- cross-polytope -----------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossPolytope:
    """Nearest signed axis after a Gaussian map: for points on a sphere around the origin.

    Parameters
    ----------
    n_dims : int
    n_bits : int
        Maps joined in one label.
    n_directions : int
        Rows D of each map; a map has 2D values.
    radius : float
        Radius of the sphere; distances are chords of it.

    Examples
    --------
    >>> family = CrossPolytope(n_dims=8, n_bits=1, n_directions=16)
    >>> round(float(family.collision_probability(2**0.5)), 4)  # orthogonal: all 32 values alike
    0.0312
    """

    n_dims: int
    n_bits: int
    n_directions: int
    radius: float = 1.0

    def draw(self, rng: np.random.Generator, /) -> HashFunction:
        """Draw maps with entries from N(0, 1)."""
        return _SignedAxes(
            maps=rng.standard_normal((self.n_bits, self.n_dims, self.n_directions)),
            multipliers=_multipliers(rng, self.n_bits),
        )

    def collision_probability(self, distance: npt.ArrayLike, /) -> Float:
        """Exact probability for two points of the sphere at this chord, to the power ``n_bits``."""
        chord = np.asarray(distance, dtype=np.float64) / self.radius
        cosines = np.clip(1 - chord**2 / 2, -1.0, 1.0)
        flat = np.array([self._single(value) for value in cosines.ravel()])
        return np.asarray(flat.reshape(chord.shape) ** self.n_bits)

    def _single(self, cosine: float) -> float:
        """Twice D times the chance that both projections on one axis are positive and largest.

        The other D - 1 axes must have |X| < x and |Y| < y. The integral runs over x and over
        z = (y - cosine x)/sine, so that it stays smooth as the points meet.
        """
        if cosine >= 1 or cosine <= -1:
            return 1.0 if cosine > 0 else 0.0
        sine = math.sqrt(1 - cosine**2)
        nodes, weights = _legendre(160)
        x = (nodes + 1) / 2 * 9  # beyond 9 the normal density is below 1e-18
        lowest = np.maximum(-9.0, -cosine * x / sine)
        length = np.maximum(0.0, 9 - lowest)
        z = lowest[:, None] + (nodes + 1) / 2 * length[:, None]
        y = np.maximum(cosine * x[:, None] + sine * z, 0.0)
        others = _rectangle(np.broadcast_to(x[:, None], y.shape), y, cosine, sine)
        density = np.exp(-(x[:, None] ** 2 + z**2) / 2) / (2 * math.pi)
        inner = (density * others ** (self.n_directions - 1)) @ weights * length / 2
        return float(2 * self.n_directions * (weights @ inner) * 9 / 2)


def _rectangle(x: Float, y: Float, cosine: float, sine: float) -> Float:
    """P(|X| < x, |Y| < y) for standard normals with this correlation, by Owen's T."""

    def both_below(h: Float, k: Float) -> Float:
        with np.errstate(divide="ignore", invalid="ignore"):
            t_h = special.owens_t(h, (k / h - cosine) / sine)
            t_k = special.owens_t(k, (h / k - cosine) / sine)
        return np.asarray((special.ndtr(h) + special.ndtr(k)) / 2 - (h * k < 0) / 2 - t_h - t_k)

    probability = both_below(x, y) - both_below(-x, y) - both_below(x, -y) + both_below(-x, -y)
    return np.where((x > 0) & (y > 0), np.clip(probability, 0.0, 1.0), 0.0)


@dataclass(frozen=True, eq=False)
class _SignedAxes:
    maps: Float
    multipliers: npt.NDArray[np.int64]

    def __call__(self, points: Array, /) -> Labels:
        codes = np.empty((len(self.maps), len(points)), np.int64)
        for i, axes in enumerate(self.maps):
            projected = points @ axes.astype(points.dtype, copy=False)
            largest = np.abs(projected).argmax(axis=1)
            negative = projected[np.arange(len(points)), largest] < 0
            codes[i] = 2 * largest + negative
        return _mix(codes.T, self.multipliers)
