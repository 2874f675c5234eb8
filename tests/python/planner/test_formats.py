"""Files of format 1 stay readable and keep their meaning (``tests/data/format1``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluate import check_plan

import cutback
from cutback import _native

OLD = Path(__file__).parents[2] / "data/format1"
PLANS = sorted(OLD.glob("*.plan.json"))


def problem_of(path):
    return (OLD / f"{path.name.split('.')[0]}.problem.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_old_files_mean_what_they_meant(path):
    text, old = problem_of(path), json.loads(path.read_text(encoding="utf-8"))
    assert old["version"] == 1 == json.loads(text)["version"]
    check_plan(json.loads(text), old, old["device"])
    found = json.loads(_native.Problem.read(text).evaluate_json(json.dumps(old), old["device"]))
    assert found["peak_bytes"] == old["numbers"]["live_bytes"]
    assert found["time_ps"] == old["numbers"]["time_ps"]
    explained = json.loads(_native.Problem.read(text).read_plan(json.dumps(old)).explain_json())
    unknown = {"lower_bound_ps", "bound_class", "gap"}
    offsets = {"arena_bytes", "save_all_arena_bytes"}  # a newer planner may choose better ones
    for key in old["numbers"].keys() - unknown - offsets:
        assert explained["numbers"][key] == old["numbers"][key], key
    for key in offsets:
        assert explained["numbers"][key] <= old["numbers"][key], key
    assert explained["fingerprint"] == old["fingerprint"]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_what_is_written_has_the_new_number_and_nothing_else_new(path):
    old = json.loads(problem_of(path))
    new = json.loads(_native.Problem.read(json.dumps(old)).to_json())
    assert new == {**old, "version": 3}
    made = cutback.plan(new, budget="1.0x").document
    assert made["version"] == 3 and made["fingerprint"] == old["fingerprint"]
    assert made == cutback.plan(old, budget="1.0x").document


def test_there_are_files_of_each_kind():
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in PLANS]
    assert any(isinstance(step, list) for d in documents for step in d["steps"])
    assert any(d["numbers"]["recomputed"] for d in documents)
    assert len(PLANS) == 3


def test_old_problems_have_no_insides_and_no_inlinings():
    old = json.loads(problem_of(PLANS[0]))
    del old["fingerprint"]
    with pytest.raises(ValueError, match='no key "inlinings"'):
        _native.Problem.read(json.dumps({**old, "inlinings": []})).to_json()
    old["ops"][-1]["inside"] = []
    with pytest.raises(ValueError, match='no key "inside"'):
        _native.Problem.read(json.dumps(old)).to_json()
