"""Buckets of x (Algorithm 2, lines 3 and 4)."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.paper.buckets import geometric_buckets


@pytest.mark.parametrize("ratio", [1.01, 1.1, 1.5, 2.0, 3.7])
def test_every_value_is_in_one_bucket_and_rounded_up_by_less_than_the_ratio(ratio):
    rng = np.random.default_rng(0)
    exponents = rng.integers(-60, 60, 300)
    values = np.concatenate([np.exp(rng.normal(0, 8, 500)), ratio ** exponents.astype(float)])
    buckets = geometric_buckets(values, ratio)
    assert sorted(np.concatenate(buckets.members)) == list(range(len(values)))
    assert (buckets.rounded >= values).all()
    assert (buckets.rounded < ratio * values * (1 + 1e-12)).all()
    for weight, members in zip(buckets.weights, buckets.members, strict=True):
        np.testing.assert_array_equal(buckets.rounded[members], weight)
        assert (values[members] > weight / ratio * (1 - 1e-12)).all()
    assert buckets.weights == sorted(set(buckets.weights))


def test_no_values_make_no_buckets():
    assert len(geometric_buckets(np.empty(0), 1.1)) == 0


def test_closed_buckets_hold_edges_twice():
    """As printed, 1 is the upper end of one bucket and the lower end of the next."""
    buckets = geometric_buckets(np.array([1.0, 1.05]), 1.1, closed=True)
    members = {
        round(weight, 12): sorted(map(int, m))
        for weight, m in zip(buckets.weights, buckets.members, strict=True)
    }
    assert members == {1.0: [0], 1.1: [0, 1]}
