"""The pilot against its definition, from the whole kernel matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered

from approxkmv.engine.survey.order import norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.kernel.matrix import gaussian_kernel, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import FoundPairs

THRESHOLD = 0.03


def pilot_of(case: Case, size: np.ndarray, **options: Any) -> Pilot:
    settings = {"rows_per_block": 5, "threshold": THRESHOLD, "rng": np.random.default_rng(0)}
    return run_pilot(
        case.kernel,
        size,
        case.query_blocks,
        case.key_tiles,
        **(settings | options),
    )


@pytest.mark.parametrize("differences", [False, True])
def test_sums_equal_their_definition(dtype: Any, differences: bool) -> None:
    """Sums of squares below the threshold, and all pairs above it, of the drawn rows.

    Values below the normal numbers may be 0 in the tiles.
    """
    case = clustered(dtype=dtype, differences=differences)
    # Near values are kept in float32; sums of 400 terms.
    error = case.rounding(dtype) + 400 * float(np.finfo(dtype).eps) + 2e-7
    size = np.random.default_rng(1).random(400).astype(dtype)
    size[:20] = 0
    pilot = pilot_of(case, size)
    rows = case.K[pilot.rows]
    assert pilot.threshold == THRESHOLD
    assert len(pilot.rows) == 5 * len(case.query_blocks.sizes)
    assert len(set(pilot.rows)) == len(pilot.rows)
    np.testing.assert_array_equal(pilot.block_of, case.query_blocks.block_of[pilot.rows])

    near = rows >= THRESHOLD
    assert (np.abs(rows / THRESHOLD - 1) > error).all()  # no pair is near by rounding
    found = np.zeros_like(near)
    found[pilot.near_row, pilot.near_col] = True
    np.testing.assert_array_equal(found, near)
    assert len(pilot.near_row) == near.sum() > 50
    np.testing.assert_allclose(
        pilot.near_square, rows[pilot.near_row, pilot.near_col] ** 2, rtol=3 * error
    )
    n_tiles = len(case.key_tiles.sizes)
    member = case.key_tiles.block_of[:, None] == np.arange(n_tiles)
    member = member * size.astype(np.float64)[:, None]
    light = np.where(near, 0.0, rows**2) @ member
    # The light sum is a difference of rounded sums over the tile.
    flushed = 400 * float(np.finfo(dtype).smallest_normal)
    assert (np.abs(pilot.light - light) <= 3 * error * (rows**2 @ member) + flushed).all()

    sizes = case.query_blocks.sizes[pilot.block_of]
    np.testing.assert_allclose(pilot.stands_for, sizes / 5)
    per_pair = pilot.per_pair(pilot.light)
    for block in range(pilot.n_blocks):
        mine = pilot.light[pilot.block_of == block]
        np.testing.assert_allclose(per_pair[block], mine.mean(axis=0) / member.sum(axis=0))


def test_missed_pairs() -> None:
    """Missed are the near pairs that the list does not have; other rows do not matter."""
    case = clustered()
    pilot = pilot_of(case, np.ones(400))
    n_near = len(pilot.near_row)
    assert not pilot.missed(case.pairs(0.01)).any()
    assert pilot.missed(FoundPairs.none(300)).all()
    half = case.pairs(0.01, recall=0.5)
    held = np.zeros(case.K.shape, np.bool_)
    held[half.rows, half.cols] = True
    missed = ~held[pilot.rows[pilot.near_row], pilot.near_col]
    assert 0.3 * n_near < missed.sum() < 0.7 * n_near
    np.testing.assert_array_equal(pilot.missed(half), missed)
    squares = np.where((case.K >= THRESHOLD) & ~held, case.K, 0.0)[pilot.rows] ** 2
    member = case.key_tiles.block_of[:, None] == np.arange(len(case.key_tiles.sizes))
    np.testing.assert_allclose(
        pilot.near_sums(pilot.missed(half), pilot.near_square), squares @ member, atol=1e-6
    )


def test_blocks_smaller_than_the_number_of_rows() -> None:
    """All rows of a block of three are taken, once each."""
    case = clustered(9, 64, rows_per_block=3)
    pilot = pilot_of(case, np.ones(64))
    np.testing.assert_array_equal(np.sort(pilot.rows), np.arange(9))
    assert (pilot.stands_for == 1).all()


def test_a_point_and_itself_are_not_apart() -> None:
    """Where the queries are the keys; two equal points are apart all the same."""
    points = np.repeat(np.random.default_rng(0).standard_normal((50, 3)), 2, axis=0)
    for keys in (points, points.copy()):
        kernel = prepare(points, keys, 0.1)
        blocks, tiles = norm_order(kernel.geometry, 25, 25)
        pilot = run_pilot(
            kernel,
            np.ones(100),
            blocks,
            tiles,
            rows_per_block=5,
            threshold=0.5,
            rng=np.random.default_rng(0),
        )
        same = pilot.rows[pilot.near_row] == pilot.near_col
        assert same.sum() == len(pilot.rows) == (~same).sum()
        np.testing.assert_array_equal(pilot.apart, ~same if keys is points else True)


@pytest.mark.parametrize("repeated", [False, True])
def test_threshold_rises_where_too_many_pairs_are_near(repeated: bool) -> None:
    """No list is much longer than 48 pairs per row; what is no longer near counts as light."""
    points = np.random.default_rng(0).standard_normal((2000, 2))
    if repeated:
        points = np.repeat(points[:8], 250, axis=0)
    kernel = prepare(points, points, 0.5)
    blocks, tiles = norm_order(kernel.geometry, 100, 100)
    pilot = run_pilot(
        kernel,
        np.ones(2000),
        blocks,
        tiles,
        rows_per_block=4,
        threshold=0.01,
        rng=np.random.default_rng(0),
    )
    squares = gaussian_kernel(points[pilot.rows], points, 0.5) ** 2
    assert ((squares >= 0.01**2).sum(axis=1) > 48).mean() > 0.5
    assert pilot.threshold > 0.01
    assert len(pilot.near_row) <= 2.2 * 48 * len(pilot.rows)
    assert (pilot.near_square >= pilot.threshold**2 * (1 - 1e-6)).all()
    sums = pilot.light + pilot.near_sums(np.ones(len(pilot.near_row), np.bool_), pilot.near_square)
    np.testing.assert_allclose(sums.sum(axis=1), squares.sum(axis=1), rtol=1e-5)


def test_same_bits_on_any_number_of_threads() -> None:
    case = clustered(dtype=np.float32)
    pilots = [
        run_pilot(
            replace(case.kernel, backend=Compiled(n_threads)),
            np.ones(400, np.float32),
            case.query_blocks,
            case.key_tiles,
            rows_per_block=3,
            threshold=THRESHOLD,
            rng=np.random.default_rng(0),
        )
        for n_threads in (1, 2, 3, 7)
    ]
    for other in pilots[1:]:
        for name in ("rows", "light", "near_row", "near_col", "near_square"):
            np.testing.assert_array_equal(getattr(pilots[0], name), getattr(other, name))
