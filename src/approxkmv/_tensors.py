"""Tensors of PyTorch at the edge of functions that work on NumPy arrays; never imports PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def is_tensor(value: object) -> bool:
    """Whether this is a tensor. Nobody has one without having imported PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(value: Any, name: str) -> Any:
    """The array that shares a tensor's memory (bfloat16: a float32 copy); others as they are."""
    if not is_tensor(value):
        return value
    if value.device.type != "cpu":
        raise ValueError(f"{name} must be on the CPU, got device {value.device}.")
    torch = sys.modules["torch"]
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require a gradient, which would be lost here: pass {name}.detach(), "
            "or use approxkmv.torch.matvec for products with gradients, and for attention "
            "approxkmv.torch.scaled_dot_product_attention."
        )
    plain = value.float() if value.dtype == torch.bfloat16 else value
    return plain.numpy(force=True)  # also where a sign is still to be changed


def as_tensor(
    array: npt.NDArray[np.floating],
    inputs: tuple[Any, ...],
    computed: tuple[npt.NDArray[np.floating], ...],
) -> Any:
    """The array as a tensor of the common type of the inputs, which were computed as these arrays.

    Floating tensors count with their own type, all others with that in which they were computed.
    """
    torch = sys.modules["torch"]
    dtype = None
    for value, plain in zip(inputs, computed, strict=True):
        own = is_tensor(value) and value.dtype.is_floating_point
        kind = value.dtype if own else torch.from_numpy(np.empty(0, plain.dtype)).dtype
        dtype = kind if dtype is None else torch.promote_types(dtype, kind)
    return torch.from_numpy(array).to(dtype)
