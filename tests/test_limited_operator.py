"""``max_seconds`` of ``GaussianKernel``."""

from __future__ import annotations

import time

import numpy as np
import pytest
from limited_cases import clustered, vector

import approxkmv as akmv


@pytest.mark.alone
def test_an_operator_that_is_not_ready_is_exact() -> None:
    """The limit ends its construction: products have no error then, and a warning says so."""
    data = clustered(48_000)
    start = time.process_time()
    with pytest.warns(akmv.AssumptionWarning, match="max_seconds was too short"):
        K = akmv.GaussianKernel(
            data.queries, bandwidth=0.6, eps=0.3, rng=0, max_seconds=0.05, n_threads=1
        )
    assert time.process_time() - start < 0.5
    assert K.info.method == "exact"
    assert "max_seconds" in K.info.plan.reason
    x = vector("gauss", data)
    rows = np.arange(0, len(x), 1000)
    y = K @ x
    exact = akmv.matvec(data.queries[rows], data.queries, x, bandwidth=0.6, method="exact")
    np.testing.assert_allclose(y[rows], exact, atol=1e-4)
    with pytest.raises(ValueError, match="max_seconds must be a positive"):
        akmv.GaussianKernel(data.queries, bandwidth=0.6, max_seconds=0.0)


def test_enough_time_changes_no_bit_of_an_operator() -> None:
    data = clustered(48_000)
    plain, limited = (
        akmv.GaussianKernel(data.queries, bandwidth=0.6, eps=0.3, rng=0, max_seconds=limit)
        for limit in (None, 1000.0)
    )
    assert plain.info.method == limited.info.method == "sampled"
    x = vector("ones", data)
    np.testing.assert_array_equal(plain @ x, limited @ x)
