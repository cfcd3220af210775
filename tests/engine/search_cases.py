"""Points whose near pairs are known by construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Float64, Geometry

BANDWIDTH = 0.6
THRESHOLD = 0.01
N_DIMS = 32


@dataclass(frozen=True, eq=False)
class Groups:
    """Queries and keys in groups; only pairs of the same group are near."""

    geometry: Geometry
    rows: np.ndarray  # near pairs
    cols: np.ndarray
    values: Float64
    query_blocks: Blocks
    key_tiles: Blocks
    pilot: Pilot


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
    kernel = prepare(queries, keys, BANDWIDTH)
    blocks, tiles = norm_order(kernel.geometry, 256, 256)
    rows = np.repeat(np.arange(n), 8)
    cols = (8 * group[rows] + np.tile(np.arange(8), n)).astype(np.int64)
    values = Compiled().pair_kernel(queries, keys, rows, cols, BANDWIDTH)
    near = values >= THRESHOLD
    if symmetric:
        near &= rows != cols
    pilot = run_pilot(
        kernel.geometry,
        np.ones(len(keys), dtype),
        blocks,
        tiles,
        rows_per_block=6,
        threshold=THRESHOLD,
        rng=rng,
        n_threads=1,
    )
    return Groups(kernel.geometry, rows[near], cols[near], values[near], blocks, tiles, pilot)
