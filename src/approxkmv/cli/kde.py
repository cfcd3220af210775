"""``approxkmv kde``: log-densities from files to a file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Queries between two steps of the bar; their answers do not depend on each other.
_ROWS = 4096


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``kde``."""
    parser = subparsers.add_parser(
        "kde",
        help="log-densities of a kernel density estimate",
        description="Estimate the density of points by Gaussian kernels and write its logarithm at "
        "other points. Files are .npy, .npz (as file.npz:name) or .safetensors (as "
        "file.safetensors:name). Needs scikit-learn.",
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="samples, one per row")
    parser.add_argument("--queries", metavar="FILE", help="where to evaluate (default: the data)")
    parser.add_argument("--weights", metavar="FILE", help="weights of the samples, not negative")
    parser.add_argument(
        "--bandwidth", required=True, type=_bandwidth, metavar="H", help="number, scott, silverman"
    )
    parser.add_argument("--output", metavar="FILE.npy", help="where the log-densities go")
    parser.add_argument("--rtol", type=float, default=0.1, help="error allowed, in nats")
    parser.add_argument("--floor", type=float, help="log-density below which none are told apart")
    parser.add_argument("--method", default="auto", help="auto (default), exact or sampled")
    parser.add_argument("--seed", type=seed, help="seed of everything random")
    parser.add_argument("--explain", action="store_true", help="print every number chosen, and why")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read, fit, evaluate, write, and print a summary."""
    import numpy as np

    from approxkmv.files import checked_output, read_array, write_array
    from approxkmv.sklearn import KernelDensity

    if args.output is not None:
        checked_output(args.output)
    data = read_array(args.data)
    queries = data if args.queries is None else read_array(args.queries)
    weights = None if args.weights is None else read_array(args.weights)
    model = KernelDensity(
        args.bandwidth,
        rtol=args.rtol,
        floor=args.floor,
        method=args.method,
        random_state=args.seed,
        n_threads=args.threads,
    )
    with Progress("fitting"):
        model.fit(data, sample_weight=weights)
    parts = []
    with Progress("evaluating", total=len(queries)) as progress:
        for first in range(0, max(1, len(queries)), _ROWS):
            parts.append(model.score_samples(queries[first : first + _ROWS]))
            progress.advance(len(parts[-1]))
    log_density = np.concatenate(parts)
    low, middle, high = np.quantile(log_density, [0, 0.5, 1])
    mean = log_density.mean()
    print(f"{model.method_}: {model.plan_.reason}")
    print(f"  bandwidth     {model.bandwidth_:.6g}")
    print(f"  log-density   {low:.6g} to {high:.6g}, median {middle:.6g}, mean {mean:.6g}")
    if args.explain:
        print(model.plan_)
    if args.output is not None:
        write_array(args.output, log_density)
        print(f"  written       {args.output}: {log_density.dtype} {log_density.shape}")
    return 0


def _bandwidth(text: str) -> float | str:
    """Read a number or the name of a rule."""
    if text in ("scott", "silverman"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, 'scott' or 'silverman', got {text!r}"
        ) from None
