"""A preconditioner from a few columns of the kernel matrix.

Columns are picked one block after another, each with probability proportional to what the columns
before it left of the diagonal (randomly pivoted Cholesky). The result ``F F^T`` is close to K in
the directions of its large eigenvalues, which are those that make conjugate gradients slow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular

from approxkmv.loops.types import Array, Float64, Index

# Columns picked together: few enough that they do not repeat each other, enough for fast products.
_BLOCK = 64
# Once this share of the trace is left, further columns only follow rounding errors.
_NOTHING_LEFT = 1e-7
_LEAST_NOISE = 2.0**-300


def pivoted_cholesky(
    columns: Callable[[Index], Array],
    diagonal: Float64,
    rank: int,
    rng: np.random.Generator,
    enough: Callable[[], bool] = lambda: False,
) -> Array:
    """Factor F of shape (n, at most rank) with ``F F^T`` close to the matrix and never above it.

    ``columns(j)`` gives the columns numbered j, shape (n, len(j)). No further columns are asked for
    once ``enough()`` is true.
    """
    left = diagonal.copy()
    whole = float(left.sum())
    parts: list[Array] = []
    n_columns = 0
    while n_columns < rank and left.sum() > _NOTHING_LEFT * whole and not enough():
        size = min(_BLOCK, rank - n_columns, int(np.count_nonzero(left)))
        picked = np.unique(rng.choice(len(left), size, replace=False, p=left / left.sum()))
        block = columns(picked)
        for part in parts:
            block = block - part @ part[picked].T
        core = block[picked].astype(np.float64)
        # A column that repeats another one of its block leaves a core that is singular to rounding.
        core[np.diag_indices(len(core))] += 10 * np.finfo(block.dtype).eps * (1 + np.trace(core))
        try:
            root = cholesky(core, lower=True)
        except LinAlgError:  # an operator with errors; what was picked so far serves
            break
        part = solve_triangular(root, block.T.astype(np.float64), lower=True).T
        parts.append(np.ascontiguousarray(part, dtype=block.dtype))
        n_columns += len(picked)
        left = np.maximum(left - np.einsum("ij,ij->i", part, part), 0.0)
        left[picked] = 0.0
    if not parts:
        return np.zeros((len(left), 0))
    return np.concatenate(parts, axis=1)


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
