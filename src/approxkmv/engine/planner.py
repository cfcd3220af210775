"""What to do with these data: draw keys, go through few coordinates, or compute every pair.

Where it pays, keys are drawn for what a smooth part of the kernel leaves.

Everything is counted in pairs of the exact product, the unit in which a saving shows. The pilot
costs about one pair in a hundred; whatever it predicts to be dearer than the exact product is
computed exactly, so the worst case is exact plus the pilot and a few tilings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from approxkmv._deadline import OutOfTime
from approxkmv.engine.neighbours.search import Missing, Search, cell_depth
from approxkmv.engine.result import Clock, Limit, Outcome
from approxkmv.engine.sample import Draws, Judge, draw, spread, usual_variance
from approxkmv.engine.schemes.few_coordinates import draw_reduced, make_likeness, make_reduction
from approxkmv.engine.survey.control_variate import Smooth, fit_smooth, smooth_cost, worth_fitting
from approxkmv.engine.survey.forecast import Forecast, Forecaster
from approxkmv.engine.survey.moments import moving_mean
from approxkmv.engine.survey.order import Blocks, norm_order
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import Rates
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float64, Index, Index32, SampledSums

_ROWS_PER_BLOCK, _KEYS_PER_TILE, _PILOT_ROWS = 512, 512, 3
_MOST_BLOCKS = 256
# Tilings before lone points are searched; instead of searching them; at a time later; in all.
_FIRST_TILINGS, _WITHOUT_LONE_POINTS, _MORE_TILINGS, _MOST_TILINGS = 3, 4, 2, 16
# Between these numbers of keys one less is as good: 2.3 instead of 2.5 s for 262,144 points. With
# fewer keys, and among a million, the third is worth what it costs.
_ONE_LESS = 2**15, 2**18
# Where the first tilings found this share of the near pairs, neighbours lead on to the others.
_LEADS_ON = 0.5
# A pair of this value costs as much to find as to leave to the draws.
_NEAR = 12.0
# What a tiling costs per point beyond its sketches' pairs (cutting, verifying, merging), a search
# among neighbours, and one for keys that few know of, in pairs of 64 dimensions. The last two are
# 690 and 200 with 32,768 keys in clusters of 16, 1,400 and 530 with 262,144.
_TILING_PAIRS, _NEIGHBOUR_PAIRS, _FEW_KNOW_PAIRS = 500, 700, 300
# The same for points that are still alone after that.
_LONE_PAIRS = 600
# Draws cost more than if all near pairs were known: the least share of this gap that neighbours are
# expected to close, and the first steps after them.
_LEAST_CLOSING = 0.5, 0.3
# Points whose near pairs are worth less than this share of their error allowed are not searched.
_NOT_SEARCHED = 0.02
# The variance aimed at leaves room for the spread of the error and for a wrong prediction.
_AIM = 0.6
_MOST_DRAWS = 4
# The upper limit aimed at in the first draw, of the squared error allowed, and how far its rates
# may be from those of the forecast.
_ROOM, _LOWERED, _RAISED = 0.96, 0.65, 1.3
# The first draws are for one block in so many, where there are at least so many blocks: they tell
# the variance better than the forecast, and the others get the rates that it takes. At most by so
# much less or more.
_ONE_TELLS, _ENOUGH_BLOCKS, _TOLD = 8, 64, (0.5, 3.0)
# A draw that falls short costs another search: the first one has at least this share of the pairs
# reckoned for all before it, if that is not so many times those of the forecast. More, the second
# numbers, where a few entries of x are large, their mean below this share of their root mean
# square: pilot rows may meet none of those where these entries matter.
_FIRST_SHARE, _AT_MOST_LARGER, _FEW_LARGE = (0.15, 0.5), (3.0, 8.0), 0.2
# Draws that fall short get so much more than would be missing if all went on as it did; where keys
# are drawn more often than this, as often as before, for less would spoil what is there.
_ENOUGH_MORE, _OFTEN = 1.15, 0.25
# Rows that may be mended, as a share of what the draws cost.
_MENDING = 0.7
# Of the squared error allowed: what near pairs that were not found may take before more is
# searched, as the tiling more tells and as the draws tell.
_MOST_MISSING, _MOST_LEFT_OUT = 0.3, 0.3
# Through few coordinates: the variance aimed at, what must be saved at least, draws, and the share
# of rows that may be mended.
_REDUCED_AIM, _CHEAP_ENOUGH, _MOST_REDUCED_DRAWS, _MENDED_ROWS = 0.6, 0.7, 2, 0.005
# What a search for near pairs costs for each query, in pairs: so many, and more for a coordinate,
# among 2^15 keys, growing with their number; and by how much the draws usually exceed those needed
# if all near pairs were known. Measured: 2,700 to 5,900 pairs in 64 and 100 dimensions, 2,600 to
# 7,800 in 784 (``python -m benchmarks.prediction`` prints them); 1.1 to 3.4 times.
_SEARCH_PAIRS, _SEARCH_PAIRS_PER_DIM, _SEARCH_KEYS, _SEARCH_GROWTH = 4000, 4, 2**15, 0.4
_MORE_DRAWS = 1.5
# What a pair of a pilot row costs, looked at for its neighbours and multiplied: 2.1 to 2.4 pairs
# with one column; what finding few coordinates and trying rates costs for each query, in pairs.
_PILOT_PAIR, _COORDINATES_PAIRS = 2.2, 900
# Where drawing would need more than this share of the pairs few coordinates do not help either.
_NEARLY_ALL = 0.97
# What is dearer than these shares of the exact product is left to it: before and after the search.
_TOO_DENSE, _TOO_MANY = 0.5, 0.65


@dataclass(frozen=True, eq=False)
class Look:
    """What a few rows tell about a matrix, and what drawing keys would cost at best."""

    allowed: float
    size: Array  # lengths of the rows of x
    query_blocks: Blocks
    key_tiles: Blocks
    pilot: Pilot
    forecaster: Forecaster
    best: Forecast  # as if every near pair were known
    smooth: Smooth | None  # what is taken out before keys are drawn


@dataclass(frozen=True, eq=False)
class Study(Look):
    """What was learnt about a matrix: a few rows, near pairs, and what drawing would cost."""

    search: Search
    forecast: Forecast
    missing: Missing


def study(
    kernel: KernelMatrix,
    bandwidth: float,
    x: Array,
    *,
    eps: float,
    rng: np.random.Generator,
    outcome: Outcome,
    clock: Clock,
) -> Study | None:
    """Look at a few rows, search for near pairs; None, and the reason, if sampling cannot pay."""
    limit = Limit()
    look = _look(kernel, x, eps, rng, outcome, clock, limit, one_shot=False)
    if look is None or _too_dense(look, kernel, outcome, limit):
        return None
    return _searched(look, kernel, bandwidth, x, rng, outcome, clock, limit)


def _look(
    kernel: KernelMatrix,
    x: Array,
    eps: float,
    rng: np.random.Generator,
    outcome: Outcome,
    clock: Clock,
    limit: Limit,
    *,
    one_shot: bool,
) -> Look | None:
    """Look at a few rows; None if there is nothing to compute.

    For one product with one column a smooth part is taken out where that pays.
    """
    geometry, n_threads = kernel.geometry, kernel.backend.n_threads
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    n_pairs = n_queries * n_keys
    size = row_lengths(x)
    allowed = eps**2 * float(np.square(size, dtype=np.float64).sum())
    if allowed == 0:
        outcome.reason = "the product is exactly zero"
        return None
    n_rows = max(_ROWS_PER_BLOCK, math.ceil(n_queries / _MOST_BLOCKS))
    query_blocks, key_tiles = norm_order(geometry, n_rows, max(_KEYS_PER_TILE, n_rows // 2))
    clock.lap("order")
    limit.needs(_PILOT_PAIR * _PILOT_ROWS * len(query_blocks.sizes) * n_keys)
    pilot = run_pilot(
        geometry,
        size,
        query_blocks,
        key_tiles,
        rows_per_block=_PILOT_ROWS if len(query_blocks.sizes) < _MOST_BLOCKS else _PILOT_ROWS - 1,
        threshold=min(0.5, _NEAR * eps / math.sqrt(n_keys)),
        column=np.ascontiguousarray(x[:, 0]) if one_shot and x.shape[1] == 1 else None,
        rng=rng,
        n_threads=n_threads,
        check=kernel.backend.check,
    )
    outcome.pairs = len(pilot.rows) * n_keys
    clock.lap("pilot")
    part = None
    if pilot.powers is not None and worth_fitting(geometry):
        part = fit_smooth(pilot, geometry)
    # Twenty megabytes that nobody needs any more.
    pilot = replace(pilot, powers=None)
    forecaster = Forecaster(pilot, x, size, query_blocks, key_tiles, _AIM * allowed)
    best = forecaster.all_known()
    outcome.numbers |= {
        "blocks": len(query_blocks.sizes),
        "tiles": len(key_tiles.sizes),
        "pilot_rows": len(pilot.rows),
        # In exact products; what is not listed is not possible with these points.
        "predicted_cost_of_exact": 1.0,
        "predicted_cost_of_drawing_keys": _drawing_cost(best, kernel) / n_pairs,
    }
    if part is not None:
        of_rest = forecaster.without(part.light, part.near_square)
        rest, extra = of_rest.all_known(), smooth_cost(n_queries, n_keys, kernel.keys.shape[1])
        outcome.numbers |= {
            "squares_left_by_smooth_part": part.left,
            "predicted_cost_with_smooth_part": (_drawing_cost(rest, kernel) + extra) / n_pairs,
        }
        if rest.cost + extra < best.cost:
            forecaster, best = of_rest, rest
        else:
            part = None
    outcome.numbers["share_if_all_near_pairs_were_known"] = best.rates.pairs / n_pairs
    clock.lap("plan")
    limit.learn(2 * outcome.pairs, outcome.seconds["pilot"])
    look = Look(allowed, size, query_blocks, key_tiles, pilot, forecaster, best, part)
    outcome.look = look
    return look


class Prediction(NamedTuple):
    """What each way to a product is expected to cost, in exact products, with finding out.

    ``few_coordinates`` is None where the points have too few to leave any out.
    """

    exact: float
    drawing_keys: float
    few_coordinates: float | None
    chosen: str  # "exact", "drawing keys" or "few coordinates"
    cost: float  # of what is chosen

    @property
    def speed_up(self) -> float:
        """Over the exact product without a look at the data."""
        return 1 / self.cost


def predicted(
    kernel: KernelMatrix,
    bandwidth: float,
    x: Array,
    tolerances: Iterable[float],
    rng: np.random.Generator,
) -> dict[float, Prediction]:
    """What :func:`sampled` would do for each error allowed: its first look, and no product."""
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    n_pairs = n_queries * n_keys
    likeness = make_likeness(kernel, bandwidth, rng)
    predictions = {}
    for eps in tolerances:
        outcome = Outcome("")
        clock = Clock(outcome.seconds)
        look = _look(kernel, x, eps, rng, outcome, clock, Limit(), one_shot=True)
        if look is None:
            predictions[eps] = Prediction(1.0, 1.0, None, "exact", 1.0)
            continue
        drawing, few = _drawing_cost(look.best, kernel), math.inf
        looked = _PILOT_PAIR * len(look.pilot.rows) * n_keys
        if likeness is not None:
            target, seed = _REDUCED_AIM * look.allowed, int(rng.integers(2**63))
            reduction = make_reduction(likeness, x, look.size, look.pilot, target, seed)
            few = math.inf if reduction is None else reduction.cost
            looked += _COORDINATES_PAIRS * n_queries
        searched = looked + _search_cost(kernel)
        if few <= min(drawing, _CHEAP_ENOUGH * n_pairs):
            chosen, cost = "few coordinates", looked + few
        elif look.best.cost > _TOO_DENSE * n_pairs:
            chosen, cost = "exact", looked + n_pairs
        elif drawing - _search_cost(kernel) > _TOO_MANY * n_pairs:
            chosen, cost = "exact", searched + n_pairs
        else:
            chosen, cost = "drawing keys", looked + drawing
        predictions[eps] = Prediction(
            1.0,
            (looked + drawing) / n_pairs,
            None if likeness is None else (looked + few) / n_pairs,
            chosen,
            cost / n_pairs,
        )
    return predictions


def _drawing_cost(best: Forecast, kernel: KernelMatrix) -> float:
    """What finding near pairs and drawing keys costs, before anything was searched."""
    return _MORE_DRAWS * best.cost + _search_cost(kernel)


def _search_cost(kernel: KernelMatrix) -> float:
    """What finding near pairs usually costs."""
    n_keys, n_dims = kernel.keys.shape
    each = _SEARCH_PAIRS + _SEARCH_PAIRS_PER_DIM * n_dims
    return float(len(kernel.queries) * each * (n_keys / _SEARCH_KEYS) ** _SEARCH_GROWTH)


def _too_dense(look: Look, kernel: KernelMatrix, outcome: Outcome, limit: Limit) -> bool:
    """Whether drawing keys cannot pay; with too short a time for the exact product it must."""
    n_pairs = len(kernel.queries) * len(kernel.keys)
    dense = look.best.cost > _TOO_DENSE * n_pairs and limit.allows(n_pairs)
    if dense:
        outcome.reason = "the kernel is too dense: sampling would need almost every pair"
    return dense


def _searched(
    look: Look,
    kernel: KernelMatrix,
    bandwidth: float,
    x: Array,
    rng: np.random.Generator,
    outcome: Outcome,
    clock: Clock,
    limit: Limit,
) -> Study | None:
    """Search for near pairs; None, and the reason, if they are too hard to find."""
    pilot, forecaster, size = look.pilot, look.forecaster, look.size
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    n_pairs = n_queries * n_keys
    limit.needs(_search_cost(kernel))
    search = Search(
        kernel.geometry,
        bandwidth,
        pilot,
        look.query_blocks,
        look.key_tiles,
        rng,
        kernel.backend.n_threads,
        kernel.backend.check,
    )
    outcome.search = search
    worth = _worth_searching(look)
    clock.lap("plan")
    if look.smooth is not None and look.smooth.explains_near_pairs:
        forecast = forecaster(search.found)
    else:
        _search_everywhere(search, n_keys, clock)
        forecast = _searched_until_it_pays_no_more(search, look, worth, n_pairs, clock)
    missing = search.missing(x, size, forecast.rates.rate, look.smooth)
    clock.lap("check")
    while (
        missing.at_most > _MOST_MISSING * look.allowed
        and search.n_tilings < _MOST_TILINGS
        and limit.allows(forecast.cost)
    ):
        _round(search, _MORE_TILINGS, *search.everywhere, clock)
        forecast = forecaster(search.found)
        missing = search.missing(x, size, forecast.rates.rate, look.smooth)
        clock.lap("check")
    if missing.at_most > _MOST_MISSING * look.allowed and limit.allows(n_pairs):
        outcome.pairs += search.pairs
        outcome.reason = "near pairs are too hard to find"
        return None
    outcome.numbers |= {
        "threshold": pilot.threshold,
        "sketch_dims": search.sketch_dims,
        "worth_searching": len(worth[0]) / n_queries,
        "tilings": search.n_tilings,
        "found_pairs_per_query": len(search.found.cols) / n_queries,
        "rare_from": forecast.rare_from,
        "predicted_share_of_pairs": forecast.cost / n_pairs,
    }
    return Study(**vars(look), search=search, forecast=forecast, missing=missing)


def _search_everywhere(search: Search, n_keys: int, clock: Clock) -> None:
    """Search every point at least a little.

    Clusters of points that the pilot never met would show neither in rates nor in variances.
    """
    search.tilings(first_tilings(n_keys), *search.everywhere)
    if not search.lone():
        search.tilings(_WITHOUT_LONE_POINTS - search.n_tilings, *search.everywhere)
        left = cell_depth(n_keys) - 2 - search.n_tilings
        search.tilings(left if search.share_found() < _LEADS_ON else 0, *search.everywhere)
    clock.lap("tilings")
    search.neighbours()
    clock.lap("neighbours")


def first_tilings(n_keys: int) -> int:
    """How many tilings cover all points before those that are alone are searched."""
    return _FIRST_TILINGS - (_ONE_LESS[0] < n_keys <= _ONE_LESS[1])


def sampled(
    kernel: KernelMatrix,
    bandwidth: float,
    x: Array,
    *,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    limit: Limit | None = None,
) -> Outcome:
    """Try to meet ``eps`` by sampling; say so if computing every pair is the better choice.

    ``x`` has one or several columns; errors are relative to its Frobenius norm. Where the time
    ends before the error is met, the outcome is ``stopped``, without an answer, and has what was
    learnt for :func:`approxkmv.engine.schemes.in_time.hurried_sample`.
    """
    outcome = Outcome("sampling is cheaper")
    try:
        _sample_it(kernel, bandwidth, x, eps, delta, rng, limit or Limit(), outcome)
    except OutOfTime:
        outcome.stopped = True
        outcome.reason = "max_seconds was too short for the error asked for"
    return outcome


def _sample_it(
    kernel: KernelMatrix,
    bandwidth: float,
    x: Array,
    eps: float,
    delta: float,
    rng: np.random.Generator,
    limit: Limit,
    outcome: Outcome,
) -> None:
    """Look, search, draw: the outcome has a sample if its error is met."""
    clock = Clock(outcome.seconds)
    look = _look(kernel, x, eps, rng, outcome, clock, limit, one_shot=True)
    if look is None:
        return
    n_pairs = len(kernel.queries) * len(kernel.keys)
    if look.best.rates.pairs > _NEARLY_ALL * n_pairs and _too_dense(look, kernel, outcome, limit):
        return
    if look.pilot.products is not None:
        products = look.pilot.products[:, None].astype(x.dtype)
    else:
        products = kernel.at_queries(look.pilot.rows).product(x).out
        outcome.pairs += len(products) * len(kernel.keys)
        clock.lap("pilot")
    judge = Judge(kernel, x, look.query_blocks, look.pilot, products, look.allowed, delta)
    if _through_few_coordinates(look, judge, bandwidth, rng, outcome, clock, limit):
        return
    if not _too_dense(look, kernel, outcome, limit):
        learnt = _searched(look, kernel, bandwidth, x, rng, outcome, clock, limit)
        if learnt is not None:
            _drawn(learnt, judge, rng, outcome, clock, limit)


def _through_few_coordinates(
    look: Look,
    judge: Judge,
    bandwidth: float,
    rng: np.random.Generator,
    outcome: Outcome,
    clock: Clock,
    limit: Limit,
) -> bool:
    """Whether the answer was found through few coordinates, if that is predicted to be cheapest."""
    kernel, allowed = judge.kernel, look.allowed
    n_queries = len(kernel.queries)
    n_pairs = n_queries * len(kernel.keys)
    if not limit.allows(_COORDINATES_PAIRS * n_queries):
        return False
    likeness = make_likeness(kernel, bandwidth, rng)
    if likeness is None:
        return False
    seed, target = int(rng.integers(2**63)), _REDUCED_AIM * allowed
    reduction = make_reduction(likeness, judge.x, look.size, look.pilot, target, seed)
    clock.lap("few coordinates")
    if reduction is None:
        return False
    outcome.numbers["predicted_cost_of_few_coordinates"] = reduction.cost / n_pairs
    others = min(_drawing_cost(look.best, kernel), _CHEAP_ENOUGH * n_pairs)
    if reduction.cost > others or not limit.allows(reduction.cost):
        return False
    factor = 1.0
    for attempt in range(_MOST_REDUCED_DRAWS):
        sample = draw_reduced(
            judge,
            reduction,
            look.size,
            factor=factor,
            most_rows=math.ceil(_MENDED_ROWS * n_queries),
            stream=attempt,
        )
        clock.lap("draw")
        outcome.pairs += sample.pairs
        outcome.numbers |= {
            "coordinates": float(likeness.dims_of.mean()),
            "rows_computed_exactly": int((likeness.dims_of == 0).sum()),
            "looks_per_query": reduction.looks * factor / n_queries,
            "draws": attempt + 1,
            "mended_rows": sample.n_mended,
        }
        worst = max(sample.upper, sample.checked) / allowed
        if worst <= 1:
            outcome.sample = sample
            outcome.reason = "few coordinates tell which pairs matter"
            outcome.numbers["share_of_pairs"] = outcome.pairs / n_pairs
            return True
        factor *= 1.5 * min(worst, 4.0)
    return False


def _drawn(
    learnt: Study,
    judge: Judge,
    rng: np.random.Generator,
    outcome: Outcome,
    clock: Clock,
    limit: Limit,
) -> None:
    """Draw keys, and again, larger, until the error is met or drawing does not pay any more."""
    x, delta, n_keys = judge.x, judge.delta, len(judge.kernel.keys)
    n_pairs = len(judge.kernel.queries) * n_keys
    allowed, search = learnt.allowed, learnt.search
    forecast, missing = learnt.forecast, learnt.missing
    seed = int(rng.integers(2**63))
    smooth = None
    if learnt.smooth is not None:
        kernel = judge.kernel
        smooth = learnt.smooth.of(kernel.geometry, x, learnt.key_tiles, kernel.backend.n_threads)
        outcome.reason = "sampling is cheaper, with a smooth part of the kernel taken out first"
        clock.lap("smooth part")
    least = least_factor(learnt.size, _spent(learnt), forecast.rates.pairs)
    factor = max(least, first_factor(forecast, missing, allowed, delta))
    n_blocks = len(learnt.query_blocks.sizes)
    draws: Draws | None = None
    for attempt in range(_MOST_DRAWS):
        if forecast.cost * factor > _TOO_MANY * n_pairs and limit.allows(n_pairs):
            outcome.reason = "near pairs are too many or too hard to find for sampling to pay"
            break
        limit.needs(forecast.cost * factor)
        draw_for = partial(
            draw,
            judge,
            search.found,
            learnt.size,
            key_tiles=learnt.key_tiles,
            smooth=smooth,
            seed=seed,
            stream=attempt,
        )
        if attempt == 0 and n_blocks >= _ENOUGH_BLOCKS:
            told = partial(told_factor, learnt, delta=delta, least=least)
            more = _first_draws(learnt, factor, draw_for, told)
        else:
            rates = _rates(forecast.rates, learnt, factor, draws)
            more = Draws(draw_for(rate=rates), np.full(n_blocks, factor))
        draws = more if draws is None else draws.with_more(more, learnt.query_blocks)
        factor = float(draws.factor.mean())
        sample = judge(
            draws.sums,
            missing,
            pairs=int((more.sums.n_drawn * learnt.query_blocks.sizes).sum()),
            most_rows=int(max(_MENDING * forecast.cost * factor, 0.01 * n_pairs) / n_keys),
            evenly=True,
        )
        clock.lap("draw")
        outcome.pairs += sample.pairs
        outcome.numbers |= {"draws": attempt + 1, "mended_rows": sample.n_mended}
        worst = max(sample.upper, sample.checked) / allowed
        if worst <= 1:
            outcome.sample = sample
            break
        if outcome.best_effort is None or sample.upper < outcome.best_effort.upper:
            outcome.best_effort = sample
        # The draws met more than pilot and search had seen: look again, or draw more.
        if sample.left_out > _MOST_LEFT_OUT * allowed and search.n_tilings < _MOST_TILINGS:
            _round(search, _MORE_TILINGS, *search.everywhere, clock)
            forecast = learnt.forecaster(search.found)
            missing = search.missing(x, learnt.size, forecast.rates.rate, learnt.smooth)
            clock.lap("check")
            # What was drawn has the variance of the pairs found since.
            factor *= 1.3 * min(worst, 3.0)
            draws = None
        else:
            factor *= _ENOUGH_MORE * min(worst, 3.0) - 1
    else:
        outcome.reason = "the error estimate did not come down"
    outcome.pairs += search.pairs
    outcome.numbers["share_of_pairs"] = outcome.pairs / n_pairs


def _rates(rates: Rates, learnt: Study, factor: float, drawn: Draws | None) -> Float64:
    """Rates of draws, or of more draws."""
    if drawn is None:
        return rates.scaled(factor)
    before = drawn.factor[:, None]
    often = rates.rate * before * learnt.forecaster.entries.rms > _OFTEN
    return rates.rate * np.where(often, np.maximum(factor, before), factor)


def _first_draws(
    learnt: Study,
    factor: float,
    draw_for: Callable[..., SampledSums],
    told: Callable[[Float64, Index, float], float],
) -> Draws:
    """Draw for some blocks, and for the others as it then takes.

    What one block draws does not depend on what it will draw itself: all stay unbiased.
    """
    rates, query_blocks = learnt.forecast.rates, learnt.query_blocks
    n_blocks = len(query_blocks.sizes)
    factors = np.full(n_blocks, factor)
    some = np.arange(_ONE_TELLS // 2, n_blocks, _ONE_TELLS)
    others = np.setdiff1d(np.arange(n_blocks), some)
    sums = draw_for(rate=rates.scaled(factor), blocks=some)
    seen = usual_variance(sums.variance, query_blocks, some)
    factors[others] = told(seen, some, factor)
    sums = draw_for(rate=rates.rate * factors[:, None], blocks=others, into=sums)
    return Draws(sums, factors)


def told_factor(
    learnt: Study, seen: Float64, some: Index, factor: float, *, delta: float, least: float
) -> float:
    """By how much the rates of the forecast are raised, after some blocks' variances were seen."""
    forecast, allowed = learnt.forecast, learnt.allowed
    predicted = forecast.rates.variance
    of_some = predicted[some] / factor
    if not of_some.sum() > 0:  # nothing is left to chance
        return factor
    ratio = float(seen.sum() / of_some.sum())
    # By one standard error more: to fall short costs more than to draw too much.
    ratio += math.sqrt(np.square(seen - ratio * of_some).sum()) / float(of_some.sum())
    room = _ROOM * allowed - max(learnt.missing.at_most, forecast.rare_mass)
    needed = ratio * float(predicted.sum()) * spread(predicted, delta) / max(room, 0.3 * allowed)
    lowest, highest = (factor * limit for limit in _TOLD)
    return max(least, min(highest, max(lowest, needed)))


