"""``approxkmv matvec``: a product from files to a file."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from approxkmv.cli.arguments import add_threads, memory, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    import numpy.typing as npt

    from approxkmv.info import ProductInfo

    Array = npt.NDArray[Any]

# Pairs times dimensions of one step of the bar: a quarter of a second at 10 Gflop/s.
_STEP = 1.2e9


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``matvec``."""
    parser = subparsers.add_parser(
        "matvec",
        help="multiply the kernel matrix of two point sets with a vector",
        description="Compute y = K x with K_ij = exp(-|q_i - k_j|^2 / (2 s^2)). Files are .npy, "
        ".npz (as file.npz:name) or .safetensors (as file.safetensors:name).",
    )
    parser.add_argument("--queries", required=True, metavar="FILE", help="points, one per row")
    parser.add_argument("--keys", metavar="FILE", help="points (default: the queries)")
    parser.add_argument("--x", required=True, metavar="FILE", help="vector, or several columns")
    parser.add_argument("--bandwidth", required=True, type=float, metavar="S", help="s above")
    parser.add_argument("--output", required=True, metavar="FILE.npy", help="where y goes")
    parser.add_argument("--eps", type=float, default=0.1, help="error allowed, relative to |x|")
    parser.add_argument("--rtol", type=float, help="error allowed relative to |y|, instead of eps")
    parser.add_argument("--max-seconds", type=float, help="then the best answer so far")
    parser.add_argument("--delta", type=float, default=0.05, help="probability of a larger error")
    parser.add_argument("--method", default="auto", help="auto (default), exact, sampled or paper")
    parser.add_argument("--seed", type=seed, help="seed of everything random")
    parser.add_argument("--explain", action="store_true", help="print every number chosen, and why")
    parser.add_argument(
        "--max-memory",
        type=memory,
        metavar="SIZE",
        help="such as 2GB: points stay in their .npy files, one chunk of them in memory at a time",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a streamed run that was interrupted"
    )
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read, multiply, write, and print the report."""
    from approxkmv.files import checked_output, read_array, write_array

    checked_output(args.output)
    if args.max_memory is not None or args.resume:
        return _streamed(args)
    queries = read_array(args.queries)
    keys = queries if args.keys is None else read_array(args.keys)
    x = read_array(args.x)
    options = {
        "bandwidth": args.bandwidth,
        "eps": args.eps,
        "rtol": args.rtol,
        "max_seconds": args.max_seconds,
        "delta": args.delta,
        "method": args.method,
        "rng": args.seed,
        "n_threads": args.threads,
    }
    # Rows of an exact product do not depend on each other, so a bar can follow blocks of them.
    in_blocks = args.method == "exact" and sys.stderr.isatty()
    y, info = (_blocks if in_blocks else _whole)(queries, keys, x, options)
    write_array(args.output, y)
    print(info)
    if args.explain:
        print(info.explain())
    print(f"  written       {args.output}: {y.dtype} {y.shape}")
    return 0


def _streamed(args: argparse.Namespace) -> int:
    """Chunk by chunk, from files to a file."""
    from approxkmv import streaming

    for name in ("rtol", "max_seconds"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} does not go with --max-memory")
    with Progress("multiplying", total=0) as progress:
        try:
            info = streaming.matvec(
                args.queries,
                args.keys,
                args.x,
                args.output,
                bandwidth=args.bandwidth,
                eps=args.eps,
                delta=args.delta,
                method=args.method,
                rng=args.seed,
                max_memory=2e9 if args.max_memory is None else args.max_memory,
                resume=args.resume,
                progress=progress.reach,
                n_threads=args.threads,
            )
        except KeyboardInterrupt:
            print(f"{progress.done:,} rows are done: --resume goes on from there", file=sys.stderr)
            raise
    print(info)
    if args.explain:
        print(info.explain())
    print(f"  written       {args.output}")
    return 0


def _whole(
    queries: Array, keys: Array, x: Array, options: dict[str, Any]
) -> tuple[Array, ProductInfo]:
    from approxkmv import matvec

    with Progress("multiplying"):
        return matvec(queries, keys, x, return_info=True, **options)


def _blocks(
    queries: Array, keys: Array, x: Array, options: dict[str, Any]
) -> tuple[Array, ProductInfo]:
    import numpy as np

    from approxkmv import matvec

    n_rows = max(256, int(_STEP / max(1, keys.size)))
    parts, infos = [], []
    with Progress("multiplying", total=len(queries)) as progress:
        for start in range(0, max(1, len(queries)), n_rows):
            block = queries[start : start + n_rows]
            y, info = matvec(block, keys, x, return_info=True, **options)
            parts.append(y)
            infos.append(info)
            progress.advance(len(block))
    return np.concatenate(parts), _stacked(infos)


def _stacked(infos: list[ProductInfo]) -> ProductInfo:
    """Report of products stacked on top of each other: counts add, squared lengths add."""
    seconds: Counter[str] = Counter()
    for info in infos:
        seconds.update(info.seconds)

    def length(name: str) -> float | None:
        values = [getattr(info, name) for info in infos]
        return None if None in values else math.hypot(*values)

    return dataclasses.replace(
        infos[-1],
        error_estimate=length("error_estimate"),
        error_bound=length("error_bound"),
        product_norm=length("product_norm"),
        pairs=sum(info.pairs for info in infos),
        pairs_exact=sum(info.pairs_exact for info in infos),
        seconds=dict(seconds),
    )
