"""``matvec``: one product, from what the user hands in to the answer and its report.

Start reading here: check, plan, run, report.
"""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._deadline import Deadline
from approxkmv._warnings import AccuracyWarning, AssumptionWarning
from approxkmv.engine.products import Answer, exact_product, product
from approxkmv.engine.report import relative
from approxkmv.engine.request import Request, Tolerance, merge_equal
from approxkmv.functions import GAUSSIAN, KernelFunction
from approxkmv.info import Plan, ProductInfo
from approxkmv.kernel.equal_points import Copies
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.kernel.rounding import frobenius
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Float64

METHODS = ("auto", "exact", "sampled", "paper")


@overload
def matvec(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    x: npt.ArrayLike,
    *,
    bandwidth: float | npt.ArrayLike,
    eps: float = ...,
    rtol: float | None = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    kernel: str | KernelFunction = ...,
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
    bandwidth: float | npt.ArrayLike,
    eps: float = ...,
    rtol: float | None = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    kernel: str | KernelFunction = ...,
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
    bandwidth: float | npt.ArrayLike,
    eps: float = 0.1,
    rtol: float | None = None,
    delta: float = 0.05,
    method: str = "auto",
    max_seconds: float | None = None,
    kernel: str | KernelFunction = "gaussian",
    rng: Rng = None,
    n_threads: int | None = None,
    check_finite: bool = True,
    return_info: bool = False,
) -> Array | tuple[Array, ProductInfo]:
    r"""Product of a kernel matrix, Gaussian or another, with a vector or with several columns.

    Returns y with :math:`\|Kx - y\|_2 \le \mathrm{eps}\,\|x\|_2`, where
    :math:`K_{ij} = \exp(-\|q_i - k_j\|^2 / (2\sigma^2))` or that of another ``kernel``, with
    probability at least ``1 - delta``.

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
    bandwidth : float or array_like, shape (n_dims,)
        :math:`\sigma`; an array has one for each coordinate.
    eps : float
        Error allowed, relative to the length of x. 0 asks for the exact product, of each pair of
        distinct points once.
    rtol : float or None
        Error allowed relative to the length of the product :math:`Kx` instead, which is what users
        of dense kernels mean; ``eps`` is then not used.
    delta : float
        Probability with which the error may be larger.
    method : {"auto", "exact", "sampled", "paper"}
        ``"exact"`` computes every pair, in tiles. ``"auto"`` merges equal points, looks at a few
        rows and samples where that is predicted to be faster, otherwise it computes exactly.
        ``"sampled"`` does the same and warns where it had to compute exactly. ``"paper"`` runs the
        algorithm of the paper (:func:`approxkmv.paper.approx_kmv`), which is not faster at any size
        a computer can hold and is there to be studied.
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
    a product by ``"exact"`` does not depend on the other queries. Where points are merged entries
    of x of equal keys are added, and rows of equal queries copied, which changes an exact product
    by rounding only. A sampled product draws keys in
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
    q, k = _check.point_pair(queries, keys)
    q, k, sigma = _check.in_bandwidths(q, k, bandwidth)
    request = Request(
        q,
        k,
        _check.vector(x, len(k)),
        sigma,
        Tolerance(_check.tolerance(eps), None if rtol is None else _check.tolerance(rtol, "rtol")),
        _check.probability(delta),
        _check.generator(rng),
        _check.threads(n_threads),
        _deadline(max_seconds),
        report=return_info,
        function=_check.kernel(kernel),
    )
    method = _check.one_of(method, "method", METHODS)
    if method == "paper" and rtol is not None:
        raise ValueError("rtol must be None with method='paper', whose guarantee is eps |x|.")
    if max_seconds is not None:
        _check.only_gaussian(request.function, "with max_seconds")
    if method == "paper":
        _check.only_gaussian(request.function, "with method='paper', whose algorithm is for it")
    if check_finite:
        _check_finite(q, k)
        _check.finite(request.x, "x")
    with _quiet(check_finite):
        answer = _run(request, method)
    _warn(method, answer, request)
    return (answer.y, answer.info) if return_info else answer.y


def _run(request: Request, method: str) -> Answer:
    if method == "paper" and request.tolerance.eps > 0:
        return _paper_product(request)
    if method in ("auto", "sampled"):
        return product(request)
    return exact_product(request)


def row_sums(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float | npt.ArrayLike,
    kernel: str | KernelFunction = "gaussian",
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
    matrix, of_queries, of_keys = _prepared(
        queries, keys, bandwidth, n_threads, check_finite, _check.kernel(kernel)
    )
    if of_keys is None:
        none = np.empty((len(matrix.keys), 0), matrix.keys.dtype)
        totals = matrix.product(none, row_sums=True).totals
        assert totals is not None
    else:
        totals = matrix.product(of_keys.number[:, None].astype(matrix.keys.dtype)).out[:, 0]
    return totals if of_queries is None else of_queries.copied(totals)


def log_row_sums(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None = None,
    *,
    bandwidth: float | npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    log_weights: npt.ArrayLike | None = None,
    n_threads: int | None = None,
    check_finite: bool = True,
) -> Array:
    r"""Logarithms :math:`\log\sum_j w_j K_{ij}`, finite also where every K underflows.

    Parameters
    ----------
    weights : array_like, shape (n_keys,), or None
        Not negative; None means 1 for every key.
    log_weights : array_like, shape (n_keys,), or None
        Logarithms of the weights instead, of any size; minus infinity leaves a key out.

    Notes
    -----
    Other parameters as in :func:`matvec`. For the Gaussian kernel only.

    Examples
    --------
    >>> import approxkmv as akmv
    >>> [round(float(v), 4) for v in akmv.log_row_sums([[0.0], [100.0]], [[0.0]], bandwidth=1.0)]
    [0.0, -5000.0]
    >>> logs = akmv.log_row_sums([[0.0]], [[0.0]], bandwidth=1.0, log_weights=[-3000.0])
    >>> float(logs[0])  # the weight itself is below all floats
    -3000.0
    """
    if weights is not None and log_weights is not None:
        raise ValueError("weights and log_weights must not both be given.")
    kernel, of_queries, of_keys = _prepared(queries, keys, bandwidth, n_threads, check_finite)
    n_keys = len(kernel.keys) if of_keys is None else len(of_keys.place)
    w: Float64 | None = None if of_keys is None else of_keys.number
    if weights is not None:
        w = _check.weights(weights, n_keys).astype(np.float64)
        if check_finite:
            _check.finite(w, "weights")
        w = w if of_keys is None else of_keys.summed(w[:, None])[:, 0].astype(np.float64)
    with np.errstate(divide="ignore"):
        logs = None if w is None else np.log(w)
    if log_weights is not None:
        logs = _check.log_weights(log_weights, n_keys)
        logs = logs if of_keys is None else _log_sums(logs, of_keys)
    with np.errstate(over="ignore"):  # below the smallest number of float32: minus infinity
        sums = kernel.log_row_sums(logs).astype(kernel.keys.dtype)
    return sums if of_queries is None else of_queries.copied(sums)


def _log_sums(logs: Float64, copies: Copies) -> Float64:
    """Logarithms of the sums of the weights of equal keys."""
    largest = np.full(len(copies.number), -np.inf)
    np.maximum.at(largest, copies.place, logs)
    finite = np.where(np.isfinite(largest), largest, 0.0)
    sums = np.bincount(copies.place, np.exp(logs - finite[copies.place]), len(largest))
    with np.errstate(divide="ignore"):
        return np.asarray(finite + np.log(sums))


def _quiet(check_finite: bool) -> AbstractContextManager[object]:
    """Where entries may be infinite or NaN, arithmetic with them is no news."""
    return nullcontext() if check_finite else np.errstate(invalid="ignore")


def _prepared(
    queries: npt.ArrayLike,
    keys: npt.ArrayLike | None,
    bandwidth: float | npt.ArrayLike,
    n_threads: int | None,
    check_finite: bool,
    function: KernelFunction = GAUSSIAN,
) -> tuple[KernelMatrix, Copies | None, Copies | None]:
    """The matrix of distinct points, and the copies of queries and keys."""
    q, k = _check.point_pair(queries, keys)
    q, k, sigma = _check.in_bandwidths(q, k, bandwidth)
    n_threads = _check.threads(n_threads)
    if check_finite:
        _check_finite(q, k)
    merged = merge_equal(q, k)
    kernel = prepare(
        merged.queries, merged.keys, sigma, function=function, backend=Compiled(n_threads)
    )
    return kernel, merged.of_queries, merged.of_keys


def _check_finite(queries: Array, keys: Array) -> None:
    _check.finite(queries, "queries")
    if keys is not queries:
        _check.finite(keys, "keys")


def _deadline(max_seconds: float | None) -> Deadline:
    if max_seconds is None:
        return Deadline()
    return Deadline(_check.positive(max_seconds, "max_seconds"))


def _warn(method: str, answer: Answer, request: Request) -> None:
    """Say what the user may not expect of the answer."""
    info, deadline, eps = answer.info, request.deadline, request.tolerance.eps
    if method == "sampled" and info.method == "exact":
        reason = info.plan.reason
        warnings.warn(f"The exact product was computed: {reason}.", AssumptionWarning, stacklevel=3)
    unit = float(np.finfo(request.keys.dtype).eps)
    if info.method == "exact" and 0 < eps < unit:
        warnings.warn(
            f"eps={eps:g} is below the rounding of {request.keys.dtype} ({unit:.1g}); "
            "the exact product was computed as well as that type allows.",
            AccuracyWarning,
            stacklevel=3,
        )
    if answer.too_late:
        warnings.warn(
            f"max_seconds={deadline.max_seconds:g} was too short for the error asked for; the "
            f"error of the answer is estimated at {info.error_estimate:.2g} |x|.",
            AccuracyWarning,
            stacklevel=3,
        )
    if method in ("auto", "sampled") and deadline.broken:
        warnings.warn(deadline.how_late, AccuracyWarning, stacklevel=3)


def _paper_product(request: Request) -> Answer:
    from approxkmv.paper.approx_kmv import approx_kmv

    start, x, eps = time.perf_counter(), request.x, request.tolerance.eps
    columns = x[:, None] if x.ndim == 1 else x
    n_columns = columns.shape[1]
    y = np.empty((len(request.queries), n_columns), np.result_type(request.keys, x))
    pairs = 0
    numbers: dict[str, object] = {}
    for c in range(n_columns):
        y[:, c], run = approx_kmv(
            request.queries,
            request.keys,
            np.ascontiguousarray(columns[:, c]),
            bandwidth=request.bandwidth,
            eps=eps,
            delta=request.delta / n_columns,
            rng=request.rng,
            n_threads=request.n_threads,
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
    info = ProductInfo(
        "paper",
        plan,
        error_estimate=None,
        error_bound=eps,
        confidence=1 - request.delta,
        pairs=pairs,
        pairs_exact=request.n_pairs,
        seconds={"product": time.perf_counter() - start},
        product_norm=relative(frobenius(y), frobenius(x)),
    )
    return Answer(y[:, 0] if x.ndim == 1 else y, info)
