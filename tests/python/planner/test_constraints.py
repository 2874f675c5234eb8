"""Tests policies for graphs in files: constraint names, tables, and mu-TWO's selection against a
slow twin."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import policies
from cutback.constraints import BATCHED, NAMES, constrain, mu_two, packet
from cutback.planner import problems

GRAPHS = Path(__file__).parents[2] / "data" / "graphs"


def problem_of(name):
    return problems.read_problem(GRAPHS / f"{name}.json.gz").to_json()


@pytest.fixture(scope="module")
def transformer():
    return problem_of("transformer_encoder")


def words(problem, policy):
    """Returns each forward operation that computes a value, with its constraint, by name."""
    document = json.loads(constrain(problem, policy))
    found = {}
    for op in document["ops"]:
        if not {"placeholder", "backward", "view"} & set(op.get("flags", ())):
            found[op["name"]] = (op, op["out"][0].get("constraint", "free"))
    return found


@pytest.mark.parametrize("policy", NAMES)
def test_names(transformer, policy):
    for op, word in words(transformer, policy).values():
        compute = "compute" in op["flags"]
        if policy == "everything_saveable":
            assert word == "prefer_save"
        elif policy == "nothing_saveable" or not compute:
            assert word == "prefer_recompute"
        elif "no_batch" in policy:
            keep = "must_offload" if policy.startswith("offload") else "must_save"
            assert word == ("prefer_recompute" if packet(op["kind"]) in BATCHED else keep)
        else:
            assert word == "must_save"


@pytest.mark.parametrize(
    ("policy", "chosen", "others"),
    [
        ("save:aten.bmm", "must_save", "prefer_recompute"),
        ("recompute:aten.bmm.default", "must_recompute", "prefer_save"),
        ("offload:aten.bmm", "must_offload", "prefer_recompute"),
        ("names:bmm*", "must_save", "prefer_recompute"),
    ],
)
def test_lists(transformer, policy, chosen, others):
    for op, word in words(transformer, policy).values():
        assert word == (chosen if op["kind"] == "aten.bmm.default" else others)


def test_several_at_once(transformer):
    for op, word in words(transformer, "save:aten.bmm+names:exp*").values():
        kept = op["kind"] == "aten.bmm.default" or op["name"].startswith("exp")
        assert word == ("must_save" if kept else "prefer_recompute")


def small_problem():
    @cutback.checkpoint
    def block(x, w):
        return cutback.tanh(cutback.exp(x @ w))

    def loss(w, x):
        return block(cutback.sin(x @ w), w).mean()

    return json.dumps(cutback.plan(loss, np.ones((8, 8)), np.ones((8, 8))).problem)


def test_tables(tmp_path):
    problem = small_problem()
    line = next(op["at"] for op in json.loads(problem)["ops"] if op.get("kind") == "sin")
    table = tmp_path / "policy.json"
    table.write_text(
        json.dumps(
            {
                f"at:{line}": "PREFER_SAVE",
                "region:block": "must_recompute",
                "matmul": "MUST_SAVE",
                "tan?_*": "prefer_cpu_offload",
                "mean*": "free",
            }
        )
    )
    found = {op["kind"]: word for op, word in words(problem, str(table)).values()}
    assert found["sin"] == "prefer_save" and found["exp"] == "must_recompute"
    assert found["tanh"] == "must_recompute"  # the region's word wins over a pattern's
    for text, said in [
        ('{"exp": "perhaps"}', "'perhaps'"),
        ('{"exp": 3}', "'exp' is 3"),
        ("[1]", "an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ]:
        table.write_text(text)
        with pytest.raises(ValueError, match=said):
            constrain(problem, str(table))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("wisely", "policy 'wisely' is not one of"),
        ("save:", "needs at least one operation"),
        ("save:aten.mmm", "no operation 'aten.mmm'"),
        ("names:zz*", "has a name that matches 'zz"),
        ("mu-two:7 apples", "7 apples"),
        ("mu-two:min", "give a number of bytes"),
        ("mu-two:0x", "a share must be in"),
        ("save:aten.bmm+recompute:aten.bmm", "'save:aten.bmm' says must_save for bmm, but"),
    ],
)
def test_mistakes(transformer, policy, said):
    with pytest.raises(ValueError, match=said):
        constrain(transformer, policy)


def test_a_policy_and_a_budget_are_one_call(transformer):
    plan = cutback.plan(transformer, policy="save:aten.bmm", budget="0.7x", device="a100")
    assert plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]
    assert plan.numbers["bound_class"] == "trivial"  # preferences change the bound
    kinds = {entry.kind for entry in plan.recomputed}
    assert kinds and "aten.bmm.default" not in kinds


def test_preferences_yield_to_demands_also_in_a_chain():
    problem = json.loads(small_problem())
    forward = [
        op
        for op in problem["ops"]
        if not {"placeholder", "backward", "view"} & set(op.get("flags", ()))
    ]
    problem.pop("fingerprint")
    by_kind = {op["kind"]: op for op in forward}
    for op in forward:
        op["out"][0]["constraint"] = "prefer_recompute"
    by_kind["exp"]["out"][0]["constraint"] = "must_save"
    plan = cutback.plan(problem)
    decisions = {entry.kind: entry for entry in plan.entries}
    assert decisions["exp"].decision == "save" and decisions["exp"].reason == "policy"
    for op in forward:
        op["out"][0]["constraint"] = "prefer_save"
    for kind in ("sin", "exp", "tanh"):  # the whole chain
        by_kind[kind]["out"][0]["constraint"] = "must_recompute"
    decisions = {entry.kind: entry.decision for entry in cutback.plan(problem).entries}
    assert decisions["exp"] == "recompute" and "sin" in decisions


# ---- mu-TWO --------------------------------------------------------------------------------------


def op_time(op):
    """Returns an op's picoseconds on the device "cpu"."""
    if {"view", "placeholder"} & set(op.get("flags", ())):
        return 0.0
    peak = {"f64": 50e9, "int": 50e9}.get(op.get("class", "f32"), 100e9)
    return round((max(op.get("flops", 0) / peak, op.get("bytes", 0) / 20e9) + 1e-6) * 1e12)


