"""The operator passes ``linear_operator``'s own suite, its gradients are those of autograd."""

from __future__ import annotations

import io
import unittest
from collections.abc import Callable
from typing import Any

import gpytorch
import linear_operator
import pytest
import torch
from linear_operator.test.linear_operator_test_case import (
    LinearOperatorTestCase,
    RectangularLinearOperatorTestCase,
)

from approxkmv.functions import RationalQuadratic
from approxkmv.gpytorch import (
    GaussianKernelLinearOperator,
    MaternKernel,
    RBFKernel,
    RQKernel,
)


def dense(op: Any) -> torch.Tensor:
    """The definition, through autograd."""
    differences = (op.x1[..., :, None, :] - op.x2[..., None, :, :]) / op.bandwidth.unsqueeze(-2)
    return (-0.5 * differences.square().sum(dim=-1)).exp()


class TestSquare(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_test_sample = True

    def create_linear_op(self) -> Any:
        # Neighbours at 1 bandwidth: a condition number of 100, as the suite inverts in float32, and
        # a log-determinant of -4, of which the suite's estimate from random vectors may miss 20 %.
        points = torch.arange(6.0)[:, None] * torch.tensor([[0.6, 0.8, 0.0]])
        return GaussianKernelLinearOperator(points, points.clone(), torch.tensor([[1.0]]))

    def evaluate_linear_op(self, linear_op: Any) -> torch.Tensor:
        return dense(linear_op)


class TestSquareBatch(TestSquare):
    should_test_sample = False

    def create_linear_op(self) -> Any:
        points = torch.arange(6.0)[:, None] * torch.tensor([[0.6, 1.04]]) + 0.1 * torch.randn(
            3, 6, 2
        )
        return GaussianKernelLinearOperator(points, points.clone(), torch.tensor([[1.0, 1.3]]))


class TestRectangular(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self) -> Any:
        return GaussianKernelLinearOperator(
            torch.randn(5, 3), torch.randn(7, 3), torch.tensor([[1.5]])
        )

    def evaluate_linear_op(self, linear_op: Any) -> torch.Tensor:
        return dense(linear_op)


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("n_columns", [1, 3, 100])
@pytest.mark.parametrize("bandwidths", [1, 4])
def test_gradients_of_a_product(n_columns: int, bandwidths: int) -> None:
    """With respect to points, bandwidth (one, or one per dimension) and right-hand side."""
    inputs = [double(9, 4), double(11, 4, seed=1), double(11, n_columns, seed=2)]
    bandwidth = torch.linspace(1, 2, bandwidths, dtype=torch.float64)[None].requires_grad_()
    weights = double(9, n_columns, seed=3).detach()

    def gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((weights * y).sum(), [*inputs, bandwidth])

    op = GaussianKernelLinearOperator(inputs[0], inputs[1], bandwidth)
    for ours, exact in zip(
        gradients(op @ inputs[2]), gradients(dense(op) @ inputs[2]), strict=True
    ):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)


def test_gradients_far_from_the_origin() -> None:
    """Terms of size 1e7 would cancel to 1 and lose 8 digits more: the points are centred first."""
    r = double(30, 2, seed=1)
    far = (double(30, 3).detach() + 1e7).requires_grad_()
    near = (far.detach() - 1e7).requires_grad_()  # exact: the same differences, bit for bit
    bandwidth = torch.tensor([[1.0]], dtype=torch.float64)
    found = [
        torch.autograd.grad((GaussianKernelLinearOperator(p, p, bandwidth) @ r).sum(), p)[0]
        for p in (near, far)
    ]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


def test_gradcheck() -> None:
    def product(x1: Any, x2: Any, bandwidth: Any, r: Any) -> Any:
        return GaussianKernelLinearOperator(x1, x2, bandwidth) @ r

    bandwidth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    inputs = double(4, 2), double(5, 2, seed=1), bandwidth, double(5, 2, seed=2)
    assert torch.autograd.gradcheck(product, inputs)


