"""Queries, keys and values of every attention head of a language model, as the model uses them.

Most models of transformers ask a table for their attention function. A function of ours in that
table keeps what it is given, after rotary embedding, bias and norm, and then does the attention.
GPT-1 and MPNet do not ask; hooks before their attention modules do the same for them.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

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


@dataclass(frozen=True)
class LoadedModel:
    """A language model ready for capture.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, in float32.
    tokenizer : transformers.PreTrainedTokenizerBase or None
    name : str
        What it was loaded from.
    """

    model: Any
    tokenizer: Any
    name: str

    @property
    def n_layers(self) -> int:
        """Layers of attention."""
        return int(self.model.config.num_hidden_layers)

    @property
    def n_heads(self) -> int:
        """Heads of attention in a layer."""
        return int(self.model.config.num_attention_heads)

    @property
    def max_tokens(self) -> int:
        """Tokens the model has positions for."""
        n_positions = int(self.model.config.max_position_embeddings)
        # RoBERTa and MPNet number positions from behind the padding token's.
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None):
                return n_positions - int(module.padding_idx) - 1
        return n_positions

    def token_ids(self, text: str, n_max: int | None = None) -> npt.NDArray[np.int64]:
        """Token numbers of a text, with the tokenizer's special tokens, cut to ``n_max``.

        Without ``n_max`` the text is cut to what the model has positions for.
        """
        if self.tokenizer is None:
            raise ValueError(f"{self.name} was loaded without a tokenizer: pass token numbers.")
        limit = self.max_tokens if n_max is None else min(n_max, self.max_tokens)
        ids = self.tokenizer(text, truncation=True, max_length=limit)["input_ids"]
        return np.asarray(ids, dtype=np.int64)


@dataclass(frozen=True)
class Head:
    """One attention head on one text: softmax(scale · query keyᵀ + bias) value.

    Attributes
    ----------
    layer, head : int
        Counted from 0.
    query, key, value : ndarray of shape (n_tokens, n_dims), float32
        After rotary embedding, biases and norms. Heads that share keys share their memory.
    scale : float
        What scores are multiplied with.
    is_causal : bool
        Whether a token sees only itself and earlier ones.
    bias : ndarray of shape (n_tokens, n_tokens) or None
        Added to the scaled scores: MPNet's bias by relative position. No Gaussian kernel has it;
        the constant c of K is that of the scores without it.
    """

    layer: int
    head: int
    query: Float32
    key: Float32
    value: Float32
    scale: float
    is_causal: bool
    bias: Float32 | None = None


def load_model(name_or_directory: str | os.PathLike[str]) -> LoadedModel:
    """Load a model and its tokenizer through transformers, in float32 on the processor.

    Parameters
    ----------
    name_or_directory : str or path
        A folder with ``config.json`` and weights, a ``.gguf`` file, or a name on the Hugging Face
        hub.

    Returns
    -------
    LoadedModel

    Raises
    ------
    ImportError
        The extra ``transformers`` is not installed.
    ValueError
        Nothing can be loaded from there.

    Examples
    --------
    >>> from approxkmv.capture import load_model
    >>> load_model("bert-base-uncased").n_layers  # doctest: +SKIP
    12
    """
    torch, transformers = _packages()
    path = Path(name_or_directory)
    source, options = str(name_or_directory), {}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"name_or_directory must exist, got {source!r}.")
        source, options = str(path.parent), {"gguf_file": path.name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"name_or_directory must be a folder, a .gguf file or a name on the Hugging Face hub; "
            f"{str(name_or_directory)!r} could not be loaded: {error}"
        ) from error
    return LoadedModel(model.eval(), tokenizer, str(name_or_directory))


def capture_heads(
    loaded: LoadedModel,
    token_ids: npt.ArrayLike,
    *,
    layers: Collection[int] | None = None,
) -> Iterator[Head]:
    """Run a model over one text and yield every attention head, layer by layer.

    Parameters
    ----------
    loaded : LoadedModel
    token_ids : array_like of int, shape (n_tokens,)
        As from :meth:`LoadedModel.token_ids`.
    layers : collection of int, optional
        Layers to keep; all by default.

    Yields
    ------
    Head

    Raises
    ------
    ValueError
        The model's attention is not softmax(scale · QKᵀ + bias)V of one text: encoder and decoder,
        a window or other mask, capped scores, sinks.

    Examples
    --------
    >>> from approxkmv.capture import capture_heads, load_model
    >>> model = load_model("bert-base-uncased")  # doctest: +SKIP
    >>> ids = model.token_ids("A text.")  # doctest: +SKIP
    >>> sum(1 for head in capture_heads(model, ids))  # doctest: +SKIP
    144
    """
    torch, _ = _packages()
    ids = _checked_ids(loaded, token_ids)
    wanted = _checked_layers(loaded, layers)
    if loaded.model.training:
        raise ValueError("the model must be in evaluation mode: call model.eval() first.")
    records = _Records(wanted)
    with torch.no_grad(), _recording(loaded.model, records):
        loaded.model(**_inputs(loaded.model, ids))
    if records.n_seen != loaded.n_layers:
        raise ValueError(
            f"{loaded.name} ({loaded.model.config.model_type}) has {loaded.n_layers} layers, but "
            f"{records.n_seen} attentions were seen: its attention cannot be captured."
        )
    return _heads(records)


def attention_difference(loaded: LoadedModel, token_ids: npt.ArrayLike) -> float:
    """Largest difference of the model's own attention from that of the captured heads.

    The check of a capture: probabilities as the model returns them (``output_attentions``) against
    softmax(scale · QKᵀ + bias). Memory n_layers x n_heads x n_tokens².

    Examples
    --------
    >>> from approxkmv.capture import attention_difference, load_model
    >>> model = load_model("bert-base-uncased")  # doctest: +SKIP
    >>> attention_difference(model, model.token_ids("A text.")) < 1e-5  # doctest: +SKIP
    True
    """
    torch, _ = _packages()
    ids = _checked_ids(loaded, token_ids)
    with torch.no_grad(), _attention(loaded.model, "eager"):
        own = loaded.model(**_inputs(loaded.model, ids), output_attentions=True).attentions
    return max(
        float(np.abs(own[head.layer][0, head.head].numpy() - probabilities(head)).max())
        for head in capture_heads(loaded, token_ids)
    )


def probabilities(head: Head) -> npt.NDArray[np.float64]:
    """Attention matrix of a head, in double precision. Memory n_tokens².

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.capture import Head, probabilities
    >>> zeros = np.zeros((2, 1), np.float32)
    >>> probabilities(Head(0, 0, zeros, zeros, zeros, scale=1.0, is_causal=True))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    scores = head.scale * (head.query.astype(np.float64) @ head.key.T.astype(np.float64))
    if head.bias is not None:
        scores += head.bias
    if head.is_causal:
        scores[np.triu_indices_from(scores, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class _Layer:
    """What one attention was given: tensors (n_heads, n_tokens, n_dims)."""

    index: int
    query: Any
    key: Any
    value: Any
    scale: float
    is_causal: bool
    bias: Any = None


class _Records:
    """The layers kept of those seen, in the order of the forward pass."""

    def __init__(self, wanted: Collection[int]) -> None:
        self._wanted = wanted
        self.kept: list[_Layer] = []
        self.n_seen = 0

    def add(self, query: Any, key: Any, value: Any, **how: Any) -> None:
        """Keep one attention of a batch of one text, if its layer is wanted."""
        if self.n_seen in self._wanted:
            self.kept.append(_Layer(self.n_seen, query[0], key[0], value[0], **how))
        self.n_seen += 1


# Set during a capture only; a context variable, so that other threads see nothing of it.
_RECORDS: ContextVar[_Records | None] = ContextVar("approxkmv_records", default=None)


def _heads(records: _Records) -> Iterator[Head]:
    while records.kept:
        layer = records.kept.pop(0)
        query, key, value = (_array(part) for part in (layer.query, layer.key, layer.value))
        bias = None if layer.bias is None else _array(layer.bias)
        group = len(query) // len(key)
        for h in range(len(query)):
            yield Head(
                layer.index,
                h,
                query[h],
                key[h // group],
                value[h // group],
                layer.scale,
                layer.is_causal,
                None if bias is None else bias[h % len(bias)],
            )


def _array(tensor: Any) -> Float32:
    return np.asarray(tensor.detach().cpu().float().contiguous().numpy())


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


def _before_gpt1(module: Any, bound: dict[str, Any], records: _Records) -> None:
    x = module.c_attn(bound["x"])
    query, key, value = (
        part.unflatten(-1, (module.n_head, -1)).transpose(1, 2)
        for part in x.split(module.split_size, dim=2)
    )
    scale = query.shape[-1] ** -0.5 if module.scale else 1.0
    records.add(query, key, value, scale=scale, is_causal=True)


def _before_mpnet(module: Any, bound: dict[str, Any], records: _Records) -> None:
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


# Models that compute attention in a module of their own: its class, and what to do before it.
_HOOKED: dict[str, tuple[str, Callable[[Any, dict[str, Any], _Records], None]]] = {
    "openai-gpt": ("Attention", _before_gpt1),
    "mpnet": ("MPNetSelfAttention", _before_mpnet),
}


@contextmanager
def _recording(model: Any, records: _Records) -> Iterator[None]:
    """Let a model's attention fill the records, and leave the model as it was."""
    if model.config.model_type in _HOOKED:
        with _hooks(model, *_HOOKED[model.config.model_type], records):
            yield
        return
    _register()
    token = _RECORDS.set(records)
    try:
        with _attention(model, _NAME):
            yield
    finally:
        _RECORDS.reset(token)


@contextmanager
def _hooks(
    model: Any,
    class_name: str,
    before: Callable[[Any, dict[str, Any], _Records], None],
    records: _Records,
) -> Iterator[None]:
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


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    """Another attention function for a while, in models that let it be chosen."""
    before = model.config._attn_implementation
    if model.config.model_type in _HOOKED or before == name:
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


def _inputs(model: Any, ids: npt.NDArray[np.int64]) -> dict[str, Any]:
    import torch

    inputs: dict[str, Any] = {"input_ids": torch.from_numpy(ids)[None].to(model.device)}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return inputs


def _checked_ids(loaded: LoadedModel, token_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    if getattr(loaded.model.config, "is_encoder_decoder", False):
        raise ValueError(f"{loaded.name} has an encoder and a decoder: its heads are not captured.")
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size == 0:
        raise ValueError(
            f"token_ids must be whole numbers of shape (n_tokens,), n_tokens > 0, "
            f"got shape {ids.shape} of {ids.dtype}."
        )
    if len(ids) > loaded.max_tokens:
        raise ValueError(
            f"token_ids must have at most {loaded.max_tokens} entries for {loaded.name}, "
            f"got {len(ids)}."
        )
    n_known = int(loaded.model.get_input_embeddings().num_embeddings)
    if ids.min() < 0 or ids.max() >= n_known:
        raise ValueError(
            f"token_ids must lie between 0 and {n_known - 1}, got {ids.min()} to {ids.max()}."
        )
    return ids.astype(np.int64)


def _checked_layers(loaded: LoadedModel, layers: Collection[int] | None) -> set[int]:
    known = range(loaded.n_layers)
    wanted = set(known) if layers is None else set(layers)
    if not wanted <= set(known):
        raise ValueError(
            f"layers must lie between 0 and {loaded.n_layers - 1}, got {sorted(wanted)}."
        )
    return wanted


def _packages() -> tuple[Any, Any]:
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "capturing a model needs transformers. "
            'Install it with: pip install "approxkmv[transformers]"'
        ) from error
