"""From arrays with any leading dimensions to sets of queries, keys, values and masks by head.

Broadcasting and grouped queries repeat nothing: a table says which set each head uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, AttentionSums, Check, Index

Mask = npt.NDArray[np.floating] | npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Heads:
    """Sets of points of one floating type, and for each head which of them it uses."""

    queries: Array  # (n_query_sets, m, d)
    keys: Array  # (n_key_sets, n, d)
    values: Array  # (n_value_sets, n, r)
    mask: Mask | None  # (n_masks, m or 1, n)
    table: Index  # (n_heads, 4): queries, keys, values, mask
    shape: tuple[int, ...]  # of the leading dimensions

    def __len__(self) -> int:
        return len(self.table)

    @property
    def n_queries(self) -> int:
        """Of each head."""
        return int(self.queries.shape[1])

    @property
    def n_keys(self) -> int:
        """Of each head."""
        return int(self.keys.shape[1])

    def points(self, head: int) -> tuple[Array, Array, Array]:
        """Queries, keys and values of a head."""
        query, key, value, _ = self.table[head]
        return self.queries[query], self.keys[key], self.values[value]

    def mask_of(self, head: int) -> Mask | None:
        """Mask of a head: one row for each query, or one for all."""
        return None if self.mask is None else np.asarray(self.mask[self.table[head, 3]])

    def exact(
        self,
        heads: Index,
        *,
        scale: float,
        is_causal: bool,
        n_threads: int | None,
        check: Check = None,
    ) -> AttentionSums:
        """Exact attention of some of the heads."""
        return Compiled(n_threads, check=check).attention(
            self.queries,
            self.keys,
            self.values,
            self.table[heads],
            scale=scale,
            is_causal=is_causal,
            mask=self.mask,
        )


def pairs_seen(n_queries: int, n_keys: int, is_causal: bool) -> int:
    """Scores that exact attention computes for a head without a mask."""
    if not is_causal:
        return n_queries * n_keys
    below = min(n_queries, n_keys)
    return below * (below + 1) // 2 + (n_queries - below) * n_keys


def arrange(query: Array, key: Array, value: Array, mask: Mask | None, enable_gqa: bool) -> Heads:
    """Check that the shapes fit and lay the sets out; arrays have at least two dimensions."""
    n_queries, n_dims = query.shape[-2:]
    n_keys = key.shape[-2]
    if key.shape[-1] != n_dims:
        raise ValueError(f"key must have {n_dims} columns to match query, got shape {key.shape}.")
    if value.shape[-2] != n_keys:
        raise ValueError(
            f"value must have {n_keys} rows to match key, one per key, got shape {value.shape}."
        )
    sets = {"query": _numbered(query), "key": _numbered(key), "value": _numbered(value)}
    if enable_gqa:
        sets["key"] = _grouped(sets["key"], "key", query)
        sets["value"] = _grouped(sets["value"], "value", query)
    if mask is not None:
        mask = _with_all_keys(mask, n_queries, n_keys)
        sets["attn_mask"] = _numbered(mask)
    try:
        shape = np.broadcast_shapes(*(of.shape for of in sets.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {of.shape}" for name, of in sets.items())
        hint = "" if enable_gqa else " (for grouped queries pass enable_gqa=True)"
        raise ValueError(f"Leading dimensions must broadcast, got {shapes}{hint}.") from None
    table = np.zeros((*shape, 4), np.int64)
    for column, numbers in enumerate(sets.values()):
        table[..., column] = numbers
    return Heads(
        _three_dimensional(query),
        _three_dimensional(key),
        _three_dimensional(value),
        None if mask is None else _three_dimensional(mask),
        table.reshape(-1, 4),
        shape,
    )


def _numbered(array: npt.NDArray[Any]) -> Index:
    """The number of each set, in the shape of the leading dimensions."""
    lead = array.shape[:-2]
    return np.arange(math.prod(lead), dtype=np.int64).reshape(lead)


def _grouped(numbers: Index, name: str, query: Array) -> Index:
    """Grouped queries: head h of the queries uses head h // (size of a group)."""
    if query.ndim < 3 or numbers.ndim < 1:
        raise ValueError(
            f"enable_gqa needs a dimension of heads, shape (..., heads, n, d), got query "
            f"{query.shape} and {name} with {numbers.ndim} leading dimensions."
        )
    n_heads, n_groups = query.shape[-3], numbers.shape[-1]
    if n_groups == 0 or n_heads % n_groups:
        raise ValueError(
            f"With enable_gqa the heads of query must be a multiple of those of {name}, "
            f"got {n_heads} and {n_groups}."
        )
    return np.repeat(numbers, n_heads // n_groups, axis=-1)


def _with_all_keys(mask: npt.NDArray[Any], n_queries: int, n_keys: int) -> npt.NDArray[Any]:
    """The mask with an entry for every key; one row may serve all queries."""
    if mask.ndim < 2:
        mask = mask.reshape(1, -1)
    rows, columns = mask.shape[-2:]
    if rows not in (1, n_queries) or columns not in (1, n_keys):
        raise ValueError(
            f"attn_mask must broadcast to (..., {n_queries}, {n_keys}), got shape {mask.shape}."
        )
    return np.broadcast_to(mask, (*mask.shape[:-1], n_keys)) if columns != n_keys else mask


def _three_dimensional(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:]))
