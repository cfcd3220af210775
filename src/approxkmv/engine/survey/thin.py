"""Products of dense matrices in pieces for which a BLAS starts no threads.

Its threads would wait for more work on the cores that the compiled loops need: with them picking
512 pivots took 0.9 s instead of 0.1 s on two cores.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack

import numpy as np

from approxkmv.loops.types import Array, Float64

# Multiply-adds of one piece, below which OpenBLAS stays on its thread, and sides of pieces.
_PIECE, _INNER, _COLUMNS = 1 << 18, 512, 64
# Pieces from which on threads of our own share them: starting one takes as long as one piece.
_WORTH_A_THREAD = 8


def times(a: Array, b: Array, n_threads: int = 1) -> Array:
    """``a @ b``, with the same bits for any number of threads."""
    out = np.zeros((len(a), b.shape[1]), np.result_type(a, b))
    for first in range(0, b.shape[1], _COLUMNS):
        columns = slice(first, first + _COLUMNS)
        for inner in range(0, a.shape[1], _INNER):
            some = slice(inner, inner + _INNER)
            right = np.ascontiguousarray(b[some, columns])
            _add_product(a[:, some], right, out[:, columns], n_threads)
    return out


def _add_product(a: Array, b: Array, out: Array, n_threads: int) -> None:
    rows = max(1, _PIECE // b.size)
    n_pieces = len(a) // rows
    n_shares = min(n_threads, n_pieces // _WORTH_A_THREAD) or 1
    ends = [n_pieces * i // n_shares * rows for i in range(n_shares + 1)]
    shares = [slice(*some) for some in itertools.pairwise(ends)]

    def add(share: slice) -> None:
        pieces = a[share].reshape(-1, rows, a.shape[1])
        out[share] += np.matmul(pieces, b).reshape(-1, b.shape[1])

    for_others, mine = shares[:-1], shares[-1]
    with ExitStack() as others:
        while for_others:
            thread = threading.Thread(target=add, args=(for_others[-1],))
            try:
                thread.start()
            except RuntimeError:  # no other thread can be started
                break
            others.callback(thread.join)
            for_others.pop()
        for share in (*for_others, mine):
            add(share)
    whole = n_pieces * rows
    if whole < len(a):
        out[whole:] += a[whole:] @ b


def inverse_of_lower(root: Float64) -> Float64:
    """The inverse of a lower triangular matrix, from those of halves of it."""
    if len(root) <= _COLUMNS:
        return np.asarray(np.tril(np.linalg.inv(root)))
    half = len(root) // 2
    first, second = inverse_of_lower(root[:half, :half]), inverse_of_lower(root[half:, half:])
    out = np.zeros_like(root)
    out[:half, :half], out[half:, half:] = first, second
    out[half:, :half] = -times(second, times(np.ascontiguousarray(root[half:, :half]), first))
    return out


def lower_root(matrix: Float64) -> Float64:
    """The lower Cholesky factor; ``LinAlgError`` where the matrix is not positive."""
    if len(matrix) <= _COLUMNS:
        return np.asarray(np.linalg.cholesky(matrix), np.float64)
    half = len(matrix) // 2
    out = np.zeros_like(matrix)
    out[:half, :half] = lower_root(matrix[:half, :half])
    across = solve_lower(out[:half, :half], matrix[:half, half:])
    out[half:, :half] = across.T
    out[half:, half:] = lower_root(matrix[half:, half:] - times(across.T, across))
    return out


def solve_lower(root: Float64, b: Float64, n_threads: int = 1) -> Float64:
    """``root^-1 b`` for a lower triangular matrix, half after half."""
    if len(root) <= _COLUMNS:
        return np.asarray(times(inverse_of_lower(root), b), np.float64)
    half = len(root) // 2
    first = solve_lower(root[:half, :half], b[:half], n_threads)
    rest = b[half:] - times(root[half:, :half], first, n_threads)
    return np.concatenate([first, solve_lower(root[half:, half:], rest, n_threads)])


def solve_transposed(root: Float64, b: Float64, n_threads: int = 1) -> Float64:
    """``root^-T b`` for a lower triangular matrix, half after half."""
    if len(root) <= _COLUMNS:
        return np.asarray(times(inverse_of_lower(root).T, b), np.float64)
    half = len(root) // 2
    second = solve_transposed(root[half:, half:], b[half:], n_threads)
    rest = b[:half] - times(root[half:, :half].T, second, n_threads)
    return np.concatenate([solve_transposed(root[:half, :half], rest, n_threads), second])
