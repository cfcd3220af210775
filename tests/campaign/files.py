"""Damaged and hostile files: one line of error or the numbers that are there, never more.

Files are made whole, then bytes are flipped, cut, added or swapped, and headers edited; they are
read in this process, some through the command. Model folders are given to ``diagnose --model``.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .records import Record
from .worker import finding

Rng = np.random.Generator
FILES = 60
_ROOM = 3 * 2**30  # address space a reader may take on top of what the process has
_ALLOWED = (ValueError, OSError, ImportError)
MODELS = ("bytes", "remote code", "remote code of a known type", "pickle", "truncated", "sizes")


def case(rng: Rng, index: int) -> Record:
    """A batch of files; one in twenty-five is a model folder."""
    if index % 25 == 24:
        return {"model": MODELS[index // 25 % len(MODELS)], "seed": int(rng.integers(2**31))}
    return {"batch": int(rng.integers(2**31)), "files": FILES}


def run(case: Record) -> Record:
    if "model" in case:
        return _model(case)
    findings: list[Record] = []
    tally: Counter[str] = Counter()
    numbers = [case["call"]] if "call" in case else range(case["files"])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM, limits[1]))
    try:
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            for number in numbers:
                kind, result, found = _one_file(
                    Path(folder), np.random.default_rng([case["batch"], number])
                )
                tally[f"{kind} {result}"] += 1
                if found is not None:
                    findings.append({**found, "call": number})
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return {"count": len(numbers), "findings": findings, "tally": dict(tally)}


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def _one_file(folder: Path, rng: Rng) -> tuple[str, str, Record | None]:
    """Make, damage and read one file."""
    trap = folder / "executed"
    kind = list(MAKERS)[rng.integers(len(MAKERS))]
    name, content = MAKERS[kind](rng, trap)
    for _ in range(rng.integers(0, 4)):
        content = _damaged(content, rng)
    path = folder / name
    path.write_bytes(content)
    found = None
    try:
        result = _read(kind, path, rng)
    except _ALLOWED as error:
        result = "refused"
        if "\n" in str(error).strip():
            found = finding("message", f"{kind}: more than one line: {error}")
    except BaseException as error:
        result = "failed"
        found = finding(
            "error", f"{kind}: {type(error).__name__}: {error}", bytes=content[:200].hex()
        )
    if trap.exists():
        trap.unlink()
        found = finding("executed", f"{kind}: code of the file was run")
    path.unlink()
    return kind, result, found


def _damaged(content: bytes, rng: Rng) -> bytes:
    """Flip bits, cut, repeat, overwrite a number of the header, or swap two pieces."""
    if not content:
        return content
    data = bytearray(content)
    how = rng.integers(7)
    at = int(rng.integers(len(data)))
    head = int(rng.integers(min(len(data), 200)))
    if how == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif how == 1:
        del data[at:]
    elif how == 2:
        data += data[at:]
    elif how == 3:
        data[head] = int(rng.integers(256))
    elif how == 4:  # a length, large or negative
        value = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)[rng.integers(7)]
        data[head : head + 8] = struct.pack("<Q", value)
    elif how == 5:  # digits of a header in text
        places = [i for i, byte in enumerate(data[:300]) if chr(byte).isdigit()]
        if places:
            data[places[rng.integers(len(places))]] = ord("0123456789-"[rng.integers(11)])
    else:
        del data[head : head + int(rng.integers(1, 20))]
    return bytes(data)


def _numbers(rng: Rng) -> np.ndarray[Any, Any]:
    shape = tuple(int(v) for v in rng.integers(0, 9, rng.integers(1, 4)))
    return (9 * rng.standard_normal(shape)).astype(
        ("f4", "f8", "f2", "i4", "u1", ">f8")[rng.integers(6)]
    )


def _npy(rng: Rng, trap: Path) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    a: Any = _numbers(rng)
    if rng.random() < 0.1:
        a = np.array([Trap(trap)], object)
    np.lib.format.write_array(buffer, a, allow_pickle=True)
    return "a.npy", buffer.getvalue()


def _npz(rng: Rng, trap: Path) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    arrays = {f"a{i}": _numbers(rng) for i in range(rng.integers(1, 3))}
    if rng.random() < 0.1:
        arrays["a0"] = np.array([Trap(trap)], object)
    if rng.random() < 0.05:
        arrays = {"a0": np.zeros(40_000_000 if rng.random() < 0.1 else 400_000)}
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(buffer, **arrays)  # type: ignore[arg-type]
    return "a.npz", buffer.getvalue()


def _safetensors(rng: Rng, trap: Path) -> tuple[str, bytes]:
    from safetensors.numpy import save

    a = np.ascontiguousarray(_numbers(rng))
    a = a.astype(a.dtype.newbyteorder("=")) if a.dtype.kind == "f" else a
    content = save({"a": a, "b": np.ones(3, np.float32)})
    if rng.random() < 0.2:
        content = content.replace(b"F32", b"BF16")
    return "a.safetensors", content


def _pickle(rng: Rng, trap: Path) -> tuple[str, bytes]:
    return ("a.npy", "a.npz", "a.safetensors", "words.txt")[rng.integers(4)], pickle.dumps(
        Trap(trap)
    )


def _text(rng: Rng, trap: Path) -> tuple[str, bytes]:
    lines = [f"word{i} " + " ".join(f"{v:.3f}" for v in rng.standard_normal(3)) for i in range(5)]
    return "words.txt", "\n".join(lines).encode()


def _words_json(rng: Rng, trap: Path) -> tuple[str, bytes]:
    content = {
        "dimensions": 3,
        "words": ["a", "b"],
        "vectors": {"a": [1, 2, 3, 4, 0], "b": [0] * 5},
    }
    return "words.json", json.dumps(content, separators=(",", ":")).encode()


def _paragraphs(rng: Rng, trap: Path) -> tuple[str, bytes]:
    article = {"title": "t", "paragraphs": [{"context": "one"}, {"context": "two"}]}
    return "squad.json", json.dumps({"data": [article]}).encode()


def _idx(rng: Rng, trap: Path) -> tuple[str, bytes]:
    content = struct.pack(">IIII", 0x803, 2, 28, 28) + bytes(2 * 28 * 28)
    if rng.random() < 0.5:
        return "train-images-idx3-ubyte.gz", gzip.compress(content)
    return "train-images-idx3-ubyte", content


MAKERS: dict[str, Callable[[Rng, Path], tuple[str, bytes]]] = {
    "npy": _npy,
    "npz": _npz,
    "safetensors": _safetensors,
    "pickle": _pickle,
    "text": _text,
    "words json": _words_json,
    "paragraphs": _paragraphs,
    "idx": _idx,
}


def _read(kind: str, path: Path, rng: Rng) -> str:
    """Read the file as its kind is read; a few through the command."""
    from approxkmv import datasets
    from approxkmv.files import read_array

    if path.name == "squad.json":
        datasets.squad_contexts(path)
    elif path.name.startswith("words"):
        datasets.glove(path, dim=3)
    elif "idx3" in path.name:
        labels = path.parent / "train-labels-idx1-ubyte"
        labels.write_bytes(struct.pack(">II", 0x801, 2) + b"\0\1")
        datasets.mnist(path.parent)
    elif rng.random() < 0.15:
        return _through_the_command(path)
    else:
        source = str(path) + (
            ":a0" if path.suffix == ".npz" else ":a" if "safe" in path.suffix else ""
        )
        a = read_array(source, memory_map=bool(rng.integers(2)) and path.suffix == ".npy")
        np.asarray(a).sum()
    return "read"


def _through_the_command(path: Path) -> str:
    from approxkmv.cli.main import main

    errors = io.StringIO()
    output = path.parent / "y.npy"
    words = ["matvec", "--queries", str(path), "--x", str(path), "--bandwidth", "1", "--method"]
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main([*words, "exact", "--output", str(output)])
    written = output.exists()
    output.unlink(missing_ok=True)
    lines = errors.getvalue().strip().splitlines()
    if code not in (0, 2) or written != (code == 0) or (code == 2 and len(lines) != 1):
        raise AssertionError(f"exit code {code}, output {written}, {errors.getvalue()!r}")
    return "read" if code == 0 else "refused"


# Model folders


def _model(case: Record) -> Record:
    """``diagnose --model`` of a hostile folder: nothing run, one line of error or a report."""
    rng = np.random.default_rng(case["seed"])
    with tempfile.TemporaryDirectory() as name:
        folder, trap = Path(name) / "model", Path(name) / "executed"
        _make_model(folder, case["model"], trap, rng)
        text = Path(name) / "text.txt"
        text.write_text("one two three four " * 20)
        line = [sys.executable, "-m", "approxkmv", "diagnose", "--model", str(folder)]
        line += ["--text", str(text), "--tokens", "16"]
        findings = []
        try:
            done = subprocess.run(
                line, input="y\n" * 50, capture_output=True, text=True, timeout=120, check=False
            )
            result = f"{case['model']}: exit code {done.returncode}"
            if done.returncode not in (0, 2) or "Traceback" in done.stderr:
                findings.append(finding("model", f"{result}, {done.stderr[-300:]!r}"))
        except subprocess.TimeoutExpired:
            result = f"{case['model']}: no end"
            findings.append(finding("model", f"{case['model']}: no end after 120 s"))
        if trap.exists():
            findings.append(finding("executed", f"{case['model']}: code of the folder was run"))
    return {"count": 1, "findings": findings, "tally": {result: 1}}


def _make_model(folder: Path, how: str, trap: Path, rng: Rng) -> None:
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
    )
    model = transformers.BertModel(config)
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four"]
    (folder / "vocab.txt").write_text("\n".join(words))
    settings, weights = folder / "config.json", folder / "model.safetensors"
    content = json.loads(settings.read_text())
    evil = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\n"
    if how.startswith("remote code"):
        (folder / "evil.py").write_text(evil)
        content["auto_map"] = {"AutoConfig": "evil.C", "AutoModel": "evil.M"}
        if how == "remote code":
            content["model_type"] = "unheard-of"
        settings.write_text(json.dumps(content))
    elif how == "pickle":
        weights.unlink()
        torch.save({"a": Trap(trap)}, folder / "pytorch_model.bin")
    elif how == "truncated":
        weights.write_bytes(weights.read_bytes()[: int(rng.integers(1, 2000))])
    elif how == "sizes":
        content |= {"hidden_size": int(rng.choice([0, -1, 17, 2**40])), "num_attention_heads": 2}
        settings.write_text(json.dumps(content))
    else:
        which = (settings, weights)[rng.integers(2)]
        which.write_bytes(_damaged(_damaged(which.read_bytes(), rng), rng))
