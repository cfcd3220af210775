"""Products from files to a file: right, in bounded memory, and nothing lost when they are ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv import streaming
from approxkmv.blocks.cut import cut_to_fit
from approxkmv.cli.main import main
from approxkmv.datasets import clusters

# Of 3,000 queries and 2,000 keys: eight chunks of queries, two of keys.
SMALL_MEMORY = 200e6 + 900 * 400


class Case(NamedTuple):
    queries: np.ndarray
    keys: np.ndarray
    x: np.ndarray
    folder: Path

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return tuple(self.folder / f"{name}.npy" for name in ("q", "k", "x"))  # type: ignore[return-value]

    @property
    def output(self) -> Path:
        return self.folder / "y.npy"

    def exact(self) -> np.ndarray:
        return akmv.matvec(self.queries, self.keys, self.x, bandwidth=2.0, method="exact")

    def run(self, **options: Any) -> akmv.ProductInfo:
        defaults = {"bandwidth": 2.0, "rng": 3, "max_memory": SMALL_MEMORY}
        return streaming.matvec(*self.files, self.output, **defaults | options)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    rng = np.random.default_rng(0)
    made = Case(
        rng.standard_normal((3000, 6)),
        rng.standard_normal((2000, 6)),
        rng.standard_normal((2000, 3)),
        tmp_path,
    )
    for path, array in zip(made.files, made[:3], strict=True):
        np.save(path, array)
    return made


class StopError(Exception):
    """Ends a run in a test."""


def after(rows: int) -> Callable[[int, int], None]:
    """A callback that ends the run when this many rows are done."""

    def progress(done: int, of: int) -> None:
        if done >= rows:
            raise StopError

    return progress


def test_is_the_product_and_leaves_one_file(case: Case) -> None:
    seen = list[tuple[int, int]]()
    info = case.run(progress=lambda done, of: seen.append((done, of)))
    np.testing.assert_allclose(np.load(case.output), case.exact(), atol=1e-11)
    assert sorted(path.name for path in case.folder.iterdir()) == [
        "k.npy",
        "q.npy",
        "x.npy",
        "y.npy",
    ]
    numbers = info.plan.numbers
    assert (numbers["query_chunks"], numbers["key_chunks"]) == (len(seen) - 1, 5)
    assert seen[0] == (0, 3000)
    assert seen[-1] == (3000, 3000)
    assert len(seen) > 5
    assert info.pairs == 3000 * 2000
    assert info.error_estimate is not None
    assert info.error_estimate < 1e-12


@pytest.mark.parametrize("form", ["arrays", "maps", "symmetric"])
def test_forms_of_the_inputs(case: Case, form: str) -> None:
    inputs: Any = case[:3]
    if form == "maps":
        inputs = [np.load(path, mmap_mode="r") for path in case.files]
    if form == "symmetric":
        inputs = case.files[1], None, case.x
    streaming.matvec(*inputs, case.output, bandwidth=2.0, max_memory=SMALL_MEMORY)
    keys = case.keys
    queries = keys if form == "symmetric" else case.queries
    want = akmv.matvec(queries, keys, case.x, bandwidth=2.0, method="exact")
    np.testing.assert_allclose(np.load(case.output), want, atol=1e-11)


def test_sampled_within_eps_with_a_share_for_every_block(tmp_path: Path) -> None:
    """Blocks are drawn here; the error and its estimate are those of the whole."""
    q, k, bandwidth = clusters(40_000, 64, rng=1)
    x = np.random.default_rng(2).standard_normal(len(k)).astype(np.float32)
    info = streaming.matvec(
        q, k, x, tmp_path / "y.npy", bandwidth=bandwidth, eps=0.3, rng=0, method="sampled",
        max_memory=200e6 + 30_000 * 2000,
    )  # fmt: skip
    assert info.plan.numbers["query_chunks"] == 1
    exact = akmv.matvec(q, k, x, bandwidth=bandwidth, method="exact").astype(np.float64)
    error = np.linalg.norm(np.load(tmp_path / "y.npy") - exact) / np.linalg.norm(x)
    assert info.method == "sampled"
    assert info.error_estimate is not None
    assert 0.5 * error < info.error_estimate < 2 * error < 0.6


def test_goes_on_where_it_was_interrupted(case: Case) -> None:
    """The bits of an uninterrupted run; chunks that were done are not computed again."""
    case.run()
    want = case.output.read_bytes()
    case.output.unlink()
    for rows in (1, 1500):
        with pytest.raises(StopError):
            case.run(progress=after(rows), resume=True)
        assert not case.output.exists()
    seen = list[int]()
    info = case.run(progress=lambda done, of: seen.append(done), resume=True, rng=None)
    assert seen[0] >= 1500
    assert case.output.read_bytes() == want
    assert info.pairs == 3000 * 2000


def test_nothing_is_overwritten_unasked(case: Case) -> None:
    with pytest.raises(StopError):
        case.run(progress=after(1))
    with pytest.raises(ValueError, match="an unfinished run is there: resume=True goes on"):
        case.run()
    with pytest.raises(ValueError, match=r"the unfinished run had bandwidth 2\.0, now it is 2\.5"):
        case.run(resume=True, bandwidth=2.5)
    np.save(case.files[2], case.x + 1)
    with pytest.raises(ValueError, match="the unfinished run had x "):
        case.run(resume=True)
    case.output.with_name("y.npy.journal").unlink()
    case.run()
    np.testing.assert_allclose(
        np.load(case.output),
        akmv.matvec(case.queries, case.keys, case.x + 1, bandwidth=2.0, method="exact"),
        atol=1e-11,
    )


@pytest.mark.parametrize("kept", [0.4, 0.99])
def test_a_line_that_was_cut_off_does_not_count(case: Case, kept: float) -> None:
    """A process killed while it writes the journal leaves a part of a line, at any byte."""
    case.run()
    want = case.output.read_bytes()
    case.output.unlink()
    with pytest.raises(StopError):
        case.run(progress=after(1500))
    journal = case.output.with_name("y.npy.journal")
    lines = journal.read_text().splitlines(keepends=True)
    last = lines[-1]
    journal.write_text("".join(lines[:-1]) + last[: int(kept * len(last))])
    case.run(resume=True)
    assert case.output.read_bytes() == want
    assert not journal.exists()


RUN = """
import sys
from approxkmv import streaming
print("ready", flush=True)
streaming.matvec(*sys.argv[1:5], bandwidth=2.0, rng=3, max_memory=float(sys.argv[5]), resume=True,
                 progress=lambda done, of: print(done, flush=True))
