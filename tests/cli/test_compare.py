"""What products are compared with is right itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from approxkmv._table import table
from approxkmv.cli import compare
from approxkmv.datasets import clusters
from approxkmv.kernel.matrix import gaussian_kernel


@pytest.fixture(params=[(), (3,)], ids=["vector", "columns"])
def problem(request: pytest.FixtureRequest) -> tuple[Any, Any, Any, float]:
    """Return queries, keys, x and bandwidth in double precision."""
    rng = np.random.default_rng(0)
    queries, keys, bandwidth = clusters(300, 5, n_queries=200, rng=rng, dtype=np.float64)
    return queries, keys, rng.standard_normal((300, *request.param)), bandwidth


def test_exact_rows(problem: tuple[Any, Any, Any, float]) -> None:
    """Rows agree with the definition, also in more than one block of 64."""
    queries, keys, x, bandwidth = problem
    rows = np.random.default_rng(1).permutation(200)[:150]
    expected = gaussian_kernel(queries[rows], keys, bandwidth) @ x
    np.testing.assert_allclose(
        compare.exact_rows(queries, keys, x, bandwidth, rows), expected, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("block", [64, 200, 1024])
def test_numpy_blocked(problem: tuple[Any, Any, Any, float], block: int) -> None:
    """NumPy with folded norms agrees with the definition, for any block."""
    queries, keys, x, bandwidth = problem
    found = compare.numpy_blocked(*compare.folded(queries, keys, bandwidth), x, block)
    expected = gaussian_kernel(queries, keys, bandwidth) @ x
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_error_from_all_rows_is_the_error() -> None:
    """With every row sampled, the extrapolation is the norm itself; with half, scaled by sqrt 2."""
    x, exact = np.full(4, 0.5), np.zeros(6)
    found = np.array([3.0, 0, 0, 4.0, 0, 0])
    assert compare.error_from_rows(found, exact, 6, x) == pytest.approx(5)
    assert compare.error_from_rows(found[:3], exact[:3], 6, x) == pytest.approx(3 * 2**0.5)


def test_trivial_answers(problem: tuple[Any, Any, Any, float]) -> None:
    """Zero, the matrix's diagonal times x, and a constant."""
    _, keys, x, bandwidth = problem
    queries = keys + 0.1
    rows = np.array([5, 2, 250])
    K = gaussian_kernel(queries, keys, bandwidth)
    exact = (K @ x)[rows]
    answers = compare.trivial_answers(queries, keys, x, bandwidth, rows, exact)
    assert list(answers) == ["y = 0", "y = diagonal", "y = mean"]
    assert not answers["y = 0"].any()
    np.testing.assert_allclose(answers["y = diagonal"], (np.diag(np.diag(K)) @ x)[rows])
    np.testing.assert_allclose(answers["y = mean"], np.ones((3, 3)) @ exact / 3)
    assert all(answer.shape == exact.shape for answer in answers.values())
    fewer = compare.trivial_answers(queries[:280], keys, x, bandwidth, rows, exact)
    assert list(fewer) == ["y = 0", "y = mean"]


def test_table_aligns_columns() -> None:
    assert table(["a", "bb"], [["long", "1"], ["x", "222"]]) == (
        "a      bb\n----  ---\nlong    1\nx     222"
    )
