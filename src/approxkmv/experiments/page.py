"""The report: one HTML page with everything in it, which asks nothing of the network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b2733; background: #fff; margin: 0 auto;
  max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
nav a { margin-right: .8rem; } a { color: #1f5fa8; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: .5rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dfe6;
  vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.yes { color: #1b6b3a; font-weight: 600; } .no { color: #b3261e; font-weight: 600; }
figure { margin: 1rem 0; } figcaption { font-size: .875rem; color: #44515e; }
figure output { display: block; min-height: 1.5em; font-size: .875rem; font-weight: 600; }
svg { max-width: 100%; height: auto; } .cell { cursor: default; }
.cell:hover rect, .cell:hover circle:first-of-type { stroke: #1b2733; stroke-width: 2; }
pre { font-size: .8rem; overflow-x: auto; background: #f4f6f8; padding: .6rem; }
@media print {
  body { max-width: none; font-size: 11pt; } nav, figure output { display: none; }
  figure, tr { break-inside: avoid; } details > * { display: block; }
}
"""
# Touch screens have no hover: a tap writes the value under the picture.
_SCRIPT = """
for (const figure of document.querySelectorAll("figure")) {
  const output = figure.querySelector("output");
  const show = (event) => {
    const cell = event.target.closest(".cell");
    if (cell) output.textContent = cell.dataset.value;
  };
  figure.addEventListener("pointerover", show);
  figure.addEventListener("click", show);
}
"""


def page(
    outcomes: Sequence[Outcome], *, command: str, about: Sequence[str], provenance: dict[str, Any]
) -> str:
    """Render outcomes; every text is escaped."""
    claims = [claim for outcome in outcomes for claim in outcome.claims]
    links = "".join(
        f'<a href="#{escape(outcome.figure)}">{escape(outcome.figure)}</a>' for outcome in outcomes
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>approxkmv reproduce</title><style>{_STYLE}</style></head><body>",
            "<h1>Experiments on sparse kernel matrices, reproduced</h1>",
            "<p>Experiments of <em>Improved Algorithms for Kernel Matrix-Vector Multiplication "
            "Under Sparsity Assumptions</em> (Indyk, Kapralov, Sheth, Wagner, ICLR 2025).</p>",
            *(f"<p>{escape(line)}</p>" for line in about),
            f"<pre>{escape(command)}</pre><nav>{links}</nav>",
            "<h2>Claims</h2>",
            _claims(claims),
            *map(_section, outcomes),
            "<h2>Versions</h2>",
            f"<pre>{escape(json.dumps(provenance, indent=1, ensure_ascii=False))}</pre>",
            f"<script>{_SCRIPT}</script></body></html>\n",
        ]
    )


def _claims(claims: Sequence[Claim]) -> str:
    rows = [
        f"<tr><td>{escape(one.figure)}</td><td>{escape(one.claim)}</td>"
        f"<td>{escape(one.model)}</td><td>{escape(one.measured)}</td>"
        f'<td class="{escape(one.verdict.partition(":")[0])}">{escape(one.verdict)}</td></tr>'
        for one in claims
    ]
    head = "<tr><th>figure</th><th>claim</th><th>model or data</th><th>measured</th>"
    body = f"<thead>{head}<th>holds</th></tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def _section(outcome: Outcome) -> str:
    settings = json.dumps(outcome.settings, indent=1, ensure_ascii=False)
    return "\n".join(
        [
            f'<section id="{escape(outcome.figure)}"><h2>{escape(outcome.title)}</h2>',
            *(f"<p>{escape(note)}</p>" for note in outcome.notes),
            *map(_figure, outcome.pictures),
            *map(_table, outcome.tables),
            f"<details><summary>settings</summary><pre>{escape(settings)}</pre></details>",
            "</section>",
        ]
    )


def _figure(picture: Picture) -> str:
    # The picture is ours: svg.py escapes what it is given.
    return (
        f'<figure><div class="wide">{picture.svg}</div><output></output>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>"
        + f"<td>{escape(row[0])}</td>"
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<h3>{escape(table.title)}</h3><div class="wide"><table>{body}</table></div>'
