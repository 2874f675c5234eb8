"""Tests ops with an inside: which outputs a step makes, and the consequences. The core's walk and
the independent evaluator agree, and refuse the same schedules."""

from __future__ import annotations

import copy
import json
import random

import pytest
from both import both, refused
from evaluate import check_plan
from exact_insides import optimum
from insides import SPEED, Dice, two_branches

import cutback
from cutback import _native
from cutback.budgets import PRESETS


def test_a_step_takes_what_its_outputs_need():
    problem = two_branches()
    whole = both(problem, [2, 4, 5], 1)
    # The op's own time, three members, both outputs written; scratch of the op and of its members.
    assert whole.time_ps == 100 + 10 + 20 + 40 + 1024 + 2048 + 2000
    assert whole.peak_bytes == max(1024 + 2048 + 8 + 16 + 32, 1024 + 2048 + 128)
    assert whole.saved_bytes == 1024 + 2048
    late = both(problem, [["run", 2, [1]], 4, ["run", 2, [0]], 5], 1)
    assert late.saved_bytes == 2048
    assert late.time_ps == 2 * (100 + 10) + 20 + 40 + 1024 + 2048 + 2000
    assert late.once_ps == whole.time_ps and late.recomputed == 1
    assert late.peak_bytes == max(2048 + 8 + 16 + 32, 2048 + 128, 128 + 1024 + 256)


def test_a_slice_asks_for_its_own_inputs_alone():
    """An op makes `y`, but making `a` alone does not need `y`."""
    problem = two_branches()
    problem["ops"][1].update({"flags": [], "in": [0], "time_ps": 5})
    problem["storages"][1]["flags"] = []
    both(problem, [["run", 2, [0]], 1, ["run", 2, [1]], 4, 5], 3)
    assert "needs value 1" in refused(problem, [["run", 2, [1]], 1, ["run", 2, [0]], 4, 5], 3)


def test_the_other_outputs_keep_their_lives():
    problem = {**two_branches(), "version": 3, "reruns": "all"}
    # b is made again; a is read from the first run
    steps = [2, 4, ["run", 2, [1]], 4, 5]
    found = both(problem, steps, 1)
    lives = [(x.storage, x.made, x.last) for x in found.lives if x.storage in (2, 3)]
    assert lives == [(2, 0, 4), (3, 0, 1), (3, 2, 3)]


def test_what_is_held_belongs_to_the_first_run_that_makes_it():
    problem = two_branches()
    problem["storages"][2]["flags"] = ["hold_end"]
    found = both(problem, [["run", 2, [1]], ["run", 2, [0]], 4, ["run", 2, [0]], 5], 2)
    lives = [(x.storage, x.made, x.last) for x in found.lives if x.storage == 2]
    assert lives == [(2, 1, 5), (2, 3, 4)]
    problem["storages"][2]["flags"] = ["static"]
    problem["backward_outputs"].append(2)
    both(problem, [["run", 2, [1]], ["run", 2, [0]], 4, 5], 2)
    text = refused(problem, [["run", 2, [1]], ["run", 2, [0]], 4, ["run", 2, [0]], 5], 2)
    assert "makes output 0, which no op reads" in text


BROKEN = [
    ([["run", 2, []], 2, 4, 5], 2, "makes none of its outputs"),
    ([["run", 2, [2]], 4, 5], 1, "output"),
    ([["run", 2, [0, 0, 1]], 4, 5], 1, "twice"),
    ([["run", 2, 1], 4, 5], 1, "a list"),
    ([["run", 2, [0]], 4, 5], 1, "needs value 3"),
    ([2, ["run", 4, []], 4, 5], 1, "no inside"),
    ([2, 4, ["run", 2, [1]], 5], 1, "makes output 1, which no op reads"),
    ([2, 4, ["run", 2, [0, 1]], 5], 1, "makes output 0, which no op reads"),
    ([2, 2, 4, 5], 2, "which no op reads"),
    ([2, 4, ["out", 2], ["in", 2], 5], 1, "cannot be offloaded"),
    ([2, 4, ["out", 2, [0]], 5], 1, "3 entries"),
    ([2, 4, ["run", 2, [0], [0]], 5], 1, "no inlining of value 0"),
]


@pytest.mark.parametrize(("steps", "starts", "text"), BROKEN, ids=lambda x: str(x)[:40])
def test_broken_steps_are_refused_by_all(steps, starts, text):
    assert text in refused(two_branches(), steps, starts)


def changed(change):
    problem = two_branches()
    change(problem["ops"][2], problem)
    return json.dumps(problem)


