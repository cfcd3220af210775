"""``approxkmv diagnose``: points and models, from files to reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.cli.main import main


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.npy"
    np.save(path, np.random.default_rng(0).standard_normal((80, 3)))
    return path


def test_points(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, numbers = points.with_name("page.html"), points.with_name("numbers.json")
    arguments = ["diagnose", "--queries", str(points), "--bandwidth", "0.5", "--seed", "1"]
    assert main([*arguments, "--json", str(numbers), "--html", str(page)]) == 0
    expected = akmv.diagnose(np.load(points), bandwidth=0.5)
    assert f"{expected.c:.4g}, exact" in capsys.readouterr().out
    assert json.loads(numbers.read_text())["c"] == expected.c
    assert "Diagnosis of points.npy" in page.read_text()


def test_keys_and_tolerance(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = points.with_name("keys.npy")
    np.save(keys, np.zeros((90, 3)))
    arguments = ["--queries", str(points), "--keys", str(keys), "--bandwidth", "1"]
    assert main(["diagnose", *arguments, "--eps", "0.2", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "80 queries x 90 keys" in out
    assert "at eps 0.2" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --queries --model is required"),
        (["--queries", "POINTS"], "--queries needs --bandwidth as well"),
        (["--queries", "POINTS", "--model", "m"], "not allowed with argument"),
        (["--queries", "POINTS", "--bandwidth", "-1"], "bandwidth must be a positive"),
        (["--queries", "none.npy", "--bandwidth", "1"], "none.npy"),
        (["--queries", "POINTS", "--bandwidth", "1", "--html", "page.txt"], "end in .html"),
        (["--queries", "POINTS", "--bandwidth", "1", "--json", "no/x.json"], "does not exist"),
        (["--model", "m", "--text", "none.txt"], "none.txt"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *[str(points) if a == "POINTS" else a for a in arguments]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small BERT with random weights and a tokenizer of words."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=6,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("one two three four five " * 20)
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    arguments = ["diagnose", "--model", str(tmp_path), "--text", str(text), "--tokens", "50"]
    arguments += ["--layers", "0", "2", "--html", str(page), "--json", str(numbers)]
    assert main(arguments) == 0
    assert "of 4 heads" in capsys.readouterr().out
    content = json.loads(numbers.read_text())
    assert content["n_tokens"] == 50
    assert [(h["layer"], h["head"]) for h in content["heads"]] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert "<svg" in page.read_text()
