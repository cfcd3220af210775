r"""Blocks of queries and tiles of keys that lie together, and the second moments of both.

Where points vary in few directions, cells of neighbours say more about kernel values than norms: a
block's near keys are in few tiles, and how small all other values are is known in advance. Cells
are cut at medians, each along the direction in which its keys spread most. With means
:math:`\delta` apart and both variances together :math:`s^2`, in bandwidths, two cells of normally
distributed points have

.. math:: E K^2=\prod_l(1+2s_l^2)^{-1/2}\exp(-\delta_l^2/(1+2s_l^2)).

Blocks and tiles are groups of small cells, for which this is nearly true whatever the
distribution: needed are 0.048 of the pairs with what is predicted for cells of 32 points and 0.059
with what is predicted for their groups of 128 (131,072 points of 13 correlated coordinates with
heavy tails, row sums of 5), 0.057 and 0.25 (patches of a picture).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from approxkmv.engine.policy import Cells
from approxkmv.engine.problem import Problem
from approxkmv.engine.statistics import sums_by_block
from approxkmv.engine.survey.order import Blocks, blocks_of
from approxkmv.loops.types import Array, CellMoments, Float32, Float64, Index, Index32

# Axes along which points vary by less than a tenth of a bandwidth say nothing about their values.
_LEAST_VARIANCE = 0.01
_SAMPLE = 1024  # keys whose covariance tells the axes
_SUBSPACE_STEPS = 6
_ROUND_AXES = 16  # `project` takes a multiple of so many
_FAREST = 1e15  # bandwidths from the centre: squares of such distances are finite in float32
# What is left of the variance of a normal distribution that is cut at its median: 1 - 2 / pi.
_LEFT_BY_CUT = 0.36


class SpatialOrder(NamedTuple):
    """Points in order, and the predicted means of K^2 over pairs of each block and tile."""

    query_blocks: Blocks
    key_tiles: Blocks
    squares: Float32  # (n_blocks, n_tiles)


class Axes(NamedTuple):
    """The axes along which keys vary most, in bandwidths."""

    centre: Float64
    basis: Float32  # (n_dims, a multiple of 16), 0 beyond the last axis
    variances: Float64  # along each axis, descending
    elsewhere: float  # sum of the variances along all other axes

    def left(self, depth: int) -> float:
        """Share of the variance that is left in cells after so many cuts, if all were normal."""
        total = float(self.variances.sum()) + self.elsewhere
        in_cells = self.variances.copy()
        for _ in range(depth):
            in_cells[np.argmax(in_cells)] *= _LEFT_BY_CUT
        return (float(in_cells.sum()) + self.elsewhere) / total if total > 0 else 0.0


class _Side(NamedTuple):
    """Points in order, and where their cells and their groups of cells begin."""

    order: Index32
    places: Float32  # (n_points, n_axes), in order
    cells: Index
    groups: Index

    def moments(self, weights: Array) -> CellMoments:
        """Means and variances of the cells; their weights are sums of those of their points."""
        sizes = np.diff(self.cells)
        first = self.cells[:-1]
        mean = np.add.reduceat(self.places, first, axis=0) / sizes[:, None].astype(np.float32)
        apart = self.places - np.repeat(mean, sizes, axis=0)
        variance = np.add.reduceat(np.square(apart), first, axis=0) / sizes[:, None]
        start = np.searchsorted(self.cells, self.groups)
        weight = np.add.reduceat(weights[self.order].astype(np.float64), first)
        total = np.add.reduceat(weight, start[:-1])
        share = weight / np.repeat(np.where(total > 0, total, 1.0), np.diff(start))
        return CellMoments(
            np.ascontiguousarray(mean.T),
            np.ascontiguousarray(variance.T, np.float32),
            share.astype(np.float32),
            start,
        )


def spatial_order(problem: Problem) -> SpatialOrder | None:
    """Cells of the points; None where they vary in too many directions for cells to be small."""
    policy, kernel = problem.policy.cells, problem.kernel
    n_keys, backend = problem.n_keys, problem.kernel.backend
    if problem.n_dims > policy.most_dims:
        return None
    axes = _axes(kernel.keys, kernel.bandwidth, policy.most_axes)
    if axes is None:
        return None
    depth = max(0, round(math.log2(max(1, n_keys) / policy.points_per_cell)))
    most_left = policy.most_left if problem.may_search else policy.most_left_if_small
    if not axes.left(depth) <= most_left:
        return None
    n_axes = len(axes.variances)

    def projected(points: Array, index: Index32) -> Float32:
        out = backend.project(points, index, axes.centre, axes.basis)
        return np.ascontiguousarray(out[:, :n_axes])

    def everyone(points: Array) -> Float32:
        return projected(points, np.arange(len(points), dtype=np.int32))

    places = everyone(kernel.keys)
    same = kernel.queries is kernel.keys
    query_places = places if same else everyone(kernel.queries)
    if not all(np.abs(some).max(initial=0.0) <= _FAREST for some in (places, query_places)):
        return None
    tiling = backend.principal_tiling(places, query_places, depth)
    keys = _side(places, tiling.key_order, tiling.key_start, policy)
    queries = keys
    if not same:
        queries = _side(query_places, tiling.query_order, tiling.query_start, policy)
    blocks, tiles = (blocks_of(side.order, side.groups) for side in (queries, keys))
    weights = problem.weighed(np.ones(problem.n_queries))
    squares = backend.cell_squares(queries.moments(weights), keys.moments(problem.row_norms))
    by_block = sums_by_block(weights, blocks.block_of, len(blocks.sizes)) / blocks.sizes
    squares *= by_block[:, None].astype(np.float32)
    return SpatialOrder(blocks, blocks if same else tiles, squares)


def _axes(keys: Array, bandwidth: float, most: int) -> Axes | None:
    """Principal axes of some of the keys; None where these are too far apart to have any."""
    some = keys[:: math.ceil(len(keys) / _SAMPLE)].astype(np.float64) / bandwidth
    centre = some.mean(axis=0)
    some -= centre
    if not np.abs(some).max(initial=0.0) <= _FAREST:
        return None
    covariance = np.einsum("ij,ik->jk", some, some) / len(some)
    variances, basis = _largest_eigenpairs(covariance, most)
    n_axes = max(1, int((variances > _LEAST_VARIANCE).sum()))
    padded = np.zeros((len(basis), math.ceil(n_axes / _ROUND_AXES) * _ROUND_AXES), np.float32)
    padded[:, :n_axes] = basis[:, :n_axes] / bandwidth
    kept = variances[:n_axes]
    elsewhere = max(0.0, float(np.trace(covariance) - kept.sum()))
    return Axes(centre * bandwidth, padded, kept, elsewhere)


def _largest_eigenpairs(covariance: Float64, most: int) -> tuple[Float64, Float64]:
    """Some steps of subspace iteration.

    Without BLAS: its threads and ours wait for each other, and a decomposition of 256 x 256 numbers
    was seen to take seconds.
    """
    n_axes = min(most, len(covariance))
    basis = covariance[:, np.argsort(-np.diag(covariance), kind="stable")[:n_axes]]
    for _ in range(_SUBSPACE_STEPS):
        basis = np.einsum("ij,jk->ik", covariance, np.linalg.qr(basis)[0])
    basis = np.linalg.qr(basis)[0]
    small = np.einsum("ji,jk->ik", basis, np.einsum("ij,jk->ik", covariance, basis))
    variances, turn = np.linalg.eigh(small)
    return np.maximum(variances[::-1], 0.0), np.einsum("ij,jk->ik", basis, turn[:, ::-1])


def _side(places: Float32, order: Index32, start: Index, policy: Cells) -> _Side:
    cells = _cut(np.unique(start), policy.points_per_cell)
    size = max(policy.points_per_group, math.ceil(len(order) / policy.most_groups))
    return _Side(order, places[order], cells, _grouped(cells, size))


def _cut(start: Index, size: int) -> Index:
    """The same cells, those of equal points that are much larger than usual cut further."""
    sizes = np.diff(start)
    parts = np.maximum(1, sizes // (2 * size))
    first = np.repeat(start[:-1], parts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.append(first + within * np.repeat(sizes, parts) // np.repeat(parts, parts), start[-1])


def _grouped(cells: Index, size: int) -> Index:
    """Where groups of whole cells begin, of about a size."""
    n_points = int(cells[-1])
    ideal = np.linspace(0, n_points, max(1, round(n_points / size)) + 1)
    after = np.clip(np.searchsorted(cells, ideal), 1, len(cells) - 1)
    nearer = np.where(ideal - cells[after - 1] < cells[after] - ideal, after - 1, after)
    return np.asarray(np.unique(cells[nearer]), np.int64)
