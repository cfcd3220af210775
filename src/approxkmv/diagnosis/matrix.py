"""``diagnose``: whether the assumption holds for a matrix, and what would be done with it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._warnings import AccuracyWarning
from approxkmv.diagnosis.growth import Growth, measure_growth
from approxkmv.diagnosis.measure import Advance, Measured, measure_all
from approxkmv.diagnosis.predict import predict
from approxkmv.diagnosis.report import Diagnosis
from approxkmv.diagnosis.sampled import measure_rows
from approxkmv.info import Plan
from approxkmv.kernel.frame import of_differences
from approxkmv.loops.types import Array
from approxkmv.paper.assumption import LOWEST_LOG, log_kernel

# Up to this many entries all are looked at: 8,192 queries and keys, 7 s in 100 dimensions.
_EXACT_PAIRS = 1 << 26
_QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1.0)
_QUANTILE_PAIRS = 1 << 20
# With a limit of time: the shares for c (of it for every entry), for prefixes, quantiles and plan.
_FOR_ROWS, _FOR_ALL, _FOR_GROWTH, _FOR_QUANTILES, _FOR_PLAN = 0.45, 0.7, 0.3, 0.15, 0.8
# Coordinates a second: of random pairs, cautiously, and of whole matrices on a fast machine.
_FEWEST_QUANTILE_PAIRS, _COORDINATES_A_SECOND, _FAST = 1 << 12, 3e7, 5e9


def diagnose(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float | npt.ArrayLike,
    eps: float = 0.1,
    delta: float = 0.05,
    rng: Rng = None,
    n_threads: int | None = None,
    max_seconds: float | None = None,
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
    bandwidth : float or array_like, shape (n_dims,)
        :math:`\sigma` in :math:`\exp(-\|q-k\|^2/(2\sigma^2))`.
    eps : float
        Tolerance for which the plan is predicted.
    delta : float
        Probability with which the interval may miss c.
    rng : None, int or numpy.random.Generator
        Seed of the rows and pairs drawn.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    max_seconds : float or None
        Time after which what is known so far is returned: c from fewer rows, with a wider interval
        that holds all the same, fewer prefixes, quantiles from fewer pairs, and no prediction. An
        ``AccuracyWarning`` and ``left_out`` of the report say which. On an otherwise idle machine
        it takes at most 1.3 times as long and 0.1 s more.
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
    deadline = Deadline()
    if max_seconds is not None:
        deadline = Deadline(_check.positive(max_seconds, "max_seconds"))
    q, k = _check.point_pair(queries, keys)
    _not_empty(q, k)
    _check.finite(q, "queries")
    _check.finite(k, "keys")
    q, k, sigma = _check.in_bandwidths(q, k, bandwidth)
    told = sigma if np.ndim(bandwidth) == 0 else tuple(map(float, np.asarray(bandwidth)))
    eps, delta = _check.tolerance(eps), _check.probability(delta)
    generator, n_threads = _check.generator(rng), _check.threads(n_threads)
    if q is not k and q.shape == k.shape and np.array_equal(q, k):
        k = q  # symmetric, whether the caller knew it or not
    advance = _advance(progress)
    left_out: list[str] = []
    measured = _measured(
        q, k, sigma, delta, generator, n_threads, lambda s: advance(0.6 * s), deadline, left_out
    )
    is_exact = measured.is_exact
    n_quantile_pairs = _QUANTILE_PAIRS
    if deadline:
        seconds = _FOR_QUANTILES * max(deadline.left(), 0.0)
        fewer = max(_FEWEST_QUANTILE_PAIRS, int(seconds * _COORDINATES_A_SECOND / q.shape[1]))
        if fewer < min(n_quantile_pairs, len(q) * len(k)):
            n_quantile_pairs = fewer
            left_out.append(f"quantiles from {fewer:,} pairs")
    log_sums = np.maximum(measured.log_row_sums, LOWEST_LOG)
    if log_sums.max() <= LOWEST_LOG / 2:
        raise ValueError(
            "bandwidth must be large enough for the logarithm of an entry of the matrix, "
            f"got {bandwidth!r}."
        )
    try:
        growth = measure_growth(
            q,
            k,
            sigma,
            whole=measured.c,
            exact=is_exact,
            rng=generator,
            n_threads=n_threads,
            deadline=deadline.part(_FOR_GROWTH),
        )
    except OutOfTime:
        growth = Growth((len(q),), (measured.c,), math.nan)
        left_out.append("growth")
    advance(0.2)
    try:
        plan, speed_ups = predict(q, k, sigma, eps, generator, n_threads, deadline.part(_FOR_PLAN))
    except OutOfTime:
        plan, speed_ups = Plan("exact", "no time for a prediction"), {}
        left_out.append("plan")
    advance(0.2)
    if left_out:
        warnings.warn(
            f"max_seconds={deadline.max_seconds:g} was too short for a full diagnosis: "
            f"{', '.join(left_out)}.",
            AccuracyWarning,
            stacklevel=2,
        )
    return Diagnosis(
        n_queries=len(q),
        n_keys=len(k),
        n_dims=q.shape[1],
        bandwidth=told,
        eps=eps,
        c=measured.c,
        c_interval=measured.interval,
        confidence=1.0 if is_exact else 1 - delta,
        is_exact=is_exact,
        mean_row_sum=math.exp(special.logsumexp(log_sums) - math.log(len(log_sums))),
        median_row_sum=math.exp(np.median(log_sums)),
        max_row_sum=math.exp(log_sums.max()),
        log_row_sums=tuple(float(v) for v in np.quantile(log_sums, np.linspace(0, 1, 101))),
        log_quantiles=_log_quantiles(q, k, sigma, generator, n_quantile_pairs),
        growth=growth,
        ratios=measured.ratios,
        plan=plan,
        speed_ups=speed_ups,
        pairs=measured.pairs,
        seconds=time.perf_counter() - start,
        left_out=tuple(left_out),
    )


def _measured(
    queries: Array,
    keys: Array,
    bandwidth: float,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None,
    advance: Advance,
    deadline: Deadline,
    left_out: list[str],
) -> Measured:
    """The constant from every entry of small matrices, otherwise from random rows.

    As many as there is time for; what is missing is added to ``left_out``.
    """
    ends = deadline.part(_FOR_ROWS)
    if len(queries) * len(keys) <= _EXACT_PAIRS:
        tried = ends.part(_FOR_ALL)

        def watched(share: float) -> None:
            tried.check()
            advance(share)

        try:
            tried.check()
            if _likely(len(queries) * len(keys) * queries.shape[1], tried):
                return measure_all(queries, keys, bandwidth, watched)
        except OutOfTime:
            pass
        left_out.append("c from random rows")
    measured = measure_rows(
        queries,
        keys,
        bandwidth,
        delta=delta,
        rng=rng,
        n_threads=n_threads,
        advance=advance,
        deadline=ends,
    )
    if measured.stopped:
        left_out.append(f"c from {len(measured.log_row_sums):,} rows")
    return measured


def _likely(n_coordinates: int, deadline: Deadline) -> bool:
    """Whether this could be done on a fast machine; what cannot is not begun."""
    return n_coordinates <= deadline.left() * _FAST


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
    queries: Array, keys: Array, bandwidth: float, rng: np.random.Generator, n_pairs: int
) -> dict[float, float]:
    """Quantiles of the logarithms of all entries, or of some random ones."""
    if len(queries) * len(keys) <= n_pairs:
        logs = log_kernel(queries, keys, bandwidth).ravel()
    else:
        rows = rng.integers(len(queries), size=n_pairs)
        cols = rng.integers(len(keys), size=n_pairs)
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
