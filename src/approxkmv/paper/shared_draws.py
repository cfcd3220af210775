r"""A simpler algorithm with a better exponent: one sample of keys for all rows.

Keys are drawn with probability :math:`p_j = x_j^2/\|x\|_2^2`, the same ones for every row, and
the heavy pairs of Algorithm 1 are exact. With :math:`F^2` the squared Frobenius norm of what is
not found heavy, :math:`m` draws have

.. math:: E\|Kx - y\|_2^2 \le \|x\|_2^2 F^2 / m, \qquad F^2 \le n^{-\alpha} \|K\|_1,

so :math:`m = O((1+c) n^{1-\alpha}/\epsilon^2)` draws suffice under the paper's assumption: with
Lemma 3.4 and :math:`\alpha = 1/3` a total of :math:`\tilde O(n^{5/3}/\epsilon^2)`, against
:math:`n^{1.89}`. No preprocessing of x, no buckets, no densities. The proof is in
docs/simpler_algorithm.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import brentq
from scipy.sparse.linalg import LinearOperator
from scipy.special import rel_entr

from approxkmv import _check
from approxkmv.kernel.matrix import product
from approxkmv.loops.compiled import Compiled
from approxkmv.paper.find_heavy import HeavyPairs, find_heavy
from approxkmv.paper.inputs import checked
from approxkmv.paper.parameters import ALPHA, Constants

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SharedDrawsInfo:
    """What one run did.

    Attributes
    ----------
    threshold : float
        Kernel value from which a pair is heavy.
    n_heavy_pairs : int
    frobenius_bound : float
        Bound on the squared Frobenius norm of all pairs not found heavy.
    n_samples : int
        Keys drawn; as many as there are keys when the product was computed exactly.
    exact : bool
        Whether drawing would have cost as much as all keys, so that all were used.
    hash, scan, pilot, light : int
        Hash functions evaluated, then kernel evaluations: looked at for heavy pairs, for the bound,
        and in the columns of the drawn keys.
    """

    threshold: float
    n_heavy_pairs: int
    frobenius_bound: float
    n_samples: int
    exact: bool
    hash: int
    scan: int
    pilot: int
    light: int

    @property
    def pairs(self) -> int:
        """Kernel evaluations of all stages."""
        return self.scan + self.pilot + self.light


@overload
def shared_draws_matvec(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float,
    delta: float = ...,
    threshold: float | None = ...,
    constants: Constants = ...,
    rng: np.random.Generator | int | None = ...,
    n_threads: int | None = ...,
    return_info: Literal[False] = ...,
) -> Float: ...


@overload
def shared_draws_matvec(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float,
    delta: float = ...,
    threshold: float | None = ...,
    constants: Constants = ...,
    rng: np.random.Generator | int | None = ...,
    n_threads: int | None = ...,
    return_info: Literal[True],
) -> tuple[Float, SharedDrawsInfo]: ...


def shared_draws_matvec(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float,
    delta: float = 0.01,
    threshold: float | None = None,
    constants: Constants = "practical",
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
    return_info: bool = False,
) -> Float | tuple[Float, SharedDrawsInfo]:
    r"""Approximate the product of a Gaussian kernel matrix with a vector of any signs.

    With probability at least :math:`1 - \delta`, :math:`\|Kx - y\|_2 \le \epsilon \|x\|_2`. Half of
    :math:`\delta` is for the bound on :math:`F^2`, half for Markov's inequality.

    Parameters
    ----------
    queries, keys : ndarray, shape (n_queries, n_dims) and (n_keys, n_dims)
    x : ndarray, shape (n_keys,)
    bandwidth, eps, delta : float
        Error is relative to the norm of x.
    threshold : float, optional
        Kernel value from which a pair is heavy. Default: :math:`n^{-1/3}`, as in the theorem.
    constants : {"practical", "paper"}
        How heavy pairs are found, see :func:`approxkmv.paper.find_heavy.find_heavy`.
    rng : numpy.random.Generator, int or None
    n_threads : int, optional
    return_info : bool
        Also return what was done.

    Returns
    -------
    y : ndarray of float64, shape (n_queries,)
    info : SharedDrawsInfo
        If ``return_info``.

    Examples
    --------
    >>> from approxkmv.exact import gaussian_kernel
    >>> rng = np.random.default_rng(0)
    >>> points = 30 * rng.standard_normal((500, 3))
    >>> x = rng.standard_normal(500)
    >>> y = shared_draws_matvec(points, points, x, bandwidth=1.0, eps=0.5, delta=0.2, rng=0)
    >>> error = np.linalg.norm(gaussian_kernel(points, points, 1.0) @ x - y)
    >>> bool(error <= 0.5 * np.linalg.norm(x))
    True
    """
    queries, keys, x = checked(queries, keys, x)
    bandwidth, eps = _check.positive(bandwidth, "bandwidth"), _check.positive(eps, "eps")
    delta, rng = _check.probability(delta), _check.generator(rng)
    n_queries, n_keys = len(queries), len(keys)
    if threshold is None:
        threshold = max(n_keys, 1) ** -ALPHA
    if n_queries == 0 or not x.any():
        info = SharedDrawsInfo(threshold, 0, 0.0, 0, False, 0, 0, 0, 0)
        return (np.zeros(n_queries), info) if return_info else np.zeros(n_queries)
    heavy = find_heavy(
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=threshold,
        rng=rng,
        constants=constants,
        n_threads=n_threads,
    )
    n_pairs = pilot_size(n_queries, n_keys, eps, delta / 2, delta / 2)
    bound = residual_frobenius_bound(
        queries, keys, heavy, bandwidth, n_pairs, delta / 2, rng, n_threads
    )
    n_samples = max(1, math.ceil(bound / (eps**2 * delta / 2)))
    exact = n_samples >= n_keys
    weights = x if exact else shared_weights(x, n_samples, rng)
    used = np.flatnonzero(weights)
    columns = np.ascontiguousarray(keys[used])
    sampled = product(queries, columns, weights[used], bandwidth, n_threads=n_threads)
    # heavy pairs keep x: what the drawn keys put in their place is taken out again
    difference = x - weights
    corrected = np.bincount(heavy.rows, heavy.values * difference[heavy.indices], n_queries)
    y = np.asarray(sampled + corrected, dtype=np.float64)
    if not return_info:
        return y
    info = SharedDrawsInfo(
        threshold=threshold,
        n_heavy_pairs=len(heavy.indices),
        frobenius_bound=bound,
        n_samples=n_keys if exact else n_samples,
        exact=exact,
        hash=heavy.hashes,
        scan=heavy.scanned_pairs,
        pilot=n_pairs,
        light=n_queries * len(used),
    )
    return y, info


def shared_weights(x: Float, n_samples: int, rng: np.random.Generator) -> Float:
    r"""Random vector with mean x and few entries that are not zero.

    ``n_samples`` keys are drawn with :math:`p_j = x_j^2/\|x\|_2^2`; a key drawn :math:`c_j` times
    gets weight :math:`c_j x_j / (m p_j)`. The product of a matrix with it has mean :math:`Kx`.

    Examples
    --------
    >>> shared_weights(np.array([0.0, 3.0]), 5, np.random.default_rng(0))
    array([0., 3.])
    """
    p = x**2 / (x @ x)
    count = rng.multinomial(n_samples, p / p.sum())
    weights = np.zeros(len(x))
    drawn = count > 0
    weights[drawn] = count[drawn] * x[drawn] / (n_samples * p[drawn])
    return weights


def pilot_size(
    n_queries: int, n_keys: int, eps: float, bound_failure: float, markov_failure: float
) -> int:
    r"""Pairs to evaluate for the bound on :math:`F^2`.

    A bound from N pairs is loose by about :math:`n_{queries} n_{keys} \ln(1/\delta_1) / N`, which
    costs draws; this N minimises the pairs and those draws together, :math:`O(n^{3/2}/\epsilon)`.

    Examples
    --------
    >>> pilot_size(10**4, 10**4, 0.5, 0.1, 0.1) < 10**8 / 10
    True
    """
    wanted = n_queries * math.sqrt(n_keys * math.log(1 / bound_failure) / (eps**2 * markov_failure))
    return min(n_queries * n_keys, math.ceil(wanted))


def residual_frobenius_bound(
    queries: Points,
    keys: Points,
    heavy: HeavyPairs,
    bandwidth: float,
    n_pairs: int,
    failure_probability: float,
    rng: np.random.Generator,
    n_threads: int | None = None,
) -> float:
    r"""Bound on the sum of :math:`K_{ij}^2` over the pairs not found heavy, from uniform pairs.

    The squares are in [0, 1], so Chernoff's inequality holds with the Bernoulli divergence: the
    bound is the largest mean u with :math:`N \, kl(\bar z, u) \le \ln(1/\delta)`, times the
    number of pairs. No assumption on the data.
    """
    n_queries, n_keys = len(queries), len(keys)
    row = rng.integers(n_queries, size=n_pairs)
    col = rng.integers(n_keys, size=n_pairs)
    square = (
        Compiled(n_threads).pair_kernel(
            queries,
            keys,
            row,
            col,
            bandwidth,
        )
        ** 2
    )
    square[np.isin(row * n_keys + col, heavy.rows * n_keys + heavy.indices)] = 0.0
    return n_queries * n_keys * largest_mean(float(square.mean()), n_pairs, failure_probability)


def largest_mean(mean: float, count: int, failure_probability: float) -> float:
    r"""Largest expectation of a [0, 1] variable consistent with a mean over ``count`` draws.

    Examples
    --------
    With no success in 100 draws, :math:`(1-u)^{100} = \delta`.

    >>> u = largest_mean(0.0, 100, 0.05)
    >>> round((1 - u) ** 100, 6)
    0.05
    """
    allowed = math.log(1 / failure_probability) / count

    def excess(u: float) -> float:
        return float(rel_entr(mean, u) + rel_entr(1 - mean, 1 - u)) - allowed

    if mean >= 1 or excess(np.nextafter(1.0, 0.0)) <= 0:
        return 1.0
    return float(brentq(excess, mean, np.nextafter(1.0, 0.0), xtol=1e-300, rtol=1e-12))


def shared_draws_operator(
    queries: Points,
    keys: Points,
    *,
    bandwidth: float,
    threshold: float,
    n_draws: int,
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
) -> LinearOperator:
    r"""One fixed matrix near K: its heavy pairs, and ``n_draws`` of its other columns, weighted.

    The columns are drawn uniformly without replacement and weighted with n over their number, so
    the mean of the operator is K, for every vector at once. By Weyl's inequality no singular value
    is off by more than the norm of the difference. What it is for: spectra of attention matrices
    (through Lemma 4.1), which ask for many products with one matrix and its transpose.

    Parameters
    ----------
    queries, keys : ndarray, shape (n_queries, n_dims) and (n_keys, n_dims)
    bandwidth : float
    threshold : float
        Pairs with at least this kernel value are kept exactly, whichever columns are drawn.
    n_draws : int
        At most the number of keys.
    rng : numpy.random.Generator, int or None
    n_threads : int, optional

    Returns
    -------
    LinearOperator
        Kernel values are stored: n_queries times n_draws, and the heavy ones.

    Examples
    --------
    >>> from approxkmv.exact import gaussian_kernel
    >>> points = np.random.default_rng(0).standard_normal((50, 3))
    >>> K = shared_draws_operator(points, points, bandwidth=1.0, threshold=0.1, n_draws=50, rng=0)
    >>> bool(np.allclose(K @ np.ones(50), gaussian_kernel(points, points, 1.0).sum(axis=1)))
    True
    """
    queries, keys = _check.point_pair(queries, keys)
    bandwidth, rng = _check.positive(bandwidth, "bandwidth"), _check.generator(rng)
    n_draws = _check.count(n_draws, "n_draws", most=len(keys))
    heavy = find_heavy(queries, keys, bandwidth=bandwidth, threshold=threshold, rng=rng)
    shape = (len(queries), len(keys))
    found = sparse.csr_matrix((heavy.values, heavy.indices, heavy.indptr), shape=shape)
    drawn = rng.choice(len(keys), n_draws, replace=False)
    columns = np.ascontiguousarray(keys[drawn])
    rest = product(queries, columns, np.eye(n_draws), bandwidth, n_threads=n_threads)
    rest = np.asarray(rest, np.float64) - found[:, drawn].toarray()
    rest *= len(keys) / n_draws
    rest[np.abs(rest) < 1e-12] = 0.0

    def forward(x: Float) -> Float:
        return np.asarray(found @ x + rest @ x[drawn])

    def backward(y: Float) -> Float:
        out = np.asarray(found.T @ y)
        out[drawn] += rest.T @ y
        return out

    return LinearOperator(
        shape,
        dtype=np.float64,
        matvec=lambda x: forward(x.reshape(-1)),
        rmatvec=lambda y: backward(y.reshape(-1)),
        matmat=forward,
        rmatmat=backward,
    )
