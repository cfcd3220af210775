"""Attention by this package, as the experiments call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import approxkmv as akmv
from approxkmv.paper.reduction import attention_to_gaussian

Array = npt.NDArray[np.floating]
_ATTENTION: Callable[..., Any] | None = getattr(akmv, "attention", None)

# What the answers come from, for records: attention, or two products of one column, unmasked.
NAME = "products" if _ATTENTION is None else "attention"


class Counts(NamedTuple):
    """Method chosen, and pairs evaluated over those of the exact method."""

    method: str
    pairs: float


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    eps: float,
    is_causal: bool = False,
    seed: int = 0,
    n_threads: int | None = None,
) -> Array:
    """Softmax attention within ``eps`` of the length of ``value``; exact for ``eps`` 0.

    Parameters
    ----------
    query, key : ndarray of shape (n, n_dims)
    value : ndarray of shape (n, n_columns)
    """
    return _answer(query, key, value, scale, eps, is_causal, seed, n_threads, False)[0]


def counts(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    eps: float,
    is_causal: bool = False,
    seed: int = 0,
    n_threads: int | None = None,
) -> Counts:
    """What :func:`attention` does for these arguments."""
    infos = _answer(query, key, value, scale, eps, is_causal, seed, n_threads, True)[1]
    sampled = any(info.method != "exact" for info in infos)
    pairs = sum(info.pairs for info in infos) / sum(info.pairs_exact for info in infos)
    return Counts("sampled" if sampled else "exact", pairs)


def _answer(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    eps: float,
    is_causal: bool,
    seed: int,
    n_threads: int | None,
    return_info: bool,
) -> tuple[Array, list[Any]]:
    options: dict[str, Any] = {
        "method": "auto" if eps else "exact",
        "eps": eps,
        "rng": seed,
        "n_threads": n_threads,
        "return_info": return_info,
    }
    if _ATTENTION is not None:
        answer = _ATTENTION(query, key, value, scale=scale, is_causal=is_causal, **options)
        return (answer[0], [answer[1]]) if return_info else (answer, [])
    g = attention_to_gaussian(query, key, scale)
    ones = np.ones_like(value[:, :1])
    parts = [value[:, 0], ones[:, 0]] if eps else [np.concatenate([value, ones], axis=1)]
    found: list[Any] = [
        akmv.matvec(g.queries, g.keys, part, bandwidth=g.bandwidth, **options) for part in parts
    ]
    sums = [one[0] for one in found] if return_info else found
    both = np.column_stack(sums)
    return both[:, :-1] / both[:, -1:], [one[1] for one in found] if return_info else []
