"""Optimizers from formulas have the bits of the same formula in NumPy. Invalid formulas are
refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cutback
from cutback import optim

SIZES = (1, 3, 63, 64, 65, 1000, 16384, 40001)


@optim.foreach
def adamw(p, g, m, v, t, *, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
    m = m + (1 - beta1) * (g - m)  # the order of the built-in one
    v = beta2 * v + (1 - beta2) * g * g
    root = np.sqrt(v) * (1 / (1 - beta2**t) ** 0.5)
    return p * (1 - lr * weight_decay) - (lr / (1 - beta1**t)) * m / (root + eps), m, v


@optim.foreach
def lion(p, g, m, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1):
    u = np.sign(beta1 * m + (1 - beta1) * g)
    return p - lr * (u + weight_decay * p), beta2 * m + (1 - beta2) * g


@optim.foreach
def ademamix(p, g, fast, slow, v, *, t, lr=1e-3, alpha=5.0, eps=1e-8, beta3=0.9999):
    fast = 0.9 * fast + 0.1 * g
    slow = beta3 * slow + (1 - beta3) * g
    v = 0.999 * v + 0.001 * np.square(g)
    u = (fast / (1 - 0.9**t) + alpha * slow) / (np.sqrt(v / (1 - 0.999**t)) + eps)
    return p - lr * u, fast, slow, v


@optim.foreach
def adopt(p, g, m, v, *, t, lr=1e-3, eps=1e-6):
    """Steps ADOPT, whose first step only initializes the squares of the gradient."""
    u = np.minimum(np.maximum(g / np.maximum(np.sqrt(v), eps), -(t**0.25)), t**0.25)
    m = np.where(t == 1, m, 0.9 * m + 0.1 * u)
    return np.where(t == 1, p, p - lr * m), m, np.where(t == 1, g * g, 0.999 * v + 0.001 * g * g)


@optim.foreach
def cautious(p, g, m, *, lr=1e-2, nesterov=True, mode="momentum"):
    m = 0.9 * m + g
    u = g + 0.9 * m if nesterov else m
    kept = u * ((u * g) > 0) if mode == "momentum" else abs(u)
    return p - lr * kept, m


@optim.foreach
def functions(p, g, *, lr=0.1):
    """Calls every function that NumPy rounds exactly, too."""
    x = abs(p) ** 0.5 + p**2 - 1 / (2 + g) - (-p) ** -1
    y = np.where(((p < g) | (p >= 0.5)) & ~(g == 0), np.floor(4 * p), np.clip(g, -0.5, 0.25))
    z = np.maximum(x, y) / (1 + np.abs(y)) + (p <= 0) * (g != p) + (p > g)
    return p + lr * z


@optim.foreach
def sums(p, g, m, v, w, *, a=0.9, b=0.3):
    """Computes products and sums in every order that becomes one record, and in some that do not:
    parts read twice, arrays overwritten before or after they are read."""
    part = a * w
    x = g * a + p * b + (part + b * g)
    y = (b * m) * g + v * a
    z = m * a + g * (b * w) + (m * b) * (w * a) * g
    root = b + a * np.sqrt(abs(v)) + (np.sqrt(w * w) * b + a)
    kept = np.sqrt(part * part) * a
    return x / root + part, y, a * m + b * v, z + (kept + b) * kept


def drawn(seed, sizes=SIZES):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype("f4") for n in sizes]


def twin(definition, params, states, grads, t, options):
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        counts = {"t": t} if "t" in definition.__code__.co_varnames[:8] else {}
        result = definition(p, g, *(row[i] for row in states), **counts, **options)
        new, *after = result if isinstance(result, tuple) else (result,)
        params[i] = np.asarray(new, "f4")
        for row, x in zip(states, after, strict=True):
            row[i] = np.asarray(x, "f4")


@pytest.mark.parametrize("kind, options", [
    (adamw, {}),
    (adamw, {"lr": 0.5, "weight_decay": 0.0}),
    (lion, {}),
    (ademamix, {}),
    (adopt, {}),
    (cautious, {}),
    (cautious, {"nesterov": False}),
    (cautious, {"mode": "other"}),
    (functions, {}),
    (sums, {}),
])  # fmt: skip
def test_a_formula_has_the_bits_that_it_has_in_numpy(kind, options):
    params, expected = drawn(0), drawn(0)
    optimizer = kind(**options)
    states = [[np.zeros_like(p) for p in params] for _ in kind.state_names]
    for t in range(1, 6):
        grads = drawn(t)
        optimizer.step(params, grads)
        twin(kind.definition, expected, states, grads, t, options)
    for i, (p, q) in enumerate(zip(params, expected, strict=True)):
        np.testing.assert_array_equal(p, q, strict=True)
        for name, row in zip(kind.state_names, states, strict=True):
            np.testing.assert_array_equal(optimizer.states[name][i], row[i], strict=True)


def test_functions_that_numpy_computes_otherwise():
    @optim.foreach
    def smooth(p, g, *, lr=1.0):
        x = np.exp(-abs(p)) + np.log(1 + g * g) + np.log1p(g * g) + np.tanh(p)
        return x + p.sigmoid() + p.erf() + p.rsqrt() * 0 + np.exp(lr) * p

    (p,), (g,) = drawn(1, [501]), drawn(2, [501])
    p = np.abs(p) + 0.1
    x, y = p.astype("f8"), g.astype("f8")
    expected = np.exp(-x) + 2 * np.log1p(y * y) + np.tanh(x) + 1 / (1 + np.exp(-x)) + math.e * x
    expected += np.vectorize(math.erf)(x)
    smooth().step([p], [g])
    np.testing.assert_allclose(p, expected, rtol=1e-6)


def test_sums_are_over_one_tensor():
    @optim.foreach
    def lamb(p, g, m, v, t, *, lr=1e-2, eps=1e-6, weight_decay=0.01):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + eps) + weight_decay * p
        pn, un = np.linalg.norm(p), np.linalg.norm(u)
        return p - lr * np.where((pn > 0) & (un > 0), pn / un, 1.0) * u, m, v

    @optim.foreach
    def centered(p, g, *, lr=0.1):
        g = g - g.mean()
        return p - lr * g / (1 + g.sum() + (g * g).mean() ** 0.5 + p.size)

    for kind in (lamb, centered):
        params, expected = drawn(3), [p.astype("f8") for p in drawn(3)]
        optimizer = kind()
        states = [[np.zeros(n) for n in SIZES] for _ in kind.state_names]
        for t in range(1, 4):
            grads = drawn(10 + t)
            optimizer.step(params, grads)
            for i, g in enumerate(grads):
                counts = {"t": t} if kind is lamb else {}
                given = [row[i] for row in states]
                result = kind.definition(expected[i], g.astype("f8"), *given, **counts)
                new, *after = result if isinstance(result, tuple) else (result,)
                expected[i] = new
                for row, x in zip(states, after, strict=True):
                    row[i] = x
        for p, q in zip(params, expected, strict=True):
            np.testing.assert_allclose(p, q, rtol=2e-5, atol=1e-6)


def test_bits_do_not_depend_on_threads_or_neighbours():
    @optim.foreach
    def scaled(p, g, *, lr=0.1):
        return p - lr * p.norm() / (1 + g.norm()) * g

    threads = cutback.get_num_threads()
    kept = None
    try:
        for n in (1, 2, 3):
            cutback.set_num_threads(n)
            params = drawn(5)
            scaled().step(params, drawn(6))
            alone = drawn(5)
            for p, g in zip(alone, drawn(6), strict=True):
                scaled().step(p, g)
            kept = kept or params
            for p, q, r in zip(params, kept, alone, strict=True):
                assert p.tobytes() == q.tobytes() == r.tobytes()
    finally:
        cutback.set_num_threads(threads)


def test_groups_schedules_states_and_missing_gradients_are_as_in_other_optimizers(tmp_path):
    params = {"w": drawn(1)[5], "bias": drawn(2)[5]}
    ours = {name: p.copy() for name, p in params.items()}
    groups = [{"names": "*bias*", "weight_decay": 0.0}]
    there = optim.AdamW(lr=lambda t: 1e-2 / (1 + t), weight_decay=0.1, groups=groups)
    here = adamw(lr=lambda t: 1e-2 / (1 + t), weight_decay=0.1, groups=groups)
    for t in range(4):
        grads = {"w": drawn(20 + t)[5], "bias": None if t == 1 else drawn(30 + t)[5]}
        there.step(params, grads)
        here.step(ours, grads)
        if t == 2:
            np.savez(tmp_path / "state.npz", **here.state_dict())
            here = adamw(lr=lambda t: 1e-2 / (1 + t), weight_decay=0.1, groups=groups)
            here.load_state_dict(np.load(tmp_path / "state.npz"))
    for name, p in params.items():
        np.testing.assert_array_equal(p, ours[name])
    assert here.t == 4 and list(here.states) == ["m", "v"]
    assert here.state_bytes(["w"], [params["w"]]) == 2 * params["w"].nbytes


def test_a_compiled_step_takes_it():
    def loss(p, x):
        return (cutback.tanh(x @ p["w"]) @ p["b"]).mean()

    rng = np.random.default_rng(1)
    first = {"w": rng.standard_normal((5, 7), np.float32), "b": rng.standard_normal(7, np.float32)}
    second = {name: p.copy() for name, p in first.items()}
    x = rng.standard_normal((4, 5), np.float32)
    mine = cutback.compile(loss, optimizer=adamw(lr=0.1))
    theirs = cutback.compile(loss, optimizer=optim.AdamW(lr=0.1, weight_decay=0.01))
    for _ in range(3):
        assert mine(first, x) == theirs(second, x)
    for name, p in first.items():
        np.testing.assert_array_equal(p, second[name])


def test_a_changed_number_records_nothing(monkeypatch):
    optimizer = adamw()
    params = drawn(0)
    optimizer.step(params, drawn(1))
    monkeypatch.setattr(cutback.optim.recorded, "record", None)
    optimizer.lr, optimizer.groups = 0.5, [{"names": "*[1]*", "beta1": 0.5}]
    optimizer.step(params, drawn(2))
    adamw(lr=np.array(0.25)).step(drawn(0)[:2], drawn(1)[:2])


def refused(formula, text, error=optim.RecordingError):
    with pytest.raises(error, match=text):
        optim.foreach(formula)


def test_what_cannot_be_recorded_says_so():
    refused(lambda p, g: p if p > 0 else g, "where")
    refused(lambda p, g, *, lr=1.0: p - max(lr, 0.1) * g, "maximum and minimum")
    refused(lambda p, g, *, lr=1.0: p - math.sqrt(lr) * g, r"\*\* 0.5")
    refused(lambda p, g: p - g[0], "an index into an array")
    refused(lambda p, g: p.reshape(-1), r"\.reshape of an array: .*shapes")
    refused(lambda p, g: p - g.sum(axis=0), "along axes")
    refused(lambda p, g: p - np.linalg.norm(g, 1), "along axes")
    refused(lambda p, g: p @ g, "a matrix product")
    refused(lambda p, g: p - g / len(g), "size")
    refused(lambda p, g: p**g, "exp")
    refused(lambda p, g: p**1.7, "1.7")
    refused(lambda p, g: 2**p, "exp")
    refused(lambda p, g: p - np.fft.fft(g), "cannot be recorded")
    refused(lambda p, g: p - np.zeros(3), "ndarray")
    refused(lambda p, g: p - [x for x in g], "a loop over an array")
    refused(lambda p, g, *, lr=1.0: p - lr.sum(), "sum of a number")
    refused(
        lambda p, g, m: p - g, "returned 1 result; it must return new values of the parameter, m"
    )
    refused(lambda p, g, m: (p, m, m), "3 results")
    refused(lambda p, g: None, "NoneType")
    refused(lambda p: p, "must take the parameter, its gradient", TypeError)
    refused(lambda *arrays: arrays, r"must not have \*args", TypeError)
    refused(lambda p, g, *, groups=(): p, "groups", TypeError)
    refused(lambda p, g, a, b, c, d, e: (p, a, b, c, d, e), "at most", Exception)


def test_one_formula_takes_no_part_of_another():
    kept = []

    @optim.foreach
    def one(p, g):
        kept.append(p)
        return p - g

    refused(lambda p, g: p - kept[0], "another optimizer")
    (p,), (g,) = drawn(0, [5]), drawn(1, [5])
    one().step([p], [g])
    np.testing.assert_array_equal(p, drawn(0, [5])[0] - g)


def test_options_are_refused_by_name():
    with pytest.raises(TypeError, match="adamw has no option rate; its options are lr, beta1"):
        adamw(rate=1)
    with pytest.raises(ValueError, match="lr=nan is not finite"):
        adamw(lr=math.nan)
    with pytest.raises(TypeError, match="lr='fast' is not a number"):
        adamw(lr="fast")
    with pytest.raises(ValueError, match="nesterov was True"):
        cautious(groups=[{"names": "*", "nesterov": False}])
    optimizer = cautious()
    optimizer.nesterov = False
    with pytest.raises(ValueError, match="nesterov was True when the optimizer was made"):
        optimizer.step(drawn(0), drawn(1))

    @optim.foreach
    def needs(p, g, *, lr):
        return p - lr * g

    with pytest.raises(TypeError, match="needs lr"):
        needs()
    with pytest.raises(NotImplementedError, match="recorded optimizer steps only f32 parameters"):
        needs(lr=1.0).step([np.zeros(3)], [np.zeros(3)])


def _branch(p, g):
    x = g * g
    return np.where(p > 0, x * p, np.sqrt(x) * 3 + 0.5)


def _named(p, g):
    x = abs(p)
    s, z = np.sqrt(x) * 3 + 0.5, np.sign(x)
    return np.where(p > z, s, z)


def _larger(p, g):
    x = np.maximum(p, 0.0)
    return np.where(p > g, x * p, np.sqrt(x) * 0.5 + 0.1)


@pytest.mark.parametrize("formula", [_branch, _named, _larger])
@pytest.mark.parametrize("size", [1, 64, 1000])
def test_a_scaled_root_of_a_value_that_is_read_again(formula, size):
    """Root, product and sum are one record; the value it reads is read again later."""
    rng = np.random.default_rng(size)
    p, g = rng.standard_normal((2, size)).astype(np.float32)
    for _ in range(3):
        mine = [p.copy()]
        optim.foreach(formula)().step(mine, [g])
        np.testing.assert_array_equal(mine[0], formula(p, g).astype(np.float32))


@pytest.mark.parametrize("huge", [10**400, -(10**5000)], ids=["400", "-5000"])
def test_integers_that_no_float_holds_are_named(huge):
    p = np.ones(3, np.float32)
    formulas = (lambda p, g: huge * p, lambda p, g: p - huge * g, lambda p, g: p**huge,
                lambda p, g, t: p - t**huge * g, lambda p, g: np.where(p < huge, p, g))  # fmt: skip
    for formula in formulas:
        with pytest.raises(
            OverflowError, match=rf"an integer of {huge.bit_length()} bits is too large"
        ):
            optim.foreach(formula)().step([p], [p.copy()])
    assert p.tolist() == [1, 1, 1]
