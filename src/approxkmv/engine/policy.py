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
class Cells:
    """Sizes of cells of points that lie together.

    Shares of the pairs needed with groups of 256, 128 and 64 points in 46,000 points of 9
    correlated coordinates, row sums of 5: 0.116, 0.075, 0.058. Below 64 gathering keys costs more
    than is saved.
    """

    points_per_cell: int = 24
    points_per_group: int = 80
    most_groups: int = 1024
    most_axes: int = 16
    most_dims: int = 128  # in hundreds of dimensions few principal coordinates do better
    # Cells with more of the variance of all points than this are not small: 0.02 to 0.58 for tables
    # and patches of pictures, 0.75 for word vectors of 50 dimensions, which are better off in the
    # order of their norms.
    most_left: float = 0.6
    # The same where the exact product is so short that finding out about cells takes a tenth of it:
    # 0.27 for 40,000 points of 8 uniform coordinates, which would need half of the pairs.
    most_left_if_small: float = 0.25
    # Boxes around cells of more dimensions are rarely apart: 2 % of the pairs of cells are needed
    # for tables of 3 columns, 20 to 34 % for 9.
    most_dims_of_boxes: int = 4
    checked_rows: int = 128  # to measure what was left out by a bound
    # What they cost is certain, and what draws cost is predicted before any row is computed: of a
    # curve of 65,536 points 0.04 of all pairs, which the pilot rows of three seeds corrected to
    # 0.04, 0.45 and 0.65. For as many times the prediction boxes are taken.
    certain: float = 2.0
    # Pilot rows that no pair unlike all others has shown up in leave this share of the squared
    # error budget to such pairs: their number follows from it.
    unseen: float = 0.2


@dataclass(frozen=True)
class Choice:
    """When a candidate is taken: below these shares of the exact product.

    A forecast may be wrong, and a refusal after the search would cost the search.
    """

    too_many: float = 0.65  # what draws are expected to cost, before the search and after it
    few_coordinates: float = 0.7
    # Queries with this many times as many equal ones as the others have are computed exactly: pilot
    # rows, three of each block, would not meet them. At most one query in this many is.
    many_copies: float = 16.0
    # Draws after a search usually cost as much as the search: where draws in cells are predicted to
    # cost less than both, the order by norms is not tried.
    surely_in_cells: float = 2.0
    # Where drawing keys would need more than this share of the pairs nothing else helps either.
    nearly_all: float = 0.97
    # Keys too far out for inner products are computed exactly, so that all others are spared
    # squared differences, where they are not more than this share of all keys. Draws by differences
    # need 1.1 to 2 times the time and have no polynomial: more than a hundredth of all pairs, of
    # which far keys take this share.
    most_far: float = 1e-3


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
class HeadShape:
    """Sizes of what a survey cuts a head of attention into."""

    # A multiple of the rows of every micro tile; larger blocks would share keys between unlike
    # queries. The pilot computes the same number of rows for each block, whatever its size.
    rows_per_block: int = 96
    most_blocks: int = 180
    # Moments are kept for every block and key: two matrices of at most 128 MiB each.
    most_moments: int = 2**25
    # With cells of more keys than these blocks of queries have rows there is no neighbourhood.
    most_band_blocks: int = 4
    # Rows of each block that are computed exactly: to plan with, and to check the draws with.
    pilot_rows: int = 2
    check_rows: int = 2
    # No key is thought to matter less than this share of the mean of the guarded moments.
    floor: float = 1e-3
    # Keys expected for each block outside its band, at least: from fewer nothing can be estimated.
    least_draws: float = 32.0
    # Share of a row's own spread that every key counts for: in the moments that predict the
    # variance, and in those that give the rates.
    plan_guard: float = 0.2
    guard: float = 0.5
    # Moments of two rows say little of one key. They are pooled with neighbouring keys, a narrow
    # and a wide number of them on either side: these are the weights of a key's own moment and of
    # the wide pool, the narrow one has the rest; a share of the mean over all keys is added.
    narrow_pool: int = 16
    wide_pool: int = 256
    own_share: float = 0.3
    wide_share: float = 0.2
    all_share: float = 0.01


