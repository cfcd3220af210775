r"""The constant c from some rows, with an interval that needs no assumption about the data.

c + 1 is the sum S of all entries over the sum H of the n largest. Two facts make a few thousand
random rows enough:

- With the features :math:`\phi` of the kernel a row sum is
  :math:`\langle\phi(q_i),\sum_j\phi(k_j)\rangle`, at most the root of the sum of the keys' own
  kernel matrix. So row sums of a symmetric matrix are at most :math:`\sqrt S`, not n.
- The head of a symmetric matrix is its diagonal, n ones. Otherwise, for any cut of the rows into
  groups, H is at least the sum of the largest entries of each group in their fair number; and
  :math:`H\le\sqrt{n\,\|K\|_F^2}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from approxkmv._deadline import Deadline
from approxkmv.diagnosis.bounds import lower_mean, upper_mean
from approxkmv.diagnosis.measure import Advance, Measured, ratios_at
from approxkmv.kernel.matrix import prepare
from approxkmv.kernel.rounding import rounding_bound
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Check
from approxkmv.paper.assumption import largest_entries, log_kernel

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# Rows summed: this many times the root of the number of keys, so n^1.5 pairs in all. At 262,144
# keys 16,384 rows; where c is 3 the interval is about [2.95, 3.4].
_ROWS_PER_ROOT = 32
_ROWS_PER_STEP = 2048
# Of these for the largest value that a row sum can have: bounds of the mean hardly depend on it.
_FOR_CEILING = 0.25
# Entries of whole rows looked at one by one, 0.1 us each in 100 dimensions.
_ENTRIES, _MOST_ROWS = 1 << 24, 512
_ROWS_PER_GROUP = 2
# With a limit of time: rows that tell how long one takes, rows summed at least, the share of the
# time for whole rows, of which there are at least a few, and coordinates a second of these.
_TIMED_ROWS, _FEWEST_ROWS, _FOR_TOPS, _FEWEST_TOPS, _COORDINATES_A_SECOND = 32, 16, 0.3, 2, 1e8


def measure_rows(
    queries: Array,
    keys: Array,
    bandwidth: float,
    *,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None,
    advance: Advance,
    deadline: Deadline | None = None,
) -> Measured:
    """Look at random rows only: O(n^1.5 d) time. ``queries is keys`` says that K is symmetric.

    With a deadline at as many of them as there is time for, a few at least.
    """
    symmetric = queries is keys
    n_rows, most_rows = math.ceil(_ROWS_PER_ROOT * math.sqrt(len(keys))), _MOST_ROWS
    stopped = False
    if deadline:
        fewer = _affordable(queries, keys, bandwidth, symmetric, n_threads, deadline)
        stopped = fewer < n_rows
        n_rows = min(n_rows, fewer)
        seconds = _FOR_TOPS * max(deadline.left(), 0.0)
        entries = seconds * _COORDINATES_A_SECOND / max(1, keys.shape[1])
        most_rows = min(most_rows, max(_FEWEST_TOPS, int(entries / len(keys))))
    look = _Look(bandwidth, n_rows, rng, n_threads)
    log_sums = look.log_row_sums(queries, keys)
    advance(0.5 if symmetric else 0.2)
    tops = _tops(queries, keys, bandwidth, rng, most_rows)
    advance(0.5 if symmetric else 0.2)
    if symmetric:
        c, interval = _symmetric(np.exp(log_sums), delta, len(keys), look.rounding)
    else:
        c, interval = _asymmetric(queries, keys, look, log_sums, tops, delta, advance)
    ratios = ratios_at(tops.largest, tops.n_head)
    return Measured(c, interval, log_sums, ratios, look.pairs + tops.pairs, False, stopped)


def _affordable(
    queries: Array,
    keys: Array,
    bandwidth: float,
    symmetric: bool,
    n_threads: int | None,
    deadline: Deadline,
) -> int:
    """Rows whose sums there is time for, as a few of them tell."""
    start = deadline.now()
    kernel = prepare(queries, keys, bandwidth, backend=Compiled(n_threads))
    prepared = deadline.now()
    some = np.arange(min(_TIMED_ROWS, len(queries)))
    kernel.at_queries(some).log_row_sums()
    each = (deadline.now() - prepared) / len(some)
    # Four sums of rows where queries and keys differ, one otherwise; each prepares the points.
    n_sums = 1.0 if symmetric else 2 + 2 * _FOR_CEILING
    left = (1 - _FOR_TOPS) * deadline.left() - 2 * n_sums * (prepared - start)
    return max(_FEWEST_ROWS, int(left / max(each, 1e-9) / n_sums))


def point_constant(
    queries: Array,
    keys: Array,
    bandwidth: float,
    *,
    rng: np.random.Generator,
    n_threads: int | None,
    check: Check = None,
) -> float:
    """Estimate of c from rows, without an interval and with fewer of them."""
    look = _Look(bandwidth, math.ceil(8 * math.sqrt(len(keys))), rng, n_threads, check)
    log_sums = look.log_row_sums(queries, keys)
    if queries is keys:
        return _symmetric_constant(np.exp(log_sums))
    return _estimate(log_sums, _tops(queries, keys, bandwidth, rng), len(queries))


class _Look:
    """Sums of random rows, and how many pairs they took."""

    def __init__(
        self,
        bandwidth: float,
        n_rows: int,
        rng: np.random.Generator,
        n_threads: int | None,
        check: Check = None,
    ) -> None:
        self._bandwidth, self._n_rows = bandwidth, n_rows
        self._rng, self._n_threads, self._check = rng, n_threads, check
        self.pairs = 0
        self.rounding = 0.0  # largest relative rounding error that a sum so far may have

    def log_row_sums(
        self, queries: Array, keys: Array, *, squared: bool = False, share: float = 1.0
    ) -> Float:
        """Log of the sums of K, or of K², of independent random rows, or of a share of as many.

        The square of the kernel is the kernel of bandwidth σ/√2.
        """
        bandwidth = self._bandwidth / math.sqrt(2) if squared else self._bandwidth
        kernel = prepare(queries, keys, bandwidth, backend=Compiled(self._n_threads))
        kernel = kernel.checked(self._check)
        self.rounding = max(self.rounding, min(rounding_bound(kernel, 1.0), 1.0))
        rows = self._rng.integers(len(queries), size=math.ceil(share * self._n_rows))
        self.pairs += len(rows) * len(keys)
        parts = np.array_split(rows, math.ceil(len(rows) / _ROWS_PER_STEP))
        return np.concatenate(
            [
                replace(
                    kernel,
                    queries=np.ascontiguousarray(kernel.queries[part]),
                    query_shift=kernel.query_shift[part],
                ).log_row_sums()
                for part in parts
            ]
        )


@dataclass(frozen=True, eq=False)
class _Tops:
    """Largest entries of random groups of rows, and of all these rows together."""

    group_sums: Float  # of each group, its share of the head
    n_groups: int  # that all rows would make
    largest: Float  # logarithms, descending: twice the share of the head
    n_head: int
    n_rows: int
    pairs: int


def _tops(
    queries: Array,
    keys: Array,
    bandwidth: float,
    rng: np.random.Generator,
    most_rows: int = _MOST_ROWS,
) -> _Tops:
    head_per_row = max(len(queries), len(keys)) / len(queries)
    size = min(_ROWS_PER_GROUP, len(queries))
    n_rows = min(most_rows, max(16, _ENTRIES // len(keys)))
    groups = [rng.choice(len(queries), size, replace=False) for _ in range(n_rows // size)]
    n_rows = len(groups) * size
    n_head = round(n_rows * head_per_row)
    group_sums: list[float] = []
    wide = keys.astype(np.float64)

    def blocks() -> Iterator[Float]:
        for group in groups:
            block = log_kernel(queries[group], wide, bandwidth)
            top, _ = largest_entries([block], int(size * head_per_row))
            group_sums.append(float(np.exp(top).sum()))
            yield block

    largest, _ = largest_entries(blocks(), 2 * n_head)
    return _Tops(
        np.array(group_sums),
        len(queries) // size,
        np.sort(largest)[::-1],
        n_head,
        n_rows,
        n_rows * len(keys),
    )


def _symmetric_constant(row_sums: Float) -> float:
    return max(0.0, float(row_sums.mean()) - 1)


def _symmetric(
    row_sums: Float, delta: float, n: int, rounding: float
) -> tuple[float, tuple[float, float]]:
    """The constant is the mean of row sums without the diagonal; each is at most √S - 1."""
    smallest, largest = row_sums * (1 - rounding), row_sums * (1 + rounding)
    low = lower_mean(np.maximum(smallest - 1, 0.0), delta / 2)
    low = max(low, float(smallest.max()) ** 2 / n - 1)
    high = upper_mean(
        np.maximum(largest - 1, 0.0),
        lambda mean: (1 + 2 * rounding) * math.sqrt(n * (mean + 1)) - 1,
        delta / 2,
    )
    high = min(high, n - 1.0)
    return min(max(_symmetric_constant(row_sums), low), high), (low, high)


def _asymmetric(
    queries: Array,
    keys: Array,
    look: _Look,
    log_sums: Float,
    tops: _Tops,
    delta: float,
    advance: Advance,
) -> tuple[float, tuple[float, float]]:
    """Bounds of S and H, six at a sixth of delta each."""
    share, m, n = delta / 6, len(queries), len(keys)
    n_head = max(m, n)

    def most(squared: bool) -> float:
        """Upper bound of every row sum: the root of the sum of the keys' own matrix."""
        sums = np.exp(look.log_row_sums(keys, keys, squared=squared, share=_FOR_CEILING))
        advance(0.2)
        more = 1 + look.rounding
        mean = upper_mean(more * sums, lambda m: more**2 * math.sqrt(n * m), share)
        return math.sqrt(n * mean)

    def upper_sum(sums: Float, ceiling: float) -> float:
        sums = sums * (1 + look.rounding)
        ceiling = max(min((1 + 2 * look.rounding) * ceiling, n), float(sums.max()))
        return m * min(upper_mean(sums, lambda mean: ceiling, share), ceiling)

    sums = np.exp(log_sums)
    squares = np.exp(look.log_row_sums(queries, keys, squared=True))
    advance(0.2)
    sum_low = m * lower_mean(sums * (1 - look.rounding), share)
    sum_high = upper_sum(sums, most(squared=False))
    frobenius = upper_sum(squares, most(squared=True))
    head_low = tops.n_groups * lower_mean(tops.group_sums, share)
    head_high = min(n_head, sum_high, math.sqrt(n_head * frobenius))
    low = max(0.0, sum_low / head_high - 1) if head_high > 0 else 0.0
    high = max(low, sum_high / head_low - 1) if head_low > 0 else math.inf
    return min(max(_estimate(log_sums, tops, m), low), high), (low, high)


def _estimate(log_sums: Float, tops: _Tops, n_queries: int) -> float:
    """Sum over head, each from its rows."""
    log_mean = float(special.logsumexp(log_sums)) - math.log(len(log_sums))
    log_head = float(special.logsumexp(tops.largest[: tops.n_head])) - math.log(tops.n_rows)
    return max(0.0, math.expm1(log_mean - log_head))
