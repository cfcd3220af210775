"""Run ApproxKMV on generated clusters and draw what it does: python docs/make_paper_pictures.py.

Writes docs/_static/paper_*.png and prints the numbers quoted in docs/paper_walkthrough.md. Needs
matplotlib. About one minute on two cores.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from approxkmv.datasets import clusters
from approxkmv.kernel.matrix import gaussian_kernel, product
from approxkmv.paper.approx_kmv import approx_kmv
from approxkmv.paper.approx_light import Light, approx_light
from approxkmv.paper.find_heavy import HeavyPairs, find_heavy
from approxkmv.paper.parameters import Constants, Parameters
from approxkmv.paper.preprocess import Preprocessed, preprocess

OUT = Path(__file__).parent / "_static"
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#767676"
N, EPS, SEED = 4096, 0.3, 0


@dataclass(frozen=True)
class Run:
    """The stages of Algorithm 3, one after the other, on one problem."""

    queries: np.ndarray
    keys: np.ndarray
    bandwidth: float
    x: np.ndarray
    parameters: Parameters
    split: Preprocessed
    heavy: HeavyPairs
    light: Light


def problem(n: int) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Clustered points in 32 dimensions, mean row sum 2, and a vector with Student tails."""
    queries, keys, bandwidth = clusters(n, 32, mean_row_sum=2.0, rng=SEED, dtype=np.float64)
    return queries, keys, bandwidth, np.random.default_rng(SEED).standard_t(3, n)


def run(n: int, constants: Constants) -> Run:
    queries, keys, bandwidth, x = problem(n)
    rng = np.random.default_rng(SEED)
    parameters = Parameters.printed(n, EPS, constants=constants)
    split = preprocess(queries, keys, x, bandwidth=bandwidth, gamma=parameters.gamma)
    heavy = find_heavy(
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=parameters.threshold,
        rng=rng,
        constants="practical",
    )
    light = approx_light(
        queries,
        keys,
        split.x,
        heavy,
        split.T,
        bandwidth=bandwidth,
        parameters=parameters,
        rng=rng,
    )
    return Run(queries, keys, bandwidth, x, parameters, split, heavy, light)


def save(figure: plt.Figure, name: str) -> None:
    """Write a PNG of 128 colours: half of the size of one in full colour."""
    full = io.BytesIO()
    figure.savefig(full, dpi=110, bbox_inches="tight")
    plt.close(figure)
    Image.open(full).convert("RGB").quantize(128).save(OUT / f"paper_{name}.png", optimize=True)


def plain(axes: plt.Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)


def draw_buckets(r: Run) -> None:
    """Squared entries of x: large ones, tiny ones, and the buckets between."""
    figure, axes = plt.subplots(figsize=(8, 2.9))
    squares = r.split.x**2
    ratio = 1 + r.parameters.eps_inner
    edges = ratio ** np.arange(-90.0, 40.0)
    large = squares[r.split.H_1]
    axes.hist(
        squares[r.split.T], edges, color=BLUE, label=f"T: {len(r.split.T)} keys, one bar per bucket"
    )
    axes.hist(large, edges, color=ORANGE, label=f"$H_1$: {len(large)} keys, exact")
    axes.axvline(r.parameters.large_x, color=RED, lw=1)
    axes.text(
        r.parameters.large_x * 1.1, axes.get_ylim()[1] * 0.95, "$n^{0.109}$", color=RED, va="top"
    )
    axes.set_xscale("log")
    axes.set_xlim(1e-5, squares.max() * 1.3)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    plain(axes, "Entries of x by size", "$x_j^2$, scaled so that they sum to n", "keys")
    save(figure, "buckets")


