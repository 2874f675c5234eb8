"""For calls that are pending together and varying sizes, the budget holds for all of them, or a
warning says that it does not."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import cutback
import cutback.torch as ct


def mlp(layers: int = 4, width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    row = (nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Tanh()) for _ in range(layers))
    return nn.Sequential(*row)


def doors(model: nn.Module, budget: Any) -> dict[str, Any]:
    options = {"budget": budget}
    return {
        "own": lambda: ct.compile(model, **options),
        "name": lambda: torch.compile(model, backend="cutback", options=options),
    }


def measured(run: Any, *inputs: Any) -> tuple[int, list[Any]]:
    """Runs a loss over all calls, whose own ops hold little, and measures it."""
    run.zero_grad()
    with ct.MemoryTracker() as memory:
        sum(run(x).sum() for x in inputs).backward()
        peak = memory.peak_bytes
    return peak, [p.grad.clone() for p in run.parameters()]


OWN = 64  # bytes of the losses


@pytest.mark.parametrize("door", ["own", "name"])
@pytest.mark.parametrize("calls", [pytest.param(2, marks=pytest.mark.very_slow), 3])
def test_calls_that_are_pending_together_share_the_budget(
    door: str, calls: int, same_bits: Callable[..., bool]
) -> None:
    """Contrastive losses make several calls before a backward. The number of calls cannot be known
    before the first step, so its later calls run as "min", and a warning says if they exceed the
    budget."""
    model = mlp()
    inputs = [torch.randn(512, 16) for _ in range(calls)]
    plain, wanted = measured(model, *inputs)
    budget = int(0.7 * plain)
    compiled = doors(model, budget)[door]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        first, found = measured(compiled, *inputs)
    assert same_bits(found, wanted)
    assert len(told) == (first > budget)
    for warning in told:
        assert str(warning.message).startswith(f"{calls} calls of the model were pending together")
    for _ in range(3):  # a warning would be an error
        peak, found = measured(compiled, *inputs)
        assert peak <= budget + OWN and same_bits(found, wanted)
    alone, _ = measured(compiled, inputs[0])
    assert alone <= budget


@pytest.mark.very_slow
def test_a_discriminator_twice_and_then_in_the_step_of_the_generator(
    same_bits: Callable[..., bool],
) -> None:
    torch.manual_seed(1)
    judge, make = mlp(), nn.Linear(16, 16)
    noise, real = torch.randn(512, 16), torch.randn(512, 16)

    def gradients(run: Any) -> tuple[list[Any], list[int]]:
        judge.zero_grad()
        make.zero_grad()
        peaks = []
        with ct.MemoryTracker() as memory:
            (run(real).sum() - run(make(noise).detach()).sum()).backward()
            peaks.append(memory.peak_bytes)
        with ct.MemoryTracker() as memory:
            run(make(noise)).sum().backward()
            peaks.append(memory.peak_bytes)
        return [p.grad.clone() for m in (judge, make) for p in m.parameters()], peaks

    wanted, plain = gradients(judge)
    budget = int(0.6 * plain[0])
    compiled = ct.compile(judge, budget=budget)
    with pytest.warns(UserWarning, match="2 calls"):
        gradients(compiled)
    for _ in range(4):
        found, peaks = gradients(compiled)
        assert same_bits(found, wanted)
    outside = 2 * 512 * 16 * 4 + 4096  # memory of the generator itself
    assert peaks[0] <= budget + outside and peaks[1] <= budget + outside


@pytest.mark.very_slow
@pytest.mark.parametrize(("budget", "calls"), [(0.5, 1), (0.5, 3), (0.0, 2), (120_000, 2)])
def test_the_first_line_counts_the_calls_that_share_the_budget(
    budget: float | int, calls: int
) -> None:
    """The count is right if the calls fit unchanged, and if they were planned together."""
    model = mlp()
    compiled = ct.compile(model, budget=budget, on_infeasible="min")
    inputs = [torch.randn(256, 16) for _ in range(calls)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peaks = [measured(compiled, *inputs)[0] for _ in range(3)]
    (plan,) = compiled.plans
    if calls == 1:
        assert plan.shared is None and "calls" not in str(plan)
        return
    assert plan.shared is not None and plan.shared.calls == calls
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    # gradients of parameters may be counted once too often
    assert peaks[-1] - OWN * calls <= plan.shared.taken <= peaks[-1] + weights
    assert plan.shared.position is None or plan.shared.limit >= plan.shared.taken
    assert (plan.shared.position is None) == (budget == 120_000)
    first = str(plan).splitlines()[0]
    assert first == plan.shared.describe()
    assert first.endswith(f"for {calls} calls before one backward")
    assert copy.copy(plan).shared == plan.shared


def test_calls_that_fit_say_nothing() -> None:
    model = mlp()
    x = torch.randn(64, 16)
    plain, _ = measured(model, x, x)
    compiled = ct.compile(model, budget=2 * plain)
    for _ in range(2):
        measured(compiled, x, x)
    assert [plan.numbers["recomputed"] for plan in compiled.plans] == [0]


def test_calls_without_a_backward_are_not_pending() -> None:
    model, x = mlp(), torch.randn(512, 16)
    plain, _ = measured(model, x)
    compiled = ct.compile(model, budget=int(0.9 * plain))
    for _ in range(4):
        compiled(x)  # the result is dropped
        measured(compiled, x)


@pytest.mark.parametrize("door", ["own", "name"])
@pytest.mark.parametrize("lengths", [(60, 40, 24, 41, 50, 60, 33, 59), (24, 24, 40, 30, 40, 24)])
def test_one_plan_for_a_range_of_sizes(
    door: str,
    lengths: tuple[int, ...],
    ran: Counter[str],
    same_bits: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest size seen so far counts, whichever came first."""
    from cutback.torch.graph import codegen

    made = []
    compile_boxed = codegen.compile_boxed
    monkeypatch.setattr(
        codegen,
        "compile_boxed",
        lambda gm, name="step", *rest: made.append(name) or compile_boxed(gm, name, *rest),
    )
    model = mlp()
    compiled = doors(model, "0.7x")[door]()
    eager = copy.deepcopy(model)
    for n in lengths:
        x = torch.randn(8 * n, 16)
        plain, wanted = measured(eager, x)
        peak, found = measured(compiled, x)
        assert peak <= 0.8 * plain and same_bits(found, wanted), n
    assert made.count("forward") == 2  # once for the first size, then for varying sizes
    assert ran["forward"] == len(lengths)


