"""Calls that take a while, for what happens in the middle of them; and small ones of each kind."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv.datasets import clusters

from .families import FAMILIES, Data, data

Array = np.ndarray[Any, Any]


@functools.cache
def points(family: str, n: int, d: int) -> Data:
    if family == "clusters":
        return Data(*clusters(n, d, rng=0))
    assert family in FAMILIES
    return data(family, n, None, d, "float32", "5", np.random.default_rng(0))


def _matvec(family: str, n: int, d: int, **options: Any) -> Callable[[], Any]:
    p = points(family, n, d)
    x = np.random.default_rng(1).standard_normal((len(p.all_keys), options.pop("columns", 1)))
    x = x.astype(np.float32)

    def call() -> Any:
        return akmv.matvec(
            p.queries, p.keys, x, bandwidth=p.bandwidth, rng=0, return_info=True, **options
        )

    return call


def _build(n: int) -> Callable[[], Any]:
    p = points("clusters", n, 64)

    def call() -> Any:
        K = akmv.GaussianKernel(p.keys, bandwidth=p.bandwidth, eps=0.2, rng=0)
        return K @ np.ones(n, np.float32)

    return call


def _attention(n: int, **options: Any) -> Callable[[], Any]:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, n, 64)).astype(np.float32)
    return lambda: akmv.attention(q, k, v, rng=0, **options)


def _density(n: int, fitting: bool) -> Callable[[], Any]:
    from approxkmv.sklearn import KernelDensity

    p = points("clusters", n, 64)
    model = KernelDensity(p.bandwidth, random_state=0).fit(p.all_keys)
    if not fitting:
        return lambda: model.score_samples(p.queries)
    few = p.queries[:50]

    def call() -> Any:
        return KernelDensity(p.bandwidth, random_state=0).fit(p.all_keys).score_samples(few)

    return call


def _ridge(n: int) -> Callable[[], Any]:
    from approxkmv.sklearn import KernelRidge

    X = np.random.default_rng(0).standard_normal((n, 8))
    y = np.sin(X[:, 0])

    def call() -> Any:
        model = KernelRidge(alpha=0.1, bandwidth=2.0, tol=1e-3, random_state=0)
        return model.fit(X, y).predict(X[:100])

    return call


def _solve(n: int) -> Callable[[], Any]:
    X = np.random.default_rng(0).standard_normal((n, 8))

    def call() -> Any:
        K = akmv.GaussianKernel(X, bandwidth=2.0, rng=0)
        return akmv.solve(K, X[:, 0], noise=0.1, tol=1e-3, rng=0)

    return call


def _diagnose(n: int) -> Callable[[], Any]:
    p = points("clusters", n, 32)

    def call() -> Any:
        return np.array(akmv.diagnose(p.queries, bandwidth=p.bandwidth, rng=0).log_row_sums)

    return call


def _spectrum(n: int, how: str) -> Callable[[], Any]:
    p = points("clusters", n, 32)

    def call() -> Any:
        if how == "top":
            return akmv.spectrum.top_eigenvalue(
                p.all_keys, bandwidth=p.bandwidth, tol=1e-3, rng=0
            ).eigenvector
        K = akmv.GaussianKernel(p.all_keys, bandwidth=p.bandwidth, method="exact")
        if how == "density":
            return akmv.spectrum.trace(K, n_probes=4, n_steps=10, rng=0).value
        return akmv.spectrum.eigenvalues(K, 3, tol=1e-3, rng=0).values

    return call


def _sums(n: int, logs: bool) -> Callable[[], Any]:
    p = points("clusters", n, 64)
    function = akmv.log_row_sums if logs else akmv.row_sums
    return lambda: function(p.queries, p.keys, bandwidth=p.bandwidth)


# Name: makes the call, from a share of the size. A large one takes 0.2 to 2 s on two cores.
LONG: dict[str, Callable[[float], Callable[[], Any]]] = {
    "matvec clusters": lambda s: _matvec("clusters", int(70_000 * s), 64),
    "matvec words": lambda s: _matvec("words", int(50_000 * s), 64),
    "matvec pictures": lambda s: _matvec("pictures", int(22_000 * s), 256),
    "matvec one column exact": lambda s: _matvec("clusters", int(30_000 * s), 32, method="exact"),
    "matvec columns exact": lambda s: _matvec(
        "gauss", int(15_000 * s), 16, method="exact", columns=24
    ),
    "matvec paper": lambda s: _matvec("clusters", int(600 * s), 8, method="paper"),
    "row_sums": lambda s: _sums(int(25_000 * s), False),
    "log_row_sums": lambda s: _sums(int(12_000 * s), True),
    "GaussianKernel": lambda s: _build(int(45_000 * s)),
    "attention exact": lambda s: _attention(int(6_000 * s), method="exact"),
    "attention": lambda s: _attention(int(16_384 * s)),
    "attention causal": lambda s: _attention(int(12_000 * s), is_causal=True),
    "KernelDensity fit": lambda s: _density(int(30_000 * s), True),
    "KernelDensity score": lambda s: _density(int(30_000 * s), False),
    "KernelRidge": lambda s: _ridge(int(4_000 * s)),
    "solve": lambda s: _solve(int(4_000 * s)),
    "diagnose": lambda s: _diagnose(int(4_000 * s)),
    "top eigenvalue": lambda s: _spectrum(int(5_000 * s), "top"),
    "eigenvalues": lambda s: _spectrum(int(6_000 * s), "eigenvalues"),
    "trace": lambda s: _spectrum(int(6_000 * s), "density"),
}


def digest(answer: Any) -> bytes:
    """The bits of an answer."""
    return np.asarray(answer[0] if isinstance(answer, tuple) else answer).tobytes()


def quietly(call: Callable[[], Any]) -> Any:
    """Without the library's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", akmv.AssumptionWarning)
        warnings.simplefilter("ignore", akmv.AccuracyWarning)
        return call()


def n_threads() -> int:
    import os

    return len(os.listdir("/proc/self/task"))