def draw_heavy(r: Run) -> None:
    """Which pairs are heavy, and how many each row has."""
    figure, (matrix, counts) = plt.subplots(1, 2, figsize=(8, 3.2), width_ratios=(1, 1.35))
    corner = 240
    # neighbours side by side: order by the cluster that the nearest of 15 key points marks
    marks = r.keys[:15]
    rows = np.argsort(
        gaussian_kernel(r.queries, marks, r.bandwidth * 2).argmax(axis=1), kind="stable"
    )
    near_rows = rows[gaussian_kernel(r.queries[rows], marks, r.bandwidth).max(axis=1) > 0.05][
        :corner
    ]
    cols = np.argsort(gaussian_kernel(r.keys, marks, r.bandwidth * 2).argmax(axis=1), kind="stable")
    near_cols = cols[gaussian_kernel(r.keys[cols], marks, r.bandwidth).max(axis=1) > 0.05][:corner]
    K = gaussian_kernel(r.queries[near_rows], r.keys[near_cols], r.bandwidth)
    shown = np.where(r.parameters.threshold <= K, 2.0, np.clip(1 + np.log10(K + 1e-12) / 12, 0, 1))
    matrix.imshow(
        shown,
        cmap=matplotlib.colors.LinearSegmentedColormap.from_list(
            "heavy", ["white", "#bcd6e8", ORANGE]
        ),
        vmin=0,
        vmax=2,
        interpolation="nearest",
    )
    matrix.set_xticks([])
    matrix.set_yticks([])
    matrix.set_title(
        f"{K.shape[0]} queries × {K.shape[1]} keys\norange: heavy", fontsize=10, loc="left"
    )
    size = np.diff(r.heavy.indptr)
    row_sum = product(r.queries, r.keys, np.ones(len(r.keys)), r.bandwidth)
    counts.scatter(
        row_sum, size, s=4, color=BLUE, alpha=0.4, lw=0, label="one query", rasterized=True
    )
    line = np.geomspace(max(row_sum.min(), 0.02), row_sum.max(), 50)
    counts.plot(
        line, line / r.parameters.threshold, color=RED, lw=1.2, label="Markov: row sum · $n^{1/3}$"
    )
    counts.set_xscale("log")
    counts.set_yscale("log")
    for axis, ticks in ((counts.xaxis, (0.5, 1, 2, 4)), (counts.yaxis, (1, 3, 10, 30, 100))):
        axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    counts.set_ylim(0.8, 100)
    counts.legend(frameon=False, fontsize=8, loc="lower right")
    plain(counts, "Heavy keys of each query", "row sum of K", "$|S_i|$")
    figure.tight_layout()
    save(figure, "heavy")


def draw_repetitions(practical: Run, paper: Run) -> None:
    """Draws that each row asks for, against the keys it has."""
    figure, axes = plt.subplots(figsize=(8, 3))
    for r, colour, name in (
        (paper, ORANGE, "the paper's constants"),
        (practical, BLUE, "practical constants"),
    ):
        draws = np.sort(r.light.repetitions * r.light.n_groups)
        axes.plot(draws, color=colour)
        axes.text(N * 0.7, draws[int(N * 0.7)] * 1.6, name, color=colour, fontsize=8, ha="center")
    axes.axhline(N, color=RED, lw=1)
    axes.text(N * 0.01, N * 1.3, "n: compute the row", color=RED, fontsize=8)
    axes.fill_between([0, N], 100, N, color=GREEN, alpha=0.08, lw=0)
    axes.text(N * 0.01, N / 1.7, "sample the row", color=GREEN, fontsize=8, va="top")
    axes.set_yscale("log")
    axes.set_xlim(0, N)
    axes.set_ylim(100, 1e8)
    plain(axes, "Draws wanted by each row", "rows, sorted", "repetitions × medians")
    save(figure, "repetitions")


