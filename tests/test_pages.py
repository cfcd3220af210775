"""The Python blocks of the pages on tools run, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["spectrum", "gpytorch"])
def test_blocks_run(page: str, run_python: Callable[..., str]) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    run_python("\n".join(blocks))
