"""Tests graphs that a careless bridge gets wrong: breaks, varying sizes, hooks, threads, errors. As
in test_behaviour.py, each case must give eager mode's bits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from agreement import BUDGETS, Wrapped
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import cutback.torch as ct
from cutback import BudgetError
from cutback.torch.compiler import growing
from cutback.torch.graph import codegen


def test_graph_breaks(agrees: Callable[..., Any]) -> None:
    def f(self: Any, x: Any) -> Any:
        x = torch.sin(self.a(x)).exp()
        torch._dynamo.graph_break()
        return torch.sin(self.b(F.dropout(x, 0.2))).exp()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    agrees(model, torch.randn(8, 16), graphs=2, budgets=(None, "min"))


@pytest.mark.very_slow
def test_one_budget_over_all_graphs(
    ran: Counter[str], same_bits: Callable[..., bool], train_step: Callable[..., Any]
) -> None:
    def part(layer: Any, x: Any) -> Any:
        return F.dropout(layer(x).sin().exp().sin().cos().exp().tanh(), 0.2)

    def f(self: Any, x: Any) -> Any:
        x = part(self.layers[0], x)
        torch._dynamo.graph_break()
        x = part(self.layers[1], x)
        torch._dynamo.graph_break()
        return part(self.layers[2], x).square().mean()

    model = Wrapped(f, layers=nn.ModuleList(nn.Linear(16, 16) for _ in range(3)))
    x = torch.randn(64, 16)
    plain = train_step(ct.compile(model), x)
    for budget in ("0.7x", int(0.72 * plain.peak_bytes)):
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=budget)
        train_step(compiled, x)
        assert len(compiled.plans) > 1  # one graph after another, until all are known
        ran.clear()
        steps = [train_step(compiled, x) for _ in range(3)]
        assert ran["forward"] == ran["backward"] == 9
        (plan,) = compiled.plans
        numbers = plan.numbers
        assert numbers["recomputed"] > 0
        for step in steps:
            assert step.peak_bytes <= numbers["live_bytes"] <= numbers["budget_bytes"]
            assert same_bits(list(step.gradients.values()), list(plain.gradients.values()))
            assert same_bits(step.loss, plain.loss)
    impossible = ct.compile(model, budget=4 * 64 * 16 * 4)
    with pytest.raises(BudgetError, match="the smallest found takes"):
        for _ in range(2):
            train_step(impossible, x)


@pytest.mark.very_slow
def test_a_share_that_the_first_graph_cannot_meet(
    ran: Counter[str], train_step: Callable[..., Any]
) -> None:
    """The share is of all graphs. For a model with one graph it is an error, in every step."""

    def small(self: Any, x: Any) -> Any:
        return self.a(x).square().mean()

    def f(self: Any, x: Any) -> Any:
        y = small(self, x)
        torch._dynamo.graph_break()
        return y + self.b(x).sin().exp().sin().exp().cos().exp().mean()

    x = torch.randn(64, 16)
    model = Wrapped(small, a=nn.Linear(16, 16))
    alone = ct.compile(model, budget="0.5x")
    for _ in range(2):
        with pytest.raises(BudgetError, match="the smallest found takes"):
            alone(x).backward()
    with torch.no_grad():
        assert alone(x) == model(x)
    together = ct.compile(Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16)), budget="0.7x")
    for _ in range(3):
        step = train_step(together, x)
    (plan,) = together.plans
    assert step.peak_bytes <= plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]


@pytest.mark.very_slow
def test_what_pytorch_does_not_compile_is_said(ran: Counter[str]) -> None:
    """PyTorch leaves recurrent layers to eager mode, so nothing is planned."""
    model = Wrapped(lambda self, x: self.rnn(x)[0].sum(), rnn=nn.GRU(4, 4))
    x = torch.randn(3, 2, 4)
    step = ct.compile(model, budget="min")
    with pytest.warns(UserWarning, match="nothing was planned.*fullgraph.*nn.GRU") as warned:
        step(x)
        step(x)
    assert len([w for w in warned if "nothing was planned" in str(w.message)]) == 1
    with torch._dynamo.config.patch(allow_rnn=True):
        torch._dynamo.reset()
        step = ct.compile(model, budget="min")
        step(x)
    assert ran["forward"] == len(step.plans) == 1


def test_a_break_inside_a_layer_shares_the_budget(
    ran: Counter[str], same_bits: Callable[..., bool], train_step: Callable[..., Any]
) -> None:
    """One graph runs once per layer, and its saved values stay each time."""

    def f(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            x = self.linear(x).sin()
            torch._dynamo.graph_break()
            return x.exp().cos().sin().cos()

    model = Wrapped(f, layers=nn.ModuleList(Layer() for _ in range(3)))
    x = torch.randn(512, 16)
    plain = train_step(model, x)
    budget = int(0.79 * plain.peak_bytes)
    compiled = ct.compile(model, budget=budget)
    for _ in range(3):
        found = train_step(compiled, x)
    assert same_bits(list(found.gradients.values()), list(plain.gradients.values()))
    # PyTorch runs a loop that contains a break in eager mode, including the square after it
    assert found.peak_bytes <= budget + x.nbytes
    torch._dynamo.reset()
    compiled = ct.compile(model, budget="min")
    assert torch.equal(compiled(x), model(x)) and ran["forward"] > 3


@pytest.mark.very_slow
def test_dynamic_shapes(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    def f(self: Any, x: Any) -> Any:
        n, d = x.shape
        y = F.dropout(torch.tanh(self.a(x)), 0.2).view(n, 2, d // 2)
        z = y.transpose(1, 2).reshape(n * d // 2, 2).softmax(0) * (n * 0.5)
        return (z.exp() / n).sum()

    for budget in BUDGETS:
        torch._dynamo.reset()
        ran.clear()
        model = Wrapped(f, a=nn.Linear(16, 16))
        compiled = ct.compile(model, budget=budget, dynamic=True)
        x = torch.ones(12, 16)
        with ct.MemoryTracker() as memory:  # the sizes for which the plan is made
            compiled(x).backward()
        assert memory.peak_bytes == compiled.plans[0].numbers["live_bytes"]
        for batch in (12, 5, 33):
            results = []
            for call in (model, compiled):
                model.zero_grad()
                torch.manual_seed(batch)
                x = torch.randn(batch, 16, requires_grad=True)
                loss = call(x)
                loss.backward()
                results.append((loss.detach(), x.grad, model.a.weight.grad))
            assert same_bits(*results), (budget, batch)
        assert ran["forward"] == ran["backward"] == 4
        assert len(compiled.plans) <= 2  # with and without a gradient of the input


@pytest.mark.very_slow
def test_a_budget_holds_for_larger_sizes(
    ran: Counter[str], train_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller last batch makes PyTorch compile for varying sizes, with a separate plan."""
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh())
                           for _ in range(4)))  # fmt: skip
    model = Wrapped(lambda self, x: self.deep(x).sum(), deep=deep)
    batch = torch.randn(96, 16)
    peaks = {
        n: train_step(ct.compile(model, dynamic=False), batch[:n]).peak_bytes for n in (64, 96)
    }
    budget = int(0.7 * peaks[96])
    compiled = ct.compile(model, budget=budget, on_infeasible="error")
    for n in (64, 40, 64, 96):
        ran.clear()
        assert train_step(compiled, batch[:n]).peak_bytes <= budget, n
        assert ran == {"forward": 1, "backward": 1}
    assert len(compiled.plans) == 1 and peaks[64] < peaks[96]
    with pytest.raises(BudgetError, match="the smallest found takes"):
        compiled(torch.randn(960, 16))
    assert growing.MOST_GROWTHS == 64
    monkeypatch.setattr(growing, "MOST_GROWTHS", 0)
    torch._dynamo.reset()
    compiled = ct.compile(model, budget=budget, dynamic=True)
    compiled(torch.randn(40, 16))
    with pytest.warns(UserWarning, match="size of 96 was planned as 40"):
        compiled(torch.randn(96, 16))


