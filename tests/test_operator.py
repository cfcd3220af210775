"""``GaussianKernel`` behaves like ``aslinearoperator`` of the dense matrix in SciPy."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import (
    LinearOperator,
    aslinearoperator,
    cg,
    eigsh,
    gmres,
    lobpcg,
    lsqr,
    minres,
    svds,
)

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel

BANDWIDTH = 1.5


def points(n: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4)).astype(dtype)


def pair(dtype: Any = np.float64) -> tuple[akmv.GaussianKernel, LinearOperator]:
    """Our operator of shape (60, 90) and SciPy's over the dense matrix."""
    queries, keys = points(60, dtype), points(90, dtype, 1)
    dense = gaussian_kernel(queries, keys, BANDWIDTH).astype(dtype)
    return akmv.GaussianKernel(queries, keys, bandwidth=BANDWIDTH), aslinearoperator(dense)


def square(n: int = 120, dtype: Any = np.float64) -> tuple[akmv.GaussianKernel, np.ndarray]:
    p = points(n, dtype)
    return akmv.GaussianKernel(p, bandwidth=BANDWIDTH), gaussian_kernel(p, p, BANDWIDTH)


def close(a: np.ndarray, b: np.ndarray, dtype: Any) -> None:
    """Equal shape and type, and equal to the rounding of products of 90 terms in ``dtype``."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(a, b, atol=300 * eps * max(1.0, float(np.abs(b).max())), rtol=0)


def test_is_a_linear_operator(dtype: Any) -> None:
    K, dense = pair(dtype)
    assert isinstance(K, LinearOperator)
    assert K.shape == dense.shape == (60, 90)
    assert K.dtype == dtype
    assert K.T.shape == K.H.shape == (90, 60)
    close(K.toarray(), dense.A, dtype)


@pytest.mark.parametrize("columns", [None, 1, 2, 4, 5, 40])
@pytest.mark.parametrize(
    "form", ["K", "K.T", "K.H", "K.T.T", "2*K", "-K", "K.T*3", "K+K", "(2*K).T"]
)
def test_products_agree_with_the_dense_operator(dtype: Any, columns: int | None, form: str) -> None:
    """Every expression SciPy offers, with vectors, one column and many."""
    ours, dense = (eval(form, {"K": operator}) for operator in pair(dtype))
    n = ours.shape[1]
    x = (
        points(n, dtype, 2)[:, 0]
        if columns is None
        else np.resize(points(n, dtype, 2), (n, columns))
    )
    close(ours @ x, dense @ x, dtype)
    close(ours.dot(x), dense.dot(x), dtype)
    close(ours * x, dense * x, dtype)
    if columns is None:
        close(ours.matvec(x), dense.matvec(x), dtype)
        close(ours.matvec(x[:, None]), dense.matvec(x[:, None]), dtype)
    else:
        close(ours.matmat(x), dense.matmat(x), dtype)
    m = ours.shape[0]
    z = np.resize(points(m, dtype, 3), (m,) if columns is None else (m, columns))
    close(ours.T @ z, dense.T @ z, dtype)
    if columns is None:
        close(ours.rmatvec(z), dense.rmatvec(z), dtype)
    else:
        close(ours.rmatmat(z), dense.rmatmat(z), dtype)


def test_powers_sums_and_products_of_operators() -> None:
    """a*op + b*I, op**2, op @ op.T, as in a regularised solve."""
    K, dense = square()
    identity = aslinearoperator(np.eye(120))
    x = points(120, seed=2)
    np.testing.assert_allclose((2 * K + 3 * identity) @ x, 2 * dense @ x + 3 * x, atol=1e-11)
    np.testing.assert_allclose((K**2) @ x, dense @ (dense @ x), atol=1e-10)
    np.testing.assert_allclose((K @ K.T) @ x, dense @ (dense.T @ x), atol=1e-10)
    np.testing.assert_allclose((K**0) @ x, x)


@pytest.mark.parametrize("points_type", ["f4", "f8"])
@pytest.mark.parametrize("x_type", ["f4", "f8", "i1", "i8", "c8", "c16"])
def test_type_promotion(points_type: str, x_type: str) -> None:
    """The result's type is the one the dense operator gives."""
    K, dense = pair(points_type)
    x = np.arange(-45, 45).astype(x_type)
    expected = dense @ x
    assert (K @ x).dtype == expected.dtype
    np.testing.assert_allclose(K @ x, expected, rtol=0, atol=1e-3 if points_type == "f4" else 1e-11)


