"""Pictures are well-formed, show every value, and cannot be broken by a name."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table
from approxkmv.experiments.page import page
from approxkmv.experiments.svg import Series, curves, heatmap

EVIL = "<script>alert(1)</script>\"'&"
SVG = "{http://www.w3.org/2000/svg}"


def titles(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def test_heatmap_tells_every_value():
    values = np.array([[0.5, 2.0, 80.0], [4.7, 0.0, np.nan]])
    svg = heatmap(values, "title", limit=4.6)
    assert titles(svg) == [
        "layer 0, head 0: 0.5",
        "layer 0, head 1: 2",
        "layer 0, head 2: 80",
        "layer 1, head 0: 4.7",
        "layer 1, head 1: 0",
        "layer 1, head 2: –",
    ]
    framed = [r for r in ElementTree.fromstring(svg).iter(f"{SVG}rect") if r.get("stroke")]
    assert len(framed) == 2  # 80 and 4.7


def test_curves_stay_inside_and_go_up():
    """Larger values are higher; bars and lines have room."""
    series = [Series("a", [50, 100, 200], [1.0, 2.0, 8.0], [0.5, 0.5, 4.0])]
    for options in ({}, {"log_x": True, "log_y": True}):
        root = ElementTree.fromstring(curves(series, "t", "x", "y", lines=[("l", 3.0)], **options))
        _, _, width, height = map(float, root.get("viewBox", "").split())
        dots = [c for c in root.iter(f"{SVG}circle") if c.get("r") == "3.5"]
        xs, ys = ([float(dot.get(k, "")) for dot in dots] for k in ("cx", "cy"))
        assert xs == sorted(xs)
        assert ys == sorted(ys, reverse=True)
        assert 0 < min(xs) < max(xs) < width
        assert 0 < min(ys) < max(ys) < height


def test_curves_of_one_point():
    ElementTree.fromstring(curves([Series("a", [5], [0.0])], "t", "x", "y"))


def test_names_are_escaped_in_pictures():
    for svg in (
        heatmap(np.ones((1, 1)), EVIL, rows=EVIL, columns=EVIL),
        curves([Series(EVIL, [1, 2], [1, 2])], EVIL, EVIL, EVIL, lines=[(EVIL, 1.0)]),
    ):
        root = ElementTree.fromstring(svg)
        assert not list(root.iter(f"{SVG}script"))
        assert "<script" not in svg


def evil_outcome() -> Outcome:
    return Outcome(
        EVIL,
        EVIL,
        (Claim(EVIL, EVIL, EVIL, EVIL, True),),
        (Picture("name", EVIL, heatmap(np.ones((1, 1)), EVIL)),),
        (Table(EVIL, (EVIL, EVIL), ((EVIL, EVIL),)),),
        (EVIL,),
        {EVIL: EVIL},
    )


def test_everything_from_outside_is_escaped_in_the_page():
    html = page([evil_outcome()], command=EVIL, about=[EVIL], provenance={"versions": {EVIL: EVIL}})
    assert html.count("<script>") == 1  # our own
    assert "alert(1)" in html
    assert "<script>alert" not in html


def test_the_page_needs_no_network():
    html = page([evil_outcome()], command="c", about=[], provenance={})
    for word in ("http://", "https://", "//cdn", "@import", "url("):
        assert word not in html.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(("holds", "word"), [(True, "yes"), (False, "no"), (None, "cannot tell")])
def test_the_page_shows_verdicts(holds, word):
    claim = Claim("fig1", "c < 4.6", "model", "3", holds)
    outcome = Outcome("fig1", "Figure 1", (claim,))
    assert f">{word}</td>" in page([outcome], command="c", about=[], provenance={})
