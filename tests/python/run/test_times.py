"""Tests measured times that replace the cost model's: from mappings, files and profiles of a
step."""

from __future__ import annotations

import json
import math

import pytest

import cutback
from cutback import cli, files, policies


@pytest.fixture
def step(model):
    step = cutback.compile(model.loss)
    step.prepare(model.params(), *model.data())
    return step


def test_times_replace_the_model(step):
    problem = step.plan.problem
    ops = [i for i, op in enumerate(problem["ops"]) if not op.get("flags", []).count("placeholder")]
    ops = [i for i in ops if "view" not in problem["ops"][i].get("flags", [])]
    whole = cutback.plan(problem).numbers["once_ps"]
    one = problem["ops"][ops[0]]
    named = cutback.plan(problem, profile={one["name"]: 1.0})
    by_id = cutback.plan(problem, profile={ops[0]: 1.0})
    assert named.document == by_id.document
    assert abs(named.numbers["once_ps"] - whole - 10**12) < 10**9  # others keep the model's time
    nothing = cutback.plan(problem, profile={})
    assert nothing.numbers["once_ps"] == whole
    all_ops = cutback.plan(problem, profile=dict.fromkeys(ops, 3e-12))
    assert all_ops.numbers["once_ps"] == 3 * len(ops)
    assert named.problem["ops"][ops[0]]["time_ps"] == 10**12


def test_a_policy_sees_measured_times(step):
    """mu-TWO selects by the measured times given with it."""
    problem = step.plan.problem
    policy = policies.mu_two("0.6x")
    modelled = cutback.plan(problem, policy=policy)
    times = dict.fromkeys({entry.name for entry in modelled.recomputed}, 1.0)
    both = cutback.plan(problem, policy=policy, profile=times)
    expected = policy.constrain(files.with_times(json.dumps(problem), times))
    assert both.core.problem.to_json() == expected
    assert both.document["steps"] != modelled.document["steps"]


def test_expensive_operations_are_kept(step):
    """An operation measured to be slow is not recomputed if another one can be."""
    problem = step.plan.problem
    cheap = cutback.plan(problem, budget="min")
    again = {entry.name for entry in cheap.recomputed}
    assert again
    plan = cutback.plan(problem, budget="min", profile=dict.fromkeys(again, 1.0))
    assert len({e.name for e in plan.recomputed} & again) < len(again)


def test_a_profile_of_a_step(model, tmp_path, capsys):
    step = cutback.compile(model.loss, budget="0.7x")
    profile = step.profile(model.params(), *model.data())
    times = profile.times()
    parts = [(part, k.seconds) for k in profile.kernels for part in k.operations()]
    assert set(times) == {part.name for part, _ in parts}
    repeated = next(k for k in profile.kernels if k.recomputed).name
    runs = [part.share * seconds for part, seconds in parts if part.name == repeated]
    assert len(runs) > 1 and math.isclose(times[repeated], sum(runs) / len(runs))

    plan = cutback.plan(step.plan.problem, profile=profile, budget="0.7x", measure="arena")
    once = sum(times.values())
    assert math.isclose(plan.numbers["once_ps"], once * 1e12, rel_tol=1e-6, abs_tol=1000)
    again = cutback.compile(model.loss, plan=plan)  # times are not part of the fingerprint
    again(model.params(), *model.data())
    assert again.stats.peak_bytes == again.planned.arena_bytes <= plan.numbers["arena_bytes"]

    file, graph = tmp_path / "times.json", tmp_path / "problem.json"
    profile.save(file)
    graph.write_text(json.dumps(step.plan.problem))
    assert files.read_times(file) == times
    command = ["plan", str(graph), "--budget", "0.7x", "--measure", "arena", "--profile", str(file)]
    assert cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan.document


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ({"nobody": 1.0}, "no operation 'nobody'"),
        ({99999: 1.0}, "no operation '99999'"),
        ({"0": -1.0}, "takes -1.0 seconds"),
        ({"0": math.nan}, "takes nan seconds"),
        ({"0": math.inf}, "takes inf seconds"),
        ({"0": 2000.0}, "from 0 to 1126"),
        ({"0": "1"}, "takes '1' seconds"),
        ({"0": True}, "takes True seconds"),
        ({"0": None}, "takes None seconds"),
    ],
)
def test_bad_times(step, times, text):
    with pytest.raises(ValueError, match=text):
        cutback.plan(step.plan.problem, profile=times)


def test_names_that_several_have(step):
    problem = step.plan.problem
    for op in problem["ops"][-2:]:
        op["name"] = "twin"
    problem.pop("fingerprint")
    with pytest.raises(ValueError, match="several operations are called 'twin'"):
        files.with_times(json.dumps(problem), {"twin": 1.0})


def test_bad_files(step, tmp_path):
    file = tmp_path / "times.json"
    for content in ("[]", "7", '{"format": "cutback.times", "version": 2, "seconds": {}}', "{"):
        file.write_text(content)
        with pytest.raises(ValueError):
            cutback.plan(step.plan.problem, profile=file)
    with pytest.raises(TypeError, match="needs a problem"):
        cutback.plan(lambda a: a, 1.0, profile={})
