"""Split x by size and multiply its large entries exactly (Definition 3.1, Lemma 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.kernel import matrix as exact

Array = npt.NDArray[np.floating]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Preprocessed:
    """The sets of Definition 3.1 and the vector of Lemma 3.2, for x scaled to squared norm n.

    Attributes
    ----------
    x : ndarray
        The scaled vector: its squared norm is the number of keys (all zeros stay zeros).
    norm_ratio : float
        Multiply results for the scaled x by this to get results for the vector given.
    H_1, H_2, T : ndarray of int64
        Large entries (x_j² >= n^γ), tiny entries (x_j² <= n^-4), and the rest; each ascending.
    y_H : ndarray
        Exact product of the H_1 columns with the scaled x.
    n_pairs : int
        Kernel values evaluated: ``n_queries · |H_1|``.
    """

    x: npt.NDArray[np.float64]
    norm_ratio: float
    H_1: Index
    H_2: Index
    T: Index
    y_H: npt.NDArray[np.float64]  # noqa: N815 - the paper's name
    n_pairs: int

    @property
    def H(self) -> Index:  # noqa: N802 - the paper's name
        """All indices that are not in T: H_1 and H_2 together."""
        return np.union1d(self.H_1, self.H_2)


def preprocess(
    queries: Array,
    keys: Array,
    x: npt.ArrayLike,
    *,
    bandwidth: float,
    gamma: float,
    n_threads: int | None = None,
) -> Preprocessed:
    """Scale x, find H_1, H_2 and T, and compute y_H exactly.

    Lemma 3.2: this takes ``n_queries · |H_1| <= n^(2-γ)`` kernel values, and leaving H_2 out moves
    the product by at most ‖x‖₂/n (the proof's n^-3 per row should be 1/n: E5).

    Parameters
    ----------
    queries, keys : ndarray of shape (n_queries, n_dims), (n_keys, n_dims)
    x : array_like of shape (n_keys,)
        Any signs.
    bandwidth : float
    gamma : float
        Entries with x_j² >= n^γ, after scaling, are large.
    n_threads : int, optional

    Returns
    -------
    Preprocessed

    Examples
    --------
    >>> import numpy as np
    >>> points = np.zeros((4, 2))
    >>> split = preprocess(points, points, [3.0, 1.0, 1.0, 0.0], bandwidth=1.0, gamma=0.5)
    >>> split.H_1.tolist(), split.H_2.tolist(), split.T.tolist()
    ([0], [3], [1, 2])
    """
    x = np.array(x, dtype=np.float64)
    n = len(keys)
    norm = float(np.linalg.norm(x))
    norm_ratio = norm / np.sqrt(n)
    if norm > 0:
        x /= norm_ratio
    squares = x**2
    large = squares >= float(n) ** gamma
    tiny = squares <= float(n) ** -4
    H_1 = np.flatnonzero(large)
    if len(H_1):
        columns = np.ascontiguousarray(keys[H_1])
        y_H = exact.product(queries, columns, x[H_1], bandwidth, n_threads=n_threads)
    else:
        y_H = np.zeros(len(queries), keys.dtype)
    return Preprocessed(
        x=x,
        norm_ratio=float(norm_ratio),
        H_1=H_1,
        H_2=np.flatnonzero(tiny & ~large),
        T=np.flatnonzero(~(large | tiny)),
        y_H=np.asarray(y_H, np.float64),
        n_pairs=len(queries) * len(H_1),
    )
