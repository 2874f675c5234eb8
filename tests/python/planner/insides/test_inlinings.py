"""Tests inlinings: which values a run inlines, and the consequences. The core's walk and the
independent evaluator agree, and refuse the same schedules."""

from __future__ import annotations

import json

import pytest
from both import both, refused
from evaluate import check_plan
from insides import SPEED, casts, two_branches

import cutback
from cutback import _native, cli


def test_what_is_taken_in_has_no_bytes():
    kept = both(casts(), [1, 2, 3, 5, 6], 3)
    assert kept.peak_bytes == 1024 + 2048 + 512 + 128 + 16
    assert (kept.time_ps, kept.recomputed) == (500 + 50 + 60 + 2000, 0)
    taken = both(casts(), [1, 2, 3, ["run", 5, [0], [2]], ["run", 6, [0], [2]]], 3)
    assert taken.saved_bytes == 1024 + 512
    assert taken.peak_bytes == 1024 + 2048 + 512 + 8
    assert taken.time_ps == kept.time_ps + 7 + 13 and taken.once_ps == kept.time_ps
    assert taken.recomputed == 2
    lives = [(x.storage, x.made, x.last) for x in taken.lives if x.storage in (1, 2)]
    assert lives == [(1, 0, 4), (2, 1, 2)]


def test_what_is_taken_in_may_be_read_through_others():
    """w is inlined, and v into w: the run reads only h."""
    found = both(casts(), [1, ["run", 5, [0], [2, 3]], ["run", 6, [0], [2]]], 1)
    assert found.time_ps == 500 + 1000 + 7 + 11 + 1000 + 13
    assert found.once_ps == found.time_ps - 13 and found.recomputed == 1
    assert found.peak_bytes == max(1024 + 128 + 16 + 32 + 4, 1024 + 128 + 256)
    assert [x.storage for x in found.lives] == [1, 5, None, 6]


def test_what_is_made_may_be_read_all_the_same():
    """Only w is inlined: v is read from memory, also for w."""
    found = both(casts(), [1, 2, ["run", 5, [0], [3]], 6], 2)
    assert found.peak_bytes == max(1024 + 2048 + 128 + 16 + 4, 1024 + 2048 + 128 + 256)
    lives = [(x.storage, x.made, x.last) for x in found.lives if x.storage == 2]
    assert lives == [(2, 1, 3)]


def test_a_run_after_the_value_was_taken_in_is_a_second():
    found = both(casts(), [1, ["run", 5, [0], [2, 3]], 2, 6], 1)
    assert found.recomputed == 1 and found.once_ps == 500 + 1000 + 7 + 11 + 1000
    assert found.time_ps == found.once_ps + 50


def test_outputs_of_insides_are_taken_in_one_by_one():
    problem = two_branches()
    problem["inlinings"] = [{"value": 2, "op": 5, "time_ps": 9}]
    found = both(problem, [["run", 2, [1]], 4, ["run", 5, [0], [2]]], 1)
    assert found.saved_bytes == 2048
    assert found.time_ps == 100 + 10 + 40 + 2048 + 1000 + 9 + 1000 == found.once_ps
    assert found.recomputed == 0
    assert found.peak_bytes == 2048 + 128


def test_a_slice_asks_for_what_it_takes_in():
    """Only the output of the inside that reads a value can inline it."""
    problem = two_branches()
    problem["ops"][1].update({"flags": [], "in": [0], "time_ps": 5})
    problem["storages"][1]["flags"] = []
    problem["inlinings"] = [{"value": 1, "op": 2, "time_ps": 3}]
    both(problem, [["run", 2, [1], [1]], 4, ["run", 2, [0]], 5], 1)
    steps = [1, ["run", 2, [0], [1]], ["run", 2, [1]], 4, 5]
    assert "inlines value 1, which it does not read" in refused(problem, steps, 3)


BROKEN = [
    ([1, 2, 3, 5, ["run", 6, [0], [3]]], 3, "no inlining of value 3 into op_6"),
    ([1, 2, 3, 5, ["run", 6, [0], [99]]], 3, "no inlining of value 99"),
    ([1, 2, 3, ["run", 5, [0], [2, 2]], 6], 3, "inlined twice"),
    ([1, 2, 3, ["run", 5, [0], 2], 6], 3, "a list of values"),
    ([["run", 5, [0], [2, 3]], 1, 2, 6], 0, "op_2 needs value 1"),
    ([1, ["run", 5, [0], [3]], 2, 6], 1, "needs value 2"),
    ([1, ["run", 5, [0], [2]], 2, 6], 1, "needs value 3"),
    ([1, 2, 3, ["run", 5, [0], [2], []], 6], 3, "5 entries"),
    ([1, 2, 3, ["out", 5, [0], [2]], 6], 3, "4 entries"),
    ([1, 2, 3, ["run", 5, [], [2]], 6], 3, "no inside"),
]


