"""Which models to measure: the paper's three, their stand-ins, or those asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from approxkmv.capture import LoadedModel, load_model
from approxkmv.datasets import minilm_directory, smollm2_file

# The paper's name, its name on the hub, and what stands in for it: bidirectional or causal.
_PAPER = {
    "BERT": ("bert-base-uncased", "minilm"),
    "RoBERTa": ("roberta-base", "minilm"),
    "GPT-1": ("openai-gpt", "smollm2"),
}
_STAND_INS: dict[str, tuple[str, Callable[[], Path]]] = {
    "minilm": ("all-MiniLM-L6-v2", minilm_directory),
    "smollm2": ("SmolLM2-135M-Instruct", smollm2_file),
}


@dataclass(frozen=True)
class Choice:
    """A model, what it is called, and for which of the paper's it stands in (else "")."""

    label: str
    loaded: LoadedModel
    stands_for: str = ""

    def not_run(self, models: Iterable[str]) -> str:
        """Which of these models of the paper a sentence about them is not tested on by this one."""
        return "" if self.label in models else " and ".join(models)

    @property
    def key(self) -> str:
        """Names the weights in records: a hash of a few numbers of every parameter."""
        found = hashlib.sha256()
        for name, parameter in self.loaded.model.named_parameters():
            few = parameter.detach().flatten()[:16].float().numpy()
            found.update(f"{name} {tuple(parameter.shape)}".encode() + few.tobytes())
        return found.hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.label} (in place of {self.stands_for})" if self.stands_for else self.label


class Models:
    """Loads each model once, says once what could not be had."""

    def __init__(
        self, asked: Sequence[str], say: Callable[[str], None], *, as_paper: bool = False
    ) -> None:
        named = [name.partition("=") for name in asked]
        self._places = {name: place for name, _, place in named if place and name in _PAPER}
        self._asked = tuple(a for a in asked if a.partition("=")[0] not in self._places)
        self._as_paper = as_paper
        self._say = say
        self._loaded: dict[str, LoadedModel | None] = {}

    def choose(self, defaults: Sequence[str]) -> list[Choice]:
        """Models for a figure: those asked for, or the paper's, or what stands in for those."""
        if self._asked and not self._as_paper:
            return self.choose_any(self._asked)
        choices: dict[str, Choice] = {}
        for name in defaults:
            hub, stand_in = _PAPER[name]
            loaded = self._from_hub(name, hub, _STAND_INS[stand_in][0])
            if loaded is None and self._as_paper:
                raise ValueError(
                    f"--as-paper takes no stand-ins, and {name} could not be loaded: give it as "
                    f"--model {name}=FOLDER, or have the hub name {hub} in reach."
                )
            if loaded is not None:
                choices[name] = Choice(name, loaded)
            elif stand_in in choices:
                before = choices[stand_in]
                both = f"{before.stands_for} and {name}"
                choices[stand_in] = Choice(before.label, before.loaded, both)
            else:
                choices[stand_in] = Choice(_label(stand_in), self._asked_for(stand_in), name)
        return list(choices.values())

    def choose_any(self, defaults: Sequence[str]) -> list[Choice]:
        """Those asked for, or these, by the names that ``--model`` takes."""
        return [Choice(_label(name), self._asked_for(name)) for name in self._asked or defaults]

    def _from_hub(self, name: str, hub: str, instead: str) -> LoadedModel | None:
        if hub not in self._loaded:
            try:
                self._loaded[hub] = load_model(self._places.get(name, hub))
            except ValueError:
                if name in self._places:
                    raise
                self._loaded[hub] = None
                if self._as_paper:
                    return None
                self._say(
                    f"{name} ({hub}) could not be loaded from a folder of that name or from the "
                    f"hub: {instead} stands in for it. The paper's numbers are for {name}."
                )
        return self._loaded[hub]

    def _asked_for(self, name: str) -> LoadedModel:
        loaded = self._loaded.get(name)
        if loaded is None:
            source = str(_STAND_INS[name][1]()) if name in _STAND_INS else name
            loaded = self._loaded[name] = load_model(source)
        return loaded


def _label(name: str) -> str:
    """What a model is called: its name, or the last part of its path."""
    if name in _STAND_INS:
        return _STAND_INS[name][0]
    for paper, (hub, _) in _PAPER.items():
        if name == hub:
            return paper
    return Path(name).stem if Path(name).suffix == ".gguf" else Path(name).name or name
