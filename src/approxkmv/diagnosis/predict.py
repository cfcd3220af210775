"""What the planner would do: its own predictions from a few rows, before any product.

Here x is all ones. The planner looks at the data again, with the vector at hand, before it decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.engine.planner import Prediction, predicted
from approxkmv.engine.problem import Limit
from approxkmv.engine.report import considered
from approxkmv.engine.request import Request, Tolerance
from approxkmv.engine.trace import Refusal
from approxkmv.info import Considered, Plan
from approxkmv.loops.types import Array

# Seconds for each multiply-add of the matrix that a prediction takes at least: what has no chance
# to be ready is not begun.
_POSSIBLY = 5e-13
TOLERANCES = (0.3, 0.1, 0.03, 0.01)


def predict(
    queries: Array,
    keys: Array,
    bandwidth: float,
    eps: float,
    rng: np.random.Generator,
    n_threads: int | None = None,
    deadline: Deadline | None = None,
) -> tuple[Plan, Mapping[float, float]]:
    """Plan for ``eps``, and speed-ups over the exact product at the usual tolerances.

    Raises ``OutOfTime`` when the time is over.
    """
    tolerances = sorted({*TOLERANCES, eps} - {0.0}, reverse=True)
    ones = np.ones((len(keys), 1), keys.dtype)
    request = Request(
        queries, keys, ones, bandwidth, Tolerance(eps), 0.05, rng, n_threads, deadline or Deadline()
    )
    request = request.merged()
    told: tuple[Considered, ...] = ()
    try:
        found = _predictions(request, tolerances)
    except Refusal as refusal:
        speed_ups = dict.fromkeys(tolerances, 1.0)
        numbers: dict[str, object] = {}
        method, reason = "exact", refusal.reason
    else:
        speed_ups = {e: one.speed_up for e, one in found.items()}
        method, reason, numbers = _choice(found, eps)
        ways = {one.name: one for one in found[eps].considered} if eps > 0 else {}
        told = considered(ways, "taken" if method == "exact" else "not needed")
    numbers |= {f"predicted speed-up at eps {e:g}": round(s, 2) for e, s in speed_ups.items()}
    return Plan(method, f"prediction: {reason}", numbers, told), speed_ups


def _predictions(request: Request, tolerances: list[float]) -> dict[float, Prediction]:
    """What each way would cost; ``Refusal`` where only the exact product comes into question."""
    if not (request.worth_a_look or request.worth_a_survey):
        raise Refusal("the matrix is too small for sampling to pay")
    scaled, _ = request.scaled.within_reach(request.policy.choice.most_far)
    deadline = request.deadline
    width = request.keys.shape[1] + request.cost.pair_overhead
    if deadline and deadline.left() < _POSSIBLY * request.n_pairs * width:
        raise OutOfTime
    if deadline:
        scaled = replace(scaled, kernel=scaled.kernel.checked(deadline.check))
    return predicted(scaled.problem(request, request.rng, scaled.x_norm, Limit()), tolerances)


def _choice(found: Mapping[float, Prediction], eps: float) -> tuple[str, str, dict[str, object]]:
    """Method, reason and numbers for one tolerance."""
    if not eps > 0:
        return "exact", "no error is allowed", {}
    at_eps = found[eps]
    numbers: dict[str, object] = {"predicted_cost_of_drawing_keys": at_eps.drawing_keys}
    if at_eps.few_coordinates is not None:
        numbers["predicted_cost_of_few_coordinates"] = at_eps.few_coordinates
    if at_eps.low_rank is not None:
        numbers["predicted_cost_of_low_rank"] = at_eps.low_rank
    if at_eps.chosen == "exact":
        return "exact", "no sampled product is expected to be faster", numbers
    reason = f"by {at_eps.chosen}, expected to take {at_eps.cost:.3g} of the exact time"
    return "sampled", reason, numbers