def slow_mu_two(problem, target):
    """Makes the selection as the paper states it, with everything recalculated in each round.
    Returns the names to recompute."""
    ops = problem["ops"]
    outs = [out["storage"] for op in ops for out in op["out"]]
    root = {}
    for i, op in enumerate(ops):
        for out in op["out"]:
            root.setdefault(out["storage"], i)
    flags = [set(op.get("flags", ())) for op in ops]
    sizes = [row["bytes"] for row in problem["storages"]]
    kept = [set(row.get("flags", ())) for row in problem["storages"]]
    starts = problem["backward_starts"]
    held = {outs[v] for v in problem["forward_outputs"]}
    held |= {s for s, row in enumerate(kept) if {"hold_forward", "hold_end"} & row}
    held -= {s for s, row in enumerate(kept) if "static" in row}
    once = [
        bool(f & {"random_stateful", "effect", "collective", "mutates", "unknown"}) for f in flags
    ]
    clock, now = [], 0.0
    for op in ops:
        clock.append(now)
        now += op_time(op)
    readers = {}
    for i, op in enumerate(ops):
        if "view" not in flags[i]:
            for v in op["in"]:
                readers.setdefault(outs[v], []).append(i)
    saved, mode = {}, {}
    for s, i in root.items():
        if "static" in kept[s] or "placeholder" in flags[i] or i >= starts:
            continue
        backward = [r for r in readers.get(s, ()) if r >= starts]
        if s in held:
            mode[i] = "kept"
        elif backward:
            last = max([r for r in readers[s] if r < starts] + [i])
            idle = clock[min(backward)] - (clock[last] + op_time(ops[last]))
            size, least = saved.get(i, (0, math.inf))
            saved[i] = size + sizes[s], min(least, idle)
            mode[i] = "kept"

    def chain(i):
        seen, stack, total = {i}, [i], 0.0
        while stack:
            j = stack.pop()
            if once[j]:
                return None
            total += op_time(ops[j])
            for v in ops[j]["in"]:
                r = root[outs[v]]
                inside = (
                    r < starts and "placeholder" not in flags[r] and "static" not in kept[outs[v]]
                )
                if inside and mode.get(r) != "kept" and r not in seen:
                    seen.add(r)
                    stack.append(r)
        return total

    chosen = []
    total = sum(size for size, _ in saved.values()) + sum(
        sizes[s] for s in held if root[s] < starts
    )
    while total > target:
        ratios = {}
        for i, (size, idle) in saved.items():
            if mode[i] == "kept" and size and not once[i] and (time := chain(i)) is not None:
                ratios[i] = size * idle / max(time, 1)
        if not ratios:
            break
        best = max(ratios, key=lambda i: (ratios[i], -i))
        chosen.append(ops[best]["name"])
        total -= saved[best][0]
        mode[best] = "chosen"
    return set(chosen), total


def layers(params, x):
    for w in params:
        x = cutback.nn.functional.gelu(cutback.nn.functional.layer_norm(x) @ w)
    return (x * x).mean()


