"""Compares AdamW with 8-bit moments bitwise with a twin in NumPy, and with AdamW in f32."""

from __future__ import annotations

import numpy as np
import pytest

from cutback import optim

F4 = np.float32


def mixed(x):
    x = x ^ x >> 16
    x = x * 0x7FEB352D % 2**32
    x = x ^ x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def noise(n, t):
    """Returns 32 bits for each element: a Weyl sequence over a block from a hashed start."""
    block, i = np.divmod(np.arange(n, dtype=np.uint64), 256)
    start = mixed((block + t * 0x9E3779B9 % 2**32) % 2**32)
    return (start + i * 0x9E373505) % 2**32


def power(x, n):
    """Computes x ** n by repeated products, as in the core, so that the bits are the same."""
    whole = 1.0
    while n:
        whole, x, n = (whole * x if n & 1 else whole), x * x, n >> 1
    return whole


def bits(x):
    return x.astype(F4).view(np.uint32).astype(np.int64)


def roots(code, v_scale, n):
    """Decodes roots. Codes from 1 on stand for evenly spaced bit patterns of f32."""
    first, most = (np.repeat(bits(v_scale[:, k]), 256)[:n] for k in (0, 1))
    step = (most - first) // 253 + 1
    found = np.where(code == 0, 0, first + (code.astype(np.int64) - 1) * step)
    return found.astype(np.uint32).view(F4), first, step


def raised(x, base, part):
    """Computes floor(x + part), where x is rounded as by an f32 addition to `base`."""
    return np.floor((x + F4(base)).astype(np.float64) + part).astype(np.int64) - base


