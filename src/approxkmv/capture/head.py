"""One attention head on one text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


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
