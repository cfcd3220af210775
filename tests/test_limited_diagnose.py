"""``max_seconds`` of ``diagnose``."""

from __future__ import annotations

import time

import numpy as np
import pytest
from limited_cases import clustered

import approxkmv as akmv


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("n", [2048, 16_384])
def test_diagnose_says_what_it_has(symmetric: bool, n: int) -> None:
    """The interval is wider and holds all the same; what is missing is named."""
    points = clustered(n).queries
    keys = None if symmetric else points[::2]
    full = akmv.diagnose(points[:2048], None if symmetric else points[:2048:2], bandwidth=2.0)
    with pytest.warns(akmv.AccuracyWarning, match="max_seconds=1e-06"):
        report = akmv.diagnose(points, keys, bandwidth=2.0, max_seconds=1e-6, rng=0)
    assert not report.is_exact
    assert report.confidence == 0.95
    assert report.left_out
    assert "for lack of time" in str(report)
    assert "not predicted" in str(report) or report.speed_ups
    report.to_json()
    report.to_html()
    if n == 2048:
        low, high = report.c_interval
        assert low <= full.c <= high
        assert high - low > 0


@pytest.mark.alone
def test_diagnose_in_a_short_time_is_not_missed_grossly() -> None:
    """Without the limit it takes ten seconds and more."""
    points = np.random.default_rng(6).standard_normal((65_536, 64)).astype(np.float32)
    start = time.process_time()
    with pytest.warns(akmv.AccuracyWarning, match=r"max_seconds=0\.05"):
        akmv.diagnose(points, bandwidth=4.0, max_seconds=0.05, rng=0, n_threads=1)
    assert time.process_time() - start < 0.6


def test_diagnose_with_enough_time_changes_nothing() -> None:
    points = clustered(2048).queries
    plain, limited = (
        akmv.diagnose(points, bandwidth=2.0, rng=0, max_seconds=limit) for limit in (None, 1000.0)
    )
    assert limited.left_out == ()
    assert plain.c == limited.c
    assert plain.growth == limited.growth
    assert plain.log_quantiles == limited.log_quantiles
