"""PyTorch: products with gradients, and attention as an operator ``torch.compile`` understands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from approxkmv._extras import needs

try:
    import torch
except ImportError as error:
    raise ImportError(needs("approxkmv.torch", "PyTorch", "torch")) from error

from approxkmv._torch_product import Product
from approxkmv.attention import attention
from approxkmv.functions import KernelFunction

__all__ = ["matvec", "scaled_dot_product_attention"]

Tensor = torch.Tensor

# Heads in half precision are computed in float32, as many at a time as have this many entries of
# queries (8 MiB). 64 heads of 2,048 tokens and 128 dimensions, whose output has 32 MB, took 384 MB
# with all at once, 208 MB with pieces of 32 MiB.
_WIDE_ENTRIES = 2**21


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    rng: int = 0,
    n_threads: int | None = None,
) -> Tensor:
    r"""Drop-in for :func:`torch.nn.functional.scaled_dot_product_attention` with a stated error.

    Arguments up to ``enable_gqa`` are PyTorch's, the others those of :func:`approxkmv.attention`.
    Works on CPU tensors, under ``torch.compile(fullgraph=True)`` and ``torch.vmap``.

    Parameters
    ----------
    query, key, value : torch.Tensor
        Shapes (..., n_queries, d), (..., n_keys, d), (..., n_keys, n_columns).
    attn_mask : torch.Tensor, optional
        Truth values, True where a pair counts, or numbers added to the scores.
    dropout_p : float
        Must be 0.
    is_causal : bool
        Query i sees keys 0 to i. Not together with ``attn_mask``.
    scale : float, optional
        Default :math:`1/\sqrt d`.
    enable_gqa : bool
        Grouped queries.
    eps, delta, method, n_threads
        See :func:`approxkmv.attention`.
    rng : int
        A seed: the same call gives the same output.

    Returns
    -------
    torch.Tensor

    Notes
    -----
    The gradient is that of exact attention at the given inputs, whatever ``method`` was used
    forward; it is computed with PyTorch and holds the matrix of weights in memory. Unlike
    PyTorch's, this function refuses NaN and infinity, except -infinity in a mask.

    Examples
    --------
    >>> import torch
    >>> from approxkmv.torch import scaled_dot_product_attention
    >>> query = key = value = torch.eye(2)
    >>> scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
    tensor([[1.0000, 0.0000],
            [0.2689, 0.7311]])
    """
    if dropout_p != 0:
        raise ValueError(f"dropout_p must be 0: dropout is not supported, got {dropout_p}.")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask must be None where is_causal=True, as in PyTorch.")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}.")
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    return torch.ops.approxkmv.attention(  # type: ignore[no-any-return]
        query,
        key,
        value,
        attn_mask,
        is_causal,
        scale,
        enable_gqa,
        eps,
        delta,
        method,
        rng,
        n_threads,
    )


@torch.library.custom_op(
    "approxkmv::attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, "
    "float scale, bool enable_gqa, float eps, float delta, str method, int rng, "
    "int? n_threads) -> Tensor",
)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    eps: float,
    delta: float,
    method: str,
    rng: int,
    n_threads: int | None,
) -> Tensor:
    options: dict[str, Any] = {
        "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "eps": eps,
        "delta": delta, "method": method, "rng": rng, "n_threads": n_threads,
    }  # fmt: skip
    with torch.no_grad():
        if _is_half_by_heads(query, key, value, attn_mask):
            return _in_pieces(query, key, value, options)
        output: Tensor = attention(query, key, value, attn_mask=attn_mask, **options)
    return output


def _is_half_by_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether these are texts of heads in half precision, which are best taken a few at a time."""
    points = query, key, value
    by_heads = all(p.dim() == 4 and p.shape[0] == query.shape[0] for p in points)
    half = all(p.dtype in (torch.float16, torch.bfloat16) for p in points)
    groups = key.shape[1] == value.shape[1] if by_heads else False
    return half and by_heads and groups and mask is None and query.numel() > _WIDE_ENTRIES


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """Some groups of heads at a time, each copied to float32 and its output back."""
    lead = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        query.shape[:2], _heads_of(query, key, options["enable_gqa"])
    )
    dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    output = query.new_empty((*lead, query.shape[2], value.shape[3]), dtype=dtype)
    options = options | {
        "rng": np.random.default_rng(options["rng"])
    }  # goes on from piece to piece
    for text in range(lead[0]):
        for heads, groups in _pieces(query, key):
            parts = query[text, heads], key[text, groups], value[text, groups]
            output[text, heads] = attention(*(part.float() for part in parts), **options)
    return output


