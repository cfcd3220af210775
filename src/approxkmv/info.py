"""What a product did: every number, frozen, printable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from approxkmv._shown import as_html, as_json

# What users can change, by words of the reason. None of it changes the error of an exact answer.
ADVICE = {
    "too small for sampling": "nothing: computing every pair is the fastest at this size",
    "no error is allowed": "eps > 0 allows sampling where that is faster",
    "too few keys": "nothing: computing every pair is the fastest at this size",
    "too dense": "a larger error allowed (eps, rtol) or a smaller bandwidth leaves fewer pairs",
    "too many samples count": "a smaller bandwidth, or a larger rtol, leaves fewer of them",
    "too hard to find": "a larger error allowed (eps, rtol), or points of fewer dimensions",
    "too many bandwidths apart": "a larger bandwidth: at this one most kernel values are 0",
    "max_seconds was too short": "a larger max_seconds, or a larger eps",
}


@dataclass(frozen=True)
class Considered:
    """One way to a product that came into question.

    Attributes
    ----------
    name : str
        What is done.
    cost : float
        Predicted, in exact products.
    error : float
        Predicted, as a share of the error allowed.
    outcome : str
        ``"taken"``, or why not.
    """

    name: str
    cost: float
    error: float
    outcome: str

    def __str__(self) -> str:
        return f"{self.name}, cost {self.cost:.3g}, error {self.error:.2g}: {self.outcome}"


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
    candidates : tuple of Considered
        The ways to the product that came into question, each with its predicted cost (in exact
        products), its predicted error (as a share of the error allowed), and ``"taken"`` or why
        it was not taken. Empty where nothing but the exact product did.
    """

    method: str
    reason: str
    numbers: Mapping[str, object] = field(default_factory=dict)
    candidates: tuple[Considered, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __reduce__(
        self,
    ) -> tuple[type[Plan], tuple[str, str, dict[str, object], tuple[Considered, ...]]]:
        return Plan, (self.method, self.reason, dict(self.numbers), self.candidates)

    @property
    def advice(self) -> str:
        """What could be changed to have it otherwise, where that is known; else empty."""
        return next((text for words, text in ADVICE.items() if words in self.reason), "")

    def __str__(self) -> str:
        helps = [f"  what helps: {self.advice}"] if self.advice else []
        lines = [f"{self.method}: {self.reason}", *helps, *_table(self.candidates)]
        width = max((len(name) for name in self.numbers), default=0)
        lines += [f"  {name:<{width}}  {_number(value)}" for name, value in self.numbers.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything as JSON; null for what is not a finite number."""
        return as_json(self)

    def _repr_html_(self) -> str:
        return as_html(f"{self.method}: {self.reason}", _texts(self.numbers))


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
        Estimate of ``|Kx - y| / |x|``: for a sampled product its root mean square, estimated
        from the drawn values; for an exact product the rounding error, measured on a few random
        rows in double precision. None where it was not measured.
    error_bound : float or None
        Bound of ``|Kx - y| / |x|`` that holds with probability ``confidence``. For an exact
        product it is a worst-case bound of the rounding errors and assumes only IEEE arithmetic;
        it is loose, because it adds what in truth cancels. For a sampled product it is Markov's
        inequality for the squared error, whatever its distribution; it assumes that the mean
        squared error is not larger than its upper limit estimated from drawn pairs, pilot rows and
        a search for pairs that were missed. None where no bound is known.
    confidence : float
        Probability with which the bound holds; 1 for exact products, and for those in which nothing
        is left to chance (``info.plan.reason`` says so).
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

    def to_json(self) -> str:
        """Everything as JSON; null for what is not known or not a finite number."""
        return as_json(self)

    def _facts(self) -> dict[str, str]:
        bound = _bound(self.error_bound, self.confidence)
        return (
            {
                "error / |x|": f"{_shown(self.error_estimate, 'not estimated')}, {bound}",
                "|y| / |x|": _shown(self.product_norm, "not measured"),
                "pairs": _pairs(self.pairs, self.pairs_exact),
            }
            | _spent(self.seconds)
            | _helps(self.plan)
        )

    def __str__(self) -> str:
        return _lines(f"{self.method} product: {self.plan.reason}", self._facts())

    def _repr_html_(self) -> str:
        title = f"{self.method} product: {self.plan.reason}"
        return as_html(title, self._facts(), _texts(self.plan.numbers))


@dataclass(frozen=True)
class HeadInfo:
    """What was done for one head of :func:`approxkmv.attention`, relative to ``|V|_F``.

    Attributes
    ----------
    method : str
        The method used for this head.
    error_estimate : float or None
        Estimate of ``|O - O'|_F / |V|_F``: for a sampled head from the drawn values, otherwise
        measured on a few random rows in double precision.
    error_bound : float or None
        Bound of the same that holds with the probability ``confidence`` of the call. For an exact
        head it is a worst-case bound of the rounding errors. For a sampled head it is Markov's
        inequality for the squared error; it assumes that the mean squared error is not larger than
        its upper limit, estimated from the draws and from rows computed exactly. None where no
        bound is known: with ``method="paper"``, and where ``max_seconds`` was over.
    pairs, pairs_exact : int
        Scores computed, all stages together, and those of the exact method (with ``is_causal``, up
        to the diagonal).
    output_norm : float
        ``|O'|_F / |V|_F``: what ``eps`` is to be compared with; with ``eps`` above it 0 would do.
    mean_error : float
        ``|O' - mean(V)|_F / |V|_F``: with ``eps`` above it the mean of the values would do.
    numbers : mapping
        Every number the run used, by name.
    reason : str
        Why this method; for an exact head of ``"auto"`` and ``"sampled"`` why it was not sampled.
    seconds : mapping
        Wall-clock seconds of each stage. Heads computed exactly together share the time evenly.
    """

    method: str
    error_estimate: float | None
    error_bound: float | None
    pairs: int
    pairs_exact: int
    output_norm: float
    mean_error: float
    numbers: Mapping[str, object] = field(default_factory=dict)
    reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionInfo:
    """Report of one call of :func:`approxkmv.attention`.

    Attributes
    ----------
    method : str
        The method of all heads, or ``"mixed"``.
    plan : Plan
        What was chosen and why; ``explain()`` prints it, with a line for each head.
    heads : tuple of HeadInfo
        One for each head, in the order of the leading dimensions.
    confidence : float
        Probability with which the error of each head is at most ``eps``; 1 for exact heads.
    seconds : mapping
        Wall-clock seconds of each stage.
    """

    method: str
    plan: Plan
    heads: tuple[HeadInfo, ...]
    confidence: float
    seconds: Mapping[str, float]

    @property
    def error_estimate(self) -> float | None:
        """The largest estimate of all heads; None where a head has none."""
        return _largest([head.error_estimate for head in self.heads])

    @property
    def error_bound(self) -> float | None:
        """The largest bound of all heads; None where a head has none."""
        return _largest([head.error_bound for head in self.heads])

    @property
    def pairs(self) -> int:
        """Scores computed, all heads and stages together."""
        return sum(head.pairs for head in self.heads)

    @property
    def pairs_exact(self) -> int:
        """Scores of the exact method."""
        return sum(head.pairs_exact for head in self.heads)

    def explain(self) -> str:
        """What was chosen and why, and the numbers of each head."""
        lines = [str(self.plan)]
        for index, head in enumerate(self.heads):
            share = head.pairs / head.pairs_exact if head.pairs_exact else 1.0
            lines.append(
                f"  head {index}: {head.method}: {head.reason}\n    pairs {share:.3g}, error / |V| "
                f"{_shown(head.error_estimate, 'not estimated')}, bound "
                f"{_shown(head.error_bound, 'not known')}, mean(V) would give {head.mean_error:.2g}"
            )
            spent = ", ".join(f"{name} {value:.3g} s" for name, value in head.seconds.items())
            lines += [f"    time  {spent}"] if spent else []
            lines += [f"    {name}  {_number(value)}" for name, value in head.numbers.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything as JSON; null for what is not known or not a finite number."""
        return as_json(self)

    def _facts(self) -> dict[str, str]:
        least = min((head.mean_error for head in self.heads), default=0.0)
        bound = _bound(self.error_bound, self.confidence)
        return {
            "error / |V|": f"{_shown(self.error_estimate, 'not estimated')}, {bound}",
            "mean(V)": f"would give {least:.2g} or more",
            "pairs": _pairs(self.pairs, self.pairs_exact),
        } | _spent(self.seconds)

    def __str__(self) -> str:
        return _lines(f"{self.method} attention: {self.plan.reason}", self._facts())

    def _repr_html_(self) -> str:
        title = f"{self.method} attention: {self.plan.reason}"
        heads = {
            f"head {index}": f"{head.method}, pairs {_pairs(head.pairs, head.pairs_exact)}, "
            f"error / |V| {_shown(head.error_estimate, 'not estimated')}"
            for index, head in enumerate(self.heads)
        }
        return as_html(title, self._facts(), heads | _texts(self.plan.numbers))


def _table(candidates: Sequence[Considered]) -> list[str]:
    if not candidates:
        return []
    width = max(len(one.name) for one in candidates)
    lines = ["  predicted cost in exact products, predicted error over the error allowed:"]
    for one in candidates:
        numbers = f"cost {one.cost:<6.3g} error {one.error:<6.2g}"
        lines.append(f"    {one.name:<{width}}  {numbers} {one.outcome}")
    return lines


def _largest(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return max(found, default=0.0) if len(found) == len(values) else None


def _shown(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:.2g}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _texts(numbers: Mapping[str, object]) -> dict[str, str]:
    return {name: _number(value) for name, value in numbers.items()}


def _lines(title: str, facts: Mapping[str, str]) -> str:
    return "\n".join([title, *(f"  {name:<13} {fact}" for name, fact in facts.items())])


def _bound(value: float | None, confidence: float) -> str:
    if value is None:
        return "no bound is known"
    trust = "" if confidence == 1 else f" with probability {confidence:g}"
    return f"at most {value:.2g}{trust}"


def _pairs(made: int, exact: int) -> str:
    share = "all" if made == exact else f"{made / exact:.3g} of all" if exact else "all"
    return f"{made:,} of {exact:,} ({share})"


def _helps(plan: Plan) -> dict[str, str]:
    return {"what helps": plan.advice} if plan.advice else {}


def _spent(seconds: Mapping[str, float]) -> dict[str, str]:
    """The time of each stage, if there is any."""
    spent = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
    return {"time": spent} if spent else {}
