r"""One fixed matrix close to K: near pairs exactly, and some of all others, each drawn by itself.

A pair that was not found near is kept with probability :math:`\pi_{ij}` and has the value
:math:`K_{ij}/\pi_{ij}`. The matrix is sparse and unbiased, and for any x that was not chosen by
looking at the draws

.. math:: E\|(\tilde K-K)x\|^2=\sum_j x_j^2\sum_i(1/\pi_{ij}-1)K_{ij}^2,

so that bounding the inner sum for every key bounds the error for every x, and bounding it for every
query does so for the transpose. Draws shared by a block of queries, as in a product that is made
once, would not do here: in the transpose they add up instead of cancelling.

Dense blocks, which would need so many draws that comparing them with everything is cheaper, are
compared: all their pairs from a low value on are kept as they are, and only smaller ones drawn.

Where the queries are the keys, a pair is drawn once for both its places. Keys and queries whose
own estimate of the inner sum stands out are searched for near pairs in full, and kept whole if that
does not help.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from approxkmv._deadline import OutOfTime
from approxkmv._threads import default_threads
from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.planner import Study, study
from approxkmv.engine.result import Clock, Outcome
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import balanced_rates, smoothed
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64, FoundPairs, Index, Index32

Mask = npt.NDArray[np.bool_]

# Of the squared error allowed; the rest is for wrong predictions.
_AIM = 0.5
# Where more than this share of the pairs of a block would be drawn, all are looked at: a pair of a
# tile costs a twentieth of a pair by itself. Those of at least this value, in eps / sqrt(n), are
# kept. On word vectors both together left a fifth to a third of the pairs, and the largest error of
# a key went from 1.5 eps to below eps.
_DENSE, _KEPT_FROM = 0.04, 1.5
# Keys and queries with more than this share of the squared error allowed are searched in full, and
# kept whole if they still have more; so many of them.
_STANDS_OUT, _MOST_SEARCHED, _MOST_WHOLE = 0.7, 0.05, 0.01
_BYTES_PER_PAIR = 8
_FINE_ROWS = 3  # of each block, to tell what is left to the draws
_ROUNDING = 1e-3  # of a kernel value, more than enough
# No key or query may have more than this many times the squared error allowed.
_LARGEST, _MOST_ATTEMPTS = 1.5, 2


@dataclass(frozen=True, eq=False)
class FrozenMatrix:
    """A sparse matrix and some rows and columns; symmetric if so is the kernel matrix."""

    drawn: Drawn
    near: csr_array  # where symmetric, with both places and the diagonal
    symmetric: bool
    whole_keys: Index
    of_whole_keys: Array  # (n_queries, n_whole_keys)
    whole_queries: Index
    of_whole_queries: Array  # (n_keys, n_whole_queries)

    @property
    def n_bytes(self) -> int:
        """Memory taken."""
        sparse = sum(a.data.nbytes + a.indices.nbytes for a in (self.drawn.values, self.near))
        whole = {id(a): a.nbytes for a in (self.of_whole_keys, self.of_whole_queries)}
        return int(sparse + sum(whole.values()))

    def variances(self) -> tuple[Float64, Float64]:
        """Estimated variance of every key's column and every query's row."""
        of_key, of_query = self.drawn.variances(self.symmetric)
        of_key[self.whole_keys] = of_query[self.whole_queries] = 0
        return of_key, of_query

    @property
    def largest_error(self) -> float:
        """Root of the largest of these variances."""
        return float(np.sqrt(max(of.max() for of in self.variances())))

    def product(self, x: Array, *, transposed: bool = False) -> Array:
        """The matrix, or its transpose, times the columns of x."""
        if transposed and not self.symmetric:
            y = self.near.T @ x
            self.drawn.add_transposed(x, y)
            y[self.whole_keys] += self.of_whole_keys.T @ x
            # Where a whole key meets a whole query it was counted with the key.
            part = self.of_whole_queries @ x[self.whole_queries]
            part[self.whole_keys] = 0
            return np.asarray(y + part)
        y = self.near @ x
        self.drawn.add(x, y)
        if self.symmetric:
            self.drawn.add_transposed(x, y)
        y += self.of_whole_keys @ x[self.whole_keys]
        others = x.copy()
        others[self.whole_keys] = 0
        y[self.whole_queries] += self.of_whole_queries.T @ others
        return np.asarray(y)


def freeze(
    kernel: KernelMatrix,
    bandwidth: float,
    *,
    eps: float,
    rng: np.random.Generator,
    max_memory: float,
) -> tuple[FrozenMatrix | None, Outcome]:
    """A matrix whose products have an error of at most eps, if it fits and pays.

    Where the backend's check raises ``OutOfTime`` there is none: the outcome is ``stopped``.
    """
    outcome = Outcome("some pairs are drawn and kept once and for all")
    try:
        return _freeze(kernel, bandwidth, eps, rng, max_memory, outcome), outcome
    except OutOfTime:
        outcome.stopped = True
        outcome.reason = "max_seconds was too short to build a sparse operator"
        return None, outcome


def _freeze(
    kernel: KernelMatrix,
    bandwidth: float,
    eps: float,
    rng: np.random.Generator,
    max_memory: float,
    outcome: Outcome,
) -> FrozenMatrix | None:
    check = kernel.backend.check or _never
    check()
    clock = Clock(outcome.seconds)
    ones = np.ones((len(kernel.keys), 1), kernel.keys.dtype)
    learnt = study(kernel, bandwidth, ones, eps=eps, rng=rng, outcome=outcome, clock=clock)
    if learnt is None:
        return None
    check()
    search = learnt.search
    if search.pilot.symmetric:
        search.found = both_ways(search.found, kernel.backend.n_threads)
    moment = smoothed(_compare_dense_blocks(kernel, learnt, eps, max_memory, rng, outcome))
    clock.lap("search")
    check()
    pi = balanced_rates(moment, learnt.query_blocks, learnt.key_tiles, _AIM * eps**2)
    for attempt in range(_MOST_ATTEMPTS):
        matrix = _fitting(
            kernel, bandwidth, learnt, np.minimum(1.0, pi), eps, rng, max_memory, outcome
        )
        clock.lap("draw")
        outcome.numbers["draws"] = attempt + 1
        if matrix is None or matrix.largest_error**2 <= _LARGEST * eps**2:
            break
        # The draws met keys that the pilot had not: draw more of all.
        pi *= 2
    else:
        matrix, outcome.reason = None, "near pairs are too many or too hard to find"
    outcome.pairs += search.pairs
    return matrix


def _never() -> None:
    """No limit of time."""


def _fitting(
    kernel: KernelMatrix,
    bandwidth: float,
    learnt: Study,
    pi: Float64,
    eps: float,
    rng: np.random.Generator,
    max_memory: float,
    outcome: Outcome,
) -> FrozenMatrix | None:
    """The matrix for these probabilities, if it fits into memory."""
    pilot, search = learnt.pilot, learnt.search
    expected = float(learnt.query_blocks.sizes @ pi @ learnt.key_tiles.sizes)
    expected /= 2 if pilot.symmetric else 1
    n_bytes = _BYTES_PER_PAIR * (expected + len(search.found.cols))
    outcome.numbers |= {"pairs_drawn": round(expected), "bytes_kept": round(n_bytes)}
    if expected > 0.1 * len(kernel.queries) * len(kernel.keys):
        outcome.reason = "too many pairs would have to be kept"
        return None
    if n_bytes > max_memory:
        outcome.reason = (
            f"the pairs kept would take {n_bytes:.2g} bytes, more than the {max_memory:.2g} allowed"
        )
        return None
    drawn = draw_pairs(
        kernel, bandwidth, learnt.query_blocks, learnt.key_tiles, pi, pilot.symmetric, rng
    )
    check = kernel.backend.check or _never
    check()
    drawn.take_out(search.found)
    check()
    n_searched = _search_what_stands_out(search, drawn, pilot.symmetric, eps)
    check()
    matrix = _with_whole(kernel, learnt, drawn, eps, max_memory - n_bytes)
    of_key, of_query = matrix.variances()
    outcome.pairs += drawn.values.nnz + matrix.of_whole_keys.size + matrix.of_whole_queries.size
    outcome.numbers |= {
        "bytes_kept": matrix.n_bytes,
        "searched_in_full": n_searched,
        "whole_keys": len(matrix.whole_keys),
        "whole_queries": len(matrix.whole_queries),
        "error_of_a_key": float(np.sqrt(of_key.mean())),
        "largest_error_of_a_key": float(np.sqrt(of_key.max())),
        "error_of_a_query": float(np.sqrt(of_query.mean())),
        "largest_error_of_a_query": float(np.sqrt(of_query.max())),
    }
    return matrix


def _compare_dense_blocks(
    kernel: KernelMatrix,
    learnt: Study,
    eps: float,
    max_memory: float,
    rng: np.random.Generator,
    outcome: Outcome,
) -> Float64:
    """Find all but the small pairs of dense blocks; means of K^2 over what is left to the draws."""
    pilot, search = learnt.pilot, learnt.search
    query_blocks, key_tiles = learnt.query_blocks, learnt.key_tiles
    moment = pilot.per_pair(
        pilot.light + pilot.near_sums(pilot.missed(search.found), pilot.near_square)
    )
    pi = balanced_rates(smoothed(moment), query_blocks, key_tiles, _AIM * eps**2)
    of_rows = pi @ key_tiles.sizes / len(key_tiles.order) > _DENSE
    of_keys = query_blocks.sizes @ pi / len(query_blocks.order) > _DENSE
    if not (of_rows.any() or of_keys.any()):
        return moment
    fine = run_pilot(
        kernel.geometry,
        learnt.size,
        query_blocks,
        key_tiles,
        rows_per_block=_FINE_ROWS,
        threshold=_kept_from(pilot, eps),
        most_near=None,
        rng=rng,
        n_threads=kernel.backend.n_threads,
        check=kernel.backend.check,
    )
    dense = of_rows[fine.block_of[fine.near_row]] | of_keys[key_tiles.block_of[fine.near_col]]
    kept = float(fine.stands_for[fine.near_row[dense]].sum())
    outcome.numbers |= {"dense_blocks": int(of_rows.sum()), "kept_from": fine.threshold}
    if _BYTES_PER_PAIR * kept > max_memory:
        return moment
    queries, keys = (
        blocks.order[np.repeat(of, blocks.sizes)]
        for of, blocks in ((of_rows, query_blocks), (of_keys, key_tiles))
    )
    if pilot.symmetric:
        search.whole_rows(np.union1d(queries, keys), fine.threshold)
    else:
        search.whole_rows(queries, fine.threshold)
        search.whole_columns(keys, fine.threshold)
    return np.where(of_rows[:, None] | of_keys, fine.per_pair(fine.light), moment)


def _kept_from(pilot: Pilot, eps: float) -> float:
    """The value from which on all pairs are kept of what is looked at in full."""
    return min(pilot.threshold, _KEPT_FROM * eps / math.sqrt(len(pilot.key_tiles.order)))


def both_ways(found: FoundPairs, n_threads: int | None) -> FoundPairs:
    """With every pair its mirror image: the search may have met only one of them."""
    return Compiled(n_threads).merge_pairs(
        found,
        found.cols,
        found.rows,
        found.values,
    )


class Drawn:
    """Pairs drawn independently, over their probabilities; queries and keys in order."""

    values: csr_array

    def __init__(
        self, query_blocks: Blocks, key_tiles: Blocks, pi: Float64, n_queries: int, n_keys: int
    ) -> None:
        self.query_blocks, self.key_tiles, self.pi = query_blocks, key_tiles, pi
        self.of_key = np.zeros(n_keys)  # sums of (1 - pi) (K / pi)^2, in order
        self.of_query = np.zeros(n_queries)

    def add(self, x: Array, y: Array) -> None:
        """Add the product with x to y."""
        y[self.query_blocks.order] += self.values @ x[self.key_tiles.order]

    def add_transposed(self, x: Array, y: Array) -> None:
        """Add the product of the transpose with x to y."""
        y[self.key_tiles.order] += self.values.T @ x[self.query_blocks.order]

    def take_out(self, pairs: FoundPairs) -> None:
        """Forget these pairs: they are counted elsewhere."""
        if len(pairs.values) == 0:
            return
        row = np.repeat(np.arange(len(self.of_query), dtype=np.int32), np.diff(self.values.indptr))
        col = self.values.indices
        value = self.values.data * self.pi[self._block[row], self._tile[col]]
        # Only values as large as those of the pairs can be among them, but for rounding.
        at = np.flatnonzero(value >= (1 - _ROUNDING) * float(pairs.values.min()))
        row, col = row[at], col[at]
        listed = _listed(pairs, self.query_blocks.order[row], self.key_tiles.order[col])
        row, col, at = row[listed], col[listed], at[listed]
        pi = self.pi[self._block[row], self._tile[col]]
        variance = (1 - pi) * self.values.data[at].astype(np.float64) ** 2
        self.of_query -= np.bincount(row, variance, len(self.of_query))
        self.of_key -= np.bincount(col, variance, len(self.of_key))
        self.values.data[at] = 0

    @property
    def _block(self) -> Index:
        return np.repeat(np.arange(len(self.query_blocks.sizes)), self.query_blocks.sizes)

    @property
    def _tile(self) -> Index:
        return np.repeat(np.arange(len(self.key_tiles.sizes)), self.key_tiles.sizes)

    def variances(self, symmetric: bool) -> tuple[Float64, Float64]:
        """Estimated variance of every key's column and every query's row, by their numbers."""
        of_key, of_query = np.empty_like(self.of_key), np.empty_like(self.of_query)
        of_key[self.key_tiles.order] = np.maximum(self.of_key, 0.0)
        of_query[self.query_blocks.order] = np.maximum(self.of_query, 0.0)
        if symmetric:
            both = of_key + of_query
            return both, both.copy()
        return of_key, of_query


def draw_pairs(
    kernel: KernelMatrix,
    bandwidth: float,
    query_blocks: Blocks,
    key_tiles: Blocks,
    pi: Float64,
    once: bool,
    rng: np.random.Generator,
) -> Drawn:
    """Every pair with the probability of its block and tile; one of its two places if ``once``."""
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    check = kernel.backend.check or _never

    def of_block(block: int, rng: np.random.Generator) -> tuple[Any, ...]:
        check()
        first, last = query_blocks.start[block : block + 2]
        of_tiles = np.where(key_tiles.start[1:] > first, pi[block], 0.0) if once else pi[block]
        row, col, tile = bernoulli(of_tiles, last - first, key_tiles, rng)
        if once:
            above = first + row < col
            row, col, tile = row[above], col[above], tile[above]
        values = Compiled(1).pair_kernel(
            kernel.queries,
            kernel.keys,
            query_blocks.order[first + row].astype(np.int64),
            key_tiles.order[col].astype(np.int64),
            bandwidth,
        )
        probability = of_tiles[tile]
        values /= probability
        variance = (1 - probability) * values**2
        drawn.of_query[first:last] = np.bincount(row, variance, last - first)
        lengths = np.bincount(row, minlength=last - first)
        of_key = np.bincount(col, variance, n_keys)
        return lengths, col, values.astype(kernel.keys.dtype), of_key

    drawn = Drawn(query_blocks, key_tiles, pi, n_queries, n_keys)
    lengths, cols, values = [np.zeros(1, np.int64)], list[Index32](), list[Array]()
    # A generator for each block: the draws do not depend on who makes them first.
    rngs = rng.spawn(len(pi))
    for n_drawn, col, value, of_key in _mapped(of_block, rngs, kernel.backend.n_threads):
        lengths.append(n_drawn)
        cols.append(col)
        values.append(value)
        drawn.of_key += of_key
    drawn.values = _sparse(
        np.concatenate(values), np.concatenate(cols), np.cumsum(np.concatenate(lengths)), n_keys
    )
    return drawn


def _mapped(
    of_block: Callable[[int, np.random.Generator], tuple[Any, ...]],
    rngs: Sequence[np.random.Generator],
    n_threads: int | None,
) -> Iterator[tuple[Any, ...]]:
    """Results of all blocks in order; by the calling thread alone where no other can be started."""
    with ThreadPoolExecutor(n_threads or default_threads()) as pool:
        try:
            # Copies: some blocks may be done already when a thread cannot be started.
            results = pool.map(of_block, range(len(rngs)), copy.deepcopy(rngs))
        except RuntimeError:
            pool.shutdown(cancel_futures=True)
            results = map(of_block, range(len(rngs)), rngs)
        yield from results


def bernoulli(
    pi: Float64, n_rows: int, tiles: Blocks, rng: np.random.Generator
) -> tuple[Index32, Index32, Index32]:
    """Rows, columns and tiles of places drawn in ``n_rows`` rows of tiles, by row and column.

    Each with its tile's probability, independently: the gaps between them are geometric.
    """
    rows, cols, lengths = [], [], []
    for p, size, first in zip(pi, tiles.sizes, tiles.start[:-1], strict=True):
        row, col = np.divmod(_in_tile(p, n_rows * size, rng), np.int32(size))
        rows.append(row.astype(np.int16 if n_rows < 2**15 else np.int32))
        cols.append(col + np.int32(first))
        lengths.append(len(row))
    tile = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    row = np.concatenate(rows)
    by_row = np.argsort(row, kind="stable")  # a radix sort for short integers
    return row[by_row].astype(np.int32), np.concatenate(cols)[by_row], tile[by_row]


def _in_tile(p: float, size: int, rng: np.random.Generator) -> Index32:
    if p <= 0 or p >= 1:
        return np.arange(size if p >= 1 else 0, dtype=np.int32)
    mean, scale = p * size, -1 / np.log1p(-p)
    at_once = int(mean + 4 * np.sqrt(mean) + 4)
    places = np.empty(0)
    while len(places) == 0 or places[-1] < size:
        gaps = np.ceil(scale * rng.standard_exponential(at_once))
        places = np.append(places, np.cumsum(gaps) + (places[-1] if len(places) else -1.0))
    return places[: np.searchsorted(places, size)].astype(np.int32)


def _search_what_stands_out(search: Search, drawn: Drawn, symmetric: bool, eps: float) -> int:
    """Find all near pairs of the keys and queries that vary most; their number.

    Where one pair was drawn that should have been found, others were not drawn.
    """
    of_key, of_query = drawn.variances(symmetric)
    n_searched = 0
    for of, rows in ((of_query, True), (of_key, False))[: 1 if symmetric else 2]:
        most = int(_MOST_SEARCHED * len(of))
        index = np.flatnonzero(_stand_out(of, eps, most)).astype(np.int32)
        n_searched += len(index)
        if len(index):
            compare = search.whole_rows if rows else search.whole_columns
            compare(index, _kept_from(search.pilot, eps))
    drawn.take_out(search.found)
    return n_searched


def _with_whole(
    kernel: KernelMatrix, learnt: Study, drawn: Drawn, eps: float, room: float
) -> FrozenMatrix:
    """The matrix with keys and queries kept whole that still vary too much."""
    symmetric, found = learnt.pilot.symmetric, learnt.search.found
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    of_key, of_query = drawn.variances(symmetric)
    most = int(min(_MOST_WHOLE, room / 2 / kernel.keys.itemsize / n_queries / n_keys) * n_keys)
    keys, queries = (_stand_out(of, eps, most) for of in (of_key, of_query))
    near = _sparse(found.values.astype(kernel.keys.dtype), found.cols, found.indptr, n_keys)
    _clear(near, queries, keys)
    _clear(drawn.values, queries[drawn.query_blocks.order], keys[drawn.key_tiles.order])
    if symmetric:
        of_whole_keys = of_whole_queries = columns_of(kernel, np.flatnonzero(keys))
    else:
        of_whole_keys = columns_of(kernel, np.flatnonzero(keys))
        of_whole_queries = columns_of(kernel.transposed, np.flatnonzero(queries))
    return FrozenMatrix(
        drawn,
        near,
        symmetric,
        np.flatnonzero(keys),
        of_whole_keys,
        np.flatnonzero(queries),
        of_whole_queries,
    )


def columns_of(kernel: KernelMatrix, keys: Index) -> Array:
    """Kernel values (n_queries, len(keys)): the product with the columns of the identity."""
    return kernel.at_keys(keys).product(np.eye(len(keys), dtype=kernel.keys.dtype)).out


def _stand_out(variance: Float64, eps: float, most: int) -> Mask:
    """Those whose variance is near what is allowed or above, at most some of them."""
    out = np.zeros(len(variance), np.bool_)
    worst = np.argsort(variance, kind="stable")[::-1][:most]
    out[worst[variance[worst] > _STANDS_OUT * eps**2]] = True
    return out


def _sparse(values: Array, cols: Index32, indptr: Index, n_keys: int) -> csr_array:
    """A sparse matrix over these arrays; long integers in one would make the other long, too."""
    short = indptr.astype(np.int32) if len(cols) < 2**31 else indptr
    return csr_array((values, cols, short), shape=(len(indptr) - 1, n_keys))


def _listed(pairs: FoundPairs, rows: Index32, cols: Index32) -> Mask:
    """Which places are among the pairs: a binary search in each row, all at once."""
    low, high = pairs.indptr[rows], pairs.indptr[rows + 1]
    last, n_pairs = high, len(pairs.cols)
    while (low < high).any():
        middle = (low + high) // 2
        below = (low < high) & (pairs.cols[np.minimum(middle, n_pairs - 1)] < cols)
        low, high = (
            np.where(below, middle + 1, low),
            np.where(below, high, np.minimum(middle, high)),
        )
    return np.asarray((low < last) & (pairs.cols[np.minimum(low, n_pairs - 1)] == cols))


def _clear(a: csr_array, rows: Mask, cols: Mask) -> None:
    """Set some rows and columns to zero."""
    if rows.any():
        a.data[np.repeat(rows, np.diff(a.indptr))] = 0
    if cols.any():
        a.data[cols[a.indices]] = 0
