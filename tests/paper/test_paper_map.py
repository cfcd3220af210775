"""The map from the paper to the code names things that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def rows():
    lines = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def names(column):
    return sorted({name for row in rows() for name in re.findall(r"`([^`]+)`", row[column])})


def resolve(path):
    """The object at a dotted path; modules first, as a function may share its module's name."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if not path.startswith(str(error.name)):
                raise  # a module that exists needs one that does not
            continue
        for name in parts[length:]:
            value = getattr(value, name)
        return value
    raise LookupError(path)


def test_table_is_whole():
    """Three columns in every row, each with something in it; code and test in code spans."""
    assert len(rows()) > 30
    for row in rows():
        assert len(row) == 3, row
        assert row[0]
        assert row[1].startswith("`")
        assert row[2].startswith("`")


@pytest.mark.parametrize("path", names(1))
def test_object_exists(path):
    assert resolve(path).__doc__ or path.endswith("PRINTED")


@pytest.mark.parametrize("path", names(2))
def test_test_exists(path):
    file, name = path.split("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_errata_name_tests_that_exist():
    """Every ``file::test`` of docs/errata.md; ``::test`` continues the file named before it."""
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    file = None
    found = 0
    for span in re.findall(r"`((?:test_\w+\.py)?::\w+|test_\w+\.py)`", text):
        given, _, name = span.partition("::")
        file = given or file
        source = (ROOT / "tests" / "paper" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, span
        found += 1
    assert found > 30


def test_errata_are_numbered():
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    assert re.findall(r"^## E(\d+)\.", text, re.M) == [str(i) for i in range(1, 29)]
