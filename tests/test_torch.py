"""The PyTorch face: PyTorch's own answers, gradients, compilation, and what is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import approxkmv as akmv
from approxkmv.engine.cost import CostModel
from approxkmv.engine.head import HeadProblem
from approxkmv.engine.result import Result
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.loops.compiled import Compiled
from approxkmv.torch import matvec, scaled_dot_product_attention

exact = partial(scaled_dot_product_attention, method="exact")
# Scores below 10 and sums of at most 100 terms: a few hundred units of rounding.
CLOSE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(
    *lead: int, m: int = 5, n: int = 7, d: int = 4, r: int = 3, dtype: Any = torch.float64
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(m + 10 * n)
    sizes = ((m, d), (n, d), (n, r))
    return [
        torch.randn(*lead, *size, generator=generator, dtype=torch.float64).to(dtype)
        for size in sizes
    ]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= CLOSE[found.dtype]


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_same_as_torch(dtype: torch.dtype, lead: tuple[int, ...], is_causal: bool) -> None:
    q, k, v = tensors(*lead, dtype=dtype)
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    close(exact(q, k, v, is_causal=is_causal), wanted)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (3, 1, 1, 7), (3, 2, 5, 7)])
@pytest.mark.parametrize("kind", ["truth", "numbers"])
def test_masks_as_torch(shape: tuple[int, ...], kind: str) -> None:
    """Including a row that sees no key, which PyTorch makes 0 too."""
    q, k, v = tensors(3, 2)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[..., 0, :] = False
    if kind == "numbers":
        mask = torch.where(mask, 0.5, -torch.inf).double()
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    close(exact(q, k, v, attn_mask=mask), wanted)
    assert (exact(q, k, v, attn_mask=mask)[..., 0, :] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_queries_and_scale_as_torch(is_causal: bool) -> None:
    q, k, v = tensors(2, 6)
    k, v = k[:, :2], v[:, :2]
    options = {"scale": 0.7, "is_causal": is_causal, "enable_gqa": True}
    close(exact(q, k, v, **options), functional.scaled_dot_product_attention(q, k, v, **options))


@pytest.mark.parametrize(
    ("lead_q", "lead_k"), [((4,), (4, 4)), ((), (3,)), ((2, 1), (3,)), ((0,), (0,))]
)
def test_leading_dimensions_broadcast(lead_q: Any, lead_k: Any) -> None:
    """Three dimensions against four, as in PyTorch's own samples."""
    q, (_, k, v) = tensors(*lead_q)[0], tensors(*lead_k)
    wanted = torch.softmax(q @ k.mT / 2, dim=-1) @ v
    assert exact(q, k, v).shape == wanted.shape
    assert torch.allclose(exact(q, k, v), wanted, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_samples_of_torch(dtype: torch.dtype) -> None:
    """PyTorch's own samples for this function, those without dropout.

    Their entries reach 9, so scores reach 200. A score of d terms is off by d + 4 units of its
    absolute terms, a weight by the exponential of twice that, on either side of the comparison.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    samples = [s for s in operator.sample_inputs("cpu", dtype) if not s.kwargs["dropout_p"]]
    assert len(samples) >= 13
    for sample in samples:
        wanted = operator.op(sample.input, *sample.args, **sample.kwargs)
        found = exact(sample.input, *sample.args, **sample.kwargs)
        q, k, v = (t.double() for t in (sample.input, *sample.args))
        d = q.shape[-1]
        score = float((q.abs() @ k.abs().mT).max()) / d**0.5
        tolerance = 2 * math.expm1(2 * torch.finfo(dtype).eps * (d + 4) * score) * v.abs().max()
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= tolerance < 0.05


GRADIENT_CASES: dict[str, Callable[..., torch.Tensor]] = {
    "plain": exact,
    "causal": partial(exact, is_causal=True),
    "scaled": partial(exact, scale=-0.3),
    "truth": partial(exact, attn_mask=torch.tril(torch.ones(5, 7), 1) > 0),
    "no key": partial(exact, attn_mask=torch.arange(5)[:, None] + torch.zeros(7) > 0),
}


@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_gradients(name: str) -> None:
    """Against finite differences, first and second derivatives."""
    inputs = [t.requires_grad_() for t in tensors()]
    assert torch.autograd.gradcheck(GRADIENT_CASES[name], inputs)
    assert torch.autograd.gradgradcheck(GRADIENT_CASES[name], inputs)


def test_gradients_of_groups_masks_and_broadcasting() -> None:
    q, k, v = (t.requires_grad_() for t in tensors(2, 4))
    k, v = (t[:, :2].detach().requires_grad_() for t in (k, v))
    assert torch.autograd.gradcheck(partial(exact, enable_gqa=True), [q, k, v])
    mask = torch.randn(4, 1, 7, dtype=torch.float64, requires_grad=True)
    one = k[:1, :1].detach().requires_grad_()

    def added(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return exact(q, k, v, attn_mask=mask)

    assert torch.autograd.gradcheck(added, [q, one, v[:, :1].detach().requires_grad_(), mask])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_half_precision(dtype: torch.dtype) -> None:
    """Computed in float32: within a few units of the half type of the exact gradient."""
    half = [t.to(dtype).requires_grad_() for t in tensors(2)]
    full = [t.detach().double().requires_grad_() for t in half]
    exact(*half).float().sum().backward()
    functional.scaled_dot_product_attention(*full).sum().backward()
    for a, b in zip(half, full, strict=True):
        assert a.grad is not None
        assert a.grad.dtype == dtype
        assert (a.grad.double() - b.grad).abs().max() < 8 * torch.finfo(dtype).eps


def offer_to(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    """Hand heads of any size to a stand-in for the engine."""
    monkeypatch.setattr(CostModel, "worth_a_survey_of_head", lambda *_: True)
    monkeypatch.setattr("approxkmv.engine.heads.approximate_head", engine)


def test_gradient_is_that_of_exact_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampled forward pass has the exact gradient at the same inputs."""

    def rough(problem: HeadProblem, trace: Trace) -> Result:
        head = problem.head
        output = akmv.attention(head.queries, head.keys, head.values, method="exact") + 0.01
        return Result(output, 0.01, 0.01, 0.0, 0.0, 0, 0, np.empty(0, np.int64), "")

    offer_to(monkeypatch, rough)
    grads, outputs = [], []
    for method in ("exact", "auto"):
        inputs = [t.requires_grad_() for t in tensors(2)]
        output = scaled_dot_product_attention(*inputs, method=method)
        output.backward(torch.ones_like(output))
        grads.append([t.grad for t in inputs])
        outputs.append(output.detach())
    assert (outputs[1] - outputs[0]).abs().min() > 0.005
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_registration() -> None:
    """PyTorch's own checks of a custom operator: schema, fake, autograd, tracing."""
    q, k, v = (t.requires_grad_() for t in tensors(2, 4))
    grouped = k[:, :2].detach().clone(), v[:, :2].detach().clone()
    options = (0.1, 0.05, "exact", 0, None)
    mask = torch.ones(5, 7, dtype=torch.bool)
    operator = torch.ops.approxkmv.attention.default
    torch.library.opcheck(operator, (q, k, v, None, True, 0.5, False, *options))
    torch.library.opcheck(operator, (q, k, v, mask, False, 0.5, False, *options))
    torch.library.opcheck(operator, (q, *grouped, None, False, 0.5, True, *options))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled(backend: str) -> None:
    """One graph without breaks, forward and backward, also with other sizes the second time."""

    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return exact(torch.sin(q), k, v, is_causal=True).relu() * 2

    compiled = torch.compile(block, backend=backend, fullgraph=True)
    for m in (5, 9):
        inputs = [t.requires_grad_() for t in tensors(2, m=m)]
        again = [t.detach().clone().requires_grad_() for t in inputs]
        found, wanted = compiled(*inputs), block(*again)
        close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        for a, b in zip(inputs, again, strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-12)


def test_vmap() -> None:
    """A mapped dimension is one more leading dimension, wherever it is."""
    q, k, v = tensors(3, 2)
    mapped = torch.vmap(exact, in_dims=(1, 1, 1), out_dims=1)(q, k, v)
    close(mapped, exact(q, k, v))
    shared = torch.vmap(exact, in_dims=(0, None, None))(q, k[0], v[0])
    close(shared, exact(q, k[0], v[0]))
    deep = torch.vmap(exact, in_dims=(0, 0, None))(q, k[:, 0], v)
    close(deep, torch.stack([exact(q[i], k[i, 0], v) for i in range(3)]))


def test_options_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HeadProblem] = []

    def recorded(problem: HeadProblem, trace: Trace) -> Result:
        seen.append(problem)
        raise Refusal("recorded")

    offer_to(monkeypatch, recorded)
    q, k, v = tensors()
    scaled_dot_product_attention(q, k, v, scale=0.3, eps=0.2, delta=0.01, rng=4, n_threads=1)
    scaled_dot_product_attention(q, k, v, rng=4)
    first, second = seen
    assert (first.head.scale, first.head.is_causal) == (0.3, False)
    assert first.head.backend == Compiled(1)  # no limit of time
    assert first.budget.squared_error == pytest.approx((0.2 * float(v.norm())) ** 2)
    assert first.budget.delta == 0.01
    assert first.rng.integers(2**63) == second.rng.integers(2**63)


