r"""Every number the algorithms use, each from the lemma that asks for it (Theorem 1.1).

Two sources of exponents, side by side: :meth:`Parameters.printed` (γ = 0.109, α = 1/3, β = 0.218)
and :meth:`Parameters.balanced` (the linear programme those exponents should have solved,
docs/errata.md E13). Two sources of constants: ``"paper"`` (10 n^α log n tables, 10 log n medians,
...) and ``"practical"``, the same steps with the smallest number that the same inequality allows at
this n.

Logarithms are natural (E14). ``n_keys`` is the paper's n; ``n_queries`` may differ (E17).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import optimize, special

GAMMA = 0.109  # Algorithm 3, line 3
ALPHA = 1 / 3  # Algorithm 3, line 4
BETA = 0.218  # Algorithm 2, line 5
DENSITY_EXPONENT = 0.173  # Theorem 2.2
LEVEL_SETS_EXPONENT = 0.354  # of density.LevelSets, the structure that is run: density/levels.py
TABLES = 10  # Algorithm 1, line 3
MEDIANS = 10  # Algorithm 2, line 9
CHEBYSHEV_FAILURE = 0.1  # proof of Lemma 3.5; its inverse is the 10 of Algorithm 2, line 9

FIND_RECALL = 0.95  # of FindHeavy with practical constants: a key that is missed is sampled


@dataclass(frozen=True)
class PaperConstants:
    """The constants of Algorithms 1 and 2, each to be varied; the defaults are the printed ones.

    With all of them at 1 the powers of n can be seen at sizes that one can run. The guarantee
    then holds with whatever probability it does.

    Attributes
    ----------
    tables : float
        Of n^alpha log n in Algorithm 1, line 3.
    medians : float
        Of log n in Algorithm 2, line 9.
    repetitions : float
        Of n s_i / eps^2 in Algorithm 2, line 9, and of the density structures: one over the
        failure probability that Chebyshev's inequality leaves to a mean.
    floor : float
        Of the density floor in Algorithm 2, line 5.
    density_medians : int or None
        Means whose median a density structure takes; None: as many as line 5's failure
        probability asks for.

    Examples
    --------
    >>> ones = PaperConstants(tables=1, medians=1, repetitions=1, density_medians=1)
    >>> p = Parameters.printed(1000, eps=0.1, constants=ones)
    >>> p.n_tables, p.n_medians, p.single_failure
    (70, 7, 1.0)
    """

    tables: float = TABLES
    medians: float = MEDIANS
    repetitions: float = 1 / CHEBYSHEV_FAILURE
    floor: float = 1.0
    density_medians: int | None = None


Constants = Literal["paper", "practical"]


def exponents(
    gamma: float,
    alpha: float,
    beta: float,
    *,
    density_exponent: float = DENSITY_EXPONENT,
    raised_floor: bool = False,
) -> dict[str, float]:
    """Powers of n in the five running times that Theorem 1.1 adds up.

    Parameters
    ----------
    gamma, alpha, beta : float
        Thresholds of Definitions 3.1 and 3.3 and the relative error n^-beta of Lemma 3.5.
    density_exponent : float
        The power of 1/μ in Theorem 2.2.
    raised_floor : bool
        Use the floor that spreads eps² n^-γ over the buckets (E13) in place of Algorithm 2's.

    Returns
    -------
    dict
        Lemma to exponent.

    Examples
    --------
    >>> round(max(exponents(0.109, 1 / 3, 0.218).values()), 3)
    1.891
    """
    floor = 1 + gamma if raised_floor else 2.0  # the floor is at least n^-floor
    return {
        "Lemma 3.2, large entries of x": 2 - gamma,
        "Lemma 3.4, finding heavy keys": 1 + 2 * alpha,
        "Lemma 3.5, light samples": 2 + gamma - alpha,
        "Lemma 3.5, oversampling": 2 + gamma - beta,
        "Lemma 3.5, density structures": 1 + floor * density_exponent + 2 * beta,
    }


def balance(
    *, density_exponent: float = DENSITY_EXPONENT, raised_floor: bool = False
) -> tuple[float, float, float, float]:
    """Best (gamma, alpha, beta) and the exponent they reach: a linear programme (E13).

    Any alpha between 2 + gamma - exponent and (exponent - 1) / 2 is optimal; the one nearest to the
    printed 1/3 is returned.

    Examples
    --------
    >>> gamma, alpha, beta, exponent = balance()
    >>> round(exponent, 4)
    1.8692
    """
    rho = density_exponent
    # Unknowns (gamma, alpha, beta, exponent); each row reads coefficients @ unknowns <= bound.
    rows = [
        (-1.0, 0.0, 0.0, -1.0),
        (0.0, 2.0, 0.0, -1.0),
        (1.0, -1.0, 0.0, -1.0),
        (1.0, 0.0, -1.0, -1.0),
        (rho if raised_floor else 0.0, 0.0, 2.0, -1.0),
    ]
    bounds = [-2.0, -1.0, -2.0, -2.0, -1.0 - (rho if raised_floor else 2 * rho)]
    solution = optimize.linprog(
        (0, 0, 0, 1), A_ub=rows, b_ub=bounds, bounds=[(0, 1), (0, 1), (0, 1), (0, 3)]
    )
    gamma, _, beta, exponent = (float(value) for value in solution.x)
    alpha = min(max(ALPHA, 2 + gamma - exponent), (exponent - 1) / 2)
    return gamma, alpha, beta, exponent


def n_tables(n: int, alpha: float, *, n_queries: int = 0, constant: float = TABLES) -> int:
    """Tables of Algorithm 1, line 3: 10 n^alpha log n, or log n_queries if those are more (E17).

    Examples
    --------
    >>> n_tables(1000, 1 / 3)
    691
    """
    return math.ceil(constant * math.pow(n, alpha) * math.log(max(n, n_queries, 2)))


def n_medians(n: int, constant: float = MEDIANS) -> int:
    """Means whose median Algorithm 2, line 9 takes: 10 log n."""
    return math.ceil(constant * math.log(n))


def median_failure(count: int, single_failure: float) -> float:
    """Chance that the median of ``count`` means is off when each one is with ``single_failure``.

    The exact binomial tail that Lemma 3.5 bounds by Chernoff: half of the means or more must be
    off.

    Examples
    --------
    >>> f"{median_failure(70, 0.1):.1e}"
    '3.1e-17'
    """
    return float(special.bdtrc(math.ceil(count / 2) - 1, count, single_failure))


def n_medians_for(failure: float, single_failure: float) -> int:
    """Smallest odd number of means whose median fails with at most ``failure`` (E14).

    Examples
    --------
    >>> n_medians_for(1e-4, 0.1), n_medians_for(1e-7, 0.1)
    (13, 27)
    """
    count = 1
    while median_failure(count, single_failure) > failure:
        count += 2
    return count


@lru_cache(maxsize=1024)
def cheapest_median(failure: float) -> tuple[float, int]:
    """Failure of one mean and number of means that give ``failure`` with the fewest samples.

    Chebyshev's inequality asks for 1/single_failure variances per mean, so the samples are in
    proportion to n_medians_for(failure, single_failure) / single_failure.

    Examples
    --------
    The paper's 0.1 is the best of them, or nearly:

    >>> cheapest_median(1e-4), cheapest_median(1e-7)
    ((0.1, 13), (0.12, 31))
    """
    candidates = (0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.18, 0.2, 0.22, 0.25, 0.28, 0.3)
    counts = [n_medians_for(failure, single) for single in candidates]
    costs = [count / single for count, single in zip(counts, candidates, strict=True)]
    best = int(np.argmin(costs))
    return candidates[best], counts[best]


@dataclass(frozen=True)
class Parameters:
    """All numbers of one run of Algorithm 3, frozen and printable.

    Make one with :meth:`printed` or :meth:`balanced`.

    Attributes
    ----------
    n_keys, n_queries : int
        The paper's n, and the number of rows (the paper has one n for both).
    eps, delta : float
        Wanted error relative to the norm of x, and failure probability.
    gamma, alpha, beta : float
        Definition 3.1, Definition 3.3, Lemma 3.5.
    density_exponent : float
        Theorem 2.2.
    raised_floor : bool
        Whether :meth:`density_floor` is the raised one of E13.
    constants : {"paper", "practical"}
        Where the counts below come from.
    n_tables : int or None
        Algorithm 1, line 3. None with practical constants: as many as a recall of 0.95 takes.
    n_medians : int
        Algorithm 2, line 9.
    single_failure : float
        Chebyshev failure of one mean; one over it multiplies the repetitions.
    density_failure : float
        Failure probability of one density query, Algorithm 2, line 5.
    density_medians : int or None
        Means of a density structure; None: what ``density_failure`` asks for.
    floor_factor : float
        Multiplies the density floor of Algorithm 2, line 5.

    Examples
    --------
    >>> p = Parameters.printed(1000, eps=0.1)
    >>> p.n_tables, p.n_medians, round(p.threshold, 3)
    (691, 70, 0.1)
    """

    n_keys: int
    n_queries: int
    eps: float
    delta: float
    gamma: float
    alpha: float
    beta: float
    density_exponent: float
    raised_floor: bool
    constants: Constants
    n_tables: int | None
    n_medians: int
    single_failure: float
    density_failure: float
    density_medians: int | None = None
    floor_factor: float = 1.0

    @classmethod
    def printed(
        cls,
        n_keys: int,
        eps: float,
        delta: float = 0.01,
        *,
        n_queries: int | None = None,
        constants: Constants | PaperConstants = "paper",
    ) -> Parameters:
        """Use the exponents of Algorithm 3: γ = 0.109, α = 1/3, β = 0.218."""
        return cls._with(
            n_keys, eps, delta, n_queries, constants, GAMMA, ALPHA, BETA, DENSITY_EXPONENT, False
        )

    @classmethod
    def balanced(
        cls,
        n_keys: int,
        eps: float,
        delta: float = 0.01,
        *,
        n_queries: int | None = None,
        constants: Constants | PaperConstants = "paper",
        density_exponent: float = DENSITY_EXPONENT,
        raised_floor: bool = False,
    ) -> Parameters:
        """Use the exponents that minimise the largest of the five running times (E13)."""
        rho, raised = density_exponent, raised_floor
        gamma, alpha, beta, _ = balance(density_exponent=rho, raised_floor=raised)
        return cls._with(n_keys, eps, delta, n_queries, constants, gamma, alpha, beta, rho, raised)

    @classmethod
    def _with(
        cls,
        n_keys: int,
        eps: float,
        delta: float,
        n_queries: int | None,
        constants: Constants | PaperConstants,
        gamma: float,
        alpha: float,
        beta: float,
        density_exponent: float,
        raised_floor: bool,
    ) -> Parameters:
        rows = n_keys if n_queries is None else n_queries
        n = max(n_keys, rows, 2)
        density_medians, floor_factor = None, 1.0
        if constants == "practical":
            # Half of delta for each of densities and medians; union over rows.
            tables = None
            single_failure, medians = cheapest_median(delta / (2 * rows))
            density_failure = delta / (2 * rows)
        else:
            given = constants if isinstance(constants, PaperConstants) else PaperConstants()
            # The footnote of Theorem 1.1: a factor log(1/delta), in units of the printed 0.01.
            boost = max(1.0, math.log(1 / delta) / math.log(100))
            # Already fails with n^-8 only.
            tables = n_tables(n_keys, alpha, n_queries=rows, constant=given.tables)
            medians = math.ceil(boost * n_medians(n, given.medians))
            single_failure = 1 / given.repetitions
            density_failure = min(1 / n**2, delta / n)
            density_medians, floor_factor = given.density_medians, given.floor
        return cls(
            n_keys=n_keys,
            n_queries=rows,
            eps=eps,
            delta=delta,
            gamma=gamma,
            alpha=alpha,
            beta=beta,
            density_exponent=density_exponent,
            raised_floor=raised_floor,
            constants="practical" if constants == "practical" else "paper",
            n_tables=tables,
            n_medians=medians,
            single_failure=single_failure,
            density_failure=density_failure,
            density_medians=density_medians,
            floor_factor=floor_factor,
        )

    @property
    def eps_inner(self) -> float:
        """Error asked of each lemma: half of eps, the last step of Theorem 1.1's proof."""
        return self.eps / 2

    @property
    def large_x(self) -> float:
        """Squared entries from here on are in H_1 (Definition 3.1)."""
        return float(self.n_keys**self.gamma)

    @property
    def small_x(self) -> float:
        """Squared entries up to here are in H_2 (Definition 3.1)."""
        return float(self.n_keys) ** -4

    @property
    def threshold(self) -> float:
        """Kernel value from which a key is heavy (Definition 3.3)."""
        return float(self.n_keys**-self.alpha)

    @property
    def density_error(self) -> float:
        """Relative error of the density structures (Algorithm 2, line 5)."""
        return float(self.n_keys**-self.beta)

    @property
    def bucket_range(self) -> tuple[int, int]:
        """First and last m of the buckets B_m, both included (Algorithm 2, line 3)."""
        per_bucket = math.log1p(self.eps_inner)
        log_n = math.log(max(self.n_keys, 2))
        return math.ceil(-4 * log_n / per_bucket), math.ceil(self.gamma * log_n / per_bucket)

    @property
    def n_buckets(self) -> int:
        """Buckets of Algorithm 2: about 4.1 log n / eps_inner, not O(log n) (E9)."""
        first, last = self.bucket_range
        return last - first + 1

    def density_floor(self, bucket_value: float, bucket_size: int) -> float:
        """Smallest density worth seeing in a bucket (μ_m of Algorithm 2, line 5).

        Parameters
        ----------
        bucket_value : float
            The bucket's rounded squared entry, (1 + eps_inner)^m.
        bucket_size : int
            Its number of keys.
        """
        return self.unseen_variance / (self.n_buckets * bucket_value * bucket_size)

    @property
    def unseen_variance(self) -> float:
        """Most that buckets below their floors can add to one row's s_i (E9)."""
        if self.raised_floor:
            unseen = self.eps_inner**2 * float(self.n_keys**-self.gamma)
        else:
            log_n = math.log(max(self.n_keys, 2))
            unseen = self.n_buckets * self.eps_inner**2 / (self.n_keys * log_n**2)
        return self.floor_factor * unseen

    def n_repetitions(self, s: float) -> int:
        """Repetitions of one mean of Algorithm 2, line 9 for a row with estimate s_i = ``s``.

        Paper: 10 n s_i / eps². With n_queries rows the tolerance per row is eps sqrt(n/n_queries),
        so n becomes n_queries (E17). At least one (E15).
        """
        return max(1, math.ceil(self.n_queries * s / (self.single_failure * self.eps_inner**2)))

    @property
    def exponent(self) -> float:
        """Power of n in the total running time."""
        return max(self.exponents.values())

    @property
    def exponents(self) -> dict[str, float]:
        """Power of n in each of the five running times."""
        return exponents(
            self.gamma,
            self.alpha,
            self.beta,
            density_exponent=self.density_exponent,
            raised_floor=self.raised_floor,
        )

    @property
    def exponent_here(self) -> float:
        """Power of n with the density structure that is run, :class:`~.density.LevelSets`."""
        here = exponents(
            self.gamma,
            self.alpha,
            self.beta,
            density_exponent=LEVEL_SETS_EXPONENT,
            raised_floor=self.raised_floor,
        )
        return max(here.values())

    def _lines(self) -> list[tuple[str, str]]:
        first, last = self.bucket_range
        per_s = 1 / (self.single_failure * self.eps_inner**2)
        return [
            ("n_keys, n_queries", f"{self.n_keys}, {self.n_queries}"),
            ("eps, delta", f"{self.eps:g}, {self.delta:g}"),
            ("constants", self.constants),
            ("gamma (Definition 3.1)", f"{self.gamma:.4f}"),
            ("alpha (Definition 3.3)", f"{self.alpha:.4f}"),
            ("beta (Lemma 3.5)", f"{self.beta:.4f}"),
            ("density exponent (Theorem 2.2)", f"{self.density_exponent:g}"),
            ("time exponent (Theorem 1.1)", f"{self.exponent:.4f}"),
            ("  of LevelSets, which is run", f"{LEVEL_SETS_EXPONENT:g}: {self.exponent_here:.4f}"),
            ("H_1: x_j^2 >= n^gamma", f"{self.large_x:.4g}"),
            ("H_2: x_j^2 <= n^-4", f"{self.small_x:.4g}"),
            ("heavy: K >= n^-alpha", f"{self.threshold:.4g}"),
            ("tables (Lemma 3.4)", f"{self.n_tables or f'for recall {FIND_RECALL}'}"),
            ("buckets (Algorithm 2, line 3)", f"{self.n_buckets} (m from {first} to {last})"),
            ("density error (line 5)", f"{self.density_error:.4g}"),
            ("density failure (line 5)", f"{self.density_failure:.4g}"),
            ("repetitions / (n_queries s_i)", f"{per_s:.4g}"),
            ("medians (line 9)", f"{self.n_medians}"),
        ]

    def __str__(self) -> str:
        """One line per number, with the place in the paper that asks for it."""
        return side_by_side(self)


def side_by_side(*parameters: Parameters) -> str:
    """Columns of numbers, one per set of parameters.

    Examples
    --------
    >>> both = side_by_side(Parameters.printed(1000, 0.1), Parameters.balanced(1000, 0.1))
    >>> print(both.splitlines()[7])
    time exponent (Theorem 1.1)      1.8910  1.8692
    """
    columns = [[value for _, value in p._lines()] for p in parameters]
    names = [name for name, _ in parameters[0]._lines()]
    widths = [max(map(len, column)) for column in columns]
    rows = []
    for name, *values in zip(names, *columns, strict=True):
        cells = [f"{value:<{width}}" for value, width in zip(values, widths, strict=True)]
        rows.append(f"{name:<31}  {'  '.join(cells)}".rstrip())
    return "\n".join(rows)
