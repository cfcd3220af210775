"""Seeded generators of points and vectors with known structure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Seed = int | np.random.Generator

# The bandwidth is found on at most this many rows and keys: 16.8 million distances, 1 to 2 s. On
# `clusters` with n = 16,384 (row sums 1.6 to 9.4) the mean row sum of 512 rows has a standard error
# of 1.2 %, the bandwidth one of 0.23 %.
_ROWS = 512
_KEYS = 32_768


class Points(NamedTuple):
    """Queries, keys and a bandwidth that suits them."""

    queries: Array  # (n_queries, d)
    keys: Array  # (n_keys, d)
    bandwidth: float


def clusters(
    n: int,
    d: int = 64,
    *,
    n_queries: int | None = None,
    mean_row_sum: float | None = 5.0,
    rng: Seed,
    dtype: npt.DTypeLike = np.float32,
) -> Points:
    """Points around n/16 centres: few near keys for each query, many far ones.

    The centres are drawn from N(0, I); queries and keys independently from N(centre, 0.35² I)
    around centres drawn uniformly.

    Parameters
    ----------
    n : int
        Number of keys.
    d : int
        Number of dimensions.
    n_queries : int, optional
        Number of queries; `n` if not given.
    mean_row_sum : float, optional
        The bandwidth is chosen so that the kernel matrix has this mean row sum. None skips the
        search and takes the typical distance inside a cluster.
    rng : int or numpy.random.Generator
        Seed; the same seed gives the same bits.
    dtype : float32 or float64
        Type of the points.

    Returns
    -------
    Points
        The tuple (queries, keys, bandwidth).

    Examples
    --------
    >>> from approxkmv.datasets import clusters
    >>> queries, keys, bandwidth = clusters(1000, 8, n_queries=200, rng=0)
    >>> queries.shape, keys.shape, keys.dtype
    ((200, 8), (1000, 8), dtype('float32'))
    """
    rng = np.random.default_rng(rng)
    deviation = 0.35
    centres = _normal(rng, max(1, n // 16), d, dtype)

    def draw(count: int) -> Array:
        points = _normal(rng, count, d, dtype)
        points *= deviation
        points += centres[rng.integers(0, len(centres), count)]
        return points

    queries, keys = draw(n if n_queries is None else n_queries), draw(n)
    typical = deviation * math.sqrt(2 * d)
    return _with_bandwidth(queries, keys, mean_row_sum, typical, rng)


def sphere(
    n: int,
    d: int = 64,
    *,
    n_queries: int | None = None,
    mean_row_sum: float | None = 5.0,
    rng: Seed,
    dtype: npt.DTypeLike = np.float32,
) -> Points:
    """Points uniform on the unit sphere: no structure to exploit, all norms equal.

    Parameters
    ----------
    n, d, n_queries, mean_row_sum, rng, dtype
        As in :func:`clusters`; ``mean_row_sum=None`` takes the typical distance √2.

    Returns
    -------
    Points
        The tuple (queries, keys, bandwidth).

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.datasets import sphere
    >>> keys = sphere(100, 3, rng=0, dtype=np.float64).keys
    >>> np.allclose((keys**2).sum(axis=1), 1)
    True
    """
    rng = np.random.default_rng(rng)

    def draw(count: int) -> Array:
        points = _normal(rng, count, d, dtype)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points

    queries, keys = draw(n if n_queries is None else n_queries), draw(n)
    return _with_bandwidth(queries, keys, mean_row_sum, math.sqrt(2), rng)


def low_intrinsic_dimension(
    n: int,
    d: int = 64,
    *,
    n_intrinsic: int = 4,
    noise: float = 0.01,
    n_queries: int | None = None,
    mean_row_sum: float | None = 5.0,
    rng: Seed,
    dtype: npt.DTypeLike = np.float32,
) -> Points:
    """Points of a few dimensions laid into many: N(0, I) in a random subspace, and a little noise.

    Parameters
    ----------
    n, d, n_queries, mean_row_sum, rng, dtype
        As in :func:`clusters`; ``mean_row_sum=None`` takes the typical distance √(2 n_intrinsic).
    n_intrinsic : int
        Dimension of the subspace, at most `d`.
    noise : float
        Standard deviation of the noise in each of the `d` coordinates.

    Returns
    -------
    Points
        The tuple (queries, keys, bandwidth).

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.datasets import low_intrinsic_dimension
    >>> keys = low_intrinsic_dimension(100, 10, n_intrinsic=2, noise=0.0, rng=0).keys
    >>> int(np.linalg.matrix_rank(keys, tol=1e-3))
    2
    """
    if not 1 <= n_intrinsic <= d:
        raise ValueError(f"n_intrinsic must be from 1 to d = {d}, got {n_intrinsic}")
    rng = np.random.default_rng(rng)
    basis = np.linalg.qr(rng.standard_normal((d, n_intrinsic)))[0].T.astype(dtype)

    def draw(count: int) -> Array:
        points = _normal(rng, count, d, dtype)
        points *= noise
        points += _normal(rng, count, n_intrinsic, dtype) @ basis
        return points

    queries, keys = draw(n if n_queries is None else n_queries), draw(n)
    return _with_bandwidth(queries, keys, mean_row_sum, math.sqrt(2 * n_intrinsic), rng)


def one_huge_cluster(
    n: int,
    d: int = 64,
    *,
    n_queries: int | None = None,
    rng: Seed,
    dtype: npt.DTypeLike = np.float32,
) -> Points:
    """All points in one ball: every entry of the kernel matrix is large, row sums grow with n.

    This is what the sparsity assumption excludes. The points are N(0, I) and the bandwidth is
    √(2d), their typical distance, so that the mean entry is (1 + 1/d)^(-d/2), about 0.61.

    Parameters
    ----------
    n, d, n_queries, rng, dtype
        As in :func:`clusters`.

    Returns
    -------
    Points
        The tuple (queries, keys, bandwidth).

    Examples
    --------
    >>> from approxkmv.datasets import one_huge_cluster
    >>> one_huge_cluster(100, 8, rng=0).bandwidth
    4.0
    """
    rng = np.random.default_rng(rng)
    queries = _normal(rng, n if n_queries is None else n_queries, d, dtype)
    return Points(queries, _normal(rng, n, d, dtype), math.sqrt(2 * d))


class Regression(NamedTuple):
    """Points, noisy targets at them, and what the targets are without noise."""

    points: Array  # (n, d)
    targets: Array  # (n,)
    clean: Array  # (n,)


def robot_arm(n: int, d: int = 8, *, noise: float = 0.05, rng: Seed) -> Regression:
    """A smooth function of d joint angles, as in kin40k: how far the hand is from a fixed point.

    The arm is a chain of d links in the plane, each turned against the one before by an angle drawn
    uniformly from [-1.5, 1.5]. Targets have mean 0 and variance 1 before the noise.

    Parameters
    ----------
    n : int
        Number of points.
    d : int
        Number of links.
    noise : float
        Standard deviation of the noise in the targets.
    rng : int or numpy.random.Generator
        Seed.

    Returns
    -------
    Regression
        The tuple (points, targets, clean), in double precision.

    Examples
    --------
    >>> from approxkmv.datasets import robot_arm
    >>> points, targets, clean = robot_arm(1000, rng=0)
    >>> points.shape, bool(abs((targets - clean).std() - 0.05) < 0.005)
    ((1000, 8), True)
    """
    rng = np.random.default_rng(rng)
    points = rng.uniform(-1.5, 1.5, (n, d))
    angle = np.cumsum(points, axis=1)
    hand = np.stack([np.cos(angle).sum(axis=1), np.sin(angle).sum(axis=1)], axis=1)
    clean = np.linalg.norm(hand - [1.0, 0.5], axis=1)
    clean = (clean - clean.mean()) / clean.std()
    return Regression(points, clean + noise * rng.standard_normal(n), clean)


def vectors(n: int, rng: Seed, *, dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
    """Vectors to multiply with: all ones, normal, heavy-tailed, one-hot and zero.

    Parameters
    ----------
    n : int
        Length, the number of keys.
    rng : int or numpy.random.Generator
        Seed.
    dtype : float32 or float64
        Type of the vectors.

    Returns
    -------
    dict
        ``ones``, ``gauss`` (N(0, 1)), ``t2`` (Student's t with two degrees of freedom, infinite
        variance), ``one_hot`` (a one at a random place) and ``zero``.

    Examples
    --------
    >>> from approxkmv.datasets import vectors
    >>> list(vectors(5, 0))
    ['ones', 'gauss', 't2', 'one_hot', 'zero']
    """
    rng = np.random.default_rng(rng)
    one_hot = np.zeros(n, dtype)
    one_hot[rng.integers(0, n, size=min(n, 1))] = 1
    return {
        "ones": np.ones(n, dtype),
        "gauss": rng.standard_normal(n).astype(dtype),
        "t2": rng.standard_t(2, n).astype(dtype),
        "one_hot": one_hot,
        "zero": np.zeros(n, dtype),
    }


def bandwidth_for_row_sum(queries: Array, keys: Array, target: float, rng: Seed) -> float:
    """Bandwidth at which the kernel matrix has a given mean row sum.

    Found on a sample of 512 queries and 32,768 keys (all, where there are fewer). When `keys` is
    the same object as `queries`, the pair of a point with itself counts as 1 exactly.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, d)
        Points.
    keys : ndarray of shape (n_keys, d)
        Points.
    target : float
        Mean row sum, between that of bandwidth 0 (the number of keys equal to a query) and the
        number of keys.
    rng : int or numpy.random.Generator
        Seed of the sample.

    Returns
    -------
    float
        The bandwidth.

    Raises
    ------
    ValueError
        No bandwidth gives that mean row sum, or there are no points.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.datasets import bandwidth_for_row_sum
    >>> points = np.array([[0.0], [1.0]])  # the row sums are 1 + exp(-1 / (2 bandwidth²))
    >>> sigma = bandwidth_for_row_sum(points, points, 1 + np.exp(-2), rng=0)
    >>> round(sigma, 6)
    0.5
    """
    from scipy.optimize import brentq

    same = keys is queries
    if len(queries) == 0 or len(keys) <= same:
        raise ValueError("a row sum needs at least one query and one other key")
    distances = _sampled_distances(queries, keys, same, np.random.default_rng(rng))
    finite = np.isfinite(distances)
    # The sum over the sampled pairs times this is the mean over queries of the sum over keys.
    weight = (len(keys) - same) / np.count_nonzero(finite)

    def mean_row_sum(bandwidth: float) -> float:
        # In place and in the points' own type; only the sum is in double.
        values = distances * distances.dtype.type(-0.5 / bandwidth**2)
        np.exp(values, out=values)
        return same + weight * float(values.sum(dtype=np.float64))

    positive = distances[finite & (distances > 0)]
    if len(positive) == 0:
        raise ValueError("all points are equal: every bandwidth gives the same row sums")
    # At the low end the nearest pair has kernel value exp(-80), at the high end the farthest has
    # exp(-1e-6): beyond them the mean row sum no longer moves.
    farthest = float(positive.max())
    low = math.sqrt(max(float(positive.min()) / 160, 1e-12 * farthest))
    high = math.sqrt(farthest / 2e-6)
    smallest, largest = mean_row_sum(low), mean_row_sum(high)
    if not smallest < target < largest:
        raise ValueError(
            f"no bandwidth gives a mean row sum of {target:g}: it lies between {smallest:.3g} "
            f"and {largest:.3g} for these points"
        )
    root = brentq(
        lambda t: math.log(mean_row_sum(math.exp(t)) / target),
        math.log(low),
        math.log(high),
        xtol=1e-9,
    )
    return math.exp(root)


def _sampled_distances(queries: Array, keys: Array, same: bool, rng: np.random.Generator) -> Array:
    """Squared distances of sampled queries and keys; infinite for a point and itself if `same`."""
    rows = rng.permutation(len(queries))[:_ROWS]
    columns = rng.permutation(len(keys))[:_KEYS]
    centre = keys[columns].mean(axis=0)
    distances = _squared_distances(queries[rows] - centre, keys[columns] - centre)
    if same:
        distances[rows[:, None] == columns] = np.inf
    return distances


def _squared_distances(a: Array, b: Array) -> Array:
    """|a|² + |b|² - 2ab, which is enough here: centred points, and 1e-6 |a|² does not matter."""
    product: Array = a @ b.T
    product *= -2
    product += (a * a).sum(axis=1)[:, None]
    product += (b * b).sum(axis=1)
    np.maximum(product, 0, out=product)
    return product


def _normal(rng: np.random.Generator, n: int, d: int, dtype: npt.DTypeLike) -> Array:
    return rng.standard_normal((n, d), dtype=np.dtype(dtype))  # type: ignore[arg-type]


def _with_bandwidth(
    queries: Array,
    keys: Array,
    mean_row_sum: float | None,
    typical: float,
    rng: np.random.Generator,
) -> Points:
    if mean_row_sum is None:
        return Points(queries, keys, typical)
    return Points(queries, keys, bandwidth_for_row_sum(queries, keys, mean_row_sum, rng))