def _pieces(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Heads of a text and the groups of keys that they use."""
    n_groups = key.shape[1]
    shared = query.shape[1] // n_groups
    per_group = shared * query.shape[2] * query.shape[3]
    step = max(1, _WIDE_ENTRIES // max(per_group, 1))
    for first in range(0, n_groups, step):
        last = min(first + step, n_groups)
        yield slice(first * shared, last * shared), slice(first, last)


@_attention.register_fake
def _fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    *options: object,
) -> Tensor:
    """The shape and type of the output."""
    leads = [
        query.shape[:-2],
        _heads_of(query, key, enable_gqa),
        _heads_of(query, value, enable_gqa),
    ]
    if attn_mask is not None:
        leads.append(attn_mask.shape[:-2])
    dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    lead = torch.broadcast_shapes(*leads)  # type: ignore[no-untyped-call]
    shape = (*lead, query.shape[-2], value.shape[-1])
    return query.new_empty(shape, dtype=dtype)


def _heads_of(query: Tensor, points: Tensor, enable_gqa: bool) -> Sequence[int]:
    """Leading dimensions of keys or values once every head of the queries has its own."""
    lead = points.shape[:-2]
    return (*lead[:-1], query.shape[-3]) if enable_gqa else lead


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, attn_mask, ctx.is_causal, ctx.scale, ctx.enable_gqa, *_ = inputs
    ctx.save_for_backward(query, key, value, attn_mask)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of exact attention: P is the softmax matrix, S the scores.

    dV = P' dO,  dP = dO V',  dS = P * (dP - rowsum(dP * P)),  dQ = s dS K,  dK = s dS' Q.
    """
    query, key, value, attn_mask = ctx.saved_tensors
    wide = torch.promote_types(grad.dtype, torch.float32)
    q, k, v, grad = (tensor.to(wide) for tensor in (query, key, value, grad))
    if ctx.enable_gqa:
        k = k.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        v = v.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
    weights = _weights(q, k, attn_mask, ctx.is_causal, ctx.scale)
    to_weights = grad @ v.mT
    to_scores = weights * (to_weights - (to_weights * weights).sum(dim=-1, keepdim=True))
    grads: list[Tensor | None] = [
        (ctx.scale * (to_scores @ k)).sum_to_size(query.shape).to(query.dtype),
        _summed(ctx.scale * (to_scores.mT @ q), key, ctx.enable_gqa),
        _summed(weights.mT @ grad, value, ctx.enable_gqa),
        None,
    ]
    if attn_mask is not None and ctx.needs_input_grad[3]:
        grads[3] = to_scores.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
    return (*grads, *[None] * 8)


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """The softmax matrix; rows that see no key are 0."""
    scores = scale * (query @ key.mT)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        never = torch.tensor(-math.inf, dtype=scores.dtype, device=scores.device)
        scores = torch.where(mask, scores, never) if mask.dtype == torch.bool else scores + mask
    unseen = torch.isneginf(scores).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(unseen, 0.0), dim=-1).masked_fill(unseen, 0.0)


