"""``matvec``, ``row_sums`` and ``log_row_sums`` of Dask arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.blocks.product import (
    Block,
    Request,
    checked_request,
    kernel_block,
    kernel_sum,
    log_row_sum_block,
    log_sum,
    row_sum_block,
)
from approxkmv.dask.inputs import (
    Chunks,
    computing_type,
    fewer_queries,
    key_chunks,
    key_sides,
    objects,
    query_array,
    vector_chunks,
)
from approxkmv.loops.types import Array

# Blocks added up by one task: their memory is that of so many chunks of the answer.
_AT_ONCE = 16


@overload
def matvec(
    queries: da.Array,
    keys: Any,
    x: Any,
    *,
    bandwidth: float,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    check_finite: bool = ...,
    merge_chunks: bool = ...,
    return_info: Literal[False] = ...,
) -> da.Array: ...
@overload
def matvec(
    queries: da.Array,
    keys: Any,
    x: Any,
    *,
    bandwidth: float,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    check_finite: bool = ...,
    merge_chunks: bool = ...,
    return_info: Literal[True],
) -> tuple[da.Array, da.Array]: ...
def matvec(
    queries: da.Array,
    keys: Any,
    x: Any,
    *,
    bandwidth: float,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    rng: Rng = None,
    n_threads: int | None = None,
    check_finite: bool = True,
    merge_chunks: bool = True,
    return_info: bool = False,
) -> da.Array | tuple[da.Array, da.Array]:
    r"""Product of a Gaussian kernel matrix with a vector or columns, as a lazy Dask array.

    The promise is that of :func:`approxkmv.matvec` for the whole product,
    :math:`\|Kx - y\|_2 \le \mathrm{eps}\,\|x\|_2` with probability at least ``1 - delta``.

    Parameters
    ----------
    queries : dask.array.Array, shape (n_queries, n_dims)
        Chunked by rows; a chunk is the work of a task, and should keep it busy for a second.
    keys : array_like, path, memmap, Delayed, dask.array.Array or None
        One point per row; None means the queries. A file stays where it is and every worker maps
        it; an array travels with the graph; a Dask array keeps its chunks.
    x : array_like, path, memmap, Delayed or dask.array.Array
        Shape (n_keys,) or (n_keys, n_columns); delayed: a vector. Cut where the keys are.
    bandwidth, eps, delta, method, check_finite
        As in :func:`approxkmv.matvec`, without ``"paper"``. What is wrong with data is found when
        they are computed.
    rng : None, int or numpy.random.Generator
        Seed. None draws one now, so that an array computed twice is the same.
    n_threads : int or None
        Threads of a task. None: one wherever tasks run side by side, all cores with the
        synchronous scheduler.
    merge_chunks : bool
        Compute neighbouring chunks in one task, up to 256 MB of points, where an error is allowed:
        a task that samples goes through all its keys to find near pairs, so few queries at
        once are dear. False: one task for each chunk of queries and of keys; for kernels so dense
        that every pair is computed that makes more tasks of the same work.
    return_info : bool
        Return ``(y, infos)``; both are lazy and share their tasks.

    Returns
    -------
    y : dask.array.Array, shape (n_queries,) or (n_queries, n_columns)
        With the chunks of the queries.
    infos : dask.array.Array of BlockInfo, shape (query chunks, key chunks)
        Only with ``return_info``; of chunks that were merged there is one.
        :func:`combine_infos` is their sum.

    Notes
    -----
    Same seed, version, instruction set and chunks give the same bits, for any number of workers
    and threads, any scheduler, and after a worker was lost. Other chunks may give other bits.

    Examples
    --------
    >>> import dask
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import combine_infos, matvec
    >>> rng = np.random.default_rng(0)
    >>> queries = da.from_array(rng.standard_normal((600, 8)), chunks=(200, -1))
    >>> keys, x = rng.standard_normal((300, 8)), rng.standard_normal(300)
    >>> y, infos = matvec(queries, keys, x, bandwidth=1.5, rng=1, return_info=True)
    >>> y.chunks, infos.shape
    (((200, 200, 200),), (3, 1))
    >>> values, records = dask.compute(y, infos)
    >>> combine_infos(records).pairs
    180000
    """
    given = query_array(queries)
    merge = _check.truth(merge_chunks, "merge_chunks") and method != "exact"
    merge = merge and _check.tolerance(eps) > 0
    k = key_chunks(keys, given, merge=merge)
    q = fewer_queries(given, k) if merge else given
    v = vector_chunks(x, k)
    request = checked_request(
        bandwidth=bandwidth,
        eps=eps,
        delta=delta,
        method=method,
        rng=rng,
        n_threads=n_threads,
        check_finite=check_finite,
        n_queries=q.shape[0],
        n_blocks=len(q.chunks[0]) * len(k.parts),
        n_key_chunks=len(k.parts),
    )
    blocks = _blocks(kernel_block, q, k, v, request)
    dtype = computing_type(q.dtype, k.dtype, v.dtype)
    y = _added(blocks, q, kernel_sum, v.row, dtype, "kernel_product")
    if q is not given:
        y = y.rechunk({0: given.chunks[0]})
    return (y, _infos(blocks)) if return_info else y


def row_sums(
    queries: da.Array,
    keys: Any = None,
    *,
    bandwidth: float,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> da.Array:
    r"""Row sums :math:`\sum_j K_{ij}`, exactly, as a lazy Dask array.

    Parameters as in :func:`matvec`.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import row_sums
    >>> queries = da.from_array(np.array([[0.0], [3.0]]), chunks=(1, -1))
    >>> row_sums(queries, [[0.0], [0.0]], bandwidth=1.0).compute().round(4)
    array([2.    , 0.0222])
    """
    q = query_array(queries)
    k = key_chunks(keys, q)
    request = _exactly(q, k, bandwidth, n_threads, check_finite)
    blocks = _blocks(row_sum_block, q, k, None, request)
    return _added(blocks, q, kernel_sum, (), computing_type(q.dtype, k.dtype), "row_sums")


def log_row_sums(
    queries: da.Array,
    keys: Any = None,
    *,
    bandwidth: float,
    weights: Any = None,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> da.Array:
    r"""Logarithms :math:`\log\sum_j w_j K_{ij}`, exactly, as a lazy Dask array.

    Parameters
    ----------
    weights : array_like, path, memmap, Delayed, dask.array.Array or None
        Not negative; None means 1 for every key.

    Notes
    -----
    Other parameters as in :func:`matvec`.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import log_row_sums
    >>> queries = da.from_array(np.array([[0.0], [100.0]]), chunks=(1, -1))
    >>> [round(float(v), 4) for v in log_row_sums(queries, [[0.0]], bandwidth=1.0).compute()]
    [0.0, -5000.0]
    """
    q = query_array(queries)
    k = key_chunks(keys, q)
    w = None if weights is None else vector_chunks(weights, k, "weights")
    if w is not None and w.row != ():
        raise ValueError(f"weights must be a vector, got rows of shape {w.row}.")
    request = _exactly(q, k, bandwidth, n_threads, check_finite)
    blocks = _blocks(log_row_sum_block, q, k, w, request, weights=True)
    return _added(blocks, q, log_sum, (), computing_type(q.dtype, k.dtype), "log_row_sums")


def _exactly(
    q: da.Array, k: Chunks, bandwidth: float, n_threads: int | None, check_finite: bool
) -> Request:
    """The request of exact sums, where nothing is random and no error is shared."""
    return checked_request(
        bandwidth=bandwidth,
        rng=0,
        n_threads=n_threads,
        check_finite=check_finite,
        n_queries=q.shape[0],
        n_blocks=len(q.chunks[0]) * len(k.parts),
        n_key_chunks=len(k.parts),
    )


def _blocks(
    task: Callable[..., Any],
    q: da.Array,
    keys: Chunks,
    x: Chunks | None,
    request: Request,
    *,
    weights: bool = False,
) -> da.Array:
    """One task for each chunk of queries and chunk of keys; an array of whatever it returns."""
    sides = key_sides(keys, x, q.dtype, weights=weights, check_finite=request.check_finite)
    name = f"{task.__name__}-{tokenize(q.name, sides.name, request)}"
    grid = len(q.chunks[0]), len(keys.parts)
    layer = {
        (name, i, b): (task, (q.name, i, 0), (sides.name, b), request, (i, b))
        for i in range(grid[0])
        for b in range(grid[1])
    }
    return objects(name, layer, grid, [q, sides])


def _added(
    blocks: da.Array,
    q: da.Array,
    add: Callable[..., Array],
    row: tuple[int, ...],
    dtype: Any,
    label: str,
) -> da.Array:
    """Blocks added over key chunks, in order and few at a time; chunked as the queries are."""
    zeros = (0,) * len(row)
    name = f"{label}-{tokenize(blocks.name, str(dtype))}"
    layer: dict[Any, Any] = {}
    for i in range(len(q.chunks[0])):
        parts: list[Any] = [(blocks.name, i, b) for b in range(blocks.shape[1])]
        level = 0
        while len(parts) > _AT_ONCE:
            groups = [parts[a : a + _AT_ONCE] for a in range(0, len(parts), _AT_ONCE)]
            parts = [(f"part_of_{name}", level, i, g) for g in range(len(groups))]
            layer |= {p: (add, group, dtype) for p, group in zip(parts, groups, strict=True)}
            level += 1
        key = (name, i, *zeros)
        layer[key] = (add, parts, dtype)
    needs: list[Any] = [blocks]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=needs)
    columns = tuple((length,) for length in row)
    return da.Array(graph, name, chunks=(q.chunks[0], *columns), dtype=dtype)


def _infos(blocks: da.Array) -> da.Array:
    """The reports of the blocks, in their places."""
    name = f"block_infos-{tokenize(blocks.name)}"
    layer = {(name, i, b): (_info, (blocks.name, i, b)) for i, b in np.ndindex(*blocks.shape)}
    return objects(name, layer, blocks.shape, [blocks])


def _info(block: Block) -> Any:
    cell = np.empty((1, 1), object)
    cell[0, 0] = block.info
    return cell
