"""Tests what training loops do around a step: micro-batches, frozen parameters and schedules, on
arrays and in compiled steps."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim


def loss(params, x, y):
    hidden = cutback.nn.functional.relu(x @ params["first"])
    return ((hidden @ params["second"] - y) ** 2).mean()


def begun(dtype="f8"):
    rng = np.random.default_rng(0)
    shapes = {"first": (5, 7), "second": (7, 2)}
    return {name: rng.standard_normal(s).astype(dtype) for name, s in shapes.items()}


def batch(t, n=12):
    rng = np.random.default_rng(100 + t)
    return rng.standard_normal((n, 5)), rng.standard_normal((n, 2))


@pytest.mark.parametrize("make", [optim.AdamW, optim.Adafactor])
def test_gradients_of_micro_batches_are_those_of_the_batch(make):
    """Gradients are added up, and the step divides by their number."""
    grad = cutback.grad(loss)
    whole, parts = begun(), begun()
    one, many = make(lr=0.01), make(lr=0.01)
    for t in range(5):
        x, y = batch(t)
        one.step(whole, grad(whole, x, y))
        total = {name: np.zeros_like(p) for name, p in parts.items()}
        for k in range(3):
            some = grad(parts, x[4 * k : 4 * k + 4], y[4 * k : 4 * k + 4])
            for name, g in some.items():
                total[name] += g
        outcome = many.step(parts, total, grad_scale=3.0, zero_grads=True)
        assert not outcome.skipped and not any(g.any() for g in total.values())
    for name, p in whole.items():
        np.testing.assert_allclose(parts[name], p, rtol=1e-9, atol=1e-9)
    assert many.t == 5


@pytest.mark.parametrize("make", [optim.AdamW, optim.Adafactor, optim.SOAP, optim.AdamW8bit])
def test_a_frozen_subset_stays_as_it_is(make):
    params, grad, optimizer = begun("f4"), cutback.grad(loss), make(lr=0.1)
    before = {name: p.copy() for name, p in params.items()}
    x, y = (a.astype("f4") for a in batch(0))
    for _ in range(3):
        optimizer.step(params, {**grad(params, x, y), "first": None})
    assert params["first"].tobytes() == before["first"].tobytes()
    assert params["second"].tobytes() != before["second"].tobytes()
    state = optimizer.state_dict()
    assert state["params['first'].missed"] == 3
    assert not any(a.any() for row in optimizer.states.values() for a in row[:1] if a is not None)


def test_a_frozen_argument_of_a_compiled_step_has_no_state():
    params, frozen, optimizer = begun("f4"), {"second": begun("f4")["second"]}, optim.AdamW(lr=0.1)
    del params["second"]
    step = cutback.compile(lambda p, q, x, y: loss({**p, **q}, x, y), optimizer=optimizer)
    x, y = (a.astype("f4") for a in batch(0))
    before = [params["first"].copy(), frozen["second"].copy()]
    step(params, frozen, x, y)
    assert params["first"].tobytes() != before[0].tobytes()
    assert frozen["second"].tobytes() == before[1].tobytes()
    assert optimizer.names == ["p['first']"]


def test_schedules_are_functions_of_the_steps_taken():
    """Any option may be a schedule, also in groups; a compiled step is not compiled again."""
    seen = []

    def rate(t):
        seen.append(t)
        return 0.1 / (1 + t)

    options = {"lr": rate, "weight_decay": lambda t: 0.01 * t,
               "groups": [{"names": "*second*", "lr": lambda t: 0.01 * 2.0**-t}]}  # fmt: skip
    there, here, compiled = (begun("f4") for _ in range(3))
    scheduled, both = optim.AdamW(**options), optim.AdamW(**options)
    step, grad = cutback.compile(loss, optimizer=both), cutback.grad(loss)
    plain = optim.AdamW(groups=[{"names": "*second*"}])
    for t in range(4):
        x, y = (a.astype("f4") for a in batch(t))
        scheduled.step(there, grad(there, x, y))
        plain.lr, plain.weight_decay = 0.1 / (1 + t), 0.01 * t
        plain.groups[0]["lr"] = 0.01 * 2.0**-t
        plain.step(here, grad(here, x, y))
        step(compiled, x, y)
    assert step.n_compiled == 1 and set(seen) == {0, 1, 2, 3}
    for name, p in here.items():
        assert p.tobytes() == there[name].tobytes() == compiled[name].tobytes()