def _summed(grad: Tensor, points: Tensor, enable_gqa: bool) -> Tensor:
    """Add up the gradients of heads that share keys or values."""
    if enable_gqa:
        n_groups = points.shape[-3]
        shape = (*grad.shape[:-3], n_groups, grad.shape[-3] // n_groups, *grad.shape[-2:])
        grad = grad.reshape(shape).sum(dim=-3)
    return grad.sum_to_size(points.shape).to(points.dtype)


_attention.register_autograd(_backward, setup_context=_save)


@_attention.register_vmap
def _vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    """One more leading dimension; the others are lined up behind it."""
    points, dims = args[:4], in_dims[:4]
    ranks = [p.dim() - (d is not None) for p, d in zip(points, dims, strict=True) if p is not None]
    moved = []
    for tensor, dim in zip(points, dims, strict=True):
        if tensor is None or dim is None:
            moved.append(tensor)
            continue
        front = tensor.movedim(dim, 0)
        missing = max(ranks) - (front.dim() - 1)
        moved.append(front.reshape(front.shape[0], *[1] * missing, *front.shape[1:]))
    return torch.ops.approxkmv.attention(*moved, *args[4:]), 0


def matvec(
    queries: Tensor,
    keys: Tensor | None,
    x: Tensor,
    *,
    bandwidth: float | Tensor,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    kernel: str | KernelFunction = "gaussian",
    rng: int | None = None,
    n_threads: int | None = None,
) -> Tensor:
    r""":func:`approxkmv.matvec` of tensors, with gradients for the points, x and the bandwidth.

    The result has an error of at most ``eps`` times the length of x, as there; gradients are exact
    products of the same matrix whatever ``eps`` is. They cannot be differentiated again.

    Parameters
    ----------
    queries, keys : torch.Tensor, shapes (n_queries, n_dims), (n_keys, n_dims)
        On the CPU; ``keys=None`` means the queries.
    x : torch.Tensor, shape (n_keys,) or (n_keys, n_columns)
    bandwidth : float or torch.Tensor, shape () or (n_dims,)
        :math:`\sigma`, one for all coordinates or one for each.
    eps, delta, method, kernel, rng, n_threads
        See :func:`approxkmv.matvec`.

    Examples
    --------
    >>> import torch
    >>> from approxkmv.torch import matvec
    >>> points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    >>> bandwidth = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    >>> y = matvec(points, None, torch.ones(200, dtype=torch.float64), bandwidth=bandwidth)
    >>> y.sum().backward()
    >>> bool(bandwidth.grad > 0)  # a wider kernel adds up to more
    True
    """
    keys = queries if keys is None else keys
    for name, tensor in (("queries", queries), ("keys", keys), ("x", x)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}.")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} must be on the CPU, got a tensor on {tensor.device}.")
    for name, tensor in (("queries", queries), ("keys", keys)):
        if tensor.dim() != 2 or tensor.shape[1] != queries.shape[1]:
            raise ValueError(
                f"{name} must have shape (n, {queries.shape[-1]}), got {tuple(tensor.shape)}."
            )
    if x.dim() not in (1, 2) or len(x) != len(keys):
        raise ValueError(f"x must have {len(keys)} rows, one per key, got {tuple(x.shape)}.")
    common = torch.promote_types(queries.dtype, keys.dtype)
    width = torch.as_tensor(bandwidth, dtype=common)
    if width.dim() > 1 or (width.dim() == 1 and len(width) != queries.shape[1]):
        raise ValueError(
            f"bandwidth must be a number or have shape ({queries.shape[1]},), "
            f"got {tuple(width.shape)}."
        )
    if not bool(((width > 0) & torch.isfinite(width)).all()):
        raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}.")
    # Around the mean, so that points far from the origin keep their digits.
    centre = keys.detach().mean(dim=0) if len(keys) else 0.0
    z_keys = (keys - centre) / width
    z_queries = z_keys if queries is keys else (queries - centre) / width
    columns = x[:, None] if x.dim() == 1 else x
    options = {
        "eps": eps, "delta": delta, "method": method, "rng": rng, "n_threads": n_threads,
        "kernel": kernel,
    }  # fmt: skip
    y: Tensor = Product.apply(z_queries, z_keys, columns, options)  # type: ignore[no-untyped-call]
    return y[:, 0] if x.dim() == 1 else y
