"""Tests positions from 0 to 1 as budgets: they are never refused, and lie between the smallest plan
and no budget."""

from __future__ import annotations

import copy
import doctest
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import small_models
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import cutback
import cutback.torch as ct
from cutback.torch.compiler import reference
from cutback.torch.graph.taking_over import separate
from cutback.torch.profiler.tracing import TracedStep

pytestmark = pytest.mark.torch

POSITIONS = (0.0, 0.3, 0.7, 1.0)
ALL_POSITIONS = tuple(k / 20 for k in range(21))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())), nn.Linear(32, 10)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x).square().mean()


class Recurrent(nn.Module):
    """An LSTM cell over a few steps."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inward, self.across = nn.Linear(8, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], self.across.in_features)
        total = x.new_zeros(())
        for t in range(x.shape[1]):
            i, f, g, o = (self.inward(x[:, t]) + self.across(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            total = total + h.square().mean()
        return total


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                m
                for a, b in ((3, 8), (8, 8), (8, 8))
                for m in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            )
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x).mean((2, 3)).square().mean()


class Checkpointed(nn.Module):
    """Layers, half of which are inside PyTorch's checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Perceptron().layers[:-1], Perceptron().layers

    def forward(self, x: Any) -> Any:
        h = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
        return self.second(h).square().mean()


NETS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "perceptron": lambda: (Perceptron(), (torch.randn(128, 32),)),
    "lstm": lambda: (Recurrent(), (torch.randn(32, 2, 8),)),
    "long lstm": lambda: (Recurrent(), (torch.randn(32, 8, 8),)),
    "checkpointed": lambda: (Checkpointed(), (torch.randn(128, 32),)),
    "convolutions": lambda: (Convolutions(), (torch.randn(4, 3, 12, 12),)),
    "resnet": small_models.CASES["resnet"],
    "unet": small_models.CASES["unet"],
    "transformer": small_models.CASES["encoder"],
    "gpt": small_models.CASES["gpt"],
}

ABOVE_MIN = {"lstm": 0.051, "long lstm": 0.07}
"""How far position 0 may be above ``"min"``, as a share of what the step takes without a budget.
For all other models it is 2 %. Finding the plans of ``"min"`` takes 0.6 s and 8 s more for
these."""

QUICK = ("perceptron", "convolutions")


def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return NETS[name]()


def check_ladder(plans: dict[float, Any], measure: str = "live", has_wishes: bool = False) -> None:
    """Peaks rise and times fall with the position; each peak is within its bytes. Under
    constraints, plans that violate preferences count as slower than they are."""
    rows = sorted(plans.items())
    (_, smallest, everything) = rows[0][1].position
    for k, plan in rows:
        exact = smallest + math.ceil(Fraction(k) * (everything - smallest))
        assert plan.position == (k, smallest, everything)
        assert plan.numbers["budget_bytes"] == exact
        assert plan.numbers[f"{measure}_bytes"] <= exact
    for (_, a), (_, b) in itertools.pairwise(rows):
        assert a.numbers[f"{measure}_bytes"] <= b.numbers[f"{measure}_bytes"]
        assert has_wishes or a.numbers["time_ps"] >= b.numbers["time_ps"]


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("name", "measure", "positions"),
    [
        *((name, "live", POSITIONS) for name in QUICK),
        ("perceptron", "saved", POSITIONS),
        *(
            pytest.param(name, measure, ALL_POSITIONS, marks=pytest.mark.very_slow)
            for name in NETS
            for measure in ("live", "saved")
        ),
    ],
)
def test_positions_of_a_traced_step(name: str, measure: str, positions: tuple[float, ...]) -> None:
    model, inputs = make(name)
    step = ct.trace(model, *inputs)
    found = {k: step.plan(k, measure=measure) for k in positions}
    check_ladder(found, measure, has_wishes=name == "checkpointed")
    none = step.plan(measure=measure)
    _, smallest, everything = found[0.0].position
    if measure == "live":
        assert everything == none.numbers["live_bytes"]
        assert found[1.0].numbers["time_ps"] <= none.numbers["time_ps"]
        least = step.plan("min").numbers["live_bytes"]
        assert least <= smallest <= least + ABOVE_MIN.get(name, 0.02) * everything
    for k in positions[:3]:
        again = step.plan(f"{found[k].numbers['budget_bytes']}B", measure=measure)
        assert again.document == found[k].document


def test_positions_are_written_as_floats_or_as_0_and_1() -> None:
    model, inputs = make("perceptron")
    step = ct.trace(model, *inputs)
    assert step.plan(0).document == step.plan(0.0).document
    assert step.plan(1).document == step.plan(1.0).document
    with pytest.raises(TypeError):
        step.plan(True)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="budget="):
            ct.compile(model, budget=wrong)
    with pytest.raises(ValueError, match=r"budget='0\.4'"):
        ct.compile(model, budget="0.4")


