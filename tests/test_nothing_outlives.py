"""A call keeps nothing of its inputs: memory is free at once, not at the next collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.datasets import clusters

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "exact": lambda p, x: akmv.matvec(p, p, x, bandwidth=2.1, method="exact", return_info=True),
    "auto": lambda p, x: akmv.matvec(p, p, x, bandwidth=2.1, rng=0, return_info=True),
    "sampled": lambda p, x: akmv.matvec(
        p, p, x, bandwidth=2.1, eps=0.3, rng=0, method="sampled", return_info=True
    ),
    "dense": lambda p, x: akmv.matvec(p, p, x, bandwidth=20.0, rtol=0.1, rng=0, return_info=True),
    "row_sums": lambda p, x: akmv.row_sums(p, bandwidth=2.1),
    "attention": lambda p, x: akmv.attention(p, p, p, eps=0.3, rng=0, return_info=True),
}


@pytest.mark.usefixtures("any_size")
@pytest.mark.filterwarnings("ignore:The exact product was computed")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_points_are_free_when_the_call_returns(call: Callable[[Any, Any], Any]) -> None:
    points = clusters(4096, 64, rng=0).keys.copy()
    kept = weakref.ref(points)
    gc.collect()
    gc.disable()
    try:
        result = call(points, np.ones(4096, np.float32))
        del points
        assert kept() is None
    finally:
        gc.enable()
    assert result is not None
