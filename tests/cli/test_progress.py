"""The progress bar appears on a terminal, after its time, and leaves nothing behind."""

from __future__ import annotations

import io
import time

import pytest

from approxkmv.cli.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress("work", total=2, stream=stream, patience=0.0) as progress:
        time.sleep(0.05)
        progress.advance()
    assert stream.getvalue() == ""


def test_nothing_is_shown_for_short_work() -> None:
    stream = Terminal()
    with Progress("work", total=1, stream=stream) as progress:
        progress.advance()
    assert stream.getvalue() == ""


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never shown: {stream.getvalue()!r}"
        time.sleep(0.01)


def test_bar_moves_and_is_wiped() -> None:
    """Half the work is half the bar; at the end the line is cleared."""
    stream = Terminal()
    with Progress("work", total=4, stream=stream, patience=0.0) as progress:
        wait_for(stream, f"work [{'.' * 30}]   0%")
        progress.advance(2)
        wait_for(stream, f"work [{'#' * 15}{'.' * 15}]  50%, ")
        wait_for(stream, " s left")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_time_is_shown_without_a_total() -> None:
    stream = Terminal()
    with Progress("work", stream=stream, patience=0.0):
        wait_for(stream, "\rwork 0 s")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_line_is_wiped_after_an_error() -> None:
    """An exception passes through, and the message that follows starts on a clean line."""
    stream = Terminal()

    def interrupted() -> None:
        with Progress("work", total=1, stream=stream, patience=0.0):
            wait_for(stream, "work")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().endswith("\r\x1b[K")
