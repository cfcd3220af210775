"""Candidates for a product, what each is expected to cost, and the choice of the cheapest.

Everything is counted in pairs of the exact product, the unit in which a saving shows. The pilot
costs about one pair in a hundred; whatever it predicts to be dearer than the exact product is
computed exactly, so the worst case is exact plus the pilot and a few tilings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from approxkmv.engine.exact_rows import ExactRows
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.progress import Progress
from approxkmv.engine.result import Result
from approxkmv.engine.schemes.drawn_keys import draw_keys
from approxkmv.engine.schemes.few_coordinates import (
    make_reduction,
    make_surrogate,
    through_few_coordinates,
)
from approxkmv.engine.schemes.low_rank import LowRankPlan, plan_low_rank, through_low_rank
from approxkmv.engine.survey.survey import Survey, drawing_cost, draws_cost, make_survey
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.info import Considered
from approxkmv.loops.types import Array

TOO_SMALL = "the product is too small for sampling to pay"
TOO_DENSE = "the kernel is too dense: sampling would need almost every pair"
DEARER = "another one is cheaper"


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to the answer: its cost in pairs, and why it is not taken, if it is not."""

    name: str
    cost: float
    run: Callable[[ExactRows], Result]
    why_not: str = ""
    squared_error: float = 0.0  # predicted, on average

    def told(self, problem: Problem, outcome: str) -> Considered:
        """For the report."""
        share = math.sqrt(self.squared_error / problem.budget.squared_error)
        return Considered(self.name, self.cost / problem.n_pairs, share, outcome)


def approximate(problem: Problem, trace: Trace, progress: Progress) -> Result:
    """The cheapest answer within the error; ``Refusal`` where exact is the better choice.

    Where the time ends before the error is met, ``OutOfTime`` is raised, and ``progress`` has what
    was learnt for :func:`approxkmv.engine.schemes.in_time.answer_in_time`.
    """
    if problem.budget.squared_error == 0:
        raise Refusal("the product is exactly zero")
    low, at_once = _low_rank(problem, trace), problem.policy.low_rank.at_once * problem.n_pairs
    if low is not None and low.cost <= at_once:
        # Cheaper than most surveys and what follows them.
        try:
            result = through_low_rank(low, trace)
            trace.consider(_as_candidate(low, trace).told(problem, "taken"))
            return result
        except Refusal as refusal:
            trace.consider(_as_candidate(low, trace).told(problem, refusal.reason))
            low = None
    size = problem.n_queries, problem.n_keys, problem.n_dims
    if problem.cost.worth_a_look(*size) and not problem.cost.worth_a_survey(*size):
        raise Refusal(TOO_SMALL)
    survey = make_survey(problem, trace)
    progress.survey = survey
    found = [] if low is None else [_as_candidate(low, trace)]
    if not _hopeless(problem, survey):
        found = sorted(
            [*found, *candidates(problem, survey, trace, progress)],
            key=_order,
        )
    elif not found:
        trace.consider(_drawing_keys(problem, survey, trace, progress).told(problem, TOO_DENSE))
        raise Refusal(TOO_DENSE)
    trace.consider(*(one.told(problem, one.why_not or DEARER) for one in found))
    rows = ExactRows(problem, survey.pilot, _products(problem, survey, trace))
    reasons = []
    for candidate in found:
        try:
            if not candidate.why_not:
                result = candidate.run(rows)
                trace.consider(candidate.told(problem, "taken"))
                return result
            reasons.append(candidate.why_not)
        except Refusal as refusal:
            reasons.append(refusal.reason)
            trace.consider(candidate.told(problem, f"given up: {refusal.reason}"))
    raise Refusal(reasons[0])


def candidates(
    problem: Problem, survey: Survey, trace: Trace, progress: Progress
) -> list[Candidate]:
    """All ways that these points allow, the cheapest first, those that cannot pay last."""
    found = [
        _drawing_keys(problem, survey, trace, progress),
        *_few_coordinates(problem, survey, trace, progress),
    ]
    return sorted(found, key=_order)


def _order(candidate: Candidate) -> tuple[bool, float]:
    return bool(candidate.why_not), candidate.cost


def _low_rank(problem: Problem, trace: Trace) -> LowRankPlan | None:
    """The rank that is needed, if it is low; looked at before anything else, which costs more."""
    if not problem.cost.worth_a_look(problem.n_queries, problem.n_keys, problem.n_dims):
        return None
    try:
        return plan_low_rank(problem, trace)
    except Refusal:
        return None
    finally:
        trace.lap("rank")


def _as_candidate(plan: LowRankPlan, trace: Trace) -> Candidate:
    return Candidate(
        "low rank",
        plan.cost,
        lambda _: through_low_rank(plan, trace),
        squared_error=plan.squared_error,
    )


def _drawing_keys(problem: Problem, survey: Survey, trace: Trace, progress: Progress) -> Candidate:
    def run(rows: ExactRows) -> Result:
        return draw_keys(problem, survey, rows.products, trace, progress)

    cost = drawing_cost(problem, survey)
    error = float(survey.best.rates.variance.sum())
    candidate = Candidate("drawing keys", cost, run, squared_error=error)
    if too_dense(problem, survey):
        return replace(candidate, why_not=TOO_DENSE)
    return candidate


