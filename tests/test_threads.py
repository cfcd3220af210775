"""Threads, processes, signals and memory: the library among other things that go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl

import approxkmv as akmv
from approxkmv import _threads
from approxkmv.loops.compiled import Compiled

SLOWNESS = float(os.environ.get("APPROXKMV_TEST_SLOWNESS", "1"))


def points(n: int, d: int = 8) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)


def small_product(_: int = 0) -> bytes:
    p = points(500)
    return akmv.matvec(p, p, np.ones(500, np.float32), bandwidth=2.0, n_threads=2).tobytes()


def test_fork_after_use(run_python: Callable[..., str]) -> None:
    """50 forks after the pool has worked; each child grows its own pool and is done within 5 s.

    The parent computes between the forks, and so does another thread of it during them.
    """
    script = """
import os, threading, time
import numpy as np
import approxkmv as akmv
p = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)
product = lambda: akmv.matvec(p, p, np.ones(500, np.float32), bandwidth=2.0, n_threads=2).tobytes()
n_threads = lambda: len(os.listdir("/proc/self/task"))
expected = product()
done = threading.Event()
def busy():
    while not done.is_set():
        assert product() == expected
other = threading.Thread(target=busy, daemon=True)
other.start()
slowest = 0.0
for _ in range(50):
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        alone = n_threads() == 1
        right = product() == expected and product() == expected
        os._exit(0 if alone and right and n_threads() == 2 else 3)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - start > 5:
            os.kill(child, 9)
            raise SystemExit("a child hangs")
        time.sleep(0.001)
    assert status == 0, status
    assert product() == expected
done.set()
other.join()
print("ok")
"""
    assert run_python(script, timeout=200) == "ok\n"


def test_forks_while_eight_threads_call(run_python: Callable[..., str]) -> None:
    """10 forks while 8 threads compute, with products of NumPy in between; each child computes.

    OpenBLAS has one thread: its own handler of forks waits for its others with the interpreter's
    lock held, and may do so for ever if another thread calls it (docs/guarantee.md).
    """
    script = """
import os, threading, time
import numpy as np
import approxkmv as akmv
p = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
x = np.ones(400, np.float32)
K = akmv.GaussianKernel(p, bandwidth=2.0, n_threads=2)
kinds = (
    lambda: akmv.matvec(p, p, x, bandwidth=2.0, n_threads=2).tobytes(),
    lambda: akmv.attention(p, p, p, n_threads=2).tobytes(),
    lambda: (K @ x).tobytes(),
    lambda: (p @ p.T).tobytes(),
)
expected = [kind() for kind in kinds]
done, wrong = threading.Event(), []
def busy(i):
    while not done.is_set():
        if kinds[i % 4]() != expected[i % 4]:
            wrong.append(i)
threads = [threading.Thread(target=busy, args=(i,), daemon=True) for i in range(8)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if [kind() for kind in kinds] == expected else 3)
    end = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            raise SystemExit("a child hangs")
        time.sleep(0.001)
done.set()
for thread in threads:
    thread.join(20)
assert not wrong and not any(thread.is_alive() for thread in threads)
print("ok")
"""
    assert run_python(script, OPENBLAS_NUM_THREADS="1") == "ok\n"


def test_spawn() -> None:
    """A spawned process computes the same bits."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as processes:
        assert processes.submit(small_product).result(timeout=60) == small_product()


def test_eight_threads_share_one_operator() -> None:
    """8 Python threads x 50 calls on one operator: the same bits every time."""
    p = points(300)
    K = akmv.GaussianKernel(p, bandwidth=2.0, n_threads=2)
    x = np.ones((300, 3), np.float32)
    expected = (K @ x).tobytes()
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: (K @ x).tobytes(), range(8 * 50)))
    assert set(results) == {expected}


