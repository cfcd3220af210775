"""The constants of every attention head of a model on a text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy.typing as npt

from approxkmv._table import table
from approxkmv.capture import Head, LoadedModel, capture_heads
from approxkmv.paper.assumption import kernel_constant, softmax_constant
from approxkmv.paper.reduction import attention_to_gaussian


@dataclass(frozen=True)
class HeadConstants:
    """Constants of one head, exact.

    Attributes
    ----------
    layer, head : int
    kernel : float
        c of the Gaussian matrix K of Lemma 4.1, over all pairs of tokens: the paper's. Without the
        mask and the position bias, where the model has them.
    softmax : float
        c of the model's own attention matrix, with mask and bias.
    """

    layer: int
    head: int
    kernel: float
    softmax: float


@dataclass(frozen=True)
class ModelDiagnosis:
    """Constants of all heads looked at.

    Attributes
    ----------
    name : str
        What the model was loaded from.
    n_tokens : int
    is_causal : bool
    has_bias : bool
        Whether scores have a bias by position, which K cannot have.
    heads : tuple of HeadConstants
    """

    name: str
    n_tokens: int
    is_causal: bool
    has_bias: bool
    heads: tuple[HeadConstants, ...]

    def __str__(self) -> str:
        rows = [[f"{h.layer}.{h.head}", f"{h.kernel:.4g}", f"{h.softmax:.4g}"] for h in self.heads]
        worst = max(self.heads, key=lambda h: h.kernel)
        below = sum(h.kernel < 5 for h in self.heads)
        return "\n".join(
            [
                f"{self.name}, {self.n_tokens} tokens{', causal' if self.is_causal else ''}"
                f"{', position bias left out of K' if self.has_bias else ''}",
                table(["layer.head", "c of K", "c of softmax"], rows),
                f"c of K is below 5 in {below} of {len(self.heads)} heads; "
                f"largest {worst.kernel:.4g}, layer {worst.layer} head {worst.head}",
            ]
        )

    def to_json(self) -> str:
        """All numbers as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def to_html(self, title: str = "Diagnosis of a model") -> str:
        """One self-contained page with a heat map for each constant."""
        from approxkmv.diagnosis.page import model_page

        return model_page(self, title)


def head_constants(head: Head) -> HeadConstants:
    """Constants of one captured head. O(n² d) time.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.capture import Head
    >>> flat = np.zeros((4, 2), np.float32)
    >>> found = head_constants(Head(0, 0, flat, flat, flat, scale=1.0, is_causal=False))
    >>> round(found.kernel, 12), round(found.softmax, 12)
    (3.0, 3.0)
    """
    query, key = head.query.astype("float64"), head.key.astype("float64")
    g = attention_to_gaussian(query, key, head.scale)
    return HeadConstants(
        head.layer,
        head.head,
        kernel_constant(g.queries, g.keys, g.bandwidth).c,
        softmax_constant(query, key, head.scale, is_causal=head.is_causal, bias=head.bias).c,
    )


def diagnose_model(
    loaded: LoadedModel,
    token_ids: npt.ArrayLike,
    *,
    layers: Collection[int] | None = None,
    progress: Callable[[float], None] | None = None,
) -> ModelDiagnosis:
    """Constants of every head of a model on a text.

    Parameters
    ----------
    loaded : LoadedModel
        From :func:`approxkmv.capture.load_model`.
    token_ids : array_like of int, shape (n_tokens,)
    layers : collection of int, optional
        Layers to look at; all by default.
    progress : callable, optional
        Called after each head with the share of the work done, from 0 to 1.

    Returns
    -------
    ModelDiagnosis

    Examples
    --------
    >>> from approxkmv.capture import load_model
    >>> model = load_model("bert-base-uncased")  # doctest: +SKIP
    >>> print(diagnose_model(model, model.token_ids("A text.")))  # doctest: +SKIP
    """
    n_heads = loaded.n_heads * (loaded.n_layers if layers is None else len(set(layers)))
    constants = []
    is_causal = has_bias = False
    n_tokens = 0
    for head in capture_heads(loaded, token_ids, layers=layers):
        constants.append(head_constants(head))
        n_tokens, is_causal, has_bias = len(head.query), head.is_causal, head.bias is not None
        if progress is not None:
            progress(len(constants) / n_heads)
    return ModelDiagnosis(loaded.name, n_tokens, is_causal, has_bias, tuple(constants))
