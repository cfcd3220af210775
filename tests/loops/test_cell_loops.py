"""The compiled loops of the search by cells against their NumPy twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_sampled_product import engine_case, geometry_of, in_order, some_pairs

from approxkmv.kernel.matrix import prepare
from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize(("m", "n", "width"), [(1, 1, 1), (5, 3, 3), (130, 700, 12), (97, 33, 5)])
def test_nearest_keys(m: int, n: int, width: int, dtype: Any, isa: str, differences: bool) -> None:
    """The same keys, or others as near to rounding; for any number of threads the same bits."""
    geometry = geometry_of(engine_case(m, n, 9, dtype, differences))
    twin = reference.nearest_keys(geometry, width)
    exponents = reference._exponents(geometry)
    runs = [
        Compiled(n_threads, isa).nearest_keys(
            geometry,
            width,
        )
        for n_threads in (1, 2, 7)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])
    rows = np.arange(m)[:, None]
    allowed = 100 * np.finfo(dtype).eps * (1 + np.abs(exponents).max())
    gap = np.abs(exponents[rows, runs[0]] - exponents[rows, twin])
    assert gap.max() <= allowed
    assert all(len(set(row)) == width for row in runs[0].tolist())


def test_nearest_keys_of_equals_are_the_first(dtype: Any, isa: str) -> None:
    points = np.ones((3, 4), dtype)
    kernel = prepare(points, np.ones((300, 4), dtype), 1.0)
    found = Compiled(isa=isa).nearest_keys(
        kernel.geometry,
        4,
    )
    np.testing.assert_array_equal(found, [[0, 1, 2, 3]] * 3)


def test_a_query_beyond_all_bounds_gets_some_keys(isa: str) -> None:
    kernel = prepare(np.full((2, 3), 3e30, np.float32), np.zeros((9, 3), np.float32), 1.0)
    found = Compiled(isa=isa).nearest_keys(
        kernel.geometry,
        5,
    )
    assert ((found >= 0) & (found < 9)).all()


@pytest.mark.parametrize("width", [1, 3, 100])
def test_linked_pairs(width: int, dtype: Any, isa: str) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((300, 5)).astype(dtype)
    keys = rng.standard_normal((80, 5)).astype(dtype)
    known, links = some_pairs(300, 80, 0.05), some_pairs(80, 80, 0.1, seed=1)
    arguments: Any = (queries, keys, 1.5, known, links)
    twin = in_order(*reference.linked_pairs(*arguments, width=width, threshold=0.2))
    for n_threads in (1, 2, 7):
        ours = in_order(
            *Compiled(n_threads, isa).linked_pairs(
                *arguments,
                width=width,
                threshold=0.2,
            )
        )
        np.testing.assert_array_equal(ours[0], twin[0])
        np.testing.assert_array_equal(ours[1], twin[1])
        np.testing.assert_allclose(ours[2], twin[2], rtol=1e-5)
