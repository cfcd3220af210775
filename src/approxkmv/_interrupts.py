"""Ctrl-C while modules are imported.

An import that is cut short leaves modules behind that the next import takes for whole ones: SciPy's
then fail with a NameError for the rest of the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, then have the effect that it always has.

    Signals reach the main thread only, so in others there is nothing to do.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def leave_while_starting() -> None:
    """Let Ctrl-C end the process in one line, if the process is the command ``approxkmv``.

    Called before NumPy is imported. As a KeyboardInterrupt would come up in other packages' code,
    which prints it, swallows it or turns it into an ImportError, it is not raised.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def started() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ended() -> None:
    """Let Ctrl-C do nothing more while the command's process closes down."""
    if _is_command() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _is_command() -> bool:
    """Whether this process runs the script ``approxkmv`` or ``python -m approxkmv``."""
    program, *arguments = getattr(sys, "argv", None) or [""]
    interpreter = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    return os.path.basename(program) == "approxkmv" or interpreter[-2:] == ["-m", "approxkmv"]


def _leave(number: int, frame: FrameType | None) -> None:
    # Nothing is written yet, so nothing is lost by not unwinding.
    os.write(2, b"approxkmv: interrupted\n")
    os._exit(INTERRUPTED)
