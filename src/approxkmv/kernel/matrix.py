"""The definition, and the exact product: every pair, in tiles, nothing of size n x n written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.kernel.frame import Frame, make_frame, within_reach
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Check, Float64, Geometry, Index, TileSums

_PAIRS_AT_ONCE = 1 << 14  # differences in memory: 16 MB in 128 dimensions


def gaussian_kernel(queries: npt.ArrayLike, keys: npt.ArrayLike, bandwidth: float) -> Float64:
    r"""Kernel matrix :math:`K_{ij} = \exp(-|q_i - k_j|^2 / (2\sigma^2))`, by direct differences.

    The definition, in double precision: memory n_queries x n_keys x n_dims, for small cases.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.exact import gaussian_kernel
    >>> gaussian_kernel([[0.0], [1.0]], [[0.0]], bandwidth=1.0).round(4)
    array([[1.    ],
           [0.6065]])
    """
    return kernel_values(queries, keys, bandwidth, GAUSSIAN)


def kernel_values(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike,
    bandwidth: float,
    function: KernelFunction,
) -> Float64:
    """The definition for any kernel, as :func:`gaussian_kernel`."""
    q = np.asarray(queries, dtype=np.float64)
    k = np.asarray(keys, dtype=np.float64)
    return function.value(-0.5 * (((q[:, None] - k) / bandwidth) ** 2).sum(axis=-1))


@dataclass(frozen=True)
class KernelMatrix:
    """A kernel matrix made ready for exact products: points, frame and shifts.

    Points are C-contiguous, checked, of one floating type. Nothing is written after construction.
    """

    queries: Array
    keys: Array
    bandwidth: float
    frame: Frame
    query_shift: Float64 = field(repr=False)
    key_shift: Float64 = field(repr=False)
    backend: Compiled = field(default=Compiled(), repr=False)
    function: KernelFunction = GAUSSIAN

    @property
    def geometry(self) -> Geometry:
        """What the loops of the engine need to know."""
        return Geometry(
            self.queries,
            self.keys,
            self.query_shift,
            self.key_shift,
            self.frame.centre,
            self.frame.factor,
            self.frame.slope,
            self.frame.differences,
            self.function,
        )

    def checked(self, check: Check) -> KernelMatrix:
        """The same matrix, whose long loops are ended by what ``check`` raises."""
        return replace(self, backend=self.backend.checked(check))

    def between(self, queries: Array, keys: Array, *, differences: bool = False) -> KernelMatrix:
        """The matrix of the same kernel and bandwidth between other points."""
        return prepare(
            queries,
            keys,
            self.bandwidth,
            function=self.function,
            differences=differences,
            backend=self.backend,
        )

    @property
    def transposed(self) -> KernelMatrix:
        """The same matrix with the roles of queries and keys exchanged."""
        return replace(
            self,
            queries=self.keys,
            keys=self.queries,
            query_shift=self.key_shift,
            key_shift=self.query_shift,
        )

    def at_queries(self, queries: Index) -> KernelMatrix:
        """Some rows of the same matrix."""
        return replace(self, queries=self.queries[queries], query_shift=self.query_shift[queries])

    def at_keys(self, keys: Index) -> KernelMatrix:
        """Some columns of the same matrix."""
        return replace(self, keys=self.keys[keys], key_shift=self.key_shift[keys])

    def pairs(self, queries: Index, keys: Index) -> Array:
        """Single entries, from differences in double precision."""
        out = np.empty(len(queries), self.keys.dtype)
        for first in range(0, len(out), _PAIRS_AT_ONCE):
            some = slice(first, first + _PAIRS_AT_ONCE)
            q = self.queries[queries[some]].astype(np.float64)
            with np.errstate(over="ignore", under="ignore"):
                z = (q - self.keys[keys[some]]) / self.bandwidth
                out[some] = self.function.value(-0.5 * (z * z).sum(axis=1))
        return out

    def within_reach(self, most_far: int) -> tuple[KernelMatrix, Index]:
        """The matrix by inner products, and the keys whose columns are then of no use.

        The matrix as it is, and no keys, where it has inner products already or more than
        ``most_far`` keys are too far away for them.
        """
        nothing = np.empty(0, np.int64)
        if not self.frame.differences:
            return self, nothing
        found = within_reach(self.keys, self.bandwidth, most_far, self.backend, self.function)
        if found is None:
            return self, nothing
        frame, far = found
        key_shift = query_shift = frame.shift(self.keys, self.backend)
        if self.queries is not self.keys:
            query_shift = frame.shift(self.queries, self.backend)
        near = replace(self, frame=frame, query_shift=query_shift, key_shift=key_shift)
        return near, far

    def product(self, x: Array, *, row_sums: bool = False) -> TileSums:
        """K @ x for x of shape (n_keys, n_columns) in the points' type; row sums on the way."""
        return self._tiles(x, self.key_shift, online=False, row_sums=row_sums)

    def log_row_sums(self, log_weights: Float64 | None = None) -> Float64:
        """Log of sum_j w_j K_ij, finite wherever a double can hold it."""
        shift = self.key_shift if log_weights is None else self.key_shift - log_weights
        logs = self._log_row_sums(shift)
        far = np.flatnonzero(np.isneginf(logs))
        counted = slice(None) if log_weights is None else np.flatnonzero(log_weights > -np.inf)
        keys = self.keys[counted]
        if len(far) and len(keys):
            # Their exponents may be beyond the type, or beyond what inner products can do.
            shift = np.zeros(len(keys)) if log_weights is None else -log_weights[counted]
            logs[far] = self._for_far_queries(far, keys)._log_row_sums(shift)
        return logs

    def _for_far_queries(self, rows: Index, keys: Array) -> KernelMatrix:
        """Some rows and keys in double precision, by differences, scaled so that squares fit."""
        queries, keys = self.queries[rows].astype(np.float64), keys.astype(np.float64)
        largest = max(_largest(queries), _largest(keys))
        return replace(
            self,
            queries=queries,
            keys=keys,
            frame=self.frame.for_far_pairs(largest),
            query_shift=np.zeros(len(queries)),
            key_shift=np.zeros(len(keys)),
        )

    def _log_row_sums(self, key_shift: Float64) -> Float64:
        none = np.empty((len(self.keys), 0), self.keys.dtype)
        sums = self._tiles(none, key_shift, online=True, row_sums=True)
        assert sums.totals is not None
        assert sums.row_max is not None
        with np.errstate(divide="ignore"):
            return np.asarray(sums.row_max + np.log(sums.totals.astype(np.float64)))

    def _tiles(self, x: Array, key_shift: Float64, *, online: bool, row_sums: bool) -> TileSums:
        return self.backend.tile_product(
            self.queries,
            self.keys,
            x,
            query_shift=self.query_shift,
            key_shift=key_shift,
            slope=self.frame.slope,
            query_centre=self.frame.centre,
            key_centre=self.frame.centre,
            factor=self.frame.factor,
            ceiling=0.0,
            differences=self.frame.differences,
            online=online,
            row_sums=row_sums,
            function=self.function,
        )


