"""What was not found is estimated: on average right, and never as nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_cases import problem_of
from search_cases import case, everyone, held, search_of, without

from approxkmv.engine.neighbours.missing import check_missing


def test_missing_estimates_what_is_still_not_found() -> None:
    """Of the near pairs two in a hundred are lost at random; a tiling more meets some of them, and
    tells of those it does not meet: their squares, on average over seeds, within five standard
    errors and a tenth for rows that lost two. Pairs that are drawn often do not count."""
    groups = case()
    problem, shape = problem_of(groups.kernel, np.ones(4096, np.float32)), (16, 16)
    off, truths = [], []
    for seed in range(12):
        search = search_of(groups, seed)
        search.tilings(1, *everyone(groups))
        lost = np.random.default_rng(seed).random(len(groups.rows)) < 0.02
        search.found = without(groups, search_of(groups), lost)
        missing = check_missing(search, problem, np.zeros(shape), None)
        left = ~held(groups, search.found)
        lacking = np.bincount(groups.rows[left], groups.values[left], 4096)
        truths.append((lacking**2).sum())
        off.append(missing.expected - truths[-1])
        assert 0 < missing.expected < missing.at_most
    standard_error = np.std(off, ddof=1) / math.sqrt(12)
    assert abs(np.mean(off)) <= 5 * standard_error + 0.1 * np.mean(truths)
    assert standard_error < 0.2 * np.mean(truths)
    search = search_of(groups)
    search.tilings(1, *everyone(groups))
    often = check_missing(search, problem, np.ones(shape), None)
    assert often == (0.0, 0.0, 0.0)


def test_to_have_met_nothing_is_not_to_have_missed_nothing() -> None:
    """With every near pair found the estimate is half a pair, the limit one and what no pilot row
    can exclude: one value below the threshold in three of as many rows as there are."""
    groups = case()
    search = search_of(groups)
    search.found = without(groups, search_of(groups), np.zeros(len(groups.rows), np.bool_))
    problem, pilot = problem_of(groups.kernel, np.ones(4096, np.float32)), search.pilot
    missing = check_missing(search, problem, np.zeros((16, 16)), None)
    squares = pilot.near_square[pilot.apart]
    factor = 0.5 / 0.5  # without a tiling before it nothing says how much one shows
    pair = factor * (squares**2).sum() / squares.sum()
    assert missing.expected == pytest.approx(0.5 * pair)
    below = 3 / len(pilot.rows) * 4096 * pilot.least_threshold**2
    assert missing.at_most == pytest.approx(pair + below)


def test_missing_estimates_what_was_not_found() -> None:
    """After one tiling and the one that looks for missing pairs, hundreds of pairs are unfound.

    Members of a group are missed together, and a probability common to all pairs is too simple a
    picture: the estimate is asked to be within a factor of three of the truth. The limit reckons
    with one pair more. Pairs that are drawn often show in the variance, and do not count.
    """
    groups = case(symmetric=False)
    x = np.random.default_rng(1).standard_normal(len(groups.geometry.keys)).astype(np.float32)
    problem = problem_of(groups.kernel, x)
    rate = np.zeros((len(groups.query_blocks.sizes), len(groups.key_tiles.sizes)))
    search = search_of(groups)
    search.tilings(1, *everyone(groups))
    missing = check_missing(search, problem, rate, None)
    lost = ~held(groups, search.found)
    assert lost.sum() > 100
    terms = np.bincount(groups.rows[lost], (groups.values * x[groups.cols])[lost])
    truth = float(np.square(terms).sum())
    assert truth / 3 <= missing.expected <= 3 * truth
    assert missing.at_most > missing.expected
    often = search_of(groups)
    often.tilings(1, *everyone(groups))
    assert check_missing(often, problem, rate + 1e9, None) == (0.0, 0.0, 0.0)
