"""``approxkmv bench``: this machine's speed against NumPy, in a few seconds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from approxkmv.cli.arguments import add_threads, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_CHECKED_ROWS = 64
_DIMENSIONS = (16, 64, 128)
_COLUMNS = ["seconds", "of peak", "       times NumPy", "error / |x|", "NumPy's"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="speed of the exact product against NumPy",
        description="Time the exact product against NumPy in blocks, runs interleaved, and print "
        "the share of the machine's peak. benchmarks/ in the source has more rivals.",
    )
    parser.add_argument("--n", type=positive_int, default=8192, help="queries and keys, each")
    parser.add_argument("--repetitions", type=positive_int, default=3, help="runs of each")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the data")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Time every case and print the table."""
    import numpy as np

    from approxkmv._table import RunningTable
    from approxkmv._threads import default_threads
    from approxkmv.loops import compiled

    n_threads = args.threads or default_threads()
    print(f"exact product, {args.n:,} x {args.n:,} pairs, {compiled.ISA}, {n_threads} threads")
    print("NumPy uses the threads its own settings give it\n")
    cases = [(np.dtype(t), d) for t in ("float32", "float64") for d in _DIMENSIONS]
    lines = RunningTable(["case            ", *_COLUMNS])
    print(lines.head, flush=True)
    for dtype, d in cases:  # a row as soon as it is known
        with Progress("timing", total=2 * (args.repetitions + 1)) as progress:
            row = _case(args, dtype, d, n_threads, progress)
        print(lines.row(row), flush=True)
    return 0


def _case(
    args: argparse.Namespace, dtype: Any, d: int, n_threads: int, progress: Progress
) -> list[str]:
    import numpy as np

    from approxkmv import matvec
    from approxkmv.cli import compare
    from approxkmv.datasets import clusters, vectors
    from approxkmv.experiments import timing
    from approxkmv.loops import compiled

    rng = np.random.default_rng(args.seed)
    queries, keys, bandwidth = clusters(args.n, d, mean_row_sum=None, rng=rng, dtype=dtype)
    x = vectors(args.n, rng, dtype=dtype)["gauss"]
    folded_queries, folded_keys = compare.folded(queries, keys, bandwidth)
    options: dict[str, Any] = {"bandwidth": bandwidth, "method": "exact", "n_threads": n_threads}
    ours, numpy = timing.interleaved(
        {
            "approxkmv": lambda: matvec(queries, keys, x, **options),
            "NumPy": lambda: compare.numpy_blocked(folded_queries, folded_keys, x),
        },
        args.repetitions,
        after_each=progress.advance,
    ).values()
    rows = rng.choice(args.n, min(args.n, _CHECKED_ROWS), replace=False)
    exact = compare.exact_rows(queries, keys, x, bandwidth, rows)
    errors = [compare.error_from_rows(y.result[rows], exact, args.n, x) for y in (ours, numpy)]
    # Two operations for each pair and dimension, and two for x; the exponential is not counted.
    operations = 2 * (d + 1) * args.n**2
    peak = n_threads * compiled.fma_peak(0.05, dtype)
    return [
        f"{dtype.name}, d = {d}",
        f"{ours.median:.3f}",
        f"{operations / ours.median / peak:.0%}",
        str(timing.ratio(numpy, ours)),
        *(f"{error:.1e}" for error in errors),
    ]
