"""LOBPCG: the largest eigenvalues from blocks of vectors, one product with a block per iteration.

Locally optimal block preconditioned conjugate gradients (Knyazev, 2001), without a preconditioner:
Rayleigh-Ritz in the span of the current vectors X, their residuals R and the directions P that led
to them. A product with many columns costs little more than one with one, and copies of a repeated
eigenvalue are found together.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, qr
from scipy.sparse.linalg import LinearOperator

from approxkmv.loops.types import Array, Float64

# Vectors more than are asked for: the last ones of a block converge most slowly.
_GUARD = 4


def lobpcg(
    K: LinearOperator, k: int, *, tol: float, max_iter: int, rng: np.random.Generator
) -> Float64:
    """Vectors (n, k), the largest eigenvalue first, with ``|K v - value v| <= tol * value``.

    Stops where the residuals are rounding errors of the products, or after ``max_iter`` iterations;
    the caller sees from the residuals how far it came.
    """
    n = K.shape[0]
    width = min(n, k + _GUARD)
    eps = float(np.finfo(K.dtype).eps)
    basis = np.linalg.qr(rng.standard_normal((n, width)))[0]
    products = _times(K, basis)
    directions = images = np.empty((n, 0))
    for _ in range(max_iter):
        values, rotation = _ritz(basis, products, width)
        x, of_x = basis @ rotation, products @ rotation
        residuals = of_x - x * values
        lengths = np.linalg.norm(residuals, axis=0)
        rounding = 10 * eps * float(np.abs(values).max(initial=0.0))
        if (lengths[:k] <= np.maximum(tol * np.abs(values[:k]), rounding)).all():
            break
        # What the new vectors owe to anything but the old ones.
        if basis.shape[1] > width:
            rotation[:width] = 0
            directions, images = basis @ rotation, products @ rotation
        rest = residuals[:, lengths > rounding]
        rest = rest - x @ (x.T @ rest)
        rest = np.linalg.qr(rest)[0]
        basis, products = _orthonormal(
            np.column_stack([x, rest, directions]),
            np.column_stack([of_x, _times(K, rest), images]),
            width,
            np.sqrt(eps),
        )
    return np.asarray(x[:, :k])


def _times(K: LinearOperator, x: Float64) -> Float64:
    return np.asarray(K @ x.astype(K.dtype), np.float64)


def _ritz(basis: Float64, products: Float64, width: int) -> tuple[Float64, Float64]:
    """The largest values in the span of an orthonormal basis, and their coordinates in it."""
    projected = basis.T @ products
    size = len(projected)
    values, rotation = eigh((projected + projected.T) / 2, subset_by_index=[size - width, size - 1])
    return values[::-1], rotation[:, ::-1].copy()


def _orthonormal(
    columns: Array, products: Array, width: int, least: float
) -> tuple[Float64, Float64]:
    """An orthonormal basis that begins with the first ``width`` columns, and its products.

    Columns that bring less than ``least`` of their length that is new are left out: their products
    would be mostly rounding.
    """
    first, others = columns[:, :width], columns[:, width:]
    inner = first.T @ others
    others, of_others = others - first @ inner, products[:, width:] - products[:, :width] @ inner
    lengths = np.linalg.norm(others, axis=0)
    some = lengths > 0
    others, of_others = others[:, some] / lengths[some], of_others[:, some] / lengths[some]
    q, r, order = qr(others, mode="economic", pivoting=True)
    kept = int(np.count_nonzero(np.abs(np.diag(r)) > least))
    of_q = np.linalg.solve(r[:kept, :kept].T, of_others[:, order[:kept]].T).T
    return np.column_stack([first, q[:, :kept]]), np.column_stack([products[:, :width], of_q])
