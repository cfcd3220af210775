"""How each public function is called, and by what its answers are judged."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv

from . import oracles
from .api import Call
from .attention_calls import attention
from .inputs import (
    Arg,
    array,
    given,
    options_of,
    or_none,
    positive,
    probability,
    seed,
    threads,
    tolerance,
    truth,
    word,
)
from .more_calls import MORE

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
_SIZES = np.array([0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 25, 33, 40])
_DIMS = np.array([0, 1, 1, 2, 3, 4, 5, 8, 12])


def draw(rng: Rng) -> Call:
    """A call of one of the functions."""
    return FUNCTIONS[int(np.searchsorted(_SHARES, rng.random() * _SHARES[-1]))][1](rng)


def _size(rng: Rng) -> int:
    return int(_SIZES[rng.integers(len(_SIZES))])


class _Points:
    """Queries, keys and a bandwidth, and what is wrong with their shapes."""

    def __init__(self, rng: Rng, plain: float = 0.7) -> None:
        m, n, d = _size(rng), _size(rng), int(_DIMS[rng.integers(len(_DIMS))])
        shapes: list[tuple[int, ...]] = [(m, d), (n, d)]
        self.more_bad: list[str] = []
        if rng.random() < 0.03:
            which = int(rng.integers(2))
            shapes[which] = ((n,), (n, d + 1), (1, n, d), ())[rng.integers(4)]
            self.more_bad = ["queries", "keys"]
        self.queries = array(rng, shapes[0], plain)
        self.args = {"queries": self.queries}
        self.keys = Arg(None)
        if rng.random() < 0.7:
            self.keys = array(rng, shapes[1], plain)
            self.args["keys"] = self.keys
        elif len(shapes[0]) == 2:
            self.more_bad = []
        self.bandwidth = positive(rng)
        self.args["bandwidth"] = self.bandwidth
        self.values = (self.queries.value, self.keys.value)

    @property
    def n_keys(self) -> int:
        source = self.queries if self.keys.value is None else self.keys
        shape = np.shape(source.plain) if source.plain is not None else np.shape(source.value)
        return int(shape[0]) if shape else 1

    def plain(self) -> tuple[Array, Array, float, np.dtype[Any]]:
        """What they mean, in their common computing type."""
        q = self.queries
        k = q if self.keys.value is None else self.keys
        return q.plain, k.plain, self.bandwidth.plain, np.result_type(q.kind, k.kind)  # type: ignore[return-value]


def _matvec(rng: Rng) -> Call:
    p = _Points(rng)
    n = p.n_keys + (1 if rng.random() < 0.01 else 0)
    wrong = ["x"] if n != p.n_keys else []
    x = array(rng, (n,) if rng.random() < 0.5 else (n, int(rng.integers(0, 5))), 0.7)
    options = options_of(
        rng,
        eps=tolerance,
        rtol=lambda rng: or_none(tolerance(rng)),
        delta=probability,
        method=lambda rng: word(rng, ("auto", "exact", "sampled")),
        max_seconds=lambda rng: or_none(positive(rng)),
        n_threads=threads,
        check_finite=truth,
    )
    options["rng"] = seed(rng)
    info = bool(rng.random() < 0.2)
    args = {**p.args, "x": x, **options}
    unchecked = "check_finite" in options and not options["check_finite"].value

    def check(answer: Any) -> str | None:
        y = answer[0] if info else answer
        q, k, bandwidth, kind = p.plain()
        columns = x.plain if x.plain.ndim == 2 else x.plain[:, None]  # type: ignore[union-attr, index]
        wanted, error = oracles.product(q, k, columns, bandwidth, kind)  # type: ignore[arg-type]
        out = np.result_type(kind, x.kind)
        error = error + 4 * float(np.finfo(out).smallest_subnormal)
        # Columns are scaled in the type of x, where entries far below the largest lose digits.
        error = error + len(k) * float(np.finfo(x.kind).smallest_normal) * np.abs(columns).max(
            axis=0, initial=0.0
        )
        if y.dtype != out:
            return f"dtype {y.dtype}, expected {out}"
        wanted = wanted if x.plain.ndim == 2 else wanted[:, 0]  # type: ignore[union-attr]
        error = error if x.plain.ndim == 2 else error[:, 0]  # type: ignore[union-attr]
        if info and answer[1].method != "exact":
            return f"method {answer[1].method} for a product as small as this"
        return oracles.differs(y, wanted, error, out)

    call = Call(
        "matvec",
        lambda: akmv.matvec(
            *p.values, x.value, bandwidth=p.bandwidth.value, return_info=info, **given(options)
        ),
        args,
        check,
        more_bad=[*p.more_bad, *wrong],
    )
    return _not_checked(call) if unchecked else call


def _not_checked(call: Call) -> Call:
    """With check_finite=False what is not finite goes through: that is not judged here."""
    whole = all(
        arg.plain is None or np.isfinite(np.asarray(arg.plain, float)).all()
        for arg in call.args.values()
    )
    if whole:
        return call
    args = {k: a._replace(bad=False, doubtful=True) for k, a in call.args.items()}
    return call._replace(args=args, check=lambda _: None, more_bad=(), doubtful=True)


def _row_sums(rng: Rng) -> Call:
    p = _Points(rng)
    options = options_of(rng, n_threads=threads)

    def check(y: Any) -> str | None:
        q, k, bandwidth, kind = p.plain()
        wanted, error = oracles.product(q, k, np.ones((len(k), 1)), bandwidth, kind)
        return oracles.differs(y, wanted[:, 0], error[:, 0], kind)

    return Call(
        "row_sums",
        lambda: akmv.row_sums(*p.values, bandwidth=p.bandwidth.value, **given(options)),
        {**p.args, **options},
        check,
        more_bad=p.more_bad,
    )


def _log_row_sums(rng: Rng) -> Call:
    p = _Points(rng)
    options = options_of(rng, n_threads=threads)
    weights = None
    if rng.random() < 0.3:
        weights = array(rng, (p.n_keys,))
        negative = weights.plain is not None and bool((np.asarray(weights.plain) < 0).any())
        options["weights"] = weights._replace(bad=weights.bad or negative)

    def check(y: Any) -> str | None:
        q, k, bandwidth, kind = p.plain()
        w = None if weights is None else weights.plain
        return oracles.differs(y, *oracles.log_sums(q, k, w, bandwidth, kind), kind)  # type: ignore[arg-type]

    return Call(
        "log_row_sums",
        lambda: akmv.log_row_sums(*p.values, bandwidth=p.bandwidth.value, **given(options)),
        {**p.args, **options},
        check,
        more_bad=p.more_bad,
    )


def _operator(rng: Rng) -> Call:
    p = _Points(rng)
    options = options_of(
        rng,
        eps=tolerance,
        delta=probability,
        method=lambda rng: word(rng, ("auto", "exact", "sampled")),
        n_threads=threads,
        max_memory=lambda rng: or_none(positive(rng)),
    )
    options["rng"] = seed(rng)
    how = ("matvec", "rmatvec", "matmat", "adjoint", "T", "pickle", "toarray")[rng.integers(7)]
    x_seed, x_type = int(rng.integers(2**31)), ("f4", "f8", "i4")[rng.integers(3)]

    def make() -> tuple[Array, Array]:
        K = akmv.GaussianKernel(*p.values, bandwidth=p.bandwidth.value, **given(options))
        length = K.shape[0 if how in ("rmatvec", "adjoint", "T") else 1]
        shape = (length, 3) if how == "matmat" else (length,)
        x = (4 * np.random.default_rng(x_seed).standard_normal(shape)).astype(x_type)
        if how == "pickle":
            return x, pickle.loads(pickle.dumps(K)) @ x
        if how == "toarray":
            return np.eye(K.shape[1], dtype=K.dtype), K.toarray()
        by_name = {"adjoint": lambda x: K.adjoint() @ x, "T": lambda x: K.T @ x}
        return x, by_name.get(how, getattr(K, how, None))(x)  # type: ignore[misc]

    def check(answer: Any) -> str | None:
        x, y = answer
        q, k, bandwidth, kind = p.plain()
        turned = how in ("rmatvec", "adjoint", "T")
        columns = np.asarray(x, float)
        columns = columns[:, None] if columns.ndim == 1 else columns
        judge = oracles.adjoint if turned else oracles.product
        wanted, error = judge(q, k, columns, bandwidth, kind)
        shape = (len(k if turned else q), *np.shape(x)[1:])
        return oracles.differs(y, wanted.reshape(shape), error.reshape(shape), kind)

    return Call("GaussianKernel", make, {**p.args, **options}, check, more_bad=p.more_bad)


def _files(rng: Rng) -> Call:
    from approxkmv.files import read_array, write_array

    a = array(rng, (_size(rng), 3))
    while not isinstance(a.value, np.ndarray):
        a = array(rng, (_size(rng), 3))
    fine = a.plain is not None

    def make() -> Array:
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            path = os.path.join(folder, "a.npy")
            write_array(path, a.value)
            return np.array(read_array(path))

    def check(y: Any) -> str | None:
        if not fine:
            return None
        same = np.array_equal(y, np.asarray(a.value), equal_nan=True)
        return None if same else "read back differs"

    return Call(
        "files",
        make,
        {"array": a._replace(bad=False, doubtful=True)},
        check,
        names=False,
        doubtful=True,
    )


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


FUNCTIONS: list[tuple[float, Callable[[Rng], Call]]] = [
    (0.36, _matvec),
    (0.12, _row_sums),
    (0.12, _log_row_sums),
    (0.14, _operator),
    (0.20, attention),
    (0.005, _files),
    *MORE,
]
_SHARES = np.cumsum([share for share, _ in FUNCTIONS])
