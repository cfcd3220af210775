"""A full disk, a kill in the middle of writing, no home: files stay whole."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .records import Record
from .worker import finding


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """A folder with 64 kB of room, where we may mount one."""
    with tempfile.TemporaryDirectory() as name:
        options = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", name]
        try:
            mounted = subprocess.run(options, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield Path(name) if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", name], check=True)


def _write_where_it_does_not_fit(folder: Path, errors: tuple[type[Exception], ...]) -> list[Record]:
    """An old file stays, and nothing else does."""
    from approxkmv.files import read_array, write_array

    path, findings = folder / "y.npy", []
    write_array(path, np.arange(10.0))
    for _ in range(3):
        try:
            write_array(path, np.zeros(10**6))
            findings.append(finding("disk", "a file larger than the disk was written"))
        except errors:
            pass
        if not np.array_equal(read_array(path), np.arange(10.0)):
            findings.append(finding("disk", "the old file is damaged"))
        if os.listdir(folder) != ["y.npy"]:
            findings.append(finding("disk", f"left behind: {sorted(os.listdir(folder))}"))
    return findings


def disk(case: Record) -> tuple[str, list[Record]]:
    with small_disk() as folder:
        if folder is None:
            return "no right to mount", []
        findings = _write_where_it_does_not_fit(folder, (OSError,))
        with tempfile.TemporaryDirectory() as other:
            np.save(Path(other) / "p.npy", np.zeros((20_000, 1)))
            code, errors = _product(Path(other), folder / "y.npy")
        lines = errors.strip().splitlines()
        if code != 2 or len(lines) != 1:
            findings.append(finding("disk", f"command: exit code {code}, {errors!r}"))
        if os.listdir(folder) != ["y.npy"]:
            findings.append(finding("disk", f"command left {sorted(os.listdir(folder))}"))
    return "full", findings


def _product(folder: Path, output: Path, **environment: str) -> tuple[int, str]:
    points = str(folder / "p.npy")
    line = [sys.executable, "-m", "approxkmv", "matvec", "--queries", points, "--x", points]
    done = subprocess.run(
        [*line, "--bandwidth", "1", "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


def file_size(case: Record) -> tuple[str, list[Record]]:
    """A limit of the size of files stands for a full disk where none can be mounted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as name:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, before[1]))
        try:
            findings = _write_where_it_does_not_fit(Path(name), (OSError,))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, previous)
    return "limited", findings


def write_for_ever(path: str) -> None:
    """Replace a file by one of the other content, again and again."""
    from approxkmv.files import write_array

    print("ready", flush=True)
    for number in range(10**6):
        write_array(path, np.full(10**6, number % 2, np.int8))


def kill(case: Record) -> tuple[str, list[Record]]:
    """SIGKILL while a file is being replaced: the old content or the new, all of it."""
    from approxkmv.files import read_array, write_array

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "y.npy"
        write_array(path, np.zeros(10**6, np.int8))
        assert __package__ is not None
        call = f"from {__package__} import disks; disks.write_for_ever({str(path)!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", call],
            cwd=Path(__file__).parents[1 + __package__.count(".")],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1 * case["moment"])
        process.kill()
        process.communicate()
        content = np.asarray(read_array(path))
        whole = len(content) == 10**6 and len(np.unique(content)) == 1
        return "whole", [] if whole else [finding("kill", "the file is a mixture")]


def no_home(case: Record) -> tuple[str, list[Record]]:
    """No home, no temporary folder: products do not need them."""
    with tempfile.TemporaryDirectory() as name:
        np.save(Path(name) / "p.npy", np.zeros((100, 1)))
        findings = []
        for home in ("/nonexistent", "/proc"):
            output = Path(name) / "y.npy"
            code, errors = _product(Path(name), output, HOME=home, TMPDIR=home)
            if code != 0 or errors:
                says = f"HOME and TMPDIR {home}: exit code {code}, {errors!r}"
                findings.append(finding("no home", says))
    return "done", findings
