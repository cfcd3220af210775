"""Ten thousand calls of one kind: memory, threads and descriptors stay where they are."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import approxkmv as akmv

from .long_calls import n_threads, quietly
from .records import Record
from .worker import finding

CALLS = 10_000
_WARM_UP = 0.1
_MOST_GROWTH = 5e6
KINDS = (
    "matvec",
    "matvec info",
    "columns",
    "row_sums",
    "log_row_sums",
    "operator",
    "attention",
    "attention mask",
    "tensors",
    "density",
    "solve",
    "spectrum",
    "diagnose",
    "ridge",
    "errors",
    "files",
    "sampled",
)


def case(rng: np.random.Generator, index: int) -> Record | None:
    """One kind after the other, then no more; the last takes several minutes."""
    return {"kind": KINDS[index], "calls": CALLS} if index < len(KINDS) else None


def run(case: Record) -> Record:
    call, findings = _call(case["kind"]), []
    warm = int(case["calls"] * _WARM_UP)
    before: tuple[float, int, int] = (0.0, 0, 0)
    start = time.perf_counter()
    for number in range(warm + case["calls"]):
        if number == warm:
            before = _state()
        quietly(call)
    after = _state()
    growth = after[0] - before[0]
    if growth > _MOST_GROWTH:
        findings.append(finding("memory", f"{case['kind']}: {growth / 1e6:.1f} MB more"))
    if after[1] > before[1]:
        findings.append(finding("threads", f"{case['kind']}: {before[1]} became {after[1]}"))
    if after[2] > before[2]:
        findings.append(finding("descriptors", f"{case['kind']}: {before[2]} became {after[2]}"))
    seconds = (time.perf_counter() - start) / (warm + case["calls"])
    return {
        "count": case["calls"],
        "findings": findings,
        "growth": growth,
        "seconds_of_a_call": seconds,
        "tally": {f"{case['kind']}, kB more": int(growth / 1e3)},
    }


def _state() -> tuple[float, int, int]:
    """Resident bytes, threads, open descriptors."""
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
    return (
        pages * os.sysconf("SC_PAGE_SIZE"),
        n_threads(),
        len(os.listdir("/proc/self/fd")),
    )


def _call(kind: str) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    p = rng.standard_normal((60, 4)).astype(np.float32)
    x = rng.standard_normal(60).astype(np.float32)
    K = akmv.GaussianKernel(p, bandwidth=1.0)
    simple: dict[str, Callable[[], Any]] = {
        "matvec": lambda: akmv.matvec(p, None, x, bandwidth=1.0, n_threads=2),
        "matvec info": lambda: akmv.matvec(p, p, x, bandwidth=1.0, return_info=True),
        "columns": lambda: akmv.matvec(p, p, p, bandwidth=1.0),
        "row_sums": lambda: akmv.row_sums(p, bandwidth=1.0),
        "log_row_sums": lambda: akmv.log_row_sums(p, bandwidth=1.0, weights=np.abs(x)),
        "operator": lambda: (akmv.GaussianKernel(p, p + 1, bandwidth=1.0).T @ x, K @ p),
        "attention": lambda: akmv.attention(p, p, p, is_causal=True),
        "attention mask": lambda: akmv.attention(p, p, p, attn_mask=p @ p.T > 0),
        "solve": lambda: akmv.solve(K, x, noise=0.5, rng=0),
        "spectrum": lambda: akmv.spectrum.eigenvalues(K, 2, rng=0),
        "diagnose": lambda: akmv.diagnose(p, bandwidth=1.0, rng=0),
        "errors": lambda: _refused(p, x),
        "files": lambda: _write_and_read(p),
    }
    if kind in simple:
        return simple[kind]
    if kind == "tensors":
        import torch

        from approxkmv.torch import scaled_dot_product_attention

        t = torch.from_numpy(p)
        return lambda: scaled_dot_product_attention(t, t, t)
    if kind == "density":
        from approxkmv.sklearn import KernelDensity

        return lambda: KernelDensity(1.0, random_state=0).fit(p).score_samples(p)
    if kind == "ridge":
        from approxkmv.sklearn import KernelRidge

        return lambda: KernelRidge(alpha=1.0, bandwidth=1.0).fit(p, x).predict(p)
    assert kind == "sampled"
    from .engine import forced
    from .long_calls import points

    drawn = points("clusters", 1024, 64)
    ones = np.ones(1024, np.float32)

    def sampled() -> None:
        with forced():
            _, info = akmv.matvec(
                *drawn[:2], ones, bandwidth=drawn.bandwidth, eps=0.3, rng=0, return_info=True
            )
        assert info.method == "sampled"

    return sampled


def _refused(p: Any, x: Any) -> None:
    for bad in ({"bandwidth": -1.0}, {"bandwidth": 1.0, "eps": "a"}, {"bandwidth": 1.0, "rng": -1}):
        try:
            akmv.matvec(p, None, x, **bad)
        except (ValueError, TypeError):
            continue
        raise AssertionError(f"{bad} accepted")


def _write_and_read(p: Any) -> Any:
    import tempfile

    from approxkmv.files import read_array, write_array

    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    path = os.path.join(folder, f"campaign-{os.getpid()}.npy")
    write_array(path, p)
    try:
        return read_array(path)
    finally:
        os.unlink(path)