@pytest.mark.parametrize(
    "name",
    [
        "perceptron",
        "checkpointed",
        *(pytest.param(n, marks=pytest.mark.very_slow) for n in ("lstm", "resnet", "transformer")),
    ],
)
def test_compiled_steps_keep_to_a_position(
    name: str, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    """The measured peak is within the position's bytes, and gradients have eager mode's bits."""
    model, inputs = make(name)
    plain = train_step(model, *inputs)
    plans, peaks = {}, []
    for k in (0.0, 0.5, 1.0):
        torch._dynamo.reset()
        compiled = ct.compile(copy.deepcopy(model), budget=k)
        found = train_step(compiled, *inputs)
        (plans[k],) = compiled.plans
        peaks.append(found.peak_bytes)
        assert found.peak_bytes <= plans[k].numbers["budget_bytes"], k
        assert same_bits(list(found.gradients.values()), list(plain.gradients.values()))
    check_ladder(plans, has_wishes=name == "checkpointed")
    assert peaks[0] < peaks[-1]


def test_the_core_takes_what_position_1_stands_for() -> None:
    """One search finds both ends, and the plan for the bytes between them."""
    model, inputs = make("perceptron")
    problem = ct.trace(model, *inputs).problem.check()
    wanted = cutback.budgets.parse(0.25, "live")
    assert wanted is not None
    own = problem.plan(budget=wanted)
    k, smallest, everything = own.position
    assert (k, everything) == (0.25, own.numbers["save_all_live_bytes"])
    for whole in (everything - 5000, everything + 5000, smallest, smallest - 1):
        found = problem.plan(budget=(wanted[0], whole, *wanted[2:]))
        assert found.position == (0.25, smallest, whole)
        limit = cutback.budgets.limit(0.25, smallest, whole)
        assert found.budget_bytes == limit
        same = problem.plan(budget=cutback.budgets.in_bytes(wanted, limit))
        assert same.steps == found.steps


def test_a_plan_says_first_what_the_position_came_to() -> None:
    model, inputs = make("perceptron")
    compiled = ct.compile(model, budget=0.5)
    compiled(*inputs).backward()
    (plan,) = compiled.plans
    first = str(plan).splitlines()[0]
    assert first == plan.position.describe(plan.numbers["live_bytes"])
    assert first.startswith("0.5: ") and " % of " in first and "; smallest " in first


@pytest.mark.parametrize("policy", ["nothing_saveable", "everything_saveable", "dots_saveable"])
def test_positions_under_a_policy(policy: str) -> None:
    """Positions count from the bytes of the step without the policy. If the policy makes every plan
    larger than that, all positions give its smallest plan."""
    model, inputs = make("perceptron")
    step = ct.trace(model, *inputs, policy=policy)
    check_ladder({k: step.plan(k) for k in POSITIONS}, has_wishes=True)
    whole = ct.trace(model, *inputs).plan().numbers["live_bytes"]
    _, smallest, everything = step.plan(0.5).position
    assert everything == max(whole, smallest)


def test_positions_count_what_model_and_optimizer_hold() -> None:
    """Model and optimizer add the same bytes to both ends."""
    model, inputs = make("perceptron")
    optimizer = torch.optim.AdamW(model.parameters())
    plans = {}
    for k in (0.0, 0.5, 1.0):
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=k, measure="total", optimizer=optimizer)
        compiled(*inputs).backward()
        (plans[k],) = compiled.plans
    check_ladder(plans, "total")
    static = plans[0.0].parts.static_bytes
    assert static > 0 and plans[0.0].position[1] > static


@pytest.mark.parametrize("offload", [True, "only"])
def test_offloading_is_no_slower_at_a_position(offload: bool | str) -> None:
    """The oracle is the step whose results take no memory over, because plans that offload take
    none over."""
    model, inputs = make("perceptron")
    step = ct.trace(model, *inputs)
    apart = TracedStep(separate(step.problem), step.device)
    for k in (0.3, 0.7, 1.0):
        plain, taken = apart.plan(k), step.plan(k)
        assert taken.position.everything == plain.position.everything
        assert taken.position.smallest <= plain.position.smallest
        try:
            moved = step.plan(k, offload=offload)
        # if nothing may be recomputed, the smallest plan is out of reach
        except cutback.BudgetError:
            assert offload == "only"
            continue
        assert moved.position == plain.position
        if offload is True:
            assert moved.numbers["time_ps"] <= plain.numbers["time_ps"]


