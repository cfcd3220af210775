r"""Buckets of the entries of x (Algorithm 2, lines 3 and 4).

A positive value lies in bucket :math:`m` when it is in :math:`((1+\epsilon)^{m-1}, (1+\epsilon)^m]`
and is rounded up to :math:`(1+\epsilon)^m`. The paper prints the interval closed at both ends, so
that a value on an edge, such as 1, is in two buckets; ``closed=True`` does that (erratum E10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Buckets:
    """Non-empty buckets of a vector of positive values.

    Attributes
    ----------
    rounded : ndarray, shape (n_values,)
        Each value rounded up to the upper end of its bucket.
    weights : list of float
        Upper end of each bucket, ascending.
    members : list of ndarray
        Positions of the values in each bucket.
    """

    rounded: Float
    weights: list[float]
    members: list[Index]

    def __len__(self) -> int:
        """Count the non-empty buckets."""
        return len(self.weights)


def geometric_buckets(values: Float, ratio: float, *, closed: bool = False) -> Buckets:
    """Sort positive values into buckets whose ends are powers of ``ratio``.

    Examples
    --------
    >>> buckets = geometric_buckets(np.array([1.0, 3.0, 4.0]), 2.0)
    >>> buckets.weights, [list(map(int, m)) for m in buckets.members]
    ([1.0, 4.0], [[0], [1, 2]])
    """
    exponent = np.ceil(np.log(values) / np.log(ratio)).astype(np.int64)
    # the logarithm may round across an edge by one step either way
    exponent += ratio ** exponent.astype(np.float64) < values
    exponent -= ratio ** (exponent - 1.0) >= values
    rounded = ratio ** exponent.astype(np.float64)
    position = np.arange(len(values), dtype=np.int64)
    if closed:
        on_edge = np.flatnonzero(rounded == values)
        position = np.concatenate([position, on_edge])
        exponent = np.concatenate([exponent, exponent[on_edge] + 1])
    order = np.argsort(exponent, kind="stable")
    found, first = np.unique(exponent[order], return_index=True)
    return Buckets(
        rounded,
        # By the same loop as above: NumPy's power of one number may differ in the last bit.
        (ratio ** found.astype(np.float64)).tolist(),
        list(np.split(position[order], first[1:])) if len(found) else [],
    )
