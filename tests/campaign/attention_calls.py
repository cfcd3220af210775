"""Calls of ``attention``: heads, groups, masks, scales, and whatever arrays they come in."""

from __future__ import annotations

from typing import Any

import numpy as np

import approxkmv as akmv

from . import oracles
from .api import Call
from .inputs import Arg, array, given, options_of, probability, seed, threads, tolerance, word

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
_SIZES = np.array([0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17])
_DIMS = np.array([0, 1, 1, 2, 3, 4, 5, 8, 12])


def attention(rng: Rng) -> Call:
    m, n = (int(rng.choice(_SIZES)) for _ in range(2))
    d, r = (int(v) for v in rng.choice(_DIMS, 2))
    groups = int(rng.choice([1, 2, 3]))
    gqa = bool(rng.random() < 0.2)
    lead = ((), (), (2,), (1, 2))[rng.integers(4)] if not gqa else ((2,), (1, 2))[rng.integers(2)]
    more = (*lead[:-1], lead[-1] * groups) if gqa else lead
    q, k, v = (
        array(rng, (*s, a, b), 0.75) for s, a, b in ((more, m, d), (lead, n, d), (lead, n, r))
    )
    causal = bool(rng.random() < 0.3)
    options = options_of(
        rng,
        eps=tolerance,
        delta=probability,
        method=lambda rng: word(rng, ("auto", "exact", "sampled")),
        n_threads=threads,
    )
    options["rng"] = seed(rng)
    scale = Arg((None, 0.5, -1.0, 0.0, 1e300, 3)[rng.integers(6)] if rng.random() < 0.4 else None)
    mask = None
    if rng.random() < 0.3:
        shape = ((m, n), (1, n), (n,), (m, 1))[rng.integers(4)]
        truths = rng.random() < 0.5
        values = rng.random(shape) < 0.7 if truths else _numbers(rng, shape)
        mask = Arg(values, plain=values, base=values, shown=f"mask {values.dtype} {shape}")
    args = {"query": q, "key": k, "value": v, "scale": scale, **options}
    if mask is not None:
        args["attn_mask"] = mask
    # Scores that overflow double precision are refused.
    sizes = [np.abs(a.plain).max(initial=0.0) if a.plain is not None else 1.0 for a in (q, k)]
    with np.errstate(all="ignore"):
        reach = sizes[0] * sizes[1] * max(d, 1) * max(abs(scale.value or 1.0), 1.0)
    doubtful = not reach < 1e300 or (d > 0 and bool(max(sizes) > 1e150))

    def check(y: Any) -> str | None:
        y = y.detach().float().numpy() if hasattr(y, "detach") else y
        kind = np.result_type(q.kind, k.kind, v.kind)
        plain = [np.asarray(a.plain) for a in (q, k, v)]
        if gqa:
            plain[1:] = [np.repeat(a, groups, axis=-3) for a in plain[1:]]
        s = d**-0.5 if scale.value is None and d else 1.0 if scale.value is None else scale.value
        seen = np.zeros((m, n))
        if mask is not None:
            values = np.asarray(mask.plain)
            seen = seen + (np.where(values, 0.0, -np.inf) if values.dtype == bool else values)
        if causal:
            seen = np.where(np.tri(m, n, dtype=bool), seen, -np.inf)
        wanted, error = oracles.attention(*plain, s, seen, kind)
        narrow = [a for a in (q, k, v) if "torch" in a.shown]
        if narrow:  # a tensor comes back in the type of the tensors, which may be short
            return "NaN from finite input" if np.isnan(y).any() else None
        return oracles.differs(y, wanted, error, kind)

    return Call(
        "attention",
        lambda: akmv.attention(
            q.value,
            k.value,
            v.value,
            scale=scale.value,
            is_causal=causal,
            enable_gqa=gqa,
            attn_mask=None if mask is None else mask.value,
            **given(options),
        ),
        args,
        check,
        doubtful=doubtful,
    )


def _numbers(rng: Rng, shape: tuple[int, ...]) -> Array:
    """A mask of numbers: small, very negative, minus infinity."""
    values = rng.standard_normal(shape)
    values[rng.random(shape) < 0.2] = (-np.inf, -1e30, -1e300, 30.0)[rng.integers(4)]
    with np.errstate(over="ignore"):
        return values.astype(("f4", "f8")[rng.integers(2)]) if rng.random() < 0.5 else values
