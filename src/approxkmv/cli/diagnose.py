"""``approxkmv diagnose``: measures the assumption on points, or on every head of a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from approxkmv.diagnosis import Diagnosis, ModelDiagnosis

_STEPS = 1000  # of the progress bar


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``diagnose``."""
    parser = subparsers.add_parser(
        "diagnose",
        help="measure the sparsity of a kernel matrix, or of every head of a model",
        description="Measure c, the sum of all entries of K but the n largest over the sum of "
        "those, for points in files (--queries) or for every attention head of a language model "
        "(--model). Files are as for approxkmv matvec.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--queries", metavar="FILE", help="points, one per row")
    what.add_argument(
        "--model", metavar="DIR", help="model folder, .gguf file or Hugging Face name"
    )
    points = parser.add_argument_group("with --queries")
    points.add_argument("--keys", metavar="FILE", help="points (default: the queries)")
    points.add_argument("--bandwidth", type=float, metavar="S", help="s in exp(-r^2/(2 s^2))")
    points.add_argument("--eps", type=float, default=0.1, help="tolerance to plan for")
    points.add_argument("--delta", type=float, default=0.05, help="1 - confidence of the interval")
    points.add_argument("--max-seconds", type=float, help="then what is known so far")
    points.add_argument("--seed", type=seed, help="seed of everything random")
    add_threads(parser)
    model = parser.add_argument_group("with --model")
    model.add_argument("--text", metavar="FILE", help="text to read (default: Python's own help)")
    model.add_argument(
        "--tokens", type=positive_int, default=512, help="tokens of it to use (default: 512)"
    )
    model.add_argument("--layers", type=int, nargs="+", metavar="L", help="layers (default: all)")
    parser.add_argument("--json", metavar="FILE.json", help="write every number there")
    parser.add_argument("--html", metavar="FILE.html", help="write a page with charts there")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the files asked for."""
    from approxkmv.files import checked_output, write_text

    if args.json:
        checked_output(args.json, ".json")
    if args.html:
        checked_output(args.html, ".html")
    report = _points(args) if args.queries else _model(args)
    print(report)
    if args.json:
        write_text(args.json, report.to_json() + "\n", ".json")
    if args.html:
        name = Path(args.queries or args.model).name
        write_text(args.html, report.to_html(f"Diagnosis of {name}"), ".html")
    return 0


def _points(args: argparse.Namespace) -> Diagnosis:
    from approxkmv.diagnosis import diagnose
    from approxkmv.files import read_array

    if args.bandwidth is None:
        raise ValueError("--queries needs --bandwidth as well")
    queries = read_array(args.queries)
    keys = None if args.keys is None else read_array(args.keys)
    with Progress("measuring", total=_STEPS) as bar:
        return diagnose(
            queries,
            keys,
            bandwidth=args.bandwidth,
            eps=args.eps,
            delta=args.delta,
            rng=args.seed,
            n_threads=args.threads,
            max_seconds=args.max_seconds,
            progress=_follow(bar),
        )


def _model(args: argparse.Namespace) -> ModelDiagnosis:
    from approxkmv.capture import load_model
    from approxkmv.datasets import english_prose
    from approxkmv.diagnosis import diagnose_model
    from approxkmv.files import read_text

    text = read_text(args.text) if args.text else english_prose()
    with Progress("loading the model"):
        loaded = load_model(args.model)
    token_ids = loaded.token_ids(text, args.tokens)
    with Progress("measuring heads", total=_STEPS) as bar:
        return diagnose_model(loaded, token_ids, layers=args.layers, progress=_follow(bar))


def _follow(bar: Progress) -> Callable[[float], None]:
    """Move a bar to the share of the work done."""
    shown = 0

    def progress(share: float) -> None:
        nonlocal shown
        bar.advance(round(share * _STEPS) - shown)
        shown = round(share * _STEPS)

    return progress
