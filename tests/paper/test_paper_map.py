"""The map from the paper to the code names things that exist, and tests that use them."""

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


class TestFile:
    """What the tests of one file refer to, helpers of the file and of the folder included."""

    __test__ = False

    def __init__(self, path):
        self.folder = path.parent
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.definitions = {}
        self.imported = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self.definitions[ast.unparse(target)] = node
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    self.imported[bound] = (alias.name if alias.asname else bound, None)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (node.module, alias.name)

    def used(self, name, seen=None):
        """Objects of the package, and names of attributes, that a definition reaches."""
        seen = set() if seen is None else seen
        objects, attributes = [], set()
        if name in seen or name not in self.definitions:
            return objects, attributes
        seen.add(name)
        for node in ast.walk(self.definitions[name]):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            elif isinstance(node, ast.arg):
                self._follow(node.arg, seen, objects, attributes)  # a fixture
            if isinstance(node, ast.Name | ast.Attribute):
                chain = ast.unparse(node).split(".")
                objects += self._resolved(chain)
                self._follow(chain[0], seen, objects, attributes)
        return objects, attributes

    def _follow(self, name, seen, objects, attributes):
        helper = self.imported.get(name)
        if helper is not None and (self.folder / f"{helper[0]}.py").exists():
            found = TestFile(self.folder / f"{helper[0]}.py").used(helper[1])
        else:
            found = self.used(name, seen)
        objects += found[0]
        attributes |= found[1]

    def _resolved(self, chain):
        module, name = self.imported.get(chain[0], ("", None))
        if not module.startswith("approxkmv"):
            return []
        value = importlib.import_module(module)
        found = []
        for part in ([name] if name else []) + chain[1:]:
            try:
                submodule = f"{value.__name__}.{part}" if hasattr(value, "__path__") else ""
                value = getattr(value, part, None) or importlib.import_module(submodule)
            except (ImportError, ValueError, AttributeError):
                break
            found.append(value)
        return found


def uses(test, path):
    """Whether a test refers to an object: itself, or for a method an attribute of its name."""
    file, name = test.split("::")
    objects, attributes = TestFile(ROOT / file).used(name)
    target = resolve(path)
    parent = resolve(path.rpartition(".")[0])
    if isinstance(parent, type):
        return path.rpartition(".")[2] in attributes
    return any(value is target for value in objects)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_linked_tests_use_the_object(row):
    """Every test of a row uses one of its objects, and every object is used by one of its tests."""
    paths, tests = (re.findall(r"`([^`]+)`", cell) for cell in row[1:])
    use = {(test, path): uses(test, path) for test in tests for path in paths}
    assert not [test for test in tests if not any(use[test, path] for path in paths)]
    assert not [path for path in paths if not any(use[test, path] for test in tests)]


def test_uses_can_tell():
    """A test that only names something, or uses its neighbour, does not use it."""
    file = "tests/paper/test_errata.py"
    e11 = f"{file}::test_e11_product_may_be_shorter_than_x"
    assert uses(e11, "approxkmv.exact.gaussian_kernel")
    assert not uses(e11, "approxkmv.paper.approx_kmv.approx_kmv")
    e27 = f"{file}::test_e27_absolute_error_can_be_vacuous_for_attention"
    assert uses(e27, "approxkmv.paper.reduction.attention_to_gaussian")
    assert not uses(e27, "approxkmv.paper.assumption.kernel_constant")
    whole = "tests/paper/test_approx_kmv.py::test_algorithm_3_whole"
    assert uses(whole, "approxkmv.paper.approx_kmv.approx_kmv")  # through a helper's method


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
