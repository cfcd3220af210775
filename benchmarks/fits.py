"""The table "is it for me" of README and the first page, with its numbers from the record."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.record import Row, markdown, span

HEAD = ("your points", "what happens here", "measured", "when to take something else")
NOT_MEASURED = "not measured"
NAMES = {"approxkmv": "approxkmv", "numpy": "NumPy", "scipy": "SciPy", "torch": "PyTorch"}
Record = dict[str, list[Row]]


def tables(record: Record) -> dict[str, str]:
    lines = [
        [
            "**sparse**: few points near each, more than 3 coordinates",
            "near pairs are found, the others drawn",
            real(record, lambda r: r["kind"].startswith("row sum") and r["d"] > 3) + large(record),
            "below 10,000 points every pair is computed anyway",
        ],
        [
            "**dense**: many points near each, as at the median distance",
            "few columns of the matrix; the error is measured on exact rows",
            real(record, lambda r: r["kind"] == "median"),
            "you want features, no product: scikit-learn's `Nystroem`",
        ],
        [
            "**1 to 3 coordinates**",
            "cells of neighbouring points; right in the tails",
            real(record, lambda r: r["kind"].startswith("row sum") and r["d"] <= 3),
            "an absolute error will do: [finufft](https://finufft.readthedocs.io), `KDEpy`",
        ],
        [
            "**attention**, float32, a CPU with AVX2 or AVX-512",
            "exact in tiles; in long texts keys are drawn, head by head",
            heads(record),
            "causal texts below 7,000 tokens: `eps` does nothing, all is exact",
        ],
        [
            "**attention**, bfloat16, a CPU with AMX",
            "the same, in float32",
            f"{NOT_MEASURED}; PyTorch should be faster",
            "PyTorch's `scaled_dot_product_attention`",
        ],
        [
            "**a GPU**",
            "nothing: this package uses the CPU",
            "",
            "[KeOps](https://www.kernel-operations.io)",
        ],
    ]
    return {"fits": markdown(HEAD, lines), "provenance": provenance(record)}


def real(record: Record, chosen: Callable[[Row], bool]) -> str:
    """How many times as fast as exact, over the sets chosen; the slowest vector of each."""
    rows = [r for r in record.get("real", []) if chosen(r)]
    if not rows:
        return NOT_MEASURED
    gains = [min(r["exact"] / ours["seconds"] for ours in r["ours"].values()) for r in rows]
    sizes = {r["n"] for r in rows}
    size = f"{min(sizes):,}" + (f" to {max(sizes):,}" if len(sizes) > 1 else "")
    sets = {r["set"] for r in rows}
    named = f"{len(sets)} data sets" if len(sets) > 1 else min(sets)
    middle = f", median {span([median(gains)])}" if len(gains) > 2 else ""
    return f"{span(gains)} times exact{middle} ({named}, {size} points)"


def large(record: Record) -> str:
    rows = record.get("against_n", [])
    if not rows:
        return ""
    gain = span([rows[-1]["exact_seconds"] / rows[-1]["seconds"]])
    return f"; {gain} times with {rows[-1]['n']:,}"


def heads(record: Record) -> str:
    rows = record.get("heads", [])
    if not rows:
        return NOT_MEASURED

    def gain(name: str) -> str:
        ours, theirs = (sum(r["ways"][w]["seconds"] for r in rows) for w in (name, "PyTorch"))
        return span([theirs / ours])

    return (
        f"{rows[0]['n']:,} tokens: exact {gain('exact')} times PyTorch, "
        f"{gain('eps = 0.03')} at eps = 0.03"
    )


def provenance(record: Record) -> str:
    """On what, when, and of which version; more than one of them is said, too."""
    made: list[dict[str, Any]] = [row["of"] for rows in record.values() for row in rows]
    if not made:
        return ""
    dates, commits = (sorted({one[name] for one in made}) for name in ("date", "commit"))
    first = made[0]
    isa = first["isa"].upper().replace("AVX512", "AVX-512")
    found = first["versions"]
    versions = ", ".join(f"{name} {found[p]}" for p, name in NAMES.items() if p in found)
    return (
        f"{first['cpu']} with {isa}, {first['cores']} cores, {first['threads']} threads for "
        f"everyone; {versions}; source at {', '.join(commits)}; {' and '.join(dates)}. "
        "Made by `python -m benchmarks.page`."
    )
