"""What came of it: a table for each part, and every finding with the line that repeats it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.stats import binom

from .records import Folder, Record
from .supervisor import PARTS

# A library that keeps its promise fails the test of one family with this probability. Some forty
# families, two promises each: one false alarm in more than ten thousand campaigns.
FALSE_ALARM = 1e-6
DELTA = 0.05
_SHOWN = 12


def records(folders: Iterable[Folder], part: str) -> Iterator[Record]:
    for folder in folders:
        yield from folder.records(part)


def markdown(folders: list[Folder]) -> tuple[str, int]:
    """The report, and how many promises were broken."""
    lines, violations = _about(folders), 0
    lines += ["| part | cases | inputs or runs | findings | hours |", "|---|---|---|---|---|"]
    findings: list[tuple[Record, Record]] = []
    for part in PARTS:
        n_cases = count = found = 0
        seconds = 0.0
        for record in records(folders, part):
            n_cases += 1
            count += record.get("count", 0)
            seconds += record.get("seconds", 0.0)
            found += max(record.get("n_findings", 0), len(record["findings"]))
            findings += [(record, one) for one in record["findings"]]
        if n_cases:
            lines.append(f"| {part} | {n_cases:,} | {count:,} | {found:,} | {seconds / 3600:.2f} |")
            violations += found
    engine, broken, remarkable = _engine(folders)
    lines += engine
    violations += broken
    lines += _measured(folders)
    lines += _findings(findings)
    if remarkable:
        lines += ["", "### Single runs worth a look", ""]
        lines += [f"- {line}" for line in remarkable[: 2 * _SHOWN]]
        if len(remarkable) > 2 * _SHOWN:
            lines.append(f"- and {len(remarkable) - 2 * _SHOWN} more")
    verdict = "no promise was broken" if violations == 0 else f"{violations:,} violations"
    lines += ["", f"**{verdict}**", ""]
    return "\n".join(lines), violations


def into_page(page: str, text: str) -> str:
    """The page with the report between its two marks."""
    begin, end = "<!-- campaign begin -->", "<!-- campaign end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}"


def _about(folders: list[Folder]) -> list[str]:
    runs = [run for folder in folders for run in folder.records("runs")]
    if not runs:
        return []

    def each(name: str) -> str:
        return ", ".join(sorted({str(run[name]) for run in runs}))

    return [
        f"Begun {min(run['date'] for run in runs)}, commit {each('commit')}, {each('machine')}, "
        f"Python {each('python')}, NumPy {each('numpy')}, seed {each('seed')}.",
        "",
    ]


def _engine(folders: list[Folder]) -> tuple[list[str], int, list[str]]:
    """Violations of eps and of error_bound by family, and how good the estimates are."""
    families: dict[str, list[Record]] = defaultdict(list)
    remarkable = []
    for record in records(folders, "engine"):
        case = record["case"] or {}
        name = case.get("family", "?")
        target = case.get("target", "?")
        key = name if target in ("matvec", "attention") else f"{name} ({target})"
        for run in record.get("runs", []):
            families[key].append(run)
            if run["sampled"] and run["all_rows"] and _is_remarkable(run):
                remarkable.append(_one_line(record, run))
    if not families:
        return [], 0, []
    lines = [
        "",
        f"Sampled runs by family, delta {DELTA:g}; allowed: the count that a library which keeps "
        f"its promise exceeds with probability {FALSE_ALARM:g} (each family by itself).",
        "",
        "| family | runs | sampled | above eps | above bound | allowed | median error / eps | "
        "estimate within 2x | over 2x too small |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    broken = 0
    everything: list[Record] = []
    for name, runs in sorted(families.items()):
        row, bad = _row(name, runs)
        lines.append(row)
        broken += bad
        everything += runs
    row, bad = _row("**all**", everything)
    lines.append(row)
    broken += bad
    return lines, broken, remarkable


def _row(name: str, runs: list[Record]) -> tuple[str, int]:
    used = [run for run in runs if run["sampled"]]
    above_eps = sum(number(run["error"]) > number(run["eps"]) for run in used)
    bounded = [run for run in used if run["bound"] is not None]
    above_bound = sum(number(run["error"]) > number(run["bound"]) for run in bounded)
    allowed = allowed_violations(len(used))
    broken = (above_eps > allowed) + (above_bound > allowed_violations(len(bounded)))
    ratios = np.array([number(run["error"]) / number(run["eps"]) for run in used if run["eps"]])
    middle = f"{np.median(ratios):.2g}" if len(ratios) else "-"
    close, small = _quality(used)
    mark = " **!**" if broken else ""
    return (
        f"| {name}{mark} | {len(runs):,} | {len(used):,} | {above_eps} | {above_bound} | "
        f"{allowed} | {middle} | {close} | {small} |",
        broken,
    )


def _quality(used: list[Record]) -> tuple[str, str]:
    """Shares of estimates within a factor of two, and of those far below an error that matters."""
    known = [run for run in used if run["estimate"] is not None and number(run["error"]) > 0]
    if not known:
        return "-", "-"
    ratio = np.array([number(run["estimate"]) / number(run["error"]) for run in known])
    matters = np.array([number(run["error"]) > 0.05 * number(run["eps"]) for run in known])
    return (
        f"{np.mean((ratio >= 0.5) & (ratio <= 2)):.3f}",
        f"{np.mean((ratio < 0.5) & matters):.3f}",
    )


def allowed_violations(n_runs: int) -> int:
    """Violations that ``n_runs`` independent runs exceed with probability FALSE_ALARM at most."""
    return int(binom.isf(FALSE_ALARM, n_runs, DELTA)) if n_runs else 0


def _is_remarkable(run: Record) -> bool:
    bound = np.inf if run["bound"] is None else number(run["bound"])
    error, eps = number(run["error"]), number(run["eps"])
    # Far below eps an error above the bound is that of rounding.
    return error > 1.5 * eps or (error > bound and error > 0.01 * eps)


def _one_line(record: Record, run: Record) -> str:
    case = record["case"]
    what = case["runs"][run["run"]]
    return (
        f"engine {record['index']} run {run['run']}: {case['target']} of {case['family']}, "
        f"n={case['n']} d={case['d']} {case['dtype']}, x {what.get('x', '-')}, eps {run['eps']}: "
        f"error {run['error']}, estimate {run['estimate']}, bound {run['bound']}"
    )


def _measured(folders: list[Folder]) -> list[str]:
    """What parts measured besides: totals of their counters."""
    lines = []
    for part in PARTS:
        totals: Counter[str] = Counter()
        for record in records(folders, part):
            totals.update(record.get("tally", {}))
        if totals:
            shown = ", ".join(f"{name} {value:,}" for name, value in totals.most_common(40))
            lines += ["", f"{part}: {shown}."]
    return lines


def _findings(findings: list[tuple[Record, Record]]) -> list[str]:
    """Each kind of finding with how often it came and one line that repeats it."""
    if not findings:
        return []
    groups: dict[tuple[str, str], list[tuple[Record, Record]]] = defaultdict(list)
    for record, one in findings:
        groups[record["part"], one["what"]].append((record, one))
    lines = ["", "### Findings", ""]
    for (part, what), members in sorted(groups.items()):
        lines.append(f"- {part}, {what}: {len(members)}")
        seen: set[str] = set()
        for record, one in members:
            says = str(one["says"])[:160]
            short = "".join(c for c in says if not c.isdigit())[:60]
            if short in seen or len(seen) >= _SHOWN:
                continue
            seen.add(short)
            place = json.dumps({"part": part, "index": record["index"]} | _place(one))
            lines.append(f"  - `{place}` {says}")
    return lines


def _place(one: Record) -> dict[str, Any]:
    return {k: one[k] for k in ("run", "call") if k in one}


def number(value: Any) -> float:
    """A number; infinity and NaN stand in the records as text."""
    return float(value)
