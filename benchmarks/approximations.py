"""Other ways to approximate K @ x, each with one number that trades time for error.

Everything is counted: building an index, landmarks and features are part of the time. Products with
some of the points use our own exact tiles, which favours the rivals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from approxkmv import matvec
from benchmarks.harness import installed


@dataclass(frozen=True)
class Problem:
    """What is to be multiplied."""

    queries: Any
    keys: Any
    bandwidth: float
    x: Any
    eps: float
    n_threads: int
    seed: int

    def product(self, queries: Any, keys: Any, x: Any) -> Any:
        options: dict[str, Any] = {"method": "exact", "n_threads": self.n_threads}
        return matvec(queries, keys, x, bandwidth=self.bandwidth, **options)


Rival = Callable[[Problem, int], Any]


@dataclass(frozen=True)
class Try:
    """One run of a rival."""

    size: int
    seconds: float
    error: float


def uniform_keys(p: Problem, n_drawn: int) -> Any:
    """The same uniform sample of keys for all queries, without repeats."""
    drawn = np.random.default_rng(p.seed).permutation(len(p.keys))[:n_drawn]
    scale = p.x.dtype.type(len(p.keys) / len(drawn))
    return p.product(p.queries, p.keys[drawn], p.x[drawn] * scale)


def random_features(p: Problem, n_features: int, block: int = 4096) -> Any:
    """Random Fourier features: K_ij = E[2 cos(w q_i + b) cos(w k_j + b)], w normal, b uniform."""
    rng = np.random.default_rng(p.seed)
    n_dims = p.keys.shape[1]
    frequencies = rng.standard_normal((n_dims, n_features), dtype=np.float32) / p.bandwidth
    phases = rng.uniform(0, 2 * math.pi, n_features).astype(np.float32)

    def features(points: Any) -> Any:
        angles = points @ frequencies
        angles += phases
        return np.cos(angles, out=angles)

    starts = range(0, len(p.keys), block)
    total = sum(features(p.keys[i : i + block]).T @ p.x[i : i + block] for i in starts)
    total *= 2 / n_features
    starts = range(0, len(p.queries), block)
    return np.concatenate([features(p.queries[i : i + block]) @ total for i in starts])


def nystroem(p: Problem, n_landmarks: int) -> Any:
    """Through uniformly drawn landmarks: K_qm (K_mm + 1e-6 I)^-1 K_mk x."""
    rng = np.random.default_rng(p.seed)
    landmarks = p.keys[rng.permutation(len(p.keys))[:n_landmarks]]
    among = p.product(landmarks, landmarks, np.eye(len(landmarks), dtype=landmarks.dtype))
    among = (among + among.T) / 2
    among[np.diag_indices_from(among)] += 1e-6
    solved = cho_solve(cho_factor(among, overwrite_a=True), p.product(landmarks, p.keys, p.x))
    return p.product(p.queries, landmarks, solved.astype(p.x.dtype))


def faiss_range(p: Problem, n_probe: int) -> Any:
    """Pairs above 4 eps / sqrt(n) that an inverted file finds in `n_probe` cells; no other pair."""
    import faiss

    faiss.omp_set_num_threads(p.n_threads)
    n, d = p.keys.shape
    cells = faiss.IndexFlatL2(d)
    index = faiss.IndexIVFFlat(cells, d, max(1, int(2 * math.sqrt(n))))
    index.cp.niter = 6
    index.train(p.keys)
    index.add(p.keys)
    index.nprobe = n_probe
    radius = -2 * p.bandwidth**2 * math.log(min(0.5, 4 * p.eps / math.sqrt(n)))
    indptr, squares, cols = index.range_search(p.queries, radius)
    values = np.exp(squares * (-0.5 / p.bandwidth**2))
    shape = (len(p.queries), n)
    return csr_array((values, cols, indptr.astype(np.int64)), shape=shape) @ p.x


def rivals(n: int) -> dict[str, tuple[Rival, Sequence[int]]]:
    """Every rival that is installed, with the sizes to try, smallest first."""
    powers = [2**k for k in range(6, 15) if 2**k <= n]
    found: dict[str, tuple[Rival, Sequence[int]]] = {
        "uniform sample of keys": (uniform_keys, [n // 16 or 1, n // 4 or 1, n // 2 or 1]),
        "random Fourier features": (random_features, powers[2::2] or [16]),
        "Nystroem": (nystroem, [m for m in powers[2::2] if m <= 8192] or [16]),
    }
    if installed("faiss-cpu"):
        found["FAISS range search"] = (faiss_range, [1, 4, 16, 64])
    return found


def climb(
    rival: Rival,
    sizes: Sequence[int],
    problem: Problem,
    error: Callable[[Any], float],
    most_seconds: float,
) -> Try:
    """Raise the size until the error is allowed or the run took longer than the exact product."""
    for size in sizes:
        start = time.perf_counter()
        y = rival(problem, size)
        last = Try(size, time.perf_counter() - start, error(y))
        if last.error <= problem.eps or last.seconds > most_seconds:
            break
    return last