WRONG = [
    (lambda o, p: o["out"][0].pop("member"), "and only then"),
    (lambda o, p: p["ops"][4]["out"][0].update(member=0), "and only then"),
    (lambda o, p: o["out"][0].update(member=2), "the value of a different member"),
    (lambda o, p: o["out"][0].update(member=3), "the value of a different member"),
    (lambda o, p: o["out"][1].update(storage=2), "a separate storage"),
    (lambda o, p: o["inside"][0].update(uses=[1]), "not before it"),
    (lambda o, p: o["inside"][0].update(reads=[2]), "beyond the op's 2"),
    (lambda o, p: o["inside"][0].update(reads=[0, 0]), "twice"),
    (lambda o, p: o["inside"][2].update(reads=[]), "an input that no member reads"),
    (lambda o, p: o["inside"].append({"reads": [0], "uses": []}), "leads to no output"),
    (lambda o, p: o["inside"][0].update(flags=["effect"]), "flag that members must not have"),
    (lambda o, p: o["inside"][0].update(time_ps=2**50), "out of range"),
    (lambda o, p: o["inside"][0].update(colour="red"), 'no key "colour"'),
    (lambda o, p: o.update(flags=["unknown"]), "runs once"),
    (lambda o, p: o.update(inside={}), "inside"),
    (lambda o, p: o["inside"].extend([{"reads": [0], "uses": []}] * 70), "the limits are"),
    (lambda o, p: o["inside"][0].update(workspace=2**61), "2^60"),
]


