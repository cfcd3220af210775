"""``attention`` at its edge: shapes, masks, groups, types, bad input, and what it reports.

The exact answer is the definition in double precision (`definition`), written here once more. In
float64 the tolerance is 1e-12 of the largest value: scores are below 10, so a weight is off by
about 10 * 100 units of 1e-16.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import approxkmv as akmv
from approxkmv.engine.cost import CostModel
from approxkmv.engine.head import HeadProblem
from approxkmv.engine.result import Result
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.compiled import Compiled

Array = np.ndarray[Any, Any]


def definition(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    *,
    causal: bool = False,
    mask: Any = None,
) -> Array:
    """Softmax of the masked scores times the values; 0 for a row that sees no key."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ np.swapaxes(k, -1, -2))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        mask = np.asarray(mask)
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
    return np.nan_to_num(weights) @ v


def heads(*shape: int, m: int = 20, n: int = 30, d: int = 8, r: int = 5, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    sizes = ((m, d), (n, d), (n, r))
    return tuple(rng.standard_normal((*shape, *size)) for size in sizes)


def close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0.0) <= tolerance


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 2, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_leading_dimensions(shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = heads(*shape)
    close(akmv.attention(q, k, v, is_causal=causal), definition(q, k, v, causal=causal))


@pytest.mark.parametrize(
    ("lead_q", "lead_k", "lead_v"),
    [
        ((4,), (), ()),
        ((), (3,), (3,)),
        ((2, 1), (3,), (1, 3)),
        ((1, 5), (2, 1), (2, 5)),
        ((), (), (4,)),
    ],
)
def test_leading_dimensions_broadcast(lead_q: Any, lead_k: Any, lead_v: Any) -> None:
    q, k, v = heads(*lead_q)[0], heads(*lead_k)[1], heads(*lead_v)[2]
    close(akmv.attention(q, k, v), definition(q, k, v))


@pytest.mark.parametrize("m", [1, 7, 30, 31, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_fewer_and_more_queries_than_keys(m: int, causal: bool) -> None:
    """Causal is counted from the first key, also where the numbers differ."""
    q, k, v = heads(2, m=m, n=30)
    close(akmv.attention(q, k, v, is_causal=causal), definition(q, k, v, causal=causal))


def test_scale() -> None:
    q, k, v = heads()
    for scale in (0.0, 0.3, -0.3, 1):
        close(akmv.attention(q, k, v, scale=scale), definition(q, k, v, scale))


@pytest.mark.parametrize(
    "shape",
    [
        (20, 30),
        (1, 30),
        (20, 1),
        (1, 1),
        (30,),
        (3, 1, 1),
        (3, 20, 30),
        (2, 3, 20, 30),
        (2, 1, 1, 30),
    ],
)
@pytest.mark.parametrize("kind", ["truth", "numbers"])
def test_masks_broadcast(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = heads(2, 3)
    kept = np.random.default_rng(1).random(shape) < 0.7
    mask = kept if kind == "truth" else np.where(kept, 2.0 * kept - 0.5, -np.inf)
    close(akmv.attention(q, k, v, attn_mask=mask), definition(q, k, v, mask=mask))


def test_mask_and_causal_apply_both() -> None:
    q, k, v = heads(2)
    mask = np.random.default_rng(1).random((20, 30)) < 0.7
    both = akmv.attention(q, k, v, attn_mask=mask, is_causal=True)
    close(both, definition(q, k, v, mask=mask, causal=True))


def test_mask_may_add_heads() -> None:
    """A mask with more leading dimensions makes as many heads."""
    q, k, v = heads()
    mask = np.random.default_rng(1).random((4, 20, 30)) < 0.7
    close(akmv.attention(q, k, v, attn_mask=mask), definition(q, k, v, mask=mask))


def test_a_row_that_sees_no_key_is_zero() -> None:
    q, k, v = heads(2)
    mask = np.ones((20, 30), bool)
    mask[[0, 7, 19]] = False
    for form in (mask, np.where(mask, 0.0, -np.inf)):
        output = akmv.attention(q, k, v, attn_mask=form)
        assert (output[:, [0, 7, 19]] == 0).all()
        close(output, definition(q, k, v, mask=mask))
    assert (akmv.attention(q, k, v, attn_mask=np.zeros((1, 1), bool)) == 0).all()


def test_a_row_of_very_negative_numbers_is_a_mean() -> None:
    """The smallest finite number is not a missing key: the largest is taken out first."""
    for dtype in (np.float32, np.float64):
        q, k, v = (a.astype(dtype) for a in heads())
        mask = np.full((20, 30), np.finfo(dtype).min, dtype)
        mean = np.broadcast_to(v.mean(axis=0), (20, 5))
        close(akmv.attention(q, k, v, attn_mask=mask), mean, 1e-6)


def test_mask_too_large_for_float32_is_minus_infinity() -> None:
    q, k, v = (a.astype(np.float32) for a in heads())
    kept = np.random.default_rng(1).random((20, 30)) < 0.7
    output = akmv.attention(q, k, v, attn_mask=np.where(kept, 0.0, -1e300))
    infinite = np.where(kept, 0.0, -np.inf)
    np.testing.assert_array_equal(output, akmv.attention(q, k, v, attn_mask=infinite))
    close(output, akmv.attention(q, k, v, attn_mask=kept), 1e-6)


@pytest.mark.parametrize(("of_key", "of_value"), [(2, 2), (1, 1), (6, 6), (3, 2)])
def test_grouped_queries(of_key: int, of_value: int) -> None:
    """Head h of the queries uses head h // (6 / heads), for keys and values separately."""
    q, k, v = heads(2, 6)[0], heads(2, of_key)[1], heads(2, of_value)[2]
    repeated = np.repeat(k, 6 // of_key, axis=1), np.repeat(v, 6 // of_value, axis=1)
    found = akmv.attention(q, k, v, enable_gqa=True, is_causal=True)
    close(found, definition(q, *repeated, causal=True))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.float32),
        (np.int64, np.float64),
    ],
)
def test_types(dtype: Any, wanted: Any) -> None:
    q, k, v = ((2 * a).astype(dtype) for a in heads(2))
    output = akmv.attention(q, k, v)
    assert output.dtype == wanted
    close(output, definition(q, k, v), 1e-12 if wanted == np.float64 else 1e-5)


def test_mixed_types_are_promoted() -> None:
    q, k, v = heads()
    assert akmv.attention(q.astype(np.float32), k, v.astype(np.float16)).dtype == np.float64


def test_any_memory_layout() -> None:
    """Fortran order, strides, negative strides, byte order and read-only give the same bits."""
    q, k, v = heads(2, 3)
    plain = akmv.attention(q, k, v)
    wide = np.zeros((2, 3, 30, 16))
    wide[..., ::2] = k
    swapped = np.swapaxes(np.ascontiguousarray(np.swapaxes(q, 1, 2)), 1, 2)
    v.flags.writeable = False
    others = [
        (np.asfortranarray(q), wide[..., ::2], v),
        (swapped, k, v[..., ::-1].copy()[..., ::-1]),
        (q.astype(">f8"), k, v),
    ]
    for other in others:
        np.testing.assert_array_equal(akmv.attention(*other), plain)


def test_inputs_are_not_changed() -> None:
    q, k, v = heads(2)
    mask = np.zeros((20, 30))
    copies = [a.copy() for a in (q, k, v, mask)]
    akmv.attention(q, k, v, attn_mask=mask, is_causal=True)
    for before, after in zip(copies, (q, k, v, mask), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("m", "n", "d", "r"), [*itertools.product([0, 3], [0, 4], [0, 2], [0, 5])])
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_zero_sizes(m: int, n: int, d: int, r: int, method: str) -> None:
    """Without keys the output is 0, without dimensions the mean of the values."""
    q, k, v = heads(2, m=m, n=n, d=d, r=r)
    output, info = akmv.attention(q, k, v, method=method, return_info=True)
    assert output.shape == (2, m, r)
    wanted = np.zeros((2, m, r)) if n == 0 else definition(q, k, v, d**-0.5 if d else 1.0)
    close(output, wanted)
    assert info.pairs == 2 * m * n
    assert akmv.attention(*heads(0)).shape == (0, 20, 5)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores(size: float) -> None:
    q, k, v = heads(2)
    scale = size / np.abs(q @ np.swapaxes(k, -1, -2)).max()
    close(akmv.attention(q, k, v, scale=scale), definition(q, k, v, scale), 1e-9)


def test_numbers_at_the_edge_of_float32() -> None:
    """Scores that overflow float32 are computed in float64; values near its largest stay finite."""
    q, k, v = (a.astype(np.float32) for a in heads())
    big = akmv.attention(q * np.float32(1e25), k * np.float32(1e20), v)
    assert big.dtype == np.float32
    best = (q.astype(np.float64) @ k.T).argmax(axis=1)
    np.testing.assert_array_equal(big, v[best])
    v *= np.float32(3e38) / np.abs(v).max()
    close(akmv.attention(q, k, v) / 3e38, definition(q, k, v) / 3e38, 1e-5)


@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e25, 1e38])
def test_tiny_and_huge_values(size: float) -> None:
    """With scores 58 ln 2 below or above the first, values neither vanish nor become infinite."""
    q, k, v = (a.astype(np.float32) for a in heads(n=300, d=1))
    k = np.linspace(-1, 1, 300, dtype=np.float32)[:, None]
    v *= np.float32(size) / np.abs(v).max()
    for score in (-20.0, 20.0):
        q[:] = score
        output = akmv.attention(q, k, v, scale=1.0)
        close(output / size, definition(q, k, v, 1.0) / size, 1e-5)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("n", [30, 8000])