def first_factor(forecast: Forecast, missing: Missing, allowed: float, delta: float) -> float:
    """By how much the rates of the forecast are raised, or lowered, for the first draw.

    The forecast aims at a mean squared error; what must be met is its upper limit, which is the
    nearer to the mean the more blocks share in the error, and what is missing takes its part.
    """
    predicted = forecast.rates.variance
    above = spread(predicted, delta)
    # Where few blocks share in the error, the prediction is less certain, too.
    room = _ROOM / above * allowed - max(missing.at_most, forecast.rare_mass)
    upper = float(predicted.sum()) * above
    return _RAISED if upper >= _RAISED * room else max(upper / room, _LOWERED)


def least_factor(size: Array, spent: float, pairs: float) -> float:
    """The least factor for a first draw of so many pairs, after others were spent before it."""
    few = int(size.mean() < _FEW_LARGE * math.sqrt(np.square(size, dtype=np.float64).mean()))
    return min(_FIRST_SHARE[few] * spent / pairs, _AT_MOST_LARGER[few])


def _spent(learnt: Study) -> float:
    """What pilot and search have cost, in pairs of the exact product."""
    search = learnt.search
    of_pilot = _PILOT_PAIR * len(learnt.pilot.rows) * len(learnt.key_tiles.order)
    round_cost = _round_cost(search, *map(len, search.everywhere))
    return of_pilot + search.n_tilings / _MORE_TILINGS * round_cost


