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
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .model_folders import Trap, damaged, run_model
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
        return run_model(case)
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


def _one_file(folder: Path, rng: Rng) -> tuple[str, str, Record | None]:
    """Make, damage and read one file."""
    trap = folder / "executed"
    kind = list(MAKERS)[rng.integers(len(MAKERS))]
    name, content = MAKERS[kind](rng, trap)
    for _ in range(rng.integers(0, 4)):
        content = damaged(content, rng)
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
