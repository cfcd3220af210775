"""``solve`` against dense linear algebra: the answer, and above all the residual it reports."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel

N, BANDWIDTH = 700, 1.5


def problem(dtype: Any = np.float64, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((n, 4)).astype(dtype)
    return (
        points,
        np.sin(2 * points[:, 0]) + rng.standard_normal(n),
        gaussian_kernel(points, points, BANDWIDTH),
    )


def residual(K: np.ndarray, noise: Any, x: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(b - K @ x - noise * x) / np.linalg.norm(b))


class Perturbed(akmv.GaussianKernel):
    """A kernel operator with a fixed symmetric error of a given norm, as a sampled one has."""

    def __init__(self, points: np.ndarray, error: float) -> None:
        super().__init__(points, bandwidth=BANDWIDTH)
        noise = np.random.default_rng(5).standard_normal((len(points), len(points)))
        noise += noise.T
        self._error = noise * (error / np.linalg.norm(noise, 2))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(super()._matmat(x) + self._error @ x)

    _matvec = _matmat


@pytest.mark.parametrize("noise", [1.0, 0.01])
@pytest.mark.parametrize("tol", [1e-3, 1e-8])
def test_answer_and_residual_are_those_of_the_dense_system(
    dtype: np.dtype[Any], noise: float, tol: float
) -> None:
    """The residual reported is the dense one to 1 %, and below what was asked.

    In float32 the products are off by 1e-7 relative to the sums, more than 1e-8: refinement with
    residuals in double still gets there.
    """
    points, b, K = problem(dtype)
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    x, info = akmv.solve(operator, b, noise=noise, tol=tol, rng=0, return_info=True)
    assert info.converged
    assert info.independent
    assert info.residual <= tol
    assert abs(info.residual - residual(K, noise, x, b)) <= 0.01 * info.residual
    dense = np.linalg.solve(K + noise * np.eye(N), b)
    # |x - dense| <= |residual| / noise, since no eigenvalue is below the noise.
    assert np.linalg.norm(x - dense) <= 1.01 * tol * np.linalg.norm(b) / noise


def test_columns_and_a_diagonal_of_noise() -> None:
    points, b, K = problem()
    noise = np.random.default_rng(1).uniform(0.05, 2.0, N)
    columns = np.stack([b, np.zeros(N), 1e3 * b[::-1]], axis=1)
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    x, info = akmv.solve(operator, columns, noise=noise, tol=1e-9, rng=0, return_info=True)
    assert x.shape == columns.shape
    assert not x[:, 1].any()
    assert info.residual <= 1e-9
    np.testing.assert_allclose(x, np.linalg.solve(K + np.diag(noise), columns), atol=1e-4)


def test_preconditioner_saves_most_iterations() -> None:
    points, b, _ = problem()
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    runs = {
        kind: akmv.solve(operator, b, noise=0.01, preconditioner=kind, rng=0, return_info=True)[1]
        for kind in ("nystroem", None)
    }
    assert runs["nystroem"].n_iter < runs[None].n_iter / 2
    assert runs[None].rank == 0 < runs["nystroem"].rank


def test_refinement_outgrows_an_error_smaller_than_the_noise() -> None:
    """An operator off by 1e-3 solves a system with noise 0.1 to 1e-9, in a few refinements."""
    points, b, K = problem()
    x, info = akmv.solve(Perturbed(points, 1e-3), b, noise=0.1, tol=1e-9, rng=0, return_info=True)
    assert info.converged
    assert info.n_refinements >= 2
    assert residual(K, 0.1, x, b) <= 1e-9


def test_noise_floor_is_told_and_not_called_converged() -> None:
    """An operator whose error exceeds the noise cannot get there; its own residual says it does."""
    points, b, K = problem()
    operator = Perturbed(points, 1.0)
    with pytest.warns(akmv.AccuracyWarning, match="noise floor"):
        x, info = akmv.solve(operator, b, noise=0.05, tol=1e-6, rng=0, return_info=True)
    assert not info.converged
    assert info.residual > 1e-6
    assert abs(info.residual - residual(K, 0.05, x, b)) <= 0.01 * info.residual
    assert info.residual <= 1.0  # never worse than x = 0


def indefinite() -> tuple[np.ndarray, np.ndarray]:
    """A kernel matrix that is off by 2 in five directions, and a right side."""
    _, b, K = problem()
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((N, 5)))[0]
    return K - 2 * directions @ directions.T, b


def test_minres_solves_where_the_operator_is_indefinite() -> None:
    """Five eigenvalues below 0: conjugate gradients stop at a direction of negative curvature.

    |x - dense| <= |residual| / (smallest eigenvalue in absolute value).
    """
    K, b = indefinite()
    noise = 0.5
    spectrum = np.linalg.eigvalsh(K + noise * np.eye(N))
    assert np.count_nonzero(spectrum < -0.1) == 5
    x, info = akmv.solve(
        aslinearoperator(K), b, noise=noise, tol=1e-8, method="minres", rng=0, return_info=True
    )
    assert info.converged
    assert residual(K, noise, x, b) <= 1e-8
    dense = np.linalg.solve(K + noise * np.eye(N), b)
    assert np.linalg.norm(x - dense) <= 1.01e-8 * np.linalg.norm(b) / np.abs(spectrum).min()
    with pytest.warns(akmv.AccuracyWarning, match="noise floor"):
        akmv.solve(aslinearoperator(K), b, noise=noise, tol=1e-8, rng=0)


def test_minres_and_conjugate_gradients_agree(dtype: np.dtype[Any]) -> None:
    """Columns that are done early, a zero column and a diagonal of noise included."""
    points, b, K = problem(dtype)
    noise = np.random.default_rng(1).uniform(0.05, 2.0, N)
    columns = np.stack([b, np.zeros(N), 1e3 * b[::-1], K[:, 0]], axis=1)
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    answers = {
        method: akmv.solve(
            operator, columns, noise=noise, tol=1e-9, method=method, rng=0, return_info=True
        )
        for method in ("cg", "minres")
    }
    dense = np.linalg.solve(K + np.diag(noise), columns)
    for x, info in answers.values():
        assert info.residual <= 1e-9
        np.testing.assert_allclose(x, dense, atol=1e-4)
    assert answers["minres"][1].n_iter <= 1.2 * answers["cg"][1].n_iter


def test_minres_reports_its_own_residual_truly() -> None:
    """The last entry of the history is the residual of the operator's system."""
    K, b = indefinite()
    with pytest.warns(akmv.AccuracyWarning, match="max_iter=20"):
        x, info = akmv.solve(
            aslinearoperator(K),
            b,
            noise=0.5,
            method="minres",
            preconditioner=None,
            max_iter=20,
            return_info=True,
        )
    np.testing.assert_allclose(info.history[-1], residual(K, 0.5, x, b), rtol=1e-9)
    assert (np.diff(info.history) <= 1e-12).all()  # without a preconditioner it never grows


