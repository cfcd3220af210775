"""What makes files hostile; and hostile model folders for ``diagnose --model``."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .records import Record
from .worker import finding

Rng = np.random.Generator


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def damaged(content: bytes, rng: Rng) -> bytes:
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


def run_model(case: Record) -> Record:
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
        which.write_bytes(damaged(damaged(which.read_bytes(), rng), rng))
