r"""Assumption (A): the tail of K is at most c times its head.

The head is the n largest entries of the whole matrix, the tail all others, and c = tail/head.
Everything is computed from logarithms of entries, so that heads of attention whose kernel values
underflow still have a constant (docs/errata.md E22). For unequal numbers of queries and keys the
head has the larger number of entries (E17).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.spatial import distance

from approxkmv.kernel.frame import of_differences
from approxkmv.loops.compiled import Compiled
from approxkmv.paper.find_heavy import HeavyPairs
from approxkmv.paper.shared_draws import largest_mean

Array = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]

# Differences of logarithms, and means of them, stay finite.
LOWEST_LOG = -1e300
_BLOCK = 1 << 22  # entries of K in memory at a time: 32 MB


def log_kernel(queries: Array, keys: Array, bandwidth: float) -> Float:
    """Logarithms of the entries of K, by direct differences; lower ones count as -1e300.

    Examples
    --------
    >>> import numpy as np
    >>> float(log_kernel(np.array([[0.0]]), np.array([[100.0]]), 1.0)[0, 0])
    -5000.0
    """
    largest = max(float(np.abs(points).max(initial=0.0)) for points in (queries, keys))
    factor, slope = of_differences(bandwidth, largest, np.dtype(np.float64))
    q, k = (np.multiply(points, factor, dtype=np.float64) for points in (queries, keys))
    logs = distance.cdist(q, k, "sqeuclidean")
    logs *= slope
    return np.asarray(np.maximum(logs, LOWEST_LOG, out=logs))


@dataclass(frozen=True)
class TailToHead:
    """Sums of the tail and the head, as logarithms.

    Attributes
    ----------
    log_tail, log_head : float
    n_head : int
        Entries in the head.
    """

    log_tail: float
    log_head: float
    n_head: int

    @property
    def c(self) -> float:
        """Tail over head, the constant of Assumption (A)."""
        return math.exp(self.log_tail - self.log_head) if self.log_head > -math.inf else math.nan

    @property
    def log_kernel_sum(self) -> float:
        """Logarithm of ‖K‖₁, the sum of all entries."""
        return float(np.logaddexp(self.log_tail, self.log_head))


def tail_to_head(log_entries: Iterable[Float], n_head: int) -> TailToHead:
    """Tail and head of a matrix that arrives in blocks of logarithms of its entries.

    Entries that leave the head are added to the tail one block at a time, so that a tail far
    smaller than the head keeps its digits.

    Examples
    --------
    >>> import numpy as np
    >>> round(tail_to_head([np.log([[1.0, 0.5], [0.25, 0.5]])], 2).c, 12)
    0.5
    """
    head, log_tail = largest_entries(log_entries, n_head)
    return TailToHead(log_tail, _log_sum(head), n_head)


def largest_entries(log_entries: Iterable[Float], n_largest: int) -> tuple[Float, float]:
    """Logarithms of the largest entries, in no order, and of the sum of all others.

    Examples
    --------
    >>> import numpy as np
    >>> largest, log_rest = largest_entries([np.log([[1.0, 0.5], [0.25, 0.25]])], 1)
    >>> float(np.exp(largest[0])), round(float(np.exp(log_rest)), 12)
    (1.0, 1.0)
    """
    largest = np.empty(0)
    log_rest = -math.inf
    for block in log_entries:
        both = np.concatenate([largest, block.ravel()])
        if len(both) > n_largest:
            both.partition(len(both) - n_largest)
            log_rest = float(np.logaddexp(log_rest, _log_sum(both[: len(both) - n_largest])))
        largest = both[-n_largest:]
    return largest, log_rest


def _log_sum(logs: Float) -> float:
    if len(logs) == 0 or logs.max() == -math.inf:
        return -math.inf
    return float(special.logsumexp(logs))


def kernel_constant(queries: Array, keys: Array, bandwidth: float) -> TailToHead:
    """Exact c of a Gaussian kernel matrix. O(n² d) time, O(n) memory besides one block.

    Examples
    --------
    >>> import numpy as np
    >>> ones = kernel_constant(np.zeros((3, 1)), np.zeros((3, 1)), 1.0)
    >>> round(ones.c, 12)  # n²/n - 1
    2.0
    """
    blocks = kernel_blocks(queries, keys, bandwidth)
    return tail_to_head(blocks, max(len(queries), len(keys)))


def softmax_constant(
    query: Array,
    key: Array,
    scale: float | None = None,
    *,
    is_causal: bool = False,
    bias: Array | None = None,
) -> TailToHead:
    """Exact c of the softmax matrix D⁻¹A, whose entries sum to the number of queries (E18).

    Parameters
    ----------
    query, key : ndarray of shape (n_queries, n_dims), (n_keys, n_dims)
    scale : float, optional
        Of the scores; default d^(-1/2).
    is_causal : bool
        Leave later keys out, as a language model does (E19).
    bias : ndarray of shape (n_queries, n_keys), optional
        Added to the scaled scores.

    Examples
    --------
    >>> import numpy as np
    >>> round(softmax_constant(np.zeros((4, 2)), np.zeros((4, 2))).c, 12)
    3.0
    """

    def blocks() -> Iterator[Float]:
        first = 0
        for scores in _scores(query, key, scale):
            rows = np.arange(first, first + len(scores))
            first += len(scores)
            if bias is not None:
                scores += bias[rows]
            if is_causal:
                scores[rows[:, None] < np.arange(len(key))] = -math.inf
            yield scores - special.logsumexp(scores, axis=1, keepdims=True)

    return tail_to_head(blocks(), max(len(query), len(key)))


def attention_constant(query: Array, key: Array, scale: float | None = None) -> TailToHead:
    """Exact c of the unnormalised attention matrix A (E18).

    Examples
    --------
    >>> import numpy as np
    >>> round(attention_constant(np.zeros((4, 2)), np.zeros((4, 2))).c, 12)
    3.0
    """
    return tail_to_head(_scores(query, key, scale), max(len(query), len(key)))


def _row_blocks(rows: Array, n_columns: int) -> Iterator[Array]:
    step = max(1, _BLOCK // max(1, n_columns))
    for first in range(0, len(rows), step):
        yield rows[first : first + step]


def kernel_blocks(queries: Array, keys: Array, bandwidth: float) -> Iterator[Float]:
    """Logarithms of the entries of K, some rows at a time."""
    for part in _row_blocks(queries, len(keys)):
        yield log_kernel(part, keys, bandwidth)


def _scores(query: Array, key: Array, scale: float | None) -> Iterator[Float]:
    scale = query.shape[1] ** -0.5 if scale is None else scale
    wide = key.astype(np.float64)
    for part in _row_blocks(query, len(key)):
        yield scale * (part.astype(np.float64) @ wide.T)


def prefix_constants(queries: Array, keys: Array, bandwidth: float, *, i_min: int = 50) -> Float:
    """Constant c of every leading square K[:i, :i], i from ``i_min`` to n: Experiment (i).

    Row and column i arrive together. Only the n largest entries so far can ever be in a later head,
    so each step merges 2i + 1 new entries with at most n old ones: O(n²) in all, O(n) memory.

    Returns
    -------
    ndarray of shape (n - i_min + 1,)

    Examples
    --------
    >>> import numpy as np
    >>> prefix_constants(np.zeros((4, 1)), np.zeros((4, 1)), 1.0, i_min=2).round(12).tolist()
    [1.0, 2.0, 3.0]
    """
    n = min(len(queries), len(keys))
    arrivals = (
        np.concatenate(
            [
                log_kernel(queries[i : i + 1], keys[: i + 1], bandwidth)[0],
                log_kernel(queries[:i], keys[i : i + 1], bandwidth)[:, 0],
            ]
        )
        for i in range(n)
    )
    return _scan(arrivals, (), n, i_min)


def prefix_constants_of_logs(log_entries: Float, *, i_min: int = 50) -> Float:
    """Constants of all leading squares of matrices that are given as logarithms of their entries.

    Parameters
    ----------
    log_entries : ndarray of shape (..., n, n)
        For instance one matrix for each head of a layer: they are scanned together.
    i_min : int

    Returns
    -------
    ndarray of shape (..., n - i_min + 1)

    Examples
    --------
    >>> import numpy as np
    >>> prefix_constants_of_logs(np.zeros((2, 3, 3)), i_min=2).round(12).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    n = log_entries.shape[-1]
    arrivals = (
        np.concatenate([log_entries[..., i, : i + 1], log_entries[..., :i, i]], axis=-1)
        for i in range(n)
    )
    return _scan(arrivals, log_entries.shape[:-2], n, i_min)


