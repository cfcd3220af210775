"""Attention for Hugging Face transformers: one call registers it under a name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from approxkmv import _check
from approxkmv._extras import needs
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


# Smaller than for a single head: the errors of layers add up. `calibrate` measures what they do.
EPS = 0.03
_DEFAULTS = {"eps": EPS, "delta": 0.05, "method": "auto", "rng": 0, "n_threads": None}


def register(
    name: str | None = None,
    *,
    eps: float = EPS,
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
    name : str or None
        What to pass as ``attn_implementation``. None: ``"approxkmv"``, with the options that are
        not the defaults added, so that other options are another name. A name that is given and
        registered again with other options changes the models that have it already, with an
        ``AccuracyWarning``.
    eps, delta, method, n_threads
        See :func:`approxkmv.attention`. The default of ``eps`` is smaller than there: the error of
        a model is not that of a head. :func:`calibrate` finds it for a model of yours.
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
    >>> model.set_attn_implementation(huggingface.register())
    >>> huggingface.register(eps=0.05)
    'approxkmv-eps-0.05'
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError(
            needs("approxkmv.huggingface", "transformers 4.57 or later", "transformers")
        ) from error
    options = {"eps": eps, "delta": delta, "method": method, "rng": rng, "n_threads": n_threads}
    if name is None:
        others = [f"-{n}-{v}" for n, v in options.items() if v != _DEFAULTS[n]]
        name = "".join(["approxkmv", *others])

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


@dataclass(frozen=True)
class Calibration:
    """What the error of attention does to the perplexity of a model.

    Attributes
    ----------
    eps : float
        The largest of those tried that keeps the perplexity within the change asked for, with all
        smaller ones; 0 where none does.
    perplexity : float
        With exact attention, over all texts.
    changes : mapping
        For each ``eps`` that was tried, the relative change of the perplexity.
    """

    eps: float
    perplexity: float
    changes: Mapping[float, float]

    def register(self, **options: Any) -> str:
        """Register attention with this error; the name, as of :func:`register`."""
        return register(eps=self.eps, **options)


def calibrate(
    model: Any,
    texts: Iterable[Any],
    max_perplexity_change: float = 0.01,
    *,
    tolerances: Sequence[float] = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2),
) -> Calibration:
    """Find the error of attention with which a language model keeps its perplexity.

    The perplexity is measured with exact attention, then with each error in ascending order, until
    it changes by more than is asked for. Heads are sampled in long texts only, so take texts as
    long as those of your use. The model has its own attention again afterwards.

    Parameters
    ----------
    model : transformers causal language model
        Called with ``input_ids`` and ``labels``; its loss is the mean over all tokens but the
        first.
    texts : iterable of tensors, shape (batch, n_tokens)
        Token ids.
    max_perplexity_change : float
        Largest relative change, in either direction.
    tolerances : sequence of float
        Values of ``eps`` to try.

    Returns
    -------
    calibration : Calibration
        ``calibration.eps`` is the number to keep; ``calibration.register()`` uses it.

    Examples
    --------
    >>> import torch
    >>> from approxkmv import huggingface
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaConfig(
    ...     vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=64,
    ... )
    >>> found = huggingface.calibrate(LlamaForCausalLM(tiny), [torch.arange(50)[None]])
    >>> found.eps, found.register()  # so short a text is computed exactly with any eps
    (0.2, 'approxkmv-eps-0.2')
    """
    most = _check.number(max_perplexity_change, "max_perplexity_change")
    tried = sorted(_check.tolerance(eps, "tolerances") for eps in tolerances)
    tokens = list(texts)
    if not tokens:
        raise ValueError("texts must hold at least one tensor of token ids, but is empty.")
    before, is_training = model.config._attn_implementation, model.training
    model.eval()
    changes: dict[float, float] = {}
    best = 0.0
    try:
        exact = _perplexity(model, tokens, register(method="exact"))
        for eps in tried:
            changes[eps] = _perplexity(model, tokens, register(eps=eps)) / exact - 1
            if not abs(changes[eps]) <= most:
                break
            best = eps
    finally:
        model.set_attn_implementation(before)
        model.train(is_training)
    return Calibration(best, exact, changes)


def _perplexity(model: Any, texts: list[Any], implementation: str) -> float:
    import torch

    model.set_attn_implementation(implementation)
    loss, n_tokens = 0.0, 0
    with torch.no_grad():
        for ids in texts:
            n = ids.shape[0] * (ids.shape[1] - 1)
            loss += n * float(model(input_ids=ids, labels=ids, use_cache=False).loss)
            n_tokens += n
    return math.exp(loss / n_tokens)


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
