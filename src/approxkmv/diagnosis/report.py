"""What ``diagnose`` found: frozen, printable, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from approxkmv._shown import as_html, as_json
from approxkmv.diagnosis.growth import Growth
from approxkmv.info import Plan
from approxkmv.paper.assumption import OrderRatios

_LOG_ENTRIES = "1% below {:.4g}, median {:.4g}, 99% below {:.4g}, largest seen {:.4g}"

# Predicted speed-ups below this are within the error of the prediction.
_WORTH_A_WORD = 1.2


@dataclass(frozen=True)
class Diagnosis:
    """Report of :func:`approxkmv.diagnose` on a kernel matrix K.

    Attributes
    ----------
    n_queries, n_keys, n_dims : int
    bandwidth : float or tuple of float
    eps : float
    c : float
        Sum of all entries of K but the n largest, over the sum of those; n is the larger number of
        queries and keys. Exact or, with ``is_exact`` False, an estimate.
    c_interval : tuple of float
        Holds c with probability ``confidence``; (c, c) where c is exact.
    confidence : float
    is_exact : bool
        Whether every entry was looked at. If not, what follows are estimates from random rows.
    mean_row_sum, median_row_sum, max_row_sum : float
        Of all rows, or of those looked at. 0 where they underflow; see ``log_row_sums``.
    log_row_sums : tuple of float
        Logarithms of the row sums: their quantiles 0 %, 1 %, ..., 100 %.
    log_quantiles : mapping
        Share of entries, and the logarithm that this share of them does not exceed. From random
        pairs where there are more than a million entries.
    growth : Growth
        c on nested prefixes, with the fitted exponent.
    ratios : OrderRatios
        n-th over (n+1)-th and over 2n-th largest entry, as logarithms.
    plan : Plan
        What the planner is predicted to do at ``eps``, for the vector of ones.
    speed_ups : mapping
        Predicted speed-up over the exact product, by eps.
    pairs : int
        Kernel evaluations made for c.
    seconds : float
    left_out : tuple of str
        What ``max_seconds`` was too short for.
    """

    n_queries: int
    n_keys: int
    n_dims: int
    bandwidth: float | tuple[float, ...]
    eps: float
    c: float
    c_interval: tuple[float, float]
    confidence: float
    is_exact: bool
    mean_row_sum: float
    median_row_sum: float
    max_row_sum: float
    log_row_sums: tuple[float, ...]
    log_quantiles: Mapping[float, float]
    growth: Growth
    ratios: OrderRatios
    plan: Plan
    speed_ups: Mapping[float, float]
    pairs: int
    seconds: float
    left_out: tuple[str, ...] = ()

    @property
    def top_n_share(self) -> float:
        """Share of the sum of K that its n largest entries have."""
        return 1 / (1 + self.c)

    @property
    def expectation(self) -> str:
        """What :func:`approxkmv.matvec` is expected to do with this matrix, in a sentence."""
        if self.plan.method == "sampled":
            factor = self.speed_ups[self.eps]
            return (
                f"at eps {self.eps:g} a product is sampled, about {factor:.2g} times as fast as "
                "computing every pair"
            )
        if not self.speed_ups:
            return "not known: there was no time for a prediction"
        said = f"at eps {self.eps:g} every pair is computed: exact, with no gain from sampling"
        faster = {e: s for e, s in self.speed_ups.items() if s >= _WORTH_A_WORD and e > self.eps}
        if not faster:
            return said
        e = min(faster)
        return f"{said}; at eps {e:g} a product would be about {faster[e]:.2g} times as fast"

    def facts(self) -> dict[str, str]:
        """Every number in words, by name: what ``str`` and the page show."""
        low, high = self.c_interval
        certainty = "exact" if self.is_exact else f"in [{low:.4g}, {high:.4g}]"
        trust = "" if self.is_exact else f" with confidence {self.confidence:g}"
        rows = "" if self.is_exact else " (rows looked at)"
        share = self.pairs / (self.n_queries * self.n_keys)
        return {
            "expect": self.expectation,
            "matrix": f"{self.n_queries:,} queries x {self.n_keys:,} keys, {self.n_dims} "
            f"dimensions, bandwidth {_width(self.bandwidth)}",
            "c": f"{self.c:.4g}, {certainty}{trust}",
            "top-n share": f"{self.top_n_share:.1%} of the sum is in the n largest entries",
            "row sums": f"mean {self.mean_row_sum:.4g}, median {self.median_row_sum:.4g}, "
            f"max {self.max_row_sum:.4g}{rows}",
            "log entries": _LOG_ENTRIES.format(
                *(self.log_quantiles[share] for share in (0.01, 0.5, 0.99, 1.0))
            ),
            "n-th over next": _power(self.ratios.log_to_next),
            "n-th over 2n-th": _power(self.ratios.log_to_twice),
            "growth": f"c ~ n^{self.growth.exponent:.2f}: "
            + ", ".join(
                f"{c:.3g} at {n:,}"
                for n, c in zip(self.growth.sizes, self.growth.constants, strict=True)
            ),
            "plan": f"{self.plan.method} at eps {self.eps:g}; {self.plan.reason}",
            "considered": "; ".join(map(str, self.plan.candidates)) or "the exact product only",
            "speed-ups": ", ".join(f"{s:.3g}x at {eps:g}" for eps, s in self.speed_ups.items())
            + (" (predicted, for x = 1)" if self.speed_ups else "not predicted"),
            "cost": f"{self.pairs:,} pairs ({share:.2g} of all), {self.seconds:.2g} s"
            + (f"; for lack of time: {', '.join(self.left_out)}" if self.left_out else ""),
        }

    def __str__(self) -> str:
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join(f"{name:<{width}}  {fact}" for name, fact in facts.items())

    def _repr_html_(self) -> str:
        facts = self.facts()
        return as_html(f"What to expect: {facts.pop('expect')}", facts)

    def to_json(self) -> str:
        """All numbers as JSON; null for what is not a finite number."""
        content = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in {"plan", "growth", "ratios"}
        }
        content |= {
            "top_n_share": self.top_n_share,
            "growth": self.growth,
            "ratios": self.ratios,
            "plan": self.plan,
        }
        return as_json(content)

    def to_html(self, title: str = "Diagnosis of a kernel matrix") -> str:
        """One self-contained page with charts: no network, readable on a phone and in print."""
        from approxkmv.diagnosis.page import diagnosis_page

        return diagnosis_page(self, title)


def _width(bandwidth: float | tuple[float, ...]) -> str:
    if isinstance(bandwidth, tuple):
        return f"{min(bandwidth):g} to {max(bandwidth):g}, one for each coordinate"
    return f"{bandwidth:g}"


def _power(log: float) -> str:
    """A ratio, as a power of e where it is out of range."""
    return f"{math.exp(log):.4g}" if log < 700 else f"e^{log:.1f}"
