"""``KernelDensity``: scikit-learn's contract, and dense logsumexp in every dimension."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity as TreeDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import approxkmv as akmv
from approxkmv.engine.policy import SharedDraw
from approxkmv.engine.survey.shared_draw import SumsProblem
from approxkmv.sklearn import KernelDensity


@parametrize_with_checks([KernelDensity(), KernelDensity("scott", method="exact")])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def dense(X: np.ndarray, Q: np.ndarray, bandwidth: float, weights: Any = None) -> np.ndarray:
    """The definition, in double precision."""
    X, Q = X.astype(np.float64), Q.astype(np.float64)
    squared = ((Q[:, None] - X) ** 2).sum(axis=-1)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=float)
    log_sum = logsumexp(-squared / (2 * bandwidth**2), axis=1, b=w / w.sum())
    return np.asarray(log_sum - X.shape[1] * math.log(bandwidth * math.sqrt(2 * math.pi)))


@pytest.mark.parametrize("d", [2, 16, 64, 256])
def test_is_dense_logsumexp(d: int, dtype: np.dtype[Any]) -> None:
    """Double precision to 1e-9 nats; single precision to 1e-3 plus its rounding of the exponent."""
    rng = np.random.default_rng(0)
    X, Q = (rng.standard_normal((n, d)).astype(dtype) for n in (1000, 60))
    bandwidth = 0.125 * math.sqrt(d) + 0.2
    y = KernelDensity(bandwidth).fit(X).score_samples(Q)
    expected = dense(X, Q, bandwidth)
    assert y.dtype == np.float64
    allowed = 1e-9 if dtype == np.float64 else 1e-3 + 1e-6 * np.abs(expected).max()
    assert np.abs(y - expected).max() <= allowed


def test_agrees_with_scikit_learn_where_that_is_right() -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((200, 2)), rng.standard_normal((30, 2))
    weights = rng.uniform(0.5, 2, 200)
    for rule in (0.4, "scott", "silverman"):
        ours = KernelDensity(rule).fit(X, sample_weight=weights)
        theirs = TreeDensity(bandwidth=rule, leaf_size=300).fit(X, sample_weight=weights)
        assert ours.bandwidth_ == pytest.approx(theirs.bandwidth_, rel=1e-14)
        np.testing.assert_allclose(ours.score_samples(Q), theirs.score_samples(Q), atol=1e-10)
        assert ours.score(Q) == pytest.approx(theirs.score(Q), rel=1e-10)


def test_weights_zeros_scale_and_duplicates() -> None:
    """Weight 0 is absence, weight 2 is a duplicate, and no scale matters, even an absurd one."""
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((60, 3)), rng.standard_normal((10, 3))
    weights = rng.integers(0, 3, 60)
    expected = KernelDensity(0.7).fit(np.repeat(X, weights, axis=0)).score_samples(Q)
    for scale in (1.0, 1e-300, 1e300):
        y = KernelDensity(0.7).fit(X, sample_weight=weights * scale).score_samples(Q)
        np.testing.assert_allclose(y, expected, atol=1e-12)


def test_one_sample_and_one_query() -> None:
    y = KernelDensity(2.0).fit([[1.0, 2.0]]).score_samples([[1.0, 2.0]])
    assert y == pytest.approx([-2 * math.log(2 * math.sqrt(2 * math.pi))])


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_offsets_change_nothing(offset: float) -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((300, 8)) + offset, rng.standard_normal((20, 8)) + offset
    np.testing.assert_allclose(
        KernelDensity(0.5).fit(X).score_samples(Q), dense(X, Q, 0.5), atol=1e-7
    )


def test_densities_that_underflow_by_far() -> None:
    """Log-densities of -1e5: no exponential of the sum is above the smallest number."""
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((200, 5)), 450 * rng.standard_normal((20, 5))
    y, expected = KernelDensity(1.0).fit(X).score_samples(Q), dense(X, Q, 1.0)
    assert expected.min() < -1e5
    np.testing.assert_allclose(y, expected, rtol=1e-10)


def test_sample_has_the_moments_of_the_density() -> None:
    """Mean and variance of 40,000 draws within 5 standard errors, weights respected."""
    X, weights = np.array([[0.0], [10.0], [99.0]]), [1.0, 3.0, 0.0]
    model = KernelDensity(0.5).fit(X, sample_weight=weights)
    drawn = model.sample(40000, random_state=0)
    variance = 0.25 * 0.75 * 100 + 0.25
    assert drawn.shape == (40000, 1)
    assert abs(drawn.mean() - 7.5) < 5 * math.sqrt(variance / 40000)
    # The fourth moment is below variance * 100, the square of the range.
    assert abs(drawn.var() - variance) < 5 * math.sqrt(variance * 100 / 40000)
    np.testing.assert_array_equal(drawn, model.sample(40000, random_state=0))
    assert model.sample(2, random_state=np.random.RandomState(0)).shape == (2, 1)


def test_clone_pickle_and_float32() -> None:
    X = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    model = clone(KernelDensity(0.8, random_state=3)).fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    assert model.sample(random_state=0).dtype == np.float32


def test_in_a_pipeline_and_a_grid_search() -> None:
    X = 100 * np.random.default_rng(0).standard_normal((300, 2))
    grid = {"kerneldensity__bandwidth": [1e-3, 0.4, 50.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), KernelDensity()), grid, cv=3).fit(X)
    assert search.best_params_["kerneldensity__bandwidth"] == 0.4


def clustered(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).standard_normal((256, 64))
    return (centres[rng.integers(0, 256, n)] + 0.35 * rng.standard_normal((n, 64))).astype(
        np.float32
    )


@pytest.fixture
def small_counts(any_size: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few thousand keys be worth a search, so that tests are quick."""
    monkeypatch.setattr(SumsProblem, "settings", SharedDraw(worth=3.0))


