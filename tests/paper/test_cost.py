"""Cost on paper, and counts of real runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from approxkmv.paper.cost import cost, cost_table, crossover, measure, render
from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT


def test_parts_by_hand():
    """Each part at n = 10⁶, ε = 0.1, c = 4, worked out from the lemmas without the code's names."""
    n, ln = 1e6, math.log(1e6)
    row = cost(n, 0.1, 4)
    tables = 10 * 100 * ln  # n^(1/3) is 100
    assert row.heavy_x * n**2 == pytest.approx(n * n ** (1 - 0.109))
    assert row.hash * n**2 == pytest.approx(tables * 2 * n)
    heavy_pairs = n ** (1 + 1 / 3) * 5  # Σ|S_i| <= n^α (1 + c) n
    far_pairs = 2 * 5 * n * math.log2(n)
    assert row.scan * n**2 == pytest.approx(tables * (heavy_pairs + far_pairs))
    squares = n**0.109 * 5 * n * (n ** (-1 / 3) + 2 * n**-0.218)
    assert row.light * n**2 == pytest.approx(10 * ln * 10 * n * squares / 0.01)
    buckets = 4.109 * ln / math.log(1.1)
    per_query = n ** (2 * 0.218) * (n**2 * ln**2 / 0.01) ** 0.173 * math.log(n**2)
    assert row.density * n**2 == pytest.approx(buckets * n * per_query)
    assert row.total == pytest.approx(row.heavy_x + row.hash + row.scan + row.light + row.density)


def test_literal_constants_lose_at_every_size_in_use():
    """From 10³ to 10⁹ the prediction is over 10⁴ times the exact product, for any eps up to 0.3."""
    for eps, c in [(0.1, 1), (0.1, 4), (0.3, 1), (0.3, 4)]:
        for row in cost_table(10.0 ** np.arange(3, 10), eps, c):
            assert row.total > 1e4


@pytest.mark.parametrize(
    ("eps", "c", "power"), [(0.1, 1, 62), (0.1, 4, 66), (0.3, 1, 53), (0.3, 4, 57)]
)
def test_crossover(eps, c, power):
    """The total passes 1 there and stays below it, at the powers of ten of docs/errata.md."""
    n = crossover(eps, c)
    assert math.log10(n) == pytest.approx(power, abs=1)
    assert cost(n, eps, c).total == pytest.approx(1, rel=1e-6)
    assert cost(2 * n, eps, c).total < 1 < cost(n / 2, eps, c).total


def test_crossover_of_parts():
    """Hashing alone pays from thousands, scanning from 10⁷ or so, samples last."""
    sizes = [crossover(0.1, 1, component=part) for part in ("hash", "scan", "density", "light")]
    assert sizes == sorted(sizes)
    assert 1e3 < sizes[0] < 1e4
    assert 1e7 < sizes[1] < 1e8


def test_signs_are_cheaper():
    assert crossover(0.1, 1, x="signs") < 1e32 < crossover(0.1, 1)
    assert cost(1e5, 0.1, 1, x="signs").heavy_x == 0


def test_level_sets_never_pay_at_the_printed_thresholds():
    """Their exponent makes the densities n^2.144; with the theorem's the total crosses."""
    n = 1e30
    here = cost(n, 0.1, 1, density_exponent=LEVEL_SETS_EXPONENT).density
    ratio = cost(100 * n, 0.1, 1, density_exponent=LEVEL_SETS_EXPONENT).density / here
    assert math.log10(ratio) / 2 + 2 == pytest.approx(2.144, abs=0.05)
    assert crossover(0.1, 1, density_exponent=LEVEL_SETS_EXPONENT) == math.inf


def test_render():
    text = render(cost_table([1e3, 1e9], 0.1, 1))
    assert len(text.splitlines()) == 3
    assert len({len(line) for line in text.splitlines()}) == 1


def test_measured_run():
    """A real run with the paper's constants: within eps, every part counted or bounded.

    Hashes are T tables of 2n points times the functions joined in a label; every pair is looked at
    once by the exact densities and once by the rows computed exactly (E15); scans are below the
    prediction for the ideal family, and at least every heavy pair once.
    """
    n, eps = 256, 0.5
    counted = measure(n, eps, rng=np.random.default_rng(0))
    predicted = cost(n, eps / 2, counted.c, x="signs")
    assert counted.error <= eps
    tables = math.ceil(10 * n ** (1 / 3) * math.log(n))
    assert (counted.cost.hash * n**2) % (tables * 2 * n) == 0
    assert 1 / n <= counted.cost.scan <= predicted.scan
    assert counted.cost.light == counted.cost.density == 1
    assert counted.cost.heavy_x == 0
    assert predicted.light > 1000  # what E15 saves
