"""The frontier: every point is a plan, and the independent evaluator agrees with it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback.cli import main

TESTS = Path(__file__).parents[1].parent
PROBLEMS = sorted((TESTS / "data" / "problems").glob("*.json*"))


def _referee():
    path = TESTS / "reference" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("reference_evaluate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


referee = _referee()


def _some(frontier, n=12):
    """Returns the positions of about `n` points: every kind, and both ends."""
    chosen = {round(i * (len(frontier) - 1) / (n - 1)) for i in range(n)}
    return sorted(chosen | {frontier.kind.index(kind) for kind in set(frontier.kind)})


def _check(frontier, device, n=12):
    for i in _some(frontier, n):
        plan = frontier.plan(i)
        assert plan is frontier.plan(i)
        result = referee.check_plan(plan.problem, plan.document, device)
        assert result.saved_bytes == frontier.saved_bytes[i] == plan.numbers["saved_bytes"]
        assert plan.numbers["time_ps"] == frontier.time_ps[i]
        assert plan.numbers["lower_bound_ps"] == frontier.bound_ps[i] or frontier.extra[i] == 0


@pytest.fixture
def frontier(model):
    return cutback.frontier(model.loss, model.params(), *model.data())


def test_points_are_plans(frontier):
    _check(frontier, "cpu", n=50)


@pytest.mark.parametrize(
    "path",
    [PROBLEMS[0], *(pytest.param(p, marks=pytest.mark.very_slow) for p in PROBLEMS[1:4])],
    ids=lambda path: path.stem,
)
def test_points_of_problems_are_plans(path):
    _check(cutback.frontier(path), "cpu")
    _check(cutback.frontier(path, preset="aggressive", device="a100"), "a100", n=5)


def test_points_of_traced_graphs_are_plans():
    for name in ("evonorm_s0", "transformer_encoder"):
        path = TESTS / "data" / "graphs" / f"{name}.json.gz"
        _check(cutback.frontier(path, device="a100"), "a100", n=5)


def test_a_point_that_is_not_there_is_named(frontier):
    n = len(frontier)
    assert frontier.plan(-1) is frontier.plan(n - 1)
    for point in (n, -n - 1):
        with pytest.raises(
            IndexError, match=f"point={point}: the frontier has points 0 .. {n - 1}"
        ):
            frontier.plan(point)


def test_columns(frontier):
    saved, time = np.array(frontier.saved_bytes), np.array(frontier.time_ps)
    assert len(frontier) == len(saved) == len(time) == len(frontier.kind) > 3
    assert (np.diff(saved) > 0).all() and (np.diff(time) < 0).all()
    assert (np.array(frontier.bound_ps) <= time).all() and frontier.extra[-1] >= 0
    assert frontier.extra[-1] == 0 and frontier.time_ps[-1] == frontier.once_ps


def test_baselines_lie_above(model):
    args = (model.params(), *model.data())
    frontier = cutback.frontier(model.loss, *args)
    for name, row in frontier.baselines.items():
        plan = cutback.plan(model.loss, *args, preset=name)
        assert plan.numbers["saved_bytes"] == row.saved_bytes >= frontier.saved_bytes[0]
        assert plan.numbers["time_ps"] == row.time_ps >= frontier.bound_ps[frontier.at(row[0])]


def test_at(frontier):
    assert frontier.at(2**62) == len(frontier) - 1 == frontier.at("1GiB")
    for i, saved in enumerate(frontier.saved_bytes):
        assert frontier.at(saved) == i
    if frontier.saved_bytes[0] > 0:
        with pytest.raises(cutback.BudgetError) as told:
            frontier.at(frontier.saved_bytes[0] - 1)
        assert told.value.smallest_bytes == frontier.saved_bytes[0]
        assert told.value.measure == "saved"
    with pytest.raises(IndexError):
        frontier.plan(len(frontier))
    assert frontier.plan(-1) is frontier.plan(len(frontier) - 1)


def test_presets_nest(model):
    args = (model.params(), *model.data())
    frontiers = [
        cutback.frontier(model.loss, *args, preset=preset)
        for preset in ("recompute_all", "aggressive", "conservative")
    ]
    least = [one.saved_bytes[0] for one in frontiers]
    assert least == sorted(least)
    for one in frontiers:
        assert one.baselines == frontiers[0].baselines and one.time_ps[-1] == one.once_ps


def test_policies(model):
    problem = cutback.plan(model.loss, model.params(), *model.data()).problem
    saved = cutback.frontier(problem, policy="everything_saveable")
    free = cutback.frontier(problem)
    assert saved.saved_bytes[0] >= free.saved_bytes[0]
    with pytest.raises(TypeError, match="by name"):
        cutback.frontier(problem, policy=["matmul"])


def test_picture(frontier, tmp_path):
    svg = frontier.svg()
    assert svg.startswith("<svg") and "<title>point 0: saves" in svg and "save all" in svg
    html = frontier._repr_mimebundle_()["text/html"]
    assert svg in html and html.count("point ") >= len(frontier)
    frontier.report(tmp_path / "f.html", title="A <b>")
    page = (tmp_path / "f.html").read_text()
    assert "A &lt;b&gt;" in page and "http" not in page.replace("http://www.w3.org", "")
    assert "points" in str(frontier) and "cutback.Frontier" in repr(frontier)


def test_rows(frontier):
    rows = frontier.to_rows()
    assert [row.saved_bytes for row in rows] == frontier.saved_bytes
    assert [row.extra for row in rows] == frontier.extra
    assert rows[0]._fields == ("saved_bytes", "time_ps", "extra", "bound_ps", "kind")


def test_command(model, tmp_path, capsys):
    problem = cutback.plan(model.loss, model.params(), *model.data()).problem
    path = tmp_path / "p.json"
    path.write_text(json.dumps(problem))
    report = tmp_path / "f.html"
    assert main(["frontier", str(path), "--json", "--report", str(report)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "cutback.frontier" and report.exists()
    assert document["saved_bytes"] == cutback.frontier(problem).saved_bytes
    assert main(["frontier", str(path), "--preset", "conservative"]) == 0
    assert "more time" in capsys.readouterr().out
    assert main(["frontier", str(tmp_path / "absent.json")]) == 2


def test_same_answer_every_time(model):
    args = (model.params(), *model.data())
    texts = {cutback.frontier(model.loss, *args).to_json() for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.very_slow
def test_points_of_pytorch(tmp_path):
    import evaluate_traced as referee

    path = Path(__file__).parents[2] / "data" / "graphs" / "transformer_encoder.json.gz"
    graph = referee.load(path)
    frontier = cutback.frontier(path, device="a100")
    sweep = [point for point in graph["reference"]["sweep"] if "error" not in point]
    assert [point.budget for point in frontier.references] == [one["budget"] for one in sweep]
    for point, one in zip(frontier.references, sweep, strict=True):
        theirs = referee.reference(graph, one)
        assert (point.saved_bytes, point.peak_bytes, point.redraws) == (
            theirs["saved_bytes"], theirs["peak_bytes"], theirs["redrawn"],
        )  # fmt: skip
        assert point.time_ps == pytest.approx(theirs["seconds"] * 1e12, rel=1e-6)
    kinds = {bool(point.redraws) for point in frontier.references}
    assert kinds == {True, False}
    svg = frontier.svg()
    assert svg.count("wrong gradients") == sum(point.redraws > 0 for point in frontier.references)
    frontier.report(tmp_path / "f.html", peaks=True)
    page = (tmp_path / "f.html").read_text()
    assert page.count("<svg") == 2 and "PyTorch at 0.5" in page
    whole = frontier.baselines["autograd"].peak_bytes
    sizes = [point.peak_bytes for point in frontier.peaks]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] <= 0.9 * whole
    assert cutback.frontier(frontier.problem).references == []


def test_regions_are_a_baseline(model):
    def loss(params, *data):
        return cutback.checkpoint(model.loss)(params, *data)

    args = (model.params(), *model.data())
    plain, regions = cutback.frontier(model.loss, *args), cutback.frontier(loss, *args)
    assert "regions" not in plain.baselines
    row, everything = regions.baselines["regions"], regions.baselines["recompute_all"]
    assert row.saved_bytes <= plain.baselines["autograd"].saved_bytes
    assert row.time_ps > regions.once_ps and row.saved_bytes >= everything.saved_bytes
    assert regions.baselines["autograd"].peak_bytes > 0
