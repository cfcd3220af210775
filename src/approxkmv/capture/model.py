"""A language model and its tokenizer, from a folder, a file or the hub."""

from __future__ import annotations

import functools
import importlib
import os
import socket
import textwrap
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv._extras import needs
from approxkmv.capture.folder import check_parameters, check_sizes, weights_of


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
        if set(ids) <= set(self.tokenizer.all_special_ids):
            raise ValueError(f"the tokenizer of {self.name} knows no word of the text.")
        return np.asarray(ids, dtype=np.int64)


def load_model(name_or_directory: str | os.PathLike[str]) -> LoadedModel:
    """Load a model and its tokenizer through transformers, in float32 on the processor.

    Parameters
    ----------
    name_or_directory : str or path
        A folder with ``config.json`` and weights, a ``.gguf`` file, or a name on the Hugging Face
        hub. Code in the folder is never run, and weights are read from ``.safetensors`` or
        ``.gguf`` files, never unpickled.

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
    source = str(name_or_directory)
    options: dict[str, Any] = {}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"name_or_directory must exist, got {source!r}.")
        source, options = str(path.parent), {"gguf_file": path.name}
    if not path.exists() and not hub_answers():
        options["local_files_only"] = True  # what was loaded before, without retries
    # Code that comes with a model is never run, and nobody is asked whether it should be.
    options["trust_remote_code"] = False
    with _quiet(transformers), _as_value_error(str(name_or_directory)):
        weights = weights_of(path) if path.is_dir() or path.suffix == ".gguf" else None
        raw, _ = transformers.PreTrainedConfig.get_config_dict(source, **options)
        _check_known(raw, transformers)
        if weights is not None:
            check_sizes(raw, weights, path)
        config = transformers.AutoConfig.from_pretrained(source, **options)
        if weights is not None:
            check_parameters(_n_parameters(config, torch, transformers), weights, path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        model, report = transformers.AutoModel.from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=True,
            # A configuration could name one that transformers would fetch from the hub and run.
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
            **options,
        )
        _check_loaded(model, report, torch)
    return LoadedModel(model.eval(), tokenizer, str(name_or_directory))


@functools.cache
def hub_answers() -> bool:
    """Whether the Hugging Face hub can be connected to; asked once, for three seconds at most.

    The hub's own client tries each file of a model again and again, for most of a minute. Where
    requests go through a proxy it is left to find out.
    """
    address = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if urllib.request.getproxies().get(address.scheme) or not address.hostname:
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=3).close()
    except OSError:
        return False
    return True


def _check_known(config: dict[str, Any], transformers: Any) -> None:
    if "auto_map" in config and config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise ValueError(
            "it needs code of its own (auto_map in config.json), and such code is never run"
        )


def _n_parameters(config: Any, torch: Any, transformers: Any) -> int:
    """Parameters of the model that a configuration describes; they are not allocated."""
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    return sum(parameter.numel() for parameter in model.parameters())


def _check_loaded(model: Any, report: dict[str, Any], torch: Any) -> None:
    """Every weight came from the file, but for a pooler's, which no head needs."""
    for name, there, wanted in sorted(report["mismatched_keys"]):
        raise ValueError(f"{name} has shape {tuple(there)}, config.json needs {tuple(wanted)}")
    for name in sorted(report["missing_keys"]):
        if not name.startswith("pooler."):
            raise ValueError(f"{name} is missing in its weights")
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ValueError(f"{name} has entries that are not finite")


@contextmanager
def _as_value_error(name: str) -> Iterator[None]:
    """One error for all that transformers and its parsers raise about a broken model."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error) or type(error).__name__, 300, placeholder=" ...")
        raise ValueError(
            f"name_or_directory must be a folder, a .gguf file or a name on the Hugging Face hub; "
            f"{name!r} could not be loaded: {reason}"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and reports on the terminal: what is wrong becomes an error."""
    settings = transformers.utils.logging
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity(settings.CRITICAL)
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()


def packages() -> tuple[Any, Any]:
    """Modules of the extra, or where to get them."""
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(needs("capturing a model", "transformers", "transformers")) from error
