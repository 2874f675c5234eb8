"""Groups found by the search: their plans are correct, and the programs keep them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from evaluate import check_plan
from exact_insides import optimum
from grouped_graphs import ROW, Drawn, run, with_times
from insides import SPEED

import cutback as cb
from cutback import BudgetError, budgets
from cutback.nn import functional as F

FOUND = "found"


def problem_of(step):
    return json.loads(step.text("problem"))


def check_step(drawn, step, want):
    """Checks one step in groups: both referees agree with its plan, and its program keeps to it."""
    problem, plan = json.loads(step.text("problem")), json.loads(step.text("plan"))
    check_plan(problem, plan, SPEED)
    kernels = json.loads(step.text("kernels"))
    for key in ("arena_bytes", "live_bytes"):
        assert kernels[key] <= plan["numbers"][key]
    # only plans of single ops have views
    if not any("view" in op.get("flags", ()) for op in problem["ops"]):
        steps = [t for group in kernels["groups"] for t in group["steps"]]
        assert sorted(set(steps)) == list(range(len(plan["steps"])))
        assert all(group["steps"] == sorted(group["steps"]) for group in kernels["groups"])
    for half in ("forward", "backward"):  # of the ops that these steps run
        assert step.text(half).startswith("cutback.graph")
    bits, peak = run(step)
    assert bits == want and peak == kernels["arena_bytes"]
    again = drawn.compile(groups=FOUND, plan_json=json.dumps(plan), backend="debug", device=ROW)
    bits, peak = run(again)
    assert bits == want and peak == json.loads(again.text("kernels"))["live_bytes"]
    return problem, plan, kernels


def check_graph(seed, most, exact):
    """Counts programs, those with an inside, those that inline a value, and those with merged
    kernels."""
    drawn = Drawn(seed, most)
    single = drawn.compile()
    want, _ = run(single)
    counts = [0, 0, 0, 0]
    for share in (None, 0.9, 0.7, 0.5):
        budget = None if share is None else budgets.parse(f"{share}x", "arena")
        try:
            step = drawn.compile(groups=FOUND, budget=budget, device=ROW)
        except BudgetError:
            continue
        problem, plan, kernels = check_step(drawn, step, want)
        if exact and len(problem["ops"]) < 12:
            best = optimum(with_times(problem), plan["numbers"]["live_bytes"])
            assert best <= plan["numbers"]["time_ps"], (seed, share)
        counts[0] += 1
        counts[1] += any("inside" in op for op in problem["ops"])
        counts[2] += any(isinstance(s, list) and len(s) == 4 for s in plan["steps"])
        counts[3] += len(kernels["groups"]) < len(plan["steps"])
    for preset in range(6):
        if preset != budgets.PRESETS.index("torch-compat"):
            check_step(drawn, drawn.compile(groups=FOUND, preset=preset, device=ROW), want)
    return counts


def check_graphs(seeds, most=5, exact=True):
    found = [check_graph(seed, most, exact) for seed in seeds]
    return [sum(column) for column in zip(*found, strict=True)]


def test_found_groups_are_planned_and_run():
    programs, insides, _, merged = check_graphs(range(25))
    assert programs > 60 and insides > 40 and merged > 20


@pytest.mark.very_slow
def test_larger_graphs_in_found_groups():
    programs, insides, taking, merged = check_graphs(range(101, 103), 30, exact=False)
    assert programs > 4 and insides > 4 and taking > 0 and merged > 2


@pytest.mark.very_slow
def test_more_of_the_larger_graphs_in_found_groups():
    programs, insides, taking, merged = check_graphs([100, *range(103, 112)], 30, exact=False)
    assert programs > 17 and insides > 17 and taking > 0 and merged > 13


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(4))
def test_many_graphs_in_found_groups(part):
    """Checks 1,000 small graphs and 300 larger ones."""
    programs, *_ = check_graphs(range(1000 + part, 2000, 4))
    assert programs > 300
    programs, *_ = check_graphs(range(200 + part, 500, 4), 30, exact=False)
    assert programs > 100


# ---- what users get ------------------------------------------------------------------------------


def evonorm(p):
    y = F.evonorm_s0(*p, groups=4)
    return (y * y).mean()


def evonorm_arguments():
    r = np.random.default_rng(0)
    return [r.standard_normal(shape, np.float32) for shape in ((4, 8, 8, 8), (8,), (8,), (8,))]


def evonorm_step(**options):
    p = evonorm_arguments()
    step = cb.value_and_grad(evonorm, **options)
    loss, gradients = step(p)
    return step, [np.asarray(loss).tobytes(), *(g.tobytes() for g in gradients)]


def test_a_cut_in_groups_saves_the_input_and_the_statistics():
    all_saved, want = evonorm_step(groups=True)
    cut, bits = evonorm_step(groups=True, preset="aggressive")
    assert bits == want
    assert 3 * cut.planned.saved_bytes < all_saved.planned.saved_bytes
    assert cut.planned.arena_bytes <= all_saved.planned.arena_bytes
    again, _ = evonorm_step(groups=True, preset="recompute_all")
    assert cut.planned.time_ps < again.planned.time_ps


def test_a_plan_of_single_ops_and_one_of_groups_come_back():
    step, want = evonorm_step(groups=True, budget="0.5x")
    for plan in (step.plan, step.plan.to_json(), evonorm_step(budget="0.5x")[0].plan):
        again, bits = evonorm_step(groups=True, plan=plan)
        assert bits == want and again.plan.to_json() == (
            plan if isinstance(plan, str) else plan.to_json()
        )


def test_the_smallest_in_groups_is_no_larger():
    in_groups = evonorm_step(groups=True, budget="min")[0]
    assert in_groups.planned.arena_bytes <= evonorm_step(budget="min")[0].planned.arena_bytes


def test_what_moves_to_the_host_is_planned_op_by_op():
    policy = cb.policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)

    def loss(x):
        return cb.sum(F.gelu(cb.checkpoint_name(x @ x, "h")))

    step, alone = (cb.value_and_grad(loss, policy=policy, groups=g) for g in (True, False))
    assert all(np.array_equal(a, b) for a, b in zip(step(x), alone(x), strict=True))
    assert not step.plan.in_groups and step.plan.offloaded
    assert step.plan.to_json() == alone.plan.to_json()


@pytest.mark.parametrize("measure", ["live", "total", "saved"])
def test_the_smallest_by_another_measure_is_no_larger(measure):
    in_groups = evonorm_step(groups=True, budget="min", measure=measure)[0]
    alone = evonorm_step(budget="min", measure=measure)[0]
    key = f"{measure}_bytes"
    assert getattr(in_groups.planned, key) <= getattr(alone.planned, key)


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [100, 142])
def test_groups_keep_a_budget_that_single_ops_do_not(seed):
    drawn = Drawn(seed, 30)
    want, _ = run(drawn.compile())
    least = drawn.compile(groups=FOUND, budget=budgets.parse("min", "arena"), device=ROW)
    arena = json.loads(least.text("kernels"))["arena_bytes"]
    budget = budgets.parse(arena, "arena")
    with pytest.raises(BudgetError, match="no plan fits") as refused:
        drawn.compile(budget=budget, device=ROW)
    step = drawn.compile(groups="auto", budget=budget, device=ROW)
    bits, peak = run(step)
    assert bits == want and peak <= arena and any("inside" in o for o in problem_of(step)["ops"])
    stages = {}
    again = drawn.compile(
        groups="auto", plan_json=step.text("plan"), device=ROW, dump=stages.__setitem__
    )
    assert {name: stages[name] for name in ("groups", "problem", "plan", "program")} == {
        name: again.text(name) for name in ("groups", "problem", "plan", "program")
    }
    assert again.text("plan") == step.text("plan") and run(again) == (bits, peak)
    with pytest.raises(BudgetError) as both:
        drawn.compile(groups="auto", budget=budgets.parse(arena // 4, "arena"), device=ROW)
    assert both.value.save_all_bytes == refused.value.save_all_bytes  # the share is of single ops
    assert both.value.smallest_bytes <= arena < refused.value.smallest_bytes
    drawn.compile(
        groups="auto", budget=budgets.parse(both.value.smallest_bytes, "arena"), device=ROW
    )


def test_a_refusal_names_no_more_than_min_takes():
    """The program that saves everything is smaller than that of the smallest plan."""
    drawn = Drawn(166, 30)
    least = drawn.compile(budget=budgets.parse("min", "arena"), device=ROW)
    arena = json.loads(least.text("kernels"))["arena_bytes"]
    assert arena == json.loads(drawn.compile(device=ROW).text("kernels"))["arena_bytes"]
    with pytest.raises(BudgetError) as refused:
        drawn.compile(budget=budgets.parse(arena - 64, "arena"), device=ROW)
    assert refused.value.smallest_bytes == arena


def groups_of(step):
    """Returns the operation numbers of each group with more than one operation."""
    lines = step.executable.text("groups").splitlines()
    ops = [[int(number) for number in re.findall(r"_(\d+)\(%", line)] for line in lines]
    return [group for group in ops if len(group) > 1]


def test_groups_may_be_listed():
    """Groups are listed by the numbers in operation names. Each is one kernel that contains nothing
    else."""
    step, want = evonorm_step(groups=True)
    listed = groups_of(step)
    named, bits = evonorm_step(groups={"groups": listed})
    assert bits == want and named.plan.in_groups
    assert named.planned.n_groups == len(named.plan.document["steps"])
    ends = json.loads(named.executable.text("kernels"))["groups"]
    assert {group["end"]["reason"] for group in ends} == {"plan"}
    profile = named.profile(evonorm_arguments())
    assert len(profile.kernels) == named.planned.n_groups
    again, bits = evonorm_step(groups={"groups": listed}, plan=named.plan)
    assert bits == want and again.planned == named.planned
    again, bits = evonorm_step(groups={"groups": [list(np.array(group)) for group in listed]})
    assert bits == want and again.planned == named.planned


@pytest.mark.parametrize(
    ("groups", "error", "text"),
    [
        ("auto", TypeError, "groups='auto' is neither True, False nor None, nor a dict"),
        ([[3, 4]], TypeError, "nor a dict of groups"),
        ({"inlinings": []}, ValueError, "expected the key 'groups'"),
        ({"groups": [], "more": []}, ValueError, "expected the key 'groups'"),
        ({"groups": [3]}, ValueError, "groups must be non-empty lists of ids"),
        ({"groups": [["3"]]}, ValueError, "groups: an id"),
        ({"groups": [[3.5]]}, ValueError, "groups: an id"),
        ({"groups": [{3, 4}]}, TypeError, "'set' object cannot be interpreted as an integer"),
        ({"groups": [], "inlinings": [[100000, 8]]}, ValueError, "value 100000 into op 8"),
        ({"groups": [], "inlinings": [[8, 100000]]}, ValueError, "value 8 into op 100000"),
        ({"groups": [[100000, 3]]}, ValueError, "no op 100000"),
    ],
)
def test_wrong_groups_are_refused(groups, error, text):
    with pytest.raises(error, match=text):
        evonorm_step(groups=groups)


@pytest.mark.parametrize("measure", ["arena", "live", "total"])
@pytest.mark.parametrize("budget", ["0.7x", "0.8x", "1.0x"])
def test_a_share_is_planned_op_by_op_where_a_policy_offloads(budget, measure):
    """Groups never offload: the plan is of single ops, and the share is of their bytes."""
    x = np.ones((8, 63), np.float32)
    weights = [np.full((63, 63), 0.01, np.float32)] * 4

    def loss(weights, x):
        for w in weights:
            x = F.gelu(x @ w)
        return (x * x).sum()

    policy = cb.policies.offload_dot_with_no_batch_dims
    options = {"policy": policy, "budget": budget, "measure": measure}
    found = cb.value_and_grad(loss, groups=True, **options).prepare(weights, x)
    single = cb.value_and_grad(loss, groups=False, **options).prepare(weights, x)
    assert not found.plan.in_groups and found.planned == single.planned


def test_a_plan_that_groups_refuses_says_what_it_plans():
    grouped, _ = evonorm_step(groups=True)
    single, _ = evonorm_step(groups=False)
    with pytest.raises(ValueError, match=r"it plans groups, but groups=False .* groups=True"):
        evonorm_step(groups=False, plan=grouped.plan)
    listed = {"groups": groups_of(grouped)}
    with pytest.raises(ValueError, match="it plans single ops, but groups= lists groups"):
        evonorm_step(groups=listed, plan=single.plan)
    other = cb.compile(lambda x: cb.tanh(x) + 1, argnums=None).prepare(np.zeros(7, np.float32))
    for groups in (True, False, None):  # no setting of groups makes it fit
        with pytest.raises(ValueError, match="fingerprint"):
            evonorm_step(groups=groups, plan=other.plan)


def test_groups_are_a_text():
    step = evonorm_step(groups=True)[0]
    text = step.executable.text("groups")
    for number, op in enumerate(step.plan.problem["ops"]):  # each line names an op of the problem
        if op["kind"] != "input" and "backward" not in op:
            (line,) = re.findall(rf"^op {number}[ :].*", text, re.MULTILINE)
            assert all(f"{name}(%" in line for name in op["name"].split("..")), op["name"]
    assert text.startswith("cutback.groups 1\n") and "takes in %" in text and "kernel 0" in text
    with pytest.raises(NotImplementedError, match="planned op by op"):
        evonorm_step()[0].executable.text("groups")


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", ["arena", "live"])
def test_a_share_is_of_groups_whoever_keeps_it(measure):
    """If no plan in groups meets the budget, a plan of single ops must, with the same number of
    bytes."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return rng.standard_normal(shape, np.float32) / 6

    fixed = [draw(33, 33) for _ in range(5)]
    params, x = [(draw(33, 2), draw(2, 33)) for _ in range(5)], draw(37, 33)

    def loss(params, x):
        for (a, b), w in zip(params, fixed, strict=True):
            x = cb.tanh(x @ w + (x @ a) @ b)
        return (x * x).sum()

    whole = cb.value_and_grad(loss, groups=True)
    whole(params, x)
    key = f"save_all_{measure}_bytes"
    size = json.loads(whole.executable.text("plan"))["numbers"][key]
    kept = 0
    for share in (0.5, 0.55, 0.58, 0.7):
        step = cb.value_and_grad(loss, budget=f"{share}x", measure=measure, groups=True)
        try:
            step(params, x)
        except BudgetError:
            continue
        peak = getattr(step.executable.planned, f"{measure}_bytes")
        assert peak <= share * size
        kept += 1
    assert kept > 1


