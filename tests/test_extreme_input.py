"""Extreme but legal input: right, or an error that says what is wrong with it; never NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
