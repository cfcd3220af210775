"""Attention by this package, as the experiments call it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import approxkmv as akmv

Array = npt.NDArray[np.floating]


class Counts(NamedTuple):
    """Method chosen, and pairs evaluated over those of the exact method."""

    method: str
    pairs: float


def attention(query: Array, key: Array, value: Array, *, eps: float, **options: Any) -> Array:
    """Softmax attention within ``eps`` of the length of ``value``; exact for ``eps`` 0.

    Parameters
    ----------
    query, key : ndarray of shape (n, n_dims)
    value : ndarray of shape (n, n_columns)
    **options
        ``scale``, ``is_causal``, ``rng`` and ``n_threads`` of :func:`approxkmv.attention`.
    """
    return np.asarray(akmv.attention(query, key, value, eps=eps, method=_method(eps), **options))


def counts(query: Array, key: Array, value: Array, *, eps: float, **options: Any) -> Counts:
    """What :func:`attention` does for these arguments."""
    _, info = akmv.attention(
        query, key, value, eps=eps, method=_method(eps), return_info=True, **options
    )
    method = "exact" if info.method == "exact" else "sampled"
    return Counts(method, info.pairs / info.pairs_exact)


def _method(eps: float) -> str:
    return "auto" if eps else "exact"
