"""Capture: run a model over a text and keep its heads."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.capture.chosen import chosen_attention, recording_chosen
from approxkmv.capture.head import Head, probabilities
from approxkmv.capture.hooked import is_hooked, recording_hooked
from approxkmv.capture.model import LoadedModel, packages
from approxkmv.capture.records import Records, heads_of


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
    torch, _ = packages()
    ids = _checked_ids(loaded, token_ids)
    wanted = _checked_layers(loaded, layers)
    if loaded.model.training:
        raise ValueError("the model must be in evaluation mode: call model.eval() first.")
    records = Records(wanted)
    with torch.no_grad(), _recording(loaded.model, records):
        loaded.model(**_inputs(loaded.model, ids))
    if records.n_seen != loaded.n_layers:
        raise ValueError(
            f"{loaded.name} ({loaded.model.config.model_type}) has {loaded.n_layers} layers, but "
            f"{records.n_seen} attentions were seen: its attention cannot be captured."
        )
    return heads_of(records)


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
    torch, _ = packages()
    ids = _checked_ids(loaded, token_ids)
    # Hooked models compute their attention in the open anyway.
    eager = nullcontext() if is_hooked(loaded.model) else chosen_attention(loaded.model, "eager")
    with torch.no_grad(), eager:
        own = loaded.model(**_inputs(loaded.model, ids), output_attentions=True).attentions
    return max(
        float(np.abs(own[head.layer][0, head.head].numpy() - probabilities(head)).max())
        for head in capture_heads(loaded, token_ids)
    )


def _recording(model: Any, records: Records) -> AbstractContextManager[None]:
    return (recording_hooked if is_hooked(model) else recording_chosen)(model, records)


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
