"""``max_seconds`` of ``solve``."""

from __future__ import annotations

import time

import numpy as np
import pytest
from limited_cases import clustered, vector

import approxkmv as akmv


@pytest.mark.alone
@pytest.mark.parametrize("method", ["cg", "minres"])
@pytest.mark.parametrize("columns", [1, 2])
def test_solve_returns_its_best_iterate(method: str, columns: int) -> None:
    """Enough time for some iterations and not for all: better than 0, and no claim to converge."""
    data = clustered(16_384)
    K = akmv.GaussianKernel(data.queries, bandwidth=data.bandwidth, method="exact", n_threads=1)
    b = np.random.default_rng(1).standard_normal((16_384, columns))
    start = time.process_time()
    with pytest.warns(akmv.AccuracyWarning, match="max_seconds=1.5"):
        x, info = akmv.solve(
            K,
            b[:, 0] if columns == 1 else b,
            noise=1e-3,
            tol=1e-12,
            max_seconds=1.5,
            method=method,
            rank=64,
            rng=0,
            return_info=True,
        )
    # The processor's time may be that of two cores; without the limit it would be a minute.
    assert time.process_time() - start < 4.5
    assert not info.converged
    assert "max_seconds" in info.reason
    wide = K.queries.astype(np.float64)
    x = x.reshape(len(b), -1)
    left = b - akmv.matvec(wide, None, x, bandwidth=data.bandwidth, method="exact") - 1e-3 * x
    residual = (np.linalg.norm(left, axis=0) / np.linalg.norm(b, axis=0)).max()
    assert residual < 1 + 1e-9
    # From random rows: their number tells how well; of 0 the residual is 1.
    assert 0.5 < info.residual / residual < 2


def test_solve_without_any_time() -> None:
    data = clustered(16_384)
    K = akmv.GaussianKernel(data.queries, bandwidth=data.bandwidth, method="exact")
    b = vector("gauss", data)
    with pytest.warns(akmv.AccuracyWarning, match="max_seconds=1e-06"):
        x, info = akmv.solve(K, b, noise=0.1, max_seconds=1e-6, rng=0, return_info=True)
    assert info.residual == 1.0
    assert not x.any()
    assert not info.converged
    with pytest.raises(ValueError, match="max_seconds must be a positive"):
        akmv.solve(K, b, noise=0.1, max_seconds=-1.0)


def test_solve_with_enough_time_changes_no_bit() -> None:
    data = clustered(2048)
    K = akmv.GaussianKernel(data.queries, bandwidth=data.bandwidth)
    b = vector("gauss", data)
    plain, limited = (
        akmv.solve(K, b, noise=0.1, rng=0, max_seconds=limit) for limit in (None, 1000.0)
    )
    np.testing.assert_array_equal(plain, limited)
