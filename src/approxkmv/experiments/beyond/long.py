"""Heads of long contexts: their constants, and what a product or attention with them costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.capture import Head, LoadedModel
from approxkmv.experiments import engine, timing
from approxkmv.experiments.heads import constants, log_kernel_of_attention, other_constants
from approxkmv.experiments.records import Record, rounded


def long_tokens(loaded: LoadedModel, bodies: Iterable[str], n: int) -> npt.NDArray[np.int64] | None:
    """The first n tokens of texts put together; None if they do not have as many."""
    whole = ""
    for body in bodies:
        whole = f"{whole}\n\n{body}" if whole else body
        # A token is rarely longer than eight characters, so this tokenizes once or twice.
        if len(whole) > 8 * n and len(tokens := loaded.token_ids(whole, n)) == n:
            return tokens
    tokens = loaded.token_ids(whole, n)
    return tokens if len(tokens) == n else None


def measured_heads(
    heads: Iterable[Head], settings: dict[str, Any], n_threads: int | None
) -> list[Record]:
    """One record for each head looked at and each length."""
    found = []
    for head in heads:
        if head.head % settings["heads_step"] == 0:
            for n in settings["lengths"]:
                about = {
                    "layer": head.layer,
                    "head": head.head,
                    "is_causal": head.is_causal,
                    "n": n,
                }
                numbers = head_constants(head, n) | head_cost(head, n, settings, n_threads)
                found.append(about | numbers)
    return found


def head_constants(head: Head, n: int) -> Record:
    """Constants of the four matrices on the first n tokens; single precision saves memory."""
    logs = log_kernel_of_attention(head.query[:n], head.key[:n], head.scale)
    own = constants(np.exp(logs - logs.max()).reshape(1, -1), n)[0]
    others = {name: value[0] for name, value in other_constants(logs[None]).items()}
    return {"c": rounded(own)} | {name: rounded(value) for name, value in others.items()}


def head_cost(head: Head, n: int, settings: dict[str, Any], n_threads: int | None) -> Record:
    """Pairs evaluated, and exact and approximate time, of this head on the first n tokens."""
    arrays = head.query[:n], head.key[:n], head.value[:n]
    options: dict[str, Any] = {
        "scale": head.scale,
        "is_causal": head.is_causal,
        "rng": 0,
        "n_threads": n_threads,
    }
    times = timing.interleaved(
        {
            "exact": lambda: engine.attention(*arrays, eps=0.0, **options),
            "engine": lambda: engine.attention(*arrays, eps=settings["eps"], **options),
        },
        settings["repetitions"],
    )
    done = engine.counts(*arrays, eps=settings["eps"], **options)
    difference = times["engine"].result - times["exact"].result
    return {
        "method": done.method,
        "pairs": rounded(done.pairs),
        "error": rounded(np.linalg.norm(difference) / np.linalg.norm(head.value[:n])),
        "speed_up": rounded(timing.ratio(times["exact"], times["engine"]).median),
        "seconds": {name: rounded(list(timing.seconds)) for name, timing in times.items()},
    }
