"""Tests graphs that ``aot_eager`` runs and that used to be refused: sparse gradients, and
overwritten parts of tensor subclasses. Plain PyTorch is the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch.testing._internal.two_tensor import TwoTensor

import cutback.torch as ct


def traced(f: Callable[..., Any], keep: bool = False, dynamic: bool = False) -> Any:
    return aot_function(
        f, fw_compiler=nop, bw_compiler=nop, partition_fn=ct.Partitioner(),
        keep_inference_input_mutations=keep, dynamic=dynamic,
    )  # fmt: skip


def parts(t: Any) -> list[Any]:
    return [t.a, t.b] if isinstance(t, TwoTensor) else [t]


def two(values: Any) -> Any:
    return TwoTensor(values.clone(), values.clone() * 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_sparse_gradient(dynamic: bool) -> None:
    torch.manual_seed(0)
    weight, x, bags = torch.randn(10, 4), torch.arange(3), torch.tensor([0, 2])

    def gradient(call: Any) -> Any:
        w = weight.clone().requires_grad_()
        call(x, bags, w).cos().sum().backward()
        return w.grad

    def f(x: Any, bags: Any, w: Any) -> Any:
        return torch.nn.functional.embedding_bag(x, w, bags, mode="sum", sparse=True).view(-1)

    right, got = gradient(f), gradient(traced(f, dynamic=dynamic))
    assert right.is_sparse
    assert torch.equal(right.to_dense(), got.to_dense())


OVERWRITES: dict[str, Callable[..., Any]] = {
    "data": lambda a, b: (a.mul_(2), a + b)[1],
    "a view": lambda a, b: (a.view(-1).mul_(3), a * b)[1],
    "a part of a view": lambda a, b: (a.view(3, 2)[0].mul_(3), (a * b).sin())[1],
    "both": lambda a, b: (a.mul_(2), b.add_(a), a * b)[2],
}


@pytest.mark.parametrize("name", OVERWRITES)
@pytest.mark.parametrize("keep", [False, True])
def test_an_overwritten_part_of_a_tensor_subclass(name: str, keep: bool) -> None:
    f = OVERWRITES[name]
    values = torch.arange(1.0, 7.0).view(2, 3)

    def results(call: Any) -> list[Any]:
        x, y = two(values).requires_grad_(), two(values.cos()).requires_grad_()
        a, b = x.add(1), y.mul(3)
        call(a, b).sum().backward()
        return [p for t in (a, b, x.grad, y.grad) for p in parts(t.detach())]

    assert all(map(torch.equal, results(traced(f, keep)), results(f)))


def test_a_buffer_that_is_a_tensor_subclass() -> None:
    def f(x: Any, n: Any) -> Any:
        n.add_(1)
        return (x * n).sin()

    def results(call: Any) -> list[Any]:
        x, n = torch.ones(3, requires_grad=True), two(torch.ones(3))
        call(x, n).sum().backward()
        return [*parts(n), *parts(x.grad)]

    for budget in (None, "min"):
        torch._dynamo.reset()
        assert all(map(torch.equal, results(ct.compile(f, budget=budget)), results(f)))
