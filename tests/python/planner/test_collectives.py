"""Tests problem format 3: collectives that may be repeated, the rate of the network, and reserved
keys."""

from __future__ import annotations

import copy
import json
import random

import exact
import pytest
from both import both, refused
from evaluate import check_plan
from evaluate_traced import evaluate as evaluate_traced
from evaluate_traced import load as load_traced

import cutback
from cutback import _native
from cutback.problem import Problem
from cutback.schedule import bytes_of


def sharded(seed=0, layers=3, *, again=True, network=0.0, timed=False):
    """Returns layers whose weights are gathered, as in a sharded model. Each weight is a collective
    and a view that waits for it, read by the forward and the backward."""
    rng = random.Random(seed)
    ops, storages = [], []

    def add(name, reads, flags, size=None, storage=None):
        if storage is None:
            storage = len(storages)
            storages.append({"bytes": size or 64 * rng.randint(1, 32)})
        op = {"name": name, "in": sorted(set(reads)), "flags": flags, "out": [{"storage": storage}]}
        if "placeholder" not in flags and "view" not in flags:
            op |= {"bytes": 1000 * rng.randint(1, 20), "flops": 1e5 * rng.randint(1, 20)}
            if timed:
                op["time_ps"] = 10**6 * rng.randint(1, 20)
        ops.append(op)
        return len(ops) - 1

    def placeholder(name):
        storages.append({"bytes": 64, "flags": ["static"]})
        return add(name, [], ["placeholder"], storage=len(storages) - 1)

    shards = [placeholder(f"shard_{k}") for k in range(layers)]
    h, layer = placeholder("x"), []
    for k in range(layers):
        gather = add(f"gather_{k}", [shards[k]], ["collective"])
        storage = ops[gather]["out"][0]["storage"]
        wait = add(f"wait_{k}", [gather], ["view", "collective"], storage=storage)
        layer.append((h, wait))
        h = add(f"h_{k}", [h, wait], ["compute"])
    starts, d, grads = len(ops), None, []
    for k in reversed(range(layers)):
        before, wait = layer[k]
        tangent = [h] if d is None else [d]
        gradient = add(f"dw_{k}", [*tangent, before], ["backward", "compute"])
        if k > 0:
            d = add(f"dh_{k}", [*tangent, wait], ["backward", "compute"])
        scatter = add(f"scatter_{k}", [gradient], ["backward", "collective"], 64)
        storages[ops[scatter]["out"][0]["storage"]]["flags"] = ["hold_end"]
        grads.append(scatter)
    problem = {
        "format": "cutback.problem", "version": 3, "backward_starts": starts,
        "forward_outputs": [], "backward_outputs": grads, "storages": storages, "ops": ops,
    }  # fmt: skip
    if again:
        problem["collective_again"] = True
    if network:
        problem["network_bytes_per_s"] = network
    return problem


def named(problem, steps):
    return [problem["ops"][i]["name"] for i in steps]


def collectives(problem, steps):
    return [i for i in steps if "collective" in problem["ops"][i]["flags"]]


@pytest.mark.very_slow
def test_gathers_run_again_and_both_evaluators_agree():
    """The referee accepts each plan; first runs stay in order and in their phase."""
    judged = again = 0
    for seed in range(12):
        problem = sharded(seed, layers=2 + seed % 4, network=[0.0, 1e9][seed % 2])
        whole = cutback.plan(problem).numbers
        for measure in ("live", "arena", "saved"):
            for share in (1.0, 0.85, 0.7, 0.6):
                budget = int(share * whole[f"save_all_{measure}_bytes"])
                try:
                    plan = cutback.plan(problem, budget=budget, measure=measure)
                except cutback.BudgetError:
                    continue
                check_plan(problem, plan.document)
                assert bytes_of(plan.numbers, measure) <= budget
                steps, begins = plan.document["steps"], plan.document["backward_starts"]
                first = list(dict.fromkeys(collectives(problem, steps)))
                assert first == sorted(collectives(problem, range(len(problem["ops"]))))
                early = set(collectives(problem, steps[:begins]))
                assert early == set(collectives(problem, range(problem["backward_starts"])))
                again += len(collectives(problem, steps)) > len(first)
                judged += 1
    # otherwise the budgets above would not try what this test is about
    assert judged >= 80 and again >= 20, (judged, again)


