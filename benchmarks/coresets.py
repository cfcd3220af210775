"""A few weighted keys in the place of all: two ways to choose them, written here from their papers.

* WildCat (Schröder and Mackey, arXiv 2602.10056): keys chosen by randomly pivoted Cholesky of the
  kernel exp(<k, k'>), and weights that project the others onto them.
* Thinformer (Carrell, Gong, Shetty, Dwivedi and Mackey, arXiv 2502.12063): keys halved again and
  again by a walk that balances the kernel exp(<k, k'>) <v, v'>; they stand for equally many each.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor
Part = tuple[Tensor, Tensor]  # output and logarithm of the denominator, by query


# How far the walk may go before its next sign is certain, in standard deviations. The bounds of the
# paper ask for about 4; with 0.5 the errors were half of that, or less, where halving helps at all.
_THRESHOLD = 0.5


def weighted_keys(q: Tensor, k: Tensor, v: Tensor, n_keys: int, generator: torch.Generator) -> Part:
    """Outputs and log denominators from keys chosen by pivots.

    A shift of all keys changes no weight, so the keys are centred; and queries and keys are brought
    to the same mean square, which leaves the scores alone and balances the projection.
    """
    centre = k.mean(dim=0)
    balance = (k - centre).square().mean().sqrt() / q.square().mean().sqrt().clamp(min=1e-30)
    tau = balance.sqrt().clamp(min=1e-6)
    points = ((k - centre) / tau).double()
    with_one = torch.cat([v, torch.ones(len(v), 1)], dim=1).double()
    # All of the kernel times one constant, so that none of its entries leaves the range.
    lowest = points.square().sum(dim=1).max()
    pivots = _pivots(points, lowest, n_keys, generator)
    own = torch.exp(points[pivots] @ points[pivots].T - lowest)
    own.diagonal().add_(1e-10 * own.diagonal().max())
    across = torch.exp(points[pivots] @ points.T - lowest)
    sums = torch.linalg.solve(own, across @ with_one).float()
    scores = (q * tau) @ points[pivots].T.float()
    most = scores.max(dim=1, keepdim=True).values
    products = torch.exp(scores - most) @ sums
    total = products[:, -1:].clamp(min=1e-30)
    # A mean of values lies between the smallest and the largest.
    output = (products[:, :-1] / total).clamp(v.min(dim=0).values, v.max(dim=0).values)
    return output, (total.log() + most)[:, 0] + q @ centre


def _pivots(points: Tensor, lowest: Tensor, n_keys: int, generator: torch.Generator) -> Tensor:
    """Randomly pivoted Cholesky, some pivots at a time."""
    left = torch.exp(points.square().sum(dim=1) - lowest)
    factor = torch.zeros(len(points), 0, dtype=torch.float64)
    pivots = torch.zeros(0, dtype=torch.int64)
    while len(pivots) < n_keys and bool((left > 0).any()):
        n_new = min(max(1, n_keys // 8), n_keys - len(pivots), int((left > 0).sum()))
        new = torch.multinomial(left / left.max(), n_new, generator=generator)
        column = torch.exp(points @ points[new].T - lowest) - factor @ factor[new].T
        own = column[new]
        own.diagonal().add_(1e-10 * own.diagonal().max())
        lower, _ = torch.linalg.cholesky_ex(own)
        found = torch.linalg.solve_triangular(lower, column.T, upper=False).T
        factor = torch.cat([factor, found], dim=1)
        left = (left - found.square().sum(dim=1)).clamp(min=0)
        left[new] = 0
        pivots = torch.cat([pivots, new])
    return pivots


def thinned_keys(
    q: Tensor, k: Tensor, v: Tensor, n_keys: int, block: int, generator: torch.Generator
) -> Part:
    """Outputs and log denominators from keys thinned by halving."""
    kept = _thinned(k, v, n_keys, block, generator)
    scores = q @ k[kept].T
    each = math.log(len(k) / len(kept))
    return torch.softmax(scores, dim=1) @ v[kept], torch.logsumexp(scores, dim=1) + each


def _thinned(k: Tensor, v: Tensor, n_keys: int, block: int, generator: torch.Generator) -> Tensor:
    """Indices of the keys that are left; blocks are halved, and neighbours joined."""
    with_most = torch.cat([v, v.abs().max().expand(len(v), 1)], dim=1)
    kept = torch.arange(len(k))
    while len(kept) >= 2 * n_keys:
        size = min(block, len(kept))
        blocks = kept[: len(kept) // size * size].reshape(-1, size)
        rest = kept[blocks.numel() :: 2]
        kept = torch.cat([_halved(k, with_most, blocks, generator).flatten(), rest])
    return kept


def _halved(k: Tensor, v: Tensor, blocks: Tensor, generator: torch.Generator) -> Tensor:
    """One of each pair of neighbours; signs are drawn against the sum so far, block by block."""
    blocks = blocks[:, : blocks.shape[1] // 2 * 2]
    points = k[blocks]
    squares = points.square().sum(dim=2)
    exponents = points @ points.mT - squares.amax(dim=1)[:, None, None]
    kernel = torch.exp(exponents) * (v[blocks] @ v[blocks].mT)
    steps = kernel[:, ::2] - kernel[:, 1::2]
    steps = (steps[:, :, ::2] - steps[:, :, 1::2]).double()  # products of differences of pairs
    n_blocks, n_pairs = steps.shape[:2]
    signs = torch.zeros(n_blocks, n_pairs, dtype=torch.float64)
    sigma = torch.zeros(n_blocks, dtype=torch.float64)
    uniform = torch.rand(n_blocks, n_pairs, generator=generator, dtype=torch.float64)
    for pair in range(n_pairs):
        length = steps[:, pair, pair].clamp(min=1e-300)
        most = torch.maximum(_THRESHOLD * length.sqrt() * sigma.sqrt(), length)
        ahead = (signs * steps[:, pair]).sum(dim=1)
        chosen = uniform[:, pair] < (1 - ahead / most) / 2
        signs[:, pair] = torch.where(chosen, 1.0, -1.0)
        more = length * (1 + (length - 2 * most) * sigma / most.square())
        sigma = sigma + more.clamp(min=0)
    first = signs > 0
    return torch.where(first, blocks[:, ::2], blocks[:, 1::2])
