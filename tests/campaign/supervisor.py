"""Starts workers, and notes the case of one that crashes or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .records import Folder
from .worker import finding

# Share of the time, and seconds after which a case hangs; the longest take a tenth of that.
PARTS = {
    "api": (60.0, 120.0),
    "engine": (120.0, 600.0),
    "interrupts": (20.0, 300.0),
    "faults": (6.0, 300.0),
    "soak": (8.0, 2400.0),
    "files": (10.0, 180.0),
}
_MOST_CRASHES = 200  # a part that crashes more often has no news to tell


def supervise(part: str, seed: int, seconds: float, folder: Folder) -> None:
    """Run a part for so long, with a new worker after every crash."""
    end = time.monotonic() + seconds
    for _ in range(_MOST_CRASHES):
        left = end - time.monotonic()
        if left <= 0 or not _crashed(part, seed, left, folder):
            return


def _crashed(part: str, seed: int, seconds: float, folder: Folder) -> bool:
    """Whether one worker came to a bad end; then its case has been recorded."""
    limit = PARTS[part][1]
    errors = folder.path / f"{part}.stderr"
    folder.forget_now(part)
    with worker(part, seed, seconds, folder, errors) as process:
        what = None
        while process.poll() is None and what is None:
            time.sleep(0.2)
            now = folder.now(part)
            if now is not None and now[1] > limit:
                what = "hang"
        if what is None and process.returncode == 0:
            return False
    now = folder.now(part)
    tail = errors.read_text(errors="replace").splitlines()[-15:]
    index = now[0]["index"] if now else folder.next_index(part)
    says = f"no end after {limit:g} s" if what else f"exit code {process.returncode}"
    folder.add(
        part,
        {
            "part": part,
            "seed": seed,
            "index": index,
            "case": now[0]["case"] if now else None,
            "count": 1,
            "findings": [finding(what or "crash", says, stderr=tail)],
        },
    )
    return now is not None  # a worker that does not even begin will not begin next time


@contextmanager
def worker(
    part: str, seed: int, seconds: float, folder: Folder, errors: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a session of its own, all of which ends with the block."""
    assert __package__ is not None
    root = Path(__file__).parents[1 + __package__.count(".")]
    command = [sys.executable, "-m", f"{__package__}.worker", part, str(seed)]
    command += [str(folder.next_index(part)), str(seconds), str(folder.path.resolve())]
    with open(errors, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=root,
            stderr=file,
            stdout=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
