"""Measure what the pages show, and write it into them: ``python -m benchmarks.page [PIECE ...]``.

    python -m benchmarks.page                        # every piece, then the pages: 25 minutes
    python -m benchmarks.page real --cases pixels    # one set of one piece, then the pages
    python -m benchmarks.page --write                # only the pages, from the committed record
    python -m benchmarks.page --check                # exit code 1 if the pages are not the record's

Tables stand in the pages between comments that begin with their name; pictures are in docs/_static.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import against_n, everyday, exact_page, fits, harness, heads_page, real, regime_map
from benchmarks.record import RECORD, ROOT, Row, add, load

PIECES: dict[str, Any] = {
    "against_n": against_n,
    "exact": exact_page,
    "regime_map": regime_map,
    "real": real,
    "everyday": everyday,
    "heads": heads_page,
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURES = ROOT / "docs/_static"


def every_table(record: dict[str, list[Row]]) -> dict[str, str]:
    """What stands between the comments of each name."""
    found = fits.tables(record)
    for name, piece in PIECES.items():
        rows = record.get(name)
        found |= piece.tables(rows) if rows else {name: "Not measured for this version."}
    return found


def filled(text: str, tables: dict[str, str]) -> str:
    """The page with every table that it names."""
    for name, table in tables.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        while_before, found, rest = text.partition(begin)
        if found:
            _, closed, after = rest.partition(end)
            if not closed:
                raise ValueError(f"{begin} has no {end}")
            text = f"{while_before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def write(record: dict[str, list[Row]]) -> list[Path]:
    """Write pages and pictures; returns the pages that changed."""
    changed = stale(record)
    for page, text in changed.items():
        page.write_text(text, encoding="utf-8")
    for name, piece in PIECES.items():
        if record.get(name) and hasattr(piece, "draw"):
            piece.draw(record[name], PICTURES)
    return [*changed]


def stale(record: dict[str, list[Row]]) -> dict[Path, str]:
    """The text that pages should have, of those which have another."""
    tables = every_table(record)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    return {page: new for page, text in texts.items() if (new := filled(text, tables)) != text}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pieces", nargs="*", choices=[[], *PIECES], help="default: all")
    parser.add_argument("--cases", nargs="+", help="of these pieces, by the names in the record")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="measure and write nothing")
    parser.add_argument("--largest", type=int, default=2**20, help="points at most")
    parser.add_argument("--no-rivals", action="store_false", dest="rivals")
    parser.add_argument("--heads", type=Path, help="queries, keys and values of a model, .npz")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="for every contestant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(argv)
    if args.check:
        pages = stale(load(args.record))
        print(*(f"{page} is not what the record says" for page in pages), sep="\n")
        return int(bool(pages))
    if not args.write:
        with harness.threads(args.threads):
            for name in args.pieces or PIECES:
                for row in PIECES[name].measure(args):  # kept one by one: a run may be cut short
                    add(name, [row], args.threads, args.record)
                    print(f"{name}: {row['case']}", flush=True)
    print(*(f"wrote {page}" for page in write(load(args.record))), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
