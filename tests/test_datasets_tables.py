"""Generators of tables, pictures and curves: seeded, and with the structure they promise."""

from __future__ import annotations

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.datasets import curves, image_patches, repeated_rows


def test_patches_are_windows_of_the_picture() -> None:
    picture = np.random.default_rng(0).random((9, 7, 3))
    patches = image_patches(picture, 4, rng=1, dtype=np.float64)
    assert patches.shape == (6 * 4, 48)
    channels_first = {
        tuple(picture[i : i + 4, j : j + 4].transpose(2, 0, 1).ravel())
        for i in range(6)
        for j in range(4)
    }
    assert set(map(tuple, patches)) == channels_first
    some = image_patches(picture, 4, n=5, rng=1, dtype=np.float64)
    np.testing.assert_array_equal(some, patches[:5])
    assert image_patches(picture[:, :, 0], 2).dtype == np.float32
    with pytest.raises(ValueError, match="hold a window of 10 x 10 pixels, got shape"):
        image_patches(picture, 10)


def test_rows_repeat_as_often_as_promised() -> None:
    points = repeated_rows(20_000, 12, n_distinct=5000, rng=0)
    number = np.sort(np.unique(points, axis=0, return_counts=True)[1])[::-1]
    assert len(number) == 5000
    assert number[0] > 500 > 5 > number[2500]
    np.testing.assert_allclose(points.std(axis=0), 1, rtol=1e-4)
    np.testing.assert_array_equal(points, repeated_rows(20_000, 12, n_distinct=5000, rng=0))
    assert not np.array_equal(points, repeated_rows(20_000, 12, n_distinct=5000, rng=1))
    _, info = akmv.matvec(points, None, points[:, 0], bandwidth=1.0, return_info=True, rng=0)
    assert info.plan.numbers["distinct_keys"] == 5000


def test_curves_are_curves() -> None:
    """Twice as many points are nearly half as far from their nearest neighbour."""
    nearest = []
    for n in (1000, 2000, 4000):
        points = curves(n, 3, noise=0.0, rng=0, dtype=np.float64)
        assert points.shape == (n, 3)
        squares = ((points[:200, None] - points[None]) ** 2).sum(axis=-1)
        nearest.append(np.sqrt(np.sort(squares, axis=1)[:, 1]).mean())
    assert 0.35 < nearest[1] / nearest[0] < 0.65
    assert 0.35 < nearest[2] / nearest[1] < 0.65
    np.testing.assert_array_equal(curves(50, rng=3), curves(50, rng=3))
