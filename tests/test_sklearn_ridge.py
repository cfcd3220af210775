"""``KernelRidge`` and the Gaussian process mean: scikit-learn's contract and dense answers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor as DenseProcess
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.gaussian_process.kernels import RationalQuadratic as SklearnRationalQuadratic
from sklearn.kernel_ridge import KernelRidge as DenseRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import approxkmv as akmv
from approxkmv import datasets
from approxkmv.functions import RationalQuadratic
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.sklearn import GaussianProcessRegressor, KernelRidge


@parametrize_with_checks([KernelRidge(random_state=0), GaussianProcessRegressor(random_state=0)])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def test_takes_every_parameter_of_scikit_learns() -> None:
    """A grid made for scikit-learn's estimator runs, and finds what it finds there."""
    theirs = DenseRidge(kernel="rbf", gamma=0.5)
    ours = KernelRidge(kernel="rbf", gamma=0.5, random_state=0)
    assert set(theirs.get_params()) <= set(ours.get_params())
    ours.set_params(**theirs.get_params())
    X = np.random.default_rng(0).standard_normal((80, 3))
    y = np.sin(X[:, 0])
    np.testing.assert_allclose(ours.fit(X, y).predict(X), theirs.fit(X, y).predict(X), atol=1e-3)


def robot_arm(n: int, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Angles of an arm and how far its hand is from a point, with noise."""
    return datasets.robot_arm(n, d, rng=seed)[:2]


def error(y: np.ndarray, z: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - z) ** 2)))


@pytest.mark.parametrize("d", [8, 32])
def test_same_test_error_as_the_dense_solve(d: int, dtype: np.dtype[Any]) -> None:
    """Within 1 % of the exact solution's test error; the residual is the dense one within 10 %."""
    X, y = robot_arm(1100, d)
    X = X.astype(dtype)
    X, y, Q, z = X[:800], y[:800], X[800:], y[800:]
    bandwidth, alpha = np.sqrt(d) / 2, 0.05
    model = KernelRidge(alpha, bandwidth=bandwidth, random_state=0).fit(X, y)
    K = gaussian_kernel(X, X, bandwidth)
    dense = gaussian_kernel(Q, X, bandwidth) @ np.linalg.solve(K + alpha * np.eye(800), y)
    assert abs(error(model.predict(Q), z) / error(dense, z) - 1) < 0.01
    c = model.dual_coef_
    direct = np.linalg.norm(y - K @ c - alpha * c) / np.linalg.norm(y)
    assert abs(model.residual_ / direct - 1) < 0.1
    assert model.residual_ <= model.tol
    assert model.n_iter_ == model.solve_info_.n_iter


def test_weights_are_those_of_scikit_learn() -> None:
    X, y = robot_arm(300)
    weights = np.random.default_rng(1).integers(0, 4, 300).astype(float)
    ours = KernelRidge(0.3, bandwidth=2.0, tol=1e-10, random_state=0).fit(X, y, weights)
    theirs = DenseRidge(alpha=0.3, kernel="rbf", gamma=1 / 8).fit(
        X[weights > 0], y[weights > 0], weights[weights > 0]
    )
    assert len(ours.X_fit_) == np.count_nonzero(weights)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-7)


def test_process_mean_is_that_of_scikit_learn() -> None:
    X, y = robot_arm(200)
    ours = GaussianProcessRegressor(
        noise_variance=0.2, signal_variance=4.0, bandwidth=1.7, tol=1e-10, random_state=0
    ).fit(X, y + 10)
    theirs = DenseProcess(4.0 * RBF(1.7), alpha=0.2, optimizer=None).fit(X, y - y.mean())
    expected = theirs.predict(X[:50]) + y.mean() + 10
    np.testing.assert_allclose(ours.predict(X[:50]), expected, atol=1e-7)


def test_several_targets_and_clone_and_pickle() -> None:
    X, y = robot_arm(250)
    Y = np.stack([y, -2 * y], axis=1)
    model = clone(KernelRidge(0.1, bandwidth=2.0, random_state=0)).fit(X, Y)
    single = KernelRidge(0.1, bandwidth=2.0, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X)[:, 0], single.predict(X), atol=1e-3)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_in_a_pipeline_and_a_grid_search() -> None:
    X, y = robot_arm(300)
    pipeline = make_pipeline(StandardScaler(), KernelRidge(random_state=0))
    grid = {"kernelridge__bandwidth": [0.01, 2.0], "kernelridge__alpha": [0.05]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_params_["kernelridge__bandwidth"] == 2.0
    assert search.best_score_ > 0.5


def test_unreached_tolerance_is_told() -> None:
    X, y = robot_arm(400)
    with pytest.warns(akmv.AccuracyWarning, match="max_iter=1"):
        model = KernelRidge(1e-3, bandwidth=3.0, rank=1, max_iter=1, random_state=0).fit(X, y)
    assert model.residual_ > model.tol


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": 0}, "alpha must be a positive"),
        ({"bandwidth": -1.0}, "bandwidth must be a positive"),
        ({"method": "magic"}, "method must be one of"),
        ({"tol": 0}, "tol must be a positive"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    X, y = robot_arm(20)
    with pytest.raises(ValueError, match=message):
        KernelRidge(**parameters).fit(X, y)


def test_weights_must_leave_something() -> None:
    X, y = robot_arm(20)
    with pytest.raises(ValueError, match=r"(?i)sample.weights? must"):
        KernelRidge().fit(X, y, np.zeros(20))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("matern12", Matern(1.5, nu=0.5)),
        ("matern32", Matern(1.5, nu=1.5)),
        ("matern52", Matern(1.5, nu=2.5)),
        ("rational_quadratic", SklearnRationalQuadratic(1.5, alpha=1.0)),
        (RationalQuadratic(0.7), SklearnRationalQuadratic(1.5, alpha=0.7)),
    ],
    ids=str,
)
def test_other_kernels_are_those_of_scikit_learn(ours: Any, theirs: Any) -> None:
    rng = np.random.default_rng(0)
    X, inside = rng.standard_normal((150, 3)), rng.standard_normal((20, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(150)
    model = clone(KernelRidge(alpha=0.1, bandwidth=1.5, kernel=ours, tol=1e-10, random_state=0))
    model.fit(X, y)
    coefficients = np.linalg.solve(theirs(X) + 0.1 * np.eye(150), y)
    np.testing.assert_allclose(model.predict(inside), theirs(inside, X) @ coefficients, atol=1e-7)


def test_gamma_is_for_the_gaussian() -> None:
    model = KernelRidge(kernel="matern32", gamma=0.5)
    with pytest.raises(ValueError, match="kernel must be 'gaussian' where gamma is given"):
        model.fit(np.zeros((3, 1)), np.zeros(3))
