"""Heads of attention for the tests of the engine, and how they are handed to it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from approxkmv.engine.cost import CostModel
from approxkmv.engine.head import Head, HeadProblem
from approxkmv.engine.heads import approximate_head
from approxkmv.engine.policy import Policy
from approxkmv.engine.problem import Budget
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.compiled import Compiled

N, D = 4096, 32
DELTA = 0.05


# Drawing pays from more tokens on than tests have time for: here pairs are cheap.
COST = CostModel(
    smallest_head=2**22,
    smallest_head_for_draws=2**22,
    smallest_causal_head=2**22,
    drawn_head_pair=0.8,
)


class Case(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    scale: float
    is_causal: bool

    def exact(self) -> np.ndarray:
        scores = self.scale * (self.query.astype("f8") @ self.key.astype("f8").T)
        if self.is_causal:
            scores[np.arange(len(self.key)) > np.arange(len(self.query))[:, None]] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(axis=1, keepdims=True)
        return np.asarray(weights @ self.value.astype("f8"))

    def problem(
        self,
        eps: float,
        seed: int = 0,
        *,
        policy: Policy = Policy(),  # noqa: B008 (frozen)
        cost: CostModel = COST,
        backend: Compiled = Compiled(),  # noqa: B008 (frozen)
    ) -> HeadProblem:
        """The head with an error of eps |V|."""
        head = Head(self.query, self.key, self.value, self.scale, self.is_causal, backend)
        budget = Budget(eps**2 * head.value_square, DELTA)
        return HeadProblem(head, budget, np.random.default_rng(seed), cost, policy)


class Run(NamedTuple):
    error: float  # relative to |V|
    estimate: float
    output: np.ndarray
    numbers: dict[str, object]


def run(case: Case, eps: float, seed: int = 0, **options: Any) -> Run | None:
    """None where the engine leaves the head to the exact method, for a reason."""
    trace = Trace()
    try:
        found = approximate_head(case.problem(eps, seed, **options), trace)
    except Refusal:
        return None
    assert found.y.shape == (len(case.query), case.value.shape[1])
    assert found.y.dtype == case.value.dtype
    assert np.isfinite(found.y).all()
    assert found.variance <= found.upper <= (eps * np.linalg.norm(case.value.astype("f8"))) ** 2
    size = float(np.linalg.norm(case.value.astype("f8"))) or 1.0
    error = float(np.linalg.norm(found.y - exact_of(case)))
    return Run(error / size, found.variance**0.5 / size, found.y, trace.numbers)


_EXACT: dict[int, tuple[Case, np.ndarray]] = {}


def exact_of(case: Case) -> np.ndarray:
    if id(case) not in _EXACT:
        _EXACT[id(case)] = case, case.exact()  # the case is kept, so that its id stays its own
    return _EXACT[id(case)][1]


def gauss(n: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@functools.cache
def text(n: int = N, seed: int = 0) -> Case:
    """Tokens whose topic drifts slowly, a first token that all attend to, some sharp queries."""
    rng = np.random.default_rng(seed)
    topic = np.zeros((n, D))
    for i in range(1, n):
        topic[i] = 0.97 * topic[i - 1] + 0.24 * rng.standard_normal(D)
    sharpness = np.exp(0.5 * rng.standard_normal((n, 1)))
    query = sharpness * (topic + 0.5 * rng.standard_normal((n, D)))
    key = topic + 0.5 * rng.standard_normal((n, D))
    value = rng.standard_normal((n, 48)) + topic[:, :1]
    value[0] *= 0.1
    key[0] = 0
    query, key = (np.pad(a, ((0, 0), (0, 1))) for a in (query, key))
    query[:, -1], key[0, -1] = 4.0, D**0.5
    arrays = [np.ascontiguousarray(a, np.float32) for a in (query, key, value)]
    return Case(*arrays, D**-0.5, True)


@functools.cache
def words(n: int = N, seed: int = 0, sharp: float = 1.0) -> Case:
    """Queries that are keys, of a decaying spectrum and various norms; values unlike them."""
    rng = np.random.default_rng([seed, 1])
    points = rng.standard_normal((n, 64)) * (1 + np.arange(64)) ** -0.3
    points *= 8 / np.linalg.norm(points, axis=1).mean()
    points = (points * np.exp(0.2 * rng.standard_normal((n, 1)))).astype(np.float32)
    return Case(points, points, gauss(n, 48, seed + 2), sharp / 8, False)


def flat(n: int = N) -> Case:
    return Case(gauss(n, D, 1), gauss(n, D, 2), 1 + gauss(n, 48, 3), 0.3 * D**-0.5, False)


def hostile() -> Iterator[tuple[str, Case]]:
    base = text()
    q, k, v = base.query, base.key, base.value
    hot = k.copy()
    hot[7] *= 40
    yield "one key that nearly all queries like", base._replace(key=hot)
    yield "one-hot rows", Case(30 * words().query, words().key, v[:N], 1.0, False)
    yield "one-hot causal rows", base._replace(query=100 * q)
    yield "all keys equal", base._replace(key=np.ones_like(k))
    yield "all keys equal, no mask", base._replace(key=np.ones_like(k), is_causal=False)
    yield "fewer queries than keys", base._replace(query=q[:3000])
    yield "more queries than keys", base._replace(key=k[:3000], value=v[:3000])
    yield "few queries, no mask", words()._replace(query=words().query[:1500])
    yield "zero values", base._replace(value=np.zeros_like(v))
    yield "equal values", base._replace(value=np.full_like(v, 3.7))
    one = np.zeros_like(v)
    one[100] = 1
    yield "one value only", base._replace(value=one)
    for count in (1, 8, 40, 200):
        some = np.zeros_like(v)
        some[np.random.default_rng(count).permutation(N)[:count]] = 1
        yield f"only {count} values, no mask", words()._replace(value=some)
        yield f"only {count} values, flat", words(sharp=0.6)._replace(value=some)
    yield "huge scores", base._replace(query=1e4 * q)
    yield "huge values", base._replace(value=1e15 * v)
    yield "tiny values", base._replace(value=1e-25 * v)
    yield "values far from zero", base._replace(value=v + 1000)
    yield "keys far from zero", base._replace(key=k + 100)
    yield "negative scale", base._replace(scale=-base.scale)
    yield "scale zero", base._replace(scale=0.0)
    yield "one column", base._replace(value=np.ascontiguousarray(v[:, :1]))
    yield "double precision", Case(*(a.astype("f8") for a in (q, k, v)), base.scale, True)
    needle = flat()
    sharp = needle.query.copy()
    sharp[:40] *= 100  # one row in a hundred attends to one key, all others to all
    yield "few sharp rows among flat ones", needle._replace(query=sharp)
    order = np.random.default_rng(0).permutation(N)
    yield "tokens in random order", Case(q[order], k[order], v[order], base.scale, True)
