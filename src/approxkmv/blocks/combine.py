"""Reports of blocks put together: what the errors of all blocks add up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from approxkmv.blocks.product import BlockInfo
from approxkmv.info import Plan, ProductInfo

# A task should take at least this long, or the cost of handing it out shows: Dask takes 1 to 5 ms
# for a task, and as long again where points travel to it.
LEAST_SECONDS = 1.0


def combine_infos(infos: Any) -> ProductInfo:
    r"""Report of the whole product from those of its blocks.

    Parameters
    ----------
    infos : nested sequence or array of BlockInfo
        One for each block, in any order: what the second object of
        :func:`approxkmv.dask.matvec` with ``return_info=True`` computes to.

    Returns
    -------
    ProductInfo
        ``error_estimate``: blocks have independent draws without bias, so mean squares add,
        :math:`\sum_{ib} (e_{ib} |x_b|)^2`; errors of fixed matrices (low rank, cells) in a row of
        blocks add as lengths. ``error_bound``: bounds of rounding add within a row of
        blocks, and as squares over rows; on top of them is Markov's inequality for the sum of the
        mean squared errors, which each block estimates from above. ``seconds`` are those of all
        blocks added up, ``product_norm`` is known where the keys are in one chunk.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import combine_infos, matvec
    >>> points = np.random.default_rng(0).standard_normal((300, 4))
    >>> y, infos = matvec(
    ...     da.from_array(points, chunks=(100, -1)), points, np.ones(300), bandwidth=1.0,
    ...     rng=0, return_info=True
    ... )
    >>> info = combine_infos(infos.compute())
    >>> info.method, info.pairs, bool(info.error_estimate < 1e-12)
    ('exact', 90000, True)
    """
    grid = _grid(infos)
    blocks = grid.reshape(-1).tolist()
    x_norm = math.hypot(*(block.x_norm for block in grid[0]))
    methods = sorted({block.info.method for block in blocks})
    sampled = [block for block in blocks if block.info.confidence < 1]
    # Each block has its share of delta, so the whole fails with at most their sum.
    delta = math.fsum(1 - block.info.confidence for block in blocks)
    seconds: Counter[str] = Counter()
    for block in blocks:
        seconds.update(block.info.seconds)
    norms = [block.info.product_norm for block in grid[:, 0]] if grid.shape[1] == 1 else [None]
    return ProductInfo(
        methods[0] if len(methods) == 1 else "mixed",
        _plan(grid, sampled),
        error_estimate=_length([_estimate(row, x_norm) for row in grid]),
        error_bound=_bound(grid, x_norm, delta),
        confidence=1 - delta,
        pairs=sum(block.info.pairs for block in blocks),
        pairs_exact=sum(block.info.pairs_exact for block in blocks),
        seconds=dict(seconds),
        product_norm=_length(norms),
    )


def _grid(infos: Any) -> np.ndarray[Any, Any]:
    """The records in their places, query chunks by key chunks; every block must be there once."""
    blocks = _flat(infos)
    found = {(block.query_chunk, block.key_chunk): block for block in blocks}
    if not blocks or len(found) != len(blocks):
        raise ValueError(f"infos must hold each block once, got {len(blocks)} records.")
    n_rows, n_columns = (1 + max(at) for at in zip(*found, strict=True))
    missing = [(i, b) for i in range(n_rows) for b in range(n_columns) if (i, b) not in found]
    if missing:
        raise ValueError(f"infos must hold every block, but block {missing[0]} is missing.")
    grid = np.empty((n_rows, n_columns), object)
    for place, block in found.items():
        grid[place] = block
    return grid


def _flat(infos: Any) -> list[BlockInfo]:
    if isinstance(infos, BlockInfo):
        return [infos]
    if isinstance(infos, np.ndarray | Sequence) and not isinstance(infos, str):
        return [block for part in infos for block in _flat(part)]
    raise TypeError(f"infos must be records of blocks, got {type(infos).__name__}.")


def _scaled(block: BlockInfo, error: float | None, x_norm: float) -> float | None:
    """An error of one block relative to the whole of x."""
    if error is None:
        return None
    return error * (block.x_norm / x_norm) if x_norm > 0 else error


def _length(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.hypot(*known) if len(known) == len(values) else None


def _estimate(row: Sequence[BlockInfo], x_norm: float) -> float | None:
    """Error of one chunk of queries: draws of its blocks are independent, fixed errors are not."""
    drawn: list[float | None] = []
    fixed: list[float | None] = []
    for block in row:
        (fixed if block.is_fixed else drawn).append(
            _scaled(block, block.info.error_estimate, x_norm)
        )
    together = [value for value in fixed if value is not None]
    return _length([*drawn, math.fsum(together) if len(together) == len(fixed) else None])


def _bound(grid: np.ndarray[Any, Any], x_norm: float, delta: float) -> float | None:
    """Bound of the error of the whole, at confidence ``1 - delta``."""
    certain, mean_square = [], 0.0
    for row in grid:
        rounding, fixed = 0.0, 0.0
        for block in row:
            bound = _scaled(block, block.info.error_bound, x_norm)
            if bound is None:
                return None
            if block.info.confidence == 1:
                rounding += bound
            else:  # it is Markov's, of a mean squared error that is known from above
                root = bound * math.sqrt(1 - block.info.confidence)
                if block.is_fixed:
                    fixed += root
                else:
                    mean_square += root**2
        mean_square += fixed**2
        certain.append(rounding)
    return math.hypot(*certain) + (math.sqrt(mean_square / delta) if delta > 0 else 0.0)


def _plan(grid: np.ndarray[Any, Any], sampled: list[BlockInfo]) -> Plan:
    """How the product was cut, what became of the blocks, and whether the cut was a good one."""
    blocks: list[BlockInfo] = grid.reshape(-1).tolist()
    spent = sorted(sum(block.info.seconds.values()) for block in blocks)
    reasons = Counter(block.info.plan.reason for block in blocks)
    middle = spent[len(spent) // 2]
    return Plan(
        "sampled" if len(sampled) == len(blocks) else "mixed" if sampled else "exact",
        f"{grid.shape[0]} x {grid.shape[1]} blocks of queries and keys, {len(sampled)} sampled; "
        + verdict(middle, len(blocks)),
        {
            "query_chunks": grid.shape[0],
            "key_chunks": grid.shape[1],
            "queries_per_chunk": max(block.n_queries for block in blocks),
            "keys_per_chunk": max(block.n_keys for block in blocks),
            "blocks_sampled": len(sampled),
            "seconds_of_a_block": middle,
            "seconds_of_the_longest_block": spent[-1],
            "seconds_of_all_blocks": math.fsum(spent),
            **{f"blocks where {reason}": count for reason, count in reasons.most_common(5)},
        },
    )


def verdict(seconds: float, n_blocks: int) -> str:
    """Whether tasks of this length are worth handing out."""
    total = seconds * n_blocks
    if total < 2 * LEAST_SECONDS:
        return f"all blocks take {total:.2g} s: one call of approxkmv.matvec is faster"
    if seconds < LEAST_SECONDS:
        times = math.ceil(LEAST_SECONDS / max(seconds, 1e-3))
        return (
            f"a block takes {seconds:.2g} s, less than {LEAST_SECONDS:g} s: "
            f"use chunks {times} times as long"
        )
    return f"a block takes {seconds:.2g} s, long enough to be handed out"
