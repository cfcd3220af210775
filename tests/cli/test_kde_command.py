"""``approxkmv kde``: files in, file out, one line for anything wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from approxkmv.cli import kde
from approxkmv.cli.main import main
from approxkmv.sklearn import KernelDensity


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Write x.npy, q.npy and w.npy to the current folder; returns the first two."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((200, 3)).astype(np.float32), rng.standard_normal((70, 3))
    np.save("x.npy", X)
    np.save("q.npy", Q)
    np.save("w.npy", np.arange(200))
    return X, Q


@pytest.mark.parametrize("bandwidth", ["0.4", "scott", "silverman"])
def test_output_is_that_of_the_estimator(
    points: tuple[np.ndarray, np.ndarray],
    bandwidth: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kde, "_ROWS", 32)  # several steps of the bar
    X, Q = points
    rule = bandwidth if bandwidth.isalpha() else float(bandwidth)
    arguments = ["--data=x.npy", "--queries=q.npy", "--weights=w.npy", f"--bandwidth={bandwidth}"]
    assert main(["kde", *arguments, "--output=y.npy", "--seed=1", "--explain"]) == 0
    expected = KernelDensity(rule).fit(X, sample_weight=np.arange(200)).score_samples(Q)
    np.testing.assert_array_equal(np.load("y.npy"), expected)
    report = capsys.readouterr().out
    assert "exact: there are too few keys" in report
    assert "y.npy: float64 (70,)" in report


def test_queries_default_to_the_data_and_output_is_optional(
    points: tuple[np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kde", "--data=x.npy", "--bandwidth=1"]) == 0
    mean = KernelDensity(1.0).fit(points[0]).score_samples(points[0]).mean()
    assert f"mean {mean:.6g}" in capsys.readouterr().out


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bandwidth=wide"], "must be a number, 'scott' or 'silverman', got 'wide'"),
        (["--bandwidth=0"], "bandwidth must be a positive finite number"),
        (["--bandwidth=1", "--queries=none.npy"], "none.npy: No such file"),
        (["--bandwidth=1", "--weights=q.npy"], "[Ss]ample.weight"),
        (["--bandwidth=1", "--method=tree"], "method must be one of"),
        (["--bandwidth=1", "--rtol=-1"], "rtol must be a finite number"),
        (["--bandwidth=1", "--output=y.txt"], "y.txt"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kde", "--data=x.npy", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