@pytest.mark.very_slow
def test_two_sizes_that_grow_at_once(train_step: Callable[..., Any]) -> None:
    """Height and width of images may grow at once."""
    model = Wrapped(lambda self, x: self.a(x).tanh().sin().tanh().sum(), a=nn.Conv2d(2, 3, 3))
    compiled = ct.compile(model, budget=0.5, dynamic=True)
    for height, width in ((12, 14), (20, 24), (9, 24), (33, 30)):
        peak = train_step(compiled, torch.randn(2, 2, height, width)).peak_bytes
        (plan,) = compiled.plans
        assert peak <= plan.numbers["budget_bytes"], (height, width)


def test_two_backwards_of_one_graph(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    w = torch.linspace(0, 1, 64, requires_grad=True)
    loss = ct.compile(lambda w: F.dropout(w.sin().exp(), 0.5).cos().sum(), budget="min")(w)
    (first,) = torch.autograd.grad(loss, w, retain_graph=True)
    (second,) = torch.autograd.grad(loss, w)
    assert same_bits(first, second)
    assert ran == {"forward": 1, "backward": 2}


def test_a_second_backward_after_steps_without() -> None:
    """PyTorch mistakes a graph compiled without donated buffers for one with donated buffers."""
    w = torch.linspace(0, 1, 64, requires_grad=True)
    step = ct.compile(lambda w: w.sin().exp().sum(), budget="min")
    step(w).backward()
    loss = step(w)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.allclose(w.grad, 3 * w.detach().cos() * w.detach().sin().exp())


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_second_backward_through_a_tensor_subclass(dynamic: bool | None) -> None:
    """For a tensor subclass, AOTAutograd keeps two records of the graph and reads the second."""

    def gradient(step: Callable[..., Any]) -> Any:
        w = torch.linspace(0, 1, 64, requires_grad=True)
        x = TwoTensor(torch.ones(64), torch.full((64,), 2.0))
        step(w, x).sum().backward()
        loss = step(w, x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return w.grad

    f = lambda w, x: (w * x).sin().exp()  # noqa: E731
    got, expected = gradient(ct.compile(f, budget="min", dynamic=dynamic)), gradient(f)
    assert torch.allclose(got.a, expected.a) and torch.allclose(got.b, expected.b)


def test_outputs_that_are_overwritten_before_the_backward(ran: Counter[str]) -> None:
    """Autograd checks what was saved. It does not check what a Function stores as an attribute."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.x

    for budget in (None, "min"):
        torch._dynamo.reset()
        step = ct.compile(lambda y, z: (y.exp(), Square.apply(z).sum()), budget=budget)
        y, z = (torch.linspace(-1, 1, 8).requires_grad_() for _ in range(2))
        out, loss = step(y, z)
        with torch.no_grad():
            out.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (out.sum() + loss).backward()
    assert ran["forward"] == 2


def test_gradients_that_are_not_contiguous(ran: Counter[str], same_bits: Any) -> None:
    """Tangents are transposed, expanded and sliced, although AOTAutograd traced contiguous ones."""
    w = torch.randn(8, 6)
    seeds = (torch.randn(6, 8).t(), torch.ones(()).expand(8, 6), torch.randn(8, 12)[:, ::2])
    for budget in BUDGETS:
        compiled = ct.compile(lambda w: w.sin().exp().cos(), budget=budget)
        for seed in seeds:
            found = []
            for call in (lambda w: w.sin().exp().cos(), compiled):
                leaf = w.clone().requires_grad_()
                call(leaf).backward(seed)
                found.append(leaf.grad)
            assert same_bits(*found)
    assert ran["backward"] == len(BUDGETS) * len(seeds)


def test_hooks(ran: Counter[str], same_bits: Any) -> None:
    """Hooks work on tensors inside the compiled part, on modules, on parameters, and outside the
    compiled part."""

    def train(budget: Any) -> Any:
        seen: list[Any] = []

        def f(self: Any, x: Any) -> Any:
            y = self.layer(x).sin()
            y.register_hook(lambda g: g * 2)
            return y.exp().cos()

        torch.manual_seed(0)
        model = Wrapped(f, layer=nn.Linear(8, 8))
        model.layer.register_forward_hook(lambda m, i, o: o * 0.5)
        model.layer.weight.register_hook(lambda g: g.sign())
        model.layer.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        call = model if budget == "eager" else ct.compile(model, budget=budget)
        x = torch.randn(16, 8, requires_grad=True)
        for _ in range(2):
            out = call(x)
            out.register_hook(lambda g: g + 1)
            out.sum().backward()
        return seen, x.grad, [p.grad for p in model.parameters()]

    expected = train("eager")
    for budget in BUDGETS:
        assert same_bits(train(budget), expected), budget
    assert ran["backward"] == 2 * len(BUDGETS)


def test_boxed_and_unboxed_calls(ran: Counter[str], same_bits: Any) -> None:
    """The function given to AOTAutograd takes a list, which it empties; graph modules take
    arguments."""
    from torch._dynamo.backends.common import aot_autograd

    def f(w: Any, x: Any) -> Any:
        return (w * x).sin().exp().cos().sum()

    w, x = torch.randn(16, requires_grad=True), torch.randn(16)
    (expected,) = torch.autograd.grad(f(w, x), w)

    def unboxed(gm: Any, example_inputs: Any) -> Any:
        return lambda *args: gm(*args)

    backend = aot_autograd(fw_compiler=unboxed, partition_fn=ct.Partitioner(budget="min"))
    with pytest.warns(UserWarning, match="boxed"):
        (found,) = torch.autograd.grad(torch.compile(f, backend=backend)(w, x), w)
    assert same_bits(found, expected)

    lists: list[Any] = []

    def boxed(gm: Any, example_inputs: Any) -> Any:
        run = codegen.compile_boxed(gm)
        assert run._boxed_call

        def call(args: list[Any]) -> Any:
            lists.append(args)
            out = run(args)
            assert args == []
            return out

        call._boxed_call = True
        return call

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=boxed, partition_fn=ct.Partitioner(budget="min"))
    (found,) = torch.autograd.grad(torch.compile(f, backend=backend)(w, x), w)
    assert same_bits(found, expected) and len(lists) == 2


def test_an_exception_leaves_no_state(ran: Counter[str], same_bits: Any) -> None:
    """After an exception in the forward, the backward or the planner, the next step works
    normally."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("stop")

    def f(self: Any, i: Any) -> Any:
        return F.dropout(self.table(i).sin().exp(), 0.5).cos().sum()

    model = Wrapped(f, table=nn.Embedding(8, 4))
    good, bad = torch.tensor([1, 2, 7]), torch.tensor([1, 2, 9])

    def gradient(call: Any) -> Any:
        model.zero_grad()
        torch.manual_seed(1)
        with ct.MemoryTracker() as memory:
            call(good).backward()
        return model.table.weight.grad, memory.peak_bytes

    expected, _ = gradient(model)
    compiled = ct.compile(model, budget="0.9x")
    _, peak = gradient(compiled)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(bad)
        with pytest.raises(KeyError):
            Stop.apply(compiled(good)).backward()
        found, again = gradient(compiled)
        assert same_bits(found, expected) and again == peak
    assert ran["forward"] == 7 and ran["backward"] == 3
    impossible = ct.compile(model, budget="1B")
    for _ in range(2):
        with pytest.raises(BudgetError):
            impossible(good)
    assert impossible.plans == []
    assert same_bits(gradient(compiled)[0], expected)


def test_threads_and_calls_inside_calls(ran: Counter[str], same_bits: Any) -> None:
    """Three threads share a compiled module. A compiled module runs inside another's step, forward
    and backward.

    The budget is ``"min"``, because calls that happen to be pending together would share any other
    budget, with a warning.
    """

    def f(self: Any, x: Any) -> Any:
        return self.b(F.relu(self.a(x)).sin()).exp().cos().sum()

    model = Wrapped(f, a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    x = torch.randn(8, 16)
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    compiled = ct.compile(model, budget="min")
    results: list[Any] = []
    together = threading.Barrier(3)

    def train() -> None:
        together.wait()
        try:
            for _ in range(5):
                results.append(torch.autograd.grad(compiled(x), list(model.parameters())))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 15 and all(same_bits(r, expected) for r in results), results
    assert ran["forward"] == ran["backward"] == 15

    class Inside(torch.autograd.Function):
        """Runs another step in its backward."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            with torch.enable_grad():
                (inner, *_) = torch.autograd.grad(compiled(x), list(model.parameters()))
            return g * inner.sum()

    w = torch.randn(4, requires_grad=True)
    outer = ct.compile(lambda w: w.sin().exp().cos().sum(), budget="min")
    (plain,) = torch.autograd.grad(w.sin().exp().cos().sum(), w)
    (found,) = torch.autograd.grad(outer(Inside.apply(w)), w)
    assert same_bits(found, plain * expected[0].sum())


def test_a_call_while_another_thread_compiles(ran: Counter[str], same_bits: Any) -> None:
    """Before torch 2.13, PyTorch confused another thread's trace with the caller's."""
    traced, called = threading.Semaphore(0), threading.Semaphore(0)

    @torch.library.custom_op("cutback_tests::slow_to_trace", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @slow.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        traced.release()
        called.acquire(timeout=60)
        return torch.empty_like(x)

    slow.register_autograd(lambda ctx, g: g * 2)
    w = torch.randn(4, requires_grad=True)
    compiled = ct.compile(lambda w: w.sin().exp().sum(), budget="min")
    expected = torch.autograd.grad(compiled(w), w)
    for other in (
        ct.compile(lambda w: slow(w).exp().sum(), budget="min"),
        torch.compile(lambda w: slow(w).cos().sum(), backend="cutback", options={"budget": "min"}),
    ):
        ran.clear()
        thread = threading.Thread(target=lambda f=other: f(w).backward())
        thread.start()
        calls = 0
        while thread.is_alive():
            if traced.acquire(timeout=0.05):
                assert same_bits(torch.autograd.grad(compiled(w), w), expected)
                calls += 1
                called.release()
        assert calls > 1  # Dynamo's call of the op, and AOTAutograd's trace
        assert ran["forward"] == ran["backward"] == 1 + calls


def test_what_cannot_be_planned_is_an_error(ran: Counter[str]) -> None:
    def sparse_part(w: Any, x: Any) -> Any:
        return torch.sparse.mm(x.to_sparse(), w).sum()

    with pytest.raises(Exception, match=r"(?i)sparse|layout"):
        ct.compile(sparse_part, fullgraph=True)(torch.randn(3, 2, requires_grad=True), torch.eye(3))


def test_second_derivatives_are_refused(ran: Counter[str], same_bits: Any) -> None:
    w = torch.randn(4, requires_grad=True)
    loss = ct.compile(lambda w: (w**3).sum())(w)
    with pytest.raises(ct.UnsupportedGraphError, match=r"create_graph=True.*torch\.checkpoint"):
        torch.autograd.grad(loss, w, create_graph=True, retain_graph=True)
    assert ran["backward"] == 0
    (gradient,) = torch.autograd.grad(loss, w)
    assert same_bits(gradient, 3 * w.detach() ** 2) or torch.allclose(gradient, 3 * w**2)
    # the alternative that the text suggests
    (first,) = torch.autograd.grad(ct.checkpoint(lambda w: (w**3).sum(), w), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert torch.allclose(second, 6 * w)


def test_mistakes_in_arguments() -> None:
    for options, error in (
        ({"budget": -1}, ValueError),
        ({"budget": 1.5}, ValueError),
        ({"measure": "total"}, ValueError),
        ({"measure": "arena"}, ValueError),
        ({"codegen": "cutback"}, ValueError),
        ({"policy": "no_such"}, ValueError),
        ({"policy": 3}, TypeError),
        ({"policy": [3]}, TypeError),
        ({"budget": "0.4"}, ValueError),  # is it bytes or a share?
        ({"budget": "max"}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(options))):
            ct.compile(lambda w: w, **options)
    with pytest.raises(TypeError, match="model=5 is neither a module nor a function"):
        ct.compile(5)
