"""A preconditioner from a few columns of the kernel matrix.

The columns are those of randomly pivoted Cholesky (:mod:`approxkmv.engine.survey.pivots`). The
result ``F F^T`` is close to K in the directions of its large eigenvalues, which are those that make
conjugate gradients slow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from approxkmv.engine.survey.pivots import PivotedCholesky
from approxkmv.loops.types import Array, Float64, Index

# Once this share of the trace is left, further columns only follow rounding errors.
_NOTHING_LEFT = 1e-7
# Units of rounding that are added to the diagonal of a block, which may be singular to rounding.
_JITTER = 10.0
_LEAST_NOISE = 2.0**-300


def pivoted_cholesky(
    columns: Callable[[Index], Array],
    diagonal: Float64,
    rank: int,
    rng: np.random.Generator,
    enough: Callable[[], bool] = lambda: False,
    *,
    entries: Callable[[Index], Float64] | None = None,
    dtype: npt.DTypeLike = np.float64,
    n_threads: int = 1,
) -> Array:
    """Factor F of shape (n, at most rank) with ``F F^T`` close to the matrix and never above it.

    ``columns(j)`` gives the columns numbered j, shape (n, len(j)), and ``entries(j)``, if it is
    given, the rows and columns j: then only columns of pivots are computed. No further columns are
    asked for once ``enough()`` is true.
    """
    unit = float(np.finfo(dtype).eps)
    found = PivotedCholesky(
        columns, entries, diagonal, rng, unit=unit, jitter=_JITTER * unit, dtype=dtype,
        n_threads=n_threads,
    )  # fmt: skip
    whole = float(diagonal.sum())
    found.grow(rank, lambda: found.left.sum() <= _NOTHING_LEFT * whole or enough())
    return found.factor


class Preconditioner:
    r"""Inverse of :math:`FF^T + \mathrm{diag}(noise)`, by the Woodbury identity."""

    def __init__(self, factor: Array, noise: Float64) -> None:
        self.rank = factor.shape[1]
        self._factor = factor
        # Any positive diagonal preconditions; next to nothing would overflow when divided by.
        self._noise = np.maximum(noise, _LEAST_NOISE)[:, None]
        try:
            self._core = self._decomposed()
        except LinAlgError:
            # Next to so little noise the core is singular to rounding.
            trace = float(np.square(factor, dtype=np.float64).sum())
            self._noise = np.maximum(self._noise, 10 * np.finfo(factor.dtype).eps * trace)
            self._core = self._decomposed()

    def _decomposed(self) -> tuple[Float64, bool]:
        """Factors of ``I + F^T diag(noise)^-1 F``."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            weighted = self._factor / self._noise.astype(self._factor.dtype)
            core = (self._factor.T @ weighted).astype(np.float64)
        core[np.diag_indices(len(core))] += 1.0
        if not np.isfinite(core).all():
            raise LinAlgError("noise is below the range of the factor's type")
        factors, lower = cho_factor(core)
        return np.asarray(factors), bool(lower)

    def __call__(self, v: Float64) -> Float64:
        """Apply to the columns of v."""
        scaled = v / self._noise
        if self.rank == 0:  # SciPy 1.11 solves no empty system
            return scaled
        projected = self._factor.T @ scaled.astype(self._factor.dtype)
        inner = cho_solve(self._core, projected, check_finite=False)  # the caller looks at x
        return np.asarray(scaled - (self._factor @ inner.astype(self._factor.dtype)) / self._noise)