# ---- frontiers -----------------------------------------------------------------------------------


def region_problem(limit):
    """Returns two layers, planned in groups. Each is a region that may save ``limit`` bytes."""

    def layer(x, w):
        return F.layer_norm(F.gelu(x @ w), (64,), w[0], w[1]) + x

    def loss(w, x):
        for _ in range(2):
            x = cb.checkpoint(layer, budget=limit)(x, w)
        return (x * x).mean()

    step = cb.value_and_grad(loss, groups=True)
    x = np.broadcast_to(np.float32(0), (64, 64))
    return step.prepare(x, x).plan.problem


def saved_in_region(plan, region):
    """Returns the bytes saved of values whose maker and forward readers are all in the region."""
    ops, outputs = plan.problem["ops"], plan.problem["forward_outputs"]
    makers = [op for op in ops for _ in op["out"]]
    forward = ops[: plan.problem["backward_starts"]]
    total = 0
    for entry in plan.saved:
        readers = [op for op in forward if entry.value in op["in"]]
        inside = all(op.get("region") == region for op in (makers[entry.value], *readers))
        total += entry.bytes if inside and entry.value not in outputs else 0
    return total


def test_a_frontier_of_groups_keeps_the_limits_of_regions():
    size = 64 * 64 * 4
    free, limited = (cb.frontier(region_problem(limit)) for limit in (10 * size, size))
    points = [set(zip(f.saved_bytes, f.time_ps, strict=True)) for f in (free, limited)]
    assert points[1] and points[1] < points[0]

    def largest(frontier, i):
        return max(saved_in_region(frontier.plan(i), region) for region in range(2))

    assert max(largest(free, i) for i in range(len(free))) > size
    assert max(largest(limited, i) for i in range(len(limited))) <= size
