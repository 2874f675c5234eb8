"""Tests the report of a compiled step on its groups: as JSON, as text, and on the page."""

from __future__ import annotations

import copy
import json
import pickle
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F
from cutback import report
from cutback.report.kernels import single_rows

SVG = "{http://www.w3.org/2000/svg}"
ROWS, COLUMNS = 256, 128
FULL = 4 * ROWS * COLUMNS
WEIGHT = 4 * COLUMNS


def loss(params, x, residual):
    w, bias, weight, shift = params
    h = F.gelu(x @ w + bias) + residual
    return (F.layer_norm(h, weight, shift) @ w).sum()


def compiled(**options):
    rng = np.random.default_rng(0)
    shapes = (COLUMNS, COLUMNS), (COLUMNS,), (COLUMNS,), (COLUMNS,), (ROWS, COLUMNS)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (*shapes, shapes[-1])]
    step = cutback.compile(loss, **options)
    step(arrays[:4], *arrays[4:])
    return step


@pytest.fixture(scope="module")
def step():
    return compiled()


@pytest.fixture(scope="module")
def kernels(step):
    return json.loads(step.plan.explain(as_json=True, kernels=True))


def names(group):
    return [op["kind"] for op in group["ops"]]


def test_each_step_is_in_one_group(step, kernels):
    assert (kernels["format"], kernels["version"]) == ("cutback.kernels", 1)
    assert kernels == json.loads(step.executable.text("kernels"))
    planned = step.executable.planned
    assert (kernels["arena_bytes"], kernels["live_bytes"]) == planned[:2]
    assert "compiled" not in str(step.plan)  # nothing differs from the plan's arena
    ops, document = step.plan.problem["ops"], step.plan.document
    real = [i for i, op in enumerate(document["steps"]) if "view" not in ops[op].get("flags", ())]
    assert sorted(i for group in kernels["groups"] for i in group["steps"]) == real
    for i, group in enumerate(kernels["groups"]):
        assert [op["name"] for op in group["ops"]] == [
            ops[document["steps"][k]]["name"] for k in group["steps"]
        ]
        backward = group["steps"][0] >= document["backward_starts"]
        assert backward == (i >= kernels["backward_starts"])
        assert (group["elements"] == 0) == (len(group["ops"]) == 1)


def test_a_plan_says_what_groups_leave_of_its_arena():
    step = cutback.value_and_grad(lambda x: F.layer_norm(F.gelu(x) + x).sum())
    step(np.ones((256, 256), np.float32))
    taken = step.stats.peak_bytes
    assert taken == step.planned.arena_bytes < step.plan.numbers["arena_bytes"]
    said = f"compiled: arena {cutback.budgets.text(taken)}, because operations run in groups"
    assert str(step.plan).splitlines()[-1] == said
    assert "compiled" not in str(copy.copy(step.plan))  # a copy has no step


def test_bytes_of_a_group(kernels):
    (group,) = (g for g in kernels["groups"] if "layer_norm_bwd" in names(g))
    assert names(group) == ["layer_norm_bwd", "gelu_bwd", "sum"]
    assert (group["elements"], group["columns"]) == (ROWS * COLUMNS, COLUMNS)
    # the gradient, the inputs of the norm and of GELU; the norm's weight, and two numbers per row
    assert group["read_bytes"] == 3 * FULL + WEIGHT + 2 * 4 * ROWS
    # the gradient for the product; the gradients of weight, shift and bias
    assert group["written_bytes"] == FULL + 3 * WEIGHT
    assert [(row["type"], row["bytes"]) for row in group["locals"]] == [
        (f"f32[{ROWS},{COLUMNS}]", FULL)
    ]
    # as single kernels, the local is written and read, and the sum reads the gradient again
    assert group["apart_bytes"] == group["read_bytes"] + group["written_bytes"] + 3 * FULL
    assert group["end"]["reason"] == "op" and group["end"]["before"].startswith("matmul_")


def test_text(step, kernels):
    text = step.plan.explain(kernels=True)
    lines = text.splitlines()
    assert lines[0].startswith(f"{sum(len(g['ops']) for g in kernels['groups'])} ops in ")
    assert sum(line.startswith("group ") for line in lines) == len(kernels["groups"])
    inside = [op for g in kernels["groups"] if len(g["ops"]) > 1 for op in g["ops"]]
    assert [line.split()[0] for line in lines if line.startswith("    ")] == [
        op["name"] for op in inside
    ]
    assert f"[{ROWS} x {COLUMNS}] layer_norm_bwd + gelu_bwd + sum: reads 386.50 KiB" in text
    assert "1 value of 128.00 KiB never exists in memory; ends before matmul_" in text
    assert text.count("--- backward") == 1
    assert re.search(
        r"^group 0 matmul_\d+: .*; cannot be fused  \(test_kernels.py:\d+\)$", text, re.M
    )


