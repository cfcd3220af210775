r"""Attention matrices as operators, and their singular values head by head.

By Lemma 4.1 of the paper the attention matrix :math:`e^{s QK^T}` is a Gaussian kernel matrix of
lifted points times a factor per row. Taking each row's logarithm of the sum off the exponents makes
it the softmax matrix :math:`D^{-1}A`, with no entry above 1 and no overflow on the way.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64
from approxkmv.paper.reduction import attention_to_gaussian
from approxkmv.spectrum.extremes import singular_values

MATRICES = ("softmax", "lifted")
# Below this many rows a triangle is computed in full and masked: at most 1/2 of it for nothing.
_TRIANGLE = 128


class AttentionMatrix(LinearOperator):  # type: ignore[misc]
    r"""Attention matrix of one head as a linear operator; every entry is computed at each product.

    Parameters
    ----------
    query, key : array_like, shape (n_queries, n_dims) and (n_keys, n_dims)
    scale : float, optional
        Of the scores; default :math:`d^{-1/2}`.
    is_causal : bool
        Query i sees the keys 0 to i only, as in PyTorch.
    matrix : {"softmax", "lifted"}
        :math:`D^{-1}A`, or the Gaussian kernel matrix of the lifted points (Lemma 4.1), which is
        what the paper's algorithm multiplies.
    n_threads : int or None

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.spectrum import AttentionMatrix
    >>> rng = np.random.default_rng(0)
    >>> P = AttentionMatrix(rng.standard_normal((5, 4)), rng.standard_normal((7, 4)))
    >>> P.shape, bool(np.allclose(P @ np.ones(7), 1))
    ((5, 7), True)
    """

    def __init__(
        self,
        query: npt.ArrayLike,
        key: npt.ArrayLike,
        *,
        scale: float | None = None,
        is_causal: bool = False,
        matrix: str = "softmax",
        n_threads: int | None = None,
    ) -> None:
        q, k = _check.points(query, "query"), _check.points(key, "key")
        if q.shape[1] != k.shape[1]:
            raise ValueError(f"key must have {q.shape[1]} columns, as query, got {k.shape[1]}.")
        if q.size == 0 or k.size == 0:
            raise ValueError(f"query and key must not be empty, got {q.shape} and {k.shape}.")
        _check.finite(q, "query")
        _check.finite(k, "key")
        scale = None if scale is None else _check.positive(scale, "scale")
        common = np.result_type(q, k)
        lifted = attention_to_gaussian(q.astype(common), k.astype(common), scale)
        self._is_causal = bool(is_causal)
        self._kernel = prepare(
            np.ascontiguousarray(lifted.queries),
            np.ascontiguousarray(lifted.keys),
            lifted.bandwidth,
            backend=Compiled(_check.threads(n_threads)),
        )
        if _check.one_of(matrix, "matrix", MATRICES) == "softmax":
            shift = self._kernel.query_shift + self._log_row_sums()
            self._kernel = dataclasses.replace(self._kernel, query_shift=shift)
        super().__init__(dtype=common, shape=(len(q), len(k)))

    def _log_row_sums(self) -> Float64:
        if not self._is_causal:
            return self._kernel.log_row_sums()
        total = np.full(len(self._kernel.queries), -np.inf)
        for rows, keys in _rectangles(*_sides(self._kernel)):
            total[rows] = np.logaddexp(total[rows], _part(self._kernel, rows, keys).log_row_sums())
        for start, stop in _triangles(*_sides(self._kernel)):
            for row in range(start, stop):  # few keys each
                part = _part(self._kernel, slice(row, row + 1), _seen(self._kernel, start, row))
                total[row] = np.logaddexp(total[row], part.log_row_sums()[0])
        return total

    def _matmat(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._multiply(x, transposed=False)

    def _rmatmat(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._multiply(x, transposed=True)

    def _matvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._multiply(x.reshape(-1, 1), transposed=False)[:, 0]

    def _rmatvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._multiply(x.reshape(-1, 1), transposed=True)[:, 0]

    def _multiply(self, x: npt.NDArray[Any], *, transposed: bool) -> Array:
        columns = np.ascontiguousarray(x, dtype=self.dtype)
        if not self._is_causal:
            kernel = self._kernel.transposed if transposed else self._kernel
            return kernel.product(columns).out
        out = np.zeros((self.shape[1 if transposed else 0], columns.shape[1]), self.dtype)
        for rows, keys in _rectangles(*self.shape):
            part = _part(self._kernel, rows, keys)
            if transposed:
                out[keys] += part.transposed.product(columns[rows]).out
            else:
                out[rows] += part.product(columns[keys]).out
        for start, stop in _triangles(*self.shape):
            rows, keys = slice(start, stop), slice(start, min(stop, self.shape[1]))
            square = np.tril(_part(self._kernel, rows, keys).product(_eye(keys, self.dtype)).out)
            if transposed:
                out[keys] += square.T @ columns[rows]
            else:
                out[rows] += square @ columns[keys]
        return out


def attention_singular_values(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    k: int = 6,
    matrix: str = "softmax",
    rng: Rng = None,
    n_threads: int | None = None,
) -> Float64:
    """The k largest singular values of every head's attention matrix.

    Parameters
    ----------
    query, key : array_like, shape (..., n_queries, n_dims) and (..., n_keys, n_dims)
        Leading axes are heads, batches, layers. Where ``key`` has fewer heads, on the axis before
        the last two, each serves a group of query heads (grouped-query attention).
    scale, is_causal, matrix, n_threads
        As in :class:`AttentionMatrix`.
    k : int
    rng : None, int or numpy.random.Generator
        Seed of the solver's start.

    Returns
    -------
    values : ndarray, shape (..., k)
        The largest first.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 4, 64, 8)), rng.standard_normal((2, 4, 64, 8))
    >>> values = akmv.spectrum.attention_singular_values(query, key, k=3, is_causal=True, rng=0)
    >>> values.shape
    (2, 4, 3)
    """
    queries = np.asarray(_check.plain(query, "query"))
    keys = np.asarray(_check.plain(key, "key"))
    if queries.ndim < 2 or keys.ndim != queries.ndim:
        raise ValueError(
            "query and key must have the same number of axes, at least two, "
            f"got shapes {queries.shape} and {keys.shape}."
        )
    keys = _one_per_query_head(queries, keys)
    generator = _check.generator(rng)
    k = _check.count(k, "k", most=min(queries.shape[-2], keys.shape[-2]))
    values = np.empty((*queries.shape[:-2], k))
    for head in np.ndindex(*queries.shape[:-2]):
        operator = AttentionMatrix(
            queries[head],
            keys[head],
            scale=scale,
            is_causal=is_causal,
            matrix=matrix,
            n_threads=n_threads,
        )
        values[head] = singular_values(operator, k, rng=generator).values
    return values


def _one_per_query_head(queries: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    lead, have = queries.shape[:-2], keys.shape[:-2]
    if lead == have:
        return keys
    if lead[:-1] == have[:-1] and have[-1] > 0 and lead[-1] % have[-1] == 0:
        return np.repeat(keys, lead[-1] // have[-1], axis=-3)
    raise ValueError(
        f"key must have the leading axes of query, {lead}, or fewer heads that divide them, "
        f"got {have}."
    )


def _sides(kernel: KernelMatrix) -> tuple[int, int]:
    return len(kernel.queries), len(kernel.keys)


def _seen(kernel: KernelMatrix, start: int, row: int) -> slice:
    return slice(start, min(row + 1, len(kernel.keys)))


def _part(kernel: KernelMatrix, rows: slice, keys: slice) -> KernelMatrix:
    return dataclasses.replace(
        kernel,
        queries=kernel.queries[rows],
        keys=kernel.keys[keys],
        query_shift=kernel.query_shift[rows],
        key_shift=kernel.key_shift[keys],
    )


def _eye(keys: slice, dtype: np.dtype[Any]) -> Array:
    return np.eye(keys.stop - keys.start, dtype=dtype)


def _triangles(n_queries: int, n_keys: int) -> list[tuple[int, int]]:
    """Rows of the squares on the diagonal of a causal matrix."""
    edge = min(n_queries, n_keys)
    return [(a, min(a + _TRIANGLE, edge)) for a in range(0, edge, _TRIANGLE)]


def _rectangles(n_queries: int, n_keys: int) -> list[tuple[slice, slice]]:
    """Full rectangles that cover a causal matrix together with the squares on its diagonal."""
    found = []
    edge = min(n_queries, n_keys)
    if n_queries > edge:  # the last queries see every key
        found.append((slice(edge, n_queries), slice(0, n_keys)))
    width = _TRIANGLE
    while width < edge:
        found += [
            (slice(a + width, min(a + 2 * width, edge)), slice(a, a + width))
            for a in range(0, edge - width, 2 * width)
        ]
        width *= 2
    return found
