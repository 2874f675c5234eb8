"""Tests memory reuse: the field `over` of problem format 3, schedules and plans."""

from __future__ import annotations

import json
import random

import pytest
from both import both
from evaluate import check_plan
from late import Late
from over import list_over

import cutback
from bounds import random_net
from cutback import _native
from cutback.problem import Problem


def chain(**fields):
    """Returns x -> a -> b -> c, and a backward op that reads a and c. Everything except x may be
    overwritten."""
    ops = [
        {"name": "x", "in": [], "out": [{"storage": 0}], "flags": ["placeholder"]},
        {"name": "a", "in": [0], "out": [{"storage": 1}]},
        {"name": "b", "in": [1], "out": [{"storage": 2}], "over": [0]},
        {"name": "c", "in": [2], "out": [{"storage": 3}], "over": [0]},
        {"name": "d", "in": [1, 3], "out": [{"storage": 4}], "flags": ["backward"],
         "over": [1, 0]},
    ]  # fmt: skip
    storages = [{"bytes": 64, "flags": ["static"]}, *({"bytes": 1024} for _ in range(4))]
    storages[4]["flags"] = ["hold_end"]
    for op in ops[1:]:
        op["bytes"] = 1000
    return {
        "format": "cutback.problem", "version": 3, "backward_starts": 4, "ops": ops,
        "storages": storages, "forward_outputs": [], "backward_outputs": [4], **fields,
    }  # fmt: skip


def without(problem):
    return {**problem, "ops": [{**op, "over": []} for op in problem["ops"]]}


# ---- the field -----------------------------------------------------------------------------------


def test_problems_keep_the_field():
    parts = Problem.read(json.dumps(chain()))
    assert [op.over for op in parts.ops] == [(), (), (0,), (0,), (1, 0)]
    text = json.loads(parts.to_json())
    assert text["ops"][4]["over"] == [1, 0] and "over" not in text["ops"][1]
    assert Problem.read(json.dumps(text)) == parts


def test_fingerprints_see_what_is_listed_and_nothing_else():
    plain = Problem.read(json.dumps(without(chain()))).check().fingerprint
    problem = without(chain())
    for op in problem["ops"]:
        del op["over"]
    assert Problem.read(json.dumps(problem)).check().fingerprint == plain
    assert Problem.read(json.dumps({**problem, "version": 1})).check().fingerprint == plain
    seen = {plain, Problem.read(json.dumps(chain())).check().fingerprint}
    other = chain()
    other["ops"][4]["over"] = [0, 1]
    seen.add(Problem.read(json.dumps(other)).check().fingerprint)
    assert len(seen) == 3


def test_older_versions_do_not_have_the_field():
    for version in (1, 2):
        with pytest.raises(ValueError, match='no key "over"'):
            _native.Problem.read(json.dumps(chain(version=version)))


def changed(op=(), storages=(), **fields):
    problem = chain(**fields)
    problem["ops"][3].update(op)
    for s, change in dict(storages).items():
        problem["storages"][s].update(change)
    return problem


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            changed({"over": [1]}),
            "c.* take over the memory of input 1: the op has no such",
        ),
        (changed({"over": [0, 0]}), "it is listed twice"),
        (changed({"in": [0]}), "the input is in the caller's memory"),
        (changed({"in": [2, 2]}), "another input of the op shares its memory"),
        (changed(storages={2: {"bytes": 1020}}), "differ in size"),
        (changed(storages={2: {"flags": ["hold_end"]}}), "held or returned"),
        (changed(storages={3: {"flags": ["static"]}}), "the output is in the caller's memory"),
        (changed(forward_outputs=[2]), "held or returned"),
        (changed(backward_outputs=[2, 4]), "held or returned"),
        (changed({"out": [{"storage": 3, "bytes": 512}]}), "does not fill its storage"),
        (changed({"out": [{"storage": 2}], "flags": ["view"]}), "the op is a view"),
    ],
)
def test_what_may_not_be_taken_over_is_named(problem, said):
    with pytest.raises(ValueError, match=said):
        _native.Problem.read(json.dumps(problem))


def test_several_outputs_take_over_nothing():
    problem = changed({"out": [{"storage": 3}, {"storage": 5}]})
    problem["storages"].append({"bytes": 1024})
    problem["ops"][4] = {**problem["ops"][4], "in": [1, 3], "out": [{"storage": 4}]}
    with pytest.raises(ValueError, match="does not have exactly one output"):
        _native.Problem.read(json.dumps(problem))


def test_bad_places_are_named():
    parts = Problem.read(json.dumps(chain()))
    parts.ops[3].over = (-1,)
    with pytest.raises(ValueError, match="op 3: over is -1, not a list of ids"):
        parts.check()


