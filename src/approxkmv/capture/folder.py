"""What is checked of a model before transformers loads it: no code, no pickle, no absurd sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from approxkmv.files import open_regular, read_text, safetensors_header

_INDEX = "model.safetensors.index.json"
_PICKLES = {".bin", ".ckpt", ".pt", ".pth", ".pkl"}
_MOST_LABELS = 1_000_000
# The names that types of models have for their number of layers.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers")
# No packed form of weights in use has fewer bits a parameter than 1.5.
_PARAMETERS_PER_BYTE = 8


@dataclass(frozen=True)
class Weights:
    """How much a model's weights are, by their files."""

    n_tensors: int
    n_bytes: int


def weights_of(path: Path) -> Weights:
    """Look at the weights of a folder or a ``.gguf`` file without loading them.

    Raises ValueError where there are none, or only such as are unpickled, which can run code.
    """
    if path.suffix == ".gguf":
        with open_regular(path) as file:
            start = file.read(16)  # magic, version, number of tensors
        if len(start) < 16 or start[:4] != b"GGUF":
            raise ValueError(f"{path}: not a readable .gguf file")
        return Weights(int.from_bytes(start[8:], "little"), path.stat().st_size)
    if (path / "adapter_config.json").exists():
        raise ValueError(f"{path}: an adapter, no whole model; merge it into its model first")
    headers = [safetensors_header(file) for file in _files(path)]
    tensors = [entry for header in headers for entry in header.values()]
    return Weights(len(tensors), sum(file.stat().st_size for file in _files(path)))


def check_sizes(config: dict[str, Any], weights: Weights, where: Path) -> None:
    """Compare the counts of a configuration, at any depth, with what the weights can be for."""
    for name, value in _entries(config):
        if name in _LAYERS and isinstance(value, int) and not 0 < value <= weights.n_tensors:
            raise ValueError(
                f"{where}: {name} is {value}, but the weights have {weights.n_tensors} tensors"
            )
        if name == "num_labels" and isinstance(value, int) and value > _MOST_LABELS:
            raise ValueError(f"{where}: {name} is {value}, more than {_MOST_LABELS}")


def check_parameters(n_parameters: int, weights: Weights, where: Path) -> None:
    """Compare a model made of shapes only with the size of its weights."""
    if n_parameters > _PARAMETERS_PER_BYTE * weights.n_bytes:
        raise ValueError(
            f"{where}: its configuration asks for {n_parameters} parameters, "
            f"its weights have {weights.n_bytes} bytes"
        )


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / _INDEX
    if single.exists():
        return [single]
    if index.exists():
        return [folder / name for name in _named_in(index)]
    pickles = sorted(f.name for f in folder.iterdir() if f.suffix in _PICKLES)
    if pickles:
        raise ValueError(
            f"{folder}: its weights ({pickles[0]}) are pickled and could run code when they are "
            "loaded; model.safetensors or a .gguf file is needed"
        )
    raise ValueError(f"{folder}: no weights in it; model.safetensors or a .gguf file is needed")


def _named_in(index: Path) -> list[str]:
    """Files of weights in several parts: safetensors in the same folder, nothing else."""
    try:
        names = sorted(set(json.loads(read_text(index))["weight_map"].values()))
        plain = all(name.endswith(".safetensors") and Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index}: not a readable index of weights") from error
    if not plain:
        raise ValueError(f"{index}: names other files than .safetensors in its folder")
    return names


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a table and of the tables in it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from _entries(inner)
