"""Reports: text, JSON, and pages that stand alone."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.capture import Head
from approxkmv.diagnosis import Diagnosis, HeadConstants, ModelDiagnosis, head_constants
from approxkmv.diagnosis.chart import bar_chart, heat_map, line_chart

EVIL = "<script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def report() -> Diagnosis:
    return akmv.diagnose(np.random.default_rng(0).standard_normal((200, 4)), bandwidth=0.5)


@pytest.fixture(scope="module")
def model() -> ModelDiagnosis:
    heads = tuple(
        HeadConstants(layer, head, 10.0 ** (layer - head), 1.5)
        for layer in range(3)
        for head in range(4)
    )
    return ModelDiagnosis(EVIL, 300, True, False, heads)


class _Page(HTMLParser):
    """Collects tags, and complains about those left open."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_has_every_number(report: Diagnosis) -> None:
    text = str(report)
    for part in (f"{report.c:.4g}", "exact", "200 queries", "n^", "predicted", "n-th over 2n-th"):
        assert part in text
    assert f"median {report.log_quantiles[0.5]:.4g}, 99% below" in text


def test_text_of_an_interval(report: Diagnosis) -> None:
    sampled = dataclasses.replace(
        report, is_exact=False, c_interval=(0.25, 4.0), confidence=0.95, c=1.0
    )
    assert "1, in [0.25, 4] with confidence 0.95" in str(sampled)
    assert "in [0.25, 4] with confidence 0.95" in sampled.to_html()


def test_json_has_the_same_numbers(report: Diagnosis) -> None:
    content = json.loads(report.to_json())
    assert content["c"] == report.c
    assert content["c_interval"] == [report.c, report.c]
    assert content["growth"]["constants"] == list(report.growth.constants)
    assert content["plan"]["method"] == report.plan.method
    names = {field.name for field in dataclasses.fields(report)} | {"top_n_share"}
    assert set(content) == names


def test_json_of_what_is_not_finite(report: Diagnosis) -> None:
    """Strict JSON: null, not NaN."""
    odd = dataclasses.replace(
        report,
        c_interval=(0.0, math.inf),
        growth=dataclasses.replace(report.growth, exponent=math.nan),
    )
    content = json.loads(odd.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert content["c_interval"] == [0.0, None]
    assert content["growth"]["exponent"] is None
    assert "c ~ n^nan" in str(odd)


def test_pages_are_whole_and_stand_alone(report: Diagnosis, model: ModelDiagnosis) -> None:
    for text in (report.to_html(), model.to_html()):
        page = _Page(text)
        assert page.open == []
        assert "script" not in page.tags
        assert "svg" in page.tags
        links = [value for name, value in page.attributes if name in {"src", "href"}]
        assert links == ["data:,"]
        assert not re.search(r"https?://|@import|url\(", text)
        assert "NaN" not in text


def test_texts_from_outside_are_escaped(report: Diagnosis, model: ModelDiagnosis) -> None:
    for text in (report.to_html(EVIL), model.to_html(EVIL), bar_chart([EVIL], [1.0], label=EVIL)):
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_model_report(model: ModelDiagnosis) -> None:
    text = str(model)
    # 10^(layer - head) is below 5 unless head < layer, which three of the twelve are.
    assert "below 5 in 9 of 12 heads; largest 100, layer 2 head 0" in text
    assert json.loads(model.to_json())["heads"][5]["kernel"] == 1.0
    assert model.to_html().count("<title>layer ") == 2 * 12


def test_cells_stay_readable_on_a_phone() -> None:
    """Maps of many heads scroll rather than shrink; small ones and curves fit any screen."""
    many, few = ({(0, head): 1.0 for head in range(n)} for n in (12, 4))
    assert "min-width:500px" in heat_map(many, label="c")
    assert "min-width:212px" in heat_map(few, label="c")
    assert "min-width" not in bar_chart(["a"], [1.0], label="c")


def test_constants_of_a_head_are_those_of_its_matrices() -> None:
    """c of exp(scores) over factors of rows, and of the masked softmax, by sorting."""
    rng = np.random.default_rng(1)
    query, key = rng.standard_normal((2, 30, 4)).astype(np.float32)
    bias = rng.standard_normal((30, 30)).astype(np.float32)
    found = head_constants(Head(2, 3, query, key, key, 0.7, True, bias))
    scores = 0.7 * query.astype(float) @ key.T.astype(float)

    def constant(matrix: np.ndarray) -> float:
        entries = np.sort(matrix.ravel())[::-1]
        return float(entries[30:].sum() / entries[:30].sum())

    lifted = scores - 0.35 * (query.astype(float) ** 2).sum(1, keepdims=True)
    assert found.kernel == pytest.approx(constant(np.exp(lifted)), rel=1e-9)
    weights = np.tril(np.exp(scores + bias))
    assert found.softmax == pytest.approx(
        constant(weights / weights.sum(1, keepdims=True)), rel=1e-9
    )
    assert (found.layer, found.head) == (2, 3)


def test_charts_bear_odd_values() -> None:
    assert "Too few" in line_chart([1, 2], [0.0, math.nan], x_label="x", y_label="y", log_y=True)
    flat = line_chart([1, 2, 3], [5.0, 5.0, 5.0], x_label="x", y_label="y")
    assert "nan" not in flat
    assert flat.count("<circle") == 3
    cells = {(0, 0): 0.0, (0, 1): math.inf, (1, 0): 2.0}
    assert heat_map(cells, label="c").count("<title>") == 3
    assert heat_map({(0, 0): 1.0}, label="c").count("<title>") == 1


def test_curve_rises_where_the_values_do() -> None:
    """SVG counts downwards: larger values have smaller ordinates."""
    chart = line_chart([1, 10, 100], [1, 2, 4], x_label="x", y_label="y", log_x=True)
    path = re.search(r'points="([^"]*)"', chart)
    assert path is not None
    x, y = zip(*[map(float, point.split(",")) for point in path[1].split()], strict=True)
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert y[0] > y[1] > y[2]


@pytest.mark.slow
def test_browser_shows_the_pages(report: Diagnosis, model: ModelDiagnosis, tmp_path: Path) -> None:
    """Headless Chromium draws every chart and has nothing to complain about."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    for text in (report.to_html(EVIL), model.to_html(EVIL)):
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom"]
        done = subprocess.run(
            [*command, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        assert "CONSOLE" not in done.stderr
        assert done.stdout.count("<svg") == text.count("<svg")
        assert "<script" not in done.stdout
