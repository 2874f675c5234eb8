"""Tests the extras of a compiled step, besides the update. They have the same bits as the step on
arrays from the same gradients, for every plan and number of threads, in the planned memory."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

import cutback
from cutback import optim

FAR = "CUTBACK_TEST_BACKEND" in os.environ


@pytest.fixture(autouse=True)
def on_a_cpu(request):
    if FAR and request.node.name != "test_other_backends_refuse_extras_by_name":
        pytest.skip("other backends refuse extras")


@pytest.mark.skipif(not FAR, reason="of a backend whose memory the host cannot touch")
def test_other_backends_refuse_extras_by_name():
    params = {"w": np.ones(3, np.float32)}
    step = cutback.compile(lambda p: (p["w"] * p["w"]).sum(), optimizer=optim.SGD(lr=0.1))
    with pytest.raises(NotImplementedError, match='sgd: the backend "far" only updates'):
        step(params, extras={"max_norm": 1.0})
    assert (params["w"] == 1).all()


F = cutback.nn.functional


@optim.foreach
def recorded(p, g, m, *, lr=0.1, beta=0.9):
    return p - lr * (beta * m + (1 - beta) * g), beta * m + (1 - beta) * g


KINDS = {
    "AdamW": lambda: optim.AdamW(lr=lambda t: 0.01 / (1 + t), groups=[
        {"names": "*b*", "weight_decay": 0.0}]),
    "SGD": lambda: optim.SGD(lr=0.05, momentum=0.9),
    "NAdam": lambda: optim.NAdam(lr=0.01),
    "Lion": lambda: optim.Lion(lr=0.01),
    "recorded": lambda: recorded(lr=0.01),
}  # fmt: skip
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def model(seed=0, width=150):
    """Has three layers; the gradient of the first one is summed in several pieces."""
    rng = np.random.default_rng(seed)
    sizes = [(width, width)] * 3
    return {
        "layers": [
            {"w": rng.standard_normal(s).astype("f4") / 12, "b": np.zeros(s[1], "f4")}
            for s in sizes
        ]
    }, rng.standard_normal((64, width)).astype("f4")


def loss(params, x, factor):
    for layer in params["layers"]:
        x = cutback.tanh(x @ layer["w"] + layer["b"])
    return (x * x).mean() * factor


def leaves(params):
    return cutback.tree.flatten(params)[0]


def like(params, dtype="f4", skip=()):
    """Returns an array of zeros for each leaf, and None for the leaves in `skip`."""
    flat, structure = cutback.tree.flatten(params)
    rows = [None if i in skip else np.zeros(p.shape, dtype) for i, p in enumerate(flat)]
    return cutback.tree.unflatten(structure, rows)


def arrays_of(tree):
    return [x for x in leaves(tree) if x is not None]


def everything(params, averages, copies, optimizer):
    state = optimizer.state_dict()
    rows = [*leaves(params), *arrays_of(averages), *arrays_of(copies)]
    rows += [np.asarray(state[key]) for key in sorted(state)]
    return [row.tobytes() for row in rows]


def train(make, budget, threads, steps=4, **options):
    """Returns all bytes after some steps, and the extras' findings at each step."""
    before = cutback.get_num_threads()
    cutback.set_num_threads(threads)
    try:
        (params, x), optimizer, found = model(), make(), []
        averages, copies = like(params, skip=(1,)), like(params, "f2", skip=(0, 3))
        step = cutback.compile(loss, budget=budget, optimizer=optimizer, **options)
        for t in range(steps):
            step(params, x + np.float32(t), np.float32(1000.0), extras={
                "max_norm": 0.5, "grad_scale": 4.0, "averages": averages, "average_decay": 0.9,
                "copies": copies})  # fmt: skip
            found.append(step.outcome)
            assert step.stats.peak_bytes == step.planned.arena_bytes
        return everything(params, averages, copies, optimizer), found
    finally:
        cutback.set_num_threads(before)


