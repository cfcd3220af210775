"""``matvec``: one product, from what the user hands in to the answer and its report.

Start reading here: check, plan, run, report.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._threads import default_threads
from approxkmv._warnings import AccuracyWarning, AssumptionWarning
from approxkmv.engine.result import Clock, Limit, Outcome, Sample, worth_a_look
from approxkmv.info import Plan, ProductInfo
from approxkmv.kernel.frame import usual_units
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.kernel.rounding import (
    CHECKED_ROWS,
    frobenius,
    measured_error,
    measured_rounding,
    rounding_bound,
)
from approxkmv.loops import compiled
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array

METHODS = ("auto", "exact", "sampled", "paper")
_ROWS_AT_ONCE = 1 << 22
_LARGEST_ERROR = 1e150  # whose square is finite; more is nothing to ask for


@overload
def matvec(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    *,
    bandwidth: float,
    eps: float = ...,
    rtol: float | None = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    check_finite: bool = ...,
    return_info: Literal[False] = ...,
) -> Array: ...
@overload
def matvec(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    *,
    bandwidth: float,
    eps: float = ...,
    rtol: float | None = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    check_finite: bool = ...,
    return_info: Literal[True],
) -> tuple[Array, ProductInfo]: ...
def matvec(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    *,
    bandwidth: float,
    eps: float = 0.1,
    rtol: float | None = None,
    delta: float = 0.05,
    method: str = "auto",
    max_seconds: float | None = None,
    rng: Rng = None,
    n_threads: int | None = None,
    check_finite: bool = True,
    return_info: bool = False,
) -> Array | tuple[Array, ProductInfo]:
    r"""Product of a Gaussian kernel matrix with a vector or with several columns.

    Returns y with :math:`\|Kx - y\|_2 \le \mathrm{eps}\,\|x\|_2`, where
    :math:`K_{ij} = \exp(-\|q_i - k_j\|^2 / (2\sigma^2))`, with probability at least ``1 - delta``.

    Parameters
    ----------
    queries : array_like, shape (n_queries, n_dims)
        One point per row. float32 and float64 are kept as the computing type; float16, bfloat16 and
        small integers are computed in float32, other real types in float64.
    keys : array_like, shape (n_keys, n_dims), or None
        One point per row; None means the queries.
    x : array_like, shape (n_keys,) or (n_keys, n_columns)
        Any signs. Converted to the points' type; with several columns the guarantee is for the
        Frobenius norm with ``"auto"`` and ``"exact"``, for every column with ``"paper"``.
    bandwidth : float
        :math:`\sigma`.
    eps : float
        Error allowed, relative to the length of x. 0 asks for the exact product.
    rtol : float or None
        Error allowed relative to the length of the product :math:`Kx` instead, which is what users
        of dense kernels mean; ``eps`` is then not used.
    delta : float
        Probability with which the error may be larger.
    method : {"auto", "exact", "sampled", "paper"}
        ``"exact"`` computes every pair, in tiles. ``"auto"`` looks at a few rows and samples where
        that is predicted to be faster, otherwise it computes exactly. ``"sampled"`` does the same
        and warns where it had to compute exactly. ``"paper"`` runs the algorithm of the paper
        (:func:`approxkmv.paper.approx_kmv`), which is not faster at any size a computer can hold
        and is there to be studied.
    max_seconds : float or None
        With ``"auto"`` and ``"sampled"``: time after which the best answer so far is returned, with
        an ``AccuracyWarning`` if it does not meet the error asked for; ``info`` has its estimated
        error and its bound. There is always an answer: at worst a few keys are drawn in proportion
        to the entries of x. On an otherwise idle machine it takes at most 1.3 times as long and
        0.1 s more; a warning says where that was missed. ``"exact"`` and ``"paper"`` take the time
        they need.
    rng : None, int or numpy.random.Generator
        Seed of everything random: what is drawn, and the rows checked for the report.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    check_finite : bool
        Reject NaN and infinity. With False they go through to the rows they touch.
    return_info : bool
        Return ``(y, info)``; measuring the rounding error costs a few rows in double precision.

    Returns
    -------
    y : ndarray, shape (n_queries,) or (n_queries, n_columns)
        Of the common type of points and x.
    info : ProductInfo
        Only with ``return_info``.

    Notes
    -----
    Same seed, version and instruction set give the same bits for any number of threads. A row of
    an exact product does not depend on the other queries. A sampled product draws keys in
    proportion to the entries of x: it is not linear in x, even with the same seed.

    The guarantee of a sampled product rests on an estimate of its variance, made from the drawn
    values and checked on exactly computed rows; the answer is drawn again, larger, or computed
    exactly until the estimate meets ``eps`` at confidence ``1 - delta``.

    Examples
    --------
    >>> import numpy as np
    >>> import approxkmv as akmv
    >>> rng = np.random.default_rng(0)
    >>> queries, keys = rng.standard_normal((300, 16)), rng.standard_normal((500, 16))
    >>> x = rng.standard_normal(500)
    >>> y, info = akmv.matvec(queries, keys, x, bandwidth=2.0, return_info=True)
    >>> y.shape, info.method, info.pairs
    ((300,), 'exact', 150000)
    >>> bool(info.error_estimate < 1e-12)
    True
    """
    deadline = _deadline(max_seconds)
    q, k = _check.point_pair(queries, keys)
    vector = _check.vector(x, len(k))
    bandwidth = _check.positive(bandwidth, "bandwidth")
    eps = _check.tolerance(eps)
    tolerance = Tolerance(eps, None if rtol is None else _check.tolerance(rtol, "rtol"))
    delta = _check.probability(delta)
    method = _check.one_of(method, "method", METHODS)
    if method == "paper" and rtol is not None:
        raise ValueError("rtol must be None with method='paper', whose guarantee is eps |x|.")
    n_threads = _check.threads(n_threads)
    generator = _check.generator(rng)
    if check_finite:
        _check.finite(q, "queries")
        if k is not q:
            _check.finite(k, "keys")
        _check.finite(vector, "x")
    outcome = None
    if method in ("auto", "sampled"):
        with _quiet(check_finite):
            y, info, outcome = _sampled_product(
                q,
                k,
                vector,
                bandwidth,
                tolerance,
                delta,
                deadline,
                generator,
                n_threads,
                return_info,
            )
        exact = info is not None and info.method == "exact"
        if y is not None and info is not None:
            _warn_of_limit(deadline, info, outcome)
            if not (method == "sampled" and exact):
                return (y, info) if return_info else y
        if method == "sampled":
            warnings.warn(
                f"The exact product was computed: {outcome.reason}.",
                AssumptionWarning,
                stacklevel=2,
            )
        if y is not None and info is not None:
            return (y, info) if return_info else y
    if method == "paper" and eps > 0:
        y, info = _paper_product(q, k, vector, bandwidth, eps, delta, generator, n_threads)
    else:
        with _quiet(check_finite):
            y, info = _exact_product(
                q, k, vector, bandwidth, eps, generator, n_threads, outcome, report=return_info
            )
    return (y, info) if return_info else y


def row_sums(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> Array:
    r"""Row sums :math:`\sum_j K_{ij}`, exactly: n_keys times the kernel density at each query.

    Parameters as in :func:`matvec`.

    Examples
    --------
    >>> import approxkmv as akmv
    >>> akmv.row_sums([[0.0], [3.0]], [[0.0], [0.0]], bandwidth=1.0).round(4)
    array([2.    , 0.0222])
    """
    kernel = _prepared(queries, keys, bandwidth, n_threads, check_finite)
    none = np.empty((len(kernel.keys), 0), kernel.keys.dtype)
    totals = kernel.product(none, row_sums=True).totals
    assert totals is not None
    return totals


def log_row_sums(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float,
    weights: npt.ArrayLike | None = None,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> Array:
    r"""Logarithms :math:`\log\sum_j w_j K_{ij}`, finite also where every K underflows.

    Parameters
    ----------
    weights : array_like, shape (n_keys,), or None
        Not negative; None means 1 for every key.

    Notes
    -----
    Other parameters as in :func:`matvec`.

    Examples
    --------
    >>> import approxkmv as akmv
    >>> [round(float(v), 4) for v in akmv.log_row_sums([[0.0], [100.0]], [[0.0]], bandwidth=1.0)]
    [0.0, -5000.0]
    """
    kernel = _prepared(queries, keys, bandwidth, n_threads, check_finite)
    log_weights = None
    if weights is not None:
        w = _check.weights(weights, len(kernel.keys))
        if check_finite:
            _check.finite(w, "weights")
        with np.errstate(divide="ignore"):
            log_weights = np.log(w.astype(np.float64))
    with np.errstate(over="ignore"):  # below the smallest number of float32: minus infinity
        return kernel.log_row_sums(log_weights).astype(kernel.keys.dtype)


def exact_plan(kernel: KernelMatrix, reason: str) -> Plan:
    """The plan of an exact product, with every choice it made."""
    frame = kernel.frame
    return Plan(
        "exact",
        reason,
        {
            "form": "squared differences" if frame.differences else "inner products",
            "key_radius_in_bandwidths": round(frame.radius, 3),
            "dtype": str(kernel.keys.dtype),
            "isa": compiled.ISA,
            "n_threads": kernel.backend.n_threads or default_threads(),
        },
    )


def scaled_columns(x: Array, dtype: np.dtype[np.floating]) -> tuple[Array, npt.NDArray[np.intc]]:
    """Columns scaled by powers of two to at most 1, in ``dtype``; and the exponents taken out.

    Keeps large and tiny entries of x inside the range of float32, and makes K(2x) = 2 Kx bitwise.
    """
    columns = x[:, None] if x.ndim == 1 else x
    largest = np.maximum(columns.max(axis=0, initial=0.0), -columns.min(axis=0, initial=0.0))
    exponents = np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]
    scaled = np.empty(columns.shape, dtype)
    # In pieces: ldexp takes 8 ns an entry, and Python sees no Ctrl-C in the middle of it.
    for first in range(0, len(columns), _ROWS_AT_ONCE):
        piece = slice(first, first + _ROWS_AT_ONCE)
        scaled[piece] = np.ldexp(columns[piece], -exponents)
    return scaled, exponents


def scaled_together(x: Array, dtype: np.dtype[np.floating]) -> tuple[Array, npt.NDArray[np.intc]]:
    """All columns scaled by one power of two, as their common error asks for."""
    flat, exponent = scaled_columns(x.reshape(-1), dtype)
    return flat.reshape(len(x), -1), exponent


def unscaled(y: Array, exponents: npt.NDArray[np.intc], like: Array) -> Array:
    """Give the columns their scale back, in the common type of the product and of ``like``."""
    # A product too large for float32 is infinity there, as it would be without the scaling.
    with np.errstate(over="ignore"):
        out = np.ldexp(y.astype(np.result_type(y, like), copy=False), exponents)
    return np.asarray(out[:, 0] if like.ndim == 1 else out)


def _quiet(check_finite: bool) -> AbstractContextManager[object]:
    """Where entries may be infinite or NaN, arithmetic with them is no news."""
    return nullcontext() if check_finite else np.errstate(invalid="ignore")


def _prepared(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    bandwidth: float,
    n_threads: int | None,
    check_finite: bool,
) -> KernelMatrix:
    q, k = _check.point_pair(queries, keys)
    bandwidth = _check.positive(bandwidth, "bandwidth")
    n_threads = _check.threads(n_threads)
    if check_finite:
        _check.finite(q, "queries")
        if k is not q:
            _check.finite(k, "keys")
    return prepare(q, k, bandwidth, backend=Compiled(n_threads))


def _deadline(max_seconds: float | None) -> Deadline:
    if max_seconds is None:
        return Deadline()
    return Deadline(_check.positive(max_seconds, "max_seconds"))


def _warn_of_limit(deadline: Deadline, info: ProductInfo, outcome: Outcome) -> None:
    """Say that the error asked for was missed, or the time itself."""
    if outcome.stopped:
        warnings.warn(
            f"max_seconds={deadline.max_seconds:g} was too short for the error asked for; the "
            f"error of the answer is estimated at {info.error_estimate:.2g} |x|.",
            AccuracyWarning,
            stacklevel=3,
        )
    if deadline.broken:
        warnings.warn(deadline.how_late, AccuracyWarning, stacklevel=3)


def _exact_product(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    eps: float,
    rng: np.random.Generator,
    n_threads: int | None,
    outcome: Outcome | None,
    *,
    report: bool,
    deadline: Deadline | None = None,
) -> tuple[Array, ProductInfo]:
    unit = float(np.finfo(keys.dtype).eps)
    if 0 < eps < unit:
        warnings.warn(
            f"eps={eps:g} is below the rounding of {keys.dtype} ({unit:.1g}); "
            "the exact product was computed as well as that type allows.",
            AccuracyWarning,
            stacklevel=3,
        )
    start = time.perf_counter()
    kernel = prepare(queries, keys, bandwidth, backend=Compiled(n_threads))
    columns, exponents = scaled_columns(x, keys.dtype)
    prepared = time.perf_counter()
    if deadline:
        sums = kernel.checked(deadline.check).product(columns, row_sums=report)
    else:
        sums = kernel.product(columns, row_sums=report)
    y = unscaled(sums.out, exponents, x)
    done = time.perf_counter()
    seconds = {"prepare": prepared - start, "product": done - prepared}
    plan = exact_plan(kernel, "every pair is computed")
    n_pairs = n_made = len(queries) * len(keys)
    if outcome is not None:
        plan = Plan("exact", outcome.reason, {**plan.numbers, **outcome.numbers})
        seconds = outcome.seconds | seconds
        n_made += outcome.pairs
    if not report:
        return y, ProductInfo("exact", plan, None, None, 1.0, n_made, n_pairs, seconds, None)
    # In double precision and scaled by a power of two: no norm overflows or underflows.
    exponent = int(exponents.max()) if exponents.size else 0
    unit_x, unit_y = (
        np.ldexp(a[:, None] if a.ndim == 1 else a, -exponent, dtype=np.float64) for a in (x, y)
    )
    x_norm = frobenius(unit_x)
    error = measured_error(kernel, bandwidth, unit_x, unit_y, rng)
    assert sums.totals is not None
    bound = rounding_bound(kernel, float(sums.totals.sum(dtype=np.float64)))
    return y, ProductInfo(
        "exact",
        plan,
        error_estimate=_ratio(error, x_norm),
        error_bound=bound,
        confidence=1.0,
        pairs=n_made,
        pairs_exact=n_pairs,
        seconds=seconds | {"report": time.perf_counter() - done},
        product_norm=_ratio(frobenius(unit_y), x_norm),
    )


class Tolerance(NamedTuple):
    """Error allowed relative to the length of x, or to that of the product."""

    eps: float
    rtol: float | None


# Rows from which the length of the product is first guessed, and how much of it is relied upon.
_ROWS_FOR_LENGTH, _RELIED_UPON = 256, 0.8
# Entries too large to be left to chance may take one part in this many of the time left.
_FOR_LARGE = 4


def _sampled_product(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    tolerance: Tolerance,
    delta: float,
    deadline: Deadline,
    rng: np.random.Generator,
    n_threads: int | None,
    report: bool,
) -> tuple[Array | None, ProductInfo | None, Outcome]:
    """The product, if sampling is predicted to pay and met its error; and what was decided.

    With a limit of time there is always a product.
    """
    units = usual_units(queries, keys, bandwidth)
    if units is None:
        return None, None, Outcome("the points are too many bandwidths apart")
    work = len(queries) * (len(keys) * (keys.shape[1] + 24) + x.size)
    if deadline.matters(work) and x.size:
        return _hurried_product(
            queries, keys, x, bandwidth, units, tolerance, delta, deadline, rng, n_threads, report
        )
    if (tolerance.eps if tolerance.rtol is None else tolerance.rtol) == 0:
        return None, None, Outcome("no error is allowed")
    if not worth_a_look(len(queries), len(keys), keys.shape[1]):
        return None, None, Outcome("the product is too small for sampling to pay")
    start = time.perf_counter()
    queries, keys, bandwidth = units
    kernel = prepare(queries, keys, bandwidth, backend=Compiled(n_threads))
    columns, exponent = scaled_together(x, keys.dtype)
    prepared = time.perf_counter() - start
    eps, tries = tolerance.eps, 1
    if tolerance.rtol is not None:
        some = rng.choice(len(queries), min(len(queries), _ROWS_FOR_LENGTH), replace=False)
        of_x = frobenius(columns)
        length = frobenius(kernel.at_queries(some).product(columns).out) / of_x if of_x > 0 else 0.0
        length *= math.sqrt(len(queries) / len(some))
        eps, tries = _RELIED_UPON * tolerance.rtol * length, 2
    y, info, outcome = _attempts(kernel, bandwidth, columns, eps, tries, tolerance, delta, rng)
    if y is None or info is None:
        return None, None, outcome
    seconds = {"prepare": prepared} | outcome.seconds
    return unscaled(y, exponent, x), replace(info, seconds=seconds), outcome


def _attempts(
    kernel: KernelMatrix,
    bandwidth: float,
    columns: Array,
    eps: float,
    tries: int,
    tolerance: Tolerance,
    delta: float,
    rng: np.random.Generator,
    limit: Limit | None = None,
) -> tuple[Array | None, ProductInfo | None, Outcome]:
    """The product of scaled columns; once more where it is shorter than was thought."""
    limit = limit or Limit()
    for _ in range(tries):
        if not eps > 0:
            return None, None, Outcome("the product may be zero")
        y, info, outcome = _within(kernel, bandwidth, columns, eps, delta, limit, rng)
        if y is None or info is None or tolerance.rtol is None:
            break
        # Now the length of the product is known as well as the product.
        assert info.product_norm is not None
        allowed = tolerance.rtol * info.product_norm / (1 + tolerance.rtol)
        assert outcome.sample is not None
        limit_met = math.sqrt(outcome.sample.upper) <= allowed * frobenius(columns)
        if limit_met or outcome.stopped:
            break
        y, eps = None, 0.95 * allowed
        outcome.reason = "the product is shorter than was thought"
    return y, info, outcome


def _hurried_product(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    units: tuple[Array, Array, float],
    tolerance: Tolerance,
    delta: float,
    deadline: Deadline,
    rng: np.random.Generator,
    n_threads: int | None,
    report: bool,
) -> tuple[Array, ProductInfo, Outcome]:
    """The best product within a time: as without a limit, exact, or with what is known then."""
    from approxkmv.engine.schemes.in_time import KEPT, hurried_sample, probe

    limit = Limit(deadline)
    start = deadline.now()
    kernel = prepare(*units, backend=Compiled(n_threads))
    columns, exponent = scaled_together(x, keys.dtype)
    prepared = deadline.now() - start
    # Another stream: with enough time the draws are those without a limit.
    (own,) = rng.spawn(1)
    checks = probe(kernel, columns, limit, own)
    x_norm = frobenius(columns)
    length = checks.length * math.sqrt(len(queries) / max(len(checks.rows), 1)) / (x_norm or 1.0)
    eps, tries = tolerance.eps, 1
    if tolerance.rtol is not None:
        eps, tries = _RELIED_UPON * tolerance.rtol * length, 2
    n_pairs = len(queries) * len(keys)
    kept = KEPT * deadline.max_seconds
    earlier = Limit(deadline.keeping(kept))
    earlier.rate = limit.rate
    patient = kernel.checked(earlier.deadline.check)
    outcome = Outcome("no error is allowed")
    small = not worth_a_look(len(queries), len(keys), keys.shape[1])
    if eps > 0 and not (small and earlier.allows(n_pairs)):
        y, info, outcome = _attempts(
            patient, units[2], columns, eps, tries, tolerance, delta, rng, earlier
        )
        if y is not None and info is not None:
            seconds = {"prepare": prepared} | outcome.seconds
            return unscaled(y, exponent, x), replace(info, seconds=seconds), outcome
        limit.rate = earlier.rate
    if not outcome.stopped and (x_norm == 0 or earlier.allows(n_pairs)):
        try:
            y, info = _exact_product(
                queries,
                keys,
                x,
                bandwidth,
                eps,
                own,
                n_threads,
                outcome,
                report=report,
                deadline=earlier.deadline,
            )
        except OutOfTime:
            pass
        else:
            return y, info, outcome
    outcome.reason = "max_seconds was too short for the error asked for"
    began = deadline.now()
    sample = hurried_sample(
        kernel,
        columns,
        checks,
        outcome,
        allowed=min(eps * x_norm, _LARGEST_ERROR) ** 2,
        delta=delta,
        limit=limit,
        rng=own,
    )
    if not outcome.stopped:
        outcome.reason = "the time was enough to draw keys for the error asked for"
    rounding = _rounding(kernel, units[2], columns, sample, outcome, limit)
    info = _sampled_info(kernel, sample, outcome, x_norm, rounding, delta)
    outcome.seconds["draw"] = outcome.seconds.get("draw", 0.0) + deadline.now() - began
    seconds = {"prepare": prepared} | outcome.seconds
    return unscaled(sample.y, exponent, x), replace(info, seconds=seconds), outcome


def _within(
    kernel: KernelMatrix,
    bandwidth: float,
    columns: Array,
    eps: float,
    delta: float,
    limit: Limit,
    rng: np.random.Generator,
) -> tuple[Array | None, ProductInfo | None, Outcome]:
    """The product of scaled columns with an error of at most eps, by sampling, if that pays."""
    from approxkmv.engine.planner import sampled

    lengths = np.linalg.norm(columns.astype(np.float64), axis=1)
    x_norm = frobenius(lengths)
    # A row larger than the error allowed is never left to chance: what its key looks like could
    # differ from what a tile of keys looks like on average. There are at most 1 / eps^2 of them.
    large = np.flatnonzero(lengths > eps * x_norm)
    rest = columns.copy()
    rest[large] = 0
    lengths[large] = 0
    left = frobenius(lengths)
    if left == 0:
        return None, None, Outcome("x is zero, or has only entries larger than the error allowed")
    n_queries = len(kernel.queries)
    if not limit.allows(_FOR_LARGE * n_queries * len(large)):
        return None, None, Outcome("too many entries are larger than the error", stopped=True)
    # No product is longer than this, so that no larger error is ever made.
    most = math.sqrt(n_queries * len(kernel.keys))
    allowed = min(eps * x_norm / left, most)
    outcome = sampled(kernel, bandwidth, rest, eps=allowed, delta=delta, rng=rng, limit=limit)
    sample = outcome.sample or outcome.best_effort
    if sample is not None and len(large):
        some = kernel.checked(None).at_keys(large)
        sample.y[:] += some.product(columns[large]).out
        outcome.pairs += n_queries * len(large)
    if sample is None or sample is not outcome.sample:
        return None, None, outcome
    rounding = _rounding(kernel, bandwidth, columns, sample, outcome, limit)
    return sample.y, _sampled_info(kernel, sample, outcome, x_norm, rounding, delta), outcome


# Rows that measure the rounding are computed in double precision, by differences: each pair takes
# about as long as so many others.
_DOUBLE_PAIR = 6.0


def _rounding(
    kernel: KernelMatrix,
    bandwidth: float,
    columns: Array,
    sample: Sample,
    outcome: Outcome,
    limit: Limit,
) -> float:
    """What rounding adds to the error: what is drawn is rounded like what is computed exactly."""
    clock = Clock(outcome.seconds)
    n_rows = min(CHECKED_ROWS, len(sample.exact_rows))
    in_time = limit.allows(_DOUBLE_PAIR * n_rows * len(kernel.keys))
    rows = sample.exact_rows if in_time else sample.exact_rows[:0]
    patient = kernel.checked(None)
    rounding = measured_rounding(patient, bandwidth, columns, sample.y, rows)
    clock.lap("report")
    return rounding


def _sampled_info(
    kernel: KernelMatrix,
    sample: Sample,
    outcome: Outcome,
    x_norm: float,
    rounding: float,
    delta: float,
) -> ProductInfo:
    """The report of a sampled product of scaled columns."""
    x_norm = x_norm or 1.0
    outcome.numbers |= {
        "error_upper_limit": math.sqrt(sample.upper) / x_norm,
        "error_on_pilot_rows": math.sqrt(sample.checked) / x_norm,
    }
    numbers = {**exact_plan(kernel, "").numbers, **outcome.numbers}
    return ProductInfo(
        "sampled",
        Plan("sampled", outcome.reason, numbers),
        error_estimate=math.hypot(math.sqrt(sample.variance), rounding) / x_norm,
        # Markov's inequality for the squared error, whose mean is estimated from above.
        error_bound=math.sqrt((max(sample.upper, sample.checked) + rounding**2) / delta) / x_norm,
        confidence=1 - delta,
        pairs=outcome.pairs,
        pairs_exact=len(kernel.queries) * len(kernel.keys),
        seconds=outcome.seconds,
        product_norm=frobenius(sample.y) / x_norm,
    )


def _paper_product(
    queries: Array,
    keys: Array,
    x: Array,
    bandwidth: float,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[Array, ProductInfo]:
    from approxkmv.paper.approx_kmv import approx_kmv

    start = time.perf_counter()
    columns = x[:, None] if x.ndim == 1 else x
    n_columns = columns.shape[1]
    y = np.empty((len(queries), n_columns), np.result_type(keys, x))
    pairs = 0
    numbers: dict[str, object] = {}
    for c in range(n_columns):
        y[:, c], run = approx_kmv(
            queries,
            keys,
            np.ascontiguousarray(columns[:, c]),
            bandwidth=bandwidth,
            eps=eps,
            delta=delta / n_columns,
            rng=rng,
            n_threads=n_threads,
            return_info=True,
        )
        pairs += run.pairs
        numbers = {
            "large_entries": run.n_large,
            "tiny_entries": run.n_tiny,
            "heavy_pairs": run.n_heavy_pairs,
            "buckets": run.n_buckets,
            "rows_sampled": run.n_sampled_rows,
            "rows_computed_exactly": run.n_capped_rows,
            "hashes": run.hash + run.density_hash,
        }
    plan = Plan("paper", "ApproxKMV (Algorithm 3), as asked", numbers)
    return y[:, 0] if x.ndim == 1 else y, ProductInfo(
        "paper",
        plan,
        error_estimate=None,
        error_bound=eps,
        confidence=1 - delta,
        pairs=pairs,
        pairs_exact=len(queries) * len(keys),
        seconds={"product": time.perf_counter() - start},
        product_norm=_ratio(frobenius(y), frobenius(x)),
    )


def _ratio(a: float, b: float) -> float:
    """Quotient a / b, and 0 for the zero vector, whose product is exactly 0."""
    return a / b if b > 0 else (0.0 if a == 0 else math.inf)
