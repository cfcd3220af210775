"""The jobs of ``benchmarks.everyday``: each returns its contestants, with seconds and outcome."""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

import approxkmv as akmv
from approxkmv import datasets
from approxkmv.cli.compare import folded
from approxkmv.experiments.timing import Timing, interleaved
from benchmarks.harness import OURS, installed
from benchmarks.memory import status
from benchmarks.record import Row, rounded

CHECKED = 400  # grid points at which densities are compared with the definition
GRID_BANDWIDTH = 0.1
CLUSTER_BANDWIDTH = 2.1  # row sums of about 3: 0.17 within a cluster, 1e-7 between clusters
TREE_QUERIES = 256
RIDGE_WIDTH, RIDGE_ALPHA = 0.5, 0.01  # as in benchmarks.ridge, where they were chosen for d = 8
MOST_DENSE = 10_000  # rows of a stored double-precision matrix: 0.8 GB
MMD_ROWS = 2048  # of all rows timed with NumPy and KeOps: their time is linear in these

Contestants = dict[str, Callable[[], Any]]
REST = functools.partial(time.sleep, 0.05)  # threads of a BLAS spin for a moment after a call


def blobs(n: int, seed: int) -> Any:
    """Points in the plane: three normal groups of different width, and a ring."""
    rng = np.random.default_rng(seed)
    centres, widths = np.array([[0.0, 0], [3, 1], [-2, 2]]), np.array([1.0, 0.4, 0.7])
    group = rng.integers(0, 4, n)
    angle = rng.uniform(0, 2 * math.pi, n)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.normal(5, 0.1, (n, 1))
    inner = group % 3
    points = centres[inner] + widths[inner, None] * rng.standard_normal((n, 2))
    return np.where(group[:, None] == 3, ring, points)


def grid_search(args: argparse.Namespace) -> Row:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KernelDensity

    from approxkmv.sklearn import KernelDensity as Ours

    X = blobs(min(5000, args.largest), args.seed)
    widths = {"bandwidth": np.geomspace(0.03, 1.0, 10)}

    def search(estimator: Any) -> Callable[[], Any]:
        return lambda: GridSearchCV(estimator, widths, cv=5).fit(X)

    # scikit-learn's with its own settings bounds nothing: rtol = atol = 0.
    runs = {OURS: search(Ours(random_state=args.seed)), "scikit-learn": search(KernelDensity())}

    def outcome(model: Any) -> str:
        return f"bandwidth {model.best_params_['bandwidth']:.3f}, score {model.best_score_:.2f}"

    return raced(runs, args, outcome)


def density_on_grid(args: argparse.Namespace) -> Row:
    from sklearn.neighbors import KernelDensity

    from approxkmv.sklearn import KernelDensity as Ours

    X = blobs(min(100_000, args.largest), args.seed)
    low, high = X.min(axis=0) - 0.5, X.max(axis=0) + 0.5
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 100).T), axis=-1).reshape(-1, 2)
    at = np.random.default_rng(args.seed).choice(len(grid), CHECKED, replace=False)
    truth = np.array([log_density(X, grid[i]) for i in at])
    options = {"bandwidth": GRID_BANDWIDTH, "rtol": 1e-3}

    def ours() -> Any:
        return Ours(**options, n_threads=args.threads).fit(X).score_samples(grid)

    runs: Contestants = {OURS: ours}
    runs["scikit-learn"] = lambda: KernelDensity(**options).fit(X).score_samples(grid)
    if installed("pykeops"):
        runs["KeOps"] = lambda: keops_log_density(X, grid)
    part = np.sort(at)

    def outcome(found: Any) -> str:
        off = np.abs(found[at] - truth).max()
        return f"off by at most {rounded(off)} nats at {CHECKED} places"

    row = raced(runs, args, outcome, repetitions=1)
    # SciPy's bandwidth is a covariance: h² I is asked for through whitened points.
    kernel = scipy_kde(X)
    start = time.perf_counter()
    found = kernel.logpdf(grid[part].T)
    spent = (time.perf_counter() - start) * len(grid) / CHECKED
    off = np.abs(found - truth[np.argsort(at)]).max()
    row["contestants"]["SciPy"] = {
        "seconds": spent,
        "outcome": f"off by at most {rounded(float(off))} nats at {CHECKED} places",
        "scaled": True,
    }
    return row


