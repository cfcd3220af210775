"""``approxkmv paper``: numbers from the paper, predicted and counted."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import numpy as np

from approxkmv.cli.arguments import add_threads, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``paper`` with its commands ``cost`` and ``parameters``."""
    parser = subparsers.add_parser("paper", help="costs and parameters of the paper's algorithm")
    commands = parser.add_subparsers(dest="paper_command", metavar="COMMAND", required=True)

    cost = commands.add_parser("cost", help="kernel evaluations over n^2, predicted and counted")
    _add_eps(cost)
    cost.add_argument(
        "--c", type=_not_negative, default=1.0, help="constant of Assumption (A) (default: 1)"
    )
    cost.add_argument(
        "--n",
        type=_size,
        nargs="*",
        default=[10.0**k for k in range(3, 10)],
        help="sizes to predict (default: 1e3 to 1e9)",
    )
    cost.add_argument(
        "--measure",
        type=positive_int,
        nargs="*",
        default=[512, 1024, 2048],
        help="sizes to run and count (default: 512 1024 2048; no size: nothing is run)",
    )
    cost.add_argument("--seed", type=seed, default=0)
    add_threads(cost)

    numbers = commands.add_parser("parameters", help="every number, as printed and balanced")
    _add_eps(numbers)
    numbers.add_argument("--n", type=positive_int, default=1000, help="keys and queries")
    numbers.add_argument("--delta", type=_share, default=0.01, help="failure probability")
    numbers.add_argument("--constants", choices=["paper", "practical"], default="paper")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the table asked for."""
    if args.paper_command == "parameters":
        _print_parameters(args)
    else:
        _print_predictions(args)
        _print_counts(args)
    return 0


def _print_parameters(args: argparse.Namespace) -> None:
    from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT, Parameters, side_by_side

    printed = Parameters.printed(args.n, args.eps, args.delta, constants=args.constants)
    balanced = Parameters.balanced(args.n, args.eps, args.delta, constants=args.constants)
    here = Parameters.balanced(
        args.n,
        args.eps,
        args.delta,
        constants=args.constants,
        density_exponent=LEVEL_SETS_EXPONENT,
        raised_floor=True,
    )
    print("exponents as printed; balanced; balanced for LevelSets with the raised floor\n")
    print(side_by_side(printed, balanced, here))


def _print_predictions(args: argparse.Namespace) -> None:
    from approxkmv.paper.cost import Entries, cost_table, crossover, render
    from approxkmv.paper.parameters import DENSITY_EXPONENT, LEVEL_SETS_EXPONENT

    kinds: list[tuple[Entries, str]] = [("worst", "worst x"), ("signs", "x = +-1")]
    for x, name in kinds:
        print(f"Predicted evaluations / n^2, eps = {args.eps:g}, c = {args.c:g}, {name}")
        print(render(cost_table(args.n, args.eps, args.c, x=x)))
        size = crossover(args.eps, args.c, x=x)
        print(f"below the exact product from n = {size:.1e}")
        here = cost_table(args.n, args.eps, args.c, x=x, density_exponent=LEVEL_SETS_EXPONENT)
        densities = " ".join(f"{row.density:.2g}" for row in here)
        print(
            f"density with LevelSets' exponent {LEVEL_SETS_EXPONENT} for {DENSITY_EXPONENT}: "
            f"{densities}; the printed thresholds then never go below the exact product\n"
        )


def _print_counts(args: argparse.Namespace) -> None:
    from approxkmv.paper.cost import cost_table, measure, render

    rng = np.random.default_rng(args.seed)
    for n in args.measure:
        with Progress(f"running n = {n}"):
            counted = measure(n, args.eps, rng=rng, n_threads=args.threads)
        # Algorithm 3 hands eps/2 to its parts, so the prediction is made at eps/2 too.
        predicted = cost_table([n], args.eps / 2, counted.c, x="signs")
        header, before, after = render([*predicted, counted.cost]).splitlines()
        print(f"Counted at n = {n}, x = +-1, c = {counted.c:.2f}; error {counted.error:.1g} ||x||")
        print(f"{'':10}{header}\n{'predicted':10}{before}\n{'counted':10}{after}\n")
    if args.measure:
        print(
            "The prediction lets every row draw as many keys as the analysis asks for. A row that "
            "would draw more\nkeys than there are is computed exactly instead, so that the counts "
            "stay near n^2 at these sizes:\npaper.approx_kmv(never_exact=True) draws them all."
        )


def _add_eps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--eps", type=_positive, default=0.1, help="error relative to the norm of x (default: 0.1)"
    )


def _number(text: str, low: float, high: float, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low < value < high:
        raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
    return value


def _positive(text: str) -> float:
    return _number(text, 0, math.inf, "a positive number")


def _not_negative(text: str) -> float:
    return _number(text, math.nextafter(0, -1), math.inf, "a number of at least 0")


def _share(text: str) -> float:
    return _number(text, 0, 1, "between 0 and 1")


def _size(text: str) -> float:
    return _number(text, 1, 1e100, "a number between 1 and 1e100")
