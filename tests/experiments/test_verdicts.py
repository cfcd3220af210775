"""What each figure says about the paper's claims, from records made by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from approxkmv.experiments.beyond import plot as beyond
from approxkmv.experiments.fig1 import plot as fig1
from approxkmv.experiments.fig2 import plot as fig2
from approxkmv.experiments.fig3 import plot as fig3
from approxkmv.experiments.fig4 import plot as fig4
from approxkmv.experiments.fig5 import plot as fig5
from approxkmv.experiments.heads import LENGTHS, HeadTable
from approxkmv.experiments.models import Choice
from approxkmv.experiments.outcome import Outcome


def table(stands_for: str = "", **numbers: Any) -> HeadTable:
    """Two texts of one layer with two heads; ``numbers`` are those of the texts."""
    choice = Choice("model", SimpleNamespace(), stands_for)  # type: ignore[arg-type]
    names = list(numbers)
    texts = [
        {"n_tokens": 512} | dict(zip(names, one, strict=True))
        for one in zip(*numbers.values(), strict=True)
    ]
    return HeadTable(choice, texts, n_short=1)


def verdicts(outcome: Outcome) -> list[bool | None]:
    return [claim.holds for claim in outcome.claims]


@pytest.mark.parametrize(("largest", "holds"), [(4.59, True), (4.6, False), (90.0, False)])
def test_fig1_takes_the_largest_over_texts(largest, holds):
    made = table(max_c=[[[1.0, 2.0]], [[largest, 0.5]]])
    outcome = fig1.outcome([made], {"limits": {"BERT": 4.6}})
    assert verdicts(outcome) == [holds]
    below = 2 if holds else 1
    assert f"{below} of 2 heads below; 2 texts" in outcome.claims[0].measured
    assert "1 more had fewer than 50 tokens" in outcome.claims[0].measured


def test_fig3_uses_the_limit_of_the_model_it_stands_for():
    limits = {"limits": {"GPT-1": 5.15, "RoBERTa": 5.39}}
    numbers = [[[5.2, 1.0]], [[1.0, 1.0]]]
    assert verdicts(fig3.outcome([table("GPT-1", max_c=numbers)], limits)) == [False]
    assert verdicts(fig3.outcome([table("RoBERTa", max_c=numbers)], limits)) == [True]
    assert verdicts(fig3.outcome([table(max_c=numbers)], limits)) == [False, True]
    both = table("BERT and RoBERTa", max_c=numbers)
    assert verdicts(fig3.outcome([both], limits)) == [True]


def test_no_verdict_on_a_model_that_was_not_run():
    """What was measured on another model is said about that one; on BERT itself it is a verdict."""
    numbers = [[[90.0, 2.0]]]
    settings = {"limits": {"BERT": 4.6}}
    claim = fig1.outcome([table("BERT", max_c=numbers)], settings).claims[0]
    assert claim.verdict == "not tested: BERT not run; on this model no"
    run = HeadTable(Choice("BERT", SimpleNamespace()), [{"n_tokens": 512, "max_c": numbers[0]}], 0)
    assert fig1.outcome([run], settings).claims[0].verdict == "no"


@pytest.mark.parametrize(
    ("twice", "following", "expected"),
    [
        ([math.log(19), 0.1], [0.01, 0.02], [True, True]),
        ([math.log(21), math.log(30)], [0.01, 0.02], [False, True]),
        ([0.1, 5000.0], [0.01, 1.0], [False, False]),
    ],
)
def test_fig2_counts_heads(twice, following, expected):
    """Most: more than half of the heads; almost all: 9 in 10. Nothing is infinite."""
    settings = {"to_twice": 20, "most": 0.5, "to_next": 1.1, "almost_all": 0.9, "models": ["BERT"]}
    made = table(log_to_twice=[[twice], [twice]], log_to_next=[[following], [following]])
    outcome = fig2.outcome([made], settings)
    assert verdicts(outcome) == expected
    assert len(outcome.pictures) == 2


@pytest.mark.parametrize(("exponent", "holds"), [(0.0, True), (0.05, True), (0.5, False)])
def test_fig4_fits_an_exponent(exponent, holds):
    """The largest of the heads at each length, then the mean over texts."""
    big = [3 * length**exponent for length in LENGTHS]
    small = [0.1] * len(LENGTHS)
    made = table(c_at=[[[big, small]], [[small, big]]])
    outcome = fig4.outcome([made], {"largest_exponent": 0.1, "models": ["BERT"]})
    assert verdicts(outcome) == [holds]
    assert f"n^({exponent:.2f} ± 0.00)" in outcome.claims[0].measured
    first = outcome.tables[0].rows[0]
    assert first[:2] == ("model, 50", "2")
    assert float(first[2]) == pytest.approx(big[0], rel=0.01)
    assert first[3] == "0"


def test_fig4_leaves_out_texts_that_are_too_short():
    made = table(c_at=[[[[1.0] * len(LENGTHS)]], [[[1.0]]]])
    made.records[1]["n_tokens"] = 60
    outcome = fig4.outcome([made], {"largest_exponent": 0.1, "models": ["BERT"]})
    counts = [row[1] for row in outcome.tables[0].rows]
    assert counts == ["2", *["1"] * (len(LENGTHS) - 1)]
    made.records[0]["n_tokens"] = 60
    assert verdicts(fig4.outcome([made], {"largest_exponent": 0.1, "models": ["BERT"]})) == [None]


def timed(n: int, ratio: float, error: float, mean_error: float) -> dict[str, Any]:
    pairs = fig5.PAIRS
    seconds = {exact: [ratio * n, 9 * ratio * n] for exact in pairs.values()}  # one run disturbed
    return {
        "scaling": "s",
        "n": n,
        "n_samples": 32,
        "eps": 0.1,
        "engine_method": "sampled",
        "engine_pairs": 0.2,
        "seconds": seconds | {method: [n, n] for method in pairs},
        "errors": {method: error for method in pairs},
        "mean_error": mean_error,
    }


@pytest.mark.parametrize(
    ("exponent", "error", "mean_error", "expected"),
    [(0.5, 0.1, 0.3, [True, True, True]), (-0.2, 0.2, 0.01, [False, False, False])],
)
def test_fig5_verdicts(exponent, error, mean_error, expected):
    """Whether the ratio grows, whether the error is kept, whether the mean would have done."""
    settings = {"scalings": {"s": 0.1}, "error": [0.05, 0.15], "aim": 0.12}
    noise = 1 + 0.01 * np.array([1, -1, 1, -1])
    sizes = [4096, 8192, 12288, 16384]
    records = [
        timed(n, n**exponent * f, error, mean_error) for n, f in zip(sizes, noise, strict=True)
    ]
    outcome = fig5.outcome(records, settings)
    grows, kept, matters = expected
    assert verdicts(outcome) == [grows, kept, grows, kept, grows, kept, matters]
    assert len(outcome.pictures) == 2


def test_fig5_growth_of_an_engine_that_never_samples_is_no_growth():
    settings = {"scalings": {"s": 0.1}, "error": [0.05, 0.15], "aim": 0.12}
    records = [timed(n, n**0.5, 0.0, 0.3) | {"engine_method": "exact"} for n in (64, 128, 256)]
    claims = {claim.model: claim for claim in fig5.outcome(records, settings).claims[::2]}
    assert claims["the paper's algorithm in NumPy, scores s"].holds
    assert claims["this package, compiled, scores s"].holds is False
    assert "exactly at every size" in claims["this package, compiled, scores s"].measured


def test_fig5_one_size_tells_nothing_about_growth():
    settings = {"scalings": {"s": 0.1}, "error": [0.05, 0.15], "aim": 0.12}
    outcome = fig5.outcome([timed(4096, 2.0, 0.1, 0.3)], settings)
    assert verdicts(outcome)[0] is None
    assert outcome.claims[0].verdict == "cannot tell"


def test_beyond_sets_counted_pairs_beside_the_bound():
    """At 4,096 tokens with a causal mask: 2 n^1.5 / 0.1 of n (n + 1) / 2 pairs are 0.625."""
    settings = {"limit": 4.6, "largest_exponent": 0.1, "eps": 0.1, "lengths": [1024, 4096]}
    heads = [
        {"layer": 0, "head": 0, "is_causal": True, "n": n, "method": "sampled", "pairs": pairs}
        | {"c": 1.0, "c_softmax": 1.0, "c_causal": 1.0, "c_causal_softmax": 1.0}
        | {"error": 0.05, "speed_up": 1.5}
        for n, pairs in ((1024, 1.0), (4096, 0.4))
    ]
    made = table(**{name: [[[1.0]]] for name in ("c", "c_softmax", "c_causal", "c_causal_softmax")})
    outcome = beyond.outcome([made], [(made.choice, [{"heads": heads}])], settings, ())
    assert outcome.settings["lengths"] == settings["lengths"]  # not those of figures 1 to 4
    constant, fewer = outcome.claims[-2:]
    assert constant.holds
    assert fewer.holds
    assert "share of pairs: median 0.4, least 0.4; 2n^1.5/eps would be 0.625" in fewer.measured
    assert [p.name for p in outcome.pictures][-1].endswith("_pairs")
