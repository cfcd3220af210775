from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from approxkmv.loops.types import (
    AttentionBlocks,
    AttentionDraws,
    AttentionHead,
    AttentionRates,
    AttentionSums,
    CellMoments,
    DrawPlan,
    Expansion,
    Exponents,
    FoundPairs,
    Geometry,
    HeadSets,
    NewPairs,
    PairDraws,
    PairKernel,
    PilotMoments,
    PilotRows,
    SampledSums,
    Sketches,
    Smoothing,
    SmoothPart,
    TileSums,
    Tiling,
    WholePoints,
)

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Index32 = npt.NDArray[np.int32]

class Backend(Protocol):
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def check(self) -> Callable[[], None] | None: ...

def tile_product(
    queries: Array,
    keys: Array,
    x: Array,
    exponents: Exponents,
    sums: TileSums,
    backend: Backend,
) -> None: ...
def squared_norms(
    points: Array, centre: Float64, factor: float, out: Float64, backend: Backend
) -> None: ...
def column_sums(x: Array, out: Float64, backend: Backend) -> None: ...
def pair_kernel(
    kernel: PairKernel, rows: Index, cols: Index, out: Float64, backend: Backend
) -> None: ...
def scan_ranges(
    kernel: PairKernel, order: Index, start: Index, stop: Index, threshold: float, backend: Backend
) -> tuple[Index, Index, Float64]: ...
def tile_hits(
    geometry: Geometry, tiling: Tiling, floor: float, known: FoundPairs, backend: Backend
) -> NewPairs: ...
def project(
    points: Array, index: Index32, centre: Float64, basis: Float32, out: Float32, backend: Backend
) -> None: ...
def random_tiling(
    key_projections: Float32, query_projections: Float32, tiling: Tiling, backend: Backend
) -> None: ...
def principal_tiling(
    keys: Array, queries: Array, depth: int, tiling: Tiling, backend: Backend
) -> None: ...
def pilot_rows(
    geometry: Geometry, rows: PilotRows, sums: Float64, backend: Backend
) -> NewPairs: ...
def tile_moments(
    geometry: Geometry,
    key_order: Index32,
    tile_start: Index,
    weights: Array,
    out: Array,
    backend: Backend,
) -> None: ...
def cell_pairs(
    kernel: PairKernel,
    threshold: float,
    sketches: Sketches,
    tiling: Tiling,
    mirrored: bool,
    known: FoundPairs,
    backend: Backend,
) -> NewPairs: ...
def cell_squares(
    queries: CellMoments, keys: CellMoments, out: Float32, backend: Backend
) -> None: ...
def neighbours_of_neighbours(
    kernel: PairKernel, known: FoundPairs, expansion: Expansion, backend: Backend
) -> NewPairs: ...
def nearest_keys(geometry: Geometry, out: Index32, backend: Backend) -> None: ...
def linked_pairs(
    kernel: PairKernel,
    known: FoundPairs,
    links: FoundPairs,
    width: int,
    threshold: float,
    backend: Backend,
) -> NewPairs: ...
def merge_pairs(
    known: FoundPairs, rows: Index32, cols: Index32, values: Float32, backend: Backend
) -> tuple[Index, Index32, Float32]: ...
def sampled_product(
    geometry: Geometry,
    plan: DrawPlan,
    blocks: Index,
    found: FoundPairs,
    smooth: SmoothPart | None,
    x: Array,
    sums: SampledSums,
    backend: Backend,
) -> None: ...
def reduced_product(
    few: Geometry,
    whole: WholePoints,
    draws: PairDraws,
    x: Array,
    sums: SampledSums,
    backend: Backend,
) -> None: ...
def attention(sets: HeadSets, sums: AttentionSums, backend: Backend) -> None: ...
def attention_pilot(
    head: AttentionHead,
    blocks: AttentionBlocks,
    rows: Index32,
    smoothing: Smoothing,
    to: PilotMoments,
    backend: Backend,
) -> None: ...
def rate_histogram(
    blocks: AttentionBlocks, moment: Float32, guarded: Float32, floor: float, backend: Backend
) -> tuple[Float64, Float64]: ...
def attention_draw(
    head: AttentionHead,
    blocks: AttentionBlocks,
    rates: AttentionRates,
    listed: Index,
    to: AttentionDraws,
    backend: Backend,
) -> None: ...
def exp(x: Array, out: Array, backend: Backend) -> None: ...
def power_of_two(x: Array, out: Array, backend: Backend) -> None: ...
def largest_magnitude(x: Array, backend: Backend) -> float: ...
def philox(seed: int, stream: int, first: int, out: npt.NDArray[np.uint64]) -> None: ...
def available_isas() -> list[str]: ...
def fma_rate_float32(seconds: float, isa: str) -> float: ...
def fma_rate_float64(seconds: float, isa: str) -> float: ...
def default_thread_limit() -> int: ...
