"""Gradients that a leaf cannot keep as they are: autograd copies them, and plans count the
copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch.graph.layouts import is_like


class _Of(nn.Module):
    """A function of parameters and inputs, followed by a sum of squares."""

    def __init__(self, f: Callable[..., Any], *parameters: torch.Tensor) -> None:
        super().__init__()
        self.f = f
        self.p = nn.ParameterList([nn.Parameter(p) for p in parameters])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.f(*self.p, *inputs).square().sum()


class _Layer(_Of):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)


def _channels_last() -> tuple[nn.Module, tuple[Any, ...]]:
    x = torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last)
    return _Layer(nn.Conv2d(64, 64, 3)), (x,)


def _transposed() -> tuple[nn.Module, tuple[Any, ...]]:
    return _Of(lambda w, z: z @ w.t().contiguous(), torch.randn(300, 200)), (torch.randn(8, 200),)


def _einsum() -> tuple[nn.Module, tuple[Any, ...]]:
    model = _Of(lambda w, z: torch.einsum("bhk,dhk->bd", z, w), torch.randn(64, 8, 16))
    return model, (torch.randn(4, 8, 16),)


def _expanded() -> tuple[nn.Module, tuple[Any, ...]]:
    return _Of(lambda a, b: (a + b).mean(), torch.randn(90, 100), torch.randn(90, 100)), ()


def _one_for_two() -> tuple[nn.Module, tuple[Any, ...]]:
    return _Of(lambda a, b: a + b, torch.randn(90, 100), torch.randn(90, 100)), ()


def _of_all_kinds() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        return torch.stack([(a + b).mean(), c.square().sum(), d.t().contiguous().sin().sum()])

    sizes = ((90, 100), (90, 100), (50, 50), (40, 60))
    return _Of(f, *(torch.randn(*size) for size in sizes)), ()


def _transposed_convolution() -> tuple[nn.Module, tuple[Any, ...]]:
    return _Layer(nn.ConvTranspose2d(16, 32, 3)), (torch.randn(2, 16, 8, 8),)


def _input() -> tuple[nn.Module, tuple[Any, ...]]:
    x = torch.randn(50, 30, requires_grad=True)
    return _Of(lambda w, x: x.t().contiguous() @ w, torch.randn(50, 40)), (x,)


def _with_gaps() -> tuple[nn.Module, tuple[Any, ...]]:
    model = _Of(lambda w: w, torch.randn(4))
    model.p[0] = nn.Parameter(torch.randn(90, 100)[:, ::2])
    return model, ()


def _low_precision() -> tuple[nn.Module, tuple[Any, ...]]:
    model, inputs = _transposed()
    return model.bfloat16(), tuple(x.bfloat16() for x in inputs)


CASES = (
    _channels_last, _transposed, _einsum, _expanded, _one_for_two, _of_all_kinds,
    _transposed_convolution, _input, _with_gaps, _low_precision,
)  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget", [None, "min"])
def test_copies_of_gradients_are_counted(
    case: Any, budget: Any, train_step: Any, same_bits: Any
) -> None:
    model, inputs = case()
    model(*inputs).backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters()}
    compiled = ct.compile(model, budget=budget)
    train_step(compiled, *(x.detach().requires_grad_(x.requires_grad) for x in inputs))
    measured = train_step(compiled, *(x.detach().requires_grad_(x.requires_grad) for x in inputs))
    (plan,) = compiled.plans
    assert measured.peak_bytes == plan.numbers["live_bytes"]
    found = {n.removeprefix("module."): g for n, g in measured.gradients.items()}
    assert len(found) == len(plain)
    for gradient, expected in zip(found.values(), plain.values(), strict=True):
        torch.testing.assert_close(gradient, expected)
        assert gradient.stride() == expected.stride()


@pytest.mark.parametrize("order", ["ab", "ba", "abc", "bac", "cabx"])
def test_a_gradient_with_a_view_that_is_one_too(order: str, train_step: Any) -> None:
    """The view keeps the tensor alive, so a leaf that comes before it gets a copy. Autograd's order
    is unknown, so the plan assumes the worst."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in order:
                if name != "x":
                    self.register_parameter(name, nn.Parameter(torch.randn(16, 16)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros(())
            for name in order:
                if name != "x":
                    parameter = getattr(self, name)
                    y = y + (parameter.t() if name == "b" else parameter)
            return (y + x if "x" in order else y).tanh().sum()

    compiled = ct.compile(Sum(), budget="min")
    for _ in range(2):
        x = torch.randn(16, 16, requires_grad="x" in order)
        measured = train_step(compiled, x).peak_bytes
        assert measured <= compiled.plans[0].numbers["live_bytes"] <= measured + 4 * 16 * 16


def test_a_number_of_bytes_is_kept_with_copies(train_step: Any) -> None:
    """Values that could be saved are dropped to make room for the copies at the end."""

    def f(w: Any, z: Any) -> Any:
        y = z @ w.t().contiguous()
        for _ in range(6):
            y = y.sin()
        return y

    model, x = _Of(f, torch.randn(200, 200)), torch.randn(400, 200)
    whole = ct.compile(model, budget="fastest")
    train_step(whole, x)
    wanted = int(0.7 * whole.plans[0].numbers["live_bytes"])
    compiled = ct.compile(model, budget=wanted)
    train_step(compiled, x)
    assert train_step(compiled, x).peak_bytes <= wanted


def test_where_gradients_are_accumulated_only_the_first_is_copied() -> None:
    model, (x,) = _transposed()
    compiled, peaks = ct.compile(model), []
    for _ in range(3):
        with ct.MemoryTracker() as memory:
            compiled(x).backward()
        peaks.append(memory.peak_bytes)
    (plan,) = compiled.plans
    assert peaks[0] == plan.numbers["live_bytes"] > peaks[1] == peaks[2]


def test_inputs_that_are_no_leaves_hand_their_gradient_on(train_step: Any) -> None:
    model, (x,) = _input()
    leaf, other = ct.compile(model), ct.compile(model)
    train_step(leaf, x)
    train_step(other, x * 2)
    kinds = [[op["kind"] for op in c.plans[0].problem["ops"]] for c in (leaf, other)]
    assert [k.count("accumulate_grad") for k in kinds] == [1, 0]


@pytest.mark.parametrize("case", [_transposed, _of_all_kinds, _channels_last])
def test_profile_and_trace_know_of_the_copies(case: Any) -> None:
    model, inputs = case()
    compiled = ct.compile(model)
    compiled(*inputs).backward()
    profile = ct.profile(model, *inputs)
    rows = [row for row in profile.rows if row.kind == "accumulate_grad"]
    assert rows and all(row.seconds > 0 for row in rows)
    assert profile.peak_bytes == compiled.plans[0].numbers["live_bytes"]
    traced = ct.trace(model, *inputs).plan()
    assert traced.problem["ops"] == compiled.plans[0].problem["ops"]
    again = ct.compile(model, profile=profile)
    again(*inputs).backward()


@pytest.mark.very_slow
def test_copies_of_several_graphs(train_step: Any) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(60, 60)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = (x @ self.a.t().contiguous()).tanh()
            torch._dynamo.graph_break()
            return (x @ self.b.t().contiguous()).square().sum()

    model, x = Broken(), torch.randn(10, 60)
    both = 4 * (2 * 60 * 60 + 60 * 60)  # all gradients, and the first copy
    compiled = ct.compile(model, fullgraph=False, budget=70_000)
    for _ in range(3):
        peak = train_step(compiled, x).peak_bytes
        assert both < peak <= 70_000
    assert peak == compiled.plans[0].numbers["live_bytes"]
    tight = ct.compile(model, fullgraph=False, budget=peak - 1)
    with pytest.raises(BudgetError, match="accumulate_grad"):
        for _ in range(3):
            train_step(tight, x)
    profile = ct.profile(model, x)
    assert sum(row.kind == "accumulate_grad" for row in profile.rows) == 2


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (2, 1, 3), ()])
def test_which_gradients_leaves_take(shape: tuple[int, ...]) -> None:
    """A leaf's gradient is the returned memory, or a copy, as in autograd."""
    n = len(shape)
    orders = [tuple(range(n)), tuple(reversed(range(n)))]
    leaves = [torch.zeros(shape).permute(o).contiguous().permute(o) for o in orders]
    leaves.append(torch.zeros((*shape, 2))[..., 0])
    gradients = [torch.ones(shape).permute(o).contiguous().permute(o) for o in orders]
    gradients += [torch.ones(()).expand(shape), torch.ones((*shape, 2))[..., 1]]
    if n:
        gradients.append(torch.ones((*shape[:-1], 1)).expand(shape))
    for leaf in leaves:
        for gradient in gradients:
            seen: list[int] = []

            class Gives(torch.autograd.Function):
                @staticmethod
                def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                    return x.sum()

                @staticmethod
                def backward(ctx: Any, g: Any, of: Any = gradient, seen: Any = seen) -> Any:
                    size = 1 + sum((a - 1) * b for a, b in zip(of.size(), of.stride(), strict=True))
                    new = torch.ones(size).as_strided(of.size(), of.stride())
                    seen.append(new.untyped_storage().data_ptr())
                    return new

            x = leaf.detach().requires_grad_()
            Gives.apply(x).backward()
            assert x.grad is not None
            taken = x.grad.untyped_storage().data_ptr() in seen
            assert taken == is_like(gradient, x), (leaf.stride(), gradient.stride())
