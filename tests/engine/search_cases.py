"""Points whose near pairs are known by construction."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Float64, FoundPairs, Geometry

BANDWIDTH = 0.6
THRESHOLD = 0.01
N_DIMS = 32
# The radius takes in 0.95 of the near pairs' squares, as far as the pilot's rows can tell: these
# have 7 partners each, of which pairs of one row are as good as one in the worst case.
N_PILOT_ROWS = 16 * 6
WITHIN_RADIUS = 0.95 - 5 * math.sqrt(0.95 * 0.05 / N_PILOT_ROWS)


@dataclass(frozen=True, eq=False)
class Groups:
    """Queries and keys in groups; only pairs of the same group are near."""

    kernel: KernelMatrix
    rows: np.ndarray  # near pairs
    cols: np.ndarray
    values: Float64
    pilot: Pilot

    @property
    def geometry(self) -> Geometry:
        return self.kernel.geometry

    @property
    def query_blocks(self) -> Blocks:
        return self.pilot.query_blocks

    @property
    def key_tiles(self) -> Blocks:
        return self.pilot.key_tiles


def grouped(
    n: int = 4096,
    *,
    noise: float = 0.1,
    symmetric: bool = True,
    crowd: int = 0,
    seed: int = 0,
    dtype: Any = np.float32,
) -> Groups:
    """Groups of eight points around centres eight apart, whose members are 8 ``noise`` apart.

    At noise 0.1 a near pair has a value of about 0.41, and e^-89 for points of two groups. A crowd
    around the origin has neither: its values are about 3e-4.
    """
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((n // 8, N_DIMS)), 8, axis=0)
    group = np.repeat(np.arange(n // 8), 8)
    sets = []
    for _ in range(1 if symmetric else 2):
        points = centres + noise * rng.standard_normal(centres.shape)
        points = np.concatenate([points, 0.3 * rng.standard_normal((crowd, N_DIMS))])
        sets.append(points.astype(dtype))
    queries, keys = sets[0], sets[-1]
    kernel = prepare(queries, keys, BANDWIDTH, backend=Compiled(1))
    blocks, tiles = norm_order(kernel.geometry, 256, 256)
    rows = np.repeat(np.arange(n), 8)
    cols = (8 * group[rows] + np.tile(np.arange(8), n)).astype(np.int64)
    values = Compiled().pair_kernel(queries, keys, rows, cols, BANDWIDTH)
    near = values >= THRESHOLD
    if symmetric:
        near &= rows != cols
    pilot = run_pilot(
        kernel,
        np.ones(len(keys), dtype),
        blocks,
        tiles,
        rows_per_block=6,
        threshold=THRESHOLD,
        rng=rng,
    )
    return Groups(kernel, rows[near], cols[near], values[near], pilot)


case = functools.cache(grouped)


def search_of(groups: Groups, seed: int = 0, n_threads: int | None = 1) -> Search:
    kernel = replace(groups.kernel, backend=Compiled(n_threads))
    return Search(kernel, groups.pilot, np.random.default_rng(seed))


def everyone(groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    if groups.pilot.symmetric:
        return groups.query_blocks.order, groups.query_blocks.order
    return groups.query_blocks.order, groups.key_tiles.order


def held(groups: Groups, found: FoundPairs) -> np.ndarray:
    """Which of the near pairs were found."""
    n_keys = len(groups.geometry.keys)
    return np.isin(groups.rows * n_keys + groups.cols, found.rows * n_keys + found.cols)


def check_found(groups: Groups, found: FoundPairs) -> None:
    """Near pairs only, each once, with their values; a point with itself where that is known."""
    n_keys = len(groups.geometry.keys)
    place = found.rows.astype(np.int64) * n_keys + found.cols
    assert (np.diff(place) > 0).all()
    wanted = dict(zip(groups.rows * n_keys + groups.cols, groups.values, strict=True))
    if groups.pilot.symmetric:
        wanted |= {i * (n_keys + 1): 1.0 for i in range(n_keys)}
    # Distances of 32 coordinates up to 5 in float32, over twice the squared bandwidth.
    rtol = 40 * 2.0**-24 * 3 / (2 * BANDWIDTH**2)
    true = np.array([wanted.get(p, 0.0) for p in place])
    assert (true >= THRESHOLD * (1 - rtol)).all()
    np.testing.assert_allclose(found.values, true, rtol=rtol)


def without(groups: Groups, search: Search, lost: np.ndarray) -> FoundPairs:
    """All near pairs but those that are lost, as if a search had found them."""
    kept = [part[~lost] for part in (groups.rows, groups.cols, groups.values)]
    rows, cols, values = kept
    return Compiled().merge_pairs(
        search.found, rows.astype(np.int32), cols.astype(np.int32), values.astype(np.float32)
    )
