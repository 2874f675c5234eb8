"""Tests what makes up a peak, and what updates inside, slices and packing would save."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutback
from cutback.nn import functional as F
from cutback.planner import savings
from cutback.planner.packed import masks_of
from cutback.planner.updated import gradients_of, with_updates
from cutback.problem import Op, Problem, Storage, Value

ROWS, WIDTH, WORDS = 512, 32, 700


def zeros(*shape: int) -> Any:
    return np.broadcast_to(np.float32(0), shape)


def loss(p: Any, x: Any, labels: Any) -> Any:
    h = x
    for w in p["layers"]:
        h = F.relu(h @ w)
    return F.cross_entropy(h @ p["head"], labels)


def arguments(layers: int = 2, words: int = WORDS) -> tuple[Any, ...]:
    p = {"layers": [zeros(WIDTH, WIDTH) for _ in range(layers)], "head": zeros(WIDTH, words)}
    return p, zeros(ROWS, WIDTH), np.zeros(ROWS, np.int64)


def step_of(updates: str, *args: Any) -> Any:
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-3), updates=updates)
    step.prepare(*args)
    return step


def problem_of(updates: str) -> Problem:
    return Problem.read(step_of(updates, *arguments()).executable.text("problem"))


@pytest.fixture(autouse=True)
def whole_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets searches run to their end, however busy the machine is."""
    monkeypatch.setattr(savings, "_SECONDS", 1e4)


@pytest.fixture(scope="module")
def plan() -> cutback.Plan:
    return cutback.plan(loss, *arguments(), budget="min")


def test_updates_are_those_of_a_step_that_updates_inside() -> None:
    whole, inside = with_updates(problem_of("after")), problem_of("inside")
    # the step that updates inside copies its indices first: compare by parameter
    found, wanted = (
        sorted((s.updates, s.bytes) for s in p.storages if s.updates is not None)
        for p in (whole, inside)
    )
    assert len(found) == 3
    assert found == wanted
    whole.check()


def test_gradients_whose_memory_the_forward_returns_are_not_updated_inside() -> None:
    problem = problem_of("after")
    problem.forward_outputs = [*problem.forward_outputs, problem.backward_outputs[0]]
    assert len(with_updates(problem).backward_outputs) == 1


def test_what_is_held_makes_up_the_peak(plan: cutback.Plan) -> None:
    rows = {row.what: row for row in plan.holdings}
    assert sum(row.bytes for row in plan.holdings) == max(plan.timeline())
    assert max(plan.timeline()) == plan.numbers["live_bytes"]
    assert rows["logits"].bytes == 2 * 4 * ROWS * WORDS
    assert rows["logits"].number == 2
    assert plan.holdings[0].what == "logits"


def masked(p: Any, x: Any) -> Any:
    for w in p:
        x = cutback.where(x > 0.5, F.tanh(x @ w), x)
    return (x * x).sum()


def plan_of(loss: Any, *args: Any, **options: Any) -> cutback.Plan:
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-3), **options)
    step.prepare(*args)
    found: cutback.Plan = step.plan
    return found


def test_gradients_and_masks_are_named() -> None:
    made = plan_of(masked, [zeros(64, 64)] * 4, zeros(64, 64))
    rows = {row.what: row for row in made.holdings}
    assert rows["gradients"].bytes == rows["gradients"].number * 4 * 64 * 64
    assert rows["masks"].bytes == rows["masks"].number * 64 * 64
    assert "saved" in rows
    assert len(gradients_of(made.parts)) == 4
    assert len(masks_of(made.parts)) == 4


def test_savings_are_those_of_searches(plan: cutback.Plan) -> None:
    rows = {row.options: row.bytes for row in plan.savings}
    cut = cutback.plan(cutback.with_slices(plan.parts), budget="min")
    assert rows == {"": plan.numbers["live_bytes"], "slices=True": cut.numbers["live_bytes"]}
    assert rows["slices=True"] < 0.6 * rows[""]


def test_updates_are_tried_where_gradients_matter() -> None:
    made = plan_of(masked, [zeros(64, 64)] * 3, zeros(16, 64))
    rows = {row.options: row.bytes for row in made.savings}
    assert set(rows) == {"", 'updates="inside"'}
    assert rows['updates="inside"'] < 0.8 * rows[""]
    inside = plan_of(masked, [zeros(64, 64)] * 3, zeros(16, 64), updates="inside")
    assert inside.savings == []
    assert len(gradients_of(inside.parts)) == 3