def density_of_clusters(args: argparse.Namespace) -> Row:
    """Fitting and evaluating; scikit-learn's tree with one leaf, with which it is right."""
    from sklearn.neighbors import KernelDensity

    from approxkmv.sklearn import KernelDensity as Ours

    n = min(65_536, args.largest)
    queries, samples, _ = datasets.clusters(n, 64, mean_row_sum=None, rng=args.seed)

    def densities(method: str) -> Callable[[], Any]:
        options = {"rtol": 0.1, "method": method, "random_state": args.seed}
        model = Ours(CLUSTER_BANDWIDTH, n_threads=args.threads, **options)
        return lambda: model.fit(samples).score_samples(queries)

    exact = densities("exact")()
    runs = {OURS: densities("auto"), "approxkmv, exact": densities("exact")}

    def outcome(found: Any) -> str:
        return f"off by at most {rounded(float(np.abs(found - exact).max()))} nats"

    row = raced(runs, args, outcome)
    part = min(n, TREE_QUERIES)
    start = time.perf_counter()
    tree = KernelDensity(bandwidth=CLUSTER_BANDWIDTH, leaf_size=n).fit(samples)
    found = tree.score_samples(queries[:part])
    spent = (time.perf_counter() - start) * n / part
    off = f"off by at most {rounded(float(np.abs(found - exact[:part]).max()))} nats"
    row["contestants"]["scikit-learn, leaf_size = n"] = {
        "seconds": spent,
        "outcome": off,
        "scaled": True,
    }
    return row


def log_density(X: Any, place: Any) -> float:
    """By the definition."""
    squares = np.square(X - place).sum(axis=1)
    total = logsumexp(-0.5 * squares / GRID_BANDWIDTH**2)
    return float(total - math.log(len(X)) - math.log(2 * math.pi * GRID_BANDWIDTH**2))


def scipy_kde(X: Any) -> Any:
    """SciPy's class with the covariance h² I instead of its rule."""
    from scipy.stats import gaussian_kde

    class Isotropic(gaussian_kde):
        def _compute_covariance(self) -> None:
            self.factor = GRID_BANDWIDTH
            self._data_covariance = self._data_cho_cov = np.eye(2)
            self.covariance = np.eye(2) * GRID_BANDWIDTH**2
            self.cho_cov = np.eye(2) * GRID_BANDWIDTH
            self.log_det = 2 * np.log(np.diag(self.cho_cov * np.sqrt(2 * np.pi))).sum()

    return Isotropic(X.T)


def keops_log_density(X: Any, grid: Any) -> Any:
    lazy = importlib.import_module("pykeops.numpy").LazyTensor
    q, k = lazy(grid[:, None, :]), lazy(X[None, :, :])
    exponents = -((q - k) ** 2).sum(-1) / (2 * GRID_BANDWIDTH**2)
    total = exponents.logsumexp(axis=1).reshape(-1)
    return total - math.log(len(X)) - math.log(2 * math.pi * GRID_BANDWIDTH**2)


def scipy_face(args: argparse.Namespace) -> Row:
    from scipy.stats import gaussian_kde

    points = blobs(min(40_000, args.largest), args.seed).T
    X, Q = np.array_split(points, 2, axis=1)
    truth = gaussian_kde(X)(Q)
    runs = {OURS: lambda: akmv.stats.gaussian_kde(X)(Q), "SciPy": lambda: gaussian_kde(X)(Q)}

    def outcome(found: Any) -> str:
        return f"largest relative difference from SciPy {np.abs(found / truth - 1).max():.0e}"

    return raced(runs, args, outcome)


