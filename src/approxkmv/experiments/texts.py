"""Texts to measure on: SQuAD, a text file, or what comes with Python."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from approxkmv.datasets import english_prose, squad_texts
from approxkmv.files import read_text

_PIECE = 3000  # characters: more than 512 tokens of English for every tokenizer tried


@dataclass(frozen=True)
class Text:
    """One text of a corpus; ``key`` names it in records."""

    body: str

    @property
    def key(self) -> str:
        """Start of a hash of the text."""
        return hashlib.sha256(self.body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Corpus:
    """Texts, in the order of their source, and what they are called."""

    name: str
    texts: tuple[Text, ...]

    def chosen(self, limit: int | None, seed: int) -> tuple[Text, ...]:
        """The first ``limit`` texts in a random order that depends on the seed only.

        A larger limit keeps the texts of a smaller one, so that a run can be extended.
        """
        order = np.random.default_rng(seed).permutation(len(self.texts))
        return tuple(self.texts[i] for i in order[:limit])


def read_corpora(paths: Sequence[str], reading: str = "contexts") -> Corpus:
    """Several files as one corpus, such as both parts of SQuAD; none: as :func:`read_corpus`."""
    read = [read_corpus(path, reading) for path in paths] or [read_corpus()]
    texts = dict.fromkeys(text for corpus in read for text in corpus.texts)
    return Corpus(" and ".join(corpus.name for corpus in read), tuple(texts))


def read_corpus(path: str | os.PathLike[str] | None = None, reading: str = "contexts") -> Corpus:
    """Read texts.

    Parameters
    ----------
    path : str or path, optional
        A ``.json`` file of SQuAD, as published or as a list of paragraphs; or any other file, as
        plain text, which is cut at blank lines into pieces of at least 3,000 characters. Without a
        path, the help texts that come with Python are used in this way.
    reading : str
        What of SQuAD is a text, see :func:`approxkmv.datasets.squad_texts`.

    Examples
    --------
    >>> corpus = read_corpus()
    >>> corpus.name, len(corpus.texts) > 100
    ("Python's help texts", True)
    """
    if path is None:
        return Corpus("Python's help texts", _pieces(english_prose()))
    file = Path(path)
    if file.suffix == ".json":
        texts = tuple(dict.fromkeys(Text(body) for body in squad_texts(file, reading)))
    else:
        texts = _pieces(read_text(file, errors="replace"))
    if not texts:
        raise ValueError(f"{file}: no text in it")
    is_read = file.suffix == ".json" and reading != "contexts"
    return Corpus(f"{file.name}, {reading}" if is_read else file.name, texts)


def _pieces(prose: str) -> tuple[Text, ...]:
    """Paragraphs put together until a piece is long enough; the same piece twice counts once."""
    pieces: list[str] = []
    piece = ""
    for paragraph in prose.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        if len(piece) >= _PIECE:
            pieces.append(piece)
            piece = ""
    if piece.strip():
        pieces.append(piece)
    return tuple(dict.fromkeys(map(Text, pieces)))
