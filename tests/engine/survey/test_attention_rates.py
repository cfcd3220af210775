"""The rate at which keys of a head are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.engine.survey.attention_rates import solve_rate
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import AttentionBlocks, PilotMoments


def test_the_rate_gives_the_variance_asked_for() -> None:
    """The sums that the rate is solved for, entry by entry; bins of moments are 4 % wide."""
    n_keys, rows = 500, np.array([96, 40])
    rng = np.random.default_rng(0)
    moment = rng.random((2, n_keys), np.float32)
    guarded = np.exp(rng.uniform(-20, 0, (2, n_keys))).astype(np.float32)
    tokens = np.arange(n_keys, dtype=np.int32)
    band = np.array([0, 100]), np.array([50, 200])
    blocks = AttentionBlocks(tokens[:136], np.append(0, np.cumsum(rows)), tokens, *band, False)
    free = (tokens < band[0][:, None]) | (tokens >= band[1][:, None])
    pilot = PilotMoments(np.zeros((2, 1)), moment, guarded, guarded.mean(axis=1))

    def sums(rate: float, floor: float) -> tuple[float, float]:
        pi = np.minimum(1, rate * np.sqrt(guarded.astype(np.float64) + floor))
        weight = rows[:, None] * free
        return float((weight * pi).sum()), float((weight * moment * (1 / pi - 1)).sum())

    for target in 10.0 ** np.arange(-2, 8):
        found = solve_rate(blocks, pilot, target, 1e-3, Compiled())
        pairs, variance = sums(found.rate, found.floor)
        assert found.pairs == pytest.approx(pairs, rel=0.03)
        # Where nearly all keys are certain, 1 / pi - 1 of a bin's middle is far from an entry's.
        assert variance == pytest.approx(target, rel=0.05) or pairs > 0.9 * (rows @ free).sum()
    certain = solve_rate(blocks, pilot, 0.0, 1e-3, Compiled())
    assert certain.pairs == pytest.approx(float((rows[:, None] * free).sum()))
    nothing = pilot._replace(moment=np.zeros_like(moment))
    assert solve_rate(blocks, nothing, 1.0, 1e-3, Compiled()).pairs < 1e-20
    all_near = blocks._replace(band_start=np.zeros(2, int), band_stop=np.full(2, n_keys))
    assert solve_rate(all_near, pilot, 1.0, 1e-3, Compiled()).pairs == 0
