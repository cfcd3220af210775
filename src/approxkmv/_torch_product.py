"""The product for PyTorch, with its exact gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from approxkmv._check import kernel
from approxkmv.functions import KernelFunction
from approxkmv.product import matvec

Tensor = torch.Tensor
# Columns of one product in the backward pass: enough to hide the cost of the kernel values.
_COLUMNS = 256


class Values(torch.autograd.Function):
    """Kernel values where the exponents of the Gaussian are t, with their slope; 0 at a kink."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, function: KernelFunction) -> Tensor:
        exponents = t.detach().numpy().astype(np.float64)
        values = function.value(exponents)
        with np.errstate(invalid="ignore"):
            slope = values * function.steepness(exponents)
        slope = np.where(np.isfinite(slope), slope, 0.0)
        ctx.save_for_backward(torch.from_numpy(slope).to(t.dtype))
        return torch.from_numpy(np.asarray(values)).to(t.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g * ctx.saved_tensors[0], None


class Product(torch.autograd.Function):
    r"""y = K r for points in units of the bandwidth, with its exact gradients.

    With g the gradient of y: r gets :math:`K^T g`; point i of the rows gets :math:`\sum_c g_{ic}
    \sum_j D_{ij} r_{jc} (z_j - z_i)`, products of the matrix D of the kernel's slope with columns,
    which is K where the kernel is the Gaussian; points of the columns get the same with
    :math:`D^T`. Equal points have no part in it, as if the Laplacian were flat at 0.
    """

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, r: Tensor, options: Any = None) -> Tensor:
        ctx.save_for_backward(x1, x2, r)
        ctx.function = kernel((options or {}).get("kernel", "gaussian"))
        return _times(x1, x2, r, **(options or {"method": "exact"}))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2, r = ctx.saved_tensors
        needs_x1, needs_x2, needs_r = ctx.needs_input_grad[:3]
        return (
            _pull(x1, x2, g, r, ctx.function) if needs_x1 else None,
            _pull(x2, x1, r, g, ctx.function) if needs_x2 else None,
            _times(x2, x1, g, method="exact", kernel=ctx.function) if needs_r else None,
            *(None for _ in ctx.needs_input_grad[3:]),
        )


def _pull(x1: Tensor, x2: Tensor, left: Tensor, right: Tensor, function: KernelFunction) -> Tensor:
    """Row i: the sum over j of (left right^T)_ij D_ij (x2_j - x1_i)."""
    slope = function.slope
    # The two terms cancel where points are near each other and far from the origin.
    centre = x2.mean(dim=0) if len(x2) else x2.new_zeros(x2.shape[-1])
    x1, x2 = x1 - centre, x2 - centre
    coordinates = torch.cat([x2, x2.new_ones(len(x2), 1)], dim=1)
    total = torch.zeros_like(x1)
    step = max(1, _COLUMNS // coordinates.shape[1])
    for first in range(0, right.shape[1], step):
        part = slice(first, first + step)
        weighted = (right[:, part, None] * coordinates[:, None]).flatten(1)
        sums = slope.factor * _times(
            x1, x2, weighted, method="exact", kernel=slope.function, bandwidth=slope.width
        ).reshape(len(x1), -1, coordinates.shape[1])
        total += torch.einsum("ic,icd->id", left[:, part], sums[..., :-1])
        total -= torch.einsum("ic,ic->i", left[:, part], sums[..., -1])[:, None] * x1
    return total


def _times(x1: Tensor, x2: Tensor, r: Tensor, **options: Any) -> Tensor:
    """K r with bandwidth 1 unless told, in the type of r."""
    y: Any = matvec(
        x1.detach().numpy(),
        x2.detach().numpy(),
        r.detach().numpy(),
        check_finite=False,
        **{"bandwidth": 1.0, **options},
    )
    return torch.from_numpy(np.ascontiguousarray(y)).to(r.dtype)
