"""Tests profiles: kernels are in the order of the plan, with the plan's bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cutback
from cutback.run.profiling import Kernel, Part, StepProfile


@pytest.mark.parametrize("budget", [None, "0.7x"])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_a_profile_follows_the_plan(model, budget, with_optimizer):
    optimizer = cutback.optim.AdamW() if with_optimizer else None
    step = cutback.compile(model.loss, budget=budget, optimizer=optimizer)
    params = model.params()
    before = [w.copy() for w in cutback.tree.flatten(params)[0]]
    profile = step.profile(params, *model.data())
    for w, old in zip(cutback.tree.flatten(params)[0], before, strict=True):
        np.testing.assert_array_equal(w, old)
    assert step.rng_step == 0

    plan = step.plan
    ops = plan.problem["ops"]
    steps = plan.document["steps"]
    assert [k.step for k in profile.kernels] == sorted(k.step for k in profile.kernels)
    for kernel in profile.kernels:
        for part in kernel.operations():
            op = ops[steps[part.step]]
            assert (part.name, part.kind) == (op["name"], op["kind"])
        assert kernel.operations()[0].name == kernel.name and kernel.seconds >= 0
        assert sum(part.share for part in kernel.operations()) == pytest.approx(1)
    ran = [part.step for kernel in profile.kernels for part in kernel.operations()]
    views = [i for i, op in enumerate(steps) if "view" in ops[op].get("flags", [])]
    assert sorted(ran + views) == list(range(len(steps)))
    assert {k.location.split(":")[0] for k in profile.kernels} <= {"conftest.py", ""}
    again = [k for k in profile.kernels if k.recomputed]
    assert bool(again) == (budget is not None)
    assert profile.peak_bytes <= step.planned.live_bytes <= max(plan.timeline())
    assert len(profile.timeline()) == len(steps)


def test_a_function_without_gradients(model):
    step = cutback.compile(lambda x: cutback.exp(x).sum(), argnums=None)
    profile = step.profile(np.ones((8, 8)))
    assert [k.kind for k in profile.kernels] == ["exp+sum"]


def test_a_kernel_of_several():
    parts = (Part(1, "add", "add_4", 0.75), Part(3, "gelu", "gelu_5", 0.25))
    kernels = [
        Kernel(0, "gelu", "gelu_5", "", False, 3e-3, 100),
        Kernel(1, "add+gelu", "add_4", "a.py:1", False, 4e-3, 300, parts),
    ]
    profile = StepProfile(kernels, 5)
    assert profile.timeline() == [100, 300, 300, 300, 300]
    assert profile.times() == pytest.approx({"gelu_5": 2e-3, "add_4": 3e-3})
    assert profile.by_kind()[0] == ("add+gelu", 1, 4e-3)


def test_a_kernel_of_several_is_named_by_its_kinds():
    """A kernel of several operations is named by their kinds, on a backend that runs groups."""
    step = cutback.compile(lambda x: cutback.exp(-x * x).sum(), argnums=None, backend="debug")
    (kernel,) = step.profile(np.ones((8, 8), np.float32)).kernels
    assert kernel.kind == "neg+mul+2 more"
    assert [part.kind for part in kernel.parts] == ["neg", "mul", "exp", "sum"]


def test_sums_and_timeline():
    kernels = [
        Kernel(0, "exp", "exp_0", "a.py:1", False, 1e-3, 100),
        Kernel(2, "matmul", "matmul_1", "a.py:2", False, 3e-3, 300),
        Kernel(3, "exp", "exp_0", "a.py:1", True, 1e-3, 200),
    ]
    profile = StepProfile(kernels, 5)
    assert profile.seconds == pytest.approx(5e-3)
    assert profile.peak_bytes == 300
    assert profile.timeline() == [100, 100, 300, 200, 200]
    assert profile.by_kind() == [("matmul", 1, 3e-3), ("exp", 2, 2e-3)]
    lines = str(profile).splitlines()
    assert lines[1].split() == ["matmul", "1", "3.000", "60.0%"]
    assert str(StepProfile([], 0)).startswith("kernel")


@pytest.mark.parametrize("options", [{}, {"budget": "0.6x"}, {"preset": "shape-aware"}])
def test_a_step_in_groups_is_profiled_by_its_operations(options):
    """With a budget the middle of the chain is recomputed, inside the kernels that read it."""

    def loss(weights, x):
        for w in weights:
            h = cutback.nn.functional.softmax(cutback.nn.functional.gelu(x @ w + 1.0))
            x = x + h / cutback.nn.functional.sigmoid(h)
        return (x * x).sum()

    args = [np.full((64, 64), 0.01, np.float32)] * 3, np.ones((64, 64), np.float32)
    step = cutback.value_and_grad(loss, groups=True, **options)
    profile = step.profile(*args)
    groups = json.loads(step.executable.text("kernels"))["groups"]
    assert step.plan.in_groups
    for kernel, group in zip(profile.kernels, groups, strict=True):
        parts = kernel.operations()
        assert [part.name for part in parts] == [op["name"] for op in group["ops"]]
        assert [part.step for part in parts] == group["steps"] and kernel.step == parts[0].step
        assert sum(part.share for part in parts) == pytest.approx(1)
        assert kernel.recomputed == all(op["recomputed"] for op in group["ops"])
    assert sum(profile.times().values()) > 0
    single = cutback.value_and_grad(loss, groups=False).prepare(*args)
    ops = {op["name"] for op in single.plan.problem["ops"]}
    assert set(profile.times()) <= ops
    cutback.plan(single.plan.problem, profile=profile, budget="0.8x")
    assert profile.peak_bytes <= step.planned.live_bytes
    assert len(profile.timeline()) == len(step.plan.document["steps"])
    with pytest.raises(
        ValueError, match=r"are fused groups; use the problem of a step.*groups=False"
    ):
        cutback.plan(step.plan.problem, profile=profile, budget="0.8x")
