"""``approxkmv demo``: the main job on generated data, and how good and how fast the answers are."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from approxkmv.cli.arguments import add_threads, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    import numpy.typing as npt

    from approxkmv.info import ProductInfo

    Array = npt.NDArray[Any]

_CHECKED_ROWS = 256
# NumPy takes several times as long as the exact product, so it is timed on some of the rows.
_NUMPY_ROWS = 2048


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="a product on generated data: errors asked for, errors made, times",
        description="Multiply the kernel matrix of clustered points with a random vector: exactly, "
        "with several errors allowed, and with NumPy; check every answer in double precision.",
    )
    parser.add_argument("--n", type=positive_int, default=65_536, help="queries and keys, each")
    parser.add_argument("--d", type=positive_int, default=64, help="dimensions")
    parser.add_argument(
        "--eps",
        type=float,
        nargs="+",
        default=[0.3, 0.1, 0.03],
        help="errors allowed, relative to |x| (default: 0.3 0.1 0.03)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the data and the draws")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Generate, multiply, check, and print the table."""
    import numpy as np

    from approxkmv._table import table
    from approxkmv.cli import compare
    from approxkmv.datasets import clusters, vectors

    n, d = args.n, args.d
    rng = np.random.default_rng(args.seed)
    print(f"{n:,} queries and {n:,} keys in {d} dimensions, float32, in clusters of about 16")
    row_sum = min(5.0, n / 2)
    queries, keys, bandwidth = clusters(n, d, mean_row_sum=row_sum, rng=rng)
    x = vectors(n, rng)["gauss"]
    print(f"bandwidth {bandwidth:.3f}, so that the kernel matrix has a mean row sum of {row_sum:g}")

    def product(method: str, eps: float) -> tuple[Array, ProductInfo, float]:
        return _timed(queries, keys, x, bandwidth, method, eps, args)

    with Progress("multiplying", total=len(args.eps) + 3) as progress:
        few = slice(64)  # starts the threads and imports what sampling needs
        _timed(queries[few], keys[few], x[few], bandwidth, "auto", 0.1, args)
        products = {}
        for eps in args.eps:
            products[f"eps = {eps:g}"] = product("auto", eps)
            progress.advance()
        products["exact"] = product("exact", 0.0)
        progress.advance()
        numpy_seconds = _numpy_seconds(queries, keys, x, bandwidth)
        progress.advance()
        chosen = rng.choice(n, min(n, _CHECKED_ROWS), replace=False)
        in_double = compare.exact_rows(queries, keys, x, bandwidth, chosen)

    exact = products["exact"][0].astype(np.float64)

    def error(answer: Array) -> str:
        return f"{compare.error_from_rows(answer, exact, n, x):.1e}"

    rounding = f"{compare.error_from_rows(exact[chosen], in_double, n, x):.1e}"
    exact_seconds = products["exact"][2]
    rows = []
    for name, (y, info, seconds) in products.items():
        rows.append(
            [
                name,
                info.method,
                f"{seconds:.3f}",
                f"{exact_seconds / seconds:.2f}",
                rounding if name == "exact" else error(y),
                "" if info.error_estimate is None else f"{info.error_estimate:.1e}",
                f"{info.pairs / info.pairs_exact:.2%}",
            ]
        )
    quotient = f"{exact_seconds / numpy_seconds:.2f}"
    rows.append(["NumPy, in blocks", "exact", f"{numpy_seconds:.3f}", quotient, "", "", "100.00%"])
    trivial = compare.trivial_answers(queries, keys, x, bandwidth, np.arange(n), exact)
    rows += [[name, "", "", "", error(answer), "", ""] for name, answer in trivial.items()]
    header = ["y = K x", "method", "seconds", "times exact", "error / |x|", "estimated", "pairs"]
    print(f"\n{table(header, rows)}")
    print(
        "\ntimes exact: how many times as fast as exact; pairs: share of the kernel values computed"
    )
    print(
        "error: against the exact product; its own against double precision on "
        f"{len(chosen)} random rows"
    )
    if n > _NUMPY_ROWS:
        print(f"NumPy is timed on {_NUMPY_ROWS:,} of the queries, and scaled")
    return 0


def _timed(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    method: str,
    eps: float,
    args: argparse.Namespace,
) -> tuple[Array, ProductInfo, float]:
    """The product, its report, and the seconds it took without measuring for the report."""
    from approxkmv import matvec

    start = time.perf_counter()
    y, info = matvec(
        queries,
        keys,
        x,
        bandwidth=bandwidth,
        eps=eps,
        method=method,
        rng=args.seed,
        n_threads=args.threads,
        return_info=True,
    )
    return y, info, time.perf_counter() - start - info.seconds.get("report", 0.0)


def _numpy_seconds(queries: Array, keys: Array, x: Array, bandwidth: float) -> float:
    """Time of NumPy, in blocks, for all queries: its time for the first ones, scaled."""
    from approxkmv.cli import compare

    some = queries[:_NUMPY_ROWS]
    folded_queries, folded_keys = compare.folded(some, keys, bandwidth)
    compare.numpy_blocked(folded_queries, folded_keys, x)  # its threads and memory, as ours
    start = time.perf_counter()
    compare.numpy_blocked(folded_queries, folded_keys, x)
    return (time.perf_counter() - start) * len(queries) / len(some)
