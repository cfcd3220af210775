"""Ctrl-C at a random moment of every long call, and of the commands.

A call ends with KeyboardInterrupt or with its answer; then the library gives the same bits as
before and has no thread more. A command ends with 130 in one line, and leaves no part of a file.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .long_calls import LONG, digest, n_threads, quietly
from .records import Record
from .worker import finding

Rng = np.random.Generator
_TO_END = 5.0  # seconds in which a thread that was told to end must have ended
_AGAIN = 4  # one interrupted call in so many is repeated in full
COMMANDS = ("matvec", "kde", "attention", "diagnose", "spectrum", "demo", "info")


def case(rng: Rng, index: int) -> Record:
    """Draw a call or a command, and the moment."""
    if rng.random() < 0.2:
        # The demo takes ten times as long as the others.
        command = str(rng.choice(COMMANDS, p=[0.2, 0.2, 0.15, 0.15, 0.15, 0.03, 0.12]))
        return {"command": command, "share": float(rng.uniform(0, 1.05))}
    kind = str(rng.choice(list(LONG)))
    # A stage of a product by its place, so that short stages are met as often as long ones.
    stage = float(rng.random()) if kind.startswith("matvec") and rng.random() < 0.7 else None
    return {"kind": kind, "share": float(rng.uniform(0, 1.05)), "stage": stage, "size": 0.7}


def run(case: Record) -> Record:
    if "command" in case:
        return _command(case)
    call, seconds, stages, wanted = _prepared(case["kind"], case["size"])
    delay = case["share"] * seconds
    name = "anywhere"
    if case["stage"] is not None and stages:
        name, (begin, end) = list(stages.items())[int(case["stage"] * len(stages))]
        delay = begin + min(case["share"], 1.0) * (end - begin)
    before = n_threads()
    result, latency, error = interrupted(call, delay)
    findings = []
    place = f"{case['kind']}, {name}, after {delay:.3g} s"
    if error is not None:
        cause = "" if error.__cause__ is None else f" from {error.__cause__!r}"
        findings.append(finding("interrupt", f"{place}: {type(error).__name__}: {error}{cause}"))
    end = time.monotonic() + _TO_END
    while n_threads() > before and time.monotonic() < end:
        time.sleep(0.05)  # a thread that was told to end has not ended yet
    if n_threads() > before:
        findings.append(finding("threads", f"{place}: {before} threads became {n_threads()}"))
    small, expected = _small()
    if digest(small()) != expected:
        findings.append(finding("afterwards", f"{place}: a small product has other bits"))
    if int(1e6 * case["share"]) % _AGAIN == 0 and digest(quietly(call)) != wanted:
        findings.append(finding("afterwards", f"{place}: the same call has other bits"))
    return {
        "count": 1,
        "findings": findings,
        "latency": latency,
        "tally": {result: 1, **({"later than 0.2 s": 1} if (latency or 0) > 0.2 else {})},
    }


def interrupted(
    call: Callable[[], Any], delay: float
) -> tuple[str, float | None, BaseException | None]:
    """What became of the call, seconds from the signal to its end, and an error that is none."""
    armed, sent = [True], [0.0]

    def handler(*_: object) -> None:
        if armed[0]:
            raise KeyboardInterrupt

    def send() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, handler)
    timer = threading.Timer(delay, send)
    result, error = "finished", None
    try:
        timer.start()
        quietly(call)
        armed[0] = False
    except KeyboardInterrupt:
        result = "interrupted"
    except BaseException as unexpected:
        result, error = "failed", unexpected
    end = time.monotonic()
    armed[0] = False
    timer.cancel()
    timer.join()
    time.sleep(0.001)  # a signal that came late is handled now, and does nothing
    signal.signal(signal.SIGINT, previous)
    return result, end - sent[0] if result == "interrupted" else None, error


@functools.cache
def _prepared(
    kind: str, size: float
) -> tuple[Callable[[], Any], float, dict[str, tuple[float, float]], bytes]:
    """The call, its seconds, when its stages begin and end, and its bits."""
    call = LONG[kind](size)
    quietly(call)  # imports what it needs: an interrupt in the middle of that is Python's affair
    start = time.perf_counter()
    answer = quietly(call)
    seconds = time.perf_counter() - start
    stages, begin = {}, 0.0
    if isinstance(answer, tuple):
        for name, spent in answer[1].seconds.items():
            stages[name] = (begin, begin + spent)
            begin += spent
    return call, seconds, stages, digest(answer)


@functools.cache
def _small() -> tuple[Callable[[], Any], bytes]:
    call = LONG["matvec one column exact"](0.02)
    return call, digest(call())


def arguments(command: str, folder: Path) -> list[str]:
    """A command that takes a second or two, its inputs in the folder and its output there."""
    rng = np.random.default_rng(0)
    points, x = folder / "points.npy", folder / "x.npy"
    n = {"kde": 12_000, "spectrum": 5_000, "diagnose": 4_000, "attention": 5_000}.get(
        command, 25_000
    )
    if command not in ("demo", "info"):
        np.save(points, rng.standard_normal((n, 32)).astype(np.float32))
        np.save(x, np.ones(n, np.float32))
    output = str(folder / "y.npy")
    return {
        "matvec": ["--queries", points, "--x", x, "--bandwidth", "3", "--output", output],
        "kde": ["--data", points, "--bandwidth", "2", "--output", output, "--method", "exact"],
        "attention": [*_thrice(points), "--output", output, "--method", "exact"],
        "diagnose": ["--queries", points, "--bandwidth", "2", "--json", str(folder / "y.json")],
        "spectrum": ["--data", points, "--bandwidth", "3", "-k", "2"],
        "demo": [],
        "info": [],
    }[command]  # type: ignore[return-value]


def _thrice(points: Path) -> list[Any]:
    return ["--query", points, "--key", points, "--value", points]


def _command(case: Record) -> Record:
    """One command, stopped a share of its time after it began to import this package."""
    command, findings = case["command"], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        line = [sys.executable, "-m", "approxkmv", command, *arguments(command, folder)]
        there = set(os.listdir(folder))
        process = _started(line)
        time.sleep(case["share"] * _seconds_of(command))
        process.send_signal(signal.SIGINT)
        try:
            errors = process.communicate(timeout=120)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            errors = process.communicate()[1].decode(errors="replace")
            findings.append(finding("command hangs", f"{command}: no end 120 s after Ctrl-C"))
        place = f"{command} after {case['share']:.2f} of its time"
        # -SIGINT is 130 in a shell: Ctrl-C after the work was done, in the interpreter's own end.
        silent = process.returncode == -signal.SIGINT and not errors
        if not (process.returncode in (0, 130) or silent) or "Traceback" in errors:
            says = f"{place}: exit code {process.returncode}, {errors[-300:]!r}"
            findings.append(finding("command", says))
        left = sorted(name for name in set(os.listdir(folder)) - there if not _whole(folder / name))
        if left:
            findings.append(finding("command leaves files", f"{place}: {left}"))
    result = "command finished" if process.returncode == 0 else "command interrupted"
    return {"count": 1, "findings": findings, "tally": {result: 1}}


def _whole(path: Path) -> bool:
    """An output under its own name, complete."""
    if path.name == "y.npy":
        return bool(np.load(path).size)
    if path.name == "y.json":
        return bool(json.loads(path.read_text()))
    return False


def _started(line: list[Any]) -> subprocess.Popen[bytes]:
    """The process, once NumPy's library is mapped: before, Ctrl-C is the interpreter's affair."""
    process = subprocess.Popen(
        [str(word) for word in line],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "multiarray_umath" not in maps.read_text(errors="replace"):
        time.sleep(0.002)
    return process


@functools.cache
def _seconds_of(command: str) -> float:
    with tempfile.TemporaryDirectory() as name:
        words = arguments(command, Path(name))
        process = _started([sys.executable, "-m", "approxkmv", command, *words])
        start = time.perf_counter()
        process.communicate()
        return time.perf_counter() - start
