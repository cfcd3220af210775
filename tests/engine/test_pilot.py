"""The pilot against its definition, from the whole kernel matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import Case, clustered

from approxkmv.engine.pilot import Pilot, run_pilot
from approxkmv.leaves import FoundPairs

THRESHOLD = 0.03


def pilot_of(case: Case, x: np.ndarray, **options: Any) -> Pilot:
    settings = {"rows_per_block": 5, "threshold": THRESHOLD, "rng": np.random.default_rng(0)}
    return run_pilot(
        case.geometry,
        x,
        case.query_blocks,
        case.key_tiles,
        **(settings | options),
        n_threads=2,
    )


@pytest.mark.parametrize("differences", [False, True])
def test_sums_equal_their_definition(dtype: Any, differences: bool) -> None:
    """Products, sums of squares below the threshold, and all pairs above it, of the drawn rows.

    Values below the normal numbers may be 0 in the tiles.
    """
    case = clustered(dtype=dtype, differences=differences)
    # Near values are kept in float32; sums of 400 terms.
    error = case.rounding(dtype) + 400 * float(np.finfo(dtype).eps) + 2e-7
    x = np.random.default_rng(1).standard_normal(400).astype(dtype)
    pilot = pilot_of(case, x)
    rows = case.K[pilot.rows]
    assert pilot.threshold == THRESHOLD
    assert len(pilot.rows) == 5 * len(case.query_blocks.sizes)
    assert len(set(pilot.rows)) == len(pilot.rows)
    np.testing.assert_array_equal(pilot.block_of, case.query_blocks.block_of[pilot.rows])
    assert (np.abs(pilot.products - rows @ x) <= error * (rows @ np.abs(x))).all()

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
    light = np.where(near, 0.0, rows**2) @ member
    # The light sum is a difference of rounded sums over the tile.
    flushed = 400 * float(np.finfo(dtype).smallest_normal)
    assert (np.abs(pilot.light - light) <= 3 * error * (rows**2 @ member) + flushed).all()

    per_pair = pilot.per_pair(pilot.light)
    for block in range(pilot.n_blocks):
        mine = pilot.light[pilot.block_of == block]
        np.testing.assert_allclose(per_pair[block], mine.mean(axis=0) / case.key_tiles.sizes)


def test_missed_pairs() -> None:
    """Missed are the near pairs that the list does not have; other rows do not matter."""
    case = clustered()
    pilot = pilot_of(case, np.ones(400))
    n_near = len(pilot.near_row)
    assert not pilot.missed(case.pairs(0.01)).any()
    assert pilot.missed(FoundPairs.none(300)).all()
    assert not pilot.missed_squares(case.pairs(THRESHOLD / 2)).any()
    half = case.pairs(0.01, recall=0.5)
    held = np.zeros(case.K.shape, np.bool_)
    held[half.rows, half.cols] = True
    missed = ~held[pilot.rows[pilot.near_row], pilot.near_col]
    assert 0.3 * n_near < missed.sum() < 0.7 * n_near
    np.testing.assert_array_equal(pilot.missed(half), missed)
    squares = np.where((case.K >= THRESHOLD) & ~held, case.K, 0.0)[pilot.rows] ** 2
    member = case.key_tiles.block_of[:, None] == np.arange(len(case.key_tiles.sizes))
    np.testing.assert_allclose(pilot.missed_squares(half), squares @ member, atol=1e-6)


def test_blocks_smaller_than_the_number_of_rows() -> None:
    """All rows of a block of three are taken, once each."""
    case = clustered(9, 64, rows_per_block=3)
    pilot = pilot_of(case, np.ones(64))
    np.testing.assert_array_equal(np.sort(pilot.rows), np.arange(9))


def test_same_bits_on_any_number_of_threads() -> None:
    case, x = clustered(dtype=np.float32), np.ones(400, np.float32)
    pilots = [
        run_pilot(
            case.geometry,
            x,
            case.query_blocks,
            case.key_tiles,
            rows_per_block=3,
            threshold=THRESHOLD,
            rng=np.random.default_rng(0),
            n_threads=n_threads,
        )
        for n_threads in (1, 2, 3, 7)
    ]
    for other in pilots[1:]:
        for name in ("rows", "products", "light", "near_row", "near_col", "near_square"):
            np.testing.assert_array_equal(getattr(pilots[0], name), getattr(other, name))