def row_lengths(x: Array) -> Array:
    """Lengths of the rows of x, in its own type."""
    if x.shape[1] == 1:
        return np.asarray(np.abs(x[:, 0]))
    lengths = np.sqrt(np.square(x, dtype=np.float64).sum(axis=1))
    return np.asarray(lengths.astype(x.dtype))


def _worth_searching(look: Look) -> tuple[Index32, Index32]:
    """Which queries and keys are searched again: those with enough near pairs."""
    pilot = look.pilot
    mass = look.forecaster.mass[pilot.apart]
    rows = pilot.block_of[pilot.near_row[pilot.apart]]
    tiles = look.key_tiles.block_of[pilot.near_col[pilot.apart]]
    indices = []
    for blocks, of in ((look.query_blocks, rows), (look.key_tiles, tiles)):
        total = np.asarray(np.bincount(of, mass, len(blocks.sizes)), np.float64)
        # Few rows say little about one block: neighbours are pooled.
        per_point = moving_mean(total, 9) / blocks.sizes
        enough = per_point > _NOT_SEARCHED * look.allowed / len(blocks.order)
        indices.append(blocks.order[np.repeat(enough, blocks.sizes)])
    if pilot.symmetric:
        return indices[0], indices[0]
    return indices[0], indices[1]


