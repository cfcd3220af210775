from __future__ import annotations

import numpy as np
import pytest

from approxkmv.engine.survey.moments import moving_mean


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("width", [1, 3, 13])
def test_moving_mean(n: int, width: int) -> None:
    """Means of padded windows, along either axis; the given array is not changed."""
    values = np.random.default_rng(n).standard_normal((n, 3))
    before = values.copy()
    half = width // 2
    padded = np.pad(values, ((half, half), (0, 0)), mode="edge")
    want = np.array([padded[i : i + width].mean(axis=0) for i in range(n)])
    np.testing.assert_allclose(moving_mean(values, width), want, atol=1e-15)
    np.testing.assert_allclose(moving_mean(values.T, width, axis=1), want.T, atol=1e-15)
    np.testing.assert_array_equal(values, before)


def test_a_small_mean_next_to_a_large_one() -> None:
    """A running sum of all would leave nothing of it."""
    values = np.array([1e-30] * 5 + [1.0] + [1e-30] * 5)
    np.testing.assert_allclose(moving_mean(values, 3)[[0, -1]], 1e-30)
