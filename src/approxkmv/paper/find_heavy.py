"""FindHeavy: all keys whose kernel value with a query is large (Algorithm 1, Lemma 3.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.kernel.frame import in_usual_units
from approxkmv.loops.compiled import Compiled
from approxkmv.paper import parameters
from approxkmv.paper.hashing import (
    BallCarving,
    HashFamily,
    Labels,
    n_tables_for_recall,
    near_radius,
    recall,
)
from approxkmv.paper.heavy_plan import plan_heavy

Array = npt.NDArray[np.floating]
Index = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_SCAN_AT_ONCE = 1 << 20  # candidates per call of the leaf, so that memory stays near the result's
_TILE = (512, 4096)  # queries by keys; 8 MB of float32


@dataclass(frozen=True, eq=False)
class HeavyPairs:
    """The sets S_i of Definition 3.3 that were found, as rows of a sparse matrix.

    Attributes
    ----------
    indptr, indices, values : ndarray
        Row i holds the keys ``indices[indptr[i]:indptr[i + 1]]``, ascending, with their kernel
        values.
    threshold : float
        Every value is at least this.
    recall : float
        Probability that a pair exactly at the threshold was found (nearer pairs do better); 1 for
        an exhaustive scan.
    n_tables : int
        Hash tables used; 0 for an exhaustive scan.
    hashes : int
        Single hash functions evaluated, over points, bits and tables.
    scanned_pairs : int
        Kernel values evaluated, repeats included.
    family : HashFamily or None
        None: every pair was looked at.
    """

    indptr: Index
    indices: Index
    values: Values
    threshold: float
    recall: float
    n_tables: int
    hashes: int
    scanned_pairs: int
    family: HashFamily | None

    @property
    def rows(self) -> Index:
        """The query of each pair."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def __str__(self) -> str:
        """One line with the counts."""
        how = f"{self.n_tables} tables of {self.family}" if self.family else "exhaustive scan"
        return (
            f"{len(self.indices)} pairs with K >= {self.threshold:.4g} in {len(self.indptr) - 1} "
            f"rows; {how}; recall at the threshold {self.recall:.4g}; "
            f"{self.scanned_pairs} pairs scanned"
        )


def find_heavy(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike,
    *,
    bandwidth: float,
    threshold: float,
    rng: int | np.random.Generator | None,
    constants: parameters.Constants = "paper",
    recall: float | None = None,
    family: HashFamily | None = None,
    n_tables: int | None = None,
    never_exact: bool = False,
    n_threads: int | None = None,
) -> HeavyPairs:
    r"""Find the pairs with kernel value at least ``threshold`` by locality-sensitive hashing.

    Parameters
    ----------
    queries, keys : array_like of shape (n_queries, n_dims), (n_keys, n_dims)
    bandwidth : float
    threshold : float
        The paper's :math:`n^{-\alpha}`.
    rng : int, numpy.random.Generator or None
    constants : {"paper", "practical"}
        ``"paper"``: the ball carving of Lemma 2.1 and :math:`10 n^\alpha \log n` tables.
        ``"practical"``: E2LSH sized for ``recall`` at the least predicted time, or an exhaustive
        scan where that is cheaper still (then ``recall`` of the result is 1).
    recall : float, optional
        Wanted probability that a pair at the threshold is found. Default: what the paper's number
        of tables gives, or 0.95 with practical constants.
    family : HashFamily, optional
        Use this family.
    n_tables : int, optional
        Use this many tables, with the paper's family if none is given.
    never_exact : bool
        Use tables also where looking at every pair is cheaper.
    n_threads : int, optional

    Returns
    -------
    HeavyPairs

    Notes
    -----
    Every reported value is computed, so a pair is never reported wrongly; it can only be missed.
    Tables are built one at a time: memory is O(n) and the result's.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0.0], [0.1], [9.0]])
    >>> rng = np.random.default_rng(0)
    >>> pairs = find_heavy(points, points, bandwidth=1.0, threshold=0.2, rng=rng)
    >>> pairs.indices[pairs.indptr[0] : pairs.indptr[1]].tolist()
    [0, 1]
    """
    q, k = _check.point_pair(queries, keys)
    _check.finite(q, "queries")
    _check.finite(k, "keys")
    bandwidth = _check.positive(bandwidth, "bandwidth")
    q, k, bandwidth = in_usual_units(q, k, bandwidth)
    _check.one_of(constants, "constants", ("paper", "practical"))
    if recall is not None:
        recall = _check.probability(recall, "recall")
    rng = _check.generator(rng)
    tables = None
    # From 1 on nothing is heavy but copies, from 0 down everything is: no hashing helps.
    if 0 < threshold < 1 and len(q) and len(k):
        wanted = _Wanted(constants, recall, family, n_tables, never_exact)
        tables = _choose_tables(q, k, bandwidth, threshold, wanted, rng)
    if tables is None:
        return scan_all(q, k, bandwidth=bandwidth, threshold=threshold, n_threads=n_threads)
    return _scan_tables(q, k, bandwidth, threshold, *tables, rng, n_threads)