def test_the_example_of_the_package() -> None:
    """Runs the lines of the package's docstring, and measures the step."""
    lines = doctest.DocTestParser().get_examples(ct.__doc__)
    assert any("budget=0.5" in line.source for line in lines)
    names: dict[str, Any] = {}
    with ct.MemoryTracker() as memory:
        for line in lines:
            exec(line.source, names)
    (plan,) = names["step"].plans
    parameters = sum(p.numel() * p.element_size() for p in names["model"].parameters())
    made = memory.peak_bytes - parameters - 8 * 2 * 64 * 4  # without the model and its input
    assert plan.position.position == 0.5 and made <= plan.numbers["budget_bytes"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 96), nn.Linear(96, 32)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Blocks with graph breaks after them, like those made by hooks of sharded layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(n))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x.square().mean()


def measured_steps(run: Any, x: Any, n: int = 3) -> list[int]:
    peaks = []
    for _ in range(n):
        with ct.MemoryTracker() as memory:
            run(x).backward()
        for parameter in run.parameters():
            parameter.grad = None
        peaks.append(int(memory.peak_bytes))
    return peaks


@pytest.mark.parametrize(
    ("blocks", "k"),
    [(2, 0.0), *(pytest.param(6, k, marks=pytest.mark.very_slow) for k in (0, 0.5))],
)
def test_graph_breaks_share_a_position(blocks: int, k: float) -> None:
    """All runs of the blocks' one graph share the position from the second step on; the resulting
    bytes are reported once."""
    torch.manual_seed(0)
    model, x = Blocks(blocks), torch.randn(64, 32)
    compiled = ct.compile(model, budget=k, on_infeasible="error")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        peaks = measured_steps(compiled, x)
    texts = [str(w.message) for w in said if "over the budget of" in str(w.message)]
    assert len(texts) <= 1
    plan = compiled.plans[-1]
    limit = plan.numbers["budget_bytes"] if plan.shared is None else plan.shared.limit
    for text in texts:
        assert f"over the budget of {k:g}: " in text and "; smallest " in text
        limit = int(text.rpartition("(")[2].split()[0])
    loss = 3 * x.nbytes  # the last lines run in eager mode: squares, and their gradients
    assert max(peaks[1:]) <= limit + loss


@pytest.mark.very_slow
def test_two_graphs_share_a_position() -> None:
    """From the second step on, the ends are those of the joint problem."""
    torch.manual_seed(0)

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Perceptron().layers[:-1], Perceptron()

        def forward(self, x: Any) -> Any:
            h = self.first(x)
            torch._dynamo.graph_break()
            return self.second(h)

    plans = {}
    for k in (0.0, 0.5):
        torch._dynamo.reset()
        compiled = ct.compile(Broken(), budget=k, on_infeasible="error")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the first step
            peaks = measured_steps(compiled, torch.randn(64, 32))
        (plans[k],) = compiled.plans
        assert max(peaks[1:]) <= plans[k].numbers["budget_bytes"]
    check_ladder(plans)


def test_calls_that_are_pending_together_share_a_position() -> None:
    """The position is never refused, even at 0, where all runs use the same schedule."""
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(64, 32)
    peaks: dict[float, int] = {}
    for k in (0.0, 0.4, 1.0):
        torch._dynamo.reset()
        compiled = ct.compile(model, budget=k, on_infeasible="error")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                with ct.MemoryTracker() as memory:
                    (compiled(x) + compiled(x + 1)).backward()
                model.zero_grad(set_to_none=True)
        peaks[k] = int(memory.peak_bytes)
        over = [str(w.message) for w in said if "pending together" in str(w.message)]
        for text in over:
            assert f"over the budget of {k:g}: " in text
            limit = int(text.rpartition("(")[2].split()[0])
            assert peaks[k] <= limit + x.nbytes + 64, k
    assert peaks[0.0] < peaks[0.4] <= peaks[1.0], peaks


def test_by_name_and_through_a_partitioner() -> None:
    model, (x,) = make("perceptron")
    step = ct.trace(model, x)
    wanted = step.plan(0.3)
    plans: list[Any] = []
    options = {"budget": 0.3, "on_plan": plans.append}
    torch.compile(model, backend="cutback", options=options)(x).backward()
    torch._dynamo.reset()
    partitioner = ct.Partitioner(budget=0.3)
    backend = aot_autograd(
        fw_compiler=lambda gm, args: make_boxed_func(gm.forward),
        partition_fn=partitioner, keep_inference_input_mutations=True,
    )  # fmt: skip
    torch.compile(model, backend=backend)(x).backward()
    (own,), (other,) = plans, partitioner.plans
    assert own.parts.reruns == "all"
    for plan, same in ((own, wanted), (other, for_any_kernels(step).plan(0.3))):
        assert plan.position == same.position
        assert plan.document["steps"] == same.document["steps"]


