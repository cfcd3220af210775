"""What a product did: every number, frozen, printable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Plan:
    """How a product was computed, and why.

    Attributes
    ----------
    method : str
        ``"exact"``, ``"sampled"`` or ``"paper"``.
    reason : str
        Why this method, in a sentence.
    numbers : mapping
        Every number and choice the run used, by name.
    """

    method: str
    reason: str
    numbers: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __reduce__(self) -> tuple[type[Plan], tuple[str, str, dict[str, object]]]:
        return Plan, (self.method, self.reason, dict(self.numbers))

    def __str__(self) -> str:
        lines = [f"{self.method}: {self.reason}"]
        width = max((len(name) for name in self.numbers), default=0)
        lines += [f"  {name:<{width}}  {_number(value)}" for name, value in self.numbers.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class ProductInfo:
    """Report of one product ``y`` of a kernel matrix ``K`` with ``x``.

    Errors are relative to the length of ``x``, so that they compare with ``eps`` directly.

    Attributes
    ----------
    method : str
        The method used.
    plan : Plan
        Every number chosen, and why; ``explain()`` prints it.
    error_estimate : float or None
        Estimate of ``|Kx - y| / |x|``: for a sampled product the root of its variance, estimated
        from the drawn values; for an exact product the rounding error, measured on a few random
        rows in double precision. None where it was not measured.
    error_bound : float or None
        Bound of ``|Kx - y| / |x|`` that holds with probability ``confidence``. For an exact
        product it is a worst-case bound of the rounding errors and assumes only IEEE arithmetic;
        it is loose, because it adds what in truth cancels. None where no bound is known.
    confidence : float
        Probability with which the bound holds; 1 for exact products.
    pairs : int
        Kernel evaluations made, all stages together.
    pairs_exact : int
        n_queries times n_keys: the evaluations of the exact product.
    seconds : mapping
        Wall-clock seconds of each stage.
    product_norm : float or None
        ``|y| / |x|``: what ``eps`` is to be compared with. With ``eps`` above it, 0 would be an
        answer as good.
    """

    method: str
    plan: Plan
    error_estimate: float | None
    error_bound: float | None
    confidence: float
    pairs: int
    pairs_exact: int
    seconds: Mapping[str, float]
    product_norm: float | None

    def explain(self) -> str:
        """What was chosen and why, in a few lines."""
        return str(self.plan)

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {value:.3g} s" for name, value in self.seconds.items())
        share = self.pairs / self.pairs_exact if self.pairs_exact else 1.0
        return "\n".join(
            [
                f"{self.method} product: {self.plan.reason}",
                f"  error / |x|   {_shown(self.error_estimate, 'not estimated')}, "
                f"bound {_shown(self.error_bound, 'not known')}, confidence {self.confidence:g}",
                f"  |y| / |x|     {_shown(self.product_norm, 'not measured')}",
                f"  pairs         {self.pairs:,} of {self.pairs_exact:,} ({share:.3g})",
                f"  time          {spent}",
            ]
        )


def _shown(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:.2g}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