@each_kind
def test_as_on_arrays_whatever_the_plan_and_the_threads(make):
    (params, x), optimizer, wanted = model(), make(), []
    averages, copies = like(params, skip=(1,)), like(params, "f2", skip=(0, 3))
    gradients = cutback.grad(loss)
    for t in range(4):
        grads = gradients(params, x + np.float32(t), np.float32(1000.0))
        wanted.append(optimizer.step(params, grads, max_norm=0.5, grad_scale=4.0, copies=copies,
                                     averages=averages, average_decay=0.9))  # fmt: skip
    expected = everything(params, averages, copies, optimizer)
    assert all(found.grad_norm > 0.5 for found in wanted)
    for budget, threads, options in (
        (1.0, 1, {}), (1.0, 3, {}), ("min", 2, {}), ("min", 1, {"groups": True}),
    ):  # fmt: skip
        bits, found = train(make, budget, threads, **options)
        assert found == wanted, (budget, threads)
        assert bits == expected, (budget, threads)


@each_kind
def test_clipping_is_that_of_a_twin(make):
    """The twin clips in f64, from the same gradients."""
    (params, x), (twin, _) = model(), model()
    optimizer, plain = make(), make()
    step, gradients = cutback.compile(loss, optimizer=optimizer), cutback.grad(loss)
    for _ in range(3):
        step(params, x, np.float32(100.0), extras={"max_norm": 0.25})
        grads = gradients(twin, x, np.float32(100.0))
        norm = math.sqrt(sum((g.astype("f8") ** 2).sum() for g in leaves(grads)))
        assert step.outcome.grad_norm == pytest.approx(norm, rel=1e-6) and norm > 0.25
        short = cutback.tree.map(lambda g, n=norm: (g * (0.25 / (n + 1e-6))).astype("f4"), grads)
        plain.step(twin, short)
    for p, q in zip(leaves(params), leaves(twin), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-3, atol=3e-3 if make is KINDS["Lion"] else 1e-5)


def test_without_extras_a_step_is_what_it_was():
    (params, x), (others, _) = model(), model()
    one, two = optim.AdamW(lr=0.01), optim.AdamW(lr=0.01)
    first, second = (cutback.compile(loss, optimizer=o) for o in (one, two))
    first(params, x, np.float32(1.0), extras={"max_norm": 1e-3})
    assert first.outcome.grad_norm > 1e-3
    second(others, x, np.float32(1.0), extras={"max_norm": 1e-3})
    first(params, x, np.float32(1.0))
    second(others, x, np.float32(1.0), extras={})
    assert first.outcome == second.outcome == (None, False)
    for p, q in zip(leaves(params), leaves(others), strict=True):
        assert p.tobytes() == q.tobytes()


@each_kind
@pytest.mark.parametrize("asked", [{"grad_scale": 2.0}, {"max_norm": 1.0}], ids=str)
def test_a_gradient_that_is_not_finite_skips_the_update(make, asked):
    (params, x), optimizer = model(), make()
    averages = like(params)
    step = cutback.compile(loss, optimizer=optimizer)
    step(params, x, np.float32(1.0))
    before = everything(params, averages, averages, optimizer)
    for factor in (np.inf, np.nan):
        step(params, x, np.float32(factor), extras={"averages": averages, **asked})
        assert step.outcome.skipped and math.isnan(step.outcome.grad_norm)
        assert everything(params, averages, averages, optimizer) == before
    assert optimizer.t == 1
    step(params, x, np.float32(1.0), extras={"averages": averages, **asked})
    assert optimizer.t == 2 and not step.outcome.skipped and leaves(averages)[0].any()


def test_several_arguments_and_f64():
    def product(a, b, x):
        return (a["w"] * x).sum() + (b * x).sum()

    a, b, x = {"w": np.ones(5)}, np.ones(5), np.arange(5.0)
    averages = ({"w": np.zeros(5)}, None)
    step = cutback.compile(product, argnums=(0, 1), optimizer=optim.SGD(lr=0.5))
    step(a, b, x, extras={"averages": averages, "average_decay": 0.0})
    assert (a["w"] == 1 - 0.5 * x).all() and (b == a["w"]).all()
    assert (averages[0]["w"] == a["w"]).all()
    with pytest.raises(ValueError, match="averages must be a tuple of 2"):
        step(a, b, x, extras={"averages": averages[0]})
    with pytest.raises(ValueError, match="copies is not nested like the parameters"):
        step(a, b, x, extras={"copies": ({"v": np.zeros(5, "f2")}, None)})