def test_without_the_field_they_run_once():
    for version in (1, 2, 3):
        problem = {**sharded(3, again=False), "version": version}
        for share in (1.0, 0.8, 0.6):
            try:
                plan = cutback.plan(problem, budget=f"{share}x")
            except cutback.BudgetError:
                continue
            steps = collectives(problem, plan.document["steps"])
            assert len(steps) == len(set(steps))


def test_small_plans_are_optimal():
    """Plans are as fast as a search through all schedules that keep first runs of collectives in
    place."""
    judged = again = 0
    for seed in range(16):
        problem = sharded(seed, layers=2 + seed % 2, timed=True)
        plain = without_views(problem)
        whole = cutback.plan(plain).numbers["live_bytes"]
        for share in (0.97, 0.93, 0.88, 0.82, 0.75):
            budget = int(share * whole)
            best = exact.optimum(plain, budget)
            try:
                plan = cutback.plan(plain, budget=budget)
            except cutback.BudgetError:
                assert best is None, (seed, share, best)
                continue
            check_plan(plain, plan.document)
            assert plan.numbers["time_ps"] == best == plan.numbers["lower_bound_ps"], (seed, share)
            judged += 1
            steps = collectives(plain, plan.document["steps"])
            again += len(steps) - len(set(steps))
    assert judged >= 16 and again >= 4, (judged, again)


def without_views(problem):
    """Returns the problem without the waits, for the exact search, which does not support views."""
    waits = {i for i, op in enumerate(problem["ops"]) if "view" in op["flags"]}
    number, kept = {}, []
    for i, op in enumerate(problem["ops"]):
        number[i] = number[op["in"][0]] if i in waits else len(kept)
        if i not in waits:
            kept.append(copy.deepcopy(op))
    storages = []
    for op in kept:
        op["in"] = sorted({number[v] for v in op["in"]})
        storages.append(problem["storages"][op["out"][0]["storage"]])
        op["out"][0]["storage"] = len(storages) - 1
    ends = [number[v] for v in problem["backward_outputs"]]
    starts = number[problem["backward_starts"]]
    return {
        **problem,
        "ops": kept,
        "storages": storages,
        "backward_outputs": ends,
        "backward_starts": starts,
    }


def test_a_collective_is_never_late():
    """A first run that no forward op reads stays in the forward, and its time counts."""
    problem = sharded(1, layers=2)
    ops = problem["ops"]
    for op in ops:
        if op["name"] in ("h_0", "h_1"):  # only the backward reads the weights
            op["in"] = [v for v in op["in"] if not ops[v]["name"].startswith("wait")]
    for share in (1.0, 0.8, 0.5, "min"):
        budget = share if share == "min" else f"{share}x"
        try:
            plan = cutback.plan(problem, budget=budget)
        except cutback.BudgetError:
            continue
        document = plan.document
        check_plan(problem, document)
        early = named(problem, document["steps"][: document["backward_starts"]])
        assert [n for n in early if n[:6] == "gather"] == ["gather_0", "gather_1"]


