"""A language model and its tokenizer, from a folder, a file or the hub."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LoadedModel:
    """A language model ready for capture.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, in float32.
    tokenizer : transformers.PreTrainedTokenizerBase or None
    name : str
        What it was loaded from.
    """

    model: Any
    tokenizer: Any
    name: str

    @property
    def n_layers(self) -> int:
        """Layers of attention."""
        return int(self.model.config.num_hidden_layers)

    @property
    def n_heads(self) -> int:
        """Heads of attention in a layer."""
        return int(self.model.config.num_attention_heads)

    @property
    def max_tokens(self) -> int:
        """Tokens the model has positions for."""
        n_positions = int(self.model.config.max_position_embeddings)
        # RoBERTa and MPNet number positions from behind the padding token's.
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None):
                return n_positions - int(module.padding_idx) - 1
        return n_positions

    def token_ids(self, text: str, n_max: int | None = None) -> npt.NDArray[np.int64]:
        """Token numbers of a text, with the tokenizer's special tokens, cut to ``n_max``.

        Without ``n_max`` the text is cut to what the model has positions for.
        """
        if self.tokenizer is None:
            raise ValueError(f"{self.name} was loaded without a tokenizer: pass token numbers.")
        limit = self.max_tokens if n_max is None else min(n_max, self.max_tokens)
        ids = self.tokenizer(text, truncation=True, max_length=limit)["input_ids"]
        return np.asarray(ids, dtype=np.int64)


def load_model(name_or_directory: str | os.PathLike[str]) -> LoadedModel:
    """Load a model and its tokenizer through transformers, in float32 on the processor.

    Parameters
    ----------
    name_or_directory : str or path
        A folder with ``config.json`` and weights, a ``.gguf`` file, or a name on the Hugging Face
        hub.

    Returns
    -------
    LoadedModel

    Raises
    ------
    ImportError
        The extra ``transformers`` is not installed.
    ValueError
        Nothing can be loaded from there.

    Examples
    --------
    >>> from approxkmv.capture import load_model
    >>> load_model("bert-base-uncased").n_layers  # doctest: +SKIP
    12
    """
    torch, transformers = packages()
    path = Path(name_or_directory)
    source, options = str(name_or_directory), {}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"name_or_directory must exist, got {source!r}.")
        source, options = str(path.parent), {"gguf_file": path.name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"name_or_directory must be a folder, a .gguf file or a name on the Hugging Face hub; "
            f"{str(name_or_directory)!r} could not be loaded: {error}"
        ) from error
    return LoadedModel(model.eval(), tokenizer, str(name_or_directory))


def packages() -> tuple[Any, Any]:
    """Modules of the extra, or where to get them."""
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "capturing a model needs transformers. "
            'Install it with: pip install "approxkmv[transformers]"'
        ) from error
