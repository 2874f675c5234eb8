"""AdamW with moments of 8 bits: beside a twin in NumPy, to the bit, and beside AdamW in f32."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

F4 = np.float32


def mixed(x):
    x = x ^ x >> 16
    x = x * 0x7FEB352D % 2**32
    x = x ^ x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def noise(n, t):
    """20 bits for each element of m and of v: even steps through a block from a mixed begin."""
    block, i = np.divmod(np.arange(n, dtype=np.uint64), 256)
    begin = mixed((block + t * 0x9E3779B9 % 2**32) % 2**32)
    return [((x + i * 0x9E3779B9) % 2**32 >> 12).astype(int) for x in (begin, mixed(begin))]


def share(code, most):
    """Eight steps an octave, even within it; 0 for 0."""
    octave, step = np.divmod(code - most, 8)
    return np.where(code == 0, 0, 2.0**octave * (1 + step / 8))


def rounded(x, inverse, most, noise):
    """The code below or above, by how far it is to either, beside noise in 0 .. 2**20 - 1."""
    x = np.abs(x.astype(F4)) * inverse
    mantissa, octave = np.frexp(x)
    place = (octave - 1.0) * 8 + (2 * mantissa.astype("f8") - 1) * 8 + most
    code = np.floor(place + noise / 2.0**20).astype(int)
    return np.where(x == 0, 0, np.clip(code, 0, most))


def twin(x, g, t, o):
    """One step in f64; s and c are integers, scales f32, one for each 256 elements."""
    b1, b2 = o["betas"]
    n, starts = g.size, np.arange(0, g.size, 256)
    m_scale, v_scale = (np.repeat(x[key].astype("f8"), 256)[:n] for key in ("m_scale", "v_scale"))
    m = b1 * (np.sign(x["s"]) * share(np.abs(x["s"]), 127) * m_scale) + (1 - b1) * g
    v = b2 * (share(x["c"], 255) * v_scale) + (1 - b2) * g * g
    root = 1 / np.sqrt(1 - b2**t)
    rate = o["lr"] / (1 - b1**t)
    x["p"] = x["p"] * (1 - o["lr"] * o["weight_decay"]) - rate * m / (np.sqrt(v) * root + o["eps"])
    inverse = {}
    for key, moment in (("m_scale", m), ("v_scale", v)):
        x[key] = np.maximum.reduceat(np.abs(moment.astype(F4)), starts)
        inverse[key] = np.repeat(F4(1) / x[key], 256)[:n]
    first, second = noise(n, t)
    x["s"] = np.sign(m).astype(int) * rounded(m, inverse["m_scale"], 127, first)
    x["c"] = rounded(v, inverse["v_scale"], 255, second)
    x["c"][(x["c"] == 0) & (v > 0)] = 1


@pytest.mark.parametrize("n", [1, 256, 1000])
def test_the_bits_of_its_twin(n):
    rng = np.random.default_rng(0)
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    p = [rng.standard_normal(n)]
    x = {"p": p[0].copy(), "s": np.zeros(n, int), "c": np.zeros(n, int)}
    x |= {key: np.zeros(-(-n // 256), F4) for key in ("m_scale", "v_scale")}
    optimizer = optim.AdamW8bit(**options)
    for t in range(1, 20):
        g = rng.standard_normal(n) * np.exp(rng.standard_normal(n) * 3)
        optimizer.step(p, [g])
        twin(x, g, t, options)
        held = {key: row[0] for key, row in optimizer.states.items()}
        np.testing.assert_array_equal(held["m"].view(np.int8), x["s"])
        np.testing.assert_array_equal(held["v"], x["c"])
        for key in ("m_scale", "v_scale"):
            np.testing.assert_array_equal(held[key], x[key])
        np.testing.assert_allclose(p[0], x["p"], rtol=1e-13, atol=1e-15)


def test_it_learns_as_adamw_does():
    """Noise in the gradients, a decay of 0.999: what rounds to the nearest would stand still."""
    rng = np.random.default_rng(1)
    w, ends = rng.standard_normal((64, 32)), {}
    for kind in (optim.AdamW, optim.AdamW8bit):
        rng = np.random.default_rng(2)
        p = {"w": np.zeros((64, 32), "f4")}
        optimizer = kind(lr=lambda t: 0.02 * 0.995**t)
        for _ in range(1500):
            x = rng.standard_normal((16, 64)).astype("f4")
            y = x @ w + 0.1 * rng.standard_normal((16, 32))
            optimizer.step(p, {"w": (x.T @ (x @ p["w"] - y) / 16).astype("f4")})
        ends[kind.__name__] = float(np.square(p["w"] - w).mean())
    assert ends["AdamW8bit"] < 1.1 * ends["AdamW"] + 1e-6, ends


def test_its_bytes_and_its_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((300, 100)).astype("f4"), "b": np.zeros(3, "f4")}
    again = {key: p.copy() for key, p in params.items()}
    first, second = optim.AdamW8bit(), optim.AdamW8bit()
    size = 2 * sum(p.nbytes for p in params.values())
    names = ["params['w']", "params['b']"]
    assert first.state_bytes(names, list(params.values())) <= 0.27 * size
    g = {key: rng.standard_normal(p.shape).astype("f4") for key, p in params.items()}
    for _ in range(3):
        first.step(params, g)
    held = [a for row in first.states.values() for a in row]
    assert sum(a.nbytes for a in held) == first.state_bytes(names, list(params.values()))
    np.savez(tmp_path / "state.npz", **first.state_dict())
    with np.load(tmp_path / "state.npz") as state:
        second.load_state_dict(state)
    for key in again:
        again[key][...] = params[key]
    first.step(params, g)
    second.step(again, g)
    assert all(params[key].tobytes() == again[key].tobytes() for key in params)
    with pytest.raises(ValueError, match="has shape"):
        second.load_state_dict(first.state_dict() | {"params['w'].m_scale": np.zeros(3, "f4")})


@pytest.mark.parametrize(("name", "half", "key", "is_type", "wrong"), [
    ("AdamW8bit", None, "m", "uint8", "float32"), ("AdamW8bit", None, "v", "uint8", "int8"),
    ("AdamW8bit", None, "v_scale", "float32", "int64"), ("AdamW", None, "m", "float32", "uint8"),
    ("Adafactor", None, "row_var", "float32", "int32"), ("SOAP", None, "left", "float32", "uint8"),
    ("Muon", None, "m", "float32", "uint8"),
    ("AdamW", "remainder", "remainder", "uint16", "float32"),
    ("AdamW", "master", "master", "float32", "uint16"),
])  # fmt: skip
@pytest.mark.parametrize("bound", [True, False])
def test_states_of_another_kind_are_refused(name, half, key, is_type, wrong, bound):
    def make():
        params = {"w": np.ones((4, 3), "u2" if half else "f4")}
        return params, getattr(optim, name)(**({"half": half} if half else {}))

    (params, optimizer), (others, other) = make(), make()
    optimizer.step(params, others)
    if bound:
        other.step(others, params)
    state, place = optimizer.state_dict(), f"params['w'].{key}"
    assert state[place].dtype == is_type
    state[place] = state[place].astype(wrong)
    before, held = others["w"].tobytes(), str(other.state_dict())
    text = rf"{key} of params\['w'\] is {wrong}, and has to be {is_type}"
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(state)
        other.step(others, params)  # where it learns what its parameters are
    assert others["w"].tobytes() == before
    if bound:
        assert str(other.state_dict()) == held


@pytest.mark.parametrize("kind", [optim.AdamW8bit, optim.AdamW, optim.Adafactor])
@pytest.mark.parametrize("change", [lambda p: p.astype("f8"), lambda p: p.reshape(2, 6)])
def test_a_parameter_that_changes_after_a_step(kind, change):
    """Codes have neither the type nor the layout of their parameter, which would show it."""
    params, optimizer = [np.ones((4, 3), "f4")], kind(lr=0.1)
    optimizer.step(params, [np.ones((4, 3), "f4")])
    others, before = [change(params[0])], str(optimizer.state_dict())
    value = others[0].tobytes()
    with pytest.raises(ValueError, match=r"params\[0\]"):
        optimizer.step(others, [np.ones_like(others[0])])
    assert others[0].tobytes() == value and str(optimizer.state_dict()) == before
    optimizer.step(params, [np.ones((4, 3), "f4")])


def test_compiled_steps_refuse_it():
    with pytest.raises(TypeError, match="AdamW8bit keeps states in a form of its own"):
        cutback.compile(lambda p: (p["w"] ** 2).sum(), optimizer=optim.AdamW8bit())
