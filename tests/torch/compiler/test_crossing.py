"""Tests values that pass between graphs where PyTorch breaks a model, their gradients, and sums of
gradients of one parameter. The joint plan is compared with the measured step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from agreement import Wrapped
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import cutback.torch as ct
from cutback import BudgetError

_break = torch._dynamo.graph_break
Case = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


def _linear(n: int = 32, bias: bool = True) -> nn.Linear:
    return nn.Linear(32, n, bias=bias)


def _x(rows: int = 64, grad: bool = False) -> Any:
    return torch.randn(rows, 32, requires_grad=grad)


def _two(bias: bool = True, rows: int = 8) -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return self.a(h).tanh().sum()

    return Wrapped(f, a=_linear(bias=bias)), (_x(rows),)


def _without_bias() -> tuple[nn.Module, tuple[Any, ...]]:
    return _two(bias=False)


def _three(rows: int = 8) -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        h = self.a(h).sin()
        _break()
        return self.a(h).tanh().square().mean()

    return Wrapped(f, a=_linear()), (_x(rows),)


def _low_precision() -> tuple[nn.Module, tuple[Any, ...]]:
    model, (x,) = _three(64)
    return model.bfloat16(), (x.bfloat16(),)


def _tied() -> tuple[nn.Module, tuple[Any, ...]]:
    """Uses the same weight in the first and the last graph, as language models do."""

    def f(self: Any, words: Any) -> Any:
        h = self.e(words)
        _break()
        h = self.a(h).tanh()
        _break()
        return F.linear(h, self.e.weight).logsumexp(-1).mean()

    return Wrapped(f, e=nn.Embedding(50, 32), a=_linear()), (torch.randint(0, 50, (8,)),)


def _skip() -> tuple[nn.Module, tuple[Any, ...]]:
    """Reads one result in two later graphs, so its gradients are added, too."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        y = self.b(h).tanh().sin()
        _break()
        return (self.c(y) + h).square().mean()

    return Wrapped(f, a=_linear(), b=_linear(), c=_linear()), (_x(),)


def _residual() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.a(x)
        _break()
        h = h + self.b(h).tanh().sin()
        _break()
        h = h + self.c(h).tanh().exp()
        _break()
        return h.square().mean()

    return Wrapped(f, a=_linear(), b=_linear(), c=_linear()), (_x(),)


def _input() -> tuple[nn.Module, tuple[Any, ...]]:
    """Returns an input with a gradient, read by both graphs."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return (self.b(h) * x).tanh().sum()

    return Wrapped(f, a=_linear(), b=_linear()), (_x(grad=True),)


def _transposed() -> tuple[nn.Module, tuple[Any, ...]]:
    """Makes a sum with the gradients' layout, so the parameter copies the sum, not its parts."""

    def f(self: Any, x: Any) -> Any:
        h = (x @ self.a.t().contiguous()).tanh()
        _break()
        return (h @ self.a.t().contiguous()).tanh().sum()

    return Wrapped(f, a=nn.Parameter(torch.randn(32, 32))), (_x(8),)


def _one_transposed() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = (x @ self.a.t().contiguous()).tanh()
        _break()
        return (h @ self.a).tanh().sum()

    return Wrapped(f, a=nn.Parameter(torch.randn(32, 32))), (_x(8),)


def _one_gradient_for_two() -> tuple[nn.Module, tuple[Any, ...]]:
    """Makes one gradient that belongs to a value that crosses the break and to a parameter."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return (h + self.w + self.a(h)).tanh().sum()

    return Wrapped(f, a=_linear(), w=nn.Parameter(torch.randn(8, 32))), (_x(8),)


def _expanded() -> tuple[nn.Module, tuple[Any, ...]]:
    """Makes a gradient without its own memory come back, so the earlier graph copies it."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x)
        _break()
        return h.sum() + self.w.sum()

    return Wrapped(f, a=_linear(), w=nn.Parameter(torch.randn(8, 32))), (_x(8),)


