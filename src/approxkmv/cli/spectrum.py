"""``approxkmv spectrum``: the largest eigenvalues of a kernel matrix, and where the others lie."""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import TYPE_CHECKING

from approxkmv.cli.arguments import add_threads, needs, positive_int, seed
from approxkmv.cli.progress import Progress

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``spectrum``."""
    parser = subparsers.add_parser(
        "spectrum",
        help="the largest eigenvalues of the kernel matrix of a point set",
        description="Find the largest eigenvalues of K_ij = exp(-|x_i - x_j|^2 / (2 s^2)) with "
        "error bars, or the singular values of the matrix of two point sets. Files as in "
        "approxkmv matvec.",
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="points, one per row")
    parser.add_argument("--keys", metavar="FILE", help="other points: singular values instead")
    parser.add_argument("--bandwidth", required=True, type=float, metavar="S", help="s above")
    parser.add_argument("-k", type=positive_int, default=5, help="how many (default: 5)")
    parser.add_argument("--eps", type=float, default=0.0, help="error of the products (default: 0)")
    parser.add_argument(
        "--density", action="store_true", help="also count all eigenvalues, by size, roughly"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the spectrum (.png, .pdf, .svg)")
    parser.add_argument("--seed", type=seed, help="seed of everything random")
    add_threads(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read, compute, print, draw."""
    from pathlib import Path

    import numpy as np

    from approxkmv import GaussianKernel, spectrum
    from approxkmv.files import read_array

    if args.plot is not None:
        needs("matplotlib", "--plot", "plot")
        picture_format(args.plot)
    if args.plot is not None and not Path(args.plot).resolve().parent.is_dir():
        raise ValueError(f"--plot {args.plot}: its folder does not exist.")
    if args.density and args.keys is not None:
        raise ValueError("--density is for the eigenvalues of one point set, without --keys.")
    rng = np.random.default_rng(args.seed)
    K = GaussianKernel(
        read_array(args.data),
        None if args.keys is None else read_array(args.keys),
        bandwidth=args.bandwidth,
        eps=args.eps,
        method="auto" if args.eps > 0 else "exact",
        rng=rng,
        n_threads=args.threads,
    )
    with Progress("solving"):
        find = spectrum.eigenvalues if args.keys is None else spectrum.singular_values
        found = find(K, min(args.k, *K.shape), rng=rng)
    print(found)
    density = None
    if args.density:
        with Progress("estimating"):
            density = spectrum.spectral_density(K, rng=rng)
        print(f"\n{_counts(density)}")
    if args.plot is not None:
        spectrum.plot_spectrum(found if density is None else density).figure.savefig(args.plot)
        print(f"  written {args.plot}")
    return 0


def picture_format(name: str) -> None:
    """Before any work: matplotlib would refuse another format when all is done."""
    from pathlib import Path

    if Path(name).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot {name}: must end in .png, .pdf or .svg")


def _counts(density: object) -> str:
    """Eigenvalues by powers of ten, with standard errors."""
    import numpy as np

    from approxkmv._table import table
    from approxkmv.spectrum import SpectralDensity

    assert isinstance(density, SpectralDensity)
    largest = float(density.nodes.max())
    powers = 10.0 ** np.arange(-3, np.ceil(np.log10(largest)) + 1)
    counts, errors = density.counts([-np.inf, *powers])
    names = [f"below {powers[0]:g}"]
    names += [f"{a:g} to {b:g}" for a, b in pairwise(powers)]
    rows = [
        [name, f"{count:.1f}", f"{error:.1f}"]
        for name, count, error in zip(names, counts, errors, strict=True)
    ]
    return table(["eigenvalues", "about", "+-"], rows)
