"""Sampled attention of one head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from approxkmv.leaves import Array


@dataclass(frozen=True, eq=False)
class SampledAttention:
    """One head's output and its estimated error."""

    output: Array  # (n_queries, n_columns)
    error_estimate: float  # of |O - output|_F, not divided by |V|_F
    pairs: int
    numbers: Mapping[str, object] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def sampled_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    is_causal: bool,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> SampledAttention | None:
    """Attention with |O - output|_F <= eps |V|_F, or None where exact is the better choice."""
    return None
