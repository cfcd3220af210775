r"""The paper's runtime algorithm: attention from hashed blocks and sampled columns.

KDEformer (Zandieh et al., 2023) with the paper's addition, in NumPy. Hash queries and keys by the
signs of random projections, sort them by hash, and compute pairs in the same block exactly. For
all other pairs draw keys with probabilities from the norms of the values, the same keys for every
query. Queries whose sampled terms vary more than the average get half as many keys again.

The paper decides on the extra keys from the very draws it then averages, which is biased
(docs/errata.md E24): a row is extended because its draws looked variable. Here a separate pilot
decides, and takes no part in the answer; ``as_printed=True`` lets the draws themselves decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
Index = npt.NDArray[np.intp]

_ROWS = 1024  # queries at a time: their sampled scores stay in the cache


class Blocks(NamedTuple):
    """Queries and keys sorted by hash; block b holds places b·size to (b+1)·size of both."""

    queries: Index
    keys: Index
    size: int


class Draw(NamedTuple):
    """Keys drawn, their places in the sorted order, and one over (number of draws · p)."""

    places: Index
    weight: Array


def sampled_attention(
    query: Array,
    key: Array,
    v: Array,
    *,
    scale: float,
    n_samples: int,
    n_bits: int,
    rng: np.random.Generator,
    as_printed: bool = False,
) -> Array:
    """Estimate softmax(scale · query keyᵀ) v for one vector v.

    Parameters
    ----------
    query, key : ndarray of shape (n, n_dims)
    v : ndarray of shape (n,)
    scale : float
    n_samples : int
        Keys drawn for a row of below-average variance; blocks have half as many keys.
    n_bits : int
        Signs in a hash.
    rng : numpy.random.Generator
    as_printed : bool
        The draws that are averaged decide which rows get more, and there is no pilot.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> points, v = rng.standard_normal((500, 8)), rng.standard_normal(500)
    >>> y = sampled_attention(points, points, v, scale=0.3, n_samples=250, n_bits=4, rng=rng)
    >>> A = np.exp(0.3 * points @ points.T)
    >>> bool(np.linalg.norm(A @ v / A.sum(1) - y) < 0.15 * np.linalg.norm(v))
    True
    """
    blocks = sorted_blocks(query, key, n_bits, max(1, n_samples // 2), rng)
    query, key = query[blocks.queries] * query.dtype.type(scale), key[blocks.keys]
    columns = np.column_stack([v, np.ones_like(v)])[blocks.keys]
    p = probabilities(columns)
    first, second = (draw(p, max(2, size), rng) for size in (n_samples, n_samples // 2))
    deciding = first if as_printed else draw(p, max(2, n_samples // 4), rng)
    block_sums = heavy_sums(query, key, columns, blocks.size)
    rest = adaptive_sums(query, key, columns, block_sums, (deciding, first, second), blocks.size)
    sums = block_sums + rest
    y = np.empty(len(query), query.dtype)
    y[blocks.queries] = sums[:, 0] / sums[:, 1]
    return y


def sorted_blocks(
    query: Array, key: Array, n_bits: int, size: int, rng: np.random.Generator
) -> Blocks:
    """Order both by hash, so that similar ones come to lie in the same block."""
    directions = rng.standard_normal((query.shape[1], n_bits)).astype(query.dtype)
    order_queries, order_keys = (
        np.argsort(gray_rank(points @ directions > 0), kind="stable") for points in (query, key)
    )
    return Blocks(order_queries, order_keys, size)


def gray_rank(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Place of each row of bits in a Gray code, where neighbours differ in one bit.

    Examples
    --------
    >>> gray_rank(np.array([[0, 0], [0, 1], [1, 1], [1, 0]], bool)).tolist()
    [0, 1, 2, 3]
    """
    binary = np.logical_xor.accumulate(bits, axis=1)
    return np.asarray(binary @ (1 << np.arange(bits.shape[1])[::-1]))


def probabilities(columns: Array) -> Array:
    """Drawing probabilities: norms of the rows of [v, 1] over its spectral norm, plus 1/n."""
    norms = np.linalg.norm(columns, axis=1)
    p = norms / np.linalg.norm(columns, 2) + 1 / len(columns)
    return np.asarray(p / p.sum())


def draw(p: Array, n_samples: int, rng: np.random.Generator) -> Draw:
    """Draw places with replacement."""
    places = rng.choice(len(p), n_samples, p=p.astype(np.float64) / p.sum(dtype=np.float64))
    return Draw(places, (1 / (n_samples * p[places])).astype(p.dtype))


def heavy_sums(query: Array, key: Array, columns: Array, size: int) -> Array:
    """Sums over the keys of each query's own block."""
    whole = len(query) // size * size
    n_dims, n_columns = query.shape[1], columns.shape[1]
    entries = np.exp(
        query[:whole].reshape(-1, size, n_dims)
        @ key[:whole].reshape(-1, size, n_dims).transpose(0, 2, 1)
    )
    sums = (entries @ columns[:whole].reshape(-1, size, n_columns)).reshape(whole, n_columns)
    rest = np.exp(query[whole:] @ key[whole:].T) @ columns[whole:]
    return np.concatenate([sums, rest])


def light_sums(
    query: Array, key: Array, columns: Array, drawn: Draw, size: int, rows: Index
) -> Array:
    """Estimated sums over the keys outside of each query's block, for the queries listed."""
    weighted = columns[drawn.places] * drawn.weight[:, None]
    sums = np.empty((len(rows), columns.shape[1]), query.dtype)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        sums[start : start + _ROWS] = _outside(query, key, drawn, size, some) @ weighted
    return sums


def adaptive_sums(
    query: Array,
    key: Array,
    columns: Array,
    block_sums: Array,
    draws: tuple[Draw, Draw, Draw],
    size: int,
) -> Array:
    """Light sums of every row; rows that the deciding draws call variable use 1.5 times the draws.

    ``draws`` are those that decide, those of every row, and half as many more.
    """
    deciding, first, second = draws
    variable = _above_mean(_pilot_variance(query, key, columns, block_sums, deciding, size))
    rest = light_sums(query, key, columns, first, size, np.arange(len(query)))
    more = light_sums(query, key, columns, second, size, variable)
    # 1.5 times the draws, all with the same weight.
    rest[variable] = (2 * rest[variable] + more) / 3
    return rest


def _outside(query: Array, key: Array, drawn: Draw, size: int, rows: Index) -> Array:
    """Entries of A at drawn keys; 0 where the key is in the query's own block."""
    entries = np.exp(query[rows] @ key[drawn.places].T)
    entries[(rows // size)[:, None] == (drawn.places // size)[None, :]] = 0
    return np.asarray(entries)


def _pilot_variance(
    query: Array, key: Array, columns: Array, block_sums: Array, pilot: Draw, size: int
) -> Array:
    """Variance over the pilot's draws of each row's term A_ij (v_j - o_i) / (p_j D_i)."""
    variance = np.empty(len(query), query.dtype)
    v = columns[pilot.places, 0]
    for start in range(0, len(query), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(query)))
        terms = _outside(query, key, pilot, size, rows) * pilot.weight
        sums = block_sums[rows] + np.column_stack([terms @ v, terms.sum(axis=1)])
        o, total = sums[:, :1] / sums[:, 1:], sums[:, 1:]
        variance[rows] = (terms * (v - o) / total).var(axis=1)
    return variance


def _above_mean(variance: Array) -> Index:
    return np.flatnonzero(variance > variance.mean())
