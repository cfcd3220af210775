"""Figure 5 from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from approxkmv.experiments.fits import Fit, power_law
from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table
from approxkmv.experiments.ratios import slug
from approxkmv.experiments.records import Record
from approxkmv.experiments.svg import Series, curves, number

# Approximate and exact, in the same technique each.
PAIRS = {
    "paper, NumPy": "exact, NumPy",
    "printed, NumPy": "exact, NumPy",
    "engine": "exact, compiled",
}
_NAMES = {
    "paper, NumPy": "the paper's algorithm in NumPy",
    "printed, NumPy": "the same as printed",
    "engine": "this package, compiled",
}

# With two errors added, an exponent below this is no growth: 7 % from one size to its double.
_NO_GROWTH = 0.1


def outcome(records: Sequence[Record], settings: dict[str, Any]) -> Outcome:
    """Curves of time ratios and errors, for each scaling of the scores."""
    claims: list[Claim] = []
    pictures: list[Picture] = []
    for scaling in settings["scalings"]:
        mine = [record for record in records if record["scaling"] == scaling]
        for method in PAIRS:
            claims += [_grows(mine, method, scaling), _in_band(mine, method, scaling, settings)]
        claims.append(_means_something(mine, scaling, settings))
        pictures += [_ratios(mine, scaling), _errors(mine, scaling, settings)]
    return Outcome(
        "fig5",
        "Figure 5: time of exact over approximate attention, GloVe vectors",
        tuple(claims),
        tuple(pictures),
        (_table(records),),
        notes=(
            "Exact and approximate are compared in the same technique: the paper's algorithm with "
            "exact attention in NumPy, this package's with its own exact attention. Settings are "
            f"the cheapest with an error of at most {settings['aim']:g} |v| on a first seed.",
            "As printed, the draws that are averaged decide which rows get more of them, which "
            "is biased (E24); otherwise a pilot of its own decides. Both draw as many keys.",
        ),
        settings=settings,
    )


def ratio(record: Record, method: str) -> float:
    """Exact over approximate time: the shortest of each, for nothing makes a run too short."""
    seconds = record["seconds"]
    return float(min(seconds[PAIRS[method]]) / min(seconds[method]))


def _data(scaling: str, method: str) -> str:
    return f"{_NAMES[method]}, scores {scaling}"


def _sizes(records: Sequence[Record]) -> list[int]:
    return [record["n"] for record in records]


def _fit(records: Sequence[Record], method: str) -> Fit:
    return power_law(_sizes(records), [ratio(record, method) for record in records])


def _grows(records: Sequence[Record], method: str, scaling: str) -> Claim:
    claim = "exact / approximate time increases with n"
    ratios = [ratio(record, method) for record in records]
    measured = f"{ratios[0]:.2f} at n = {records[0]['n']:,}, {ratios[-1]:.2f} at "
    measured += f"{records[-1]['n']:,}"
    if method == "engine" and all(record["engine_method"] == "exact" for record in records):
        measured += "; it chose to compute exactly at every size"
        return Claim("fig5", claim, _data(scaling, method), measured, False)
    if len(records) < 3:
        return Claim("fig5", claim, _data(scaling, method), measured, None)
    fit = _fit(records, method)
    return Claim(
        "fig5",
        claim,
        _data(scaling, method),
        f"{measured}; ~ n^({fit}); increases if the exponent is above 2 errors, "
        f"does not if it is below {_NO_GROWTH:g} with them",
        grows(fit),
    )


def grows(fit: Fit) -> bool | None:
    """Whether the exponent is positive; None where its error is too large to tell."""
    if fit.exponent > 2 * fit.error:
        return True
    return False if fit.exponent + 2 * fit.error < _NO_GROWTH else None


def _in_band(
    records: Sequence[Record], method: str, scaling: str, settings: dict[str, Any]
) -> Claim:
    low, high = settings["error"]
    errors = [record["errors"][method] for record in records]
    inside = sum(low <= error <= high for error in errors)
    below = sum(error < low for error in errors)
    return Claim(
        "fig5",
        f"error / |v| from {low:g} to {high:g}, or less",
        _data(scaling, method),
        f"{number(min(errors))} to {number(max(errors))}; {inside} of {len(errors)} sizes inside, "
        f"{below} below",
        max(errors) <= high,
    )


def _means_something(records: Sequence[Record], scaling: str, settings: dict[str, Any]) -> Claim:
    high = settings["error"][1]
    trivial = [record["mean_error"] for record in records]
    return Claim(
        "fig5",
        f"an error of {high:g} |v| takes more than answering mean(v) everywhere",
        f"scores {scaling}",
        f"y = mean(v) has an error of {number(min(trivial))} to {number(max(trivial))} |v|",
        min(trivial) > high,
    )


def _ratios(records: Sequence[Record], scaling: str) -> Picture:
    fits = "; ".join(f"{_NAMES[m]} n^({_fit(records, m)})" for m in PAIRS) if records[2:] else ""
    return Picture(
        f"fig5_{slug(scaling)}_ratio",
        f"Exact over approximate time, shortest of {len(records[0]['seconds']['engine'])} runs. "
        "Above 1, approximate is faster. The curves have different denominators: the paper's "
        "algorithm is compared with exact attention in NumPy, this package with its compiled exact "
        f"attention, which is much faster; the table has all times in seconds. {fits}",
        curves(
            [
                Series(_NAMES[m], _sizes(records), [ratio(record, m) for record in records])
                for m in PAIRS
            ],
            f"exact / approximate time, scores {scaling}",
            "n",
            "times faster",
            lines=[("as fast as exact", 1.0)],
        ),
    )


def _errors(records: Sequence[Record], scaling: str, settings: dict[str, Any]) -> Picture:
    sizes = _sizes(records)
    series = [Series(_NAMES[m], sizes, [r["errors"][m] for r in records]) for m in PAIRS]
    series.append(Series("y = mean(v)", sizes, [r["mean_error"] for r in records], dashed=True))
    low, high = settings["error"]
    return Picture(
        f"fig5_{slug(scaling)}_error",
        "Error of each, and of answering the mean of v everywhere. Where that line is below "
        f"{high:g}, the band asks for nothing.",
        curves(
            series,
            f"error / |v|, scores {scaling}",
            "n",
            "error / |v|",
            lines=[("band", low), ("band", high)],
        ),
    )


def _table(records: Sequence[Record]) -> Table:
    header = (
        "scores, n",
        *records[0]["seconds"],
        "keys drawn",
        "eps",
        "engine",
        "errors",
        "mean(v)",
    )
    rows = [
        (
            f"{record['scaling']}, {record['n']:,}",
            *(f"{min(times):.3f}" for times in record["seconds"].values()),
            str(record["n_samples"]),
            f"{record['eps']:g}",
            f"{record['engine_method']}, {record['engine_pairs']:.0%} of pairs",
            " / ".join(number(record["errors"][m]) for m in PAIRS),
            number(record["mean_error"]),
        )
        for record in records
    ]
    return Table("Seconds (shortest) and settings", header, tuple(rows))