def test_too_few_iterations_are_told() -> None:
    points, b, K = problem()
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    with pytest.warns(akmv.AccuracyWarning, match="max_iter=3"):
        x, info = akmv.solve(
            operator, b, noise=1e-3, max_iter=3, preconditioner=None, return_info=True
        )
    assert info.n_iter == 3
    assert abs(info.residual - residual(K, 1e-3, x, b)) <= 0.01 * info.residual


def test_any_operator_is_solved_and_its_word_is_marked() -> None:
    _, b, K = problem()
    x, info = akmv.solve(aslinearoperator(K), b, noise=0.5, rng=0, return_info=True)
    assert not info.independent
    assert "by the operator itself" in str(info)
    assert residual(K, 0.5, x, b) <= 1e-5


def test_callback_sees_every_iteration_and_reports_are_picklable() -> None:
    points, b, _ = problem()
    seen: list[tuple[int, float]] = []
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    _, info = akmv.solve(
        operator, b, noise=0.1, rng=0, callback=lambda *a: seen.append(a), return_info=True
    )
    assert seen == list(enumerate(info.history, start=1))
    assert pickle.loads(pickle.dumps(info)) == info


def test_same_seed_same_bits() -> None:
    points, b, _ = problem(np.float32)
    operator = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    one, two = (akmv.solve(operator, b, noise=0.1, rng=3) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_zero_and_tiny_systems() -> None:
    operator = akmv.GaussianKernel(np.zeros((1, 2)), bandwidth=1.0)
    np.testing.assert_allclose(akmv.solve(operator, [3.0], noise=2.0), [1.0])
    assert not akmv.solve(operator, [0.0], noise=2.0).any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"noise": 0.0}, ValueError, "noise must be a positive"),
        ({"noise": -np.ones(N)}, ValueError, r"noise must be positive, but noise\[0\] is -1"),
        ({"noise": np.ones(3)}, ValueError, "noise must have one entry per row"),
        ({"noise": "much"}, TypeError, "noise must be a number"),
        ({"b": np.ones(3)}, ValueError, "b must have one entry per row"),
        ({"b": np.full(N, np.nan)}, ValueError, "b must be finite"),
        ({"tol": 0}, ValueError, "tol must be a positive"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
        ({"rank": 0}, ValueError, "rank must be at least 1"),
        ({"rank": 2.5}, TypeError, "rank must be an integer"),
        ({"method": "gmres"}, ValueError, "method must be one of"),
        ({"preconditioner": "ilu"}, ValueError, "preconditioner must be one of"),
        ({"K": np.eye(N)}, TypeError, "K must be a LinearOperator"),
        ({"K": aslinearoperator(np.ones((N, 3)))}, ValueError, "K must be square"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    points, b, _ = problem()
    good = {"K": akmv.GaussianKernel(points, bandwidth=BANDWIDTH), "b": b, "noise": 0.1}
    arguments = good | change
    with pytest.raises(error, match=message):
        akmv.solve(arguments.pop("K"), arguments.pop("b"), **arguments)


def test_two_sets_of_points_are_refused() -> None:
    points, b, _ = problem()
    with pytest.raises(ValueError, match="K must be symmetric"):
        akmv.solve(akmv.GaussianKernel(points, points + 1, bandwidth=1.0), b, noise=0.1)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("noise", [1e-310, 1e-200, 1e-30, 1e-27, 1e30, 1e40, 1e200, 1e308])
@pytest.mark.parametrize("preconditioner", ["nystroem", None])
@pytest.mark.parametrize("method", ["cg", "minres"])
def test_extreme_noise_and_right_sides(
    method: str, preconditioner: str | None, noise: float, size: float
) -> None:
    """An answer of the residual reported, or a ValueError where x itself would overflow."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((12, 3))
    b = rng.choice([-1.0, 1.0], (24, 2))
    for given in (points.repeat(2, axis=0), points.repeat(2, axis=0).astype(np.float32)):
        K = akmv.GaussianKernel(given, bandwidth=1.0)
        options = {"method": method, "preconditioner": preconditioner, "rng": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", akmv.AccuracyWarning)
            try:
                x, info = akmv.solve(K, size * b, noise=noise, return_info=True, **options)
            except ValueError as error:
                assert size / noise > 1e290 and "b must be" in str(error)  # noqa: PT018, PT017
                continue
        assert np.isfinite(x).all()
        assert info.converged or noise < 1e-6
        if size / noise < 1e-290:  # digits of x are lost below the range of a double
            continue
        scale = max(noise, 1.0)
        scaled = x / size * scale
        left = b - (gaussian_kernel(given, given, 1.0) / scale @ scaled + noise / scale * scaled)
        residual = np.linalg.norm(left, axis=0) / np.linalg.norm(b, axis=0)
        assert residual.max() <= info.residual + 1e-6
