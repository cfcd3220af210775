"""What a product is compared with: the exact rows, NumPy in blocks, and trivial answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def exact_rows(queries: Array, keys: Array, x: Array, bandwidth: float, rows: Array) -> Array:
    """Rows of K @ x by direct differences in double precision, without any of our loops."""
    from scipy.spatial.distance import cdist

    picked, others = queries[rows].astype(np.float64), keys.astype(np.float64)
    products = [
        np.exp(cdist(picked[i : i + 64], others, "sqeuclidean") * (-0.5 / bandwidth**2)) @ x
        for i in range(0, len(picked), 64)
    ]
    return np.concatenate(products)


def error_from_rows(found: Array, exact: Array, n_queries: int, x: Array) -> float:
    """|Kx - y| / |x|, extrapolated from rows sampled uniformly among `n_queries`."""
    difference = float(np.linalg.norm(found.astype(np.float64) - exact))
    return difference * math.sqrt(n_queries / len(exact)) / float(np.linalg.norm(x))


def folded(queries: Array, keys: Array, bandwidth: float) -> tuple[Array, Array]:
    """Points with two more coordinates, whose inner product is the exponent -|q - k|² / (2σ²).

    The usual trick of a fast NumPy program: the norms ride along in the matrix product.
    """

    def half_norms(points: Array) -> Array:
        norms: Array = (points * points).sum(axis=1, keepdims=True)
        norms *= -0.5
        return norms

    q, k = queries / queries.dtype.type(bandwidth), keys / keys.dtype.type(bandwidth)
    one_q, one_k = np.ones((len(q), 1), q.dtype), np.ones((len(k), 1), k.dtype)
    return np.hstack([q, half_norms(q), one_q]), np.hstack([k, one_k, half_norms(k)])


def numpy_blocked(folded_queries: Array, folded_keys: Array, x: Array, block: int = 512) -> Array:
    """K @ x with NumPy's matrix product, a block of queries at a time.

    512 rows are about its best: 1,024 take a third longer at 65,536 keys, where each block is
    memory fresh from the system.
    """
    y = np.empty((len(folded_queries), *x.shape[1:]), folded_queries.dtype)
    for i in range(0, len(y), block):
        entries = folded_queries[i : i + block] @ folded_keys.T
        np.exp(entries, out=entries)
        y[i : i + block] = entries @ x
    return y


def trivial_answers(
    queries: Array, keys: Array, x: Array, bandwidth: float, rows: Array, exact: Array
) -> dict[str, Array]:
    """Answers that cost nothing, on the rows of `exact`: an error is good only next to theirs.

    Zero; the diagonal alone, as if only the key of the same number were near (where there are as
    many queries as keys); and the mean of the exact answer everywhere.
    """
    answers = {"y = 0": np.zeros_like(exact)}
    if len(queries) == len(keys):
        near = queries[rows].astype(np.float64) - keys[rows]
        diagonal = np.exp((near * near).sum(axis=1) * (-0.5 / bandwidth**2))
        answers["y = diagonal"] = diagonal.reshape(-1, *[1] * (x.ndim - 1)) * x[rows]
    answers["y = mean"] = np.broadcast_to(exact.mean(axis=0), exact.shape)
    return answers
