"""Tests the field `reruns` of problem format 3: which ops may rerun, and which may run late."""

from __future__ import annotations

import json
import random

import pytest
from both import both, refused
from evaluate import check_plan
from late import Late

import cutback
from cutback import _native
from cutback.problem import Problem


def chain(layers=3, **fields):
    """Returns a chain of products; the product for each weight gradient is read only at the end."""
    ops, storages = [], []

    def add(name, reads, flags, size=64):
        storages.append({"bytes": size, "flags": ["static"] if "placeholder" in flags else []})
        op = {"name": name, "in": reads, "flags": flags, "out": [{"storage": len(ops)}]}
        ops.append(op if "placeholder" in flags else {**op, "bytes": 1000})
        return len(ops) - 1

    weights = [add(f"w_{k}", [], ["placeholder"]) for k in range(layers)]
    h = [add("x", [], ["placeholder"])]
    for k in range(layers):
        h.append(add(f"h_{k}", [h[-1], weights[k]], ["compute"], 4096))
    starts, d, gradients = len(ops), h[-1], []
    for k in reversed(range(layers)):
        gradients.append(add(f"dw_{k}", [d, h[k]], ["backward", "compute"], 512))
        if k > 0:
            d = add(f"dh_{k}", [d, weights[k]], ["backward", "compute"], 4096)
    for value in gradients:
        storages[value]["flags"] = ["hold_end"]
    return {
        "format": "cutback.problem", "version": 3, "backward_starts": starts, "ops": ops,
        "storages": storages, "forward_outputs": [], "backward_outputs": gradients, **fields,
    }  # fmt: skip


def test_problems_keep_the_field():
    parts = Problem.read(json.dumps(chain(reruns="all")))
    assert parts.reruns == "all"
    text = json.loads(parts.to_json())
    assert text["reruns"] == "all" and Problem.read(json.dumps(text)) == parts
    forward = Problem.read(json.dumps(chain()))
    assert forward.reruns == "forward" and "reruns" not in json.loads(forward.to_json())
    assert Problem.read(json.dumps(chain(reruns="forward"))) == forward
    assert forward.check().fingerprint != parts.check().fingerprint
    old = Problem.read(json.dumps(chain(version=2)))
    assert old.check().fingerprint == forward.check().fingerprint


def test_older_versions_do_not_have_the_field():
    for version in (1, 2):
        with pytest.raises(ValueError, match='no key "reruns"'):
            _native.Problem.read(json.dumps(chain(version=version, reruns="all")))


def test_plans_of_the_narrower_class_are_read():
    forward, every = (json.dumps(chain(reruns=reruns)) for reruns in ("forward", "all"))
    plan = json.loads(cutback.plan(forward).to_json())
    read = _native.Problem.read(every).read_plan(json.dumps(plan))
    assert [step.op for step in read.steps] == plan["steps"]
    of_every = json.loads(cutback.plan(every).to_json())
    with pytest.raises(ValueError, match="made for the problem with fingerprint"):
        _native.Problem.read(forward).read_plan(json.dumps(of_every))


# ---- schedules by hand ---------------------------------------------------------------------------


def tangled(seed):
    """Returns a random joint graph: views, ops that run once, and writes into memory that others
    read."""
    rng, ops, storages = random.Random(seed), [], []

    def add(reads, flags, storage=None):
        if storage is None:
            storages.append({"bytes": 64 * rng.randint(0, 9), "flags": []})
            storage = len(storages) - 1
        op = {"name": f"op_{len(ops)}", "in": sorted(set(reads)), "flags": flags}
        ops.append({**op, "out": [{"storage": storage}]})
        return len(ops) - 1

    storages += [{"bytes": 64, "flags": ["static"]} for _ in range(3)]
    values = [add([], ["placeholder"], s) for s in range(3)]
    for _ in range(rng.randint(2, 6)):
        values.append(add(rng.sample(values[-4:], 2), ["fusible"]))
    starts, backward = len(ops), []
    backward.append(add([values[-1]], ["backward", "effect"]))
    for _ in range(rng.randint(4, 14)):
        reads, kind = [rng.choice(backward[-5:]), rng.choice(values + backward)], rng.random()
        if kind < 0.15:
            backward.append(
                add(reads[:1], ["backward", "view"], ops[reads[0]]["out"][0]["storage"])
            )
        elif kind < 0.25:
            new = add(reads[:1], ["backward", "mutates"], ops[reads[0]]["out"][0]["storage"])
            backward = [v for v in backward if ops[v]["out"] != ops[new]["out"]] + [new]
        else:
            once = ["random_stateful"] if kind < 0.35 else ["effect"] if kind < 0.4 else []
            backward.append(add(reads, ["backward", *once]))
    outputs = sorted(rng.sample(backward, min(3, len(backward))))
    for value in outputs:
        storages[ops[value]["out"][0]["storage"]]["flags"] = ["hold_end"]
    if rng.random() < 0.5:
        add([outputs[0]], ["backward", "effect"])
    for op in ops[3:]:
        op["bytes"] = 1000 * rng.randint(1, 9)
    return {
        "format": "cutback.problem", "version": 3, "backward_starts": starts, "ops": ops,
        "storages": storages, "forward_outputs": [values[-1]], "backward_outputs": outputs,
        "reruns": "all",
    }  # fmt: skip


