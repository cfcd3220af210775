"""Models that compute attention in a module of their own: hooks before it see what it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from approxkmv.capture.records import Records


def _before_gpt1(module: Any, bound: dict[str, Any], records: Records) -> None:
    x = module.c_attn(bound["x"])
    query, key, value = (
        part.unflatten(-1, (module.n_head, -1)).transpose(1, 2)
        for part in x.split(module.split_size, dim=2)
    )
    scale = query.shape[-1] ** -0.5 if module.scale else 1.0
    records.add(query, key, value, scale=scale, is_causal=True)


def _before_mpnet(module: Any, bound: dict[str, Any], records: Records) -> None:
    query, key, value = (
        project(bound["hidden_states"])
        .unflatten(-1, (module.num_attention_heads, -1))
        .transpose(1, 2)
        for project in (module.q, module.k, module.v)
    )
    bias = bound.get("position_bias")
    records.add(
        query,
        key,
        value,
        scale=module.attention_head_size**-0.5,
        is_causal=False,
        bias=None if bias is None else bias[0],
    )


# By type of model: the class of its attention, and what to do before it.
_HOOKED: dict[str, tuple[str, Callable[[Any, dict[str, Any], Records], None]]] = {
    "openai-gpt": ("Attention", _before_gpt1),
    "mpnet": ("MPNetSelfAttention", _before_mpnet),
}


def is_hooked(model: Any) -> bool:
    """Whether the model is one of these."""
    return model.config.model_type in _HOOKED


@contextmanager
def recording_hooked(model: Any, records: Records) -> Iterator[None]:
    """Let hooks fill the records, and leave the model as it was."""
    class_name, before = _HOOKED[model.config.model_type]

    def hook(module: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        before(module, dict(bound.arguments), records)

    attentions = [part for part in model.modules() if type(part).__name__ == class_name]
    handles = [part.register_forward_pre_hook(hook, with_kwargs=True) for part in attentions]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
