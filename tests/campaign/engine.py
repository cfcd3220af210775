"""The engine against exact products in double precision: eps, error_bound and the estimate.

A case is one data set with several products. Whether a promise that may fail with probability
delta is kept, the report decides for all runs of a family; a case is a finding by itself where the
library computed exactly and was wrong, gave NaN, or raised.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel, prepare

from .families import FAMILIES, ROW_SUMS, Data, data
from .records import Record
from .vectors import VECTORS, vector
from .worker import finding

DELTA = 0.05
EPS = (0.3, 0.1, 0.03, 0.01)
# Where the engine changes its mind: the keys checked one by one, and the first tilings.
_EDGES = (16_383, 16_384, 16_385, 32_767, 32_768, 32_769)
_CHECKED_ROWS = 8
_SAMPLED_ROWS = 4096  # of a product with more pairs than _MOST_PAIRS
_MOST_PAIRS = 3e9
_TARGETS = {"matvec": 0.7, "operator": 0.1, "attention": 0.12, "density": 0.05, "solve": 0.03}


def case(rng: np.random.Generator, index: int) -> Record:
    """Draw a data set, and what to do with it."""
    target = str(rng.choice(list(_TARGETS), p=list(_TARGETS.values())))
    if target == "attention":
        from .heads import head_case

        return {"target": target, **head_case(rng)}
    names = [name for name in FAMILIES if name != "equal" or target == "matvec"]
    family = str(rng.choice(names))
    d = int(rng.choice(FAMILIES[family].dims))
    forced = target != "matvec" or rng.random() < 0.93
    n, m = _sizes(target, d, forced, rng)
    drawn = {
        "target": target,
        "family": family,
        "n": n,
        "m": m,
        "d": d,
        "dtype": str(rng.choice(["float32", "float64"], p=[0.7, 0.3])),
        "row_sum": str(rng.choice(ROW_SUMS, p=[0.3, 0.3, 0.2, 0.1, 0.1])),
        "forced": forced,
        "seed": int(rng.integers(2**31)),
    }
    n_runs = {"matvec": 8, "operator": 2}.get(target, 1) if n <= 20_000 else 3
    drawn["runs"] = [_run(target, rng) for _ in range(n_runs)]
    return drawn


def _sizes(target: str, d: int, forced: bool, rng: np.random.Generator) -> tuple[int, int | None]:
    m = None
    if not forced:  # large enough that the engine looks by itself
        n = int(math.sqrt(6.2e10 / (d + 24)) * rng.uniform(1, 1.3))
    elif target in ("density", "solve"):
        return int(rng.integers(2048, 8192)) if target == "density" else 1500, None
    else:
        kind = rng.random()
        n = int(4096 * 4 ** rng.random())
        if kind < 0.12:
            n = int(rng.choice(_EDGES))
        elif kind < 0.14:
            n = int(rng.integers(27_000, 70_000))
        elif kind < 0.15:  # the second edge of the first tilings, with few queries
            return int(2**18 + rng.integers(-1, 2)), 4096
    if rng.random() < 0.25:
        m = int(n * rng.choice([0.1, 0.5, 1.0, 1.5]))
    return n, m


def _run(target: str, rng: np.random.Generator) -> Record:
    kinds = [kind for kind in VECTORS if kind not in ("zero", "singular")]
    rare = rng.random()
    kind = "zero" if rare < 0.01 else "singular" if rare < 0.05 else str(rng.choice(kinds))
    several = rng.random() < 0.15
    return {
        "x": kind,
        "columns": int(rng.choice([2, 5, 9])) if several and target != "solve" else 1,
        "eps": float(rng.choice(EPS, p=[0.3, 0.4, 0.2, 0.1])),
        "relative": bool(target == "matvec" and rng.random() < 0.1),
        "transposed": bool(target == "operator" and rng.random() < 0.5),
        "seed": int(rng.integers(2**31)),
    }


def run(case: Record) -> Record:
    """Make the data, multiply, compare."""
    target = case["target"]
    with forced() if case["forced"] else warnings.catch_warnings():
        if target == "attention":
            from .heads import run_head

            return run_head(case)
        drawn = data(
            *(case[k] for k in ("family", "n", "m", "d", "dtype", "row_sum")),
            np.random.default_rng(case["seed"]),
        )
        if target == "density":
            return _density(case, drawn)
        if target == "solve":
            return _solve(case, drawn)
        return _products(case, drawn)


def _worth_drawing(cost: Any, n_pairs: int, is_causal: bool) -> bool:
    return is_causal or n_pairs > int(cost.smallest_head_for_draws)


@contextmanager
def forced() -> Iterator[None]:
    """The engine looks at any size, as in tests/engine/test_guarantee.py."""
    from approxkmv.engine.cost import CostModel
    from approxkmv.engine.policy import SharedDraw
    from approxkmv.engine.survey.shared_draw import SumsProblem

    with (
        mock.patch.object(CostModel, "worth_a_survey", return_value=True),
        mock.patch.object(SumsProblem, "settings", SharedDraw(worth=3.0)),
        mock.patch.object(CostModel, "worth_searching", return_value=True),
        mock.patch.object(CostModel, "worth_a_survey_of_head", return_value=True),
        mock.patch.object(CostModel, "worth_drawing_for_head", _worth_drawing),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", akmv.AssumptionWarning)
        yield


def exact(data: Data, x: np.ndarray, rows: np.ndarray, transposed: bool = False) -> np.ndarray:
    """The product in double precision, some of whose rows are checked against the definition."""
    queries, keys = data.queries.astype(float), data.all_keys.astype(float)
    if transposed:
        queries, keys = keys, queries
    columns = np.ascontiguousarray(x.reshape(len(keys), -1), float)
    y = prepare(queries[rows], keys, data.bandwidth).product(columns).out
    some = np.linspace(0, len(rows) - 1, min(len(rows), _CHECKED_ROWS)).astype(int)
    K = gaussian_kernel(queries[rows[some]], keys, data.bandwidth)
    tolerance = 1e-7 * (K @ np.abs(columns)) + 1e-300
    if (np.abs(y[some] - K @ columns) > tolerance).any():
        raise ArithmeticError("the exact product in float64 differs from the definition")
    return y.reshape(len(rows), *x.shape[1:])


def _products(case: Record, data: Data) -> Record:
    """Several products with one kernel matrix."""
    measured, findings = [], []
    inputs = [data.queries.copy(), data.all_keys.copy()]
    for number, run in enumerate(case["runs"]):
        rng = np.random.default_rng([case["seed"], number])
        turned = run["transposed"]
        source = data if not turned else Data(data.all_keys, data.queries, data.bandwidth)
        x = vector(run["x"], run["columns"], source, rng)
        try:
            one, found = _product(case, data, run, x)
        except Exception as error:  # the other runs count all the same
            one, found = None, [finding("exception", f"{type(error).__name__}: {error}")]
        if one is not None:
            measured.append({"run": number, **one})
        findings += [{**f, "run": number} for f in found]
    if any((a != b).any() for a, b in zip(inputs, (data.queries, data.all_keys), strict=True)):
        findings.append(finding("modified", "points were modified"))
    return {"count": len(case["runs"]), "runs": measured, "findings": findings}


def _product(case: Record, data: Data, run: Record, x: np.ndarray) -> tuple[Record, list[Record]]:
    """One product: what was measured, and what is a finding by itself."""
    eps, size = run["eps"], float(np.linalg.norm(x.astype(float)))
    y, info = (_by_operator if case["target"] == "operator" else _by_matvec)(data, run, x)
    n_pairs = len(data.queries) * len(data.all_keys)
    rows = np.arange(len(y))
    if n_pairs > _MOST_PAIRS:
        rows = np.sort(np.random.default_rng(run["seed"]).choice(len(y), _SAMPLED_ROWS, False))
    wanted = exact(data, x, rows, run["transposed"])
    scale = math.sqrt(len(y) / len(rows)) / (size or 1.0)
    error = float(np.linalg.norm(y[rows] - wanted)) * scale
    if run["relative"]:
        eps *= float(np.linalg.norm(wanted)) * scale
    sampled = info.method == "sampled"
    bound = math.inf if info.error_bound is None else info.error_bound
    findings = []
    if not np.isfinite(y).all():
        findings.append(finding("nan", "not finite"))
    elif not sampled and len(rows) == len(y) and not error <= bound:
        findings.append(finding("exact bound", f"exact, but error {error:.3g} > bound {bound:.3g}"))
    return {
        "sampled": sampled,
        "error": error,
        "eps": eps,
        "estimate": info.error_estimate,
        "bound": None if math.isinf(bound) else bound,
        "all_rows": len(rows) == len(y),
    }, findings


def _by_matvec(data: Data, run: Record, x: np.ndarray) -> tuple[np.ndarray, Any]:
    asked = {"rtol" if run["relative"] else "eps": run["eps"]}
    return akmv.matvec(
        data.queries,
        data.keys,
        x,
        bandwidth=data.bandwidth,
        delta=DELTA,
        rng=run["seed"],
        return_info=True,
        **asked,
    )


def _by_operator(data: Data, run: Record, x: np.ndarray) -> tuple[np.ndarray, Any]:
    K = akmv.GaussianKernel(
        data.queries,
        data.keys,
        bandwidth=data.bandwidth,
        eps=run["eps"],
        delta=DELTA,
        rng=run["seed"],
    )
    return (K.T if run["transposed"] else K) @ x, K.info


def _density(case: Record, data: Data) -> Record:
    """A fitted density at other points of the source: the largest error of a row, in nats."""
    from scipy.special import logsumexp

    from approxkmv.sklearn import KernelDensity

    run = case["runs"][0]
    eps, half = run["eps"], len(data.queries) // 2
    X, Q = data.queries[:half], data.queries[half : half + 1000]
    model = KernelDensity(data.bandwidth, rtol=eps, random_state=run["seed"]).fit(X)
    y = model.score_samples(Q)
    logs = (
        -((Q[:, None].astype(float) - X[None, :, :].astype(float)) ** 2).sum(axis=-1)
        if (Q.size * len(X) < 3e7)
        else _squared(Q, X)
    )
    wanted = logsumexp(logs / (2 * data.bandwidth**2), axis=1) - math.log(len(X))
    wanted -= X.shape[1] * math.log(data.bandwidth * math.sqrt(2 * math.pi))
    finite = np.isfinite(y)
    error = float(np.abs(y - wanted)[finite].max(initial=0.0))
    # Rounding of exponents: a unit in their size; the floor of what float32 can say.
    allowed = 64 * float(np.finfo(X.dtype).eps) * float(np.abs(wanted).max(initial=1.0))
    sampled = model.method_ == "sampled"
    findings = [] if finite.all() else [finding("nan", "log-density is not finite")]
    if not sampled and error > max(allowed, 1e-3 if X.dtype == np.float32 else 1e-8):
        findings.append(finding("exact bound", f"exact log-density off by {error:.3g}"))
    one = {"run": 0, "sampled": sampled, "error": error, "eps": eps + allowed}
    one |= {"estimate": None, "bound": None, "all_rows": True}
    return {"count": 1, "runs": [one], "findings": findings}


def _squared(Q: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Minus squared distances, in pieces."""
    pieces = [
        -((q[:, None].astype(float) - X[None].astype(float)) ** 2).sum(axis=-1)
        for q in np.array_split(Q, max(1, Q.size * len(X) // 20_000_000))
    ]
    return np.concatenate(pieces)


def _solve(case: Record, data: Data) -> Record:
    """A regularised system: the reported residual against that of the dense matrix."""
    run = case["runs"][0]
    K = akmv.GaussianKernel(
        data.queries, bandwidth=data.bandwidth, eps=run["eps"] / 10, rng=run["seed"]
    )
    b = vector(run["x"], 1, data, np.random.default_rng(run["seed"])).astype(float)
    noise, tol = 0.5, 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", akmv.AccuracyWarning)
        x, info = akmv.solve(
            K, b, noise=noise, tol=tol, max_iter=60, rng=run["seed"], return_info=True
        )
    dense = gaussian_kernel(data.queries, data.queries, data.bandwidth)
    size = float(np.linalg.norm(b)) or 1.0
    residual = float(np.linalg.norm(b - noise * x - dense @ x)) / size
    findings = []
    if not abs(info.residual - residual) <= 0.1 * residual + 1e-10:
        findings.append(finding("residual", f"reported {info.residual:.3g}, is {residual:.3g}"))
    if info.converged and residual > 1.1 * tol:
        findings.append(finding("residual", f"converged, but the residual is {residual:.3g}"))
    one = {"run": 0, "sampled": False, "error": residual, "eps": tol, "estimate": info.residual}
    return {"count": 1, "runs": [{**one, "bound": None, "all_rows": True}], "findings": findings}
