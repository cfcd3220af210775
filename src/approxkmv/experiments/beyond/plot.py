"""What the paper left out, from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from approxkmv.experiments.fits import power_law
from approxkmv.experiments.heads import SETTINGS, HeadTable
from approxkmv.experiments.models import Choice
from approxkmv.experiments.outcome import Claim, Outcome, Picture, Table
from approxkmv.experiments.ratios import slug, texts
from approxkmv.experiments.records import Record
from approxkmv.experiments.svg import Series, curves, heatmap, number
from approxkmv.paper.cost import cost

_MATRICES = {
    "c": "K (the paper)",
    "c_softmax": "softmax",
    "c_causal": "K, causal mask",
    "c_causal_softmax": "softmax, causal mask",
}
Long = tuple[Choice, Sequence[Record]]


def outcome(
    tables: Sequence[HeadTable],
    long: Sequence[Long],
    settings: dict[str, Any],
    notes: tuple[str, ...],
) -> Outcome:
    """Other matrices, long contexts, counts and speed."""
    measured = [(choice, _heads(records)) for choice, records in long if records]
    claims = [claim for table in tables for claim in _matrix_claims(table, settings)]
    pictures = [_softmax_picture(table, settings) for table in tables]
    shown = [_matrix_table(tables, settings)]
    for choice, heads in measured:
        claims += _long_claims(choice, heads, settings)
        pictures += [_long_picture(choice, heads), _pairs_picture(choice, heads, settings)]
        shown.append(_long_table(choice, heads, settings))
    return Outcome(
        "beyond",
        "Beyond the paper: other matrices, long contexts, counts and speed",
        tuple(claims),
        tuple(pictures),
        tuple(shown),
        notes=(
            "The lemma's K, softmax, and what a causal mask leaves of them differ by factors of "
            "rows and by a mask, so each has a constant of its own. Here at the full length of "
            "each text, head of n entries.",
            *notes,
        ),
        settings=settings | {"heads": SETTINGS},
    )


def _matrix_claims(table: HeadTable, settings: dict[str, Any]) -> list[Claim]:
    limit = settings["limit"]
    claims = []
    for key, name in list(_MATRICES.items())[1:]:
        largest = table.stacked(key).max(axis=0)
        claims.append(
            Claim(
                "beyond",
                f"c < {limit:g} for {name} as well",
                str(table.choice),
                f"largest {number(float(largest.max()))}; {int((largest < limit).sum())} of "
                f"{largest.size} heads below",
                bool((largest < limit).all()),
            )
        )
    return claims


def _softmax_picture(table: HeadTable, settings: dict[str, Any]) -> Picture:
    causal = all(record.get("is_causal") for record in table.records)
    key = "c_causal_softmax" if causal else "c_softmax"
    limit = settings["limit"]
    return Picture(
        f"beyond_{slug(table.choice.label)}_softmax",
        f"Largest c of the {_MATRICES[key]} matrix, which the model itself uses, over "
        f"{texts(table)}, at full length. Red frame: above {limit:g}.",
        heatmap(
            table.stacked(key).max(axis=0),
            f"{table.choice.label}: largest c of {_MATRICES[key]}",
            limit=limit,
        ),
    )


def _matrix_table(tables: Sequence[HeadTable], settings: dict[str, Any]) -> Table:
    rows = []
    for table in tables:
        for key, name in _MATRICES.items():
            values = table.stacked(key)
            largest = values.max(axis=0)
            rows.append(
                (
                    f"{table.choice.label}, {name}",
                    number(float(np.median(values))),
                    number(float(np.median(largest))),
                    number(float(largest.max())),
                    f"{int((largest < settings['limit']).sum())} of {largest.size}",
                )
            )
    header = ("matrix", "median", "median head's largest", "largest", f"< {settings['limit']:g}")
    return Table("c of other matrices, at full length", header, tuple(rows))


def _heads(records: Sequence[Record]) -> list[Record]:
    return [head for record in records for head in record["heads"]]


def _at(heads: Sequence[Record], n: int, name: str) -> list[Any]:
    return [head[name] for head in heads if head["n"] == n]


def _medians(heads: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    lengths = sorted({head["n"] for head in heads})
    return lengths, [float(np.median(_at(heads, n, name))) for n in lengths]


def _long_claims(choice: Choice, heads: Sequence[Record], settings: dict[str, Any]) -> list[Claim]:
    lengths, medians = _medians(heads, "c")
    fit = power_law(lengths, medians)
    slopes = [
        power_law(lengths, [h["c"] for h in heads if (h["layer"], h["head"]) == which]).exponent
        for which in sorted({(head["layer"], head["head"]) for head in heads})
    ]
    limit = settings["largest_exponent"]
    longest = lengths[-1]
    pairs = np.array(_at(heads, longest, "pairs"))
    bound = _bound(longest, settings["eps"], heads[0]["is_causal"])
    sampled = pairs < 1
    speed = np.array(_at(heads, longest, "speed_up"))
    return [
        Claim(
            "beyond",
            f"c stays constant up to {longest:,} tokens",
            str(choice),
            f"median head {number(medians[0])} at {lengths[0]:,}, {number(medians[-1])} at "
            f"{longest:,}, ~ n^({fit}); exponent at most {limit:g} in "
            f"{sum(slope <= limit for slope in slopes)} of {len(slopes)} heads",
            fit.exponent <= limit,
        ),
        Claim(
            "beyond",
            f"fewer pairs than exact attention at n = {longest:,}, eps = {settings['eps']:g}",
            str(choice),
            f"{int(sampled.sum())} of {len(pairs)} heads sampled; share of pairs: median "
            f"{number(float(np.median(pairs)))}, least {number(float(pairs.min()))}; 2n^1.5/eps "
            f"would be {number(bound)}; speed-up: median "
            f"{number(float(np.median(speed)))}, largest {number(float(speed.max()))}",
            bool(np.median(pairs) < 1),
        ),
    ]


def _bound(n: int, eps: float, is_causal: bool) -> float:
    """Share of the exact method's pairs that heavy pairs and shared draws need for softmax.

    The bound 2|P|_1 n^0.5/eps of docs/simpler_algorithm.md, where the rows of P add up to 1. It
    counts no search, and takes the sums that softmax divides by as known.
    """
    exact = n * (n + 1) / 2 if is_causal else n * n
    return float(2 * n**1.5 / eps / exact)


def _long_picture(choice: Choice, heads: Sequence[Record]) -> Picture:
    series = [Series(name, *_medians(heads, key)) for key, name in _MATRICES.items()]
    return Picture(
        f"beyond_{slug(choice.label)}_long",
        "Median over the heads looked at, one text.",
        curves(
            series, f"{choice.label}: c of long contexts", "tokens", "c", log_x=True, log_y=True
        ),
    )


def _pairs_picture(choice: Choice, heads: Sequence[Record], settings: dict[str, Any]) -> Picture:
    lengths, pairs = _medians(heads, "pairs")
    eps = settings["eps"]
    bound = [_bound(n, eps, heads[0]["is_causal"]) for n in lengths]
    printed = [
        float(np.median([cost(n, eps, c, x="signs").total for c in _at(heads, n, "c")]))
        for n in lengths
    ]
    return Picture(
        f"beyond_{slug(choice.label)}_pairs",
        f"Kernel evaluations over those of the exact method, median over heads, eps = {eps:g}. "
        "Above 1, exact is cheaper. The paper's count is for K of Lemma 4.1 with its c.",
        curves(
            [
                Series("measured, this package", lengths, pairs),
                Series("2n^1.5/eps: heavy pairs and shared draws", lengths, bound),
                Series("the paper's algorithm with its constants", lengths, printed, dashed=True),
            ],
            f"{choice.label}: theory against measured pairs",
            "tokens",
            "pairs / exact",
            log_x=True,
            log_y=True,
            lines=[("exact", 1.0)],
        ),
    )


def _long_table(choice: Choice, heads: Sequence[Record], settings: dict[str, Any]) -> Table:
    lengths = sorted({head["n"] for head in heads})
    rows = []
    for n in lengths:
        methods = _at(heads, n, "method")
        rows.append(
            (
                f"{choice.label}, {n:,}",
                *(number(float(np.median(_at(heads, n, key)))) for key in _MATRICES),
                f"{methods.count('sampled')} of {len(methods)}",
                number(float(np.median(_at(heads, n, "pairs")))),
                number(float(np.median(_at(heads, n, "speed_up")))),
                number(max(_at(heads, n, "speed_up"))),
                number(max(_at(heads, n, "error"))),
            )
        )
    header = (
        "tokens",
        *(f"c, {name}" for name in _MATRICES.values()),
        "sampled",
        "pairs / exact",
        "speed-up",
        "largest",
        "worst error",
    )
    title = f"Long contexts, medians over heads; attention with eps = {settings['eps']:g}"
    return Table(title, header, tuple(rows))
