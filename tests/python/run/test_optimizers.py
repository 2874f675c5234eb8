"""Optimizers of compiled steps beside twins in NumPy, and their states as files."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import cutback


def loss(p, x):
    return (cutback.tanh(x @ p["w"]) @ p["b"]).mean()


def make(dtype):
    rng = np.random.default_rng(1)
    params = {"w": rng.standard_normal((5, 7)).astype(dtype)}
    params["b"] = rng.standard_normal(7).astype(dtype)
    return params, rng.standard_normal((4, 5)).astype(dtype)


def sgd_twin(p, g, b, t, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """PyTorch's formula, rounded to the type of ``p`` after each operation; the next p and b."""
    number = p.dtype.type
    d = -g if maximize else g
    if weight_decay:
        d = d + number(weight_decay) * p
    if momentum:
        b = d if t == 1 else number(momentum) * b + number(1 - dampening) * d
        d = d + number(momentum) * b if nesterov else b
    return p + number(-lr) * d, b


SGD = [
    {"momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov,
     "maximize": maximize}
    for momentum, dampening, decay, nesterov, maximize in itertools.product(
        (0.0, 0.9), (0.0, 0.25), (0.0, 0.05), (False, True), (False, True))
    if not nesterov or (momentum and not dampening)
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("options", SGD)
def test_sgd_has_the_bits_of_its_twin(options, dtype):
    (params, x), (expected, _) = make(dtype), make(dtype)
    optimizer = cutback.optim.SGD(lr=0.3, **options)
    step = cutback.compile(loss, optimizer=optimizer)
    gradients = cutback.grad(loss)
    buffers = {name: np.zeros_like(p) for name, p in params.items()}
    for t in range(1, 6):
        step(params, x)
        for name, g in gradients(expected, x).items():
            expected[name], buffers[name] = sgd_twin(
                expected[name], g, buffers[name], t, 0.3, **options
            )
        for name in params:
            assert params[name].tobytes() == expected[name].tobytes()
    held = dict(zip(optimizer.names, optimizer.states["momentum_buffer"], strict=True))
    for name, buffer in buffers.items():
        array = held[f"p[{name!r}]"]
        assert (array is None) if not options["momentum"] else array.tobytes() == buffer.tobytes()


OPTIMIZERS = {
    "adamw": lambda: cutback.optim.AdamW(lr=0.01),
    "sgd": lambda: cutback.optim.SGD(lr=0.1),
    "momentum": lambda: cutback.optim.SGD(lr=0.1, momentum=0.9, dampening=0.1),
    "mixed": lambda: cutback.optim.SGD(groups=[{"names": "*b*", "momentum": 0.9}]),
}


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_state_survives_a_file(make_optimizer, taken, tmp_path):
    (straight, x), (halves, _) = make("f4"), make("f4")
    step = cutback.compile(loss, optimizer=make_optimizer())
    for _ in range(taken + 2):
        step(straight, x)
    first = make_optimizer()
    for _ in range(taken):
        cutback.compile(loss, optimizer=first)(halves, x)
    np.savez(tmp_path / "state.npz", **first.state_dict())
    second = make_optimizer()
    with np.load(tmp_path / "state.npz") as state:
        second.load_state_dict(state)
    assert second.t == taken and set(second.state_dict()) == set(first.state_dict())
    resumed = cutback.compile(loss, optimizer=second)
    for _ in range(2):
        resumed(halves, x)
    for name in straight:
        assert straight[name].tobytes() == halves[name].tobytes()


def test_states_follow_the_groups():
    params, x = make("f4")
    optimizer = cutback.optim.SGD(lr=0.1, groups=[{"names": "*w*", "momentum": 0.5}])
    step = cutback.compile(loss, optimizer=optimizer)
    step(params, x)
    assert set(optimizer.state_dict()) == {"t", "p['w'].momentum_buffer"}
    optimizer.momentum = 0.9  # a group that gets one later begins with zeros
    step(params, x)
    assert set(optimizer.state_dict()) == {
        "t", "p['w'].momentum_buffer", "p['b'].momentum_buffer"
    }  # fmt: skip
    gradient = cutback.grad(loss)(params, x)["b"]
    optimizer.momentum = 0.0  # what is there stays, unread
    before, kept = params["b"].copy(), optimizer.states["momentum_buffer"][0].copy()
    step(params, x)
    assert params["b"].tobytes() == (before + np.float32(-0.1) * gradient).tobytes()
    assert optimizer.states["momentum_buffer"][0].tobytes() == kept.tobytes()


def test_a_budget_on_the_total_counts_the_states_there_are():
    params, x = make("f4")
    size = sum(p.nbytes for p in params.values())
    total = {
        name: cutback.compile(loss, optimizer=make()).prepare(params, x).planned.total_bytes
        for name, make in OPTIMIZERS.items()
    }
    assert total["momentum"] - total["sgd"] == size
    assert total["adamw"] - total["sgd"] == 2 * size
    assert total["mixed"] - total["sgd"] == params["b"].nbytes


def test_the_state_of_another_optimizer_is_refused():
    params, x = make("f4")
    adamw, sgd = cutback.optim.AdamW(), cutback.optim.SGD(momentum=0.9)
    cutback.compile(loss, optimizer=adamw)(params, x)
    cutback.compile(loss, optimizer=sgd)(params, x)
    with pytest.raises(ValueError, match=r"SGD has no \"p\['b'\].m\""):
        sgd.load_state_dict(adamw.state_dict())
    with pytest.raises(ValueError, match=r"<parameter>.m and <parameter>.v"):
        cutback.optim.AdamW().load_state_dict(sgd.state_dict())
    with pytest.raises(ValueError, match=r"it has no momentum_buffer of p\['b'\]"):
        sgd.load_state_dict({"t": 3})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lr": -1}, "SGD: lr=-1.0 is not finite and at least 0"),
        ({"momentum": -0.1}, "SGD: momentum=-0.1 is not"),
        ({"dampening": float("nan")}, "SGD: dampening=nan is not finite"),
        ({"nesterov": True}, "nesterov needs a momentum and no dampening"),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov needs a momentum"),
        ({"nesterov": 1}, "SGD: nesterov=1 is neither True nor False"),
        ({"weight_decay": float("inf")}, "SGD: weight_decay=inf"),
        ({"groups": [{"names": "*", "betas": (0, 0)}]}, "a group has 'names' and any of lr, mom"),
    ],
)
def test_hyper_parameters_of_sgd_are_refused_by_name(options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        cutback.optim.SGD(**options)
