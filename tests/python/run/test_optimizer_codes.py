"""Tests versions of AdamW8bit's codes: version 1 is converted when it is loaded, future versions
are refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from cutback import optim

FILE = Path(__file__).parents[2] / "data" / "optim" / "adamw_8bit_version_1.npz"
STATES = ("m", "v", "m_scale", "v_scale")
SHAPES = {"w": (20, 35), "b": (3,), "e": (0, 3)}


def version_1(state, name):
    """Decodes the moments: eight steps per octave below the scale of each 256 elements; 0 is 0."""
    m, v, *scales = (state[f"{name}.{key}"] for key in STATES)
    m, v = m.view(np.int8).astype(int).reshape(-1), v.astype(int).reshape(-1)
    scales = [np.repeat(scale.astype("f8"), 256)[: m.size] for scale in scales]
    found = []
    for code, most, scale in ((np.abs(m), 127, scales[0]), (v, 255, scales[1])):
        octave, step = np.divmod(code - most, 8)
        found.append(np.where(code == 0, 0, 2.0**octave * (1 + step / 8)) * scale)
    return np.sign(m) * found[0], found[1]


def bits(x):
    return np.asarray(x, "f4").view(np.uint32).astype(np.int64)


def version_2(state, name):
    """Returns the moments, and the spacing of the codes: in m, and in the bits of the root of v."""
    m, v, *scales = (state[f"{name}.{key}"] for key in STATES)
    m, v = m.view(np.int8).astype(int).reshape(-1), v.astype(int).reshape(-1)
    (slope, offset), (least, most) = (np.repeat(scale, 256, 0)[: m.size].T for scale in scales)
    step = (bits(most) - bits(least)) // 253 + 1
    root = np.where(v == 0, 0, bits(least) + (v - 1) * step).astype(np.uint32).view("f4")
    unit = root.astype("f8") * slope + offset
    return m * unit, root.astype("f8") ** 2, unit, step


def assert_within_a_rounding(old, new, name):
    (m, v), (m_now, v_now, unit, step) = version_1(old, name), version_2(new, name)
    root, root_now = np.sqrt(v).astype("f4"), np.sqrt(v_now).astype("f4")
    scale = np.repeat(new[f"{name}.v_scale"], 256, 0)[: m.size]
    low = bits(root) < bits(scale[:, 0])  # at most a sixteenth of an octave
    assert ((v == 0) == (v_now == 0)).all()
    assert (np.abs(bits(root_now) - bits(root)) <= np.where(low, 1 << 19, step / 2 + 2))[
        v > 0
    ].all()
    assert (np.abs(m_now - m)[v > 0] <= 0.5001 * unit[v > 0]).all()


def old_state():
    with np.load(FILE) as file:
        return dict(file)


def params():
    return {key: np.ones(shape, "f4") for key, shape in SHAPES.items()}


def gradients():
    rng = np.random.default_rng(5)
    return {key: rng.standard_normal(shape).astype("f4") for key, shape in SHAPES.items()}


@pytest.mark.parametrize("bound", [True, False])
def test_a_state_of_version_1(bound):
    old, optimizer, p = old_state(), optim.AdamW8bit(lr=0.1), params()
    if bound:
        optimizer.step(p, gradients())
    optimizer.load_state_dict(old)
    new = optimizer.state_dict()
    assert new["codes"] == 2 and new["t"] == old["t"] == 40
    for name in ("params['w']", "params['b']"):
        assert_within_a_rounding(old, new, name)
    assert new["params['e'].m_scale"].shape == (0, 2)
    again, q = optim.AdamW8bit(lr=0.1), params()
    again.load_state_dict(new)
    p = params()
    optimizer.step(p, gradients())
    again.step(q, gradients())
    assert all(p[key].tobytes() == q[key].tobytes() for key in p)
    as_f32, q = optim.AdamW(lr=0.1), params()
    moments = {name: version_1(old, f"params['{name}']") for name in SHAPES}
    as_f32.load_state_dict({"t": 40} | {
        f"params['{name}'].{key}": x.astype("f4").reshape(SHAPES[name])
        for name, row in moments.items() for key, x in zip("mv", row, strict=True)})  # fmt: skip
    as_f32.step(q, gradients())
    for key in ("w", "b"):
        np.testing.assert_allclose(p[key], q[key], atol=0.1 * 0.06)


@pytest.mark.parametrize("decades", [0, 3, 10])
def test_any_codes_of_version_1_are_within_a_rounding(decades):
    rng = np.random.default_rng(decades)
    for size in (1, 255, 256, 1 << 11):
        codes = rng.integers(-min(127, 13 * decades + 1), 1, size) + 127
        old = {"a.m": (codes * rng.choice([-1, 1], size)).astype(np.int8).view(np.uint8)}
        old["a.v"] = (255 - rng.integers(0, min(255, 26 * decades + 1), size)).astype(np.uint8)
        old["a.v"][rng.random(size) < 0.1] = 0
        old["a.m"][old["a.v"] == 0] = 0
        for key in ("m_scale", "v_scale"):
            old[f"a.{key}"] = (10.0 ** rng.uniform(-9, 9, -(-size // 256))).astype("f4")
        optimizer = optim.AdamW8bit()
        optimizer.load_state_dict({"t": 3, **old})
        assert_within_a_rounding(old, optimizer.state_dict(), "a")


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_block_of_version_1_that_is_not_finite_is_refused(scale):
    old, name = old_state(), "params['w']"
    old[f"{name}.v_scale"][1] = scale
    optimizer = optim.AdamW8bit()
    with pytest.raises(ValueError, match=f"v_scale of the state of AdamW8bit .* of {scale}"):
        optimizer.load_state_dict(old)
    assert optimizer.t == 0


@pytest.mark.parametrize("version", [3, 0, -1, 1.5, "2a", None, 10**30, np.inf])
def test_versions_that_are_not_known_are_refused(version):
    optimizer, p = optim.AdamW8bit(), params()
    optimizer.step(p, gradients())
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"codes of version {version}, .*reads versions 1 to 2"):
        optimizer.load_state_dict(optimizer.state_dict() | {"codes": version})
    assert str(optimizer.state_dict()) == before


@pytest.mark.parametrize("key", STATES)
def test_a_state_of_version_1_that_is_damaged_is_refused(key):
    old, name = old_state(), "params['w']"
    optimizer = optim.AdamW8bit()
    optimizer.step(params(), gradients())
    before = str(optimizer.state_dict())
    for wrong in (old[f"{name}.{key}"][:-1], None):
        state = old | {f"{name}.{key}": wrong}
        if wrong is None:
            del state[f"{name}.{key}"]
        with pytest.raises(ValueError, match=r"params\['w'\]"):
            optimizer.load_state_dict(state)
        assert str(optimizer.state_dict()) == before


@pytest.mark.parametrize("bound", [True, False])
def test_a_pickle_with_codes_of_version_1(bound):
    old, optimizer = old_state(), optim.AdamW8bit()
    optimizer.load_state_dict(old)
    if bound:
        optimizer.step(params(), gradients())
    held = optimizer._state
    rows = {key: {f"params['{n}']": old[f"params['{n}'].{key}"] for n in SHAPES} for key in STATES}
    if bound:
        names = held.names
        arrays = {key: tuple(rows[key][name] for name in names) for key in STATES}
        optimizer._state = held._replace(arrays=arrays, loaded=None)
    else:
        optimizer._state = held._replace(loaded={**held.loaded, **rows})
    for again in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert_within_a_rounding(old, again.state_dict(), "params['w']")
        again.step(params(), gradients())


def damaged(scales, how):
    """Returns the scales of a state, with one mistake."""
    scales = scales.copy()
    scales.flat[0] = {"nan": np.nan, "inf": np.inf, "negative": -1.0, "order": 1e30}[how]
    return scales


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("key", STATES[2:])
@pytest.mark.parametrize("how", ["nan", "inf", "negative", "order"])
def test_a_pickle_with_damaged_scales_is_refused(how, key, bound):
    if (how, key) == ("order", "m_scale"):
        return  # these are not ordered
    optimizer, other = optim.AdamW8bit(), optim.AdamW8bit()
    optimizer.step(params(), gradients())
    state = optimizer.state_dict()
    name = next(name for name in state if name.endswith(f".{key}") and state[name].size)
    with pytest.raises(ValueError, match=f"{key} of the state of AdamW8bit has a .*damaged"):
        other.load_state_dict(state | {name: damaged(state[name], how)})
    if not bound:
        other.load_state_dict(state)
        optimizer = other
    held = optimizer._state
    if bound:
        rows = [damaged(x, how) if x.size else x for x in held.arrays[key]]
        optimizer._state = held._replace(arrays={**held.arrays, key: tuple(rows)})
    else:
        rows = {n: damaged(x, how) if x.size else x for n, x in held.loaded[key].items()}
        optimizer._state = held._replace(loaded={**held.loaded, key: rows})
    with pytest.raises(ValueError, match=f"{key} of the pickled state .* has a .*damaged"):
        pickle.loads(pickle.dumps(optimizer))