def test_sizes_that_keep_on_growing_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second size on, PyTorch compiles two graphs, and sizes are planned in steps of an
    eighth of an octave."""
    made: list[int] = []
    plan = ct.Partitioner._make
    monkeypatch.setattr(ct.Partitioner, "_make", lambda *args: made.append(n) or plan(*args))
    compiled = ct.compile(mlp(), budget="0.7x")
    traced = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for n in range(20, 60, 2):
        measured(compiled, torch.randn(8 * n, 16))
    assert made == [20, 22, 24, 26, 28, 30, 32, 34, 38, 42, 46, 50, 54, 58]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == traced + 2


@pytest.mark.very_slow
def test_what_becomes_infeasible_later() -> None:
    """By default there is a warning and the smallest plan; in the first step it is an error."""
    model = mlp()
    small, large = torch.randn(64, 16), torch.randn(256, 16)
    plain, _ = measured(model, small)
    budget = int(0.9 * plain)
    compiled = ct.compile(model, budget=budget, dynamic=False)
    measured(compiled, small)
    with pytest.warns(
        UserWarning, match=r"no plan fits .*on_infeasible='smallest', the smallest plan"
    ):
        peak, _ = measured(compiled, large)
    assert budget < peak < measured(model, large)[0]
    with pytest.raises(cutback.BudgetError, match="no plan fits"):
        ct.compile(model, budget=budget)(large)
    validated = ct.compile(model, budget=budget)
    with torch.no_grad():  # front ends do this before they train
        validated(small)
    with pytest.raises(cutback.BudgetError, match="no plan fits"):
        validated(large)
    strict = ct.compile(model, budget=budget, dynamic=False, on_infeasible="error")
    measured(strict, small)
    with pytest.raises(cutback.BudgetError, match="no plan fits"):
        strict(large)
    for wish, text in (
        ("min", "at most 40 % more time"), ("smallest", "however slow"), ("warn", "is saved")
    ):  # fmt: skip
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=budget, on_infeasible=wish)
        with pytest.warns(UserWarning, match=text):
            compiled(large)
        assert (compiled.plans[0].numbers["recomputed"] > 0) == (wish != "warn")
    with pytest.raises(ValueError, match="on_infeasible='no' is not one of error, min, smallest"):
        ct.compile(model, on_infeasible="no")


@pytest.mark.very_slow
def test_a_share_of_larger_sizes_holds_for_smaller_ones() -> None:
    """A share that smaller sizes cannot meet on their own is within the bytes of the larger
    ones."""
    model = mlp(width=64)
    compiled = ct.compile(model, budget="0.7x", dynamic=False)
    for n in (512, 256, 64, 16, 4, 1):
        peak, _ = measured(compiled, torch.randn(n, 64))
        assert peak <= compiled.plans[0].numbers["budget_bytes"] + OWN


def test_a_module_that_pytorch_leaves_alone_says_what_it_holds() -> None:
    """A hook on a module's backward makes PyTorch stop in the middle of a ``Sequential``."""
    model, x = mlp(), torch.randn(512, 16)
    model[2].register_full_backward_hook(lambda *args: None)
    compiled = ct.compile(model, budget="0.5x")
    with pytest.warns(UserWarning, match=r"nothing was planned.*the forward alone holds \d+.*hook"):
        compiled(x)
    compiled(x)  # the warning comes once


