"""What the planner would do: its own predictions from a few rows, before any product.

Here x is all ones. The planner looks at the data again, with the vector at hand, before it decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.engine.planner import predicted
from approxkmv.engine.result import worth_a_look
from approxkmv.info import Plan
from approxkmv.kernel.frame import usual_units
from approxkmv.kernel.matrix import prepare
from approxkmv.loops.compiled import Compiled
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
    numbers: dict[str, object] = {}
    units = usual_units(queries, keys, bandwidth)
    if not worth_a_look(len(queries), len(keys), keys.shape[1]):
        speed_ups = dict.fromkeys(tolerances, 1.0)
        method, reason = "exact", "so small that computing every pair is the fastest"
    elif units is None:
        speed_ups = dict.fromkeys(tolerances, 1.0)
        method, reason = "exact", "the points are too many bandwidths apart"
    else:
        kernel, bandwidth = prepare(*units, backend=Compiled(n_threads)), units[2]
        if deadline:
            if deadline.left() < _POSSIBLY * len(queries) * len(keys) * (keys.shape[1] + 24):
                raise OutOfTime
            kernel = kernel.checked(deadline.check)
        found = predicted(kernel, bandwidth, np.ones((len(keys), 1), keys.dtype), tolerances, rng)
        speed_ups = {e: one.speed_up for e, one in found.items()}
        method, reason = "exact", "no error is allowed"
        if eps > 0:
            at_eps = found[eps]
            method = "exact" if at_eps.chosen == "exact" else "sampled"
            reason = "no sampled product is expected to be faster"
            if method == "sampled":
                reason = f"by {at_eps.chosen}, expected to take {at_eps.cost:.3g} of the exact time"
            numbers["predicted_cost_of_drawing_keys"] = at_eps.drawing_keys
            if at_eps.few_coordinates is not None:
                numbers["predicted_cost_of_few_coordinates"] = at_eps.few_coordinates
    numbers |= {f"predicted speed-up at eps {e:g}": round(s, 2) for e, s in speed_ups.items()}
    return Plan(method, f"prediction: {reason}", numbers), speed_ups
