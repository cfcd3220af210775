r"""The definition of the kernel matrix, and its exact product with anything.

What every approximation here is measured against: :func:`gaussian_kernel` writes the matrix out,
:func:`kernel_matrix` that of any kernel, :func:`product` multiplies with it in compiled tiles and
writes nothing of size n x n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.functions import KernelFunction
from approxkmv.kernel.frame import in_usual_units
from approxkmv.kernel.matrix import gaussian_kernel as gaussian_kernel
from approxkmv.kernel.matrix import kernel_values
from approxkmv.kernel.matrix import product as _product
from approxkmv.loops.types import Float64

__all__ = ["gaussian_kernel", "kernel_matrix", "product"]


def kernel_matrix(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    bandwidth: float | npt.ArrayLike,
    kernel: str | KernelFunction = "gaussian",
) -> Float64:
    """Matrix of any kernel by direct differences, in double precision, for small cases.

    Parameters
    ----------
    queries, keys : array_like, shape (n_queries, n_dims) and (n_keys, n_dims)
        ``keys=None`` means the queries.
    bandwidth : float or array_like, shape (n_dims,)
        Sigma, or one for each coordinate.
    kernel : str or KernelFunction
        As in :func:`approxkmv.matvec`.

    Examples
    --------
    >>> from approxkmv.exact import kernel_matrix
    >>> kernel_matrix([[0.0], [1.0]], [[0.0]], 1.0, "laplacian").round(4)
    array([[1.    ],
           [0.3679]])
    """
    q, k = _check.point_pair(queries, keys)
    q, k, sigma = _check.in_bandwidths(
        q.astype(np.float64, copy=False), k.astype(np.float64, copy=False), bandwidth
    )
    return kernel_values(q, k, sigma, _check.kernel(kernel))


def product(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    bandwidth: float,
    *,
    kernel: str | KernelFunction = "gaussian",
    n_threads: int | None = None,
) -> npt.NDArray[np.floating[Any]]:
    r"""Exact :math:`Kx` with :math:`K_{ij} = \exp(-|q_i - k_j|^2 / (2\sigma^2))`: every pair.

    What ``akmv.matvec(..., method="exact")`` returns, without its report.

    Parameters
    ----------
    queries, keys : array_like, shape (n_queries, n_dims) and (n_keys, n_dims)
        ``keys=None`` means the queries.
    x : array_like, shape (n_keys,) or (n_keys, n_columns)
    bandwidth : float
        Sigma.
    kernel : str or KernelFunction
        As in :func:`approxkmv.matvec`.
    n_threads : int, optional

    Returns
    -------
    ndarray, shape (n_queries,) or (n_queries, n_columns)
        In the common floating type of the points.

    Examples
    --------
    >>> from approxkmv.exact import gaussian_kernel, product
    >>> points, x = np.array([[0.0], [1.0]]), np.array([1.0, -1.0])
    >>> product(points, None, x, bandwidth=1.0).round(4)
    array([ 0.3935, -0.3935])
    >>> np.allclose(product(points, None, x, 1.0), gaussian_kernel(points, points, 1.0) @ x)
    True
    """
    q, k = _check.point_pair(queries, keys)
    columns = _check.vector(x, len(k))
    for array, name in ((q, "queries"), (k, "keys"), (columns, "x")):
        _check.finite(array, name)
    q, k, sigma = in_usual_units(q, k, _check.positive(bandwidth, "bandwidth"))
    return _product(
        q,
        k,
        columns,
        sigma,
        function=_check.kernel(kernel),
        n_threads=_check.threads(n_threads),
    )
