"""Instruction sets: chosen at run time or by an environment variable, and in agreement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.loops import compiled
from approxkmv.loops.compiled import Compiled

PRODUCT = """
import sys
import numpy as np
import approxkmv as akmv
from approxkmv.loops import compiled
with np.load(sys.argv[1]) as a:
    for name in ("float32", "float64"):
        q, k, x = (a[n].astype(name) for n in "qkx")
        y, info = akmv.matvec(q, k, x, bandwidth=4.0, return_info=True)
        logs = akmv.log_row_sums(q, k, bandwidth=4.0)
        np.savez(f"{sys.argv[2]}-{name}.npz", y=y, logs=logs)
        assert info.plan.numbers["isa"] == compiled.ISA
print(compiled.ISA)
"""


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (150, 16), "k": (400, 16), "x": (400, 9)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("tier", compiled.available_isas())
def test_every_tier_computes_the_same(
    tier: str, tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """Within 4 eps times the condition of each sum, of the exponents and of the terms.

    A row sum of terms K_ij x_j has condition sum |K_ij x_j| / |y_i|; the error of an exponent is at
    most 4 eps times the size of what it was computed from, |q|^2 + |k|^2 in bandwidths.
    """
    a = data()
    np.savez(tmp_path / "in.npz", **a)
    out = run_python(PRODUCT, str(tmp_path / "in.npz"), str(tmp_path / "out"), APPROXKMV_ISA=tier)
    assert out == f"{tier}\n"
    for name in ("float32", "float64"):
        q, k, x = (a[n].astype(name) for n in "qkx")
        here = akmv.matvec(q, k, x, bandwidth=4.0)
        with np.load(tmp_path / f"out-{name}.npz") as there:
            y, logs = there["y"], there["logs"]
        size = ((q / 4) ** 2).sum(axis=1)[:, None] + ((k / 4) ** 2).sum(axis=1)
        terms = (gaussian_kernel(q, k, 4.0) * (1 + size)) @ np.abs(x)
        eps = float(np.finfo(name).eps)
        assert (np.abs(y - here) <= 4 * eps * terms).all()
        local = akmv.log_row_sums(q, k, bandwidth=4.0)
        assert (np.abs(logs - local) <= 4 * eps * (1 + size.max(axis=1) + np.abs(local))).all()


def test_the_widest_is_the_default(run_python: Callable[..., str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "APPROXKMV_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", "from approxkmv.loops import compiled; print(compiled.ISA)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == compiled.available_isas()[-1]


@pytest.mark.parametrize("tier", ["sse9", "", "wide", "AVX2"])
def test_unknown_tier_is_a_clear_import_error(tier: str) -> None:
    """The message names the variable, what this machine has, and the value."""
    done = subprocess.run(
        [sys.executable, "-c", "import approxkmv"],
        env=os.environ | {"APPROXKMV_ISA": tier},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    expected = (
        f"ImportError: APPROXKMV_ISA must be one of {', '.join(compiled.available_isas())} "
        f"on this machine, got {tier!r}."
    )
    assert done.stderr.strip().splitlines()[-1] == expected


def test_baseline_is_always_available() -> None:
    assert compiled.available_isas()[0] == "baseline"
    assert "wide" not in compiled.available_isas()


def test_tiers_agree_on_single_exponentials(isa: str, dtype: Any) -> None:
    """Each within 2 ulp of the truth, so within 4 eps of each other."""
    x = np.linspace(-80, 0, 10_001).astype(dtype)
    here = Compiled().exp(x)
    assert (
        np.abs(
            Compiled(isa=isa).exp(
                x,
            )
            - here
        )
        <= 4 * np.finfo(dtype).eps * here
    ).all()
