"""Our products in up to three dimensions against finufft: ``python -m benchmarks.fourier [n]``.

A Gaussian is a sum of plane waves: with all frequencies up to k, where exp(-sigma^2 k^2 / 2) is the
error allowed, a product is a non-uniform Fourier transform of x at the keys, a factor for each
frequency, and a transform back at the queries. Needs ``pip install finufft``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv._table import table

N = 65_536
ROWS = 512
THREADS = 1


def by_waves(points: Any, x: Any, bandwidth: float, tol: float) -> Any:
    """The product with queries = keys, in single precision."""
    import finufft

    d = points.shape[1]
    reach = bandwidth * math.sqrt(2 * math.log(1 / tol))
    low, high = points.min(axis=0), points.max(axis=0)
    period = float((high - low).max()) + reach
    angle = [np.ascontiguousarray((2 * np.pi / period) * (points[:, i] - low[i])) for i in range(d)]
    # Angles are taken modulo 2 pi: copies of the points are a period apart.
    most = math.ceil(math.sqrt(2 * math.log(1 / tol)) / bandwidth * period / (2 * np.pi))
    shape = (2 * most + 1,) * d
    forth = {1: finufft.nufft1d1, 2: finufft.nufft2d1, 3: finufft.nufft3d1}[d]
    back = {1: finufft.nufft1d2, 2: finufft.nufft2d2, 3: finufft.nufft3d2}[d]
    waves = forth(*angle, x.astype(np.complex64), shape, eps=tol, isign=-1, nthreads=THREADS)
    k = 2 * np.pi / period * np.arange(-most, most + 1)
    factor = np.exp(-0.5 * (bandwidth * k) ** 2) * bandwidth * math.sqrt(2 * np.pi) / period
    for axis in range(d):
        waves *= factor.astype(np.float32).reshape([-1 if i == axis else 1 for i in range(d)])
    return back(*angle, waves, eps=tol, isign=1, nthreads=THREADS).real


def timed(f: Callable[[], Any]) -> tuple[Any, float]:
    """With processor seconds: one thread on a machine that others use, too."""
    start = time.process_time()
    out = f()
    return out, time.process_time() - start


def case(kind: str, d: int, bandwidth: float, eps: float, n: int) -> list[str]:
    """One row of the table."""
    rng = np.random.default_rng(d)
    points = rng.uniform(0, 1, (n, d))
    if kind == "curve":
        t = rng.uniform(0, 2 * np.pi, n)
        points = np.stack([np.cos(t), np.sin(2 * t), t / 6][:d], 1)
        points += 0.003 * rng.standard_normal((n, d))
    points = points.astype(np.float32)
    x = rng.standard_normal(n).astype(np.float32)
    rows = rng.choice(n, ROWS, replace=False)
    exact = akmv.matvec(
        points[rows].astype("f8"),
        points.astype("f8"),
        x.astype("f8"),
        bandwidth=bandwidth,
        method="exact",
    )
    scale = math.sqrt(n / ROWS) / float(np.linalg.norm(x))

    def error(y: Any) -> float:
        return float(np.linalg.norm(y[rows] - exact)) * scale

    (ours, info), seconds = timed(
        lambda: akmv.matvec(
            points,
            points,
            x,
            bandwidth=bandwidth,
            eps=eps,
            rng=0,
            n_threads=THREADS,
            return_info=True,
        )
    )
    _, all_pairs = timed(
        lambda: akmv.matvec(
            points, points, x, bandwidth=bandwidth, method="exact", n_threads=THREADS
        )
    )
    # The error of waves grows with what the sums cancel: a twentieth of eps is enough here.
    waves, by_fourier = timed(lambda: by_waves(points, x, bandwidth, eps / 20))
    way = "cells" if info.confidence == 1.0 and info.method == "sampled" else info.method
    return [
        f"{kind}, d = {d}",
        f"{bandwidth:g}",
        f"{eps:g}",
        f"{all_pairs:.3g}",
        f"{seconds:.3g} ({way})",
        f"{error(ours):.1e}",
        f"{by_fourier:.3g}",
        f"{error(waves):.1e}",
    ]


def main(n: int) -> None:
    """All cases; the table so far after each of them."""
    header = ["points", "bandwidth", "eps", "exact: s", "ours: s", "error", "finufft: s", "error"]
    rows = []
    for kind, d, bandwidth in (
        ("uniform", 1, 0.001),
        ("uniform", 2, 0.01),
        ("uniform", 3, 0.03),
        ("curve", 3, 0.01),
    ):
        for eps in (0.1, 1e-3):
            rows.append(case(kind, d, bandwidth, eps, n))
            print(table(header, rows), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else N)
