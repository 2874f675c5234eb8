"""Tests explanations of plans (decisions, the effect of the other choice, gap, floor) and the
differences between two plans."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest
from evaluate import evaluate  # tests/reference

import cutback
from cutback import cli, report

GRAPHS = Path(__file__).parents[2] / "data" / "graphs"
SMALL = ("evonorm_s0", "transformer_encoder", "unet")


def path_of(name):
    return GRAPHS / f"{name}.json.gz"


def plan_of(name, **options):
    return cutback.plan(path_of(name), device="a100", **options)


@pytest.fixture(scope="module")
def plan():
    return plan_of("transformer_encoder", budget="0.5x")


# ---- the other choice ----------------------------------------------------------------------------


def without(problem, document, op):
    """Returns the schedule in which ``op`` runs only in the forward, without useless runs. Slow:
    drops steps whose outputs are never read until nothing changes."""
    steps, starts = document["steps"], document["backward_starts"]
    first = steps.index(op)
    kept = [t for t, i in enumerate(steps) if i != op or t == first]
    ops = problem["ops"]
    maker = [i for i, one in enumerate(ops) for _ in one["out"]]
    held = {maker[v] for v in problem["forward_outputs"] + problem["backward_outputs"]}
    pinned = {"random_stateful", "effect", "collective", "mutates"}
    while True:
        latest, read = {}, set()
        for t in kept:
            read |= {latest[maker[v]] for v in ops[steps[t]]["in"] if maker[v] in latest}
            latest[steps[t]] = t
        read |= {latest[i] for i in held if i in latest}
        useful = [t for t in kept if t in read or pinned & set(ops[steps[t]].get("flags", ()))]
        if useful == kept:
            return [steps[t] for t in kept], sum(t < starts for t in kept)
        kept = useful


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("evonorm_s0", {"preset": "conservative"}),
        ("transformer_encoder", {"preset": "recompute_all"}),
        ("transformer_encoder", {"budget": "0.5x"}),
        pytest.param("unet", {"budget": "0.6x"}, marks=pytest.mark.very_slow),
    ],
)
def test_saving_what_is_recomputed(name, options):
    plan = plan_of(name, **options)
    problem, numbers = plan.problem, plan.numbers
    rows = [row for row in plan.explanation["values"] if row["decision"] == "recompute"]
    forward = set(plan.document["steps"][: plan.document["backward_starts"]])
    tried = [row for row in rows if row["otherwise"] and row["op"] in forward]
    assert tried
    for row in tried[:: max(1, len(tried) // 12)]:
        steps, starts = without(problem, plan.document, row["op"])
        other = evaluate(problem, steps, starts, "a100")
        assert row["otherwise"]["decision"] == "save"
        assert other.saved_bytes - numbers["saved_bytes"] == row["otherwise"]["saved_bytes"]
        change = other.seconds * 1e12 - numbers["time_ps"]
        assert change == pytest.approx(row["otherwise"]["time_ps"], abs=len(steps))


def test_recomputing_what_is_saved():
    plan = plan_of("evonorm_s0")  # saves everything
    rows = [row for row in plan.explanation["values"] if row["otherwise"]]
    assert rows and {row["decision"] for row in rows} == {"save"}
    for row in rows:
        demand = {row["name"]: "must_recompute"}
        problem = json.loads(json.dumps(plan.problem))
        problem["ops"][row["op"]]["out"][0]["constraint"] = demand[row["name"]]
        other = cutback.plan(problem, device="a100").numbers
        assert row["otherwise"]["time_ps"] >= other["time_ps"] - plan.numbers["time_ps"] > 0
        assert row["otherwise"]["saved_bytes"] <= 0


def test_every_plan_of_the_planner_can_be_tried():
    for name in SMALL:
        for options in ({"preset": "recompute_all"}, {"budget": "0.6x"}):
            try:
                rows = plan_of(name, **options).explanation["values"]
            except cutback.BudgetError:
                continue
            free = [row for row in rows if row["reason"] in ("cut", "cheap", "peak", "preset")]
            assert free and all(row["otherwise"] for row in free), (name, options)


# ---- what is said --------------------------------------------------------------------------------


def test_lines(plan):
    problem = plan.problem
    explanation = plan.explanation
    live = plan.timeline()
    assert explanation["format"] == "cutback.explanation"
    assert explanation["numbers"] == plan.document["numbers"]
    assert explanation["peak"]["bytes"] == max(live) == live[explanation["peak"]["step"]]
    first = list(accumulate((len(op["out"]) for op in problem["ops"]), initial=0))
    entries = {entry.value: entry for entry in plan.entries}
    steps = plan.document["steps"]
    alive = {
        row[0] for row in plan.document["lives"] if row[1] <= explanation["peak"]["step"] <= row[2]
    }
    sizes = [row["bytes"] for row in explanation["values"]]
    assert sizes == sorted(sizes, reverse=True)
    for row in explanation["values"]:
        op = problem["ops"][row["op"]]
        assert op["out"][0]["storage"] <= row["storage"]
        assert any(out["storage"] == row["storage"] for out in op["out"])
        assert (row["name"], row["kind"]) == (op["name"], op["kind"])
        entry = entries[row["value"]]
        assert (entry.decision, entry.reason, entry.bytes) == (
            row["decision"], row["reason"], row["bytes"],
        )  # fmt: skip
        assert row["at_peak"] == (row["storage"] in alive)
        assert (Counter(steps)[row["op"]] > 1) == (row["decision"] == "recompute") or (
            row["decision"] == "recompute"
        )
        readers = readers_of(problem, first, row["storage"])
        assert row["forward_readers"] + row["backward_readers"] == readers


def readers_of(problem, first, storage):
    """Returns the operations that read a storage, also through views: forward, then backward."""
    values = {
        first[i] + k
        for i, op in enumerate(problem["ops"])
        for k, out in enumerate(op["out"])
        if out["storage"] == storage
    }
    found = [
        op for op in problem["ops"] if values & set(op["in"]) and "view" not in op.get("flags", ())
    ]
    forward = [op["name"] for op in found if "backward" not in op["flags"]]
    return forward + [op["name"] for op in found if "backward" in op["flags"]]


def test_texts(plan):
    text = plan.explain()
    for word in ("bound", "gap", "held", "floor", "largest working sets", "otherwise"):
        assert word in text
    gap = plan.numbers["gap"]
    assert gap is not None and f"gap {100 * gap:.2f} %" in str(plan)
    assert json.loads(plan.explain(as_json=True)) == plan.explanation
    preset = plan_of("unet", preset="aggressive")  # without a budget there is no better bound
    assert preset.numbers["bound_class"] == "trivial" and "trivial" in preset.explain()
    assert "at least 0.0 %, a trivial bound; gap " in str(preset)


def test_gap_and_class():
    seen = set()
    for name in ("evonorm_s0", "transformer_encoder"):
        for budget in ("0.8x", "0.5x"):
            for measure in ("live", "saved"):
                try:
                    numbers = plan_of(name, budget=budget, measure=measure).numbers
                except cutback.BudgetError:
                    continue
                bound, time, gap = (numbers[k] for k in ("lower_bound_ps", "time_ps", "gap"))
                seen.add(numbers["bound_class"])
                assert bound <= time and gap == pytest.approx((time - bound) / bound)
                if measure == "saved" or numbers["recomputed"] == 0:
                    assert numbers["bound_class"] == "any"
    assert {"any", "ordered"} <= seen


@pytest.mark.very_slow
@pytest.mark.slow
def test_floor(plan):
    explanation = plan.explanation
    floor = explanation["floor"]
    assert 0 < explanation["held_bytes"] <= floor["bytes"]
    assert 0 < floor["bytes"] <= plan_of("transformer_encoder", budget="min").numbers["live_bytes"]
    with pytest.raises(cutback.BudgetError) as raised:
        plan_of("transformer_encoder", budget="1B")
    assert raised.value.floor_bytes == floor["bytes"] and raised.value.floor_op == floor["name"]
    assert raised.value.held_bytes == explanation["held_bytes"]
    sets = [row["bytes"] for row in explanation["working_sets"]]
    assert sets == sorted(sets, reverse=True) and sets[0] <= plan.numbers["live_bytes"]
    assert plan_of("unet", budget="0.5x", measure="saved").explanation["floor"] is None


def test_the_bound_survives_the_file(plan):
    again = cutback.Plan(json.dumps(plan.problem), plan.to_json())
    assert again.explain(as_json=True) == plan.explain(as_json=True)
    broken = json.loads(plan.to_json())
    broken["numbers"]["lower_bound_ps"] = -3
    with pytest.raises(ValueError, match="lower_bound_ps"):
        cutback.Plan(json.dumps(plan.problem), json.dumps(broken))


def read_with(plan, **numbers):
    """Returns the numbers of the plan's file, read again after these changes."""
    document = json.loads(plan.to_json())
    version = numbers.pop("version", document["version"])
    document = {**document, "version": version, "numbers": {**document["numbers"], **numbers}}
    again = cutback.Plan(json.dumps(plan.problem), json.dumps(document))
    return json.loads(again.explain(as_json=True))["numbers"]


