"""Problems and plans as Python objects: what the core accepts and returns matches its JSON."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native, budgets, files
from cutback.problem import Inlining, Member, Op, Problem, Region, Storage, Value
from cutback.schedule import Schedule, Step

DATA = Path(__file__).resolve().parents[2] / "data"
TEXTS = [files.read_text(path) for path in sorted(DATA.glob("problems/*.gz"))]


def grouped() -> _native.Problem:
    """Returns a problem with insides and inlinings."""

    def loss(w: cutback.Array, x: cutback.Array) -> cutback.Array:
        h = cutback.nn.functional.layer_norm(cutback.tanh(x @ w) * 2 + 1, (16,))
        return (h * h).mean()

    step = cutback.compile(loss, groups=True)
    step(np.ones((16, 16), np.float32), np.ones((8, 16), np.float32))
    problem = step.plan.core.problem
    assert any(op.inside for op in problem.parts().ops)
    return problem


def with_everything() -> _native.Problem:
    """Returns every kind of row, and every field with a different value."""
    inside = [
        Member((0,), (), 64, 10.0, 32, "f32", 5, 8, frozenset({"fusible"})),
        Member((), (0,), 64, 2.0, 0, "bf16", None, 0, frozenset({"fusible", "reduction"})),
    ]
    ops = [
        Op("x", "input", [], [Value(0, "f32[16]")], frozenset({"placeholder", "parameter"})),
        Op("h", "tanh", [0], [Value(1, "f32[16]", 32, "prefer_save")], frozenset({"fusible"}),
           "model.py:3 (\N{SNOWMAN})", 160.0, 128, "bf16", 7, 64, 2, 1),
        Op("g", "group", [1], [Value(2, "f32[]", None, "free", 1)], location="m.py:4",
           inside=inside),
        Op("t", "tangent", [], [Value(3)], frozenset({"backward", "effect"}), time_ps=0),
        Op("d", "mul", [1, 3], [Value(4)], frozenset({"fusible", "backward"}), work="int"),
    ]  # fmt: skip
    storages = [
        Storage(64, frozenset({"static"})), Storage(64), Storage(4, frozenset({"hold_end"})),
        Storage(4), Storage(64, frozenset({"hold_forward", "hold_end"})),
    ]  # fmt: skip
    storages[4].flags = frozenset({"hold_end"})
    regions = [Region("outer"), Region("inner", 0, 1 << 20)]
    return Problem(
        ops, storages, [2], [4], 3, 128, 4096, 1e9, regions,
        [Inlining(1, 4, 160.0, 64, "bf16", 3, 8)],
    ).check()  # fmt: skip


def test_parts_of_traced_networks_are_those_of_their_json() -> None:
    for text in TEXTS:
        problem = _native.Problem.read(text)
        again = problem.parts().check()
        assert again.to_json() == problem.to_json()
        assert again.fingerprint == problem.fingerprint


@pytest.mark.parametrize("make", [grouped, with_everything])
def test_parts_keep_every_field(make) -> None:
    problem = make()
    parts, document = problem.parts(), json.loads(problem.to_json())
    assert parts.check().to_json() == problem.to_json() == parts.to_json()
    assert Problem.read(problem.to_json()) == parts
    assert [op.name for op in parts.ops] == [row.get("name", "") for row in document["ops"]]
    assert [v.storage for v in parts.values] == [
        out["storage"] for row in document["ops"] for out in row["out"]
    ]
    assert parts.makers == [i for i, op in enumerate(parts.ops) for _ in op.outputs]
    assert all(op.outputs[0] is value or value in op.outputs for op, value in parts.made())


def test_parts_can_be_copied() -> None:
    parts = with_everything().parts()
    assert pickle.loads(pickle.dumps(parts)) == parts == copy.deepcopy(parts)


def test_a_plan_says_what_its_json_says() -> None:
    for problem in (_native.Problem.read(TEXTS[0]), with_everything(), grouped()):
        for budget in (None, budgets.parse("min", "live")):
            plan = problem.plan(budget=budget)
            document = json.loads(plan.to_json())
            steps = [row if isinstance(row, int) else row[1] for row in document["steps"]]
            assert [step.op for step in plan.steps] == steps
            assert plan.backward_starts == document["backward_starts"]
            assert [list(life) for life in plan.lives] == document["lives"]
            assert [row._asdict() for row in plan.decisions] == document["decisions"]
            assert plan.numbers == document["numbers"]
            assert plan.preset == document["preset"] and plan.measure == document["measure"]
            assert plan.budget_bytes == document["budget_bytes"]
            assert plan.device == document["device"]
            assert plan.fingerprint == problem.fingerprint
            assert problem.read_plan(plan.to_json()).to_json() == plan.to_json()


def test_steps_of_groups_say_what_they_make_and_take_in() -> None:
    problem = grouped()
    plan = problem.plan(budget=budgets.parse("min", "live"))
    rows = [
        row if isinstance(row, int) else tuple(row) for row in json.loads(plan.to_json())["steps"]
    ]
    ours = [step.op if step == Step(step.op) else step for step in plan.steps]
    for row, step in zip(rows, ours, strict=True):
        if isinstance(row, int):
            assert step == row
        else:
            assert isinstance(step, Step)
            assert (step.action, step.op, list(step.outputs or range(99))[: len(row[2])]) == (
                row[0], row[1], row[2],
            )  # fmt: skip
    found = problem.evaluate((plan.steps, plan.backward_starts))
    assert found["peak_bytes"] == plan.numbers["live_bytes"]
    again = problem.read_plan(plan.to_json())
    assert again.steps == plan.steps and again.lives == plan.lives


def test_moves_go_both_ways() -> None:
    text = TEXTS[0]
    problem = _native.Problem.read(text).parts()
    problem.link_bytes_per_s = 1e10
    checked = problem.check()
    budget = budgets.with_options(budgets.parse("0.9x", "live"), True, None, False)
    plan = checked.plan(budget=budget, device="a100")
    assert {step.action for step in plan.steps} > {"run"}
    found = checked.evaluate(Schedule(plan.steps, plan.backward_starts), "a100")
    assert found["peak_bytes"] == plan.numbers["live_bytes"]
    assert found["host_bytes"] == plan.numbers["host_bytes"] > 0


def test_the_same_plan_as_the_answer_to_another_question() -> None:
    plan = _native.Problem.read(TEXTS[0]).plan()
    other = plan.asked(budgets.MEASURES.index("saved"), 123)
    assert (other.measure, other.budget_bytes) == ("saved", 123)
    assert plan.budget_bytes is None and other.steps == plan.steps
    del plan
    gc.collect()
    document = json.loads(other.to_json())
    assert document["budget_bytes"] == 123 and document["lives"] == [list(r) for r in other.lives]


CASES = [
    (lambda p: setattr(p.ops[1], "bytes", "many"), "op 1: bytes is 'many', not a count"),
    (lambda p: setattr(p.ops[1], "bytes", -1), "op 1: bytes is -1, not a count"),
    (lambda p: setattr(p.ops[1], "bytes", 1 << 70), "op 1: bytes is"),
    (lambda p: setattr(p.ops[1], "bytes", 10**5000), "op 1: bytes is a int, not a count"),
    (lambda p: setattr(p.ops[1], "bytes", "x" * 10**6), "xx..., not a count"),
    (lambda p: setattr(p.ops[1], "name", 3), "op 1: name is 3, not a str"),
    (lambda p: setattr(p.ops[1], "name", "\ud800"), "op 1: name is"),
    (lambda p: setattr(p.ops[1], "flags", {"fuzzy"}), "op 1: flags is {'fuzzy'}"),
    (lambda p: setattr(p.ops[1], "flags", 3), "op 1: flags is 3, not a set of flags"),
    (lambda p: setattr(p.ops[1], "work", "f8"), "op 1: work is 'f8', not one of its words"),
    (lambda p: setattr(p.ops[1], "inputs", ["x"]), "op 1: an input is 'x'"),
    (lambda p: setattr(p.ops[1], "inputs", [-1]), "op 1: an input is -1"),
    (lambda p: setattr(p.ops[1], "time_ps", 1.5), "op 1: time_ps is 1.5"),
    (lambda p: setattr(p.ops[1], "flops", "1"), "op 1: flops is '1', not a number"),
    (lambda p: setattr(p.ops[1].outputs[0], "storage", None), "value 1: storage is None"),
    (lambda p: setattr(p.ops[1].outputs[0], "member", 0), "value 1: member is 0"),
    (lambda p: setattr(p.ops[2].outputs[0], "member", None), "value 2: member is None"),
    (lambda p: setattr(p.ops[2].inside[0], "reads", (64,)), "member 0: reads is 64"),
    (lambda p: setattr(p.storages[0], "flags", {"parameter"}), "storage 0: flags is"),
    (lambda p: setattr(p, "align", 48), "align"),
    (lambda p: setattr(p, "forward_outputs", [99]), "99"),
    (lambda p: setattr(p.inlinings[0], "op", 99), "an inlining names op 99, but there are 5 ops"),
    (lambda p: setattr(p.ops[1].outputs[0], "storage", 99), "storage"),
]


@pytest.mark.parametrize(("change", "says"), CASES, ids=[says for _, says in CASES])
def test_a_broken_part_is_named(change, says) -> None:
    parts = with_everything().parts()
    change(parts)
    with pytest.raises(ValueError) as caught:
        parts.check()
    assert says in str(caught.value)


def test_what_is_no_problem_is_refused() -> None:
    for thing in (None, 3, {"ops": []}, object()):
        with pytest.raises(TypeError):
            _native.Problem.of(thing)  # type: ignore[arg-type]
    parts = with_everything().parts()
    for name in ("ops", "storages", "regions", "inlinings", "forward_outputs"):
        with pytest.raises(TypeError):
            dataclasses.replace(parts, **{name: 3}).check()
        with pytest.raises((TypeError, ValueError)):
            dataclasses.replace(parts, **{name: [None]}).check()


STEPS = [
    (([0], 0), "placeholder"),
    (([99], 0), "step 0: its op is 99"),
    ((["run"], 0), "step 0: its op is 'run'"),
    (([(1, "jump", None, ())], 0), "there is no action 'jump'"),
    (([(1, "run", (7,), ())], 0), "step 0: an output is 7"),
    (([(1, "run", None, (7,))], 0), "step 0: its inlined value is 7"),
    (([(1, "run", None, (0,))], 0), "no inlining of value 0 into op 1"),
    (([(1, "run")], 0), "is not (op, action, outputs, taken)"),
    (([1], 5), "backward"),
]


@pytest.mark.parametrize(("schedule", "says"), STEPS, ids=[says for _, says in STEPS])
def test_a_broken_schedule_is_refused(schedule, says) -> None:
    problem = with_everything()
    with pytest.raises(ValueError) as caught:
        problem.evaluate(schedule)
    assert says in str(caught.value)


def test_no_schedule_at_all() -> None:
    problem = with_everything()
    for schedule in (None, 3, (1, 2), ([1], None), ([1], 0, 0)):
        with pytest.raises(TypeError):
            problem.evaluate(schedule)  # type: ignore[arg-type]


def test_objects_keep_alive_what_they_show() -> None:
    def loss(w: cutback.Array) -> cutback.Array:
        return cutback.tanh(w).sum()

    step = cutback.compile(loss)
    step(np.ones(8, np.float32))
    plan = step.plan.core
    problem = plan.problem
    before = problem.to_json(), plan.to_json()
    del step
    gc.collect()
    assert (problem.to_json(), plan.to_json()) == before
    assert sys.getrefcount(problem) < 10


def test_nothing_leaks() -> None:
    text = TEXTS[0]
    _native.Problem.read(text).parts().check().plan().lives  # noqa: B018
    gc.collect()
    before = _native.memory()["live_bytes"]
    for _ in range(3):
        problem = _native.Problem.read(text).parts().check()
        plan = problem.plan().asked(1, 5)
        plan.steps, plan.lives, plan.decisions, plan.explain_json()
        del problem, plan
    with pytest.raises(ValueError):
        dataclasses.replace(Problem.read(text), align=3).check()
    gc.collect()
    assert _native.memory()["live_bytes"] == before


class Meddler:
    """A number that runs code when it is read."""

    def __init__(self, act) -> None:
        self.act = act

    def __index__(self) -> int:
        self.act()
        return 0


@pytest.mark.parametrize("grow", [True, False])
@pytest.mark.parametrize(
    "lists",
    [
        lambda p: [op.inputs for op in p.ops],
        lambda p: [op.outputs for op in p.ops],
        lambda p: [p.ops, p.storages, p.regions, p.inlinings],
        lambda p: [p.forward_outputs, p.backward_outputs],
    ],
)
def test_lists_that_change_while_they_are_read(grow, lists) -> None:
    parts = with_everything().parts()

    def act() -> None:
        for row in lists(parts):
            if grow:
                row.extend(row[:1] * 100_000)
            else:
                row.clear()

    parts.align = Meddler(act)
    with pytest.raises(ValueError):  # the alignment is 0
        parts.check()


def test_a_schedule_that_changes_while_it_is_read() -> None:
    problem = with_everything()
    steps: list = []

    def outputs():
        steps.clear()
        yield 0

    steps += [(2, "run", outputs(), ()), *[1] * 3000]
    with pytest.raises(ValueError):
        problem.evaluate((steps, 0))


def test_budgets_that_change_while_they_are_read() -> None:
    asked: list = []

    class Share:
        def __float__(self) -> float:
            asked.clear()
            return 0.5

    asked += [(2, 0, Share(), 1), *[(2, 0, 0.5, 1)] * 50]
    assert len(with_everything().plans(asked)) == 51


def test_interrupts_and_names_that_end_early() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    parts = with_everything().parts()
    parts.ops[1].bytes = Meddler(stop)
    with pytest.raises(KeyboardInterrupt):
        parts.check()
    parts = with_everything().parts()
    parts.ops[1].name = "h\0other"
    with pytest.raises(ValueError, match="without NUL"):
        parts.check()
    parts.ops[1] = "h"
    with pytest.raises(TypeError, match="a str has no"):
        parts.check()


def test_a_slow_listener_is_not_asked_at_every_turn() -> None:
    calls: list[float] = []

    def slow(seconds: float, best: object) -> None:
        calls.append(seconds)
        time.sleep(0.12)

    plan = cutback.plan(_native.Problem.read(TEXTS[1]), budget="min", progress=slow)
    assert plan.numbers["live_bytes"] and all(b - a > 0.2 for a, b in pairwise(calls))


def test_an_answer_that_cannot_be_judged() -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise KeyError("odd")

    with pytest.raises(KeyError):
        cutback.plan(_native.Problem.read(TEXTS[1]), budget="min", progress=lambda *_: Odd())
