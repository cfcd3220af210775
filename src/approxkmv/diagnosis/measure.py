"""The constant c and what belongs to it, from every entry of the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from approxkmv.loops.types import Array
from approxkmv.paper.assumption import OrderRatios, kernel_blocks, largest_entries

Float = npt.NDArray[np.float64]
Advance = Callable[[float], None]  # told what share of the work has been done since the last call


@dataclass(frozen=True, eq=False)
class Measured:
    """What one look at a matrix gave.

    Attributes
    ----------
    c : float
    interval : tuple of float
        Holds c with the confidence asked for; (c, c) where every entry was looked at.
    log_row_sums : ndarray
        Of the rows that were summed.
    ratios : OrderRatios
    pairs : int
        Kernel evaluations made.
    is_exact : bool
    """

    c: float
    interval: tuple[float, float]
    log_row_sums: Float
    ratios: OrderRatios
    pairs: int
    is_exact: bool
    stopped: bool = False  # for lack of time there are fewer rows than usual


def measure_all(queries: Array, keys: Array, bandwidth: float, advance: Advance) -> Measured:
    """Look at every entry: O(n² d) time, O(n) memory besides one block."""
    n_head = max(len(queries), len(keys))
    row_sums: list[Float] = []

    def watched() -> Iterator[Float]:
        for block in kernel_blocks(queries, keys, bandwidth):
            row_sums.append(special.logsumexp(block, axis=1))
            yield block
            advance(len(block) / len(queries))

    largest, log_rest = largest_entries(watched(), 2 * n_head)
    largest = np.sort(largest)[::-1]
    tail = np.append(largest[n_head:], log_rest)
    c = math.exp(special.logsumexp(tail) - special.logsumexp(largest[:n_head]))
    return Measured(
        c=c,
        interval=(c, c),
        log_row_sums=np.concatenate(row_sums),
        ratios=ratios_at(largest, n_head),
        pairs=len(queries) * len(keys),
        is_exact=True,
    )


def ratios_at(largest: Float, n_head: int) -> OrderRatios:
    """Ratios of the n-th of these descending entries to the next and to the 2n-th.

    NaN where there are fewer entries.
    """

    def log_ratio(to: int) -> float:
        return float(largest[n_head - 1] - largest[to]) if to < len(largest) else math.nan

    return OrderRatios(log_ratio(n_head), log_ratio(2 * n_head - 1))
