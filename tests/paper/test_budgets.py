"""Budgets of rows: what each of them gains at the same number of draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from approxkmv.paper.budgets import POLICIES, attention_variances, budgets, squared_errors

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def head(n=120, d=8, r=3):
    """A head whose queries are short and long, so that rows differ."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((n, d)) * np.linspace(0.3, 3, n)[:, None]
    return query, rng.standard_normal((n, d)), rng.standard_normal((n, r))


def test_variances_are_those_of_draws():
    """Numerator and row sum estimated from the same uniform draws: 2,000 runs of 400 draws.

    Summed over rows within 5 % of V_i over the number of draws; the linearisation is off by 1/400.
    """
    query, key, value = head()
    n, m, heavy = len(key), 400, 0.05
    V = attention_variances(query, key, value, 0.3, heavy=heavy)
    A = np.exp(0.3 * query @ key.T)
    P = A / A.sum(axis=1, keepdims=True)
    light = np.where(heavy > P, A, 0.0)
    exact, found = P @ value, A - light
    rng = np.random.default_rng(1)
    squared = np.zeros(n)
    for _ in range(2000):
        keys = rng.integers(n, size=(n, m))  # every row draws for itself
        drawn = np.take_along_axis(light, keys, axis=1) * (n / m)
        total = found.sum(axis=1) + drawn.sum(axis=1)
        output = found @ value + np.einsum("im,imr->ir", drawn, value[keys])
        squared += ((output / total[:, None] - exact) ** 2).sum(axis=1)
    assert squared.sum() / 2000 == pytest.approx(V.sum() / m, rel=0.05)


def test_every_policy_costs_the_same():
    V = attention_variances(*head(), 0.3, heavy=0.05)
    for policy in POLICIES:
        assert budgets(policy, V, 1000).sum() == pytest.approx(1000)
    assert budgets("proportional", np.array([0.0, 1.0]), 8).tolist() == [0.0, 8.0]


def test_proportional_budgets_gain_nothing_in_total_and_most_in_the_worst_row():
    """The paper's rule equals uniform draws in the total, and has the least largest error.

    Neyman's has the least total, by 1 + CV^2 of the roots.
    """
    V = attention_variances(*head(), 0.3, heavy=0.05)
    errors = {policy: squared_errors(V, budgets(policy, V, 1000)) for policy in POLICIES}
    total = {policy: e.sum() for policy, e in errors.items()}
    worst = {policy: e.max() for policy, e in errors.items()}
    assert total["proportional"] == pytest.approx(total["uniform"], rel=1e-12)
    assert np.ptp(errors["proportional"]) < 1e-12 * worst["proportional"]
    assert min(worst, key=worst.get) == "proportional"
    assert min(total, key=total.get) == "Neyman"
    root = np.sqrt(V)
    gain = 1 + root.var() / root.mean() ** 2
    assert total["uniform"] / total["Neyman"] == pytest.approx(gain, rel=1e-9)
    assert gain > 1.02
    assert total["Neyman"] < total["one and a half"] < total["uniform"]


def test_table_of_the_page_is_that_of_the_run():
    """docs/results/index.md quotes the medians over heads of docs/results/paper/budgets.json."""
    found = json.loads((RESULTS / "paper" / "budgets.json").read_text(encoding="utf-8"))
    page = (RESULTS / "index.md").read_text(encoding="utf-8")
    heads = found["heads"]
    assert len(heads) == 72
    for policy in POLICIES:
        total, worst = (np.median([h[policy][i] for h in heads]) for i in range(2))
        assert f"| {policy} | {total:.2f} | {worst:.2f} |" in page
    assert max(abs(h["proportional"][0] - 1) for h in heads) < 1e-6
