"""The report in a real browser: no errors, nothing fetched, nothing wider than a phone."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table
from approxkmv.experiments.page import page
from approxkmv.experiments.svg import Series, curves, heatmap

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium"),
]
# Put in front of the page's own script: collects errors, then asks the finished page.
_WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
const complain = console.error;
console.error = (...parts) => { errors.push(parts.join(" ")); complain(...parts); };
addEventListener("load", () => {
  const cell = document.querySelector(".cell");
  cell.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const found = {
    errors,
    shown: cell.closest("figure").querySelector("output").textContent,
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    sections: document.querySelectorAll("section").length,
  };
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = JSON.stringify(found);
  document.body.append(answer);
});
</script>"""


def report() -> str:
    rng = np.random.default_rng(0)
    values = np.exp(rng.standard_normal((30, 12)))
    line = Series("c", list(range(50, 501, 50)), list(rng.random(10)), [0.1] * 10)
    outcome = Outcome(
        "fig1",
        "Figure 1",
        (Claim("fig1", "c < 4.6", "a model with a <b>long</b> name", "90.1; 29 of 72", False),),
        (
            Picture("one", "heads", heatmap(values, "largest c", limit=4.6)),
            Picture("two", "growth", curves([line], "growth", "tokens", "c")),
        ),
        (Table("table", tuple(f"column {i}" for i in range(12)), (("1.234",) * 12,) * 3),),
    )
    return page([outcome, outcome], command="approxkmv reproduce all", about=[], provenance={})


def asked(folder: Path, width: int) -> dict[str, object]:
    path = folder / "report.html"
    path.write_text(report().replace("<body>", "<body>" + _WATCH, 1), encoding="utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},900",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=5000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer = done.stdout.split('<pre id="answer">')[1].split("</pre>")[0]
    found: dict[str, object] = json.loads(html.unescape(answer))
    return found


@pytest.mark.parametrize("width", [500, 1200])
def test_no_errors_nothing_fetched_and_not_too_wide(tmp_path, width):
    """500 is the narrowest window Chromium makes; wide tables scroll inside of themselves."""
    found = asked(tmp_path, width)
    assert found == {
        "errors": [],
        "shown": found["shown"],
        "fetched": [],
        "wide": 0,
        "sections": 2,
    }
    assert str(found["shown"]).startswith("layer 0, head 0: ")
