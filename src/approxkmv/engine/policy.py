"""How the engine samples: sizes, margins, and when it gives up. Costs are in ``cost.py``.

None of these numbers decides whether an answer is right, which its error estimate does; they decide
how often an answer is good enough at the first try, and how much is spent on finding out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """Sizes of what a survey cuts the matrix into."""

    rows_per_block: int = 512
    keys_per_tile: int = 512
    most_blocks: int = 256
    pilot_rows: int = 3  # of each block; one less where there are as many blocks as possible
    # A pair of this value, in eps / sqrt(n_keys), costs as much to find as to leave to the draws.
    near: float = 12.0
    # The variance aimed at leaves room for the spread of the error and for a wrong prediction.
    aim: float = 0.6


@dataclass(frozen=True)
class Choice:
    """When a candidate is taken: below these shares of the exact product.

    A forecast may be wrong, and a refusal after the search would cost the search.
    """

    too_many: float = 0.65  # what draws are expected to cost, before the search and after it
    few_coordinates: float = 0.7
    # Where drawing keys would need more than this share of the pairs nothing else helps either.
    nearly_all: float = 0.97


@dataclass(frozen=True)
class Schedule:
    """Numbers of tilings, and when to stop."""

    # Tilings before isolated points are searched; instead of searching them; at a time later; in
    # all.
    first_tilings: int = 3
    without_isolated: int = 4
    more_tilings: int = 2
    most_tilings: int = 16
    # Between these numbers of keys one less is as good: 2.3 instead of 2.5 s for 262,144 points.
    # With fewer keys, and among a million, the third is worth its cost.
    one_less: tuple[int, int] = (2**15, 2**18)
    # Where the first tilings found this share of the near pairs, neighbours lead on to the others.
    leads_on: float = 0.5
    # A step is taken only if it costs less than the share of the remaining gap, to the draws with
    # all near pairs known, that it is expected to close: the share that the step before closed, but
    # at least these, for the first expansion and for the first steps after it.
    first_closing: float = 0.5
    next_closing: float = 0.3
    # Points whose near pairs are worth less than this share of their error budget are not searched.
    not_searched: float = 0.02
    # Of the squared error budget: what near pairs not found may take before more is searched.
    most_missing: float = 0.3

    def tilings_for(self, n_keys: int) -> int:
        """How many tilings cover all points before isolated ones are searched."""
        return self.first_tilings - (self.one_less[0] < n_keys <= self.one_less[1])


@dataclass(frozen=True)
class Margins:
    """How far predictions are trusted, and when to stop."""

    most_draws: int  # before the scheme is given up
    # One block in `calibrate_every` is drawn first where there are at least `fewest_blocks`; what
    # it shows may change the rates of the others by factors within `calibration`.
    calibrate_every: int = 8
    fewest_blocks: float = math.inf
    calibration: tuple[float, float] = (0.5, 3.0)
    # A top-up draws what is missing times `top_up`, and at least `least_more` of what was drawn.
    top_up: float = 1.15
    least_more: float = 0.0
    # A draw that replaces another one has rates larger by `anew` times what was missing. Of the
    # ratio of error to budget at most `largest_ratio` is believed.
    anew: float = 1.3
    largest_ratio: float = 3.0
    hopeless: float = math.inf  # no draw follows where the ratio is larger


@dataclass(frozen=True)
class KeyMargins(Margins):
    """How far forecasts of drawn keys are trusted."""

    most_draws: int = 4
    fewest_blocks: float = 64
    top_up: float = 1.15
    # The upper limit aimed at in the first draw, of the squared error budget, and how far its rates
    # may be from those of the forecast.
    room: float = 0.96
    lowered: float = 0.65
    raised: float = 1.3
    least_room: float = 0.3  # what is left of the budget for the draws at least, when calibrating
    # A draw that falls short costs another search: the first one has at least this share of the
    # pairs spent before it, but at most this many times the pairs of the forecast.
    first_share: float = 0.15
    at_most_larger: float = 3.0
    # The same where a few entries of x are large, their mean below the share ``few_large`` of their
    # root mean square: pilot rows may meet none of the pairs in which these entries matter.
    first_share_few: float = 0.5
    at_most_larger_few: float = 8.0
    few_large: float = 0.2
    # In a top-up, keys drawn with a larger probability than this are drawn at least as often as
    # before: averaging in a noisier draw would raise their variance.
    often: float = 0.25
    # Rows that may be recomputed, as a share of what the draws cost, and of all pairs at least.
    recomputing: float = 0.7
    least_recomputing: float = 0.01
    # Of the squared error budget: what missed pairs may take before more is searched.
    most_left_out: float = 0.3


@dataclass(frozen=True)
class PairMargins(Margins):
    """Draws of pairs are not added up: each replaces the one before."""

    most_draws: int = 2
    anew: float = 1.5
    largest_ratio: float = 4.0
    recomputed_rows: float = 0.005  # share of the rows
    too_many: float = 0.7  # dearer draws than this share of the exact product are left to it


@dataclass(frozen=True)
class MatrixMargins(Margins):
    """A draw whose keys vary too much is replaced by one at twice the probabilities."""

    most_draws: int = 2
    anew: float = 2.0
    largest_ratio: float = 1.0


@dataclass(frozen=True)
class Policy:
    """All of them."""

    shape: Shape = field(default_factory=Shape)
    choice: Choice = field(default_factory=Choice)
    schedule: Schedule = field(default_factory=Schedule)
    keys: KeyMargins = field(default_factory=KeyMargins)
    pairs: PairMargins = field(default_factory=PairMargins)
    matrix: MatrixMargins = field(default_factory=MatrixMargins)
