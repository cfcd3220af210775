r"""Cost on paper: kernel evaluations of Algorithm 3 with its printed constants, next to n².

All counts are divided by n², the cost of the exact product, so a total below 1 is where the
algorithm begins to pay. Constants hidden in O(·) are taken as 1, the hash family is the ideal one
(far collisions 2^-m at kernel value 2^-m), s_i is at the bound the proofs give it, and eps is the
one handed to Algorithm 2. Nothing here is run; :func:`measure` runs the algorithm and counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from approxkmv.datasets import clusters
from approxkmv.paper import assumption
from approxkmv.paper.parameters import (
    ALPHA,
    BETA,
    CHEBYSHEV_FAILURE,
    DENSITY_EXPONENT,
    GAMMA,
    MEDIANS,
    TABLES,
)

Entries = Literal["worst", "signs"]
Component = Literal["heavy_x", "hash", "scan", "light", "density", "total"]


@dataclass(frozen=True)
class Cost:
    """Evaluations over n² of each part of Algorithm 3.

    Attributes
    ----------
    n : float
    heavy_x : float
        Columns of H_1 (Lemma 3.2).
    hash : float
        Hash functions of keys and queries (Algorithm 1, line 5), one evaluation each.
    scan : float
        Buckets (Algorithm 1, line 7): heavy keys in every table, and far ones that collide.
    light : float
        Samples (Algorithm 2, lines 8 and 9).
    density : float
        Density structures (Algorithm 2, line 5), query side.
    """

    n: float
    heavy_x: float
    hash: float
    scan: float
    light: float
    density: float

    @property
    def total(self) -> float:
        """Sum of the five parts."""
        return self.heavy_x + self.hash + self.scan + self.light + self.density


def cost(
    n: float,
    eps: float,
    c: float,
    *,
    x: Entries = "worst",
    density_exponent: float = DENSITY_EXPONENT,
) -> Cost:
    """Predicted cost at one n under Assumption (A) with constant ``c``.

    Parameters
    ----------
    n : float
        Keys and queries; a float so that 1e60 is fine.
    eps : float
    c : float
    x : {"worst", "signs"}
        ``"worst"``: squared entries up to n^γ, every bucket in use, ``|H_1| = n^(1-γ)``.
        ``"signs"``: entries ±1: no large ones and a single bucket.
    density_exponent : float
        Of Theorem 2.2, or ``LEVEL_SETS_EXPONENT`` of the structure that is run.

    Examples
    --------
    >>> round(cost(1e6, eps=0.1, c=1).scan, 1)
    3.9
    """
    log_n = math.log(n)
    tables = TABLES * n**ALPHA * log_n
    far = 2 * tables * math.log2(n) * (1 + c) / n  # at most 2(1+c) per level, table and row
    repetitions = MEDIANS * log_n / CHEBYSHEV_FAILURE / eps**2  # per n s_i
    largest_square = n**GAMMA if x == "worst" else 1.0
    n_buckets = (4 + GAMMA) * log_n / math.log1p(eps) if x == "worst" else 1.0
    floor = eps**2 / (n * log_n) ** 2
    return Cost(
        n=n,
        heavy_x=n**-GAMMA if x == "worst" else 0.0,
        hash=2 * tables / n,
        scan=tables * n ** (ALPHA - 1) * (1 + c) + far,
        # Lemma 3.5: squares of light entries, and n^-beta of all squares twice (t_i, then s_i)
        light=repetitions * largest_square * (1 + c) * (n**-ALPHA + 2 * n**-BETA),
        density=n_buckets * n ** (2 * BETA - 1) * floor**-density_exponent * 2 * log_n,
    )


def crossover(
    eps: float,
    c: float,
    *,
    x: Entries = "worst",
    component: Component = "total",
    density_exponent: float = DENSITY_EXPONENT,
) -> float:
    """Size n beyond which the cost stays below that of the exact product; infinite if none does.

    Examples
    --------
    >>> 1e61 < crossover(eps=0.1, c=1) < 1e63
    True
    """

    def above(exponent: float) -> bool:
        row = cost(10.0**exponent, eps, c, x=x, density_exponent=density_exponent)
        return float(getattr(row, component)) >= 1

    high = 120.0
    if above(high):
        return math.inf
    while high > 0.5 and not above(high - 0.5):
        high -= 0.5
    low = high - 0.5
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return float(10.0**high)


def cost_table(
    ns: Iterable[float],
    eps: float,
    c: float,
    *,
    x: Entries = "worst",
    density_exponent: float = DENSITY_EXPONENT,
) -> list[Cost]:
    """One predicted cost per n.

    Examples
    --------
    >>> [round(row.hash, 2) for row in cost_table([1e3, 1e4], eps=0.1, c=1)]
    [1.38, 0.4]
    """
    return [cost(n, eps, c, x=x, density_exponent=density_exponent) for n in ns]


def render(rows: Iterable[Cost]) -> str:
    """Plain text, one line per n.

    Examples
    --------
    >>> print(render(cost_table([1e3], eps=0.1, c=1)))
             n    heavy_x       hash       scan      light    density      total
          1000       0.47        1.4         41    1.6e+05      4e+03    1.6e+05
    """
    names = [field.name for field in fields(Cost)] + ["total"]
    lines = ["".join(f"{name:>{10 if name == 'n' else 11}}" for name in names)]
    for row in rows:
        numbers = [f"{row.n:10.4g}"] + [f"{getattr(row, name):11.2g}" for name in names[1:]]
        lines.append("".join(numbers))
    return "\n".join(lines)


@dataclass(frozen=True)
class Measured:
    """Counts of one real run over n², and c of its kernel.

    Attributes
    ----------
    cost : Cost
    c : float
    error : float
        Error of the product over the norm of x.
    """

    cost: Cost
    c: float
    error: float


def measure(
    n: int, eps: float, *, rng: np.random.Generator, n_threads: int | None = None
) -> Measured:
    """Run Algorithm 3 with the paper's constants on clustered points and random signs; count.

    Rows whose samples would outnumber their light keys are computed exactly, so the count of the
    light part is at most 1 where the prediction says thousands (docs/errata.md E15).
    """
    from approxkmv.kernel.matrix import product
    from approxkmv.paper.approx_kmv import approx_kmv

    queries, keys, bandwidth = clusters(n, 16, rng=rng, dtype=np.float64)
    x = rng.choice([-1.0, 1.0], size=n)
    y, info = approx_kmv(
        queries,
        keys,
        x,
        bandwidth=bandwidth,
        eps=eps,
        constants="paper",
        rng=rng,
        n_threads=n_threads,
        return_info=True,
    )
    parts = ("heavy_x", "hash", "scan", "light", "density")
    counts = {part: getattr(info, part) / n**2 for part in parts}
    exact = product(queries, keys, x, bandwidth, n_threads=n_threads)
    error = np.linalg.norm(exact - y) / math.sqrt(n)
    c = assumption.kernel_constant(queries, keys, bandwidth).c
    return Measured(Cost(n=n, **counts), c, float(error))
