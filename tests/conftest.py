"""What several test files share: instruction sets, types, and how examples are drawn."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import settings

from approxkmv.engine.cost import CostModel
from approxkmv.loops import compiled

settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
# For builds ten to thirty times as slow: `python -m tests.sanitizers`.
settings.register_profile("sanitizers", settings.get_profile("fixed"), max_examples=10)
settings.load_profile("fixed")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests that
# press Ctrl-C in a child would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _runnable_isas() -> list[str]:
    """Every set this machine has, and AVX-512's geometry with AVX2's instructions ("wide")."""
    found = list(compiled.available_isas())
    return [*found, "wide"] if "avx2" in found else found


@pytest.fixture(autouse=True)
def _alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Tests marked ``alone`` wait until no other worker runs a test, and let none begin.

    Others share a lock that these have to themselves. Who wants it passes through a gate first, so
    that a test that waits is not overtaken for ever.
    """
    alone = request.node.get_closest_marker("alone") is not None
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has a folder of its own in that of the run
    with (folder / "gate").open("w") as gate, (folder / "room").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture(params=_runnable_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype[np.floating]:
    return np.dtype(request.param)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no product be too small for a survey, so that tests are quick."""
    monkeypatch.setattr(CostModel, "worth_a_survey", lambda *_: True)
    monkeypatch.setattr(CostModel, "worth_searching", lambda *_: True)


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a script in a fresh interpreter; its output, or a failure that shows its errors."""

    def run(script: str, *arguments: str, timeout: float = 120, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