def for_any_kernels(step: Any) -> Any:
    """Returns a traced step for a partitioner that does not know which kernels will run: without
    late ops and memory taken over."""
    step.problem.reruns, step.problem.keep_saved = "forward", False
    step.problem.ops = [replace(op, over=()) for op in step.problem.ops]
    return step


def test_what_a_partitioner_does_where_no_plan_meets_the_budget() -> None:
    model, (x,) = make("perceptron")

    def plan(**options: Any) -> Any:
        torch._dynamo.reset()
        partitioner = ct.Partitioner(budget="0.05x", **options)
        backend = aot_autograd(
            fw_compiler=lambda gm, args: make_boxed_func(gm.forward), partition_fn=partitioner
        )
        torch.compile(model, backend=backend)(x).backward()
        return partitioner.plans[0].numbers

    step = for_any_kernels(ct.trace(model, x))
    for wish in ("min", "smallest"):
        with pytest.warns(UserWarning, match=f"on_infeasible='{wish}', the smallest plan"):
            least = plan(on_infeasible=wish)
        assert least["live_bytes"] == step.plan(wish).numbers["live_bytes"]
    with pytest.warns(UserWarning, match="on_infeasible='warn', everything is saved"):
        assert plan(on_infeasible="warn")["recomputed"] == 0
    for options in ({}, {"on_infeasible": "error"}):
        with pytest.raises(Exception, match="no plan fits 5% of") as told:
            plan(**options)
        assert isinstance(told.value.inner_exception, cutback.BudgetError)
        assert 'budget="min"' in str(told.value)
    with pytest.raises(ValueError, match="on_infeasible="):
        ct.Partitioner(on_infeasible="maybe")


def test_pytorchs_own_setting_is_a_position() -> None:
    """PyTorch's setting applies to each graph if no budget was given here."""
    model, (x,) = make("perceptron")
    step = ct.trace(model, x)
    with torch._functorch.config.patch(activation_memory_budget=0.25):
        compiled = ct.compile(model)
        compiled(x).backward()
        torch._dynamo.reset()
        nearer = ct.compile(model, budget=0.75)
        nearer(x).backward()
    for run, k in ((compiled, 0.25), (nearer, 0.75)):
        assert run.plans[0].position == step.plan(k).position
    torch._dynamo.reset()
    with (
        torch._functorch.config.patch(activation_memory_budget=1.5),
        pytest.raises(ValueError, match=r"activation_memory_budget=1\.5"),
    ):
        ct.compile(model)(x)


def test_a_file_of_plans_holds_bytes(tmp_path: Any) -> None:
    model, (x,) = make("perceptron")
    compiled = ct.compile(copy.deepcopy(model), budget=0.4)
    compiled(x).backward()
    compiled.save_plans(tmp_path / "plans.json")
    torch._dynamo.reset()
    read = ct.compile(copy.deepcopy(model), plans=tmp_path / "plans.json")
    read(x).backward()
    assert read.plans[0].document == compiled.plans[0].document
    assert read.plans[0].position is None


def test_larger_sizes_have_their_own_bytes() -> None:
    model, (x,) = make("perceptron")
    compiled = ct.compile(model, budget=0.2, dynamic=True)
    limits = []
    for rows in (64, 128):
        with ct.MemoryTracker() as memory:
            compiled(x[:rows]).backward()
        (plan,) = compiled.plans
        limits.append(plan.numbers["budget_bytes"])
        assert memory.peak_bytes <= limits[-1]
        model.zero_grad(set_to_none=True)
    assert limits[1] > limits[0]


@pytest.mark.very_slow
@pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU")
def test_inductor_keeps_to_a_position() -> None:
    model, (x,) = make("perceptron")
    compiled = ct.compile(model, budget=0.5, codegen="inductor")
    compiled(x).backward()
    (note,) = compiled.compiler_notes
    assert note.position is not None and note.limit_bytes == note.position.limit
    assert note.measured_bytes is not None and note.measured_bytes <= note.limit_bytes
    assert "budget 0.5: " in str(note)


def test_a_traced_step_searches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search finds both ends of a position and its plan."""
    model, (x,) = make("perceptron")
    step = ct.trace(model, x)
    monkeypatch.setattr(reference.Question, "ends", None)
    at = step.plan(0.3, progress=lambda seconds: False)
    assert at.position is not None
    assert at.to_json() == step.plan(f"{at.position.limit}B").to_json()