@pytest.mark.usefixtures("small_counts")
def test_sampled_densities_in_several_threads() -> None:
    """Eight threads at once, each with its own rows, get what one thread gets; so does a copy."""
    X, Q = clustered(4096, 0), clustered(800, 1)
    model = KernelDensity(2.1, random_state=0).fit(X)
    assert model.method_ == "sampled"
    assert model.floor_ == -math.inf
    alone = model.score_samples(Q)
    exact = KernelDensity(2.1, method="exact").fit(X).score_samples(Q)
    assert 1e-4 < np.abs(alone - exact).max() <= 0.1
    copy = pickle.loads(pickle.dumps(model))
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(model.score_samples, np.array_split(Q, 40)))
    np.testing.assert_array_equal(np.concatenate(parts), alone)
    np.testing.assert_array_equal(copy.score_samples(Q), alone)
    again = KernelDensity(2.1, random_state=0).fit(X)
    np.testing.assert_array_equal(again.score_samples(Q), alone)
    other = KernelDensity(2.1, random_state=1).fit(X)
    assert (other.score_samples(Q) != alone).any()


@pytest.mark.usefixtures("small_counts")
def test_sampled_densities_do_not_depend_on_the_scale_of_weights() -> None:
    """In float32 a weight of 1e-60 would be 0: it is the ratios that count."""
    X, Q = clustered(4096, 0), clustered(100, 1)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 4096)
    models = [
        KernelDensity(2.1, random_state=0).fit(X, sample_weight=weights * scale)
        for scale in (1.0, 1e-60)
    ]
    assert [model.method_ for model in models] == ["sampled", "sampled"]
    np.testing.assert_allclose(models[0].score_samples(Q), models[1].score_samples(Q), atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("small_counts")
def test_error_above_the_floor_over_many_seeds() -> None:
    """8,192 samples, 60 seeds of data and draws: no row above the floor is off by more than 0.1.

    The floor is at the median of the exact log-densities. Of 60 seeds at most 3 may have such a
    row; seeds are fixed, so a false alarm comes with a change of the code or not at all.
    """
    worst = []
    for seed in range(60):
        X, Q = clustered(8192, 2 * seed), clustered(2048, 2 * seed + 1)
        exact = KernelDensity(2.6, method="exact").fit(X).score_samples(Q)
        floor = float(np.median(exact))
        model = KernelDensity(2.6, floor=floor, random_state=seed).fit(X)
        assert model.method_ == "sampled"
        assert model.floor_ == floor
        y = model.score_samples(Q)
        assert (y[exact < floor - 0.2] < floor).all()  # the densities below are told from others
        worst.append(np.abs(y - exact)[exact >= floor].max())
    assert np.median(worst) > 1e-3  # drawn, not computed exactly
    assert np.mean(np.array(worst) <= 0.1) >= 0.95


def test_floor_is_reported() -> None:
    model = KernelDensity(1.0, floor=-70.0).fit(np.zeros((5, 2)))
    assert model.floor_ == -70.0


def test_sampled_says_when_it_is_not() -> None:
    with pytest.warns(akmv.AssumptionWarning, match="too few keys"):
        KernelDensity(method="sampled").fit(np.zeros((5, 2)))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"bandwidth": 0.0}, ValueError, "bandwidth must be a positive"),
        (
            {"bandwidth": "thumb"},
            ValueError,
            "bandwidth must be a number, 'scott', 'silverman' or one",
        ),
        ({"bandwidth": None}, ValueError, "bandwidth must be a number"),
        ({"rtol": -1}, ValueError, "rtol must be a finite number >= 0"),
        ({"floor": math.inf}, ValueError, "floor must be a finite number"),
        ({"method": "tree"}, ValueError, "method must be one of"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1"),
        ({"random_state": "seed"}, TypeError, "rng must be an integer"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        KernelDensity(**parameters).fit(np.zeros((5, 2)))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(5), "(?i)sample.weights? must"),
        (-np.ones(5), "[Nn]egative values in data passed to `sample_weight`"),
        (np.full(5, np.nan), "NaN"),
        (np.ones(4), "sample_weight.shape"),
    ],
)
def test_bad_weights(weights: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelDensity().fit(np.zeros((5, 2)), sample_weight=weights)
