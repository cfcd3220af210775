"""Candidates for a head of attention: the mean of its values, drawn keys; else it is exact.

The cheapest comes first, and each finds out early whether it will do. What a head is refused for is
said in the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from approxkmv.engine.head import HeadProblem
from approxkmv.engine.result import Result
from approxkmv.engine.schemes.attention_keys import draw_keys_of_head
from approxkmv.engine.schemes.mean_of_values import take_mean
from approxkmv.engine.trace import Refusal, Trace

TOO_SMALL = "the head is too small for sampling to pay"
TOO_SMALL_TO_DRAW = "the head is too small for drawing keys to pay"


class HeadCandidate(NamedTuple):
    """One way to the output, and why it is not tried, if it is not."""

    run: Callable[[HeadProblem, Trace], Result]
    why_not: str = ""


def approximate_head(problem: HeadProblem, trace: Trace) -> Result:
    """The cheapest output within the error; ``Refusal`` where exact is the better choice."""
    reasons = []
    for candidate in head_candidates(problem):
        try:
            if not candidate.why_not:
                return candidate.run(problem, trace)
            reasons.append(candidate.why_not)
        except Refusal as refusal:
            reasons.append(refusal.reason)
    raise Refusal(", and ".join(reasons))


def head_candidates(problem: HeadProblem) -> list[HeadCandidate]:
    """All ways that this head allows, the cheapest first."""
    head, cost = problem.head, problem.cost
    if not cost.worth_a_survey_of_head(head.n_pairs, head.is_causal):
        return [HeadCandidate(take_mean, TOO_SMALL)]
    drawing = HeadCandidate(draw_keys_of_head)
    if not cost.worth_drawing_for_head(head.n_pairs, head.is_causal):
        drawing = HeadCandidate(draw_keys_of_head, TOO_SMALL_TO_DRAW)
    # With a causal mask each row has a mean of its own; values that are all equal are the output.
    if head.is_causal and head.value_spread.any():
        return [drawing]
    return [HeadCandidate(take_mean), drawing]
