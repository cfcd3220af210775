"""The Lanczos recurrence from several random vectors at once, and its quadrature rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal, solve_banded
from scipy.sparse.linalg import LinearOperator

from approxkmv.loops.types import Array, Float64


class Recurrence(NamedTuple):
    """Tridiagonal matrices, one per probe: diagonals (p, m) and off-diagonals (p, m).

    The last off-diagonal leads out of the matrix; it is 0 where the recurrence ended by itself.
    ``lengths`` says after how many steps.
    """

    diagonal: Float64
    off_diagonal: Float64
    lengths: np.ndarray[tuple[int], np.dtype[np.intp]]


def recurrence(K: LinearOperator, probes: Array, n_steps: int) -> Recurrence:
    """Lanczos from every column of ``probes``, all columns in one product per step.

    Keeps every vector and orthogonalises against all of them, twice: the weights of the rules are
    wrong otherwise once an eigenvalue has converged.
    """
    n, n_probes = probes.shape
    n_steps = min(n_steps, n)
    diagonal, off_diagonal = np.zeros((n_probes, n_steps)), np.zeros((n_probes, n_steps))
    lengths = np.full(n_probes, n_steps)
    vectors = np.zeros((n_steps, n, n_probes), K.dtype)
    current = (probes / np.linalg.norm(probes, axis=0)).astype(K.dtype)
    # A remainder of this size is rounding of the product: the space is invariant.
    unit = 100 * float(np.finfo(K.dtype).eps)
    scale = np.zeros(n_probes)
    for step in range(n_steps):
        vectors[step] = current
        w = np.asarray(K @ current, np.float64)
        scale = np.maximum(scale, np.linalg.norm(w, axis=0))
        diagonal[:, step] = np.einsum("ip,ip->p", current, w)
        for _ in range(2):
            for old in vectors[: step + 1]:
                w -= old * np.einsum("ip,ip->p", old, w)
        length = np.linalg.norm(w, axis=0)
        ended = length <= unit * scale
        lengths = np.where(ended & (lengths == n_steps), step + 1, lengths)
        off_diagonal[:, step] = np.where(ended, 0.0, length)
        current = (w / np.where(ended, np.inf, length)).astype(K.dtype)
    return Recurrence(diagonal, off_diagonal, lengths)


def gauss(rule: Recurrence) -> tuple[Float64, Float64]:
    """Nodes and weights, shape (p, m): Ritz values and squared first entries of their vectors.

    Rules that ended early are filled up with nodes of weight 0.
    """
    nodes, weights = np.zeros_like(rule.diagonal), np.zeros_like(rule.diagonal)
    for p, m in enumerate(rule.lengths):
        values, vectors = eigh_tridiagonal(rule.diagonal[p, :m], rule.off_diagonal[p, : m - 1])
        nodes[p, :m], weights[p, :m] = values, vectors[0] ** 2
    return nodes, weights


def radau(rule: Recurrence, end: float) -> tuple[Float64, Float64]:
    """Nodes and weights, shape (p, m + 1), with one node at ``end``, below all eigenvalues."""
    n_probes, n_steps = rule.diagonal.shape
    nodes, weights = np.full((n_probes, n_steps + 1), end), np.zeros((n_probes, n_steps + 1))
    for p, m in enumerate(rule.lengths):
        diagonal, off = rule.diagonal[p, :m], rule.off_diagonal[p, :m]
        if off[-1] > 0:
            banded = np.zeros((3, m))
            banded[0, 1:], banded[1], banded[2, :-1] = off[:-1], diagonal - end, off[:-1]
            last = np.zeros(m)
            last[-1] = off[-1] ** 2
            diagonal = np.append(diagonal, end + solve_banded((1, 1), banded, last)[-1])
        values, vectors = eigh_tridiagonal(diagonal, off[: len(diagonal) - 1])
        nodes[p, : len(values)], weights[p, : len(values)] = values, vectors[0] ** 2
    return nodes, weights
