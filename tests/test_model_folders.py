"""Hostile and broken model folders: nothing in them runs, and each is one line of error."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from approxkmv.cli.main import main

sys.path.insert(0, str(Path(__file__).parent / "experiments"))
from experiment_cases import WORDS, save_tiny_bert

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
stored = pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "good"
    save_tiny_bert(folder)
    (folder / "text").write_text(" ".join(WORDS))
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def diagnose(model: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command with somebody who says yes to every question."""
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n" * 20))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = model / "text" if model.is_dir() else model.parent / "text"
    return main(["diagnose", "--model", str(model), "--text", str(text), "--tokens", "32"])


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def add_code(folder: Path) -> Path:
    """A module in the folder that makes a file appear when it is imported."""
    ran = folder.parent / "ran"
    classes = "".join(f"class {name}: pass\n" for name in ("Config", "Model", "Tokenizer"))
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n{classes}")
    return ran


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


def test_a_good_folder_is_measured(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    """The others differ from it by one thing each; nothing but the answer is printed."""
    assert diagnose(folder, monkeypatch) == 0
    captured = capsys.readouterr()
    assert "of 4 heads" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("part", ["config", "tokenizer"])
@pytest.mark.parametrize("known", [False, True])
def test_code_of_a_folder_is_not_run(
    folder: Path, part: str, known: bool, monkeypatch: Any, capsys: Any
) -> None:
    """``auto_map`` is ignored where transformers knows the model, and refused where it does not."""
    ran = add_code(folder)
    if part == "config":
        parts = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
        edit(folder / "config.json", auto_map=parts)
    else:
        parts = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
        edit(folder / "tokenizer_config.json", auto_map=parts, tokenizer_class="Tokenizer")
        edit(folder / "config.json", auto_map=parts)
    if not known:
        edit(folder / "config.json", model_type="unheard-of")
    code = diagnose(folder, monkeypatch)
    captured = capsys.readouterr()
    assert not ran.exists()
    if known:
        assert code == 0
    else:
        assert code == 2
        assert captured.out == ""
        assert "such code is never run" in captured.err
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "index", "inside"]
)
@pytest.mark.parametrize("save", [torch.save, pickle.dump])
def test_pickled_weights_are_refused(
    folder: Path, name: str, save: Callable[..., None], monkeypatch: Any, capsys: Any
) -> None:
    """Also where an index, of pickles or of safetensors, names them."""
    ran = folder.parent / "ran"
    (folder / "model.safetensors").unlink()
    file = name if "." in name else "part.bin"
    with open(folder / file, "wb") as out:
        save({"weight": Trap(ran)}, out)
    if file != name:
        kind = {"index": "pytorch_model.bin", "inside": "model.safetensors"}[name]
        index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": file}}
        (folder / f"{kind}.index.json").write_text(json.dumps(index))
    assert diagnose(folder, monkeypatch) == 2
    error = capsys.readouterr().err
    assert not ran.exists()
    assert error.count("\n") == 1
    assert ("are pickled" if name != "inside" else "other files than .safetensors") in error


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def change_weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tensors = stored.load_file(folder / "model.safetensors")
    change(tensors)
    stored.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


QUERY = "encoder.layer.0.attention.self.query.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other size": (lambda f: edit(f / "config.json", hidden_size=32), "config.json needs"),
    "absurd size": (lambda f: edit(f / "config.json", hidden_size=10**9), "asks for 9"),
    "absurd positions": (
        lambda f: edit(f / "config.json", max_position_embeddings=10**12),
        "asks for 16",
    ),
    "absurd layers": (lambda f: edit(f / "config.json", num_hidden_layers=10**9), "39 tensors"),
    "absurd labels": (lambda f: edit(f / "config.json", num_labels=10**9), "num_labels is"),
    "negative size": (lambda f: edit(f / "config.json", hidden_size=-16), "negative dimension"),
    "size in words": (lambda f: edit(f / "config.json", hidden_size="big"), "hidden_size"),
    "no heads": (lambda f: edit(f / "config.json", num_attention_heads=0), "zero"),
    "three heads": (lambda f: edit(f / "config.json", num_attention_heads=3), "multiple of"),
    "cut weights": (cut_weights, "not a readable .safetensors|could not be loaded"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "not a readable"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights in it"),
    "weights of nobody": (
        lambda f: change_weights(f, lambda t: t.pop(QUERY)),
        "query.weight is missing",
    ),
    "NaN": (
        lambda f: change_weights(f, lambda t: t[QUERY].fill_(float("nan"))),
        "query.weight has entries that are not finite",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "could not be loaded"),
    "config no JSON": (lambda f: (f / "config.json").write_text("{not json"), "valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[1, 2]"), "could not be loaded"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 100_000), "recursion"),
    "empty config": (lambda f: (f / "config.json").write_text("{}"), "model_type"),
    "empty tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "could not be loaded"),
    "tokenizer no JSON": (lambda f: (f / "tokenizer.json").write_text("{no"), "could not be"),
    "tokenizer a list": (lambda f: (f / "tokenizer_config.json").write_text("[]"), "could not be"),
    "no tokenizer": (
        lambda f: [(f / n).unlink() for n in os.listdir(f) if "token" in n or "vocab" in n],
        "knows no word of the text",
    ),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_folders_are_one_line(
    folder: Path, kind: str, monkeypatch: Any, capsys: Any
) -> None:
    """And cost no memory: sizes are compared with the weights before they are allocated."""
    breaking, message = BROKEN[kind]
    breaking(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert diagnose(folder, monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert any(part in captured.err for part in message.split("|")), captured.err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"pickle" * 10, b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)],
    ids=["empty", "magic", "other", "lying"],
)
def test_broken_gguf_files_are_one_line(
    tmp_path: Path, content: bytes, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    (tmp_path / "text").write_text("words")
    assert diagnose(tmp_path / "model.gguf", monkeypatch) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "model.gguf" in error