def test_many_short_jobs_on_more_threads_than_cores() -> None:
    """Workers come and go around jobs of a few microseconds; nothing is lost or read twice."""
    p = points(200, 2)
    rows = np.arange(200)
    expected = Compiled(1).pair_kernel(
        p,
        p,
        rows,
        rows[::-1].copy(),
        1.0,
    )

    def calls(_: int) -> bool:
        return all(
            np.array_equal(
                Compiled(7).pair_kernel(
                    p,
                    p,
                    rows,
                    rows[::-1].copy(),
                    1.0,
                ),
                expected,
            )
            and np.array_equal(akmv.matvec(p, p, rows, bandwidth=1.0, n_threads=7), answer)
            for _ in range(200)
        )

    answer = akmv.matvec(p, p, rows, bandwidth=1.0, n_threads=1)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(calls, range(4)))


def our_pool() -> dict[str, Any]:
    found = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "approxkmv"]
    assert len(found) == 1
    return dict(found[0])


def busy_threads(n_threads: int | None = None) -> float:
    """Processor seconds per second of wall clock during a product of about 0.3 s."""
    p = points(4000, 64)
    start = time.perf_counter(), time.process_time()
    for _ in range(3):
        akmv.row_sums(p, bandwidth=8.0, n_threads=n_threads)
    return (time.process_time() - start[1]) / (time.perf_counter() - start[0])


def test_threadpoolctl_sees_and_limits_us() -> None:
    """threadpool_info lists our pool; threadpool_limits(1) leaves one busy thread."""
    cores = len(os.sched_getaffinity(0))
    assert our_pool()["num_threads"] == _threads.default_threads() == cores
    with threadpoolctl.threadpool_limits(1):
        assert our_pool()["num_threads"] == _threads.default_threads() == 1
        assert busy_threads() < 1.1
        K = akmv.GaussianKernel(points(10), bandwidth=1.0)
        assert K.info.plan.numbers["n_threads"] == 1
    with threadpoolctl.threadpool_limits({"approxkmv": 3}):
        assert _threads.default_threads() == 3
    assert our_pool()["num_threads"] == _threads.default_threads() == cores


def test_default_is_every_core_we_may_use(run_python: Callable[..., str]) -> None:
    """A process bound to one core starts one thread."""
    script = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from approxkmv import _threads
print(_threads.default_threads())
"""
    assert run_python(script) == "1\n"


INTERRUPTED = """
import sys, time
import numpy as np
import approxkmv as akmv
m, n, d, columns = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
queries, keys = (rng.standard_normal((k, d), dtype=np.float32) for k in (m, n))
x = np.ones((n, columns), np.float32)
few = queries[:50]
expected = akmv.matvec(few, keys[:1000], x[:1000], bandwidth=1.0)
for _ in range(5):
    print("ready", flush=True)
    try:
        akmv.matvec(queries, keys, x, bandwidth=1.0, method="exact")
        print("finished", flush=True)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
    again = akmv.matvec(few, keys[:1000], x[:1000], bandwidth=1.0)
    assert np.array_equal(again, expected)
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("m", "n", "d", "columns"),
    [
        (200_000, 200_000, 64, 1),
        (700, 40_000_000, 1, 1),
        (100_000, 100_000, 3, 64),
        (2000, 30_000, 4096, 1),
    ],
    ids=["square", "few-queries", "columns", "wide"],
)
def test_ctrl_c(m: int, n: int, d: int, columns: int) -> None:
    """KeyboardInterrupt in <200 ms, five times in one process, and the library works afterwards.

    The median of five: other processes of the machine may delay one of them.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *map(str, (m, n, d, columns))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    delays = []
    try:
        for _ in range(5):
            line = child.stdout.readline()
            if line != "ready\n":
                pytest.fail(f"the process printed {line!r}: {child.communicate()[1]}")
            time.sleep(0.4)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            delays.append(float(child.stdout.readline()) - sent)
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.communicate()
    # A sanitizer's build is many times as slow: `python -m tests.sanitizers` says how many.
    assert statistics.median(delays) < 0.2 * SLOWNESS, delays


@pytest.mark.alone
def test_other_python_threads_go_on() -> None:
    """The GIL is released: another thread ticks every millisecond or so during a long product."""
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            time.sleep(0.001)
            ticks[0] += 1

    p = points(16_000, 64)
    thread = threading.Thread(target=tick)
    thread.start()
    before, start = ticks[0], time.perf_counter()
    akmv.row_sums(p, bandwidth=8.0, n_threads=1)
    seconds, during = time.perf_counter() - start, ticks[0] - before
    stop.set()
    thread.join()
    assert seconds > 0.05
    assert during > 50 * seconds


def test_python_signal_handlers_run_meanwhile(run_python: Callable[..., str]) -> None:
    """A handler that does not raise is run during the product, which then finishes."""
    script = """