@pytest.mark.parametrize(
    ("kind", "message", "change"),
    [
        (ValueError, "dropout_p must be 0.*got 0.5", {"dropout_p": 0.5}),
        (
            ValueError,
            "attn_mask must be None where is_causal=True",
            {"is_causal": True, "attn_mask": torch.ones(5, 7, dtype=torch.bool)},
        ),
        (TypeError, "key must be a floating-point tensor", {"key": torch.ones(7, 4).long()}),
        (ValueError, "method must be one of", {"method": "fast"}),
        (ValueError, "value must be finite", {"value": torch.full((7, 3), torch.inf)}),
    ],
)
def test_bad_arguments(kind: Any, message: str, change: dict[str, Any]) -> None:
    q, k, v = tensors()
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(**({"query": q, "key": k, "value": v} | change))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "approxkmv.torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r'pip install "approxkmv\[torch\]"'):
        __import__("approxkmv.torch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_some_heads_at_a_time(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as all heads at once, sampled or exact."""
    import approxkmv.torch as face

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 300, 8, generator=generator).to(dtype)
    key, value = torch.randn(2, 2, 3, 300, 8, generator=generator).to(dtype)
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True, "rng": 3}
    whole = face.scaled_dot_product_attention(query, key, value, **options)
    sizes, attend = [], face.attention

    def recorded(query: Any, *others: Any, **given: Any) -> Any:
        sizes.append(tuple(query.shape[:-2]))
        return attend(query, *others, **given)

    monkeypatch.setattr(face, "attention", recorded)
    monkeypatch.setattr(face, "_WIDE_ENTRIES", 2 * 2 * 300 * 8)
    parts = face.scaled_dot_product_attention(query, key, value, **options)
    assert sizes == [(4,), (2,), (4,), (2,)]
    assert parts.dtype == dtype
    assert torch.equal(whole, parts)
    wide = face.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=True, enable_gqa=True
    )
    assert (parts - wide).abs().max() < 2 * torch.finfo(dtype).eps * wide.abs().max()


@pytest.mark.parametrize("kernel", ["laplacian", "matern32", "matern52", "rational_quadratic"])
def test_gradients_of_other_kernels(kernel: str) -> None:
    points = torch.linspace(0, 2, 7, dtype=torch.float64)[:, None].requires_grad_()
    x = torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_()
    width = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    # Not the points themselves: finite differences would see the kink of the Laplacian.
    keys = points.detach() + 0.1

    def product(points: Any, x: Any, width: Any) -> Any:
        return matvec(points, keys, x, bandwidth=width, eps=0, kernel=kernel)

    assert torch.autograd.gradcheck(product, (points, x, width))
