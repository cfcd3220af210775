"""A progress bar for a terminal."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

_WIDTH = 30


class Progress:
    """Show on standard error how far some work is, once it has taken two seconds.

    Nothing is shown where standard error is not a terminal. Without a total only the time spent is
    shown. A thread of its own redraws, so the work may be one long call.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        stream: TextIO | None = None,
        patience: float = 2.0,
    ) -> None:
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._patience = patience
        self._done = 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._redraw, daemon=True)

    def advance(self, amount: int = 1) -> None:
        """Say that another `amount` of the total is done."""
        self._done += amount

    @property
    def done(self) -> int:
        """How much of the total is done."""
        return self._done

    def reach(self, done: int, total: int) -> None:
        """Say how much is done, and of how much."""
        self._done, self._total = done, total

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()

    def _redraw(self) -> None:
        if self._finished.wait(self._patience):
            return
        while True:
            self._stream.write(f"\r{self._line()}\x1b[K")
            self._stream.flush()
            if self._finished.wait(0.1):
                break
        self._stream.write("\r\x1b[K")
        self._stream.flush()

    def _line(self) -> str:
        spent = time.monotonic() - self._start
        if self._total is None:
            return f"{self._label} {spent:.0f} s"
        share = min(self._done / max(self._total, 1), 1.0)
        bar = ("#" * round(_WIDTH * share)).ljust(_WIDTH, ".")
        left = f", {spent / share - spent:.0f} s left" if share > 0 else ""
        return f"{self._label} [{bar}] {share:4.0%}{left}"
