r"""What the paper improves on: Backurs, Indyk, Musco and Wagner (2021).

Their product handles non-negative vectors with error :math:`\epsilon \|Kx\|_2`: round x up into
buckets, and answer every row with the densities of the buckets. It needs :math:`x \ge 0` because
the error of a density is relative to the sum of what it adds up. Two uses of it come along: the
top eigenvalue by the kernel noisy power method, and the sum of all entries.

Their theorems are for symmetric kernel matrices, ``queries`` equal to ``keys``: the unit diagonal
gives :math:`\|Kx\|_2 \ge \|x\|_2` for :math:`x \ge 0`, which the paper also states for its
asymmetric matrices, where it is false (erratum E11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.kernel.matrix import product
from approxkmv.paper.buckets import geometric_buckets
from approxkmv.paper.density import DensityFactory, LevelSets
from approxkmv.paper.inputs import checked
from approxkmv.paper.median_of_means import MedianOfMeans

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NonnegativeProduct:
    """Outcome of :func:`nonnegative_matvec`.

    Attributes
    ----------
    y : ndarray, shape (n_queries,)
        At least the exact product in every entry.
    n_dropped, n_buckets, n_exact_densities : int
        Entries of x replaced by a bound, buckets of the others, and exact densities among these.
    kernel_evaluations, hashes : int
    """

    y: Float
    n_dropped: int
    n_buckets: int
    n_exact_densities: int
    kernel_evaluations: int
    hashes: int


def nonnegative_matvec(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float,
    delta: float = 0.01,
    density: DensityFactory = LevelSets.for_accuracy,
    never_exact: bool = False,
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
) -> NonnegativeProduct:
    r"""Product with a non-negative vector, from above.

    With probability at least :math:`1 - \delta`, :math:`y = Kx + e` with :math:`e \ge 0` and
    :math:`\|e\|_2 \le \frac\epsilon2 \|Kx\|_2 + \frac\epsilon2 \sqrt{n_{queries} / n_{keys}}
    \|x\|_2`, which is at most :math:`\epsilon \|Kx\|_2` where queries and keys are the same
    points.

    Parameters
    ----------
    queries, keys : ndarray, shape (n_queries, n_dims) and (n_keys, n_dims)
    x : ndarray, shape (n_keys,)
        No negative entries.
    bandwidth, eps, delta : float
        ``eps`` at most 1.
    density : callable
        Builds the density structures.
    never_exact : bool
        Build them also where the exact density costs less, as it does at any n one can run: the
        floors are about eps / n.
    rng : numpy.random.Generator, int or None
    n_threads : int, optional

    Examples
    --------
    >>> points = np.random.default_rng(0).standard_normal((100, 2))
    >>> result = nonnegative_matvec(points, points, np.ones(100), bandwidth=1.0, eps=0.1, rng=0)
    >>> exact = product(points, points, np.ones(100), 1.0)
    >>> bool((result.y >= exact * (1 - 1e-12)).all())
    True
    >>> bool(np.linalg.norm(result.y - exact) <= 0.1 * np.linalg.norm(exact))
    True
    """
    queries, keys, x = checked(queries, keys, x)
    if (x < 0).any():
        raise ValueError(f"x must have no negative entries, got a smallest entry of {x.min()}.")
    bandwidth, eps = _check.positive(bandwidth, "bandwidth"), _check.positive(eps, "eps")
    delta, rng = _check.probability(delta), _check.generator(rng)
    n = len(keys)
    norm = float(np.linalg.norm(x))
    if norm == 0 or len(queries) == 0:
        return NonnegativeProduct(np.zeros(len(queries)), n, 0, 0, 0, 0)
    # An eighth of eps for rounding and for the densities, (1 + eps/8)^2 / (1 - eps/8) <= 1 + eps/2;
    # a quarter for the dropped entries; a quarter for the floors.
    part = eps / 8
    if never_exact:
        density = partial(density, never_exact=True)
    large = np.flatnonzero(x > eps / 4 * norm / n**1.5)
    y = np.full(len(queries), x.sum() - x[large].sum())
    buckets = geometric_buckets(x[large], 1 + part)
    sizes = MedianOfMeans.cheapest(delta / (len(queries) * len(buckets)))
    floor_sum = eps / 4 * norm / (math.sqrt(n) * len(buckets))
    evaluations = hashes = n_exact = 0
    for weight, members in zip(buckets.weights, buckets.members, strict=True):
        total = weight * len(members)
        structure = density(
            np.ascontiguousarray(keys[large[members]]),
            bandwidth=bandwidth,
            floor=floor_sum / total,
            relative_error=part,
            sizes=sizes,
            rng=rng,
        )
        answer = structure.estimate(queries, n_threads=n_threads)
        y += np.maximum(total * answer.values / (1 - structure.relative_error), floor_sum)
        evaluations += answer.kernel_evaluations
        hashes += answer.hashes + structure.build_hashes
        n_exact += structure.relative_error == 0
    return NonnegativeProduct(y, n - len(large), len(buckets), n_exact, evaluations, hashes)


@dataclass(frozen=True, eq=False)
class TopEigenvalue:
    """Outcome of :func:`kernel_noisy_power_method`."""

    eigenvalue: float
    eigenvector: Float
    n_iterations: int
    n_exact_densities: int
    kernel_evaluations: int
    hashes: int


def kernel_noisy_power_method(
    points: Points,
    *,
    bandwidth: float,
    eps: float,
    delta: float = 0.01,
    density: DensityFactory = LevelSets.for_accuracy,
    never_exact: bool = False,
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
) -> TopEigenvalue:
    r"""Top eigenvalue of the kernel matrix of one point set within a factor :math:`1\pm\epsilon`.

    Power iterations with :func:`nonnegative_matvec` of error :math:`\epsilon^2`, started from a
    non-negative vector. Its error is non-negative too, and so is the top eigenvector, so an error
    can never cancel the part of the iterate that is wanted. :math:`\lceil
    \ln(n/\epsilon)/\epsilon \rceil` iterations.

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth, eps, delta : float
    density : callable
        Builds the density structures.
    never_exact : bool
        As in :func:`nonnegative_matvec`: without it no product has noise at any n one can run.
    rng : numpy.random.Generator, int or None
    n_threads : int, optional

    Examples
    --------
    >>> points = np.random.default_rng(0).standard_normal((60, 2))
    >>> top = kernel_noisy_power_method(points, bandwidth=1.0, eps=0.2, rng=0)
    >>> from approxkmv.exact import gaussian_kernel
    >>> exact = np.linalg.eigvalsh(gaussian_kernel(points, points, 1.0))[-1]
    >>> bool(abs(top.eigenvalue / exact - 1) <= 0.2)
    True
    """
    points, eps = _check.points(points, "points"), _check.positive(eps, "eps")
    delta, rng = _check.probability(delta), _check.generator(rng)
    n_iterations = max(1, math.ceil(math.log(len(points) / eps) / eps))
    z = np.abs(rng.standard_normal(len(points)))
    z /= np.linalg.norm(z)
    evaluations = hashes = n_exact = 0
    eigenvalue = 0.0
    for _ in range(n_iterations):
        step = nonnegative_matvec(
            points,
            points,
            z,
            bandwidth=bandwidth,
            eps=eps**2,
            delta=delta / n_iterations,
            density=density,
            never_exact=never_exact,
            rng=rng,
            n_threads=n_threads,
        )
        evaluations += step.kernel_evaluations
        hashes += step.hashes
        n_exact += step.n_exact_densities
        previous, eigenvalue = z, float(z @ step.y)
        z = step.y / np.linalg.norm(step.y)
    return TopEigenvalue(eigenvalue, previous, n_iterations, n_exact, evaluations, hashes)


@dataclass(frozen=True)
class KernelSum:
    """Outcome of :func:`kernel_sum`: the estimate, and the sizes behind it."""

    value: float
    n_samples: int
    n_groups: int
    kernel_evaluations: int


def kernel_sum(
    points: Points,
    *,
    bandwidth: float,
    eps: float,
    delta: float = 0.01,
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
) -> KernelSum:
    r"""Sum of the entries of the kernel matrix of one point set, within :math:`1 \pm \epsilon`.

    Median of estimates from random subsets of about :math:`O(\sqrt n / \epsilon^2)` points,
    computed exactly where that costs less. (Backurs et al. reach :math:`n^{0.66}` evaluations
    with densities on the subset; the subset alone takes :math:`O(n / \epsilon^4)`.)

    Parameters
    ----------
    points : ndarray, shape (n_points, n_dims)
    bandwidth, eps, delta : float
    rng : numpy.random.Generator, int or None
    n_threads : int, optional

    Examples
    --------
    >>> points = np.zeros((10, 2))
    >>> round(kernel_sum(points, bandwidth=1.0, eps=0.1).value, 9)
    100.0
    """
    points, eps = _check.points(points, "points"), _check.positive(eps, "eps")
    delta, rng = _check.probability(delta), _check.generator(rng)
    n = len(points)
    sizes = MedianOfMeans.cheapest(delta)
    n_samples = subset_size(n, eps, sizes.single_failure)
    if sizes.n_groups * n_samples**2 >= n**2:
        ones = np.ones(n, points.dtype)
        row_sum = product(points, points, ones, bandwidth, n_threads=n_threads)
        return KernelSum(float(row_sum.sum(dtype=np.float64)), n, 1, n * n)
    groups = [
        sum_from_subset(points, bandwidth, n_samples / n, rng, n_threads)
        for _ in range(sizes.n_groups)
    ]
    value = float(np.median([estimate for estimate, _ in groups]))
    return KernelSum(value, n_samples, sizes.n_groups, sum(pairs for _, pairs in groups))


def subset_size(n: int, eps: float, single_failure: float) -> int:
    r"""Mean size of a subset whose estimate is off by more than eps with ``single_failure``.

    For a positive semidefinite matrix with unit diagonal and sum :math:`S \ge n`, row sums are at
    most :math:`\sqrt S`, so the relative variance for subsets of mean size :math:`s` is at most
    :math:`4 \sqrt n / s + 2 n / s^2`. This is where it is ``single_failure * eps**2``.

    Examples
    --------
    >>> s = subset_size(10**8, 0.5, 0.25)
    >>> 0.99 < (4 * 10**4 / s + 2 * 10**8 / s**2) / (0.25 * 0.5**2) <= 1
    True
    """
    ratio = math.sqrt(1 + single_failure * eps**2 / 2) - 1
    return min(n, math.ceil(math.sqrt(n) / ratio))


def sum_from_subset(
    points: Points,
    bandwidth: float,
    rate: float,
    rng: np.random.Generator,
    n_threads: int | None = None,
) -> tuple[float, int]:
    r"""Unbiased estimate :math:`n + p^{-2} \sum_{i \ne j \in A} K_{ij}`, and its evaluations.

    The set A holds each point with probability p, the ``rate``. The diagonal needs no estimate.
    """
    subset = points[rng.random(len(points)) < rate]
    size = len(subset)
    if size == 0:
        return float(len(points)), 0
    ones = np.ones(size, points.dtype)
    row_sum = product(subset, subset, ones, bandwidth, n_threads=n_threads)
    total = float(row_sum.sum(dtype=np.float64))
    return len(points) + (total - size) / rate**2, size * size