@dataclass(frozen=True)
class HeadTrial:
    """Some blocks of a head are tried before all, to give up early where sampling cannot pay."""

    # One block in `one_in`, at least six of them: of three, one with a sharp row decided too often.
    one_in: int = 29
    fewest_blocks: int = 6
    # Blocks that may tell how often to draw for all of them: with 9 of 86 instead of 22 second
    # draws were needed on word vectors.
    fewest_for_common: int = 20
    # What all draws may cost, as a share of the exact cost, after the pilot and after the draws of
    # these blocks. Two rows of a block do not see all keys that matter, and up to twice as many
    # pairs were needed on heads of SmolLM2 at eps = 0.03: with 0.75 they took up to 1.6 times the
    # exact time, and with 0.45 one of 24 still did.
    most: float = 0.4
    # A trial with more than this share of the variance budget says that the rates are too low. They
    # are then raised by a power of what is missing, as the variance falls more slowly than the rate
    # grows: on word vectors, whose near keys a pilot of two rows does not all see, 2.5 times the
    # rate left 0.56 of it, 3.6 times 0.38.
    short: float = 0.8
    rate_power: float = 1.3
    hopeless: float = 6.0  # upper limit of the error of the trial over its budget


@dataclass(frozen=True)
class HeadMargins(Margins):
    """How far predictions for a head are trusted."""

    most_draws: int = 3
    calibrate_every: int = 4
    fewest_blocks: float = 64
    calibration: tuple[float, float] = (0.5, 2.5)
    calibration_power: float = 1.15
    least_more: float = 0.25
    largest_ratio: float = math.inf
    hopeless: float = 6.0
    # The variance aimed at, of the squared error budget, leaves room for the spread of the error
    # and for a wrong prediction.
    aim: float = 0.65
    too_many: float = 0.75  # dearer draws than this share of the exact cost are left to it
    # The rows of largest variance are recomputed exactly where this share of the rows is enough, by
    # a margin: one in a hundred had a quarter of the squared error on word vectors, of which their
    # own draws show `1 / overstated` times as much. A row in full costs less than drawing again.
    recomputed_rows: float = 0.1
    usually_recomputed: float = 0.01
    enough: float = 0.97
    overstated: float = 0.7
    # The variance is corrected by the error of the check rows. Fewer of these are computed than it
    # would take to believe that it is much too large; and where they show an error that is larger
    # by far (rows whose one heavy key was not drawn), only they count.
    least_correction: float = 0.7
    most_correction: float = 100.0


@dataclass(frozen=True)
class MeanMargins:
    """When the mean of the values is taken as the output of nearly all rows of a head."""

    # The sharpest rows and others that are computed exactly: at most this number, and one for so
    # many keys.
    most_rows: int = 256
    keys_per_row: int = 128
    # Where a few values are larger than all others, the few rows that look at their keys have large
    # errors, and rows drawn would miss them: at least this share of the values must matter.
    least_that_matter: float = 1 / 32
    # Sizes of the samples for a prediction and for a first look; the prediction and the look decide
    # only whether more rows are worth computing. Of 15 heads with more than 1.5 times the squared
    # error budget predicted, the mean was enough for one.
    points_for_prediction: int = 256
    first_rows: int = 16
    hopeless: float = 1.5
    # Keys from which the variance of the scores is estimated to put rows in order; the longest keys
    # whose scores are computed for all rows.
    keys_for_order: int = 1024
    longest_keys: int = 32
    # Where the first rows show an error this many times below the budget, a quarter of the rows is
    # computed, and is enough if the limit is four times below it.
    first_say: float = 8.0
    fewer_rows: int = 4
    far_less: float = 4.0
    # Where a stratum's limit is in the way it gets four times as many rows, as long as the estimate
    # is half the budget or less and fewer than this share of all rows is computed.
    more_rows: int = 4
    looks_fine: float = 2.0
    share_of_rows: float = 1 / 64
    # A kind of row that occurs this often or more is met twice at least with this probability.
    met_twice: float = 0.96


