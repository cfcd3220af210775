"""Densities with SciPy's numbers; kernel tests against their definitions, and their level."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel
from approxkmv.stats import fourier, gaussian_kde, hsic, mmd


def both(d: int, n: int = 500, **options: Any) -> tuple[Any, Any, np.ndarray]:
    rng = np.random.default_rng(d)
    mixed = rng.standard_normal((d, d))
    points = mixed @ rng.standard_normal((d, n)) + 5
    queries = mixed @ rng.standard_normal((d, 80)) * 3 + 5  # far ones among them
    return gaussian_kde(points, **options), scipy.stats.gaussian_kde(points, **options), queries


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bw_method": "silverman"},
        {"bw_method": 0.3},
        {"weights": np.arange(500) % 7 + 0.5},
        {"bw_method": lambda kde: kde.neff ** (-1 / 5)},
    ],
    ids=["default", "silverman", "factor", "weights", "function"],
)
def test_densities_are_scipys(d: int, options: dict[str, Any]) -> None:
    ours, theirs, queries = both(d, **options)
    for name in ("evaluate", "pdf", "logpdf", "__call__"):
        mine, his = getattr(ours, name)(queries), getattr(theirs, name)(queries)
        np.testing.assert_allclose(mine, his, rtol=1e-9)
        assert mine.dtype == his.dtype
    assert ours.factor == theirs.factor
    assert ours.neff == theirs.neff
    np.testing.assert_array_equal(ours.covariance, theirs.covariance)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_a_fourier_series_is_as_good_as_it_says(d: int, spread: float) -> None:
    """Sums of all sizes are within the bound, at any number of waves, and for one query."""
    rng = np.random.default_rng(d)
    keys, weights = spread * rng.standard_t(3, (400, d)), rng.random(400)
    queries = np.concatenate([2 * spread * rng.standard_normal((300, d)) + 7, keys[:20]])
    reach = max(np.ptp(np.concatenate([queries, keys])[:, c]) for c in range(d)) + 10
    series = [fourier.Series(2 * np.pi / reach, int(1.3 * reach) + 1)] * d  # 8 standard deviations
    exact = gaussian_kernel(queries, keys, 1.0) @ weights
    for q, e in ((queries, exact), (queries[:1], exact[:1])):
        error = np.abs(fourier.sums(q, keys, weights, series) - e)
        assert error.max() <= fourier.ERROR * weights.sum()


@pytest.mark.parametrize("d", [1, 2])
def test_densities_from_a_fourier_series_are_scipys_in_the_tails_too(
    d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, _ = both(d, n=3000)
    middle = theirs.dataset.mean(axis=1, keepdims=True)
    queries = middle + (theirs.dataset[:, :1500] - middle) * np.linspace(0, 2.5, 1500)
    monkeypatch.setattr(fourier, "_PAIR", np.inf)
    used = []
    real = fourier.sums
    monkeypatch.setattr(fourier, "sums", lambda *a: used.append(len(a[0])) or real(*a))
    exact = theirs(queries)
    np.testing.assert_allclose(ours(queries), exact, rtol=1e-7, atol=1e-300)
    assert used == [1500]
    assert exact.min() < 1e-30 * exact.max()  # such as no series gives


def test_a_series_is_chosen_where_it_is_quick() -> None:
    """It needs many pairs in one or two coordinates, and points within a hundred bandwidths."""
    rng = np.random.default_rng(0)
    points = 10 * rng.standard_normal((10_000, 3))
    assert fourier.series_of(points[:, :1], points[:, :1]) is not None
    assert fourier.series_of(points[:5, :1], points[:, :1]) is None
    assert fourier.series_of(points, points) is None
    assert fourier.series_of(100 * points[:, :1], points[:, :1]) is None


def test_other_methods_are_scipys() -> None:
    ours, theirs, _ = both(1)
    assert ours.integrate_box_1d(0, 6) == theirs.integrate_box_1d(0, 6)
    np.testing.assert_array_equal(ours.resample(9, seed=1), theirs.resample(9, seed=1))
    ours.set_bandwidth(0.5)
    theirs.set_bandwidth(0.5)
    np.testing.assert_allclose(ours([5.0]), theirs([5.0]), rtol=1e-12)
    ours, theirs, queries = both(3)
    np.testing.assert_allclose(ours.integrate_kde(ours), theirs.integrate_kde(theirs), rtol=1e-10)
    np.testing.assert_allclose(
        ours.integrate_kde(both(3, 40)[0]), theirs.integrate_kde(both(3, 40)[1]), rtol=1e-10
    )
    assert ours.integrate_gaussian(queries[:, 0], np.eye(3)) == pytest.approx(
        theirs.integrate_gaussian(queries[:, 0], np.eye(3)), rel=1e-12
    )
    part = ours.marginal([0, 2])
    assert isinstance(part, gaussian_kde)
    np.testing.assert_allclose(part(queries[:2]), theirs.marginal([0, 2])(queries[:2]), rtol=1e-10)
    np.testing.assert_allclose(ours(queries[:, 0]), theirs(queries[:, 0]), rtol=1e-10)


def test_wrong_points_are_refused_as_by_scipy() -> None:
    ours, theirs, _ = both(3)
    for kde in (ours, theirs):
        with pytest.raises(ValueError, match="points have dimension 2, dataset has"):
            kde(np.zeros((2, 5)))


def test_log_densities_where_scipy_gives_minus_infinity_or_less_digits() -> None:
    ours = gaussian_kde(np.array([[0.0, 1.0]]))
    far = ours.logpdf([1e4])
    assert np.isfinite(far).all()
    assert far < -1e6


def naive_mmd(x: np.ndarray, y: np.ndarray, sigma: float) -> float:
    xx, yy, xy = (gaussian_kernel(a, b, sigma) for a, b in ((x, x), (y, y), (x, y)))
    n, m = len(x), len(y)
    return float((xx.sum() - n) / n / (n - 1) + (yy.sum() - m) / m / (m - 1) - 2 * xy.mean())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mmd_is_its_definition(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((120, 3)).astype(dtype), rng.standard_normal((90, 3)).astype(dtype)
    result = mmd(x, y + dtype(0.2), bandwidth=1.3, rng=0, n_permutations=20)
    tolerance = 1e-12 if dtype == np.float64 else 1e-6
    assert abs(result.statistic - naive_mmd(x, y + dtype(0.2), 1.3)) < tolerance


def test_permuted_statistics_are_those_of_permuted_samples(monkeypatch: Any) -> None:
    """More permutations than columns fit, and more rows than a product takes at once."""
    from approxkmv.stats import kernel_tests

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)), rng.standard_normal((50, 3)) + 0.3
    whole = mmd(x, y, bandwidth=1.0, rng=0, n_permutations=199)
    monkeypatch.setattr(kernel_tests, "_ROWS", 16)
    pieces = mmd(x, y, bandwidth=1.0, rng=0, n_permutations=199)
    assert pieces.p_value == whole.p_value
    assert pieces.statistic == pytest.approx(whole.statistic, rel=1e-12)
    pooled = np.concatenate([x, y])
    naive = []
    for _ in range(400):
        order = rng.permutation(110)
        naive.append(naive_mmd(pooled[order[:60]], pooled[order[60:]], 1.0))
    # Two estimates of one quantile from 199 and 400 draws: within a quarter of it.
    assert whole.null_quantile == pytest.approx(np.quantile(naive, 0.95), rel=0.25)


def test_the_error_bar_is_the_spread_of_the_statistic() -> None:
    """Over repetitions, for equal and for different distributions."""
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.7):
        runs = [
            mmd(
                rng.standard_normal((60, 2)),
                rng.standard_normal((80, 2)) + shift,
                bandwidth=1.0,
                n_permutations=50,
                rng=rng,
            )
            for _ in range(200)
        ]
        spread = np.std([run.statistic for run in runs])
        said = np.median([run.standard_error for run in runs])
        assert 0.8 * spread < said < 1.8 * spread


def test_the_level_of_mmd_is_the_one_asked_for() -> None:
    """Under the hypothesis p-values are uniform: 300 of them, so 0.05 has a spread of 0.013."""
    rng = np.random.default_rng(1)
    values = [
        mmd(
            rng.standard_normal((30, 2)), rng.standard_normal((40, 2)), n_permutations=39, rng=rng
        ).p_value
        for _ in range(300)
    ]
    assert 0.01 <= np.mean(np.array(values) <= 0.05) <= 0.10
    assert 0.4 < np.mean(values) < 0.6


def naive_hsic(x: np.ndarray, y: np.ndarray, sigma: float) -> float:
    n = len(x)
    k, l = (gaussian_kernel(p, p, sigma) - np.eye(n) for p in (x, y))  # noqa: E741
    one = np.ones(n)
    means = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return float((np.trace(k @ l) + means - 2 / (n - 2) * (one @ k @ l @ one)) / (n * (n - 3)))


def test_hsic_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 2)), rng.standard_normal((80, 3))
    result = hsic(x, y, bandwidth=1.1, n_permutations=20, rng=0)
    assert result.statistic == pytest.approx(naive_hsic(x, y, 1.1), abs=1e-12)
    assert result.null == "permutation"


@pytest.mark.parametrize("null", ["permutation", "gamma"])
def test_the_level_of_hsic_is_the_one_asked_for(null: str) -> None:
    rng = np.random.default_rng(2)
    values = [
        hsic(
            rng.standard_normal((60, 1)),
            rng.standard_normal((60, 2)),
            null=null,
            n_permutations=39,
            rng=rng,
        ).p_value
        for _ in range(300)
    ]
    assert 0.01 <= np.mean(np.array(values) <= 0.05) <= 0.11


def test_hsic_finds_dependence_and_its_error_bar_is_the_spread() -> None:
    rng = np.random.default_rng(3)
    runs = []
    for _ in range(150):
        x = rng.standard_normal((80, 1))
        y = x**2 + 0.5 * rng.standard_normal((80, 1))
        runs.append(hsic(x, y, bandwidth=(1.0, 1.5), null="gamma"))
    assert np.median([run.p_value for run in runs]) < 1e-3
    spread = np.std([run.statistic for run in runs])
    assert 0.7 * spread < np.median([run.standard_error for run in runs]) < 1.6 * spread


def test_progress_and_reports() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 2)), rng.standard_normal((50, 2))
    for run in (mmd, hsic):
        shares: list[float] = []
        result = run(x, y, progress=shares.append, rng=0, n_permutations=20)
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)
        assert "p-value" in str(result)
        assert "p_value" in result.to_json()
        assert "permutations" in result._repr_html_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mmd(np.zeros((5, 2)), np.zeros((5, 3))), "y must have 2 columns"),
        (lambda: mmd(np.zeros((1, 2)), np.zeros((5, 2))), "at least two rows"),
        (lambda: mmd(np.zeros((5, 2)), np.zeros((5, 2))), "most points are equal"),
        (lambda: hsic(np.zeros((9, 2)), np.zeros((8, 2))), "as many rows"),
        (lambda: mmd([[np.nan], [1.0]], [[1.0], [2.0]]), r"x\[0, 0\] is nan"),
        (lambda: hsic(np.eye(9), np.eye(9), null="none"), "null must be one of"),
        (lambda: mmd(np.eye(5), np.eye(5), bandwidth=[1.0, 2.0]), "each of the 5 coordinates"),
        (lambda: gaussian_kde(np.ma.masked_less([1.0, 2.0], 1.5)), "dataset must have no masked"),
        (lambda: gaussian_kde([1.0, 2.0])(np.ma.masked_less([1.0], 2)), "points must have no ma"),
    ],
)
def test_wrong_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_sparse_points_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"dataset must be a dense array.*toarray"):
        gaussian_kde(scipy.sparse.eye_array(4).tocsr())


def test_bandwidths_for_each_coordinate_are_scaled_points() -> None:
    """A bandwidth for each coordinate is the same as points divided by them."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 60, 3))
    widths = np.array([0.5, 1.0, 3.0])
    ours = mmd(x, y, bandwidth=widths, n_permutations=20, rng=1)
    assert ours.bandwidth == widths.tolist()
    scaled = mmd(x / widths, y / widths, bandwidth=1.0, n_permutations=20, rng=1)
    assert ours.statistic == pytest.approx(scaled.statistic, abs=1e-14)
    assert ours.p_value == scaled.p_value
    both = hsic(x, y, bandwidth=(widths, 2.0), n_permutations=20, rng=1)
    theirs = hsic(x / widths, y, bandwidth=(1.0, 2.0), n_permutations=20, rng=1)
    assert both.statistic == pytest.approx(theirs.statistic, abs=1e-14)
    assert json.loads(both.to_json())["bandwidth"] == [widths.tolist(), 2.0]


def test_the_package_offers_them() -> None:
    assert akmv.mmd is mmd
    assert akmv.hsic is hsic