def test_entries_must_be_finite(name: str, n: int) -> None:
    """Found on the way where that is short, before anything else where it is not."""
    inputs = dict(zip(("query", "key", "value"), heads(2, m=n, n=n, d=64, r=64), strict=True))
    inputs[name][1, 7, 2] = np.nan
    for method in ("auto", "exact"):
        with pytest.raises(ValueError, match=rf"{name} must be finite.*{name}\[1, 7, 2\] is nan"):
            akmv.attention(**inputs, method=method, is_causal=True)


@pytest.mark.parametrize("method", ["auto", "exact"])
def test_threads_and_batches_give_the_same_bits(method: str) -> None:
    q, k, v = heads(2, 3, m=100, n=300, d=16)
    plain = akmv.attention(q, k, v, method=method, n_threads=1)
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(
            akmv.attention(q, k, v, method=method, n_threads=n_threads), plain
        )
    np.testing.assert_array_equal(akmv.attention(q[1, 2, 5:6], k[1, 2], v[1, 2]), plain[1, 2, 5:6])


BAD = {
    "query must have shape": {"query": np.ones(3)},
    "key must have 8 columns to match query, got shape \\(30, 7\\)": {"key": np.ones((30, 7))},
    "value must have 30 rows to match key": {"value": np.ones((29, 5))},
    "Leading dimensions must broadcast.*enable_gqa=True": {
        "query": np.ones((4, 20, 8)),
        "key": np.ones((2, 30, 8)),
    },
    "attn_mask must broadcast to \\(\\.\\.\\., 20, 30\\), got shape \\(20, 29\\)": {
        "attn_mask": np.ones((20, 29), bool)
    },
    "attn_mask must be below infinity, but attn_mask\\[0, 3\\] is inf": {
        "attn_mask": np.where(np.arange(30) == 3, np.inf, 0.0)[None]
    },
    "attn_mask must be below infinity, but attn_mask\\[0, 3\\] is nan": {
        "attn_mask": np.where(np.arange(30) == 3, np.nan, 0.0)[None]
    },
    "enable_gqa needs a dimension of heads": {"enable_gqa": True},
    "multiple of those of key, got 4 and 3": {
        "query": np.ones((4, 20, 8)),
        "key": np.ones((3, 30, 8)),
        "value": np.ones((2, 30, 5)),
        "enable_gqa": True,
    },
    "query must be finite, but query\\[2, 1\\] is nan": {
        "query": np.where(np.arange(160).reshape(20, 8) == 17, np.nan, 0.0)
    },
    "value must be finite, but value\\[0, 0\\] is -inf": {"value": np.full((30, 5), -np.inf)},
    "scale must be a finite number, got inf": {"scale": np.inf},
    "eps must be a finite number >= 0, got -1": {"eps": -1},
    "delta must lie strictly between 0 and 1, got 1": {"delta": 1},
    "method must be one of 'auto', 'exact', 'sampled', 'paper', got 'fast'": {"method": "fast"},
    "n_threads must be at least 1": {"n_threads": 0},
    "query and key must be small enough": {
        "query": np.full((20, 8), 1e200),
        "key": np.full((30, 8), 1e200),
    },
}


