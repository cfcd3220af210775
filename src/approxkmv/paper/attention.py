r"""Softmax attention by the paper's route: Lemma 4.1, then ApproxKMV, then a division.

Attention is :math:`D^{-1} A V` with :math:`D = \mathrm{diag}(A\mathbf{1})`, and A a Gaussian kernel
matrix K up to a factor per row, which cancels. So each column of V and the vector of ones is
multiplied with K by :func:`approx_kmv`, and the products are divided.

The guarantee, :math:`\|Kx - y\| \le \varepsilon\|x\|`, is about K, not about attention: where the
entries of K are small, y = 0 meets it and the quotient may be anything (docs/errata.md E27).
Whether that is so is estimated from a few rows computed exactly, counted with everything else.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt

from approxkmv._warnings import AssumptionWarning
from approxkmv.kernel import matrix as exact
from approxkmv.paper.approx_kmv import approx_kmv
from approxkmv.paper.reduction import GaussianInstance, attention_to_gaussian

Array = npt.NDArray[np.floating]

# Rows from which the norms of products are estimated: the mean of 64 squares is within 35 % of the
# truth at two standard errors where squares spread like a Gaussian's, and no claim rests on it.
_ROWS = 64


def paper_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None = None,
) -> tuple[Array, int, dict[str, object]]:
    """Attention of one head; also the kernel evaluations made, and what was found on the way.

    Parameters
    ----------
    query, key, value : ndarray of shape (m, d), (n, d), (n, r)
    scale : float
        Of the scores. Positive.
    eps, delta : float
        Each product has error at most ``eps * |x|``, all of them with probability 1 - delta.
    rng : numpy.random.Generator
    n_threads : int, optional

    Returns
    -------
    output : ndarray of shape (m, r)
        A row whose denominator came out 0 or below is the mean of the values.
    pairs : int
        Of the rows that norms are estimated from, and of all products.
    numbers : dict
        What was counted, and the estimates; ``rows_read`` are the rows they come from.
    """
    gaussian = attention_to_gaussian(query.astype(np.float64), key.astype(np.float64), scale)
    columns = np.column_stack([value.astype(np.float64), np.ones(len(key))])
    rows, seen = _some_rows(gaussian, columns, rng, n_threads)
    lengths = np.linalg.norm(columns, axis=0)
    norms = math.sqrt(len(query) / len(rows)) * np.linalg.norm(seen, axis=0)
    empty = norms <= eps * lengths
    if empty.any():
        warnings.warn(_emptiness(empty, eps), AssumptionWarning, stacklevel=5)
    products = np.empty((len(query), columns.shape[1]))
    pairs, hashes = len(rows) * len(key), 0
    for c in range(columns.shape[1]):
        products[:, c], run = approx_kmv(
            gaussian.queries,
            gaussian.keys,
            np.ascontiguousarray(columns[:, c]),
            bandwidth=gaussian.bandwidth,
            eps=eps,
            delta=delta / columns.shape[1],
            rng=rng,
            n_threads=n_threads,
            return_info=True,
        )
        pairs += run.pairs
        hashes += run.hash + run.density_hash
    row_sum = products[:, -1]
    usable = row_sum > 0
    output = np.broadcast_to(value.mean(axis=0), (len(query), value.shape[1])).copy()
    output[usable] = products[usable, :-1] / row_sum[usable, None]
    numbers: dict[str, object] = {
        "rows_read": len(rows),
        "largest_row_sum_read": float(seen[:, -1].max()),
        "hashes": hashes,
        "columns_with_an_empty_guarantee": int(empty[:-1].sum()),
        "row_sums_have_an_empty_guarantee": bool(empty[-1]),
        "rows_without_a_denominator": int((~usable).sum()),
    }
    return output.astype(value.dtype), pairs, numbers


def _some_rows(
    gaussian: GaussianInstance,
    columns: npt.NDArray[np.float64],
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Random rows, and what the products are there."""
    n_queries = len(gaussian.queries)
    rows = np.sort(rng.choice(n_queries, min(_ROWS, n_queries), replace=False))
    queries = np.ascontiguousarray(gaussian.queries[rows])
    seen = exact.product(queries, gaussian.keys, columns, gaussian.bandwidth, n_threads=n_threads)
    return rows, np.asarray(seen, np.float64)


def _emptiness(empty: npt.NDArray[np.bool_], eps: float) -> str:
    """Say for which products y = 0 would satisfy the guarantee."""
    what = [f"{int(empty[:-1].sum())} of {len(empty) - 1} columns of value"] * bool(
        empty[:-1].any()
    )
    what += ["the row sums"] * bool(empty[-1])
    return (
        f"The guarantee of the paper is empty here: for {' and '.join(what)}, y = 0 has an error "
        f"of at most eps |x| with eps={eps:g}, estimated from {_ROWS} rows at "
        "most. Nothing is promised about the attention output."
    )
