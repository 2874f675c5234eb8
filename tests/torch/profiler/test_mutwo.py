"""Tests mu-TWO with measured figures: its selection, and that the plans run."""

from __future__ import annotations

import copy
import json
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiles import given_times, make, outputs, profiled

import cutback
import cutback.torch as ct
from cutback import policies
from cutback.torch import transfers
from cutback.torch.graph.records import MOVES
from cutback.torch.profiler import mutwo


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("name", "rule", "swap"),
    [
        ("gpt", "greedy", True),
        pytest.param("gpt", "greedy", False, marks=pytest.mark.very_slow),
        ("resnet", "threshold", False),
    ],
)
def test_pipeline(
    name: str,
    rule: str,
    swap: bool,
    train_step: Callable[..., Any],
    same_bits: Callable[[Any, Any], bool],
    ran: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = make(name)
    expected = train_step(copy.deepcopy(model), *inputs)
    if swap:  # swaps depend on the measured times
        measure = mutwo.profile
        monkeypatch.setattr(mutwo, "profile", lambda *a, **k: given_times(measure(*a, **k)))
    done = ct.mutwo.mu_two(
        model, *inputs, saved="0.3x" if swap else "0.5x", rule=rule, swap=swap, runs=2, link=1e9
    )
    found = train_step(done.step, *inputs)
    assert ran == {"forward": 1, "backward": 1}
    assert torch.equal(found.loss, expected.loss)
    assert same_bits(list(found.gradients.values()), list(expected.gradients.values()))
    assert same_bits(list(found.buffers.values()), list(expected.buffers.values()))
    assert done.step.plans[0].document["steps"] == done.plan.document["steps"]
    assert found.peak_bytes == done.plan.numbers["live_bytes"] < expected.peak_bytes
    assert bool(done.plan.numbers.get("out_bytes")) == swap == bool(done.selection.chosen("swap"))
    # the selection is recomputed, and nothing else that is saved otherwise
    chosen = {c.name for c in done.selection.chosen("recompute")}
    kept = {c.name for c in done.selection.chosen("save")}
    again = {row.name for row in done.profile.rerun(done.plan, runs=1).rows if row.recomputed}
    assert chosen and chosen <= again and not kept & again
    # in the rewritten backward, each of them is before its first reader
    names = {n.name for n in done.backward.graph.nodes if n.op == "call_function"}
    assert chosen <= names or name == "gpt"
    forward = {n.name for n in done.forward.graph.nodes}
    assert {row.name for row in done.profile.rows if row.phase == "forward"} - forward <= {
        row.name for row in done.profile.rows if row.view or row.kind == "copy_back"
    }


def test_threshold_standardises_once() -> None:
    profile = profiled("gpt")
    selection = ct.mutwo.select(profile, rule="threshold")
    assert len(selection.candidates) > 10
    seconds = {row.name: row.seconds for row in profile.rows}
    size: Counter[str] = Counter()
    idle: dict[str, float] = {}
    for value in profile.activations():
        size[value.name] += value.bytes
        idle[value.name] = min(value.inactive_seconds, idle.get(value.name, 1e9))
    names = [c.name for c in selection.candidates]
    ratio = [size[n] / seconds[n] for n in names]
    inactive = [idle[n] for n in names]
    for c, r, i in zip(selection.candidates, ratio, inactive, strict=True):
        z_r = (r - statistics.mean(ratio)) / statistics.pstdev(ratio)
        z_i = (i - statistics.mean(inactive)) / statistics.pstdev(inactive)
        assert c.decision == ("recompute" if z_i > z_r else "save")
        assert (c.standard_ratio, c.standard_inactive) == pytest.approx((z_r, z_i))
    # all values read by the backward, made by ops that may run twice
    once = {"random_stateful", "mutates", "effect"}
    ops = {op["name"]: op for op in profile.step.document["ops"]}
    for name in names:
        assert not once & set(ops[name]["flags"])
    assert {c.decision for c in selection.candidates} == {"save", "recompute"}
    assert "recompute: " in str(selection)


def test_greedy_goes_by_measured_figures() -> None:
    profile = profiled("gpt")
    (first,) = [r for r in profile.rows if r.name == "addmm_2"]

    def with_time(seconds: float) -> Any:
        changed = copy.copy(profile)
        changed.rows = [r._replace(seconds=seconds if r is first else 1e-6) for r in profile.rows]
        return {c.name: c.decision for c in ct.mutwo.select(changed, "0.7x").candidates}

    assert with_time(1.0)["addmm_2"] == "save"
    assert with_time(1e-9)["addmm_2"] == "recompute"
    # a bound on saved bytes is met where possible
    for share in (0.4, 0.8):
        selection = ct.mutwo.select(profile, f"{share}x")
        plan = cutback.plan(profile.problem(), policy=selection)
        n = plan.numbers
        assert n["saved_bytes"] <= share * n["save_all_saved_bytes"] * 1.01
    # the same through the policy, which knows no profile, with separate times
    direct = policies.mu_two("0.4x").constrain(profile.problem())
    told = json.loads(ct.mutwo.select(profile, "0.4x").constrain(profile.problem()))["ops"]
    assert told == json.loads(direct)["ops"]
    both = cutback.plan(profile.step.document, policy=policies.mu_two("0.4x"), profile=profile)
    assert both.document == cutback.plan(direct).document
    compiled = ct.Partitioner(policy=policies.mu_two("0.4x"), profile=profile)
    problem = copy.deepcopy(profile.step.problem)
    compiled.inform(problem)
    assert cutback.plan(problem).document == both.document


def test_swapping_needs_a_link_and_time() -> None:
    profile = given_times(profiled("gpt"))
    moving = ct.mutwo.select(profile, "0.3x", swap=True)
    assert moving.chosen("swap") and moving.chosen("recompute")
    plan = cutback.plan(profile.problem(swap=True), policy=moving)
    assert plan.numbers["out_bytes"] > 0 and plan.offloaded
    assert plan.problem["link_bytes_per_s"] == 1e9
    assert cutback.plan(profile.problem(), policy=moving).document == plan.document
    assert profile.step.plan(policy=moving).problem["link_bytes_per_s"] == 1e9
    assert not ct.mutwo.select(profile, "0.3x").chosen("swap")
    assert {c.name for c in moving.chosen("swap")} <= {e.name for e in plan.offloaded}


@pytest.mark.parametrize(("name", "saved"), [("gpt", "0.3x"), ("resnet", "0.2x"), ("unet", "0.3x")])
def test_plans_that_swap_run(
    name: str,
    saved: str,
    train_step: Callable[..., Any],
    same_bits: Callable[[Any, Any], bool],
    ran: Counter[str],
) -> None:
    model, inputs = make(name)
    expected = train_step(copy.deepcopy(model), *inputs)
    profile = given_times(profiled(name))
    moving = ct.mutwo.select(profile, saved, swap=True)
    plan = cutback.plan(profile.problem(swap=True), policy=moving)
    again = profile.rerun(plan, runs=1, warmup=0)
    moved = [row for row in again.rows if row.kind in MOVES.values()]
    assert [row.kind for row in moved] == [
        MOVES[step[0]] for step in plan.document["steps"] if not isinstance(step, int)
    ]
    assert again.timeline() == plan.timeline() and again.peak_bytes == plan.numbers["live_bytes"]
    names = {row.name for row in moved}
    assert names and names <= {e.name for e in plan.offloaded}
    assert all(row.seconds > 0 for row in moved if row.kind != "swap_wait")
    assert sum(row.bytes for row in moved) == plan.numbers["in_bytes"]
    assert set(again.times()) <= set(profile.times())
    assert same_bits(outputs(profile, plan), outputs(profile, cutback.plan(profile.problem())))
    targets = [[n.target for n in gm.graph.nodes] for gm in profile.rewrite(plan)]
    assert targets[0].count(transfers.leave) == targets[1].count(transfers.arrive) >= len(names)
    # the compiled step itself
    step = ct.compile(model, policy=moving, profile=profile, dynamic=False)
    found = train_step(step, *inputs)
    assert ran == {"forward": 1, "backward": 1}
    assert step.plans[0].document == plan.document
    assert found.peak_bytes == plan.numbers["live_bytes"]
    assert torch.equal(found.loss, expected.loss)
    assert same_bits(list(found.gradients.values()), list(expected.gradients.values()))
    assert same_bits(list(found.buffers.values()), list(expected.buffers.values()))


@pytest.mark.parametrize("offload", [True, "only"])
def test_moves_that_wait_and_parts_of_tuples(
    offload: Any, same_bits: Callable[[Any, Any], bool]
) -> None:
    profile = given_times(profiled("gpt"))
    problem = {**json.loads(profile.problem(swap=True)), "link_bytes_per_s": 1e8}
    plan = cutback.plan(problem, budget="0.6x", offload=offload)
    positions = profile.captured.graph.positions
    moves = [step for step in plan.document["steps"] if not isinstance(step, int)]
    assert any(positions[op] != [None] for _, op in moves)
    assert offload is True or any(action == "wait" for action, _ in moves)
    again = profile.rerun(plan, runs=1, warmup=0)
    assert again.timeline() == plan.timeline()
    assert same_bits(outputs(profile, plan), outputs(profile, profile.step.plan()))
