"""The command line as a whole: help, version, errors in one line, interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from approxkmv.cli import info
from approxkmv.cli.main import main

COMMANDS = ["demo", "matvec", "spectrum", "info", "bench", "paper"]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: approxkmv {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"approxkmv {version('approxkmv')}\n"


@pytest.mark.parametrize("command", [["-m", "approxkmv"], ["-m", "approxkmv", "info"]])
def test_as_a_module(command: list[str]) -> None:
    """``python -m approxkmv`` is the command; without arguments it says what is missing."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
    if command[-1] == "info":
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("approxkmv  ")
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("approxkmv: error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["demo", "--n", "0"], "argument --n: must be a whole number of at least 1, got '0'"),
        (["demo", "--n", "1e3"], "argument --n: must be a whole number of at least 1, got '1e3'"),
        (["demo", "--seed", "-1"], "argument --seed: must be a whole number of at least 0"),
        (["demo", "--seed", "x"], "argument --seed: must be a whole number of at least 0"),
        (["bench", "--threads", "0"], "argument --threads: must be a whole number of at least 1"),
        (["info", "extra"], "unrecognized arguments: extra"),
        (["matvec", "--bandwidth", "wide"], "argument --bandwidth: invalid float value: 'wide'"),
    ],
)
def test_bad_arguments_give_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("approxkmv")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "approxkmv info: interrupted"),
        (MemoryError(), 1, "approxkmv info: error: not enough memory"),
        (MemoryError("900 GB"), 1, "approxkmv info: error: not enough memory. 900 GB"),
        (ValueError("two\nlines"), 2, "approxkmv info: error: two lines"),
        (TypeError("kind"), 2, "approxkmv info: error: kind"),
        (ImportError("extra"), 2, "approxkmv info: error: extra"),
        (FileNotFoundError(2, "No such file", "a"), 2, "approxkmv info: error: a: No such file"),
        (OSError(28, "No space left on device"), 2, "approxkmv info: error: [Errno 28] No space"),
    ],
)
def test_exceptions_become_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(args: Any) -> int:
        raise error

    monkeypatch.setattr(info, "run", fail)
    assert main(["info"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


def test_programming_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no user can mend keeps its traceback."""

    def fail(args: Any) -> int:
        raise AssertionError

    monkeypatch.setattr(info, "run", fail)
    with pytest.raises(AssertionError):
        main(["info"])


def test_reader_that_goes_away() -> None:
    """``approxkmv info | true`` ends without a traceback."""
    child = subprocess.Popen(
        [sys.executable, "-m", "approxkmv", "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=60) == 1


def test_ctrl_c_during_a_product(tmp_path: Path) -> None:
    """A signal in the middle of a long product: code 130, one line, no output file."""
    np.save(tmp_path / "points.npy", np.zeros((200_000, 32), np.float32))
    np.save(tmp_path / "x.npy", np.ones(200_000, np.float32))
    code = """
        import sys
        import approxkmv
        from approxkmv.cli.main import main

        matvec = approxkmv.matvec

        def announced(*args, **kwargs):
            print("started", flush=True)
            return matvec(*args, **kwargs)

        approxkmv.matvec = announced
        sys.exit(main(sys.argv[1:]))
    """
    options = ["--queries", "points.npy", "--x", "x.npy", "--bandwidth", "1", "--output", "y.npy"]
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), "matvec", *options, "--method", "exact"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err == "approxkmv matvec: interrupted\n"
    assert not (tmp_path / "y.npy").exists()


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "a\rb", "\x9b2J", "\u202egnp", "two\nlines", "\udc80"]
)
def test_names_cannot_command_the_terminal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences in names of files and arguments are shown as Python would write them."""
    monkeypatch.chdir(tmp_path)
    np.save("points.npy", np.eye(3))
    options = ["--queries", "points.npy", "--x", "points.npy", "--bandwidth", "1"]
    missing = ["matvec", *options, "--keys", f"{name}.npy", "--output", "y.npy"]
    written = ["matvec", *options, "--output", f"{name}.npy"]
    for arguments, code in (
        (missing, 2),
        (["info", name], 2),
        (["matvec", *options, "--output", f"{name}.txt"], 2),
        (written, 0),
    ):
        assert main(arguments) == code
        captured = capsys.readouterr()
        for line in (captured.out + captured.err).split("\n"):
            assert line.isprintable()
        assert captured.err.count("\n") == (code == 2)
        if len(name.split()) == 1:  # white space is put together in errors
            assert repr(name)[1:-1] in captured.out + captured.err
