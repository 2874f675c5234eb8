"""Plans under Inductor: the estimate before the first step, the measurement after it, and how
Inductor is kept from undoing a plan."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from shutil import which
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cutback.torch as ct
from cutback.torch.compiler import inductor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(which("g++") is None, reason="Inductor compiles with g++ on the CPU"),
]


def chain(x: Any, *ws: Any) -> Any:
    """Needs `a` at every layer of the backward, and all reruns read the same saved buffer."""
    a = torch.cos(torch.sin(x))
    z = x
    for w in ws:
        z = torch.tanh((z * a) @ w) + 0
    return z.sum()


def inputs() -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    ws = [torch.randn(64, 64, requires_grad=True) for _ in range(5)]
    return torch.randn(64, 64), ws


def step(call: Any) -> tuple[list[Any], Any]:
    """Returns the gradients of a step, and its tracker."""
    x, ws = inputs()
    with ct.MemoryTracker() as memory:
        loss = call(x, *ws)
        loss.backward()
        del loss
    return [w.grad for w in ws], memory


def ran_compiled(memory: Any) -> bool:
    """True if Inductor allocated buffers, and none for the results of ops that it fuses."""
    ops = {event.op for event in memory.events}
    return "inductor.buffer" in ops and ops.isdisjoint({"aten.sin.default", "aten.tanh.default"})


@pytest.mark.very_slow
def test_the_tracker_sees_inductors_buffers() -> None:
    _, eager = step(chain)
    assert not ran_compiled(eager)
    gradients, memory = step(torch.compile(chain))
    assert ran_compiled(memory)
    # at the end only the gradients are live, which are Inductor's buffers
    assert memory.live_bytes == sum(g.nbytes for g in gradients) < memory.peak_bytes


def test_the_budget_holds_in_the_first_step() -> None:
    expected, _ = step(chain)
    compiled = ct.compile(chain, budget="0.75x", codegen="inductor")
    for k in range(2):
        gradients, memory = step(compiled)
        assert ran_compiled(memory)
        torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-3)
        (note,), (plan,) = compiled.compiler_notes, compiled.plans
        assert note.limit_bytes == int(0.75 * plan.numbers["save_all_live_bytes"])
        assert note.measured_bytes == memory.peak_bytes <= note.limit_bytes, k
    assert note.problem is None
    assert note.estimated_bytes[-1] <= note.limit_bytes
    assert note.planned_bytes[-1] == plan.numbers["live_bytes"]
    # Inductor would undo the plan unless it is restrained
    assert note.lever and note.merged_runs == 0
    assert f"first step measured {memory.peak_bytes:,}" in str(note) and note.lever in str(note)


def test_outputs_count_in_the_estimate() -> None:
    """The estimate is compared with a count at each step. An output has no end; before torch 2.13,
    PyTorch's own sum took it to end at the start."""
    from torch._inductor.memory import BufferInfo

    draw = random.Random(3)
    for _ in range(100):
        spans = [(draw.randint(0, 9), draw.choice([-1, 9])) for _ in range(draw.randint(0, 12))]
        spans = [(start, end if end < 0 else draw.randint(start, end)) for start, end in spans]
        sizes = [draw.randint(0, 99) for _ in spans]
        buffers = [BufferInfo(None, n, n, *span) for n, span in zip(sizes, spans, strict=True)]
        live = [
            sum(n for n, (a, b) in zip(sizes, spans, strict=True) if a <= k and not -1 < b < k)
            for k in range(10)
        ]
        assert inductor.peak_of(buffers) == max(live)


@pytest.mark.very_slow
def test_merged_runs_are_seen_and_prevented(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    emitted: list[Any] = []
    best = inductor.best_estimate

    def keep(*args: Any) -> Any:
        emitted.append(args[:3])
        return best(*args)

    monkeypatch.setattr(inductor, "best_estimate", keep)
    monkeypatch.setattr(inductor, "MOST_PLANS", 0)
    compiled = ct.compile(chain, budget="min", codegen="inductor")
    x, ws = inputs()
    compiled(x, *ws).backward()
    assert not emitted and compiled.compiler_notes[0].limit_bytes is None  # "min" is no limit
    least = compiled.plans[0].numbers["live_bytes"]
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="more than the budget"):
        step(ct.compile(chain, budget=least, codegen="inductor"))
    for lever in inductor.LEVERS:
        with inductor.held_back(lever):
            seen.append(inductor.estimate(*emitted[0]))
    plain, apart, narrow = seen
    assert plain[1] > 0 == apart[1] == narrow[1]
    assert plain[0] > apart[0] >= narrow[0] >= least


