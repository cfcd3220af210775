"""Reports of products: the one place where a ``ProductInfo`` is made."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from approxkmv._threads import default_threads
from approxkmv.engine.problem import Limit
from approxkmv.engine.request import Request, Scaled
from approxkmv.engine.result import Result
from approxkmv.engine.trace import Trace
from approxkmv.info import Considered, Plan, ProductInfo
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.kernel.rounding import (
    CHECKED_ROWS,
    frobenius,
    measured_error,
    measured_rounding,
    rounding_bound,
)
from approxkmv.loops import compiled
from approxkmv.loops.types import Array, TileSums

FORMS = {False: "inner products", True: "squared differences"}


def kernel_numbers(kernel: KernelMatrix) -> dict[str, object]:
    """The choices made for a kernel matrix."""
    frame = kernel.frame
    return {
        "kernel": kernel.function.shown,
        "form": FORMS[frame.differences],
        "key_radius_in_bandwidths": round(frame.radius, 3),
        "dtype": str(kernel.keys.dtype),
        "isa": compiled.ISA,
        "n_threads": kernel.backend.n_threads or default_threads(),
    }


def exact_info(
    request: Request, trace: Trace, reason: str, y: Array, sums: TileSums, exponent: int
) -> ProductInfo:
    """The report of an exact product; ``exponent`` scales x to at most 1."""
    kernel = request.kernel
    numbers = kernel_numbers(kernel) | trace.numbers
    plan = Plan("exact", reason, numbers, considered(trace.considered, "taken"))
    pairs, asked = trace.pairs + request.n_pairs, request.pairs_asked
    if not request.report:
        return ProductInfo("exact", plan, None, None, 1.0, pairs, asked, trace.seconds, None)
    # In double precision and scaled by a power of two: no norm overflows or underflows.
    unit_x, unit_y = (
        np.ldexp(a[:, None] if a.ndim == 1 else a, -exponent, dtype=np.float64)
        for a in (request.x, y)
    )
    x_norm = frobenius(unit_x)
    error = measured_error(
        kernel, request.summed(unit_x), unit_y, request.rng, copies=request.query_copies
    )
    assert sums.totals is not None
    bound = rounding_bound(
        kernel,
        _kernel_sum(request, sums.totals),
        n_pairs=asked,
        most_equal=_most_equal(request),
    )
    trace.lap("report")
    return ProductInfo(
        "exact",
        plan,
        error_estimate=relative(error, x_norm),
        error_bound=bound,
        confidence=1.0,
        pairs=pairs,
        pairs_exact=asked,
        seconds=trace.seconds,
        product_norm=relative(frobenius(unit_y), x_norm),
    )


def sampled_info(
    request: Request, scaled: Scaled, result: Result, limit: Limit, trace: Trace
) -> ProductInfo:
    """The report of a product with an error."""
    rounding = _rounding(request, scaled, result, limit)
    trace.lap("report")
    x_norm = scaled.x_norm or 1.0
    trace.note(
        error_upper_limit=math.sqrt(result.upper) / x_norm,
        error_on_pilot_rows=math.sqrt(result.checked) / x_norm,
        share_of_pairs=trace.pairs / request.pairs_asked,
    )
    numbers = kernel_numbers(scaled.kernel) | trace.numbers
    # Markov's inequality for the squared error, whose mean is estimated from above.
    bound, confidence = math.sqrt((result.worst + rounding**2) / request.delta), 1 - request.delta
    if result.without_signs is not None:
        bound, confidence = _certain(request, scaled, result, result.without_signs), 1.0
    return ProductInfo(
        "sampled",
        Plan("sampled", result.reason, numbers, considered(trace.considered, "not needed")),
        error_estimate=math.hypot(math.sqrt(result.variance), rounding) / x_norm,
        error_bound=bound / x_norm,
        confidence=confidence,
        pairs=trace.pairs,
        pairs_exact=request.pairs_asked,
        seconds=trace.seconds,
        product_norm=request.length(result.y) / x_norm,
    )


def _certain(request: Request, scaled: Scaled, result: Result, without_signs: float) -> float:
    """A bound of the error that assumes nothing: what was left out, and rounding.

    In every row rounding is at most a share of the product with |x|, as in ``rounding_bound``.
    """
    share = rounding_bound(
        scaled.kernel, 1.0, n_pairs=request.pairs_asked, most_equal=_most_equal(request)
    )
    return math.sqrt(result.upper) + share * (math.sqrt(without_signs) + scaled.x_norm)


def _rounding(request: Request, scaled: Scaled, result: Result, limit: Limit) -> float:
    """What rounding adds to the error: what is drawn is rounded like what is computed exactly."""
    n_rows = min(CHECKED_ROWS, len(result.exact_rows))
    in_time = limit.allows(request.cost.double_pair * n_rows * len(request.keys))
    rows = result.exact_rows if in_time else result.exact_rows[:0]
    return measured_rounding(
        scaled.kernel.checked(None), scaled.columns, result.y, rows, copies=request.query_copies
    )


def considered(found: Mapping[str, Considered], exact: str) -> tuple[Considered, ...]:
    """The ways that were considered, and the exact product; none where that was the only one."""
    return (*found.values(), Considered("exact", 1.0, 0.0, exact)) if found else ()


def _kernel_sum(request: Request, totals: Array) -> float:
    """Sum of the entries of the matrix of all points, or more than that.

    With w equal queries and c equal keys, w c is at most half the sum of their squares.
    """
    sums, of_queries = totals.astype(np.float64), request.query_copies
    if of_queries is not None and request.queries is request.keys:
        return float(np.square(of_queries.number) @ sums)
    weights = np.ones(len(sums)) if of_queries is None else of_queries.number
    return float(weights @ sums) * _most_equal(request)


def _most_equal(request: Request) -> float:
    """The largest number of equal keys."""
    return 1.0 if request.key_copies is None else float(request.key_copies.number.max())


def relative(length: float, to: float) -> float:
    """Quotient of two lengths, and 0 for the zero vector, whose product is exactly 0."""
    return length / to if to > 0 else (0.0 if length == 0 else math.inf)
