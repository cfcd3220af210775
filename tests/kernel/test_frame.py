"""The frame: where the origin is put, how coordinates are scaled, in which form distances come."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from approxkmv.kernel.frame import make_frame, within_reach
from approxkmv.loops.compiled import Compiled


def cloud(n: int, d: int, dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def frame_of(keys: np.ndarray, bandwidth: float) -> Any:
    return make_frame(keys, bandwidth, float(np.abs(keys).max(initial=0.0)), backend=Compiled())


def test_centre_is_among_the_keys_and_form_is_inner_products(dtype: Any) -> None:
    """An offset is taken out: the frame of moved keys is the moved frame."""
    keys = cloud(500, 8, dtype)
    plain, moved = frame_of(keys, 2.0), frame_of(keys + dtype.type(512), 2.0)
    assert not plain.differences
    assert not moved.differences
    np.testing.assert_allclose(moved.centre - 512, plain.centre, atol=600 * np.finfo(dtype).eps)
    assert moved.radius == pytest.approx(plain.radius, rel=1e-2)


@pytest.mark.parametrize("bandwidth", [1e-30, 1e-3, 0.3, 1.0, 7.0, 1e30])
def test_factor_is_a_power_of_two_that_brings_the_bandwidth_near_one(
    dtype: Any, bandwidth: float
) -> None:
    keys = (bandwidth * cloud(50, 3, np.float64)).astype(dtype)
    frame = frame_of(keys, bandwidth)
    assert math.frexp(frame.factor)[0] == 0.5
    assert 0.5 <= bandwidth * frame.factor < 1
    assert frame.slope == pytest.approx((bandwidth * frame.factor) ** -2)
    assert frame.radius == pytest.approx(
        np.sqrt(Compiled().squared_norms(keys, frame.centre, 1.0 / bandwidth).max()), rel=1e-6
    )


def test_far_keys_are_compared_by_differences(dtype: Any) -> None:
    """Two clusters far apart leave no good origin: differences of raw coordinates, no shift."""
    keys = cloud(100, 4, dtype)
    keys[50:] += dtype.type(1e6)
    frame = frame_of(keys, 1.0)
    assert frame.differences
    assert (frame.centre == 0).all()
    assert (frame.shift(keys, Compiled()) == 0).all()
    assert frame.slope < 0


def test_far_keys_are_found_and_left_out(dtype: Any) -> None:
    """The frame of the others is theirs, whatever the far keys are."""
    keys, far = cloud(1000, 4, dtype), np.array([3, 500, 999])
    keys[far] += dtype.type(1e5)
    found = within_reach(keys, 1.0, 3, Compiled())
    assert found is not None
    frame, left_out = found
    np.testing.assert_array_equal(left_out, far)
    assert not frame.differences
    assert frame.radius < 10
    assert frame_of(keys, 1.0).differences
    assert within_reach(keys, 1.0, 2, Compiled()) is None


def test_one_far_key_does_not_move_the_centre(dtype: Any) -> None:
    """A mean would move by 15/101 = 0.15; the median moves to a neighbouring key at most."""
    keys = cloud(101, 4, dtype)
    before = frame_of(keys, 1.0)
    keys[17] = 15.0
    after = frame_of(keys, 1.0)
    assert not after.differences
    np.testing.assert_allclose(after.centre, before.centre, atol=0.07)


def test_choice_depends_on_the_keys_only() -> None:
    """The largest coordinate of the queries scales by a power of two and changes nothing else."""
    keys = cloud(100, 4, np.float32)
    small, large = (make_frame(keys, 1.0, largest, backend=Compiled()) for largest in (5.0, 1e19))
    assert small.differences == large.differences
    np.testing.assert_array_equal(small.centre, large.centre)
    assert small.slope * small.factor**2 == large.slope * large.factor**2


def test_shift_is_half_the_squared_norm_in_bandwidths(dtype: Any) -> None:
    keys = cloud(60, 5, dtype)
    frame = frame_of(keys, 0.7)
    exact = 0.5 * (((keys.astype(np.float64) - frame.centre) / 0.7) ** 2).sum(axis=1)
    np.testing.assert_allclose(frame.shift(keys, Compiled()), exact, rtol=4 * np.finfo(dtype).eps)


def test_a_point_beyond_every_key_gets_an_infinite_shift() -> None:
    """Its kernel values are 0, and its products would overflow."""
    keys = cloud(60, 5, np.float32)
    frame = make_frame(keys, 1.0, 1e19, backend=Compiled())
    shift = frame.shift(np.array([[1e19] * 5, [0.0] * 5], np.float32), Compiled())
    assert shift[0] == np.inf
    assert np.isfinite(shift[1])


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (0, 0)])
def test_empty_keys(dtype: Any, shape: tuple[int, int]) -> None:
    frame = frame_of(np.zeros(shape, dtype), 1.0)
    assert frame.radius == 0
    assert not frame.differences


def test_differences_can_be_asked_for(dtype: Any) -> None:
    """Near keys by differences too: the form in which a check is computed."""
    keys = cloud(50, 3, dtype)
    frame = make_frame(keys, 1.0, float(np.abs(keys).max()), differences=True, backend=Compiled())
    assert frame.differences
    assert frame.slope * frame.factor**2 == -0.5
