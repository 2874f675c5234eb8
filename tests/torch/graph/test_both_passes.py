"""Tests tensors that one graph writes in the forward and in the backward: each write happens in its
own pass, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback.torch as ct
from cutback.torch.graph.graphs import UnsupportedGraphError

Write = Callable[[Any, Any], Any]

WRITES: dict[str, Write] = {
    "adds a number": lambda t, g: t.add_(1),
    "adds the gradient": lambda t, g: t.add_(g.sum()),
    "writes a row": lambda t, g: t.view(2, 2)[0].mul_(3),
    "copies": lambda t, g: t.copy_(t.sin()),
    "fills": lambda t, g: t.zero_(),
    "writes data": lambda t, g: t.data.mul_(2),
}


def program(first: Write, second: Write) -> Callable[..., Any]:
    """Returns a function of a leaf and of a state that both passes write."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, t: Any) -> Any:
            first(t, x.detach())
            ctx.t = t
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            second(ctx.t, g)
            return g * 2, None

    return lambda x, t: Both.apply(x.sin(), t).tanh()


def seen(call: Callable[..., Any], twice: bool = False) -> list[Any]:
    """Returns state and gradient after each pass of two steps."""
    x, t = torch.arange(1.0, 5.0).requires_grad_(), torch.arange(2.0, 6.0)
    found = []
    for _ in range(2):
        outputs = [call(x, t) for _ in range(1 + twice)]
        found += [outputs[-1].detach().clone(), t.clone()]
        for y in outputs:
            y.sum().backward()
            found += [t.clone(), x.grad.clone()]
    return found


def by_name(f: Callable[..., Any], budget: Any) -> Any:
    return torch.compile(f, backend="cutback", options={"budget": budget})


def by_compile(f: Callable[..., Any], budget: Any) -> Any:
    return ct.compile(f, budget=budget)


def same(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("second", WRITES)
def test_each_pass_writes_by_itself(second: str) -> None:
    f = program(WRITES["adds a number"], WRITES[second])
    assert same(seen(by_compile(f, "min")), seen(f))


@pytest.mark.parametrize("door", [by_name, by_compile])
@pytest.mark.parametrize("budget", [None, "min"])
def test_two_forwards_before_two_backwards(door: Any, budget: Any) -> None:
    f = program(WRITES["writes a row"], WRITES["adds the gradient"])
    assert same(seen(door(f, budget), twice=True), seen(f, twice=True))


@pytest.mark.very_slow
@pytest.mark.parametrize("first", WRITES)
@pytest.mark.parametrize("second", WRITES)
@pytest.mark.parametrize("door", [by_name, by_compile])
def test_every_pair_of_writes(first: str, second: str, door: Any) -> None:
    f = program(WRITES[first], WRITES[second])
    for budget in (None, "min"):
        torch._dynamo.reset()
        assert same(seen(door(f, budget)), seen(f)), budget


def test_a_counter_of_a_module() -> None:
    """Forward and backward both count in a buffer."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.f = program(lambda t, g: t.add_(1), lambda t, g: t.add_(10))

        def forward(self, x: Any) -> Any:
            return self.f(x * self.w, self.count)

    model = Model()
    step = ct.compile(model)
    y = step(torch.ones(4))
    assert int(model.count) == 1
    y.sum().backward()
    assert int(model.count) == 11


def test_trace_and_profile_see_both_writes() -> None:
    f = program(WRITES["adds a number"], WRITES["adds the gradient"])
    x, t = torch.ones(4, requires_grad=True), torch.ones(4)
    step = ct.trace(f, x, t)
    writes = [op for op in step.document["ops"] if "mutates" in op["flags"]]
    assert ["backward" in op["flags"] for op in writes] == [False, True]


class Log(torch.autograd.Function):
    """Writes into one of its inputs in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, log: Any) -> Any:
        ctx.save_for_backward(log)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.saved_tensors[0].add_(1)
        return g * 2, None


def returns_its_log(x: Any, t: Any) -> Any:
    log = torch.zeros(4)
    return Log.apply(x.sin(), log).cos(), log


@pytest.mark.parametrize("door", [by_name, by_compile])
def test_a_tensor_that_the_forward_made_and_returns(door: Any) -> None:
    """PyTorch traces the result with its content after the backward, which would be wrong, so it is
    refused."""
    with pytest.raises(Exception, match="into a tensor that the forward makes and returns"):
        door(returns_its_log, None)(torch.ones(4, requires_grad=True), torch.ones(4))


def test_a_view_of_an_input_that_both_write_may_be_returned() -> None:
    """The caller gets a view of the input, not the value that the graph computes for it."""

    def f(x: Any, t: Any) -> Any:
        with torch.no_grad():
            t.mul_(2)
        return Log.apply(x.sin(), t), t.view(2, 2).t()

    def results(call: Callable[..., Any]) -> list[Any]:
        x, t = torch.ones(4, requires_grad=True), torch.ones(4)
        y, view = call(x, t)
        before = view.clone()
        y.sum().backward()
        return [before, view, t, x.grad]

    assert same(results(by_compile(f, "min")), results(f))


def test_aot_autograd_without_writes_in_the_graph_is_refused() -> None:
    """In that case the graph has a single new value for both writes."""
    f = program(WRITES["adds a number"], WRITES["adds a number"])

    def compiler(gm: Any, inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    partitioner = ct.Partitioner()
    backend = aot_autograd(fw_compiler=compiler, partition_fn=partitioner)
    with pytest.raises(Exception, match="keep_inference_input_mutations=True"):
        torch.compile(f, backend=backend)(torch.ones(4, requires_grad=True), torch.ones(4))
    assert isinstance(partitioner.error, UnsupportedGraphError)

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=compiler, partition_fn=ct.Partitioner(), keep_inference_input_mutations=True
    )
    assert same(seen(torch.compile(f, backend=backend)), seen(f))


def test_a_view_that_the_forward_wrote_is_no_write_of_the_backward() -> None:
    """PyTorch records the update of the base after the backward."""

    def f(x: Any, t: Any) -> Any:
        with torch.no_grad():
            t.view(2, 2).t()[0].add_(1)
            t[2:].mul_(x.detach()[:2])
        return (x * t.view(2, 2)[1].sum()).sin()

    assert same(seen(by_compile(f, None)), seen(f))


def test_plans_as_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own partitioner splits the graph."""
    gone = (("torch.fx", "no_such_part", "graphs"),)
    monkeypatch.setattr("cutback.torch.hooks.EMITTING", gone)
    f = program(WRITES["adds a number"], WRITES["adds the gradient"])
    with pytest.warns(UserWarning, match="as tags"):
        compiled = by_compile(f, None)
    assert same(seen(compiled), seen(f))
