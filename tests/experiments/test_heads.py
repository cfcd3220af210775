"""Numbers of one text against brute force, resuming, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from experiment_cases import Interrupting, setup_for, tiny_bert

from approxkmv.capture import Head
from approxkmv.experiments import heads
from approxkmv.experiments.heads import head_tables, log_kernel_of_attention, measure_heads
from approxkmv.experiments.models import Choice
from approxkmv.paper.assumption import log_kernel
from approxkmv.paper.reduction import attention_to_gaussian

N = 64


def random_heads(n: int = N) -> list[Head]:
    rng = np.random.default_rng(0)
    return [
        Head(0, h, *(2 * rng.standard_normal((3, n, 8)).astype(np.float32)), 0.5, False)
        for h in range(3)
    ]


def brute_c(matrix: np.ndarray, n: int) -> float:
    entries = np.sort(matrix.ravel())[::-1]
    return float(entries[n:].sum() / entries[:n].sum())


def matrices(head: Head) -> dict[str, np.ndarray]:
    scores = head.scale * head.query.astype(np.float64) @ head.key.T.astype(np.float64)
    A = np.exp(scores)
    K = A * np.exp(-head.scale / 2 * (head.query.astype(np.float64) ** 2).sum(1))[:, None]
    masked = np.tril(A)
    return {
        "c": K,
        "c_softmax": A / A.sum(1, keepdims=True),
        "c_causal": np.tril(K),
        "c_causal_softmax": masked / masked.sum(1, keepdims=True),
    }


def test_log_kernel_is_that_of_the_lemma():
    head = random_heads()[0]
    query, key = head.query.astype(np.float64), head.key.astype(np.float64)
    lifted = attention_to_gaussian(query, key, head.scale)
    expected = log_kernel(lifted.queries, lifted.keys, lifted.bandwidth)
    np.testing.assert_allclose(log_kernel_of_attention(query, key, 0.5), expected, atol=1e-10)


@pytest.mark.parametrize("name", ["c", "c_softmax", "c_causal", "c_causal_softmax"])
def test_constants_of_a_layer(name):
    layer = random_heads()
    found = heads.measured_layer(layer)[name]
    expected = [brute_c(matrices(head)[name], N) for head in layer]
    np.testing.assert_allclose(found, expected, rtol=2e-5)  # records keep six digits


def test_prefixes_and_ratios_of_a_layer():
    layer = random_heads(110)
    found = heads.measured_layer(layer)
    for h, head in enumerate(layer):
        K = matrices(head)["c"]
        prefixes = [brute_c(K[:i, :i], i) for i in range(50, 111)]
        assert found["max_c"][h] == pytest.approx(max(prefixes), rel=2e-5)
        np.testing.assert_allclose(found["c_at"][h], [prefixes[0], prefixes[50]], rtol=2e-5)
        entries = np.sort(K.ravel())[::-1]
        assert np.exp(found["log_to_next"][h]) == pytest.approx(
            entries[109] / entries[110], rel=1e-4
        )
        assert np.exp(found["log_to_twice"][h]) == pytest.approx(
            entries[109] / entries[219], rel=1e-4
        )


def test_interrupted_run_goes_on(tmp_path):
    """No finished text is lost or measured again, and the result is that of one run."""
    choice = Choice("tiny", tiny_bert(tmp_path / "model"))
    stopped = setup_for(tmp_path / "a", progress=Interrupting(after=2))
    with pytest.raises(KeyboardInterrupt):
        measure_heads(stopped, [choice])
    first = list(stopped.records("heads"))
    assert len(first) == 2

    going_on = setup_for(tmp_path / "a")
    measure_heads(going_on, [choice])
    both = list(going_on.records("heads"))
    assert both[:2] == first
    assert [record["text"] for record in both] == [text.key for text in going_on.texts]

    straight = setup_for(tmp_path / "b")
    measure_heads(straight, [choice])
    again, once = (head_tables(s, [choice])[0] for s in (going_on, straight))
    np.testing.assert_array_equal(again.stacked("max_c"), once.stacked("max_c"))
    assert again.n_texts == 3
    assert again.n_short == 1

    measure_heads(going_on, [choice])
    assert len(list(going_on.records("heads"))) == len(both)


def test_records_tell_where_they_come_from(tmp_path):
    choice = Choice("tiny", tiny_bert(tmp_path / "model"))
    setup = setup_for(tmp_path / "out")
    measure_heads(setup, [choice])
    for record in setup.records("heads"):
        assert record["seed"] == 0
        assert record["settings"] == heads.SETTINGS
        assert {"numpy", "torch", "approxkmv"} <= set(record["versions"])
        assert str(tmp_path) not in str(record)


def test_other_weights_are_another_model(tmp_path):
    """A model is known by its weights, not by its name."""
    first = Choice("tiny", tiny_bert(tmp_path / "one", seed=1))
    second = Choice("tiny", tiny_bert(tmp_path / "two", seed=2))
    setup = setup_for(tmp_path / "out")
    measure_heads(setup, [first])
    measure_heads(setup, [second])
    assert len(list(setup.records("heads"))) == 2 * len(setup.texts)


def test_no_long_text_says_so(tmp_path):
    choice = Choice("tiny", tiny_bert(tmp_path / "model"))
    setup = setup_for(tmp_path / "out", bodies=["word1 word2"])
    measure_heads(setup, [choice])
    with pytest.raises(ValueError, match="no text of test corpus has 50 tokens for tiny"):
        head_tables(setup, [choice])


def test_long_contexts_layer_by_layer(tmp_path):
    """Every layer is kept when it is done, and only what is missing is measured again."""
    from approxkmv.experiments.beyond.run import measure_long

    choice = Choice("tiny", tiny_bert(tmp_path / "model"))
    settings = {
        "lengths": [64, 128],
        "layers_step": 1,
        "heads_step": 1,
        "eps": 0.1,
        "repetitions": 1,
    }
    stopped = setup_for(tmp_path / "out", progress=Interrupting(after=1))
    with pytest.raises(KeyboardInterrupt):
        measure_long(stopped, [choice], settings)
    first = list(stopped.records("long"))
    assert [record["layer"] for record in first] == [0]

    going_on = setup_for(tmp_path / "out")
    assert measure_long(going_on, [choice], settings) == ()
    both = list(going_on.records("long"))
    assert both[0] == first[0]
    assert [record["layer"] for record in both] == [0, 1]
    assert [(head["head"], head["n"]) for head in both[1]["heads"]] == [
        (0, 64),
        (0, 128),
        (1, 64),
        (1, 128),
    ]
    for head in both[0]["heads"]:
        assert head["method"] == "exact"  # far too small to sample
        assert head["error"] < 1e-5
    settings["lengths"] = [512]
    assert "has positions for 256 of 512 tokens" in measure_long(going_on, [choice], settings)[0]
