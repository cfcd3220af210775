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
    out: Array,
    totals: Array | None,
    row_max: Array | None,
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
def exp(x: Array, out: Array, isa: str) -> None: ...
def philox(seed: int, stream: int, first: int, out: npt.NDArray[np.uint64]) -> None: ...
def available_isas() -> list[str]: ...
def fma_rate_float32(seconds: float, isa: str) -> float: ...
def fma_rate_float64(seconds: float, isa: str) -> float: ...
def default_thread_limit() -> int: ...
