"""What every stage did: seconds, pairs and numbers, written down in one place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from approxkmv.info import Considered


class Refusal(Exception):  # noqa: N818 (nothing went wrong: another way is better)
    """A way to the answer that cannot pay, and why: a clause for the user's report."""

    @property
    def reason(self) -> str:
        """The clause."""
        return str(self.args[0])


@dataclass(eq=False)
class Trace:
    """The record of one computation, tries that came to nothing included.

    ``lap`` books the time since the last one under the stage that has just ended.
    """

    now: Callable[[], float] = time.perf_counter
    pairs: int = 0  # kernel evaluations, in pairs of full dimension
    numbers: dict[str, object] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    considered: dict[str, Considered] = field(default_factory=dict)  # by name
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.now()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap."""
        now = self.now()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now

    def note(self, **numbers: object) -> None:
        """Numbers for the report; later ones replace earlier ones of the same name."""
        self.numbers |= numbers

    def consider(self, *candidates: Considered) -> None:
        """Ways to the answer, and what became of them; the last word on each is kept."""
        for one in candidates:
            self.considered[one.name] = one

    def add(self, other: Trace) -> None:
        """What another computation for the same answer did."""
        self.pairs += other.pairs
        self.note(**other.numbers)
        self.consider(*other.considered.values())
        for stage, seconds in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