def test_schedules_that_delay_or_swap_collectives_are_refused():
    problem = sharded(2, layers=2)
    name = {op["name"]: i for i, op in enumerate(problem["ops"])}
    steps = [i for i, op in enumerate(problem["ops"]) if "placeholder" not in op["flags"]]
    starts = sum(i < problem["backward_starts"] for i in steps)
    both(problem, steps, starts)
    again = [*steps[:starts], name["gather_0"], name["wait_0"], *steps[starts:]]
    assert both(problem, again, starts).recomputed == 2  # including the wait
    once = {key: value for key, value in problem.items() if key != "collective_again"}
    assert "may run only once" in refused(once, again, starts)
    swapped = list(steps)
    a, b = swapped.index(name["gather_0"]), swapped.index(name["wait_1"])
    part = [swapped[i] for i in range(a, b + 1)]
    gathers = [i for i in part if problem["ops"][i]["name"] in ("gather_1", "wait_1")]
    swapped[a : b + 1] = gathers + [i for i in part if i not in gathers]
    assert "first runs after" in refused(problem, swapped, starts)
    unread = copy.deepcopy(problem)
    unread["ops"][name["h_1"]]["in"] = [name["h_0"]]
    moved = [name["gather_1"], name["wait_1"]]
    late = [i for i in steps if i not in moved]
    late = [*late[: starts - 2], *moved, *late[starts - 2 :]]
    assert "first runs in the backward" in refused(unread, late, starts - 2)


def test_the_network_sets_the_time_of_a_collective():
    problem = sharded(4, layers=1)
    gather = next(op for op in problem["ops"] if op["name"] == "gather_0")
    gather |= {"bytes": 10**6, "flops": 0.0}
    base = cutback.plan(problem).numbers["time_ps"]
    slow = cutback.plan({**problem, "network_bytes_per_s": 1e8}).numbers["time_ps"]
    fast = cutback.plan({**problem, "network_bytes_per_s": 1e15}).numbers["time_ps"]
    others = sum(op.get("bytes", 0) for op in problem["ops"] if "collective" in op["flags"])
    assert fast == base, "memory bounds it"
    in_memory = int(1e6 / 20e9 * 1e12 + 0.5)
    assert slow - base >= int(1e6 / 1e8 * 1e12) - in_memory
    assert slow - base <= int(others / 1e8 * 1e12)


def test_slow_networks_gather_less():
    """Of two plans within a budget, a slow network selects the one that recomputes an activation,
    and a fast one the one that gathers again."""
    problem = sharded(0, layers=8)
    for op in problem["ops"]:
        if op["name"].startswith(("gather", "h_")):
            op |= {"bytes": 10**5, "flops": 0.0}
            problem["storages"][op["out"][0]["storage"]]["bytes"] = 1024
    counts = {}
    for rate in (1e7, 1e15):
        plan = cutback.plan({**problem, "network_bytes_per_s": rate}, budget="0.8x")
        steps = named(problem, plan.document["steps"])
        counts[rate] = sum(n.startswith("gather") for n in steps) - 8
    assert counts[1e7] == 0 < counts[1e15], counts


def test_problems_keep_the_fields():
    problem = sharded(5, network=2.5e9)
    parts = Problem.read(json.dumps(problem))
    assert (parts.reruns, parts.collective_again, parts.network_bytes_per_s) == (
        "forward", True, 2.5e9,
    )  # fmt: skip
    text = json.loads(parts.to_json())
    assert text["version"] == 3 and text["collective_again"] is True
    assert text["network_bytes_per_s"] == 2.5e9 and "reruns" not in text
    assert Problem.read(json.dumps(text)) == parts
    once = Problem.read(json.dumps({**problem, "collective_again": False}))
    assert once.check().fingerprint != parts.check().fingerprint
    slow = Problem.read(json.dumps({**problem, "network_bytes_per_s": 1.0}))
    assert slow.check().fingerprint == parts.check().fingerprint, "costs are not in it"


def test_older_versions_do_not_have_them():
    problem = sharded(5)
    for version in (1, 2):
        with pytest.raises(ValueError, match='no key "collective_again"'):
            _native.Problem.read(json.dumps({**problem, "version": version}))
    with pytest.raises(ValueError, match="reads versions 1 to 3"):
        _native.Problem.read(json.dumps({**problem, "version": 4}))


