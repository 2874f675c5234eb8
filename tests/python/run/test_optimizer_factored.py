"""Compares Adafactor with its formula in NumPy, in f64."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

SHAPES = ((), (5,), (3000,), (0,), (1, 1), (7, 3), (3, 7), (130, 700), (1, 40000), (5, 3, 4),
          (4, 0), (900, 2, 3), (2, 300, 200), (40000, 3), (18001, 1, 1), (1901, 3, 3),
          (45, 2, 4, 8), (23, 3, 11), (5, 1, 7))  # fmt: skip
OPTIONS = (
    {},
    {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-3, 0.5), "d": 1.5, "weight_decay": 0.1,
     "maximize": True},
)  # fmt: skip


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def twin(p, g, state, t, o):
    """Updates in place. ``state``: means of rows and columns, or of elements, initially zero."""
    b = t**o.beta2_decay
    g = -g if o.maximize else g
    alpha = max(o.eps[1], rms(p)) * min(o.lr, t**-0.5)
    p *= 1 - o.lr * o.weight_decay
    if p.ndim > 1:
        row, column = state
        row += b * (np.mean(g**2, axis=-1) - row)
        column += b * (np.mean(g**2, axis=-2) - column)
        mean = np.maximum(row.mean(axis=-1), o.least)[..., None, None]
        v = row[..., :, None] * column[..., None, :] / mean
    else:
        state[0][...] += b * (g**2 - state[0])
        v = state[0]
    u = g / np.sqrt(np.maximum(v, o.least**2))
    p -= alpha / max(1, rms(u) / o.d) * u


def begun(shape):
    return [np.zeros(shape[:-1]), np.zeros((*shape[:-2], shape[-1]))] if len(shape) > 1 else [
        np.zeros(shape)]  # fmt: skip


def drawn(rng, dtype):
    return [np.array(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3), dtype)
            for shape in SHAPES]  # fmt: skip


@pytest.mark.very_slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_hundred_steps_are_the_formula_s(dtype, options):
    rng = np.random.default_rng(0)
    params, optimizer = drawn(rng, dtype), optim.Adafactor(**options)
    optimizer.least = np.finfo(dtype).eps if optimizer.eps[0] is None else optimizer.eps[0]
    wholes, states = [p.astype("f8") for p in params], [begun(s) for s in SHAPES]
    for t in range(1, 101):
        grads = drawn(rng, dtype)
        optimizer.step(params, grads)
        for p, g, state in zip(wholes, grads, states, strict=True):
            if p.size:
                twin(p, g.astype("f8"), state, t, optimizer)
    near = 64 * np.finfo(dtype).eps
    for i, (p, whole) in enumerate(zip(params, wholes, strict=True)):
        if not p.size:
            continue
        assert np.abs(p - whole).max() <= near * max(1, np.abs(whole).max()), SHAPES[i]
        names = ("row_var", "col_var") if p.ndim > 1 else ("variance",)
        held = {name: row[i] for name, row in optimizer.states.items() if row[i] is not None}
        assert set(held) == set(names)
        for name, wanted in zip(names, states[i], strict=True):
            assert held[name].shape == wanted.shape
            np.testing.assert_allclose(held[name], wanted, rtol=near)


def test_the_same_bits_for_any_threads_and_instruction_set(monkeypatch):
    seen, before = [], cutback.get_num_threads()
    for threads, isa in ((1, "avx512"), (2, "avx2"), (3, "baseline"), (4, "avx512")):
        monkeypatch.setenv("CUTBACK_ISA", isa)
        cutback.set_num_threads(threads)
        rng = np.random.default_rng(0)
        params, optimizer = drawn(rng, "f4"), optim.Adafactor(weight_decay=0.1)
        for _ in range(3):
            optimizer.step(params, drawn(rng, "f4"))
        state = optimizer.state_dict()
        seen.append(b"".join(p.tobytes() for p in (*params, *map(np.asarray, state.values()))))
    cutback.set_num_threads(before)
    assert len(set(seen)) == 1


def test_a_state_goes_on_elsewhere_and_a_parameter_may_wait():
    rng = np.random.default_rng(0)
    params, optimizer = drawn(rng, "f4"), optim.Adafactor()
    optimizer.step(params, [None if i % 3 == 0 else g for i, g in enumerate(drawn(rng, "f4"))])
    again, others = optim.Adafactor(), [p.copy() for p in params]
    again.load_state_dict(optimizer.state_dict())
    grads = drawn(rng, "f4")
    optimizer.step(params, grads)
    again.step(others, grads)
    assert [p.tobytes() for p in params] == [p.tobytes() for p in others]
    wrong = optimizer.state_dict()
    wrong["params[7].row_var"] = np.zeros(7)
    with pytest.raises(ValueError, match=r"row_var of params\[7\] has shape \(7,\)"):
        again.load_state_dict(wrong)


@pytest.mark.parametrize("shape", [(30, 700), (1901, 3, 3), (30, 20, 5, 5), (999, 1, 1)])
def test_extras_are_there(shape):
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(shape).astype("f4") for _ in range(2))
    twin, average, half = p.copy(), np.zeros_like(p), np.zeros(p.shape, "f2")
    optim.Adafactor().step([twin], [g * np.float32(0.5)])
    given = g.copy()
    outcome = optim.Adafactor().step([p], [given], grad_scale=2.0, averages=[average],
                                     average_decay=0.0, zero_grads=True, copies=[half])  # fmt: skip
    assert p.tobytes() == twin.tobytes() == average.tobytes()
    assert half.tobytes() == p.astype("f2").tobytes()
    assert not given.any()
    assert outcome.grad_norm == pytest.approx(np.linalg.norm(g) / 2, rel=1e-6)


@pytest.mark.parametrize("half", ["master", "remainder"])
def test_halves_are_stepped_as_f32(half):
    """Parameters are bf16 as bits. A row of halves stands for f32 values, which take the steps of
    an f32 row."""
    rng = np.random.default_rng(0)
    shapes = ((130, 700), (3000,), (900, 2, 3), (3, 5000), (1901, 3, 3), (4099, 1, 1), (50, 5, 5))
    params = [(rng.standard_normal(s).astype("f4").view("u4") >> 16).astype("u2") for s in shapes]
    wholes = [(p.astype("u4") << 16).view("f4") for p in params]
    optimizer, other = (
        optim.Adafactor(half=half, eps=(1e-6, 1e-3)),
        optim.Adafactor(eps=(1e-6, 1e-3)),
    )
    for _ in range(4):
        grads = [
            (rng.standard_normal(s).astype("f4").view("u4") >> 16).astype("u2") for s in shapes
        ]
        optimizer.step(params, grads)
        other.step(wholes, [(g.astype("u4") << 16).view("f4") for g in grads])
    for i, whole in enumerate(wholes):
        rest = optimizer.states[half][i]
        if half == "master":
            made = rest
        else:
            low = rest.view("i2").astype("i8")
            made = ((params[i].astype("i8") << 16) + low).astype("u4").view("f4")
        assert made.tobytes() == whole.tobytes()


def test_noise_rounds_halves():
    p = np.full((64, 100), 0x3F80, "u2")  # ones
    g = np.full((64, 100), 0x3F80, "u2")
    optim.Adafactor(lr=1e-3, half="stochastic").step([p], [g])
    values = (p.astype("u4") << 16).view("f4")
    assert set(np.unique(values)) == {np.float32(1), np.float32(1 - 2**-8)}
    assert values.mean() == pytest.approx(1 - 1e-3, abs=2e-4)


def test_what_cannot_be_is_said():
    for options, text in (({"beta2_decay": 0.5}, "at most 0"), ({"d": 0.5}, "at least 1"),
                          ({"eps": 1e-3}, "be two numbers"), ({"eps": (-1.0, 0)}, "at least 0"),
                          ({"lr": float("nan")}, "must be finite")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            optim.Adafactor(**options)
