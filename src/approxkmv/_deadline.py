"""A point in time handed down as an argument: what runs looks at it, and stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

# What users are promised: at most this many times ``max_seconds``, and this many seconds.
OVERRUN, MARGIN = 1.3, 0.1
# A limit of thirty years is none; larger numbers of seconds would overflow when multiplied.
_NO_LIMIT = 1e9
# Work that takes a quarter of that margin at a cautious guess of multiply-adds a second (two cores
# with AVX2 make 2e10 to 6e10) is done whatever the limit: nothing else would be faster.
_AT_ONCE = 0.25 * MARGIN * 1e10


class OutOfTime(Exception):  # noqa: N818 (as StopIteration: nothing went wrong)
    """The deadline has passed, or what comes next would not fit before it."""


@dataclass(frozen=True)
class Deadline:
    """When to stop; ``now`` is the clock."""

    max_seconds: float = math.inf
    now: Callable[[], float] = time.perf_counter
    start: float = field(default=math.nan)
    kept: float = 0.0  # seconds at the end that are kept for other work

    def __post_init__(self) -> None:
        if math.isnan(self.start):
            object.__setattr__(self, "start", self.now())

    def __bool__(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_seconds < _NO_LIMIT

    def matters(self, work: float) -> bool:
        """Whether this many multiply-adds may take too long."""
        return bool(self) and work > _AT_ONCE

    def left(self) -> float:
        """Seconds left; negative when the time is over."""
        if not self:
            return math.inf
        return self.start + self.max_seconds - self.kept - self.now()

    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self.start

    def keeping(self, seconds: float) -> Deadline:
        """The same with an earlier end, which leaves time for what follows."""
        return replace(self, kept=self.kept + seconds) if self else self

    def part(self, share: float) -> Deadline:
        """A deadline that leaves all but this share of the time that is left."""
        return self.keeping((1 - share) * max(self.left(), 0.0)) if self else self

    def check(self) -> None:
        """Raise :class:`OutOfTime` when the time is over."""
        if self.left() <= 0:
            raise OutOfTime

    @property
    def polled(self) -> Callable[[], None] | None:
        """What compiled loops call now and then; None without a limit."""
        return self.check if self else None

    @property
    def how_late(self) -> str:
        """The sentence of the warning where more time has passed than is promised."""
        return (
            f"The answer took {self.spent():.2g} s, longer than max_seconds="
            f"{self.max_seconds:g} allows."
        )

    @property
    def broken(self) -> bool:
        """Whether more time has passed than is promised."""
        return bool(self) and self.spent() > OVERRUN * self.max_seconds + MARGIN