@pytest.mark.parametrize(("change", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_insides_are_refused(change, text):
    with pytest.raises(ValueError, match=text.replace("^", r"\^")):
        _native.Problem.read(changed(change)).to_json()


def test_outputs_of_the_backward_depend_on_a_tangent():
    """The forward may read an output that depends on no tangent, so it must be made there; members
    outside the outputs may depend on none."""
    problem = two_branches()
    problem["ops"].append(copy.deepcopy(problem["ops"][2]) | {"in": [6, 2], "flags": ["backward"]})
    problem["ops"][-1]["out"][0]["storage"], problem["ops"][-1]["out"][1]["storage"] = 7, 8
    problem["storages"] += [{"bytes": 64}, {"bytes": 64}]
    problem["backward_outputs"] += [7, 8]
    problem["ops"][-1]["name"] = "late"
    _native.Problem.read(json.dumps(problem)).to_json()
    problem["ops"][-1]["in"] = [2, 6]
    with pytest.raises(ValueError, match="value 7 does not depend on a tangent"):
        _native.Problem.read(json.dumps(problem)).to_json()


def test_insides_survive_a_round_trip():
    text = _native.Problem.read(json.dumps(two_branches())).to_json()
    assert _native.Problem.read(text).to_json() == text
    again = json.loads(text)
    assert again["ops"][2]["inside"] == two_branches()["ops"][2]["inside"]
    del again["fingerprint"]
    before = json.loads(text)["fingerprint"]
    again["ops"][2]["inside"][1]["reads"] = [1]
    assert json.loads(_native.Problem.read(json.dumps(again)).to_json())["fingerprint"] != before


def questions():
    for preset in ("autograd", "recompute_all", "conservative", "aggressive", "shape-aware"):
        yield {"preset": preset}
    for measure in ("live", "arena", "saved", "total"):
        for budget in ("0.9x", "0.6x", "0.4x", "min"):
            yield {"budget": budget, "measure": measure}


def ask_everything(seed, most, inlines=False):
    """Evaluates plans of a random problem. Returns the number of plans, and of those with a step
    that makes only some outputs of an op."""
    answers = partial = 0
    problem = Dice(seed, most, inlines).document
    for question in questions():
        try:
            plan = cutback.plan(problem, device=SPEED, **question)
        except cutback.BudgetError:
            continue
        check_plan(problem, plan.document, SPEED)
        answers += 1
        partial += any(isinstance(step, list) for step in plan.document["steps"])
    return answers, partial


@pytest.mark.very_slow
def test_every_question_about_random_insides():
    for inlines in (False, True):
        found = [ask_everything(int(inlines), most, inlines) for most in (4, 12)]
        assert sum(answers for answers, _ in found) > 15
        assert sum(partial for _, partial in found) > 7


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(5))
def test_every_question_about_many_random_insides(part):
    for most in (4, 10, 20, 60):
        for seed in range(100 + 10 * part, 110 + 10 * part):
            ask_everything(seed, most, seed % 2 == 0)


def check_optima(seeds, inlines=False):
    """Counts budgets on live bytes by outcome: met as fast as the fastest schedule; met neither by
    a schedule nor by a plan; met by a plan that makes only some outputs of an op; and the rest,
    from problems too large to be solved exactly, where plans are slower or missing. Bounds are
    never above the fastest schedule, also for a budget on the arena."""
    judged = impossible = partial = rest = 0
    for seed in seeds:
        problem = Dice(seed, inlines=inlines).document
        whole = cutback.plan(problem, device=SPEED).numbers["live_bytes"]
        arena = cutback.plan(problem, budget="1.0x", measure="arena", device=SPEED).numbers
        assert arena["lower_bound_ps"] <= optimum(problem, arena["live_bytes"]), seed
        for share in (1.0, 0.85, 0.7, 0.55, 0.4):
            best = optimum(problem, int(share * whole))
            try:
                plan = cutback.plan(problem, budget=int(share * whole), device=SPEED)
            except cutback.BudgetError:
                impossible += best is None
                rest += best is not None
                continue
            check_plan(problem, plan.document, SPEED)
            bound = plan.numbers["lower_bound_ps"]
            assert bound <= best <= plan.numbers["time_ps"], (seed, share)
            judged += best == plan.numbers["time_ps"]
            rest += bound < plan.numbers["time_ps"]
            partial += any(isinstance(step, list) for step in plan.document["steps"])
    return judged, impossible, partial, rest


@pytest.mark.very_slow
@pytest.mark.parametrize("inlines", [False, True])
def test_plans_of_insides_are_optimal(inlines):
    judged, impossible, partial, rest = check_optima(range(10), inlines)
    assert judged > 15 and impossible > 12 and partial > 5 and rest == 0


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("inlines", [False, True])
def test_many_plans_of_insides_are_optimal(part, inlines):
    judged, impossible, partial, rest = check_optima(range(1000 + part, 3000, 8), inlines)
    assert judged > 400 and impossible > 200 and partial > 100 and rest < judged / 5


def test_constraints_are_about_single_outputs():
    """An output that must be saved does not constrain the others."""
    problem = two_branches()
    problem["ops"][2]["out"][1]["constraint"] = "must_save"
    problem["ops"][2]["out"][0]["constraint"] = "must_recompute"
    plan = cutback.plan(problem, device=SPEED)
    check_plan(problem, plan.document, SPEED)
    assert plan.document["steps"] == [["run", 2, [1]], 4, ["run", 2, [0]], 5]
    assert [(d["value"], d["decision"]) for d in plan.document["decisions"]] == [
        (2, "recompute"), (3, "save"),
    ]  # fmt: skip
    again = json.dumps(plan.document)
    assert (
        json.loads(_native.Problem.read(json.dumps(problem)).evaluate_json(again))["recomputed"]
        == 1
    )


def test_presets_look_at_members():
    """Members that need a product are saved by the preset that saves products; the rest is
    recomputed."""
    problem = two_branches()
    problem["ops"][2]["inside"][2]["flags"] = ["compute"]
    for m in problem["ops"][2]["inside"][:2]:
        m["flags"] = ["fusible"]
    for preset in ("aggressive", "conservative"):
        plan = cutback.plan(problem, preset=preset, device=SPEED)
        decisions = {d["value"]: d["decision"] for d in plan.document["decisions"]}
        assert decisions == {2: "recompute", 3: "save"}, preset
    assert plan.document["steps"].count(["run", 2, [0]]) == 1


def test_a_cut_by_time_weighs_members_against_bytes():
    """`shape-aware` takes the cheapest of the four sets of outputs that may be recomputed: a saved
    output is written and read, and a member shared by several outputs runs once for all."""
    r = random.Random(0)
    chosen = set()
    for _ in range(200):
        problem = two_branches()
        times = [r.randint(1, 6000) for _ in range(3)]
        for inner, time_ps in zip(problem["ops"][2]["inside"], times, strict=True):
            inner["flags"], inner["time_ps"] = ["fusible"], time_ps
        costs = {
            again: 2 * (1024 * (2 not in again) + 2048 * (3 not in again))
            + times[0] * bool(again) + times[1] * (2 in again) + times[2] * (3 in again)
            for again in ((), (2,), (3,), (2, 3))
        }  # fmt: skip
        plan = cutback.plan(problem, preset="shape-aware", device=SPEED)
        decisions = plan.document["decisions"]
        again = tuple(d["value"] for d in decisions if d["decision"] == "recompute")
        assert costs[again] == min(costs.values()), (times, costs, again)
        chosen.add(again)
    assert len(chosen) == 4


def changes(problem, plan):
    """Returns the changes that the explanation predicts for other decisions."""
    document = json.loads(
        _native.Problem.read(json.dumps(problem))
        .read_plan(json.dumps(plan.document))
        .explain_json()
    )
    return {v["value"]: v["otherwise"] for v in document["values"]}, document


def test_explanations_are_about_single_outputs():
    problem = two_branches()
    plan = cutback.plan(problem, preset="autograd", device=SPEED)
    assert [s for s in plan.document["steps"] if isinstance(s, list)] == []
    found, document = changes(problem, plan)
    assert document["numbers"].items() <= plan.numbers.items()
    saved = both(problem, [2, 4, 5], 1)
    for value, steps in ((2, [["run", 2, [1]], 4, ["run", 2, [0]], 5]),
                         (3, [["run", 2, [0]], ["run", 2, [1]], 4, 5])):  # fmt: skip
        other = both(problem, steps, 1)
        assert found[value] == {
            "decision": "recompute",
            "peak_bytes": other.peak_bytes - saved.peak_bytes,
            "saved_bytes": other.saved_bytes - saved.saved_bytes,
            "time_ps": other.time_ps - saved.time_ps,
        }, value
    run = {v["value"]: v["run_ps"] for v in document["values"]}
    assert run == {2: 100 + 10 + 20 + 1024, 3: 100 + 10 + 40 + 2048}


def check_changes(seeds):
    """Checks that each predicted change equals that of a plan that the walk evaluates, with the
    value recomputed or saved."""
    known = 0
    for seed in seeds:
        problem = Dice(seed, 8, seed % 2 == 0).document
        bounds = {}  # keyed by peak, because several changes and plans may have the same peak
        for budget in ("1.0x", "0.8x", "0.6x"):
            try:
                plan = cutback.plan(problem, budget=budget, device=SPEED)
            except cutback.BudgetError:
                continue
            found, document = changes(problem, plan)
            assert document["floor"]["bytes"] <= plan.numbers["live_bytes"]
            for change in filter(None, found.values()):
                known += 1
                faster = change["time_ps"] + plan.numbers["time_ps"]
                peak = max(change["peak_bytes"] + plan.numbers["live_bytes"], 1)
                if peak not in bounds:
                    best = cutback.plan(problem, budget=peak, device=SPEED)
                    bounds[peak] = best.numbers["lower_bound_ps"]
                assert bounds[peak] is None or bounds[peak] <= faster, (seed, budget)
    return known


def test_changes_are_those_of_plans():
    assert check_changes(range(4, 8)) > 10


@pytest.mark.very_slow
def test_changes_of_more_plans():
    assert check_changes((*range(4), *range(8, 12))) > 20


REFUSED = [
    lambda text: cutback.plan(text, budget="0.9x", offload=True, device="a100"),
    lambda text: cutback.plan(text, preset="torch-compat"),
    lambda text: cutback.frontier(text, preset="torch-compat"),
    lambda text: _native.Problem.read(text).cut_json(PRESETS.index("torch-compat"), False),
    lambda text: cutback.plan(text, policy=cutback.policies.mu_two(0.5)),
]


@pytest.mark.parametrize("ask", REFUSED, ids=range(len(REFUSED)))
def test_what_knows_no_insides_says_so(ask):
    with pytest.raises((NotImplementedError, ValueError), match="with insides"):
        ask(json.dumps(two_branches()))


def test_cuts_are_about_single_outputs():
    """The cut runs over members. A member that must not rerun saves its output, and no other
    one."""
    problem = two_branches()
    problem["ops"][2]["inside"][2]["flags"] = ["compute"]
    for m in problem["ops"][2]["inside"][:2]:
        m["flags"] = ["fusible"]
    for preset, saved, size in (
        ("autograd", [[2, [0, 1]]], 3072),
        ("conservative", [[2, [1]]], 2048),
        ("recompute_all", [], 0),
    ):
        answer, _ = _native.Problem.read(json.dumps(problem)).cut_json(PRESETS.index(preset), False)
        cut = json.loads(answer)
        assert (cut["saved"], cut["saved_bytes"]) == (saved, size), preset
        plan = cutback.plan(problem, preset=preset, device=SPEED)
        assert plan.numbers["saved_bytes"] == size


def test_every_point_of_a_frontier_has_its_plan():
    """The plan of a point saves at most the point's bytes, takes at most its time, and takes at
    least the bound."""
    points = 0
    for seed in range(12):
        problem = Dice(seed, 8, seed % 2 == 0).document
        front = cutback.frontier(json.dumps(problem), device=SPEED)
        everything = cutback.plan(problem, device=SPEED).numbers
        assert list(front.saved_bytes) == sorted(set(front.saved_bytes))
        assert list(front.time_ps) == sorted(set(front.time_ps), reverse=True)
        assert front.saved_bytes[-1] <= everything["saved_bytes"]
        for i in range(len(front)):
            plan = front.plan(i)
            check_plan(problem, plan.document, SPEED)
            assert plan.numbers["saved_bytes"] <= front.saved_bytes[i]
            assert front.bound_ps[i] <= plan.numbers["time_ps"] <= front.time_ps[i], (seed, i)
            points += 1
    assert points > 20
