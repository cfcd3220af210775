"""``approxkmv demo``: the main job on generated data, and how good and how fast the answer is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_REPETITIONS = 3
_CHECKED_ROWS = 256


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="a product on generated data, its error and its time",
        description="Multiply the kernel matrix of clustered points with a random vector; compare "
        "with NumPy and with double precision.",
    )
    parser.add_argument("--n", type=positive_int, default=16_384, help="queries and keys, each")
    parser.add_argument("--d", type=positive_int, default=64, help="dimensions")
    parser.add_argument("--eps", type=float, default=0.1, help="error allowed, relative to |x|")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the data")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Generate, multiply, check, and print the table."""
    import numpy as np

    from approxkmv import _compare, _timing, matvec
    from approxkmv._table import table
    from approxkmv.datasets import clusters, vectors

    n, d = args.n, args.d
    rng = np.random.default_rng(args.seed)
    print(f"{n:,} queries and {n:,} keys in {d} dimensions, float32, in clusters of about 16")
    row_sum = min(5.0, n / 2)
    queries, keys, bandwidth = clusters(n, d, mean_row_sum=row_sum, rng=rng)
    x = vectors(n, rng)["gauss"]
    print(f"bandwidth {bandwidth:.3f}, so that the kernel matrix has a mean row sum of {row_sum:g}")

    folded_queries, folded_keys = _compare.folded(queries, keys, bandwidth)
    contestants = {
        "approxkmv": lambda: matvec(
            queries,
            keys,
            x,
            bandwidth=bandwidth,
            eps=args.eps,
            rng=args.seed,
            n_threads=args.threads,
        ),
        "NumPy, in blocks": lambda: _compare.numpy_blocked(folded_queries, folded_keys, x),
    }
    with Progress("multiplying", total=len(contestants) * (_REPETITIONS + 1)) as progress:
        timings = _timing.interleaved(contestants, _REPETITIONS, after_each=progress.advance)

    chosen = rng.choice(n, min(n, _CHECKED_ROWS), replace=False)
    exact = _compare.exact_rows(queries, keys, x, bandwidth, chosen)

    def error(answer: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
        return f"{_compare.error_from_rows(answer, exact, n, x):.1e}"

    rows = [
        [name, f"{timing.median:.3f}", error(timing.result[chosen])]
        for name, timing in timings.items()
    ]
    trivial = _compare.trivial_answers(queries, keys, x, bandwidth, chosen, exact)
    rows += [[name, "", error(answer)] for name, answer in trivial.items()]
    print()
    print(table(["y = K x", "seconds", "error / |x|"], rows))
    speed = _timing.ratio(timings["NumPy, in blocks"], timings["approxkmv"])
    print(f"\n{speed} times as fast as NumPy: median and range of {_REPETITIONS} interleaved runs")
    print(f"errors against double precision on {len(chosen)} random rows; eps is {args.eps:g}")
    return 0
