"""What is known of one chunk of keys alone: made once, handed to every block of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv import _check
from approxkmv.blocks.rows import FileRows, as_rows
from approxkmv.kernel.rounding import norm
from approxkmv.loops.types import Array


@dataclass(frozen=True)
class KeySide:
    """Checked keys and their entries of x, for any number of blocks.

    Keys in a file stay there: the object is as large as x and a path, and the processes of one
    machine share the memory of the keys. Keys of an array are part of it.

    Attributes
    ----------
    keys : ndarray or FileRows, shape (n_keys, n_dims)
        In the computing type of the product.
    x : ndarray, shape (n_keys,) or (n_keys, n_columns)
        Entries of the vector for these keys; without columns where only row sums are wanted.
    x_norm : float
        Frobenius norm of x.
    """

    keys: Array | FileRows
    x: Array
    x_norm: float

    def points(self) -> Array:
        """The keys as an array; those in a file are mapped, not copied."""
        return self.keys.map() if isinstance(self.keys, FileRows) else self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def __sizeof__(self) -> int:
        kept = 0 if isinstance(self.keys, FileRows) else self.keys.nbytes
        return object.__sizeof__(self) + kept + self.x.nbytes


def key_side(
    keys: Any,
    x: Any,
    dtype: Any = None,
    *,
    weights: bool = False,
    check_finite: bool = True,
    chunk: int = 0,
) -> KeySide:
    """Check one chunk of the keys and its entries of x, once.

    Parameters
    ----------
    keys : array_like, path or FileRows, shape (n_keys, n_dims)
        One point per row.
    x : array_like, FileRows or None
        One entry, or one row of columns, for each key; None means row sums are wanted.
    dtype : dtype or None
        Computing type of the product; None means that of the keys.
    weights : bool
        Whether x holds weights, which must not be negative.
    check_finite : bool
        Reject NaN and infinity.
    chunk : int
        Which chunk of the keys this is, for messages.
    """
    rows = keys if isinstance(keys, FileRows) else as_rows(keys, "keys")
    points = _check.points(rows.map() if isinstance(rows, FileRows) else rows, "keys")
    points = points.astype(dtype or points.dtype, copy=False)
    x = x.read() if isinstance(x, FileRows) else x
    if x is None:
        entries: Array = np.empty((len(points), 0), points.dtype)
    elif weights:
        entries = _check.weights(x, len(points))
    else:
        entries = _check.vector(x, len(points))
    if check_finite:
        name = "weights" if weights else "x"
        with_place(lambda: _check.finite(points, "keys"), f"key chunk {chunk}")
        with_place(lambda: _check.finite(entries, name), f"key chunk {chunk}")
    # Only rows that are used as they stand in the file are left there.
    in_file = isinstance(rows, FileRows) and rows.dtype == points.dtype
    return KeySide(rows if in_file else points, np.ascontiguousarray(entries), norm(entries))


def with_place(check: Any, place: str) -> None:
    """Run a check; what it rejects is said together with the chunk where it was found."""
    try:
        check()
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
