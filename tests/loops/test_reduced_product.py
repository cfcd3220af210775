"""The compiled product through few coordinates: against its NumPy twin, and as an estimator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Geometry, PairDraws, WholePoints

BANDWIDTH = 2.0


class Case(NamedTuple):
    few: Geometry
    whole: WholePoints
    x: np.ndarray
    size: np.ndarray


def make_case(
    n_queries: int, n_keys: int, n_dims: int, n_few: int, n_columns: int, dtype: Any, same: bool
) -> Case:
    """Points of which the first coordinates vary most; rows and columns in a random order."""
    rng = np.random.default_rng(n_queries + 7 * n_keys + n_columns)
    spread = 0.5 ** (np.arange(n_dims) / 3)
    keys = (rng.standard_normal((n_keys, n_dims)) * spread * 2).astype(dtype)
    queries = keys if same else (rng.standard_normal((n_queries, n_dims)) * spread).astype(dtype)
    rows = rng.permutation(len(queries)).astype(np.int32)[:n_queries]
    cols = rng.permutation(n_keys).astype(np.int32)
    place = np.empty(n_keys, np.int32)
    place[cols] = np.arange(n_keys, dtype=np.int32)
    norms = [
        np.square(p.astype(np.float64)).sum(axis=1) / (2 * BANDWIDTH**2) for p in (queries, keys)
    ]
    few = Geometry(
        np.ascontiguousarray(queries[rows, :n_few]),
        np.ascontiguousarray(keys[cols, :n_few]),
        norms[0][rows],
        norms[1][cols],
        np.zeros(n_few),
        1.0,
        BANDWIDTH**-2,
        differences=False,
    )
    own = place[rows] if same else np.full(n_queries, -1, np.int32)
    x = rng.standard_normal((n_keys, n_columns)).astype(dtype)
    x[: n_keys // 10] = 0
    size = np.linalg.norm(x.astype(np.float64), axis=1).astype(dtype)
    return Case(few, WholePoints(queries, keys, rows, cols, own, BANDWIDTH), x, size)


def kernel_of(case: Case) -> np.ndarray:
    whole = case.whole
    return gaussian_kernel(
        whole.queries[whole.query_index], whole.keys[whole.key_index], whole.bandwidth
    )


def likeness_of(case: Case, floor: float) -> np.ndarray:
    exponents = reference._exponents(case.few)
    return np.where(exponents >= floor, np.exp(np.minimum(exponents, 0)), 0.0)


SHAPES = [(1, 1), (3, 50), (97, 300)]


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("n_columns", [1, 2, 4, 5, 19])
def test_reduced_product(isa: str, dtype: Any, n_columns: int, same: bool) -> None:
    """The same draws as the twin, and the same sums but rounding.

    Draws may differ where a word is within rounding of its probability, or an exponent of the
    floor: rows with such a pair, a few in all, are left out.
    """
    unit = float(np.finfo(dtype).eps)
    n_drawn = n_compared = n_rows = 0
    shapes = [*SHAPES, (130, 1100)] if n_columns == 1 and not same else SHAPES
    for m, n in shapes:
        m = n if same else m
        case = make_case(m, n, 24, 9, n_columns, dtype, same)
        for floor, rate, least in [(-4.0, 3.0, 0.05), (-30.0, 0.1, 0.0), (-1.0, 1e9, 0.5)]:
            draws = PairDraws(case.size, floor, rate, least, 5, 6)
            want = reference.reduced_product(case.few, case.whole, draws, case.x)
            got = Compiled(2, isa).reduced_product(
                case.few,
                case.whole,
                draws,
                case.x,
            )
            assert got.out.dtype == dtype
            clear = clear_rows(case, draws)
            n_rows, n_compared = n_rows + m, n_compared + int(clear.sum())
            np.testing.assert_array_equal(got.n_drawn[clear], want.n_drawn[clear])
            n_drawn += int(want.n_drawn.sum())
            cheap = likeness_of(case, floor)
            pi, _ = reference.pair_draws(cheap, draws)
            weight = np.abs(case.x.astype(np.float64)).max(axis=1)
            inverse = np.where(pi > 0, 1 / np.where(pi > 0, pi, 1.0), 0.0)
            # Exponents of up to 60 are rounded; a term is divided by a probability that is, too.
            error = (
                200 * (n + 40) * unit * (cheap + (1 + inverse) * np.maximum(cheap, 1.0)) @ weight
            )
            assert (np.abs(got.out - want.out)[clear] <= error[clear, None]).all()
            for part in ("variance", "mass"):
                a, b = getattr(got, part)[clear], getattr(want, part)[clear]
                np.testing.assert_allclose(a, b, rtol=2e4 * unit, atol=1e3 * n * unit)
    assert n_drawn > 500
    assert n_compared > 0.9 * n_rows


def clear_rows(case: Case, draws: PairDraws) -> np.ndarray:
    """Rows without a pair that rounding could draw or leave."""
    exponents = reference._exponents(case.few)
    near_floor = (np.abs(exponents - draws.floor) < 1e-4).any(axis=1)
    cheap = likeness_of(case, draws.floor)
    unclear = np.zeros(len(cheap), bool)
    for shifted in (1 - 1e-4, 1 + 1e-4):
        moved = draws._replace(rate=draws.rate * shifted)
        unclear |= (
            reference.pair_draws(cheap, moved)[1] != reference.pair_draws(cheap, draws)[1]
        ).any(axis=1)
    return ~(near_floor | unclear)


@pytest.mark.parametrize("same", [False, True])
def test_mean_and_variance(same: bool) -> None:
    """Over many seeds: mean K x, variance as the formula says, estimated without bias.

    Standard errors are those of the values seen; 5 of them are allowed, over 60 rows.
    """
    case = make_case(60, 60 if same else 90, 24, 6, 2, np.float64, same)
    floor, rate, least = -3.0, 1.5, 0.1
    n_seeds = 3000
    runs = [
        Compiled(1).reduced_product(
            case.few,
            case.whole,
            PairDraws(case.size, floor, rate, least, seed, 1),
            case.x,
        )
        for seed in range(n_seeds)
    ]
    kernel, cheap = kernel_of(case), likeness_of(case, floor)
    signed = case.x.astype(np.float64)
    errors = np.stack([run.out for run in runs]) - kernel @ signed
    standard_error = errors.std(axis=0) / np.sqrt(n_seeds) + 1e-12
    assert (np.abs(errors.mean(axis=0)) <= 5 * standard_error).all()
    pi = np.where(cheap > 0, np.minimum(1, case.size * rate * cheap), least)
    if same:
        pi[np.arange(60), case.whole.own] = 1.0
    lengths = np.square(signed).sum(axis=1)
    spread = np.square(kernel - cheap) * lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(spread > 0, spread * (1 / pi - 1), 0.0).sum(axis=1)
        mass = np.where(spread > 0, spread * (1 - pi), 0.0).sum(axis=1)
    assert expected.min() > 0
    squares = np.square(errors).sum(axis=2)
    for values, wanted in (
        (squares, expected),
        (np.stack([run.variance for run in runs]), expected),
        (np.stack([run.mass for run in runs]), mass),
    ):
        standard_error = values.std(axis=0) / np.sqrt(n_seeds)
        assert (np.abs(values.mean(axis=0) - wanted) <= 5 * standard_error).all()


def test_pairs_are_drawn_independently() -> None:
    """Over many seeds: two pairs of a row, of a column and of neither are drawn together as often
    as the product of their probabilities says (5 standard deviations)."""
    case = make_case(4, 5, 24, 24, 1, np.float64, same=False)
    few = case.few._replace(
        query_shift=np.zeros(4), key_shift=np.zeros(5), slope=1e-12
    )  # H is 1 everywhere
    p, n_seeds = 0.3, 4000
    zero = case.whole._replace(bandwidth=1e9)  # and K, too: any draw adds nothing
    counts = []
    for seed in range(n_seeds):
        draws = PairDraws(np.ones(5), -1.0, p, 0.0, seed, 3)
        counts.append(reference.pair_draws(np.ones((4, 5)), draws)[1])
        got = Compiled(1).reduced_product(
            few,
            zero,
            draws,
            np.ones((5, 1)),
        )
        np.testing.assert_array_equal(got.n_drawn, counts[-1].sum(axis=1))
    drawn = np.stack(counts).astype(float)
    for a, b in [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((0, 0), (1, 1)), ((2, 3), (3, 4))]:
        together = (drawn[:, a[0], a[1]] * drawn[:, b[0], b[1]]).mean()
        assert abs(together - p**2) <= 5 * np.sqrt(p**2 * (1 - p**2) / n_seeds)
    assert abs(drawn.mean() - p) <= 5 * np.sqrt(p * (1 - p) / drawn.size)


def test_does_not_depend_on_threads_or_other_queries(isa: str, dtype: Any) -> None:
    """Bits are equal for 1, 2, 3 and 7 threads, and differ for another seed or stream."""
    case = make_case(400, 700, 24, 9, 1, dtype, same=False)
    draws = PairDraws(case.size, -5.0, 2.0, 0.02, 5, 6)
    first = Compiled(1, isa).reduced_product(
        case.few,
        case.whole,
        draws,
        case.x,
    )
    for n_threads in (2, 3, 7):
        again = Compiled(n_threads, isa).reduced_product(
            case.few,
            case.whole,
            draws,
            case.x,
        )
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
    for other in (draws._replace(seed=7), draws._replace(stream=7)):
        got = Compiled(isa=isa).reduced_product(
            case.few,
            case.whole,
            other,
            case.x,
        )
        assert (got.out != first.out).any()