def test_complex_x(dtype: Any) -> None:
    K, dense = pair(dtype)
    rng = np.random.default_rng(0)
    for shape in [(90,), (90, 3)]:
        x = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(
            np.result_type(dtype, np.complex64)
        )
        close(K @ x, dense @ x, dtype)


def test_adjoint_identity(dtype: Any) -> None:
    """<Kx, y> = <x, K'y> to rounding; and K.T is K where keys are the queries."""
    K, _ = pair(dtype)
    rng = np.random.default_rng(1)
    for _ in range(20):
        x, y = (rng.standard_normal(n).astype(dtype) for n in (90, 60))
        left, right = float(np.dot(K @ x, y)), float(np.dot(x, K.T @ y))
        norms = float(np.linalg.norm(x) * np.linalg.norm(y))
        assert abs(left - right) <= 1000 * np.finfo(dtype).eps * norms
    S, _ = square(100, dtype)
    assert S.T is S
    assert S.H is S
    assert pair(dtype)[0].T.T.shape == (60, 90)


def test_symmetric_to_rounding(dtype: Any) -> None:
    dense = square(200, dtype)[0].toarray()
    np.testing.assert_allclose(dense, dense.T, atol=100 * np.finfo(dtype).eps)
    assert dense.max() <= 1
    np.testing.assert_allclose(np.diag(dense), 1, atol=100 * np.finfo(dtype).eps)


def test_one_fixed_matrix(dtype: Any) -> None:
    """Linear to rounding, and the same bits at every call and as in matvec."""
    queries, keys = points(60, dtype), points(90, dtype, 1)
    K = akmv.GaussianKernel(queries, keys, bandwidth=BANDWIDTH)
    x = points(90, dtype, 2)
    np.testing.assert_array_equal(K @ x, K @ x)
    np.testing.assert_array_equal(K @ x, akmv.matvec(queries, keys, x, bandwidth=BANDWIDTH))
    np.testing.assert_array_equal(K @ (2 * x), 2 * (K @ x))


def test_cg_minres_gmres_solve_a_regularised_system() -> None:
    K, dense = square()
    A, dense = K + aslinearoperator(np.eye(120)), dense + np.eye(120)
    b = points(120, seed=3)[:, 0]
    rtol = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"  # before SciPy 1.12
    for solve in (cg, minres, gmres):
        solution, failed = solve(A, b, **{rtol: 1e-12})
        assert failed == 0
        residual = np.linalg.norm(dense @ solution - b) / np.linalg.norm(b)
        assert residual <= 1e-9, solve.__name__


def test_lsqr_solves_a_rectangular_system() -> None:
    K, dense = pair()
    b = points(60, seed=3)[:, 0]
    ours = lsqr(K, b, damp=0.1, atol=1e-12, btol=1e-12)[0]
    exact = lsqr(dense.A, b, damp=0.1, atol=1e-12, btol=1e-12)[0]
    np.testing.assert_allclose(ours, exact, atol=1e-7)


def test_eigsh_and_lobpcg_find_the_top_eigenvalues() -> None:
    K, dense = square()
    top = np.linalg.eigvalsh(dense)[-3:]
    np.testing.assert_allclose(np.sort(eigsh(K, k=3, return_eigenvectors=False)), top, rtol=1e-10)
    start = np.random.default_rng(4).standard_normal((120, 3))
    values, _ = lobpcg(K, start, tol=1e-9, maxiter=200)
    np.testing.assert_allclose(np.sort(values), top, rtol=1e-8)


def test_eigsh_in_float32() -> None:
    K, dense = square(dtype=np.float32)
    top = np.linalg.eigvalsh(dense)[-3:]
    found = np.sort(eigsh(K, k=3, return_eigenvectors=False))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, top, rtol=1e-5)


