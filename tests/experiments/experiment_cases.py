"""A tiny model, a short corpus, and a run over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from approxkmv.capture import LoadedModel, load_model
from approxkmv.experiments.models import Models
from approxkmv.experiments.setup import Setup
from approxkmv.experiments.texts import Corpus, Text

WORDS = [f"word{i}" for i in range(40)]
# Three texts of 60 and more tokens, one of fewer than 50.
BODIES = [
    " ".join(WORDS[(i * step) % 40] for i in range(length))
    for step, length in [(1, 60), (3, 70), (7, 120), (9, 20)]
]


def tiny_bert(folder: Path, seed: int = 0) -> LoadedModel:
    """BERT with 2 layers of 2 heads and random weights, saved and loaded as any other model."""
    save_tiny_bert(folder, seed)
    return load_model(folder)


def save_tiny_bert(folder: Path, seed: int = 0) -> None:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*special, *WORDS]) + "\n")
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(special) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=256,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab={w: i for i, w in enumerate([*special, *WORDS])}).save_pretrained(
        folder
    )


class Counting:
    """Stands in for the progress bar."""

    def __init__(self, label: str = "", total: int = 0) -> None:
        self.done = 0

    def __enter__(self) -> Counting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def advance(self, amount: int = 1) -> None:
        self.done += amount


class Interrupting(Counting):
    """Ctrl-C after a number of steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def __call__(self, label: str, total: int) -> Interrupting:
        return self

    def advance(self, amount: int = 1) -> None:
        super().advance(amount)
        if self.done >= self._after:
            raise KeyboardInterrupt


def setup_for(
    out: Path,
    *,
    bodies: Sequence[str] = BODIES,
    models: Sequence[str] = (),
    progress: Callable[[str, int], Any] = Counting,
    **options: Any,
) -> Setup:
    corpus = Corpus("test corpus", tuple(map(Text, bodies)))
    return Setup(out, corpus, Models(models, print), progress, **options)
