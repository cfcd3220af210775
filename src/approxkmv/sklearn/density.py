"""``KernelDensity``: log-densities that hold in high dimension."""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from approxkmv import _check
from approxkmv._warnings import AssumptionWarning
from approxkmv.engine.schemes.shared_keys import FittedSums, exact_sums, fit_sums
from approxkmv.engine.survey.keyside import KeySide
from approxkmv.engine.survey.shared_draw import SumsProblem
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64
from approxkmv.sklearn._rng import generator
from approxkmv.sklearn._support import bounds, folded, inside, reflected

METHODS = ("auto", "exact", "sampled")
_TYPES = [np.float64, np.float32]


class KernelDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""Kernel density estimation with the Gaussian kernel, in the log domain, in any dimension.

    The interface is that of :class:`sklearn.neighbors.KernelDensity`. A row's answer depends on the
    row and on what was fitted, never on the other rows of a call: everything random is drawn in
    ``fit``.

    Parameters
    ----------
    bandwidth : float, array_like of shape (n_features,), "scott" or "silverman"
        :math:`\sigma` of the kernel, one for all features or one for each, or scikit-learn's rule
        that finds it from the numbers of samples and features. SciPy's rule of the same name scales
        the covariance of the data instead: :class:`approxkmv.stats.gaussian_kde`.
    rtol : float
        Error allowed to a log-density, in nats. 0 asks for exact answers.
    floor : float or None
        Log-density below which answers need not be told apart: a row that is found to lie below is
        given a value below ``floor``, without a promise about its error. None: there is no floor,
        and the promise holds for every row.
    method : {"auto", "exact", "sampled"}
        ``"exact"`` sums over every sample. ``"auto"`` looks at a few rows in ``fit`` and sums near
        samples exactly and a draw of the others, where that is predicted to be faster; every row
        whose draw does not settle it within ``rtol`` is computed exactly. ``"sampled"`` does the
        same and warns where it had to fall back to exact answers altogether.
    random_state : None, int, Generator or RandomState
        Seed of everything drawn in ``fit``.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    bounds : array_like, shape (n_features, 2), or None
        Ends of the range of each feature, infinite where there is none. Samples are reflected at
        them, so that the density does not sink towards an end; outside it is 0. Each finite end
        adds as many samples as there are.
    kernel : "gaussian"
        There is no other one here.
    metric : "euclidean", "l2", "minkowski" or "p"
        Names of the Euclidean distance.
    atol, algorithm, breadth_first, leaf_size, metric_params
        Of scikit-learn's estimator, taken so that its grids of parameters work; without effect.
        ``atol`` allows a further error, which is not made.

    Attributes
    ----------
    bandwidth_ : float or ndarray
        The bandwidth used.
    floor_ : float
        Log-density above which the error is controlled; minus infinity where ``floor`` is None.
    method_ : str
        ``"exact"`` or ``"sampled"``: what was chosen.
    plan_ : Plan
        Every number chosen in ``fit``, and why.
    n_features_in_ : int
        Number of features seen in ``fit``.

    Notes
    -----
    Signed weights have no density; use :func:`approxkmv.matvec`.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.sklearn import KernelDensity
    >>> X = np.random.default_rng(0).standard_normal((500, 64))
    >>> model = KernelDensity(bandwidth=0.5).fit(X)
    >>> model.score_samples(X[:1]).round(1)  # its own kernel alone: -log(500) - 64 log(0.5 ...)
    array([-20.7])
    """

    def __init__(
        self,
        bandwidth: float | str | npt.ArrayLike = 1.0,
        *,
        rtol: float = 0.1,
        floor: float | None = None,
        method: str = "auto",
        random_state: Any = None,
        n_threads: int | None = None,
        bounds: npt.ArrayLike | None = None,
        kernel: str = "gaussian",
        metric: str = "euclidean",
        atol: float = 0.0,
        algorithm: str = "auto",
        breadth_first: bool = True,
        leaf_size: int = 40,
        metric_params: Any = None,
    ) -> None:
        self.bandwidth = bandwidth
        self.rtol = rtol
        self.floor = floor
        self.method = method
        self.random_state = random_state
        self.n_threads = n_threads
        self.bounds = bounds
        self.kernel = kernel
        self.metric = metric
        self.atol = atol
        self.algorithm = algorithm
        self.breadth_first = breadth_first
        self.leaf_size = leaf_size
        self.metric_params = metric_params

    def fit(
        self,
        X: npt.ArrayLike,
        y: object = None,
        sample_weight: npt.ArrayLike | float | None = None,
    ) -> KernelDensity:
        """Take the samples, and draw what is random.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
            Samples; float32 and float64 are the computing types.
        y : ignored
        sample_weight : array_like, shape (n_samples,), float or None
            Not negative; samples of weight 0 are left out.
        """
        points = validate_data(self, _check.plain(X, "X"), dtype=_TYPES, order="C")
        _gaussian(self.kernel, self.metric)
        _check.tolerance(self.atol, "atol")
        rtol = _check.tolerance(self.rtol, "rtol")
        method = _check.one_of(self.method, "method", METHODS)
        floor = -math.inf if self.floor is None else _check.number(self.floor, "floor")
        rng = generator(self.random_state)
        n_threads = _check.threads(self.n_threads)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                _check.plain(sample_weight, "sample_weight"),
                points,
                dtype=np.float64,
                ensure_non_negative=True,
            )
            kept = weights > 0
            if not kept.any():
                raise ValueError("sample_weight must have a positive entry, but all are 0.")
            # A density does not depend on the scale of the weights, the range of a float does.
            points, weights = points[kept], weights[kept] / weights.max()
        self.bandwidth_ = _bandwidth(self.bandwidth, *points.shape)
        self._log_volume = self._log_norm(points, weights)
        self._n_own, self._bounds = len(points), bounds(self.bounds, points)
        if self._bounds is not None:
            points = reflected(points, self._bounds)
            if weights is not None:
                weights = np.tile(weights, len(points) // len(weights))
        # With one bandwidth for each feature, in their units from here on.
        self._centre = points.mean(axis=0, dtype=np.float64)
        points = self._in_units(points)
        width = 1.0 if np.ndim(self.bandwidth_) else float(self.bandwidth_)
        problem = SumsProblem(
            KeySide.of(points, width, Compiled(n_threads)),
            weights,
            rtol,
            floor + self._log_volume,
            rng,
        )
        self._sums: FittedSums = exact_sums(problem) if method == "exact" else fit_sums(problem)
        self.floor_ = floor
        self.method_ = self._sums.plan.method
        self.plan_ = self._sums.plan
        if method == "sampled" and self.method_ == "exact":
            warnings.warn(
                f"Densities will be computed exactly: {self.plan_.reason}.",
                AssumptionWarning,
                stacklevel=2,
            )
        return self

    def score_samples(self, X: npt.ArrayLike) -> Float64:
        """Log-density at each row of X.

        Parameters
        ----------
        X : array_like or dask.array.Array, shape (n_queries, n_features)
            Where to evaluate; computed in the type of the fitted samples. For a Dask array the
            answer is one too: lazy, with its chunks of rows, from
            :func:`approxkmv.dask.score_samples`.
        """
        check_is_fitted(self)
        if _check.is_lazy(X):
            from approxkmv.dask import score_samples

            lazy: Any = score_samples(self, cast(Any, X))
            return cast(Float64, lazy)
        given = _check.plain(X, "X")
        queries = validate_data(self, given, dtype=self._sums.keys.dtype, order="C", reset=False)
        logs = np.asarray(self._sums.log_row_sums(self._in_units(queries)) - self._log_volume)
        if self._bounds is not None:
            logs[~inside(queries, self._bounds)] = -np.inf
        return logs

    def with_threads(self, n_threads: int | None) -> KernelDensity:
        """The same fitted density, whose answers are computed by this many threads.

        Parameters
        ----------
        n_threads : int or None
            None: all cores, or the limit set through threadpoolctl.
        """
        check_is_fitted(self)
        other = copy.copy(self)
        other.n_threads = _check.threads(n_threads)
        other._sums = self._sums.on(Compiled(other.n_threads))
        return other

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """Total log-density of X.

        Parameters
        ----------
        X : array_like, shape (n_queries, n_features)
            Where to evaluate.
        y : ignored
        """
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draw from the estimated density.

        Parameters
        ----------
        n_samples : int
            How many.
        random_state : None, int, Generator or RandomState
            Seed of the draw.
        """
        check_is_fitted(self)
        rng = generator(random_state)
        n, keys, weights = self._n_own, self._sums.keys, self._sums.weights
        share = None if weights is None else weights[:n] / weights[:n].sum()
        chosen = keys[rng.choice(n, _check.count(n_samples, "n_samples"), p=share)]
        if np.ndim(self.bandwidth_):
            chosen = chosen * self.bandwidth_ + self._centre
        drawn = chosen + self.bandwidth_ * rng.standard_normal(chosen.shape)
        if self._bounds is not None:
            return folded(drawn, self._bounds).astype(keys.dtype)
        return np.asarray(drawn.astype(keys.dtype))

    def _in_units(self, points: Array) -> Array:
        """Points divided by the bandwidths of the features, if there is one for each."""
        if np.ndim(self.bandwidth_) == 0:
            return points
        return np.asarray(((points - self._centre) / self.bandwidth_).astype(points.dtype))

    def _log_norm(self, points: Array, weights: Float64 | None) -> float:
        """Logarithm of what the sum of weighted kernel values is divided by."""
        total = len(points) if weights is None else float(weights.sum())
        n_dims = points.shape[1]
        widths = np.log(self.bandwidth_ * np.sqrt(2 * np.pi))
        return math.log(total) + float(widths.sum() if np.ndim(widths) else n_dims * widths)


def _gaussian(kernel: Any, metric: Any) -> None:
    """What scikit-learn's estimator offers beyond this is a clear error."""
    if kernel not in ("gaussian", "rbf"):
        raise ValueError(
            f"kernel must be 'gaussian', got {kernel!r}: sklearn.neighbors.KernelDensity has others"
        )
    if metric not in ("euclidean", "l2", "minkowski", "p"):
        raise ValueError(
            f"metric must be 'euclidean', got {metric!r}: "
            "sklearn.neighbors.KernelDensity has others"
        )


def _bandwidth(rule: Any, n: int, d: int) -> float | Float64:
    if not isinstance(rule, str) and np.ndim(rule) == 1:
        ones = np.ones((1, d))
        _check.in_bandwidths(ones, ones, rule)
        return np.asarray(rule, dtype=np.float64)
    if rule == "scott":
        return float(n ** (-1 / (d + 4)))
    if rule == "silverman":
        return float((n * (d + 2) / 4) ** (-1 / (d + 4)))
    if isinstance(rule, numbers.Real):
        return _check.positive(rule, "bandwidth")
    raise ValueError(
        "bandwidth must be a number, 'scott', 'silverman' or one number for each feature, "
        f"got {rule!r}."
    )
