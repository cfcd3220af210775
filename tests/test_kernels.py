"""Other kernels than the Gaussian, through the public functions, against the definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv import _check
from approxkmv.exact import kernel_matrix, product
from approxkmv.functions import NAMED, KernelFunction
from approxkmv.kernel.matrix import prepare
from approxkmv.kernel.rounding import rounding_bound
from approxkmv.loops.reference import Reference

KERNELS: list[str | KernelFunction] = [*NAMED, akmv.RationalQuadratic(0.3)]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def clouds(dtype: Any, centre: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    queries = (rng.standard_normal((120, 3)) + centre).astype(dtype)
    keys = np.concatenate([queries[:40], (rng.standard_normal((200, 3)) + centre).astype(dtype)])
    return queries, keys, rng.standard_normal((240, 6)).astype(dtype)


def rounding(kernel: Any, queries: np.ndarray, keys: np.ndarray, bandwidth: float = 1.0) -> float:
    """Worst case of an entry's error, counted in operations.

    By differences squared distances have a relative error, of which at most half gets to an entry;
    by inner products they have one of units times the squared radius, times the steepest slope.
    """
    unit, n_dims = float(np.finfo(keys.dtype).eps) / 2, keys.shape[1]
    centred = np.concatenate([queries, keys]).astype(np.float64) - np.median(keys, axis=0)
    radius = np.linalg.norm(centred, axis=1).max() / bandwidth
    function = _check.kernel(kernel)
    products = 0.0
    if 2 * unit * radius**2 * function.steepest <= (2e-4 if keys.dtype == np.float32 else 1e-9):
        products = (n_dims + 8) * radius**2 * function.steepest
    return unit * (products + n_dims + 40)


@every_kernel
def test_products(kernel: Any, dtype: Any) -> None:
    queries, keys, x = clouds(dtype)
    want = kernel_matrix(queries, keys, 0.9, kernel)
    bound = rounding(kernel, queries, keys, 0.9)
    for columns in (x, x[:, 0], x[:, :3]):
        y, info = akmv.matvec(
            queries, keys, columns, bandwidth=0.9, kernel=kernel, eps=0, return_info=True
        )
        error = np.abs(y - want @ columns).max()
        assert error <= bound * np.abs(columns.astype(float)).sum(axis=0).max()
        assert info.error_bound is not None
        assert np.linalg.norm(y - want @ columns) <= info.error_bound * np.linalg.norm(columns)
        assert info.plan.numbers["kernel"].startswith(
            {"matern12": "laplacian"}.get(kernel, getattr(kernel, "name", kernel))
        )
    sums = akmv.row_sums(queries, keys, bandwidth=0.9, kernel=kernel)
    np.testing.assert_allclose(sums, want.sum(axis=1), rtol=bound * 240)
    y = product(queries, keys, x, 0.9, kernel=kernel)
    np.testing.assert_allclose(y, want @ x, atol=bound * 240 * 4)


@every_kernel
def test_far_from_the_origin(kernel: Any, dtype: Any) -> None:
    """An offset that the points hold exactly changes nothing but the frame."""
    queries, keys, x = clouds(dtype)
    queries, keys = np.round(queries * 64) / 64, np.round(keys * 64) / 64
    far = 4096.0
    want = kernel_matrix(queries, keys, 1.1, kernel) @ x
    y = akmv.matvec(queries + far, keys + far, x, bandwidth=1.1, kernel=kernel, eps=0)
    bound = rounding(kernel, queries, keys, 1.1) * np.abs(x).sum(axis=0).max()
    assert np.abs(y - want).max() <= bound


@every_kernel
def test_near_and_equal_points(kernel: Any, dtype: Any) -> None:
    """Distances near 0 where inner products would cancel: clusters 1e-3 wide, 30 apart."""
    rng = np.random.default_rng(3)
    centres = 30 * rng.standard_normal((5, 4))
    points = (centres[rng.integers(5, size=150)] + 1e-3 * rng.standard_normal((150, 4))).astype(
        dtype
    )
    points[100:] = points[:50]
    want = kernel_matrix(points, None, 1.0, kernel)
    got = akmv.GaussianKernel(points, bandwidth=1.0, kernel=kernel, method="exact").toarray()
    assert np.abs(got - want).max() <= rounding(kernel, points, points)
    assert (np.abs(got.diagonal() - 1) <= rounding(kernel, points, points)).all()
    if kernel in ("laplacian", "matern12"):  # where a kink is, the distance is 0 to the bit
        assert (got.diagonal() == 1).all()
        np.testing.assert_array_equal(got[:50, 100:].diagonal(), 1)


@every_kernel
def test_wide_and_narrow_bandwidths(kernel: Any, dtype: Any) -> None:
    """All values 1, or all 0 but those of equal points; far points of a long tail."""
    queries, keys, x = clouds(dtype)
    wide = akmv.row_sums(queries, keys, bandwidth=1e6, kernel=kernel)
    np.testing.assert_allclose(wide, len(keys), rtol=1e-4)
    if kernel == "rational_quadratic" or isinstance(kernel, KernelFunction):
        small = akmv.row_sums(queries, keys, bandwidth=1e-3, kernel=kernel)
        want = kernel_matrix(queries, keys, 1e-3, kernel).sum(axis=1)
        np.testing.assert_allclose(small, want, rtol=1e-4)
        with pytest.raises(ValueError, match="do not overflow"):
            akmv.matvec(queries, keys, x, bandwidth=1e-300, kernel=kernel)
    else:
        small = akmv.row_sums(queries, keys, bandwidth=1e-9, kernel=kernel)
        np.testing.assert_array_equal(small, [1.0] * 40 + [0.0] * 80)


@every_kernel
def test_a_bandwidth_for_each_coordinate(kernel: Any, dtype: Any) -> None:
    queries, keys, x = clouds(dtype)
    widths = np.array([0.5, 1.0, 4.0])
    want = kernel_matrix(queries, keys, widths, kernel)
    got = akmv.matvec(queries, keys, x, bandwidth=widths, kernel=kernel, eps=0)
    # Points are rounded once when they are divided.
    atol = rounding(kernel, queries, keys, 0.5) + 40 * np.finfo(dtype).eps
    atol = atol * np.abs(x).sum(axis=0)
    assert (np.abs(got - want @ x) <= atol.max()).all()


@every_kernel
def test_operator(kernel: Any, dtype: Any, tmp_path: Any) -> None:
    """Products, adjoint, entries, diagonal, and the way through a file."""
    queries, keys, x = clouds(dtype)
    K = akmv.GaussianKernel(queries, keys, bandwidth=0.9, kernel=kernel, method="exact")
    want = kernel_matrix(queries, keys, 0.9, kernel)
    atol = rounding(kernel, queries, keys, 0.9)
    np.testing.assert_allclose(K.toarray(), want, atol=atol)
    np.testing.assert_allclose(K.T.toarray(), want.T, atol=atol)
    np.testing.assert_allclose(K[3, 5], want[3, 5], atol=atol)
    np.testing.assert_allclose(K[2:5, ::7], want[2:5, ::7], atol=atol)
    np.testing.assert_allclose(K.diagonal(), want.diagonal(), atol=atol)
    K.save(tmp_path / "kernel.npz")
    again = akmv.GaussianKernel.load(tmp_path / "kernel.npz")
    np.testing.assert_array_equal(again @ x, K @ x)


@every_kernel
@pytest.mark.parametrize("preconditioner", ["nystroem", None])
def test_solve(kernel: Any, dtype: Any, preconditioner: str | None) -> None:
    points, _, _ = clouds(dtype)
    b = np.random.default_rng(1).standard_normal((120, 2))
    K = akmv.GaussianKernel(points, bandwidth=1.5, kernel=kernel)
    x, info = akmv.solve(
        K, b, noise=0.05, rng=0, tol=1e-6, preconditioner=preconditioner, return_info=True
    )
    residual = kernel_matrix(points, None, 1.5, kernel) @ x + 0.05 * x - b
    assert info.converged
    assert (np.linalg.norm(residual, axis=0) <= 1.01e-6 * np.linalg.norm(b, axis=0)).all()


def test_what_is_not_a_kernel() -> None:
    points, x = np.zeros((3, 2)), np.ones(3)
    with pytest.raises(ValueError, match="kernel must be one of 'gaussian', 'laplacian'"):
        akmv.matvec(points, None, x, bandwidth=1.0, kernel="cosine")
    with pytest.raises(TypeError, match="kernel must be a name or"):
        akmv.matvec(points, None, x, bandwidth=1.0, kernel=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kernel must be 'gaussian' with method='paper'"):
        akmv.matvec(points, None, x, bandwidth=1.0, kernel="matern32", method="paper")
    with pytest.raises(ValueError, match="kernel must be 'gaussian' with max_seconds"):
        akmv.matvec(points, None, x, bandwidth=1.0, kernel="matern32", max_seconds=1.0)
    for alpha in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="alpha must be from"):
            akmv.RationalQuadratic(alpha)
    with pytest.raises(TypeError, match="alpha must be a number"):
        akmv.RationalQuadratic("2")  # type: ignore[arg-type]


def test_a_toy_kernel() -> None:
    """A kernel that only has its class: all that Python knows of a kernel is written there."""

    @dataclass(frozen=True)
    class Toy(KernelFunction):
        name: ClassVar[str] = "toy"
        family: ClassVar[int] = -1

        def value(self, exponents: np.ndarray) -> np.ndarray:
            return np.asarray((1 - 2 * exponents) ** -2 * np.exp(exponents))

        def steepness(self, exponents: np.ndarray) -> np.ndarray:
            return np.asarray(1 + 4 / (1 - 2 * exponents))

    queries, keys, x = clouds(np.float64)
    matrix = prepare(queries, keys, 0.9, function=Toy(), backend=Reference())
    want = kernel_matrix(queries, keys, 0.9, Toy()) @ x
    np.testing.assert_allclose(matrix.product(x).out, want, rtol=1e-10)
    y = product(queries, keys, x, 0.9)
    assert np.linalg.norm(matrix.product(x).out - want) <= rounding_bound(matrix, 240.0 * 120)
    assert not np.allclose(y, want)
    assert Toy().value(np.array([Toy().exponent_at(0.3)]))[0] == pytest.approx(0.3)
