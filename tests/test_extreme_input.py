"""Extreme but legal input: right, or an error that says what is wrong with it; never NaN."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import approxkmv as akmv


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are looked at, as large ones are."""
    monkeypatch.setattr("approxkmv.engine.outcome._SMALLEST_WORK", 0)


@pytest.mark.parametrize("shape", [(4000,), (4000, 3), (4000, 0)])
@pytest.mark.parametrize("return_info", [False, True])
@pytest.mark.usefixtures("looked_at")
def test_rtol_of_nothing(shape: tuple[int, ...], return_info: bool, dtype: Any) -> None:
    """Nothing times a matrix is exactly nothing, however small an error is asked for."""
    points = np.random.default_rng(0).standard_normal((4000, 8)).astype(dtype)
    y = akmv.matvec(
        points, None, np.zeros(shape, dtype), bandwidth=4.0, rtol=0.1, return_info=return_info
    )
    found = y[0] if return_info else y
    np.testing.assert_array_equal(found, np.zeros(shape))


POINTS = np.random.default_rng(0).standard_normal((40, 3))
ONES = np.ones(40)


@pytest.mark.parametrize("huge", [10**400, -(10**400), 10**5000], ids=["1", "-1", "long"])
@pytest.mark.parametrize("name", ["bandwidth", "eps", "rtol", "delta", "max_seconds"])
def test_a_number_beyond_all_floats(name: str, huge: int) -> None:
    """Whole numbers that no float can hold are values that do not fit, not an overflow."""
    with pytest.raises(ValueError, match=rf"{name} must be below 1.8e308, got about 2\*\*\d+\."):
        akmv.matvec(POINTS, None, ONES, **({"bandwidth": 1.0} | {name: huge}))


@pytest.mark.parametrize("threads", [2**31, 10**30, 10**5000], ids=["31", "30", "5000"])
def test_more_threads_than_can_be_counted(threads: int) -> None:
    """The rule is ours, not that of the compiled loops."""
    with pytest.raises(ValueError, match="n_threads must be at most 2147483647, got "):
        akmv.matvec(POINTS, None, ONES, bandwidth=1.0, n_threads=threads)


Taker = Callable[[Any], Any]
# Every public function, with its array arguments one at a time.
TAKERS: dict[str, Taker] = {
    "matvec queries": lambda a: akmv.matvec(a, POINTS, ONES, bandwidth=1.0),
    "matvec keys": lambda a: akmv.matvec(POINTS, a, ONES, bandwidth=1.0),
    "matvec x": lambda a: akmv.matvec(POINTS, None, a, bandwidth=1.0),
    "row_sums queries": lambda a: akmv.row_sums(a, bandwidth=1.0),
    "log_row_sums keys": lambda a: akmv.log_row_sums(POINTS, a, bandwidth=1.0),
    "log_row_sums weights": lambda a: akmv.log_row_sums(POINTS, bandwidth=1.0, weights=a[:, 0]),
    "GaussianKernel queries": lambda a: akmv.GaussianKernel(a, bandwidth=1.0) @ ONES,
    "diagnose queries": lambda a: akmv.diagnose(a, bandwidth=1.0).c,
    "attention query": lambda a: akmv.attention(a, POINTS, POINTS),
    "attention key": lambda a: akmv.attention(POINTS, a, POINTS),
    "attention value": lambda a: akmv.attention(POINTS, POINTS, a),
    "attention attn_mask": lambda a: akmv.attention(POINTS, POINTS, POINTS, attn_mask=a[:, :1]),
    "solve b": lambda a: akmv.solve(akmv.GaussianKernel(POINTS, bandwidth=1.0), a, noise=1.0)[0],
    "solve noise": lambda a: akmv.solve(
        akmv.GaussianKernel(POINTS, bandwidth=1.0), ONES, noise=a[:, 0]
    )[0],
    "top_eigenvalue K": lambda a: akmv.spectrum.top_eigenvalue(a, bandwidth=1.0).eigenvalue,
    "AttentionMatrix query": lambda a: akmv.spectrum.AttentionMatrix(a, POINTS) @ ONES,
    "attention_singular_values key": lambda a: akmv.spectrum.attention_singular_values(
        POINTS, a, k=2, rng=0
    ),
    "KernelDensity.fit X": lambda a: akmv.sklearn.KernelDensity().fit(a).score_samples(POINTS),
    "KernelDensity.score_samples X": lambda a: (
        akmv.sklearn.KernelDensity().fit(POINTS).score_samples(a)
    ),
    "KernelDensity.fit sample_weight": lambda a: (
        akmv.sklearn.KernelDensity().fit(POINTS, sample_weight=a[:, 0]).score_samples(POINTS)
    ),
    "KernelRidge.fit X": lambda a: akmv.sklearn.KernelRidge().fit(a, ONES).dual_coef_,
    "KernelRidge.fit y": lambda a: akmv.sklearn.KernelRidge().fit(POINTS, a).dual_coef_,
    "KernelRidge.predict X": lambda a: akmv.sklearn.KernelRidge().fit(POINTS, ONES).predict(a),
    "GaussianProcessRegressor.fit X": lambda a: (
        akmv.sklearn.GaussianProcessRegressor().fit(a, ONES).alpha_
    ),
    "paper.approx_kmv queries": lambda a: akmv.paper.approx_kmv(
        a, POINTS, ONES, bandwidth=1.0, eps=0.3, rng=0
    ),
}
POSITIVE = np.abs(POINTS) + 0.1


@pytest.mark.parametrize("name", TAKERS)
def test_masked_entries_are_refused(name: str) -> None:
    """What is under a mask is no data; an array of which nothing is masked is plain."""
    masked = np.ma.masked_array(POSITIVE, mask=np.zeros(POSITIVE.shape, bool))
    np.testing.assert_array_equal(TAKERS[name](masked), TAKERS[name](POSITIVE))
    masked[2, 0] = np.ma.masked
    argument = name.split()[1]
    with pytest.raises(ValueError, match=rf"{argument} must have no masked entries, .*\[2"):
        TAKERS[name](masked)


@pytest.mark.parametrize("name", TAKERS)
def test_tensors_that_require_a_gradient_are_refused(name: str) -> None:
    """It would be lost; where no gradients are recorded there is none to lose."""
    tensor = torch.tensor(POSITIVE, requires_grad=True)
    message = rf"{name.split()[1]} must not require a gradient.*\.detach\(\)"
    with pytest.raises(ValueError, match=message):
        TAKERS[name](tensor)
    expected = TAKERS[name](POSITIVE)
    with torch.no_grad():
        np.testing.assert_array_equal(TAKERS[name](tensor), expected)
    np.testing.assert_array_equal(TAKERS[name](tensor.detach()), expected)


FEW_GIGABYTES = """
import resource
import numpy as np, approxkmv as akmv
points = np.random.default_rng(0).standard_normal((3000, 8))
expected = akmv.attention(points, points, points, eps=0)
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
found = akmv.attention(points, points, points, eps=0, n_threads=2**31 - 1)
assert np.array_equal(found, expected)
"""


def test_memory_does_not_grow_with_idle_threads() -> None:
    """No more scratch than there are tasks, however many threads are allowed."""
    run = subprocess.run([sys.executable, "-c", FEW_GIGABYTES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
