"""The examples and the README's example run, and the checks they end with hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _fences(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_ends_with_a_check_that_holds(
    example: Path, run_python: Callable[..., str]
) -> None:
    script = example.read_text(encoding="utf-8")
    assert "assert" in ast.unparse(ast.parse(script).body[-1])
    run_python(script, MPLBACKEND="Agg")


def test_readme_example_runs(run_python: Callable[..., str]) -> None:
    (example,) = _fences("python")
    assert "assert" in example.splitlines()[-1]
    run_python(example)


def test_readme_has_two_commands_of_one_line() -> None:
    """One installs and runs the demo, one installs and runs the tests; `.ci/run` runs both."""
    demo, tests = _fences("sh")
    assert demo.endswith("approxkmv demo\n")
    assert tests.endswith("-m pytest\n")
    assert demo.count("\n") == tests.count("\n") == 1
