"""What rounding does to an exact product: a worst-case bound, and a measurement on a few rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from approxkmv._heads import Heads
from approxkmv.kernel.equal_points import Copies
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Index

CHECKED_ROWS = 16
_DISTANCES = 1000  # at which the error of an entry is looked at, in steps of a few per cent
_KEYS_AT_ONCE = 16384


def rounding_bound(
    kernel: KernelMatrix,
    kernel_sum: float,
    *,
    n_pairs: int | None = None,
    most_equal: float = 1.0,
) -> float:
    r"""Bound of :math:`\|Kx - y\|_2 / \|x\|_2` for a computed exact product, from IEEE arithmetic.

    Every computed entry is :math:`K_{ij}(1+\delta_{ij})` with :math:`|\delta_{ij}| \le \delta`, and
    sums of n terms add a relative error :math:`\gamma` counted in ``additions``. Then the error of
    row i is at most :math:`(\delta+\gamma)\sum_j K_{ij}|x_j|`, which is at most
    :math:`(\delta+\gamma)\sqrt{\sum_j K_{ij}}\,\|x\|` because :math:`K_{ij}^2 \le K_{ij}`; over all
    rows that gives the square root of the sum of the entries. Where equal points were merged
    the sum and ``n_pairs`` are those of all points, and of the keys at most ``most_equal`` are
    equal, whose entries of x are added first.
    """
    unit = float(np.finfo(kernel.keys.dtype).eps) / 2
    n_dims = kernel.keys.shape[1]
    entry_error = math.expm1(min(_exponent_error(kernel), 700.0)) + 4 * unit
    # Within a panel of keys, then one per panel; a panel holds at least this many keys.
    panel = max(8, min(256, 2**16 // (kernel.keys.itemsize * max(n_dims, 1))))
    additions = 256 + len(kernel.keys) / panel
    if most_equal > 1:  # added in double precision, and rounded once
        additions += 1 + most_equal
    # Entries below the normal numbers are computed as 0.
    lost = _least_value(kernel)
    lost *= math.sqrt(n_pairs or len(kernel.queries) * len(kernel.keys))
    return float((entry_error + additions * unit) * math.sqrt(kernel_sum)) + lost


def _exponent_error(kernel: KernelMatrix) -> float:
    """Largest relative error that rounding of distances makes in an entry that is not lost.

    Rounding changes the exponent of the Gaussian; the steepness of the kernel says what becomes of
    it. One grows with the distance and the other falls: they are taken from neighbouring distances.
    """
    kind, n_dims = np.finfo(kernel.keys.dtype), kernel.keys.shape[1]
    unit = float(kind.eps) / 2
    if kernel.frame.differences:
        # Relative to the exponent, of which a kernel's own logarithm has at most as much; and what
        # the root and the factor in that logarithm add.
        own = 0.0 if kernel.function.factorises else 4.0
        return float((n_dims + 4 + own) * unit * -math.log(float(kind.smallest_subnormal)))
    # Entries with a larger exponent are below the smallest positive number and count as 0.
    farthest = math.sqrt(-2 * kernel.function.exponent_at(float(kind.smallest_subnormal)))
    apart = np.geomspace(1e-6 * min(farthest, 1.0), farthest, _DISTANCES)
    key_radius = kernel.frame.radius
    query_radius = key_radius + apart[1:]
    errors = unit * (
        (n_dims + 4) * key_radius * query_radius + 2 * (key_radius**2 + query_radius**2)
    )
    steepness = kernel.function.steepness(-0.5 * apart[:-1] ** 2)
    own = (
        0.0 if kernel.function.factorises else 4 * unit * -math.log(float(kind.smallest_subnormal))
    )
    return float((errors * steepness).max()) + own


def _least_value(kernel: KernelMatrix) -> float:
    """Entries below this may be computed as 0: a power that underflows, times its polynomial."""
    least = float(np.finfo(kernel.keys.dtype).smallest_normal)
    return least if kernel.function.factorises else float(least * (1 + math.log(least)) ** 2)


def measured_error(
    kernel: KernelMatrix,
    x: Array,
    y: Array,
    rng: np.random.Generator,
    *,
    copies: Copies | None = None,
) -> float:
    r"""Estimate of :math:`\|Kx - y\|_F` from random rows computed again in double precision.

    With ``copies`` y has the rows of all queries, and the kernel those of the distinct ones.
    """
    n_queries = len(y)
    if n_queries == 0 or x.size == 0:
        return 0.0
    rows = np.sort(rng.choice(n_queries, min(CHECKED_ROWS, n_queries), replace=False))
    length = math.sqrt(n_queries / len(rows)) * _error_of_rows(
        kernel, x, y[rows], rows if copies is None else copies.place[rows]
    )
    return math.hypot(length, _stored(kernel, frobenius(y)))


def measured_rounding(
    kernel: KernelMatrix, x: Array, y: Array, exact_rows: Index, *, copies: Copies | None = None
) -> float:
    r"""Estimate of what rounding adds to :math:`\|Kx - y\|_F` of a sampled product.

    From some of the rows that were computed exactly, and the type that found pairs are kept in.
    With ``copies`` y has the rows of distinct queries, and their errors count for all.
    """
    rows = exact_rows[:: max(1, len(exact_rows) // CHECKED_ROWS)][:CHECKED_ROWS]
    number = np.ones(len(y)) if copies is None else copies.number
    y_norm = frobenius(y * np.sqrt(number)[:, None])
    seen = 0.0
    if len(rows):
        of_rows = _error_of_rows(kernel, x, y[rows], rows)
        seen = math.hypot(
            math.sqrt(float(number.sum()) / len(rows)) * of_rows, _stored(kernel, y_norm)
        )
    # The other rows have values of found pairs, which are kept in float32.
    kept = 0.5 * float(np.finfo(np.float32).eps)
    return math.hypot(seen, kept * y_norm, kept * frobenius(x))


def _stored(kernel: KernelMatrix, y_norm: float) -> float:
    """Storing y rounds each of its entries, though a few rows may agree to the bit."""
    return 0.5 * float(np.finfo(kernel.keys.dtype).eps) * y_norm


def _error_of_rows(kernel: KernelMatrix, x: Array, y: Array, rows: Index) -> float:
    """Length of the error of some rows."""
    queries = kernel.queries[rows].astype(np.float64)
    exact = np.zeros((len(rows), x.shape[1]))
    for first in range(0, len(kernel.keys), _KEYS_AT_ONCE):
        part = slice(first, first + _KEYS_AT_ONCE)
        keys = kernel.keys[part].astype(np.float64)
        double = kernel.checked(None).between(queries, keys, differences=True)
        exact += double.product(np.ascontiguousarray(x[part], dtype=np.float64)).out
    return frobenius(y - exact)


def attention_bound(heads: Heads, head: int, scale: float) -> float:
    r"""Bound of :math:`\|O - O'\|_F / \|V\|_F` for computed exact attention, from IEEE arithmetic.

    The absolute terms of a score add up to at most the product of two lengths. So every weight is
    off by a relative error, and so are its sums in numerator and denominator; together a factor
    :math:`1+\eta`. The error of row i is then at most :math:`\eta\sum_j P_{ij}|v_j|` with the
    softmax matrix P, whose norm is at most the root of its largest column sum, of ``n_queries``.
    """
    query, key, _ = heads.points(head)
    kind = np.finfo(key.dtype)
    unit = float(kind.eps) / 2
    score = abs(scale) * _longest(query) * _longest(key)
    mask = heads.mask_of(head)
    if mask is not None and mask.dtype != np.bool_:
        score += largest(np.asarray(mask[np.isfinite(mask)], np.float64))
    n_keys, n_dims = key.shape
    # Weights further below the largest are 0.
    reach = min(2 * score, -math.log(float(kind.smallest_subnormal)))
    exponent_error = unit * ((n_dims + 4) * score + 2 * reach)
    # Within a panel of keys, then a few for each panel; a panel holds at least this many keys.
    panel = max(8, min(256, 2**16 // (key.itemsize * max(n_dims, 1))))
    sums = unit * (256 + 16 * n_keys / panel + 8)
    weight_error = math.expm1(min(2 * exponent_error, 700.0)) + 2 * sums
    lost = float(kind.smallest_normal) * n_keys
    return float((weight_error + lost) * math.sqrt(len(query)))


def measured_attention_error(
    heads: Heads,
    head: int,
    scale: float,
    is_causal: bool,
    output: Array,
    rng: np.random.Generator,
) -> float:
    r"""Estimate of :math:`\|O - O'\|_F` from random rows computed by NumPy in double precision."""
    n_rows = min(CHECKED_ROWS, len(output))
    if n_rows == 0:
        return 0.0
    rows = np.sort(rng.choice(len(output), n_rows, replace=False))
    query, key, value = (points.astype(np.float64) for points in heads.points(head))
    scores = scale * (query[rows] @ key.T)
    mask = heads.mask_of(head)
    if mask is not None:
        mask = mask if len(mask) == 1 else mask[rows]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if is_causal:
        scores = np.where(np.arange(len(key)) <= rows[:, None], scores, -np.inf)
    most = scores.max(axis=1, initial=-np.inf, keepdims=True)
    with np.errstate(over="ignore"):  # what is further below than a float can say counts nothing
        weights = np.exp(scores - np.where(np.isfinite(most), most, 0.0))
    totals = weights.sum(axis=1, keepdims=True)
    weights /= np.where(totals > 0, totals, 1.0)
    return math.sqrt(len(output) / n_rows) * norm(output[rows] - weights @ value)


def largest(array: npt.NDArray[np.floating]) -> float:
    """Largest absolute entry, without a temporary of the size of the array."""
    return max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))


def norm(array: npt.NDArray[np.floating]) -> float:
    """Frobenius norm, also of numbers whose squares overflow."""
    most = largest(array)
    return most * frobenius(array.astype(np.float64) / most) if most > 0 else 0.0


def frobenius(array: npt.NDArray[np.floating]) -> float:
    """Frobenius norm in double precision.

    NumPy's own asks a BLAS, whose threads then spin for a while on the cores that a product needs.
    """
    return math.sqrt(float(np.square(array, dtype=np.float64).sum()))


def _longest(points: Array) -> float:
    """Largest length of a point."""
    most = largest(points)
    if most == 0:
        return 0.0
    scaled = points.astype(np.float64) / most
    return most * math.sqrt((scaled * scaled).sum(axis=1).max())