"""


def test_killed_at_any_moment_and_resumed(case: Case) -> None:
    """SIGKILL after some chunks, again and again: at most one chunk is computed twice."""
    case.run()
    want = case.output.read_bytes()
    case.output.unlink()
    command = [sys.executable, "-c", RUN, *map(str, case.files), str(case.output)]
    starts = []
    for kill_after in (2, 3, None):
        child = subprocess.Popen([*command, str(SMALL_MEMORY)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        done = []
        for line in child.stdout:
            done.append(int(line))
            if kill_after is not None and len(done) == kill_after:
                child.send_signal(signal.SIGKILL)
                break
        child.stdout.close()
        code = child.wait(60)
        assert code == (-signal.SIGKILL if kill_after else 0)
        starts.append((done[0], done[-1]))
    assert starts[1][0] >= starts[0][1] > 0
    assert starts[2][0] >= starts[1][1]
    assert case.output.read_bytes() == want


def test_two_processes_do_not_write_one_answer(case: Case) -> None:
    command = [
        sys.executable,
        "-c",
        RUN.replace("print(done, flush=True)", "__import__('time').sleep(9)"),
    ]
    command += [*map(str, case.files), str(case.output), str(SMALL_MEMORY)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        part, end = case.output.with_name("y.npy.part"), time.monotonic() + 60
        while not part.exists() or part.stat().st_size < 3000 * 3 * 8:
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(ValueError, match="another process is writing this product"):
            case.run(resume=True)
    finally:
        child.kill()
        child.wait(60)
        assert child.stdout is not None
        child.stdout.close()


def test_full_disk_is_found_before_the_work(case: Case, run_python: Callable[..., str]) -> None:
    """One error that says so, and no file is left."""
    script = f"""
import resource, signal
from approxkmv import streaming
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    streaming.matvec(*{[str(path) for path in case.files]}, {str(case.output)!r}, bandwidth=2.0)
except OSError as error:
    print(error.errno, "needs 0.0721 MB" in str(error), error.filename)