def _scan(arrivals: Iterable[Float], stack: tuple[int, ...], n: int, i_min: int) -> Float:
    """Constants of growing matrices; step i brings their next 2i + 1 entries, in the last axis.

    All sums are relative to the largest entry so far, which may rise.
    """
    constants = np.empty((*stack, max(0, n - i_min + 1)))
    largest = np.empty((*stack, 0))
    peak, total = np.full((*stack, 1), -math.inf), np.zeros((*stack, 1))
    for i, new in enumerate(arrivals):
        top = np.maximum(peak, new.max(axis=-1, keepdims=True))
        total = total * np.exp(peak - top) + np.exp(new - top).sum(axis=-1, keepdims=True)
        peak = top
        # The i + 1 largest come last, and before them the others that a later head may need.
        largest = np.concatenate([largest, new], axis=-1)
        size = largest.shape[-1]
        largest.partition([max(0, size - n), size - i - 1], axis=-1)
        largest = largest[..., max(0, size - n) :]
        if i + 1 >= i_min:
            head = np.exp(largest[..., -i - 1 :] - peak).sum(axis=-1, keepdims=True)
            constants[..., i + 1 - i_min] = np.maximum(total / head - 1, 0.0)[..., 0]
    return constants


@dataclass(frozen=True)
class OrderRatios:
    """Ratios of the n-th largest entry to later ones, as in Experiment (ii).

    Attributes
    ----------
    log_to_next : float
        Logarithm of n-th over (n+1)-th; finite whatever the entries are.
    log_to_twice : float
        Logarithm of n-th over 2n-th.
    """

    log_to_next: float
    log_to_twice: float

    @property
    def to_next(self) -> float:
        """n-th over (n+1)-th largest entry; inf beyond 1e308."""
        return _exp(self.log_to_next)

    @property
    def to_twice(self) -> float:
        """n-th over 2n-th largest entry; inf beyond 1e308."""
        return _exp(self.log_to_twice)


