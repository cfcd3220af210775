"""The first example of docs/diagnose.md runs, and what it asserts holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "diagnose.md"


def test_example_runs(run_python: Callable[..., str]) -> None:
    fences = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert "top-n share" in run_python(fences[0])
