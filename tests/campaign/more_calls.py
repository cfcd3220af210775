"""Functions that take milliseconds: called less often, with fewer kinds of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel

from . import oracles
from .api import Call
from .inputs import Arg, array, positive, seed
from .oracles import exponents

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _usual(rng: Rng, least: int = 2, most: int = 30) -> tuple[Array, float]:
    """Ordinary points of either type and a bandwidth that fits them."""
    n, d = int(rng.integers(least, most)), int(rng.integers(1, 6))
    points = rng.standard_normal((n, d)).astype(("f4", "f8")[rng.integers(2)])
    return points, float(10 ** rng.uniform(-0.7, 0.7))


def _diagnose(rng: Rng) -> Call:
    p = array(rng, (int(rng.integers(0, 25)), int(rng.integers(0, 5))), 0.7)
    bandwidth, generator = positive(rng), seed(rng)
    empty = np.shape(p.plain if p.plain is not None else p.value)[0] == 0

    def check(report: Any) -> str | None:
        if not (report.c >= 0 and report.c_interval[0] <= report.c <= report.c_interval[1]):
            return f"c {report.c} outside its interval {report.c_interval}"
        logs = -np.sort(exponents(p.plain, p.plain, bandwidth.plain).ravel())  # type: ignore[arg-type]
        n = len(np.asarray(p.plain))
        entries = np.sort(np.exp(logs))[::-1]
        head, tail = entries[:n].sum(), entries[n:].sum()
        if not abs(report.c - tail / head) <= 1e-3 * (report.c + tail / head) + 1e-30:
            return f"c is {report.c}, expected {tail / head}"
        return None

    return Call(
        "diagnose",
        lambda: akmv.diagnose(p.value, bandwidth=bandwidth.value, rng=generator.value),
        {"queries": p, "bandwidth": bandwidth, "rng": generator},
        check,
        more_bad=["queries"] if empty else [],
        repeat=False,
    )


def _density(rng: Rng) -> Call:
    from approxkmv.sklearn import KernelDensity

    X, bandwidth = _usual(rng)
    X = X * X.dtype.type(10.0 ** rng.choice([-20, 0, 0, 0, 15]))
    scale = float(np.abs(X).max()) or 1.0
    bandwidth *= scale if scale != 0 else 1.0
    Q = (X[: len(X) // 2 + 1] * X.dtype.type(1.1)).copy()

    def check(y: Any) -> str | None:
        wanted, error = oracles.log_sums(Q.astype(float), X.astype(float), None, bandwidth, X.dtype)
        norm = math.log(len(X)) + X.shape[1] * math.log(bandwidth * math.sqrt(2 * math.pi))
        return oracles.differs(y, wanted - norm, error + 1e-12 * abs(norm), X.dtype)

    return Call(
        "KernelDensity",
        lambda: KernelDensity(bandwidth, random_state=0).fit(X).score_samples(Q),
        {"X": Arg(X, base=X), "Q": Arg(Q, base=Q)},
        check,
        names=False,
    )


def _ridge(rng: Rng) -> Call:
    from approxkmv.sklearn import KernelRidge

    X, bandwidth = _usual(rng)
    y = np.sin(X[:, 0].astype(float)) + 0.1 * rng.standard_normal(len(X))
    alpha = float(10 ** rng.uniform(-2, 1))

    def check(found: Any) -> str | None:
        K = gaussian_kernel(X, X, bandwidth)
        wanted = K @ np.linalg.solve(K + alpha * np.eye(len(X)), y)
        # A residual of 1e-6 |y| moves coefficients by 1e-6 |y| / alpha, and predictions |K| times.
        allowed = 2e-6 * np.linalg.norm(y) / alpha * np.linalg.norm(K, 2) + 1e-9
        return oracles.differs(found, wanted, np.full(len(X), allowed), np.dtype("f8"))

    return Call(
        "KernelRidge",
        lambda: (
            KernelRidge(alpha=alpha, bandwidth=bandwidth, tol=1e-6, random_state=0)
            .fit(X, y)
            .predict(X)
        ),
        {"X": Arg(X, base=X), "y": Arg(y, base=y)},
        check,
        names=False,
    )


def _solve(rng: Rng) -> Call:
    points, bandwidth = _usual(rng)
    b = array(rng, (len(points),) if rng.random() < 0.5 else (len(points), 2))
    noise = positive(rng)
    if noise.bad and np.shape(noise.value) == (len(points),):  # the diagonal of a matrix
        noise = positive(rng, wrong=0.0)
    ordinary = noise.plain is not None and 1e-2 < float(noise.plain) < 1e3
    method = ("cg", "minres")[rng.integers(2)]

    def check(found: Any) -> str | None:
        x, info = found
        if np.isnan(x).any():
            return "NaN from finite input"
        if not ordinary or not 1e-100 < np.abs(b.plain).max(initial=0.0) < 1e100:
            return None
        K = gaussian_kernel(points, points, bandwidth)
        left = b.plain - float(noise.plain) * x - K @ x  # type: ignore[arg-type, operator]
        size = np.linalg.norm(np.asarray(b.plain), axis=0)
        residual = float(np.max(np.linalg.norm(left, axis=0) / np.where(size > 0, size, 1)))
        if abs(residual - info.residual) > 0.1 * residual + 1e-12:
            return f"residual {info.residual}, is {residual}"
        return None

    return Call(
        "solve",
        lambda: akmv.solve(
            akmv.GaussianKernel(points, bandwidth=bandwidth),
            b.value,
            noise=noise.value,
            method=method,
            max_iter=200,
            rng=0,
            return_info=True,
        ),
        {"b": b, "noise": noise},
        check,
    )


def _spectrum(rng: Rng) -> Call:
    points, bandwidth = _usual(rng, 8, 60)
    others = _usual(rng, 8, 60)[0]
    d = min(points.shape[1], others.shape[1])
    others = others[:, :d].astype(points.dtype)
    how = ("top", "eigen", "lobpcg", "singular", "trace", "logdet", "density")[rng.integers(7)]
    if how == "singular":
        points = np.ascontiguousarray(points[:, :d])
    spectrum = akmv.spectrum
    unit = float(np.finfo(points.dtype).eps)

    def make() -> Any:
        if how == "top":
            return spectrum.top_eigenvalue(points, bandwidth=bandwidth, tol=1e-3, rng=0)
        if how == "singular":
            K = akmv.GaussianKernel(points, np.ascontiguousarray(others), bandwidth=bandwidth)
            return spectrum.singular_values(K, 3, rng=0)
        K = akmv.GaussianKernel(points, bandwidth=bandwidth)
        if how in ("eigen", "lobpcg"):
            return spectrum.eigenvalues(
                K, 3, method="lobpcg" if how == "lobpcg" else "lanczos", rng=0
            )
        if how == "trace":
            return spectrum.trace(K, rng=0)
        if how == "logdet":
            return spectrum.logdet(K, noise=0.5, rng=0)
        return spectrum.spectral_density(K, rng=0)

    def check(found: Any) -> str | None:
        right = others if how == "singular" else points
        values = np.linalg.svd(gaussian_kernel(points, right, bandwidth), compute_uv=False)
        size = float(values[0])
        if how == "top" and not abs(found.eigenvalue - size) <= 3e-3 * size:
            return f"top eigenvalue {found.eigenvalue}, expected {size}"
        if how in ("eigen", "lobpcg", "singular"):
            # No value may be far from all of the matrix: a residual r puts one within r.
            near = np.abs(values[None] - np.asarray(found.values)[:, None]).min(axis=1)
            allowed = found.errors + 1e3 * unit * size
            if not (near <= allowed).all():
                return f"values {found.values} with errors {found.errors}, expected {values[:3]}"
        if how == "trace" and not abs(found.value - len(points)) <= 1e-3 * len(points):
            return f"trace {found.value}, expected {len(points)}"
        return None

    args = {
        "points": Arg(points, base=points, shown=f"{points.shape} {points.dtype} {bandwidth:.3g}")
    }
    return Call(f"spectrum {how}", make, args, check, repeat=False)


def _torch(rng: Rng) -> Call:
    import torch

    from approxkmv.torch import scaled_dot_product_attention

    m, n, d, r = (int(v) for v in rng.integers(1, 12, 4))
    lead = ((), (2,), (2, 1))[rng.integers(3)]
    dtype = (torch.float32, torch.float64)[rng.integers(2)]
    q, k, v = (
        torch.from_numpy(rng.standard_normal((*lead, a, b))).to(dtype)
        for a, b in ((m, d), (n, d), (n, r))
    )
    causal = bool(rng.integers(2))

    def check(y: Any) -> str | None:
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *(t.double() for t in (q, k, v)), is_causal=causal
        )
        unit = torch.finfo(dtype).eps
        error = float((y.double() - wanted).abs().max())
        return None if error <= 400 * unit else f"off by {error}"

    return Call(
        "torch SDPA",
        lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
        {"query": Arg(q, shown=f"{tuple(q.shape)} {dtype}")},
        check,
        repeat=False,
    )


def _paper(rng: Rng) -> Call:
    """Only where the algorithm is quick: ordinary eps and delta."""
    points, bandwidth = _usual(rng)
    x = rng.standard_normal(len(points))
    eps = float(rng.choice([0.1, 0.3, 0.5]))
    generator = int(rng.integers(2**31))
    name = ("approx_kmv", "shared_draws_matvec", "nonnegative_matvec", "kernel_constant")[
        rng.integers(4)
    ]
    function = getattr(akmv.paper, name)

    def make() -> Any:
        if name == "kernel_constant":
            return function(points, points, bandwidth)
        b = np.abs(x) if name == "nonnegative_matvec" else x
        options = {"bandwidth": bandwidth, "eps": eps, "delta": 1e-3, "rng": generator}
        return function(points, points, b, **options)

    def check(found: Any) -> str | None:
        K = gaussian_kernel(points, points, bandwidth)
        if name == "kernel_constant":
            entries = np.sort(K.ravel())[::-1]
            wanted = entries[len(K) :].sum() / entries[: len(K)].sum()
            fine = abs(found.c - wanted) <= 1e-4 * wanted + 1e-30
            return None if fine else f"c is {found.c}, expected {wanted}"
        b = np.abs(x) if name == "nonnegative_matvec" else x
        y = np.asarray(getattr(found, "y", found))
        if not np.isfinite(y).all():
            return "not finite"
        # One run in a thousand may be off by more than eps; three eps are an error of the code.
        size = np.linalg.norm(b) + (np.linalg.norm(K @ b) if name == "nonnegative_matvec" else 0)
        error = np.linalg.norm(y - K @ b) / size
        return None if error <= 3 * eps else f"{name} off by {error:.3g}, eps {eps}"

    args = {"points": Arg(points, base=points), "x": Arg(x, base=x)}
    return Call(f"paper {name}", make, args, check)


MORE: list[tuple[float, Callable[[Rng], Call]]] = [
    (0.006, _diagnose),
    (0.010, _density),
    (0.006, _ridge),
    (0.010, _solve),
    (0.010, _spectrum),
    (0.010, _torch),
    (0.004, _paper),
]
