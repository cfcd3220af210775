"""The one loop of the engine: draw, judge, and draw more or anew until the error is met.

A scheme says how keys or pairs are drawn and how large the error of what was drawn is. Everything
else is the same for products, operators and attention, and is here: some blocks are drawn first
and calibrate the rates of the others; what falls short is topped up, or replaced after the scheme
has learnt more; what cannot pay is given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from approxkmv.engine.policy import Margins
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.types import Float64, Index, Index32

# SampledSums, AttentionDraws, or whatever a scheme draws; with `averaged` where draws are added up.
Sums = Any
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Draws(NamedTuple):
    """What was drawn so far, and at how many times the rates of the forecast in all."""

    sums: Sums
    factor: Float64  # (n_blocks,)

    def with_more(self, more: Draws, block_of: Index | Index32) -> Draws:
        """Both together, weighed by their rates: what one draw at the sum of the rates would be.

        The weights of a block must not depend on what it drew, or the sum would be biased.
        """
        factor = self.factor + more.factor
        share = (self.factor / factor)[block_of]
        return Draws(self.sums.averaged(more.sums, share), factor)


@dataclass(frozen=True, eq=False)
class Verdict(Generic[A_co]):
    """An answer, and its error over the error that may be made: accepted at 1 and below."""

    answer: A_co
    ratio: float
    pairs: int  # spent on it: drawn, and in rows computed exactly
    n_recomputed: int = 0  # rows computed exactly because their variance stood out


class Scheme(Protocol[A]):
    """A way to draw. Rates are ``factor`` times those of its own forecast."""

    @property
    def margins(self) -> Margins:
        """How far predictions are trusted."""

    @property
    def block_of(self) -> Index | Index32:
        """The block of each row: blocks draw independently of each other."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""

    def first_factor(self) -> float:
        """For the first draw."""

    def check_cost(self, factor: float) -> None:
        """Raise ``Refusal`` if a draw at this factor cannot pay, ``OutOfTime`` if it cannot fit."""

    def draw(
        self,
        factor: float,
        stream: int,
        *,
        before: Draws | None = None,
        blocks: Index | None = None,
        into: Sums | None = None,
    ) -> Sums:
        """Draw for every block, or for ``blocks`` into the sums of others.

        ``before`` is what a top-up will be added to.
        """

    def calibrated(self, seen: Sums, blocks: Index, factor: float) -> float:
        """The factor for all other blocks, after what these have shown."""

    def judge(self, drawn: Draws, new: Draws) -> Verdict[A]:
        """The answer of all draws, ``new`` being the last of them, and its error."""

    def improve(self, verdict: Verdict[A], trace: Trace) -> bool:
        """Learn more where draws alone would not do; True if all must then be drawn anew."""


def refine(scheme: Scheme[A], trace: Trace) -> A:
    """Draw until the error is met; ``Refusal`` where that does not pay."""
    margins = scheme.margins
    factor, drawn = scheme.first_factor(), None
    for stream in range(margins.most_draws):
        scheme.check_cost(factor)
        if stream == 0 and scheme.n_blocks >= margins.fewest_blocks:
            new = _calibrating(scheme, factor)
        else:
            sums = scheme.draw(factor, stream, before=drawn)
            new = Draws(sums, np.full(scheme.n_blocks, factor))
        drawn = new if drawn is None else drawn.with_more(new, scheme.block_of)
        verdict = scheme.judge(drawn, new)
        trace.lap("draw")
        trace.pairs += verdict.pairs
        trace.note(draws=stream + 1, rows_recomputed=verdict.n_recomputed)
        if verdict.ratio <= 1:
            return verdict.answer
        if verdict.ratio > margins.hopeless:
            raise Refusal("the error of what was drawn is far from the error asked for")
        factor = float(drawn.factor.mean())
        ratio = min(verdict.ratio, margins.largest_ratio)
        if scheme.improve(verdict, trace):
            factor, drawn = factor * margins.anew * ratio, None
        else:
            factor *= max(margins.top_up * ratio - 1, margins.least_more)
    raise Refusal("the error estimate did not come down")


def _calibrating(scheme: Scheme[A], factor: float) -> Draws:
    """Draw for some blocks, and for the others at the rates that these have shown to be needed.

    What a block draws does not depend on what it has drawn itself: all stay unbiased.
    """
    every, n_blocks = scheme.margins.calibrate_every, scheme.n_blocks
    some = np.arange(every // 2, n_blocks, every)
    others = np.setdiff1d(np.arange(n_blocks), some)
    sums = scheme.draw(factor, 0, blocks=some)
    factors = np.full(n_blocks, scheme.calibrated(sums, some, factor))
    sums = scheme.draw(float(factors[others[0]]), 0, blocks=others, into=sums)
    factors[some] = factor
    return Draws(sums, factors)
