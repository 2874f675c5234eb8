"""Gradients, training steps and budgets give one result under every plan."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

BUDGETS = [None, "1.0x", 0.7, "0.5x", "min"]


def train(model, steps=3, **options):
    params = model.params()
    step = cutback.compile(model.loss, optimizer=cutback.optim.AdamW(lr=1e-2), seed=5, **options)
    losses = [float(step(params, *model.data())) for _ in range(steps)]
    return step, params, losses


def flat(params):
    return np.concatenate([w.ravel() for w in cutback.tree.flatten(params)[0]])


@pytest.mark.parametrize("budget", BUDGETS[1:])
@pytest.mark.parametrize("backend", ["cpu", "debug"])
def test_a_budget_changes_no_bit(model, budget, backend):
    _, reference, losses = train(model)
    step, params, other = train(model, budget=budget, backend=backend)
    assert other == losses
    np.testing.assert_array_equal(flat(params), flat(reference))
    planned = step.planned
    if planned.budget_bytes is not None:
        assert planned.arena_bytes <= planned.budget_bytes
    expected = planned.arena_bytes if backend == "cpu" else planned.live_bytes
    assert step.stats.peak_bytes == expected


@pytest.mark.parametrize("preset", ["autograd", "conservative", "aggressive", "recompute_all"])
def test_a_preset_changes_no_bit(model, preset):
    _, reference, _ = train(model)
    _, params, _ = train(model, preset=preset)
    np.testing.assert_array_equal(flat(params), flat(reference))


@pytest.mark.parametrize("measure", ["arena", "live", "saved", "total"])
def test_measures(model, measure):
    loose = train(model, steps=1)[0].planned
    bytes_of = {"total": "total_bytes"}.get(measure, f"save_all_{measure}_bytes")
    step, _, _ = train(model, steps=1, budget=int(getattr(loose, bytes_of) * 0.9), measure=measure)
    assert getattr(step.planned, f"{measure}_bytes") <= step.planned.budget_bytes


def test_half_the_memory_is_enough_for_a_deep_model(model):
    step, _, _ = train(model, budget="0.6x")
    assert step.planned.arena_bytes <= 0.6 * step.planned.save_all_arena_bytes
    assert step.planned.n_recomputed > 0
    assert 0 < step.planned.recompute_share < 1


def test_an_impossible_budget_says_what_is_possible(model):
    with pytest.raises(cutback.BudgetError) as told:
        train(model, budget=1000)
    assert told.value.smallest_bytes > told.value.budget_bytes == 1000
    assert issubclass(cutback.BudgetError, ValueError)


def test_no_allocation_after_warm_up(model):
    step, params, _ = train(model, steps=2)
    before = cutback._native.memory()["n_alloc"]
    step(params, *model.data())
    assert step.stats.n_alloc == 0
    assert cutback._native.memory()["n_alloc"] == before


def test_training_learns(model):
    _, _, losses = train(model, steps=60)
    assert losses[-1] < 0.5 * losses[0]


def test_adamw_is_the_formula(model):
    params, reference = model.params(), model.params()
    data = model.data()
    optimizer = cutback.optim.AdamW(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    step = cutback.compile(model.loss, optimizer=optimizer)
    vg = cutback.value_and_grad(model.loss)
    leaves = cutback.tree.flatten(reference)[0]
    m, v = ([np.zeros_like(p, np.float64) for p in leaves] for _ in range(2))
    for t in range(1, 4):
        step(params, *data)
        gradients = cutback.tree.flatten(vg(reference, *data)[1])[0]
        for p, g, mi, vi in zip(leaves, gradients, m, v, strict=True):
            mi[...] = 0.8 * mi + 0.2 * g
            vi[...] = 0.95 * vi + 0.05 * g.astype(np.float64) ** 2
            update = (mi / (1 - 0.8**t)) / (np.sqrt(vi / (1 - 0.95**t)) + 1e-6)
            p[...] = p * (1 - 0.02 * 0.1) - 0.02 * update
    np.testing.assert_allclose(flat(params), flat(reference), rtol=2e-5, atol=2e-6)


def test_optimizer_state_can_be_kept_and_taken_up(model):
    data = model.data()

    def steps(params, optimizer, n, first=0):
        step = cutback.compile(model.loss, optimizer=optimizer)
        for i in range(n):
            step(params, *data, rng_step=first + i)

    straight, halves = model.params(), model.params()
    steps(straight, cutback.optim.AdamW(), 4)
    first = cutback.optim.AdamW()
    steps(halves, first, 2)
    second = cutback.optim.AdamW()
    second.load_state_dict(first.state_dict())
    steps(halves, second, 2, first=2)
    np.testing.assert_array_equal(flat(straight), flat(halves))
    wrong = cutback.optim.AdamW()
    wrong.load_state_dict({"t": 1})
    with pytest.raises(ValueError, match="other parameters"):
        steps(model.params(), wrong, 1)


def test_optimizer_groups_and_changed_lr(model):
    data = model.data()
    optimizer = cutback.optim.AdamW(
        lr=0.0, weight_decay=0.0, groups=[{"names": "*['head']", "lr": 0.1}]
    )
    params = model.params()
    before = flat(params["layers"]).copy()
    head = params["head"].copy()
    step = cutback.compile(model.loss, optimizer=optimizer)
    step(params, *data)
    np.testing.assert_array_equal(flat(params["layers"]), before)
    assert not np.array_equal(params["head"], head)
    optimizer.lr = 0.1
    step(params, *data)
    assert not np.array_equal(flat(params["layers"]), before)
    assert step.n_compiled == 1


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Layer:
    w: object
    scale: float


def test_gradients_are_nested_like_the_arguments():
    params = {"pair": Pair(np.ones(2), [np.ones(3), None]), "layer": Layer(np.ones(2), 3.0), "n": 2}

    def loss(p, x):
        total = (p["pair"].a * x).sum() + (p["pair"].b[0] ** p["n"]).sum()
        return total + p["layer"].w.sum() * p["layer"].scale

    value, grads = cutback.value_and_grad(loss)(params, np.array([1.0, 2.0]))
    assert float(value) == 3 + 3 + 6
    np.testing.assert_array_equal(grads["pair"].a, [1, 2])
    np.testing.assert_array_equal(grads["pair"].b[0], [2, 2, 2])
    assert grads["pair"].b[1] is None and grads["n"] is None
    assert isinstance(grads["layer"], Layer) and grads["layer"].scale is None
    np.testing.assert_array_equal(grads["layer"].w, [3, 3])


def test_argnums_and_aux():
    f = lambda a, b: ((a * b).sum(), {"twice": 2 * a, "n": 3})  # noqa: E731
    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    (value, aux), (ga, gb) = cutback.value_and_grad(f, argnums=(0, 1), has_aux=True)(a, b)
    assert value == 11 and aux["n"] == 3
    np.testing.assert_array_equal(aux["twice"], 2 * a)
    np.testing.assert_array_equal(ga, b)
    np.testing.assert_array_equal(gb, a)
    g, aux = cutback.grad(f, argnums=1, has_aux=True)(a, b)
    np.testing.assert_array_equal(g, a)
    np.testing.assert_array_equal(cutback.grad(lambda a: (a**3).sum())(a), 3 * a**2)


def test_a_gradient_that_is_zero_everywhere():
    _, (ga, gb) = cutback.value_and_grad(lambda a, b: a.sum(), argnums=(0, 1))(
        np.ones(2), np.ones(3)
    )
    np.testing.assert_array_equal(ga, np.ones(2))
    np.testing.assert_array_equal(gb, np.zeros(3))


def test_out_reuses_arrays():
    vg = cutback.value_and_grad(lambda p: (p["w"] ** 2).sum())
    out = {"w": np.zeros(3)}
    _, grads = vg({"w": np.arange(3.0)}, out=out)
    assert grads["w"] is out["w"]
    np.testing.assert_array_equal(out["w"], [0, 2, 4])
    with pytest.raises(ValueError, match="nested"):
        vg({"w": np.arange(3.0)}, out=[np.zeros(3)])
    vg = cutback.value_and_grad(lambda p, q: (p["w"] ** p["n"] * q).sum(), argnums=(0, 1))
    args = ({"w": np.arange(3.0), "n": 2}, np.ones(3))
    _, first = vg(*args)
    _, second = vg(*args, out=first)
    assert second[0]["w"] is first[0]["w"] and second[0]["n"] is None
    step = cutback.compile(lambda w: (w * w).sum(), optimizer=cutback.optim.AdamW())
    with pytest.raises(ValueError, match="out= cannot be used here"):
        step(np.ones(3), out=np.zeros(3))
    with pytest.raises(ValueError, match=r"belongs to cutback.compile"):
        cutback.value_and_grad(lambda w: w.sum(), optimizer=cutback.optim.AdamW())


def test_other_shapes_types_and_constants_compile_again():
    f = cutback.compile(lambda x, n: x * n, argnums=None)
    for x, n in (
        (np.ones(2), 2),
        (np.ones(3), 2),
        (np.ones(2, np.float32), 2),
        (np.ones(2), 2.0),
        (np.ones(2), True),
        (np.ones(2), 2),
    ):
        np.testing.assert_array_equal(f(x, n), x * n)
    assert f.n_compiled == 5


def test_arrays_as_keyword_arguments():
    f = cutback.compile(lambda x, *, y: x - y, argnums=None)
    np.testing.assert_array_equal(f(np.ones(2), y=np.arange(2.0)), [1, 0])


def test_a_plan_can_be_kept_and_used_again(model):
    step, reference, _ = train(model, budget="0.6x")
    again, params, _ = train(model, plan=step.plan.to_json())
    assert again.planned.arena_bytes == step.planned.arena_bytes
    np.testing.assert_array_equal(flat(params), flat(reference))


def test_running_statistics_in_a_training_step():
    rng = np.random.default_rng(0)
    params = {
        "w": rng.standard_normal((4, 1, 3, 3), np.float32),
        "g": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
    }
    stats = {"mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32)}
    x = rng.standard_normal((2, 1, 6, 6), np.float32) + 1

    def loss(p, s, x):
        h = F.conv2d(x, p["w"])
        return F.relu(F.batch_norm(h, s["mean"], s["var"], p["g"], p["b"], training=True)).mean()

    results = []
    for budget in (None, "min"):
        p, s = cutback.tree.map(np.copy, params), cutback.tree.map(np.copy, stats)
        step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=0.1), budget=budget)
        for _ in range(3):
            step(p, s, x)
        results.append(flat((p, s)))
        assert not np.array_equal(s["mean"], stats["mean"])
    np.testing.assert_array_equal(*results)
    with pytest.raises(ValueError, match="both a parameter and a running statistic"):
        cutback.value_and_grad(lambda s, x: loss(params, s, x))(stats, x)


def test_nan_and_infinity_pass_through():
    x = np.array([np.nan, np.inf, -np.inf, 0.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(cutback.compile(lambda x: x / x, argnums=None)(x), x / x)
        np.testing.assert_array_equal(
            cutback.compile(lambda x: cutback.maximum(x, 0), argnums=None)(x), np.maximum(x, 0)
        )


def test_empty_arrays():
    value, grads = cutback.value_and_grad(lambda p, x: (x @ p).sum())(
        np.ones((3, 2)), np.ones((0, 3))
    )
    assert value == 0
    np.testing.assert_array_equal(grads, np.zeros((3, 2)))


def test_dump(model, monkeypatch, capfd):
    monkeypatch.setenv("CB_DUMP", "joint,explain")
    train(model, steps=1)
    assert "--- joint\ncutback.graph 1" in capfd.readouterr().err


def test_a_state_that_is_none():
    optimizer = cutback.optim.AdamW()
    with pytest.raises(ValueError, match="lacks 't', the number of steps"):
        optimizer.load_state_dict({"params['w'].m": np.zeros(3)})
    assert optimizer.t == 0


def test_a_step_that_compiles_again_and_again_warns_once():
    step = cutback.compile(lambda p, rate: (p * rate).sum(), argnums=None)
    with pytest.warns(
        RuntimeWarning, match=r"64 compiled.*np.float32.*\[test_training.py:"
    ) as seen:
        for i in range(70):
            step(np.ones(2), float(i))
    assert len(seen) == 1 and seen[0].filename == __file__
