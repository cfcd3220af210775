"""Diagnoses as pages: one file, no script, nothing loaded from elsewhere, every text escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from approxkmv.diagnosis.chart import bar_chart, heat_map, line_chart

if TYPE_CHECKING:
    from approxkmv.diagnosis.heads import ModelDiagnosis
    from approxkmv.diagnosis.report import Diagnosis

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.headline { font-size: 1.25rem; border-left: 4px solid #14326e; padding-left: .75rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
         border-bottom: 1px solid #ddd; overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: #333; }
svg text.cell { font-size: 11px; }
.grid { stroke: #e3e3e3; }
.curve { fill: none; stroke: #14326e; stroke-width: 2; }
.mark { fill: #14326e; }
.hover { fill: transparent; }
.hover:hover { fill: #14326e; }
.bar { fill: #5b7db8; }
.note { color: #555; font-size: .9rem; }
.scroll { overflow-x: auto; }
@media (max-width: 30rem) { svg text { font-size: 18px; } svg text.cell { font-size: 12px; } }
@media print { body { max-width: none; font-size: 11pt; } section { break-inside: avoid; } }
"""


def diagnosis_page(report: Diagnosis, title: str) -> str:
    """Page of one kernel matrix."""
    percentiles = [i / (len(report.log_row_sums) - 1) for i in range(len(report.log_row_sums))]
    sections = {
        "Numbers": _table({k: v for k, v in report.facts().items() if k != "expect"})
        + _note(
            "c compares all entries but the n largest with those: small where a few near pairs "
            "make up the matrix, which is what sampling needs."
        ),
        "Growth with the number of points": line_chart(
            report.growth.sizes,
            report.growth.constants,
            x_label="queries",
            y_label="c",
            log_x=True,
            log_y=True,
            marks=True,
        )
        + _note(
            f"Prefixes in the order given; fitted exponent {report.growth.exponent:.2f}. "
            "0: the assumption holds as data grow. 1: every pair counts."
        ),
        "Predicted speed-up": bar_chart(
            [f"eps {eps:g}" for eps in report.speed_ups],
            list(report.speed_ups.values()),
            label="predicted speed-up over the exact product",
        )
        + _note(
            "Over the exact product, for the vector of ones; a prediction from a few rows. "
            "Below 1, looking at the data costs more than it saves."
        ),
        "Row sums": line_chart(
            percentiles,
            [value / math.log(10) for value in report.log_row_sums],
            x_label="share of rows",
            y_label="log10 of the row sum",
        ),
        "Entries": line_chart(
            list(report.log_quantiles),
            [value / math.log(10) for value in report.log_quantiles.values()],
            x_label="share of entries",
            y_label="log10 of the entry",
        ),
    }
    return _page(title, f"What to expect: {report.expectation}", sections)


def model_page(report: ModelDiagnosis, title: str) -> str:
    """Page of all heads of a model."""
    kernel = {(h.layer, h.head): h.kernel for h in report.heads}
    softmax = {(h.layer, h.head): h.softmax for h in report.heads}
    below = sum(value < 5 for value in kernel.values())
    facts = {
        "model": report.name,
        "tokens": f"{report.n_tokens:,}",
        "attention": "causal" if report.is_causal else "to all tokens",
        "position bias": "yes; left out of K" if report.has_bias else "no",
        "heads": f"{len(report.heads)}, c of K below 5 in {below}",
    }
    rows = "".join(
        f'<tr><td>{h.layer}</td><td>{h.head}</td><td class="number">{h.kernel:.4g}</td>'
        f'<td class="number">{h.softmax:.4g}</td></tr>'
        for h in report.heads
    )
    sections = {
        "Settings": _table(facts),
        "c of the Gaussian matrix K": _scroll(heat_map(kernel, label="c of K"))
        + _note("Layers down, heads across; the paper's matrix, over all pairs of tokens."),
        "c of the model's softmax": _scroll(heat_map(softmax, label="c of softmax"))
        + _note("The attention matrix the model uses, with its mask."),
        "Every head": "<table><tr><th>layer</th><th>head</th>"
        '<th class="number">c of K</th><th class="number">c of softmax</th></tr>'
        f"{rows}</table>",
    }
    largest = max(kernel.values())
    return _page(
        title,
        f"c of K is below 5 in {below} of {len(kernel)} heads, at most {largest:.3g}",
        sections,
    )


def _page(title: str, headline: str, sections: Mapping[str, str]) -> str:
    """Sections are ready HTML; title and headline are escaped here."""
    body = "".join(
        f"<section><h2>{escape(name)}</h2>{content}</section>" for name, content in sections.items()
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="headline">{escape(headline)}</p>{body}</body></html>\n'
    )


def _table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items()
    )
    return f"<table>{rows}</table>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _scroll(content: str) -> str:
    return f'<div class="scroll">{content}</div>'
