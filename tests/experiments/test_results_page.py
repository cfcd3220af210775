"""docs/results/index.md says what the committed numbers say, and of which model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = (RESULTS / "index.md").read_text(encoding="utf-8")
FOLDERS = ("squad_minilm", "squad_smollm2")


def claims(folder: str, figure: str) -> list[dict[str, str]]:
    found = json.loads((RESULTS / folder / f"{figure}.json").read_text(encoding="utf-8"))["claims"]
    return list(found)


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if re.match(r"\| fig[1-4]: ", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(text: str) -> set[float]:
    return {float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", text)}


def test_there_is_a_row_for_every_claim():
    assert [row[0][:4] for row in rows()] == ["fig1", "fig3", "fig3", "fig2", "fig2", "fig4"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_numbers_of_the_table_are_those_of_the_json(row):
    """Every number of a cell is in what its figure's json says was measured, to two digits."""
    figure = row[0][:4]
    for folder, cell in zip(FOLDERS, row[1:], strict=True):
        measured = [claim["measured"] for claim in claims(folder, figure)]
        known = set().union(*map(numbers, measured))
        for number in numbers(cell):
            assert any(abs(number - one) <= 0.01 * abs(one) for one in known), (number, measured)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("figure", ["fig1", "fig2", "fig3", "fig4"])
def test_no_verdict_on_a_model_that_was_not_run(folder, figure):
    """The paper's models were not: every verdict says so, and the page has no bold no."""
    for claim in claims(folder, figure):
        assert claim["holds"].startswith("not tested: ")
        assert "not run; on this model" in claim["holds"]
    assert "**no**" not in PAGE


@pytest.mark.parametrize("folder", FOLDERS)
def test_settings_of_long_contexts_are_those_of_the_run(folder):
    found = json.loads((RESULTS / folder / "beyond.json").read_text(encoding="utf-8"))["settings"]
    assert found["lengths"] == [512, 1024, 2048, 4096]
    assert found["heads"]["lengths"][-1] == 512
