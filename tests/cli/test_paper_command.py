"""``approxkmv paper cost`` and ``approxkmv paper parameters``."""

from __future__ import annotations

import argparse

import pytest

from approxkmv.cli import paper


def run(*arguments):
    parser = argparse.ArgumentParser()
    paper.add_parser(parser.add_subparsers())
    return paper.run(parser.parse_args(["paper", *arguments]))


def test_cost_predicts(capsys):
    assert run("cost", "--n", "1e6", "--measure") == 0
    out = capsys.readouterr().out
    assert out.count("below the exact product from n = ") == 2
    assert "worst x" in out
    assert "Counted" not in out


def test_cost_counts(capsys):
    """A small real run is printed next to its prediction."""
    assert run("cost", "--n", "1e6", "--measure", "64", "--eps", "0.5") == 0
    lines = capsys.readouterr().out.splitlines()
    predicted = next(line for line in lines if line.startswith("predicted"))
    counted = next(line for line in lines if line.startswith("counted"))
    assert len(predicted.split()) == len(counted.split()) == 8


def test_parameters(capsys):
    assert run("parameters", "--n", "1000") == 0
    out = capsys.readouterr().out
    assert "0.1090" in out
    assert "0.1308" in out
    assert "691" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("cost", "--eps", "0"),
        ("cost", "--n", "1"),
        ("cost", "--c", "-1"),
        ("cost", "--measure", "0"),
        ("parameters", "--delta", "1"),
        ("parameters", "--n", "x"),
        (),
    ],
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err
