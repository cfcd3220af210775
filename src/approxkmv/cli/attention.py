"""``approxkmv attention``: softmax attention from files to a file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``attention``."""
    parser = subparsers.add_parser(
        "attention",
        help="softmax attention of queries, keys and values",
        description="Compute softmax(s Q K') V for arrays of shape (..., n, d), each index of the "
        "leading dimensions being a head. Files are .npy, .npz (as file.npz:name) or .safetensors "
        "(as file.safetensors:name).",
    )
    parser.add_argument("--query", required=True, metavar="FILE", help="(..., n_queries, d)")
    parser.add_argument("--key", required=True, metavar="FILE", help="(..., n_keys, d)")
    parser.add_argument("--value", required=True, metavar="FILE", help="(..., n_keys, n_columns)")
    parser.add_argument("--output", required=True, metavar="FILE.npy", help="where the output goes")
    parser.add_argument("--scale", type=float, metavar="S", help="s above (default: 1 / sqrt(d))")
    parser.add_argument("--causal", action="store_true", help="query i sees keys 0 to i only")
    parser.add_argument("--gqa", action="store_true", help="heads of query share those of key")
    parser.add_argument("--eps", type=float, default=0.1, help="error allowed, relative to |V|_F")
    parser.add_argument("--delta", type=float, default=0.05, help="probability of a larger error")
    parser.add_argument("--max-seconds", type=float, help="then the best answer so far")
    parser.add_argument("--method", default="auto", help="auto (default), exact, sampled or paper")
    parser.add_argument("--seed", type=seed, help="seed of everything random")
    parser.add_argument("--explain", action="store_true", help="print what was done for each head")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read, compute, write, and print the report."""
    from approxkmv import attention
    from approxkmv.files import checked_output, read_array, write_array

    checked_output(args.output)
    query, key, value = (read_array(name) for name in (args.query, args.key, args.value))
    with Progress("attending"):
        output, info = attention(
            query,
            key,
            value,
            scale=args.scale,
            is_causal=args.causal,
            enable_gqa=args.gqa,
            eps=args.eps,
            delta=args.delta,
            method=args.method,
            max_seconds=args.max_seconds,
            rng=args.seed,
            n_threads=args.threads,
            return_info=True,
        )
    write_array(args.output, output)
    print(info)
    if args.explain:
        print(info.explain())
    print(f"  written       {args.output}: {output.dtype} {output.shape}")
    return 0
