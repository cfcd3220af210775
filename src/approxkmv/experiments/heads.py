"""What figures 1 to 4 are made of: c and order ratios of every head of a model, text by text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.capture import Head, LoadedModel, capture_heads
from approxkmv.experiments.models import Choice
from approxkmv.experiments.records import Record, rounded
from approxkmv.experiments.setup import Setup
from approxkmv.paper.assumption import prefix_constants_of_logs

Float = npt.NDArray[np.float64]
Array = npt.NDArray[np.floating]

I_MIN = 50  # shortest prefix
MAX_TOKENS = 512
LENGTHS = (*range(50, 501, 50), 512)  # of figure 4; 512 is not on the paper's grid (E20)
SETTINGS = {"i_min": I_MIN, "max_tokens": MAX_TOKENS, "lengths": list(LENGTHS)}


def log_kernel_of_attention(query: Array, key: Array, scale: float) -> Array:
    """Logarithms of the K that Lemma 4.1 makes of attention, with the prefactor of its proof.

    ``s (<q_i, k_j> - |q_i|²/2 - max |k|²/2)`` for arrays of shape (..., n, d), in their precision.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[1.0]]), np.array([[1.0], [2.0]])
    >>> log_kernel_of_attention(q, k, 1.0).tolist()
    [[-1.5, -0.5]]
    """
    query_norm = np.einsum("...ij,...ij->...i", query, query)[..., :, None]
    key_norm = np.einsum("...ij,...ij->...i", key, key).max(axis=-1)[..., None, None]
    return np.asarray(scale * (query @ key.swapaxes(-1, -2) - (query_norm + key_norm) / 2))


def constants(entries: Array, n_head: int) -> Array:
    """Tail over head of matrices given as their entries, flat in the last axis.

    Examples
    --------
    >>> import numpy as np
    >>> constants(np.array([[1.0, 0.5, 0.25, 0.5]]), 2).tolist()
    [0.5]
    """
    parted = np.partition(entries, -n_head, axis=-1)
    return np.asarray(parted[..., :-n_head].sum(axis=-1) / parted[..., -n_head:].sum(axis=-1))


def other_constants(logs: Array) -> dict[str, Array]:
    """Constants of softmax and of what a causal mask leaves, from logarithms of K (E18).

    Row factors such as the lemma's cancel in the softmax. Masked matrices have no entries above
    the diagonal; their head still has n entries.
    """
    n = logs.shape[-1]
    seen = np.tril(np.ones((n, n), bool))
    masked = np.where(seen, logs, -np.inf)
    return {
        "c_softmax": constants(_flat(_softmax(logs)), n),
        "c_causal": constants(np.exp(masked - masked.max((-1, -2), keepdims=True))[..., seen], n),
        "c_causal_softmax": constants(_softmax(masked)[..., seen], n),
    }


def _softmax(logs: Array) -> Array:
    raised = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def _flat(matrices: Array) -> Array:
    return matrices.reshape(*matrices.shape[:-2], -1)


def measured_text(loaded: LoadedModel, body: str) -> Record:
    """All numbers of one text: for each, a list over layers of lists over heads.

    ``n_tokens`` alone where the text has fewer than 50 tokens.
    """
    tokens = loaded.token_ids(body, MAX_TOKENS)
    n = len(tokens)
    if n < I_MIN:
        return {"n_tokens": n}
    layers = list(_layers(capture_heads(loaded, tokens)))
    by_layer = [measured_layer(heads) for heads in layers]
    return {"n_tokens": n, "is_causal": layers[0][0].is_causal} | {
        name: [layer[name] for layer in by_layer] for name in by_layer[0]
    }


def _layers(heads: Iterable[Head]) -> Iterator[list[Head]]:
    for _, layer in groupby(heads, key=lambda head: head.layer):
        yield list(layer)


def measured_layer(heads: list[Head]) -> dict[str, Any]:
    """Every statistic of figures 1 to 4 for the heads of one layer."""
    query = np.stack([head.query for head in heads]).astype(np.float64)
    key = np.stack([head.key for head in heads]).astype(np.float64)
    logs = log_kernel_of_attention(query, key, heads[0].scale)
    n = logs.shape[-1]
    prefixes = prefix_constants_of_logs(logs.astype(np.float64, copy=False), i_min=I_MIN)
    last = n * n - np.array([n, n + 1, 2 * n])  # places of these in ascending order
    nth, following, twice = np.partition(_flat(logs), last, axis=-1)[:, last].T
    numbers = {
        "max_c": prefixes.max(axis=-1),
        "c_at": prefixes[:, [i - I_MIN for i in LENGTHS if i <= n]],
        "log_to_next": nth - following,
        "log_to_twice": nth - twice,
        "c": prefixes[:, -1],
    }
    return {name: rounded(value) for name, value in (numbers | other_constants(logs)).items()}


def measure_heads(setup: Setup, choices: Iterable[Choice]) -> None:
    """Measure the chosen texts that have no record yet, one model after the other."""
    records = setup.records("heads")
    done = {(record["model_key"], record["text"]) for record in records if _is_ours(record)}
    for choice in choices:
        key = choice.key
        left = [text for text in setup.texts if (key, text.key) not in done]
        done |= {(key, text.key) for text in left}
        with setup.progress(f"{choice.label}, texts", len(left)) as steps:
            for text in left:
                start = time.perf_counter()
                numbers = measured_text(choice.loaded, text.body)
                about = {
                    "model": choice.label,
                    "model_key": key,
                    "text": text.key,
                    "corpus": setup.corpus.name,
                    "settings": SETTINGS,
                    "seconds": round(time.perf_counter() - start, 3),
                }
                records.append(about | setup.provenance() | numbers)
                steps.advance()


def _is_ours(record: Record) -> bool:
    return bool(record.get("settings") == SETTINGS)


@dataclass(frozen=True, eq=False)
class HeadTable:
    """The records of one model over the texts of a run.

    Attributes
    ----------
    choice : Choice
    records : list
        Of texts with at least 50 tokens.
    n_short : int
        Texts with fewer.
    """

    choice: Choice
    records: list[Record]
    n_short: int

    def stacked(self, name: str) -> Float:
        """One number for each text, layer and head; nan where it is not finite."""
        return np.array([record[name] for record in self.records], dtype=np.float64)

    @property
    def n_texts(self) -> int:
        """Texts measured."""
        return len(self.records)


def head_tables(setup: Setup, choices: Iterable[Choice]) -> list[HeadTable]:
    """What is on record of each model for the texts of this run."""
    wanted = {text.key for text in setup.texts}
    ours = [r for r in setup.records("heads") if _is_ours(r) and r["text"] in wanted]
    found = []
    for choice in choices:
        key = choice.key
        mine = {r["text"]: r for r in ours if r["model_key"] == key}.values()
        long = [r for r in mine if "max_c" in r]
        if not long:
            raise ValueError(
                f"no text of {setup.corpus.name} has {I_MIN} tokens for {choice.label}: "
                f"{len(mine)} were read."
            )
        found.append(HeadTable(choice, long, len(mine) - len(long)))
    return found
