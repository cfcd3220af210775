r"""``top_eigenvalue``: the largest eigenvalue of a kernel matrix from a few products.

The kernel noisy power method of Backurs, Indyk, Musco and Wagner (2021) and what a product for
vectors of any sign makes of it. Two facts make it cheap. The tolerance is relative to the
eigenvalue, which is large where the matrix is not the identity, so that products may be rough. And
the top eigenvector lives where points are dense: its restriction to the rows with the largest row
sums is found with small products, and one product with those columns extends it to all points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.loops.types import Array
from approxkmv.operator import GaussianKernel
from approxkmv.product import matvec
from approxkmv.spectrum.error import stated_error
from approxkmv.spectrum.subspace import Float, Subspace, lanczos

# Rows solved first: an eighth, so that their matrix has 1/64 of the entries and ten products with
# it cost a sixth of a full one; all of them where a product takes a tenth of a second anyway.
_START_SHARE = 8
_SMALL = 8192
# Products beyond convergence spent on looking for a larger eigenvalue elsewhere.
_PATIENCE = 4


@dataclass(frozen=True, eq=False)
class TopEigenvalue:
    """Outcome of :func:`top_eigenvalue`.

    Attributes
    ----------
    eigenvalue : float
        Rayleigh quotient of ``eigenvector``.
    eigenvector : ndarray, shape (n,)
        Of length 1; its entries add up to a positive number.
    error_estimate : float
        ``residual + eps``: K has an eigenvalue this close to ``eigenvalue``, if no product was off
        by more than it was said to be.
    lower_bound : float
        ``eigenvalue - eps``, which the top eigenvalue is not below: no Rayleigh quotient is.
    upper_bound : float or None
        For exact products: Collatz and Wielandt's bound, the largest of ``(Kw)_i / w_i`` for a
        positive vector w made of what was multiplied; up to rounding. None for sampled products.
    residual : float
        ``|K v - eigenvalue v|`` for the eigenvector v, as the products give it.
    eps : float
        Error of that product of length-1 vectors: as estimated by :func:`approxkmv.matvec`, or as
        promised by the operator.
    converged : bool
        Whether ``error_estimate`` is within the tolerance asked for.
    n_products : int
        Products of the full matrix with a vector.
    pairs, pairs_exact : int
        Kernel values computed altogether, and those of one exact product.
    """

    eigenvalue: float
    eigenvector: Float
    error_estimate: float
    lower_bound: float
    upper_bound: float | None
    residual: float
    eps: float
    converged: bool
    n_products: int
    pairs: int
    pairs_exact: int

    def __str__(self) -> str:
        above = "" if self.upper_bound is None else f", at most {self.upper_bound:.6g}"
        share = self.pairs / self.pairs_exact if self.pairs_exact else 0.0
        return "\n".join(
            [
                f"top eigenvalue {self.eigenvalue:.6g} +- {self.error_estimate:.2g}"
                + ("" if self.converged else " (not converged)"),
                f"  bounds    at least {self.lower_bound:.6g}{above}",
                f"  error     residual {self.residual:.2g}, products {self.eps:.2g}",
                f"  cost      {self.n_products} products, {self.pairs:,} kernel values "
                f"({share:.3g} exact products)",
            ]
        )


def top_eigenvalue(
    K: LinearOperator | npt.ArrayLike,
    *,
    bandwidth: float | None = None,
    tol: float = 0.01,
    max_products: int = 50,
    nonnegative: bool = False,
    method: str = "auto",
    delta: float = 0.05,
    rng: Rng = None,
    n_threads: int | None = None,
) -> TopEigenvalue:
    r"""Largest eigenvalue and eigenvector of a kernel matrix of one point set.

    Parameters
    ----------
    K : GaussianKernel, LinearOperator or array_like of shape (n, n_dims)
        A symmetric operator, taken as the fixed matrix it is; or points, whose kernel matrix is
        multiplied anew each time by :func:`approxkmv.matvec` with the error that suffices.
    bandwidth : float, optional
        For points only, and needed there.
    tol : float
        Error wanted, relative to the eigenvalue.
    max_products : int
        Stop after this many products with the full matrix.
    nonnegative : bool
        Plain power iterations with vectors :math:`x \ge 0` only, negative entries of a rough
        product set to 0: the kernel noisy power method of Backurs et al. (their own product is in
        :mod:`approxkmv.paper.baseline`). Default: Rayleigh-Ritz in the space of all iterates, of
        any sign, which needs fewer products.
    method, delta, n_threads
        Of the products; for points only. ``delta`` is shared among them.
    rng : None, int or numpy.random.Generator
        Seed of the products' draws, and of the start for operators without points.

    Returns
    -------
    TopEigenvalue

    Notes
    -----
    A small residual says that K has an eigenvalue there, not that it is the top one. Where
    products are exact, ``upper_bound`` settles that. Otherwise what speaks for it: the start is
    taken from the rows with the largest row sums, no eigenvalue exceeds the largest row sum of
    its points, and where rows left out have larger ones some more products look there.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> points = np.random.default_rng(0).standard_normal((500, 3))
    >>> top = akmv.spectrum.top_eigenvalue(points, bandwidth=1.0, tol=1e-3)
    >>> from approxkmv.exact import gaussian_kernel
    >>> exact = np.linalg.eigvalsh(gaussian_kernel(points, points, 1.0))[-1]
    >>> bool(abs(top.eigenvalue - exact) <= 1e-3 * exact), top.converged
    (True, True)
    >>> bool(top.lower_bound <= exact * (1 + 1e-12) and exact <= top.upper_bound * (1 + 1e-12))
    True
    """
    tol = _check.positive(tol, "tol")
    max_products = _check.count(max_products, "max_products")
    generator = _check.generator(rng)
    if isinstance(K, LinearOperator):
        if bandwidth is not None:
            raise ValueError("bandwidth must be None where K is an operator, which has its own.")
        source = _Source.from_operator(K, generator)
    else:
        if bandwidth is None:
            raise ValueError("bandwidth must be given where K is an array of points.")
        source = _Source.from_points(
            K, bandwidth, method, _check.probability(delta) / max_products, generator, n_threads
        )
    if source.n == 0:
        raise ValueError("K must have at least one row, got shape (0, 0).")
    start = _start(source, tol, generator)
    return (_power if nonnegative else _krylov)(source, start, tol, max_products)


class _Source:
    """Where products come from, and what they cost."""

    def __init__(
        self,
        n: int,
        product: Callable[[Float, float], tuple[Float, float, bool, int]],
        points: Array | None,
        bandwidth: float,
        n_threads: int | None,
    ) -> None:
        self.n, self.points, self.bandwidth, self.n_threads = n, points, bandwidth, n_threads
        self.n_products = self.pairs = 0
        self.exact = True
        self._product = product

    @classmethod
    def from_operator(cls, K: LinearOperator, rng: np.random.Generator) -> _Source:
        _check.square(K)
        points = None
        if isinstance(K, GaussianKernel):
            if K.queries is not K.keys:
                raise ValueError("K must be the kernel of one point set (keys=None).")
            points = K.queries
        pairs = K.info.pairs if points is not None else K.shape[0] ** 2

        def product(x: Float, eps: float) -> tuple[Float, float, bool, int]:
            y = np.asarray(K @ x.astype(K.dtype), np.float64)
            exact = points is None or K.info.method == "exact"
            return y, stated_error(K, x[:, None], y[:, None], rng), exact, pairs

        return cls(K.shape[0], product, points, getattr(K, "bandwidth", 1.0), None)

    @classmethod
    def from_points(
        cls,
        points: npt.ArrayLike,
        bandwidth: float,
        method: str,
        delta: float,
        rng: np.random.Generator,
        n_threads: int | None,
    ) -> _Source:
        array = _check.points(points, "K")
        _check.finite(array, "K")
        array, _, bandwidth = _check.in_bandwidths(array, array, bandwidth)

        def product(x: Float, eps: float) -> tuple[Float, float, bool, int]:
            y, info = matvec(
                array,
                None,
                x.astype(array.dtype),
                bandwidth=bandwidth,
                eps=eps,
                delta=delta,
                method=method,
                rng=rng,
                n_threads=n_threads,
                check_finite=False,
                return_info=True,
            )
            error = eps if info.error_estimate is None else info.error_estimate
            return y.astype(np.float64), error, info.method == "exact", info.pairs

        return cls(len(array), product, array, bandwidth, n_threads)

    def product(self, x: Float, eps: float) -> tuple[Float, float]:
        y, error, exact, pairs = self._product(x, eps)
        self.n_products += 1
        self.pairs += pairs
        self.exact = self.exact and exact
        return y, error

    def columns(self, rows: npt.NDArray[np.intp], x: Float) -> Float:
        """Product of some columns of the matrix with x, exactly: few of them cost little."""
        assert self.points is not None
        keys = np.ascontiguousarray(self.points[rows])
        self.pairs += self.n * len(rows)
        y = matvec(
            self.points,
            keys,
            x.astype(keys.dtype),
            bandwidth=self.bandwidth,
            method="exact",
            n_threads=self.n_threads,
            check_finite=False,
        )
        return y.astype(np.float64)

    def block(self, rows: npt.NDArray[np.intp]) -> GaussianKernel:
        """The kernel matrix of some of the points."""
        assert self.points is not None
        return GaussianKernel(
            np.ascontiguousarray(self.points[rows]),
            bandwidth=self.bandwidth,
            method="exact",
            n_threads=self.n_threads,
            check_finite=False,
        )


class _Start(NamedTuple):
    """Where to begin."""

    vector: Float
    sums: Float | None  # row sums, where rows can be told apart
    outside: float  # the largest row sum among rows that had no part in finding the vector
    value: float  # about the eigenvalue


def _start(source: _Source, tol: float, rng: np.random.Generator) -> _Start:
    """A vector near the top eigenvector, if row sums can tell where it lives."""
    n = source.n
    if source.points is None:
        return _Start(rng.standard_normal(n), None, math.inf, 1.0)
    # A row sum is at least 1, so an error of 0.5 on average still finds the large ones.
    scaled, _ = source.product(np.full(n, n**-0.5), 0.5)
    sums = scaled * math.sqrt(n)
    n_rows = n if n <= _SMALL else n // _START_SHARE
    if n_rows == n:
        return _Start(np.maximum(sums, 0.0), sums, -math.inf, float(np.linalg.norm(scaled)))
    order = np.argpartition(-sums, n_rows)
    rows = np.sort(order[:n_rows])
    block = source.block(rows)

    def small(x: Float, eps: float) -> tuple[Float, float]:
        source.pairs += n_rows**2
        return np.asarray(block @ x.astype(block.dtype), np.float64), 0.0

    # As well as the whole is wanted: a few more of these save a product that costs 64 of them.
    found = lanczos(small, sums[rows], tol=tol, max_products=24)
    value, vector, _, _ = found.ritz()
    vector = source.columns(rows, np.abs(vector))
    return _Start(vector, sums, float(sums[order[n_rows:]].max()), value)


def _error_allowed(tol: float, value: float) -> float:
    """Error of a product: a quarter of what is allowed, relative to an eigenvalue of at least 1."""
    return tol / 4 * max(value, 1.0)


def _krylov(source: _Source, start: _Start, tol: float, max_products: int) -> TopEigenvalue:
    """Expand by the residual; look elsewhere too while rows left out might hold more."""
    space = Subspace(source.product, source.n)
    space.add(start.vector, _error_allowed(tol, start.value))
    extra = 0
    while True:
        value, vector, y, error = space.ritz()
        residual = float(np.linalg.norm(y - value * vector))
        found = residual + error <= tol * abs(value)
        upper = _upper_bound(source, start.sums, vector, y)
        settled = upper is not None and upper <= value * (1 + tol)
        if found and (settled or start.outside <= value * (1 + tol) or extra >= _PATIENCE):
            break
        if source.n_products >= max_products or space.basis.shape[1] >= source.n:
            break
        direction = y - value * vector
        if found and start.sums is not None:
            # All points take part in the row sums; what the second Ritz pair then fails by grows
            # towards the largest eigenvalue among those that the first has no part in.
            direction = space.residual(1) if extra else start.sums
        extra += found
        if not space.add(direction, _error_allowed(tol, value)):
            break
    return _outcome(source, value, vector, residual, error, upper, tol)


def _power(source: _Source, start: _Start, tol: float, max_products: int) -> TopEigenvalue:
    """Kernel noisy power method: the iterate is the last product, negative entries set to 0."""
    vector, value = np.abs(start.vector), start.value
    while True:
        vector = vector / np.linalg.norm(vector)
        y, error = source.product(vector, _error_allowed(tol, value))
        value = float(vector @ y)
        residual = float(np.linalg.norm(y - value * vector))
        if residual + error <= tol * abs(value) or source.n_products >= max_products:
            upper = _upper_bound(source, start.sums, vector, y)
            return _outcome(source, value, vector, residual, error, upper, tol)
        vector = np.maximum(y, 0.0)


def _upper_bound(source: _Source, sums: Float | None, vector: Float, y: Float) -> float | None:
    """Collatz and Wielandt's bound with w = vector + shift, the best of some shifts.

    Adding a little of the constant vector costs no product, as its own is known, and keeps entries
    that are near 0, or on the wrong side of it, from spoiling the quotient.
    """
    if sums is None or not source.exact:
        return None
    sign = 1.0 if vector.sum() >= 0 else -1.0
    v, product = sign * vector, sign * y
    least = max(-float(v.min()), 0.0)
    shifts = least + float(np.abs(v).max()) * np.logspace(-8, 1, 37)
    # Where no shift helps the row sums themselves are a bound.
    bounds = [float(((product + t * sums) / (v + t)).max()) for t in shifts]
    return min(*bounds, float(sums.max()))


def _outcome(
    source: _Source,
    value: float,
    vector: Float,
    residual: float,
    error: float,
    upper: float | None,
    tol: float,
) -> TopEigenvalue:
    return TopEigenvalue(
        eigenvalue=value,
        eigenvector=vector * (1.0 if vector.sum() >= 0 else -1.0),
        error_estimate=residual + error,
        lower_bound=value - error,
        upper_bound=upper,
        residual=residual,
        eps=error,
        converged=residual + error <= tol * abs(value),
        n_products=source.n_products,
        pairs=source.pairs,
        pairs_exact=source.n**2,
    )
