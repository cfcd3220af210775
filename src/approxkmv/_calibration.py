"""The errors of attention with which a language model keeps its perplexity."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv._transformers import HeadRecords, errors_of_heads, register, register_recorder


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
    by_head : tuple of tuples of float, or None
        The error of each head in each layer, where it was shared out.
    by_head_change : float or None
        The relative change of the perplexity with these.
    """

    eps: float
    perplexity: float
    changes: Mapping[float, float]
    by_head: tuple[tuple[float, ...], ...] | None = None
    by_head_change: float | None = None

    def register(self, **options: Any) -> str:
        """Register attention with this error; the name, as of :func:`register`."""
        return register(eps=self.eps if self.by_head is None else self.by_head, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of JSON that :meth:`load` reads."""
        changes = list(self.changes.items())
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**vars(self), "changes": changes}, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """What :meth:`save` wrote."""
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            changes = {float(eps): float(change) for eps, change in found["changes"]}
            by_head = found["by_head"]
            if by_head is not None:
                by_head = errors_of_heads(by_head)
            eps = _check.tolerance(found["eps"])
            return cls(eps, float(found["perplexity"]), changes, by_head, found["by_head_change"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)!s}: not a saved calibration: {error}") from error


def calibrate(
    model: Any,
    texts: Iterable[Any],
    max_perplexity_change: float = 0.01,
    *,
    tolerances: Sequence[float] = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2),
    by_head: bool = True,
) -> Calibration:
    """Find the error of attention with which a language model keeps its perplexity.

    The perplexity is measured with exact attention, then with each error in ascending order, until
    it changes by more than ``max_perplexity_change``. Heads are sampled in long texts only, so take
    texts as long as those of your use. The model has its own attention again afterwards.

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
    by_head : bool
        Choose one of them, or exact, for each head: the least time for the change allowed, from the
        seconds that each head took and from how much the predictions depend on it. One gradient for
        each text says that; it takes memory as training does, on the first 1,024 tokens. Other
        programs should not disturb the times.

    Returns
    -------
    calibration : Calibration
        ``calibration.save(path)`` keeps it; ``calibration.register()`` uses it.

    Examples
    --------
    >>> import torch
    >>> from approxkmv import huggingface
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaConfig(
    ...     vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=64,
    ... )
    >>> model, text = LlamaForCausalLM(tiny), torch.arange(50)[None]
    >>> found = huggingface.calibrate(model, [text], by_head=False)
    >>> found.eps, found.register()  # so short a text is computed exactly with any eps
    (0.2, 'approxkmv-eps-0.2')
    """
    most = _check.number(max_perplexity_change, "max_perplexity_change")
    tried = sorted(_check.tolerance(eps, "tolerances") for eps in tolerances)
    by_head = _check.truth(by_head, "by_head")
    tokens = list(texts)
    if not tokens:
        raise ValueError("texts must hold at least one tensor of token ids, but is empty.")
    before, is_training = model.config._attn_implementation, model.training
    model.eval()
    try:
        runs = _Runs(model, tokens, by_head)
        for eps in tried:
            runs.uniform(eps)
            if not abs(runs.changes[eps]) <= most:
                break
        best = max((e for e, change in runs.changes.items() if abs(change) <= most), default=0.0)
        shared = runs.shared_out(most) if by_head else None
    finally:
        model.set_attn_implementation(before)
        model.train(is_training)
    return Calibration(best, runs.exact, runs.changes, *(shared or ()))


class _Runs:
    """Runs of a model over all texts: perplexity, and what every head took and missed by."""

    def __init__(self, model: Any, texts: list[Any], recorded: bool) -> None:
        self.model, self.texts, self.recorded = model, texts, recorded
        self.heads: dict[float, HeadRecords] = {}
        self.changes: dict[float, float] = {}
        self.exact = self.perplexity(0.0)

    def perplexity(self, eps: float) -> float:
        """With one error for all heads, which are recorded if that was asked for."""
        options: dict[str, Any] = {"eps": eps} if eps else {"method": "exact"}
        if self.recorded:
            self.heads[eps] = HeadRecords()
            name = register_recorder(self.heads[eps], **options)
        else:
            name = register(**options)
        return _perplexity(self.model, self.texts, name)

    def uniform(self, eps: float) -> None:
        """One error for all heads."""
        self.changes[eps] = self.perplexity(eps) / self.exact - 1

    def shared_out(self, most: float) -> tuple[tuple[tuple[float, ...], ...], float] | None:
        """An error for each head, and the change it makes; None where none will do."""
        from approxkmv._sensitivity import least_time, sensitivity

        found = [sensitivity(self.model, ids[:1, :_GRADIENT_TOKENS]).of_heads for ids in self.texts]
        matters = sum(found) / len(found)
        tried = [0.0, *self.changes]
        seconds = np.array([self.heads[eps].seconds for eps in tried])
        added = np.array([matters * self.heads[eps].squares for eps in tried])
        # Errors lie where they hurt more than if they were spread evenly. The runs say how much.
        changed = sum(math.log1p(change) for change in self.changes.values())
        added *= max(1.0, changed / max(added.sum(), 1e-300))
        for share in _SHARES:
            choice = least_time(seconds, added, share * math.log1p(most))
            by_head = errors_of_heads(np.array(tried)[choice].tolist())
            name = register(eps=by_head)
            change = _perplexity(self.model, self.texts, name) / self.exact - 1
            if abs(change) <= most:
                return by_head, change
        return None


# A gradient takes memory for every token. The logarithms of what it says of 270 heads from 1,024
# tokens have a correlation of 0.99 with those from 2,048 others.
_GRADIENT_TOKENS = 1024
# Of the change allowed, what is aimed at first, and if that is missed. The same error changed the
# perplexity of three texts by 0.8 to 1.4 %.
_SHARES = (0.67, 0.33, 0.17)


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
