"""``mmd`` and ``hsic``: kernel tests of two samples and of independence, from exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._shown import as_html, as_json
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64

Advance = Callable[[float], object]
Width = float | npt.ArrayLike | None

# Rows of one product: with 256 columns of labels their sums take 16 MB in double precision.
_ROWS = 8192
# Columns of labels at once. Each takes one multiply-add for a pair, beside the kernel value.
_COLUMNS = 256
# Points from whose distances the median is taken.
_MEDIAN_POINTS = 2000
NULLS = ("auto", "permutation", "gamma")
# Kernel values for permutations of `hsic`, each of which is a matrix of its own: about a minute.
_MOST_PERMUTED_PAIRS = 2e10


@dataclass(frozen=True)
class TestResult:
    """Result of :func:`mmd` or :func:`hsic`.

    Attributes
    ----------
    statistic : float
        Unbiased estimate of the squared distance; 0 on average where the hypothesis holds, and then
        often negative.
    standard_error : float
        Standard error of ``statistic`` as an estimate of the true squared distance.
    p_value : float
        Probability of a statistic at least as large where the hypothesis holds.
    null : str
        Where the p-value is from: ``"permutation"`` or ``"gamma"``.
    n_permutations : int
        Permutations made; the least possible p-value is ``1 / (n_permutations + 1)``.
    null_quantile : float
        The 95 % quantile of the statistic where the hypothesis holds.
    bandwidth : float or list of float, or a tuple of two
        Bandwidths used.
    """

    __test__ = False  # for pytest

    statistic: float
    standard_error: float
    p_value: float
    null: str
    n_permutations: int
    null_quantile: float
    bandwidth: Any

    def to_json(self) -> str:
        """Everything as JSON."""
        return as_json(self)

    def _facts(self) -> dict[str, str]:
        how = f"{self.n_permutations} permutations" if self.n_permutations else "gamma distribution"
        return {
            "statistic": f"{self.statistic:.4g} +- {self.standard_error:.2g}",
            "p-value": f"{self.p_value:.3g} ({how})",
            "95 % of null": f"below {self.null_quantile:.4g}",
            "bandwidth": str(self.bandwidth),
        }

    def __str__(self) -> str:
        return "\n".join(f"{name:<13} {fact}" for name, fact in self._facts().items())

    def _repr_html_(self) -> str:
        return as_html("Kernel test", self._facts())


def mmd(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    bandwidth: float | npt.ArrayLike | None = None,
    n_permutations: int = 200,
    rng: Rng = None,
    n_threads: int | None = None,
    progress: Advance | None = None,
) -> TestResult:
    r"""Test whether two samples are of one distribution, by their maximum mean discrepancy.

    The statistic is the unbiased estimate of
    :math:`E\,k(x,x') + E\,k(y,y') - 2\,E\,k(x,y)` from all pairs, exactly; the p-value is from
    permutations of the pooled sample, which are columns of one product with the kernel matrix.
    Nothing of size n x n is stored.

    Parameters
    ----------
    x, y : array_like, shapes (n, n_dims) and (m, n_dims)
        The samples, one point per row; float32 is computed in float32, which is faster.
    bandwidth : float, array_like of shape (n_dims,), or None
        :math:`\sigma` of the kernel, or one for each coordinate; None: the median distance of up to
        2,000 pooled points.
    n_permutations : int
        Permutations for the p-value.
    rng : None, int or numpy.random.Generator
        Seed of the permutations.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    progress : callable or None
        Called now and then with the share of the work done, from 0 to 1.

    Notes
    -----
    The standard error adds the variance of the permuted statistics, which is right where the
    distributions are equal, to the estimated variance of the projections of the U-statistic, which
    dominates where they are not.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.stats import mmd
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.standard_normal((300, 5)), rng.standard_normal((400, 5))
    >>> bool(mmd(x, y + 0.5, rng=0).p_value < 0.01), bool(mmd(x, y, rng=0).p_value > 0.05)
    (True, True)
    """
    a, b = _pair(x, y)
    n, m = len(a), len(b)
    if n < 2 or m < 2:
        raise ValueError(f"x and y must have at least two rows each, got {n} and {m}.")
    n_permutations = _check.count(n_permutations, "n_permutations")
    generator = _check.generator(rng)
    pooled = np.concatenate([a, b])
    used, (pooled, _, sigma) = _bandwidth(bandwidth, pooled, generator)
    kernel = prepare(pooled, pooled, sigma, backend=Compiled(_check.threads(n_threads)))
    advance = _advance(progress)
    first = np.zeros((n + m, 1), pooled.dtype)
    first[:n] = 1
    statistics: list[Float64] = []
    rows = of_x = np.empty(0)
    for start in range(0, n_permutations + 1, _COLUMNS):
        width = min(_COLUMNS, n_permutations + 1 - start)
        labels = generator.permuted(np.repeat(first, width, axis=1), axis=0)
        if start == 0:
            labels[:, :1] = first
        share = width / (n_permutations + 1)
        found, of_x, rows = _label_sums(kernel, labels, share, advance)
        statistics.append(_discrepancy(*found, n, m))
        if start == 0:
            first_order = _projection_variance(of_x, rows, n, m)
    all_of_them = np.concatenate(statistics)
    observed, permuted = float(all_of_them[0]), all_of_them[1:]
    return TestResult(
        observed,
        math.sqrt(first_order + float(permuted.var())),
        (1 + int((permuted >= observed).sum())) / (n_permutations + 1),
        "permutation",
        n_permutations,
        float(np.quantile(permuted, 0.95)),
        used,
    )


def hsic(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    bandwidth: tuple[Width, Width] | float | None = None,
    null: str = "auto",
    n_permutations: int = 200,
    rng: Rng = None,
    n_threads: int | None = None,
    progress: Advance | None = None,
) -> TestResult:
    r"""Test whether the rows of x and y are independent: Hilbert-Schmidt independence criterion.

    The statistic is the unbiased estimate of Song et al. (2012) from all pairs, exactly: the
    product of the two kernels is the Gaussian kernel of both points side by side. Nothing of size
    n x n is stored.

    Parameters
    ----------
    x, y : array_like, shapes (n, n_dims) and (n, n_other_dims)
        Row i of both belongs together.
    bandwidth : float, None, or two of them
        :math:`\sigma` of the kernels of x and of y; None: the median distance of up to 2,000 points
        of each. In a tuple each may also be an array, one for each coordinate.
    null : {"auto", "permutation", "gamma"}
        How the p-value is found. Every permutation is another kernel matrix; ``"gamma"`` fits a
        gamma distribution to the first two moments under independence instead, for the time of two
        more products. ``"auto"`` permutes up to :math:`2\cdot10^{10}` pairs in all, 10,000 rows
        with 200 permutations.
    n_permutations : int
        Permutations for the p-value.
    rng : None, int or numpy.random.Generator
        Seed of the permutations.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    progress : callable or None
        Called now and then with the share of the work done, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.stats import hsic
    >>> rng = np.random.default_rng(0)
    >>> x, noise = rng.standard_normal((2, 300, 1))
    >>> bool(hsic(x, x**2 + 0.5 * noise, rng=0).p_value < 0.01)  # no correlation, but dependence
    True
    >>> bool(hsic(x, noise, rng=0).p_value > 0.05)
    True
    """
    a, b = _check.points(x, "x"), _check.points(y, "y")
    n = len(a)
    if len(b) != n or n < 6:
        raise ValueError(f"x and y must have as many rows, at least 6, got {n} and {len(b)}.")
    _check.finite(a, "x")
    _check.finite(b, "y")
    n_permutations = _check.count(n_permutations, "n_permutations")
    null = _check.one_of(null, "null", NULLS)
    if null == "auto":
        cheap = float(n) ** 2 * n_permutations <= _MOST_PERMUTED_PAIRS
        null = "permutation" if cheap else "gamma"
    generator, backend = _check.generator(rng), Compiled(_check.threads(n_threads))
    given = bandwidth if isinstance(bandwidth, tuple | list) else (bandwidth, bandwidth)
    if len(given) != 2:
        raise ValueError(f"bandwidth must be one number or two, got {len(given)}.")
    # Sums cancel: everything in double precision, from here on in units of the bandwidths.
    (of_x, (a, _, s)), (of_y, (b, _, t)) = (
        _bandwidth(g, p, generator) for g, p in zip(given, (a, b), strict=True)
    )
    a, b = _in_units(a, s), _in_units(b, t)
    n_products = (n_permutations if null == "permutation" else 2) + 5
    advance = _advance(progress)

    def sums(points: Float64, columns: Float64 | None = None, width: float = 1.0) -> Float64:
        """Row sums without the diagonal, or the product with a column without it."""
        x = np.ones(n) if columns is None else columns
        kernel = prepare(points, points, width, backend=backend)
        found = kernel.product(np.ascontiguousarray(x[:, None])).out[:, 0] - x
        advance(1 / n_products)
        return np.asarray(found, dtype=np.float64)

    k, l = sums(a), sums(b)  # noqa: E741 (the usual name)
    both = sums(np.hstack([a, b]))
    statistic = _independence(float(both.sum()), k, l)
    error = _independence_error(statistic, both, k, l, sums(a, l), sums(b, k))
    if null == "permutation":
        permuted = np.empty(n_permutations)
        for i in range(n_permutations):
            order = generator.permutation(n)
            total = float(sums(np.hstack([a, b[order]])).sum())
            permuted[i] = _independence(total, k, l[order])
        p_value = (1 + int((permuted >= statistic).sum())) / (n_permutations + 1)
        quantile = float(np.quantile(permuted, 0.95))
        error = math.sqrt(error + float(permuted.var()))
    else:
        narrow = math.sqrt(0.5)  # the square of the kernel is the kernel of this bandwidth
        spreads = [_spread(sums(p, width=narrow), r) for p, r in ((a, k), (b, l))]
        mean = (1 - k.mean() / (n - 1)) * (1 - l.mean() / (n - 1)) / n
        variance = 2 * spreads[0] * spreads[1] / n**2
        shape, scale = mean**2 / variance, variance / mean
        p_value = float(scipy.special.gammaincc(shape, max(statistic + mean, 0.0) / scale))
        quantile = float(scipy.special.gammaincinv(shape, 0.95) * scale - mean)
        error = math.sqrt(error + variance)
    made = n_permutations if null == "permutation" else 0
    return TestResult(statistic, error, p_value, null, made, quantile, (of_x, of_y))


def _pair(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
    a, b = _check.points(x, "x"), _check.points(y, "y")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"y must have {a.shape[1]} columns to match x, got {b.shape[1]}.")
    _check.finite(a, "x")
    _check.finite(b, "y")
    common = np.result_type(a, b)
    return a.astype(common, copy=False), b.astype(common, copy=False)


def _bandwidth(
    given: Width, points: Array, rng: np.random.Generator
) -> tuple[Any, tuple[Array, Array, float]]:
    """What is used, and points and the bandwidth as the engine takes them."""
    if given is not None:
        used = _check.in_bandwidths(points, points, given)
        return np.asarray(given, dtype=float).tolist(), used
    from scipy.spatial.distance import pdist

    some = points[rng.permutation(len(points))[:_MEDIAN_POINTS]]
    median = float(np.median(pdist(some.astype(np.float64))))
    if not median > 0:
        raise ValueError("bandwidth must be given where most points are equal: their median is 0.")
    return median, (points, points, median)


def _in_units(points: Array, bandwidth: float) -> Float64:
    wide = points.astype(np.float64)
    return np.asarray((wide - wide.mean(axis=0)) / bandwidth)


def _advance(progress: Advance | None) -> Callable[[float], None]:
    """Adds up shares of the work, and tells."""
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done += share
        if progress is not None:
            progress(min(done, 1.0))

    return advance


def _label_sums(
    kernel: KernelMatrix, labels: Array, share: float, advance: Callable[[float], None]
) -> tuple[tuple[Float64, Float64, float], Float64, Float64]:
    """Sums over pairs within the first sample, and over its rows, for every labelling; all pairs.

    And of each row the sum over the first sample as it is, and over all.
    """
    n = len(labels)
    within, of_labelled, total = np.zeros(labels.shape[1]), np.zeros(labels.shape[1]), 0.0
    of_x, rows = np.empty(n), np.empty(n)
    for start in range(0, n, _ROWS):
        some = np.arange(start, min(start + _ROWS, n))
        sums = kernel.at_queries(some).product(labels, row_sums=True)
        assert sums.totals is not None
        mine = labels[some].astype(np.float64)
        of_x[some], rows[some] = sums.out[:, 0], sums.totals
        within += np.einsum("ic,ic->c", mine, sums.out.astype(np.float64))
        of_labelled += rows[some] @ mine
        total += float(rows[some].sum())
        advance(share * len(some) / n)
    return (within, of_labelled, total), of_x, rows


def _discrepancy(within: Float64, of_x: Float64, total: float, n: int, m: int) -> Float64:
    """The unbiased statistic, of every labelling, without the pairs of a point with itself."""
    across = of_x - within
    within_y = total - of_x - across
    return np.asarray(
        (within - n) / (n * (n - 1)) + (within_y - m) / (m * (m - 1)) - 2 * across / (n * m)
    )


def _projection_variance(of_x: Float64, rows: Float64, n: int, m: int) -> float:
    """Variance of the first projections: what each point adds to the statistic, twice."""
    of_y = rows - of_x
    x_part = (of_x[:n] - 1) / (n - 1) - of_y[:n] / m
    y_part = (of_y[n:] - 1) / (m - 1) - of_x[n:] / n
    return float(4 * (x_part.var() / n + y_part.var() / m))


def _independence(both: float, k: Float64, l: Float64) -> float:  # noqa: E741
    """The unbiased statistic from sums without diagonals."""
    n = len(k)
    means = float(k.sum()) * float(l.sum()) / ((n - 1) * (n - 2))
    return (both + means - 2 * float(k @ l) / (n - 2)) / (n * (n - 3))


def _independence_error(
    statistic: float,
    both: Float64,
    k: Float64,
    l: Float64,  # noqa: E741
    k_of_l: Float64,
    l_of_k: Float64,
) -> float:
    """Variance of the first projections (Song et al. 2012, Theorem 5)."""
    n, trace = len(k), float(both.sum())
    h = (n - 2) ** 2 * both + (n - 2) * (trace - k_of_l - l_of_k) - n * k * l
    h += float(l.sum()) * k + float(k.sum()) * l - float(k @ l)
    each = h / (2 * (n - 1) * (n - 2) * (n - 3))
    return float(max(16 / n * (np.square(each).mean() - statistic**2), 0.0))


def _spread(squares: Float64, sums: Float64) -> float:
    """Mean squared entry of the centred kernel matrix, without its diagonal."""
    n = len(sums)
    total = float(squares.sum()) / (n * (n - 1))
    rows = float(np.square(sums).sum()) / (n * (n - 1) * (n - 2))
    rows -= total / (n - 2)  # pairs of one and the same entry
    mean = float(sums.sum()) / (n * (n - 1))
    return max(total - 2 * rows + mean**2, np.finfo(float).tiny)
