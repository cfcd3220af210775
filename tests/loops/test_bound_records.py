"""Named tuples as the compiled core reads them: by the names and types of their fields."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from approxkmv.functions import GAUSSIAN
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Geometry, PairKernel

RNG = np.random.default_rng(0)
KERNEL = PairKernel(RNG.standard_normal((5, 3)), RNG.standard_normal((7, 3)), -0.5, GAUSSIAN)
ROWS, COLS = np.array([0, 4]), np.array([6, 1])


def pair_kernel(kernel: Any, backend: Any = None) -> np.ndarray:
    from approxkmv import _core

    out = np.empty(2)
    _core.pair_kernel(kernel, ROWS, COLS, out, backend or Compiled())
    return out


def test_order_does_not_matter() -> None:
    """Any object with the attributes is one; these are in another order than the named tuple's."""
    kernel = SimpleNamespace(
        function=GAUSSIAN, slope=KERNEL.slope, keys=KERNEL.keys, queries=KERNEL.queries
    )
    r2 = np.square(KERNEL.queries[ROWS] - KERNEL.keys[COLS]).sum(axis=1)
    np.testing.assert_allclose(pair_kernel(kernel), np.exp(-0.5 * r2), rtol=1e-14)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": KERNEL.queries.astype(np.float32)},  # not the type of the keys
        {"queries": KERNEL.queries[:, ::2]},  # not contiguous
        {"keys": KERNEL.keys[0]},  # a vector
        {"keys": KERNEL.keys.tolist()},
        {"slope": "steep"},
        {"slope": None},
    ],
)
def test_a_wrong_field_is_a_type_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="PairKernel"):
        pair_kernel(KERNEL._replace(**wrong))


@pytest.mark.parametrize("missing", PairKernel._fields)
def test_a_missing_field_is_a_type_error(missing: str) -> None:
    fields = KERNEL._asdict()
    del fields[missing]
    with pytest.raises(TypeError, match="PairKernel"):
        pair_kernel(SimpleNamespace(**fields))


def test_a_backend_without_threads() -> None:
    with pytest.raises(TypeError, match="Compiled"):
        pair_kernel(KERNEL, SimpleNamespace(isa="baseline", check=None))


def test_numbers_are_converted() -> None:
    """A NumPy number, and one that float32 cannot hold exactly, are numbers."""
    points = RNG.standard_normal((4, 3)).astype(np.float32)
    norms = np.square(points.astype("f8")).sum(axis=1) / 2
    geometry = Geometry(
        points, points, norms, norms, np.zeros(3), np.float64(1), np.float32(1), False
    )
    assert Compiled().nearest_keys(geometry, 1)[:, 0].tolist() == [0, 1, 2, 3]
    tenth = geometry._replace(slope=0.1, query_shift=0.1 * norms, key_shift=0.1 * norms)
    assert Compiled().nearest_keys(tenth, 1)[:, 0].tolist() == [0, 1, 2, 3]