class Hooked(nn.Module):
    """A module whose backward has a hook, between two that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = mlp(2), mlp(1), mlp(2)
        self.middle.register_full_backward_hook(lambda *args: None)

    def forward(self, x: Any) -> Any:
        return self.last(self.middle(self.first(x))).square().mean()


def test_the_graphs_around_a_hooked_module_share_the_budget_and_say_so_by_name(
    same_bits: Callable[..., bool],
) -> None:
    model, x = Hooked(), torch.randn(512, 16)
    _, wanted = measured(model, x)
    plans: list[Any] = []
    options = {"budget": "0.8x", "on_plan": plans.append}
    compiled = torch.compile(model, backend="cutback", options=options)
    with pytest.warns(UserWarning, match="register_full_backward_hook.*not planned.*on top"):
        measured(compiled, x)
    for _ in range(2):  # the warning came once
        _, found = measured(compiled, x)
        assert same_bits(found, wanted)
    kinds = [op["kind"] for op in plans[-1].problem["ops"]]
    assert kinds.count("tangent") == 2  # one plan for both graphs
    assert plans[-1].numbers["live_bytes"] <= plans[-1].numbers["budget_bytes"]


def test_gradients_inside_of_what_is_compiled_say_what_they_hold() -> None:
    w = torch.randn(64, 64)

    def loss(x: Any) -> Any:
        for _ in range(6):
            x = torch.tanh(x @ w).sin()
        return x.sum()

    x = torch.randn(64, 64)
    compiled = ct.compile(torch.func.grad(loss), budget="100KiB")
    with pytest.warns(UserWarning, match=r"torch.func .*holds \d+.* over the budget of 100.00 KiB"):
        found = compiled(x)
    assert torch.allclose(found, torch.func.grad(loss)(x), atol=1e-5)
    ct.compile(torch.func.grad(loss), budget="10MiB")(x)


def test_more_calls_than_are_planned_together_are_said_once() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 16), nn.Tanh())))
    step = ct.compile(lambda x: layers(x).square().mean(), budget="0.6x")
    x = torch.randn(64, 16)
    said = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as now:
            warnings.simplefilter("always")
            sum(step(x) for _ in range(17)).backward()
        said += [str(w.message) for w in now]
    assert len(said) == 1
    assert said[0].startswith("17 calls of the model were pending together")
    assert "may not hold" in said[0] and "over the budget" not in said[0]


class Growing(nn.Module):
    """A growing number of layers behind a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.later = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Any, n: int) -> Any:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        for layer in self.later[:n]:
            x = layer(x).tanh()
        return x.square().mean()


def test_results_that_are_kept_are_no_calls_of_later_steps() -> None:
    """Results that are kept hold what their calls saved; one warning says so, and plans stay the
    same."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run, kept, plans = ct.compile(model, budget=0.5), [], []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            optimizer.zero_grad()
            loss, other = run(torch.randn(512, 16)).sum(), run(torch.randn(512, 16))
            loss.backward()
            optimizer.step()
            kept.append(other)
            plans.append(run.plans)
    assert plans[1] == plans[-1]
    texts = [str(w.message) for w in told if "kept from earlier steps" in str(w.message)]
    assert len(texts) == 1 and "from 1 call so far" in texts[0]
    assert sum("pending together" in str(w.message) for w in told) <= 1


@pytest.mark.very_slow
def test_graphs_that_turn_up_too_late_are_said() -> None:
    torch.manual_seed(0)
    step = ct.compile(Growing(), budget="1MiB", dynamic=False)
    x = torch.randn(64, 16)
    with pytest.warns(UserWarning, match=r"made again 4 times.*may not hold"):
        for n in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6):
            step(x, n).backward()
    step(x, 7).backward()  # a second warning would be an error


@pytest.mark.very_slow
def test_a_graph_beside_calls_that_share_the_budget_may_exceed_it() -> None:
    """A discriminator is an example: two calls share the budget, and another call of the step,
    whose input needs a gradient, is a separate graph that cannot meet the share."""
    x = torch.randn(64, 16)
    step = ct.compile(mlp(2), budget="0.2x", on_infeasible="smallest")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            (step(x).mean() + step(x).mean()).backward()
            step(x.clone().requires_grad_()).mean().backward()
    said = [str(w.message) for w in told if "no plan fits" in str(w.message)]
    assert said and all("on_infeasible='smallest'" in text for text in said)
