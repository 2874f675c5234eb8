"""With updates inside, what would go wrong silently is an error, or the step stays separate with a
reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_layer import Net
from torch import nn
from torch.optim import SGD, AdamW

import cutback.torch as ct
from cutback.torch.updates import SeparateStepError
from cutback.torch.updates.consumed import ConsumedGradientError


class Case:
    """A model compiled with updates inside."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.weight = self.model.layer.weight
        self.trains = SGD(self.model.parameters(), 0.5)
        self.compiled: Any = ct.compile(
            self.model, optimizer=self.trains, updates="inside", **options
        )
        self.x = torch.randn(4, 8)

    def loss(self) -> Any:
        return self.compiled(self.x)


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    made.loss().backward()
    made.trains.step()
    assert made.compiled.updates_inside
    yield made


def gradients_of(case: Case, backward: Callable[[Any], Any]) -> list[Any]:
    """Returns the gradients of the uncompiled model."""
    twin = copy.deepcopy(case.model)
    backward(twin)
    return [p.grad for p in twin.parameters()]


def test_errors_before_anything_changes(case: Case) -> None:
    case.loss().backward()
    before = case.weight.detach().clone()
    second = case.loss()
    with pytest.raises(SeparateStepError, match="second backward before optimizer"):
        second.backward()
    assert torch.equal(case.weight, before)
    case.trains.zero_grad()  # harmless: the parameters stay updated
    with pytest.raises(SeparateStepError, match="second backward"):
        case.loss().backward()
    case.trains.step()
    assert torch.equal(case.weight, before)
    case.weight.grad = torch.ones_like(case.weight)
    with pytest.raises(SeparateStepError, match="has a gradient already"):
        case.loss().backward()
    assert torch.equal(case.weight, before)


def test_reading_a_consumed_gradient_is_an_error(case: Case) -> None:
    case.loss().backward()
    parameters = list(case.model.parameters())
    with pytest.raises(ConsumedGradientError, match=r"compile with max_norm=, or with updates="):
        nn.utils.clip_grad_norm_(parameters, 1.0)
    with pytest.raises(ConsumedGradientError, match="updates='after'"):
        nn.utils.clip_grad_value_(parameters, 1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ConsumedGradientError, match="updates='after'"):
        scaler.unscale_(case.trains)
    case.trains.zero_grad(set_to_none=False)
    case.trains.step()
    assert case.weight.grad is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_norm": 1.0}, "clipping by max_norm needs"),
        ({"codegen": "native"}, "codegen='native'"),
        ({"offload": True, "budget": "0.9x"}, "values may move to the host"),
    ],
)
def test_options_that_need_a_separate_step(options: dict[str, Any], reason: str) -> None:
    case = Case(**options)
    assert not case.compiled.updates_inside
    assert reason in case.compiled.updates_reason


def test_optimizers_that_need_a_separate_step() -> None:
    class Own(SGD):
        pass

    model = Net()
    hooked = SGD(model.parameters(), 0.1)
    hooked.register_step_pre_hook(lambda *_: None)
    for trains, reason in [
        (Own(model.parameters(), 0.1), "Own is neither in cutback.torch.optim nor PyTorch's SGD"),
        (AdamW(model.parameters(), capturable=True), "has capturable=True"),
        (AdamW(model.parameters(), lr=torch.tensor(0.1)), "has a tensor as a number"),
        (hooked, "has a step pre-hook"),
    ]:
        compiled = ct.compile(model, optimizer=trains, updates="inside")
        assert reason in compiled.updates_reason
    with pytest.raises(ValueError, match=r"compile\(model, optimizer=\.\.\., updates='inside'\)"):
        ct.compile(model, updates="inside")
    with pytest.raises(ValueError, match="updates='now'"):
        ct.compile(model, updates="now")
    with pytest.raises(ValueError, match="max_norm=0"):
        ct.compile(model, max_norm=0)


def scaled(step: Any, model: Any, x: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(step(x)).backward()


BACKWARDS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "twice in one loss": (lambda f, m, x: (f(x) + f(2 * x)).backward(), "another call of"),
    "weights in the loss": (
        lambda f, m, x: (f(x) + m.layer.weight.square().sum()).backward(),
        "gets another gradient",
    ),
    "some only": (lambda f, m, x: f(x).backward(inputs=[m.layer.weight]), "only some gradients"),
    "pending together": (
        lambda f, m, x: [loss.backward() for loss in [f(x), f(2 * x)]],
        "another call of the model is pending",
    ),
    "scaled": (scaled, "a GradScaler scales the loss"),
    "hooks": (
        lambda f, m, x: (m.layer.weight.register_hook(lambda g: 2 * g), f(x).backward()),
        "has a hook (register_hook)",
    ),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_that_need_a_separate_step(case: Case, name: str) -> None:
    backward, reason = BACKWARDS[name]
    twin = copy.deepcopy(case.model)
    backward(twin, twin, case.x)
    before = case.weight.detach().clone()
    backward(case.compiled, case.model, case.x)
    assert torch.equal(case.weight, before)
    assert reason in case.compiled.updates_reason
    for p, q in zip(case.model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.allclose(p.grad, q.grad)
    case.trains.step()
    assert not torch.equal(case.weight, before)
    case.trains.zero_grad()
    case.loss().backward()  # compiled again, for a separate step
    assert type(case.weight.grad) is torch.Tensor
    (plan,) = case.compiled.plans
    assert not any("updates" in storage for storage in plan.problem["storages"])


def test_gradients_by_autograd_grad(case: Case) -> None:
    before = case.weight.detach().clone()
    (found,) = torch.autograd.grad(case.loss(), [case.weight])
    assert torch.equal(case.weight, before) and found.shape == case.weight.shape
    assert "only some gradients" in case.compiled.updates_reason
