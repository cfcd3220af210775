"""``KernelRidge`` and the predictive mean of a Gaussian process: one linear system."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from approxkmv import _check
from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.kernel.matrix import product
from approxkmv.loops.types import Array, Float64
from approxkmv.operator import GaussianKernel
from approxkmv.sklearn._rng import generator
from approxkmv.solver import solve

_TYPES = [np.float64, np.float32]
# Of the noise: the error of the operator, so that each refinement at least halves the residual.
_OF_NOISE = 0.5


class _KernelRegression(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What the two regressions share: the system, its solution, and exact predictions from it."""

    def __init__(
        self,
        *,
        bandwidth: float | npt.ArrayLike,
        eps: float,
        tol: float,
        max_iter: int,
        method: str,
        rank: int | None,
        random_state: Any,
        n_threads: int | None,
        kernel: str | KernelFunction,
    ) -> None:
        self.bandwidth = bandwidth
        self.eps = eps
        self.tol = tol
        self.max_iter = max_iter
        self.method = method
        self.rank = rank
        self.random_state = random_state
        self.n_threads = n_threads
        self.kernel = kernel

    def predict(self, X: npt.ArrayLike) -> Array:
        """Predict the targets of X, exactly from the coefficients.

        Parameters
        ----------
        X : array_like, shape (n_queries, n_features)
            Where to predict.
        """
        check_is_fitted(self)
        queries = validate_data(self, _check.plain(X, "X"), dtype=_TYPES, order="C", reset=False)
        # Coefficients of opposite signs cancel: single precision would show in the predictions.
        q, k, sigma = _check.in_bandwidths(
            queries.astype(np.float64, copy=False),
            self.X_fit_.astype(np.float64, copy=False),
            self.bandwidth_,
        )
        return product(
            q,
            k,
            self.dual_coef_,
            sigma,
            function=self._function(),
            n_threads=self.n_threads,
        )

    def _function(self) -> KernelFunction:
        """The kernel, which scikit-learn calls "rbf" where it is the Gaussian."""
        rbf = isinstance(self.kernel, str) and self.kernel == "rbf"
        return GAUSSIAN if rbf else _check.kernel(self.kernel)

    def _data(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Float64]:
        """Samples and targets, checked."""
        points, targets = validate_data(
            self,
            _check.plain(X, "X"),
            _check.plain(y, "y"),
            dtype=_TYPES,
            order="C",
            multi_output=True,
            y_numeric=True,
        )
        return points, np.asarray(targets, dtype=np.float64)

    def _solve(self, points: Array, targets: Float64, noise: float | Float64) -> None:
        rng = generator(self.random_state)
        self.bandwidth_ = self._width()
        kernel = GaussianKernel(
            points,
            bandwidth=self.bandwidth_,
            # Where the error may be larger than the noise, what is left cannot be solved for again.
            eps=min(self.eps, _OF_NOISE * float(np.min(noise))),
            method=self.method,
            kernel=self._function(),
            rng=rng,
            n_threads=self.n_threads,
        )
        self.dual_coef_, self.solve_info_ = solve(
            kernel,
            targets,
            noise=noise,
            tol=self.tol,
            max_iter=self.max_iter,
            rank=self.rank,
            rng=rng,
            return_info=True,
        )
        self.X_fit_ = points
        self.residual_ = self.solve_info_.residual
        self.n_iter_ = self.solve_info_.n_iter

    def _width(self) -> Any:
        return self.bandwidth


