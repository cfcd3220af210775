"""``approxkmv attention``: files in, file out, one line for anything wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import approxkmv
from approxkmv.cli.main import main


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """Write q.npy, k.npy and v.npy to the current folder: four heads that share two."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    arrays = tuple(
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((4, 30, 8), (2, 40, 8), (2, 40, 5))
    )
    for name, array in zip("qkv", arrays, strict=True):
        np.save(f"{name}.npy", array)
    return arrays


def arguments(*flags: str, **changes: str) -> list[str]:
    files = {"query": "q.npy", "key": "k.npy", "value": "v.npy", "output": "o.npy"}
    return ["attention", "--gqa", *flags, *(f"--{k}={v}" for k, v in (files | changes).items())]


def test_output_is_that_of_attention(
    problem: tuple[Any, Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = arguments("--causal", "--explain", scale="0.4", seed="1", threads="2")
    assert main(flags) == 0
    wanted = approxkmv.attention(*problem, is_causal=True, enable_gqa=True, scale=0.4)
    np.testing.assert_array_equal(np.load("o.npy"), wanted)
    out = capsys.readouterr().out
    assert out.startswith("exact attention")
    assert "1,860 of 1,860" in out
    assert "head 3: exact" in out
    assert "o.npy: float32 (4, 30, 5)" in out


def test_every_option_reaches_attention(
    problem: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, seen = approxkmv.attention, {}

    def recorded(*args: Any, **options: Any) -> Any:
        seen.update(options)
        return attention(*args, **options)

    monkeypatch.setattr(approxkmv, "attention", recorded)
    options = {"eps": "0.2", "delta": "0.01", "method": "exact", "seed": "5", "threads": "1"}
    assert main(arguments(**options, **{"max-seconds": "9"})) == 0
    assert seen == {
        "scale": None,
        "is_causal": False,
        "enable_gqa": True,
        "eps": 0.2,
        "delta": 0.01,
        "method": "exact",
        "max_seconds": 9.0,
        "rng": 5,
        "n_threads": 1,
        "return_info": True,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "none.npy"}, "none.npy: No such file or directory"),
        ({"key": "v.npy"}, "key must have 8 columns to match query"),
        ({"scale": "inf"}, "scale must be a finite number"),
        ({"eps": "-1"}, "eps"),
        ({"method": "magic"}, "method"),
        ({"threads": "0"}, "--threads"),
        ({"output": "o.txt"}, "the name of an output file must end in .npy"),
    ],
)
def test_anything_wrong_is_one_line_and_code_2(
    problem: tuple[Any, Any, Any],
    changes: dict[str, str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments(**changes)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("approxkmv attention: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("o.npy").exists()