def prepare(
    queries: Array,
    keys: Array,
    bandwidth: float,
    *,
    function: KernelFunction = GAUSSIAN,
    differences: bool = False,
    backend: Compiled = Compiled(),  # noqa: B008 (frozen)
) -> KernelMatrix:
    """Choose the frame and compute the shifts. ``queries is keys`` saves half the work."""
    largest = max(_largest(keys), 0.0 if queries is keys else _largest(queries))
    if not function.vanishes:
        _refuse_overflow(largest, bandwidth, function, keys)
    frame = make_frame(
        keys, bandwidth, largest, function=function, differences=differences, backend=backend
    )
    key_shift = frame.shift(keys, backend)
    query_shift = key_shift if queries is keys else frame.shift(queries, backend)
    return KernelMatrix(queries, keys, bandwidth, frame, query_shift, key_shift, backend, function)


def _refuse_overflow(
    largest: float, bandwidth: float, function: KernelFunction, keys: Array
) -> None:
    """A squared distance that overflows would count as infinite, where the kernel is not yet 0."""
    reach = 2 * math.sqrt(keys.shape[1]) * (largest / bandwidth)
    room = math.sqrt(float(np.finfo(keys.dtype).max) / 8 * min(function.parameter, 1.0))
    if reach > room:
        raise ValueError(
            f"kernel={function.name!r} needs points whose squared distances in bandwidths do not "
            f"overflow in {keys.dtype}: coordinates up to {largest:.3g} are too large for "
            f"bandwidth {bandwidth:.3g}."
        )


def product(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    *,
    function: KernelFunction = GAUSSIAN,
    n_threads: int | None = None,
) -> Array:
    """Exact K @ x in the points' type, for checked arrays; x has one or two dimensions."""
    kernel = prepare(queries, keys, bandwidth, function=function, backend=Compiled(n_threads))
    columns = np.ascontiguousarray(x[:, None] if x.ndim == 1 else x, dtype=keys.dtype)
    out = kernel.product(columns).out
    return out[:, 0] if x.ndim == 1 else out


def _largest(points: Array) -> float:
    """Largest absolute coordinate, without a temporary of the size of the points."""
    if points.size == 0:
        return 0.0
    return max(float(points.max()), -float(points.min()))
