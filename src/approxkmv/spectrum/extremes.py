"""The largest eigenvalues and singular values of an operator, with error bars."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse.linalg import (
    ArpackError,
    ArpackNoConvergence,
    LinearOperator,
    eigsh,
    svds,
)

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.loops.types import Array, Float64
from approxkmv.operator import GaussianKernel
from approxkmv.product import matvec
from approxkmv.spectrum.error import stated_error
from approxkmv.spectrum.lobpcg import lobpcg

METHODS = ("lanczos", "lobpcg")
# Iterations of LOBPCG, each of them a product with a block.
_MAX_BLOCKS = 500


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """Outcome of :func:`eigenvalues`.

    Attributes
    ----------
    values : ndarray, shape (k,)
        The largest first.
    vectors : ndarray, shape (n, k)
        Of length 1, orthogonal.
    residuals : ndarray, shape (k,)
        ``|K v - value v|``.
    operator_error : float
        How far a product with such a vector may be off: the ``eps`` of a sampled operator, the
        rounding of an exact one.
    errors : ndarray, shape (k,)
        ``residuals + operator_error``: the error bars.
    refined : bool
        Whether the residuals are those of an exact product.
    """

    values: Float64
    vectors: Array
    residuals: Float64
    operator_error: float
    refined: bool = False

    @property
    def errors(self) -> Float64:
        """Error bars."""
        return np.asarray(self.residuals + self.operator_error)

    def __str__(self) -> str:
        return _listed("eigenvalue", self.values, self.errors)


@dataclass(frozen=True, eq=False)
class SingularValues:
    """Outcome of :func:`singular_values`.

    Attributes
    ----------
    values : ndarray, shape (k,)
        The largest first.
    left, right : ndarray, shape (n_queries, k) and (n_keys, k)
        Singular vectors.
    residuals : ndarray, shape (k,)
        Root mean square of ``|K v - value u|`` and ``|K^T u - value v|``.
    operator_error : float
    errors : ndarray, shape (k,)
        ``residuals + operator_error``: the error bars.
    """

    values: Float64
    left: Array
    right: Array
    residuals: Float64
    operator_error: float

    @property
    def errors(self) -> Float64:
        """Error bars."""
        return np.asarray(self.residuals + self.operator_error)

    def __str__(self) -> str:
        return _listed("singular value", self.values, self.errors)


def eigenvalues(
    K: LinearOperator,
    k: int = 6,
    *,
    tol: float = 1e-6,
    method: str = "lanczos",
    refine: bool = False,
    rng: Rng = None,
) -> Eigenvalues:
    r"""The k largest eigenvalues of a symmetric operator, with error bars.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator
        Symmetric: for a kernel, of one point set (``keys=None``).
    k : int
        How many, at most the number of rows.
    tol : float
        Residual wanted, relative to the eigenvalue.
    method : {"lanczos", "lobpcg"}
        Lanczos (ARPACK) multiplies one vector at a time, and fewest in total. LOBPCG multiplies
        k + 4 vectors at a time, which an exact kernel does in little more than the time of one,
        and finds repeated eigenvalues together.
    refine : bool
        For a kernel: one more, exact, product with all eigenvectors at once, and Rayleigh-Ritz
        with it. The values are then better (their error is of the order of the squared error of
        the vectors) and the error bars no longer rest on an assumption about the operator.
    rng : None, int or numpy.random.Generator
        Seed of the start.

    Returns
    -------
    Eigenvalues

    Notes
    -----
    By Weyl's inequality eigenvalues of the matrix and of the operator that stands for it differ by
    at most the spectral norm of the difference. A sampled operator keeps its ``eps`` for every
    vector that does not depend on its draws, with probability ``1 - delta``; the error bars take
    it to be kept by the eigenvectors too. With ``refine`` they do not: each value then has an
    eigenvalue of the matrix within its error bar, whatever was drawn.

    Single-vector Lanczos finds repeated eigenvalues through rounding; copies of one that is
    repeated exactly may be missed where ``tol`` is loose.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> points = np.random.default_rng(0).standard_normal((300, 4))
    >>> top = akmv.spectrum.eigenvalues(akmv.GaussianKernel(points, bandwidth=1.0), 3, rng=0)
    >>> from approxkmv.exact import gaussian_kernel
    >>> dense = np.linalg.eigvalsh(gaussian_kernel(points, points, 1.0))[:-4:-1]
    >>> rounding = 300 * np.finfo(np.float64).eps * dense[0]  # of the dense solver
    >>> bool((np.abs(top.values - dense) <= top.errors + rounding).all())
    True
    """
    _check.square(K)
    kernel = K if isinstance(K, GaussianKernel) else None
    if kernel is not None and kernel.queries is not kernel.keys:
        raise ValueError("K must be the kernel of one point set (keys=None); see singular_values.")
    if refine and kernel is None:
        raise ValueError("refine must be False where K is not a GaussianKernel.")
    n = K.shape[0]
    k = _check.count(k, "k", most=n)
    tol = _check.tolerance(tol, "tol")
    method = _check.one_of(method, "method", METHODS)
    generator = _check.generator(rng)
    # ARPACK wants a few more vectors than values; small matrices are no work for LAPACK.
    if k >= n // 2 or n <= 32:
        vectors = np.linalg.eigh(_symmetric(K))[1][:, ::-1][:, :k]
    elif method == "lobpcg":
        vectors = lobpcg(K, k, tol=tol, max_iter=_MAX_BLOCKS, rng=generator)
    else:
        vectors = _arpack(K, k, tol, generator)
    vectors = np.ascontiguousarray(vectors, dtype=np.float64)
    found = _rayleigh_ritz(vectors, np.asarray(K @ vectors.astype(K.dtype), np.float64))
    product = np.asarray(K @ found.vectors.astype(K.dtype), np.float64)
    found = replace(found, operator_error=stated_error(K, found.vectors, product, generator))
    return _refined(kernel, found, generator) if refine and kernel is not None else found


def singular_values(
    K: LinearOperator, k: int = 6, *, tol: float = 1e-6, rng: Rng = None
) -> SingularValues:
    r"""The k largest singular values of an operator of any shape, with error bars.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator
        With an adjoint.
    k : int
        How many, at most the smaller side.
    tol : float
        Accuracy wanted of the squared singular values, relative.
    rng : None, int or numpy.random.Generator
        Seed of the start.

    Returns
    -------
    SingularValues

    Notes
    -----
    The error bars assume what those of :func:`eigenvalues` do, for K and for its adjoint. Values
    below about 1e-8 of the largest (3e-4 in float32) are rounding: the solver works with squares.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> rng = np.random.default_rng(0)
    >>> queries, keys = rng.standard_normal((80, 3)), rng.standard_normal((120, 3))
    >>> K = akmv.GaussianKernel(queries, keys, bandwidth=1.0)
    >>> top = akmv.spectrum.singular_values(K, 2, rng=0)
    >>> dense = np.linalg.svd(K.toarray(), compute_uv=False)[:2]
    >>> bool((np.abs(top.values - dense) <= top.errors).all())
    True
    """
    _check.operator(K)
    k = _check.count(k, "k", most=min(K.shape))
    tol = _check.tolerance(tol, "tol")
    generator = _check.generator(rng)
    if k >= min(K.shape) // 2 or min(K.shape) <= 32:
        eye = np.eye(min(K.shape), dtype=K.dtype)
        dense = K @ eye if K.shape[1] <= K.shape[0] else (K.T @ eye).T
        right = np.linalg.svd(np.asarray(dense, np.float64), full_matrices=False)[2][:k].T
    else:
        right = _arpack_right(K, k, tol, generator)
    right = np.linalg.qr(np.asarray(right, np.float64))[0]
    product = np.asarray(K @ right.astype(K.dtype), np.float64)
    left, values, rotation = np.linalg.svd(product, full_matrices=False)
    right = right @ rotation.T
    forward = np.asarray(K @ right.astype(K.dtype), np.float64)
    back = np.asarray(K.T @ left.astype(K.dtype), np.float64)
    residuals = np.hypot(
        np.linalg.norm(forward - left * values, axis=0),
        np.linalg.norm(back - right * values, axis=0),
    ) / math.sqrt(2)
    error = max(
        stated_error(K, right, forward, generator), stated_error(K.T, left, back, generator)
    )
    return SingularValues(values, left, right, residuals, error)


def _symmetric(K: LinearOperator) -> Float64:
    dense = np.asarray(K @ np.eye(K.shape[0], dtype=K.dtype), np.float64)
    return np.asarray((dense + dense.T) / 2)


def _arpack(K: LinearOperator, k: int, tol: float, rng: np.random.Generator) -> Array:
    start = rng.standard_normal(K.shape[0]).astype(K.dtype)
    try:
        vectors: Array = eigsh(K, k=k, which="LA", tol=tol, v0=start)[1]
    except ArpackNoConvergence as stopped:
        raise _not_reached(stopped, tol, f"k={k} eigenvalues") from None
    except ArpackError:
        vectors = lobpcg(K, k, tol=tol, max_iter=_MAX_BLOCKS, rng=rng)
    return vectors


def _arpack_right(K: LinearOperator, k: int, tol: float, rng: np.random.Generator) -> Array:
    """Right singular vectors.

    Near 0, or near a matrix with orthogonal rows of one length, any vector is about as good as any
    other: no Krylov space grows from it and ARPACK gives up, but blocks are no worse off.
    """
    start = rng.standard_normal(min(K.shape)).astype(K.dtype)
    try:
        right: Array = svds(K, k=k, tol=tol, v0=start, return_singular_vectors="vh")[2].T
    except ArpackNoConvergence as stopped:
        raise _not_reached(stopped, tol, f"k={k} singular values") from None
    except ArpackError:
        right = lobpcg(_normal(K), k, tol=tol, max_iter=_MAX_BLOCKS, rng=rng)
    return right


def _normal(K: LinearOperator) -> LinearOperator:
    """The matrix ``K^T K``, also where single precision cannot hold its entries."""

    def product(x: Array) -> Float64:
        y = np.asarray(K @ x.astype(K.dtype), np.float64)
        size = float(np.abs(y).max(initial=0.0)) or 1.0
        return size * np.asarray(K.T @ (y / size).astype(K.dtype), np.float64)

    n = K.shape[1]
    return LinearOperator((n, n), matvec=product, matmat=product, dtype=K.dtype)


def _not_reached(stopped: ArpackNoConvergence, tol: float, wanted: str) -> ValueError:
    return ValueError(
        f"tol={tol:g} could not be reached for {wanted}, {len(stopped.eigenvalues)} have been; "
        "use a larger tol or another k."
    )


def _rayleigh_ritz(vectors: Float64, product: Float64) -> Eigenvalues:
    """The best that the span of some vectors can say, given their products."""
    basis, triangle = np.linalg.qr(vectors)
    product = np.linalg.solve(triangle.T, product.T).T
    projected = basis.T @ product
    values, rotation = np.linalg.eigh((projected + projected.T) / 2)
    values, rotation = values[::-1], rotation[:, ::-1]
    found = basis @ rotation
    residuals = np.linalg.norm(product @ rotation - found * values, axis=0)
    return Eigenvalues(values.copy(), found, residuals, 0.0)


def _refined(kernel: GaussianKernel, rough: Eigenvalues, rng: np.random.Generator) -> Eigenvalues:
    x = rough.vectors.astype(kernel.dtype)
    y, info = matvec(
        kernel.queries,
        None,
        x,
        bandwidth=kernel.bandwidth,
        method="exact",
        rng=rng,
        return_info=True,
    )
    found = _rayleigh_ritz(x.astype(np.float64), y.astype(np.float64))
    assert info.error_estimate is not None
    # Measured relative to the length of all columns together, each of which has length 1.
    error = info.error_estimate * math.sqrt(x.shape[1])
    return replace(found, operator_error=error, refined=True)


def _listed(name: str, values: Float64, errors: Float64) -> str:
    title = f"{len(values)} largest {name}s" if len(values) != 1 else f"largest {name}"
    return "\n".join(
        [title, *(f"  {v:.6g} +- {e:.2g}" for v, e in zip(values, errors, strict=True))]
    )
