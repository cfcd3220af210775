"""Instances on which a sentence of the paper, or a formula as printed, goes wrong.

Each is as small and as plain as it can be: the kernel matrix is known on sight. The gallery,
docs/counterexamples.md, says what each of them shows; the numbers E4 to E9 are those of
docs/errata.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_FAR = 1e3  # bandwidths: the kernel is 0 in double precision


class Instance(NamedTuple):
    """A product: points, a vector, a bandwidth."""

    queries: Float64  # (n_queries, d)
    keys: Float64  # (n_keys, d)
    x: Float64  # (n_keys,)
    bandwidth: float


def row_of_ones(n: int) -> Instance:
    """One row of K is all ones, the others are zero; x is all ones.

    Equal keys, one query on them, the other queries far away (related work of the paper). The
    product has norm n, sqrt(n) times that of x.

    Examples
    --------
    >>> from approxkmv.exact import product
    >>> product(*row_of_ones(4)).tolist()
    [4.0, 0.0, 0.0, 0.0]
    """
    queries = np.full((n, 2), _FAR)
    queries[0] = 0.0
    return Instance(queries, np.zeros((n, 2)), np.ones(n), 1.0)


def null_space(n: int, *, rng: int | np.random.Generator) -> Instance:
    """Kx is exactly 0: each key stands there twice, with entries of x that cancel.

    An error relative to the norm of Kx allows nothing here, one relative to that of x does.

    Examples
    --------
    >>> queries, keys, x, bandwidth = null_space(6, rng=0)
    >>> len(keys), float(abs(x[:3] + x[3:]).max())
    (6, 0.0)
    """
    if n % 2:
        raise ValueError(f"n must be even, got {n}.")
    rng = np.random.default_rng(rng)
    half, entries = rng.standard_normal((n // 2, 3)), rng.standard_normal(n // 2)
    keys = np.concatenate([half, half])
    return Instance(rng.standard_normal((n, 3)), keys, np.concatenate([entries, -entries]), 1.0)


def hidden_one(n: int, *, hidden: bool = True, rng: int | np.random.Generator) -> Instance:
    """K is zero but for a single 1 in a random place, or without it; x is all ones.

    Whoever wants an error relative to the norm of Kx must tell the two apart.

    Examples
    --------
    >>> from approxkmv.exact import product
    >>> [float(product(*hidden_one(50, hidden=h, rng=0)).sum()) for h in (True, False)]
    [1.0, 0.0]
    """
    rng = np.random.default_rng(rng)
    # points on two lines, far from each other and among themselves
    places = _FAR * np.arange(n, dtype=np.float64)
    keys = np.column_stack([places, np.zeros(n)])
    queries = np.column_stack([places, np.full(n, _FAR)])
    if hidden:
        queries[rng.integers(n)] = keys[rng.integers(n)]
    return Instance(queries, keys, np.ones(n), 1.0)


def isolated(x: npt.ArrayLike) -> Instance:
    """K is the identity: queries and keys are the same points, far from each other.

    Examples
    --------
    >>> from approxkmv.exact import product
    >>> product(*isolated([1.0, -2.0, 3.0])).tolist()
    [1.0, -2.0, 3.0]
    """
    entries = np.asarray(x, dtype=np.float64)
    points = np.column_stack([_FAR * np.arange(len(entries)), np.zeros(len(entries))])
    return Instance(points, points, entries, 1.0)


def large_entry(n: int) -> Instance:
    """E4: K is the identity, and half of the squared norm of x is in one entry.

    That entry is in H_1, and its key is heavy for its query: the sum as printed counts it twice.

    Examples
    --------
    >>> x = large_entry(8).x
    >>> round(float(x[0] ** 2), 9), round(float((x**2).sum()), 9)
    (4.0, 8.0)
    """
    x = np.full(n, math.sqrt(0.5 * n / (n - 1)))
    x[0] = math.sqrt(0.5 * n)
    return isolated(x)


def rounded_squares(n: int, eps: float) -> Instance:
    r"""E7: K is the identity, and every square of x lies just above an edge of a bucket.

    Rounded up, a square grows by the factor 1 + eps/2. All keys are heavy and no draw is needed,
    but the rounded squares less the unrounded ones leave eps/2 in every row. One entry, of a
    query far from all keys, makes the squared norm n.

    Examples
    --------
    >>> x = rounded_squares(100, 0.2).x
    >>> round(float((x**2).sum()), 9), bool((x[:-1]**2 < 1).all())
    (100.0, True)
    """
    # the edge next to 1 from below, so that what is left over is small but positive
    square = (1 + eps / 2) ** -1 * (1 + 1e-9)
    x = np.full(n, math.sqrt(square))
    x[-1] = math.sqrt(n - (n - 1) * square)
    return isolated(x)


def below_the_floors(n: int, eps: float, *, gamma: float = 0.109) -> Instance:
    """E9: in one row every bucket of x lies just below the floor of its density structure.

    Buckets of six keys with squares (1 + eps/2)^m for as many m as there are, each at the distance
    where its density is 0.98 of the floor. One far key with a large entry makes the squared norm
    n; all other queries are far from everything.

    Examples
    --------
    >>> queries, keys, x, bandwidth = below_the_floors(2000, 0.1)
    >>> round(float((x**2).sum()), 6), np.unique(x[:-1]).size > 200
    (2000.0, True)
    """
    inner, log_n = eps / 2, math.log(n)
    highest = math.floor(gamma * log_n / math.log1p(inner)) - 1
    powers = (1 + inner) ** (highest - np.arange((n - 1) // 6, dtype=np.float64))
    level = np.sqrt(0.98 / (n * 6 * powers)) * inner / log_n
    light = level < 0.9 * n ** (-1 / 3)
    powers, level = powers[light], level[light]
    x = np.zeros(n)
    x[: 6 * len(powers)] = np.repeat(np.sqrt(powers * (1 - 1e-9)), 6)
    x[-1] = math.sqrt(n - x @ x)
    keys = np.full((n, 1), 1e4)
    keys[: 6 * len(powers), 0] = np.repeat(np.sqrt(-2 * np.log(level)), 6)
    queries = np.full((n, 1), -1e4)
    queries[0] = 0.0
    return Instance(queries, keys, x, 1.0)
