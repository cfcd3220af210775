"""Attention against PyTorch and published approximations: ``python -m benchmarks.attention``.

For each head one interleaved run: ours at several errors allowed, ours exact, PyTorch's
scaled_dot_product_attention and a blocked softmax. Errors are true Frobenius errors over |V|_F
against double precision. Then every rival at several sizes and settings, and the fastest of all
that reaches each eps. ``python -m benchmarks.attention_pictures`` draws what this has written.
Heads of a model come from an .npz with arrays q_layerL_headH, k_layerL_kvG, v_layerL_kvG (--heads),
words from GloVe (--glove or the installed package). The exit code is 1 when a target was missed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from approxkmv import attention, datasets
from benchmarks import attention_rivals as rivals
from benchmarks import harness
from benchmarks.harness import OURS, Report, Target

ROOT = Path(__file__).resolve().parent.parent
SDPA = "torch SDPA"
_RIVAL_RUNS = 2


class Data(NamedTuple):
    """One head, or several of the same shape."""

    name: str
    query: Any
    key: Any
    value: Any
    scale: float
    is_causal: bool


class Case(NamedTuple):
    """Heads, the errors allowed, and how many times as fast as SDPA each must be."""

    load: Callable[[argparse.Namespace], Iterator[Data]]
    targets: dict[float, float]
    exact_target: float | None = None
    below_mean: bool = False  # whether the error must be smaller than that of mean(V)


def generated(n: int, d: int, n_heads: int, *, is_causal: bool, sharpness: float = 1.0) -> Any:
    """Normal queries and keys, 64 columns: nothing to be saved, so exact must be fast."""

    def load(args: argparse.Namespace) -> Iterator[Data]:
        size = scaled(n, args)
        rng = np.random.default_rng(args.seed)
        shapes = (n_heads, size, d), (n_heads, size, d), (n_heads, size, 64)
        arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
        yield Data(f"{n_heads} x {size}", *arrays, sharpness * d**-0.5, is_causal)

    return load


def clustered(n: int) -> Any:
    """Queries near the keys of their own cluster: a sharp softmax."""

    def load(args: argparse.Namespace) -> Iterator[Data]:
        size = scaled(n, args)
        rng = np.random.default_rng(args.seed)
        queries, keys, bandwidth = datasets.clusters(size, 64, rng=rng)
        value = rng.standard_normal((size, 64), dtype=np.float32)
        yield Data(f"n = {size}", queries, keys, value, bandwidth**-2, False)

    return load


def words(n: int, scale: float) -> Any:
    """GloVe: the n most frequent words are queries and keys, the next n values (64 columns)."""

    def load(args: argparse.Namespace) -> Iterator[Data]:
        size = scaled(n, args)
        points, values = np.split(datasets.glove(args.glove).vectors[: 2 * size], 2)
        points, values = np.ascontiguousarray(points), np.ascontiguousarray(values[:, :64])
        yield Data(f"n = {size}", points, points, values, scale, False)

    return load


def model_heads(args: argparse.Namespace) -> Iterator[Data]:
    """Every query head of the file with its keys and values; causal."""
    if args.heads is None:
        raise FileNotFoundError("Pass the heads of a model with --heads FILE.npz.")
    with np.load(args.heads, allow_pickle=False) as file:
        for name in sorted(n for n in file.files if n.startswith("q_")):
            layer, head = re.fullmatch(r"q_layer(\d+)_head(\d+)", name).groups()  # type: ignore[union-attr]
            group = int(head) // args.group
            arrays = (
                file[name],
                file[f"k_layer{layer}_kv{group}"],
                file[f"v_layer{layer}_kv{group}"],
            )
            query, key, value = (a[: scaled(len(a), args)].astype(np.float32) for a in arrays)
            yield Data(
                f"layer {layer} head {head}", query, key, value, query.shape[1] ** -0.5, True
            )


def run_head(case: str, data: Data, eps_list: list[float], args: argparse.Namespace) -> Report:
    """Race ours and PyTorch, then let the rivals climb."""
    q, k, v = (a if a.ndim == 3 else a[None] for a in data[1:4])
    exact = attention(
        *(a.astype(np.float64) for a in (q, k, v)),
        scale=data.scale,
        is_causal=data.is_causal,
        method="exact",
        n_threads=args.threads,
    )
    length = np.linalg.norm(v.astype(np.float64))

    def error(out: Any) -> float:
        return float(np.linalg.norm(np.asarray(out).reshape(exact.shape) - exact) / length)

    def ours(**options: Any) -> Callable[[], Any]:
        fixed = {"scale": data.scale, "is_causal": data.is_causal, "rng": args.seed}
        return lambda: attention(q, k, v, n_threads=args.threads, **fixed, **options)

    heads = [rivals_head(q[h], k[h], v[h], data, args) for h in range(len(q))]
    contestants: dict[str, Any] = {OURS: ours(eps=eps_list[0])}
    contestants |= {f"{OURS}, eps = {eps:g}": ours(eps=eps) for eps in eps_list[1:]}
    contestants[f"{OURS}, exact"] = ours(method="exact")
    contestants[SDPA] = sdpa(q, k, v, data)
    if args.rivals:
        contestants["torch blocked"] = lambda: np.stack([rivals.blocked(h).numpy() for h in heads])
    parameters = {
        "head": data.name,
        "d": q.shape[2],
        "columns": v.shape[2],
        "causal": data.is_causal,
    }
    report = Report(case, {**parameters, "scale": f"{data.scale:.3g}", "eps": eps_list})
    harness.race(report, contestants, args.repetitions, error)
    report.errors["mean(V)"] = error(np.broadcast_to(v.mean(axis=1, keepdims=True), exact.shape))
    if args.rivals and len(q) == 1:
        climb(report, heads[0], error, eps_list)
    return report


def rivals_head(q: Any, k: Any, v: Any, data: Data, args: argparse.Namespace) -> rivals.Head:
    import torch

    query = torch.from_numpy(np.ascontiguousarray(q * np.float32(data.scale)))
    # With the scale split evenly a Gaussian kernel of bandwidth 1 fits both sides.
    root = np.float32(abs(data.scale) ** 0.5)
    query = query / float(root) if root else query
    key = torch.from_numpy(np.ascontiguousarray(k * root)) if root else torch.from_numpy(k)
    return rivals.Head(query, key, torch.from_numpy(v), data.is_causal, args.seed)


def sdpa(q: Any, k: Any, v: Any, data: Data) -> Callable[[], Any]:
    """All heads in one call; values padded to the width of the keys, which is the fused loop."""
    import torch

    padded = np.zeros((*v.shape[:2], max(k.shape[2], v.shape[2])), v.dtype)
    padded[..., : v.shape[2]] = v
    tensors = [torch.from_numpy(np.ascontiguousarray(a))[None] for a in (q, k, padded)]
    options = {"scale": data.scale, "is_causal": data.is_causal}

    def run() -> Any:
        with torch.inference_mode():
            out = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
            return out[0, ..., : v.shape[2]].numpy()

    return run


def climb(
    report: Report, head: rivals.Head, error: Callable[[Any], float], eps: list[float]
) -> None:
    """Every rival and setting at growing sizes, until twice as slow as SDPA or exact enough."""
    import torch

    most = 2 * median(report.seconds[SDPA])
    for name, (rival, sizes, settings) in rivals.RIVALS.items():
        if name in (rivals.NOT_CAUSAL if head.is_causal else rivals.ONLY_CAUSAL):
            continue
        for options in settings:
            for size in (s for s in sizes if s <= len(head.key)):
                spent = []
                for _ in range(_RIVAL_RUNS):
                    with torch.inference_mode():
                        start = time.perf_counter()
                        out = rival(head, size, **options)
                        spent.append(time.perf_counter() - start)
                setting = "".join(f", {n} = {value}" for n, value in options.items())
                label = name if len(sizes) == 1 else f"{name} {size}{setting}"
                report.errors[label] = error(out.numpy())
                report.seconds[label] = tuple(spent)
                if min(spent) > most or report.errors[label] < min(eps):
                    break


def judge(name: str, case: Case, reports: list[Report], *, judged: bool) -> Report:
    """All heads together: the sum of the median times, and the largest error over eps."""
    total = Report(f"{name}, all heads", {"heads": len(reports)})
    spent = {
        n: sum(median(r.seconds[n]) for r in reports)
        for n in reports[0].seconds
        if all(n in r.seconds for r in reports)
    }
    for number, (eps, at_least) in enumerate(case.targets.items()):
        ours = OURS if number == 0 else f"{OURS}, eps = {eps:g}"
        total.judge(
            Target(f"times SDPA at eps = {eps:g}", at_least),
            spent[SDPA] / spent[ours],
            judged=judged,
        )
        largest = max(r.errors[ours] for r in reports) / eps
        total.judge(
            Target(f"largest error / eps at eps = {eps:g}", 1.0, False), largest, judged=judged
        )
        if case.below_mean:
            total.judge(
                Target(f"error at eps = {eps:g}, times that of mean(V)", 1.0, False),
                max(r.errors[ours] / r.errors["mean(V)"] for r in reports),
                judged=judged,
            )
        fastest = fastest_rival(reports, eps)
        if fastest is not None:
            total.judge(
                Target(f"times the fastest rival at eps = {eps:g} ({fastest[0]})", 1.0),
                fastest[1] / spent[ours],
                judged=judged,
            )
    if case.exact_target is not None:
        exact = spent[f"{OURS}, exact"]
        total.judge(
            Target("exact, times SDPA", case.exact_target), spent[SDPA] / exact, judged=judged
        )
        total.judge(Target("auto / exact", 1.1, False), spent[OURS] / exact, judged=judged)
    return total


def fastest_rival(reports: list[Report], eps: float) -> tuple[str, float] | None:
    """The rival with the least total time, each head at its fastest setting that reaches eps.

    Its faster run counts, against the median of ours. Answers that take no work are not raced.
    """
    totals = {}
    for name in set(rivals.RIVALS) - set(rivals.FREE):
        best = []
        for report in reports:
            times = [
                min(s)
                for label, s in report.seconds.items()
                if rival_name(label) == name and report.errors[label] <= eps
            ]
            best.append(min(times, default=np.inf))
        totals[name] = sum(best)
    name = min(totals, key=lambda n: totals[n])
    return (name, totals[name]) if np.isfinite(totals[name]) else None


def rival_name(label: str) -> str:
    """The label of a run without size and settings."""
    return re.sub(r" \d+(, .*)?$", "", label)


def scaled(n: int, args: argparse.Namespace) -> int:
    return max(64, int(n * float(args.size)))


CASES = (
    {
        f"exact {h} x {n}, d = {d}{', causal' if causal else ''}": Case(
            generated(n, d, h, is_causal=causal), {0.1: 0.0}, 1.2
        )
        for h, n in ((8, 512), (8, 1024), (1, 2048), (8, 2048), (1, 8192))
        for d in (64, 100)
        for causal in (False, True)
    }
    | {
        f"hopeless {h} x {n}{', causal' if causal else ''}": Case(
            generated(n, 64, h, is_causal=causal, sharpness=4.0), {0.1: 0.0}, 1.2
        )
        for h, n in ((8, 2048), (1, 8192))
        for causal in (False, True)
    }
    | {
        "clusters": Case(clustered(16_384), {0.1: 1.0}),
        "model heads": Case(model_heads, {0.1: 3.0, 0.03: 1.0}),
        "GloVe 16,384 sharp": Case(words(16_384, 10**-0.5), {0.1: 3.0}),
        "GloVe 32,768 sharp": Case(words(32_768, 10**-0.5), {0.1: 6.0}),
        "GloVe 32,768 flat": Case(words(32_768, 0.1), {0.02: 15.0}, below_mean=True),
    }
)


def main(argv: list[str] | None = None) -> int:
    """Run the cases asked for, print each as it is done, and append it to the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", default=list(CASES))
    parser.add_argument("--heads", type=Path, help="heads of a model, an .npz file")
    parser.add_argument("--group", type=int, default=3, help="query heads that share keys there")
    parser.add_argument("--glove", type=Path, help="GloVe, if the package is not installed")
    parser.add_argument("--eps", type=float, nargs="+", default=[], help="more errors allowed")
    parser.add_argument("--no-rivals", action="store_false", dest="rivals")
    parser.add_argument("--threads", type=int, default=2, help="for every contestant")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--size", type=float, default=1.0, help="of all sizes; 1 to be judged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/attention.jsonl")
    args = parser.parse_args(argv)

    description = harness.machine(args.threads)
    print("\n".join(f"{name}: {value}" for name, value in description.items()))
    missed = False
    with harness.threads(args.threads):
        for name in args.cases:
            case, reports = CASES[name], []
            try:
                for data in case.load(args):
                    errors_allowed = list(dict.fromkeys([*case.targets, *args.eps]))
                    reports.append(run_head(name, data, errors_allowed, args))
                    harness.append(args.output, description, reports[-1])
                    print(f"\n{reports[-1].text()}", flush=True)
            except FileNotFoundError as reason:
                print(f"\n== {name}: skipped. {reason}", flush=True)
                continue
            total = judge(name, case, reports, judged=args.size == 1)
            harness.append(args.output, description, total)
            print(f"\n{total.text()}", flush=True)
            missed |= any("MISSED" in verdict for verdict in total.verdicts.values())
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
