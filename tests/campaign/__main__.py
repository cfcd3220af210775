"""``python -m tests.campaign``: run, go on, replay, or report."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .records import Folder, generator, plain
from .report import into_page, markdown
from .supervisor import PARTS, supervise
from .worker import module_of, outcome


def main() -> int:
    """Return 1 if a promise was broken."""
    args = _arguments()
    if args.replay is not None:
        return replay(args.replay)
    if args.report:
        folders = [Folder(path) for path in args.report]
    else:
        folder = Folder(args.out or Path("build") / "campaign" / f"seed{args.seed}")
        folder.begin(args.seed)
        parts = args.only.split(",") if args.only else list(PARTS)
        run(folder, parts, args.seed, args.minutes, args.workers)
        folders = [folder]
    text, violations = markdown(folders)
    print(text)
    if args.markdown:
        Path(args.markdown).write_text(text)
    if args.page:
        page = Path(args.page)
        page.write_text(into_page(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 1 if violations else 0


def run(folder: Folder, parts: list[str], seed: int, minutes: float, workers: int) -> None:
    """Share the time among the parts; as many parts at once as there are workers."""
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise SystemExit(f"--only: no part {unknown.pop()!r}; parts are {', '.join(PARTS)}.")
    total = sum(PARTS[part][0] for part in parts)
    workers = min(workers, len(parts))

    def one(part: str) -> None:
        share = min(1.0, workers * PARTS[part][0] / total)
        print(f"{part}: {minutes * share:.3g} min", file=sys.stderr, flush=True)
        supervise(part, seed, 60 * minutes * share, folder)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, parts))


def replay(line: str) -> int:
    """Run one case again and print what comes of it; 1 if there is a finding."""
    text = sys.stdin.read() if line == "-" else line
    record = json.loads(text)
    case = record.get("case")
    if case is None:
        rng = generator(record["seed"], record["part"], record["index"])
        case = module_of(record["part"]).case(rng, record["index"])
    if "call" in record:
        case = {**case, "call": record["call"]}
    result = outcome(record["part"], case)
    print(json.dumps(plain(result), indent=1))
    return 1 if result["findings"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="in all (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--out", metavar="DIR", help="default: build/campaign/seed<SEED>")
    parser.add_argument("--workers", type=int, default=1, help="parts at once (default: 1)")
    parser.add_argument("--report", nargs="+", metavar="DIR", help="no run, only the table")
    parser.add_argument("--markdown", metavar="FILE", help="write the table there, too")
    parser.add_argument("--page", metavar="FILE", help="put it between the marks of this page")
    parser.add_argument("--replay", metavar="LINE", help="a JSON line, or - for standard input")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
