"""Heads of attention: random and causal, sinks and bands, keys that mislead a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv

from .records import Record
from .worker import finding

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Head = tuple[Array, Array, Array]


def _random(m: int, n: int, d: int, rng: Rng) -> Head:
    return tuple(rng.standard_normal((k, d)) for k in (m, n, n))  # type: ignore[return-value]


def _low_rank(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    basis = rng.standard_normal((4, d))
    return q @ basis.T @ basis / math.sqrt(d), k @ basis.T @ basis / d, v


def _sinks(m: int, n: int, d: int, rng: Rng) -> Head:
    """The first keys draw most queries, as in language models."""
    q, k, v = _random(m, n, d, rng)
    common = rng.standard_normal(d)
    k[:4] = 3 * common
    return q + common, k, v


def _bands(m: int, n: int, d: int, rng: Rng) -> Head:
    """Queries look at keys of about their own place."""
    q, k, v = _random(m, n, d, rng)
    for points, count in ((q, m), (k, n)):
        angle = np.arange(count)[:, None] * (1e4 ** -(np.arange(d // 2) / max(d // 2, 1)))
        points[:, : d // 2] = 3 * np.cos(angle)
        points[:, d // 2 : 2 * (d // 2)] = 3 * np.sin(angle)
    return q, k, v


def _constant_keys(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    return q, np.tile(k[0], (n, 1)), v


def _dominating(m: int, n: int, d: int, rng: Rng) -> Head:
    """One key with most of the weight for a share of the queries, with a large value."""
    q, k, v = _random(m, n, d, rng)
    j = int(rng.integers(n))
    k[j] = 4 * k[j]
    q[:: int(rng.choice([1, 10, 100]))] += 0.5 * k[j]
    v[j] *= 10
    return q, k, v


def _duplicated(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    chosen = rng.integers(max(1, n // 50), size=n)
    return q, k[chosen], v[chosen]


def _long_keys(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    return q, k * np.exp(0.7 * rng.standard_normal((n, 1))), v


def _clusters(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    centres = 1.5 * rng.standard_normal((32, d))
    return (
        0.5 * q + centres[rng.integers(32, size=m)],
        0.5 * k + centres[rng.integers(32, size=n)],
        v,
    )


def _heavy_values(m: int, n: int, d: int, rng: Rng) -> Head:
    q, k, v = _random(m, n, d, rng)
    return q, k, v * rng.standard_cauchy((n, 1))


HEADS: dict[str, Callable[[int, int, int, Rng], Head]] = {
    "head: random": _random,
    "head: low rank": _low_rank,
    "head: sinks": _sinks,
    "head: bands": _bands,
    "head: constant keys": _constant_keys,
    "head: dominating key": _dominating,
    "head: duplicated": _duplicated,
    "head: long keys": _long_keys,
    "head: clusters": _clusters,
    "head: heavy values": _heavy_values,
}


def head_case(rng: Rng) -> Record:
    """Draw a head, and how often it is sampled."""
    n = int(512 * 16 ** rng.random())
    return {
        "family": str(rng.choice(list(HEADS))),
        "n": n,
        "m": n if rng.random() < 0.7 else int(n * rng.choice([0.1, 0.5, 2.0])),
        "d": int(rng.choice([16, 32, 64, 128])),
        "dtype": str(rng.choice(["float32", "float64"], p=[0.8, 0.2])),
        "factor": float(rng.choice([0.3, 1.0, 1.0, 2.0])),
        "is_causal": bool(rng.random() < 0.4),
        "forced": bool(rng.random() < 0.8),
        "seed": int(rng.integers(2**31)),
        "runs": [
            {"eps": float(rng.choice([0.3, 0.1, 0.03, 0.01])), "seed": int(rng.integers(2**31))}
            for _ in range(6)
        ],
    }


def run_head(case: Record) -> Record:
    """One head with several seeds and tolerances."""
    rng = np.random.default_rng(case["seed"])
    head = HEADS[case["family"]](case["m"], case["n"], case["d"], rng)
    q, k, v = (np.ascontiguousarray(a, case["dtype"]) for a in head)
    q *= np.asarray(case["factor"], q.dtype)
    causal = case["is_causal"]
    double = [a.astype(float) for a in (q, k, v)]
    wanted = akmv.attention(*double, is_causal=causal, method="exact")
    _check_rows(*double, causal, wanted)
    size = float(np.linalg.norm(double[2]))
    measured, findings = [], []
    for number, run in enumerate(case["runs"]):
        y, info = akmv.attention(
            q, k, v, is_causal=causal, eps=run["eps"], rng=run["seed"], return_info=True
        )
        error = float(np.linalg.norm(y - wanted)) / size
        sampled = info.heads[0].method == "sampled"
        bound = info.heads[0].error_bound
        if not np.isfinite(y).all():
            findings.append(finding("nan", "not finite", run=number))
        elif not sampled and bound is not None and not error <= bound:
            says = f"exact, but error {error:.3g} > bound {bound:.3g}"
            findings.append(finding("exact bound", says, run=number))
        measured.append(
            {
                "run": number,
                "sampled": sampled,
                "error": error,
                "eps": run["eps"],
                "estimate": info.heads[0].error_estimate,
                "bound": bound,
                "all_rows": True,
            }
        )
    return {"count": len(measured), "runs": measured, "findings": findings}


def _check_rows(q: Array, k: Array, v: Array, causal: bool, output: Array) -> None:
    """A few rows of the exact output against the definition."""
    rows = np.linspace(0, len(q) - 1, 8).astype(int)
    scores = q[rows] @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.arange(len(k)) <= rows[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = weights @ v / weights.sum(axis=1, keepdims=True)
    if not np.allclose(wanted, output[rows], rtol=0, atol=1e-9 * np.abs(v).max()):
        raise ArithmeticError("exact attention in float64 differs from the definition")
