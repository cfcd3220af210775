"""``GaussianKernel``: the kernel matrix as a SciPy ``LinearOperator``."""

from __future__ import annotations

import copy
import math
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check, _saved
from approxkmv._check import Rng
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._entries import entries
from approxkmv._shifted import ShiftedOperator as ShiftedOperator
from approxkmv._shifted import as_diagonal
from approxkmv._shown import as_html
from approxkmv._warnings import AssumptionWarning
from approxkmv.engine.cost import CostModel
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.report import kernel_numbers
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.functions import KernelFunction, restored
from approxkmv.info import Plan, ProductInfo
from approxkmv.kernel.frame import usual_units
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.kernel.rounding import rounding_bound
from approxkmv.kernel.scaling import scaled_columns, unscaled
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Check

if TYPE_CHECKING:
    from approxkmv.engine.schemes.frozen_low_rank import LowRankMatrix
    from approxkmv.engine.schemes.frozen_matrix import FrozenMatrix

METHODS = ("auto", "exact", "sampled")
TOO_SMALL = "the matrix is too small for sampling to pay"
LOW_RANK = "the kernel is dense: the operator is spanned by few of its columns"
# Bytes that kernel values may take, unless the user says.
_MAX_MEMORY = 2**30


class GaussianKernel(LinearOperator):  # type: ignore[misc]
    r"""Kernel matrix, Gaussian or another, as a linear operator that never stores the matrix.

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
    bandwidth : float or array_like, shape (n_dims,)
        :math:`\sigma` in :math:`\exp(-\|q-k\|^2/(2\sigma^2))`; an array has one for each
        coordinate.
    eps, delta : float
        Error allowed relative to the length of x, and probability with which it may be larger. 0
        asks for the exact operator.
    method : {"auto", "exact", "sampled"}
        ``"exact"`` computes every pair at every product. ``"auto"`` looks at the points once: where
        a sparse matrix of near and of drawn pairs is close enough to K, small enough and worth its
        construction, that matrix is the operator; otherwise it is exact. ``"sampled"`` does the
        same and warns where the operator had to be exact.
    rng : None, int or numpy.random.Generator
        Seed of everything random, all of it drawn at construction.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    max_memory : int or None
        Bytes that kernel values may take between products; None means 1 GiB. Where more would be
        needed the operator is exact, and keeps none.
    max_seconds : float or None
        Time for the construction. If no sparse matrix is ready by then the operator is exact, with
        an ``AssumptionWarning``: its products have no error but take longer. The limit is kept as
        that of :func:`approxkmv.matvec`; it does not limit the products.
    kernel : str or KernelFunction
        Another function of the distance than the Gaussian, as in :func:`approxkmv.matvec`:
        ``"laplacian"``, ``"matern32"``, ``"matern52"``, ``"rational_quadratic"``.
    check_finite : bool
        Reject NaN and infinity in the points.

    Attributes
    ----------
    info : ProductInfo
        How products are computed, and their error. For a sampled operator the estimate is the root
        mean square error for an x of entries of equal size; for other x it is a mean, weighed with
        the squares of x, of the errors of single keys, of which ``plan`` tells the largest.

    Notes
    -----
    The error of a sampled operator is that of one fixed x. Vectors chosen by looking at the
    operator itself, such as its own eigenvectors, may fare worse: the largest error of all is the
    norm of the difference of the two matrices, which is not controlled.

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
        bandwidth: float | npt.ArrayLike,
        eps: float = 0.1,
        delta: float = 0.05,
        method: str = "auto",
        rng: Rng = None,
        n_threads: int | None = None,
        max_memory: int | None = None,
        max_seconds: float | None = None,
        kernel: str | KernelFunction = "gaussian",
        check_finite: bool = True,
    ) -> None:
        deadline = Deadline()
        if max_seconds is not None:
            deadline = Deadline(_check.positive(max_seconds, "max_seconds"))
        q, k = _check.point_pair(queries, keys)
        given = q, k
        q, k, sigma = _check.in_bandwidths(q, k, bandwidth)
        self.bandwidth = sigma if q is given[0] else tuple(map(float, np.asarray(bandwidth)))
        self._given = given
        self.eps = _check.tolerance(eps)
        self.delta = _check.probability(delta)
        _check.one_of(method, "method", METHODS)
        generator = _check.generator(rng)
        max_memory = _MAX_MEMORY if max_memory is None else max_memory
        _check.positive(max_memory, "max_memory")
        n_threads = _check.threads(n_threads)
        if check_finite:
            _check.finite(q, "queries")
            if k is not q:
                _check.finite(k, "keys")
        function = _check.kernel(kernel)
        self._kernel = prepare(q, k, sigma, function=function, backend=Compiled(n_threads))
        self._trace, self._reason = Trace(), "every pair is computed at every product"
        self._matrix: FrozenMatrix | LowRankMatrix | None = None
        self._transposed = False
        too_late = False
        if method != "exact":
            # No product is longer than this, so that no larger error is ever made.
            most = min(self.eps, math.sqrt(len(q) * len(k)))
            budget = Budget(most**2 * len(k), self.delta, max_bytes=max_memory)
            matrix = self._kernel.checked(deadline.polled)
            try:
                self._matrix, self._reason = _frozen(matrix, budget, generator, self._trace)
            except Refusal as refusal:
                self._reason = refusal.reason
            except OutOfTime:
                too_late, self._reason = (
                    True,
                    "max_seconds was too short to build a sparse operator",
                )
        if too_late or (method == "sampled" and self._matrix is None):
            warnings.warn(
                f"The operator is exact: {self._reason}.", AssumptionWarning, stacklevel=2
            )
        super().__init__(dtype=k.dtype, shape=(len(q), len(k)))

    @property
    def queries(self) -> Array:
        """Points of the rows."""
        return self._given[1 if self._transposed else 0]

    @property
    def keys(self) -> Array:
        """Points of the columns; the same object as ``queries`` where they are the same points."""
        return self._given[0 if self._transposed else 1]

    @property
    def info(self) -> ProductInfo:
        """How products are computed, and what is known of their error."""
        n_pairs = self.shape[0] * self.shape[1]
        sampled = self._matrix is not None
        numbers = kernel_numbers(self._kernel) | self._trace.numbers
        error = numbers.get("error_of_a_query" if self._transposed else "error_of_a_key")
        return ProductInfo(
            method="sampled" if sampled else "exact",
            plan=Plan("sampled" if sampled else "exact", self._reason, numbers),
            error_estimate=error if sampled and isinstance(error, float) else None,
            error_bound=None if sampled else rounding_bound(self._kernel, float(n_pairs)),
            confidence=1 - self.delta if sampled else 1.0,
            pairs=self._trace.pairs if sampled else n_pairs,
            pairs_exact=n_pairs,
            seconds=self._trace.seconds,
            product_norm=None,
        )

    def toarray(self) -> Array:
        """The dense matrix, for small cases."""
        return np.asarray(self._matmat(np.eye(self.shape[1], dtype=self.dtype)))

    def diagonal(self) -> Array:
        """The entries ``K[i, i]`` of the kernel matrix, exactly: all 1 where it is symmetric."""
        kernel = self._kernel
        if kernel.queries is kernel.keys:
            return np.ones(self.shape[0], self.dtype)
        both = np.arange(min(self.shape))
        return kernel.pairs(both, both)

    def __getitem__(self, index: Any) -> Array:
        """Entries of the kernel matrix as a dense array, by the rules of NumPy.

        ``K[i, j]`` is a number, or pairs where i and j are lists; ``K[i]`` a row, ``K[:, j]`` a
        column, ``K[2:5, ::2]`` and ``K[numpy.ix_(rows, columns)]`` are blocks. The entries are
        those of the kernel itself, also where products are sampled.
        """
        return entries(self._kernel, index)

    def shifted(self, noise: float | npt.ArrayLike) -> ShiftedOperator:
        """``K + noise I``, or with an array a diagonal matrix, as an operator.

        :func:`approxkmv.solve` takes it apart again and preconditions it. ``K + lam * I`` with a
        sparse identity or diagonal matrix of SciPy is the same.
        """
        _check.square(self)
        return ShiftedOperator(self, noise)

    def __add__(self, other: Any) -> LinearOperator:
        noise = as_diagonal(other, self.shape)
        return super().__add__(other) if noise is None else self.shifted(noise)

    def __radd__(self, other: Any) -> LinearOperator:
        noise = as_diagonal(other, self.shape)
        return NotImplemented if noise is None else self.shifted(noise)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write points, drawn pairs and report to a file that :meth:`load` reads.

        Parameters
        ----------
        path : str or path
            Must end in ``.npz``. The file holds arrays and a text only, nothing is pickled; it
            replaces an old one in one step.
        """
        if self._transposed:
            raise ValueError("K must not be a transpose: save K and transpose what load gives.")
        header = {
            "kernel": self._kernel.function.name,
            "parameter": self._kernel.function.parameter,
            "bandwidth": self.bandwidth,
            "eps": self.eps,
            "delta": self.delta,
            "reason": self._reason,
            "pairs": self._trace.pairs,
            "numbers": _saved.plain_numbers(self._trace.numbers),
            "seconds": self._trace.seconds,
        }
        arrays = {"queries": self.queries}
        if self.keys is not self.queries:
            arrays["keys"] = self.keys
        if self._matrix is not None:
            arrays |= {f"matrix_{name}": a for name, a in self._matrix.arrays().items()}
        _saved.write(path, "GaussianKernel", header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, n_threads: int | None = None) -> GaussianKernel:
        """The operator that was saved: the same matrix, whose products have the same bits.

        Parameters
        ----------
        path : str or path
            A file that :meth:`save` wrote, by this version of its format; any other file, and one
            whose contents do not fit together, is a ValueError.
        n_threads : int or None
            None: all cores, or the limit set through threadpoolctl.

        Examples
        --------
        >>> import os, tempfile
        >>> import numpy as np, approxkmv as akmv
        >>> K = akmv.GaussianKernel(np.random.default_rng(0).standard_normal((9, 2)), bandwidth=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     K.save(os.path.join(folder, "kernel.npz"))
        ...     again = akmv.GaussianKernel.load(os.path.join(folder, "kernel.npz"))
        >>> bool((again @ np.ones(9) == K @ np.ones(9)).all())
        True
        """
        header, arrays = _saved.read(path, "GaussianKernel")
        matrix = {n[7:]: arrays.pop(n) for n in list(arrays) if n.startswith("matrix_")}
        with _saved.broken(path):
            q, k = _check.point_pair(arrays["queries"], arrays.get("keys"))
            kernel = cls(
                q, k, bandwidth=header["bandwidth"], eps=header["eps"], delta=header["delta"],
                method="exact", n_threads=n_threads,
                kernel=restored(header["kernel"], header["parameter"]),
            )  # fmt: skip
            kernel._reason = str(header["reason"])
            kernel._trace = Trace(
                pairs=int(header["pairs"]),
                numbers=dict(header["numbers"]),
                seconds=dict(header["seconds"]),
            )
            if matrix:
                kernel._matrix = _from_arrays(matrix, kernel)
        return kernel

    def _repr_html_(self) -> str:
        n, m = self.shape
        facts = {
            "matrix": f"{n:,} x {m:,}, {self.keys.shape[1]} dimensions, {self.dtype}",
            "kernel": self._kernel.function.shown,
            "bandwidth": str(self.bandwidth),
            "products": f"{self.info.method}: {self._reason}",
        }
        return as_html("Kernel matrix", facts | self.info._facts())

    def _checked(self, check: Check) -> GaussianKernel:
        """The same operator, whose exact products end when ``check`` raises."""
        checked = copy.copy(self)
        checked._kernel = self._kernel.checked(check)
        return checked

    def _matmat(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if x.ndim > 2:  # a batch of matrices, which SciPy passes on since 1.18: all their columns
            columns = np.moveaxis(x, -2, 0)
            y = self._matmat(columns.reshape(len(columns), -1))
            return np.moveaxis(y.reshape(len(y), *columns.shape[1:]), 0, -2)
        if np.iscomplexobj(x):
            return np.asarray(self._matmat(x.real) + 1j * self._matmat(x.imag))
        vector = _check.vector(x, self.shape[1])
        columns, exponents = scaled_columns(vector, self._kernel.keys.dtype)
        if self._matrix is None:
            return unscaled(self._kernel.product(columns).out, exponents, vector)
        y = self._matrix.product(columns, transposed=self._transposed)
        return unscaled(y, exponents, vector)

    def _matvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if x.ndim == 1 or x.shape == (self.shape[1], 1):
            return self._matmat(x)
        return self._matmat(x[..., None])[..., 0]  # a batch of vectors: rows, not columns

    def _adjoint(self) -> LinearOperator:
        if self._kernel.queries is self._kernel.keys:
            return self
        # A shallow copy: the adjoint shares everything but its direction.
        adjoint = copy.copy(self)
        adjoint._kernel = self._kernel.transposed
        adjoint._transposed = not self._transposed
        adjoint.shape = self.shape[::-1]
        return adjoint

    _transpose = _adjoint


def _frozen(
    kernel: KernelMatrix, budget: Budget, rng: np.random.Generator, trace: Trace
) -> tuple[FrozenMatrix | LowRankMatrix, str]:
    """A matrix whose products cost less, and how it is made; ``Refusal`` if none is to be had."""
    cost, size = CostModel(), (len(kernel.queries), *kernel.keys.shape)
    if budget.squared_error == 0:
        raise Refusal("no error is allowed")
    if not kernel.function.factorises:
        raise Refusal("sampling is for the Gaussian kernel")
    if not (cost.worth_a_look(*size) or cost.worth_searching(*size)):
        raise Refusal(TOO_SMALL)
    ones = np.ones((len(kernel.keys), 1), kernel.keys.dtype)
    problem = Problem(_in_usual_units(kernel), ones, budget, rng, cost)
    if cost.worth_a_look(*size):
        from approxkmv.engine.schemes.frozen_low_rank import freeze_low_rank

        with suppress(Refusal):
            return freeze_low_rank(problem, trace), LOW_RANK
    if not cost.worth_searching(*size):
        raise Refusal(TOO_SMALL)
    from approxkmv.engine.schemes.frozen_pairs import freeze

    return freeze(problem, trace), "some pairs are drawn and kept once and for all"


def _in_usual_units(kernel: KernelMatrix) -> KernelMatrix:
    units = usual_units(kernel.queries, kernel.keys, kernel.bandwidth)
    if units is None:
        raise Refusal("the points are too many bandwidths apart")
    if units[2] == kernel.bandwidth:
        return kernel
    return prepare(*units, function=kernel.function, backend=kernel.backend)


def _from_arrays(parts: dict[str, Any], kernel: GaussianKernel) -> FrozenMatrix | LowRankMatrix:
    """The matrix that was saved."""
    if "pivots" in parts:
        from approxkmv.engine.schemes.frozen_low_rank import LowRankMatrix

        return LowRankMatrix.from_arrays(parts, _in_usual_units(kernel._kernel))
    from approxkmv.engine.schemes.frozen_matrix import FrozenMatrix

    return FrozenMatrix.from_arrays(parts, kernel.shape, kernel.queries is kernel.keys)
