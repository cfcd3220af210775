"""Run the stages of the engine and draw what they do: python docs/make_engine_pictures.py.

Writes docs/_static/engine_*.png and prints the numbers quoted in docs/how_it_works.md. Needs
matplotlib, and a few minutes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from PIL import Image

import approxkmv as akmv
from approxkmv.datasets import clusters, vectors
from approxkmv.engine.neighbours.expand import expand
from approxkmv.engine.neighbours.isolated import search_isolated
from approxkmv.engine.neighbours.schedule import NearSearch, search_near_pairs
from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.policy import Shape
from approxkmv.engine.problem import Budget, Problem
from approxkmv.engine.survey.control_variate import fit_polynomial
from approxkmv.engine.survey.forecast import Forecaster
from approxkmv.engine.survey.order import Blocks
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import pooled, solve_rates
from approxkmv.engine.survey.survey import Survey, make_survey
from approxkmv.engine.trace import Trace
from approxkmv.kernel.matrix import KernelMatrix, gaussian_kernel, prepare

OUT = Path(__file__).parent / "_static"
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#767676"
N, SEED, EPS = 32_768, 0, 0.1
SHAPE = Shape()


@dataclass(frozen=True)
class Stages:
    """One problem, and what the engine learns about it before it draws."""

    problem: Problem
    survey: Survey
    near: NearSearch

    @property
    def kernel(self) -> KernelMatrix:
        return self.problem.kernel

    @property
    def bandwidth(self) -> float:
        return self.kernel.bandwidth

    @property
    def x(self) -> np.ndarray:
        return self.problem.x[:, 0]

    @property
    def pilot(self) -> Pilot:
        return self.survey.pilot

    @property
    def query_blocks(self) -> Blocks:
        return self.survey.query_blocks

    @property
    def key_tiles(self) -> Blocks:
        return self.survey.key_tiles

    def new_search(self) -> Search:
        return Search(self.kernel, self.pilot, np.random.default_rng(SEED))


def problem_of(kernel: KernelMatrix, x: np.ndarray, eps: float) -> Problem:
    budget = Budget(eps**2 * float(x @ x), 0.05)
    return Problem(kernel, x[:, None], budget, np.random.default_rng(SEED))


def first_stages() -> Stages:
    queries, keys, bandwidth = clusters(N, 64, rng=SEED)
    kernel = prepare(queries, keys, bandwidth)
    problem, trace = problem_of(kernel, vectors(N, SEED)["gauss"], EPS), Trace()
    survey = make_survey(problem, trace, one_shot=False)
    search = Search(kernel, survey.pilot, problem.rng)
    near = search_near_pairs(problem, survey, search, trace)
    print(f"survey: bandwidth {bandwidth:.3f}, {trace.numbers}")
    return Stages(problem, survey, near)


def save(figure: plt.Figure, name: str) -> None:
    """Write a PNG of 128 colours: half of the size of one in full colour."""
    full = io.BytesIO()
    figure.savefig(full, dpi=110, bbox_inches="tight")
    plt.close(figure)
    Image.open(full).convert("RGB").quantize(128).save(OUT / f"engine_{name}.png", optimize=True)


def plain(axes: plt.Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)


def heat(axes: plt.Axes, values: np.ndarray, title: str, norm: LogNorm, label: str) -> None:
    """A matrix of blocks and tiles, smallest norms in the corner at the top left."""
    image = axes.imshow(values, norm=norm, cmap="viridis", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("tiles of keys, by norm →", fontsize=8)
    axes.set_ylabel("← blocks of queries, by norm", fontsize=8)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=7)
    bar.set_label(label, fontsize=8)


def draw_order(s: Stages) -> None:
    """Mean squares of the light entries, tile by tile, in the order of the data and of norms."""
    figure, (before, after, norms) = plt.subplots(
        1, 3, figsize=(9.6, 2.9), width_ratios=(1, 1, 0.9), layout="constrained"
    )
    rng = np.random.default_rng(SEED)
    some = 32  # queries of each block, and every key
    maps = []
    unordered = np.arange(N)
    for query_order, key_order in (
        (unordered, unordered),
        (s.query_blocks.order, s.key_tiles.order),
    ):
        means = []
        for start in range(0, N, SHAPE.rows_per_block):
            rows = rng.choice(
                query_order[start : start + SHAPE.rows_per_block], some, replace=False
            )
            K = gaussian_kernel(s.kernel.queries[rows], s.kernel.keys[key_order], s.bandwidth)
            K[s.pilot.threshold <= K] = 0  # near pairs are searched for, not drawn
            means.append((K**2).reshape(some, -1, SHAPE.keys_per_tile).mean(axis=(0, 2)))
        maps.append(np.array(means))
    norm = LogNorm(maps[1].min(), maps[1].max())
    heat(before, maps[0], "In the order of the data", norm, "")
    heat(after, maps[1], "In the order of norms", norm, "mean $K^2$, near pairs left out")
    before.set_xlabel("tiles of keys", fontsize=8)
    before.set_ylabel("blocks of queries", fontsize=8)
    print(
        f"order: light second moment over tiles, in data order {np.ptp(np.log10(maps[0])):.1f} "
        f"decades, in norm order {np.ptp(np.log10(maps[1])):.1f}"
    )
    moved = s.kernel.keys[s.key_tiles.order] - s.kernel.geometry.centre
    lengths = np.linalg.norm(moved, axis=1) / s.bandwidth
    norms.plot(lengths, color=BLUE, lw=1.5)
    for start in s.key_tiles.start[:: len(s.key_tiles.start) // 8]:
        norms.axvline(start, color=GREY, lw=0.5, alpha=0.6)
    plain(norms, "Keys sorted by norm", "key (every 8th tile begins at a line)", "norm / bandwidth")
    norms.xaxis.label.set_size(8)
    norms.set_xlim(0, N)
    norms.set_xticks([0, N // 2, N], ["0", "16,384", "32,768"])
    save(figure, "order")


def draw_rates(s: Stages) -> None:
    """Second moments of the pilot, pooled; and the shares of keys that are drawn."""
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1), layout="constrained")
    forecast, squares = s.near.forecast, s.pilot.near_square
    common = s.pilot.missed(s.near.search.found) & (squares < forecast.rare_from**2)
    raw = s.pilot.per_pair(s.pilot.light + s.pilot.near_sums(common, squares))
    moment = pooled(raw)
    title = f"Pilot: mean $K^2$ of {SHAPE.pilot_rows} rows"
    limits = LogNorm(max(raw[raw > 0].min(), moment.min() / 3), raw.max())
    heat(
        axes[0],
        np.maximum(raw, limits.vmin),
        title,
        limits,
        "",
    )
    heat(axes[1], moment, "Pooled over neighbours: $V_{ab}$", limits, "")
    rates = forecast.rates
    size = np.abs(s.x[s.key_tiles.order])
    drawn = np.array(
        [
            [
                np.minimum(1, rate * size[first:last]).mean()
                for rate, first, last in zip(
                    row, s.key_tiles.start[:-1], s.key_tiles.start[1:], strict=True
                )
            ]
            for row in rates.rate
        ]
    )
    heat(axes[2], 100 * drawn, "Keys drawn, %", LogNorm(100 * drawn.min(), 100 * drawn.max()), "")
    print(
        f"rates: share drawn {drawn.mean():.2%}, from {drawn.min():.2%} to {drawn.max():.1%}; "
        f"predicted error {np.sqrt(rates.variance.sum()) / np.linalg.norm(s.x):.3f} |x|"
    )
    flat = solve_rates(
        np.full_like(raw, raw.mean()),
        s.survey.forecaster.entries,
        s.query_blocks,
        s.key_tiles,
        rates.variance.sum(),
    )
    print(f"one rate for all tiles would need {flat.pairs / N**2:.2%} of the pairs")
    save(figure, "rates")


def draw_near(s: Stages) -> None:
    """Near pairs found, and pairs needed, round by round, with and without the steps after."""
    figure, (recall, cost) = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    forecaster = s.survey.forecaster
    mass, apart = s.pilot.near_square, s.pilot.apart
    print(f"near: {apart.sum() / len(s.pilot.rows):.1f} near pairs in a pilot row")
    for steps, colour, name in (
        (0, GREY, "tilings alone"),
        (1, ORANGE, "and neighbours"),
        (2, BLUE, "and isolated points"),
    ):
        search = s.new_search()
        counts, missed, forecasts = [0], [1.0], [forecaster(search.found)]
        for n_tilings in (3, 1, 2, 2, 2, 2):
            search.tilings(n_tilings, *search.everywhere)
            if steps >= 2 and len(counts) == 1:
                search_isolated(search)
            if steps >= 1:
                expand(search)
            counts.append(search.n_tilings)
            missed.append(float(mass[s.pilot.missed(search.found)].sum() / mass.sum()))
            forecasts.append(forecaster(search.found))
        needed = np.array([forecast.cost / N**2 for forecast in forecasts])
        print(f"near, {name}: missed {np.round(missed, 6).tolist()}")
        print(f"  cost, share of n²: {np.round(needed, 4).tolist()}")
        print(f"  rare from {[forecast.rare_from for forecast in forecasts]}")
        drawn_missed = np.where(np.array(missed) > 0, 100 * np.array(missed), np.nan)
        recall.plot(counts, drawn_missed, "o-", ms=3.5, color=colour, label=name)
        cost.plot(counts, 100 * needed, "o-", ms=3.5, color=colour, label=name)
    recall.set_yscale("log")
    recall.yaxis.set_major_formatter("{x:g}")
    recall.set_xlim(cost.get_xlim())
    recall.legend(frameon=False, fontsize=8)
    plain(recall, "Squared weight of near pairs missed, %", "tilings", "")
    cost.set_yscale("log")
    cost.axhline(100, color=RED, lw=1)
    cost.text(12, 80, "exact product", color=RED, fontsize=8, ha="right", va="top")
    all_known = forecaster.all_known().cost / N**2
    cost.axhline(100 * all_known, color=GREEN, lw=1, ls="--")
    cost.text(0, 80 * all_known, "all near pairs known", color=GREEN, fontsize=8, va="top")
    cost.set_ylim(40 * all_known, 180)
    cost.yaxis.set_major_formatter("{x:g}")
    plain(cost, f"Cost of drawing for eps = {EPS:g}, % of n²", "tilings", "")
    print(f"  all near pairs known: {all_known:.4f}")
    save(figure, "near")


def draw_smooth(s: Stages) -> None:
    """The polynomial of one group of tiles beside the kernel, and what it saves."""
    figure, (fit, saved) = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    costs = []
    for eps in (0.3, 0.1, 0.03):
        pilot = run_pilot(
            s.kernel,
            np.abs(s.x),
            s.query_blocks,
            s.key_tiles,
            rows_per_block=SHAPE.pilot_rows,
            threshold=SHAPE.near * eps / np.sqrt(N),
            column=s.x,
            rng=np.random.default_rng(SEED),
        )
        part = fit_polynomial(pilot, s.kernel.geometry)
        problem = problem_of(s.kernel, s.x, eps)
        whole = Forecaster(problem, pilot, SHAPE.aim * problem.budget.squared_error)
        forecasters = whole, whole.without(part.light, part.near_square)
        costs.append([100 * f.all_known().cost / N**2 for f in forecasters])
        print(f"smooth: eps {eps:g}, cost {costs[-1]} % of n², squares left {part.left:.3f}")
        if eps == EPS:
            middle = part
    block, tile = len(s.query_blocks.sizes) // 4, len(s.key_tiles.sizes) // 4
    geometry = s.kernel.geometry
    rows = s.query_blocks.order[s.query_blocks.start[block] : s.query_blocks.start[block + 1]]
    keys = s.key_tiles.order[s.key_tiles.start[tile] : s.key_tiles.start[tile + 1]]
    q, k = geometry.queries[rows] - geometry.centre, geometry.keys[keys] - geometry.centre
    z = (q @ k.T / s.bandwidth**2).ravel()
    g = middle.coefficients[block, tile]
    print(f"smooth: block {block}, tile {tile}, z {np.quantile(z, [0.01, 0.5, 0.99])}, g {g}")
    along = np.linspace(-3.5, 3.5, 200)
    count, edges = np.histogram(z, 60, (-3.5, 3.5))
    fit.fill_between(edges[:-1], 12 * count / count.max(), step="post", color="#dddddd")
    fit.plot(along, np.exp(along), color=RED, lw=1.5, label="$e^z$")
    fit.plot(along, g[0] + g[1] * along + g[2] * along**2, color=BLUE, lw=1.5, label="polynomial")
    fit.set_ylim(-1, 13)
    fit.legend(frameon=False, fontsize=8, loc="upper left")
    plain(fit, "One tile: kernel / $e^{-u-v}$, and how often z occurs", "z", "")
    places = np.arange(3)
    for shift, colour, name, values in zip(
        (-0.2, 0.2),
        (GREY, BLUE),
        ("kernel", "without the polynomial"),
        zip(*costs, strict=True),
        strict=True,
    ):
        bars = saved.bar(places + shift, values, 0.38, color=colour, label=name)
        saved.bar_label(bars, fmt="%.2g", fontsize=8)
    saved.set_xticks(places, ["eps = 0.3", "0.1", "0.03"])
    saved.set_yscale("log")
    saved.yaxis.set_major_formatter("{x:g}")
    saved.legend(frameon=False, fontsize=8, loc="upper left")
    saved.margins(y=0.2)
    plain(saved, "Cost of draws, all near pairs known, % of n²", "", "")
    save(figure, "smooth")


def draw_error(s: Stages) -> None:
    """True and estimated error against the pairs computed, for several eps and vectors."""
    figure, (errors, estimates) = plt.subplots(1, 2, figsize=(9.2, 3.8), layout="constrained")
    tolerances = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03)
    colours = dict(zip(tolerances, plt.cm.plasma(np.linspace(0.85, 0, 6)), strict=True))
    markers = {"ones": "s", "gauss": "o", "t2": "^"}
    for kind, marker in markers.items():
        runs = error_runs(s, kind, tolerances)
        for eps, share, true, guess in runs:
            style = {"ms": 4.5, "color": colours[eps], "mew": 0, "alpha": 0.9}
            errors.plot(100 * share, true, marker, **style)
            estimates.plot(guess, true, marker, **style)
        estimates.plot([], [], marker, ms=4.5, color=GREY, mew=0, label=f"x = {kind}")
    for eps, colour in colours.items():
        errors.axhline(eps, color=colour, lw=0.8, ls=":")
        errors.text(102, eps, f"eps = {eps:g}", color=colour, fontsize=8, va="center")
    shares, uniform, zero = uniform_errors(s)
    errors.plot(100 * shares, uniform, color=GREY, lw=1)
    errors.text(20, 2.5, "uniform sample of keys", color=GREY, fontsize=8)
    errors.axhline(zero, color=RED, lw=1, ls="--")
    errors.text(3.1, zero * 1.08, "y = 0", color=RED, fontsize=8, va="bottom")
    ticks = (0.01, 0.03, 0.1, 0.3, 1, 3)
    for axes, along in ((errors, (3, 10, 30, 100)), (estimates, (0.01, 0.03, 0.1, 0.3))):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis, places in ((axes.xaxis, along), (axes.yaxis, ticks)):
            axis.set_major_locator(matplotlib.ticker.FixedLocator(places))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
    errors.set_xlim(3, 100)
    errors.set_ylim(0.009, 6)
    plain(errors, "Error against pairs computed, all stages", "% of n²", "true error / |x|")
    line = np.array([0.01, 0.4])
    estimates.plot(line, line, color=GREY, lw=1)
    estimates.legend(frameon=False, fontsize=8, loc="upper left")
    plain(estimates, "Estimated and true error", "info.error_estimate", "true error / |x|")
    save(figure, "error")


def error_runs(
    s: Stages, kind: str, tolerances: tuple[float, ...]
) -> list[tuple[float, float, float, float]]:
    """(eps, share of pairs, true error, estimate) of sampled products with two seeds each."""
    x = vectors(N, SEED)[kind]
    options = {"bandwidth": s.bandwidth, "return_info": True}
    exact, info = akmv.matvec(s.kernel.queries, s.kernel.keys, x, method="exact", **options)
    print(f"error, x = {kind}: |Kx| / |x| {info.product_norm:.2f}")
    runs = []
    for eps in tolerances:
        for seed in range(2):
            y, info = akmv.matvec(s.kernel.queries, s.kernel.keys, x, eps=eps, rng=seed, **options)
            true = float(np.linalg.norm((y - exact).astype(np.float64)) / np.linalg.norm(x))
            share = info.pairs / info.pairs_exact
            print(
                f"  eps {eps:g}: {info.method}, pairs {share:.1%}, error {true:.3f}, "
                f"estimate {info.error_estimate:.3f}, draws {info.plan.numbers.get('draws')}, "
                f"rows recomputed {info.plan.numbers.get('rows_recomputed')}"
            )
            if info.method == "sampled":
                runs.append((eps, share, true, info.error_estimate))
    eps, _, true, guess = np.array(runs).T
    print(
        f"  largest error / eps {np.max(true / eps):.2f}; "
        f"estimate / true {np.min(guess / true):.2f} to {np.max(guess / true):.2f}"
    )
    return runs


def uniform_errors(s: Stages) -> tuple[np.ndarray, np.ndarray, float]:
    """Errors of uniform samples of keys by their shares, and of zero, for the Gaussian x."""
    options = {"bandwidth": s.bandwidth, "method": "exact"}
    exact = akmv.matvec(s.kernel.queries, s.kernel.keys, s.x, **options)
    shares = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 0.9])
    errors = []
    for share in shares:
        drawn = np.random.default_rng(SEED).permutation(N)[: int(share * N)]
        weights = (s.x[drawn] / share).astype(np.float32)
        y = akmv.matvec(s.kernel.queries, s.kernel.keys[drawn], weights, **options)
        errors.append(float(np.linalg.norm(y - exact) / np.linalg.norm(s.x)))
    print(
        "uniform sample of keys:",
        dict(zip(shares.tolist(), np.round(errors, 2).tolist(), strict=True)),
    )
    return shares, np.array(errors), float(np.linalg.norm(exact) / np.linalg.norm(s.x))


def main() -> None:
    OUT.mkdir(exist_ok=True)
    stages = first_stages()
    draw_order(stages)
    draw_near(stages)
    draw_rates(stages)
    draw_smooth(stages)
    draw_error(stages)


if __name__ == "__main__":
    main()