def test_both_options_are_tried_together() -> None:
    p = {"layers": [zeros(128, 128)], "head": zeros(128, 256)}
    made = plan_of(loss, p, zeros(ROWS, 128), np.zeros(ROWS, np.int64))
    rows = {row.options: row.bytes for row in made.savings}
    both = 'updates="inside" and slices=True'
    assert set(rows) == {"", 'updates="inside"', "slices=True", both}
    assert rows[both] <= rows["slices=True"] < rows[""]


def test_packing_is_tried_for_models_of_pytorch() -> None:
    problem = plan_of(masked, [zeros(8, 8)] * 2, zeros(1024, 8)).parts
    native = cutback.plan(problem)
    assert any(row.what == "masks" for row in native.holdings)
    assert "packed=True" not in {row.options for row in native.savings}
    named = [replace(op, kind=f"aten.{op.kind}") for op in problem.ops]
    made = cutback.plan(replace(problem, ops=named))
    rows = {row.options: row.bytes for row in made.savings}
    packed = cutback.with_packed(made.parts)
    least = cutback.plan(packed, budget="min").numbers["live_bytes"]
    assert rows["packed=True"] == least < rows[""]
    assert "packed=True" not in {row.options for row in cutback.plan(packed).savings}


def added(p: Any, x: Any) -> Any:
    for _ in range(4):
        x = x + F.dropout(F.relu(x + p[0]), 0.2)
    return x.sum()


def test_packing_is_what_compiled_steps_pack() -> None:
    """The estimate is the plan of a step that packs."""
    args = [zeros(48)], zeros(96, 48)
    made = plan_of(added, *args)
    rows = {row.options: row.bytes for row in made.savings}
    whole, packed = (
        plan_of(added, *args, packed=on, budget="min").numbers["live_bytes"] for on in (False, True)
    )
    assert rows["packed=True"] == packed < whole
    assert "packed=True" not in {
        row.options for row in plan_of(added, *args, packed=True, budget="min").savings
    }


def test_searches_for_savings_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches end at their limit, although whole searches take some seconds."""
    path = Path(__file__).parents[2] / "data" / "nets" / "gpt1_uneven.json.gz"
    if not path.exists():
        pytest.skip("no traced graphs")
    made = cutback.plan(path, budget=0.5, time_limit=0.01)
    monkeypatch.setattr(savings, "_SECONDS", 0.05)
    begin = time.process_time()
    assert [row.options for row in made.savings] == [
        "", 'updates="inside"', "packed=True", 'updates="inside" and packed=True'
    ]  # fmt: skip
    assert time.process_time() - begin < 1.0


def test_explanations_and_reports_say_so(plan: cutback.Plan, tmp_path: Any) -> None:
    text = plan.explain()
    assert re.search(r"MiB  logits \(\d+ %\)\n", text)
    assert re.search(r"MiB  this plan, \d+ % more time\n", text)
    assert re.search(r"iB  slices=True, \d+ % more time\n$", text)
    plan.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "parts of the peak" in page
    assert "<td>slices=True</td>" in page
    json.loads(plan.explain(as_json=True))  # is that of the core


def test_problems_may_leave_out_weights_and_results() -> None:
    shapes = ("f32[512,8]", "f32[512,64]", "f32[]")
    storages = [Storage(64, frozenset({"static"})), Storage(1 << 17), Storage(64)]
    made = [Value(k, shape) for k, shape in enumerate(shapes)]
    ops = [
        Op("x", "placeholder", outputs=[made[0]], flags=frozenset({"placeholder"})),
        Op("logits", "matmul", [0], [made[1]]),
        Op("loss", "cross_entropy", [1], [made[2]]),
        Op("check", "cross_entropy", [1], flags=frozenset({"effect"})),
    ]
    whole = Problem(ops, storages, [2], [], 4)
    assert len(cutback.with_slices(whole).ops) == 4
    found = cutback.plan(whole)
    assert found.holdings[0].what == "logits"
    assert found.savings == []


def test_an_empty_plan_holds_nothing() -> None:
    empty = cutback.plan(Problem([], [], [], [], 0))
    assert empty.holdings == []
    assert empty.savings == []