def _read_in_the_forward_alone() -> tuple[nn.Module, tuple[Any, ...]]:
    """Passes a value that no graph saves; it lives as long as the forward's frames."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x)
        _break()
        h = h * 2
        _break()
        return (h * 3).sum()

    return Wrapped(f, a=_linear()), (_x(8),)


def _views() -> tuple[nn.Module, tuple[Any, ...]]:
    """Passes two results that share memory."""

    def f(self: Any, x: Any) -> Any:
        h, k = self.a(x).tanh().chunk(2, 0)
        _break()
        return (self.b(h) * k).tanh().sum()

    return Wrapped(f, a=_linear(), b=_linear()), (_x(),)


def _mask() -> tuple[nn.Module, tuple[Any, ...]]:
    """Passes a value without a gradient across two breaks."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x)
        m = h > 0
        h = h.tanh()
        _break()
        y = (self.b(h) * m).tanh()
        _break()
        return (self.c(y) * m).sum()

    return Wrapped(f, a=_linear(), b=_linear(), c=_linear()), (_x(),)


def _scalar() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh().mean()
        _break()
        return (self.b(x) * h).tanh().sum()

    return Wrapped(f, a=_linear(), b=_linear()), (_x(),)


def _dropout() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = F.dropout(self.a(x).tanh().sin(), 0.3)
        _break()
        return F.dropout(self.a(h).tanh().exp(), 0.2).sum()

    return Wrapped(f, a=_linear()), (_x(),)


def _channels_last() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.c(x).tanh()
        _break()
        return self.c(h).tanh().sum()

    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    return Wrapped(f, c=nn.Conv2d(8, 8, 3, padding=1)), (x,)


FAST = (_low_precision, _expanded)
SLOW = (
    _residual, _two, _three, _tied, _skip, _transposed,
    _without_bias, _input, _one_transposed, _one_gradient_for_two, _read_in_the_forward_alone,
    _views, _mask, _scalar, _dropout, _channels_last,
)  # fmt: skip


def _step(run: Any, leaves: list[Any], inputs: tuple[Any, ...]) -> tuple[int, list[Any]]:
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(7)
    with ct.MemoryTracker() as memory:
        run(*inputs).backward()
    return memory.peak_bytes, [leaf.grad.clone() for leaf in leaves]


def _leaves(model: Any, inputs: tuple[Any, ...]) -> list[Any]:
    return [*model.parameters(), *(x for x in inputs if x.requires_grad)]


