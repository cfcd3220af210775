"""``approxkmv spectrum``: values, counts and pictures from files; one line for anything wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from approxkmv.cli.main import main
from approxkmv.kernel.matrix import gaussian_kernel


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write points.npy and few.npy to the current folder; returns the points."""
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng(0).standard_normal((300, 3))
    np.save("points.npy", drawn)
    np.save("few.npy", drawn[:50])
    np.save("flat.npy", drawn[:, 0])
    return drawn


def run(*more: str, data: str = "points.npy", bandwidth: str = "1.0") -> int:
    return main(["spectrum", "--data", data, f"--bandwidth={bandwidth}", "--seed=1", *more])


def printed(out: str) -> np.ndarray:
    return np.array([float(value) for value in re.findall(r"^  (\S+) \+-", out, re.MULTILINE)])


def test_prints_the_largest_eigenvalues(
    points: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-k", "4") == 0
    exact = np.linalg.eigvalsh(gaussian_kernel(points, points, 1.0))[:-5:-1]
    np.testing.assert_allclose(printed(capsys.readouterr().out), exact, rtol=1e-5)


def test_prints_singular_values_of_two_sets(
    points: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--keys", "few.npy", "-k", "3") == 0
    exact = np.linalg.svd(gaussian_kernel(points, points[:50], 1.0), compute_uv=False)[:3]
    np.testing.assert_allclose(printed(capsys.readouterr().out), exact, rtol=1e-5)


def test_counts_add_up_and_repeat(points: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--density") == 0
    first = capsys.readouterr().out
    table = first[first.index("below") :].splitlines()
    assert sum(float(line.split()[-2]) for line in table) == pytest.approx(300, abs=0.5)
    assert run("--density") == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("more", [[], ["--density"]])
def test_draws(points: np.ndarray, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--plot", "out.png", *more) == 0
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert "written out.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bandwidth=-1"], "bandwidth must be a positive"),
        (["--data=flat.npy"], "queries must have two dimensions"),
        (["--data=none.npy"], "none.npy"),
        (["-k", "0"], "at least 1"),
        (["--plot", "none/out.png"], "its folder does not exist"),
        (["--plot", "out.picture"], "picture"),
        (["--density", "--keys", "few.npy"], "--density is for the eigenvalues of one point set"),
    ],
)
def test_anything_wrong_is_one_line_and_code_2(
    points: np.ndarray,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("approxkmv spectrum: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