def _searched_until_it_pays_no_more(
    search: Search,
    look: Look,
    worth: tuple[Index32, Index32],
    n_pairs: int,
    clock: Clock,
) -> Forecast:
    """Search on while the saving forecast is larger than the cost of searching."""
    forecast, best = look.forecaster(search.found), look.best
    clock.lap("plan")
    gap, closing = min(forecast.cost, n_pairs) - best.cost, _LEAST_CLOSING[0]
    # A step closes about as much of the gap to perfect knowledge as the one before.
    for step, cost, least in _steps(search, worth, clock):
        if cost >= max(closing, least) * gap or search.n_tilings >= _MOST_TILINGS:
            break
        step()
        forecast = look.forecaster(search.found)
        clock.lap("plan")
        left = min(forecast.cost, n_pairs) - best.cost
        closing, gap = 1 - left / max(gap, 1.0), left
    return forecast


class _Step(NamedTuple):
    """One more search: what to do, what it costs, and the least share of the gap it may close."""

    step: Callable[[], None]
    cost: float
    least: float


def _steps(search: Search, worth: tuple[Index32, Index32], clock: Clock) -> Iterator[_Step]:
    """Neighbours from the other side, the points still alone, and then round after round."""

    def neighbours() -> None:
        search.neighbours()
        clock.lap("neighbours")

    def lone() -> None:
        search.lone()
        clock.lap("tilings")

    yield _Step(neighbours, _few_know_cost(search), _LEAST_CLOSING[0])
    if search.anyone_has_partners:
        yield _Step(lone, _lone_cost(search), _LEAST_CLOSING[1])
    cost = _round_cost(search, *map(len, worth))
    yield _Step(lambda: _round(search, _MORE_TILINGS, *worth, clock), cost, _LEAST_CLOSING[1])
    while True:
        yield _Step(lambda: _round(search, _MORE_TILINGS, *worth, clock), cost, 0.0)


def _lone_cost(search: Search) -> float:
    """What searching the few points costs that are still alone: sketches of all, mostly."""
    return float(_LONE_PAIRS * len(search.query_blocks.order))


def _few_know_cost(search: Search) -> float:
    """What asking the neighbours of keys that few know of costs."""
    return _scale(search) * len(search.query_blocks.order) * _FEW_KNOW_PAIRS


def _scale(search: Search) -> float:
    """Pairs of this dimension that cost as much as one of 64 dimensions."""
    return float(88 / (search.geometry.keys.shape[1] + 24))


def _round_cost(search: Search, n_queries: int, n_keys: int) -> float:
    """What some tilings more and their neighbours cost."""
    cell = n_keys >> cell_depth(n_keys)
    tilings = n_queries * _MORE_TILINGS * (_TILING_PAIRS + 0.2 * cell)
    return _scale(search) * (tilings + len(search.query_blocks.order) * _NEIGHBOUR_PAIRS)


def _round(
    search: Search, n_tilings: int, query_index: Index32, key_index: Index32, clock: Clock
) -> None:
    search.tilings(n_tilings, query_index, key_index)
    clock.lap("tilings")
    search.neighbours()
    clock.lap("neighbours")
