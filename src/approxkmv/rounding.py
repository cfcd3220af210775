"""What rounding does to an exact product: a worst-case bound, and a measurement on a few rows."""

from __future__ import annotations

import math

import numpy as np

from approxkmv.exact import ExactKernel, prepare
from approxkmv.leaves import Array

_CHECKED_ROWS = 16
_KEYS_AT_ONCE = 16384


def rounding_bound(kernel: ExactKernel, kernel_sum: float) -> float:
    r"""Bound of :math:`\|Kx - y\|_2 / \|x\|_2` for a computed exact product, from IEEE arithmetic.

    Every computed entry is :math:`K_{ij}(1+\delta_{ij})` with :math:`|\delta_{ij}| \le \delta`, and
    sums of n terms add a relative error :math:`\gamma` counted in ``additions``. Then the error of
    row i is at most :math:`(\delta+\gamma)\sum_j K_{ij}|x_j|`, which is at most
    :math:`(\delta+\gamma)\sqrt{\sum_j K_{ij}}\,\|x\|` because :math:`K_{ij}^2 \le K_{ij}`; over all
    rows that gives the square root of the sum of the entries.
    """
    unit = float(np.finfo(kernel.keys.dtype).eps) / 2
    n_dims = kernel.keys.shape[1]
    # Entries with a larger exponent are below the smallest positive number and count as 0.
    largest_exponent = -math.log(float(np.finfo(kernel.keys.dtype).smallest_subnormal))
    if kernel.frame.differences:
        exponent_error = (n_dims + 4) * unit * largest_exponent
    else:
        key_radius = kernel.frame.radius
        query_radius = key_radius + math.sqrt(2 * largest_exponent)
        exponent_error = unit * (
            (n_dims + 4) * key_radius * query_radius + 2 * (key_radius**2 + query_radius**2)
        )
    entry_error = math.expm1(min(exponent_error, 700.0)) + 4 * unit
    # Within a panel of keys, then one per panel; a panel holds at least this many keys.
    panel = max(8, min(256, 2**16 // (kernel.keys.itemsize * max(n_dims, 1))))
    additions = 256 + len(kernel.keys) / panel
    # Entries below the normal numbers are computed as 0.
    lost = float(np.finfo(kernel.keys.dtype).smallest_normal)
    lost *= math.sqrt(len(kernel.queries) * len(kernel.keys))
    return float((entry_error + additions * unit) * math.sqrt(kernel_sum)) + lost


def measured_error(
    kernel: ExactKernel, bandwidth: float, x: Array, y: Array, rng: np.random.Generator
) -> float:
    r"""Estimate of :math:`\|Kx - y\|_F` from random rows computed again in double precision."""
    n_queries = len(kernel.queries)
    if n_queries == 0 or x.size == 0:
        return 0.0
    n_rows = min(_CHECKED_ROWS, n_queries)
    rows = np.sort(rng.choice(n_queries, n_rows, replace=False))
    queries = kernel.queries[rows].astype(np.float64)
    exact = np.zeros((n_rows, x.shape[1]))
    for first in range(0, len(kernel.keys), _KEYS_AT_ONCE):
        part = slice(first, first + _KEYS_AT_ONCE)
        keys = kernel.keys[part].astype(np.float64)
        double = prepare(queries, keys, bandwidth, differences=True, n_threads=kernel.n_threads)
        exact += double.product(np.ascontiguousarray(x[part], dtype=np.float64)).out
    return math.sqrt(n_queries / n_rows) * float(np.linalg.norm(y[rows] - exact))
