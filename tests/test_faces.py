"""What other packages' users hand in: bandwidths for each coordinate, their parameters, tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse
import sklearn.cluster
import sklearn.kernel_ridge
import sklearn.manifold
import sklearn.neighbors
import torch
from scipy.special import logsumexp
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import approxkmv as akmv
import approxkmv.torch
from approxkmv.exact import gaussian_kernel
from approxkmv.sklearn import (
    GaussianProcessRegressor,
    KernelDensity,
    KernelRidge,
    SpectralClustering,
    spectral_embedding,
)

RNG = np.random.default_rng(0)
Q, X = RNG.standard_normal((40, 3)) + 7, RNG.standard_normal((60, 3)) + 7
WIDTHS = np.array([0.5, 1.0, 3.0])
DENSE = gaussian_kernel(Q / WIDTHS, X / WIDTHS, 1.0)
V = RNG.standard_normal((60, 2))


def test_a_bandwidth_for_each_coordinate(tmp_path: Path) -> None:
    """In every function: the product of the points divided by them."""
    np.testing.assert_allclose(akmv.matvec(Q, X, V, bandwidth=WIDTHS), DENSE @ V, atol=1e-12)
    np.testing.assert_allclose(akmv.row_sums(Q, X, bandwidth=list(WIDTHS)), DENSE.sum(1))
    logs = akmv.log_row_sums(Q, X, bandwidth=WIDTHS, weights=np.ones(60))
    np.testing.assert_allclose(logs, np.log(DENSE.sum(axis=1)), atol=1e-12)
    K = akmv.GaussianKernel(Q, X, bandwidth=WIDTHS)
    np.testing.assert_allclose(K.toarray(), DENSE, atol=1e-12)
    np.testing.assert_allclose(K[3, [1, 2]], DENSE[3, [1, 2]], atol=1e-12)
    assert K.bandwidth == tuple(WIDTHS)
    np.testing.assert_array_equal(K.queries, Q)
    np.testing.assert_array_equal(K.T.queries, X)
    K.save(tmp_path / "k.npz")
    np.testing.assert_array_equal(akmv.GaussianKernel.load(tmp_path / "k.npz") @ V, K @ V)
    S = akmv.GaussianKernel(X, bandwidth=WIDTHS)
    dense = gaussian_kernel(X / WIDTHS, X / WIDTHS, 1.0)
    x = akmv.solve(S, V, noise=0.5, rng=0, tol=1e-10)
    np.testing.assert_allclose(x, np.linalg.solve(dense + 0.5 * np.eye(60), V), atol=1e-8)
    report = akmv.diagnose(X, bandwidth=WIDTHS)
    assert report.mean_row_sum == pytest.approx(dense.sum(axis=1).mean())
    assert "one for each coordinate" in str(report)
    top = akmv.spectrum.top_eigenvalue(X, bandwidth=WIDTHS, rng=0).eigenvalue
    assert top == pytest.approx(np.linalg.eigvalsh(dense)[-1], rel=0.2)


@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [
        ([1.0, 2.0], r"one for each of the 3 coordinates, got shape \(2,\)"),
        ([1.0, 0.0, 2.0], r"bandwidth\[1\] is 0.0"),
        ([1.0, np.nan, 2.0], r"bandwidth\[1\] is nan"),
        (np.ones((3, 1)), "got shape"),
    ],
)
def test_wrong_bandwidths_are_named(bandwidth: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        akmv.matvec(Q, X, V, bandwidth=bandwidth)


def test_points_far_away_keep_their_digits_in_single_precision() -> None:
    far = (X + 1000).astype(np.float32)
    same = gaussian_kernel(far / WIDTHS, far / WIDTHS, 1.0).sum(axis=1)
    np.testing.assert_allclose(akmv.row_sums(far, bandwidth=WIDTHS), same, rtol=1e-5)


def test_log_weights() -> None:
    weights = RNG.uniform(0.1, 2, 60)
    logs = np.log(weights)
    plain = akmv.log_row_sums(Q, X, bandwidth=1.0, weights=weights)
    given = akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=logs)
    np.testing.assert_allclose(given, plain, rtol=1e-12)
    tiny = akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=logs - 5000)
    np.testing.assert_allclose(tiny, plain - 5000, rtol=1e-12)
    large = akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=logs + 5000)
    np.testing.assert_allclose(large, plain + 5000, rtol=1e-12)
    logs[5] = -np.inf
    out = akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=logs)
    kept = np.arange(60) != 5
    less = akmv.log_row_sums(Q, X[kept], bandwidth=1.0, log_weights=logs[kept])
    np.testing.assert_allclose(out, less, rtol=1e-12)
    twice = np.concatenate([X, X, X[:5]])
    of_twice = np.concatenate([logs, logs, np.full(5, -np.inf)]) - 3000
    out = akmv.log_row_sums(Q, twice, bandwidth=1.0, log_weights=of_twice)
    np.testing.assert_allclose(out, less + np.log(2) - 3000, rtol=1e-12)
    with pytest.raises(ValueError, match=r"below infinity, but \[0\] is nan"):
        akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=np.full(60, np.nan))
    with pytest.raises(ValueError, match="must not both be given"):
        akmv.log_row_sums(Q, X, bandwidth=1.0, log_weights=logs, weights=weights)


def test_sinkhorn_with_log_weights() -> None:
    """Two marginals are met at an entropy where every kernel value underflows."""
    a, b, width = np.full(40, 1 / 40), np.full(60, 1 / 60), 0.05
    f, g = np.zeros(40), np.zeros(60)
    for _ in range(1000):
        f = -akmv.log_row_sums(Q, X, bandwidth=width, log_weights=g + np.log(b))
        g = -akmv.log_row_sums(X, Q, bandwidth=width, log_weights=f + np.log(a))
    log_rows = f + np.log(a) + akmv.log_row_sums(Q, X, bandwidth=width, log_weights=g + np.log(b))
    assert np.isfinite(log_rows).all()
    assert np.abs(np.exp(log_rows) - a).sum() < 0.05


@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_matrices_are_refused_by_name(kind: Any) -> None:
    for call in (
        lambda: akmv.matvec(kind(Q), X, V, bandwidth=1.0),
        lambda: akmv.matvec(Q, X, kind(V), bandwidth=1.0),
        lambda: KernelDensity().fit(kind(Q)),
    ):
        with pytest.raises(TypeError, match=r"must be a dense array, got a sparse .*toarray"):
            call()


def test_a_tensor_that_requires_a_gradient_is_told_of_the_torch_face() -> None:
    x = torch.ones(60, requires_grad=True)
    with pytest.raises(ValueError, match=r"approxkmv\.torch\.matvec"):
        akmv.matvec(Q, X, x, bandwidth=1.0)


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("n_widths", [(), (3,)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_gradients_of_products(n_widths: tuple[int, ...], columns: tuple[int, ...]) -> None:
    """By finite differences, for points, x and the bandwidth."""
    q, k, x = tensors((5, 3), (7, 3), (7, *columns))
    width = (tensors(n_widths)[0].detach().abs() + 0.5).requires_grad_()

    def product(q: Any, k: Any, x: Any, width: Any) -> Any:
        return approxkmv.torch.matvec(q, k, x, bandwidth=width)

    assert torch.autograd.gradcheck(product, (q, k, x, width))
    assert torch.autograd.gradcheck(lambda p, w: product(p, None, p[:, 0], w), (q, width))
    dense = (
        gaussian_kernel((q / width).detach().numpy(), (k / width).detach().numpy(), 1.0)
        @ x.detach().numpy()
    )
    y = product(q, k, x, width)
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y.detach().numpy(), dense, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth": 0.0}, "bandwidth must be positive"),
        ({"bandwidth": torch.ones(2)}, "bandwidth must be a number or have shape"),
        ({"x": torch.ones(4)}, "x must have 7 rows"),
        ({"keys": torch.ones(7, 2)}, "keys must have shape"),
    ],
)
def test_wrong_tensors_are_named(change: dict[str, Any], message: str) -> None:
    q, k, x = tensors((5, 3), (7, 3), (7,))
    given = {"queries": q, "keys": k, "x": x, "bandwidth": 1.0} | change
    with pytest.raises(ValueError, match=message):
        approxkmv.torch.matvec(**given)


def test_grids_of_scikit_learn_run() -> None:
    theirs = sklearn.neighbors.KernelDensity().get_params()
    assert set(theirs) <= set(KernelDensity().get_params())
    grid = {"bandwidth": [0.3, 1.0], "kernel": ["gaussian"], "metric": ["euclidean"], "atol": [0.0]}
    ours = GridSearchCV(KernelDensity(), grid, cv=3).fit(X)
    others = GridSearchCV(sklearn.neighbors.KernelDensity(rtol=1e-9), grid, cv=3).fit(X)
    assert ours.best_params_ == others.best_params_
    assert ours.best_score_ == pytest.approx(others.best_score_, rel=1e-6)
    ridge = {"alpha": [0.1, 1.0], "gamma": [0.1, 1.0], "kernel": ["rbf"]}
    y = np.sin(X[:, 0])
    ours = GridSearchCV(KernelRidge(random_state=0, tol=1e-8), ridge, cv=3).fit(X, y)
    others = GridSearchCV(sklearn.kernel_ridge.KernelRidge(), ridge, cv=3).fit(X, y)
    assert ours.best_params_ == others.best_params_
    assert ours.best_score_ == pytest.approx(others.best_score_, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (KernelDensity(kernel="tophat"), "kernel must be 'gaussian', got 'tophat'"),
        (KernelDensity(metric="haversine"), "metric must be 'euclidean', got 'haversine'"),
        (KernelDensity(atol=-1.0), "atol must be"),
        (KernelRidge(kernel="linear"), "kernel must be one of 'gaussian', 'laplacian'"),
        (KernelRidge(gamma=1.0, bandwidth=2.0), "gamma must be None"),
        (KernelRidge(gamma=-1.0), "gamma must be a positive"),
    ],
)
def test_what_is_not_offered_is_said(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.fit(X, X[:, 0])


def test_estimators_with_a_bandwidth_for_each_feature() -> None:
    model = KernelDensity(bandwidth=WIDTHS).fit(X)
    z = ((Q[:, None] - X) / WIDTHS) ** 2
    exact = logsumexp(-0.5 * z.sum(-1), axis=1) - np.log(60)
    exact -= np.log(WIDTHS * np.sqrt(2 * np.pi)).sum()
    np.testing.assert_allclose(model.score_samples(Q), exact, atol=1e-9)
    drawn = model.sample(4000, random_state=0)
    np.testing.assert_allclose(drawn.var(axis=0), X.var(axis=0) + WIDTHS**2, rtol=0.15)
    np.testing.assert_allclose(drawn.mean(axis=0), X.mean(axis=0), atol=0.25)
    y = np.sin(X[:, 0])
    dense = gaussian_kernel(X / WIDTHS, X / WIDTHS, 1.0)
    ridge = KernelRidge(alpha=0.5, bandwidth=WIDTHS, tol=1e-10, random_state=0).fit(X, y)
    right = DENSE @ np.linalg.solve(dense + 0.5 * np.eye(60), y)
    np.testing.assert_allclose(ridge.predict(Q), right, atol=1e-7)
    process = GaussianProcessRegressor(
        noise_variance=0.5, bandwidth=WIDTHS, normalize_y=False, tol=1e-10, random_state=0
    )
    np.testing.assert_allclose(process.fit(X, y).predict(Q), right, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_reflected_density_has_mass_one_and_does_not_sink(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    points = rng.exponential(size=(3000, 1))
    weights = rng.uniform(0.5, 1.5, 3000) if weighted else None
    model = KernelDensity(bandwidth=0.2, bounds=[[0, np.inf]]).fit(points, sample_weight=weights)
    at = np.linspace(0, 20, 2001)[:, None]
    values = np.exp(model.score_samples(at))
    assert scipy.integrate.simpson(values, x=at[:, 0]) == pytest.approx(1, abs=1e-4)
    plain = np.exp(
        KernelDensity(bandwidth=0.2).fit(points, sample_weight=weights).score_samples(at)
    )
    assert abs(values[0] - 1) < 0.2  # the truth; half of it without
    assert plain[0] < 0.6
    assert model.score_samples([[-0.1]])[0] == -np.inf
    drawn = model.sample(2000, random_state=0)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(np.average(points[:, 0], weights=weights) + 0.02, abs=0.1)


def test_a_reflected_density_in_a_box() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(size=(2000, 2))
    model = KernelDensity(bandwidth=0.05, bounds=[[0, 1], [0, 1]]).fit(points)
    grid = np.linspace(0.002, 0.998, 250)
    at = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    values = np.exp(model.score_samples(at))
    assert values.mean() == pytest.approx(1, abs=2e-3)
    assert 0.5 < np.exp(model.score_samples([[0.0, 0.0]]))[0] < 1.6
    drawn = model.sample(5000, random_state=0)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    with pytest.raises(ValueError, match=r"X must lie within bounds, but X\[0, 0\]"):
        KernelDensity(bounds=[[0, 0.1], [0, 1]]).fit(points[points[:, 0] > 0.1])
    with pytest.raises(ValueError, match=r"bounds must have shape \(2, 2\)"):
        KernelDensity(bounds=[[0, 1]]).fit(points)


@parametrize_with_checks([SpectralClustering(n_clusters=2)])
def test_spectral_clustering_is_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


def test_embeddings_are_scikit_learns() -> None:
    """Up to signs; and clusters of its estimator."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(3 * i, 1, (60, 2)) for i in range(3)])
    K = akmv.GaussianKernel(points, bandwidth=1.0)
    for drop_first in (True, False):
        ours = spectral_embedding(K, 3, drop_first=drop_first, random_state=0)
        theirs = sklearn.manifold.spectral_embedding(
            K.toarray(), n_components=3, drop_first=drop_first, random_state=0
        )
        scale = np.abs(ours).max(axis=0) / np.abs(theirs).max(axis=0)
        np.testing.assert_allclose(np.abs(ours), np.abs(theirs) * scale, atol=1e-5)
        if not drop_first:
            np.testing.assert_allclose(scale, 1.0, rtol=1e-6)
    for assign in ("kmeans", "cluster_qr"):
        mine = SpectralClustering(3, gamma=0.5, assign_labels=assign, random_state=0)
        his = sklearn.cluster.SpectralClustering(3, gamma=0.5, assign_labels=assign, random_state=0)
        a, b = mine.fit_predict(points), his.fit_predict(points)
        assert sklearn.metrics.adjusted_rand_score(a, b) > 0.95
    with pytest.raises(ValueError, match="n_components must be below"):
        spectral_embedding(K, 180)