def _in_force(
    case: Case, budget: Any, compile: Any = ct.compile
) -> tuple[Any, list[Any], tuple[Any, ...]]:
    """Returns a compiled case with its joint plan in force."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = case()
    compiled = compile(model, budget=budget)
    leaves = _leaves(model, inputs)
    _step(compiled, leaves, inputs)
    return compiled, leaves, inputs


@pytest.mark.parametrize(
    "case", [*FAST, *(pytest.param(case, marks=pytest.mark.very_slow) for case in SLOW)]
)
def test_the_joint_plan_is_what_a_step_takes(case: Case, same_bits: Callable[..., bool]) -> None:
    """The plan is exact to the byte, for the largest budget, one in the middle, and the
    smallest."""
    torch.manual_seed(0)
    model, inputs = case()
    plain, wanted = _step(model, _leaves(model, inputs), inputs)
    budgets: list[Any] = [1 << 30]
    for budget in budgets:
        compiled, leaves, inputs = _in_force(case, budget)
        for _ in range(2):
            peak, found = _step(compiled, leaves, inputs)
            (plan,) = compiled.plans
            assert peak == plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]
            assert same_bits(found, wanted)
        if len(budgets) == 1:
            torch._dynamo.reset()
            with pytest.raises(BudgetError) as caught:
                compiled, leaves, inputs = _in_force(case, 1000)
                _step(compiled, leaves, inputs)
            smallest = caught.value.smallest_bytes
            budgets += sorted({smallest, (smallest + peak) // 2} - {peak})
    assert min(plain, peak) == peak or peak - plain <= 4 * 32 + 4 * 8 * 32  # biases; copies


def _chain() -> tuple[nn.Module, tuple[Any, ...]]:
    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return self.b(h).tanh().sum()

    return Wrapped(f, a=_linear(), b=_linear()), (_x(8),)


@pytest.mark.parametrize("case", [_chain, _without_bias, _read_in_the_forward_alone])
def test_a_budget_that_plain_training_meets_is_no_error(case: Case) -> None:
    """The budget holds from the first step, in which the graphs become known."""
    torch.manual_seed(0)
    model, inputs = case()
    leaves = _leaves(model, inputs)
    plain, _ = _step(model, leaves, inputs)
    compiled = ct.compile(model, budget=plain)
    for _ in range(3):
        assert _step(compiled, leaves, inputs)[0] <= plain


def test_by_the_name_of_the_backend() -> None:
    def compile(model: Any, budget: Any) -> Any:
        return torch.compile(
            model, backend="cutback", options={"budget": budget, "on_plan": plans.append}
        )

    for case in (_three, _skip):
        plans: list[Any] = []
        compiled, leaves, inputs = _in_force(case, 1 << 30, compile)
        for _ in range(2):
            peak, _ = _step(compiled, leaves, inputs)
        assert peak == plans[-1].numbers["live_bytes"]


def test_one_graph_that_cannot_meet_its_bytes_by_the_name_of_the_backend() -> None:
    """No other graph follows, but only the backward shows that."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return torch._dynamo.disable(torch.sum)(h)

    model, x = Wrapped(f, a=_linear()), _x()
    compiled = torch.compile(model, backend="cutback", options={"budget": 1000})
    compiled(x).backward()
    with pytest.raises(BackendCompilerFailed, match="no plan fits 1000 B "):
        compiled(x)