@dataclass(frozen=True)
class SharedDraw:
    """Sums for queries that come later: one draw of keys for all, near keys summed exactly."""

    # A row is settled where its tolerance is this many standard deviations of its draw.
    deviations: float = 5.0
    pilot_rows: int = 96
    most_near: int = 64  # listing more near keys of a row would cost more than it saves
    levels: int = 14  # powers of two among which the threshold of near keys is chosen
    one_in: tuple[int, ...] = (64, 48, 32, 24, 16)  # shares of the keys that may be drawn
    far: float = 2.0**-7  # smaller values say how often a key should be drawn
    rings: int = 64  # groups of keys by distance from the origin, drawn alike
    worth: float = 0.4  # of the cost of exact answers: what answers may be predicted to cost
    # Near pairs that the search may miss, as a share of the sums of the pilot rows.
    most_missed: float = 0.002
    # A row that finds none of its near keys has no variance that shows it: rows below this share of
    # the smallest sum of a pilot row are computed exactly. Without it one row of 65,536 (one of two
    # seeds) was off by 2.5 nats.
    least: float = 1.0
    rows_at_once: int = 1 << 17


@dataclass(frozen=True)
class LowRankMargins:
    """How the rank of a dense kernel is found, and how its error is judged."""

    # Keys among which the first pivots are picked, and how many of these there are.
    sample: int = 2048
    first_rank: int = 128
    # Points between which kernel values tell what the first pivots leave.
    test_points: int = 256
    # Of the squared error budget, what further pivots aim at; ranks are tried at least this factor
    # apart.
    aim: float = 0.6
    step: float = 1.1
    # Errors fall faster than their powers: a rank extrapolated from ranks that cost up to `early`
    # times the share `look` of the exact product may be this factor too high. Ranks that cost less
    # than this share are tried whatever those before say.
    optimism: float = 2.0
    look: float = 0.01
    early: float = 4.0
    # More pivots than this take more than 300 MB.
    most_rank: int = 6144
    # Rows computed exactly: drawn to judge the error, and because they are most likely wrong.
    checked_rows: int = 256
    recomputed_rows: int = 128
    most_rounds: int = 3
    # Dearer products than this share of the exact one are left to other ways; cheaper ones than
    # the second are made before anything else is looked at.
    too_many: float = 0.5
    at_once: float = 0.25


@dataclass(frozen=True)
class Policy:
    """All of them."""

    shape: Shape = field(default_factory=Shape)
    cells: Cells = field(default_factory=Cells)
    choice: Choice = field(default_factory=Choice)
    schedule: Schedule = field(default_factory=Schedule)
    keys: KeyMargins = field(default_factory=KeyMargins)
    pairs: PairMargins = field(default_factory=PairMargins)
    matrix: MatrixMargins = field(default_factory=MatrixMargins)
    head_shape: HeadShape = field(default_factory=HeadShape)
    head_trial: HeadTrial = field(default_factory=HeadTrial)
    head: HeadMargins = field(default_factory=HeadMargins)
    # No calibration with a causal mask: on eight heads of SmolLM2 it saved 2 % of the pairs, made
    # second draws four times as frequent, and one of 58 errors larger than eps.
    causal_head: HeadMargins = field(default_factory=lambda: HeadMargins(fewest_blocks=math.inf))
    mean: MeanMargins = field(default_factory=MeanMargins)
    shared: SharedDraw = field(default_factory=SharedDraw)
    low_rank: LowRankMargins = field(default_factory=LowRankMargins)
