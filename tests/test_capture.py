"""Captured heads give the model's own attention again, for each kind of model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from approxkmv.capture import (
    Head,
    LoadedModel,
    attention_difference,
    capture_heads,
    load_model,
    probabilities,
)

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
}
OLD_GPT = {"vocab_size": 101, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 80}
CONFIGS: dict[str, Any] = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "roberta": lambda: transformers.RobertaConfig(**SMALL),
    "openai-gpt": lambda: transformers.OpenAIGPTConfig(**OLD_GPT),
    "gpt2": lambda: transformers.GPT2Config(**OLD_GPT, scale_attn_by_inverse_layer_idx=True),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL),
    "llama": lambda: transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, num_key_value_heads=1, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**SMALL, num_key_value_heads=2),
}
CAUSAL = {"openai-gpt", "gpt2", "llama", "qwen3", "mistral"}


def random_model(config: Any) -> LoadedModel:
    """A model with weights large enough for attention that is far from uniform."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return LoadedModel(model, None, config.model_type)


@pytest.fixture(scope="module", params=CONFIGS)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return random_model(CONFIGS[request.param]())


def ids(n: int = 60) -> np.ndarray:
    return np.random.default_rng(1).integers(3, 101, n)


def test_attention_is_the_models_own(loaded: LoadedModel) -> None:
    assert attention_difference(loaded, ids()) < 1e-5


def test_attention_is_far_from_uniform(loaded: LoadedModel) -> None:
    """So that a wrong scale, rotation or head order cannot pass the test before this one."""
    assert max(probabilities(head)[30:].max() for head in capture_heads(loaded, ids())) > 0.3


def test_every_head_once_and_of_one_form(loaded: LoadedModel) -> None:
    heads = list(capture_heads(loaded, ids()))
    assert [(head.layer, head.head) for head in heads] == [
        (layer, head) for layer in range(3) for head in range(4)
    ]
    for head in heads:
        for part in (head.query, head.key, head.value):
            assert part.dtype == np.float32
            assert part.flags.c_contiguous
            assert len(part) == 60
        assert head.is_causal == (loaded.name in CAUSAL)
        assert (head.bias is not None) == (loaded.name == "mpnet")


def test_model_is_left_as_it_was(loaded: LoadedModel) -> None:
    """Same answers before and after, the same attention function, no hooks."""
    attention = loaded.model.config._attn_implementation
    inputs = {"input_ids": torch.from_numpy(ids())[None]}
    with torch.no_grad():
        before = loaded.model(**inputs).last_hidden_state
        list(capture_heads(loaded, ids()))
        after = loaded.model(**inputs).last_hidden_state
    assert torch.equal(before, after)
    assert loaded.model.config._attn_implementation == attention
    assert not any(part._forward_pre_hooks for part in loaded.model.modules())


def test_values_are_those_of_the_model() -> None:
    """Attention times values, through the output projection, is what BERT's attention returns."""
    loaded = random_model(CONFIGS["bert"]())
    outputs: list[Any] = []
    layer = loaded.model.encoder.layer[1].attention.self
    handle = layer.register_forward_hook(lambda *parts: outputs.append(parts[2][0]))
    heads = [head for head in capture_heads(loaded, ids()) if head.layer == 1]
    handle.remove()
    ours = np.concatenate([probabilities(head) @ head.value for head in heads], axis=1)
    np.testing.assert_allclose(ours, outputs[0][0].detach().numpy(), atol=1e-5)


def test_only_the_layers_asked_for() -> None:
    loaded = random_model(CONFIGS["llama"]())
    every = [head for head in capture_heads(loaded, ids()) if head.layer == 2]
    some = list(capture_heads(loaded, ids(), layers=[2]))
    assert [head.layer for head in some] == [2] * 4
    for a, b in zip(every, some, strict=True):
        np.testing.assert_array_equal(a.query, b.query)
    with pytest.raises(ValueError, match=r"layers must lie between 0 and 2, got \[3\]"):
        capture_heads(loaded, ids(), layers=[3])


def test_heads_that_share_keys_share_memory() -> None:
    heads = list(capture_heads(random_model(CONFIGS["llama"]()), ids(), layers=[0]))
    assert np.shares_memory(heads[0].key, heads[1].key)
    assert not np.shares_memory(heads[1].key, heads[2].key)


def test_a_window_is_refused_where_it_bites() -> None:
    config = CONFIGS["mistral"]()
    config.sliding_window = 20
    loaded = random_model(config)
    assert attention_difference(loaded, ids(20)) < 1e-5
    with pytest.raises(ValueError, match="window"):
        capture_heads(loaded, ids(40))


def test_capped_scores_are_refused() -> None:
    config = transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8)
    with pytest.raises(ValueError, match="softcap"):
        capture_heads(random_model(config), ids())


def test_encoder_with_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=101, d_model=32, num_layers=1, num_heads=4)
    with pytest.raises(ValueError, match="encoder and a decoder"):
        capture_heads(LoadedModel(transformers.T5Model(config).eval(), None, "t5"), ids())


def test_a_model_in_training_is_refused() -> None:
    loaded = random_model(CONFIGS["bert"]())
    loaded.model.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        capture_heads(loaded, ids())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((1, 4), int), r"got shape \(1, 4\)"),
        (np.zeros(4), "float64"),
        (np.zeros(0, int), r"got shape \(0,\)"),
        (np.zeros(81, int), "at most 80 entries"),
        (np.array([101]), "between 0 and 100, got 101"),
        (np.array([-1]), "between 0 and 100, got -1"),
    ],
)
def test_bad_token_ids(bad: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        capture_heads(random_model(CONFIGS["bert"]()), bad)


def test_positions_behind_the_padding() -> None:
    """RoBERTa numbers positions from padding + 1: 80 embeddings serve 78 tokens."""
    loaded = random_model(CONFIGS["roberta"]())
    assert loaded.max_tokens == 78
    assert len(list(capture_heads(loaded, ids(78)))) == 12


def test_loads_a_folder_with_its_tokenizer(tmp_path: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "a": 1, "short": 2, "text": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    random_model(CONFIGS["bert"]()).model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.n_layers, loaded.n_heads) == (3, 4)
    assert loaded.token_ids("a short text of two").tolist() == [1, 2, 3, 0, 0]
    assert loaded.token_ids("a short text", n_max=2).tolist() == [1, 2]
    assert attention_difference(loaded, loaded.token_ids("a short text")) < 1e-5


def test_nothing_to_load(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="could not be loaded"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match=r"must exist, got .*none\.gguf"):
        load_model(tmp_path / "none.gguf")


def test_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="without a tokenizer"):
        random_model(CONFIGS["bert"]()).token_ids("text")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"approxkmv\[transformers\]"):
        load_model("anything")


def test_bias_counts() -> None:
    """A bias that lets each token see one other one alone decides the probabilities."""
    zeros = np.zeros((3, 2), np.float32)
    bias = np.full((3, 3), -1e9, np.float32)
    bias[np.arange(3), [1, 2, 0]] = 0
    head = Head(0, 0, zeros, zeros, zeros, 1.0, False, bias)
    np.testing.assert_array_equal(probabilities(head), np.eye(3)[[1, 2, 0]])
