"""Loss predicted from errors of heads against the loss that they add; and the best shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from approxkmv._sensitivity import least_time, sensitivity

N = 60  # draws of labels, and of errors


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower with several, which wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_predicted_loss_is_that_of_small_errors() -> None:
    """Mean divergence over errors drawn, against the prediction, both with their spread."""
    model, ids, eps = tiny(), torch.arange(30)[None] % 50, 0.02
    predicted = np.array([sensitivity(model, ids, seed).of_heads for seed in range(N)])
    generator = torch.Generator().manual_seed(1)
    attentions = [layer.self_attn for layer in model.model.layers]
    log_p = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=1).detach()
    width = 8
    for layer, head in ((0, 0), (0, 3), (1, 2)):
        values = attentions[layer].v_proj
        sizes: list[Any] = []
        hook = values.register_forward_hook(lambda m, i, o, sizes=sizes: sizes.append(o.detach()))
        model(input_ids=ids)
        hook.remove()
        shared = sizes[0][0, :, (head // 2) * width : (head // 2 + 1) * width]
        scale = eps * shared.square().mean().sqrt()

        def disturb(_: Any, inputs: Any, head: int = head, scale: Any = scale) -> Any:
            error = torch.zeros_like(inputs[0])
            part = error[..., head * width : (head + 1) * width]
            part.normal_(generator=generator).mul_(scale)
            return (inputs[0] + error,)

        hook = attentions[layer].o_proj.register_forward_pre_hook(disturb)
        found = []
        with torch.no_grad():
            for _ in range(N):
                other = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=1)
                found.append(float((log_p.exp() * (log_p - other)).sum(dim=1).mean()))
        hook.remove()
        each = eps**2 * predicted[:, layer, head]
        spread = np.hypot(np.std(found), np.std(each)) / np.sqrt(N)
        assert spread < 0.15 * np.mean(found)
        # Beyond chance, what is left out is of the next order in eps.
        assert abs(np.mean(found) - each.mean()) < 4 * spread + 0.03 * np.mean(found)


@pytest.mark.parametrize("most", [0.0, 0.3, 1.0, 3.0, 100.0])
def test_least_time(most: float) -> None:
    """Against all choices: none within the limit is faster by more than one head's last step."""
    rng = np.random.default_rng(0)
    seconds, added = rng.exponential(size=(3, 2, 2)), rng.exponential(size=(3, 2, 2))
    added[0] = 0
    choice = least_time(seconds, added, most)

    def sums(ways: Any) -> tuple[float, float]:
        picked = np.reshape(ways, (1, 2, 2))
        return tuple(float(np.take_along_axis(a, picked, 0).sum()) for a in (seconds, added))

    every = [sums(ways) for ways in itertools.product(range(3), repeat=4)]
    best = min(time for time, more in every if more <= most)
    time, more = sums(choice)
    assert more <= most
    assert best <= time <= best + (seconds.max(axis=0) - seconds.min(axis=0)).max()
    if most > 12:
        assert time == pytest.approx(best)