def rows(x, fill):
    found = np.full(-(-x.size // 256) * 256, fill, x.dtype)
    found[: x.size] = x
    return found.reshape(-1, 256)


def twin(x, g, t, o):
    """Takes one step in the type of the parameters; codes are integers, scales f32."""
    real, n = x["p"].dtype.type, g.size
    b1, b2 = (real(b) for b in o["betas"])
    a1, a2 = (real(1 - b) for b in o["betas"])
    root = 1 / np.sqrt(1 - power(o["betas"][1], t))
    eps = max(o["eps"], float(np.finfo(F4).tiny))
    rate = real(o["lr"] / (1 - power(o["betas"][0], t)))
    w, _, _ = roots(x["c"], x["v_scale"], n)
    slope, offset = (np.repeat(b1 * real(x["m_scale"][:, k]), 256)[:n] for k in (0, 1))
    w = w.astype(real)
    m = x["s"].astype(real) * (w * slope + offset) + a1 * g
    w = np.sqrt(b2 * (w * w) + a2 * g * g)
    update = m / (w * real(root) + real(eps))
    x["p"] = x["p"] * real(1 - o["lr"] * o["weight_decay"]) - rate * update
    update, w, here = update.astype(F4), w.astype(F4), noise(n, t)
    update = np.where(np.abs(update) < F4(2**60), update, F4(0))
    most = np.repeat(rows(np.where(np.isfinite(w), w, F4(0)), 0).max(1), 256)[:n]
    w = np.where(np.isfinite(w), w, most)  # the ranges of a block leave outliers out
    most = rows(np.abs(update), 0).max(1)
    unit, inverse = (most / F4(127)).astype(F4), np.zeros_like(most)
    inverse[most >= F4(2**-119)] = F4(127) / most[most >= F4(2**-119)]
    x["s"] = raised(update * np.repeat(inverse, 256)[:n], 768, (here >> 18) / 2**14)
    x["m_scale"] = np.stack([unit * F4(root), unit * F4(eps)], 1)
    most = rows(bits(w), 0).max(1)
    least = np.where(rows(bits(w), 0) == 0, 2**40, rows(bits(w), 0)).min(1)
    least = np.maximum(np.minimum(least, most), most - (253 << 19))
    x["v_scale"] = np.stack([least, most], 1).astype(np.uint32).view(F4)
    _, first, step = roots(x["c"], x["v_scale"], n)
    above = (np.maximum(bits(w), first) - first + step).astype(F4) * (F4(1) / step.astype(F4))
    x["c"] = np.where(w == 0, 0, raised(above, 256, (here & 0x7FFF) / 2**15))


def gradient(rng, n, kind, t):
    """Returns gradients that are equal in size, six or forty decades apart, or partly 0."""
    g = rng.standard_normal(n)
    if kind == "scales":
        return g * 10.0 ** (-6 * np.arange(n) / n)
    if kind == "wide":
        return g * 10.0 ** (18 - 38 * np.arange(n) / n)
    if kind == "zeros":
        return g * (np.arange(n) % 3 > 0) * (t % 4 != 3)
    if kind == "outliers" and t % 3 == 0:
        at = (37 * t + 100 * np.arange(-(-n // 100))) % n
        g[at] = [(np.nan, np.inf, 6e20, -3e38, 1e20)[(t + i) % 5] for i in range(at.size)]
    if kind == "outliers" and t == 7:
        g[:256] = 1e30
    return g * np.exp(rng.standard_normal(n) * 3) if kind == "tails" else g


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["alike", "tails", "scales", "wide", "zeros", "outliers"])
@pytest.mark.parametrize("n", [1, 256, 1000])
def test_the_bits_of_its_twin(n, kind, dtype):
    rng = np.random.default_rng(0)
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    p = [rng.standard_normal(n).astype(dtype)]
    x = {"p": p[0].copy(), "s": np.zeros(n, int), "c": np.zeros(n, int)}
    x |= {key: np.zeros((-(-n // 256), 2), F4) for key in ("m_scale", "v_scale")}
    optimizer = optim.AdamW8bit(**options)
    for t in range(1, 30):
        g = gradient(rng, n, kind, t).astype(dtype)
        optimizer.step(p, [g])
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            twin(x, g, t, options)
        held = {key: row[0] for key, row in optimizer.states.items()}
        np.testing.assert_array_equal(held["m"].view(np.int8), x["s"])
        np.testing.assert_array_equal(held["v"], x["c"])
        for key in ("m_scale", "v_scale"):
            np.testing.assert_array_equal(held[key], x[key])
        np.testing.assert_array_equal(p[0], x["p"])


def test_codes_are_as_fine_as_the_range_of_a_block_allows():
    """At all gradient scales, a root is within the codes next to it, and 0 only if the element had
    no gradient; a moment is within a 127th of the block's largest update."""
    rng = np.random.default_rng(3)
    for decades in (0, 3, 6, 15):
        g = [(rng.standard_normal(2000) * 10.0 ** (-decades * rng.random(2000))).astype("f4")]
        g[0][::7] = 0
        optimizer = optim.AdamW8bit(betas=(0.9, 0.999))
        optimizer.step([np.zeros(2000, "f4")], g)
        held = {key: row[0] for key, row in optimizer.states.items()}
        w = np.sqrt(np.float64(F4(1 - 0.999))) * np.abs(np.float64(g[0]))
        found, first, step = roots(held["v"], held["v_scale"], 2000)
        assert ((found == 0) == (w == 0)).all()
        inside, low = bits(w) >= first, (bits(w) < first) & (w > 0)
        assert (step <= (1 << 19) + 1).all() and (decades < 9 or low.any())
        assert (np.abs(bits(found) - bits(w))[inside] <= step[inside] + 2).all()
        assert (bits(found) == first)[low].all()
        scale = np.repeat(held["m_scale"].astype("f8"), 256, 0)[:2000]
        unit = w * scale[:, 0] + scale[:, 1]
        error = np.abs(held["m"].view(np.int8) * unit - 0.1 * g[0])
        assert (error <= 1.001 * unit).all()


@pytest.mark.parametrize("outlier", [6e20, 3e38, -np.inf, np.nan])
def test_an_outlier_does_not_change_its_neighbours(outlier):
    """The outlier's parameter gets the value that AdamW without codes gives at that step."""

    def run(kind, value):
        p, optimizer = [np.zeros(600, F4)], kind(lr=1e-2, weight_decay=0.0)
        for t, row in enumerate(np.random.default_rng(4).uniform(0.5, 1, (6, 600)).astype(F4)):
            row[300] = value if t == 2 else row[300]
            optimizer.step(p, [row])
            if t == 2:
                then = p[0][300]
        return p[0], then

    (alone, _), (spoilt, then) = run(optim.AdamW8bit, 0.75), run(optim.AdamW8bit, outlier)
    np.testing.assert_allclose(then, run(optim.AdamW, outlier)[1], rtol=0.02)
    others = np.arange(600) != 300
    np.testing.assert_allclose(spoilt[others], alone[others], rtol=0.01)
    assert np.isnan(spoilt[300]) == (not np.isfinite(outlier))


def drift(kind, mode, steps, lr):
    """Returns the distance between the end points of AdamW8bit and AdamW in f32, relative to the
    path of AdamW."""
    ends = []
    for make in (optim.AdamW, kind):
        p, optimizer = np.random.default_rng(0).standard_normal((64, 64)).astype("f4"), make(lr=lr)
        start = p.copy()
        for i in range(steps):
            g = 0.3 * np.random.default_rng(1000 + i).standard_normal(p.shape)
            if "pulled" in mode:
                g += 0.5 * p
            if "columns" in mode:
                g *= 10.0 ** (-3 * np.arange(64) / 64)
            if "fading" in mode:
                g *= 10.0 ** (-2 * i / steps)
            optimizer.step([p], [g.astype("f4")])
        ends.append(p.astype("f8"))
    return np.sqrt(np.square(ends[1] - ends[0]).mean() / np.square(ends[0] - start).mean())


@pytest.mark.parametrize(("mode", "most"), [
    ("noise", 0.03), ("pulled", 0.03), ("noise, fading", 0.03), ("noise, columns", 0.1),
    ("pulled, columns, fading", 0.1)])  # fmt: skip
def test_it_drifts_little_from_f32(mode, most):
    """The bounds are small: coarser codes, with eight steps per octave, would end 4 to 13 %
    away."""
    assert drift(optim.AdamW8bit, mode, 1000, 1e-3) <= most


def test_it_learns_as_adamw_does():
    """Gradients are noisy and the decay is 0.999. With rounding to the nearest, the moments would
    not move."""
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
    text = rf"{key} of params\['w'\] is {wrong}, expected {is_type}"
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(state)
        other.step(others, params)  # this is where it first sees its parameters
    assert others["w"].tobytes() == before
    if bound:
        assert str(other.state_dict()) == held


@pytest.mark.parametrize("kind", [optim.AdamW8bit, optim.AdamW, optim.Adafactor])
@pytest.mark.parametrize("change", [lambda p: p.astype("f8"), lambda p: p.reshape(2, 6)])
def test_a_parameter_that_changes_after_a_step(kind, change):
    """Codes have neither the type nor the shape of their parameter, so they cannot reveal the
    change."""
    params, optimizer = [np.ones((4, 3), "f4")], kind(lr=0.1)
    optimizer.step(params, [np.ones((4, 3), "f4")])
    others, before = [change(params[0])], str(optimizer.state_dict())
    value = others[0].tobytes()
    with pytest.raises(ValueError, match=r"params\[0\]"):
        optimizer.step(others, [np.ones_like(others[0])])
    assert others[0].tobytes() == value and str(optimizer.state_dict()) == before
    optimizer.step(params, [np.ones((4, 3), "f4")])


@pytest.mark.parametrize(("key", "value"), [("m_scale", np.nan), ("v_scale", np.inf)])
def test_scales_that_are_not_finite_are_refused(key, value):
    params, optimizer = {"w": np.ones(300, F4)}, optim.AdamW8bit()
    optimizer.step(params, {"w": np.ones(300, F4)})
    before, state = str(optimizer.state_dict()), optimizer.state_dict()
    state[f"params['w'].{key}"] = np.full((2, 2), value, F4)
    with pytest.raises(ValueError, match=f"{key} of the state of AdamW8bit has a scale of"):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="codes of version True"):
        optimizer.load_state_dict(optimizer.state_dict() | {"codes": True})
    assert str(optimizer.state_dict()) == before
