r"""The definition of the kernel matrix, and its exact product with anything.

What every approximation here is measured against: :func:`gaussian_kernel` writes the matrix out,
:func:`product` multiplies with it in compiled tiles and writes nothing of size n x n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.kernel.frame import in_usual_units
from approxkmv.kernel.matrix import gaussian_kernel as gaussian_kernel
from approxkmv.kernel.matrix import product as _product

__all__ = ["gaussian_kernel", "product"]


def product(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    bandwidth: float,
    *,
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
    return _product(q, k, columns, sigma, n_threads=_check.threads(n_threads))