def test_a_bound_that_cannot_be_is_not_read(plan):
    """A bound above the plan's time is ignored, and so is that of an older file, whose class was
    smaller."""
    time, once = plan.numbers["time_ps"], plan.numbers["once_ps"]
    assert plan.numbers["bound_class"] == "ordered"
    for numbers in ({"lower_bound_ps": time + 1}, {"version": 2}, {"lower_bound_ps": None}):
        read = read_with(plan, **numbers)
        assert (read["lower_bound_ps"], read["bound_class"]) == (once, "trivial")
        assert read["gap"] == pytest.approx((time - once) / once)
    assert read_with(plan)["bound_class"] == "ordered"


# ---- two plans -----------------------------------------------------------------------------------


def test_diff(plan):
    other = plan_of("transformer_encoder", budget="0.7x")
    diff = other.diff(plan)
    assert diff.changes
    runs = [Counter(one.document["steps"]) for one in (other, plan)]
    decisions = [
        {row["storage"]: row["decision"] for row in one.explanation["values"]}
        for one in (other, plan)
    ]
    storages = [out["storage"] for op in plan.problem["ops"] for out in op["out"]]
    for change in diff.changes:
        storage = storages[change.value]
        assert change.before == decisions[0].get(storage, "none")
        assert change.after == decisions[1].get(storage, "none")
        assert change.before != change.after or change.runs[0] != change.runs[1]
    spent = sum(change.time_ps for change in diff.changes)
    ops = plan.problem["ops"]
    views = {i for i, op in enumerate(ops) if "view" in op.get("flags", ())}
    moved = {i for i in runs[0].keys() | runs[1].keys() if runs[0][i] != runs[1][i]} - views
    assert moved == {
        row["op"]
        for one in (other, plan)
        for row in one.explanation["values"]
        if row["value"] in {change.value for change in diff.changes}
        and runs[0][row["op"]] != runs[1][row["op"]]
    }
    assert spent == plan.numbers["time_ps"] - other.numbers["time_ps"]
    back = plan.diff(other)
    assert sum(change.time_ps for change in back.changes) == -spent
    assert plan.diff(plan).changes == []
    document = json.loads(diff.to_json())
    assert document["totals"]["live_bytes"] == [
        other.numbers["live_bytes"], plan.numbers["live_bytes"],
    ]  # fmt: skip
    assert len(document["changes"]) == len(diff.changes)
    with pytest.raises(ValueError, match="different problems"):
        plan.diff(plan_of("unet"))