@pytest.mark.parametrize("share", [0.8, 0.5, 0.2])
def test_mu_two_is_its_slow_twin(share):
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((32, 32)) for _ in range(4)]
    whole = cutback.plan(layers, params, rng.standard_normal((64, 32)))
    target = int(share * whole.numbers["saved_bytes"])
    chosen, total = slow_mu_two(whole.problem, target)
    document = json.loads(mu_two(json.dumps(whole.problem), target))
    selected = {
        op["name"]
        for op in document["ops"]
        for out in op["out"]
        if out.get("constraint") == "prefer_recompute"
    }
    saved = {
        op["name"]
        for op in document["ops"]
        for out in op["out"]
        if out.get("constraint") == "prefer_save"
    }
    assert chosen and chosen <= selected and not chosen & saved
    plan = cutback.plan(document)
    assert plan.numbers["saved_bytes"] == total <= target
    by_policy = cutback.plan(
        layers, params, rng.standard_normal((64, 32)), policy=policies.mu_two(target)
    )
    assert by_policy.numbers["saved_bytes"] == total


def test_mu_two_on_a_traced_graph(transformer):
    whole = cutback.plan(transformer, device="a100").numbers["saved_bytes"]
    for text, limit in (("mu-two", 0.5 * whole), ("mu-two:0.3x", 0.3 * whole)):
        numbers = cutback.plan(transformer, policy=text, device="a100").numbers
        assert numbers["saved_bytes"] <= limit and numbers["recomputed"] > 0


def test_mu_two_moves_what_lies_idle_where_there_is_a_link():
    problem = json.loads(small_problem())
    problem.pop("fingerprint")
    problem["link_bytes_per_s"] = 1e9
    document = json.loads(mu_two(json.dumps(problem), "0.2x"))
    chosen = {out.get("constraint") for op in document["ops"] for out in op["out"]}
    assert chosen & {"prefer_offload", "prefer_recompute"}


def test_mu_two_needs_a_whole_graph():
    with pytest.raises(TypeError, match="whole graph"):
        cutback.compile(layers, policy=policies.mu_two())([np.ones((4, 4))], np.ones((4, 4)))


def forced_to_run_again():
    """Returns a chain of few ops that must all be recomputed. It takes more time than `min` allows
    by default, and more bytes than saving everything."""

    def op(name, ins, n_bytes, storage, *flags, constraint=None):
        out = {"storage": storage, "type": ""} | ({"constraint": constraint} if constraint else {})
        return {"name": name, "kind": "aten.sin.default", "in": ins, "out": [out]} | {
            "flags": list(flags), "flops": 1000, "bytes": n_bytes * (50 if constraint else 1)
        }  # fmt: skip

    again = "must_recompute"
    ops = [
        op("x", [], 4096, 0, "placeholder"),
        op("a", [0], 65536, 1, constraint=again),
        op("b", [1], 65536, 2, constraint=again),
        op("c", [2], 4096, 3),
        op("tangent", [], 4096, 4, "backward"),
        op("dc", [4, 3, 2], 65536, 5, "backward"),
        op("db", [5, 2, 1], 65536, 6, "backward"),
        op("da", [6, 1], 4096, 7, "backward"),
    ]
    sizes = [4096, 65536, 65536, 4096, 4096, 65536, 65536, 4096]
    return json.dumps(
        {
            "format": "cutback.problem", "version": 1, "source": "test", "backward_starts": 4,
            "ops": ops, "forward_outputs": [3], "backward_outputs": [7],
            "storages": [{"bytes": n, "flags": ["static"] * (k == 0)} for k, n in enumerate(sizes)],
        }
    )  # fmt: skip


FORCED = forced_to_run_again()


@pytest.mark.parametrize(
    ("measure", "offload"),
    [(m, o) for m in ("live", "arena", "total", "saved") for o in (False, True)][:-1],
)
def test_min_where_constraints_take_more_time_than_it_allows(measure, offload):
    """`min` keeps the constraints at the smallest size, whatever the time, unless the caller limits
    the time: then the error names the limit."""
    problem = FORCED
    options = {"measure": measure, "device": "a100", "offload": offload}
    plan = cutback.plan(problem, budget="min", **options)
    assert plan.numbers["recomputed"] >= 2
    assert plan.numbers["time_ps"] > 1.4 * plan.numbers["once_ps"] or measure == "saved"
    if measure != "saved":
        least = plan.numbers["budget_bytes"]
        assert cutback.plan(problem, budget=least, **options).numbers["time_ps"]
        with pytest.raises(cutback.BudgetError, match="at most 10% more time") as told:
            cutback.plan(problem, budget="min", max_extra=0.1, **options)
        assert (told.value.reason, told.value.max_extra) == ("time", 0.1)
        assert told.value.smallest_bytes == least and told.value.budget_bytes is None
