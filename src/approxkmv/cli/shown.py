"""Text from files and names of files, made harmless for a terminal."""

from __future__ import annotations

import io
from typing import TextIO


def shown(text: str, kept: str = "") -> str:
    """Write control characters and other unprintable ones as Python does in a string.

    They could move the cursor, change the title or hide what follows.
    """
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


class Shown(io.TextIOBase):
    """A stream that passes on what is printed, line ends as they are, the rest :func:`shown`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Pass a text on."""
        self._stream.write(shown(text, kept="\n"))
        return len(text)

    def flush(self) -> None:
        """Pass on what is kept back."""
        self._stream.flush()

    def fileno(self) -> int:
        """Number of the stream behind."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream behind is a terminal."""
        return self._stream.isatty()
