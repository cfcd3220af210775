"""Arguments of every kind from a seed, each with what it means, or why it must be refused.

Strategies in the manner of Hypothesis, drawn by NumPy: a hundred times as many a second. What they
lack is shrinking; tests/campaign/test_slice.py has a slice of Hypothesis itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
F4, F8 = np.dtype("f4"), np.dtype("f8")


class Arg(NamedTuple):
    """An argument. ``plain`` is what it means, in double precision and its ``kind``."""

    value: Any
    plain: Array | float | None = None
    kind: np.dtype[Any] = F8
    bad: bool = False  # must be refused
    doubtful: bool = False  # may be refused
    base: Array | None = None  # the memory that must not change
    shown: str = ""


# Types, how often, and what is computed in.
_TYPES: dict[str, tuple[float, np.dtype[Any] | None]] = {
    "f8": (0.34, F8),
    "f4": (0.34, F4),
    "f2": (0.04, F4),
    "g": (0.02, F8),
    "i1": (0.02, F4),
    "u1": (0.02, F4),
    "i2": (0.02, F4),
    "u2": (0.02, F4),
    "i4": (0.02, F8),
    "i8": (0.03, F8),
    "u8": (0.02, F8),
    ">f4": (0.02, F4),
    ">f8": (0.02, F8),
    ">i2": (0.01, F4),
    "?": (0.01, None),
    "c16": (0.01, None),
    "O": (0.01, None),
    "U3": (0.01, None),
    "M8[s]": (0.01, None),
    "V4": (0.01, None),
}
_NAMES = list(_TYPES)
_SHARES = np.cumsum([share for share, _ in _TYPES.values()])
_LAYOUTS = (
    ["C"] * 10
    + ["F", "strided", "negative", "readonly", "unaligned", "broadcast", "list", "tuple"]
    + ["torch", "torch", "torch bfloat16", "torch grad", "masked", "hidden", "matrix", "memoryview"]
)
_TORCH = {"f8", "f4", "f2", "i1", "u1", "i2", "i4", "i8"}


def _values(rng: Rng, shape: tuple[int, ...]) -> tuple[Array, str]:
    """Ordinary numbers mostly; huge, tiny, equal, signed zeros, not finite now and then."""
    style = rng.integers(24)
    v = rng.standard_normal(shape)
    if style < 12:
        return v, "normal"
    if style < 14:
        return np.rint(3 * v), "integers"
    if style == 14:
        return np.full(shape, v.flat[0] if v.size else 1.0), "constant"
    if style == 15:
        return np.where(v > 0, 0.0, -0.0), "zeros"
    if style == 16:
        return v * 10.0 ** rng.choice([-30, 30]), "1e+-30"
    if style == 17:
        return v * 10.0 ** rng.choice([-300, 300]), "1e+-300"
    if style == 18:
        return v * rng.choice([1e-310, 1e-41]), "denormal"
    if style == 19:
        return v * 10.0 ** rng.uniform(-20, 20, shape), "all sizes"
    if style == 20:
        return v + 10.0 ** rng.integers(0, 7), "offset"
    if style == 21 and v.size:
        v.flat[rng.integers(v.size)] = 10.0 ** rng.integers(3, 38)
        return v, "one far"
    if style == 22 and v.size and rng.random() < 0.5:
        v.flat[rng.integers(v.size)] = rng.choice([np.nan, np.inf, -np.inf])
        return v, "not finite"
    return 10 * v, "wide"


def array(rng: Rng, shape: tuple[int, ...], plain_only: float = 0.6) -> Arg:
    """An array of this shape in any type and layout; ``plain_only`` is the share of usual ones."""
    values, style = _values(rng, shape)
    usual = rng.random() < plain_only
    name = ("f4", "f8")[rng.integers(2)] if usual else _NAMES[_pick(rng)]
    layout = "C" if usual else _LAYOUTS[rng.integers(len(_LAYOUTS))]
    kind = _TYPES[name][1]
    shown = f"{style} {name} {layout} {shape}"
    if kind is None:
        return Arg(np.zeros(shape, name), bad=True, shown=shown)
    with np.errstate(all="ignore"):
        if np.dtype(name).kind in "iu":
            low, high = np.iinfo(name).min, np.iinfo(name).max
            values = np.clip(np.rint(np.nan_to_num(values)), max(low, -1e6), min(high, 1e6))
        a = np.ascontiguousarray(values, name)
        computed = a.astype(kind)
    if layout == "broadcast" and a.ndim > 1 and shape[0] > 0:
        a = np.broadcast_to(a[:1], shape)
        computed = a.astype(kind)
    plain = computed.astype(float)
    made = _laid_out(a, layout, name, rng)
    if layout == "torch bfloat16" and name in _TORCH:
        plain, kind = made.value.detach().float().numpy().astype(float), F4
    return made._replace(
        plain=plain,
        kind=kind,
        bad=made.bad or not bool(np.isfinite(plain).all()),
        shown=shown,
    )


def _pick(rng: Rng) -> int:
    return min(int(np.searchsorted(_SHARES, rng.random() * _SHARES[-1])), len(_NAMES) - 1)


def _laid_out(a: Array, layout: str, name: str, rng: Rng) -> Arg:
    """The same numbers in another place, or handed in as something else."""
    if layout == "F":
        a = np.asfortranarray(a)
    elif layout == "strided" and a.ndim:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
        wide[..., ::2] = a
        return Arg(wide[..., ::2], base=wide)
    elif layout == "negative" and a.ndim:
        a = np.ascontiguousarray(a[::-1])[::-1]
    elif layout == "readonly":
        a = a.copy()
        a.flags.writeable = False
    elif layout == "unaligned" and a.dtype.byteorder != ">" and a.ndim and a.size:
        memory = np.zeros(a.nbytes + 1, np.uint8)
        off = memory[1:].view(a.dtype).reshape(a.shape)
        off[...] = a
        return Arg(off, base=memory)
    elif layout in ("list", "tuple"):
        # Python's numbers: integers become int64 and all others float64.
        return Arg(a if name not in ("f8", "i8") or 0 in a.shape else _nested(a, layout))
    elif layout.startswith("torch") and name in _TORCH:
        return _tensor(a, layout)
    elif layout == "masked":
        return Arg(np.ma.masked_array(a), base=a, doubtful=True)
    elif layout == "hidden" and a.size:  # what is masked must not be used as if it were not
        mask = rng.random(a.shape) < 0.3
        hidden = bool(mask.any())
        return Arg(np.ma.masked_array(a, mask), base=a, bad=hidden, doubtful=True)
    elif layout == "matrix" and a.ndim == 2:
        return Arg(a.view(np.matrix), base=a, doubtful=True)
    elif layout == "memoryview" and a.size and name in ("f4", "f8"):
        return Arg(memoryview(a), base=a)
    return Arg(a, base=a)


def _nested(a: Array, layout: str) -> Any:
    return a.tolist() if layout == "list" else tuple(a.tolist())


def _tensor(a: Array, layout: str) -> Arg:
    import torch

    a = a.copy()
    tensor = torch.from_numpy(a)
    if layout == "torch bfloat16":
        return Arg(tensor.to(torch.bfloat16))
    if layout == "torch grad" and tensor.is_floating_point():
        return Arg(tensor.requires_grad_(True), base=a, doubtful=True)
    return Arg(tensor, base=a)


_HUGE = 10**400
_NOT_NUMBERS: tuple[Any, ...] = ("1", None, True, [[1.0]], 1j, b"1", np.ones((1, 2)), {}, object())


def positive(rng: Rng, wrong: float = 0.06) -> Arg:
    """A bandwidth."""
    if rng.random() < wrong:
        bad = (0, -1.0, math.nan, math.inf, -math.inf, -0.0, _HUGE, *_NOT_NUMBERS)
        value = bad[rng.integers(len(bad))]
        return Arg(value, bad=True, shown=_short(value))
    style = rng.integers(12)
    value: Any = float(10 ** rng.uniform(-1, 1))
    if style == 7:
        value = float(10 ** rng.uniform(-30, 30))
    elif style == 8:
        value = float(10.0 ** rng.choice([-300, -200, -160, 160, 200, 300]))
    elif style == 9:
        kinds = (np.float32(value), np.asarray(value), Fraction(7, 5), Decimal("1.5"), np.int8(2))
        value = kinds[rng.integers(len(kinds))]
    elif style == 10:
        value = int(rng.integers(1, 9))
    return Arg(value, plain=float(value), shown=_short(value))


def tolerance(rng: Rng, wrong: float = 0.04) -> Arg:
    """An eps."""
    if rng.random() < wrong:
        bad = (-1, math.nan, math.inf, -1e-300, _HUGE, *_NOT_NUMBERS)
        value = bad[rng.integers(len(bad))]
        return Arg(value, bad=True, shown=_short(value))
    usual = (0, 0.0, 0.1, 1.0, 0.3, 1e-3, 1e-9, 1e-300, 1e300, 5, np.float32(0.1))
    value = usual[rng.integers(len(usual))]
    return Arg(value, plain=float(value), shown=_short(value))


def probability(rng: Rng, wrong: float = 0.04) -> Arg:
    """A delta."""
    if rng.random() < wrong:
        bad = (0, 1, 1.0, -0.1, 2, math.nan, math.inf, _HUGE, *_NOT_NUMBERS)
        value = bad[rng.integers(len(bad))]
        return Arg(value, bad=True, shown=_short(value))
    return Arg((0.05, 0.5, 1e-3, 0.999)[rng.integers(4)], plain=0.05)


def seed(rng: Rng, wrong: float = 0.03) -> Arg:
    """An rng."""
    if rng.random() < wrong:
        bad = (-1, 1.5, "seed", True, [1], -(10**30), math.nan)
        value = bad[rng.integers(len(bad))]
        return Arg(value, bad=True, shown=_short(value))
    return Arg((0, 7, 2**63, 10**40, np.int64(3))[rng.integers(5)])


def threads(rng: Rng, wrong: float = 0.04) -> Arg:
    """A number of threads."""
    if rng.random() < wrong:
        bad = (0, -2, 1.5, "2", True, 2**31, 2**63, 10**30, math.nan)
        value = bad[rng.integers(len(bad))]
        # A number of threads beyond what the machine's integers hold may be refused or cut.
        huge = isinstance(value, int) and value > 1
        return Arg(value, bad=not huge, doubtful=True, shown=_short(value))
    return Arg((None, 1, 2, 3, np.int8(1))[rng.integers(5)])


def or_none(arg: Arg) -> Arg:
    """The same for an argument that may be None."""
    return arg._replace(bad=False) if arg.value is None else arg


def truth(rng: Rng, wrong: float = 0.02) -> Arg:
    """True or False."""
    if rng.random() < wrong:
        value = (None, 1, "yes", 0.0)[rng.integers(4)]  # any truth value may do
        return Arg(value, plain=float(bool(value)), doubtful=True, shown=_short(value))
    value = bool(rng.integers(2))
    return Arg(value, plain=float(value))


def word(rng: Rng, allowed: tuple[str, ...], wrong: float = 0.03) -> Arg:
    """One of a few words."""
    if rng.random() < wrong:
        value = ("magic", "", 3, None, b"exact", ["exact"], "EXACT")[rng.integers(7)]
        return Arg(value, bad=True, shown=_short(value))
    return Arg(allowed[rng.integers(len(allowed))])


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**60 else "10**400"
    return text[:60]


def options_of(rng: Rng, **makers: Callable[[Rng], Arg]) -> dict[str, Arg]:
    """Some of these options."""
    return {name: make(rng) for name, make in makers.items() if rng.random() < 0.3}


def given(options: dict[str, Arg]) -> dict[str, Any]:
    return {name: arg.value for name, arg in options.items()}
