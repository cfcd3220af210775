"""Cost of a product on a cluster, from counts: ``python -m benchmarks.cluster [--n 1e9 ...]``.

Tasks and bytes are counted as :func:`approxkmv.dask.matvec` makes them, which
``tests/test_cluster_costs.py`` checks against graphs; seconds are those of a block that was
measured, scaled. Queries, keys and x are files that every worker sees.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

from approxkmv._table import table

# Of what one task of approxkmv.dask reads or adds.
KEY_BYTES, BYTES_AT_ONCE, ADDED_AT_ONCE = 2**30, 2**28, 16
# Beside its coordinates, twice, a point needs this much: blocks/cut.py.
BYTES_OF_A_POINT = 256
SECONDS_OF_A_TASK = 5e-3  # of the scheduler, the most that Dask says
NETWORK = 1.25e9  # bytes a second of a worker: 10 Gbit/s


@dataclass(frozen=True)
class Block:
    """A measured block: one thread, its share of the error for this many queries in all."""

    n_queries: int
    n_keys: int
    seconds: float
    exact_seconds: float  # of a pair, one thread


# 131,072 queries and 262,144 keys, their share of eps = 0.1 in a product of 262,144 queries, one
# thread of an AMD EPYC with AVX-512; exactly, 262,144 x 262,144 take 24 s with two threads.
MEASURED = Block(131_072, 262_144, 1.52, 0.7e-9)


@dataclass(frozen=True)
class Costs:
    """Of n queries and n keys in files."""

    n: int
    n_dims: int
    itemsize: int
    rows: int  # of a chunk of queries
    keys: int  # of a chunk of keys

    @property
    def grid(self) -> tuple[int, int]:
        """Chunks of queries, chunks of keys."""
        return math.ceil(self.n / self.rows), math.ceil(self.n / self.keys)

    @property
    def tasks(self) -> dict[str, int]:
        """Tasks by their name on the dashboard, before Dask fuses any."""
        n_rows, n_keys = self.grid
        parts, sums = n_keys, 0
        while parts > ADDED_AT_ONCE:
            parts = math.ceil(parts / ADDED_AT_ONCE)
            sums += parts
        return {
            "from_npy": n_rows,
            "key_side": n_keys,
            "kernel_block": n_rows * n_keys,
            "part_of_kernel_product": n_rows * sums,
            "kernel_product": n_rows,
        }

    def moved(self, n_workers: int) -> dict[str, float]:
        """Bytes between machines at most: every result goes to every worker that may want it."""
        n_rows, n_keys = self.grid
        point = self.n_dims * self.itemsize
        away = 1 - 1 / n_workers
        return {
            "points read from files": self.n * point * (1 + min(n_workers, n_rows)),
            "queries to blocks": n_rows * min(n_keys, n_workers) * self.rows * point * away,
            "x to workers": min(n_workers, n_rows) * self.n * self.itemsize * away,
            "blocks to sums": n_rows * n_keys * self.rows * self.itemsize * away,
        }

    def memory(self) -> float:
        """Bytes of a worker beyond its 200 MB: keys are mapped, and shared by its processes."""
        point = self.n_dims * self.itemsize
        return (self.rows + self.keys) * (2 * point + BYTES_OF_A_POINT)

    def seconds(self, block: Block, n_workers: int) -> dict[str, tuple[float, float]]:
        """Smallest and largest time: of a block that grows with its points or with its pairs."""
        points = (self.rows + self.keys) / (block.n_queries + block.n_keys)
        pairs = self.rows * self.keys / (block.n_queries * block.n_keys)
        n_blocks, rounds = math.prod(self.grid), math.ceil(math.prod(self.grid) / n_workers)
        network = sum(self.moved(n_workers).values()) / (n_workers * NETWORK)
        scheduler = sum(self.tasks.values()) * SECONDS_OF_A_TASK
        exact = rounds * self.rows * self.keys * block.exact_seconds
        return {
            "a block": (block.seconds * points, block.seconds * pairs),
            "computing": (rounds * block.seconds * points, rounds * block.seconds * pairs),
            "computing exactly": (exact, exact),
            "network": (network, network),
            "scheduler": (scheduler, scheduler),
            "computing of one worker": tuple(  # type: ignore[dict-item]
                n_blocks * block.seconds * growth for growth in (points, pairs)
            ),
        }


def costs(n: int, n_dims: int = 64, itemsize: int = 4) -> Costs:
    """Cut as ``from_npy`` with chunks of 256 MB and keys in a file are."""
    row = n_dims * itemsize
    n_keys = math.ceil(n / max(1, KEY_BYTES // row))
    return Costs(n, n_dims, itemsize, min(n, BYTES_AT_ONCE // row), math.ceil(n / n_keys))


def main() -> int:
    """Print a table for every n and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=float, nargs="+", default=[1e8, 1e9])
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000])
    args = parser.parse_args()
    rows = [_row(costs(int(n)), MEASURED, workers) for n in args.n for workers in args.workers]
    print(table(["n", "workers", "blocks", "tasks", "memory", "moved", *_TIMES], rows))
    return 0


_TIMES = ["a block", "computing", "computing exactly", "network", "scheduler"]


def _row(one: Costs, block: Block, workers: int) -> list[str]:
    seconds = one.seconds(block, workers)
    moved = sum(one.moved(workers).values())
    shown = [f"{one.n:.0e}", str(workers), f"{one.grid[0]} x {one.grid[1]}"]
    shown += [
        f"{sum(one.tasks.values()):,}",
        f"{one.memory() / 1e9:.1f} GB",
        f"{moved / 1e12:.2g} TB",
    ]
    return shown + [_time(*seconds[name]) for name in _TIMES]


def _time(least: float, most: float) -> str:
    def one(seconds: float) -> str:
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
            if seconds >= size:
                return f"{seconds / size:.2g} {unit}"
        return f"{seconds:.2g} s"

    return one(least) if most <= least * 1.01 else f"{one(least)} to {one(most)}"


if __name__ == "__main__":
    sys.exit(main())
