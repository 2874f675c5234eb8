"""Tests plans as users see them: entries, texts, timeline, report, problems from files."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback import _native
from cutback.nn import functional as F


@pytest.fixture(params=[None, "0.6x", "min"])
def plan(request, model):
    return cutback.plan(model.loss, model.params(), *model.data(), budget=request.param)


def test_numbers_entries_and_timeline_agree(plan):
    numbers = plan.numbers
    assert max(plan.timeline()) == numbers["live_bytes"] <= numbers["arena_bytes"]
    assert {e.decision for e in plan.entries} <= {"save", "recompute", "offload"}
    assert plan.saved and all(e.location.startswith("conftest.py:") for e in plan.saved)
    assert sum({e.value: e.bytes for e in plan.saved}.values()) >= numbers["saved_bytes"] > 0
    assert (numbers["recomputed"] > 0) == bool(plan.recomputed)


def test_texts(plan):
    text = plan.explain()
    assert "conftest.py:" in text and "arena" in text
    for entry in plan.saved:
        assert entry.name in text
    assert "save everything" in str(plan) and "cutback.Plan" in repr(plan)
    bundle = plan._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"} and "<svg" in bundle["text/html"]


def test_report(plan, tmp_path):
    path = tmp_path / "out.html"
    plan.report(path, title="A <title>")
    page = path.read_text()
    assert (
        "A &lt;title&gt;" in page
        and "<svg" in page
        and "://" not in page.replace("http://www.w3.org", "")
    )


def test_min_cut_saves_less_than_autograd(model):
    args = (model.params(), *model.data())
    everything = cutback.plan(model.loss, *args)
    for preset in ("conservative", "aggressive", "recompute_all"):
        cut = cutback.plan(model.loss, *args, preset=preset)
        assert cut.numbers["saved_bytes"] <= everything.numbers["saved_bytes"]
        assert cut.document["preset"] == preset


def test_arguments_may_be_examples_without_memory():
    x = np.broadcast_to(np.float32(0), (10_000, 10_000))
    assert x.nbytes == 400_000_000 and x.strides == (0, 0)
    plan = cutback.plan(lambda w, x: cutback.tanh(x @ w).mean(), x, x)
    assert plan.numbers["saved_bytes"] == 400_000_000


def test_problems_from_files(model, tmp_path):
    made = cutback.plan(model.loss, model.params(), *model.data(), budget="0.6x")
    (tmp_path / "p.json").write_text(json.dumps(made.problem))
    with gzip.open(tmp_path / "p.json.gz", "wt") as file:
        json.dump(made.problem, file)
    forms = [
        made.problem,
        json.dumps(made.problem),
        tmp_path / "p.json",
        str(tmp_path / "p.json.gz"),
    ]
    plans = [cutback.plan(form, budget="0.6x", measure="arena") for form in forms]
    for plan in plans:
        assert plan.to_json() == made.to_json()
        assert plan.explain() == made.explain()


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"format": "cutback.problem"}', '{"format": "cutback.problem", "version": 99}'],
)
def test_problems_that_are_wrong(text):
    with pytest.raises((ValueError, TypeError)):
        cutback.plan(text)


def test_a_plan_of_another_problem_is_refused(model):
    made = cutback.plan(lambda w: (w * w).sum(), np.ones(3))
    with pytest.raises(ValueError, match="fingerprint"):
        cutback.value_and_grad(model.loss, plan=made.to_json())(model.params(), *model.data())


def test_budgets_are_monotone(model):
    args = (model.params(), *model.data())
    last = None
    for share in (1.0, 0.9, 0.8, 0.7, 0.6):
        numbers = cutback.plan(model.loss, *args, budget=f"{share}x").numbers
        assert numbers["arena_bytes"] <= share * numbers["save_all_arena_bytes"]
        if last is not None:
            assert numbers["time_ps"] >= last["time_ps"]
        last = numbers


def test_trace_shows_both_graphs(model):
    traced = cutback.trace(model.loss, model.params(), *model.data(), argnums=0)
    assert "role=param" in str(traced) and "--- backward" not in str(traced)
    assert "--- backward" in traced.joint()
    assert traced.names[:2] == ["params['head']", "params['layers'][0]"]
    several = cutback.trace(lambda x: {"a": x * 2, "b": [x.sum()]}, np.ones(3))
    assert several.out_tree[0] == "dict" and 'output "output1"' in str(several)


def test_plans_can_be_copied_and_pickled():
    step = cutback.value_and_grad(lambda x: (cutback.tanh(x) ** 2).sum())
    step(np.ones(3))
    for plan in (copy.deepcopy(step.plan), pickle.loads(pickle.dumps(step.plan))):
        assert plan.explain() == step.plan.explain()
        assert plan.entries == step.plan.entries
    again = cutback.value_and_grad(step.function, plan=pickle.loads(pickle.dumps(step.plan)))
    np.testing.assert_array_equal(again(np.ones(3))[1], step(np.ones(3))[1])


PROBLEMS = sorted((Path(__file__).parents[2] / "data" / "problems").glob("*.json.gz"))


@pytest.mark.very_slow
@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.name.split(".")[0])
@pytest.mark.parametrize(
    "options", [{"budget": "0.85x"}, {"budget": "min"}, {"preset": "aggressive"}]
)
def test_problems_of_real_models(path, options):
    plan = cutback.plan(str(path), **options)  # and the evaluator agrees
    numbers = plan.numbers
    assert numbers["live_bytes"] <= numbers["save_all_live_bytes"]
    assert numbers["saved_bytes"] < numbers["save_all_saved_bytes"]
    assert plan.recomputed and plan.explain()


@pytest.mark.parametrize("measure", ["live", "arena", "saved", "total"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("read", [True, False])
def test_an_empty_result_of_the_callers_is_made_once_in_the_forward(measure, exact, read):
    """The op has another output, which only the backward reads."""
    kinds = [["placeholder"], ["fusible"], ["fusible"], ["backward"]]
    reads = [[], [0], [1 if read else 0], [2]]
    makes = [[0], [1, 2], [3], [4]]
    ops = [
        {"name": f"op_{i}", "flags": flags, "in": j, "out": [{"storage": s} for s in out]}
        for i, (flags, j, out) in enumerate(zip(kinds, reads, makes, strict=True))
    ]
    static = [{"bytes": 64, "flags": ["static"]}, {"bytes": 0, "flags": ["static"]}]
    storages = [*static, {"bytes": 16}, {"bytes": 8}, {"bytes": 8, "flags": ["hold_end"]}]
    problem = {
        "format": "cutback.problem", "version": 2, "backward_starts": 3, "storages": storages,
        "ops": ops, "forward_outputs": [1, 3], "backward_outputs": [4],
    }  # fmt: skip
    plan = cutback.plan(problem, budget="min", measure=measure, exact=exact)
    assert 1 in plan.document["steps"][: plan.document["backward_starts"]]
    _native.Problem.read(json.dumps(problem)).evaluate_json(plan.to_json())


@pytest.mark.parametrize("preset", ["conservative", "aggressive", "shape-aware"])
def test_presets_keep_what_a_reduction_makes_small(preset):
    """Recomputing a reduction would read its whole input; here it is the sum that counts the
    labels."""

    def loss(params, x, labels):
        y = F.layer_norm(F.gelu(x * params["scale"]), params["w"], params["b"])
        return F.cross_entropy(y, labels)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 128)).astype(np.float32)
    params = {name: rng.normal(size=128).astype(np.float32) for name in ("scale", "w", "b")}
    step = cutback.value_and_grad(loss, preset=preset)
    step(params, x, rng.integers(0, 128, 64).astype(np.int32))
    groups = json.loads(step.executable.text("kernels"))["groups"]
    again = {op["kind"] for group in groups for op in group["ops"] if op["recomputed"]}
    assert "gelu" in again and not again & {"sum", "mean", "cross_entropy"}