def ridge(args: argparse.Namespace) -> Row:
    """The error is that of 2,000 noise-free targets not fitted, in root mean squares."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    from approxkmv.sklearn import KernelRidge as Ours

    n, d = min(40_000, args.largest), 8
    points, targets, clean = datasets.robot_arm(n + 2000, d, rng=args.seed)
    points = points.astype(np.float32)
    X, y, Q, z = points[:n], targets[:n], points[n:], clean[n:]
    bandwidth = RIDGE_WIDTH * math.sqrt(d)
    gamma, few = 0.5 / bandwidth**2, min(n, MOST_DENSE)

    def ours() -> Any:
        options = {"bandwidth": bandwidth, "random_state": args.seed, "n_threads": args.threads}
        return Ours(RIDGE_ALPHA, **options).fit(X, y).predict(Q)

    def dense() -> Any:
        model = KernelRidge(alpha=RIDGE_ALPHA, kernel="rbf", gamma=gamma)
        return model.fit(X[:few], y[:few]).predict(Q)

    def landmarks() -> Any:
        features = Nystroem(gamma=gamma, n_components=2000, random_state=args.seed)
        return make_pipeline(features, Ridge(RIDGE_ALPHA)).fit(X, y).predict(Q)

    runs = {
        OURS: ours,
        f"scikit-learn, {few:,} of the rows": dense,
        "scikit-learn, Nystroem with 2,000 landmarks and Ridge": landmarks,
    }

    def outcome(found: Any) -> str:
        return f"test error {np.sqrt(np.mean(np.square(found - z))):.4f}"

    return raced(runs, args, outcome, repetitions=1, warm_up=False)


def mmd(args: argparse.Namespace) -> Row:
    """Two normal samples, the second a hundredth wider; its permutations are columns for all."""
    scale = min(1.0, args.largest / 100_277)
    n, m = int(7207 * scale), int(93_070 * scale)
    rng = np.random.default_rng(args.seed)
    x = rng.standard_normal((n, 79), dtype=np.float32)
    y = 1.01 * rng.standard_normal((m, 79), dtype=np.float32)
    bandwidth = math.sqrt(2 * 79)
    options = {"bandwidth": bandwidth, "rng": args.seed, "n_threads": args.threads}
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far (Linux)
    before = status("VmRSS")
    start = time.perf_counter()
    result = akmv.mmd(x, y, **options)
    spent = time.perf_counter() - start
    peak = (status("VmHWM") - before) / 1e9
    outcome = f"p = {result.p_value:.3f}, {peak:.2f} GB beyond the samples"
    found: Row = {OURS: {"seconds": spent, "outcome": outcome}}
    pooled = np.concatenate([x, y])
    labels = np.ones((len(pooled), 201), np.float32)
    part = min(MMD_ROWS, len(pooled))
    for name, product in _mmd_products(pooled, labels, bandwidth).items():
        product(64)
        start = time.perf_counter()
        product(part)
        spent = (time.perf_counter() - start) * len(pooled) / part
        found[name] = {"seconds": spent, "outcome": "the products only", "scaled": True}
    return {"contestants": found}


def _mmd_products(points: Any, columns: Any, bandwidth: float) -> dict[str, Callable[[int], Any]]:
    """The first rows of K @ columns, in NumPy with blocks of 512 and in KeOps."""
    q, k = folded(points, points, bandwidth)

    def numpy(rows: int) -> None:
        for first in range(0, rows, 512):
            entries = q[first : min(first + 512, rows)] @ k.T
            np.exp(entries, out=entries)
            entries @ columns  # what would be summed

    found: dict[str, Callable[[int], Any]] = {"NumPy in blocks": numpy}
    if installed("pykeops"):
        lazy = importlib.import_module("pykeops.numpy").LazyTensor

        def keops(rows: int) -> Any:
            a, b = lazy(points[:rows, None, :].copy()), lazy(points[None, :, :])
            return (-((a - b) ** 2).sum(-1) / (2 * bandwidth**2)).exp() @ columns

        found["KeOps"] = keops
    return found


def raced(
    runs: Contestants,
    args: argparse.Namespace,
    outcome: Callable[[Any], str],
    *,
    repetitions: int | None = None,
    warm_up: bool = True,
) -> Row:
    """Interleaved, the shortest time of each; a first round loads modules and compiles."""
    repetitions = repetitions or args.repetitions
    timings: dict[str, Timing] = interleaved(runs, repetitions, warm_up=warm_up, after_each=REST)
    return {
        "contestants": {
            name: {"seconds": min(timing.seconds), "outcome": outcome(timing.result)}
            for name, timing in timings.items()
        }
    }