@dataclass(frozen=True)
class _Wanted:
    constants: parameters.Constants
    recall: float | None
    family: HashFamily | None
    n_tables: int | None
    never_exact: bool


def _choose_tables(
    queries: Array,
    keys: Array,
    bandwidth: float,
    threshold: float,
    wanted: _Wanted,
    rng: np.random.Generator,
) -> tuple[HashFamily, int] | None:
    """Family and number of tables; None where looking at every pair is cheaper."""
    n = max(len(keys), 2)
    radius = near_radius(bandwidth, threshold)
    family, rate = wanted.family, wanted.recall
    if wanted.constants == "practical" and wanted.n_tables is None:
        rate = parameters.FIND_RECALL if rate is None else rate
        if family is None:
            plan = plan_heavy(
                queries,
                keys,
                radius=radius,
                wanted_recall=rate,
                rng=rng,
                always_hash=wanted.never_exact,
            )
            return None if plan.family is None else (plan.family, plan.n_tables)
    if family is None:
        family = BallCarving.for_lemma(                                                       # 4
            n, threshold=threshold, bandwidth=bandwidth, n_dims=keys.shape[1]
        )
    if wanted.n_tables is not None:
        return family, wanted.n_tables                                                        # 3
    if rate is None:
        alpha = -math.log(threshold) / math.log(n)
        return family, parameters.n_tables(n, alpha, n_queries=len(queries))                  # 3
    return family, n_tables_for_recall(float(family.collision_probability(radius)), rate)


def _scan_tables(
    queries: Array,
    keys: Array,
    bandwidth: float,
    threshold: float,
    family: HashFamily,
    n_tables: int,
    rng: np.random.Generator,
    n_threads: int | None,
) -> HeavyPairs:
    radius = near_radius(bandwidth, threshold)
    found = _Found(len(queries), len(keys))
    scanned = 0
    loops = Compiled(n_threads)
    for _ in range(n_tables):
        h = family.draw(rng)                                                                  # 5
        met, start, stop, order = _join(h(queries), h(keys))                                  # 5
        for part in _parts(stop - start):                                                     # 6
            rows, cols, values = loops.scan_ranges(                                           # 7
                queries[met[part]],
                keys,
                order,
                start[part],
                stop[part],
                bandwidth,
                threshold,
            )
            found.add(met[part][rows], cols, values)
        scanned += int((stop - start).sum())
    indptr, indices, values = found.rows()
    return HeavyPairs(
        indptr=indptr,
        indices=indices,
        values=values,
        threshold=threshold,
        recall=float(recall(family.collision_probability(radius), n_tables)),
        n_tables=n_tables,
        hashes=n_tables * family.n_bits * (len(queries) + len(keys)),
        scanned_pairs=scanned,
        family=family,
    )


def _join(query_labels: Labels, key_labels: Labels) -> tuple[Index, Index, Index, Index]:
    """Match queries in label order with their bucket of keys, ``order[start:stop]``.

    Label order puts queries of one bucket side by side, so that its keys are still in cache.
    """
    order = np.argsort(key_labels)
    by_label = np.argsort(query_labels)
    sorted_keys, sorted_queries = key_labels[order], query_labels[by_label]
    start = np.searchsorted(sorted_keys, sorted_queries, "left")
    stop = np.searchsorted(sorted_keys, sorted_queries, "right")
    meets = stop > start
    return by_label[meets], start[meets], stop[meets], order


def _parts(lengths: Index) -> Iterator[slice]:
    """Slices of queries with about ``_SCAN_AT_ONCE`` candidates each."""
    total = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        done = total[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(total, done + _SCAN_AT_ONCE, "right")))
        yield slice(first, last)
        first = last