def test_plans_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are no levers, only a lower target helps; the lowest of all attempts is used."""
    monkeypatch.setattr(inductor, "LEVERS", inductor.LEVERS[:1])
    told: list[Any] = []
    partitioner = ct.Partitioner(budget="0.8x", on_plan=told.append)
    # a cached result of the previous run would not call the partitioner
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(custom_partitioner_fn=partitioner),
    ):
        step(torch.compile(chain))
    (note,), (plan,) = partitioner.compiler_notes, partitioner.plans
    assert told == [plan] and note.measured_bytes is None
    assert 1 < len(note.planned_bytes) <= 1 + inductor.MOST_PLANS
    assert all(a > b for a, b in zip(note.planned_bytes, note.planned_bytes[1:], strict=False))
    best = note.estimated_bytes.index(min(note.estimated_bytes))
    assert plan.numbers["live_bytes"] == note.planned_bytes[best]


def test_without_an_estimate_the_first_step_is_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise AttributeError("no such thing in this version")

    # the scheduler uses it too: only the call by the estimate must fail
    monkeypatch.setattr(inductor, "_schedule", broken)
    compiled = ct.compile(chain, budget="0.9x", codegen="inductor")
    _, memory = step(compiled)
    (note,) = compiled.compiler_notes
    assert note.problem == "AttributeError: no such thing in this version"
    assert note.problem in str(note) and note.estimated_bytes == []
    assert note.measured_bytes == memory.peak_bytes and ran_compiled(memory)


def test_a_forward_without_a_backward_is_no_step() -> None:
    compiled = ct.compile(chain, budget="0.9x", codegen="inductor")
    x, ws = inputs()
    compiled(x, *ws)
    (note,) = compiled.compiler_notes
    assert note.measured_bytes is None
    _, memory = step(compiled)
    assert note.measured_bytes == memory.peak_bytes


@pytest.mark.very_slow
def test_the_figures_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of docs/torch.md, "What Inductor does to a plan", in units of 256 KiB."""
    torch.manual_seed(0)
    x, unit, emitted = torch.randn(256, 256), 1 << 18, []
    ws = [torch.randn(256, 256, requires_grad=True) for _ in range(5)]
    best = inductor.best_estimate
    monkeypatch.setattr(inductor, "best_estimate", lambda *a: emitted.append(a[:3]) or best(*a))
    smallest = ct.compile(chain, budget="min", codegen="inductor")
    smallest(x, *ws).backward()
    least = smallest.plans[0].numbers["live_bytes"]
    assert least // unit == 7
    for budget in (least, 2_359_302):
        torch._dynamo.reset()
        compiled = ct.compile(chain, budget=budget, codegen="inductor")
        with warnings.catch_warnings(), ct.MemoryTracker() as memory:
            warnings.simplefilter("ignore")
            compiled(x, *ws).backward()
        assert memory.peak_bytes == compiled.compiler_notes[0].estimated_bytes[-1] == 8 * unit + 8
    text = (Path(__file__).parents[3] / "docs" / "torch.md").read_text()
    assert str(compiled.compiler_notes[0]) in text
    seen = []
    for lever in inductor.LEVERS:
        with inductor.held_back(lever):
            peak, merged = inductor.estimate(*emitted[0])
            seen.append((peak // unit, merged))
    assert seen == [(11, 3), (9, 0), (8, 0)]


def test_a_backward_that_keeps_the_graph_after_one_that_did_not() -> None:
    """PyTorch has donated the buffers; one of its settings keeps them."""
    x, ws = inputs()

    def twice(kept: bool) -> None:
        torch._dynamo.reset()
        with torch._functorch.config.patch(donated_buffer=not kept):
            run = ct.compile(chain, budget="fastest", codegen="inductor")
            run(x, *ws).backward()
            loss = run(x, *ws)
            loss.backward(retain_graph=True)
            loss.backward()

    with pytest.raises(RuntimeError, match="donated buffer"):
        twice(kept=False)
    twice(kept=True)


def test_second_derivatives_are_pytorchs_to_refuse() -> None:
    w = torch.randn(4, requires_grad=True)
    loss = ct.compile(lambda w: (w**3).sum(), codegen="inductor")(w)
    (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


@pytest.mark.very_slow
def test_graphs_from_the_cache_have_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs from the cache were planned before they were cached."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    w, plans = torch.linspace(0, 1, 64, requires_grad=True), []
    for _ in range(2):
        torch._dynamo.reset()
        partitioner = ct.Partitioner(budget="0.8x")
        with (
            torch._inductor.config.patch(custom_partitioner_fn=partitioner, fx_graph_cache=True),
            torch._functorch.config.patch(enable_autograd_cache=True),
        ):
            torch.compile(lambda w: (w.sin().exp() * w.cos().sin().tanh()).sum())(w).backward()
        plans.append(len(partitioner.plans))
    assert plans == [1, 0]


@pytest.mark.very_slow
def test_the_tracker_does_not_see_what_the_cpp_wrapper_allocates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    seen = []
    for wrapper in (False, True):
        torch._dynamo.reset()
        with torch._inductor.config.patch(cpp_wrapper=wrapper):
            _, memory = step(torch.compile(chain))
        seen.append("inductor.buffer" in {event.op for event in memory.events})
    assert seen == [True, False]


def test_a_plan_that_saves_everything_has_no_limit_to_check() -> None:
    compiled = ct.compile(chain, budget="20KiB", codegen="inductor", on_infeasible="warn")
    with pytest.warns(UserWarning, match="everything is saved"):
        step(compiled)
    (note,), (plan,) = compiled.compiler_notes, compiled.plans
    assert note.limit_bytes is None and plan.numbers["recomputed"] == 0
