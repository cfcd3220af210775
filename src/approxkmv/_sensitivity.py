r"""What an error of each head does to the predictions of a language model, from one gradient.

Let O be the outputs of a head and L the sum of the log probabilities of labels that are drawn from
the model's own predictions. The mean over labels of the squared gradient of L by O is the Fisher
information of O, so a small error E with independent entries of mean 0 raises the sum of the
Kullback-Leibler divergences, and with them the expected loss, by half of

.. math:: \sum_{ij} (\partial L / \partial O_{ij})^2 E_{ij}^2 .

One backward pass gives this for all heads and rows, where trying them would take a pass for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

_PROBE = "approxkmv-probe"


@dataclass(frozen=True)
class Sensitivity:
    """Squared gradients of every head, and the size of its values."""

    by_row: Float64  # (layers, heads, tokens): summed over columns, averaged over texts
    values: Float64  # (layers, heads): mean square of the entries of the values

    @property
    def of_heads(self) -> Float64:
        """Loss added per token by an error of ``eps |V|`` is this times the square of eps.

        The error of a head is taken to be spread evenly over its rows and columns.
        """
        return np.asarray(self.by_row.mean(axis=2) * self.values / 2)


def sensitivity(model: Any, ids: Any, seed: int = 0) -> Sensitivity:
    """One pass forward and one back; memory as in training, without gradients of the weights."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    probes: dict[int, tuple[Any, Any]] = {}

    def probed(module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any) -> Any:
        output, _ = attend(module, query, key, value, mask, **given)
        probe = torch.zeros_like(output, requires_grad=True)  # its gradient is that of the output
        squares = value.detach().square().mean(dim=(0, 2, 3))
        shared = output.shape[2] // value.shape[1]
        probes[module.layer_idx] = probe, squares.repeat_interleave(shared)
        return output + probe, None

    AttentionInterface.register(_PROBE, probed)
    AttentionMaskInterface.register(_PROBE, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_PROBE)
    try:
        with torch.enable_grad():
            logits = model(input_ids=ids, use_cache=False).logits.float().flatten(0, 1)
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.multinomial(logits.detach().softmax(dim=1), 1, generator=generator)
            total = torch.nn.functional.cross_entropy(logits, drawn[:, 0], reduction="sum")
            layers = sorted(probes)
            grads = torch.autograd.grad(total, [probes[layer][0] for layer in layers])
        by_row = [grad.double().square().sum(dim=3).mean(dim=0).T for grad in grads]
        values = [probes[layer][1].double() for layer in layers]
        return Sensitivity(torch.stack(by_row).numpy(), torch.stack(values).numpy())
    finally:
        model.set_attn_implementation(before)
        probes.clear()


def least_time(seconds: Float64, added: Float64, most: float) -> Index:
    """Which way to take for each head, to add at most ``most`` in the least time.

    ``seconds`` and ``added`` are (ways, layers, heads); the first way adds nothing. For a price of
    what is added every head has its best way, and the lowest price is looked for at which all
    together stay within ``most``: the best choice but for the last step of one head.
    """
    low, high = 0.0, 1.0
    while _added(seconds, added, high) > most:
        high *= 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _added(seconds, added, middle) <= most else (middle, high)
    return np.asarray((seconds + high * added).argmin(axis=0))


def _added(seconds: Float64, added: Float64, price: float) -> float:
    choice = (seconds + price * added).argmin(axis=0)
    return float(np.take_along_axis(added, choice[None], axis=0).sum())