"""
    assert run_python(script) == f"{errno.EFBIG} True {case.output}\n"
    assert sorted(path.name for path in case.folder.iterdir()) == ["k.npy", "q.npy", "x.npy"]


@pytest.mark.parametrize("at", ["rows", "journal"])
def test_full_disk_in_the_middle(case: Case, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done stays, the message says how to go on, and the bits are the same then."""
    case.run()
    want = case.output.read_bytes()
    case.output.unlink()
    fsync, calls = os.fsync, list[str]()

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append(name)
        ends = ".part" if at == "rows" else ".journal"
        # The first line of the journal is what was asked for.
        if name.endswith(ends) and len([c for c in calls if c.endswith(ends)]) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    done = 2 if at == "rows" else 1
    message = f"No space left on device: {done} chunks are on disk and resume=True goes on"
    with pytest.raises(OSError, match=message) as caught:
        case.run()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(case.output)
    assert not case.output.exists()
    monkeypatch.undo()
    seen = list[int]()
    case.run(resume=True, progress=lambda done, of: seen.append(done))
    assert seen[0] > 0
    assert case.output.read_bytes() == want


def test_memory_is_bounded(tmp_path: Path, run_python: Callable[..., str]) -> None:
    """Two million queries of 256 MB, in the 260 MB more than an empty product takes."""
    points = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        tmp_path / "q.npy", "w+", np.float32, (2_000_000, 32)
    )
    points[:] = np.random.default_rng(0).standard_normal((1, 32), dtype=np.float32)
    points.flush()
    del points
    script = f"""
import numpy as np
from approxkmv import streaming
keys, x = np.ones((50, 32), np.float32), np.ones(50, np.float32)
files = {str(tmp_path / "q.npy")!r}, keys, x, {str(tmp_path / "y.npy")!r}
info = streaming.matvec(*files, bandwidth=3.0, max_memory=300e6)
assert info.plan.numbers["query_chunks"] > 5
print(next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) // 1000)
"""
    assert int(run_python(script)) < 300
    assert np.load(tmp_path / "y.npy", mmap_mode="r").shape == (2_000_000,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_memory": 1e6}, "max_memory must be at least 20[01] MB"),
        ({"max_memory": -1}, "max_memory must be a positive finite number"),
        ({"bandwidth": 0}, "bandwidth must be a positive finite number"),
    ],
)
def test_mistakes(case: Case, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.run(**change)
    assert not case.output.with_name("y.npy.part").exists()


def test_wrong_shapes(case: Case) -> None:
    for inputs, message in (
        ((case.x[:, 0], case.keys, case.x), "queries must have two dimensions"),
        ((case.queries, case.keys[:, :5], case.x), "keys must have 6 columns"),
        ((case.queries, case.keys, case.x[1:]), "x must have one entry per key"),
        ((case.queries, case.keys, np.full_like(case.x, np.nan)), "x must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            streaming.matvec(*inputs, case.output, bandwidth=2.0)


def test_cuts_fit_and_cover() -> None:
    for n_queries, n_keys, memory in (
        (10**7, 10**6, 3e9),
        (10, 10**7, 1e9),
        (0, 5, 3e8),
        (7, 0, 3e8),
    ):
        cut = cut_to_fit(n_queries, n_keys, 256, 1, memory)
        for ends, n in ((cut.queries, n_queries), (cut.keys, n_keys)):
            assert (ends[0], ends[-1]) == (0, n)
            assert ends == sorted(ends)
        longest = [max(b - a for a, b in chunks) for chunks in (cut.query_chunks, cut.key_chunks)]
        assert sum(longest) * (2 * 256 + 256 + 32) <= memory
    assert len(cut_to_fit(10**7, 10**6, 256, 1, 3e9).keys) == 2  # the keys in one chunk


def test_command_line(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """``--max-memory`` streams; ``--resume`` goes on with what a killed run has left."""
    with pytest.raises(StopError):
        case.run(progress=after(1), max_memory=200.4e6)
    q, k, x = map(str, case.files)
    command = ["matvec", "--queries", q, "--keys", k, "--x", x, "--output", str(case.output)]
    command += ["--bandwidth", "2", "--max-memory", "200.4MB"]
    assert main(command) == 2
    assert "an unfinished run is there" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    out = capsys.readouterr().out
    assert "blocks of queries and keys" in out
    np.testing.assert_allclose(np.load(case.output), case.exact(), atol=1e-11)


def test_journal_is_readable(case: Case) -> None:
    with pytest.raises(StopError):
        case.run(progress=after(1))
    first = case.output.with_name("y.npy.journal").read_text().splitlines()[0]
    assert json.loads(first)["bandwidth"] == 2.0
    assert os.path.getsize(case.output.with_name("y.npy.part")) == 3000 * 3 * 8 + 128
