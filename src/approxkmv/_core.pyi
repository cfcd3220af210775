from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

def tile_product(
    queries: Array,
    keys: Array,
    x: Array,
    query_shift: Float64,
    key_shift: Float64,
    query_centre: Float64,
    key_centre: Float64,
    factor: float,
    slope: float,
    ceiling: float,
    differences: bool,
    online: bool,
    squares: bool,
    out: Array,
    totals: Array | None,
    row_max: Array | None,
    isa: str,
    n_threads: int,
) -> None: ...
def attention(
    queries: Array,
    keys: Array,
    values: Array,
    heads: Index,
    scale: float,
    causal: bool,
    added: Array | None,
    kept: npt.NDArray[np.uint8] | None,
    out: Array,
    log_normalizer: Array,
    isa: str,
    n_threads: int,
) -> None: ...
def squared_norms(
    points: Array, centre: Float64, factor: float, out: Float64, n_threads: int
) -> None: ...
def pair_kernel(
    queries: Array,
    keys: Array,
    rows: Index,
    cols: Index,
    slope: float,
    out: Float64,
    isa: str,
    n_threads: int,
) -> None: ...
def scan_ranges(
    queries: Array,
    keys: Array,
    order: Index,
    start: Index,
    stop: Index,
    slope: float,
    threshold: float,
    isa: str,
    n_threads: int,
) -> tuple[Index, Index, Float64]: ...
def random_tiling(
    key_projections: Array,
    query_projections: Array,
    key_order: Array,
    query_order: Array,
    key_start: Index,
    query_start: Index,
) -> None: ...
def tile_hits(
    queries: Array,
    keys: Array,
    query_shift: Float64,
    key_shift: Float64,
    centre: Float64,
    factor: float,
    slope: float,
    differences: bool,
    query_order: Array,
    key_order: Array,
    query_start: Index,
    query_stop: Index,
    key_start: Index,
    key_stop: Index,
    floor: float,
    found_indptr: Index,
    found_cols: Array,
    found_values: Array,
    isa: str,
    n_threads: int,
) -> tuple[Array, Array, Array]: ...
def neighbours_of_neighbours(
    queries: Array,
    keys: Array,
    slope: float,
    found_indptr: Index,
    found_cols: Array,
    found_values: Array,
    sharing_indptr: Index,
    sharing: Array,
    least: float,
    width: int,
    threshold: float,
    isa: str,
    n_threads: int,
) -> tuple[Array, Array, Array]: ...
def merge_pairs(
    indptr: Index,
    cols: Array,
    values: Array,
    new_rows: Array,
    new_cols: Array,
    new_values: Array,
    n_threads: int,
) -> tuple[Index, Array, Array]: ...
def sampled_product(
    queries: Array,
    keys: Array,
    query_shift: Float64,
    key_shift: Float64,
    centre: Float64,
    factor: float,
    slope: float,
    differences: bool,
    query_order: Array,
    block_start: Index,
    key_order: Array,
    tile_start: Index,
    rate: Array,
    prefix: Float64,
    seed: int,
    stream: int,
    found_indptr: Index,
    found_cols: Array,
    found_values: Array,
    x: Array,
    out: Array,
    variance: Float64,
    n_drawn: Index,
    isa: str,
    n_threads: int,
) -> None: ...
def exp(x: Array, out: Array, isa: str) -> None: ...
def philox(seed: int, stream: int, first: int, out: npt.NDArray[np.uint64]) -> None: ...
def available_isas() -> list[str]: ...
def fma_rate_float32(seconds: float, isa: str) -> float: ...
def fma_rate_float64(seconds: float, isa: str) -> float: ...
def default_thread_limit() -> int: ...
