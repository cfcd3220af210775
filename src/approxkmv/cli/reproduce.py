"""``approxkmv reproduce``: the experiments of the paper, on its models or on others."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, needs, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from approxkmv.experiments.outcome import Claim, Outcome
    from approxkmv.experiments.setup import Setup

_NAMES = ("fig1", "fig2", "fig3", "fig4", "fig5", "beyond", "all")
_QUICK_TEXTS = 2
_READINGS = ("contexts", "answers", "questions", "sentences")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``reproduce``."""
    parser = subparsers.add_parser(
        "reproduce",
        help="the experiments of the paper, on its models or on others",
        description="Measure what figures of the paper show and compare it with what the paper "
        "says. Finished texts are kept in the folder: run the same command again to go on.",
    )
    parser.add_argument(
        "figures",
        nargs="+",
        choices=_NAMES,
        metavar="FIGURE",
        help=f"which experiments, of {', '.join(_NAMES)}; beyond: what the paper left out",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="M",
        help="folder, .gguf file, hub name, or minilm or smollm2 as installed; repeat for several "
        "(default: the paper's models, or what stands in for them)",
    )
    parser.add_argument(
        "--as-paper",
        action="store_true",
        help="the paper's three models and no stand-ins; --model NAME=FOLDER says where one is, "
        "NAME being BERT, RoBERTa or GPT-1",
    )
    parser.add_argument(
        "--texts",
        action="append",
        default=[],
        metavar="FILE",
        help="SQuAD .json, or plain text; repeat for several, such as train and dev (default: the "
        "help texts that come with Python)",
    )
    parser.add_argument(
        "--reading",
        choices=_READINGS,
        default="contexts",
        help='what the paper\'s "sentences" are: paragraphs (default), answers, questions with '
        "their paragraphs, or single sentences of the paragraphs",
    )
    parser.add_argument(
        "--limit", type=positive_int, metavar="N", help="texts to use, in a random order"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reproduced"), metavar="DIR", help="folder for results"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report to this file")
    parser.add_argument("--glove", metavar="PATH", help="word vectors for fig5, 100 dimensions")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see it work")
    parser.add_argument("--seed", type=seed, default=0, help="order of the texts, and draws")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the figures, print the claims, write the report."""
    from approxkmv.experiments.catalogue import FIGURES, run_figure
    from approxkmv.files import checked_output

    if args.html is not None:
        args.html.parent.mkdir(parents=True, exist_ok=True)
        checked_output(args.html, ".html")
    notes: list[str] = []
    everything = "all" in args.figures
    names = FIGURES if everything else tuple(dict.fromkeys(args.figures))
    if not everything:
        _check_data(names, args.glove)
    setup = _setup(args, notes)
    outcomes: list[Outcome] = []
    missing = 0
    for name in names:
        try:
            outcomes.append(run_figure(name, setup))
        except KeyboardInterrupt:
            print(
                f"what is finished is kept in {setup.out}: run it again to go on", file=sys.stderr
            )
            raise
        except (FileNotFoundError, ImportError) as error:
            if not everything:
                raise
            missing += 1
            notes.append(f"{name} was not run: {error}")
            print(notes[-1])
            continue
        for table in outcomes[-1].tables:
            _print_table(table.title, table.header, table.rows)
    _print_claims([claim for outcome in outcomes for claim in outcome.claims])
    print(f"\nrecords, pictures and numbers: {setup.out}")
    if args.html is not None:
        _write_report(args, setup, outcomes, notes)
    return 2 if missing else 0


def _check_data(names: Sequence[str], glove: str | None) -> None:
    """What is missing is said before anything is read or computed."""
    from approxkmv.datasets.words import find_glove

    if "fig5" in names:
        find_glove(glove)
    if any(name != "fig5" for name in names):
        for package in ("torch", "transformers"):
            needs(package, "reproduce " + " ".join(names), "transformers")


def _setup(args: argparse.Namespace, notes: list[str]) -> Setup:
    from approxkmv.experiments.models import Models
    from approxkmv.experiments.setup import Setup
    from approxkmv.experiments.texts import read_corpora

    def say(note: str) -> None:
        notes.append(note)
        print(note)

    corpus = read_corpora(args.texts, args.reading)
    limit = args.limit or (_QUICK_TEXTS if args.quick else None)
    say(
        f"texts: {corpus.name}, {min(limit or len(corpus.texts), len(corpus.texts))} of "
        f"{len(corpus.texts)}"
    )
    return Setup(
        out=args.out,
        corpus=corpus,
        models=Models(args.model, say, as_paper=args.as_paper),
        progress=Progress,
        limit=limit,
        seed=args.seed,
        quick=args.quick,
        glove=args.glove,
        n_threads=args.threads,
    )


def _print_table(title: str, header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> None:
    from approxkmv._table import table

    print(f"\n{title}\n{table(header, rows)}")


def _print_claims(claims: list[Claim]) -> None:
    print("\nclaim, measured, holds or not")
    for one in claims:
        print(f"\n{one.figure:7} {one.claim}")
        print(f"        on {one.model}: {one.measured}")
        print(f"        holds: {one.verdict}")


def _write_report(
    args: argparse.Namespace, setup: Setup, outcomes: list[Outcome], notes: list[str]
) -> None:
    from approxkmv.experiments.page import page
    from approxkmv.files import write_text

    text = page(outcomes, command=_command(args), about=notes, provenance=setup.provenance())
    write_text(args.html, text, ".html")
    print(f"report: {args.html}")


def _command(args: argparse.Namespace) -> str:
    """The command as one would type it, paths cut to their last part."""
    words = ["approxkmv", "reproduce", *args.figures]
    if args.as_paper:
        words.append("--as-paper")
    for model in args.model:
        name, equals, place = model.rpartition("=")
        words += ["--model", f"{name}{equals}{Path(place).name}"]
    for text in args.texts:
        words += ["--texts", Path(text).name]
    if args.reading != "contexts":
        words += ["--reading", args.reading]
    if args.glove:
        words += ["--glove", Path(args.glove).name]
    if args.limit:
        words += ["--limit", str(args.limit)]
    if args.quick:
        words.append("--quick")
    if args.seed:
        words += ["--seed", str(args.seed)]
    return shlex.join(words)
