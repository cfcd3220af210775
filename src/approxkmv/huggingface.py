"""Attention for Hugging Face transformers: one call registers it under a name."""

from __future__ import annotations

import warnings
from typing import Any

from approxkmv._warnings import AccuracyWarning

# Options by name, in this process, as transformers keeps the functions.
_REGISTERED: dict[str, dict[str, Any]] = {}
# Arguments that models hand on and that do not change what attention computes.
_HARMLESS = {
    "cache_position",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "use_cache",
}


def register(
    name: str = "approxkmv",
    *,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    rng: int = 0,
    n_threads: int | None = None,
) -> str:
    """Make this package's attention available to transformers models under a name.

    Attention and mask functions are registered together: with the first alone, transformers hands
    no padding mask to the model and gives wrong numbers without a word.

    Parameters
    ----------
    name : str
        What to pass as ``attn_implementation``. Registered again with other options it changes the
        models that have it already, with an ``AccuracyWarning``: give another name to each.
    eps, delta, method, n_threads
        See :func:`approxkmv.attention`.
    rng : int
        A seed.

    Returns
    -------
    name : str

    Notes
    -----
    Padded batches and caches come with a mask and are computed exactly. Arguments that would change
    the answer and are not supported raise ValueError: dropout, a sliding window shorter than the
    text, soft caps, attention sinks, position biases, packed sequences, weights as output.

    Examples
    --------
    >>> from approxkmv import huggingface
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(
    ...     vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=64,
    ... )
    >>> model = BertModel(tiny).eval()
    >>> model.set_attn_implementation(huggingface.register(eps=0.05))
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError(
            "approxkmv.huggingface needs transformers 4.57 or later. "
            'Install it with: pip install "approxkmv[transformers]"'
        ) from error
    options = {"eps": eps, "delta": delta, "method": method, "rng": rng, "n_threads": n_threads}

    def forward(module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any) -> Any:
        return attention_forward(module, query, key, value, mask, options=options, **given)

    before = _REGISTERED.get(name)
    if before is not None and before != options:
        warnings.warn(
            f"{name!r} was registered with other options, {_changed(before, options)}: every model "
            "with this attention changes. Another name keeps both.",
            AccuracyWarning,
            stacklevel=2,
        )
    _REGISTERED[name] = options
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(f"{n} {before[n]} and now {now[n]}" for n in now if before[n] != now[n])


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    options: dict[str, Any],
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Attention as transformers calls it: (batch, heads, n, d) in, (batch, n, heads, d) out.

    Without a mask the text is full: then it is causal if the layer is, except for a single query,
    which sees all keys.
    """
    from approxkmv.torch import scaled_dot_product_attention

    refused = [
        n for n, v in others.items() if n not in _HARMLESS and v is not None and v is not False
    ]
    if refused:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(sorted(refused))} to attention, "
            "which approxkmv does not support."
        )
    if sliding_window is not None and key.shape[-2] > sliding_window:
        raise ValueError(
            f"{type(module).__name__} uses a sliding window of {sliding_window}, shorter than the "
            f"{key.shape[-2]} keys, which approxkmv does not support."
        )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=query.shape[-2] > 1 and attention_mask is None and bool(is_causal),
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        **options,
    )
    return output.transpose(1, 2).contiguous(), None
