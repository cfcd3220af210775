"""Randomly pivoted Cholesky with rejection: columns whose span is close to a kernel matrix.

Pivots are proposed a block at a time, each with probability proportional to what the pivots before
the block leave of the diagonal. Within the block a proposal is accepted with the share of it that
the pivots accepted before leave: the pivots are distributed as if they were picked one by one, and
none repeats another, but kernel values and products are made by the block (accelerated RPCholesky:
Epperly, Tropp, Webber, 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from approxkmv.engine.survey.thin import inverse_of_lower, times
from approxkmv.loops.types import Array, Float64, Index

# Proposals made together. More of them share their products, but more of them are rejected.
BLOCK = 64
# A pivot of less than this many units of rounding, of the largest entry, would only add noise.
_UNITS = 16.0
# Blocks without an accepted pivot after which the diagonal that is left is taken for rounding.
_MOST_IDLE = 3


class PivotedCholesky:
    """A factor F with ``F F^T`` close to a matrix and never above it, grown pivot by pivot.

    ``columns(j)`` gives the columns numbered j of the matrix, and ``entries(j)`` its rows and
    columns j. Proposals have probabilities in proportion to ``weight`` times the diagonal left.
    """

    def __init__(
        self,
        columns: Callable[[Index], Array],
        entries: Callable[[Index], Float64] | None,
        diagonal: Float64,
        rng: np.random.Generator,
        weight: Float64 | None = None,
        *,
        unit: float = 2.0**-23,
        jitter: float = 0.0,
        n_threads: int = 1,
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        self._columns, self._entries, self._rng = columns, entries, rng
        self._weight = np.ones(len(diagonal)) if weight is None else weight
        self._jitter, self._n_threads = jitter, n_threads
        self._least = _UNITS * unit * float(diagonal.max(initial=0.0))
        self._buffer = np.empty((len(diagonal), 0), dtype)
        self._idle = 0
        self.left = diagonal.astype(np.float64)
        self.pivots: Index = np.empty(0, np.int64)

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return len(self.pivots)

    @property
    def factor(self) -> Array:
        """F, of shape (n, rank)."""
        return self._buffer[:, : self.rank]

    @property
    def exhausted(self) -> bool:
        """Whether nothing but rounding is left where pivots can be proposed."""
        return self._idle >= _MOST_IDLE

    def grow(self, rank: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Add pivots until there are ``rank``, or none is left, or ``enough()`` is true."""
        while self.rank < rank and not self.exhausted and not enough():
            chance = np.where(self.left > self._least, self._weight * self.left, 0.0)
            total = float(chance.sum())
            if not total > 0:
                self._idle = _MOST_IDLE
                return
            size = min(BLOCK, rank - self.rank)
            proposed = self._rng.choice(len(chance), size, p=chance / total)
            # A second proposal of the same pivot would be rejected.
            _, first = np.unique(proposed, return_index=True)
            self._add(proposed[np.sort(first)])

    def append(self, pivots: Index) -> None:
        """Add these pivots, none of which is in the span of the others."""
        for first in range(0, len(pivots), BLOCK):
            some = pivots[first : first + BLOCK]
            left = self._outside(some)
            self._extend(some, left, self._core(some, left))

    def _add(self, proposed: Index) -> None:
        """Accept some of the proposals."""
        left = None
        if self._entries is None:
            left = self._outside(proposed)
        core = self._core(proposed, left)
        chance = self.left[proposed] * self._rng.random(len(proposed))
        accepted = accepted_pivots(core, chance, self._least)
        if len(accepted) == 0:
            # What is left of them is less than was thought.
            self.left[proposed] = np.minimum(self.left[proposed], core.diagonal().clip(0.0))
            self._idle += 1
            return
        self._idle = 0
        pivots = proposed[accepted]
        left = self._outside(pivots) if left is None else left[:, accepted]
        self._extend(pivots, left, core[np.ix_(accepted, accepted)])

    def _outside(self, j: Index) -> Array:
        """What is left of columns j of the matrix."""
        inside = times(self.factor, self.factor[j].T, self._n_threads)
        return np.asarray(self._columns(j) - inside)

    def _core(self, j: Index, left: Array | None) -> Float64:
        """What is left of the rows and columns j of the matrix."""
        if self._entries is None:
            assert left is not None
            return np.asarray(left[j], np.float64)
        rows = self.factor[j].astype(np.float64)
        return np.asarray(self._entries(j) - times(rows, rows.T))

    def _extend(self, pivots: Index, left: Array, core: Float64) -> None:
        core = (core + core.T) / 2
        core[np.diag_indices(len(core))] += self._jitter * (1 + np.trace(core))
        try:
            root = np.asarray(np.linalg.cholesky(core), np.float64)
        except np.linalg.LinAlgError:  # an operator with errors; what was picked so far serves
            self._idle = _MOST_IDLE
            return
        inverse = inverse_of_lower(root).T
        part = times(left.astype(np.float64), inverse, self._n_threads)
        if self.rank + len(pivots) > self._buffer.shape[1]:
            empty = np.empty((len(part), max(self.rank, 2 * BLOCK)), self._buffer.dtype)
            self._buffer = np.concatenate([self.factor, empty], axis=1)
        self._buffer[:, self.rank : self.rank + len(pivots)] = part
        self.pivots = np.append(self.pivots, pivots)
        self.left = np.maximum(self.left - np.einsum("ij,ij->i", part, part), 0.0)
        self.left[self.pivots] = 0.0


def accepted_pivots(core: Float64, chance: Float64, least: float) -> Index:
    """Which proposals are accepted, one after another: those with more left than ``chance``.

    ``core`` is what earlier pivots leave of the matrix at the proposals.
    """
    left = core.diagonal().copy()
    accepted: list[int] = []
    rows = np.empty((len(core), len(core)))
    for i in range(len(core)):
        if left[i] <= max(chance[i], least):
            continue
        n = len(accepted)
        row = (core[i] - rows[:n, i] @ rows[:n]) / np.sqrt(left[i])
        rows[n] = row
        left -= row * row
        accepted.append(i)
    return np.asarray(accepted, np.int64)
