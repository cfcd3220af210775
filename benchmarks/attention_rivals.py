"""Published and simple ways to approximate attention; one number of each trades time for error.

Written here from their papers and the published descriptions of their code, in PyTorch. Hashing,
sorting and sampling are part of the time. What a method leaves open is settled in its favour:

* KDEformer and HyperAttention count the pairs of a query's own block once; HyperAttention's
  published code counts them twice where its bias is not applied (docs/errata.md E25).
* WildCat and Thinformer are in coresets.py.
* Causal attention by sampling splits the text in halves, as HyperAttention does: the second half's
  queries see the first half's keys without a mask, and both halves are causal again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.coresets import Part, Tensor, thinned_keys, weighted_keys


@dataclass(frozen=True)
class Head:
    """One head; the scale is already in the queries."""

    query: Tensor
    key: Tensor
    value: Tensor
    is_causal: bool
    seed: int

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def sdpa(head: Head) -> Tensor:
    """PyTorch's own; values are padded to the width of the keys, which gives its fused loop."""
    q, k, v = head.query, head.key, head.value
    padded = torch.nn.functional.pad(v, (0, max(0, k.shape[1] - v.shape[1])))
    run = torch.nn.functional.scaled_dot_product_attention
    out = run(q[None, None], k[None, None], padded[None, None], is_causal=head.is_causal, scale=1.0)
    return out[0, 0, :, : v.shape[1]]


def blocked(head: Head, block: int = 512) -> Tensor:
    """Exact, a block of queries at a time; causal blocks see the keys up to their end."""
    outputs = []
    for start in range(0, len(head.query), block):
        stop = min(start + block, len(head.query))
        n_keys = stop if head.is_causal else len(head.key)
        scores = head.query[start:stop] @ head.key[:n_keys].T
        if head.is_causal:
            scores[:, start:] += _above_diagonal(stop - start)
        outputs.append(torch.softmax(scores, dim=1) @ head.value[:n_keys])
    return torch.cat(outputs)


def mean_of_values(head: Head, size: int) -> Tensor:
    return head.value.mean(dim=0).expand(len(head.query), -1)


def running_mean(head: Head, size: int) -> Tensor:
    """The mean of the values that a query sees."""
    n_seen = torch.arange(1, len(head.value) + 1)
    return head.value.cumsum(dim=0) / n_seen[:, None]


