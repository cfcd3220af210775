"""How c grows with the number of points: on nested prefixes, in the order given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from approxkmv._deadline import Deadline
from approxkmv.diagnosis.sampled import point_constant
from approxkmv.loops.types import Array
from approxkmv.paper.assumption import kernel_constant

_HALVINGS = 4
_SMALLEST = 8
_EXACT_PAIRS = 1 << 22  # below, prefixes are looked at whole


@dataclass(frozen=True)
class Growth:
    """Constants of prefixes, each twice as long as the one before.

    Attributes
    ----------
    sizes : tuple of int
        Queries in the prefix; keys in the same proportion.
    constants : tuple of float
    exponent : float
        Slope of log c over log n by least squares: 0 where the assumption holds, 1 where every
        pair counts. NaN where fewer than two prefixes have c > 0.
    """

    sizes: tuple[int, ...]
    constants: tuple[float, ...]
    exponent: float


def measure_growth(
    queries: Array,
    keys: Array,
    bandwidth: float,
    *,
    whole: float,
    exact: bool,
    rng: np.random.Generator,
    n_threads: int | None,
    deadline: Deadline,
) -> Growth:
    """Constants of the first sixteenth, eighth, quarter, half, and of all, ``whole``.

    Raises ``OutOfTime`` when the time is over.
    """
    symmetric = queries is keys
    sizes, constants = [], []
    for halvings in range(_HALVINGS, 0, -1):
        part = queries[: len(queries) >> halvings]
        part_keys = part if symmetric else keys[: len(keys) >> halvings]
        if min(len(part), len(part_keys)) < _SMALLEST:
            continue
        deadline.check()
        sizes.append(len(part))
        if exact or len(part) * len(part_keys) <= _EXACT_PAIRS:
            constants.append(kernel_constant(part, part_keys, bandwidth).c)
        else:
            constants.append(
                point_constant(
                    part, part_keys, bandwidth, rng=rng, n_threads=n_threads, check=deadline.polled
                )
            )
    sizes.append(len(queries))
    constants.append(whole)
    return Growth(tuple(sizes), tuple(constants), fitted_exponent(sizes, constants))


def fitted_exponent(sizes: list[int], constants: list[float]) -> float:
    """Slope of log c over log n by least squares.

    Examples
    --------
    >>> round(fitted_exponent([10, 20, 40], [3.0, 6.0, 12.0]), 12)
    1.0
    """
    usable = [at for at, c in enumerate(constants) if 0 < c < math.inf]
    if len(usable) < 2:
        return math.nan
    log_sizes, log_constants = np.log(sizes), np.log(np.array(constants)[usable])
    return float(np.polyfit(log_sizes[usable], log_constants, 1)[0])
