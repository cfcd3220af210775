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
