r"""Kernel matrices for GPyTorch and ``linear_operator``, never stored, with gradients.

:class:`GaussianKernelLinearOperator` is the matrix; :class:`RBFKernel`, :class:`MaternKernel` and
:class:`RQKernel` are the covariance modules that make it, in the place of GPyTorch's own. Products
are exact, computed by the compiled loops on the CPU. So are gradients with respect to points,
bandwidth and right-hand side: they are products of the same matrix, or that of its slope, with the
right-hand side times coordinates.
"""

from __future__ import annotations

from typing import Any

from approxkmv._extras import needs

try:
    import gpytorch  # type: ignore[import-untyped]
    import torch
    from linear_operator.operators import LinearOperator  # type: ignore[import-untyped]
except ImportError as missing:
    raise ImportError(needs("approxkmv.gpytorch", "GPyTorch", "gpytorch")) from missing

from approxkmv import _check
from approxkmv._torch_product import Product, Values
from approxkmv.functions import GAUSSIAN, NAMED, KernelFunction, RationalQuadratic

__all__ = ["GaussianKernelLinearOperator", "MaternKernel", "RBFKernel", "RQKernel"]

Tensor = torch.Tensor


class GaussianKernelLinearOperator(LinearOperator):  # type: ignore[misc]
    r"""Matrix :math:`\exp(-\|(x_{1,i} - x_{2,j}) / \sigma\|^2 / 2)` that is never stored.

    Parameters
    ----------
    x1 : Tensor, shape (..., n, n_dims)
        Points of the rows, on the CPU.
    x2 : Tensor, shape (..., m, n_dims)
        Points of the columns.
    bandwidth : Tensor, shape (), (1, 1), (1, n_dims) or (..., 1, 1 or n_dims)
        :math:`\sigma`, one for all dimensions or one for each.
    kernel : str or KernelFunction
        Another function of the distance, as in :func:`approxkmv.matvec`.

    Examples
    --------
    >>> import torch
    >>> from approxkmv.gpytorch import GaussianKernelLinearOperator
    >>> points = torch.linspace(0, 1, 500, dtype=torch.float64)[:, None]
    >>> bandwidth = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    >>> K = GaussianKernelLinearOperator(points, points, bandwidth)
    >>> total = (K @ torch.ones(500, dtype=torch.float64)).sum()
    >>> total.backward()
    >>> bool(bandwidth.grad > 0)  # a wider kernel adds up to more
    True
    """

    def __init__(
        self,
        x1: Tensor,
        x2: Tensor,
        bandwidth: Tensor,
        kernel: str | KernelFunction = "gaussian",
    ) -> None:
        function = _check.kernel(kernel)
        for name, tensor in (("x1", x1), ("x2", x2), ("bandwidth", bandwidth)):
            if tensor.device.type != "cpu":
                raise ValueError(f"{name} must be on the CPU, got a tensor on {tensor.device}.")
        if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-1]:
            raise ValueError(
                "x1 and x2 must have one point per row and the same number of columns, "
                f"got shapes {tuple(x1.shape)} and {tuple(x2.shape)}."
            )
        scale = bandwidth.reshape(1, 1) if bandwidth.dim() == 0 else bandwidth
        if scale.dim() < 2 or scale.shape[-2] != 1 or scale.shape[-1] not in (1, x1.shape[-1]):
            raise ValueError(
                f"bandwidth must have shape (), (1, 1) or (1, {x1.shape[-1]}), with leading batch "
                f"axes if need be, got {tuple(bandwidth.shape)}."
            )
        batch = _batch_shape(x1, x2, scale)
        # The base class keeps its arguments and differentiates with respect to them.
        x1, x2, scale = (_expanded(t, batch) for t in (x1, x2, scale))
        super().__init__(x1, x2, scale, kernel=function)
        self.x1, self.x2, self.bandwidth, self.function = x1, x2, scale, function

    def _size(self) -> torch.Size:
        return torch.Size([*self.x1.shape[:-1], self.x2.shape[-2]])

    def _transpose_nonbatch(self) -> GaussianKernelLinearOperator:
        return GaussianKernelLinearOperator(self.x2, self.x1, self.bandwidth, self.function)

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs[..., None] if rhs.dim() == 1 else rhs
        batch = _batch_shape(self.x1, columns)
        operands = (self.x1 / self.bandwidth, self.x2 / self.bandwidth, columns)
        flat = [_expanded(t, batch).reshape(batch.numel(), *t.shape[-2:]) for t in operands]
        options = {"method": "exact", "kernel": self.function}
        y = torch.stack([Product.apply(*p, options) for p in zip(*flat, strict=True)])  # type: ignore[no-untyped-call]
        y = y.reshape(*batch, *y.shape[-2:])
        return y[..., 0] if rhs.dim() == 1 else y

    def _diagonal(self) -> Tensor:
        return _entries(self.x1, self.x2, self.bandwidth, self.function)

    def _get_indices(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Tensor:
        rows, columns, scale = ((*batch_indices, i) for i in (row_index, col_index, 0))
        return _entries(self.x1[rows], self.x2[columns], self.bandwidth[scale], self.function)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        rows, columns = (*batch_indices, row_index), (*batch_indices, col_index)
        if not all(isinstance(index, slice) for index in (*rows, col_index)):
            return super()._getitem(row_index, col_index, *batch_indices)
        return GaussianKernelLinearOperator(
            self.x1[rows], self.x2[columns], self.bandwidth[batch_indices], self.function
        )


class RBFKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """Gaussian kernel for GPyTorch models, whose matrix is never stored.

    Takes the arguments of ``gpytorch.kernels.RBFKernel``, ``ard_num_dims`` and ``batch_shape``
    among them; ``lengthscale`` is the bandwidth.

    Examples
    --------
    >>> import torch
    >>> from approxkmv.gpytorch import RBFKernel
    >>> covariance = RBFKernel()
    >>> covariance.lengthscale = 0.5
    >>> points = torch.rand(100, 3)
    >>> covariance(points).shape
    torch.Size([100, 100])
    """

    has_lengthscale = True
    function: KernelFunction = GAUSSIAN

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor | LinearOperator:
        """The matrix of two point sets, or its diagonal."""
        if last_dim_is_batch:
            x1, x2 = (x.transpose(-1, -2).unsqueeze(-1) for x in (x1, x2))
        bandwidth = self.lengthscale
        if last_dim_is_batch:
            bandwidth = bandwidth.unsqueeze(-3)
        if diag:
            return _entries(x1, x2, bandwidth, self.function)
        if bandwidth.dim() > 2 and bandwidth.shape[:-2].numel() == 1:
            bandwidth = bandwidth.reshape(bandwidth.shape[-2:])
        return GaussianKernelLinearOperator(x1, x2, bandwidth, self.function)


_OF_NU = {0.5: NAMED["matern12"], 1.5: NAMED["matern32"], 2.5: NAMED["matern52"]}


class MaternKernel(RBFKernel):
    """Matérn kernel for GPyTorch models, whose matrix is never stored.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Smoothness, as in ``gpytorch.kernels.MaternKernel``.
    **kwargs
        As in :class:`RBFKernel`.
    """

    def __init__(self, nu: float = 2.5, **kwargs: Any) -> None:
        if nu not in _OF_NU:
            raise ValueError(f"nu must be 0.5, 1.5 or 2.5, got {nu!r}.")
        super().__init__(**kwargs)
        self.nu, self.function = nu, _OF_NU[nu]


class RQKernel(RBFKernel):
    """Rational quadratic kernel for GPyTorch models, whose matrix is never stored.

    Parameters
    ----------
    alpha : float
        Fixed, unlike in ``gpytorch.kernels.RQKernel``, which learns it.
    **kwargs
        As in :class:`RBFKernel`.
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = RationalQuadratic(alpha)


def _batch_shape(*tensors: Tensor) -> torch.Size:
    """Common batch shape of stacks of matrices."""
    shapes = [t.shape[:-2] for t in tensors]
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _expanded(t: Tensor, batch: torch.Size) -> Tensor:
    return t if t.shape[:-2] == batch else t.expand(*batch, *t.shape[-2:])


def _entries(x1: Tensor, x2: Tensor, bandwidth: Tensor, function: KernelFunction) -> Tensor:
    """Kernel values of points in pairs."""
    exponents = ((x1 - x2) / bandwidth).square().sum(dim=-1).mul(-0.5)
    return Values.apply(exponents, function)  # type: ignore[no-any-return, no-untyped-call]
