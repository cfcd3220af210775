r"""A polynomial control variate: close to the kernel, and taken out before keys are drawn.

With :math:`z=\langle q,k\rangle/\sigma^2` about the centre of the keys, and u, v half the squared
norms over :math:`\sigma^2`, a kernel value is :math:`e^{-u-v}e^z`. Where z is small it is close to
:math:`C=e^{-u-v}(g_0+g_1z+g_2z^2)`, and the product of C with a vector is as cheap as d(d+1)/2 sums
over the keys: their moments. Draws then estimate :math:`(K-C)x`, with the variance of K - C instead
of K; on clusters in 64 dimensions a third of the draws are enough.

The coefficients are those of least squares over the pilot rows, for groups of neighbouring blocks
and tiles. They need not be good: the answer is unbiased for any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import (
    Array,
    Float32,
    Float64,
    Geometry,
    Index,
    Index32,
    NewPairs,
    SmoothPart,
)

# Moments of more dimensions would cost more than the draws they save.
_MOST_DIMS = 128
# Blocks, and tiles, that share their coefficients.
_GROUP = 4
# What is added to the diagonal of the normal equations, whose entries are 1 there.
_RIDGE = 1e-6
# Where C leaves less of the squares of near pairs than this nothing is gained by finding them.
_EXPLAINED = 0.01
# Powers whose squares are below this share, of the kernel's or of those of 1, are not worth a fit,
# nor are coefficients as large as that: what was fitted are rounding errors.
_LEAST, _LARGEST = 1e-12, 1e7


@dataclass(frozen=True, eq=False)
class Polynomial:
    """Coefficients of the polynomial, and what it leaves of the pilot rows."""

    coefficients: Float32  # (n_blocks, n_tiles, 3)
    light: Float64  # (n_rows, n_tiles) sums of (K - C)^2 |x|, without near pairs
    left: float  # their sum, of that of K^2 |x|
    near_square: Float64  # (K - C)^2 of the near pairs of the pilot rows
    leaves_near: float  # their sum, of that of K^2

    @property
    def explains_near_pairs(self) -> bool:
        """Whether near pairs are no different from others, as in dense kernels: nothing to find."""
        return self.leaves_near < _EXPLAINED

    def left_of(
        self, geometry: Geometry, block: Index32, tile: Index32, pairs: NewPairs
    ) -> Float64:
        """K - C at some pairs (rows, columns, values of K) of some blocks and tiles."""
        rows, cols, values = pairs
        value = values.astype(np.float64)
        return value - _at_pairs(self.coefficients[block, tile], geometry, rows, cols, value)

    def of(self, kernel: KernelMatrix, x: Array, key_tiles: Blocks) -> SmoothPart:
        """Its product with one column."""
        start = np.append(key_tiles.start[:-1:_GROUP], key_tiles.start[-1])
        column = np.ascontiguousarray(x[:, 0])
        sums = kernel.backend.tile_moments(kernel.geometry, key_tiles.order, start, column)
        n_sums, n_dims = sums.shape[1], kernel.keys.shape[1]
        g = self.coefficients[::_GROUP, ::_GROUP].astype(sums.dtype)
        # Not a matrix product: the threads of a BLAS would wait for more, and keep a core busy.
        ends = (0, n_sums - 1 - n_dims, n_sums - 1, n_sums)
        parts = [
            np.einsum("bt,tm->bm", g[:, :, power], sums[:, first:last])
            for power, first, last in zip((2, 1, 0), ends[:-1], ends[1:], strict=True)
        ]
        moments = np.repeat(np.concatenate(parts, axis=1), _GROUP, axis=0)
        return SmoothPart(moments[: len(self.coefficients)].copy(), self.coefficients)


def worth_fitting(geometry: Geometry) -> bool:
    """Whether a polynomial is worth looking for."""
    return not geometry.differences and geometry.keys.shape[1] <= _MOST_DIMS


def fit_polynomial(pilot: Pilot, geometry: Geometry) -> Polynomial:
    """Least squares over the pilot rows' light pairs, weighed with |x|.

    What is left of a row is told by a fit to every other row: coefficients look better on the rows
    they were fitted to.
    """
    assert pilot.powers is not None
    tile_group = np.arange(len(pilot.powers)) // _GROUP
    row_group = pilot.block_of // _GROUP
    by_tile = _grouped(pilot.powers, tile_group, 0)
    squares_by_tile = _grouped(pilot.light.T, tile_group, 0)
    light = pilot.light.T.copy()
    halves = []
    for half in (0, 1):
        rows = np.arange(half, len(row_group), 2)
        sums = _of_rows(by_tile[:, rows], row_group[rows], int(row_group[-1]) + 1)
        squares = _of_rows(squares_by_tile[:, rows], row_group[rows], int(row_group[-1]) + 1)
        g = _least_squares(sums, squares)[tile_group]
        others = np.arange(1 - half, len(row_group), 2)
        light[:, others] -= _gain(pilot.powers[:, others], g[:, row_group[others]])
        halves.append((sums, squares))
    light = np.maximum(light, 0.0)
    g = _least_squares(halves[0][0] + halves[1][0], halves[0][1] + halves[1][1])
    block_group = np.arange(pilot.n_blocks) // _GROUP
    fitted = g[tile_group][:, block_group].transpose(1, 0, 2)
    tiny, of_near = np.finfo(np.float64).tiny, float(pilot.near_square.sum())
    coefficients = np.ascontiguousarray(fitted, dtype=np.float32)
    value, tile = np.sqrt(pilot.near_square), pilot.key_tiles.block_of[pilot.near_col]
    of_pairs = coefficients[pilot.block_of[pilot.near_row], tile]
    rows = pilot.rows[pilot.near_row]
    near = np.square(value - _at_pairs(of_pairs, geometry, rows, pilot.near_col, value))
    return Polynomial(
        coefficients,
        np.ascontiguousarray(light.T),
        float(light.sum()) / max(float(pilot.light.sum()), tiny),
        near,
        # Values that underflow say nothing about near pairs: they are to be searched for.
        float(near.sum()) / of_near if of_near > 0 else 1.0,
    )


def _at_pairs(
    coefficients: Float32,
    geometry: Geometry,
    rows: Index | Index32,
    cols: Index | Index32,
    values: Float64,
) -> Float64:
    """C at pairs, from the values of K there."""
    shift = geometry.query_shift[rows] + geometry.key_shift[cols]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(values > 0, np.log(values) + shift, 0.0)
    g = coefficients.astype(np.float64).T
    return np.where(values > 0, np.exp(-shift) * (g[0] + z * (g[1] + z * g[2])), 0.0)


def _grouped(values: Float64, group: Index, axis: int) -> Float64:
    """Sums over neighbours of the same group."""
    first = np.flatnonzero(np.diff(group, prepend=-1))
    return np.asarray(np.add.reduceat(values, first, axis=axis))


def _of_rows(values: Float64, group: Index, n_groups: int) -> Float64:
    """Sums over the rows of each group; 0 for a group without rows."""
    sums = np.zeros((len(values), n_groups, *values.shape[2:]))
    if len(group):
        sums[:, np.unique(group)] = _grouped(values, group, 1)
    return sums


def _least_squares(sums: Float64, squares: Float64) -> Float64:
    """Coefficients (..., 3) of the normal equations; 0 where there is nothing to fit."""
    of_powers = sums[..., 3::2]  # squares of 1, z and z^2
    least = _LEAST * np.maximum(squares, of_powers[..., 0])
    scale = np.where(of_powers > least[..., None], np.sqrt(of_powers), np.inf)
    matrix = sums[..., 3 + np.add.outer(np.arange(3), np.arange(3))]
    matrix = matrix / (scale[..., None] * scale[..., None, :]) + _RIDGE * np.eye(3)
    right = sums[..., :3] / scale
    g = np.linalg.solve(matrix, right[..., None])[..., 0] / scale
    return np.where((np.abs(g) < _LARGEST).all(axis=-1, keepdims=True), g, 0.0)


def _gain(sums: Float64, g: Float64) -> Float64:
    """By how much the squares become smaller: 2 K C - C^2, summed."""
    a, b, c = g[..., 0], g[..., 1], g[..., 2]
    square = (a * a, 2 * a * b, b * b + 2 * a * c, 2 * b * c, c * c)
    gain = 2 * (a * sums[..., 0] + b * sums[..., 1] + c * sums[..., 2])
    for power, coefficient in enumerate(square):
        gain = gain - coefficient * sums[..., 3 + power]
    return np.asarray(gain)
