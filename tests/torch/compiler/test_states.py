"""Walks every transition of a compiled model's state table by real calls."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import Routed
from torch import nn

import cutback
import cutback.torch as ct
from cutback.torch.compiler import actions
from cutback.torch.compiler.actions import Occasion
from cutback.torch.compiler.several import ModelPartitioner
from cutback.torch.compiler.states import TABLE, Event, State, TransitionError, transition

pytestmark = pytest.mark.torch

S, E = State, Event
WIDTH = 8


def row(layers: int = 1) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


class Model(nn.Module):
    """One graph or several: ``breaks`` says where the graph ends and whether another follows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = row(), row(), row()

    def forward(self, x: Any, breaks: str = "") -> Any:
        x = self.second(self.first(x).sigmoid()).square()
        if breaks == "end":  # no trainable part follows, but PyTorch cannot know that
            torch._dynamo.graph_break()
            return x
        if breaks in ("middle", "two"):
            torch._dynamo.graph_break()
            x = self.third(x)
        if breaks == "two":
            torch._dynamo.graph_break()
            x = self.first(x).tanh()
        return x


class Twice(nn.Module):
    """A part with a break inside, so its graph runs twice per call, with two sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = row()

    def part(self, x: Any) -> Any:
        x = self.layers(x)
        torch._dynamo.graph_break()
        return x * x.sigmoid()

    def forward(self, x: Any, y: Any) -> Any:
        return self.part(x).sum() + self.part(y).sum()


def data(rows: int = 64) -> Any:
    return torch.ones(rows, WIDTH)


def peak_of(*inputs: Any) -> int:
    """Returns the peak of an eager step of the model."""
    model = Model()
    with ct.MemoryTracker() as memory:
        model(*inputs).sum().backward()
    return int(memory.peak_bytes)


BUDGET = 1.05  # times the peak of one eager call; two pending calls exceed it


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[State, Event]]]:
    """Records the transitions that models make, in order."""
    rows: list[tuple[State, Event]] = []
    fire = ModelPartitioner._fire

    def recorded(self: ModelPartitioner, event: Event, *occasion: Any) -> Any:
        before = self.state
        result = fire(self, event, *occasion)
        assert self.state is TABLE[before, event][0]
        rows.append((before, event))
        return result

    monkeypatch.setattr(ModelPartitioner, "_fire", recorded)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield rows


def partitioner_of(run: Any) -> ModelPartitioner:
    (runner,) = run.dynamo_ctx.runners
    found: ModelPartitioner = runner.partitioner
    return found


def step(run: Any, *inputs: Any) -> None:
    run(*inputs).sum().backward()


def refused(run: Any, *inputs: Any) -> None:
    with pytest.raises(cutback.BudgetError):
        step(run, *inputs)


def compiled(budget: Any = None, **options: Any) -> Any:
    return ct.compile(Model(), budget=budget, **{"dynamic": False, **options})


# ---- the walks: each is a scenario, and the rows of the table that it is there for --------------

Rows = set[tuple[State, Event]]
WALKS: list[tuple[Callable[..., None], Rows]] = []


def walk(*rows: tuple[State, Event]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(scenario: Callable[..., None]) -> Callable[..., None]:
        WALKS.append((scenario, set(rows)))
        return scenario

    return add


@walk(
    (S.SEPARATE, E.GRAPH), (S.SEPARATE, E.CODE_GONE), (S.GIVEN, E.GRAPH), (S.GIVEN, E.CODE_GONE)
)  # fmt: skip
def without_a_shared_budget(path: Path) -> None:
    run = compiled()
    step(run, data())
    torch._dynamo.reset()
    step(run, data())
    assert len(run.plans) == 1
    run.save_plans(path)
    torch._dynamo.reset()
    run = ct.compile(Model(), plans=path, dynamic=False)
    step(run, data())
    torch._dynamo.reset()
    step(run, data())
    assert len(run.plans) == 1


@walk((S.NEW, E.GRAPH_FITS), (S.SINGLE, E.GRAPH_FITS), (S.SINGLE, E.CODE_GONE),
      (S.NEW, E.GRAPH_OVER), (S.SINGLE, E.GRAPH_OVER))  # fmt: skip
def one_graph(path: Path) -> None:
    run = compiled("0.9x")
    step(run, data())
    step(run, data(32))
    torch._dynamo.reset()
    step(run, data())
    assert len(run.plans) == 1
    run = compiled("1KiB", on_infeasible="min")
    step(run, data())
    step(run, data(96))


@walk((S.NEW, E.GRAPH_NEW), (S.GRAPHS_DUE, E.REPLAN_GRAPHS))
def one_graph_that_others_may_follow(path: Path) -> None:
    run = compiled("1KiB")
    step(run, data(), "end")
    for _ in range(2):
        refused(run, data(), "end")
    assert partitioner_of(run).state is S.GRAPHS_DUE
    run = compiled("1KiB", on_infeasible="warn")
    step(run, data(), "end")
    step(run, data(), "end")
    assert [plan.numbers["recomputed"] for plan in run.plans] == [0]
    assert partitioner_of(run).state is S.JOINED


@walk((S.NEW, E.GRAPH_PUT_OFF), (S.UNMET, E.GRAPH_PUT_OFF), (S.UNMET, E.CODE_GONE),
      (S.UNMET, E.GRAPH_NEW), (S.UNMET, E.STEP_KEEPS), (S.UNMET, E.STEP_SAVES),
      (S.UNMET, E.CALLS_OVER), (S.UNMET, E.GRAPH_FITS))  # fmt: skip
def one_graph_that_cannot_meet_its_share_alone(path: Path) -> None:
    run = compiled("0.01x")
    for _ in range(2):
        refused(run, data())
    refused(run, data(32))
    torch._dynamo.reset()
    refused(run, data())
    assert partitioner_of(run).state is S.UNMET
    run(data(), "middle")
    run = compiled("0.01x", on_infeasible="min")
    step(run, data())
    assert partitioner_of(run).state is S.SINGLE
    run = compiled("0.01x", on_infeasible="warn")
    step(run, data())
    step(run, data())
    assert [plan.numbers["recomputed"] for plan in run.plans] == [0]
    run = compiled("0.01x")
    (run(data()) + run(data())).sum().backward()
    step(run, data())
    assert partitioner_of(run).state is S.SHARED
    run = compiled("0.75x")
    refused(run, data(1))
    step(run, data())
    assert partitioner_of(run).state is S.SINGLE


@walk((S.SINGLE, E.GRAPH_NEW), (S.GRAPHS_DUE, E.GRAPH_NEW), (S.GRAPHS_DUE, E.REPLAN_GRAPHS),
      (S.JOINED, E.GRAPH_NEW), (S.JOINED, E.CODE_GONE))  # fmt: skip
def several_graphs(path: Path) -> None:
    run = compiled("0.9x")
    step(run, data(), "two")
    step(run, data(), "two")
    torch._dynamo.reset()
    step(run, data(), "two")
    step(run, data(32), "two")
    run = compiled("0.9x")
    step(run, data())
    step(run, data(), "middle")


@walk((S.GRAPHS_DUE, E.CODE_GONE), (S.GRAPHS_DUE, E.CALLS_OVER), (S.CALLS_DUE, E.REPLAN_CALLS),
      (S.JOINED, E.CALLS_OVER))  # fmt: skip
def several_graphs_in_pending_calls(path: Path) -> None:
    budget = int(BUDGET * peak_of(data(), "middle"))
    run = compiled(budget)
    one = run(data(), "middle")
    torch._dynamo.reset()
    (one + run(data(), "middle")).sum().backward()
    run(data(), "middle")
    run = compiled(budget)
    step(run, data(), "middle")
    (run(data(), "middle") + run(data(), "middle")).sum().backward()


@walk((S.SINGLE, E.CALLS_OVER), (S.CALLS_DUE, E.CALLS_OVER), (S.CALLS_DUE, E.GRAPH_FITS),
      (S.CALLS_DUE, E.GRAPH_OVER), (S.CALLS_DUE, E.CODE_GONE))  # fmt: skip
def calls_within_a_step_that_is_over(path: Path) -> None:
    run = compiled(int(BUDGET * peak_of(data())))
    calls = [run(data()) for _ in range(3)]
    calls.pop().sum().backward()
    assert partitioner_of(run).state is S.CALLS_DUE
    run(data(32))
    run(data(512))
    run(data(512), "end")
    torch._dynamo.reset()
    calls += [run(data()) for _ in range(2)]
    calls.pop().sum().backward()
    assert partitioner_of(run).state is S.CALLS_DUE


@walk((S.CALLS_DUE, E.REPLAN_CALLS), (S.SHARED, E.CODE_GONE), (S.SHARED, E.CALLS_OVER),
      (S.CALLS_DUE, E.GRAPH_NEW), (S.SHARED, E.GRAPH_NEW), (S.GRAPHS_DUE, E.REPLAN_CALLS),
      (S.SHARED, E.GRAPH_LATE), (S.GIVEN_UP, E.GRAPH_LATE), (S.GIVEN_UP, E.CODE_GONE))  # fmt: skip
def calls_that_share(path: Path) -> None:
    run = compiled(int(1.6 * peak_of(data())))

    def together(calls: int) -> list[Any]:
        results = [run(data()) for _ in range(calls)]
        results.pop().sum().backward()
        return results

    together(2)
    gc.collect()
    torch._dynamo.reset()
    step(run, data())  # this plans for two calls
    torch._dynamo.reset()
    step(run, data())
    rest = together(3)
    run(data(16))  # during the step
    del rest
    step(run, data())  # this plans for three calls
    step(run, data(24))
    step(run, data())  # this plans for another graph
    partitioner = partitioner_of(run)
    assert partitioner.state is S.SHARED and partitioner.graphs.rounds == 3
    partitioner.graphs.rounds = actions.MOST_ROUNDS
    step(run, data(40))
    step(run, data(48))
    torch._dynamo.reset()
    step(run, data(48))
    assert partitioner.state is S.GIVEN_UP


@walk((S.JOINED, E.GRAPH_LATE), (S.GIVEN_UP, E.SIZE_OUTGROWN), (S.SINGLE, E.SIZE_OUTGROWN),
      (S.JOINED, E.SIZE_OUTGROWN), (S.UNMET, E.SIZE_OUTGROWN))  # fmt: skip
def sizes_that_grow(path: Path) -> None:
    run = compiled("0.95x", dynamic=True)
    step(run, data(16))
    step(run, data(32))
    step(run, data(32), "middle")
    step(run, data(32), "middle")
    step(run, data(48), "middle")
    step(run, data(48), "middle")
    partitioner = partitioner_of(run)
    assert partitioner.state is S.JOINED
    partitioner.graphs.rounds = actions.MOST_ROUNDS
    step(run, data(48), "two")
    step(run, data(64), "two")
    run = compiled("0.01x", dynamic=True)
    refused(run, data(16))
    refused(run, data(32))


@walk((S.GRAPHS_DUE, E.SIZE_OUTGROWN), (S.CALLS_DUE, E.SIZE_OUTGROWN),
      (S.SHARED, E.SIZE_OUTGROWN))  # fmt: skip
def sizes_that_grow_within_a_call(path: Path) -> None:
    run = ct.compile(Twice(), budget="5KiB", dynamic=True, on_infeasible="min")
    run(data(32), data(64))  # without a backward
    gc.collect()
    step(run, data(32), data(80))
    assert partitioner_of(run).state is S.CALLS_DUE
    step(run, data(80), data(80))
    step(run, data(80), data(80))
    assert partitioner_of(run).state is S.SHARED
    step(run, data(256), data(256))


@walk((S.JOINED, E.PATH_OVER), (S.SHARED, E.PATH_OVER))
def paths_through_known_graphs(path: Path) -> None:
    budget = 22_000  # each of the first paths meets it; "03" does not with their plans
    run = ct.compile(Routed(WIDTH), budget=budget, dynamic=False)
    for parts in ("01", "23", "03"):
        step(run, data(), parts)
    assert partitioner_of(run).state is S.GRAPHS_DUE
    step(run, data(), "03")
    run = ct.compile(Routed(WIDTH), budget=budget, dynamic=False)
    (run(data(), "12") + run(data(), "12")).backward()
    for parts in ("0", "3", "03"):
        step(run, data(), parts)
    assert partitioner_of(run).state is S.GRAPHS_DUE
    step(run, data(), "03")
    assert partitioner_of(run).state is S.SHARED


@walk((S.SINGLE, E.SCRATCH_OVER), (S.JOINED, E.SCRATCH_OVER), (S.JOINED, E.GRAPH_FITS),
      (S.JOINED, E.GRAPH_OVER))  # fmt: skip
def scratch_that_is_counted(path: Path) -> None:
    takes = [0]  # bytes besides the results

    @torch.library.custom_op("cutback_states::rough", mutates_args=())
    def rough(x: torch.Tensor) -> torch.Tensor:
        torch.empty(takes[0], dtype=torch.uint8)
        return x * 2

    rough.register_fake(lambda x: torch.empty_like(x))
    rough.register_autograd(lambda ctx, g: g * 2)

    class Rough(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            return rough((x * self.weight).sin().exp()).cos().exp().sum()

    run, x = ct.compile(Rough(), budget="4MiB", dynamic=False), torch.randn(1 << 14, WIDTH)
    takes[0] = 9 << 19
    step(run, x)
    step(run, x)
    assert partitioner_of(run).state is S.GRAPHS_DUE
    takes[0] = 6 << 20
    step(run, x)
    assert partitioner_of(run).state is S.JOINED
    step(run, x)
    assert partitioner_of(run).state is S.GRAPHS_DUE
    takes[0] = 0
    step(run, x)
    for rows in (1 << 13, 1 << 18):  # shapes whose graphs are steps of their own
        step(run, torch.randn(rows, WIDTH))
        assert partitioner_of(run).state is S.JOINED
    assert len(run.plans) == 3


SLOW = (  # many graphs, symbolic shapes
    "paths_through_known_graphs", "sizes_that_grow", "sizes_that_grow_within_a_call",
    "several_graphs", "one_graph_that_cannot_meet_its_share_alone", "calls_that_share",
    "several_graphs_in_pending_calls", "calls_within_a_step_that_is_over",
    "one_graph_that_others_may_follow",
)  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(k, id=f.__name__, marks=[pytest.mark.very_slow] * (f.__name__ in SLOW))
        for k, (f, _) in enumerate(WALKS)
    ],
)
def test_walk(number: int, walked: list[tuple[State, Event]], tmp_path: Path) -> None:
    scenario, rows = WALKS[number]
    scenario(tmp_path / "plans.json")
    assert rows <= set(walked), sorted(str(row) for row in rows - set(walked))


def test_every_transition_is_walked() -> None:
    assert set().union(*(rows for _, rows in WALKS)) == set(TABLE)


# ---- the table ----------------------------------------------------------------------------------


def test_the_table_has_no_unreachable_state() -> None:
    found = {S.SEPARATE, S.GIVEN, S.NEW}  # the initial states of a model
    while more := {to for (at, _), (to, _) in TABLE.items() if at in found} - found:
        found |= more
    assert found == set(State)
    assert {event for _, event in TABLE} == set(Event)
    assert {action for _, action in TABLE.values()} == set(actions.Action) == set(actions._ACTIONS)


def test_an_event_that_cannot_occur_is_an_error() -> None:
    with pytest.raises(TransitionError, match="'replan graphs' in state 'new'"):
        transition(S.NEW, E.REPLAN_GRAPHS)


def test_objects_have_few_fields() -> None:
    run = compiled("0.9x")
    partitioner = ModelPartitioner("0.9x")
    parts = [partitioner, *vars(partitioner).values(), Occasion()]
    counts = {type(part).__name__: len(vars(part)) for part in parts if hasattr(part, "__dict__")}
    del counts["Options"]  # one attribute per argument
    assert max(counts.values()) <= 12, counts
    del run


# ---- errors in mid-call change nothing ----------------------------------------------------------


def test_a_refused_plan_over_graphs_leaves_the_plans_in_force() -> None:
    run = compiled("4KiB", on_infeasible="error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        step(run, data(), "middle")
    before = run.plans
    for _ in range(2):
        refused(run, data(), "middle")
        assert len(before) == 2 and all(a is b for a, b in zip(run.plans, before, strict=True))
        assert partitioner_of(run).state is S.GRAPHS_DUE


def test_a_graph_that_was_refused_is_in_no_later_plan() -> None:
    """One path of a function exceeds the budget; the other one starts with another graph."""
    layers = row(4)

    def f(x: Any, large: bool) -> Any:
        if large:
            return layers(x).sum()
        torch._dynamo.graph_break()
        return (x * x).tanh().sum()

    x = data(64).requires_grad_()
    run = ct.compile(f, budget="6KiB", dynamic=False)
    with pytest.raises(cutback.BudgetError):
        run(x, True)
    for _ in range(3):
        run(x, False).backward()
    assert [plan.numbers["recomputed"] for plan in run.plans] == [0]


@pytest.mark.very_slow
def test_larger_sizes_than_a_plan_over_graphs_was_made_for() -> None:
    """Larger sizes must not run under the plan for smaller ones, over the budget and without a
    warning."""
    run = compiled(int(2 * peak_of(data(), "middle")), dynamic=True)
    step(run, data(), "middle")
    step(run, data(), "middle")
    with pytest.warns(UserWarning, match="together they hold"):
        step(run, data(1024), "middle")
    with pytest.warns(UserWarning, match="no plan fits .*the smallest plan is used"):
        step(run, data(1024), "middle")


def test_a_copy_starts_from_nothing() -> None:
    run = compiled("0.9x")
    step(run, data())
    partitioner = partitioner_of(run)
    copy = pickle.loads(pickle.dumps(partitioner))
    assert copy.state is S.NEW and copy.plans == [] and copy.options == partitioner.options
    assert copy.uuid() == partitioner.uuid()
