"""Peak memory of one product beyond inputs and output: ``python -m benchmarks.memory M N D T``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import approxkmv


def main(n_queries: int, n_keys: int, d: int, n_threads: int) -> None:
    """Print the megabytes by which the process grew, the output not counted."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((n_queries, d), dtype=np.float32)
    keys = rng.standard_normal((n_keys, d), dtype=np.float32)
    x = rng.standard_normal(n_keys, dtype=np.float32)
    options: dict[str, Any] = {"bandwidth": 8.0, "method": "exact", "n_threads": n_threads}
    approxkmv.matvec(queries[:64], keys[:64], x[:64], **options)  # starts the threads
    before = status("VmRSS")
    y = approxkmv.matvec(queries, keys, x, **options)
    # The peak is since the start of the process, so the figure can only be too high.
    print((status("VmHWM") - before - y.nbytes) / 1e6)


def status(name: str) -> int:
    """Return a figure of this process in bytes (Linux).

    Not getrusage's ru_maxrss, which a child inherits from the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
