"""``approxkmv reproduce`` from its arguments to files, on a tiny model and a short corpus."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from approxkmv.cli.main import main

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))
from experiment_cases import BODIES, WORDS, save_tiny_bert


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, whose name is no harmless one, and texts."""
    folder = tmp_path_factory.mktemp("reproduce")
    save_tiny_bert(folder / "tiny<b>")
    bodies = [*BODIES, " ".join(WORDS * 8)]
    (folder / "texts.json").write_text(json.dumps(bodies))
    return folder


def reproduce(place: Path, *arguments: str) -> int:
    base = ["--model", str(place / "tiny<b>"), "--texts", str(place / "texts.json")]
    return main(["reproduce", *arguments, *base, "--out", str(place / "out")])


def test_figures_of_heads(place, capsys):
    """fig1 measures; the others find its records; each writes pictures and numbers."""
    for figure in ("fig1", "fig2", "fig3", "fig4"):
        assert reproduce(place, figure) == 0
        printed = capsys.readouterr().out
        assert "holds: " in printed
        summary = json.loads((place / "out" / f"{figure}.json").read_text())
        assert summary["claims"][0]["model"] == "tiny<b>"
        for name in summary["pictures"]:
            assert (place / "out" / f"{name}.svg").read_text().startswith("<svg")
    lines = (place / "out" / "heads.jsonl").read_text().splitlines()
    assert len(lines) == 5


def test_limit_and_report(place, capsys):
    report = place / "report.html"
    assert reproduce(place, "fig1", "--limit", "2", "--html", str(report)) == 0
    assert "2 of 5" in capsys.readouterr().out
    html = report.read_text()
    assert "tiny&lt;b&gt;" in html
    assert "tiny<b>" not in html
    assert str(place) not in html


def test_several_figures_in_one_go(place, capsys):
    """One model loaded for all of them, one report; a figure named twice is run once."""
    report = place / "several.html"
    assert reproduce(place, "fig2", "fig1", "fig2", "--html", str(report)) == 0
    assert capsys.readouterr().out.count("claim, measured, holds or not") == 1
    assert re.findall('<section id="([a-z0-9]+)"', report.read_text()) == ["fig2", "fig1"]
    assert "approxkmv reproduce fig2 fig1" in report.read_text()


def test_all_goes_on_without_word_vectors(place, capsys, monkeypatch):
    """What can be run is run; what cannot is said, and the exit code tells."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("NODE_PATH", raising=False)
    monkeypatch.setattr("approxkmv.datasets.words.npm_package", lambda name: None)
    report = place / "all.html"
    assert reproduce(place, "all", "--quick", "--html", str(report)) == 2
    printed = capsys.readouterr().out
    assert "fig5 was not run: GloVe with 100 dimensions not found. Install it with" in printed
    assert "has positions for 256 of 1,024 tokens: no long contexts" in report.read_text()
    sections = re.findall('<section id="([a-z0-9]+)"', report.read_text())
    assert sections == ["fig1", "fig2", "fig3", "fig4", "beyond"]


def test_fig5_quick(tmp_path, capsys, monkeypatch):
    """Tiny sizes from a file of vectors; a second run times nothing again."""
    from approxkmv.experiments.setup import Setup

    own = Setup.settings

    def small(self, figure):
        return own(self, figure) | {"sizes": [64, 96, 128], "stride": 128, "batch": 1}

    monkeypatch.setattr(Setup, "settings", small)
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.random.default_rng(0).standard_normal((256, 100)).astype(np.float32))
    command = ["reproduce", "fig5", "--glove", str(vectors), "--quick", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "exact / approximate time increases with n" in capsys.readouterr().out
    records = (tmp_path / "fig5.jsonl").read_bytes()
    assert records.count(b"\n") == 6
    assert main(command) == 0
    assert (tmp_path / "fig5.jsonl").read_bytes() == records

    (tmp_path / "fig5.jsonl").write_bytes(records[:-40])  # the last record cut short
    assert main(command) == 0
    again = (tmp_path / "fig5.jsonl").read_bytes()
    assert again.count(b"\n") == 6
    assert again.startswith(records[: records.rfind(b"\n", 0, -1) + 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig9"], "invalid choice: 'fig9'"),
        (["fig1", "--limit", "0"], "at least 1"),
        (["fig1", "--texts", "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_report_is_written_in_one_step(place, monkeypatch, capsys):
    """A full disk while the report is written: the old report stays, no part is left."""
    report = place / "kept.html"
    report.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    assert reproduce(place, "fig1") == 0
    capsys.readouterr()
    from approxkmv.experiments import page

    make = page.page

    def then_full(*args, **kwargs):
        monkeypatch.setattr("os.fsync", full)
        return make(*args, **kwargs)

    monkeypatch.setattr(page, "page", then_full)
    assert reproduce(place, "fig1", "--html", str(report)) == 2
    assert capsys.readouterr().err.endswith("error: [Errno 28] No space left on device\n")
    assert report.read_text() == "old"
    assert not list(place.glob(".kept*"))


def test_report_that_cannot_be_written_is_refused_at_once(place, capsys):
    """Before anything is measured, as for the other commands."""
    for name in ("report.txt", "texts.json"):
        assert reproduce(place, "fig1", "--html", str(place / name)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "end in .html" in captured.err
