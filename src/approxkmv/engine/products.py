"""One product: sampled where that pays, in a given time, or exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.engine.planner import TOO_SMALL, approximate
from approxkmv.engine.problem import Limit, row_norms
from approxkmv.engine.progress import Progress
from approxkmv.engine.report import FORMS, exact_info, sampled_info
from approxkmv.engine.request import Request, Scaled
from approxkmv.engine.result import Result
from approxkmv.engine.schemes.cells import far_cells_left_out
from approxkmv.engine.schemes.in_time import KEPT, answer_in_time, probe
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.info import ProductInfo
from approxkmv.kernel.rounding import frobenius
from approxkmv.kernel.scaling import scaled_columns, unscaled
from approxkmv.loops.types import Array, Float64, Index

_LARGEST_ERROR = 1e150  # whose square is finite; more is nothing to ask for
# Rows from which the length of the product is first guessed, and how much of it is relied upon.
_ROWS_FOR_LENGTH, _RELIED_UPON = 256, 0.8
# How often the length of the product may turn out to be shorter, and the share of the error then
# known to be allowed that is asked for.
_TRIES, _AGAIN = 2, 0.95
# Entries too large to be left to chance may take one part in this many of the time left.
_FOR_LARGE = 4


ONLY_GAUSSIAN = "sampling is for the Gaussian kernel"


class Answer(NamedTuple):
    """A product and its report; ``too_late`` says that the time was too short for its error."""

    y: Array
    info: ProductInfo
    too_late: bool = False


def product(request: Request) -> Answer:
    """The product within the error asked for, in the fastest way known."""
    trace = Trace()
    request = _merged(request, trace)
    try:
        if request.needs_a_clock and request.function.factorises:
            return _in_time(request, trace)
        return _sampled(request, trace)
    except Refusal as refusal:
        return exact_product(request, trace, refusal.reason)


def exact_product(
    request: Request,
    trace: Trace | None = None,
    reason: str = "every pair is computed",
    deadline: Deadline | None = None,
) -> Answer:
    """The product of every pair, as exact as its type allows."""
    trace = trace or Trace()
    kernel = request.kernel
    columns, exponents = scaled_columns(request.x, request.keys.dtype)
    columns = request.summed(columns)
    trace.lap("prepare")
    kernel = kernel.checked(deadline.check) if deadline else kernel
    sums = kernel.product(columns, row_sums=request.report)
    y = request.copied(unscaled(sums.out, exponents, request.x))
    trace.lap("product")
    exponent = int(exponents.max()) if exponents.size else 0
    return Answer(y, exact_info(request, trace, reason, y, sums, exponent))


def _merged(request: Request, trace: Trace) -> Request:
    """The product of distinct points, where that is less work."""
    merged = request.merged()
    if merged is not request:
        trace.note(distinct_queries=len(merged.queries), distinct_keys=len(merged.keys))
        trace.lap("equal points")
    return merged


def _sampled(request: Request, trace: Trace) -> Answer:
    """The product, if sampling is predicted to pay and meets its error."""
    if request.tolerance.is_zero:
        raise Refusal("no error is allowed")
    if not request.function.factorises:
        raise Refusal(ONLY_GAUSSIAN)
    if not (request.worth_a_look or request.worth_a_survey):
        raise Refusal(TOO_SMALL)
    scaled = request.scaled
    trace.lap("prepare")
    length = 0.0
    if request.tolerance.rtol is not None and scaled.x_norm > 0:
        length = _length(request, scaled, trace)
    attempt = _Attempt(request, scaled, request.rng, Limit(), trace, Progress())
    result = attempt.within_tolerance(length)
    info = sampled_info(request, scaled, result, attempt.limit, trace)
    return Answer(request.copied(unscaled(result.y, scaled.exponent, request.x)), info)


def _length(request: Request, scaled: Scaled, trace: Trace) -> float:
    """Length of the product over that of x, from a few rows."""
    n_queries = request.n_queries
    n_rows = min(n_queries, _ROWS_FOR_LENGTH)
    some = request.some_rows(n_rows)
    of_rows = frobenius(scaled.kernel.at_queries(some).product(scaled.columns).out)
    trace.pairs += n_rows * len(request.keys)
    trace.lap("length")
    return of_rows / scaled.x_norm * math.sqrt(n_queries / n_rows)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """Looks for an answer within the tolerance."""

    request: Request
    scaled: Scaled
    rng: np.random.Generator
    limit: Limit
    trace: Trace
    progress: Progress

    def within_tolerance(self, length: float) -> Result:
        """The answer; with ``rtol`` from a first guess of the length of the product over |x|."""
        eps, rtol = self.request.tolerance
        if rtol is None:
            return self.within(eps)
        eps = _RELIED_UPON * rtol * length
        for _ in range(_TRIES):
            if not eps > 0:
                raise Refusal("the product may be zero")
            result = self.within(eps)
            # Now the length of the product is known as well as the product.
            tolerated = rtol * self.request.length(result.y) / self.scaled.x_norm / (1 + rtol)
            if math.sqrt(result.upper) <= tolerated * self.scaled.x_norm:
                return result
            eps = _AGAIN * tolerated
        raise Refusal("the product is shorter than was thought")

    def within(self, eps: float) -> Result:
        """The product with an error of at most eps |x|.

        A row of x longer than that is never left to chance: the values of its key could differ from
        those of a tile of keys on average. There are at most 1 / eps^2 of them. Nor are queries
        with many more equal ones than others, nor the few keys too far out for inner products.
        """
        near, far = self._within_reach()
        x_norm, kernel = near.x_norm, near.kernel
        if len(far) == 0:
            whole = near.problem(self.request, self.rng, min(eps, 1e9) * x_norm, self.limit)
            result = far_cells_left_out(whole, self.trace)
            if result is not None:
                return result
        lengths = np.linalg.norm(near.columns.astype(np.float64), axis=1)
        large = np.flatnonzero(lengths > eps * x_norm)
        rest = near.columns.copy()
        rest[large] = 0
        lengths[large] = 0
        left = frobenius(lengths)
        if left == 0:
            raise Refusal("x is zero, or has only entries larger than the error allowed")
        often, weights = self._often()
        apart = np.union1d(large, far)
        exact = len(kernel.queries) * len(apart) + len(often) * len(kernel.keys)
        if not self.limit.allows(_FOR_LARGE * exact):
            raise OutOfTime
        # No product is longer than this, so that no larger error is ever made.
        most = math.sqrt(self.request.pairs_asked)
        error = min(eps * x_norm / left, most) * frobenius(row_norms(rest))
        scaled = replace(near, columns=rest, row_weights=weights)
        problem = scaled.problem(self.request, self.rng, error, self.limit)
        answers = []
        try:
            answers.append(approximate(problem, self.trace, self.progress))
        finally:
            if self.progress.best is not None and self.progress.best not in answers:
                answers.append(self.progress.best)
            self._add_exact(apart, often, answers)
        if len(far):
            self.trace.note(form=FORMS[kernel.frame.differences], far_keys=len(far))
        return answers[0]

    def _within_reach(self) -> tuple[Scaled, Index]:
        """The product without far keys, and these; with a time limit there is one matrix for all.

        What is known when the time is over must hold for the matrix that the answer is made with.
        """
        most_far = 0.0 if self.limit.deadline else self.request.policy.choice.most_far
        return self.scaled.within_reach(most_far)

    def _often(self) -> tuple[Index, Float64 | None]:
        """Queries with very many equal ones, and how often the errors of all others count."""
        weights = self.scaled.row_weights
        if weights is None:
            return np.empty(0, np.int64), None
        often = weights > self.request.policy.choice.many_copies * weights.mean()
        return np.flatnonzero(often), np.where(often, 0.0, weights)

    def _add_exact(self, apart: Index, often: Index, answers: list[Result]) -> None:
        """The part of some keys, and the rows of queries with very many equal ones."""
        kernel, columns = self.scaled.kernel.checked(None), self.scaled.columns
        if len(apart) and answers:
            part = kernel.at_keys(apart).product(columns[apart]).out
            for answer in answers:
                answer.y[:] += part
            self.trace.pairs += len(kernel.queries) * len(apart)
        if len(often) and answers:
            rows = kernel.at_queries(often).product(columns).out
            for answer in answers:
                answer.y[often] = rows
            self.trace.pairs += len(often) * len(kernel.keys)


def _in_time(request: Request, trace: Trace) -> Answer:
    """The best product within a time: as without a limit, exact, or with what is known then."""
    scaled, limit = request.scaled, Limit(request.deadline)
    trace.lap("prepare")
    # Another stream: with enough time the draws are those without a limit.
    (own,) = request.rng.spawn(1)
    checks = probe(scaled.problem(request, own, 0.0, limit))
    trace.pairs += len(checks.rows) * len(request.keys)
    length = checks.length / (scaled.x_norm or 1.0)
    earlier = Limit(request.deadline.keeping(KEPT * request.deadline.max_seconds))
    earlier.rate = limit.rate
    progress = Progress()
    patient = replace(scaled, kernel=scaled.kernel.checked(earlier.deadline.check))
    attempt = _Attempt(request, patient, request.rng, earlier, trace, progress)
    try:
        return _patiently(attempt, length)
    except OutOfTime:
        limit.rate = earlier.rate
    eps, rtol = request.tolerance
    if rtol is not None:
        eps = _RELIED_UPON * rtol * length
    error = min(eps * scaled.x_norm, _LARGEST_ERROR)
    problem = scaled.problem(request, own, error, limit)
    result = answer_in_time(problem, checks, progress, trace)
    trace.lap("draw")
    info = sampled_info(request, scaled, result, limit, trace)
    y = request.copied(unscaled(result.y, scaled.exponent, request.x))
    return Answer(y, info, too_late=result.worst > problem.budget.squared_error)


def _patiently(attempt: _Attempt, length: float) -> Answer:
    """The answer as without a limit, sampled or exact; ``OutOfTime`` where that takes too long."""
    request, limit, trace = attempt.request, attempt.limit, attempt.trace
    in_time = limit.allows(request.n_pairs)
    try:
        if request.tolerance.is_zero:
            raise Refusal("no error is allowed")
        if in_time and not (request.worth_a_look or request.worth_a_survey):
            raise Refusal(TOO_SMALL)
        result = attempt.within_tolerance(length)
    except Refusal as refusal:
        if not (attempt.scaled.x_norm == 0 or limit.allows(request.n_pairs)):
            raise OutOfTime from None
        return exact_product(request, trace, refusal.reason, limit.deadline)
    info = sampled_info(request, attempt.scaled, result, limit, trace)
    y = request.copied(unscaled(result.y, attempt.scaled.exponent, request.x))
    return Answer(y, info)
