"""Fair timing: interleaved runs, every time kept, ratios with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """All times of one contestant, in the order of the repetitions, and its last result."""

    seconds: tuple[float, ...]
    result: Any

    @property
    def median(self) -> float:
        """Median time in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some numbers."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    repetitions: int = 5,
    *,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    after_each: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time several callables against each other: one run of each in turn, `repetitions` times.

    A change of the machine's speed then meets all of them alike. Each runs once untimed first
    (unless ``warm_up`` is False: for what has been run before), and each repetition starts with
    another one, so that none always follows the same.

    Parameters
    ----------
    contestants : mapping of str to callable
        What to time; called without arguments.
    repetitions : int
        Timed runs of each.
    warm_up : bool
        Whether an untimed round comes first.
    clock : callable
        Where the time comes from.
    after_each : callable
        Called after every run, untimed ones too; to move a progress bar.

    Returns
    -------
    dict of str to Timing
        In the order of `contestants`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    results: dict[str, Any] = {}
    names = list(contestants)
    for repetition in range(-1 if warm_up else 0, repetitions):
        first = max(repetition, 0) % len(names)
        for name in names[first:] + names[:first]:
            results[name] = None  # frees the last result before the next is made
            start = clock()
            results[name] = contestants[name]()
            spent = clock() - start
            if repetition >= 0:
                seconds[name].append(spent)
            after_each()
    return {name: Timing(tuple(seconds[name]), results[name]) for name in contestants}


def ratio(slow: Timing, fast: Timing) -> Spread:
    """How many times longer `slow` took than `fast`, repetition by repetition."""
    ratios = [a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)]
    return Spread(statistics.median(ratios), min(ratios), max(ratios))