def test_svds_finds_the_top_singular_values() -> None:
    K, dense = pair()
    top = np.linalg.svd(dense.A, compute_uv=False)[:3][::-1]
    u, s, vt = svds(K, k=3)
    order = np.argsort(s)
    np.testing.assert_allclose(s[order], top, rtol=1e-9)
    np.testing.assert_allclose(dense.A @ vt.T, u * s, atol=1e-8)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(dtype: Any, protocol: int) -> None:
    """An operator, its transpose and its report survive; a symmetric one stays symmetric."""
    x = points(90, dtype, 2)
    for K in (pair(dtype)[0], pair(dtype)[0].T.T, square(90, dtype)[0]):
        again = pickle.loads(pickle.dumps(K, protocol=protocol))
        np.testing.assert_array_equal(again @ x, K @ x)
        assert (again.T is again) == (K.T is K)
        assert str(again.info) == str(K.info)
    info = K.info
    assert pickle.loads(pickle.dumps(info, protocol=protocol)) == info
    np.testing.assert_array_equal(copy.deepcopy(K) @ x, K @ x)


def test_info(dtype: Any) -> None:
    """The bound holds for every x: it is above the error at the worst of many."""
    K, _ = pair(dtype)
    assert K.info.method == "exact"
    assert K.info.pairs == 5400
    assert K.bandwidth == BANDWIDTH
    queries, keys = points(60, dtype), points(90, dtype, 1)
    exact = gaussian_kernel(queries, keys, BANDWIDTH)
    assert np.linalg.norm(K.toarray() - exact, 2) <= K.info.error_bound
    assert "too small for sampling" in str(K.info)
    assert K.T.info.pairs == 5400


def test_points_are_not_copied() -> None:
    p = points(1000)
    K = akmv.GaussianKernel(p, bandwidth=1.0)
    assert np.shares_memory(K._kernel.queries, p)


def test_bad_arguments() -> None:
    p = points(5)
    with pytest.raises(ValueError, match="max_memory must be a positive finite number, got -1"):
        akmv.GaussianKernel(p, bandwidth=1.0, max_memory=-1)
    with pytest.raises(
        ValueError, match=r"method must be one of 'auto', 'exact', 'sampled'.*got 'other'"
    ):
        akmv.GaussianKernel(p, bandwidth=1.0, method="other")
    with pytest.raises(ValueError, match=r"[Dd]imension mismatch"):  # SciPy's
        akmv.GaussianKernel(p, bandwidth=1.0) @ np.ones(6)
    with pytest.raises(TypeError, match="x must hold real numbers, got dtype object"):
        akmv.GaussianKernel(p, bandwidth=1.0) @ np.ones(5, object)


def test_batches_of_vectors_and_matrices() -> None:
    """What SciPy calls since 1.18: vectors are rows of an array, matrices its last two axes.

    As many vectors as keys must not be taken for a matrix of columns.
    """
    p = points(9)
    K = akmv.GaussianKernel(p, p[:5], bandwidth=1.0)
    A = K.toarray()
    rng = np.random.default_rng(0)
    for shape in ((5,), (5, 1), (1, 5), (5, 5), (7, 5), (2, 3, 5)):
        x = rng.standard_normal(shape)
        want = A @ x if shape == (5, 1) else np.einsum("ij,...j->...i", A, x)
        np.testing.assert_allclose(K._matvec(x), want, rtol=1e-12, atol=1e-12)
    for shape in ((5, 2), (5, 5), (3, 5, 2), (5, 5, 5), (2, 3, 5, 4)):
        x = rng.standard_normal(shape)
        np.testing.assert_allclose(K._matmat(x), A @ x, rtol=1e-12, atol=1e-12)


def test_empty_operator(dtype: Any) -> None:
    K = akmv.GaussianKernel(points(0, dtype), points(3, dtype), bandwidth=1.0)
    assert (K @ np.ones(3, dtype)).shape == (0,)
    assert (K.T @ np.ones(0, dtype) == 0).all()