def test_both_timelines_have_the_peaks(plan):
    from cutback.report.comparison import moments

    other = plan_of("transformer_encoder", budget="0.7x")
    for one in (plan, other):
        order, most = moments(report.read(one))
        assert order == sorted(order) and max(most) == one.numbers["live_bytes"]
    bundle = other.diff(plan)._repr_mimebundle_()
    assert bundle["text/html"].count("line side") == 4 and "live" in bundle["text/plain"]


def test_commands(tmp_path, capsys):
    graph = str(path_of("transformer_encoder"))
    files = []
    for budget in ("0.7x", "0.5x"):
        files.append(str(tmp_path / f"{budget}.json"))
        assert cli.main(["plan", graph, "--budget", budget, "-o", files[-1]]) == 0
    capsys.readouterr()
    assert cli.main(["explain", files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "cutback.explanation"
    page = tmp_path / "diff.html"
    assert cli.main(["diff", *files, "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert "save -> recompute" in said and "<polyline" in page.read_text()
    assert cli.main(["diff", *files, graph, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "cutback.difference"
    other = str(tmp_path / "unet.json")
    assert cli.main(["plan", str(path_of("unet")), "-o", other]) == 0
    capsys.readouterr()
    assert cli.main(["diff", files[0], other]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- what runs once ------------------------------------------------------------------------------


@pytest.mark.very_slow
def test_ops_that_run_once_say_why():
    """Values of an op of another library and of a random op are saved, with the reason. The text
    groups them by kind."""
    whole = plan_of("transformer_encoder", budget="0.5x")
    assert "run once" not in whole.explain()
    assert {row["runs_once"] for row in whole.explanation["values"]} == {None}
    problem = {k: v for k, v in whole.problem.items() if k != "fingerprint"}
    wide = [op for op in problem["ops"] if op["kind"] == "aten.relu.default"]
    for op in wide[:3]:
        op.update(kind="mylib.relu.default", flags=["unknown"])
    for op in wide[3:5]:
        op.update(kind="mylib.noise.default", flags=["random_stateful"])
    plan = cutback.plan(problem, device="a100", budget="0.6x")
    reasons = {
        "mylib.relu.default": "it is not known to give the same result again",
        "mylib.noise.default": "it draws from a hidden random state",
    }
    rows = [row for row in plan.explanation["values"] if row["kind"] in reasons]
    assert Counter(row["kind"] for row in rows) == {
        "mylib.relu.default": 3,
        "mylib.noise.default": 2,
    }
    for row in plan.explanation["values"]:
        assert row["runs_once"] == reasons.get(row["kind"])
        assert row["runs_once"] is None or (row["decision"], row["reason"]) == ("save", "forbidden")
    _, _, last = plan.explain().partition(
        "Ops that run once; what the backward needs of them is kept:\n"
    )
    assert last.splitlines()[0].endswith(
        "3 of mylib.relu.default: it is not known to give the same result again"
    )
    assert last.splitlines()[1].endswith(
        "2 of mylib.noise.default: it draws from a hidden random state"
    )
    assert last.splitlines()[2] == ""  # what makes up the peak follows
    for k, op in enumerate(wide[:5] + [op for op in problem["ops"] if "rsqrt" in op["kind"]]):
        op.update(kind=f"mylib.op_{k}.default", flags=["unknown"])
    plan = cutback.plan(problem, device="a100", budget="0.6x")
    rows = [row for row in plan.explanation["values"] if row["runs_once"] is not None]
    kinds = plan.explain().partition("\n\n  At the peak")[0]
    *lines, rest = kinds.splitlines()[-9:]
    assert [line.split()[4] for line in lines] == [f"{row['kind']}:" for row in rows[:8]]
    assert (
        len(rows) > 8 and rest.split() == f"and {len(rows) - 8} smaller ones of other kinds".split()
    )
