"""docs/latex/corrections.tex: it compiles; its numbers and inequalities are those of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from approxkmv.datasets import rounded_squares
from approxkmv.exact import gaussian_kernel
from approxkmv.paper.approx_light import approx_light
from approxkmv.paper.density import ExactDensity
from approxkmv.paper.find_heavy import scan_all
from approxkmv.paper.parameters import LEVEL_SETS_EXPONENT, Parameters, balance, exponents

SOURCE = Path(__file__).resolve().parents[2] / "docs" / "latex" / "corrections.tex"


def test_exponents_are_those_of_the_code():
    """The table of Theorem 1.1, row by row, and the four exponents below it."""
    text = SOURCE.read_text(encoding="utf-8")
    rows = re.findall(
        r"^(as printed|balanced.*?) & ([\d.]+) & .*? & ([\d.]+) & ([\d.]+)", text, re.M
    )
    assert [name for name, *_ in rows] == [
        "as printed",
        "balanced (E13)",
        "balanced, higher floor",
    ]
    printed = (0.109, 0.218, max(exponents(0.109, 1 / 3, 0.218).values()))
    found = [printed]
    for raised in (False, True):
        gamma, _, beta, exponent = balance(raised_floor=raised)
        found.append((gamma, beta, exponent))
    for (_, *said), computed in zip(rows, found, strict=True):
        assert [float(s) for s in said] == pytest.approx(computed, abs=6e-4)
    for rho in (0.25, LEVEL_SETS_EXPONENT):
        for raised in (False, True):
            exponent = balance(density_exponent=rho, raised_floor=raised)[3]
            assert f"{exponent:.3f}".rstrip("0") in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_it_compiles(tmp_path):
    """Twice, without an undefined reference."""
    shutil.copy(SOURCE, tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", SOURCE.name]
    for _ in range(2):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout[-2000:]
    assert "undefined references" not in run.stdout


class EndOfPromise(ExactDensity):
    """A density off by as much as it may be, up or down, and 0 below its floor."""

    def estimate(self, queries, *, n_threads=None):
        answer = super().estimate(queries, n_threads=n_threads)
        sign = np.where(np.arange(len(queries)) % 2, 1, -1)
        return replace(answer, values=(1 + sign * self.relative_error) * answer.values)


def end_of_promise(points, *, bandwidth, floor, relative_error, sizes, rng):
    del sizes, rng
    return EndOfPromise(points, bandwidth, floor, relative_error)


@pytest.mark.parametrize("as_printed", [False, {"E7"}, {"E8", "E9"}])
def test_proof_of_lemma_35_bounds_s_on_both_sides(as_printed):
    """Row by row: sum over L_i <= s_i <= sum over L_i of rounded squares + 4 b P_i + u.

    With densities at either end of their promise. Where b is 0 the upper bound has no room for
    unrounded squares (E7); the lower one has none for the printed one-sided estimate (E8, E9).
    """
    n, eps, queries = 300, 0.4, 0.7 * np.random.default_rng(0).standard_normal((300, 4))
    x = np.random.default_rng(1).uniform(0.8, 1.2, n)
    x *= np.sqrt(n / (x @ x))
    parameters = Parameters.printed(n, eps, constants="practical")
    heavy = scan_all(queries, queries, bandwidth=1.0, threshold=parameters.threshold)
    options = {} if as_printed == {"E7"} else {"density": end_of_promise}
    light = approx_light(
        queries,
        queries,
        x,
        heavy,
        np.arange(n),
        bandwidth=1.0,
        parameters=parameters,
        as_printed=as_printed,
        rng=np.random.default_rng(0),
        **options,
    )
    K = gaussian_kernel(queries, queries, 1.0)
    in_L = parameters.threshold > K
    rounded = light.buckets.rounded
    lower = np.where(in_L, K, 0) ** 2 @ x**2
    # the structures of the default are exact at this size: b is 0
    b = 0.0 if as_printed == {"E7"} else parameters.density_error
    u = len(light.buckets) * parameters.unseen_variance / parameters.n_buckets
    upper = np.where(in_L, K, 0) ** 2 @ rounded + 4 * b * (K**2 @ rounded) + u
    is_enough = (light.s >= lower * (1 - 1e-9)).all()
    is_not_more = (light.s <= upper * (1 + 1e-9)).all()
    assert b <= 0.5
    assert is_enough == (as_printed != {"E8", "E9"})
    assert is_not_more == (as_printed != {"E7"})


def test_number_of_draws_of_lemma_35():
    """The draws asked for are below the lemma's sum, and above it with E7 as printed.

    K is the identity: nothing is light, so all that may be drawn for is the unseen part.
    """
    instance, eps, n = rounded_squares(400, 0.2), 0.2, 400
    parameters = Parameters.printed(n, eps, constants="practical")
    heavy = scan_all(instance.queries, instance.keys, bandwidth=1.0, threshold=parameters.threshold)
    T = np.arange(n - 1)
    draws = []
    for as_printed in (False, {"E7"}):
        light = approx_light(
            instance.queries,
            instance.keys,
            instance.x,
            heavy,
            T,
            bandwidth=1.0,
            parameters=parameters,
            as_printed=as_printed,
            rng=np.random.default_rng(0),
        )
        draws.append(int(light.repetitions.sum()))
    u = parameters.unseen_variance / parameters.n_buckets  # one bucket
    lemma = n * n * u / (parameters.single_failure * parameters.eps_inner**2) + n
    assert draws[0] <= lemma < draws[1]