def once_each(problem):
    """Returns every op once, in the given order, and the start of the backward."""
    steps = [i for i, op in enumerate(problem["ops"]) if "placeholder" not in op["flags"]]
    return steps, steps.index(problem["backward_starts"])


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_late_and_repeated_runs_are_judged_alike(start):
    changed = 0
    for seed in range(start, start + 40):
        problem, rng = tangled(seed), random.Random(seed)
        late, (steps, starts) = Late(problem), once_each(problem)
        delayed = late.delays(steps, starts, rng, 0.7)
        both(problem, delayed, starts)
        both(problem, late.reruns(delayed, starts, rng, 0.5), starts)
        if delayed != steps:
            changed += 1
            assert "first runs after" in refused({**problem, "reruns": "forward"}, delayed, starts)
    assert changed > 20


def test_what_may_not_be_late_is_refused():
    """The rules allow exactly the orders that both evaluators accept."""
    refusals = set()
    for seed in range(150):
        problem, rng = tangled(seed), random.Random(seed)
        steps, starts = once_each(problem)
        late, t = Late(problem), rng.randrange(starts, len(steps))
        k = rng.randint(t + 1, len(steps))
        moved = [*steps[:t], *steps[t + 1 : k], steps[t], *steps[k:]]
        if k <= late.last_place(steps, t) and (k == t + 1 or late.may_move(steps[t])):
            both(problem, moved, starts)
            continue
        said = refused(problem, moved, starts)
        refusals.add(next(word for word in REFUSALS if word in said))
    assert refusals == set(REFUSALS)


REFUSALS = (
    "so it may not be late", "which has not been made", "has written into it",
    "effects at the end",
)  # fmt: skip


def test_ops_of_the_backward_run_again_only_where_the_problem_says_so():
    problem = chain(reruns="all")
    steps, starts = once_each(problem)
    again = [*steps, starts + len(problem["ops"]) - len(steps)]
    assert both(problem, again, starts).recomputed == 1
    said = refused({**problem, "reruns": "forward"}, again, starts)
    assert 'depends on a tangent and runs again, but reruns is "forward"' in said


def test_plans_of_the_wider_class_keep_its_rules_and_are_no_larger():
    for seed in range(4, 12):
        problem = tangled(seed)
        live = {}
        for reruns in ("forward", "all"):
            document = {**problem, "reruns": reruns}
            plan = cutback.plan(json.dumps(document), budget="min", measure="live")
            check_plan(document, plan.document)
            live[reruns] = plan.numbers["live_bytes"]
        assert live["all"] <= live["forward"]


def test_with_offload_plans_are_no_slower_and_positions_are_the_same_bytes():
    late = moved = 0
    for seed in range(8):
        problem = {**tangled(seed), "link_bytes_per_s": 2e9}
        for budget in (0.0, 0.4, "0.6x"):
            alone, with_moves = (answer(problem, budget, offload) for offload in (False, True))
            if alone is None:
                continue
            assert with_moves["time_ps"] <= alone["time_ps"], (seed, budget)
            assert with_moves["lower_bound_ps"] <= with_moves["time_ps"], (seed, budget)
            assert with_moves["budget_bytes"] == alone["budget_bytes"], (seed, budget)
            narrow = answer({**problem, "reruns": "forward"}, with_moves["budget_bytes"], True)
            late += narrow is None or with_moves["time_ps"] < narrow["time_ps"]
            moved += with_moves["time_ps"] < alone["time_ps"]
    assert late >= 2 and moved >= 2, (late, moved)


def answer(problem, budget, offload):
    """Returns the numbers of a plan, checked against the problem's rules, or None if no plan
    fits."""
    try:
        plan = cutback.plan(json.dumps(problem), budget=budget, measure="live", offload=offload)
    except cutback.BudgetError:
        return None
    check_plan(problem, plan.document)
    return plan.numbers
