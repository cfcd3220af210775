"""The sparse matrix of an operator: found pairs, drawn pairs, and some whole rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from approxkmv.engine.survey.order import Blocks
from approxkmv.loops.types import Array, Float64, FoundPairs, Index, Index32

Mask = npt.NDArray[np.bool_]
_ROUNDING = 1e-3  # of a kernel value, more than enough
_CSR = ("data", "indices", "indptr")
_WHOLE = ("whole_keys", "of_whole_keys", "whole_queries", "of_whole_queries")


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

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that it is made of, to be kept in a file."""
        drawn = self.drawn
        parts = {f"near_{n}": getattr(self.near, n) for n in _CSR}
        parts |= {f"drawn_{n}": getattr(drawn.values, n) for n in _CSR}
        for side, blocks in (("query", drawn.query_blocks), ("key", drawn.key_tiles)):
            parts |= {f"{side}_order": blocks.order, f"{side}_start": blocks.start}
        parts |= {"pi": drawn.pi, "of_key": drawn.of_key, "of_query": drawn.of_query}
        return parts | {n: getattr(self, n) for n in _WHOLE}

    @classmethod
    def from_arrays(
        cls, parts: dict[str, Any], shape: tuple[int, int], symmetric: bool
    ) -> FrozenMatrix:
        """What :meth:`arrays` gave, after a check that no index leads out of the matrix."""
        query_blocks = _blocks(parts["query_order"], parts["query_start"], shape[0])
        key_tiles = _blocks(parts["key_order"], parts["key_start"], shape[1])
        drawn = Drawn(query_blocks, key_tiles, parts["pi"], *shape)
        drawn.of_key, drawn.of_query = parts["of_key"], parts["of_query"]
        near, drawn.values = (_csr(parts, name, shape) for name in ("near", "drawn"))
        whole = {name: parts[name] for name in _WHOLE}
        if symmetric:
            whole["of_whole_queries"] = whole["of_whole_keys"]
        wanted = {
            "of_whole_keys": (shape[0], len(whole["whole_keys"])),
            "of_whole_queries": (shape[1], len(whole["whole_queries"])),
        }
        for name, right in wanted.items():
            if whole[name].shape != right:
                raise ValueError(f"{name} has shape {whole[name].shape}, not {right}")
        for name, n in (("whole_keys", shape[1]), ("whole_queries", shape[0])):
            if not ((whole[name] >= 0) & (whole[name] < n)).all():
                raise ValueError(f"{name} leads out of the matrix")
        return cls(drawn, near, symmetric, **whole)

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

    @property
    def n_pairs(self) -> int:
        """Number of pairs drawn, those taken out since included."""
        return int(self.values.nnz)

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


def _blocks(order: Index32, start: Index, n: int) -> Blocks:
    """Blocks read from a file: a permutation, cut in order."""
    if order.shape != (n,) or not (np.sort(order) == np.arange(n)).all():
        raise ValueError("the order of the points is no permutation")
    sizes = np.diff(start)
    if start.ndim != 1 or len(start) < 2 or start[0] != 0 or start[-1] != n or (sizes < 0).any():
        raise ValueError("the blocks do not cover the points")
    block_of = np.empty(n, np.int32)
    block_of[order] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Blocks(order, start, block_of)


def _csr(parts: dict[str, Any], name: str, shape: tuple[int, int]) -> csr_array:
    """A sparse matrix read from a file; its own check looks at every index."""
    matrix = csr_array(tuple(parts[f"{name}_{part}"] for part in _CSR), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def sparse(values: Array, cols: Index32, indptr: Index, n_keys: int) -> csr_array:
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


def clear(a: csr_array, rows: Mask, cols: Mask) -> None:
    """Set some rows and columns to zero."""
    if rows.any():
        a.data[np.repeat(rows, np.diff(a.indptr))] = 0
    if cols.any():
        a.data[cols[a.indices]] = 0