class _Found:
    """Distinct pairs, merged whenever the new ones outnumber the old: memory follows the result."""

    def __init__(self, n_queries: int, n_keys: int) -> None:
        self._n_queries, self._n_keys = n_queries, n_keys
        self._codes: list[Index] = [np.empty(0, np.int64)]
        self._values: list[Values] = [np.empty(0)]
        self._n_new = 0

    def add(self, rows: Index, cols: Index, values: Values) -> None:
        self._codes.append(rows * self._n_keys + cols)
        self._values.append(values)
        self._n_new += len(rows)
        if self._n_new > max(_SCAN_AT_ONCE, len(self._codes[0])):
            self._merge()

    def _merge(self) -> None:
        codes, first = np.unique(np.concatenate(self._codes), return_index=True)
        self._codes, self._values = [codes], [np.concatenate(self._values)[first]]
        self._n_new = 0

    def rows(self) -> tuple[Index, Index, Values]:
        self._merge()
        rows, cols = np.divmod(self._codes[0], self._n_keys)
        return _indptr(rows, self._n_queries), cols, self._values[0]


def _indptr(rows: Index, n_rows: int) -> Index:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))]).astype(np.int64)


def scan_all(
    queries: Array, keys: Array, *, bandwidth: float, threshold: float, n_threads: int | None = None
) -> HeavyPairs:
    """Find the same pairs by looking at all of them: recall 1.

    Squared distances come from matrix products of centred points, tile by tile; pairs within the
    radius, widened by a bound on the rounding error, are then evaluated directly. Products use
    BLAS's own threads.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0.0], [0.1], [9.0]])
    >>> scan_all(points, points, bandwidth=1.0, threshold=0.2).indices.tolist()
    [0, 1, 0, 1, 2]
    """
    none = np.empty(0, np.int64)
    all_rows, all_cols, all_values = [none], [none], [np.empty(0)]
    lifted_queries, lifted_keys = _lift(queries, keys, bandwidth, threshold)
    step_rows, step_cols = _TILE
    for i in range(0, len(queries), step_rows):
        rows, cols = [none], [none]
        for j in range(0, len(keys), step_cols):
            tile = lifted_queries[i : i + step_rows] @ lifted_keys[j : j + step_cols].T
            near = np.flatnonzero(tile <= 0)
            row, col = np.divmod(near, tile.shape[1])
            rows.append(row + i)
            cols.append(col + j)
        row, col = np.concatenate(rows), np.concatenate(cols)
        ascending = np.argsort(row * len(keys) + col)
        row, col = row[ascending], col[ascending]
        values = Compiled(n_threads).pair_kernel(queries, keys, row, col, bandwidth, )
        heavy = values >= threshold
        all_rows.append(row[heavy])
        all_cols.append(col[heavy])
        all_values.append(values[heavy])
    return HeavyPairs(
        indptr=_indptr(np.concatenate(all_rows), len(queries)),
        indices=np.concatenate(all_cols),
        values=np.concatenate(all_values),
        threshold=threshold,
        recall=1.0,
        n_tables=0,
        hashes=0,
        scanned_pairs=len(queries) * len(keys),
        family=None,
    )


def _lift(queries: Array, keys: Array, bandwidth: float, threshold: float) -> tuple[Array, Array]:
    """Vectors whose inner products are ‖q-k‖² - radius² - margin.

    The margin bounds the rounding of the product: (2d + 10) units of the largest squared norms.
    float32 where that is below a tenth of the radius squared, else float64.
    """
    centre = keys.sum(axis=0, dtype=np.float64) / max(1, len(keys))
    q, k = queries.astype(np.float64) - centre, keys.astype(np.float64) - centre
    q_norm, k_norm = (q**2).sum(axis=1), (k**2).sum(axis=1)
    reach = q_norm.max(initial=0.0) + k_norm.max(initial=0.0)
    radius = near_radius(bandwidth, min(threshold, 1.0)) if threshold > 0 else math.inf
    radius_squared = min(radius**2, 4 * reach + 1)  # no pair is farther than that
    units = (2 * keys.shape[1] + 10) * (reach + radius_squared)
    dtype = np.float32 if units * np.finfo(np.float32).eps < 0.1 * radius_squared else np.float64
    margin = units * np.finfo(dtype).eps
    lifted_queries = np.column_stack([-2 * q, np.ones(len(q)), q_norm - radius_squared - margin])
    lifted_keys = np.column_stack([k, k_norm, np.ones(len(k))])
    return lifted_queries.astype(dtype), lifted_keys.astype(dtype)