import signal, time
import numpy as np
import approxkmv as akmv
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(time.monotonic()))
p = np.random.default_rng(0).standard_normal((12000, 64), dtype=np.float32)
expected = akmv.row_sums(p, bandwidth=8.0)
signal.setitimer(signal.ITIMER_REAL, 0.05)
sums = akmv.row_sums(p, bandwidth=8.0)
end = time.monotonic()
assert np.array_equal(sums, expected)
assert len(seen) == 1 and seen[0] < end
print("ok")
"""
    assert run_python(script) == "ok\n"


OUT_OF_MEMORY = """
import resource, sys
import numpy as np
import approxkmv as akmv
from approxkmv.loops import compiled
p = np.random.default_rng(0).standard_normal((2000, 2), dtype=np.float32)
expected = akmv.row_sums(p, bandwidth=1.0, n_threads=2)
x = np.ones((1, 1_000_000), np.float32)
order, start, stop = np.arange(2000), np.zeros(2000, np.int64), np.full(2000, 2000)
def many_columns():  # scratch of 96 rows of a million columns: 384 MB
    return akmv.matvec(p[:1], p[:1], x, bandwidth=1.0, n_threads=2)
def many_hits():  # four million pairs of 24 bytes, collected by the workers
    return compiled.Compiled(2).scan_ranges(p, p, order, start, stop, 1e3, 1e-3)