def test_reserved_fields_say_that_they_are_reserved():
    problem = sharded(6)
    with pytest.raises(ValueError, match="not one of forward, all"):
        _native.Problem.read(json.dumps({**problem, "reruns": "backward"}))
    for key in ("variants",):
        named = copy.deepcopy(problem)
        named["ops"][-1][key] = []
        _native.Problem.read(json.dumps(named))
        named["ops"][-1][key] = [0]
        with pytest.raises(NotImplementedError, match=f'"{key}" is reserved'):
            _native.Problem.read(json.dumps(named))
        with pytest.raises(ValueError, match=f'no key "{key}"'):
            _native.Problem.read(json.dumps(_as_version_2(named)))
    named = copy.deepcopy(problem)
    named["ops"][-1]["flags"].append("update")
    with pytest.raises(NotImplementedError, match='flag "update" is reserved'):
        _native.Problem.read(json.dumps(named))


def _as_version_2(problem):
    old = {key: value for key, value in problem.items() if key != "collective_again"}
    return {**old, "version": 2}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("collective_again", 1, "collective_again is 1, not True or False"),
        ("network_bytes_per_s", "fast", "network_bytes_per_s is 'fast', not a number"),
        ("network_bytes_per_s", -1.0, "network_bytes_per_s is -1; it must be finite"),
        ("network_bytes_per_s", float("inf"), "network_bytes_per_s is inf"),
        ("reruns", "backward", "reruns is 'backward', not one of its words"),
    ],
)
def test_bad_values_are_named(field, value, said):
    parts = Problem.read(json.dumps(sharded(7)))
    setattr(parts, field, value)
    with pytest.raises(ValueError, match=said):
        parts.check()


GATHER = "_c10d_functional.all_gather_into_tensor.default"


def traced(again):
    """Returns a traced graph with a gather that the forward and the backward read."""
    names = [
        ("placeholder", "shard", "p0", [], 0, 64),
        ("placeholder", "x", "p1", [], 1, 1024),
        ("call_function", "gather", GATHER, [0], 2, 8192),
        ("call_function", "h", "aten.mm.default", [1, 2], 3, 1024),
        ("call_function", "h2", "aten.mm.default", [3, 3], 4, 1024),
        ("placeholder", "tangent", "t", [], 5, 1024),
        ("call_function", "d2", "aten.mm.default", [5, 3], 6, 16384),
        ("call_function", "d1", "aten.mm.default", [6, 2], 7, 64),
    ]  # fmt: skip
    roles = {"tangent": "tangent", "shard": "primal", "x": "primal"}
    nodes = [
        {"kind": kind, "op": op, "name": name, "inputs": reads,
         **({"role": roles[name]} if name in roles else {}),
         "out": [{"shape": [size // 4], "dtype": "float32", "bytes": size, "storage": s}]}
        for kind, name, op, reads, s, size in names
    ]  # fmt: skip
    return {
        "nodes": nodes, "storage_bytes": [size for *_, size in names],
        "forward_outputs": [4], "backward_outputs": [7],
        "network_bytes_per_s": 1e9, "collective_again": again,
    }  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_traced_graphs_have_them_too(again, tmp_path):
    import gzip

    graph = traced(again)
    path = tmp_path / "graph.json.gz"
    path.write_bytes(gzip.compress(json.dumps(graph).encode()))
    plan = cutback.plan(graph, budget="smallest", device="a100")
    steps, starts = plan.document["steps"], plan.document["backward_starts"]
    assert steps.count(2) == 1 + again
    found = evaluate_traced(load_traced(path), steps, starts)
    assert found["time_ps"] == plan.numbers["time_ps"]
    assert found["peak_bytes"] == plan.numbers["live_bytes"]
    if again:
        graph["collective_again"] = False
        path.write_bytes(gzip.compress(json.dumps(graph).encode()))
        with pytest.raises(ValueError, match="is a collective and runs twice"):
            evaluate_traced(load_traced(path), steps, starts)
