"""``approxkmv kde``: log-densities from files to a file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from approxkmv.cli.arguments import add_threads, needs, seed
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
        "file.safetensors:name), .csv or .parquet. Without scikit-learn all is computed exactly.",
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

    if args.output is not None:
        checked_output(args.output)
    data = read_array(args.data)
    queries = data if args.queries is None else read_array(args.queries)
    weights = None if args.weights is None else read_array(args.weights)
    model = _model(args)
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


def _model(args: argparse.Namespace) -> Any:
    """The estimator, or what computes exactly without scikit-learn."""
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        if args.method == "sampled":
            needs("sklearn", "--method sampled", "sklearn")
        return ExactDensity(args.bandwidth, args.threads)
    from approxkmv.sklearn import KernelDensity

    return KernelDensity(
        args.bandwidth,
        rtol=args.rtol,
        floor=args.floor,
        method=args.method,
        random_state=args.seed,
        n_threads=args.threads,
    )


class ExactDensity:
    """Exact log-densities with the methods that this command uses, without scikit-learn."""

    method_ = "exact"

    def __init__(self, bandwidth: float | str, n_threads: int | None) -> None:
        self._rule, self._n_threads = bandwidth, n_threads

    def fit(self, X: Any, sample_weight: Any = None) -> None:
        """Take the samples."""
        import math

        import numpy as np

        from approxkmv import _check
        from approxkmv.info import Plan

        self._X = _check.points(X, "X")
        n, d = self._X.shape
        _check.finite(self._X, "X")
        if n == 0:
            raise ValueError("X must have at least one sample.")
        weights = np.ones(n) if sample_weight is None else _check.weights(sample_weight, n)
        _check.finite(weights, "weights")
        if not weights.any():
            raise ValueError("weights must have a positive entry, but all are 0.")
        kept = weights > 0
        self._X, self._weights = self._X[kept], weights[kept] / weights.max()
        n = len(self._X)
        rules = {"scott": n ** (-1 / (d + 4)), "silverman": (n * (d + 2) / 4) ** (-1 / (d + 4))}
        width = rules[self._rule] if isinstance(self._rule, str) else self._rule
        self.bandwidth_ = _check.positive(width, "bandwidth")
        volume = d * math.log(self.bandwidth_ * math.sqrt(2 * math.pi))
        self._log_norm = math.log(self._weights.sum()) + volume
        self.plan_ = Plan("exact", "scikit-learn is not installed, which the sampled way needs")

    def score_samples(self, queries: Any) -> Any:
        """Log-densities."""
        from approxkmv import log_row_sums

        logs = log_row_sums(
            queries,
            self._X,
            bandwidth=self.bandwidth_,
            weights=self._weights,
            n_threads=self._n_threads,
        )
        return logs.astype(float) - self._log_norm


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
