"""Measurements as lines of JSON: added one by one, never changed."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]


class Records:
    """A file of records, one JSON object on each line.

    A line that a crash or a full disk cut short is not counted, and is removed before the next one
    is added. Records that were put away with ``gzip heads.jsonl`` come first: pictures can be drawn
    again from them, and new records go to a file beside them.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = Records(os.path.join(folder, "heads.jsonl"))
    ...     records.append({"text": "a", "c": 1.5})
    ...     list(records)
    [{'text': 'a', 'c': 1.5}]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Record) -> None:
        """Add one record; it is on its way to the disk when this returns."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            file.truncate(_whole_lines(file.seek(0, os.SEEK_END), self.path))
            file.write(line.encode() + b"\n")
            file.flush()

    def __iter__(self) -> Iterator[Record]:
        away = self.path.with_name(self.path.name + ".gz")
        if away.exists():
            with gzip.open(away, "rb") as file:
                yield from self._records(file)
        if self.path.exists():
            with open(self.path, "rb") as file:
                yield from self._records(file)

    def _records(self, file: Iterable[bytes]) -> Iterator[Record]:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield self._parsed(line, number)

    def _parsed(self, line: bytes, number: int) -> Record:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number}: not a record ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{self.path}, line {number}: not a record")
        return record


def _whole_lines(size: int, path: Path) -> int:
    """Bytes up to and with the last line end."""
    step = 1 << 16
    with open(path, "rb") as file:
        end = size
        while end > 0:
            start = max(0, end - step)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def rounded(values: Any, digits: int = 6) -> Any:
    """Numbers with a few significant digits, nested as they were; None where not finite.

    Examples
    --------
    >>> rounded([1.23456789, [float("inf"), 2]], 3)
    [1.23, [None, 2.0]]
    """
    if isinstance(values, dict):
        return {key: rounded(value, digits) for key, value in values.items()}
    if isinstance(values, list | tuple | np.ndarray):
        return [rounded(value, digits) for value in values]
    number = float(values)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None
