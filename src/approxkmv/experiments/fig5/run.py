"""Measure what figure 5 needs: tune each method to the error band, then time all in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.datasets import glove
from approxkmv.experiments import timing
from approxkmv.experiments.fig5 import contestants
from approxkmv.experiments.fig5.contestants import Array, Problem, relative_error
from approxkmv.experiments.fig5.plot import outcome
from approxkmv.experiments.outcome import Outcome
from approxkmv.experiments.records import Record, rounded
from approxkmv.experiments.setup import Setup


class Tuned(NamedTuple):
    """The cheapest setting with an error small enough, and that error."""

    value: float
    error: float


def run(setup: Setup) -> Outcome:
    """Time the sizes that are not on record yet, then plot all of them."""
    settings = setup.settings("fig5")
    records = setup.records("fig5")

    def ours() -> dict[tuple[str, int], Record]:
        return {(r["scaling"], r["n"]): r for r in records if r["settings"] == settings}

    wanted = [(name, n) for name in settings["scalings"] for n in settings["sizes"]]
    left = [case for case in wanted if case not in ours()]
    if left:
        vectors = _vectors(setup, settings)
        # A long sequence takes as many times longer as it has more pairs.
        with setup.progress("fig5, sizes", sum(n * n for _, n in left)) as steps:
            for name, n in left:
                scale = settings["scalings"][name]
                sizes = settings["batch"], settings["stride"]
                problem = contestants.word_problem(vectors, n, *sizes, scale)
                about = {"scaling": name, "n": n, "settings": settings}
                records.append(about | setup.provenance() | measured(problem, settings, setup))
                steps.advance(n * n)
    found = ours()
    return outcome([found[case] for case in wanted], settings)


def _vectors(setup: Setup, settings: dict[str, Any]) -> npt.NDArray[np.float32]:
    vectors = glove(setup.glove).vectors
    needed = 2 * settings["batch"] * settings["stride"]
    if len(vectors) < needed:
        raise ValueError(f"fig5 needs {needed} word vectors, got {len(vectors)}.")
    return vectors


def measured(problem: Problem, settings: dict[str, Any], setup: Setup) -> Record:
    """Settings chosen, errors and times of one size."""
    seed, threads = setup.seed, setup.n_threads
    n = problem.v.shape[1]
    exact = contestants.compiled(problem, 0.0, seed, threads)

    def error(found: Array) -> float:
        return relative_error(found, exact, problem.v)

    def sampled(n_samples: float, seed: int, *, as_printed: bool = False) -> Array:
        return contestants.numpy_sampled(
            problem, int(n_samples), settings["n_bits"], seed, as_printed=as_printed
        )

    def approximate(eps: float, seed: int) -> Array:
        return contestants.compiled(problem, eps, seed, threads)

    sizes = [m for m in settings["n_samples"] if m <= n // 2]
    paper = tuned(lambda m: error(sampled(m, seed)), sizes, settings["aim"])
    ours = tuned(lambda eps: error(approximate(eps, seed)), settings["eps"], settings["aim"])
    times = timing.interleaved(
        {
            "exact, NumPy": lambda: contestants.numpy_exact(problem),
            "paper, NumPy": lambda: sampled(paper.value, seed + 1),
            "printed, NumPy": lambda: sampled(paper.value, seed + 1, as_printed=True),
            "exact, compiled": lambda: contestants.compiled(problem, 0.0, seed, threads),
            "engine": lambda: approximate(ours.value, seed + 1000),
        },
        settings["repetitions"],
        warm_up=False,  # tuning has run all but NumPy's exact attention, which takes seconds
    )
    done = contestants.compiled_counts(problem, ours.value, threads)
    return {
        "n_samples": int(paper.value),
        "eps": ours.value,
        "engine_method": done.method,
        "engine_pairs": rounded(done.pairs),
        "errors": {name: rounded(error(timing.result)) for name, timing in times.items()},
        "mean_error": rounded(error(contestants.mean_answer(problem))),
        "seconds": {name: rounded(list(timing.seconds)) for name, timing in times.items()},
    }


def tuned(error: Callable[[float], float], ladder: Sequence[float], aim: float) -> Tuned:
    """The first setting with an error of at most ``aim``, or the last one.

    Examples
    --------
    >>> tuned(lambda m: 1 / m, [2, 4, 8, 16], aim=0.2)
    Tuned(value=8, error=0.125)
    """
    for value in ladder:
        found = Tuned(value, error(value))
        if found.error <= aim:
            break
    return found