def test_a_backend_that_fuses_nothing():
    plan = compiled(backend="ref").plan
    groups = json.loads(plan.explain(True, kernels=True))["groups"]
    assert {(len(g["ops"]), g["end"]["reason"], g["end"]["before"]) for g in groups} == {
        (1, "backend", None)
    }
    assert "this backend runs each op separately" in plan.explain(kernels=True)


def test_reasons_have_words(kernels):
    for reason in ("domain", "cut", "dtype", "read", "wait", "room", "limit"):
        end = {"reason": reason, "before": "exp_7", "waits_for": "dot_3"}
        group = {**kernels["groups"][0], "end": end}
        text = report.kernels_text({**kernels, "groups": [group]})
        assert "; ends before exp_7, " in text and f", {reason}" not in text
        assert ("which waits for dot_3" in text) == (reason == "wait")
        single = {**group, "ops": group["ops"][:1]}
        ((*_, why),) = single_rows({"groups": [single]})
        assert why.startswith("ends before an op "), why  # a sentence with a subject


def test_plans_without_a_step(step):
    plan = step.plan
    for other in (
        cutback.Plan(json.dumps(plan.problem), plan.to_json()),
        pickle.loads(pickle.dumps(plan)),
    ):
        for as_json in (False, True):
            with pytest.raises(ValueError, match=r"needs the plan of a compiled step.*step\.plan"):
                other.explain(as_json, kernels=True)


def test_the_page_has_a_block_for_each_group(step, kernels, tmp_path):
    step.plan.report(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text(encoding="utf-8")
    assert "Kernels: which operations run together" in page
    picture = report.kernels_svg(kernels)
    assert picture in page
    root = ET.fromstring(picture)
    titles = [title.text.splitlines() for title in root.iter(f"{SVG}title")]
    assert [title[0] for title in titles] == [
        f"group {i}: " + ", ".join(op["name"] for op in group["ops"])
        for i, group in enumerate(kernels["groups"])
    ]
    again = ["\n".join(title[3:]).removeprefix("recomputed: ") for title in titles]
    assert again == [
        ", ".join(op["name"] for op in group["ops"] if op["recomputed"])
        for group in kernels["groups"]
    ]
    classes = [g.get("class") for g in root.iter(f"{SVG}g")]
    assert classes.count("recomputed") == 1 + sum(map(bool, again))  # one belongs to the legend
    kinds = [kind for kind in classes if kind != "recomputed"][: len(titles)]
    assert kinds == ["fused" if len(g["ops"]) > 1 else "single" for g in kernels["groups"]]
    for group in root.iter(f"{SVG}g"):
        for box in group.iter(f"{SVG}rect"):
            x, width = float(box.get("x")), float(box.get("width"))
            assert x >= 0 and x + width <= 960
    pickle.loads(pickle.dumps(step.plan)).report(tmp_path / "plan.html")
    assert "Kernels" not in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_step_of_single_ops_says_so():
    x = np.ones((4, 4), np.float32)
    step = cutback.compile(lambda a: a @ a, argnums=None)
    step(x)
    first = step.plan.explain(kernels=True).splitlines()[0]
    assert first == "1 op, each in its own kernel. They move 128 B."


def test_out_is_for_gradients():
    x = np.ones(4, np.float32)
    step = cutback.compile(lambda a: a + a, argnums=None)
    with pytest.raises(ValueError, match="out= takes gradients"):
        step(x, out=x.copy())


def test_what_runs_again_is_marked_and_groups_say_why_they_end(model):
    step = cutback.value_and_grad(model.loss, preset="recompute_all", groups=True)
    step(model.params(), *model.data())
    kernels = json.loads(step.executable.text("kernels"))
    again = [[op["name"] for op in g["ops"] if op["recomputed"]] for g in kernels["groups"]]
    picture = report.kernels_svg(kernels)
    assert any(again) and picture.count("recomputed: ") == sum(map(bool, again))
    assert "which cannot be fused" in step.plan.explain(kernels=True)
    assert "None" not in step.plan.explain(kernels=True)
