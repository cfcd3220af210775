"""``top_eigenvalue`` against LAPACK, its two bounds, and what may go wrong."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator
from spectrum_cases import BANDWIDTH, CASES, Frozen, exact_eigenvalues

import approxkmv as akmv
from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.spectrum import top
from approxkmv.spectrum.top import TopEigenvalue, top_eigenvalue


@pytest.fixture(params=["from all rows", "from some rows"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of start, which by default depend on the size."""
    if request.param == "from some rows":
        monkeypatch.setattr(top, "_SMALL", 40)


def check(found: TopEigenvalue, exact: float, tol: float, rounding: float = 1e-9) -> None:
    """Converged, right, inside its error bar and between its bounds."""
    slack = rounding * exact
    assert found.converged
    assert found.error_estimate <= tol * exact + slack
    assert abs(found.eigenvalue - exact) <= found.error_estimate + slack
    assert found.lower_bound <= exact + slack
    if found.upper_bound is not None:
        assert exact <= found.upper_bound + slack
    assert np.linalg.norm(found.eigenvector) == pytest.approx(1)
    assert found.eigenvector.sum() > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.usefixtures("start")
def test_agrees_with_lapack(case: str, nonnegative: bool) -> None:
    """Points and operator, at two tolerances; the bounds hold and the products are exact."""
    points = CASES[case](400)
    exact = exact_eigenvalues(points)[0]
    for tol, most in ((0.02, 60), (1e-4, 2000)):
        options: dict[str, Any] = {"tol": tol, "nonnegative": nonnegative, "max_products": most}
        from_points = top_eigenvalue(points, bandwidth=BANDWIDTH, rng=0, **options)
        check(from_points, exact, tol)
        assert from_points.upper_bound is not None
        K = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
        check(top_eigenvalue(K, rng=0, **options), exact, tol)


def test_float32_stays_within_its_rounding() -> None:
    points = CASES["normal"](600).astype(np.float32)
    found = top_eigenvalue(points, bandwidth=BANDWIDTH, tol=1e-3, rng=0)
    check(found, exact_eigenvalues(points)[0], 1e-3, rounding=1e-5)


def test_eigenvector_is_the_one_of_the_top_eigenvalue() -> None:
    points = CASES["normal"](300)
    _, vectors = np.linalg.eigh(gaussian_kernel(points, points, BANDWIDTH))
    found = top_eigenvalue(points, bandwidth=BANDWIDTH, tol=1e-6, rng=0)
    assert abs(float(found.eigenvector @ vectors[:, -1])) == pytest.approx(1, abs=1e-8)


def test_small_sizes() -> None:
    for n in (1, 2, 3, 5):
        points = CASES["normal"](n)
        check(top_eigenvalue(points, bandwidth=BANDWIDTH), exact_eigenvalues(points)[0], 0.01)


def stars_and_copies() -> tuple[np.ndarray, float, float]:
    """Fifteen points amid others, with the largest row sums, and copies of one point far away.

    A point in the middle of a sphere has a larger row sum than its points have, and than the
    eigenvalue of them all; 40 copies of a point have row sums and an eigenvalue of 40. Returns all
    points, the largest row sum and the largest eigenvalue without the copies.
    """
    rng = np.random.default_rng(3)
    stars = rng.standard_normal((15, 61, 40))
    stars *= 0.76 / np.linalg.norm(stars, axis=2, keepdims=True)  # kernel value 0.75 to the middle
    stars[:, 0] = 0
    stars[:, :, 0] += 50 * np.arange(15)[:, None]
    points = np.vstack([stars.reshape(-1, 40), np.full((40, 40), -100.0)])
    sums = gaussian_kernel(points, points, BANDWIDTH).sum(axis=1)
    return points, float(sums.max()), exact_eigenvalues(points[:-40])[0]


@pytest.fixture
def few_start_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from 14 of 955 rows: all of them in the middle of a star."""
    monkeypatch.setattr(top, "_SMALL", 8)
    monkeypatch.setattr(top, "_START_SHARE", 64)


@pytest.mark.usefixtures("few_start_rows")
def test_finds_the_top_one_outside_the_start() -> None:
    points, largest_sum, elsewhere = stars_and_copies()
    assert elsewhere < 0.97 * 40 < 40 < largest_sum  # the premise
    check(top_eigenvalue(points, bandwidth=BANDWIDTH, rng=0), 40.0, 0.01)


@pytest.mark.usefixtures("few_start_rows")
def test_upper_bound_tells_when_the_top_one_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking elsewhere the answer is a wrong eigenvalue, and its bracket says so."""
    monkeypatch.setattr(top, "_PATIENCE", 0)
    points, _, elsewhere = stars_and_copies()
    found = top_eigenvalue(points, bandwidth=BANDWIDTH, rng=0)
    assert found.converged
    assert found.eigenvalue <= elsewhere * (1 + 1e-9)
    assert found.upper_bound is not None
    assert found.upper_bound >= 40 * (1 - 1e-9)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_sampled_operator_has_error_bars_with_eps(nonnegative: bool) -> None:
    points = CASES["normal"](400)
    exact = exact_eigenvalues(points)[0]
    eps = 0.005 * exact
    found = top_eigenvalue(
        Frozen(points, eps=eps), tol=0.02, nonnegative=nonnegative, max_products=200, rng=0
    )
    check(found, exact, 0.02)
    assert found.upper_bound is None
    assert found.eps >= eps
    assert found.lower_bound == found.eigenvalue - found.eps
    too_rough = top_eigenvalue(Frozen(points, eps=0.05 * exact), tol=0.02, max_products=20, rng=0)
    assert not too_rough.converged
    assert "not converged" in str(too_rough)


