"""``cutback.estimate``: the figures at each batch size are those of plans, and of steps that
run."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

import cutback as cb
from cutback import cli
from cutback.frontend import estimating as door
from cutback.nn import functional as F
from cutback.planner.scaling import FIRST, SECOND, Family, numbers_of

WIDTH, LAYERS = 16, 4


def params() -> Any:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((WIDTH, WIDTH), np.float32) for _ in range(LAYERS)]


def loss(p: Any, x: Any, y: Any) -> Any:
    for w in p:
        x = cb.tanh(x @ w)
    return F.cross_entropy(x, y)


def arrays(batch: int) -> Any:
    """Returns the arguments of a step."""
    return params(), np.zeros((batch, WIDTH), np.float32), np.zeros(batch, np.int64)


def make_step(batch: int) -> Any:
    x = np.broadcast_to(np.float32(0), (batch, WIDTH))
    return loss, (params(), x, np.zeros(batch, np.int64)), cb.optim.AdamW()


def contrast(p: Any, x: Any) -> Any:
    z = x @ p[0]
    return F.cross_entropy(z @ z.T, cb.arange(z.shape[0]))


def make_contrast(batch: int) -> Any:
    return contrast, (params(), np.broadcast_to(np.float32(0), (batch, WIDTH)))


@pytest.mark.very_slow
def test_the_largest_batch_runs_within_the_budget() -> None:
    budget = 100_000
    found = cb.estimate(make_step, budget, device="a100")
    assert found.is_linear and found.batch is not None
    point = found.point(found.batch)
    assert point.within is not None and point.within.bytes <= budget
    step = cb.compile(loss, budget=budget, measure="total", optimizer=cb.optim.AdamW())
    step(*arrays(found.batch))
    assert step.planned.total_bytes <= budget
    with pytest.raises(cb.BudgetError):
        step(*arrays(2 * found.batch))


def test_figures_are_those_of_plans() -> None:
    found = cb.estimate(make_step, measure="live", batches=[8, 104])
    for point in found.points:
        step = cb.compile(loss, measure="live", optimizer=cb.optim.AdamW(), groups=False)
        step(*arrays(point.batch))
        assert point.without_plan.bytes == step.planned.live_bytes
        assert point.without_plan.seconds == pytest.approx(step.planned.once_ps / 1e12)
        sizes = [figure.bytes for figure in point.plans.values()]
        assert sizes[-1] == min(sizes) and sizes[0] <= point.without_plan.bytes
    assert found.batch is None and found.budget_bytes is None


@pytest.mark.very_slow
def test_slices_count() -> None:
    def make(batch: int) -> Any:
        x = np.broadcast_to(np.float32(0), (64 * batch, 8))
        return head, (np.zeros((8, 512), np.float32), x, np.zeros(64 * batch, np.int64))

    def head(w: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(x @ w, y)

    found = cb.estimate(make, measure="live", batches=[16, 32], slices=True)
    step = cb.value_and_grad(head, slices=True)
    for point in found.points:
        step.prepare(*make(point.batch)[1])
        logits = 64 * point.batch * 512 * 4
        assert point.without_plan.bytes == step.planned.live_bytes < 0.6 * logits


def test_predicted_sizes_are_those_of_traces() -> None:
    family = Family(lambda batch: door._problem_of(make_step(batch), False))
    assert family.is_linear
    for batch in (2, 8, 56, 1000):
        predicted = numbers_of(family.problem(batch))
        traced = numbers_of(door._problem_of(make_step(batch), False))
        for one, other in zip(predicted, traced, strict=True):
            assert one == other or abs(one - other) <= 64
    assert family.n_traced == 2


def test_sizes_that_are_not_linear_are_traced() -> None:
    told = []

    def noted(batch: int) -> Any:
        told.append(batch)
        return make_contrast(batch)

    found = cb.estimate(noted, measure="live", batches=[4, 48])
    assert not found.is_linear and {4, 48, FIRST, SECOND} <= set(told)
    assert len(told) == len(set(told))
    assert "each batch was traced" in str(found)


def test_texts() -> None:
    assert "no batch fits 1000 B (total)" in str(cb.estimate(make_step, 1000))
    found = cb.estimate(make_step, "1MB", most=40)
    assert found.batch == 40 and f"batch {found.batch}: " in str(found)
    assert json.loads(json.dumps(found.document()))["batch"] == 40
    with pytest.raises(KeyError):
        found.point(39)


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (lambda n: loss, {}, TypeError, "it returned function"),
        (lambda p, x: p, {}, TypeError, r"a function make_step\(batch\).*got <lambda>\(p, x\)"),
        (3, {}, TypeError, "for a batch size, got int"),
        (lambda n: (loss, [1]), {}, TypeError, "its arguments are list"),
        (lambda n: (loss, (1,), 3), {}, TypeError, "its optimizer is int"),
        (make_step, {"slices": 1}, TypeError, "slices"),
        (make_step, {"measure": "saved"}, ValueError, "measure='saved'"),
        (make_step, {"batches": [0]}, ValueError, r"batches=\[0\]"),
        (make_step, {"most": 0}, ValueError, "most=0"),
        (make_step, {"budget": "much"}, ValueError, "budget='much'"),
    ],
)
def test_mistakes(make: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        cb.estimate(make, **options)


def test_command(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    name = "steps_of_test_estimate"
    (tmp_path / f"{name}.py").write_text(
        "import numpy as np, cutback as cb\n"
        "def make(n):\n"
        "    return lambda w, x: cb.tanh(x @ w).sum(), (np.ones((4, 4)), np.ones((n, 4)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.main(["estimate", f"{name}:make", "--budget", "4kB", "--device", "a100"]) == 0
    assert "batch" in capsys.readouterr().out.splitlines()[1]
    assert cli.main(["estimate", f"{name}:make", "--batches", "8,9", "--json"]) == 0
    assert [p["batch"] for p in json.loads(capsys.readouterr().out)["points"]] == [8, 9]
    for spec, text in [(f"{name}:other", "no function other"), ("make", "MODULE:FUNCTION"),
                       ("a/b.py:make", "write a.b:make"),
                       ("no_such_module:make", "no_such_module")]:  # fmt: skip
        assert cli.main(["estimate", spec]) == 2
        assert text in capsys.readouterr().err
    assert cli.main(["estimate", f"{name}:make", "--batches", "8,x"]) == 2
