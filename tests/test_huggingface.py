"""transformers models with our attention: the same numbers as eager, or a clear refusal.

Models are tiny and random. With two layers a wrong row reaches every later one.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import approxkmv
from approxkmv import huggingface

NAME = "approxkmv-exact"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "vocab_size": 99, "intermediate_size": 48, "max_position_embeddings": 64}


def build(name: str) -> Any:
    torch.manual_seed(0)
    if name == "BERT":
        return transformers.BertModel(transformers.BertConfig(**TEXT)).eval()
    if name == "Llama":
        config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2, pad_token_id=0)
        return transformers.LlamaForCausalLM(config).eval()
    if name == "GPT-2":
        config = transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if name == "Mistral":
        config = transformers.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=8)
        return transformers.MistralForCausalLM(config).eval()
    assert name == "ViT"
    config = transformers.ViTConfig(**SIZES, intermediate_size=48, image_size=16, patch_size=4)
    return transformers.ViTModel(config).eval()


def tokens(n: int = 12) -> torch.Tensor:
    return torch.randint(1, 99, (3, n), generator=torch.Generator().manual_seed(0))


def both(model: Any, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """First output with eager attention and with ours."""
    outputs = []
    huggingface.register(NAME, method="exact")
    for implementation in ("eager", NAME):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs.append(model(**inputs)[0])
    return outputs[0], outputs[1]


@pytest.mark.parametrize("name", ["BERT", "Llama", "GPT-2"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_language_models(name: str, padding: str) -> None:
    ids = tokens()
    mask = torch.ones_like(ids)
    if padding == "left":
        mask[0, :5] = mask[1, :1] = 0
    if padding == "right":
        mask[0, 7:] = mask[1, 11:] = 0
    eager, ours = both(build(name), input_ids=ids, attention_mask=mask)
    seen = mask.bool()  # what a padded position holds is nobody's business
    assert (eager - ours)[seen].abs().max() < 1e-5
    assert torch.isfinite(ours).all()


def test_padding_matters() -> None:
    """The test above can fail: without the mask the numbers differ by more."""
    ids, model = tokens(), build("Llama")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with_mask = both(model, input_ids=ids, attention_mask=mask)[1]
    without = both(model, input_ids=ids)[1]
    assert (with_mask - without)[0, 5:].abs().max() > 1e-3


def test_vision_model() -> None:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    eager, ours = both(build("ViT"), pixel_values=pixels)
    assert (eager - ours).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_with_padding(name: str, cache: str) -> None:
    """Greedy decoding of a padded batch gives the tokens of eager, whatever the cache."""
    model = build(name)
    ids = tokens(6)
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[2, :1] = 0
    huggingface.register(NAME, method="exact")
    texts = []
    for implementation in ("eager", NAME):
        model.set_attn_implementation(implementation)
        texts.append(
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=8,
                do_sample=False,
                pad_token_id=0,
                cache_implementation=None if cache == "dynamic" else "static",
                disable_compile=True,
            )
        )
    assert torch.equal(*texts)


def test_training_has_gradients() -> None:
    model = build("Llama")
    ids = tokens()
    grads = []
    for implementation in ("eager", huggingface.register(NAME, method="exact")):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        grads.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    assert (grads[0] - grads[1]).abs().max() < 1e-6 + 1e-4 * grads[0].abs().max()


def test_sliding_window_only_where_it_does_nothing() -> None:
    model = build("Mistral")
    eager, ours = both(model, input_ids=tokens(8))
    assert (eager - ours).abs().max() < 1e-5
    with pytest.raises(ValueError, match="sliding window of 8, shorter than the 9 keys"):
        both(model, input_ids=tokens(9))


def test_position_bias_is_refused() -> None:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=99
    )
    model = transformers.T5EncoderModel(config).eval()
    model.set_attn_implementation(huggingface.register(NAME, method="exact"))
    with pytest.raises(ValueError, match="position_bias"):
        model(input_ids=tokens())


@pytest.mark.parametrize(
    "change",
    [
        {"softcap": 30.0},
        {"s_aux": torch.zeros(4)},
        {"position_bias": torch.zeros(1)},
        {"cu_seq_lens_q": torch.zeros(2)},
        {"output_attentions": True},
        {"something_new": 1},
    ],
)
def test_unknown_arguments_are_refused(change: dict[str, Any]) -> None:
    q = torch.zeros(1, 4, 5, 8)
    with pytest.raises(ValueError, match=f"Linear passes {next(iter(change))} to attention"):
        huggingface.attention_forward(torch.nn.Linear(1, 1), q, q, q, None, options={}, **change)


def test_harmless_arguments_are_not() -> None:
    q = torch.randn(1, 4, 5, 8)
    output, weights = huggingface.attention_forward(
        torch.nn.Linear(1, 1),
        q,
        q,
        q,
        None,
        options={},
        position_ids=q,
        use_cache=True,
        softcap=None,
    )
    assert output.shape == (1, 5, 4, 8)
    assert weights is None


def test_dropout_is_refused() -> None:
    config = transformers.LlamaConfig(**TEXT, attention_dropout=0.1)
    model = transformers.LlamaForCausalLM(config).train()
    model.set_attn_implementation(huggingface.register(NAME, method="exact"))
    with pytest.raises(ValueError, match="dropout_p must be 0"):
        model(input_ids=tokens())


def test_options_are_those_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names may have different options."""
    import approxkmv.torch as face

    seen = []

    def recorded(query: Any, key: Any, value: Any, **options: Any) -> Any:
        seen.append(options["eps"])
        return torch.zeros(*query.shape[:-1], value.shape[-1])

    monkeypatch.setattr(face, "scaled_dot_product_attention", recorded)
    model = build("ViT")
    pixels = torch.zeros(1, 3, 16, 16)
    for name, eps in (("approxkmv-a", 0.3), ("approxkmv-b", 0.01)):
        model.set_attn_implementation(huggingface.register(name, eps=eps))
        model(pixel_values=pixels)
    assert seen == [0.3, 0.3, 0.01, 0.01]