for _ in range(50):  # until every worker has had tasks, and glibc's 64 MB for its allocations
    akmv.row_sums(p, bandwidth=1.0, n_threads=2)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for work, need in ((many_columns, 384), (many_hits, 100)):
    resource.setrlimit(resource.RLIMIT_AS, (size + need * 2**20 // 3, resource.RLIM_INFINITY))
    for _ in range(3):
        try:
            work()
            raise SystemExit(f"{work.__name__} had enough memory")
        except MemoryError:
            pass
        assert np.array_equal(akmv.row_sums(p, bandwidth=1.0, n_threads=2), expected)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    work()
print("ok")
"""


def test_signal_in_the_last_task(run_python: Callable[..., str]) -> None:
    """An exception of a handler is raised though the loop had nothing left to stop.

    All pairs are one task here, so the handler runs after it, with every task done.
    """
    out = run_python(
        """
import signal, numpy as np
from approxkmv.loops import compiled
def handler(*_):
    raise TimeoutError("late")
points = np.ones((64, 20_000), np.float32)
pairs = np.arange(1 << 14) % 64
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    compiled.Compiled(1).pair_kernel(points, points, pairs, pairs, 1.0)
except TimeoutError as error:
    print(error)
"""
    )
    assert out.split() == ["late"]


def test_out_of_memory(run_python: Callable[..., str]) -> None:
    """Too little memory gives MemoryError, no abort; the library works before and after."""
    assert run_python(OUT_OF_MEMORY) == "ok\n"


def huge_file(path: Path, n: int, d: int) -> np.ndarray:
    """A float32 matrix of zeros that takes no room on disk; pages that are never read take none."""
    with path.open("wb") as file:
        file.truncate(4 * n * d)
    return np.memmap(path, np.float32, "r+", shape=(n, d))


def test_more_than_2_to_the_31_elements(tmp_path: Path) -> None:
    """Indices are 64-bit: the last key of a matrix of 2^31 + 2^20 numbers is the right one."""
    d = 2**20
    keys = huge_file(tmp_path / "keys", 2**11 + 1, d)
    keys[-1, :4] = 1
    queries = np.zeros((1, d), np.float32)
    last = len(keys) - 1
    for col, expected in ((last, np.exp(-2.0)), (last - 1, 1.0), (0, 1.0)):
        value = Compiled().pair_kernel(queries, keys, np.zeros(1, np.int64), np.array([col]), 1.0)
        assert value[0] == pytest.approx(expected)
    found = Compiled().scan_ranges(
        queries, keys, np.array([last, 0]), np.zeros(1, np.int64), np.full(1, 2), 1.0, 0.01
    )
    np.testing.assert_array_equal(found[1], [last, 0])
    np.testing.assert_allclose(found[2], [np.exp(-2.0), 1.0])


@pytest.mark.slow
def test_product_of_more_than_2_to_the_31_elements(tmp_path: Path) -> None:
    """The tiles too, from a mapped file of 8 GB of zeros whose last key differs."""
    d = 2**20
    keys = huge_file(tmp_path / "keys", 2**11 + 1, d)
    keys[-1, :4] = 1
    x = np.zeros(len(keys), np.float32)
    x[-1] = 1
    y = akmv.matvec(np.zeros((1, d), np.float32), keys, x, bandwidth=1.0)
    assert y[0] == pytest.approx(np.exp(-2.0), rel=1e-5)


@pytest.mark.alone
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_workers_may_use_every_core_again(run_python: Callable[..., str]) -> None:
    """They are kept off the caller's core while they wake up, and no longer."""
    script = """
import os, time
import numpy as np
import approxkmv as akmv
p = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32)
allowed = os.sched_getaffinity(0)
for rest in (0.0, 0.05, 0.0, 0.05):
    time.sleep(rest)
    akmv.attention(p, p, p, method="exact", n_threads=3)
    time.sleep(0.01)
    for task in os.listdir("/proc/self/task"):
        assert os.sched_getaffinity(int(task)) == allowed, task
print("ok")
"""
    assert run_python(script) == "ok\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts pages as Linux does")
def test_memory_of_attention_is_kept(run_python: Callable[..., str]) -> None:
    """The next call of a thread finds its pages, even if the C library gave all others back."""
    script = """
import ctypes, resource
import numpy as np
import approxkmv as akmv
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
trim = ctypes.CDLL(None).malloc_trim
keys = np.random.default_rng(0).standard_normal((16384, 64)).astype(np.float32)
found = []
for _ in range(5):
    trim(0)
    before = faults()
    akmv.attention(keys[:8], keys, keys[:, :8], method="exact", n_threads=1)
    found.append(faults() - before)
pages = keys.nbytes // resource.getpagesize()
assert found[0] > pages, found
assert max(found[1:]) < pages // 2, found
print("ok")
"""
    assert run_python(script) == "ok\n"


def test_one_thread_is_one_thread(run_python: Callable[..., str]) -> None:
    """Large inputs are checked by no more threads than the call was given."""
    script = """
import os
import numpy as np
import approxkmv as akmv
n_threads = lambda: len(os.listdir("/proc/self/task"))
keys = np.zeros((200_000, 8), np.float32)
before = n_threads()
akmv.matvec(keys[:4], keys, keys[:, 0], bandwidth=1.0, n_threads=1)
akmv.attention(keys[:4], keys, keys, n_threads=1)
assert n_threads() == before, (n_threads(), before)
print("ok")
"""
    assert run_python(script) == "ok\n"
