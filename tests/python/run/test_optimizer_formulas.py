"""Compares optimizers on f64 arrays with their papers' formulas in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutback import optim


def adam_twin(p, g, m, v, w, t, o, decoupled):
    """Returns the next p, m, v and v_max, in f64."""
    g = -g if o["maximize"] else g
    if decoupled:
        p = p * (1 - o["lr"] * o["weight_decay"])
    else:
        g = g + o["weight_decay"] * p
    b1, b2 = o["betas"]
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    w = np.maximum(w, v)
    root = np.sqrt((w if o["amsgrad"] else v) / (1 - b2**t))
    return p - o["lr"] * (m / (1 - b1**t)) / (root + o["eps"]), m, v, w


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("amsgrad", "maximize"), [(False, False), (True, False), (True, True)])
def test_adam_is_its_twin(kind, decay, amsgrad, maximize):
    options = {"lr": 0.05, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": decay,
               "amsgrad": amsgrad, "maximize": maximize}  # fmt: skip
    rng = np.random.default_rng(0)
    p = rng.standard_normal(50)
    expected, m, v, w = p.copy(), *(np.zeros(50) for _ in range(3))
    optimizer = kind(**options)
    for t in range(1, 30):
        g = rng.standard_normal(50) * np.exp(-t / 5)
        optimizer.step([p], [g])
        expected, m, v, w = adam_twin(expected, g, m, v, w, t, options, kind is optim.AdamW)
    np.testing.assert_allclose(p, expected, rtol=1e-12, atol=1e-13)
    (held,) = optimizer.states["v_max"]
    assert np.allclose(held, w, rtol=1e-12) if amsgrad else held is None


def radam_twin(x, g, t, o):
    b1, b2 = o["betas"]
    if o["decoupled_weight_decay"]:
        x["p"] = x["p"] * (1 - o["lr"] * o["weight_decay"])
    else:
        g = g + o["weight_decay"] * x["p"]
    x["m"] = b1 * x["m"] + (1 - b1) * g
    x["v"] = b2 * x["v"] + (1 - b2) * g * g
    most = 2 / (1 - b2) - 1
    rho = most - 2 * t * b2**t / (1 - b2**t)
    step = o["lr"] * x["m"] / (1 - b1**t)
    if rho > 5:
        rect = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
        step = step * rect * np.sqrt(1 - b2**t) / (np.sqrt(x["v"]) + o["eps"])
    x["p"] = x["p"] - step


def adamax_twin(x, g, t, o):
    b1, b2 = o["betas"]
    g = g + o["weight_decay"] * x["p"]
    x["m"] = b1 * x["m"] + (1 - b1) * g
    x["u"] = np.maximum(b2 * x["u"], np.abs(g) + o["eps"])
    x["p"] = x["p"] - o["lr"] / (1 - b1**t) * x["m"] / x["u"]


def adagrad_twin(x, g, t, o):
    g = g + o["weight_decay"] * x["p"]
    if t == 1:
        x["sum"] = x["sum"] + o["initial_accumulator_value"]
    x["sum"] = x["sum"] + g * g
    rate = o["lr"] / (1 + (t - 1) * o["lr_decay"])
    x["p"] = x["p"] - rate * g / (np.sqrt(x["sum"]) + o["eps"])


def adadelta_twin(x, g, t, o):
    rho, eps = o["rho"], o["eps"]
    g = g + o["weight_decay"] * x["p"]
    x["square_avg"] = rho * x["square_avg"] + (1 - rho) * g * g
    d = np.sqrt(x["acc_delta"] + eps) / np.sqrt(x["square_avg"] + eps) * g
    x["acc_delta"] = rho * x["acc_delta"] + (1 - rho) * d * d
    x["p"] = x["p"] - o["lr"] * d


def rmsprop_twin(x, g, t, o):
    alpha = o["alpha"]
    g = g + o["weight_decay"] * x["p"]
    x["square_avg"] = spread = alpha * x["square_avg"] + (1 - alpha) * g * g
    if o["centered"]:
        x["grad_avg"] = alpha * x["grad_avg"] + (1 - alpha) * g
        spread = spread - x["grad_avg"] ** 2
    q = g / (np.sqrt(spread) + o["eps"])
    if o["momentum"]:
        q = x["momentum_buffer"] = o["momentum"] * x["momentum_buffer"] + q
    x["p"] = x["p"] - o["lr"] * q


def lion_twin(x, g, t, o):
    b1, b2 = o["betas"]
    x["p"] = x["p"] * (1 - o["lr"] * o["weight_decay"])
    x["p"] = x["p"] - o["lr"] * np.sign(b1 * x["m"] + (1 - b1) * g)
    x["m"] = b2 * x["m"] + (1 - b2) * g


def nadam_twin(x, g, t, o):
    b1, b2 = o["betas"]
    if o["decoupled_weight_decay"]:
        x["p"] = x["p"] * (1 - o["lr"] * o["weight_decay"])
    else:
        g = g + o["weight_decay"] * x["p"]
    mu, following = (b1 * (1 - 0.96 ** (k * o["momentum_decay"]) / 2) for k in (t, t + 1))
    product = x["mu_product"] = x.get("mu_product", 1.0) * mu
    x["m"] = b1 * x["m"] + (1 - b1) * g
    x["v"] = b2 * x["v"] + (1 - b2) * g * g
    d = (1 - mu) / (1 - product) * g + following / (1 - product * following) * x["m"]
    x["p"] = x["p"] - o["lr"] * d / (np.sqrt(x["v"] / (1 - b2**t)) + o["eps"])


def ademamix_twin(x, g, t, o):
    b1, b2, b3 = o["betas"]
    if t < o["beta3_warmup"]:
        part = t / o["beta3_warmup"]
        shape = (1 - part) * np.log(b3) + part * np.log(b1)
        b3 = min(np.exp(np.log(b1) * np.log(b3) / shape), b3)
    alpha = o["alpha"] * min(1, t / o["alpha_warmup"] if o["alpha_warmup"] else 1)
    x["m"] = b1 * x["m"] + (1 - b1) * g
    x["l"] = b3 * x["l"] + (1 - b3) * g
    x["v"] = b2 * x["v"] + (1 - b2) * g * g
    d = (x["m"] / (1 - b1**t) + alpha * x["l"]) / (np.sqrt(x["v"] / (1 - b2**t)) + o["eps"])
    x["p"] = x["p"] - o["lr"] * (d + o["weight_decay"] * x["p"])


def adopt_twin(x, g, t, o):
    b1, b2 = o["betas"]
    if not o["decoupled_weight_decay"]:
        g = g + o["weight_decay"] * x["p"]
    if t == 1:
        x["v"] = g * g
        return
    if o["decoupled_weight_decay"]:
        x["p"] = x["p"] * (1 - o["lr"] * o["weight_decay"])
    u = g / np.maximum(np.sqrt(x["v"]), o["eps"])
    if o["clip"]:
        u = np.clip(u, -((t - 1) ** 0.25), (t - 1) ** 0.25)
    x["m"] = b1 * x["m"] + (1 - b1) * u
    x["p"] = x["p"] - o["lr"] * x["m"]
    x["v"] = b2 * x["v"] + (1 - b2) * g * g


def asgd_twin(x, g, t, o):
    eta, mu = x.get("eta", o["lr"]), x.get("mu", 1.0)
    g = g + o["weight_decay"] * x["p"]
    x["p"] = x["p"] * (1 - o["lambd"] * eta) - eta * g
    x["ax"] = x["p"] if mu == 1 else x["ax"] + (x["p"] - x["ax"]) * mu
    x["eta"] = o["lr"] / (1 + o["lambd"] * o["lr"] * t) ** o["alpha"]
    x["mu"] = 1 / max(1, t - o["t0"])


def rprop_twin(x, g, t, o):
    if t == 1:
        x["step_size"] = np.full(50, o["lr"])
    turn = np.sign(g * x["prev"])
    factor = np.select([turn < 0, turn > 0], o["etas"], 1.0)
    x["step_size"] = np.clip(x["step_size"] * factor, *o["step_sizes"])
    x["prev"] = np.where(turn < 0, 0, g)
    x["p"] = x["p"] - np.sign(x["prev"]) * x["step_size"]


def schedule_free_twin(x, g, t, o):
    """Steps as in the paper, with y, z and x separate; ``p`` is y."""
    b1, b2 = o["betas"]
    if t == 1:
        x |= {"z": x["p"], "x": x["p"], "weight_sum": 0.0, "lr_max": 0.0}
    rate = o["lr"] * (min(1, t / o["warmup_steps"]) if o["warmup_steps"] else 1)
    x["lr_max"] = max(x["lr_max"], rate)
    weight = t ** o["r"] * x["lr_max"] ** o["weight_lr_power"]
    x["weight_sum"] += weight
    c = weight / x["weight_sum"]
    x["v"] = b2 * x["v"] + (1 - b2) * g * g
    u = g / (np.sqrt(x["v"] / (1 - b2**t)) + o["eps"]) + o["weight_decay"] * x["p"]
    x["z"] = x["z"] - rate * u
    x["x"] = (1 - c) * x["x"] + c * x["z"]
    x["p"] = (1 - b1) * x["z"] + b1 * x["x"]


NEWER = [
    *[(optim.NAdam, nadam_twin, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1,
                                 "momentum_decay": 0.05, "decoupled_weight_decay": decoupled})
      for decoupled in (False, True)],
    *[(optim.AdEMAMix, ademamix_twin, {"lr": 0.05, "betas": (0.8, 0.9, 0.95), "alpha": 3.0,
                                       "eps": 1e-6, "weight_decay": 0.1, "alpha_warmup": warmup,
                                       "beta3_warmup": warmup}) for warmup in (0, 10)],
    *[(optim.ADOPT, adopt_twin, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.1,
                                 "decoupled_weight_decay": decoupled, "clip": clip})
      for decoupled, clip in itertools.product((False, True), repeat=2)],
    *[(optim.ASGD, asgd_twin, {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": t0,
                               "weight_decay": 0.1}) for t0 in (0, 8)],
    (optim.Rprop, rprop_twin, {"lr": 0.05, "etas": (0.5, 1.5), "step_sizes": (1e-3, 0.1)}),
    *[(optim.ScheduleFreeAdamW, schedule_free_twin, {
        "lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "warmup_steps": warmup,
        "r": r, "weight_lr_power": 2.0}) for warmup, r in ((0, 0.0), (7, 1.5))],
]  # fmt: skip
TWINS = [
    *NEWER,
    (optim.RAdam, radam_twin, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1,
                               "decoupled_weight_decay": True}),
    (optim.RAdam, radam_twin, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1,
                               "decoupled_weight_decay": False}),
    (optim.Adamax, adamax_twin, {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6,
                                 "weight_decay": 0.1}),
    (optim.Adagrad, adagrad_twin, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1,
                                   "initial_accumulator_value": 0.5, "eps": 1e-6}),
    (optim.Adadelta, adadelta_twin, {"lr": 0.5, "rho": 0.8, "eps": 1e-6, "weight_decay": 0.1}),
    *[(optim.RMSprop, rmsprop_twin, {"lr": 0.01, "alpha": 0.9, "eps": 0.1, "weight_decay": 0.1,
                                     "momentum": momentum, "centered": centered})
      for momentum in (0.0, 0.5) for centered in (False, True)],
    (optim.Lion, lion_twin, {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("kind", "twin", "options"), TWINS)
def test_others_are_their_twins(kind, twin, options, maximize):
    rng = np.random.default_rng(0)
    p = rng.standard_normal(50)
    optimizer = kind(**options, maximize=maximize)
    x = {state: np.zeros(50) for state in optimizer.states} | {"p": p.copy()}
    for t in range(1, 30):
        g = rng.standard_normal(50) * np.exp(-t / 10)
        optimizer.step([p], [g])
        twin(x, -g if maximize else g, t, options)
    np.testing.assert_allclose(p, x["p"], rtol=1e-10, atol=1e-12)
    for state, (held,) in optimizer.states.items():
        if held is not None:
            np.testing.assert_allclose(held, x[state], rtol=1e-10, atol=1e-12)
    for key in {"mu_product", "eta", "mu", "weight_sum", "lr_max"} & set(x):
        assert optimizer.state_dict()[f"params[0].{key}"] == pytest.approx(x[key], rel=1e-12)
    again = kind(**options, maximize=maximize)
    again.load_state_dict(optimizer.state_dict())
    q = p.copy()
    for o, array in ((optimizer, p), (again, q)):
        o.step([array], [np.ones(50)])
    assert p.tobytes() == q.tobytes()


def test_a_schedule_free_mean_and_back():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal(50)]
    optimizer = optim.ScheduleFreeAdamW(lr=0.05, betas=(0.8, 0.9))
    x = {"p": params[0].copy(), "v": np.zeros(50)}
    for t in range(1, 10):
        g = rng.standard_normal(50)
        optimizer.step(params, [g])
        schedule_free_twin(x, g, t, {
            "lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.0, "warmup_steps": 0,
            "r": 0.0, "weight_lr_power": 2.0})  # fmt: skip
    optimizer.eval(params)
    np.testing.assert_allclose(params[0], x["x"], rtol=1e-10, atol=1e-12)
    optimizer.train(params)
    np.testing.assert_allclose(params[0], x["p"], rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="not the parameters"):
        optimizer.eval({"w": params[0]})


@pytest.mark.parametrize("kind", [optim.Adadelta, optim.RMSprop, optim.Lion, optim.RAdam])
def test_options_of_others_are_refused_by_name(kind):
    options = {"Adadelta": {"rho": 1.5}, "RMSprop": {"alpha": -1}, "Lion": {"betas": (1, 0)},
               "RAdam": {"decoupled_weight_decay": 1}}[kind.__name__]  # fmt: skip
    with pytest.raises((ValueError, TypeError), match=f"{kind.__name__}: "):
        kind(**options)
    with pytest.raises(ValueError, match="lr=nan must be finite"):
        kind(lr=float("nan"))


def units(x, y):
    """Returns the largest difference, in f32 ulps of the largest number."""
    return np.abs(x - y).max() / np.spacing(np.float32(np.abs(y).max()))


SMOOTH = [(kind, options) for kind, _, options in TWINS if kind not in (optim.Lion, optim.Rprop)]
SMOOTH += [(optim.Adam, {"lr": 0.05}), (optim.AdamW, {"lr": 0.05, "amsgrad": True}),
           (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True})]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), SMOOTH)
def test_f32_stays_near_f64(kind, options):
    """Takes a hundred steps on the same numbers. Lion and Rprop follow signs, where one different
    sign is a different step, so there is no such bound for them."""
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal(2000)]
    p = [whole[0].astype("f4")]
    whole[0][:] = p[0]
    single, double = kind(**options), kind(**options)
    for _ in range(100):
        g = rng.standard_normal(2000).astype("f4")
        single.step(p, [g])
        double.step(whole, [g.astype("f8")])
    assert units(p[0], whole[0]) <= 64
    for state, (held,) in single.states.items():
        if held is not None:
            assert units(held, double.states[state][0]) <= 64


def test_lamb_is_its_paper_s_formula_in_f64():
    """Takes a hundred steps in f32 on tensors of many sizes, one of them zeros, whose norms are
    0."""
    rng = np.random.default_rng(0)
    lr, b1, b2, eps, decay = 0.02, 0.8, 0.95, 1e-6, 0.1
    params = [rng.standard_normal(n).astype("f4") for n in (1, 50, 20_000, 70_001)]
    params.append(np.zeros(10, "f4"))
    expected = [p.astype("f8") for p in params]
    moments = [(np.zeros(p.size), np.zeros(p.size)) for p in params]
    optimizer = optim.LAMB(lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=decay)
    for t in range(1, 101):
        grads = [rng.standard_normal(p.size).astype("f4") for p in params]
        grads[-1][:] = 0
        optimizer.step(params, grads)
        for p, (m, v), g in zip(expected, moments, grads, strict=True):
            m[:] = b1 * m + (1 - b1) * g
            v[:] = b2 * v + (1 - b2) * np.square(g, dtype="f8")
            u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * p
            length, step = np.linalg.norm(p), np.linalg.norm(u)
            p -= lr * (length / step if length and step else 1) * u
    for p, q in zip(params[:-1], expected, strict=False):
        assert units(p, q) <= 64
    assert not params[-1].any()