def _exp(log: float) -> float:
    return math.exp(log) if log < 709 else math.inf


def order_ratios(queries: Array, keys: Array, bandwidth: float) -> OrderRatios:
    """Ratios of the n-th to the (n+1)-th and the 2n-th largest entry of K: Experiment (ii).

    Differences of logarithms, so that none is a division by an underflowed zero (E22).

    Examples
    --------
    >>> import numpy as np
    >>> ratios = order_ratios(np.zeros((3, 1)), np.zeros((3, 1)), 1.0)
    >>> ratios.to_next, ratios.to_twice
    (1.0, 1.0)
    """
    n = max(len(queries), len(keys))
    n_entries = len(queries) * len(keys)
    if n_entries < 2 * n:
        raise ValueError(f"the 2n-th largest entry needs 2n = {2 * n} entries, got {n_entries}.")
    top, _ = largest_entries(kernel_blocks(queries, keys, bandwidth), 2 * n)
    top = np.sort(top)[::-1]
    return OrderRatios(float(top[n - 1] - top[n]), float(top[n - 1] - top[2 * n - 1]))


@dataclass(frozen=True)
class ConstantInterval:
    """Interval that holds c with the stated confidence, and what it was made of.

    Attributes
    ----------
    low, high : float
    confidence : float
        Over the uniform pairs, for any found pairs.
    head : tuple of float
        Bounds on the head; the lower one is certain.
    kernel_sum : tuple of float
        Bounds on ‖K‖₁.
    n_pairs : int
        Uniform pairs evaluated.
    """

    low: float
    high: float
    confidence: float
    head: tuple[float, float]
    kernel_sum: tuple[float, float]
    n_pairs: int


