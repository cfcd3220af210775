"""``approxkmv matvec``: files in, file out, one line for anything wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import approxkmv
from approxkmv.cli import matvec as command
from approxkmv.cli.main import main
from approxkmv.datasets import clusters


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any, float]:
    """Write q.npy, k.npy and x.npy to the current folder; returns them and the bandwidth."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    queries, keys, bandwidth = clusters(400, 6, n_queries=700, rng=rng)
    x = rng.standard_normal(400).astype(np.float32)
    for name, array in (("q", queries), ("k", keys), ("x", x)):
        np.save(f"{name}.npy", array)
    return queries, keys, x, bandwidth


def arguments(**changes: str | None) -> list[str]:
    """Return the arguments of a good call, some changed, some left out."""
    options: dict[str, str | None] = {
        "queries": "q.npy",
        "keys": "k.npy",
        "x": "x.npy",
        "bandwidth": "0.7",
        "output": "y.npy",
        "seed": "1",
    }
    options |= changes
    return ["matvec", *(f"--{name}={value}" for name, value in options.items() if value)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_product_is_that_of_matvec(
    problem: tuple[Any, Any, Any, float],
    dtype: Any,
    method: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file holds what the function returns, in the same type, and the report is printed."""
    queries, keys, x = (a.astype(dtype) for a in problem[:3])
    bandwidth = problem[3]
    np.save("q.npy", queries)
    np.save("k.npy", keys)
    np.save("x.npy", x)
    assert main(arguments(bandwidth=repr(bandwidth), method=method, threads="2")) == 0
    expected = approxkmv.matvec(queries, keys, x, bandwidth=bandwidth, method=method, rng=1)
    found = np.load("y.npy")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    out = capsys.readouterr().out
    assert out.startswith("exact product")
    assert "280,000 of 280,000" in out
    assert f"y.npy: {np.dtype(dtype)} (700,)" in out


def test_every_option_reaches_matvec(
    problem: tuple[Any, Any, Any, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    matvec, seen = approxkmv.matvec, {}

    def recorded(*args: Any, **options: Any) -> Any:
        seen.update(options)
        return matvec(*args, **options)

    monkeypatch.setattr(approxkmv, "matvec", recorded)
    options = {"eps": "0.2", "rtol": "0.3", "max-seconds": "9", "delta": "0.01", "method": "auto"}
    assert main(arguments(**options, seed="5", threads="1")) == 0
    assert seen == {
        "bandwidth": 0.7,
        "eps": 0.2,
        "rtol": 0.3,
        "max_seconds": 9.0,
        "delta": 0.01,
        "method": "auto",
        "rng": 5,
        "n_threads": 1,
        "return_info": True,
    }


def test_unusable_output_is_found_before_the_work(
    problem: tuple[Any, Any, Any, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the product was computed first")

    monkeypatch.setattr(approxkmv, "matvec", refuse)
    assert main(arguments(output="none/y.npy")) == 2


def test_keys_default_to_the_queries(problem: tuple[Any, Any, Any, float]) -> None:
    _, keys, x, _ = problem
    assert main(arguments(queries="k.npy", keys=None)) == 0
    expected = approxkmv.matvec(keys, keys, x, bandwidth=0.7)
    np.testing.assert_array_equal(np.load("y.npy"), expected)


def test_other_formats_and_several_columns(problem: tuple[Any, Any, Any, float]) -> None:
    queries, keys, x, _ = problem
    columns = np.stack([x, 2 * x], axis=1)
    np.savez("points.npz", q=queries, k=keys)
    safetensors.numpy.save_file({"columns": columns}, "x.safetensors")
    sources = {"queries": "points.npz:q", "keys": "points.npz:k", "x": "x.safetensors:columns"}
    assert main(arguments(**sources)) == 0
    expected = approxkmv.matvec(queries, keys, columns, bandwidth=0.7)
    np.testing.assert_array_equal(np.load("y.npy"), expected)


def test_explain_prints_the_plan(
    problem: tuple[Any, Any, Any, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(), "--explain"]) == 0
    assert approxkmv.loops.compiled.ISA in capsys.readouterr().out


def test_blocks_on_a_terminal_give_the_same_answer(
    problem: tuple[Any, Any, Any, float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a bar to move, blocks of rows are multiplied: same bits, same counts, same norm."""
    assert main(arguments(method="exact")) == 0
    whole, y = capsys.readouterr().out, np.load("y.npy")
    calls = []
    matvec = approxkmv.matvec

    def counted(queries: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(queries))
        return matvec(queries, *args, **kwargs)

    monkeypatch.setattr(approxkmv, "matvec", counted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(command, "_STEP", 1)
    assert main(arguments(method="exact")) == 0
    assert calls == [256, 256, 188]
    np.testing.assert_array_equal(np.load("y.npy"), y)
    lines = dict(line.split(maxsplit=3)[::3] for line in capsys.readouterr().out.splitlines()[2:4])
    for name, rest in lines.items():
        assert any(line.split()[0] == name and rest in line for line in whole.splitlines())


def test_stacked_report() -> None:
    """Counts and seconds add; lengths add like the sides of a right angle; None stays None."""
    plan = approxkmv.Plan("exact", "every pair is computed")

    def part(estimate: float | None, bound: float, norm: float) -> approxkmv.ProductInfo:
        return approxkmv.ProductInfo(
            "exact", plan, estimate, bound, 1.0, 10, 20, {"product": 0.5}, norm
        )

    found = command._stacked([part(3.0, 6.0, 5.0), part(4.0, 8.0, 12.0)])
    assert (found.error_estimate, found.error_bound, found.product_norm) == (5.0, 10.0, 13.0)
    assert (found.pairs, found.pairs_exact, found.seconds) == (20, 40, {"product": 1.0})
    assert command._stacked([part(None, 1.0, 1.0), part(4.0, 1.0, 1.0)]).error_estimate is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": "none.npy"}, "none.npy: No such file or directory"),
        ({"queries": "q.txt"}, "expected a .npy, .npz, .safetensors, .csv or .parquet file"),
        ({"queries": "text.npy"}, "text.npy: expected real numbers"),
        ({"keys": "short.npy"}, "the header promises 9600 bytes"),
        ({"keys": "points.npz:v"}, "holds no array 'v'; it has: k, q"),
        ({"keys": "points.npz"}, "holds 2 arrays; say which"),
        ({"keys": "x.npy"}, "keys"),
        ({"x": "q.npy"}, "x"),
        ({"x": "nan.npy"}, "x"),
        ({"bandwidth": "-1"}, "bandwidth"),
        ({"bandwidth": "nan"}, "bandwidth"),
        ({"bandwidth": None}, "the following arguments are required: --bandwidth"),
        ({"eps": "-1"}, "eps"),
        ({"delta": "2"}, "delta"),
        ({"method": "magic"}, "method"),
        ({"threads": "-3"}, "--threads"),
        ({"output": "y.txt"}, "the name of an output file must end in .npy"),
        ({"output": "none/y.npy"}, "does not exist"),
        ({"output": "."}, "must end in .npy"),
    ],
)
def test_anything_wrong_is_one_line_and_code_2(
    problem: tuple[Any, Any, Any, float],
    changes: dict[str, str | None],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line names the file or argument; no traceback, no output file."""
    queries, keys, x, _ = problem
    np.savez("points.npz", q=queries, k=keys)
    np.save("text.npy", np.array(["a"]))
    np.save("nan.npy", np.where(np.arange(400) == 7, np.nan, x))
    Path("short.npy").write_bytes(Path("k.npy").read_bytes()[:-1])
    assert main(arguments(**changes)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("approxkmv matvec: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("y.npy").exists()


def test_old_output_survives_a_bad_run(problem: tuple[Any, Any, Any, float]) -> None:
    np.save("y.npy", np.arange(3))
    assert main(arguments(bandwidth="0")) == 2
    np.testing.assert_array_equal(np.load("y.npy"), np.arange(3))
