"""Products larger than memory: points and answer in files, one chunk in memory at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.blocks import FileRows, Request, as_rows, combine_infos, key_side
from approxkmv.blocks.cut import Cut, cut_to_fit
from approxkmv.blocks.journal import Journal, opened, unfinished
from approxkmv.blocks.product import BlockInfo, checked_request, kernel_block, kernel_sum
from approxkmv.files import checked_output
from approxkmv.info import ProductInfo
from approxkmv.loops.types import Array

__all__ = ["matvec"]

Rows = FileRows | Array


def matvec(
    queries: Any,
    keys: Any,
    x: Any,
    output: str | os.PathLike[str],
    *,
    bandwidth: float,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    rng: Rng = None,
    max_memory: float = 2e9,
    resume: bool = False,
    progress: Callable[[int, int], object] | None = None,
    n_threads: int | None = None,
) -> ProductInfo:
    r"""Product of a Gaussian kernel matrix with a vector or columns, from files to a file.

    The promise is that of :func:`approxkmv.matvec`,
    :math:`\|Kx - y\|_2 \le \mathrm{eps}\,\|x\|_2` with probability at least ``1 - delta``.

    Parameters
    ----------
    queries : path, memmap or array_like, shape (n_queries, n_dims)
        A C-ordered ``.npy`` file stays on disk; one chunk of its rows is in memory at a time.
    keys : path, memmap, array_like or None
        One point per row; None means the queries.
    x : path, memmap or array_like
        Shape (n_keys,) or (n_keys, n_columns).
    output : path
        Where the product goes, a ``.npy`` file. Until it is complete it is called
        ``output.part``; ``output.journal`` says which of its rows are there.
    bandwidth, eps, delta, method, rng, n_threads
        As in :func:`approxkmv.matvec`.
    max_memory : float
        Bytes that the process may use. The product is cut into chunks that fit.
    resume : bool
        Go on with an unfinished run of the same product, if there is one. It has the bits that an
        uninterrupted run would have had. With False an unfinished run is an error: nothing that
        took hours is overwritten unasked.
    progress : callable or None
        Called with the number of rows done and of all rows, first after what was done before.

    Returns
    -------
    ProductInfo
        Of the whole product, those chunks included that an earlier run computed.

    Notes
    -----
    A run that is interrupted, or killed, or meets a full disk, loses the chunk it was at.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from approxkmv import streaming
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     points, y = os.path.join(folder, "points.npy"), os.path.join(folder, "y.npy")
    ...     np.save(points, rng.standard_normal((1000, 3)))
    ...     info = streaming.matvec(points, None, np.ones(1000), y, bandwidth=1.0, rng=0)
    ...     np.load(y).shape, sorted(os.listdir(folder))
    ((1000,), ['points.npy', 'y.npy'])
    """
    target = checked_output(output)
    q, k, entries = _inputs(queries, keys, x)
    earlier = unfinished(target)
    if earlier and not resume:
        raise ValueError(
            f"{target}: an unfinished run is there: resume=True goes on with it; "
            f"to begin anew, delete {target.name}.journal and {target.name}.part."
        )
    if earlier and rng is None:
        rng = earlier["seed"]
    row_bytes = max(q.dtype.itemsize, k.dtype.itemsize) * q.shape[1]
    n_columns = math.prod(entries.shape[1:])
    memory = _check.positive(max_memory, "max_memory")
    cut = cut_to_fit(len(q), len(k), row_bytes, n_columns, memory)
    request = checked_request(
        bandwidth=bandwidth,
        eps=eps,
        delta=delta,
        method=method,
        rng=rng,
        n_threads=n_threads,
        n_queries=len(q),
        n_blocks=len(cut.query_chunks) * len(cut.key_chunks),
        n_key_chunks=len(cut.key_chunks),
    )
    shape = (len(q), *entries.shape[1:])
    types = (_check.computing_type(array.dtype) for array in (q, k, entries))
    dtype = np.result_type(*types)
    with opened(target, _asked(request, cut, q, k, entries), shape, dtype) as journal:
        run = _Run(q, k, entries, cut, request, dtype)
        infos = run.finish(journal, progress or (lambda done, of: None))
    return combine_infos(infos)


class _Run:
    """The chunks that are not done yet, one after another."""

    def __init__(
        self, q: Rows, k: Rows, x: Rows, cut: Cut, request: Request, dtype: np.dtype[Any]
    ) -> None:
        self.q, self.cut, self.request, self.dtype = q, cut, request, dtype
        common = np.result_type(_check.computing_type(q.dtype), _check.computing_type(k.dtype))
        self.sides = [
            key_side(_rows(k, a, b), _rows(x, a, b), common, chunk=i)
            for i, (a, b) in enumerate(cut.key_chunks)
        ]

    def finish(self, journal: Journal, progress: Callable[[int, int], object]) -> list[BlockInfo]:
        chunks = self.cut.query_chunks
        done = sum(b - a for i, (a, b) in enumerate(chunks) if i in journal.done)
        progress(done, len(self.q))
        for i, (a, b) in enumerate(chunks):
            if i not in journal.done:
                rows, infos = self._chunk(i, a, b)
                journal.write(i, a, rows, infos)
                done += b - a
                progress(done, len(self.q))
        journal.finish()
        return [info for i in range(len(chunks)) for info in journal.done[i]]

    def _chunk(self, i: int, start: int, stop: int) -> tuple[Array, list[BlockInfo]]:
        piece = _rows(self.q, start, stop)
        points = piece.read() if isinstance(piece, FileRows) else piece
        total: Array | None = None
        infos = []
        for b, side in enumerate(self.sides):
            block = kernel_block(points, side, self.request, (i, b))
            total = kernel_sum([block] if total is None else [total, block], self.dtype)
            infos.append(block.info)
        assert total is not None
        return total, infos


def _inputs(queries: Any, keys: Any, x: Any) -> tuple[Rows, Rows, Rows]:
    q = as_rows(queries, "queries")
    k = q if keys is None else as_rows(keys, "keys")
    entries = as_rows(x, "x")
    for array, name in ((q, "queries"), (k, "keys")):
        if array.ndim != 2:
            raise ValueError(
                f"{name} must have two dimensions, one point per row, got shape {array.shape}."
            )
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"keys must have {q.shape[1]} columns to match queries, got {k.shape[1]}.")
    if entries.ndim not in (1, 2) or len(entries) != len(k):
        raise ValueError(
            f"x must have one entry per key, shape ({len(k)},) or ({len(k)}, n_columns), "
            f"got shape {entries.shape}."
        )
    return q, k, entries


def _rows(rows: Rows, start: int, stop: int) -> Rows:
    return rows.piece(start, stop) if isinstance(rows, FileRows) else rows[start:stop]


def _asked(request: Request, cut: Cut, q: Rows, k: Rows, x: Rows) -> dict[str, Any]:
    """Everything on which the bits of the answer depend."""
    return {
        "bandwidth": request.bandwidth,
        "eps": request.eps,
        "delta": request.delta,
        "method": request.method,
        "seed": request.entropy,
        "chunks of queries": cut.queries,
        "chunks of keys": cut.keys,
        "queries": _identity(q),
        "keys": _identity(k),
        "x": _identity(x),
    }


def _identity(rows: Rows) -> list[Any]:
    """What tells whether these are the same numbers as before: a file's time, an array's digest."""
    if isinstance(rows, FileRows):
        status = Path(rows.path).stat()
        return [rows.path, rows.offset, str(rows.dtype), list(rows.shape), status.st_mtime_ns]
    import hashlib

    data = np.ascontiguousarray(rows)
    return [
        str(data.dtype),
        list(data.shape),
        hashlib.blake2b(data.data, digest_size=16).hexdigest(),
    ]
