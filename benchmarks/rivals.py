"""The same product by other libraries, each as fast as it can be written in a few lines.

Points are folded before the clock starts (norms as extra coordinates, see ``folded``), which
favours the rivals by what that takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from approxkmv.cli.compare import folded, numpy_blocked
from benchmarks.harness import installed

Product = Callable[[], Any]


def products(queries: Any, keys: Any, x: Any, bandwidth: float) -> dict[str, Product]:
    """K @ x for one vector by every rival that is installed."""
    folded_queries, folded_keys = folded(queries, keys, bandwidth)
    rivals = {"NumPy blocked": lambda: numpy_blocked(folded_queries, folded_keys, x)}
    if installed("torch"):
        rivals["torch blocked"] = torch_blocked(folded_queries, folded_keys, x)
    if installed("pykeops"):
        rivals["KeOps"] = keops(queries, keys, x, bandwidth)
    return rivals


def torch_blocked(folded_queries: Any, folded_keys: Any, x: Any, block: int = 512) -> Product:
    """PyTorch's matrix product and in-place exponential, a block of queries at a time."""
    import torch

    q, k, v = map(torch.from_numpy, (folded_queries, folded_keys, x))

    def run() -> Any:
        with torch.inference_mode():
            blocks = [(q[i : i + block] @ k.T).exp_() @ v for i in range(0, len(q), block)]
            return torch.cat(blocks).numpy()

    return run


def torch_attention(queries: Any, keys: Any, values: Any, bandwidth: float) -> Product:
    """D^-1 K V by scaled_dot_product_attention, for keys of equal norm.

    Equal norms cancel in the softmax, so the plain inner product of points divided by the bandwidth
    gives the Gaussian weights without another coordinate. Values are padded to the points'
    dimension: only then does PyTorch take its fused loop, 2.5 times as fast as the other here.
    """
    import torch

    n_columns = values.shape[1]
    padded = np.zeros((len(values), keys.shape[1]), values.dtype)
    padded[:, :n_columns] = values
    scale = queries.dtype.type(bandwidth)
    q, k, v = (torch.from_numpy(a)[None, None] for a in (queries / scale, keys / scale, padded))

    def run() -> Any:
        with torch.inference_mode():
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
            return out[0, 0, :, :n_columns].numpy()

    return run


def keops(queries: Any, keys: Any, x: Any, bandwidth: float) -> Product:
    """KeOps' lazy tensors; it compiles on the first, untimed call."""
    lazy = importlib.import_module("pykeops.numpy").LazyTensor
    q, k = lazy(queries[:, None, :]), lazy(keys[None, :, :])

    def run() -> Any:
        kernel = (-((q - k) ** 2).sum(-1) / (2 * bandwidth**2)).exp()
        return (kernel @ x[:, None])[:, 0]

    return run
