"""The timing helper: order of runs, what is timed, and the arithmetic of ratios."""

from __future__ import annotations

import itertools

import pytest

from approxkmv.experiments.timing import Spread, Timing, interleaved, ratio


class FakeClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_runs_are_interleaved_after_one_untimed_round() -> None:
    """Every round runs each contestant once; the starting one rotates; the first round is free."""
    calls: list[str] = []
    interleaved({name: (lambda name=name: calls.append(name)) for name in "abc"}, 4)  # type: ignore[misc]
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert rounds == ["abc", "abc", "bca", "cab", "abc"]


def test_without_a_warm_up_the_first_round_is_timed() -> None:
    """Two rounds, two times, nothing before them."""
    calls: list[str] = []
    run = {name: (lambda name=name: calls.append(name)) for name in "ab"}  # type: ignore[misc]
    timings = interleaved(run, 2, warm_up=False)
    assert "".join(calls) == "abba"
    assert [len(timing.seconds) for timing in timings.values()] == [2, 2]


def test_only_the_contestant_is_timed() -> None:
    """Times are those of the clock around each call, without what happens after each."""
    clock = FakeClock()
    durations = {"a": itertools.count(1), "b": itertools.count(10)}

    def run(name: str) -> str:
        clock.now += next(durations[name])
        return f"{name} at {clock.now}"

    def after_each() -> None:
        clock.now += 1000

    timings = interleaved(
        {"a": lambda: run("a"), "b": lambda: run("b")}, 3, clock=clock, after_each=after_each
    )
    assert list(timings) == ["a", "b"]
    assert timings["a"].seconds == (2, 3, 4)
    assert timings["b"].seconds == (11, 12, 13)
    assert timings["a"].median == 3
    assert timings["a"].result.startswith("a at ")


def test_results_are_the_last_ones() -> None:
    """Each contestant's last return value is kept, to be checked."""
    counter = itertools.count()
    timings = interleaved({"a": lambda: next(counter)}, 2)
    assert timings["a"].result == 2


def test_ratio_is_taken_repetition_by_repetition() -> None:
    """A machine that halves its speed changes no ratio, though the times themselves spread by 2."""
    slow, fast = Timing((4.0, 8.0, 4.4), None), Timing((1.0, 2.0, 1.0), None)
    assert ratio(slow, fast) == Spread(4.0, 4.0, 4.4)
    assert str(ratio(slow, fast)) == "4.00 (4.00..4.40)"
    with pytest.raises(ValueError, match="shorter"):
        ratio(slow, Timing((1.0, 2.0), None))
