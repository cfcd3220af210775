"""Time taken over ``max_seconds``, and how true the reported errors are.

Run ``python -m benchmarks.limits`` on an idle machine. Every line has the time, its share of the
limit, whether the promise (1.3 times the limit and 0.1 s) was kept, the error estimate, and the
error on 500 rows computed exactly.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv._deadline import MARGIN, OVERRUN

SIZES, DIMS = (65_536, 262_144), (16, 64)
LIMITS = (0.02, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = 500


def clusters(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Sixteen points around each centre."""
    centres = np.repeat(rng.standard_normal((n // 16, d)), 16, axis=0)
    return (centres + 0.1 * rng.standard_normal((n, d))).astype(np.float32)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and how long it took; warnings are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start


def line(what: str, size: str, limit: float, seconds: float, errors: str) -> bool:
    """Print one line; whether the promise was kept."""
    kept = seconds <= OVERRUN * limit + MARGIN
    share = seconds / limit
    mark = "" if kept else "  LATE"
    print(f"{what:<10} {size:<12} {limit:>5g} s {seconds:>8.3f} s {share:>6.2f}  {errors}{mark}")
    return kept


def points_lines(n: int, d: int, limit: float, rng: np.random.Generator) -> list[bool]:
    """Products, operator, solve and diagnosis of clusters."""
    points, bandwidth, size = clusters(n, d, rng), 0.3 * d**0.5, f"{n} x {d}"
    x = rng.standard_normal(n).astype(np.float32)
    rows = rng.choice(n, min(n, _ROWS), replace=False)
    exact = akmv.matvec(points[rows], points, x, bandwidth=bandwidth, method="exact")

    def off(y: np.ndarray) -> float:
        return float(np.linalg.norm(y[rows] - exact) * (n / len(rows)) ** 0.5 / np.linalg.norm(x))

    (y, info), seconds = timed(
        lambda: akmv.matvec(
            points, None, x, bandwidth=bandwidth, max_seconds=limit, rng=0, return_info=True
        )
    )
    kept = [
        line(
            "matvec",
            size,
            limit,
            seconds,
            f"{info.method}: error {off(y):.3g}, estimate {info.error_estimate:.3g}, "
            f"bound {info.error_bound:.3g}",
        )
    ]
    K, seconds = timed(
        lambda: akmv.GaussianKernel(points, bandwidth=bandwidth, max_seconds=limit, rng=0)
    )
    kept.append(line("operator", size, limit, seconds, f"{K.info.method}: {K.info.plan.reason}"))
    (_, solved), seconds = timed(
        lambda: akmv.solve(K, x, noise=0.1, max_seconds=limit, rng=0, return_info=True)
    )
    told = f"residual {solved.residual:.3g}, {solved.n_iter} iterations, {solved.reason}"
    kept.append(line("solve", size, limit, seconds, told))
    report, seconds = timed(
        lambda: akmv.diagnose(points, bandwidth=bandwidth, max_seconds=limit, rng=0)
    )
    low, high = report.c_interval
    told = f"c {report.c:.3g} in [{low:.3g}, {high:.3g}]"
    kept.append(line("diagnose", size, limit, seconds, told))
    return kept


def attention_line(limit: float, *, is_causal: bool, rng: np.random.Generator) -> bool:
    """Eight heads of 8,192 tokens."""
    query, key, value = rng.standard_normal((3, 8, 8192, 64), np.float32)
    (output, info), seconds = timed(
        lambda: akmv.attention(
            query,
            key,
            value,
            scale=0.3,
            is_causal=is_causal,
            max_seconds=limit,
            rng=0,
            return_info=True,
        )
    )
    rows = np.sort(rng.choice(8192, _ROWS, replace=False))
    seen = (np.arange(8192) <= rows[:, None]) if is_causal else None
    exact = akmv.attention(query[:, rows], key, value, scale=0.3, attn_mask=seen, method="exact")
    off = np.sqrt(np.square(output[:, rows] - exact).sum(axis=(1, 2)) * 8192 / _ROWS)
    error = float((off / np.linalg.norm(value, axis=(1, 2))).max())
    told = f"{info.method}: error {error:.3g}, estimate {info.error_estimate:.3g}"
    return line("attention", "causal" if is_causal else "8 x 8192", limit, seconds, told)


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--limits", type=float, nargs="+", default=LIMITS)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    kept = []
    points_lines(2048, 16, 1.0, rng)  # loads the modules
    for limit in args.limits:
        for n in args.sizes:
            for d in DIMS:
                kept += points_lines(n, d, limit, rng)
        kept += [attention_line(limit, is_causal=causal, rng=rng) for causal in (False, True)]
    print(f"{len(kept) - sum(kept)} of {len(kept)} late")


if __name__ == "__main__":
    main()
