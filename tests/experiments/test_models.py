"""Which model a figure gets, and what is said about it."""

from __future__ import annotations

import pytest

from approxkmv.experiments import models
from approxkmv.experiments.models import Models


@pytest.fixture
def hub(monkeypatch):
    """A hub with some of the models; every load is noted."""
    offered: set[str] = set()
    loads: list[str] = []

    def load(name):
        loads.append(name)
        if name not in offered:
            raise ValueError(f"{name} could not be loaded")
        return name

    monkeypatch.setattr(models, "load_model", load)
    monkeypatch.setattr(
        models,
        "_STAND_INS",
        {
            "minilm": ("all-MiniLM-L6-v2", lambda: "/some/where/mini"),
            "smollm2": ("SmolLM2", lambda: "/some/where/smol.gguf"),
        },
    )
    offered |= {"/some/where/mini", "/some/where/smol.gguf"}
    return offered, loads


def test_the_papers_models_where_there_is_a_hub(hub):
    offered, _ = hub
    offered |= {"bert-base-uncased", "openai-gpt"}
    said: list[str] = []
    found = Models((), said.append).choose(["BERT", "GPT-1"])
    assert [str(choice) for choice in found] == ["BERT", "GPT-1"]
    assert said == []


def test_stand_ins_are_said_once_and_loaded_once(hub):
    _, loads = hub
    said: list[str] = []
    chooser = Models((), said.append)
    found = chooser.choose(["BERT", "RoBERTa", "GPT-1"])
    assert [str(choice) for choice in found] == [
        "all-MiniLM-L6-v2 (in place of BERT and RoBERTa)",
        "SmolLM2 (in place of GPT-1)",
    ]
    chooser.choose(["BERT", "GPT-1"])
    assert len(said) == 3
    assert "BERT (bert-base-uncased) could not be loaded" in said[0]
    assert "all-MiniLM-L6-v2 stands in" in said[0]
    assert sorted(loads) == sorted(set(loads))


def test_models_asked_for_are_in_every_figure(hub):
    offered, _ = hub
    offered |= {"/my/own", "/my/other.gguf"}
    found = Models(("/my/own", "/my/other.gguf", "minilm"), print).choose(["BERT"])
    assert [str(choice) for choice in found] == ["own", "other", "all-MiniLM-L6-v2"]


def test_a_model_asked_for_that_is_not_there_is_an_error(hub):
    with pytest.raises(ValueError, match="nowhere could not be loaded"):
        Models(("nowhere",), print).choose(["BERT"])


def test_as_paper_takes_no_stand_ins(hub):
    """A folder may stand for a name; a model that is not there is an error, not another model."""
    offered, loads = hub
    offered |= {"/bert/folder", "openai-gpt"}
    asked = ("BERT=/bert/folder",)
    chooser = Models(asked, print, as_paper=True)
    assert [str(choice) for choice in chooser.choose(["BERT", "GPT-1"])] == ["BERT", "GPT-1"]
    assert "/bert/folder" in loads
    with pytest.raises(ValueError, match="no stand-ins, and RoBERTa could not be loaded"):
        chooser.choose(["RoBERTa"])
    with pytest.raises(ValueError, match="nowhere could not be loaded"):
        Models(("GPT-1=nowhere",), print, as_paper=True).choose(["GPT-1"])


def test_hub_names_are_the_papers_models(hub):
    """Asked for by its hub name, BERT is BERT: claims about it are tested."""
    offered, _ = hub
    offered |= {"bert-base-uncased", "/my/own"}
    bert, own = Models(("bert-base-uncased", "/my/own"), print).choose(["BERT"])
    assert bert.not_run(["BERT"]) == ""
    assert own.not_run(["BERT", "GPT-1"]) == "BERT and GPT-1"
