"""What the engine decided, and whether it is worth asking."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.loops.types import Array, Index

# Below this many multiply-adds the exact product takes less time than the pilot and the search.
_SMALLEST_WORK = 6e10


@dataclass(frozen=True, eq=False)
class Sample:
    """A product and its estimated error; squares are summed over the rows."""

    y: Array
    variance: float  # estimate of the mean squared error
    upper: float  # what the squared error stays below at the confidence asked for
    left_out: float  # part of the variance: missed pairs that were not drawn
    checked: float  # squared error measured on the pilot rows, scaled to all rows
    pairs: int
    n_mended: int  # rows computed exactly because their variance stood out
    exact_rows: Index  # pilot rows: computed exactly, chosen before anything was drawn


@dataclass
class Outcome:
    """What the engine decided; ``sample`` is None where exact is the better choice."""

    reason: str
    sample: Sample | None = None
    stopped: bool = False  # a limit of the user stopped it before the error was met
    pairs: int = 0
    numbers: dict[str, object] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    # What was known when the time was over, for the answer that must be given then.
    look: Any = None  # planner.Look
    search: Any = None  # near.Search
    best_effort: Sample | None = None


def worth_a_look(n_queries: int, n_keys: int, n_dims: int) -> bool:
    """Whether the exact product takes longer than finding out about the data."""
    return n_queries * n_keys * (n_dims + 24) >= _SMALLEST_WORK


class Limit:
    """Seconds that may pass, counted in pairs as soon as a rate of pairs is known."""

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self.rate = math.inf  # pairs a second

    def learn(self, pairs: int, seconds: float) -> None:
        """So many pairs took so long."""
        self.rate = pairs / max(seconds, 1e-9)

    def pairs_left(self) -> float:
        """Pairs that can still be computed; the smallest number of draws is always allowed."""
        return max(self.deadline.left() * self.rate, 1.0) if self.deadline else math.inf

    def allows(self, pairs: float) -> bool:
        """Whether there is time for so many."""
        return pairs <= self.pairs_left()

    def needs(self, pairs: float) -> None:
        """Raise :class:`OutOfTime` if what comes next is not expected to fit."""
        if not self.allows(pairs):
            raise OutOfTime


class Clock:
    """Adds the time since the last lap to the stage that has just ended."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now