@pytest.mark.parametrize("message", BAD)
def test_bad_values_are_named(message: str) -> None:
    q, k, v = heads()
    options: dict[str, Any] = {"query": q, "key": k, "value": v} | BAD[message]
    with pytest.raises(ValueError, match=message):
        akmv.attention(**options)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("value must hold real numbers", {"value": np.ones((30, 5), complex)}),
        ("key must hold real numbers", {"key": np.array([["a"] * 8] * 30)}),
        ("attn_mask must hold real numbers", {"attn_mask": np.ones((20, 30), complex)}),
        ("is_causal must be True or False, got 1", {"is_causal": 1}),
        ("enable_gqa must be True or False", {"enable_gqa": "no"}),
        ("scale must be a number", {"scale": "big"}),
        ("rng must be an integer", {"rng": "seed"}),
    ],
)
def test_bad_kinds_are_named(message: str, change: dict[str, Any]) -> None:
    q, k, v = heads()
    with pytest.raises(TypeError, match=message):
        akmv.attention(**({"query": q, "key": k, "value": v} | change))


def test_report_of_an_exact_call() -> None:
    """Errors are relative to |V|, pairs count the triangle, the true error is below the bound."""
    q, k, v = (a.astype(np.float32) for a in heads(2, m=50, n=40))
    output, info = akmv.attention(q, k, v, is_causal=True, rng=0, return_info=True)
    assert isinstance(info, akmv.AttentionInfo)
    assert info.method == info.plan.method == "exact"
    assert info.confidence == 1
    assert info.pairs == info.pairs_exact == 2 * (40 * 41 // 2 + 10 * 40)
    wanted = definition(q, k, v, causal=True)
    for head, of_head in enumerate(info.heads):
        length = np.linalg.norm(v[head])
        true_error = np.linalg.norm(output[head] - wanted[head]) / length
        assert true_error < of_head.error_bound < 1e-2
        # Sixteen of fifty rows: the estimate is of the right size.
        assert 0.3 * true_error < of_head.error_estimate < 3 * true_error
        assert of_head.output_norm == pytest.approx(np.linalg.norm(wanted[head]) / length, rel=1e-5)
        off = np.linalg.norm(wanted[head] - v[head].mean(axis=0)) / length
        assert of_head.mean_error == pytest.approx(off, rel=1e-5)
    assert info.error_estimate == max(head.error_estimate for head in info.heads)
    assert "exact attention: the heads are too small for sampling to pay" in str(info)
    assert "head 1: exact: the heads are too small for sampling to pay" in info.explain()


def test_error_estimate_sees_masks() -> None:
    """The rows checked for the report are masked as the output is."""
    q, k, v = heads(2)
    mask = np.random.default_rng(0).random((20, 30)) < 0.5
    mask[3] = False
    for form in (mask, np.where(mask, 1.0, -np.inf), mask[:1]):
        info = akmv.attention(q, k, v, attn_mask=form, rng=0, return_info=True)[1]
        assert info.error_estimate < 1e-14
        assert info.plan.reason == "masks are applied exactly"


def offer_to(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    """Hand heads of any size to a stand-in for the engine."""
    monkeypatch.setattr(CostModel, "worth_a_survey_of_head", lambda *_: True)
    monkeypatch.setattr("approxkmv.engine.heads.approximate_head", engine)


def sampler(seen: list[HeadProblem], heads_to_take: set[int]) -> Any:
    """Stand in for the engine: takes some heads, records what it was given."""

    def approximate_head(problem: HeadProblem, trace: Trace) -> Result:
        number = len(seen)
        seen.append(problem)
        trace.pairs = 10 + number
        trace.seconds["draw"] = 0.1
        if number not in heads_to_take:
            raise Refusal(f"head {number} is too sharp")
        trace.note(draws=3)
        head = problem.head
        output = np.full((head.n_queries, head.values.shape[1]), float(number), head.keys.dtype)
        return Result(output, 0.25, 0.5, 0.0, 0.0, 0, 0, np.empty(0, np.int64), "it is cheaper")

    return approximate_head


def test_each_head_is_offered_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled heads come from the engine, the others are exact; the report tells them apart."""
    q, k, v = heads(2, 2)
    k, v = k[:, :1], v[:, :1]
    seen: list[HeadProblem] = []
    offer_to(monkeypatch, sampler(seen, {1, 2}))
    output, info = akmv.attention(
        q, k, v, is_causal=True, eps=0.2, delta=0.1, scale=0.4, rng=3, n_threads=2, return_info=True
    )
    assert len(seen) == 4
    for number, problem in enumerate(seen):
        head = problem.head
        np.testing.assert_array_equal(head.queries, q[number // 2, number % 2])
        np.testing.assert_array_equal(head.keys, k[number // 2, 0])
        np.testing.assert_array_equal(head.values, v[number // 2, 0])
        for array in (head.queries, head.keys, head.values):
            assert array.flags.c_contiguous
        assert (head.scale, head.is_causal, head.backend) == (0.4, True, Compiled(2))
        assert problem.budget.squared_error == pytest.approx(
            (0.2 * np.linalg.norm(v[number // 2, 0])) ** 2
        )
        assert problem.budget.delta == 0.1
        assert not problem.budget.limit.deadline
    wanted = definition(q, k, v, 0.4, causal=True)
    close(output[0, 0], wanted[0, 0])
    close(output[1, 1], wanted[1, 1])
    assert (output[0, 1] == 1).all()
    assert (output[1, 0] == 2).all()
    assert info.method == "mixed"
    assert [head.method for head in info.heads] == ["exact", "sampled", "sampled", "exact"]
    length = np.linalg.norm(v[0])
    assert info.heads[1].error_estimate == pytest.approx(0.5 / length)
    # Markov's inequality, from the limit of the mean squared error.
    assert info.heads[1].error_bound == pytest.approx(np.sqrt(0.5 / 0.1) / length)
    assert info.error_bound == max(head.error_bound for head in info.heads)
    assert info.confidence == 0.9
    # The pairs of an unsuccessful survey are counted, and its time is told.
    assert [head.pairs for head in info.heads] == [10 + 210, 11, 12, 13 + 210]
    assert [set(head.seconds) for head in info.heads] == [
        {"draw", "exact"},
        {"draw"},
        {"draw"},
        {"draw", "exact"},
    ]
    assert info.seconds["draw"] == pytest.approx(0.4)
    reasons = ["head 0 is too sharp", "it is cheaper", "it is cheaper", "head 3 is too sharp"]
    assert [head.reason for head in info.heads] == reasons
    assert info.plan.reason == "2 of 4 heads sampled; the others are exact: head 0 is too sharp"
    for reason in reasons:
        assert reason in info.explain()


def test_seed_decides_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn for a head does not depend on the others, either."""
    q, k, v = heads(3)
    words = []
    for seed in (1, 1, 2):
        seen: list[HeadProblem] = []
        offer_to(monkeypatch, sampler(seen, set()))
        akmv.attention(q, k, v, rng=seed)
        words.append([problem.rng.integers(2**63) for problem in seen])
    assert words[0] == words[1]
    assert len({*words[0], *words[2]}) == 6


@pytest.mark.parametrize(
    "change", [{"eps": 0}, {"attn_mask": np.ones((20, 30), bool)}, {"method": "exact"}]
)
def test_engine_is_not_asked(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """With no error allowed, with a mask, and when asked, every pair is computed."""
    seen: list[Any] = []
    offer_to(monkeypatch, sampler(seen, {0}))
    q, k, v = heads()
    close(akmv.attention(q, k, v, **change), definition(q, k, v))
    assert not seen


def test_sampled_warns_where_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = heads(2)
    offer_to(monkeypatch, sampler([], {0}))
    message = "1 of 2 heads were computed exactly: head 1 is too sharp"
    with pytest.warns(akmv.AssumptionWarning, match=message) as caught:
        akmv.attention(q, k, v, method="sampled")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        akmv.attention(q, k, v, method="auto")


def test_paper_method_where_its_guarantee_says_something() -> None:
    """Short points: entries of the kernel are near 1, and the output obeys the guarantee.

    With |K v - y| <= eps |v| and |K 1 - z| <= eps sqrt(n) the quotient is off by at most
    (|e_1| + max |o| |e_2|) / min(z), and z is at least the smallest row sum less eps sqrt(n).
    """
    eps, n = 0.3, 40
    rng = np.random.default_rng(0)
    q, k = 0.2 * rng.standard_normal((2, n, 4))
    v = 1 + rng.standard_normal((n, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, info = akmv.attention(q, k, v, method="paper", eps=eps, rng=0, return_info=True)
    wanted = definition(q, k, v)
    lengths = (q**2).sum(axis=1)[:, None] + (k**2).sum(axis=1).max() - 2 * q @ k.T
    least = np.exp(-lengths / (2 * 4**0.5)).sum(axis=1).min() - eps * n**0.5
    allowed = eps * (np.linalg.norm(v) + np.abs(wanted).max() * n**0.5) / least
    assert np.linalg.norm(output - wanted) <= allowed < np.linalg.norm(wanted)
    assert info.method == "paper"
    assert info.heads[0].numbers["columns_with_an_empty_guarantee"] == 0
    assert info.error_bound is None


def test_paper_method_says_when_its_guarantee_is_empty() -> None:
    """Long queries: every entry of the lifted kernel is below eps / n, so y = 0 would do."""
    q, k, v = heads(m=30)
    with pytest.warns(akmv.AssumptionWarning, match="guarantee of the paper is empty") as caught:
        _, info = akmv.attention(10 * q, k, v, method="paper", rng=0, return_info=True)
    assert caught[0].filename == __file__
    assert info.heads[0].numbers["row_sums_have_an_empty_guarantee"]
    assert info.heads[0].numbers["columns_with_an_empty_guarantee"] == 5
    for change in ({"is_causal": True}, {"attn_mask": np.ones((30, 30), bool)}):
        with pytest.raises(ValueError, match="takes neither"):
            akmv.attention(q, k, v, method="paper", **change)
    with pytest.raises(ValueError, match="positive scale"):
        akmv.attention(q, k, v, method="paper", scale=-1.0)


def test_paper_method_is_the_paper_s_attention() -> None:
    """The same output and counts as the function called alone; its quotients are of products."""
    from approxkmv.paper.attention import paper_attention

    q, k, v = (a.astype(np.float64) for a in heads(m=30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output, info = akmv.attention(q, k, v, method="paper", eps=0.2, rng=3, return_info=True)
        alone, pairs, numbers = paper_attention(
            q,
            k,
            v,
            scale=q.shape[1] ** -0.5,
            eps=0.2,
            delta=0.05,
            rng=np.random.default_rng(3),
        )
    close(output, alone)
    assert info.heads[0].pairs == pairs
    assert info.heads[0].numbers["rows_read"] == numbers["rows_read"] == 30
    close(output, definition(q, k, v))  # every row of so small a head is computed


def test_paper_method_reads_a_few_rows_and_counts_all() -> None:
    """Norms come from 64 rows, at every size; their pairs and those of all products are counted."""
    from approxkmv.paper import approx_kmv, attention_to_gaussian

    n, r = 300, 2
    rng = np.random.default_rng(0)
    q, k, v = *(0.2 * rng.standard_normal((2, n, 4))), rng.standard_normal((n, r))
    _, info = akmv.attention(q, k, v, method="paper", eps=0.3, rng=0, return_info=True)
    numbers = info.heads[0].numbers
    assert numbers["rows_read"] == 64
    lifted = attention_to_gaussian(q, k)
    K = np.exp(-((lifted.queries[:, None] - lifted.keys) ** 2).sum(-1) / 4)
    assert 0.5 * K.sum(1).max() < numbers["largest_row_sum_read"] <= K.sum(1).max() * (1 + 1e-12)
    # every product on its own, at the share of delta that each of the three has
    counted = 64 * n
    for x in (*v.T, np.ones(n)):
        _, run = approx_kmv(
            lifted.queries,
            lifted.keys,
            np.ascontiguousarray(x),
            bandwidth=lifted.bandwidth,
            eps=0.3,
            delta=0.05 / (r + 1),
            rng=1,
            return_info=True,
        )
        assert run.n_sampled_rows == run.hash == 0  # so that counts do not depend on draws
        counted += run.pairs
    assert info.heads[0].pairs == counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_tensors_in_tensors_out(dtype: torch.dtype) -> None:
    q, k, v = (torch.from_numpy(a).to(dtype) for a in heads(2, 3))
    mask = torch.rand(20, 30, generator=torch.Generator().manual_seed(0)) < 0.8
    output = akmv.attention(q, k, v, attn_mask=mask)
    assert isinstance(output, torch.Tensor)
    assert output.dtype == dtype
    wanted = definition(*(a.double().numpy() for a in (q, k, v)), mask=mask.numpy())
    unit = torch.finfo(dtype).eps
    assert np.abs(output.double().numpy() - wanted).max() < 20 * max(unit, 1e-15)


def test_tensors_that_would_go_wrong_are_refused() -> None:
    q, k, v = (torch.from_numpy(a) for a in heads())
    v.requires_grad_()
    with pytest.raises(ValueError, match="value must not require a gradient"):
        akmv.attention(q, k, v)
    with torch.no_grad():
        assert isinstance(akmv.attention(q, k, v), torch.Tensor)
    with pytest.raises(ValueError, match="key must be on the CPU, got device meta"):
        akmv.attention(q, k.to("meta"), v)


def test_tensors_and_arrays_may_be_mixed() -> None:
    q, k, v = heads()
    close(akmv.attention(torch.from_numpy(q), k, v).numpy(), definition(q, k, v))