# ---- schedules -----------------------------------------------------------------------------------


def test_memory_goes_to_the_output_when_the_life_of_the_input_ends():
    own = both(chain(), [1, 2, 3, 4], 3)
    # d reads a again, so b gets its own memory; c reuses b's, and d reuses c's, which is listed
    # first
    assert own.peak_bytes == 2 * 1024
    assert own.over == {2: 1, 3: 2}
    assert both(without(chain()), [1, 2, 3, 4], 3).peak_bytes == 3 * 1024
    again = both(chain(), [1, 2, 3, 1, 4], 4)
    # b reuses a's memory and c that of b, then a is recomputed next to c, and d reuses c's
    assert again.peak_bytes == 2 * 1024 and again.over == {1: 0, 2: 1, 4: 2}


def test_saved_memory_is_kept_where_the_problem_says_so():
    keeps = chain(keep_saved=True)
    # d reads a and c, made by the forward; if c is made in the backward, d reuses its memory
    assert both(keeps, [1, 2, 3, 4], 3).over == {2: 1}
    assert both(keeps, [1, 2, 3, 4], 3).peak_bytes == 3 * 1024
    assert both(keeps, [1, 2, 3, 4], 2).over == {3: 2}
    keeps["ops"][4]["over"] = [0, 1]
    assert both(keeps, [1, 2, 3, 4], 2).over == {3: 2}


def test_the_key_that_keeps_saved_memory_is_read_and_written():
    parts = Problem.read(json.dumps(chain(keep_saved=True)))
    assert parts.keep_saved and json.loads(parts.to_json())["keep_saved"] is True
    assert Problem.read(parts.to_json()) == parts
    prints = {
        Problem.read(json.dumps(chain(keep_saved=k))).check().fingerprint for k in (False, True)
    }
    assert len(prints) == 2
    for version in (1, 2):
        with pytest.raises(ValueError, match='no key "keep_saved"'):
            _native.Problem.read(json.dumps({**without(chain(keep_saved=True)), "version": version,
                                             "ops": []}))  # fmt: skip
    with pytest.raises(ValueError, match="keep_saved"):
        _native.Problem.read(json.dumps(chain(keep_saved=1)))


def net(seed, all_reruns=False):
    """Returns a random step with two kinds of sizes and lists of reusable inputs."""
    rng = random.Random(seed)
    problem = random_net(seed, 12)
    for storage in problem["storages"]:
        if "static" not in storage["flags"] and storage["bytes"]:
            storage["bytes"] = rng.choice([4, 8]) * 10**6
    for op in problem["ops"]:
        op["workspace"] = 0
    problem = {**list_over(problem, rng), "keep_saved": seed % 2 == 1}
    return {**problem, "reruns": "all"} if all_reruns else problem


@pytest.mark.parametrize("all_reruns", [False, True])
def test_both_evaluators_agree_on_any_schedule(all_reruns):
    taken = 0
    for seed in range(40):
        problem, rng = net(seed, all_reruns), random.Random(seed)
        plan = json.loads(cutback.plan(problem).to_json())
        steps, starts = plan["steps"], plan["backward_starts"]
        taken += len(both(problem, steps, starts).over)
        if all_reruns:
            late = Late(problem)
            steps = late.reruns(late.delays(steps, starts, rng, 0.5), starts, rng, 0.3)
            taken += len(both(problem, steps, starts).over)
    assert taken > 40


# ---- plans ---------------------------------------------------------------------------------------


def check_plans(problem):
    """Checks that the evaluators confirm plans for several budgets. Returns True if the smallest
    plan is smaller than without reuse."""
    least = cutback.plan(problem, budget="min", device="cpu").numbers["live_bytes"]
    plain = cutback.plan(without(problem), budget="min", device="cpu").numbers["live_bytes"]
    whole = cutback.plan(problem, device="cpu").numbers
    assert least <= plain
    for measure in ("live", "arena"):
        budget = (least + whole[f"{measure}_bytes"]) // 2
        plan = cutback.plan(problem, budget=budget, measure=measure, device="cpu")
        check_plan(problem, json.loads(plan.to_json()), "cpu")
    return least < plain


def test_plans_are_what_their_evaluators_say():
    assert sum(check_plans(net(seed)) for seed in range(100, 104)) > 1


@pytest.mark.very_slow
@pytest.mark.parametrize("all_reruns", [False, True])
@pytest.mark.parametrize("first", range(200, 300, 10))
def test_more_plans_are_what_their_evaluators_say(first, all_reruns):
    assert sum(check_plans(net(seed, all_reruns)) for seed in range(first, first + 10)) > 3
