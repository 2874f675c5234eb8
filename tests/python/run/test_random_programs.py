"""Random programs have the same bits under every plan, in the planned memory, with gradients that
agree with finite differences."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from evaluate import check_plan
from late import Late

import cutback
import cutback.nn.functional as F

POINTWISE = ("tanh", "sigmoid", "sin", "exp", "erf", "square", "absolute")
PLANS = (
    {"preset": "autograd"},
    {"preset": "conservative"},
    {"preset": "aggressive"},
    {"preset": "recompute_all"},
    {"budget": "0.75x"},
    {"budget": "0.5x"},
    {"budget": "min"},
    {"budget": "0.7x", "measure": "saved"},
    {"budget": "0.8x", "backend": "debug"},
)


@cutback.checkpoint
def region(x):
    return F.layer_norm(cutback.tanh(x) @ x.T)


def one_step(rng, a, b):
    """Makes one more square matrix from two."""
    axis = int(rng.integers(2))
    choices = (
        lambda: getattr(cutback, POINTWISE[rng.integers(len(POINTWISE))])(a * 0.5),
        lambda: a + b,
        lambda: a * b,
        lambda: a @ b,
        lambda: a.T,
        lambda: a - a.mean(axis=axis, keepdims=True),
        lambda: F.softmax(a, axis=axis),
        lambda: cutback.concatenate([a[:2], b[2:]]),
        lambda: cutback.where(a > b, a, b * 0.3),
        lambda: a[::-1],
        lambda: region(a),
    )
    return choices[rng.integers(len(choices))]()


def program(seed):
    """Returns a loss on square matrices, the same at each trace."""

    def loss(params, x):
        rng = np.random.default_rng(seed)
        values = [x, *params]
        for _ in range(rng.integers(4, 16)):
            a, b = (values[i] for i in rng.integers(len(values), size=2))
            y = one_step(rng, a, b)
            values.append(3 * y / (1 + cutback.square(y)).sum())  # stays of order 1
        return (values[-1] * values[-1]).sum() + values[-2].mean()

    return loss


def slope(loss, params, x, k, at, eps=1e-6):
    """Returns the central difference with respect to one element of one parameter."""
    ends = []
    for sign in (1, -1):
        moved = [p.copy() for p in params]
        moved[k][at] += sign * eps
        ends.append(float(loss(moved, x)))
    return (ends[0] - ends[1]) / (2 * eps)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=[pytest.mark.very_slow] * (s != 1)) for s in range(60)],
)
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    params, x = [rng.standard_normal((n, n)) for _ in range(3)], rng.standard_normal((n, n))
    loss = program(seed)
    expected = None
    for options in PLANS:
        step = cutback.value_and_grad(loss, **options)
        try:
            value, gradients = step(params, x)
        except cutback.BudgetError:
            continue
        bits = [np.asarray(a).tobytes() for a in (value, *gradients)]
        expected = expected or bits
        assert bits == expected, options
        planned = step.planned
        is_debug = options.get("backend") == "debug"
        wanted = planned.live_bytes if is_debug else planned.arena_bytes
        assert step.stats.peak_bytes == wanted

    evaluate = cutback.compile(loss, argnums=None)
    _, gradients = cutback.value_and_grad(loss)(params, x)
    for k, gradient in enumerate(gradients):
        at = tuple(rng.integers(n, size=2))
        assert gradient[at] == pytest.approx(slope(evaluate, params, x, k, at), rel=1e-4, abs=1e-6)


LATE_PLANS = (
    {"preset": "autograd"},
    {"preset": "recompute_all"},
    {"preset": "conservative"},
    {"budget": "min"},
    {"preset": "aggressive", "groups": False},
    {"budget": "min", "groups": False},
)
LATE_BUILDS = ({"backend": "debug"}, {})


def changed_plan(step, rng):
    """Returns the step's plan with some backward ops moved later and some repeated, or None if that
    is impossible."""
    plan = json.loads(step.plan.to_json())
    problem = json.loads(step.executable.text("problem"))
    late, starts = Late(problem), plan["backward_starts"]
    steps = late.delays(plan["steps"], starts, rng, rng.choice((0.1, 0.5, 1.0)))
    if rng.random() < 0.5:
        steps = late.reruns(steps, starts, rng, 0.3)
    changed = {**plan, "steps": steps, "budget_bytes": None}
    return changed if steps != plan["steps"] else None


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_late_runs_give_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    params, x = [rng.standard_normal((n, n)) for _ in range(3)], rng.standard_normal((n, n))
    loss, draw = program(seed), random.Random(seed)
    options = LATE_PLANS[seed % len(LATE_PLANS)]
    step = cutback.value_and_grad(loss, **options)
    value, gradients = step(params, x)
    expected = [np.asarray(a).tobytes() for a in (value, *gradients)]
    changed = changed_plan(step, draw)
    if changed is None:
        return
    groups = {"groups": options["groups"]} if "groups" in options else {}
    for build in LATE_BUILDS:
        late = cutback.value_and_grad(loss, plan=json.dumps(changed), **groups, **build)
        value, gradients = late(params, x)
        assert [np.asarray(a).tobytes() for a in (value, *gradients)] == expected
        own = json.loads(late.plan.to_json())
        assert own["steps"] == changed["steps"]
        check_plan(json.loads(late.executable.text("problem")), own)
        planned = late.planned.live_bytes if build else late.planned.arena_bytes
        assert late.stats.peak_bytes == planned


@pytest.mark.very_slow
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_late_runs_of_many_programs_give_the_same_bits(start):
    for seed in range(start, start + 50):
        test_late_runs_give_the_same_bits(seed)
