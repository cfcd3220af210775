"""How far an operator is from the kernel matrix it stands for."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse.linalg import LinearOperator

from approxkmv.loops.types import Array
from approxkmv.operator import GaussianKernel
from approxkmv.product import matvec

_CHECKED_ROWS = 32


def stated_error(K: LinearOperator, x: Array, y: Array, rng: np.random.Generator) -> float:
    r"""Largest :math:`\|Kx - y\|_2` over columns x of length 1 with products y of the operator.

    A sampled :class:`~approxkmv.GaussianKernel` states it: its ``eps``. That is promised for a
    vector that does not depend on what was drawn; for the operator's own eigenvectors it is taken
    to hold too. An exact one is measured, on a few random rows in double precision: rows are drawn
    half in proportion to the squared entries of x, so that a concentrated vector is seen. Any other
    operator is what it is, with error 0.
    """
    if not isinstance(K, GaussianKernel):
        return 0.0
    if K.info.method != "exact":
        return float(K.eps)
    n = K.shape[0]
    if n == 0 or x.size == 0:
        return 0.0
    share = np.full(n, 1 / n)
    if K.shape[0] == K.shape[1]:
        entries = np.square(np.abs(x), dtype=np.float64).sum(axis=1)
        share = 0.5 * share + 0.5 * entries / (entries.sum() or 1.0) if entries.any() else share
    rows = rng.choice(n, _CHECKED_ROWS, p=share / share.sum())
    exact = matvec(
        K.queries[rows].astype(np.float64),
        K.keys.astype(np.float64),
        x.astype(K.dtype).astype(np.float64),  # what the operator multiplied
        bandwidth=K.bandwidth,
        method="exact",
    )
    squares = np.square(y[rows] - exact) / share[rows, None]
    return math.sqrt(float(squares.mean(axis=0).max()))
