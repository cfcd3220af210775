"""``max_seconds`` of ``attention``."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv._deadline import Deadline


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", [None, "truth", "numbers"])
@pytest.mark.parametrize("method", ["auto", "sampled"])
def test_attention_without_time(is_causal: bool, mask: str | None, method: str) -> None:
    """An output for every head, with an error that exact attention confirms."""
    rng = np.random.default_rng(2)
    query, key, value = rng.standard_normal((3, 2, 3000, 16)).astype(np.float32)
    scores = {
        None: None,
        "truth": rng.random((3000, 3000)) < 0.7,
        "numbers": rng.standard_normal((1, 3000)).astype(np.float32),
    }[mask]
    options = {"scale": 0.4, "is_causal": is_causal, "attn_mask": scores}
    with pytest.warns(akmv.AccuracyWarning, match="max_seconds=1e-06"):
        output, info = akmv.attention(
            query,
            key,
            value,
            **options,
            eps=0.001,
            method=method,
            max_seconds=1e-6,
            rng=0,
            return_info=True,
        )
    exact = akmv.attention(query, key, value, **options, method="exact")
    for head in range(2):
        error = np.linalg.norm(output[head] - exact[head]) / np.linalg.norm(value[head])
        told = info.heads[head]
        assert told.method == "sampled"
        assert told.error_estimate is not None
        assert 0.4 < told.error_estimate / error < 2.5
        assert told.numbers["answered_by"] in ("some keys", "the mean of the values")
        assert is_causal or told.pairs < told.pairs_exact


def test_attention_with_all_keys_is_exact() -> None:
    """More time than rows need: the keys drawn are all, causal or not, with a mask or without."""
    from approxkmv.engine.schemes.attention_in_time import HurriedHead, hurried_attention

    rng = np.random.default_rng(3)
    query, key, value = rng.standard_normal((3, 700, 8))
    for is_causal, mask in ((False, None), (True, None), (True, rng.random((700, 700)) < 0.5)):
        found = hurried_attention(
            HurriedHead(query, key, value, mask, 0.3, is_causal), Deadline(1000.0), rng, None
        )
        exact = akmv.attention(
            query, key, value, scale=0.3, is_causal=is_causal, attn_mask=mask, method="exact"
        )
        np.testing.assert_allclose(found.output, exact, atol=1e-12)
        assert found.error_estimate < 1e-12


@pytest.mark.parametrize("is_causal", [False, True])
def test_enough_time_changes_no_bit_of_attention(is_causal: bool) -> None:
    query, key, value = np.random.default_rng(4).standard_normal((3, 2, 5500, 16))
    options = {"scale": 0.1, "is_causal": is_causal, "eps": 0.2, "rng": 1}
    plain = akmv.attention(query, key, value, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited = akmv.attention(query, key, value, max_seconds=1000.0, **options)
    np.testing.assert_array_equal(plain, limited)


@pytest.mark.alone
def test_attention_in_a_short_time_is_not_missed_grossly() -> None:
    """Eight heads of 8,192 tokens take seconds; in seconds of the processor."""
    query, key, value = np.random.default_rng(5).standard_normal((3, 8, 8192, 64), np.float32)
    start = time.process_time()
    with pytest.warns(akmv.AccuracyWarning, match=r"max_seconds=0\.05"):
        akmv.attention(
            query, key, value, scale=0.5, eps=0.001, max_seconds=0.05, rng=0, n_threads=1
        )
    assert time.process_time() - start < 1.0
