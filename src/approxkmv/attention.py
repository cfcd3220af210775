"""``attention``: softmax attention of many heads, from what the user hands in to the report."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._heads import Heads, Mask, arrange, pairs_seen
from approxkmv._lazy import lazy_property
from approxkmv._tensors import as_tensor, is_tensor
from approxkmv._threads import default_threads
from approxkmv._warnings import AccuracyWarning, AssumptionWarning
from approxkmv.engine.cost import CostModel
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.info import AttentionInfo, HeadInfo, Plan
from approxkmv.kernel.rounding import attention_bound, measured_attention_error, norm
from approxkmv.kernel.rounding import largest as max_magnitude
from approxkmv.loops import compiled
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array, Check, Index

METHODS = ("auto", "exact", "sampled", "paper")
_NAMES = ("query", "key", "value")
# With a limit of time: the share kept for an answer from what is known when it is over. Exact
# attention is begun only if it would fit into the time left at this optimistic rate; loops that
# turn out slower are ended by the deadline.
_KEPT, _LIKELY, _PAIRS_A_SECOND = 0.4, 1.0, 2e9


@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    attn_mask: npt.ArrayLike | None = ...,
    enable_gqa: bool = ...,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    return_info: Literal[False] = ...,
) -> Any: ...
@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    attn_mask: npt.ArrayLike | None = ...,
    enable_gqa: bool = ...,
    eps: float = ...,
    delta: float = ...,
    method: str = ...,
    max_seconds: float | None = ...,
    rng: Rng = ...,
    n_threads: int | None = ...,
    return_info: Literal[True],
) -> tuple[Any, AttentionInfo]: ...
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    attn_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    eps: float = 0.1,
    delta: float = 0.05,
    method: str = "auto",
    max_seconds: float | None = None,
    rng: Rng = None,
    n_threads: int | None = None,
    return_info: bool = False,
) -> Any | tuple[Any, AttentionInfo]:
    r"""Softmax attention :math:`O = D^{-1} A V` with a stated error.

    With :math:`A_{ij} = \exp(s\langle q_i, k_j\rangle + \mathrm{mask}_{ij})` and D the row sums of
    A, returns O' with :math:`\|O - O'\|_F \le \mathrm{eps}\,\|V\|_F`, for each head separately with
    probability at least ``1 - delta``.

    Parameters
    ----------
    query : array_like or tensor, shape (..., n_queries, n_dims)
        float32 and float64 are kept as the computing type; float16, bfloat16 and small integers
        are computed in float32, other real types in float64.
    key : array_like or tensor, shape (..., n_keys, n_dims)
    value : array_like or tensor, shape (..., n_keys, n_columns)
        Leading dimensions of all arrays broadcast. An index of them is a head.
    scale : float or None
        s above; None means :math:`1/\sqrt{n\_dims}`.
    is_causal : bool
        Query i sees keys 0 to i only, counted from the first key as in PyTorch.
    attn_mask : array_like or tensor, broadcastable to (..., n_queries, n_keys), or None
        Truth values, True where a pair counts; or numbers added to the scores, :math:`-\infty`
        where a pair does not count. May be combined with ``is_causal``. Numbers that float32 cannot
        hold count as what they are.
    enable_gqa : bool
        Grouped queries: the third dimension from the end counts heads, and query has a multiple of
        the heads of key and value.
    eps : float
        Error allowed, relative to the Frobenius norm of a head's values. 0 asks for exact.
    delta : float
        Probability with which the error of a head may be larger.
    method : {"auto", "exact", "sampled", "paper"}
        ``"exact"`` computes every score, in tiles. ``"auto"`` samples the heads where that is
        predicted to be faster; with a mask it is exact. ``"sampled"`` does the same and warns where
        it had to compute exactly. ``"paper"`` goes through a Gaussian kernel (Lemma 4.1 of the
        paper) and the paper's algorithm, column by column; it is there to be studied, takes
        neither masks nor ``is_causal``, and warns where its guarantee says nothing.
    max_seconds : float or None
        With ``"auto"`` and ``"sampled"``: time after which the best answer so far is returned, with
        an ``AccuracyWarning`` if a head does not meet the error asked for. Heads share the time
        evenly. One that is not done gets softmax over as many keys as there is time for, or the
        mean of its values, and an error estimated from a few rows computed exactly. On an otherwise
        idle machine it takes at most 1.3 times as long and 0.1 s more; a warning says where that
        was missed. ``"exact"`` and ``"paper"`` take the time they need.
    rng : None, int or numpy.random.Generator
        Seed of everything random.
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.
    return_info : bool
        Return ``(output, info)``; measuring the rounding error costs a few rows.

    Returns
    -------
    output : ndarray or tensor, shape (..., n_queries, n_columns)
        An array of the computing type; if query, key or value is a tensor a tensor of their common
        type, in which arrays, and integers, count with their computing type. A query that sees no
        key gets 0.
    info : AttentionInfo
        Only with ``return_info``.

    Notes
    -----
    Same seed, version and instruction set give the same bits for any number of threads. A row of
    exact attention does not depend on the other queries.

    Examples
    --------
    >>> import numpy as np
    >>> import approxkmv as akmv
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((2, 8, 100, 64))  # 2 texts, 8 heads, 100 tokens
    >>> key, value = rng.standard_normal((2, 2, 2, 100, 64))  # 2 heads each, shared by 4
    >>> output, info = akmv.attention(
    ...     query, key, value, is_causal=True, enable_gqa=True, return_info=True
    ... )
    >>> output.shape, info.method, info.pairs
    ((2, 8, 100, 64), 'exact', 80800)
    >>> bool(np.allclose(output[..., 0, :], np.repeat(value, 4, axis=1)[..., 0, :]))
    True
    """
    deadline = Deadline()
    if max_seconds is not None:
        deadline = Deadline(_check.positive(max_seconds, "max_seconds"))
    given = query, key, value
    arrays = {n: _check.matrices(a, n) for n, a in zip(_NAMES, given, strict=True)}
    mask = None if attn_mask is None else _check.mask(attn_mask)
    scale = None if scale is None else _check.number(scale, "scale")
    is_causal = _check.truth(is_causal, "is_causal")
    enable_gqa = _check.truth(enable_gqa, "enable_gqa")
    eps = _check.tolerance(eps)
    delta = _check.probability(delta)
    method = _check.one_of(method, "method", METHODS)
    rng = _check.seed(rng)
    n_threads = _check.threads(n_threads)
    if scale is None:
        scale = 1 / math.sqrt(max(arrays["query"].shape[-1], 1))
    inputs = _Inputs(arrays, mask, enable_gqa, is_causal)
    run = _Run(inputs, scale, is_causal, eps, delta, rng, n_threads, return_info)
    if method in ("auto", "sampled") and deadline.matters(run.work):
        output, reason = run.in_time(method, deadline)
    else:
        output, reason = run(method)
    output = output.astype(inputs.dtype, copy=False)
    if any(map(is_tensor, given)):
        result = as_tensor(output, given, tuple(arrays.values()))
    else:
        result = output
    return (result, run.info(reason)) if return_info else result


class _Largest(NamedTuple):
    """Largest magnitudes."""

    query: float
    key: float
    value: float


@dataclass(frozen=True)
class _Inputs:
    """What was handed in; only its entries are not checked."""

    arrays: dict[str, Array]
    mask: Mask | None
    enable_gqa: bool
    is_causal: bool

    @lazy_property
    def dtype(self) -> np.dtype[np.floating]:
        """The common type."""
        return np.result_type(*self.arrays.values())

    @lazy_property
    def computing(self) -> np.dtype[np.floating]:
        """The common type, or float64 for numbers in the mask that are too large for it."""
        wide = np.dtype(np.float64)
        if self.dtype == wide or self.mask is None or self.mask.dtype == np.bool_:
            return self.dtype
        if self.mask.max(initial=-np.inf) > _highest_score(self.dtype):
            return wide
        below = (self.mask < np.finfo(self.dtype).min) & (self.mask > -np.inf)
        if not below.any():
            return self.dtype
        # -1e300 is as good as -infinity where every query sees a key with far more.
        far_more = self.mask.max(axis=-1, initial=-np.inf) > -_highest_score(self.dtype)
        return self.dtype if far_more.all() and not self.is_causal else wide

    def heads(self, computing: np.dtype[np.floating]) -> Heads:
        """Laid out in the computing type."""
        mask = self.mask
        if mask is not None and mask.dtype != np.bool_:
            with np.errstate(over="ignore"):
                mask = mask.astype(computing, copy=False)
        query, key, value = (a.astype(computing, copy=False) for a in self.arrays.values())
        return arrange(query, key, value, mask, self.enable_gqa)

    def largest(self, n_threads: int | None) -> _Largest:
        """From a look at every entry; an error if one is not finite."""
        return _Largest(*(_check.finite(a, name, n_threads) for name, a in self.arrays.items()))


class _Done(NamedTuple):
    """How a head was computed; the error is in units of two to the exponent."""

    method: str
    error: float
    bound: float | None  # relative to |V|
    reason: str
    exponent: int = 0


class _Run:
    """One call: inputs and options."""

    def __init__(
        self,
        inputs: _Inputs,
        scale: float,
        is_causal: bool,
        eps: float,
        delta: float,
        seed: Rng,
        n_threads: int | None,
        full: bool,
    ) -> None:
        self.inputs = inputs
        self.heads = inputs.heads(inputs.computing)
        self.largest_value: float | None = None  # unknown until looked for
        self.given_scale = scale
        self.scale = scale  # of the heads as they are laid out
        self.is_causal = is_causal
        self.eps = eps
        self.delta = delta
        self.seed = seed
        self.n_threads = n_threads
        self.full = full
        self.output: Array
        self.infos: dict[int, HeadInfo | None] = {}  # of the heads that are done; None if not full
        self.seconds: dict[str, float] = {}
        self.traces: dict[int, Trace] = {}  # of the heads that the engine was asked about
        self.why_not: dict[int, str] = {}  # reasons of the heads that are not sampled

    @lazy_property
    def rng(self) -> np.random.Generator:
        """Made when needed: that takes a tenth of a millisecond."""
        return np.random.default_rng(self.seed)

    def __call__(self, method: str) -> tuple[Array, str]:
        """Outputs, and why they were computed as they were."""
        reason = self.why_exact(method)
        if reason is None or not self.is_short():
            self.look()
        shape = (len(self.heads), self.heads.n_queries, self.heads.values.shape[2])
        self.output = np.empty(shape, self.heads.values.dtype)
        if reason is None:
            reason = self.by_the_paper() if method == "paper" else self.sample()
        left = np.array([h for h in range(len(self.heads)) if h not in self.infos], np.int64)
        if method == "sampled" and len(left):
            warnings.warn(
                f"{len(left)} of {len(self.heads)} heads were computed exactly: "
                f"{self.why_others if self.why_not else reason}.",
                AssumptionWarning,
                stacklevel=3,
            )
        self.compute(left, reason)
        return self.output.reshape(*self.heads.shape, *self.output.shape[1:]), reason

    def why_exact(self, method: str) -> str | None:
        """Why every head is computed exactly, or None if that is not settled."""
        if method == "exact":
            return "every pair is computed"
        if self.eps == 0:
            return "no error is allowed"
        if method == "paper":
            return None
        if self.heads.mask is not None:
            return "masks are applied exactly"
        if self.pairs_exact == 0:
            return "there are no pairs"
        if not CostModel().worth_a_survey_of_head(self.pairs_exact, self.is_causal):
            return "the heads are too small for sampling to pay"
        return None

    @property
    def work(self) -> int:
        """Multiply-adds of exact attention."""
        columns: int = self.heads.keys.shape[2] + self.heads.values.shape[2]
        return len(self.heads) * self.pairs_exact * columns

    def is_short(self) -> bool:
        """Whether exact attention takes less than a tenth of a second, so that errors may wait.

        It finds out about the inputs on the way, which saves 2 % of the time of 1,024 tokens.
        """
        return 0 < self.work <= 2**32

    def look(self) -> float:
        """Reject numbers that are not finite and make room for large ones; the largest value."""
        largest = self.inputs.largest(self.n_threads)
        self.largest_value = largest.value
        if not self.is_in_range(largest):
            self.heads = self.inputs.heads(np.dtype(np.float64))
        if not self.is_in_range(largest):
            self.heads, self.scale = _balanced(self.heads, self.scale, largest)
        return largest.value

    def is_in_range(self, largest: _Largest) -> bool:
        """Whether neither scores nor scaled queries leave the range of the computing type."""
        kind = np.finfo(self.heads.keys.dtype)
        n_dims: int = self.heads.keys.shape[2]
        size = abs(self.scale)
        reach = largest.query * largest.key * n_dims * max(size, 1.0)
        # The smallest of scaled queries lose digits; scores must not show it.
        lost = largest.key * n_dims * float(kind.smallest_subnormal)
        return bool(
            max(reach, largest.query * size) <= _highest_score(self.heads.keys.dtype)
            and size <= _highest_score(np.dtype(np.float64))
            and lost <= kind.eps
        )

    def are_usual(self, largest: _Largest) -> bool:
        """Whether exact attention in their own type was right for these inputs; not with a NaN."""
        kind = self.heads.keys.dtype
        return self.is_in_range(largest) and _needs_no_scaling(
            largest.value, self.heads.n_keys, kind
        )

    def in_time(self, method: str, deadline: Deadline) -> tuple[Array, str]:
        """Outputs of all heads in a limited time, each in its share of what is left."""
        self.look()
        n_heads = len(self.heads)
        shape = (n_heads, self.heads.n_queries, self.heads.values.shape[2])
        self.output = np.empty(shape, self.heads.values.dtype)
        why_exact = self.why_exact(method)
        seeds = self.rng.integers(2**63, size=n_heads)
        worst, n_short, n_exact = 0.0, 0, 0
        for head in range(n_heads):
            share = deadline.part(1 / (n_heads - head))
            method_of_head, estimate = self.one_in_time(head, int(seeds[head]), why_exact, share)
            n_exact += method_of_head == "exact"
            n_short += estimate > self.eps
            worst = max(worst, estimate)
        self.seconds["within max_seconds"] = deadline.spent()
        if method == "sampled" and n_exact:
            warnings.warn(
                f"{n_exact} of {n_heads} heads were computed exactly: "
                f"{why_exact or self.why_others}.",
                AssumptionWarning,
                stacklevel=3,
            )
        if n_short:
            warnings.warn(
                f"max_seconds={deadline.max_seconds:g} was too short for the error asked for in "
                f"{n_short} of {n_heads} heads; the largest error is estimated at {worst:.2g} |V|.",
                AccuracyWarning,
                stacklevel=3,
            )
        if deadline.broken:
            warnings.warn(deadline.how_late, AccuracyWarning, stacklevel=3)
        reason = f"{n_heads - n_exact} of {n_heads} heads sampled"
        if n_short:
            reason += f", {n_short} with what was known when their time was over"
        return self.output.reshape(*self.heads.shape, *self.output.shape[1:]), reason

    def one_in_time(
        self, head: int, seed: int, why_exact: str | None, share: Deadline
    ) -> tuple[str, float]:
        """One head; how it was computed, and what its error is estimated at."""
        patient = share.keeping(_KEPT * max(share.left(), 0.0))
        start = time.perf_counter()
        try:
            if why_exact is None:
                error = self.sample_head(head, seed, patient)
                if error is not None:
                    return "sampled", error
            patient.check()
            if self.pairs_exact > _LIKELY * patient.left() * _PAIRS_A_SECOND:
                raise OutOfTime
            start = time.perf_counter()
            self.output[head] = self.exact(np.array([head]), patient.check)[0]
        except OutOfTime:
            return "sampled", self.hurried(head, seed, share)
        trace = self.traces.setdefault(head, Trace())
        trace.pairs += self.pairs_exact
        trace.seconds["exact"] = time.perf_counter() - start
        self.report_exact(head, why_exact or "")
        return "exact", 0.0

    def hurried(self, head: int, seed: int, deadline: Deadline) -> float:
        """One head with what its time allows; the estimated error over |V|."""
        from approxkmv.engine.schemes.attention_in_time import (
            TIME_OVER,
            HurriedHead,
            hurried_attention,
        )

        largest = self.look() if self.largest_value is None else self.largest_value
        values, exponent = _scaled_values(self.heads.values, largest, self.heads.n_keys)
        query, key, value, _ = self.heads.table[head]
        asked = HurriedHead(
            self.heads.queries[query],
            self.heads.keys[key],
            values[value],
            self.heads.mask_of(head),
            self.scale,
            self.is_causal,
        )
        trace = self.traces.setdefault(head, Trace())
        rng = np.random.default_rng(seed)
        found = hurried_attention(asked, deadline, rng, self.n_threads)
        trace.pairs += found.pairs
        trace.note(**found.numbers)
        trace.lap("within max_seconds")
        self.output[head] = _given_back(found.output, exponent)
        error = found.error_estimate
        self.report(head, _Done("sampled", error, None, TIME_OVER, exponent))
        return _ratio(error, norm(values[value]))

    def sample(self) -> str:
        """Sample the heads where it pays; why the others are left."""
        # A seed for each head: what is drawn for one does not depend on the others.
        seeds = self.rng.integers(2**63, size=len(self.heads))
        for head in range(len(self.heads)):
            self.sample_head(head, int(seeds[head]))
        others = f"; the others are exact: {self.why_others}" if self.why_not else ""
        return f"{len(self.infos)} of {len(self.heads)} heads sampled{others}"

    @property
    def why_others(self) -> str:
        """The most common reason of the heads that are not sampled."""
        return Counter(self.why_not.values()).most_common(1)[0][0]

    def sample_head(self, head: int, seed: int, deadline: Deadline | None = None) -> float | None:
        """Estimated error of a head over |V|; None where sampling it does not pay."""
        from approxkmv.engine.head import Head, HeadProblem
        from approxkmv.engine.heads import approximate_head
        from approxkmv.engine.problem import Budget, Limit

        query, key, value = self.heads.points(head)
        value, exponent = _near_one(value)
        limit = Limit(deadline)
        backend = Compiled(self.n_threads, check=limit.deadline.polled)
        asked = Head(query, key, value, self.scale, self.is_causal, backend)
        trace = self.traces[head] = Trace()
        budget = Budget(self.eps**2 * asked.value_square, self.delta, limit)
        problem = HeadProblem(asked, budget, np.random.default_rng(seed))
        try:
            result = approximate_head(problem, trace)
        except Refusal as refusal:
            self.why_not[head] = refusal.reason
            return None
        finally:
            for stage, seconds in trace.seconds.items():
                self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        output = _given_back(result.y, exponent)
        if len(self.heads) == 1:  # no copy
            self.output = output[None]
        else:
            self.output[head] = output
        error, length = math.sqrt(result.variance), norm(value)
        # Markov's inequality for the squared error, whose mean is estimated from above.
        bound = _ratio(math.sqrt(result.worst / self.delta), length)
        self.report(head, _Done("sampled", error, bound, result.reason, exponent))
        return _ratio(error, length)

    def compute(self, heads: Index, reason: str) -> None:
        """Exact attention of these heads; ``reason`` is that of heads without one of their own."""
        if not len(heads):
            return
        start = time.perf_counter()
        output = self.exact(heads)
        if len(heads) == len(self.heads):
            self.output = output
        else:
            self.output[heads] = output
        done = time.perf_counter()
        self.seconds["exact"] = done - start
        if self.full:
            for head in heads.tolist():
                trace = self.traces.setdefault(head, Trace())
                trace.pairs += self.pairs_exact
                # They are computed together, and share the time.
                trace.seconds["exact"] = (done - start) / len(heads)
                self.report_exact(head, reason)
            self.seconds["report"] = time.perf_counter() - done

    def exact(self, heads: Index, check: Check = None) -> Array:
        """Outputs of these heads, with a look at the inputs where that is due."""
        compute = partial(
            Heads.exact, is_causal=self.is_causal, n_threads=self.n_threads, check=check
        )
        if self.largest_value is None:
            sums = compute(self.heads, heads, scale=self.scale)
            if self.are_usual(_Largest(*sums.largest.tolist())):
                return sums.out
        largest_value = self.look() if self.largest_value is None else self.largest_value
        values, exponent = _scaled_values(self.heads.values, largest_value, self.heads.n_keys)
        out = compute(replace(self.heads, values=values), heads, scale=self.scale).out
        return _given_back(out, exponent)

    def by_the_paper(self) -> str:
        """Every head through the Gaussian kernel."""
        from approxkmv.paper.attention import paper_attention

        if self.heads.mask is not None or self.is_causal:
            raise ValueError('method="paper" takes neither attn_mask nor is_causal=True.')
        if self.given_scale <= 0:
            raise ValueError(f'method="paper" needs a positive scale, got {self.given_scale!r}.')
        reason = "Lemma 4.1 and ApproxKMV (Algorithm 3), as asked"
        if self.pairs_exact == 0:
            return reason
        start = time.perf_counter()
        for head in range(len(self.heads)):
            self.output[head], pairs, numbers = paper_attention(
                *self.heads.points(head),
                scale=self.scale,
                eps=self.eps,
                delta=self.delta,
                rng=self.rng,
                n_threads=self.n_threads,
            )
            error = self.measured_error(head) if self.full else 0.0
            trace = self.traces[head] = Trace(pairs=pairs, numbers=numbers)
            trace.lap("paper")
            self.report(head, _Done("paper", error, None, reason))
        self.seconds["paper"] = time.perf_counter() - start
        return reason

    @property
    def pairs_exact(self) -> int:
        """Scores that exact attention needs for a head."""
        return pairs_seen(self.heads.n_queries, self.heads.n_keys, self.is_causal)

    def report_exact(self, head: int, reason: str) -> None:
        """Keep that a head was computed exactly, and why."""
        error, bound = 0.0, None
        if self.full:
            error = self.measured_error(head)
            bound = attention_bound(self.heads, head, self.scale)
        self.report(head, _Done("exact", error, bound, self.why_not.get(head, reason)))

    def report(self, head: int, done: _Done) -> None:
        """Keep what was done for a head; errors and norms are divided by that of its values."""
        if not self.full:
            self.infos[head] = None
            return
        value, of_value = _near_one(self.heads.points(head)[2])
        length, trace = norm(value), self.traces.get(head, Trace())
        output = np.ldexp(self.output[head].astype(np.float64), -of_value)
        mean = value.mean(axis=0, dtype=np.float64) if len(value) else 0.0
        self.infos[head] = HeadInfo(
            done.method,
            _ratio(math.ldexp(done.error, done.exponent - of_value), length),
            done.bound,
            trace.pairs,
            self.pairs_exact,
            _ratio(norm(output), length),
            _ratio(norm(output - mean), length),
            trace.numbers,
            done.reason,
            trace.seconds,
        )

    def measured_error(self, head: int) -> float:
        """Estimate of |O - O'|_F from a few rows."""
        return measured_attention_error(
            self.heads, head, self.scale, self.is_causal, self.output[head], self.rng
        )

    def info(self, reason: str) -> AttentionInfo:
        """The report of all heads, where one was asked for."""
        infos = tuple(info for _, info in sorted(self.infos.items()) if info is not None)
        methods = {info.method for info in infos} or {"exact"}
        method = methods.pop() if len(methods) == 1 else "mixed"
        numbers = {
            "heads": len(infos),
            "scale": self.given_scale,
            "dtype": str(self.heads.keys.dtype),
            "isa": compiled.ISA,
            "n_threads": self.n_threads or default_threads(),
        }
        confidence = 1.0 if method == "exact" else 1 - self.delta
        return AttentionInfo(method, Plan(method, reason, numbers), infos, confidence, self.seconds)


def _highest_score(dtype: np.dtype[np.floating]) -> float:
    return float(np.finfo(dtype).max) / 4


# Queries and keys of extreme magnitude are brought to about 2 to this, in double precision: their
# products are finite, and what is lost of their smallest entries is not seen in any score.
_BALANCED_EXPONENT = 500


def _balanced(heads: Heads, scale: float, largest: _Largest) -> tuple[Heads, float]:
    """The same scores from queries, keys and a scale that are multiplied by powers of two."""
    n_dims: int = heads.keys.shape[2]
    factors = abs(scale), largest.query, largest.key, n_dims
    if not all(factors):  # every score is 0
        return heads, 0.0
    if sum(map(math.log2, factors)) > math.log2(_highest_score(heads.keys.dtype)):
        raise ValueError(
            f"query and key must be small enough for their products, got entries up to "
            f"{largest.query:g} and {largest.key:g} and the scale {scale:g}."
        )
    of_query, of_key = (_BALANCED_EXPONENT - math.frexp(most)[1] for most in largest[:2])
    balanced = replace(
        heads, queries=np.ldexp(heads.queries, of_query), keys=np.ldexp(heads.keys, of_key)
    )
    return balanced, math.ldexp(scale, -of_query - of_key)


def _needs_no_scaling(most: float, n_keys: int, dtype: np.dtype[np.floating]) -> bool:
    """Whether sums of values up to ``most`` are finite; weights are at most 2^60."""
    return most * max(n_keys, 1) <= float(np.finfo(dtype).max) / 2.0**62


def _scaled_values(values: Array, most: float, n_keys: int) -> tuple[Array, int]:
    """Values so small that sums of them are finite, and the exponent of two taken out."""
    if _needs_no_scaling(most, n_keys, values.dtype):
        return values, 0
    exponent = math.frexp(most)[1]
    return np.ldexp(values, -exponent), exponent


# Beyond two to this, or below two to minus this, squares of values leave the range of a type.
_SQUARED_EXPONENT = 60


def _near_one(values: Array) -> tuple[Array, int]:
    """Values whose squares are in range, and the exponent of two taken out."""
    exponent = math.frexp(max_magnitude(values))[1]
    if abs(exponent) <= _SQUARED_EXPONENT:
        return values, 0
    return np.ldexp(values, -exponent), exponent


def _given_back(output: Array, exponent: int) -> Array:
    """Outputs with the exponent of two that was taken out; no mean is beyond the largest value."""
    if exponent == 0:
        return output
    most = np.finfo(output.dtype).max
    with np.errstate(over="ignore"):
        return np.clip(np.ldexp(output, exponent), -most, most)


def _ratio(a: float, b: float) -> float:
    """Quotient a / b; with b = 0 all values are 0, and so is the output."""
    return a / b if b > 0 else a
