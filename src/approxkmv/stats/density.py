"""``gaussian_kde``: SciPy's class with our products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.stats

from approxkmv import _check
from approxkmv.loops.types import Array, Float64
from approxkmv.product import log_row_sums, matvec
from approxkmv.stats import fourier

# Largest relative error of a density that comes from a Fourier series.
_RELATIVE = 1e-7


class gaussian_kde(scipy.stats.gaussian_kde):  # type: ignore[misc]  # noqa: N801 (SciPy's name)
    """:class:`scipy.stats.gaussian_kde`, evaluated by compiled tiles in several threads.

    The same constructor, covariance rule, methods and numbers. ``evaluate``, ``logpdf``, ``pdf``
    and ``integrate_kde`` are computed here; all else is SciPy's own code. Densities of many points
    in one or two dimensions come from a Fourier series, with a relative error of at most 1e-7;
    ``logpdf``, other densities and all small ones agree to rounding.

    Parameters
    ----------
    dataset : array_like, shape (n_dims, n_points) or (n_points,)
        One point per *column*, as in SciPy.
    bw_method : "scott", "silverman", number, callable or None
        As in SciPy: the factor by which the square root of the covariance of the data is scaled.
    weights : array_like, shape (n_points,), or None
        Not negative.

    Examples
    --------
    >>> import numpy as np, scipy.stats
    >>> from approxkmv.stats import gaussian_kde
    >>> points = np.random.default_rng(0).standard_normal((2, 1000))
    >>> density = gaussian_kde(points)
    >>> bool(np.allclose(density(points), scipy.stats.gaussian_kde(points)(points), rtol=1e-9))
    True
    """

    def __init__(
        self, dataset: npt.ArrayLike, bw_method: Any = None, weights: npt.ArrayLike | None = None
    ) -> None:
        given = None if weights is None else _check.plain(weights, "weights")
        super().__init__(_check.plain(dataset, "dataset"), bw_method, given)

    def evaluate(self, points: npt.ArrayLike) -> npt.NDArray[Any]:
        """Density at points, shape (n_dims, m) or (m,)."""
        queries, keys, log_norm = self._white(points)
        sums = _sums(queries, keys, np.asarray(self.weights, float))
        return self._typed(sums * np.exp(-log_norm), points)

    __call__ = evaluate

    def pdf(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """The same as ``evaluate``."""
        return self.evaluate(x)

    def logpdf(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """Logarithm of the density, finite also where the density underflows."""
        queries, keys, log_norm = self._white(x)
        logs = log_row_sums(queries, keys, bandwidth=1.0, weights=np.asarray(self.weights, float))
        return self._typed(logs - log_norm, x)

    def integrate_kde(self, other: scipy.stats.gaussian_kde) -> float:
        """Integral of the product of this density and another one."""
        if other.d != self.d:
            raise ValueError("other must have as many dimensions as this density.")
        q, k, log_norm = _whitened(self.dataset, other.dataset, self.covariance + other.covariance)
        sums = _sums(q, k, np.asarray(other.weights, float))
        return float(np.asarray(self.weights, float) @ sums * np.exp(-log_norm))

    def marginal(self, dimensions: Any) -> gaussian_kde:
        """The density of some of the coordinates."""
        found = super().marginal(dimensions)
        return type(self)(found.dataset, bw_method=found.factor, weights=found.weights)

    def _white(self, points: npt.ArrayLike) -> tuple[Float64, Float64, float]:
        given = np.atleast_2d(np.asarray(_check.plain(points, "points")))
        if given.shape[0] != self.d:
            if given.shape == (1, self.d):  # one point, as a row
                given = given.reshape(self.d, 1)
            else:
                raise ValueError(f"points have dimension {given.shape[0]}, dataset has {self.d}")
        return _whitened(given, self.dataset, self.covariance)

    def _typed(self, values: Array, points: npt.ArrayLike) -> npt.NDArray[Any]:
        """In the type SciPy gives."""
        return values.astype(np.common_type(self.covariance, np.atleast_2d(points)), copy=False)


def _sums(queries: Float64, keys: Float64, weights: Float64) -> Float64:
    """Sums of weights times Gaussians: from a Fourier series where that is quick and right."""
    series = fourier.series_of(queries, keys)
    if series is None:
        return np.asarray(matvec(queries, keys, weights, bandwidth=1.0, eps=0.0), np.float64)
    found = fourier.sums(queries, keys, weights, series)
    # Small ones would lose digits.
    small = np.flatnonzero(found < fourier.ERROR / _RELATIVE * weights.sum())
    if small.size:
        found[small] = matvec(queries[small], keys, weights, bandwidth=1.0, eps=0.0)
    return found


def _whitened(
    points: npt.NDArray[Any], dataset: npt.NDArray[Any], covariance: Float64
) -> tuple[Float64, Float64, float]:
    """Rows of coordinates in which the covariance is the identity; the log of the norm."""
    root = scipy.linalg.cholesky(covariance, lower=True).astype(np.float64)
    # Points far from the origin would lose digits: distances do not change with a common shift.
    centre = dataset.mean(axis=1, keepdims=True, dtype=np.float64)
    white = [
        np.ascontiguousarray(scipy.linalg.solve_triangular(root, p - centre, lower=True).T)
        for p in (points, dataset)
    ]
    log_norm = float(np.log(np.diag(root)).sum() + 0.5 * len(root) * np.log(2 * np.pi))
    return white[0], white[1], log_norm
