"""One process that works through the cases of a part: ``python -m tests.campaign.worker``."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from typing import Any

from .records import Folder, Record, generator


def module_of(part: str) -> Any:
    """The module of a part: ``case(rng, index)`` and ``run(case)``."""
    return importlib.import_module(f".{part}", __package__)


def finding(what: str, says: str, **more: Any) -> Record:
    """A broken promise, or what stands for one until somebody has looked at it."""
    return {"what": what, "says": says, **more}


def outcome(part: str, case: Record) -> Record:
    """What came of a case; an exception that gets here is a finding."""
    start = time.perf_counter()
    try:
        result = module_of(part).run(case)
    except BaseException as error:  # also an interrupt or MemoryError that went astray
        lines = traceback.format_exc().splitlines()
        says = f"{type(error).__name__}: {error}"
        result = {"count": 1, "findings": [finding("exception", says, traceback=lines[-12:])]}
    return {"case": case, **result, "seconds": time.perf_counter() - start}


def work(part: str, seed: int, start: int, seconds: float, folder: Folder) -> None:
    """Cases from ``start`` on until the time is over, or there are no more."""
    end = time.monotonic() + seconds
    parent, index = os.getppid(), start
    while time.monotonic() < end and os.getppid() == parent:
        case = module_of(part).case(generator(seed, part, index), index)
        if case is None:
            break
        folder.say_now(part, index, case)
        folder.add(part, {"part": part, "seed": seed, "index": index, **outcome(part, case)})
        index += 1
    folder.forget_now(part)


def end_with_parent() -> None:
    """Be killed when the supervisor is: the next one begins where this one stopped (Linux)."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    # A shell starts background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    name, seed, start, seconds, path = sys.argv[1:]
    work(name, int(seed), int(start), float(seconds), Folder(path))
