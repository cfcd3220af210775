"""``attention`` of Dask arrays: heads in chunks, and their queries."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, overload

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from approxkmv._check import Rng
from approxkmv.blocks.attention import HeadsRequest, attention_block, checked_heads
from approxkmv.dask.inputs import check_type, computing_type, is_known, objects, refuse_collection
from approxkmv.info import AttentionInfo
from approxkmv.loops.types import Array


@overload
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    attn_mask: Any = ...,
    enable_gqa: bool = ...,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    return_info: Literal[False] = ...,
) -> da.Array: ...
@overload
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    attn_mask: Any = ...,
    enable_gqa: bool = ...,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    return_info: Literal[True],
) -> tuple[da.Array, da.Array]: ...
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    attn_mask: Any = None,
    enable_gqa: bool = False,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    rng: Rng = None,
    n_threads: int | None = None,
    return_info: bool = False,
) -> da.Array | tuple[da.Array, da.Array]:
    r"""Softmax attention, as a lazy Dask array in chunks of texts, heads and queries.

    The promise is that of :func:`approxkmv.attention` for every head,
    :math:`\|O - O'\|_F \le \mathrm{eps}\,\|V\|_F` with probability at least ``1 - delta``.

    Parameters
    ----------
    query : dask.array.Array, shape (..., n_queries, n_dims)
        Cut into chunks of leading dimensions, and of queries unless ``is_causal``; every chunk is
        the work of a task. Its columns are in one chunk.
    key : dask.array.Array or array_like, shape (..., n_keys, n_dims)
    value : dask.array.Array or array_like, shape (..., n_keys, n_columns)
        Rows and columns in one chunk; leading dimensions are cut as those of the query. An array in
        memory travels with the graph.
    attn_mask : dask.array.Array, array_like or None
        As in :func:`approxkmv.attention`, in any chunks.
    scale, is_causal, enable_gqa, eps, delta, method
        As in :func:`approxkmv.attention`, without ``"paper"``. With ``enable_gqa`` the heads of a
        chunk of the query share whole heads of key and value.
    rng, n_threads
        As in :func:`approxkmv.dask.matvec`.
    return_info : bool
        Return ``(output, infos)``; both are lazy and share their tasks.

    Returns
    -------
    output : dask.array.Array, shape (..., n_queries, n_columns)
        With the chunks of the query.
    infos : dask.array.Array of AttentionInfo
        Only with ``return_info``: one for each chunk of leading dimensions and of queries. Where
        the queries of a head are in several chunks, the squares of its errors add up.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import attention
    >>> rng = np.random.default_rng(0)
    >>> query = da.from_array(rng.standard_normal((4, 8, 50, 16)), chunks=(1, 4, -1, -1))
    >>> key, value = rng.standard_normal((2, 4, 2, 50, 16))
    >>> output = attention(query, key, value, is_causal=True, enable_gqa=True)
    >>> output.numblocks, output.dtype
    ((4, 2, 1, 1), dtype('float64'))
    >>> bool(np.allclose(output[0, 0, 0].compute(), value[0, 0, 0]))
    True
    """
    if not isinstance(query, da.Array):
        raise TypeError(
            f"query must be a Dask array, got {type(query).__name__}: use dask.array.from_array, "
            "or approxkmv.attention."
        )
    arrays = {"query": query, "key": _array(key, "key"), "value": _array(value, "value")}
    if attn_mask is not None:
        arrays["attn_mask"] = _array(attn_mask, "attn_mask")
    _check_shapes(arrays)
    request = checked_heads(
        scale=scale,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        eps=eps,
        delta=delta,
        method=method,
        rng=rng,
        n_threads=n_threads,
        n_queries=query.shape[-2],
        n_chunks=query.numblocks[-2],
    )
    if request.is_causal and query.numblocks[-2] > 1:
        raise ValueError(
            "query must have the queries of a head in one chunk where is_causal, got chunks "
            f"{query.chunks[-2]}: use query.rechunk({{-2: -1}})."
        )
    chunks = (*_leading_chunks(arrays, request.enable_gqa), query.chunks[-2])
    cut = {name: _cut(a, name, chunks, request.enable_gqa) for name, a in arrays.items()}
    return _attention(cut, chunks, request, return_info)


def _attention(
    cut: dict[str, da.Array],
    chunks: tuple[tuple[int, ...], ...],
    request: HeadsRequest,
    return_info: bool,
) -> da.Array | tuple[da.Array, da.Array]:
    """One task for each chunk of heads and queries, and one that takes the output out of it."""
    token = tokenize([array.name for array in cut.values()], request)
    name, columns = f"attention_block-{token}", cut["value"].shape[-1]
    grid = tuple(map(len, chunks))
    layer = {
        (name, *place): (
            attention_block,
            *(_part(cut.get(role), place) for role in ("query", "key", "value", "attn_mask")),
            request,
            place,
        )
        for place in product(*map(range, grid))
    }
    blocks = objects(name, layer, grid, list(cut.values()))
    label = f"attention-{token}"
    outputs: dict[Any, Any] = {
        (label, *place, 0): (_output, (name, *place)) for place in np.ndindex(*grid)
    }
    needs: list[Any] = [blocks]
    graph = HighLevelGraph.from_collections(label, outputs, dependencies=needs)
    dtype = computing_type(*(cut[role].dtype for role in ("query", "key", "value")))
    output = da.Array(graph, label, chunks=(*chunks, (columns,)), dtype=dtype)
    if not return_info:
        return output
    label = f"attention_infos-{token}"
    infos = {(label, *place): (_info, (name, *place)) for place in np.ndindex(*grid)}
    return output, objects(label, infos, grid, needs)


def _output(block: tuple[Array, AttentionInfo]) -> Array:
    return block[0]


def _info(block: tuple[Array, AttentionInfo]) -> Any:
    cell = np.empty((1,) * (block[0].ndim - 1), object)
    cell[...] = block[1]
    return cell


def _array(value: Any, name: str) -> da.Array:
    """As a Dask array; one in memory is one chunk, which is in the graph once."""
    if not isinstance(value, da.Array):
        refuse_collection(value, name)
        value = da.from_array(np.asarray(value), chunks=-1, name=f"{name}-{tokenize(value)}")
    array: da.Array = value
    is_known(array, name)
    if array.ndim < 2:
        raise ValueError(f"{name} must have shape (..., rows, columns), got shape {array.shape}.")
    if not (name == "attn_mask" and array.dtype == np.bool_):
        check_type(array.dtype, name)
    return array


def _check_shapes(arrays: dict[str, da.Array]) -> None:
    """Rows and columns that fit, and are in one chunk where a task needs them all."""
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key must have {query.shape[-1]} columns to match query, got shape {key.shape}."
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must have {key.shape[-2]} rows to match key, one per key, "
            f"got shape {value.shape}."
        )
    for name, array in (("query", query), ("key", key), ("value", value)):
        axes = (-1,) if name == "query" else (-2, -1)
        if any(array.numblocks[axis] > 1 for axis in axes):
            whole = ", ".join(f"{axis}: -1" for axis in axes)
            raise ValueError(
                f"{name} must have its {'columns' if name == 'query' else 'rows and columns'} in "
                f"one chunk, got chunks {array.chunks[-2:]}: use {name}.rechunk({{{whole}}})."
            )
    if "attn_mask" in arrays:
        rows, columns = arrays["attn_mask"].shape[-2:]
        if rows not in (1, query.shape[-2]) or columns not in (1, key.shape[-2]):
            raise ValueError(
                "attn_mask must broadcast to (..., "
                f"{query.shape[-2]}, {key.shape[-2]}), got shape {arrays['attn_mask'].shape}."
            )


def _leading_chunks(arrays: dict[str, da.Array], enable_gqa: bool) -> tuple[tuple[int, ...], ...]:
    """Chunks of the leading dimensions of the output: those of the first array that has one."""
    n = max(array.ndim for array in arrays.values()) - 2
    found: list[tuple[int, ...]] = []
    for axis in range(-n - 2, -2):
        sizes = [
            array.chunks[axis]
            for name, array in arrays.items()
            if array.ndim >= -axis
            and array.shape[axis] != 1
            and not (enable_gqa and axis == -3 and name in ("key", "value"))
        ]
        found.append(sizes[0] if sizes else (1,))
    return tuple(found)


def _cut(
    array: da.Array, name: str, chunks: tuple[tuple[int, ...], ...], enable_gqa: bool
) -> da.Array:
    """Leading dimensions, and rows of a mask, cut as those of the output; 1 is broadcast."""
    wanted: dict[int, Any] = {array.ndim - 1: -1}
    last = -1 if name == "attn_mask" else -2
    for axis in range(-array.ndim, last):
        sizes, size = chunks[axis + 1], array.shape[axis]
        if size == 1:
            continue
        if enable_gqa and axis == -3 and name in ("key", "value"):
            sizes = _of_groups(sizes, size, name)
        elif size != sum(sizes):
            raise ValueError(
                f"Leading dimensions must broadcast, got {name} of shape {array.shape}, and "
                f"{sum(sizes)} at its dimension {axis}."
            )
        wanted[axis % array.ndim] = sizes
    cut: da.Array = array.rechunk(wanted)
    return cut


def _of_groups(sizes: tuple[int, ...], n_heads: int, name: str) -> tuple[int, ...]:
    """Chunks of the heads of key or value that chunks of the heads of the query use."""
    group = sum(sizes) // max(1, n_heads)
    if group == 0 or sum(sizes) % n_heads or any(size % group for size in sizes):
        raise ValueError(
            f"query must have its heads in chunks of whole groups for enable_gqa, got chunks "
            f"{sizes}, and {n_heads} heads of {name}."
        )
    return tuple(size // group for size in sizes)


def _part(array: da.Array | None, place: tuple[int, ...]) -> Any:
    """The chunk of an array that a block needs; the last of its places is a chunk of queries."""
    if array is None:
        return None
    at = [0] * array.ndim
    for axis in range(-array.ndim, -1):
        at[axis] = place[axis + 1] if array.numblocks[axis] > 1 else 0
    return (array.name, *at)
