"""Too little memory, a full disk, a kill in the middle of writing, a fork in the middle of work.

Each case is a process of its own: what must not happen is an abort, a hang or a damaged file.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import approxkmv as akmv

from . import disks
from .long_calls import LONG, digest, n_threads, quietly
from .records import Record
from .worker import finding

MEMORY = (
    "matvec clusters",
    "matvec columns exact",
    "row_sums",
    "GaussianKernel",
    "attention",
    "attention exact",
    "KernelDensity fit",
    "KernelRidge",
    "solve",
    "diagnose",
    "eigenvalues",
)
SHARES = (0.05, 0.2, 0.4, 0.6, 0.8, 1.5)
_SIZE = 0.6  # of the long calls
_N_KILLS = 40
_MB = 2**20


def cases() -> list[Record]:
    memory = [{"what": "memory", "kind": k, "share": s} for s in SHARES for k in MEMORY]
    kills = [{"what": "kill", "number": i} for i in range(_N_KILLS)]
    others = [{"what": what} for what in ("threads", "disk", "file size", "no home", "fork")]
    return [*others, *kills, *memory]


def case(rng: np.random.Generator, index: int) -> Record | None:
    """One of a list; the moment of a kill is drawn."""
    found = cases()
    return {**found[index], "moment": float(rng.random())} if index < len(found) else None


def run(case: Record) -> Record:
    result, findings = _RUNS[case["what"]](case)
    return {"count": 1, "findings": findings, "tally": {f"{case['what']}: {result}": 1}}


def child(call: str, *, timeout: float = 200, **environment: str) -> tuple[int, Record, str]:
    """Run ``faults.<call>`` in a process of its own; exit code, what it printed, its errors."""
    assert __package__ is not None
    done = subprocess.run(
        [sys.executable, "-c", f"from {__package__} import faults; faults.{call}"],
        cwd=Path(__file__).parents[1 + __package__.count(".")],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr[-600:]


# Memory


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) * 1024


def _limit(size: float) -> None:
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (int(size), most))


def limited(kind: str, size: float, extra: float | None) -> None:
    """Run a long call with so many more bytes of address space (None: how many does it need?)."""
    quietly(LONG[kind](0.05))  # imports, and a pool of threads
    _fill_blas()
    call = LONG[kind](size)
    small = LONG["matvec one column exact"](0.02)
    expected = digest(small())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _status("VmRSS")
    if extra is not None:
        _limit(_status("VmSize") + extra)
    try:
        quietly(call)
        result = "ran"
    except MemoryError:
        result = "MemoryError"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    need = _status("VmHWM") - before
    print(json.dumps({"result": result, "need": need, "right": digest(small()) == expected}))


def _fill_blas() -> None:
    """Buffers of the two BLAS: without room for its own, OpenBLAS asks for it for ever."""
    from scipy.linalg import blas

    for kind, product in ((np.float32, blas.sgemv), (np.float64, blas.dgemv)):
        a = np.ones((3000, 3000), kind)
        product(1.0, a, a[0])
        product(1.0, a, a[0], trans=1)
        a[:500, :500] @ a[:500, :500]


@cache
def _need(kind: str) -> float:
    code, answer, errors = child(f"limited({kind!r}, {_SIZE}, None)")
    if code != 0 or answer["result"] != "ran":
        raise RuntimeError(f"{kind} does not run without a limit: {answer} {errors}")
    return float(answer["need"])


def _memory(case: Record) -> tuple[str, list[Record]]:
    kind, share = case["kind"], case["share"]
    # Arenas and stacks of the C library come in pieces of up to 64 MB.
    extra = share * _need(kind) + (256 * _MB if share > 1 else 0)
    code, answer, errors = child(f"limited({kind!r}, {_SIZE}, {extra})")
    place = f"{kind} with {share:g} of the memory it takes"
    if code != 0:
        return "abort", [finding("abort", f"{place}: exit code {code}, {errors}")]
    findings = []
    if answer["result"] not in ("ran", "MemoryError"):
        findings.append(finding("memory", f"{place}: {answer['result']}"))
    if share > 1 and answer["result"] != "ran":
        findings.append(finding("memory", f"{place}: {answer['result']}"))
    if not answer["right"]:
        findings.append(finding("afterwards", f"{place}: a small product has other bits"))
    return answer["result"][:11], findings


def no_threads() -> None:
    """A first call when there is no room for the stack of a thread."""
    p = np.random.default_rng(0).standard_normal((3000, 8))
    alone = akmv.row_sums(p, bandwidth=1.0, n_threads=1)
    _limit(_status("VmSize") + 3 * _MB)
    try:
        result = (
            "ran"
            if np.array_equal(akmv.row_sums(p, bandwidth=1.0, n_threads=8), alone)
            else "wrong"
        )
    except MemoryError:
        result = "MemoryError"
    _limit(resource.RLIM_INFINITY)
    right = np.array_equal(akmv.row_sums(p, bandwidth=1.0, n_threads=8), alone)
    print(json.dumps({"result": result, "right": bool(right), "threads": n_threads()}))


def _threads(case: Record) -> tuple[str, list[Record]]:
    code, answer, errors = child("no_threads()")
    fine = code == 0 and answer["right"] and answer["result"] != "wrong"
    return answer.get("result", "abort"), (
        [] if fine else [finding("lost thread", f"exit code {code}, {answer} {errors}")]
    )


# Forks


def fork_during_use() -> None:
    """Ten forks while eight threads multiply."""
    import threading

    p = np.random.default_rng(0).standard_normal((800, 8)).astype(np.float32)
    ones = np.ones(800, np.float32)

    def product() -> bytes:
        return digest(akmv.matvec(p, p, ones, bandwidth=2.0, n_threads=2))

    expected, done = product(), threading.Event()

    def busy() -> None:
        while not done.is_set():
            assert product() == expected

    others = [threading.Thread(target=busy, daemon=True) for _ in range(8)]
    for thread in others:
        thread.start()
    codes = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if product() == expected else 3)
        codes.append(_wait(pid))
    done.set()
    for thread in others:
        thread.join()
    print(json.dumps({"codes": codes}))


def _wait(pid: int, seconds: float = 20) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def _fork(case: Record) -> tuple[str, list[Record]]:
    """With OpenBLAS on one thread: its own handler of forks waits for its threads."""
    try:
        code, answer, errors = child("fork_during_use()", timeout=150, OPENBLAS_NUM_THREADS="1")
    except subprocess.TimeoutExpired:
        return "hang", [finding("fork", "no end after 150 s")]
    if code != 0 or any(answer["codes"]):
        return "failed", [finding("fork", f"exit code {code}, {answer} {errors}")]
    return "done", []


_RUNS: dict[str, Any] = {
    "memory": _memory,
    "threads": _threads,
    "disk": disks.disk,
    "file size": disks.file_size,
    "kill": disks.kill,
    "no home": disks.no_home,
    "fork": _fork,
}
