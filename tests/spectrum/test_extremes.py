"""``eigenvalues`` and ``singular_values`` against LAPACK, with error bars that hold."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator
from spectrum_cases import BANDWIDTH, CASES, Frozen, exact_eigenvalues

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.spectrum import eigenvalues, singular_values


class Counting(akmv.GaussianKernel):
    """Counts products, with however many columns."""

    n_products = 0

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        self.n_products += 1
        return np.asarray(super()._matmat(x))

    _matvec = _matmat


def within(found: Any, exact: np.ndarray, rounding: float) -> None:
    """The largest first, each within its error bar and the rounding of LAPACK itself."""
    assert (np.diff(found.values) <= 0).all()
    assert (np.abs(found.values - exact) <= found.errors + rounding * exact[0]).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("method", ["lanczos", "lobpcg"])
def test_eigenvalues_agree_with_lapack(case: str, refine: bool, method: str) -> None:
    points = CASES[case](250)
    exact = exact_eigenvalues(points)
    K = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    for k in (1, 5, 250):
        found = eigenvalues(K, k, rng=0, refine=refine, method=method)
        within(found, exact[:k], 1e-9)
        assert found.refined == refine
        assert (found.errors <= 1e-5 * exact[0]).all()
        np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-9)


@pytest.mark.parametrize("method", ["lanczos", "lobpcg"])
def test_repeated_eigenvalues_are_all_found(method: str) -> None:
    """Four clusters of equal size: a fourfold eigenvalue."""
    corners = 100 * np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    points = np.repeat(corners, 30, axis=0)
    K = akmv.GaussianKernel(points, bandwidth=1.0)
    found = eigenvalues(K, 5, rng=0, method=method)
    np.testing.assert_allclose(found.values, [30, 30, 30, 30, 0], atol=1e-8)


@pytest.mark.parametrize("method", ["lanczos", "lobpcg"])
def test_float32(method: str) -> None:
    """The error bars cover the rounding of float32 products, measured; they stay small."""
    points = CASES["normal"](500).astype(np.float32)
    K = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    found = eigenvalues(K, 4, rng=0, method=method)
    exact = exact_eigenvalues(points)[:4]
    assert 0 < found.operator_error < 1e-4 * exact[0]
    within(found, exact, 1e-6)


def test_lobpcg_multiplies_blocks() -> None:
    """Six digits of five eigenvalues, from fewer products with a block than Lanczos takes alone."""
    points = CASES["normal"](400)
    counts = {}
    for method in ("lanczos", "lobpcg"):
        K = Counting(points, bandwidth=BANDWIDTH)
        eigenvalues(K, 5, rng=0, method=method)
        counts[method] = K.n_products
    assert counts["lobpcg"] < counts["lanczos"]


@pytest.mark.parametrize("seed", range(5))
def test_sampled_operator(seed: int) -> None:
    """Weyl: off by at most eps. Refining takes the error from first to second order."""
    points = CASES["normal"](300)
    exact = exact_eigenvalues(points)[:3]
    eps = 0.02 * exact[0]
    rough = eigenvalues(Frozen(points, eps=eps, seed=seed), 3, rng=0)
    within(rough, exact, 1e-12)
    assert rough.operator_error == eps
    refined = eigenvalues(Frozen(points, eps=eps, seed=seed), 3, rng=0, refine=True)
    within(refined, exact, 1e-12)
    assert refined.refined
    # Refined values come from below, as Ritz values do, and lie within r^2 / gap.
    gap = np.abs(exact[:, None] - exact_eigenvalues(points)[:4]).clip(1e-9)
    gap[np.eye(3, 4, dtype=bool)] = np.inf
    missed = exact[0] - refined.values[0]
    assert -1e-9 <= missed <= refined.residuals[0] ** 2 / gap[0].min()


SHAPES = [(60, 200), (200, 60), (150, 150)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_singular_values_agree_with_lapack(case: str, shape: tuple[int, int]) -> None:
    queries, keys = CASES[case](shape[0]), CASES[case](shape[1])[::-1] + 0.1
    exact = np.linalg.svd(gaussian_kernel(queries, keys, BANDWIDTH), compute_uv=False)
    K = akmv.GaussianKernel(queries, keys, bandwidth=BANDWIDTH)
    for k in (1, 4, min(shape)):
        found = singular_values(K, k, rng=0)
        within(found, exact[:k], 1e-7)
        assert (found.errors <= 1e-3 * exact[0] + 1e-9).all()
        np.testing.assert_allclose(found.left.T @ found.left, np.eye(k), atol=1e-9)


def test_singular_values_of_a_sampled_operator() -> None:
    queries, keys = CASES["normal"](100), CASES["normal"](150)
    exact = np.linalg.svd(gaussian_kernel(queries, keys, BANDWIDTH), compute_uv=False)[:4]
    found = singular_values(Frozen(queries, keys, eps=0.5), 4, rng=0)
    within(found, exact, 1e-9)
    assert found.operator_error == 0.5


def test_other_operators_are_taken_as_they_are() -> None:
    dense = np.diag(np.arange(100.0))
    found = eigenvalues(aslinearoperator(dense), 2, rng=0)
    np.testing.assert_allclose(found.values, [99, 98], rtol=1e-9)
    assert found.operator_error == 0
    np.testing.assert_allclose(singular_values(aslinearoperator(-dense), 1).values, [99], rtol=1e-9)


def test_same_seed_same_bits_in_any_thread() -> None:
    K = akmv.GaussianKernel(CASES["normal"](300), bandwidth=BANDWIDTH)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: eigenvalues(K, 3, rng=5).values.tobytes(), range(8)))
    assert len(set(found)) == 1


def test_pickles_and_prints() -> None:
    K = akmv.GaussianKernel(CASES["normal"](60), bandwidth=BANDWIDTH)
    for found in (eigenvalues(K, 3, rng=0), singular_values(K, 3, rng=0)):
        again = pickle.loads(pickle.dumps(found))
        assert str(again) == str(found)
        assert str(found).count("+-") == 3


def test_bad_input() -> None:
    points = CASES["normal"](50)
    K = akmv.GaussianKernel(points, bandwidth=1.0)
    rectangular = akmv.GaussianKernel(points, points[:40], bandwidth=1.0)
    with pytest.raises(TypeError, match=r"K must be a scipy.*LinearOperator.*ndarray"):
        eigenvalues(points, 2)
    with pytest.raises(ValueError, match=r"K must be square, got shape \(50, 40\)"):
        eigenvalues(rectangular, 2)
    with pytest.raises(ValueError, match="see singular_values"):
        eigenvalues(akmv.GaussianKernel(points, points + 1, bandwidth=1.0), 2)
    with pytest.raises(ValueError, match="k must be between 1 and 50, got 51"):
        eigenvalues(K, 51)
    with pytest.raises(ValueError, match="k must be between 1 and 40, got 0"):
        singular_values(rectangular, 0)
    with pytest.raises(ValueError, match="tol must be a finite number >= 0"):
        eigenvalues(K, 2, tol=-1)
    with pytest.raises(ValueError, match="method must be one of"):
        eigenvalues(K, 2, method="power")
    with pytest.raises(ValueError, match="refine must be False"):
        eigenvalues(aslinearoperator(np.eye(40)), 2, refine=True)
    with pytest.raises(TypeError, match="rng must be an integer"):
        eigenvalues(K, 2, rng="seed")  # type: ignore[arg-type]


SPECIAL = {
    "identity": np.eye(64),
    "nothing": np.zeros((64, 64)),
    "tiny identity": 1e-30 * np.eye(64),
    "one apart": np.diag(np.r_[2.0, np.ones(63)]),
    "not square": np.eye(70, 64),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECIAL)
def test_matrices_from_which_no_krylov_space_grows(name: str, kind: Any) -> None:
    """Near the identity and near 0 ARPACK gives up; the values are found nevertheless."""
    dense = SPECIAL[name].astype(kind)
    expected = np.linalg.svd(dense.astype(np.float64), compute_uv=False)[:3]
    solvers = [akmv.spectrum.singular_values]
    if dense.shape[0] == dense.shape[1]:
        solvers.append(akmv.spectrum.eigenvalues)
    for solve in solvers:
        found = solve(aslinearoperator(dense), 3, rng=0)
        np.testing.assert_allclose(found.values, expected, rtol=1e-5)
        rounding = 64 * np.finfo(kind).eps * expected[0]  # of products, of which no bar tells
        assert (np.abs(found.values - expected) <= found.errors + rounding).all()


def test_kernel_near_the_identity_in_single_precision() -> None:
    """Points so far apart that only the diagonal is left."""
    points = np.random.default_rng(0).standard_normal((122, 8)).astype(np.float32)
    found = akmv.spectrum.singular_values(akmv.GaussianKernel(points, bandwidth=0.05), 3, rng=0)
    np.testing.assert_allclose(found.values, np.ones(3), rtol=1e-5)