def _few_coordinates(
    problem: Problem, survey: Survey, trace: Trace, progress: Progress
) -> list[Candidate]:
    """One candidate, or none where the points have too few coordinates to leave any out."""
    limit = problem.budget.limit
    if not limit.allows(problem.cost.surrogate * problem.n_queries):
        return []
    surrogate = make_surrogate(problem.kernel, problem.rng)
    if surrogate is None:
        return []
    seed = int(problem.rng.integers(2**63))
    reduction = make_reduction(problem, surrogate, survey.pilot, seed)
    trace.lap("few coordinates")
    if reduction is None:
        return []

    def run(rows: ExactRows) -> Result:
        return through_few_coordinates(problem, reduction, rows, trace, progress)

    trace.note(predicted_cost_of_few_coordinates=reduction.cost / problem.n_pairs)
    error = reduction.aim * problem.budget.squared_error
    candidate = Candidate("few coordinates", reduction.cost, run, squared_error=error)
    if reduction.cost > problem.policy.choice.few_coordinates * problem.n_pairs or not limit.allows(
        reduction.cost
    ):
        return [replace(candidate, why_not=TOO_DENSE)]
    return [candidate]


def too_dense(problem: Problem, survey: Survey) -> bool:
    """Whether drawing keys cannot pay; with too short a time for the exact product it must."""
    draws, n_pairs = draws_cost(problem, survey), problem.n_pairs
    most = problem.policy.choice.too_many * n_pairs
    return draws > most and problem.budget.limit.allows(n_pairs)


def _hopeless(problem: Problem, survey: Survey) -> bool:
    """Whether drawing keys would need nearly every pair: nothing else helps either."""
    share = survey.best.rates.pairs / problem.n_pairs
    return share > problem.policy.choice.nearly_all and too_dense(problem, survey)


def _products(problem: Problem, survey: Survey, trace: Trace) -> Array:
    """Exact products of the pilot rows."""
    pilot, x = survey.pilot, problem.x
    if pilot.products is not None:
        return pilot.products[:, None].astype(x.dtype)
    products = problem.kernel.at_queries(pilot.rows).product(x).out
    trace.pairs += len(products) * problem.n_keys
    trace.lap("pilot")
    return products


class Prediction(NamedTuple):
    """What each way to a product is expected to cost, in exact products, with finding out.

    ``few_coordinates`` is None where the points have too few to leave any out, ``low_rank`` where
    the rank needed is too high. A low rank that is cheap is taken before others are looked at.
    """

    exact: float
    drawing_keys: float
    few_coordinates: float | None
    chosen: str  # "exact", "drawing keys", "few coordinates" or "low rank"
    cost: float  # of what is chosen
    considered: tuple[Considered, ...] = ()
    low_rank: float | None = None

    @property
    def speed_up(self) -> float:
        """Over the exact product without a survey."""
        return 1 / self.cost


def predicted(problem: Problem, tolerances: Iterable[float]) -> dict[float, Prediction]:
    """What :func:`approximate` would do for each ``eps``: its survey and candidates, no product.

    The error of the problem itself is that of ``eps=1``.
    """
    square = problem.budget.squared_error
    found = {}
    for eps in tolerances:
        # No product is longer than this, so that no larger error is ever made.
        most = min(eps, math.sqrt(problem.n_pairs))
        budget = Budget(most**2 * square, problem.budget.delta)
        found[eps] = _predicted(replace(problem, budget=budget))
    return found


def _predicted(problem: Problem) -> Prediction:
    n_pairs, trace = problem.n_pairs, Trace()
    if not problem.budget.squared_error > 0:
        return Prediction(1.0, 1.0, None, "exact", 1.0)
    plan = _low_rank(problem, trace)
    low = None if plan is None else plan.cost / n_pairs
    if plan is not None and low is not None and low <= problem.policy.low_rank.at_once:
        told = _told(problem, [_as_candidate(plan, trace)])
        return Prediction(1.0, 1.0, None, "low rank", low, told, low)
    try:
        survey = make_survey(problem, trace)
    except Refusal:
        return Prediction(1.0, 1.0, None, "exact", 1.0)
    surveyed = problem.cost.pilot_pair * len(survey.pilot.rows) * problem.n_keys
    found = [] if plan is None else [_as_candidate(plan, trace)]
    if not _hopeless(problem, survey):
        found += candidates(problem, survey, trace, Progress())
    found.sort(key=_order)
    few: float | None = None
    if "few coordinates" in trace.seconds:
        surveyed += problem.cost.surrogate * problem.n_queries
        few = min((c.cost for c in found if c.name == "few coordinates"), default=math.inf)
    chosen, cost = "exact", float(n_pairs)
    if found and not found[0].why_not:
        chosen, cost = found[0].name, found[0].cost
    return Prediction(
        1.0,
        (surveyed + drawing_cost(problem, survey)) / n_pairs,
        None if few is None else (surveyed + few) / n_pairs,
        chosen,
        (surveyed + cost) / n_pairs,
        _told(problem, found or [_drawing_keys(problem, survey, trace, Progress())]),
        low,
    )


def _told(problem: Problem, found: list[Candidate]) -> tuple[Considered, ...]:
    """The first one that can pay is taken."""
    outcomes = [one.why_not or DEARER for one in found]
    if not found[0].why_not:
        outcomes[0] = "taken"
    return tuple(one.told(problem, said) for one, said in zip(found, outcomes, strict=True))
