"""Properties that are computed once, without a lock."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from approxkmv._lazy import lazy_property


@dataclass(frozen=True)
class Square:
    side: float
    asked: list[float] = field(default_factory=list)

    @lazy_property
    def area(self) -> float:
        """Its area."""
        self.asked.append(self.side)
        return self.side**2


def test_computed_once_for_each_object() -> None:
    small, large = Square(2.0), Square(3.0)
    assert [small.area, small.area, large.area, large.area] == [4.0, 4.0, 9.0, 9.0]
    assert (small.asked, large.asked) == ([2.0], [3.0])
    assert Square.area.__doc__ == "Its area."


def test_one_object_does_not_wait_for_another() -> None:
    """A process that is forked while a lock is held would wait for it for ever."""
    inside, done = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, *, waits: bool) -> None:
            self.waits = waits

        @lazy_property
        def value(self) -> int:
            if self.waits:
                inside.set()
                assert done.wait(20)
            return 1

    other = threading.Thread(target=lambda: Slow(waits=True).value)
    other.start()
    assert inside.wait(20)
    assert Slow(waits=False).value == 1
    done.set()
    other.join()