@pytest.mark.parametrize(("steps", "starts", "text"), BROKEN, ids=lambda x: str(x)[:40])
def test_broken_steps_are_refused_by_all(steps, starts, text):
    assert text in refused(casts(), steps, starts)


WRONG = [
    (lambda p, x: x[0].update(value=1), "neither it nor the values inlined into it read"),
    (lambda p, x: x[0].update(value=5), "must be made before the op"),
    (lambda p, x: x[0].update(op=99), "names op 99, but there are 7 ops"),
    (lambda p, x: x[0].update(op=4), "nothing can be inlined into a view or a placeholder"),
    (lambda p, x: x[0].pop("op"), '"op"'),
    (lambda p, x: x[0].update(colour="red"), 'no key "colour"'),
    (lambda p, x: x[0].update(time_ps=2**50), "out of range"),
    (lambda p, x: x[0].update(workspace=2**61), "2^60"),
    (lambda p, x: x.append(dict(x[0])), "each once"),
    (lambda p, x: p["ops"][2].update(flags=["unknown"]), "runs once"),
    (lambda p, x: p["storages"][2].update(flags=["static"]), "the caller's"),
    (lambda p, x: p["ops"][6]["in"].remove(2), "neither it nor"),
    (lambda p, x: p["ops"][2]["out"].append({"storage": 7}), "makes 2 outputs in every run"),
]


@pytest.mark.parametrize(("change", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_inlinings_are_refused(change, text):
    problem = casts()
    problem["storages"].append({"bytes": 8})
    change(problem, problem["inlinings"])
    with pytest.raises(ValueError, match=text.replace("^", r"\^")):
        _native.Problem.read(json.dumps(problem)).to_json()


def test_values_that_share_memory_are_not_taken_in():
    problem = casts()
    problem["ops"][3].update(flags=["view"], **{"out": [{"storage": 2}]})
    with pytest.raises(ValueError, match="or holds other values"):
        _native.Problem.read(json.dumps(problem)).to_json()


def test_inlinings_survive_a_round_trip_in_any_order():
    problem = casts()
    text = _native.Problem.read(json.dumps(problem)).to_json()
    problem["inlinings"].reverse()
    assert (
        _native.Problem.read(json.dumps(problem)).to_json()
        == text
        == _native.Problem.read(text).to_json()
    )
    again = json.loads(text)
    assert again["inlinings"] == casts()["inlinings"]
    del again["fingerprint"]
    before = json.loads(text)["fingerprint"]
    again["inlinings"][0]["time_ps"] = 8
    assert json.loads(_native.Problem.read(json.dumps(again)).to_json())["fingerprint"] == before
    again["inlinings"].pop()
    assert json.loads(_native.Problem.read(json.dumps(again)).to_json())["fingerprint"] != before


def test_the_frontier_takes_nothing_in():
    front = cutback.frontier(json.dumps(casts()), device=SPEED)
    for i in range(len(front)):
        check_plan(casts(), front.plan(i).document, SPEED)
        assert front.plan(i).numbers["time_ps"] <= front.time_ps[i]
    plan = cutback.plan(casts(), budget="0.5x", measure="saved", device=SPEED)
    check_plan(casts(), plan.document, SPEED)
    assert plan.numbers["lower_bound_ps"] <= plan.numbers["time_ps"]


def test_what_a_run_reads_in_memory_counts_in_the_bound():
    """The op of dv reads v and h and may inline neither, so both need runs of their own, although
    inlining v at its first reader costs almost nothing."""
    problem = casts()
    problem["inlinings"] = [
        {"value": 2, "op": 5, "time_ps": 1},
        {"value": 3, "op": 5, "time_ps": 1},
    ]
    plan = cutback.plan(problem, budget="1.0x", measure="arena", device=SPEED)
    check_plan(problem, plan.document, SPEED)
    alone = 500 + 50 + 1 + 1000 + 1000  # w is inlined
    assert alone <= plan.numbers["lower_bound_ps"] <= plan.numbers["time_ps"]


def test_plans_that_take_values_in_are_read_from_files(tmp_path, capsys):
    graph, *files = (str(tmp_path / name) for name in ("graph.json", "small.json", "all.json"))
    (tmp_path / "graph.json").write_text(json.dumps(casts()))
    assert cli.main(["plan", graph, "--budget", "min", "-o", files[0]]) == 0
    assert cli.main(["plan", graph, "-o", files[1]]) == 0
    steps = json.loads((tmp_path / "small.json").read_text())["steps"]
    assert any(isinstance(step, list) and len(step) == 4 for step in steps)
    capsys.readouterr()
    assert cli.main(["explain", files[0], "--report", str(tmp_path / "page.html")]) == 0
    assert cli.main(["diff", *files, "--json"]) == 0
    said = capsys.readouterr().out
    runs = {row["value"]: row["runs"] for row in json.loads(said[said.index("{") :])["changes"]}
    assert runs[2] == runs[3] == [0, 1]
