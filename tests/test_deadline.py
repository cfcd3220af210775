"""A limit of time is obeyed, and the answer given under it is honest about its error."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from limited_cases import clustered, vector
from scipy.stats import binom

import approxkmv as akmv
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv.engine.problem import Budget, Limit, Problem
from approxkmv.engine.products import product
from approxkmv.engine.progress import Progress
from approxkmv.engine.request import Request, Tolerance
from approxkmv.engine.result import Result
from approxkmv.engine.schemes.in_time import TOO_SHORT, answer_in_time, probe
from approxkmv.engine.trace import Trace
from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled


def stops_after(n_looks: int) -> Callable[[], float]:
    """A clock that stands still for some looks, and then says that all time is over."""
    looks = itertools.count()
    return lambda: 0.0 if next(looks) < n_looks else 1e9


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is looked at."""
    looks = itertools.count()
    return lambda: seconds * next(looks)


def test_a_deadline() -> None:
    clock = [10.0]
    deadline = Deadline(2.0, now=lambda: clock[0])
    assert deadline
    assert deadline.left() == 2.0
    assert deadline.keeping(0.5).left() == 1.5
    assert deadline.keeping(0.5).keeping(0.5).left() == 1.0
    assert deadline.part(0.25).left() == 0.5
    clock[0] = 11.9
    deadline.check()
    assert deadline.polled is not None
    deadline.polled()
    with pytest.raises(OutOfTime):
        deadline.keeping(0.5).check()
    clock[0] = 12.0
    with pytest.raises(OutOfTime):
        deadline.polled()
    assert not deadline.broken
    clock[0] = 12.6
    assert not deadline.broken
    clock[0] = 12.8
    assert deadline.broken


def test_no_deadline() -> None:
    deadline = Deadline()
    assert not deadline
    assert deadline.polled is None
    assert deadline.left() == deadline.keeping(5.0).left() == deadline.part(0.1).left() == np.inf
    deadline.check()
    assert not deadline.broken


def test_a_stage_that_does_not_fit_is_not_begun() -> None:
    clock = [0.0]
    limit = Limit(Deadline(1.0, now=lambda: clock[0]))
    limit.learn(1000, 0.1)
    limit.needs(9999)
    with pytest.raises(OutOfTime):
        limit.needs(10001)
    clock[0] = 0.5
    with pytest.raises(OutOfTime):
        limit.needs(5001)
    Limit().needs(np.inf)


def stop_now() -> None:
    raise OutOfTime


@pytest.mark.parametrize("n_threads", [1, 2])
def test_compiled_loops_end_when_the_check_raises(n_threads: int) -> None:
    """The exception is ours, and the loop is left long before it is done."""
    points = np.random.default_rng(0).standard_normal((40_000, 32)).astype(np.float32)
    kernel = prepare(points, points, 4.0, backend=Compiled(n_threads))
    x = np.ones((len(points), 1), np.float32)
    start = time.thread_time()
    with pytest.raises(OutOfTime):
        kernel.checked(stop_now).product(x)
    stopped = time.thread_time() - start
    start = time.thread_time()
    kernel.product(x)
    assert stopped < 0.5 * (time.thread_time() - start)
    heads = points.reshape(1, -1, 32)
    with pytest.raises(OutOfTime):
        Compiled(check=stop_now).attention(
            heads,
            heads,
            heads,
            np.zeros((1, 4), np.int64),
            scale=0.1,
        )


@pytest.mark.parametrize("n_looks", [1, 5, 8, 12, 16, 20, 25, 30, 40, 60])
@pytest.mark.parametrize("eps", [0.3, 0.01])
def test_an_answer_whenever_the_time_ends(n_looks: int, eps: float) -> None:
    """Between any two stages: there is an answer, and its bound holds."""
    data = clustered(8192)
    x = vector("gauss", data)
    request = Request(
        data.queries,
        data.keys,
        x,
        data.bandwidth,
        Tolerance(eps),
        0.05,
        np.random.default_rng(n_looks),
        deadline=Deadline(1.0, now=stops_after(n_looks)),
        report=True,
    )
    assert request.needs_a_clock
    y, info, too_late = product(request)
    error = np.linalg.norm(y - data.exact(x)) / np.linalg.norm(x)
    assert info.error_bound is not None
    assert info.error_estimate is not None
    assert error <= info.error_bound
    assert too_late or info.error_estimate <= eps
    assert not too_late or "drawn_by" in info.plan.numbers


def in_time(kernel: KernelMatrix, x: np.ndarray, deadline: Deadline, seed: int) -> Result:
    """An answer to a product of which nothing is known."""
    budget = Budget(0.0, 0.05, Limit(deadline))
    problem = Problem(kernel, x, budget, np.random.default_rng(seed))
    trace = Trace()
    result = answer_in_time(problem, probe(problem), Progress(), trace)
    assert result.reason == TOO_SHORT
    assert trace.numbers["drawn_by"] == "the rows of x alone"
    assert trace.pairs == result.pairs
    return result


