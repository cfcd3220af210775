"""The command ``approxkmv``: finds the subcommand, runs it, and turns errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from typing import NoReturn

from approxkmv._interrupts import INTERRUPTED, ended, started
from approxkmv.cli import (
    attention,
    bench,
    demo,
    diagnose,
    info,
    kde,
    matvec,
    paper,
    reproduce,
    spectrum,
)
from approxkmv.cli.shown import Shown, shown

_COMMANDS = {
    "demo": demo,
    "matvec": matvec,
    "attention": attention,
    "diagnose": diagnose,
    "spectrum": spectrum,
    "reproduce": reproduce,
    "kde": kde,
    "info": info,
    "bench": bench,
    "paper": paper,
}

# What a user can repair: a value, a type, a file, a package that is not installed.
_USER_ERRORS = (ValueError, TypeError, OSError, ImportError)


class _Parser(argparse.ArgumentParser):
    """A parser that reports a bad argument in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {shown(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``approxkmv`` with these arguments, or those of the command line.

    Returns the exit code: 0 if all went well, 2 for a bad argument or file, 130 after Ctrl-C.
    """
    try:
        return _exit_code(argv)
    finally:
        ended()


def _exit_code(argv: Sequence[str] | None) -> int:
    name = "approxkmv"
    try:
        started()
        args = _parser().parse_args(argv)
        name = f"approxkmv {args.command}"
        with redirect_stdout(Shown(sys.stdout)):
            code: int = _COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return code
    except SystemExit as done:
        return int(done.code or 0)
    except BrokenPipeError:
        # The reader of our output has gone (`approxkmv info | head -1`). Python would complain
        # again when it flushes the pipe at exit, so that now leads nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, Exception) as error:
        return _reported(name, error)


def _reported(name: str, error: BaseException) -> int:
    """Say in one line what happened; what no user can repair keeps its traceback."""
    if _from_interrupt(error):
        # An interrupt in code that was run from a string, as dataclasses do, makes Python end by
        # the signal whatever we return; running another string makes it forget.
        exec("")
        return _say(f"{name}: interrupted", INTERRUPTED)
    if isinstance(error, MemoryError):
        return _say(f"{name}: error: not enough memory. {error}".rstrip(". "), 1)
    if isinstance(error, _USER_ERRORS):
        return _say(f"{name}: error: {_one_line(error)}", 2)
    raise error


def _from_interrupt(error: BaseException | None) -> bool:
    """Whether it is an interrupt, or what an interrupted import of another package made of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="approxkmv",
        description="Products of Gaussian kernel matrices with vectors.",
        epilog="approxkmv COMMAND --help says more about a command. Start with: approxkmv demo",
    )
    parser.add_argument("--version", action="version", version=f"approxkmv {version('approxkmv')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS.values():
        command.add_parser(subparsers)
    return parser


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{shown(str(error.filename))}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _say(line: str, code: int) -> int:
    print(shown(line), file=sys.stderr)
    return code