def mistakes():
    f4 = lambda *shape: np.zeros(shape, "f4")  # noqa: E731
    yield {"max_norm": -1.0}, ValueError, "max_norm"
    yield {"max_norm": math.nan}, ValueError, "max_norm"
    yield {"grad_scale": 0.0}, ValueError, "grad_scale"
    yield {"average_decay": 2.0}, ValueError, "average_decay=2.0"
    yield {"zero_grads": True}, TypeError, "extras='zero_grads'; .* max_norm, averages"
    yield [1], TypeError, "pass a dict"
    yield {"averages": {"w": f4(2)}}, ValueError, r"p\['w'\]: the average is float32\[2\]"
    yield {"averages": {"w": f4(3).astype("f8")}}, ValueError, "expected float32"
    yield {"averages": {"w": [0.0] * 3}}, (ValueError, TypeError), "not nested|not a NumPy array"
    yield {"averages": {"w": f4(6)[::2]}}, ValueError, "average must be contiguous"
    yield {"copies": {"w": f4(3)}}, ValueError, "float16, bfloat16 or uint16"


@pytest.mark.parametrize(("extras", "error", "text"), list(mistakes()))
def test_mistakes_touch_nothing(extras, error, text):
    params, x = {"w": np.ones(3, "f4")}, np.ones(3, "f4")
    optimizer = optim.AdamW()
    step = cutback.compile(lambda p, x: (p["w"] * x).sum(), optimizer=optimizer)
    with pytest.raises(error, match=text):
        step(params, x, extras=extras)
    assert (params["w"] == 1).all() and optimizer.t == 0


def test_memory_that_is_shared_is_an_error():
    params, x = {"w": np.ones(3, "f4")}, np.ones(3, "f4")
    step = cutback.compile(lambda p, x: (p["w"] * x).sum(), optimizer=optim.AdamW())
    with pytest.raises(ValueError, match="overlap in memory"):
        step(params, x, extras={"averages": {"w": params["w"]}})
    with pytest.raises(ValueError, match="overlap in memory"):
        step(params, x, extras={"copies": {"w": params["w"].view("f2")[:3]}})
    assert (params["w"] == 1).all()
    with pytest.raises(ValueError, match="needs an optimizer"):
        cutback.grad(lambda p, x: (p["w"] * x).sum())(params, x, extras={"max_norm": 1.0})


def test_a_half_precision_master_steps_arrays_alone():
    params = {"w": np.ones((150, 150), "f4")}
    optimizer = optim.AdamW(half="master")
    with pytest.raises((TypeError, NotImplementedError), match=r"AdamW.*compiled step"):
        step = cutback.compile(lambda p: (p["w"] * p["w"]).sum(), optimizer=optimizer)
        step(params)
    assert (params["w"] == 1).all() and optimizer.t == 0


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("what", ["averages", "copies"])
@pytest.mark.parametrize("where", ["statistic", "data"])
def test_what_is_written_beside_shares_no_memory_with_arguments(what, where, groups):
    """An extra array may overlap neither an array that the run reads nor one that it writes; a
    refusal changes nothing."""

    def loss(p, x, mean, var):
        y = cutback.nn.functional.batch_norm(x * p["w"], mean, var, p["b"], training=True)
        return (y * y * y).mean()

    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
    mean, var = np.zeros(4, np.float32), np.ones(4, np.float32)
    params = {"w": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
    dtype = np.float32 if what == "averages" else np.float16
    apart = {key: np.zeros(4, dtype) for key in params}
    step = cutback.compile(loss, optimizer=optim.SGD(lr=0.1), groups=groups)
    more = {"average_decay": 0.5} if what == "averages" else {}
    step(params, x, mean, var, extras={what: apart, **more})
    before = [a.copy() for a in (params["w"], params["b"], x, mean, var)]
    shared = {**apart, "b": (mean if where == "statistic" else x[2]).view(dtype)[:4]}
    with pytest.raises(ValueError, match="overlap in memory"):
        step(params, x, mean, var, extras={what: shared, **more})
    after = (params["w"], params["b"], x, mean, var)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(after, before, strict=True))
