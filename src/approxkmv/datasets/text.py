"""English text."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from approxkmv.files import read_text


def english_prose() -> str:
    """Half a million characters of technical English: the help texts that come with Python.

    Returns
    -------
    str
        The topics of Python's ``help()``, one after the other. The text differs from one version
        of Python to the next.

    Raises
    ------
    FileNotFoundError
        This Python was installed without its help texts.

    Examples
    --------
    >>> from approxkmv.datasets import english_prose
    >>> len(english_prose()) > 300_000
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise FileNotFoundError(
            "this Python lacks its help texts (pydoc_data). "
            "On Debian and Ubuntu: apt install libpython3-stdlib"
        ) from error
    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def squad_contexts(path: str | os.PathLike[str]) -> list[str]:
    """Paragraphs of the SQuAD question answering data set.

    Parameters
    ----------
    path : str or path
        A JSON file as published (``dev-v1.1.json``, ``train-v2.0.json``), or a plain list of
        paragraphs, or of ``{"title": ..., "contexts": [...]}``.

    Returns
    -------
    list of str
        The paragraphs, in the order of the file.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is none of these.

    Examples
    --------
    >>> import os, tempfile
    >>> from approxkmv.datasets import squad_contexts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "contexts.json")
    ...     with open(path, "w") as file:
    ...         _ = file.write('["One paragraph.", "And another."]')
    ...     squad_contexts(path)
    ['One paragraph.', 'And another.']
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: no such file. SQuAD is published at "
            "https://rajpurkar.github.io/SQuAD-explorer (dev-v1.1.json)"
        )
    text = read_text(file)
    try:
        content = json.loads(text)
        articles = content["data"] if isinstance(content, dict) else content
        contexts = [context for article in articles for context in _contexts(article)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: not a SQuAD file or a list of paragraphs") from error
    if not all(isinstance(context, str) for context in contexts):
        raise ValueError(f"{file}: a paragraph is not a string")
    return contexts


READINGS = ("contexts", "answers", "questions", "sentences")


def squad_texts(path: str | os.PathLike[str], reading: str = "contexts") -> list[str]:
    """What "sentences from responses of all questions" of SQuAD may mean (erratum E21).

    Parameters
    ----------
    path : str or path
        As for :func:`squad_contexts`; all readings but ``"contexts"`` and ``"sentences"`` need a
        file as published.
    reading : {"contexts", "answers", "questions", "sentences"}
        Whole paragraphs; the answers alone, a few words each; every question followed by its
        paragraph; single sentences of the paragraphs, cut after ``.``, ``!`` or ``?`` and a space.

    Returns
    -------
    list of str

    Examples
    --------
    >>> import json, os, tempfile
    >>> asked = {"question": "Who?", "answers": [{"text": "Ada"}, {"text": "Ada"}]}
    >>> paragraph = {"context": "Ada wrote it. It ran.", "qas": [asked]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "dev.json")
    ...     with open(path, "w") as file:
    ...         json.dump({"data": [{"paragraphs": [paragraph]}]}, file)
    ...     [squad_texts(path, reading) for reading in READINGS[1:]]
    [['Ada', 'Ada'], ['Who? Ada wrote it. It ran.'], ['Ada wrote it.', 'It ran.']]
    """
    contexts = squad_contexts(path)
    if reading == "contexts":
        return contexts
    if reading == "sentences":
        return [
            part for context in contexts for part in re.split(r"(?<=[.!?])\s+", context) if part
        ]
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {READINGS}, got {reading!r}.")
    try:
        articles = json.loads(read_text(Path(path)))["data"]
        paragraphs = [p for article in articles for p in article["paragraphs"]]
        asked = [(p["context"], question) for p in paragraphs for question in p["qas"]]
        if reading == "questions":
            return [f"{question['question']} {context}" for context, question in asked]
        return [answer["text"] for _, question in asked for answer in question["answers"]]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{path}: has no questions; reading {reading!r} needs them") from error


def _contexts(article: Any) -> list[Any]:
    """Paragraphs of one entry: a paragraph itself, an article as published, or a plain one."""
    if isinstance(article, str):
        return [article]
    if "contexts" in article:
        return list(article["contexts"])
    return [paragraph["context"] for paragraph in article["paragraphs"]]
