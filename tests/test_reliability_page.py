"""Every test that docs/reliability.md names exists, and every point has one or a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.sanitizers.__main__ import files_of_loops

ROOT = Path(__file__).resolve().parents[1]


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


@cache
def names(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_point_has_a_test_or_a_reason() -> None:
    assert [int(number) for number, *_ in rows()] == list(range(1, 52))
    for _, what, tests in rows():
        assert what
        assert "::test_" in tests or re.match(r"none.*: \S", tests), tests


@pytest.mark.parametrize(
    "path", sorted({p for row in rows() for p in re.findall(r"`(tests/[^`]+::[^`]+)`", row[2])})
)
def test_test_exists(path: str) -> None:
    file, name = path.split("::")
    assert name in names(file)


def test_sanitizers_run_files_that_exist() -> None:
    """A file that was moved must not end a run of an hour."""
    names = files_of_loops()
    assert len(names) == len(set(names)) > 12
    assert all((ROOT / "tests" / name).is_file() for name in names)