@pytest.mark.parametrize("kind", ["gauss", "ones"])
@pytest.mark.parametrize("columns", [1, 3])
def test_answers_without_time_are_unbiased_and_know_their_error(kind: str, columns: int) -> None:
    """Over seeds: the mean goes to the product, the estimate is the error, the bound holds."""
    data, seeds, delta = clustered(4096), 30, 0.05
    one = vector(kind, data)
    x = np.ascontiguousarray(np.stack([one, one[::-1], one**2], axis=1)[:, :columns])
    exact = data.exact(x)
    kernel = prepare(data.queries, data.keys, data.bandwidth)
    total, squares, estimates, violations = np.zeros_like(exact), [], [], 0
    for seed in range(seeds):
        result = in_time(kernel, x, Deadline(1e-6), seed)
        total += result.y
        squares.append(float(np.square(result.y.astype(np.float64) - exact).sum()))
        estimates.append(result.variance)
        violations += squares[-1] > result.worst / delta
        assert result.pairs < 0.1 * data.queries.shape[0] * data.keys.shape[0]
    of_mean = float(np.square(total / seeds - exact).sum()) * seeds
    assert 0.7 < of_mean / np.mean(squares) < 1.4
    # The larger of two estimates: somewhat too large on average.
    assert 0.7 < np.mean(estimates) / np.mean(squares) < 2.5
    assert violations <= binom.isf(1e-6, seeds, delta)


def test_time_makes_answers_better() -> None:
    """With a clock that ticks once at every look, twice the ticks draw more keys."""
    data = clustered(8192)
    x = vector("gauss", data)
    kernel = prepare(data.queries, data.keys, data.bandwidth)
    errors = [
        in_time(kernel, x[:, None], Deadline(seconds, now=ticking(1e-2)), 0).variance
        for seconds in (1e-3, 10.0)
    ]
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.alone
@pytest.mark.parametrize("eps", [0.1, 0.0])
def test_a_short_limit_is_not_missed_grossly(eps: float) -> None:
    """65,536 points, 0.05 s: it used to take 2.6 s. In seconds of the processor, for busy ones."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((65_536, 64)).astype(np.float32)
    x = rng.standard_normal(len(points)).astype(np.float32)
    start = time.process_time()
    with pytest.warns(akmv.AccuracyWarning, match=r"max_seconds=0\.05"):
        y, info = akmv.matvec(
            points,
            None,
            x,
            bandwidth=4.0,
            eps=eps,
            max_seconds=0.05,
            rng=0,
            n_threads=1,
            return_info=True,
        )
    assert time.process_time() - start < 0.5
    rows = np.arange(0, len(points), 200)
    exact = akmv.matvec(points[rows], points, x, bandwidth=4.0, method="exact")
    error = np.linalg.norm(y[rows] - exact) * np.sqrt(200) / np.linalg.norm(x)
    assert info.error_estimate is not None
    assert 0.3 < info.error_estimate / error < 3


def test_enough_time_changes_no_bit() -> None:
    """With more time than is needed the answer is that without a limit."""
    rng = np.random.default_rng(0)
    centres = np.repeat(rng.standard_normal((3000, 32)), 16, axis=0)
    points = (centres + 0.05 * rng.standard_normal(centres.shape)).astype(np.float32)
    x = rng.standard_normal(len(points)).astype(np.float32)
    options = {"bandwidth": 1.5, "eps": 0.2, "rng": 3, "return_info": True}
    plain, info = akmv.matvec(points, None, x, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited, _ = akmv.matvec(points, None, x, max_seconds=1000, **options)
    assert info.method == "sampled"
    np.testing.assert_array_equal(limited, plain)


@pytest.mark.parametrize("shape", [(0, 10), (10, 0), (5, 5)])
def test_small_and_empty_matrices(shape: tuple[int, int]) -> None:
    """Nothing to draw from, or exact in no time."""
    queries, keys = (np.ones((n, 2)) for n in shape)
    y, info = akmv.matvec(
        queries, keys, np.ones(shape[1]), bandwidth=1.0, max_seconds=5.0, return_info=True
    )
    np.testing.assert_allclose(y, np.full(shape[0], float(shape[1])))
    assert info.method == "exact"


def test_the_time_itself_is_missed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stood still meanwhile: both numbers are named."""
    monkeypatch.setattr(
        "approxkmv.product._deadline", lambda seconds: Deadline(seconds, now=stops_after(3))
    )
    with (
        pytest.warns(akmv.AccuracyWarning, match="max_seconds=2 was too short"),
        pytest.warns(akmv.AccuracyWarning, match=r"took 1e\+09 s.*max_seconds=2"),
    ):
        akmv.matvec(np.ones((4000, 2)), None, np.ones(4000), bandwidth=1.0, max_seconds=2.0)


@pytest.mark.parametrize("max_seconds", [1e-300, 1e-6, 1e9, 1e300])
def test_small_products_and_heads_are_exact_whatever_the_limit(max_seconds: float) -> None:
    """What takes a few milliseconds is computed: no draws would be faster, or as good."""
    rng = np.random.default_rng(0)
    points, x = rng.standard_normal((300, 5)), rng.standard_normal(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, info = akmv.matvec(
            points, None, x, bandwidth=1.0, max_seconds=max_seconds, return_info=True
        )
        output = akmv.attention(points, points, points, max_seconds=max_seconds)
    assert info.method == "exact"
    np.testing.assert_array_equal(y, akmv.matvec(points, None, x, bandwidth=1.0, eps=0))
    np.testing.assert_array_equal(output, akmv.attention(points, points, points, eps=0))


def test_a_limit_of_ages_is_none() -> None:
    """Numbers of seconds whose products overflow change no bit of a sampled product."""
    data = clustered(32_768)
    x = vector("ones", data)
    args = data.queries, data.keys, x
    want = akmv.matvec(*args, bandwidth=data.bandwidth, rng=0)
    got = akmv.matvec(*args, bandwidth=data.bandwidth, rng=0, max_seconds=1e300)
    np.testing.assert_array_equal(got, want)
