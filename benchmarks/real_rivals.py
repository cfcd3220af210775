"""What people use instead, on the same points: each has one number that trades time for error.

Building landmarks, features, an index or a grid is part of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.approximations import Problem, faiss_range
from benchmarks.harness import installed

NAMES = ("Nystroem", "random features", "FAISS + CSR", "finufft")
MOST_MODES = 2**26  # of a grid: a gigabyte with its transform
Rival = Callable[[Problem, int], Any]


class TooLargeError(Exception):
    """A rival would need more memory than is reasonable."""


class Try(NamedTuple):
    """One run of a rival."""

    size: int
    seconds: float
    error: float


def nystroem(p: Problem, n_components: int) -> Any:
    """scikit-learn's feature map, and its product with itself."""
    from sklearn.kernel_approximation import Nystroem

    gamma = 0.5 / p.bandwidth**2
    model = Nystroem(gamma=gamma, n_components=n_components, random_state=p.seed).fit(p.keys)
    return _through(model.transform, p)


def random_features(p: Problem, n_components: int) -> Any:
    """scikit-learn's random Fourier features."""
    from sklearn.kernel_approximation import RBFSampler

    gamma = 0.5 / p.bandwidth**2
    model = RBFSampler(gamma=gamma, n_components=n_components, random_state=p.seed).fit(p.keys)
    return _through(model.transform, p)


def _through(transform: Callable[[Any], Any], p: Problem, block: int = 8192) -> Any:
    """F(queries) F(keys)' x in blocks, so that features of all points need not be stored."""
    starts = range(0, len(p.keys), block)
    total = sum(transform(p.keys[i : i + block]).T @ p.x[i : i + block] for i in starts)
    starts = range(0, len(p.queries), block)
    return np.concatenate([transform(p.queries[i : i + block]) @ total for i in starts])


def finufft_sum(p: Problem, digits: int) -> Any:
    """The Gaussian as a Fourier sum, on a period at whose end it is below 10^-digits."""
    import finufft

    low = np.minimum(p.keys.min(axis=0), p.queries.min(axis=0)).astype(np.float64)
    high = np.maximum(p.keys.max(axis=0), p.queries.max(axis=0)).astype(np.float64)
    reach = math.sqrt(2 * digits * math.log(10)) * p.bandwidth
    step = 2 * math.pi / (high - low + reach)  # of frequencies, one for each coordinate
    half = np.ceil(math.sqrt(2 * digits * math.log(10)) / (p.bandwidth * step)).astype(int)
    if np.prod(2.0 * half + 1) > MOST_MODES:
        raise TooLargeError
    weights = np.ones(1)
    for h, m in zip(step, half, strict=True):
        waves = np.arange(-m, m + 1) * h
        one = np.exp(-0.5 * np.square(waves * p.bandwidth)) * (h * p.bandwidth)
        weights = np.multiply.outer(weights, one / math.sqrt(2 * math.pi))
    weights = weights.reshape(2 * half + 1)
    d, accuracy = p.keys.shape[1], {"eps": 10.0 ** (-digits - 1), "nthreads": p.n_threads}
    middle = (low + high) / 2
    k, q = ([*((a - middle) * step).T.copy()] for a in (p.keys, p.queries))
    to_modes = getattr(finufft, f"nufft{d}d1")
    modes = to_modes(*k, p.x.astype(np.complex128), weights.shape, isign=-1, **accuracy)
    return getattr(finufft, f"nufft{d}d2")(*q, modes * weights, isign=1, **accuracy).real


def rivals(d: int) -> dict[str, tuple[Rival, Sequence[int]]]:
    """Those that are installed and work in d dimensions, with settings to try in order."""
    found: dict[str, tuple[Rival, Sequence[int]]] = {
        "Nystroem": (nystroem, (128, 512, 2048)),
        "random features": (random_features, (512, 4096, 16_384)),
    }
    if installed("faiss-cpu"):
        found["FAISS + CSR"] = (faiss_range, (1, 4, 16, 64))
    if installed("finufft") and d <= 3:
        found["finufft"] = (finufft_sum, (1, 2, 3, 4, 6))
    return found


def climb(
    rival: Rival,
    sizes: Sequence[int],
    problem: Problem,
    error: Callable[[Any], float],
    most_seconds: float,
) -> Try | None:
    """Raise the setting until the error is allowed, or the next would take longer than exact."""
    last = None
    for size in sizes:
        start = time.perf_counter()
        y = rival(problem, size)
        last = Try(size, time.perf_counter() - start, error(y))
        if last.error <= problem.eps or 2 * last.seconds > most_seconds:
            break
    return last
