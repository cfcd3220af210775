"""The vector exponential: accuracy, and what becomes of numbers that are not ordinary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from approxkmv.loops.compiled import Compiled

# Where the result is a normal number below the documented overflow at 2^127.5 and 2^1023.5.
RANGE = {np.dtype(np.float32): (-87.0, 88.0), np.dtype(np.float64): (-708.0, 709.0)}


def ulps(got: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Error in units of the last place, against the exponential in the next wider type."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    if np.finfo(wide).nmant <= np.finfo(x.dtype).nmant + 10:
        pytest.fail("this platform has no wider type to compare with")
    exact = np.exp(x.astype(wide))
    last_place = np.spacing(exact.astype(x.dtype)).astype(wide)
    return np.asarray(np.abs(got.astype(wide) - exact) / last_place)


@pytest.mark.parametrize("part", ["dense", "near zero", "near multiples of ln 2"])
def test_at_most_two_ulp(isa: str, dtype: Any, part: str) -> None:
    """<= 2 ulp over the whole range, around 0, and where the reduction changes its multiple."""
    low, high = RANGE[dtype]
    rng = np.random.default_rng(0)
    if part == "dense":
        x = np.linspace(low, high, 1_000_003)
    elif part == "near zero":
        x = np.concatenate([s * 2.0 ** rng.uniform(-60, 1, 200_000) for s in (-1, 1)])
    else:
        half = np.arange(int(low / 0.35), int(high / 0.35)) * (np.log(2) / 2)
        x = (half[:, None] * (1 + rng.uniform(-1e-6, 1e-6, 300))).ravel()
        x = x[(x >= low) & (x <= high)]
    x = x.astype(dtype)
    assert (
        ulps(
            Compiled(isa=isa).exp(
                x,
            ),
            x,
        ).max()
        <= 2
    )


def test_never_above_one_for_arguments_up_to_zero(isa: str, dtype: Any) -> None:
    """A kernel value is at most 1, and exactly 1 at distance 0."""
    x = -np.concatenate([[0.0], 2.0 ** np.linspace(-80, 6, 100_000)]).astype(dtype)
    got = Compiled(isa=isa).exp(
        x,
    )
    assert got[0] == 1
    assert got.max() == 1


def test_almost_monotone(isa: str, dtype: Any) -> None:
    """Between neighbouring numbers the value never falls by more than one ulp."""
    for start in (-80.0, -10.0, -0.7, -0.35, 0.1, 0.35, 3.3, 60.0):
        x = dtype.type(start) + np.arange(100_000) * np.spacing(dtype.type(abs(start)))
        got = Compiled(isa=isa).exp(
            x.astype(dtype),
        )
        assert (np.diff(got) >= -np.spacing(got[:-1])).all()


def test_nan_is_kept(isa: str, dtype: Any) -> None:
    """Each position of a vector and of the remainder; neighbours are untouched."""
    for n in (1, 3, 16, 37):
        for at in range(n):
            x = np.zeros(n, dtype)
            x[at] = np.nan
            got = Compiled(isa=isa).exp(
                x,
            )
            assert np.isnan(got[at])
            assert (np.delete(got, at) == 1).all()


def test_negative_nan_is_kept(isa: str, dtype: Any) -> None:
    """NaN with the sign bit set, as x86 makes it from inf - inf."""
    x = np.copysign(np.full(40, np.nan, dtype), dtype.type(-1))
    assert np.isnan(
        Compiled(isa=isa).exp(
            x,
        )
    ).all()


def test_infinities(isa: str, dtype: Any) -> None:
    got = Compiled(isa=isa).exp(
        np.array([-np.inf, np.inf] * 20, dtype),
    )
    np.testing.assert_array_equal(got, np.array([0, np.inf] * 20, dtype))


def test_underflow_gives_zero_and_overflow_infinity(isa: str, dtype: Any) -> None:
    """Far outside the exponent field: 0 below, infinity above, never anything in between."""
    low, high = RANGE[dtype]
    far = np.concatenate([np.linspace(2, 2000, 5000), 10.0 ** np.arange(4, 38)]).astype(dtype)
    below = Compiled(isa=isa).exp(
        dtype.type(low) - far,
    )
    above = Compiled(isa=isa).exp(
        dtype.type(high + 0.5) + far,
    )
    assert (below == 0).all()
    assert np.isinf(above).all()
    assert (above > 0).all()


def test_between_normal_and_zero(isa: str, dtype: Any) -> None:
    """Below the normal numbers: right to the smallest normal number, and not negative."""
    low, _ = RANGE[dtype]
    x = np.linspace(low - 5, low, 100_000).astype(dtype)
    got = (
        Compiled(isa=isa)
        .exp(
            x,
        )
        .astype(np.float64)
    )
    exact = np.exp(x.astype(np.float64))
    assert (got >= 0).all()
    tiny = float(np.finfo(dtype).smallest_normal)
    assert (np.abs(got - exact) <= tiny + 4 * np.finfo(dtype).eps * exact).all()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100])
def test_any_length_gives_the_same_bits(isa: str, dtype: Any, n: int) -> None:
    """The remainder of a vector is computed like the rest."""
    x = np.linspace(-3, 3, 200).astype(dtype)
    np.testing.assert_array_equal(
        Compiled(isa=isa).exp(
            x[:n].copy(),
        ),
        Compiled(isa=isa).exp(
            x,
        )[:n],
    )


LOWEST_POWER = {np.dtype(np.float32): -126.0, np.dtype(np.float64): -1022.0}


class TestPowerOfTwo:
    """2^t for t <= 60, which attention makes its weights of."""

    @pytest.mark.parametrize("part", ["dense", "above zero", "near zero", "near halves"])
    def test_at_most_two_ulp(self, isa: str, dtype: Any, part: str) -> None:
        """Wherever the result is a normal number."""
        low = LOWEST_POWER[dtype]
        rng = np.random.default_rng(0)
        if part == "dense":
            x = np.linspace(low, 0, 1_000_003)
        elif part == "above zero":
            x = np.linspace(0, 60, 1_000_003)
        elif part == "near zero":
            x = -(2.0 ** rng.uniform(-60, 1, 200_000))
        else:
            x = (np.arange(int(low), 0)[:, None] + 0.5) * (1 + rng.uniform(-1e-6, 1e-6, 300))
            x = x.ravel()[x.ravel() >= low]
        x = x.astype(dtype)
        wide = np.float64 if dtype == np.float32 else np.longdouble
        exact = np.exp2(x.astype(wide))
        last_place = np.spacing(exact.astype(dtype)).astype(wide)
        got = Compiled(isa=isa).power_of_two(
            x,
        )
        assert (np.abs(got.astype(wide) - exact) <= 2 * last_place).all()
        assert part == "above zero" or got.max() <= 1

    def test_ends(self, isa: str, dtype: Any) -> None:
        """1 at 0, 0 far below, and what is not a number stays so."""
        x = np.array([0, -1, 4 * LOWEST_POWER[dtype], -np.inf, np.nan, -0.0] * 7, dtype)
        got = Compiled(isa=isa).power_of_two(
            x,
        )
        np.testing.assert_array_equal(got, np.array([1, 0.5, 0, 0, np.nan, 1] * 7, dtype))

    @pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 33])
    def test_any_length_gives_the_same_bits(self, isa: str, dtype: Any, n: int) -> None:
        x = np.linspace(-3, 0, 200).astype(dtype)
        got = Compiled(isa=isa).power_of_two(
            x[:n].copy(),
        )
        np.testing.assert_array_equal(
            got,
            Compiled(isa=isa).power_of_two(
                x,
            )[:n],
        )
