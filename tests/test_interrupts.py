"""Ctrl-C while modules are imported: none stays half loaded, the command ends in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from approxkmv._interrupts import interrupt_deferred

# Presses Ctrl-C at the moment the module named first is looked for.
PRESS = """
import os, signal, sys

class Presser:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presser())
"""


@pytest.mark.parametrize("module", ["scipy.fft", "scipy.linalg", "scipy.linalg.blas"])
def test_diagnose_works_after_an_interrupted_first_call(
    module: str, run_python: Callable[..., str]
) -> None:
    """SciPy's modules are whole before the interrupt is raised."""
    script = """
import numpy as np
import approxkmv as akmv

points = np.eye(3)
try:
    akmv.diagnose(points, bandwidth=1.0)
except KeyboardInterrupt:
    print("interrupted")
print(akmv.diagnose(points, bandwidth=1.0).n_keys)
"""
    assert run_python(PRESS + script, module) == "interrupted\n3\n"


def test_deferred_interrupt_comes_after_the_block() -> None:
    """The block is finished, the interrupt is not lost, and the handler is the one from before."""
    before = signal.getsignal(signal.SIGINT)
    finished = False

    def interrupted_block() -> None:
        nonlocal finished
        with interrupt_deferred():
            signal.raise_signal(signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        interrupted_block()
    assert finished
    assert signal.getsignal(signal.SIGINT) is before


def test_deferring_in_another_thread_changes_nothing() -> None:
    """Handlers can be set in the main thread only."""
    seen = []

    def defer() -> None:
        with interrupt_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("numpy", "approxkmv: interrupted\n"),
        ("numpy.linalg", "approxkmv: interrupted\n"),
        ("approxkmv._core", "approxkmv: interrupted\n"),
        ("approxkmv.cli.spectrum", "approxkmv: interrupted\n"),
        ("approxkmv.cli.compare", "approxkmv demo: interrupted\n"),
        ("approxkmv.datasets.generators", "approxkmv demo: interrupted\n"),
    ],
)
def test_command_interrupted_at_an_import(module: str, line: str) -> None:
    """From the first line of the package on: code 130 and one line."""
    script = """
sys.argv = ["/usr/bin/approxkmv", "demo", "--n", "300"]
from approxkmv.cli.main import main
sys.exit(main())
"""
    # The first argument is gone when the command looks at its own.
    wanted = f"wanted = {module!r}\n" + PRESS.replace("sys.argv[1]", "wanted")
    done = subprocess.run(
        [sys.executable, "-c", wanted + script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, line)


@pytest.mark.parametrize(
    "raising",
    [
        "exec('raise KeyboardInterrupt')",
        "try: raise KeyboardInterrupt\n    except BaseException as e: raise ImportError from e",
        "try: raise KeyboardInterrupt\n    finally: raise AttributeError",
    ],
)
def test_interrupts_that_other_packages_pass_on_in_other_forms(
    raising: str, tmp_path: Path
) -> None:
    """``python -m`` would end by the signal after the first; the others are other errors."""
    script = f"""
import sys
from approxkmv.cli import info, main

def run(args):
    {raising}

info.run = run
sys.exit(main.main(["info"]))
"""
    (tmp_path / "interrupted.py").write_text(script)
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "approxkmv info: interrupted\n")


@pytest.mark.parametrize("milliseconds", [0, 20, 40, 80, 120, 200, 400])
def test_command_interrupted_while_it_starts(milliseconds: int) -> None:
    """Ctrl-C at any time after NumPy's import has begun: code 130 or the whole answer, no trace."""
    child = subprocess.Popen(
        [sys.executable, "-m", "approxkmv", "demo", "--n", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    maps = Path(f"/proc/{child.pid}/maps")
    while "_multiarray_umath" not in maps.read_text() and child.poll() is None:
        time.sleep(0.001)
    time.sleep(milliseconds / 1000)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    if child.returncode == 0:
        assert out.endswith("rows\n")
        assert err == ""
    else:
        assert child.returncode == 130
        assert err in {"approxkmv: interrupted\n", "approxkmv demo: interrupted\n"}


def test_ignored_interrupts_stay_ignored() -> None:
    """A job that a shell started with ``&`` must not be ended by the Ctrl-C of another."""
    script = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv = ["approxkmv", "info"]
from approxkmv.cli.main import main
os.kill(os.getpid(), signal.SIGINT)
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_imports_us_keeps_its_handler(run_python: Callable[..., str]) -> None:
    """Only the command's own process is treated so."""
    script = """
import signal
before = signal.getsignal(signal.SIGINT)
import approxkmv
import approxkmv.cli.main
assert approxkmv.cli.main.main(["--version"]) == 0
assert signal.getsignal(signal.SIGINT) is before
print("same")
"""
    assert run_python(script).endswith("same\n")
