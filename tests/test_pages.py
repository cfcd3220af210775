"""The Python blocks of every page run, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 60  # a page takes a few on an idle machine
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [
        text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language
    ]


EVERY = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in EVERY if blocks(page, "python")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(
    page: Path, run_python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what a page writes is not left in the source
    run_python("\n".join(blocks(page, "python")), timeout=SECONDS)


def test_pages_are_found() -> None:
    """Pages without a block are tables and prose; the list above did not come out empty."""
    assert {"README", "quickstart", "attention", "diagnose", "solve"} <= {p.stem for p in PAGES}


def test_python_that_is_not_run() -> None:
    """Two blocks need a model from elsewhere, and one hangs; they are marked as text."""
    marked = [p.stem for p in EVERY for text in blocks(p, "text") if "import " in text]
    assert marked == ["attention", "diagnose", "errors"]
    assert not any(blocks(page, name) for page in EVERY for name in ("py", "pycon", "python3"))


def test_the_quickstart_binds_a_name_once() -> None:
    """So that a later block means what it meant on the page; only y and info come twice."""
    (page,) = (page for page in PAGES if page.stem == "quickstart")
    script = "\n".join(blocks(page, "python"))
    names = re.findall(r"^([a-z_, K]+) = ", script, re.MULTILINE)
    bound = [name for group in names for name in group.split(", ")]
    assert {name for name in bound if bound.count(name) > 1} == {"y", "info"}
