"""If a compiled module is trained without its compiled forward, there is one warning, and only in
that case."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import cutback.torch as ct
from cutback.torch import frontends

MATCH = "its compiled forward has not been called"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))


def said(*steps: Callable[[], Any]) -> list[list[str]]:
    """Returns the warnings of each step."""
    found = []
    for step in steps:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        found.append([str(w.message) for w in caught if MATCH in str(w.message)])
    return found


class Named(nn.Module):
    """A module defined in a file that PyTorch traces, unlike ``nn.Sequential``."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = model()

    def forward(self, x: Any) -> Any:
        return self.parts(x)


class Loss(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.square().sum()


X = torch.linspace(-1, 1, 256 * 16).reshape(256, 16)


def replace_forward(compiled: nn.Module) -> None:
    """Replaces the forward, as some trainers do to compute losses in pieces: they call the
    submodules one by one."""

    def forward(self: nn.Module, x: Any) -> Any:
        for part in self.children():
            for layer in part.children():
                x = layer(x)
        return x

    compiled.forward = types.MethodType(forward, compiled._orig_mod)


@pytest.mark.parametrize(
    "wish", [{"budget": "0.9x"}, {"budget": "min"}, {"policy": "dots_saveable"}]
)
def test_a_forward_that_is_replaced(wish: dict[str, Any]) -> None:
    compiled = ct.compile(model(), **wish)
    replace_forward(compiled)
    loss = compiled(X).square().sum()
    first, second = said(loss.backward, lambda: compiled(X).sum().backward())
    assert len(first) == 1 and "replace_forward.<locals>.forward. Compile" in first[0]
    assert "frontends" in first[0] and not second and not compiled.plans


def test_a_forward_that_is_wrapped() -> None:
    """Accelerate wraps the forward for mixed precision; the compiled forward is still called."""
    compiled = ct.compile(model(), budget="0.9x")
    own = compiled.forward
    compiled.forward = lambda x: own(x).float()
    assert said(lambda: compiled(X).square().sum().backward()) == [[]]
    assert compiled.plans


@pytest.mark.parametrize("seen_by", ["backward", "optimizer"])
def test_the_module_inside_is_called(seen_by: str) -> None:
    inner = model()
    compiled = ct.compile(inner, budget="0.9x")
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    if seen_by == "backward":
        first, second = said(inner(X).sum().backward, optimizer.step)
    else:
        for p in inner.parameters():
            p.grad = torch.ones_like(p)
        first, second = said(optimizer.step, lambda: inner(X).sum().backward())
    assert len(first) == 1 and not second
    assert "something calls the original Sequential" in first[0]
    assert said(lambda: compiled(X).sum().backward(), optimizer.step) == [[], []]
    assert compiled.plans  # from now on the compiled forward is called


def test_nothing_is_said_of_others() -> None:
    other = model()
    compiled = ct.compile(model(), budget="0.9x")
    without = ct.compile(model())  # nothing was requested that could be missed
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    assert said(other(X).sum().backward, optimizer.step) == [[], []]
    assert said(without._orig_mod(X).sum().backward) == [[]]
    assert said(lambda: compiled(X).sum().backward()) == [[]]
    hooks = [p._post_accumulate_grad_hooks for p in compiled.parameters()]
    assert not any(hooks)  # the hooks that watched are gone
    assert said(compiled._orig_mod(X).sum().backward) == [[]]


def test_evaluation_is_no_training() -> None:
    inner = model()
    compiled = ct.compile(inner, budget="0.9x")
    with torch.no_grad():
        compiled(X)
    assert [len(texts) for texts in said(inner(X).sum().backward)] == [1]


@pytest.mark.parametrize("by", ["compile", "function", "name"])
def test_a_part_of_what_is_compiled(by: str) -> None:
    """The inner part is planned as part of the outer model."""
    inner = ct.compile(model(), budget="0.9x")
    outer = nn.Sequential(inner, nn.Linear(16, 4))
    if by == "compile":
        run = ct.compile(outer, budget="0.9x")
    elif by == "function":
        run = ct.compile(lambda x: outer(x).sin(), budget="0.9x")
    else:
        run = torch.compile(outer, backend="cutback", options={"budget": "0.9x"})
    assert said(lambda: run(X).sum().backward(), lambda: run(X).sum().backward()) == [[], []]
    assert not inner.plans


def test_copies_and_garbage() -> None:
    """Neither a copy of a module nor a module whose compiled module is gone is watched."""
    inner = model()
    compiled = ct.compile(inner, budget="0.9x")
    assert said(copy.deepcopy(inner)(X).sum().backward) == [[]]
    del compiled
    assert said(inner(X).sum().backward, lambda: inner(X).sum().backward()) == [[], []]


def test_an_error_where_warnings_are_errors() -> None:
    compiled = ct.compile(model(), budget="0.9x")
    replace_forward(compiled)
    loss = compiled(X).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=MATCH):
            loss.backward()


def test_in_place(same_bits: Callable[..., bool]) -> None:
    """Class, names and saved states stay, calls are planned, and there is no warning."""
    plain, module = (nn.Sequential(*model(), Loss()) for _ in range(2))
    compiled = frontends.compile_in_place(module, budget="0.9x")
    assert type(module) is nn.Sequential and list(module.state_dict()) == list(plain.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    assert said(lambda: module(X).backward(), optimizer.step) == [[], []]
    plain(X).backward()
    assert same_bits([p.grad for p in module.parameters()], [p.grad for p in plain.parameters()])
    (plan,) = compiled.plans
    with ct.MemoryTracker() as memory:
        module.zero_grad()
        module(X).backward()
    assert memory.peak_bytes <= plan.numbers["budget_bytes"]
    again = frontends.compile_in_place(module, budget="min")
    module(X).backward()
    assert again.plans and len(compiled.plans) == 1
    assert copy.deepcopy(module)._compiled_call_impl is None
    with pytest.raises(TypeError, match=r"is not a torch\.nn\.Module"):
        frontends.compile_in_place(lambda x: x, budget="0.9x")


def test_modes_are_inductor_s() -> None:
    step = torch.compile(model(), backend="cutback", mode="max-autotune")
    with pytest.raises(Exception, match=r"mode='max-autotune' is one of Inductor's"):
        step(X)
    in_place = Named()
    in_place.compile(backend="cutback", mode="reduce-overhead")
    with pytest.raises(Exception, match="mode='reduce-overhead'"):
        in_place(X)
    torch.compile(model(), backend="cutback", mode="default")(X).sum().backward()


def test_a_reset_of_dynamo_between_steps() -> None:
    compiled = ct.compile(model(), budget="0.9x")
    grads = []
    for _ in range(3):
        compiled.zero_grad()
        compiled(X).square().mean().backward()
        grads.append([p.grad.clone() for p in compiled.parameters()])
        torch._dynamo.reset()
    for other in grads[1:]:
        assert all(map(torch.equal, grads[0], other))