def uniform(head: Head, n_drawn: int) -> Tensor:
    """The same uniform sample of keys for all queries, without repeats."""

    def cross(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Part:
        drawn = torch.randperm(len(k), generator=generator)[:n_drawn]
        return _part(q @ k[drawn].T + math.log(len(k) / len(drawn)), v[drawn])

    return _whole(head, cross, n_drawn)


def hyper_attention(head: Head, n_drawn: int, block: int = 256, n_bits: int = 7) -> Tensor:
    """Sorted hash blocks exactly, uniform keys for the rest, not counting a block's keys twice."""

    def cross(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Part:
        drawn = torch.randint(len(k), (n_drawn,), generator=generator)
        weight = torch.full((n_drawn,), math.log(len(k) / n_drawn))
        return _blocks_and_sample(q, k, v, block, n_bits, drawn, weight, generator)

    return _whole(head, cross, max(block, n_drawn))


def kdeformer(head: Head, n_drawn: int, n_bits: int = 7) -> Tensor:
    """Sorted hash blocks of n_drawn / 2 keys; the rest from keys drawn by the length of values."""

    def cross(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Part:
        with_one = torch.cat([v, torch.ones(len(v), 1)], dim=1)
        lengths = with_one.norm(dim=1)
        p = lengths / _operator_norm(with_one) + 1 / len(k)
        p = p / p.sum()
        drawn = torch.multinomial(p, n_drawn, replacement=True, generator=generator)
        weight = -(p[drawn] * n_drawn).log()
        return _blocks_and_sample(q, k, v, max(16, n_drawn // 2), n_bits, drawn, weight, generator)

    return _whole(head, cross, n_drawn)


def wildcat(head: Head, n_keys: int) -> Tensor:
    """Keys chosen by pivots, with weights that project the others onto them."""

    def cross(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Part:
        return weighted_keys(q, k, v, n_keys, generator)

    return _whole(head, cross, n_keys)


def thinformer(head: Head, n_keys: int, block: int = 256) -> Tensor:
    """Keys thinned by halving blocks of them."""

    def cross(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Part:
        return thinned_keys(q, k, v, n_keys, block, generator)

    return _whole(head, cross, n_keys)


def nystroem(head: Head, n_landmarks: int) -> Tensor:
    """Landmarks among queries and keys: A = A_qz A_zz^-1 A_zk, in the lifted Gaussian kernel."""
    q, k, v = head.query, head.key, head.value
    lift = (k.square().sum(dim=1).max() - k.square().sum(dim=1)).clamp(min=0).sqrt()
    k = torch.cat([k, lift[:, None]], dim=1)
    q = torch.cat([q, torch.zeros(len(q), 1)], dim=1)
    # exp(<q, k>) = exp((|q|^2 + |k|^2) / 2) K(q, k); the factor of a query cancels in the quotient.
    points = torch.cat([q, k])
    z = points[torch.randperm(len(points), generator=head.generator)[:n_landmarks]]
    middle = _gaussian(z, z).double()
    middle += 1e-6 * torch.eye(len(z), dtype=torch.float64)
    with_one = torch.cat([v, torch.ones(len(v), 1)], dim=1)
    sums = torch.linalg.solve(middle, (_gaussian(z, k) @ with_one).double()).float()
    products = _gaussian(q, z) @ sums
    total = products[:, -1:]
    return torch.where(total > 0, products[:, :-1] / total, v.mean(dim=0))


def performer(head: Head, n_features: int, block: int = 512) -> Tensor:
    """Positive orthogonal features exp(w x - |x|^2 / 2); causal by running sums over blocks."""
    q, k, v = head.query, head.key, head.value
    w = _orthogonal(n_features, q.shape[1], head.generator)
    of_query = _features(q, w, per_row=True)
    of_key = _features(k, w, per_row=False)
    with_one = torch.cat([v, torch.ones(len(v), 1)], dim=1)
    if not head.is_causal:
        products = of_query @ (of_key.T @ with_one)
    else:
        state = torch.zeros(n_features, with_one.shape[1])
        parts = []
        for start in range(0, len(q), block):
            at = slice(start, start + block)
            near = (of_query[at] @ of_key[at].T).tril()
            parts.append(of_query[at] @ state + near @ with_one[at])
            state += of_key[at].T @ with_one[at]
        products = torch.cat(parts)
    return products[:, :-1] / products[:, -1:].clamp(min=1e-30)


class Entry(NamedTuple):
    """A rival, its sizes, and the other settings of which the best is taken at each size."""

    run: Callable[..., Tensor]
    sizes: tuple[int, ...]
    settings: tuple[dict[str, int], ...] = ({},)


SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
RIVALS = {
    "mean(V)": Entry(mean_of_values, (1,)),
    "running mean": Entry(running_mean, (1,)),
    "uniform keys": Entry(uniform, SIZES),
    "KDEformer": Entry(kdeformer, SIZES, ({"n_bits": 4}, {"n_bits": 7}, {"n_bits": 10})),
    "HyperAttention": Entry(
        hyper_attention, SIZES, ({"block": 128, "n_bits": 10}, {"block": 256}, {"block": 512})
    ),
    "WildCat": Entry(wildcat, SIZES[:5]),
    "Thinformer": Entry(thinformer, SIZES, ({"block": 64}, {"block": 256})),
    "Nystroem": Entry(nystroem, SIZES[:5]),
    "Performer": Entry(performer, SIZES[:5]),
}
NOT_CAUSAL = ("Nystroem",)
ONLY_CAUSAL = ("running mean",)
FREE = ("mean(V)", "running mean")  # they take next to no time, and nobody knows their error


def _whole(head: Head, cross: Callable[..., Part], fewest: int) -> Tensor:
    generator = head.generator
    if not head.is_causal:
        return cross(head.query, head.key, head.value, generator)[0]
    return _causal(head.query, head.key, head.value, cross, max(fewest, 512), generator)[0]


def _causal(q: Tensor, k: Tensor, v: Tensor, cross: Any, fewest: int, generator: Any) -> Part:
    if len(q) <= 2 * fewest:
        return _part(q @ k.T + _above_diagonal(len(q)), v)
    half = len(q) // 2
    first = _causal(q[:half], k[:half], v[:half], cross, fewest, generator)
    second = _causal(q[half:], k[half:], v[half:], cross, fewest, generator)
    second = _merged(second, cross(q[half:], k[:half], v[:half], generator))
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


def _part(scores: Tensor, v: Tensor) -> Part:
    return torch.softmax(scores, dim=-1) @ v, torch.logsumexp(scores, dim=-1)


def _merged(a: Part, b: Part) -> Part:
    """Two sets of keys seen by the same queries."""
    share = torch.sigmoid(a[1] - b[1])[..., None]
    return share * a[0] + (1 - share) * b[0], torch.logaddexp(a[1], b[1])


def _above_diagonal(n: int) -> Tensor:
    return torch.full((n, n), -math.inf).triu(1)


def _blocks_and_sample(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    n_bits: int,
    drawn: Tensor,
    log_weight: Tensor,
    generator: torch.Generator,
) -> Part:
    """Block-diagonal pairs of the sorted queries and keys, and drawn keys outside of the block."""
    directions = torch.randn(q.shape[1], n_bits, generator=generator)
    query_order, key_order = _hash(q, directions).argsort(), _hash(k, directions).argsort()
    n_blocks = max(1, len(k) // block)
    place = torch.empty_like(key_order)
    place[key_order] = torch.arange(len(k)) * n_blocks // len(k)
    out, lse = torch.empty(len(q), v.shape[1]), torch.empty(len(q))
    for b in range(n_blocks):
        rows = query_order[len(q) * b // n_blocks : len(q) * (b + 1) // n_blocks]
        keys = key_order[-(-len(k) * b // n_blocks) : -(-len(k) * (b + 1) // n_blocks)]
        near = _part(q[rows] @ k[keys].T, v[keys])
        scores = q[rows] @ k[drawn].T + log_weight
        scores[:, place[drawn] == b] = -math.inf
        if (place[drawn] != b).any():
            near = _merged(near, _part(scores, v[drawn]))
        out[rows], lse[rows] = near
    return out, lse


def _hash(points: Tensor, directions: Tensor) -> Tensor:
    """Rank of the sign pattern in the Gray code: neighbours differ by one bit."""
    bits = (points @ directions > 0).long()
    return (bits.cumsum(dim=1) % 2 * 2 ** torch.arange(bits.shape[1]).flip(0)).sum(dim=1)


def _operator_norm(a: Tensor, iterations: int = 20) -> Tensor:
    x = torch.ones(a.shape[1])
    for _ in range(iterations):
        x = a.T @ (a @ x)
        x = x / x.norm()
    return (a @ x).norm()


def _gaussian(a: Tensor, b: Tensor) -> Tensor:
    squares = a.square().sum(dim=1)[:, None] + b.square().sum(dim=1) - 2 * a @ b.T
    return (-squares.clamp(min=0) / 2).exp()


def _features(x: Tensor, w: Tensor, *, per_row: bool) -> Tensor:
    """Factors common to a query, or to all keys, cancel: they are chosen against overflow."""
    exponents = x @ w.T - x.square().sum(dim=1, keepdim=True) / 2
    most = exponents.max(dim=1, keepdim=True).values if per_row else exponents.max()
    return (exponents - most).exp()


def _orthogonal(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Blocks of d orthogonal directions with the lengths of normal vectors."""
    blocks = []
    for _ in range(-(-n // d)):
        rotation = torch.linalg.qr(torch.randn(d, d, generator=generator)).Q
        lengths = torch.randn(d, d, generator=generator).norm(dim=1)
        blocks.append(rotation * lengths[:, None])
    return torch.cat(blocks)[:n]