def test_marginal_likelihood_and_its_gradient() -> None:
    """Inverse quadratic form and log-determinant by Cholesky, differentiated."""
    x, y = double(40, 2).detach(), double(40, seed=1).detach()
    found = {}
    for name in ("ours", "dense"):
        bandwidth = torch.tensor([[0.7]], dtype=torch.float64, requires_grad=True)
        op = GaussianKernelLinearOperator(x, x, bandwidth)
        matrix = op if name == "ours" else linear_operator.to_linear_operator(dense(op))
        quadratic, logdet = matrix.add_jitter(0.1).inv_quad_logdet(y[:, None], logdet=True)
        found[name] = torch.stack(
            [quadratic, logdet, *torch.autograd.grad(quadratic + logdet, bandwidth)[0][0]]
        )
    torch.testing.assert_close(found["ours"], found["dense"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "last_dim_is_batch"),
    [
        ({}, False),
        ({}, True),  # GPyTorch defines it for one lengthscale only
        ({"ard_num_dims": 3}, False),
        ({"batch_shape": torch.Size([2])}, False),
    ],
)
def test_covariance_module_is_that_of_gpytorch(
    options: dict[str, Any], last_dim_is_batch: bool
) -> None:
    ours, theirs = RBFKernel(**options), gpytorch.kernels.RBFKernel(**options)
    ours.lengthscale = theirs.lengthscale = 0.5 + torch.rand_like(theirs.lengthscale)
    x1, x2 = torch.randn(6, 3), torch.randn(8, 3)
    more = {"last_dim_is_batch": True} if last_dim_is_batch else {}
    torch.testing.assert_close(
        ours(x1, x2, **more).to_dense(), theirs(x1, x2, **more).to_dense(), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(ours(x1, diag=True, **more), theirs(x1, diag=True, **more))


def test_regression_agrees_with_gpytorch() -> None:
    """Same likelihood and predictive mean as GPyTorch's own kernel, by Cholesky."""
    x, inside = double(60, 2).detach(), double(10, 2, seed=1).detach()
    y = torch.sin(3 * x[:, 0])

    class Model(gpytorch.models.ExactGP):
        def __init__(self, kernel: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.covariance = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean(points), self.covariance(points)
            )

    found = []
    for kernel in (RBFKernel(), gpytorch.kernels.RBFKernel()):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = Model(kernel, likelihood).double()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        value = objective(model(x), y)
        value.backward()
        gradients = [p.grad.flatten() for p in model.parameters()]
        model.eval()
        likelihood.eval()
        with torch.no_grad():
            prediction = likelihood(model(inside))
        found.append(torch.cat([value[None], *gradients, prediction.mean, prediction.variance]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_saves_and_loads() -> None:
    op = GaussianKernelLinearOperator(torch.randn(4, 2), torch.randn(3, 2), torch.tensor([[1.0]]))
    file = io.BytesIO()
    torch.save(op, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    torch.testing.assert_close(again.to_dense(), op.to_dense())


def test_empty() -> None:
    op = GaussianKernelLinearOperator(torch.randn(0, 2), torch.randn(3, 2), torch.tensor(1.0))
    assert (op @ torch.randn(3, 2)).shape == (0, 2)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 2), (4, 3), (1, 1)), "same number of columns"),
        (((4,), (4, 3), (1, 1)), "one point per row"),
        (((4, 3), (4, 3), (1, 2)), "bandwidth must have shape"),
        (((4, 3), (4, 3), (3,)), "bandwidth must have shape"),
    ],
)
def test_bad_input(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianKernelLinearOperator(*(torch.ones(shape) for shape in shapes))
    with pytest.raises(ValueError, match="x1 must be on the CPU, got a tensor on meta"):
        GaussianKernelLinearOperator(
            torch.ones(2, 2, device="meta"), torch.ones(2, 2), torch.ones(1, 1)
        )


def test_without_gpytorch(run_python: Callable[..., str]) -> None:
    script = """
import sys
sys.modules["gpytorch"] = None
try:
    import approxkmv.gpytorch
except ImportError as error:
    print(error)
"""
    assert 'pip install "approxkmv[gpytorch]"' in run_python(script)


KERNELS = ["laplacian", "matern32", "matern52", "rational_quadratic", RationalQuadratic(0.7)]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradcheck_of_other_kernels(kernel: Any) -> None:
    """With respect to points, bandwidth and right-hand side, and of single entries."""

    def product(x1: Any, x2: Any, bandwidth: Any, r: Any) -> Any:
        op = GaussianKernelLinearOperator(x1, x2, bandwidth, kernel)
        return op @ r, op[..., [0, 1], [2, 3]]

    bandwidth = torch.tensor([[1.3, 0.8]], dtype=torch.float64, requires_grad=True)
    inputs = double(4, 2), double(5, 2, seed=1), bandwidth, double(5, 2, seed=2)
    assert torch.autograd.gradcheck(product, inputs)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_equal_points_have_no_part_in_gradients(kernel: Any) -> None:
    """Also where the kernel has a kink: no NaN, and the gradient of the other pairs."""
    points = double(6, 2)
    bandwidth = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    op = GaussianKernelLinearOperator(points, points, bandwidth, kernel)
    total = (op @ torch.ones(6, 1, dtype=torch.float64)).sum()
    found = torch.autograd.grad(total, [points, bandwidth])
    rows, cols = torch.triu_indices(6, 6, 1)
    pairs = GaussianKernelLinearOperator(points[rows], points[cols], bandwidth, kernel)
    want = torch.autograd.grad(2 * pairs.diagonal().sum(), [points, bandwidth])
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("ard", [None, 3])
def test_matern_is_that_of_gpytorch(nu: float, ard: int | None) -> None:
    ours, theirs = (
        kind(nu=nu, ard_num_dims=ard).double()
        for kind in (MaternKernel, gpytorch.kernels.MaternKernel)
    )
    ours.lengthscale = theirs.lengthscale = 0.5 + torch.rand_like(theirs.lengthscale)
    x1, x2 = double(6, 3).detach(), double(8, 3, seed=1).detach()
    weights = double(6, 8, seed=2).detach()
    matrices = ours(x1, x2).to_dense(), theirs(x1, x2).to_dense()
    torch.testing.assert_close(*matrices, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours(x1, diag=True), theirs(x1, diag=True))
    slopes = [
        torch.autograd.grad((m * weights).sum(), k.raw_lengthscale)[0]
        for m, k in zip(matrices, (ours, theirs), strict=True)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8)


def test_rational_quadratic_is_that_of_gpytorch() -> None:
    ours, theirs = RQKernel(alpha=0.7).double(), gpytorch.kernels.RQKernel().double()
    ours.lengthscale = theirs.lengthscale = 0.8
    theirs.alpha = 0.7
    x1, x2 = double(6, 3).detach(), double(8, 3, seed=1).detach()
    torch.testing.assert_close(
        ours(x1, x2).to_dense(), theirs(x1, x2).to_dense(), rtol=1e-6, atol=1e-6
    )


def test_an_unknown_smoothness() -> None:
    with pytest.raises(ValueError, match=r"nu must be 0.5, 1.5 or 2.5, got 3.5"):
        MaternKernel(nu=3.5)
