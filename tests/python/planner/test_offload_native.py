"""Plans that move values to the host and back, run by our own executor: on a CPU the moves are
copies, and no bit changes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import cutback
from cutback import CheckpointPolicy, policies
from cutback.nn import functional as F

RNG = np.random.default_rng(0)
W = {f"w{i}": RNG.standard_normal((16, 16)).astype(np.float32) / 4 for i in range(5)}
X = RNG.standard_normal((8, 16)).astype(np.float32)
ANSWERS = [
    CheckpointPolicy.MUST_OFFLOAD,
    CheckpointPolicy.PREFER_OFFLOAD,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.PREFER_RECOMPUTE,
    None,
]


def loss(params: Any, x: Any) -> Any:
    """Computes a loss with views between products, and norms with several results."""
    for w in params.values():
        x = cutback.tanh(cutback.exp(cutback.sin(x @ w) * 0.1) + x.T.reshape(8, 16))
        x = F.dropout(F.layer_norm(x, (16,)), 0.1)
    return (x * x).mean()


def gradients(step: Any) -> list[np.ndarray[Any, Any]]:
    """Returns the value and gradients. Skips if the backend's memory is not the host's."""
    try:
        value, grads = step(W, X)
    except NotImplementedError as error:
        assert "backend far cannot run" in str(error)
        pytest.skip("moves run where memory is the host's")
    return [np.asarray(value), *grads.values()]


EXPECTED = [
    np.asarray(part)
    for part in (lambda v: [v[0], *v[1].values()])(cutback.value_and_grad(loss)(W, X))
]


def assert_bits(got: list[Any], expected: list[Any] = EXPECTED) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backend", ["cpu", "debug", "ref"])
@pytest.mark.parametrize("seed", range(12))
def test_random_wishes(seed: int, backend: str) -> None:
    """One plan has offloaded, saved and recomputed values."""
    chance = random.Random(seed)
    step = cutback.value_and_grad(
        loss, policy=lambda *_, **__: chance.choice(ANSWERS), backend=backend
    )
    first = gradients(step)
    if backend == "ref":  # a different order of sums
        for a, b in zip(first, EXPECTED, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    else:
        assert_bits(first)
    assert step.plan.offloaded
    if backend == "debug":
        assert step.stats.peak_bytes == step.plan.numbers["live_bytes"]
    step.rng_step = 0  # the same dropout masks again
    assert_bits(gradients(step), first)


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("budget", "offload"),
    [
        pytest.param("0.7x", True, marks=pytest.mark.very_slow),
        ("0.7x", "only"), ("0.4x", True), ("0.4x", "only"),
    ],
)  # fmt: skip
def test_plans_under_budgets(budget: float, offload: bool | str) -> None:
    plan = cutback.plan(loss, W, X, budget=budget, offload=offload)
    step = cutback.value_and_grad(loss, plan=plan)
    assert_bits(gradients(step))
    assert plan.offloaded and step.stats.peak_bytes <= plan.numbers["arena_bytes"]


def test_a_training_step() -> None:
    """States and gradients are kept inside the step, over several steps."""
    trained = []
    for policy in (None, policies.offload_dot_with_no_batch_dims("device", "pinned_host")):
        params = {name: w.copy() for name, w in W.items()}
        step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=1e-2), policy=policy)
        try:
            for _ in range(3):
                step(params, X)
        except NotImplementedError as error:
            assert "backend far cannot run" in str(error)
            pytest.skip("moves run where memory is the host's")
        trained.append(list(params.values()))
    assert_bits(trained[1], trained[0])
    assert [e.kind for e in step.plan.offloaded] == ["matmul"] * len(W)


def test_named_values_leave() -> None:
    def named(params: Any, x: Any) -> Any:
        for w in params.values():
            x = cutback.checkpoint_name(cutback.sin(x @ w), "sine")
            x = cutback.exp(x * 0.1)
        return (x * x).mean()

    policy = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["sine"]
    )
    step = cutback.value_and_grad(named, policy=policy)
    got = gradients(step)
    plain = cutback.value_and_grad(named)
    assert_bits(got, gradients(plain))
    assert {e.kind for e in step.plan.offloaded} == {"sin"}


def test_what_moves_is_planned_op_by_op() -> None:
    steps = [
        cutback.value_and_grad(
            loss, policy=lambda *_, **__: CheckpointPolicy.MUST_OFFLOAD, groups=groups
        )
        for groups in (True, False)
    ]
    assert_bits(*(gradients(step) for step in steps))
    assert not steps[0].plan.in_groups and steps[0].plan.offloaded