def test_gradients_of_eager_code_between_count() -> None:
    """The eager code uses a parameter of the graphs; the plan accounts for the gradient that
    arrives."""

    def f(self: Any, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        h = torch._dynamo.disable(lambda h: h @ self.a.weight)(h)
        return self.a(h).tanh().sum()

    def case() -> Any:
        torch.manual_seed(0)
        return Wrapped(f, a=_linear()), (_x(8),)

    compiled, leaves, inputs = _in_force(case, 1 << 30)
    peak, _ = _step(compiled, leaves, inputs)
    (plan,) = compiled.plans
    kinds = Counter(op["kind"] for op in plan.problem["ops"])
    assert kinds["add_gradients"] == 3 and kinds["gradient"] == 1
    assert peak <= plan.numbers["live_bytes"]


class _Keeps(nn.Module):
    """Keeps a reference to the value that crosses the break."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _linear(), _linear()

    def forward(self, x: Any) -> Any:
        h = self.a(x).tanh()
        _break()
        return self.b(h).tanh().sum(), h


@pytest.mark.very_slow
@pytest.mark.parametrize("used", [False, True])
def test_what_python_holds_counts_to_the_end(used: bool) -> None:
    """The caller may use a value that Python holds, so the plan also counts its gradient, and the
    error does not claim that no plan needs less."""
    torch.manual_seed(0)
    model, x = _Keeps(), _x()

    def step(run: Any) -> int:
        model.zero_grad()
        with ct.MemoryTracker() as memory:
            loss, h = run(x)
            (loss + h.square().mean() if used else loss).backward()
        assert h.grad_fn is not None
        return memory.peak_bytes

    compiled = ct.compile(model, budget=1 << 30)
    step(compiled)
    peak = step(compiled)
    (plan,) = compiled.plans
    assert peak <= plan.numbers["live_bytes"] + 16 + used * 2 * x.nbytes  # the caller's own ops
    torch._dynamo.reset()
    tight = ct.compile(model, budget=plan.numbers["live_bytes"] // 4)
    with pytest.raises(BudgetError) as caught:
        for _ in range(2):
            step(tight)
    assert caught.value.is_upper_bound and "takes at most" in str(caught.value)
    assert caught.value.floor_bytes is None


def test_calls_that_are_pending_together_add_their_gradients() -> None:
    """Each call uses the same parameters; the warning's figure is that of the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    compiled = ct.compile(model, budget=30_000)

    def step() -> int:
        model.zero_grad()
        with ct.MemoryTracker() as memory:
            (compiled(x).sum() + compiled(y).sum()).backward()
        return memory.peak_bytes

    with pytest.warns(UserWarning, match=r"together they hold .*\((\d+) bytes") as warned:
        taken = step()
    said = int(str(warned[0].message).split("together they hold ")[1].split("(")[1].split()[0])
    assert taken <= said <= taken + 2 * 8 * 64 * 4  # results that the caller's loss has freed
    assert taken > 3 * 64 * 64 * 4


@pytest.mark.very_slow
@pytest.mark.parametrize("retain", [False, True])
def test_accumulation_and_graphs_that_are_kept(retain: bool) -> None:
    compiled, leaves, inputs = _in_force(_three, 1 << 30)
    _step(compiled, leaves, inputs)
    (plan,) = compiled.plans
    once = [leaf.grad.clone() for leaf in leaves]
    for times in (2, 3):
        with ct.MemoryTracker() as memory:
            loss = compiled(*inputs)
            loss.backward(retain_graph=retain)
        assert retain or memory.peak_bytes <= plan.numbers["live_bytes"]
        for leaf, first in zip(leaves, once, strict=True):
            torch.testing.assert_close(leaf.grad, times * first)


@pytest.mark.very_slow
def test_joint_plans_in_a_file(tmp_path: Any, same_bits: Callable[..., bool]) -> None:
    for case in (_three, _skip):
        compiled, leaves, inputs = _in_force(case, 1 << 30)
        peak, wanted = _step(compiled, leaves, inputs)
        file = tmp_path / "plans.json"
        compiled.save_plans(file)
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, inputs = case()
        again = ct.compile(model, plans=file)
        leaves = _leaves(model, inputs)
        for _ in range(2):
            found = _step(again, leaves, inputs)
            assert found[0] == peak and same_bits(found[1], wanted)
        assert again.plans[0].numbers["live_bytes"] == peak
        document = json.loads(file.read_text())
        document["plans"][0]["common"]["flows"] = 3
        file.write_text(json.dumps(document))
        with pytest.raises(ValueError, match="damaged"):
            ct.compile(model, plans=file)


def test_offload_of_several_graphs(same_bits: Callable[..., bool]) -> None:
    def compile(model: Any, budget: Any) -> Any:
        return ct.compile(model, budget=budget, offload=True)

    torch.manual_seed(0)
    model, inputs = _residual()
    _, wanted = _step(model, _leaves(model, inputs), inputs)
    for budget in ("1x", "0.85x"):
        compiled, leaves, inputs = _in_force(_residual, budget, compile)
        for _ in range(2):
            _, found = _step(compiled, leaves, inputs)
            assert same_bits(found, wanted)
        (plan,) = compiled.plans
        assert plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]


def test_totals_of_several_graphs() -> None:
    """The optimizer's step reads the sums."""
    torch.manual_seed(0)
    model, (x,) = _three(64)
    trains = torch.optim.Adam(model.parameters(), foreach=False)
    compiled = ct.compile(model, budget="1x", measure="total", optimizer=trains)
    for _ in range(3):
        trains.zero_grad()
        with ct.MemoryTracker(model, trains) as memory:
            loss = compiled(x)
            loss.backward()
            trains.step()
    (plan,) = compiled.plans
    assert memory.peak_total_bytes == plan.numbers["total_bytes"]
