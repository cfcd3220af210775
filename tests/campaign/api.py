"""Every public function with arguments of every kind, by the million.

A call must refuse what cannot be meant, with a message that names the argument, or give an answer
that differs from the definition in double precision by rounding only. It must not modify its
inputs, not warn but with the library's own warnings, and give the same bits again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import approxkmv as akmv

from .inputs import Arg
from .records import Record
from .worker import finding

Rng = np.random.Generator
CALLS = 400
_ALLOWED = (ValueError, TypeError, ImportError)
_OURS = (akmv.AccuracyWarning, akmv.AssumptionWarning)
_MOST_FINDINGS = 12


class Call(NamedTuple):
    """A call that can be made, what it is made with, and how its answer is judged."""

    function: str
    make: Callable[[], Any]
    args: dict[str, Arg]
    check: Callable[[Any], str | None]
    repeat: bool = True  # the same bits again
    names: bool = True  # messages name an argument; those of other packages need not
    more_bad: Sequence[str] = ()  # arguments that do not fit each other
    doubtful: bool = False  # may be refused


def case(rng: Rng, index: int) -> Record:
    """A batch of calls."""
    return {"batch": int(rng.integers(2**31)), "calls": CALLS}


def run(case: Record) -> Record:
    """All calls of a batch, or one of them."""
    from .calls import draw

    findings: list[Record] = []
    tally: Counter[str] = Counter()
    numbers = [case["call"]] if "call" in case else range(case["calls"])
    for number in numbers:
        rng = np.random.default_rng([case["batch"], number])
        call = draw(rng)
        result = "?"
        try:
            result, found = attempt(call, twice=rng.random() < 0.1)
        except Exception as error:
            found = finding("campaign", f"{call.function}: {type(error).__name__}: {error}")
        tally[f"{call.function} {result}"] += 1
        if found is not None:
            shown = {name: arg.shown or repr(arg.value)[:60] for name, arg in call.args.items()}
            findings.append({**found, "call": number, "function": call.function, "with": shown})
    return {
        "count": len(numbers),
        "n_findings": len(findings),
        "findings": findings[:_MOST_FINDINGS],
        "tally": dict(tally),
    }


def attempt(call: Call, twice: bool = False) -> tuple[str, Record | None]:
    """Make the call: "answered" or "refused", and what is wrong with that."""
    before = [
        (name, a.base, a.base.tobytes()) for name, a in call.args.items() if a.base is not None
    ]
    bad = [name for name, arg in call.args.items() if arg.bad] + list(call.more_bad)
    doubtful = call.doubtful or any(arg.doubtful for arg in call.args.values())
    found = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            answer = call.make()
            result = "answered"
        except _ALLOWED as error:
            result = "refused"
            text = str(error)
            if not bad and not doubtful:
                found = finding("refused", f"{call.function}: {type(error).__name__}: {text}")
            elif call.names and not any(name in text for name in call.args):
                found = finding("message", f"{call.function}: {type(error).__name__}: {text}")
        except Exception as error:
            result = "failed"
            found = finding("error", f"{call.function}: {type(error).__name__}: {error}")
    if result == "answered":
        if bad:
            found = finding("accepted", f"{call.function}: bad {', '.join(bad)} accepted")
        else:
            says = call.check(answer)
            if says is not None:
                found = finding("answer", f"{call.function}: {says}")
            elif twice and call.repeat and not _same(call, answer):
                found = finding("bits", f"{call.function}: other bits the second time")
    if found is None:
        found = _side_effects(call.function, before, warned)
    return result, found


def _same(call: Call, answer: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = call.make()
    first, second = (a if isinstance(a, list | tuple) else [a] for a in (answer, again))
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(first, second, strict=True)
        if isinstance(a, np.ndarray)
    )


def _side_effects(function: str, before: list[Any], warned: list[Any]) -> Record | None:
    for name, base, content in before:
        if base.tobytes() != content:
            return finding("modified", f"{function}: {name} was modified")
    for one in warned:
        # What NumPy says of a masked or matrix argument, and SciPy of its own, is theirs.
        if not issubclass(one.category, (*_OURS, PendingDeprecationWarning)):
            return finding("warning", f"{function}: {one.category.__name__}: {one.message}")
    return None
