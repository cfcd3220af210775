"""Our attention as transformers calls it, and the names it has there."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv._extras import needs
from approxkmv._warnings import AccuracyWarning
from approxkmv.info import HeadInfo

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
    eps: float | Sequence[Sequence[float]] = EPS,
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
    eps : float or sequence of sequences of float
        See :func:`approxkmv.attention`; or a number for each head in each layer. The default is
        smaller than there: the error of a model is not that of a head. :func:`calibrate` finds it
        for a model of yours.
    delta, method, n_threads
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
    >>> model.set_attn_implementation(huggingface.register())
    >>> huggingface.register(eps=0.05)
    'approxkmv-eps-0.05'
    """
    attentions = _interface()
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    each = eps if isinstance(eps, (int, float)) else errors_of_heads(eps)
    options = {"eps": each, "delta": delta, "method": method, "rng": rng, "n_threads": n_threads}
    if name is None:
        others = [f"-{n}-{_short(v)}" for n, v in options.items() if v != _DEFAULTS[n]]
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
    attentions.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _interface() -> Any:
    """The table of attention functions."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise ImportError(
            needs("approxkmv.huggingface", "transformers 4.57 or later", "transformers")
        ) from error
    return AttentionInterface


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    changed = [n for n in now if before[n] != now[n]]
    return ", ".join(f"{n} {_short(before[n])} and now {_short(now[n])}" for n in changed)


def _short(value: Any) -> str:
    """An option as a part of a name; errors of heads as a checksum."""
    if isinstance(value, tuple):
        return f"by-head-{zlib.crc32(repr(value).encode()):08x}"
    return str(value)


def errors_of_heads(eps: Any) -> tuple[tuple[float, ...], ...]:
    """Checked: a number for each head in each layer."""
    layers = tuple(tuple(_check.tolerance(each) for each in layer) for layer in eps)
    if len({len(layer) for layer in layers}) != 1:
        raise ValueError("eps must have the same number of heads in every layer, and a layer.")
    return layers


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

    given = _given(module, query, key, attention_mask, is_causal, sliding_window, others)
    given |= {"scale": scaling, "dropout_p": dropout, **options}
    if isinstance(given.get("eps"), tuple):
        eps = _errors_in_layer(given.pop("eps"), module, query.shape[1])
        output = _head_by_head(query, key, value, attention_mask, eps, given)
    else:
        output = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, **given)
    return output.transpose(1, 2).contiguous(), None


def _given(
    module: Any,
    query: Any,
    key: Any,
    attention_mask: Any,
    is_causal: bool | None,
    sliding_window: int | None,
    others: dict[str, Any],
) -> dict[str, Any]:
    """Arguments of our attention, after a look at those that it does not have."""
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
    causal = query.shape[-2] > 1 and attention_mask is None and bool(is_causal)
    return {"is_causal": causal, "enable_gqa": key.shape[1] != query.shape[1]}


def _errors_in_layer(eps: Any, module: Any, n_heads: int) -> tuple[float, ...]:
    layer = getattr(module, "layer_idx", None)
    if layer is None or layer >= len(eps) or len(eps[layer]) != n_heads:
        raise ValueError(
            f"eps has {len(eps)} layers of {len(eps[0])} heads, which do not fit layer {layer} of "
            f"{n_heads} heads in {type(module).__name__}."
        )
    return tuple(eps[layer])


def _head_by_head(
    query: Any, key: Any, value: Any, mask: Any, eps: tuple[float, ...], given: dict[str, Any]
) -> Any:
    """Heads with the same error together."""
    from approxkmv.torch import scaled_dot_product_attention as attend

    if len(set(eps)) == 1:
        return attend(query, key, value, attn_mask=mask, eps=eps[0], **given)
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    for each in sorted(set(eps)):
        heads = [head for head, own in enumerate(eps) if own == each]
        shared = [head * key.shape[1] // query.shape[1] for head in heads]
        own_mask = mask if mask is None or mask.shape[1] == 1 else mask[:, heads]
        points = query[:, heads], key[:, shared], value[:, shared]
        own = given | {"attn_mask": own_mask, "eps": each, "enable_gqa": False}
        output[:, heads] = attend(*points, **own)
    return output


class HeadRecords:
    """What heads took and how far they were off, added up over calls."""

    def __init__(self) -> None:
        self._layers: dict[int, list[list[tuple[float, float]]]] = {}

    def add(self, layer: int, heads: Sequence[HeadInfo], n_heads: int) -> None:
        """The heads of a call, text after text."""
        for first in range(0, len(heads), n_heads):
            text = heads[first : first + n_heads]
            found = [(sum(head.seconds.values()), _square(head)) for head in text]
            self._layers.setdefault(layer, []).append(found)

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """(layers, heads): mean over texts."""
        return self._mean[..., 0]

    @property
    def squares(self) -> npt.NDArray[np.float64]:
        """(layers, heads): mean over texts of the squared error, relative to the values."""
        return self._mean[..., 1]

    @property
    def _mean(self) -> npt.NDArray[np.float64]:
        return np.array([np.mean(texts, axis=0) for _, texts in sorted(self._layers.items())])


def _square(head: HeadInfo) -> float:
    """Squared relative error; what rounding does counts as nothing."""
    return (head.error_estimate or 0.0) ** 2 if head.method == "sampled" else 0.0


def register_recorder(records: HeadRecords, **options: Any) -> str:
    """Attention that tells what each head took and missed by."""
    from approxkmv.attention import attention

    name = register("approxkmv-recorder", method="exact")  # for the masks
    options = {"rng": 0, **options}

    def forward(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[Any, None]:
        given = _given(module, query, key, attention_mask, is_causal, sliding_window, others)
        output, info = attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, return_info=True,
            **given, **options,
        )  # fmt: skip
        records.add(getattr(module, "layer_idx", 0), info.heads, query.shape[1])
        return output.transpose(1, 2).contiguous(), None

    _interface().register(name, forward)
    return name
