"""Tests updates inside the backward when something changes after ``compile``: learning rates,
dtypes, other models of the optimizer, other shapes."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_layer import Net
from torch.optim import SGD

import cutback.torch as ct
from cutback.torch.updates import SeparateStepError, formulas
from cutback.torch.updates.consumed import ConsumedGradientError


def made(**options: Any) -> tuple[Net, Any, Any]:
    torch.manual_seed(0)
    model = Net()
    trains = SGD(model.parameters(), 0.5, **options)
    return model, trains, ct.compile(model, optimizer=trains, updates="inside", dynamic=False)


def test_a_learning_rate_that_comes_too_late_is_an_error() -> None:
    model, trains, compiled = made()
    compiled(torch.ones(4, 8)).backward()
    after = model.layer.weight.detach().clone()
    trains.param_groups[0]["lr"] = 0.1
    with pytest.raises(SeparateStepError, match=r"lr of group 0 was set from 0\.5 to 0\.1"):
        trains.step()
    trains.param_groups[0]["lr"] = 0.5
    trains.step()
    assert torch.equal(model.layer.weight, after)


def test_schedules_do_not_compare_formulas_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, bool] = {}
    monkeypatch.setattr(formulas, "_noted", lambda: known)
    trains = SGD(Net().parameters(), 0.5, momentum=0.9)
    group = trains.param_groups[0]
    for lr in (0.4, 0.3, 0.2):
        group["lr"] = lr
        assert formulas.agrees(trains, group)
    assert len(known) == 1
    group["momentum"] = 0.0
    assert formulas.agrees(trains, group)
    assert len(known) == 2


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "fused": True}])
def test_sgd_has_the_states_of_pytorch(options: dict[str, Any]) -> None:
    model, trains, compiled = made(**options)
    twin = copy.deepcopy(model)
    other = SGD(twin.parameters(), 0.5, **options)
    for step, optimizer in ((compiled, trains), (twin, other)):
        step(torch.ones(4, 8)).backward()
        optimizer.step()
    names = [{k: list(v) for k, v in t.state_dict()["state"].items()} for t in (trains, other)]
    assert compiled.updates_inside and names[0] == names[1]


def test_an_error_leaves_no_unfinished_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(p: Any, *more: Any) -> None:
        if p.dim() == 2:
            raise ZeroDivisionError
        formulas.sgd(p, *more)

    monkeypatch.setitem(formulas.FORMULAS, SGD, broken)
    _, trains, compiled = made(momentum=0.9)
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(4, 8)).backward()
    names = {name for state in trains.state.values() for name in state}
    assert names <= {"momentum_buffer"}


def test_parameters_may_change_their_dtype() -> None:
    model, trains, compiled = made()
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        compiled(torch.ones(4, 8, dtype=dtype)).backward()
        trains.step()
    assert compiled.updates_inside and model.layer.weight.grad is None


def test_two_compilations_share_the_record_of_an_optimizer() -> None:
    model, trains, first = made()
    second = ct.compile(model, optimizer=trains, updates="inside")
    assert len(trains._optimizer_step_pre_hooks) == 1
    x = torch.ones(4, 8)
    first(x).backward()
    trains.zero_grad()
    before = model.layer.weight.detach().clone()
    with pytest.raises(SeparateStepError, match="second backward before"):
        second(x).backward()
    assert torch.equal(model.layer.weight, before)


def test_calls_of_other_shapes_may_be_pending() -> None:
    model, _trains, compiled = made()
    before = model.layer.weight.detach().clone()
    losses = [compiled(torch.ones(rows, 8)) for rows in (2, 4)]
    for loss in losses:
        loss.backward()
    assert torch.equal(model.layer.weight, before)
    assert "another call of the model is pending" in compiled.updates_reason


def test_a_retained_graph_keeps_the_step_separate() -> None:
    model, _trains, compiled = made()
    loss = compiled(torch.ones(4, 8))
    loss.backward(retain_graph=True)
    first = model.layer.weight.grad.clone()
    loss.backward()
    assert torch.equal(model.layer.weight.grad, 2 * first)
    assert "retain_graph=True" in compiled.updates_reason


class Aliased(Net):
    """A buffer that is its parameter's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("same", self.layer.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x).sin() @ self.same).square().mean()


def test_a_parameter_that_shares_memory_keeps_the_step_separate() -> None:
    model = Aliased()
    model.layer.bias = None
    trains = SGD(model.parameters(), 0.5)
    compiled = ct.compile(model, optimizer=trains, updates="inside")
    compiled(torch.ones(4, 8)).backward()
    assert model.layer.weight.grad is not None
    assert not compiled.updates_inside
    assert "shares memory with another tensor" in compiled.updates_reason


class Written(Net):
    """A module whose forward writes into a parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layer.weight.mul_(0.9)
        return super().forward(x)


def test_a_parameter_that_the_forward_writes_keeps_its_gradient() -> None:
    model = Written()
    trains = SGD(model.parameters(), 0.5)
    compiled = ct.compile(model, optimizer=trains, updates="inside")
    compiled(torch.ones(4, 8)).backward()
    assert type(model.layer.weight.grad) is torch.Tensor
    with pytest.raises(ConsumedGradientError):
        model.layer.bias.grad.sum()


def test_a_compiled_model_does_not_keep_its_optimizer_alive() -> None:
    model, trains, compiled = made(momentum=0.9)
    compiled(torch.ones(4, 8)).backward()
    trains.step()
    inside = compiled.dynamo_ctx.wishes["updates"]
    alive = [weakref.ref(x) for x in (model, model.layer.weight, trains)]
    del model, trains, compiled
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3
    assert inside.among([]) is None


def test_a_step_without_its_optimizer_leaves_gradients() -> None:
    model, trains, compiled = made()
    loss = compiled(torch.ones(4, 8))
    del trains
    gc.collect()
    loss.backward()
    assert model.layer.weight.grad is not None
    assert compiled.updates_reason == "the optimizer no longer exists"