def test_other_options_are_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two registrations without a name keep their options; the same options are the same name."""
    import approxkmv.torch as face

    seen = []

    def recorded(query: Any, key: Any, value: Any, **options: Any) -> Any:
        seen.append((options["eps"], options["method"]))
        return torch.zeros(*query.shape[:-1], value.shape[-1])

    monkeypatch.setattr(face, "scaled_dot_product_attention", recorded)
    wanted = [({}, huggingface.EPS), ({"eps": 0.2}, 0.2), ({"method": "exact"}, huggingface.EPS)]
    names = [huggingface.register(**options) for options, _ in wanted]
    assert names == ["approxkmv", "approxkmv-eps-0.2", "approxkmv-method-exact"]
    assert huggingface.register(eps=0.2) == names[1]
    model = build("ViT")
    for name in names:
        model.set_attn_implementation(name)
        model(pixel_values=torch.zeros(1, 3, 16, 16))
    eps = [eps for _, eps in wanted]
    methods = ["auto", "auto", "exact"]
    assert seen[::2] == seen[1::2] == list(zip(eps, methods, strict=True))


def test_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention whose error grows with eps: the largest eps within the change asked for."""
    import approxkmv.torch as face

    attend = face.scaled_dot_product_attention

    def wrong(*arrays: Any, **options: Any) -> Any:
        off = 0.0 if options["method"] == "exact" else 50 * options["eps"]
        return off + attend(*arrays, **options | {"method": "exact"})

    monkeypatch.setattr(face, "scaled_dot_product_attention", wrong)
    model = build("Llama")
    model.set_attn_implementation("sdpa")
    texts = [tokens(40), tokens(9)[:1]]
    with torch.no_grad():
        losses = [float(model(input_ids=ids, labels=ids).loss) for ids in texts]
    perplexity = np.exp((3 * 39 * losses[0] + 8 * losses[1]) / (3 * 39 + 8))
    model.train()
    tolerances = (0.1, 0.01, 0.001)
    every = huggingface.calibrate(model, texts, 1e9, tolerances=tolerances, by_head=False)
    assert every.perplexity == pytest.approx(perplexity, rel=1e-5)
    assert list(every.changes) == sorted(tolerances)
    sizes = [abs(change) for change in every.changes.values()]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    for most, eps, n_tried in (
        (0.9 * sizes[0], 0.0, 1),
        (1.1 * sizes[0], 0.001, 2),
        (1.1 * sizes[1], 0.01, 3),
        (1.1 * sizes[2], 0.1, 3),
    ):
        found = huggingface.calibrate(model, texts, most, tolerances=tolerances, by_head=False)
        assert found.eps == eps
        # It stops at the first that changes too much.
        assert found.changes == dict(list(every.changes.items())[:n_tried])
        assert found.register() == f"approxkmv-eps-{eps}"
    # The model is as it was.
    assert model.config._attn_implementation == "sdpa"
    assert model.training


def test_calibration_of_nothing() -> None:
    with pytest.raises(ValueError, match="texts must hold"):
        huggingface.calibrate(build("Llama"), [])


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "approxkmv\[transformers\]"'):
        huggingface.register()


