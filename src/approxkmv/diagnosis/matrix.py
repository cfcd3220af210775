"""``diagnose``: whether the assumption holds for a matrix, and what would be done with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv.diagnosis.growth import measure_growth
from approxkmv.diagnosis.measure import Advance, measure_all
from approxkmv.diagnosis.predict import predict
from approxkmv.diagnosis.report import Diagnosis
from approxkmv.diagnosis.sampled import measure_rows
from approxkmv.frame import of_differences
from approxkmv.leaves import Array
from approxkmv.paper.assumption import LOWEST_LOG, log_kernel

# Up to this many entries all are looked at: 8,192 queries and keys, 7 s in 100 dimensions.
_EXACT_PAIRS = 1 << 26
_QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1.0)
_QUANTILE_PAIRS = 1 << 20


def diagnose(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float,
    eps: float = 0.1,
    delta: float = 0.05,
    rng: Rng = None,
    n_threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Diagnosis:
    r"""Measure the assumption of the paper on a Gaussian kernel matrix, and predict a plan.

    Assumption (A) says that the sum of all entries of K but the n largest is at most a constant c
    times the sum of those. Up to 8,192 queries and keys c is computed from every entry, in the log
    domain, so that matrices whose entries all underflow have their constant too. Beyond, it is
    estimated from random rows in time O(n^1.5), with an interval.

    Parameters
    ----------
    queries : array_like, shape (n_queries, n_dims)
    keys : array_like, shape (n_keys, n_dims), or None
        None means the queries.
    bandwidth : float
        :math:`\sigma` in :math:`\exp(-\|q-k\|^2/(2\sigma^2))`.
    eps : float
        Tolerance for which the plan is predicted.
    delta : float
        Probability with which the interval may miss c.
    rng : None, int or numpy.random.Generator
        Seed of the rows and pairs drawn.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    progress : callable, optional
        Called now and then with the share of the work done, from 0 to 1.

    Returns
    -------
    Diagnosis

    Notes
    -----
    The interval holds for any data; it rests on the positive definiteness of the kernel and on the
    random choice of rows. For different queries and keys it also has to bound the sum of the
    largest entries from both sides, and stays wider.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> points = np.random.default_rng(0).standard_normal((500, 8))
    >>> report = akmv.diagnose(points, bandwidth=0.5)
    >>> report.is_exact, round(report.c, 4) == round(report.mean_row_sum - 1, 4)
    (True, True)
    """
    start = time.perf_counter()
    q, k = _check.point_pair(queries, keys)
    _not_empty(q, k)
    _check.finite(q, "queries")
    _check.finite(k, "keys")
    bandwidth = _check.positive(bandwidth, "bandwidth")
    eps, delta = _check.tolerance(eps), _check.probability(delta)
    generator, n_threads = _check.generator(rng), _check.threads(n_threads)
    if q is not k and q.shape == k.shape and np.array_equal(q, k):
        k = q  # symmetric, whether the caller knew it or not
    advance = _advance(progress)
    is_exact = len(q) * len(k) <= _EXACT_PAIRS

    if is_exact:
        measured = measure_all(q, k, bandwidth, lambda share: advance(0.6 * share))
    else:
        measured = measure_rows(
            q,
            k,
            bandwidth,
            delta=delta,
            rng=generator,
            n_threads=n_threads,
            advance=lambda share: advance(0.6 * share),
        )
    log_sums = np.maximum(measured.log_row_sums, LOWEST_LOG)
    if log_sums.max() <= LOWEST_LOG / 2:
        raise ValueError(
            "bandwidth must be large enough for the logarithm of an entry of the matrix, "
            f"got {bandwidth!r}."
        )
    growth = measure_growth(
        q,
        k,
        bandwidth,
        whole=measured.c,
        exact=is_exact,
        rng=generator,
        n_threads=n_threads,
    )
    advance(0.2)
    plan, speed_ups = predict(q, k, bandwidth, eps, generator, n_threads)
    advance(0.2)
    return Diagnosis(
        n_queries=len(q),
        n_keys=len(k),
        n_dims=q.shape[1],
        bandwidth=bandwidth,
        eps=eps,
        c=measured.c,
        c_interval=measured.interval,
        confidence=1.0 if is_exact else 1 - delta,
        is_exact=is_exact,
        mean_row_sum=math.exp(special.logsumexp(log_sums) - math.log(len(log_sums))),
        median_row_sum=math.exp(np.median(log_sums)),
        max_row_sum=math.exp(log_sums.max()),
        log_row_sums=tuple(float(v) for v in np.quantile(log_sums, np.linspace(0, 1, 101))),
        log_quantiles=_log_quantiles(q, k, bandwidth, generator),
        growth=growth,
        ratios=measured.ratios,
        plan=plan,
        speed_ups=speed_ups,
        pairs=measured.pairs,
        seconds=time.perf_counter() - start,
    )


def _not_empty(queries: Array, keys: Array) -> None:
    for name, points in (("queries", queries), ("keys", keys)):
        if len(points) == 0:
            raise ValueError(f"{name} must have at least one point, got shape {points.shape}.")


def _advance(progress: Callable[[float], None] | None) -> Advance:
    """From shares of the work to the share done so far."""
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done = min(1.0, done + share)
        if progress is not None:
            progress(done)

    return advance


def _log_quantiles(
    queries: Array, keys: Array, bandwidth: float, rng: np.random.Generator
) -> dict[float, float]:
    """Quantiles of the logarithms of all entries, or of a million random ones."""
    if len(queries) * len(keys) <= _QUANTILE_PAIRS:
        logs = log_kernel(queries, keys, bandwidth).ravel()
    else:
        rows = rng.integers(len(queries), size=_QUANTILE_PAIRS)
        cols = rng.integers(len(keys), size=_QUANTILE_PAIRS)
        logs = np.concatenate(
            [
                _log_pairs(queries[some], keys[others], bandwidth)
                for some, others in zip(
                    np.array_split(rows, 64), np.array_split(cols, 64), strict=True
                )
            ]
        )
    return {q: float(v) for q, v in zip(_QUANTILES, np.quantile(logs, _QUANTILES), strict=True)}


def _log_pairs(queries: Array, keys: Array, bandwidth: float) -> npt.NDArray[np.float64]:
    largest = max(float(np.abs(points).max(initial=0.0)) for points in (queries, keys))
    factor, slope = of_differences(bandwidth, largest, np.dtype(np.float64))
    difference = factor * queries.astype(np.float64) - factor * keys.astype(np.float64)
    return np.asarray(np.maximum(slope * np.einsum("ij,ij->i", difference, difference), LOWEST_LOG))
