"""Top eigenvalue of a kernel matrix of GloVe words, against the time of one exact product.

``python -m benchmarks.top_eigenvalue [--glove FILE] [--method auto]``, on an idle machine.
``--check`` compares the answer with one from exact products, to a tolerance of 1e-3.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np

import approxkmv as akmv


def words(args: argparse.Namespace) -> np.ndarray:
    """Random words, 100 dimensions; an array file is read as it is."""
    if args.glove is not None and args.glove.suffix == ".npy":
        every = np.load(args.glove, mmap_mode="r")
    else:
        every = akmv.datasets.glove(args.glove, 100).vectors
    chosen = np.random.default_rng(args.seed).permutation(len(every))[: args.n]
    return np.ascontiguousarray(every[np.sort(chosen)])


def seconds_of_a_product(points: np.ndarray, bandwidth: float) -> float:
    x = np.ones(len(points), points.dtype)
    start = time.perf_counter()
    akmv.matvec(points, None, x, bandwidth=bandwidth, method="exact")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--n", type=int, default=65_536)
    parser.add_argument("--variance", type=float, default=0.5, help="squared bandwidth")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare with exact products")
    args = parser.parse_args()
    points, bandwidth = words(args), math.sqrt(args.variance)
    akmv.matvec(points[:64], None, np.ones(64), bandwidth=bandwidth)  # starts the threads
    before = seconds_of_a_product(points, bandwidth)
    start = time.perf_counter()
    top = akmv.spectrum.top_eigenvalue(
        points, bandwidth=bandwidth, method=args.method, rng=args.seed
    )
    spent = time.perf_counter() - start
    product = min(before, seconds_of_a_product(points, bandwidth))
    print(top)
    print(f"{spent:.2f} s, one exact product {product:.2f} s: {spent / product:.2f} products")
    if args.check:
        exact = akmv.spectrum.top_eigenvalue(points, bandwidth=bandwidth, tol=1e-3, method="exact")
        print(exact)
        print(f"relative difference {top.eigenvalue / exact.eigenvalue - 1:.1e}")


if __name__ == "__main__":
    main()
