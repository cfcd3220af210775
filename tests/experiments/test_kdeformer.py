"""The paper's runtime algorithm: what is exact in it, and that the rest is unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from approxkmv.experiments.fig5 import kdeformer
from approxkmv.experiments.fig5.contestants import (
    Problem,
    compiled,
    mean_answer,
    numpy_exact,
    relative_error,
    word_problem,
)
from approxkmv.experiments.fig5.run import tuned


def cloud(n: int = 200, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


def test_one_block_is_exact():
    """With all keys in the query's own block nothing is left to draw."""
    points, v = cloud()
    A = np.exp(0.4 * points @ points.T)
    y = kdeformer.sampled_attention(
        points, points, v, scale=0.4, n_samples=400, n_bits=3, rng=np.random.default_rng(1)
    )
    np.testing.assert_allclose(y, A @ v / A.sum(1), rtol=1e-10)


def test_blocks_and_draws_are_unbiased():
    """Mean of 2,000 draws of the sums outside blocks, within 5 standard errors everywhere.

    The blocks hold 48 of 200 keys, and the last one is shorter.
    """
    points, v = cloud()
    size, columns = 48, np.column_stack([v, np.ones(200)])
    A = np.exp(0.4 * points @ points.T)
    block = np.arange(200) // size
    inside = block[:, None] == block[None, :]
    heavy = kdeformer.heavy_sums(0.4 * points, points, columns, size)
    np.testing.assert_allclose(heavy[:192], (np.where(inside, A, 0) @ columns)[:192], rtol=1e-10)

    rng = np.random.default_rng(2)
    p, rows = kdeformer.probabilities(columns), np.arange(200)
    draws = np.array(
        [
            kdeformer.light_sums(
                0.4 * points, points, columns, kdeformer.draw(p, 16, rng), size, rows
            )
            for _ in range(2000)
        ]
    )
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    expected = np.where(inside, 0, A) @ columns
    assert (np.abs(draws.mean(axis=0) - expected) < 5 * error).all()


def test_more_keys_for_variable_rows_only(monkeypatch):
    """About 1.5 times the draws for rows above the mean variance, none of them the pilot's."""
    points, v = cloud()
    asked: list[tuple[int, int]] = []
    light_sums = kdeformer.light_sums

    def noted(query, key, columns, drawn, size, rows):
        asked.append((len(drawn.places), len(rows)))
        return light_sums(query, key, columns, drawn, size, rows)

    monkeypatch.setattr(kdeformer, "light_sums", noted)
    kdeformer.sampled_attention(
        points, points, v, scale=0.4, n_samples=64, n_bits=3, rng=np.random.default_rng(1)
    )
    (first, all_rows), (second, some_rows) = asked
    assert (first, second, all_rows) == (64, 32, 200)
    assert 0 < some_rows < 200


@pytest.mark.parametrize(("as_printed", "is_biased"), [(True, True), (False, False)])
def test_draws_that_decide_are_biased(as_printed, is_biased):
    """E24: the mean row sum over 4,000 runs is off by 4 standard errors and more as printed.

    Decided by a pilot of its own, it is within 3.
    """
    rng = np.random.default_rng(0)
    n, size, m = 60, 1, 16
    query, key = rng.standard_normal((n, 4)), 2 * rng.standard_normal((n, 4))
    columns = np.column_stack([rng.standard_normal(n), np.ones(n)])
    entries = np.exp(query @ key.T)
    np.fill_diagonal(entries, 0)
    block_sums = kdeformer.heavy_sums(query, key, columns, size)
    p = kdeformer.probabilities(columns)
    rng = np.random.default_rng(1)
    sums = []
    for _ in range(4000):
        first, second = kdeformer.draw(p, m, rng), kdeformer.draw(p, m // 2, rng)
        draws = (first if as_printed else kdeformer.draw(p, m, rng), first, second)
        rest = kdeformer.adaptive_sums(query, key, columns, block_sums, draws, size)
        sums.append((rest[:, 1] / entries.sum(axis=1)).mean())
    off = (np.mean(sums) - 1) / (np.std(sums) / np.sqrt(4000))
    assert abs(off) > 4 if is_biased else abs(off) < 3


def test_as_printed_has_no_pilot(monkeypatch):
    """Two sets of keys are drawn, not three, and the first of them decides."""
    points, v = cloud()
    drawn, deciding = [], []
    draw, variance = kdeformer.draw, kdeformer._pilot_variance

    def noted(p, n_samples, rng):
        drawn.append(draw(p, n_samples, rng))
        return drawn[-1]

    def decided(query, key, columns, block_sums, pilot, size):
        deciding.append(pilot)
        return variance(query, key, columns, block_sums, pilot, size)

    monkeypatch.setattr(kdeformer, "draw", noted)
    monkeypatch.setattr(kdeformer, "_pilot_variance", decided)
    options = {"scale": 0.4, "n_samples": 64, "n_bits": 3, "rng": np.random.default_rng(1)}
    kdeformer.sampled_attention(points, points, v, as_printed=True, **options)
    assert len(drawn) == 2
    assert deciding[0] is drawn[0]


def test_gray_code_neighbours_differ_in_one_bit():
    bits = np.array([[i >> b & 1 for b in range(5)] for i in range(32)], bool)
    rank = kdeformer.gray_rank(bits)
    assert sorted(rank) == list(range(32))
    steps = np.diff(bits[np.argsort(rank)].astype(int), axis=0)
    assert (np.abs(steps).sum(axis=1) == 1).all()


def test_contestants_agree():
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((2 * 2 * 300, 10)).astype(np.float32)
    problem = word_problem(vectors, 256, 2, 300, 0.3)
    assert problem.query.shape == (2, 256, 10)
    np.testing.assert_array_equal(problem.v[1, :3], vectors[900:903, 1])
    scores = 0.3 * np.einsum("bid,bjd->bij", problem.query.astype(float), problem.query)
    weights = np.exp(scores)
    expected = np.einsum("bij,bj->bi", weights, problem.v) / weights.sum(axis=2)
    np.testing.assert_allclose(numpy_exact(problem), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compiled(problem, 0.0, 0, 1), expected, rtol=1e-4, atol=1e-5)
    assert relative_error(compiled(problem, 0.1, 0, 1), expected, problem.v) < 0.1


def test_the_mean_is_right_where_all_queries_are_alike():
    problem = Problem(np.ones((1, 20, 4), np.float32), np.arange(20, dtype=np.float32)[None], 0.5)
    assert relative_error(mean_answer(problem), numpy_exact(problem), problem.v) < 1e-6


def test_tuning_takes_the_cheapest_that_will_do():
    asked: list[float] = []

    def error(value: float) -> float:
        asked.append(value)
        return 1 / value

    assert tuned(error, [2, 4, 8, 16], aim=0.25) == (4, 0.25)
    assert asked == [2, 4]
    assert tuned(error, [2, 4], aim=0.1) == (4, pytest.approx(0.25))
