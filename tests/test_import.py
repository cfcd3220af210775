"""What ``import approxkmv`` costs and brings."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

import approxkmv as akmv

PUBLIC = {
    "AccuracyWarning",
    "AssumptionWarning",
    "AttentionInfo",
    "Diagnosis",
    "GaussianKernel",
    "Plan",
    "ProductInfo",
    "RationalQuadratic",
    "SolveInfo",
    "__version__",
    "attention",
    "datasets",
    "diagnose",
    "hsic",
    "log_row_sums",
    "matvec",
    "mmd",
    "paper",
    "row_sums",
    "sklearn",
    "solve",
    "spectrum",
    "stats",
}


def test_public_names() -> None:
    """These and no others: what is listed is there, and what is there under a plain name is listed
    or one of our own modules that something has imported."""
    assert set(dir(akmv)) == PUBLIC
    assert {*akmv.__all__, "__version__"} == PUBLIC
    for name in PUBLIC:
        assert getattr(akmv, name) is not None
    others = {name for name in vars(akmv) if not name.startswith("_")} - PUBLIC
    assert all(inspect.ismodule(getattr(akmv, name)) for name in others - {"TYPE_CHECKING"})


def test_public_warnings() -> None:
    assert issubclass(akmv.AccuracyWarning, UserWarning)
    assert issubclass(akmv.AssumptionWarning, UserWarning)


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(akmv, "no_such_thing")


def test_optional_packages_are_not_imported(run_python: Callable[..., str]) -> None:
    """NumPy and SciPy only: extras load when they are used."""
    script = """
import sys
import approxkmv
extras = ("torch", "sklearn", "matplotlib", "transformers", "dask", "pandas", "safetensors",
          "jax", "numba", "gpytorch", "click", "rich", "approxkmv.paper", "approxkmv.datasets",
          "approxkmv.cli", "approxkmv.loops.reference")
print([name for name in extras if name in sys.modules])
"""
    assert run_python(script) == "[]\n"


def test_import_works_without_threadpoolctl(run_python: Callable[..., str]) -> None:
    script = """
import sys
sys.modules["threadpoolctl"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "threadpoolctl" else found(name, *a)
import approxkmv
print(approxkmv.row_sums([[0.0]], bandwidth=1.0))
"""
    assert run_python(script) == "[1.]\n"


@pytest.mark.alone
def test_import_time(run_python: Callable[..., str]) -> None:
    """At most 0.3 s beyond NumPy and SciPy: the fastest of five fresh interpreters."""
    script = """
import numpy, scipy.sparse.linalg, time
start = time.perf_counter()
import approxkmv
print(time.perf_counter() - start)
"""
    assert min(float(run_python(script)) for _ in range(5)) <= 0.3


def test_import_changes_no_process_wide_setting(run_python: Callable[..., str]) -> None:
    """No warning filter, signal handler, error state or thread appears."""
    script = """
import signal, threading, warnings
import numpy as np, scipy.sparse.linalg
def state():
    handlers = [signal.getsignal(s) for s in signal.valid_signals()]
    threads = len(open("/proc/self/status").read().split("Threads:")[1].split()[:1])
    tasks = int(open("/proc/self/status").read().split("Threads:")[1].split()[0])
    return list(warnings.filters), handlers, np.geterr(), threading.active_count(), tasks
before = state()
import approxkmv
assert state() == before
print("ok")
"""
    assert run_python(script) == "ok\n"
