"""A scheduler that dies: a clear error, nothing half done, the same bits when it is asked again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from approxkmv import dask as akda

DASK = [sys.executable, "-m", "dask"]


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [*DASK, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(60)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_scheduler_is_killed_and_started_again(tmp_path: Path) -> None:
    """The run that was lost says so; workers find the new scheduler; the bits are the same."""
    rng = np.random.default_rng(0)
    points, x = rng.standard_normal((400, 4)), rng.standard_normal(400)

    def slow(chunk: Any) -> Any:
        (tmp_path / "begun").touch()
        time.sleep(0.5)
        return chunk

    q = da.from_array(points, chunks=(50, -1)).map_blocks(slow, dtype=float, meta=points[:0])
    y = akda.matvec(q, points, x, bandwidth=1.0, merge_chunks=False, rng=0)
    want = y.compute(scheduler="threads").tobytes()
    (tmp_path / "begun").unlink()
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler = "scheduler", "--host", address, "--no-dashboard", "--no-show"
    worker = "worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory"
    with running(*scheduler) as first, running(*worker, str(tmp_path / "one")):
        with Client(address, timeout="30s") as client:
            client.wait_for_workers(1, timeout=60)
            future, end = client.compute(y), time.monotonic() + 60
            while not (tmp_path / "begun").exists():
                assert time.monotonic() < end
                time.sleep(0.02)
            first.send_signal(signal.SIGKILL)
            with pytest.raises(Exception, match=r"(?i)cancel|scheduler|lost|clos"):
                future.result(timeout=30)
        with (
            running(*scheduler),
            running(*worker, str(tmp_path / "two")),
            Client(address, timeout="60s") as client,
        ):
            client.wait_for_workers(1, timeout=60)
            assert client.compute(y).result(timeout=60).tobytes() == want


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is told what to keep")
def test_memory_is_kept_for_a_block_only(run_python: Callable[..., str]) -> None:
    """Under Dask's setting freed memory is kept meanwhile, without page faults, then given back."""
    script = """
import os
os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
import ctypes, resource
from approxkmv.blocks.memory import kept_memory
ctypes.CDLL(None).mallopt(-1, 65536)
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**17)  # 1 MB, 256 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = faults()
with kept_memory():
    np.ones(2**17)
    inside = faults()
print(outside > 40 * 256, inside < 256, faults() > 40 * 256)
"""
    assert run_python(script) == "True True True\n"