class KernelRidge(_KernelRegression):
    r"""Ridge regression by a kernel, Gaussian or another, whose matrix does not fit in memory.

    The coefficients solve :math:`(K + \alpha I)c = y` by preconditioned conjugate gradients, with
    products that never store K; a prediction is :math:`\sum_j K(q, x_j)c_j`, computed exactly.

    Parameters
    ----------
    alpha : float
        Strength of the regularisation, the variance of the noise in the targets.
    bandwidth : float or array_like, shape (n_features,)
        :math:`\sigma` in :math:`\exp(-\|q-k\|^2/(2\sigma^2))`; an array has one for each
        feature.
    gamma : float or None
        scikit-learn's :math:`1/(2\sigma^2)`, in the place of ``bandwidth``. None, unlike there: use
        ``bandwidth``.
    kernel : str or KernelFunction
        ``"rbf"`` and ``"gaussian"`` are the Gaussian; the others are those of
        :func:`approxkmv.matvec`: ``"matern32"``, ``"matern52"``, ``"rational_quadratic"``,
        ``"laplacian"``. That is :math:`\exp(-r/\sigma)` with the Euclidean distance r; the
        "laplacian" of scikit-learn has sums of absolute differences instead.
    degree, coef0, kernel_params
        scikit-learn's parameters of other kernels, taken for its grids and not used.
    eps : float
        Error allowed to the products of the iterations, relative to the length of the vector; see
        :class:`approxkmv.GaussianKernel`. At most half the noise is used.
    tol : float
        Residual allowed, relative to the length of the targets.
    max_iter : int
        Most iterations.
    method : {"auto", "exact"}
        How products of the iterations are computed; see :class:`approxkmv.GaussianKernel`.
    rank : int or None
        Columns in the preconditioner; None: eight times the root of the number of samples.
    random_state : None, int, Generator or RandomState
        Seed of everything random.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.

    Attributes
    ----------
    dual_coef_ : ndarray, shape (n_samples,) or (n_samples, n_targets)
        The coefficients c.
    X_fit_ : ndarray, shape (n_samples, n_features)
        The samples, without those of weight 0.
    residual_ : float
        :math:`\|y - (K + \alpha I)c\| / \|y\|`, computed exactly in double precision after the
        iterations, independently of how their products were computed.
    n_iter_ : int
        Iterations made.
    solve_info_ : SolveInfo
        The full report.
    n_features_in_ : int
        Number of features seen in ``fit``.

    Notes
    -----
    Where ``residual_`` stays above ``tol``, ``fit`` issues an
    :class:`~approxkmv.AccuracyWarning` that says why. A weight of w is a noise of
    ``alpha / w`` for that sample.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.sklearn import KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (400, 2))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400)
    >>> model = KernelRidge(alpha=0.1, bandwidth=1.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.97), bool(model.residual_ <= model.tol)
    (True, True)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        bandwidth: float | npt.ArrayLike = 1.0,
        gamma: float | None = None,
        kernel: str | KernelFunction = "rbf",
        eps: float = 1e-3,
        tol: float = 1e-4,
        max_iter: int = 1000,
        method: str = "auto",
        rank: int | None = None,
        random_state: Any = None,
        n_threads: int | None = None,
        degree: float = 3,
        coef0: float = 1,
        kernel_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            bandwidth=bandwidth,
            eps=eps,
            tol=tol,
            max_iter=max_iter,
            method=method,
            rank=rank,
            random_state=random_state,
            n_threads=n_threads,
            kernel=kernel,
        )
        self.alpha = alpha
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params

    def _width(self) -> Any:
        if self.gamma is None:
            return self.bandwidth
        _check.only_gaussian(self._function(), "where gamma is given: use bandwidth")
        if not (np.ndim(self.bandwidth) == 0 and self.bandwidth == 1.0):
            raise ValueError("gamma must be None where bandwidth is given: it is 1/(2 bandwidth²).")
        return (2 * _check.positive(self.gamma, "gamma")) ** -0.5

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | float | None = None
    ) -> KernelRidge:
        """Solve for the coefficients.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
            Samples.
        y : array_like, shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array_like, shape (n_samples,), float or None
            Not negative; samples of weight 0 are left out.
        """
        points, targets = self._data(X, y)
        noise: float | Float64 = _check.positive(self.alpha, "alpha")
        if sample_weight is not None:
            weights = _check_sample_weight(
                _check.plain(sample_weight, "sample_weight"), points, ensure_non_negative=True
            )
            kept = weights > 0
            if not kept.any():
                raise ValueError("sample_weight must have a positive entry, but all are 0.")
            points, targets, noise = points[kept], targets[kept], noise / weights[kept]
        self._solve(points, targets, noise)
        return self


class GaussianProcessRegressor(_KernelRegression):
    r"""Predictive mean of a Gaussian process with the Gaussian or another kernel.

    The mean of the posterior given noisy targets is :class:`KernelRidge` with
    ``alpha = noise_variance / signal_variance``, after the mean of the targets is taken out. The
    predictive variance, which needs a system solved for every query, is not offered.

    Parameters
    ----------
    noise_variance : float
        Variance of the noise in the targets.
    signal_variance : float
        Variance of the process: the kernel's value at distance 0.
    normalize_y : bool
        Take out the mean of the targets and put it back.
    bandwidth, eps, tol, max_iter, method, rank, random_state, n_threads, kernel
        As in :class:`KernelRidge`.

    Attributes
    ----------
    alpha_ : ndarray
        Coefficients of the kernel without ``signal_variance``; ``dual_coef_`` is the same.
    residual_, n_iter_, solve_info_, X_fit_
        As in :class:`KernelRidge`.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.sklearn import GaussianProcessRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = GaussianProcessRegressor(noise_variance=1e-2, random_state=0)
    >>> bool(np.abs(model.fit(X, 5 + np.sin(X[:, 0])).predict([[1.5]]) - 5.9975) < 0.02)
    True
    """

    def __init__(
        self,
        *,
        noise_variance: float = 0.1,
        signal_variance: float = 1.0,
        normalize_y: bool = True,
        bandwidth: float | npt.ArrayLike = 1.0,
        eps: float = 1e-3,
        tol: float = 1e-4,
        max_iter: int = 1000,
        method: str = "auto",
        rank: int | None = None,
        random_state: Any = None,
        n_threads: int | None = None,
        kernel: str | KernelFunction = "rbf",
    ) -> None:
        super().__init__(
            bandwidth=bandwidth,
            eps=eps,
            tol=tol,
            max_iter=max_iter,
            method=method,
            rank=rank,
            random_state=random_state,
            n_threads=n_threads,
            kernel=kernel,
        )
        self.noise_variance = noise_variance
        self.signal_variance = signal_variance
        self.normalize_y = normalize_y

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> GaussianProcessRegressor:
        """Condition the process on the targets.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
            Samples.
        y : array_like, shape (n_samples,) or (n_samples, n_targets)
            Targets.
        """
        points, targets = self._data(X, y)
        noise = _check.positive(self.noise_variance, "noise_variance")
        noise /= _check.positive(self.signal_variance, "signal_variance")
        self._mean = targets.mean(axis=0) if self.normalize_y else np.zeros(targets.shape[1:])
        self._solve(points, targets - self._mean, noise)
        self.alpha_ = self.dual_coef_
        return self

    def predict(self, X: npt.ArrayLike) -> Array:
        """Mean of the process at X, given the targets.

        Parameters
        ----------
        X : array_like, shape (n_queries, n_features)
            Where to predict.
        """
        return np.asarray(super().predict(X) + self._mean)
