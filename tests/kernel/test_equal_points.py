"""Equal points are found exactly, whatever their hashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from approxkmv.kernel.equal_points import copies_of, find_copies


def repeated(n: int, n_distinct: int, d: int, dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    points = (
        rng.integers(-2, 3, (n_distinct, d)) if d < 12 else rng.standard_normal((n_distinct, d))
    )
    return points.astype(dtype)[rng.integers(0, n_distinct, n)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 5, 12, 33])
def test_copies_are_those_of_numpy(d: int, dtype: Any) -> None:
    """As many distinct points as NumPy finds by sorting, each as often, in order of appearance."""
    points = repeated(3000, 900, d, dtype)
    copies = find_copies(points)
    assert copies is not None
    first, number = np.unique(points, axis=0, return_index=True, return_counts=True)[1:]
    np.testing.assert_array_equal(copies.distinct, points[np.sort(first)])
    np.testing.assert_array_equal(copies.number, number[np.argsort(first)])
    np.testing.assert_array_equal(copies.distinct[copies.place], points)


@pytest.mark.parametrize("n_hashes", [1, 3, 40])
def test_points_of_one_hash_that_differ_are_not_merged(n_hashes: int) -> None:
    """Equal points have equal hashes, and so may others."""
    points = repeated(500, 60, 12, np.float32)
    hashes = (points[:, 0].view(np.uint32) % n_hashes).astype(np.uint64)
    copies = copies_of(points, hashes)
    np.testing.assert_array_equal(copies.distinct[copies.place], points)
    np.testing.assert_array_equal(copies.number, np.bincount(copies.place))
    assert len(copies.distinct) < 500


def test_numbers_that_differ_in_their_leading_bits_only() -> None:
    """Whole numbers in double precision end with fifty zeros: their hashes differ all the same."""
    grid = np.stack(np.meshgrid(*[np.arange(-16.0, 16.0)] * 3), axis=-1).reshape(-1, 3)
    copies = find_copies(np.concatenate([grid, grid[::-1]]))
    assert copies is not None
    assert len(copies.distinct) == len(grid)
    assert (copies.number == 2).all()


def test_zeros_of_both_signs_are_equal_and_nan_is_not() -> None:
    points = np.array([[0.0, 1.0], [-0.0, 1.0], [np.nan, 1.0], [np.nan, 1.0], [2.0, np.inf]] * 2)
    copies = find_copies(points)
    assert copies is not None
    assert len(copies.distinct) == 6
    np.testing.assert_array_equal(copies.number, [4, 1, 1, 2, 1, 1])
    np.testing.assert_array_equal(copies.distinct[copies.place], points)


def test_hardly_any_equal_points_are_none() -> None:
    """Also where only coordinates that are not looked at first tell points apart."""
    rng = np.random.default_rng(0)
    points = np.zeros((4000, 40), np.float32)
    points[:, 1] = rng.standard_normal(4000)
    assert find_copies(points) is None
    assert find_copies(np.concatenate([points, points[:100]])) is None
    assert find_copies(np.concatenate([points, points])) is not None
    assert find_copies(points[:0]) is None
    assert find_copies(np.zeros((5, 0))) is None


def test_sums_are_those_of_double_precision() -> None:
    """In float32 the sum of a large number, many small ones and its negative would be 0."""
    copies = find_copies(np.array([[1.0], [2.0]], np.float32)[np.tile([0, 1], 1001)])
    assert copies is not None
    x = np.full((2002, 2), 1e-3, np.float32)
    x[0], x[2] = 1e6, -1e6
    exact = np.stack([x[0::2].astype(float).sum(axis=0), x[1::2].astype(float).sum(axis=0)])
    np.testing.assert_array_equal(copies.summed(x), exact.astype(np.float32))
    np.testing.assert_array_equal(copies.copied(np.array([5.0, 7.0]))[:3], [5.0, 7.0, 5.0])
