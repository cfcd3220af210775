"""Every kernel against its definition: formulas, tiles, single pairs, and their twins.

Tolerances are worst-case rounding bounds: those of the exponents (`test_tile.exponents`), handed
through the kernel itself, and counted operations of its formula.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from approxkmv.functions import NAMED, KernelFunction, RationalQuadratic, restored
from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Geometry
from tests.loops.test_tile import case, exponents

ALPHAS = [0.05, 0.5, 0.7, 1.5, 3.0, 4.5, 1e6]
KERNELS = [*NAMED.values(), *map(RationalQuadratic, ALPHAS)]
WITH_NAMES = {"argvalues": KERNELS, "ids": lambda kernel: kernel.shown.replace(", ", "-")}


def of_points(m: int, n: int, r: int, d: int, dtype: Any, differences: bool) -> dict[str, Any]:
    """A product whose exponents are at most 0: those of half the squared distance."""
    a = case(m, n, r, d, dtype, differences=differences)
    a["query_centre"] = a["key_centre"] = np.full(d, 0.5)
    a |= {"slope": -0.5 if differences else 1.0, "ceiling": 0.0, "factor": 1.0}
    a["query_shift"], a["key_shift"] = (
        np.zeros(len(p)) if differences else 0.5 * Compiled().squared_norms(p, a["key_centre"], 1.0)
        for p in (a["queries"], a["keys"])
    )
    return a


def formula_error(values: np.ndarray, unit: float) -> np.ndarray:
    """Relative error of a value whose exponent is exact: a power, its logarithm, a polynomial."""
    with np.errstate(divide="ignore"):
        logs = np.where(values > 0, -np.log(values), 0.0)
    return np.asarray(unit * (16 + 8 * (logs + 2 * np.log1p(logs) + 2)))


def check(a: dict[str, Any], function: KernelFunction, isa: str, n_threads: int = 1) -> None:
    got = Compiled(n_threads, isa).tile_product(**a, row_sums=True, function=function)
    want = reference.tile_product(**a, row_sums=True, function=function)
    kind = np.finfo(a["keys"].dtype)
    unit = float(kind.eps) / 2
    t, t_error = exponents(a)
    values = function.value(np.minimum(t, 0.0))
    around = function.value(np.minimum(t + t_error, 0.0)) - function.value(t - t_error)
    lost = float(kind.smallest_normal) * 1e6  # a power that is 0 too early, times a polynomial
    error = around + values * (formula_error(values, unit) + len(a["keys"]) * unit) + lost
    assert got.totals is not None
    assert want.totals is not None
    assert (np.abs(got.totals - want.totals) <= error.sum(axis=1)).all()
    bound = error @ np.abs(a["x"].astype(np.float64))
    assert got.out.dtype == kind.dtype
    assert (np.abs(got.out - want.out) <= bound).all(), np.max(np.abs(got.out - want.out) / bound)


@pytest.mark.parametrize("function", **WITH_NAMES)
@pytest.mark.parametrize("differences", [False, True])
def test_tile(isa: str, dtype: Any, function: KernelFunction, differences: bool) -> None:
    """Sizes around strips, groups and panels; one column, few and many."""
    columns = itertools.cycle([1, 3, 4, 5, 20])
    for m, n in itertools.product([1, 13, 97], [1, 50, 300]):
        check(of_points(m, n, next(columns), 3, dtype, differences), function, isa)
    check(of_points(50, 300, 0, 70, dtype, differences), function, isa, n_threads=2)


@pytest.mark.parametrize("function", **WITH_NAMES)
def test_formulas(isa: str, dtype: Any, function: KernelFunction) -> None:
    """Distances of all sizes: from those whose squares underflow to those whose squares overflow.

    Each query meets the key at 0; a wrong value would be the whole of its sum.
    """
    kind = np.finfo(dtype)
    most = (
        0.4 * kind.maxexp * min(function.parameter, 1.0) if not function.vanishes else kind.maxexp
    )
    r = np.exp2(np.linspace(0.9 * kind.minexp, most - 2, 700)).astype(dtype)[:, None]
    got = Compiled(1, isa).tile_product(
        r, np.zeros_like(r[:1]), np.ones((1, 1), dtype),
        query_shift=np.zeros(len(r)), key_shift=np.zeros(1), slope=-0.5, ceiling=0.0,
        differences=True, function=function,
    ).out[:, 0]  # fmt: skip
    with np.errstate(over="ignore", under="ignore"):
        t = -0.5 * r[:, 0].astype(np.longdouble) ** 2
        want = function.value(np.maximum(t, -1e300).astype(np.float64))
    unit = float(kind.eps) / 2
    lost = float(kind.smallest_normal) * (1e6 if function.vanishes else 1)
    assert (np.abs(got - want) <= want * formula_error(want, unit) * 2 + lost).all()
    assert (np.diff(got) <= 4 * unit * got[:-1]).all()  # it falls
    assert got[0] == 1


@pytest.mark.parametrize("function", **WITH_NAMES)
def test_equal_points_nan_and_nothing(isa: str, dtype: Any, function: KernelFunction) -> None:
    """Distance 0 is 1 to the bit by differences; NaN stays where it is; padding adds nothing."""
    points = np.random.default_rng(0).standard_normal((37, 5)).astype(dtype)
    queries = points.copy()
    queries[3, 2] = np.nan

    def product(q: np.ndarray, k: np.ndarray) -> Any:
        x, zeros = np.eye(len(k), dtype=dtype), (np.zeros(len(q)), np.zeros(len(k)))
        return Compiled(1, isa).tile_product(
            q, k, x, query_shift=zeros[0], key_shift=zeros[1], slope=-0.5, ceiling=0.0,
            differences=True, function=function, row_sums=True,
        )  # fmt: skip

    got = product(queries, points).out
    whole = np.arange(37) != 3
    assert (got.diagonal()[whole] == 1).all()
    assert np.isnan(got[3]).all()
    assert np.isfinite(got[whole]).all()
    one = product(points[:3], points[:1])
    np.testing.assert_array_equal(one.totals, one.out[:, 0])
    assert one.out[0, 0] == 1


@pytest.mark.parametrize("function", **WITH_NAMES)
def test_pairs(isa: str, dtype: Any, function: KernelFunction) -> None:
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((40, 7)).astype(dtype), rng.standard_normal((50, 7)).astype(dtype)
    rows, cols = rng.integers(40, size=500), rng.integers(50, size=500)
    got = Compiled(1, isa).pair_kernel(q, k, rows, cols, 0.8, function)
    want = reference.pair_kernel(q, k, rows, cols, 0.8, function)
    # Distances are summed in the type of the points, kernels computed in double precision.
    error = 12 * float(np.finfo(dtype).eps) * 40 + 1e-13
    np.testing.assert_allclose(got, want, rtol=error)


@pytest.mark.parametrize("function", **WITH_NAMES)
def test_steepness_is_the_slope_of_the_logarithm(function: KernelFunction) -> None:
    t = -np.geomspace(1e-4, 30, 200)
    step = 1e-6 * -t
    logs = np.log(function.value(t + step)) - np.log(function.value(t - step))
    np.testing.assert_allclose(logs / (2 * step), function.steepness(t), rtol=1e-4)
    assert (np.diff(function.steepness(t)) <= 0).all()
    assert function.steepest >= function.steepness(t).max()


@pytest.mark.parametrize("function", **WITH_NAMES)
@given(value=st.floats(1e-12, 1.0))
def test_exponent_at_is_the_inverse(function: KernelFunction, value: float) -> None:
    t = function.exponent_at(value)
    assert t <= 0
    if t > -1e299:
        found = float(function.value(np.array([t]))[0])
        assert found == pytest.approx(value, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("function", **WITH_NAMES)
def test_restored(function: KernelFunction) -> None:
    assert restored(function.name, function.parameter) == function


def test_only_the_gaussian_factorises() -> None:
    """What its property says: values of two distances multiply to that of the sum of squares."""
    a, b = np.array([-0.3]), np.array([-1.1])
    for function in KERNELS:
        product = function.value(a) * function.value(b)
        same = bool(np.isclose(product, function.value(a + b), rtol=1e-5)[0])
        assert same == function.factorises or function.parameter == 1e6


def test_geometry_is_gaussian_unless_told() -> None:
    """Attention and what is built on inner products say nothing of a kernel."""
    assert Geometry._field_defaults["function"].factorises