@pytest.fixture(scope="module")
def sampled() -> tuple[np.ndarray, float, list[TopEigenvalue]]:
    """Points for which the engine samples, their bandwidth, and the answers of 1 and 2 threads."""
    points, _, bandwidth = akmv.datasets.clusters(32_768, 64, rng=0)
    answers = [
        top_eigenvalue(points, bandwidth=bandwidth, tol=0.15, rng=1, n_threads=t) for t in (1, 2)
    ]
    return points, bandwidth, answers


def test_sampled_products_of_points(sampled: Any) -> None:
    """One exact product with the eigenvector confirms value, residual and lower bound."""
    points, bandwidth, (found, _) = sampled
    assert found.converged
    assert found.upper_bound is None
    assert found.pairs < 0.5 * found.pairs_exact
    v = found.eigenvector
    y = akmv.matvec(points, None, v, bandwidth=bandwidth, method="exact").astype(np.float64)
    assert abs(float(v @ y) - found.eigenvalue) <= found.eps
    assert np.linalg.norm(y - found.eigenvalue * v) <= found.error_estimate
    assert found.lower_bound <= float(v @ y)  # and so below the top eigenvalue


def test_reproducible_for_any_number_of_threads(sampled: Any) -> None:
    first, second = sampled[2]
    assert first.eigenvalue == second.eigenvalue
    np.testing.assert_array_equal(first.eigenvector, second.eigenvector)


def test_any_symmetric_operator() -> None:
    """No points, entries of any sign: a random start; no bound from above."""
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 200)))
    dense = (q * np.linspace(-1, 3, 200)) @ q.T
    found = top_eigenvalue(aslinearoperator(dense), tol=1e-3, max_products=200, rng=0)
    check(found, 3.0, 0.02)
    assert found.upper_bound is None


def test_stops_when_told() -> None:
    points = CASES["on a line"](2000)
    found = top_eigenvalue(points, bandwidth=BANDWIDTH, tol=1e-9, max_products=5, rng=0)
    assert found.n_products == 5
    assert not found.converged


def test_counts_kernel_values() -> None:
    points = CASES["normal"](300)
    found = top_eigenvalue(points, bandwidth=BANDWIDTH, method="exact", rng=0)
    assert found.pairs_exact == 300**2
    assert found.pairs == found.n_products * 300**2


def test_several_threads_at_once() -> None:
    points = CASES["normal"](300)
    K = akmv.GaussianKernel(points, bandwidth=BANDWIDTH)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: top_eigenvalue(K, rng=0).eigenvalue, range(8)))
    assert len(set(found)) == 1


def test_pickles_and_prints() -> None:
    found = top_eigenvalue(CASES["normal"](50), bandwidth=BANDWIDTH, rng=0)
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)
    assert f"{found.eigenvalue:.6g}" in str(found)
    np.testing.assert_array_equal(again.eigenvector, found.eigenvector)


def test_bad_input() -> None:
    points = CASES["normal"](20)
    K = akmv.GaussianKernel(points, bandwidth=1.0)
    with pytest.raises(ValueError, match="bandwidth must be given"):
        top_eigenvalue(points)
    with pytest.raises(ValueError, match="bandwidth must be None"):
        top_eigenvalue(K, bandwidth=1.0)
    with pytest.raises(ValueError, match=r"K must be square, got shape \(20, 5\)"):
        top_eigenvalue(akmv.GaussianKernel(points, points[:5], bandwidth=1.0))
    with pytest.raises(ValueError, match="kernel of one point set"):
        top_eigenvalue(akmv.GaussianKernel(points, points + 1, bandwidth=1.0))
    with pytest.raises(ValueError, match="tol must be a positive finite number, got 0"):
        top_eigenvalue(K, tol=0)
    with pytest.raises(ValueError, match="max_products must be at least 1, got 0"):
        top_eigenvalue(K, max_products=0)
    with pytest.raises(TypeError, match="max_products must be an integer, got float"):
        top_eigenvalue(K, max_products=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one row"):
        top_eigenvalue(points[:0], bandwidth=1.0)
    with pytest.raises(ValueError, match=r"K must be finite, but K\[0, 0\] is nan"):
        top_eigenvalue(np.full((3, 2), np.nan), bandwidth=1.0)
    with pytest.raises(ValueError, match="bandwidth must be a positive"):
        top_eigenvalue(points, bandwidth=-1.0)
    with pytest.raises(ValueError, match="method must be one of"):
        top_eigenvalue(points, bandwidth=1.0, method="magic")