def draw_error() -> None:
    """Measured error against eps, corrected and as printed, and that of y = 0."""
    queries, keys, bandwidth, x = problem(1024)
    exact, norm = product(queries, keys, x, bandwidth), np.linalg.norm(x)
    tolerances = np.geomspace(0.02, 2, 9)
    figure, axes = plt.subplots(figsize=(5.6, 3.6))
    for printed, colour, marker, name in (
        (False, BLUE, "o", "ApproxKMV"),
        ({"E4"}, ORANGE, "s", "as printed: E4, large entries twice"),
        (True, RED, "^", "as printed throughout"),
    ):
        seeds = range(3) if printed is False else range(1)
        grid = tolerances if printed is not True else tolerances[4:]  # below, hours of repetitions
        errors = np.array(
            [
                [
                    np.linalg.norm(
                        exact
                        - approx_kmv(
                            queries,
                            keys,
                            x,
                            bandwidth=bandwidth,
                            eps=eps,
                            as_printed=printed,
                            rng=seed,
                        )
                    )
                    / norm
                    for eps in grid
                ]
                for seed in seeds
            ]
        )
        for row in errors:
            hollow = {"ms": 9, "mfc": "none"} if printed is True else {"ms": 4, "alpha": 0.8}
            axes.plot(grid, np.maximum(row, 1e-5), marker, color=colour, label=name, **hollow)
            name = None
        print(
            "error", printed, np.round(grid, 3).tolist(), [f"{e:.2g}" for e in errors.max(axis=0)]
        )
    axes.plot(tolerances, tolerances, color=GREY, lw=1)
    axes.text(
        tolerances[0],
        tolerances[0] * 1.5,
        "allowed: error = eps",
        color=GREY,
        rotation=23,
        fontsize=8,
    )
    axes.axhline(np.linalg.norm(exact) / norm, color=GREEN, lw=1, ls="--")
    axes.text(2, np.linalg.norm(exact) / norm * 1.15, "y = 0", color=GREEN, fontsize=8, ha="right")
    axes.text(0.02, 1.5e-5, "every row computed: error 3e-15", color=BLUE, fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(6e-6, 5)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    plain(axes, "Error for n = 1024", "eps", r"$\|Kx-y\|_2 / \|x\|_2$")
    save(figure, "error")
    print("y = 0 has error", np.linalg.norm(exact) / norm)


def draw_cost() -> None:
    """Kernel evaluations of each stage, as a share of all pairs."""
    sizes = [256, 512, 1024, 2048, 4096, 8192]
    names = ["large entries", "heavy keys", "densities", "light keys"]
    shares = []
    for n in sizes:
        queries, keys, bandwidth, x = problem(n)
        _, info = approx_kmv(
            queries, keys, x, bandwidth=bandwidth, eps=EPS, rng=SEED, return_info=True
        )
        shares.append(np.array([info.heavy_x, info.scan, info.density, info.light]) / n**2)
        print(
            n,
            dict(zip(names, np.round(shares[-1], 3).tolist(), strict=True)),
            "sampled rows",
            info.n_sampled_rows,
            "hashes/n^2",
            round(info.hash / n**2, 3),
        )
    table = np.array(shares)
    figure, axes = plt.subplots(figsize=(5.6, 3.3))
    bottom = np.zeros(len(sizes))
    for name, column, colour in zip(names, table.T, (ORANGE, GREEN, GREY, BLUE), strict=True):
        axes.bar(range(len(sizes)), column, bottom=bottom, color=colour, label=name, width=0.65)
        bottom += column
    axes.axhline(1, color=RED, lw=1)
    axes.text(len(sizes) - 0.45, 1.0, "exact\nproduct", color=RED, fontsize=8, va="center")
    axes.set_xlim(-0.6, len(sizes) - 0.5)
    axes.set_xticks(range(len(sizes)), [str(n) for n in sizes])
    axes.set_ylim(0, 3.5)
    axes.legend(
        frameon=False, fontsize=8, ncols=4, loc="upper left", columnspacing=1, handlelength=1
    )
    plain(axes, f"Kernel evaluations / n², eps = {EPS}", "n", "")
    save(figure, "cost")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    practical, paper = run(N, "practical"), run(N, "paper")
    r = practical
    print(
        f"H_1 {len(r.split.H_1)}, H_2 {len(r.split.H_2)}, T {len(r.split.T)}, "
        f"buckets {len(r.light.buckets)} of {r.parameters.n_buckets}"
    )
    print(r.heavy)
    print(f"threshold {r.parameters.threshold:.4f}, largest |S_i| {np.diff(r.heavy.indptr).max()}")
    for name, each in (("practical", practical), ("paper", paper)):
        draws = each.light.repetitions * each.light.n_groups
        print(
            name,
            "sampled rows",
            int((~each.light.capped).sum()),
            "draws median",
            int(np.median(draws)),
            "min",
            int(draws.min()),
            "max",
            int(draws.max()),
            "groups",
            each.light.n_groups,
        )
    draw_buckets(r)
    draw_heavy(r)
    draw_repetitions(practical, paper)
    draw_error()
    draw_cost()


if __name__ == "__main__":
    main()