def constant_interval(
    queries: Array,
    keys: Array,
    bandwidth: float,
    *,
    found: HeavyPairs,
    n_pairs: int,
    delta: float = 0.05,
    rng: np.random.Generator,
    n_threads: int | None = None,
) -> ConstantInterval:
    r"""Confidence interval for c from found pairs and uniform ones, for large n.

    The found entries are known. What was not found is estimated from ``n_pairs`` uniform pairs, in
    which found ones count as 0. The n largest found entries bound the head from below; from above,
    head <= nτ + Σ (K_ij - τ)_+ for any τ, used at the n-th largest found entry. Means of uniform
    pairs are bounded by the better of the empirical Bernstein and the Chernoff-kl bound, each at
    δ/6.

    Parameters
    ----------
    queries, keys : ndarray
    bandwidth : float
    found : HeavyPairs
        From :func:`find_heavy`, at any recall, drawn independently of ``rng``. If it was exhaustive
        every other entry is below its threshold, and the interval is narrower for it.
    n_pairs : int
        At least 2.
    delta : float
        The interval fails with at most this probability.
    rng : numpy.random.Generator
    n_threads : int, optional

    Returns
    -------
    ConstantInterval

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.paper.find_heavy import scan_all
    >>> points = np.random.default_rng(0).standard_normal((300, 8))
    >>> found = scan_all(points, points, bandwidth=0.7, threshold=0.01)
    >>> interval = constant_interval(
    ...     points, points, 0.7, found=found, n_pairs=20000, rng=np.random.default_rng(1)
    ... )
    >>> interval.low < kernel_constant(points, points, 0.7).c < interval.high
    True
    """
    m, n = len(queries), len(keys)
    n_head = max(m, n)
    rows, cols = rng.integers(m, size=n_pairs), rng.integers(n, size=n_pairs)
    values = Compiled(n_threads).pair_kernel(
        queries,
        keys,
        rows,
        cols,
        bandwidth,
    )
    known = np.isin(rows * n + cols, found.rows * n + found.indices)
    left = np.where(known, 0.0, values)
    # An exhaustive scan leaves nothing above its threshold; tables may, however rarely.
    ceiling = found.threshold if found.family is None else 1.0

    largest = np.sort(found.values)[::-1][:n_head]
    tau = float(largest[-1]) if len(largest) == n_head else found.threshold
    head_low = float(largest.sum())
    over = (
        _upper_mean(np.maximum(left - tau, 0.0), ceiling - tau, delta / 6) if ceiling > tau else 0.0
    )
    head_high = n_head * tau + float(np.maximum(found.values - tau, 0).sum()) + m * n * over

    found_sum = float(found.values.sum())
    sum_low = found_sum + m * n * (ceiling - _upper_mean(ceiling - left, ceiling, delta / 6))
    sum_high = found_sum + m * n * _upper_mean(left, ceiling, delta / 6)
    return ConstantInterval(
        low=max(0.0, sum_low / head_high - 1),
        high=sum_high / head_low - 1 if head_low > 0 else math.inf,
        confidence=1 - delta,
        head=(head_low, head_high),
        kernel_sum=(sum_low, sum_high),
        n_pairs=n_pairs,
    )


def _upper_mean(sample: Float, ceiling: float, failure: float) -> float:
    """Upper bound on the mean of values in [0, ceiling]; fails with at most twice ``failure``."""
    scaled = np.minimum(sample / ceiling, 1.0)
    chernoff = largest_mean(float(scaled.mean()), len(sample), failure)
    return ceiling * min(_bernstein_upper(scaled, failure), chernoff)


def _bernstein_upper(sample: Float, failure: float) -> float:
    """Empirical Bernstein bound of Maurer and Pontil (2009), values in [0, 1]."""
    log_term = math.log(2 / failure)
    spread = math.sqrt(2 * float(sample.var(ddof=1)) * log_term / len(sample))
    return min(1.0, float(sample.mean()) + spread + 7 * log_term / (3 * (len(sample) - 1)))
