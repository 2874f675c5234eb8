"""The field `reruns` of problem format 3: what may run again, and late."""

from __future__ import annotations

import json

import pytest

import cutback
from cutback import _native
from cutback.problem import Problem


def chain(layers=3, **fields):
    """Products of a chain; the product for each weight gradient is read at the end only."""
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
