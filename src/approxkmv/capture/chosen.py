"""Models that let their attention function be chosen.

Most models of transformers ask a table for it. A function of ours in that table keeps what it is
given, after rotary embedding, bias and norm, and then does the attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from approxkmv.capture.records import Records

_NAME = "approxkmv_capture"
# Arguments of an attention function that do not change the attention, or only through the mask.
_HARMLESS = {
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}
# Set during a capture only; a context variable, so that other threads see nothing of it.
_RECORDS: ContextVar[Records | None] = ContextVar("approxkmv_records", default=None)


@contextmanager
def recording_chosen(model: Any, records: Records) -> Iterator[None]:
    """Let the attention function fill the records, and leave the model as it was."""
    _register()
    token = _RECORDS.set(records)
    try:
        with chosen_attention(model, _NAME):
            yield
    finally:
        _RECORDS.reset(token)


@contextmanager
def chosen_attention(model: Any, name: str) -> Iterator[None]:
    """Another attention function for a while, in models that let it be chosen."""
    before = model.config._attn_implementation
    if before == name:
        yield
        return
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(
            f"a model of type {model.config.model_type!r} does not let its attention be chosen: "
            "its heads cannot be captured."
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _register() -> None:
    """Put our attention into the table of transformers, with masks as for torch's own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Any = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attention in the form transformers asks for; keeps its arguments during a capture."""
    import torch

    _refuse_extras(module, dropout, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None:
        causal = _is_causal_mask(attention_mask)
    records = _RECORDS.get()
    if records is not None:
        bias = None if position_bias is None else position_bias[0]
        records.add(query, key, value, scale=scale, is_causal=bool(causal), bias=bias)
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=_with_causal(position_bias, causal),
        is_causal=bool(causal) and position_bias is None,
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


def _refuse_extras(module: Any, dropout: float, kwargs: dict[str, Any]) -> None:
    """An argument we do not know might change the attention: better none than a wrong one."""
    unknown = sorted(
        name for name, value in kwargs.items() if value is not None and name not in _HARMLESS
    )
    if unknown or dropout:
        raise ValueError(
            f"{type(module).__name__} uses {', '.join(unknown) or 'dropout'} in its attention: "
            "only softmax(scale · QKᵀ + bias)V can be captured."
        )


def _is_causal_mask(mask: Any) -> bool:
    """Whether a mask leaves out exactly the later tokens (True) or nothing (False)."""
    import torch

    seen = mask if mask.dtype == torch.bool else mask == 0
    if bool(seen.all()):
        return False
    if bool((seen == torch.ones_like(seen).tril()).all()):
        return True
    raise ValueError(
        "the model masks tokens otherwise than causally, such as by a window: not captured. "
        "A text no longer than the window can be."
    )


def _with_causal(bias: Any, causal: bool) -> Any:
    if bias is None or not causal:
        return bias
    return bias.masked_fill(bias.new_ones(bias.shape[-2:]).triu(1).bool(), float("-inf"))
