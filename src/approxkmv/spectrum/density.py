r"""What depends on all eigenvalues, from random vectors: density, traces, log-determinant.

Stochastic Lanczos quadrature: for a random sign vector z the mean of :math:`z^T f(K) z` is the
trace of f(K), and m steps of the Lanczos recurrence from z give a Gauss rule for it, exact for
polynomials of degree 2m - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.loops.types import Array, Float64
from approxkmv.operator import GaussianKernel
from approxkmv.spectrum.error import stated_error
from approxkmv.spectrum.lanczos import gauss, radau, recurrence


@dataclass(frozen=True)
class TraceEstimate:
    """An estimate of the trace of a function of a matrix.

    Attributes
    ----------
    value : float
    standard_error : float
        From the spread between the random vectors.
    quadrature_error : float or None
        What stopping the recurrence can have changed: half the width of a bracket of each
        vector's value. None where no bracket is known.
    operator_error : float or None
        Bound of what the error of the operator can have changed, by Weyl's inequality; it assumes
        what the error bars of :func:`eigenvalues` do. None where no bound is known.
    n_probes : int
    """

    value: float
    standard_error: float
    quadrature_error: float | None
    operator_error: float | None
    n_probes: int

    def __str__(self) -> str:
        parts = [f"standard error {self.standard_error:.2g} from {self.n_probes} vectors"]
        if self.quadrature_error is not None:
            parts.append(f"quadrature {self.quadrature_error:.2g}")
        if self.operator_error is not None:
            parts.append(f"operator {self.operator_error:.2g}")
        return f"{self.value:.6g} ({', '.join(parts)})"


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """Nodes and weights whose means stand for the eigenvalues of a matrix with n rows.

    Attributes
    ----------
    nodes, weights : ndarray, shape (n_probes, n_steps)
        One rule per random vector; weights of a rule add up to 1.
    n : int
    """

    nodes: Float64
    weights: Float64
    n: int

    def estimate(self, function: Callable[[Float64], Float64]) -> TraceEstimate:
        """Trace of a function of the matrix; ``function`` is applied to arrays."""
        there = self.weights > 0
        values = np.zeros_like(self.nodes)
        values[there] = function(self.nodes[there])
        return _mean(self.n * (self.weights * values).sum(axis=1), None, None)

    def counts(self, edges: npt.ArrayLike) -> tuple[Float64, Float64]:
        """Numbers of eigenvalues between consecutive edges, and their standard errors."""
        limits = np.asarray(edges, np.float64)
        each = np.array(
            [
                self.n * np.histogram(nodes, limits, weights=weights)[0]
                for nodes, weights in zip(self.nodes, self.weights, strict=True)
            ]
        )
        return each.mean(axis=0), _standard_error(each)

    def __str__(self) -> str:
        inside = self.nodes[self.weights > 0]
        spread = self.estimate(lambda t: t)
        return (
            f"spectral density of {self.n:,} eigenvalues from {len(self.nodes)} vectors\n"
            f"  nodes     {inside.min():.3g} to {inside.max():.6g}\n"
            f"  trace     {spread}"
        )


def spectral_density(
    K: LinearOperator, *, n_probes: int = 10, n_steps: int = 30, rng: Rng = None
) -> SpectralDensity:
    """Where the eigenvalues of a symmetric operator lie, all of them, roughly.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator
        Symmetric.
    n_probes : int
        Random vectors; standard errors fall with the square root.
    n_steps : int
        Products, each with all vectors at once. Memory: rows x vectors x steps numbers.
    rng : None, int or numpy.random.Generator

    Returns
    -------
    SpectralDensity

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> points = np.random.default_rng(0).standard_normal((300, 4))
    >>> K = akmv.GaussianKernel(points, bandwidth=1.0)
    >>> density = akmv.spectrum.spectral_density(K, rng=0)
    >>> counts, errors = density.counts([-1e-9, 0.1, 1, 10, 1000])
    >>> bool(abs(counts.sum() - 300) < 1e-9)
    True
    >>> squares = density.estimate(np.square)  # the squared Frobenius norm
    >>> exact = (K.toarray() ** 2).sum()
    >>> bool(abs(squares.value - exact) <= 4 * squares.standard_error)
    True
    """
    _symmetric(K)
    n_probes, n_steps = _check.count(n_probes, "n_probes"), _check.count(n_steps, "n_steps")
    probes = _signs(K.shape[0], n_probes, rng)
    nodes, weights = gauss(recurrence(K, probes, n_steps))
    return SpectralDensity(nodes, weights, K.shape[0])


def trace(
    K: LinearOperator,
    function: Callable[[Float64], Float64] | None = None,
    *,
    n_probes: int = 10,
    n_steps: int = 30,
    rng: Rng = None,
) -> TraceEstimate:
    """Trace of a symmetric operator, or of a function of it.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator
        Symmetric.
    function : callable, optional
        Applied to arrays of eigenvalues. Default: the trace of K itself, which for a kernel of one
        point set is the number of points, exactly.
    n_probes, n_steps, rng
        As in :func:`spectral_density`.

    Returns
    -------
    TraceEstimate

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> K = akmv.GaussianKernel(np.random.default_rng(0).random((200, 2)), bandwidth=0.3)
    >>> akmv.spectrum.trace(K).value
    200.0
    >>> effective = akmv.spectrum.trace(K, lambda t: t / (t + 0.1), rng=0)  # degrees of freedom
    >>> 10 < effective.value < 30
    True
    """
    _symmetric(K)
    if function is None and isinstance(K, GaussianKernel):
        return TraceEstimate(float(K.shape[0]), 0.0, 0.0, 0.0, 0)
    if function is None:
        probes = _signs(K.shape[0], _check.count(n_probes, "n_probes"), rng).astype(K.dtype)
        product = np.asarray(K @ probes, np.float64)
        return _mean(np.einsum("ip,ip->p", probes, product), 0.0, None)
    return spectral_density(K, n_probes=n_probes, n_steps=n_steps, rng=rng).estimate(function)


def logdet(
    K: LinearOperator,
    *,
    noise: float,
    n_probes: int = 10,
    n_steps: int = 50,
    rng: Rng = None,
) -> TraceEstimate:
    r"""Logarithm of the determinant of K + noise I, for a positive semidefinite K.

    The term of a Gaussian process's marginal likelihood that needs every eigenvalue.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator
        Symmetric, without negative eigenvalues (beyond the operator's error).
    noise : float
        Larger than the operator's error.
    n_probes, n_steps, rng
        As in :func:`spectral_density`.

    Returns
    -------
    TraceEstimate
        ``value`` is the middle of the bracket of Gauss's rule, which is too large for a logarithm,
        and Radau's with a node below all eigenvalues, which is too small.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> K = akmv.GaussianKernel(np.random.default_rng(0).random((200, 2)), bandwidth=0.3)
    >>> estimate = akmv.spectrum.logdet(K, noise=0.1, rng=0)
    >>> exact = np.linalg.slogdet(K.toarray() + 0.1 * np.eye(200))[1]
    >>> bool(abs(estimate.value - exact) <= 4 * estimate.standard_error)
    True
    """
    _symmetric(K)
    noise = _check.positive(noise, "noise")
    n_probes, n_steps = _check.count(n_probes, "n_probes"), _check.count(n_steps, "n_steps")
    generator = _check.generator(rng)
    n = K.shape[0]
    probes = _signs(n, n_probes, generator)
    units = probes[:, :1] / math.sqrt(n)
    product = np.asarray(K @ units.astype(K.dtype), np.float64)
    error = stated_error(K, units, product, generator)
    if error >= noise:
        raise ValueError(
            f"noise must be larger than the error of the operator, which is {error:.2g}, "
            f"got {noise:g}."
        )
    rule = recurrence(K, probes, n_steps)
    nodes, weights = gauss(rule)
    # No eigenvalue is below -error; a node a little lower keeps the rule away from a division by 0.
    low_nodes, low_weights = radau(rule, -error - 0.1 * (noise - error))
    smallest = float(nodes.min())
    if smallest + noise <= 0:
        raise ValueError(
            f"K must have no negative eigenvalue below -noise, got one of {smallest:.3g}."
        )
    above = n * (weights * np.log(nodes + noise)).sum(axis=1)
    below = n * (low_weights * np.log(low_nodes + noise)).sum(axis=1)
    width = float(np.abs(above - below).mean()) / 2
    return _mean((above + below) / 2, width, -n * math.log1p(-error / noise))


def _symmetric(K: LinearOperator) -> None:
    _check.square(K)
    if K.shape[0] == 0:
        raise ValueError("K must have at least one row, got shape (0, 0).")
    if isinstance(K, GaussianKernel) and K.queries is not K.keys:
        raise ValueError("K must be the kernel of one point set (keys=None).")


def _signs(n: int, n_probes: int, rng: Rng) -> Array:
    return _check.generator(rng).choice([-1.0, 1.0], (n, n_probes))


def _mean(each: Float64, quadrature: float | None, operator: float | None) -> TraceEstimate:
    return TraceEstimate(
        float(each.mean()), float(_standard_error(each)), quadrature, operator, len(each)
    )


def _standard_error(each: Float64) -> Float64:
    if len(each) < 2:
        return np.full(each.shape[1:], np.inf)
    return np.asarray(each.std(axis=0, ddof=1) / math.sqrt(len(each)))
