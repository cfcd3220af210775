"""``GaussianKernel``: the kernel matrix as a SciPy ``LinearOperator``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.exact import ExactKernel, prepare
from approxkmv.info import ProductInfo
from approxkmv.leaves import Array
from approxkmv.product import exact_plan, scaled_columns, unscaled
from approxkmv.rounding import rounding_bound

METHODS = ("auto", "exact")


class GaussianKernel(LinearOperator):  # type: ignore[misc]
    r"""Gaussian kernel matrix as a linear operator that never stores the matrix.

    Works wherever SciPy takes a ``LinearOperator``: ``cg``, ``minres``, ``gmres``, ``lsqr``,
    ``eigsh``, ``svds``, ``lobpcg``. The operator is one fixed matrix: linear, with an adjoint, and
    symmetric (to rounding) when ``keys`` is None. The points are not copied; do not change them
    meanwhile.

    Parameters
    ----------
    queries : array_like, shape (n_queries, n_dims)
        Points of the rows.
    keys : array_like, shape (n_keys, n_dims), or None
        Points of the columns; None means the queries, and the operator is symmetric.
    bandwidth : float
        :math:`\sigma` in :math:`\exp(-\|q-k\|^2/(2\sigma^2))`.
    eps, delta : float
        Error allowed relative to the length of x, and probability with which it may be larger.
    method : {"auto", "exact"}
        Both compute every pair, at every product.
    rng : None, int or numpy.random.Generator
        Seed of what is drawn at construction (the exact operator draws nothing).
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    max_memory : int or None
        Bytes that kernel values may take between products (the exact operator keeps none).
    check_finite : bool
        Reject NaN and infinity in the points.

    Attributes
    ----------
    info : ProductInfo
        How products are computed; the error bound holds for every x.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> from scipy.sparse.linalg import eigsh
    >>> points = np.random.default_rng(0).standard_normal((400, 8))
    >>> K = akmv.GaussianKernel(points, bandwidth=2.0)
    >>> K.shape, bool(np.allclose(K @ np.ones(400), K.T @ np.ones(400)))
    ((400, 400), True)
    >>> eigsh(K, k=1, return_eigenvectors=False).shape
    (1,)
    """

    def __init__(
        self,
        queries: npt.ArrayLike,
        keys: npt.ArrayLike | None = None,
        *,
        bandwidth: float,
        eps: float = 0.1,
        delta: float = 0.05,
        method: str = "auto",
        rng: Rng = None,
        n_threads: int | None = None,
        max_memory: int | None = None,
        check_finite: bool = True,
    ) -> None:
        q, k = _check.point_pair(queries, keys)
        self.bandwidth = _check.positive(bandwidth, "bandwidth")
        self.eps = _check.tolerance(eps)
        _check.probability(delta)
        _check.one_of(method, "method", METHODS)
        _check.generator(rng)
        if max_memory is not None:
            _check.positive(max_memory, "max_memory")
        n_threads = _check.threads(n_threads)
        if check_finite:
            _check.finite(q, "queries")
            if k is not q:
                _check.finite(k, "keys")
        self._kernel = prepare(q, k, self.bandwidth, n_threads=n_threads)
        super().__init__(dtype=k.dtype, shape=(len(q), len(k)))

    @property
    def queries(self) -> Array:
        """Points of the rows."""
        return self._kernel.queries

    @property
    def keys(self) -> Array:
        """Points of the columns; the same object as ``queries`` where they are the same points."""
        return self._kernel.keys

    @property
    def info(self) -> ProductInfo:
        """How products are computed, and a bound of their error for every x."""
        n_pairs = self.shape[0] * self.shape[1]
        return ProductInfo(
            method="exact",
            plan=exact_plan(self._kernel, "every pair is computed at every product"),
            error_estimate=None,
            error_bound=rounding_bound(self._kernel, float(n_pairs)),
            confidence=1.0,
            pairs=n_pairs,
            pairs_exact=n_pairs,
            seconds={},
            product_norm=None,
        )

    def toarray(self) -> Array:
        """The dense matrix, for small cases."""
        return np.asarray(self._matmat(np.eye(self.shape[1], dtype=self.dtype)))

    def _matmat(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if np.iscomplexobj(x):
            return np.asarray(self._matmat(x.real) + 1j * self._matmat(x.imag))
        vector = _check.vector(x, self.shape[1])
        columns, exponents = scaled_columns(vector, self._kernel.keys.dtype)
        return unscaled(self._kernel.product(columns).out, exponents, vector)

    _matvec = _matmat

    def _adjoint(self) -> LinearOperator:
        if self._kernel.queries is self._kernel.keys:
            return self
        return _over(self._kernel.transposed, self.bandwidth, self.eps)

    _transpose = _adjoint


def _over(kernel: ExactKernel, bandwidth: float, eps: float) -> GaussianKernel:
    """An operator over a kernel that is prepared already."""
    operator = GaussianKernel.__new__(GaussianKernel)
    operator._kernel = kernel
    operator.bandwidth = bandwidth
    operator.eps = eps
    LinearOperator.__init__(
        operator, dtype=kernel.keys.dtype, shape=(len(kernel.queries), len(kernel.keys))
    )
    return operator
