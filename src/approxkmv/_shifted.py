"""``K + noise I`` as an operator that solvers can take apart again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check


class ShiftedOperator(LinearOperator):  # type: ignore[misc]
    r"""The sum of an operator K and a diagonal matrix.

    Made by ``K + lam * I``, where I is an identity or diagonal matrix of :mod:`scipy.sparse`, or by
    :meth:`approxkmv.GaussianKernel.shifted`. Every iteration of SciPy takes it;
    :func:`approxkmv.solve` sees K and the noise in it.

    Attributes
    ----------
    operator : LinearOperator
        K.
    noise : float or ndarray, shape (n,)
        What is added to the diagonal.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> from scipy.sparse import eye_array
    >>> points = np.random.default_rng(0).standard_normal((300, 3))
    >>> K = akmv.GaussianKernel(points, bandwidth=1.0)
    >>> A = K + 0.1 * eye_array(300)
    >>> x = akmv.solve(A, np.ones(300), rng=0)
    >>> bool(np.linalg.norm(A @ x - 1) < 1e-4 * np.sqrt(300))
    True
    """

    def __init__(self, operator: LinearOperator, noise: float | npt.ArrayLike) -> None:
        n = operator.shape[0]
        self.operator = operator
        self.noise: float | npt.NDArray[Any]
        if np.ndim(noise) == 0:
            self.noise = _check.number(noise, "noise")
        else:
            self.noise = _check.vector(noise, n, "noise", "row")
            if self.noise.ndim != 1:
                raise ValueError(f"noise must be a number or have shape ({n},).")
            _check.finite(self.noise, "noise")
        super().__init__(dtype=operator.dtype, shape=operator.shape)

    def diagonal(self) -> npt.NDArray[Any]:
        """The diagonal, where the operator has one."""
        return np.asarray(self.operator.diagonal() + self.noise)

    def _matmat(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        noise = self.noise if np.ndim(self.noise) == 0 else np.asarray(self.noise)[:, None]
        y = self.operator.matmat(x)
        return np.asarray(y + (noise * x).astype(np.result_type(y, x), copy=False))

    def _matvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._matmat(x.reshape(-1, 1))[:, 0]

    def _adjoint(self) -> LinearOperator:
        return ShiftedOperator(self.operator.H, self.noise)

    _transpose = _adjoint

    def __add__(self, other: Any) -> LinearOperator:
        more = as_diagonal(other, self.shape)
        if more is None:
            return super().__add__(other)
        return ShiftedOperator(self.operator, np.asarray(self.noise) + more)

    def __radd__(self, other: Any) -> LinearOperator:
        return NotImplemented if as_diagonal(other, self.shape) is None else self + other


def as_diagonal(other: Any, shape: tuple[int, ...]) -> float | npt.NDArray[Any] | None:
    """The diagonal of a sparse diagonal matrix of this shape; None for anything else.

    A number where all its entries are equal.
    """
    if isinstance(other, int | float | np.number):
        raise TypeError(
            f"K + {other:g} is not defined: NumPy would add it to every entry. Write "
            f"K + {other:g} * scipy.sparse.eye_array(n), or K.shifted({other:g})."
        )
    matrix = getattr(other, "A", other) if isinstance(other, LinearOperator) else other
    if not issparse(matrix) or matrix.shape != shape or shape[0] != shape[1]:
        return None
    at = matrix.tocoo()
    if (at.data[at.row != at.col] != 0).any() or at.dtype.kind not in "iufb":
        return None
    entries = np.asarray(matrix.diagonal(), dtype=np.result_type(at.dtype, np.float32))
    return float(entries[0]) if len(entries) and (entries == entries[0]).all() else entries