def test_registering_a_name_again_with_other_options_warns() -> None:
    """Models that have it already would change without a word."""
    name = "approxkmv-twice"
    huggingface.register(name, eps=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        huggingface.register(name, eps=0.1)
    with pytest.warns(approxkmv.AccuracyWarning, match=r"eps 0.1 and now 0.5: every model"):
        assert huggingface.register(name, eps=0.5) == name


def test_an_error_for_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every head meets its own number, its own keys and, at the end, its own place."""
    import approxkmv.torch as face

    attend, seen = face.scaled_dot_product_attention, []

    def recorded(query: Any, *arrays: Any, **options: Any) -> Any:
        seen.append((query.shape[1], options["eps"]))
        return attend(query, *arrays, **options)

    monkeypatch.setattr(face, "scaled_dot_product_attention", recorded)
    model, ids = build("Llama"), tokens()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    name = huggingface.register(eps=[[0.1, 0.2, 0.1, 0.0], [0.3] * 4])
    for given in (None, mask):
        outputs = []
        for implementation in ("eager", name):
            model.set_attn_implementation(implementation)
            with torch.no_grad():
                outputs.append(model(input_ids=ids, attention_mask=given)[0])
        assert (outputs[0] - outputs[1])[:, 5:].abs().max() < 1e-5
        assert seen == [(1, 0.0), (2, 0.1), (1, 0.2), (4, 0.3)]
        seen.clear()


def test_errors_of_heads_are_a_name_of_their_own() -> None:
    errors = [[0.1, 0.2], [0.3, 0.4]]
    name = huggingface.register(eps=errors)
    assert name.startswith("approxkmv-eps-by-head-")
    assert huggingface.register(eps=np.array(errors)) == name
    assert huggingface.register(eps=[[0.1, 0.2], [0.3, 0.5]]) != name
    with pytest.raises(ValueError, match="same number of heads"):
        huggingface.register(eps=[[0.1], [0.1, 0.2]])
    model = build("Llama")
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match="2 layers of 2 heads, which do not fit layer 0 of 4"):
        model(input_ids=tokens())


def test_calibration_by_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest error where nobody looks, none where it saves no time; saved is what is read."""
    import approxkmv.torch as face

    exact, generator = approxkmv.attention, torch.Generator().manual_seed(0)

    def attend(*points: Any, eps: float, return_info: bool = False, **given: Any) -> Any:
        given["method"] = "exact"
        output, info = exact(*points, **given, return_info=True)
        output = output + 20 * eps * torch.randn(output.shape, generator=generator)
        kept = {"method": "sampled", "error_estimate": eps}
        times = [1.0 if eps == 0 or head % 4 == 0 else 0.5 - eps for head in range(len(info.heads))]
        heads = [
            replace(head, seconds={"": t}, **kept)
            for head, t in zip(info.heads, times, strict=True)
        ]
        return (output, replace(info, heads=tuple(heads))) if return_info else output

    def asked(*points: Any, method: str = "auto", eps: float = 0.1, **given: Any) -> Any:
        return attend(*points, eps=0.0 if method == "exact" else eps, **given)

    monkeypatch.setattr(sys.modules["approxkmv.attention"], "attention", asked)
    monkeypatch.setattr(face, "attention", asked)
    model = build("Llama")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(1 if "norm" in name else 10)  # predictions that depend on the text
        model.model.layers[1].self_attn.o_proj.weight[:, 8:16] = 0  # head 1 of layer 1
    text = model.generate(tokens(2), max_new_tokens=40, do_sample=False, pad_token_id=0)
    tolerances = (0.0001, 0.001, 0.01)
    every = huggingface.calibrate(model, [text], 1e9, tolerances=tolerances, by_head=False)
    most = every.changes[0.01] / 2
    assert most > 0.001
    found = huggingface.calibrate(model, [text], most, tolerances=tolerances)
    assert found.by_head is not None
    assert found.by_head_change is not None
    assert abs(found.by_head_change) <= most
    errors = np.array(found.by_head)
    assert errors.shape == (2, 4)
    assert np.all(errors[:, 0] == 0)
    assert errors[1, 1] == 0.01
    assert np.all(errors[:, 1:] > 0)
    found.save(tmp_path / "found.json")
    again = huggingface.Calibration.load(tmp_path / "found.json")
    assert again == found
    assert again.register() == found.register()


def test_files_that_are_no_calibration(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"eps": 2, "perplexity": "a", "changes": [], "by_head": null}'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ValueError, match="file: not a saved calibration"):
            huggingface.Calibration.load(tmp_path / "file")
