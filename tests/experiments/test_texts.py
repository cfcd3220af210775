"""Where texts come from, and which of them a run takes."""

from __future__ import annotations

import json

import pytest

from approxkmv.experiments.texts import read_corpora, read_corpus


def test_official_squad(tmp_path):
    path = tmp_path / "dev.json"
    paragraphs = [{"context": "One.", "qas": []}, {"context": "Two."}, {"context": "One."}]
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    corpus = read_corpus(path)
    assert corpus.name == "dev.json"
    assert [text.body for text in corpus.texts] == ["One.", "Two."]


def test_plain_text_is_cut_at_blank_lines(tmp_path):
    """Nothing is lost, every piece but the last is long, and no paragraph is torn."""
    path = tmp_path / "book.txt"
    paragraphs = [f"Paragraph {i}. " + "word " * (i % 90) for i in range(100)]
    path.write_text("\n\n".join(paragraphs))
    pieces = [text.body for text in read_corpus(path).texts]
    assert "\n\n".join(pieces) == "\n\n".join(paragraphs)
    assert all(len(piece) >= 3000 for piece in pieces[:-1])
    assert len(pieces) > 3


def test_a_larger_limit_keeps_the_texts_of_a_smaller_one():
    corpus = read_corpus()
    few, more = corpus.chosen(5, 0), corpus.chosen(20, 0)
    assert more[:5] == few
    assert corpus.chosen(5, 1) != few
    assert sorted(t.key for t in corpus.chosen(None, 0)) == sorted(t.key for t in corpus.texts)


def test_an_empty_file_says_so(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n\n \n")
    with pytest.raises(ValueError, match=r"empty\.txt: no text in it"):
        read_corpus(path)


def test_readings_of_sentences(tmp_path):
    """E21: four readings of one file, several files together, and one that has no questions."""
    path, plain = tmp_path / "dev.json", tmp_path / "plain.json"
    asked = {"question": "Who?", "answers": [{"text": "Ada"}]}
    paragraphs = [{"context": "Ada wrote it. It ran!", "qas": [asked]}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    plain.write_text('["It ran!"]')
    found = {
        reading: [text.body for text in read_corpus(path, reading).texts]
        for reading in ("contexts", "answers", "questions", "sentences")
    }
    assert found == {
        "contexts": ["Ada wrote it. It ran!"],
        "answers": ["Ada"],
        "questions": ["Who? Ada wrote it. It ran!"],
        "sentences": ["Ada wrote it.", "It ran!"],
    }
    both = read_corpora([str(path), str(plain)], "sentences")
    assert both.name == "dev.json, sentences and plain.json, sentences"
    assert [text.body for text in both.texts] == ["Ada wrote it.", "It ran!"]
    with pytest.raises(ValueError, match="has no questions"):
        read_corpus(plain, "answers")
