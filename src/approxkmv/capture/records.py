"""What the attentions of a forward pass were given, and the heads made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv.capture.head import Float32, Head


@dataclass(frozen=True)
class Layer:
    """What one attention was given: tensors (n_heads, n_tokens, n_dims)."""

    index: int
    query: Any
    key: Any
    value: Any
    scale: float
    is_causal: bool
    bias: Any = None


class Records:
    """The layers kept of those seen, in the order of the forward pass."""

    def __init__(self, wanted: Collection[int]) -> None:
        self._wanted = wanted
        self.kept: list[Layer] = []
        self.n_seen = 0

    def add(self, query: Any, key: Any, value: Any, **how: Any) -> None:
        """Keep one attention of a batch of one text, if its layer is wanted."""
        if self.n_seen in self._wanted:
            self.kept.append(Layer(self.n_seen, query[0], key[0], value[0], **how))
        self.n_seen += 1


def heads_of(records: Records) -> Iterator[Head]:
    """Every head of the layers kept; a layer's memory is given back when its heads are done."""
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
