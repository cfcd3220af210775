"""Equal points, of which tables have many: each is computed once.

Equal keys have equal columns, so that their entries of x are added; equal queries have equal rows,
so that the answer is copied. Both are exact. Of the error a row that stands for several counts as
often: :class:`Copies` has their number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.loops.types import Array, Float64, Index

# Points are merged if at most this share of them is distinct, which saves a tenth of the pairs
# where the queries are the keys: 0.1 s of 1.2 s with 40,000 points of 20 dimensions, where merging
# takes 0.01 s.
_WORTH = 0.95
# Points that are told apart by this many of their coordinates need not be read in full.
_FEW_COORDINATES = 16
# Coordinates mixed at a time: 2 MB of them stay in the cache.
_AT_ONCE = 1 << 18


class Copies(NamedTuple):
    """Points without repetitions, in the order in which they first occur."""

    distinct: Array
    place: Index  # of each point among them
    number: Float64  # of points that each of them stands for

    def summed(self, x: Array) -> Array:
        """Rows of x added for equal points: in double precision, and rounded once."""
        columns = [np.bincount(self.place, column, len(self.distinct)) for column in x.T]
        shape = len(self.distinct), x.shape[1]
        return np.ascontiguousarray(np.reshape(columns, shape[::-1]).T.astype(x.dtype))

    def copied(self, y: Array) -> Array:
        """Rows of y for each of the points."""
        return np.asarray(y[self.place])


def find_copies(points: Array) -> Copies | None:
    """Equal points; None where they are too few to matter.

    Points with NaN equal no others; 0 and -0 are the same. Rows of equal hashes are compared.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.kernel.equal_points import find_copies
    >>> copies = find_copies(np.array([[3.0], [1.0], [3.0], [3.0]]))
    >>> copies.distinct.ravel(), copies.place, copies.number
    (array([3., 1.]), array([0, 1, 0, 0]), array([3., 1.]))
    """
    n, n_dims = points.shape
    if n < 2 or n_dims == 0:
        return None
    step = -(-n_dims // _FEW_COORDINATES)
    hashes = _hashes(points[:, ::step])
    if _n_distinct(hashes) > _WORTH * n:
        return None
    if step > 1:
        hashes = _hashes(points)
        if _n_distinct(hashes) > _WORTH * n:
            return None
    copies = copies_of(points, hashes)
    return None if len(copies.distinct) > _WORTH * n else copies


def copies_of(points: Array, hashes: npt.NDArray[np.uint64]) -> Copies:
    """Equal points, all of which have equal hashes; others may, too."""
    n = len(points)
    earliest = _earliest(hashes)
    # Where two points of one hash differ, the later one stands for itself.
    differ = (points != points[earliest]).any(axis=1)
    earliest[differ] = np.flatnonzero(differ)
    first = np.flatnonzero(earliest == np.arange(n))
    rank = np.empty(n, np.int64)
    rank[first] = np.arange(len(first))
    place = rank[earliest]
    number = np.bincount(place, minlength=len(first)).astype(np.float64)
    return Copies(np.ascontiguousarray(points[first]), place, number)


def _earliest(hashes: npt.NDArray[np.uint64]) -> Index:
    """For each point the first one of the same hash."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    start = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(start, len(order)))
    earliest = np.empty(len(order), np.int64)
    earliest[order] = np.repeat(np.minimum.reduceat(order, start), lengths)
    return earliest


def _n_distinct(hashes: npt.NDArray[np.uint64]) -> int:
    ordered = np.sort(hashes)
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _hashes(points: Array) -> npt.NDArray[np.uint64]:
    """A number for each point, the same for equal ones: sums of its mixed words."""
    n, n_dims = points.shape
    # Fixed multipliers: nothing is drawn, so that streams of random numbers stay as they are.
    odd = np.random.default_rng(0).integers(0, 2**63, (2, n_dims), np.uint64) * np.uint64(2)
    odd += np.uint64(1)
    bits = np.uint64(32)
    hashes = np.empty(n, np.uint64)
    n_rows = max(1, _AT_ONCE // n_dims)
    for first in range(0, n, n_rows):
        piece = np.ascontiguousarray(points[first : first + n_rows]) + points.dtype.type(0)
        words = piece.view(f"u{piece.itemsize}").astype(np.uint64)
        # Round numbers differ in their leading bits only, which a product would push out.
        words *= odd[0]
        words ^= words >> bits
        hashes[first : first + n_rows] = words @ odd[1]
    return hashes
