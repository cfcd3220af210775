"""Short sketches of points: projections on a few random directions, scaled to keep distances.

Near pairs are looked for among sketches first: a query looks at the keys whose sketches lie within
a radius. The pilot rows show how far the sketches of near pairs lie apart, and how far a
query may look before too many other keys are met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from approxkmv.engine.survey.moments import moving_mean
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Float32, Float64, Geometry, Index32, Sketches

_DIMS = (16, 24, 32)
# More directions must bring at least this much more of the near pairs' squares within the radius.
_WORTH_MORE_DIMS = 0.05
# Share of the near pairs' squares whose sketches lie within the widest radius: the rest is left to
# neighbours and to other sketches, while a wider radius would let through far pairs.
_WITHIN_RADIUS = 0.95
# Keys within the radius of a query, near or not: looking at more costs more than drawing.
_MOST_MATCHES = 32
_PROBED_KEYS = 4096
_POOLED_BLOCKS = 5


@dataclass(frozen=True, eq=False)
class Sketcher:
    """Random directions, and how far the queries of each block look."""

    basis: Float32
    radius_squared: Float64  # (n_blocks,)
    within: float  # share of the squares of the pilot rows' near pairs within the radius


def make_sketcher(
    kernel: KernelMatrix, pilot: Pilot, rng: np.random.Generator, n_dims: int | None = None
) -> Sketcher:
    """As few directions as tell near pairs from others, or as many as asked for."""
    full = kernel.keys.shape[1]
    options = [n_dims] if n_dims else [n for n in _DIMS if n < full] or [full]
    best = _sketcher(kernel, pilot, options[0], rng)
    for n in options[1:]:
        if best.within > _WITHIN_RADIUS - _WORTH_MORE_DIMS:
            break
        more = _sketcher(kernel, pilot, n, rng)
        if more.within < best.within + _WORTH_MORE_DIMS:
            break
        best = more
    return best


def sketches(
    kernel: KernelMatrix,
    sketcher: Sketcher,
    query_blocks: Blocks,
    query_index: Index32,
    key_index: Index32,
) -> Sketches:
    """Sketches of some queries and some keys."""
    basis, centre = sketcher.basis, kernel.frame.centre
    of_keys = kernel.backend.project(kernel.keys, key_index, centre, basis)
    of_queries = of_keys
    if not (kernel.queries is kernel.keys and query_index is key_index):
        of_queries = kernel.backend.project(kernel.queries, query_index, centre, basis)
    radius = sketcher.radius_squared[query_blocks.block_of[query_index]] + _rounding(of_queries)
    return Sketches(of_queries, query_index, radius.astype(np.float32), of_keys, key_index)


def _rounding(sketches: Float32) -> Float64:
    """Bound of the error of a squared distance between close sketches, from inner products.

    Equal points are at a distance of 0 and often have a radius of 0: without this margin some of
    them would never meet, in any tiling.
    """
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", sketches, sketches).astype(np.float64)
    return np.asarray(2 * (sketches.shape[1] + 2) * float(np.finfo(np.float32).eps) * squares)


def _sketcher(
    kernel: KernelMatrix, pilot: Pilot, n_dims: int, rng: np.random.Generator
) -> Sketcher:
    full = kernel.keys.shape[1]
    basis = random_basis(full, n_dims, rng)
    apart = pilot.apart
    mass = pilot.near_square[apart]
    rows, cols = pilot.near_row[apart], pilot.near_col[apart]
    differences = kernel.queries[pilot.rows[rows]].astype(np.float32) - kernel.keys[cols]
    everyone, origin = np.arange(len(differences), dtype=np.int32), np.zeros(full)
    distances = np.square(Compiled().project(differences, everyone, origin, basis)).sum(axis=1)
    # Without near pairs there is nothing to learn from: the distance at the threshold.
    widest = -2 * kernel.bandwidth**2 * math.log(pilot.threshold)
    if len(mass):
        widest = weighted_quantile(distances, mass, _WITHIN_RADIUS)
    radius = np.minimum(widest, _crowded(kernel.geometry, pilot, basis))
    reached = distances <= radius[pilot.block_of[rows]]
    within = float(mass[reached].sum() / mass.sum()) if len(mass) else 1.0
    return Sketcher(basis, radius, within)


def _crowded(geometry: Geometry, pilot: Pilot, basis: Float32) -> Float64:
    """For each block the squared radius within which a query meets as many keys as it should."""
    key_tiles = pilot.key_tiles
    n_keys = len(key_tiles.order)
    step = max(1, n_keys // _PROBED_KEYS)
    keys = key_tiles.order[step // 2 :: step].copy()
    # The first row of each block, or of the next one that has any.
    first = np.searchsorted(pilot.block_of, np.arange(pilot.n_blocks))
    rows = pilot.rows[np.minimum(first, len(pilot.rows) - 1)]
    of_rows = Compiled().project(geometry.queries, rows.astype(np.int32), geometry.centre, basis)
    of_keys = Compiled().project(geometry.keys, keys, geometry.centre, basis)
    # By ``project``, with the keys as directions: after a matrix product of NumPy, the threads of
    # its BLAS spin for a while on the cores that the search needs.
    everyone, origin = np.arange(len(rows), dtype=np.int32), np.zeros(basis.shape[1])
    dots = Compiled().project(of_rows, everyone, origin, np.ascontiguousarray(of_keys.T))
    place = min(len(keys) - 1, max(1, round(_MOST_MATCHES * len(keys) / n_keys)))
    with np.errstate(over="ignore", invalid="ignore"):  # of points too far away to be near anything
        distances = np.square(of_keys).sum(axis=1) - 2 * dots
        nearest = np.partition(distances, place, axis=1)[:, place] + np.square(of_rows).sum(axis=1)
    return moving_mean(nearest.astype(np.float64), _POOLED_BLOCKS)


def random_basis(full: int, n_dims: int, rng: np.random.Generator) -> Float32:
    """Orthogonal directions, longer than 1, so that squared distances keep their mean."""
    basis, _ = np.linalg.qr(rng.standard_normal((full, n_dims)))
    return np.asarray(basis * math.sqrt(full / n_dims), np.float32)


def weighted_quantile(values: Float32, weights: Float64, share: float) -> float:
    """The value below which this share of the weight lies."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    place = int(np.searchsorted(total, share * total[-1]))
    return float(values[order[min(place, len(order) - 1)]])
