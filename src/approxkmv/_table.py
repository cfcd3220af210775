"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


class RunningTable:
    """The same columns for rows that are not known yet: as wide as the header.

    Examples
    --------
    >>> lines = RunningTable(["case  ", "seconds"])
    >>> print(lines.head)
    case    seconds
    ------  -------
    >>> print(lines.row(["a", "0.1"]))
    a           0.1
    """

    def __init__(self, header: Sequence[str]) -> None:
        self._widths = [len(cell) for cell in header]
        self.head = f"{self.row([cell.strip() for cell in header])}\n" + "  ".join(
            "-" * width for width in self._widths
        )

    def row(self, cells: Sequence[str]) -> str:
        """One line."""
        first = cells[0].ljust(self._widths[0])
        others = map(str.rjust, cells[1:], self._widths[1:])
        return "  ".join([first, *others]).rstrip()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *map(str.rjust, cells[1:], widths[1:])]).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])
