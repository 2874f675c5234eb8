"""Compares parameters in half precision with the same step in f32, rounded by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = ((), (5,), (0, 3), (257, 33), (9000,))
OPTIMIZERS = (optim.AdamW, optim.SGD, optim.Lion, optim.NAdam, optim.RMSprop, optim.ASGD,
              optim.ScheduleFreeAdamW, optim.AdamW8bit)  # fmt: skip


def arrays(dtype, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype("f4").astype(dtype) for shape in SHAPES]


def options_of(kind):
    return {"lr": 1e-2, "momentum": 0.9} if kind is optim.SGD else {"lr": 1e-2}


@pytest.mark.parametrize("half", ["master", "remainder"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_bit_is_lost(kind, half):
    """Both forms keep the full f32 value, so they take the steps of f32."""
    params, wholes = arrays(BF16, 0), [p.astype("f4") for p in arrays(BF16, 0)]
    optimizer, twin = kind(**options_of(kind), half=half), kind(**options_of(kind))
    for t in range(1, 20):
        grads = arrays(BF16, t)
        optimizer.step(params, grads)
        twin.step(wholes, [g.astype("f4") for g in grads])
        for p, whole, rest in zip(params, wholes, optimizer.states[half], strict=True):
            if half == "master":
                assert rest.tobytes() == whole.tobytes()
                assert p.tobytes() == whole.astype(BF16).tobytes()
            else:
                bits = (p.view("u2").astype("u4") << 16) + rest.view("i2").astype("u4")
                assert bits.tobytes() == whole.tobytes()
                near = whole.astype(BF16) == p
                assert (near | (rest == 1 << 15)).all()  # ties go away from 0
    for state in twin.states:
        for x, y in zip(optimizer.states[state], twin.states[state], strict=True):
            assert x is y is None or (x.dtype == y.dtype and x.tobytes() == y.tobytes())


def test_float16_with_a_master_copy():
    params, wholes = arrays("f2", 0), [p.astype("f4") for p in arrays("f2", 0)]
    optimizer, twin = optim.AdamW(half="master"), optim.AdamW()
    for t in range(1, 20):
        grads = arrays("f2", t)
        optimizer.step(params, grads)
        twin.step(wholes, [g.astype("f4") for g in grads])
    for p, whole in zip(params, wholes, strict=True):
        assert p.tobytes() == whole.astype("f2").tobytes()
    with pytest.raises(NotImplementedError, match=r"f16, which needs a master copy"):
        optim.AdamW(half="stochastic").step(arrays("f2", 0), arrays("f2", 1))


def test_small_steps_add_up_in_the_mean():
    """Steps are a hundredth of a unit: bf16 with rounding to the nearest would never move."""
    n, steps, lr = 4000, 100, 1e-2 * 2**-7
    params, grads = [np.ones(n, BF16)], [-np.ones(n, BF16)]
    optimizer = optim.SGD(lr=lr, half="stochastic", seed=3)
    for _ in range(steps):
        optimizer.step(params, grads)
    moved = params[0].astype("f8") - 1
    unit = 2**-7
    # the number of units is binomial with mean steps * 0.01 and variance steps * 0.01 * 0.99
    assert abs(moved.mean() / unit - 1.0) < 5 * np.sqrt(0.99 / n)
    assert abs(moved.var() / unit**2 / 0.99 - 1) < 5 * np.sqrt(3 / n)
    again = [np.ones(n, BF16)]
    twin = optim.SGD(lr=lr, half="stochastic", seed=3)
    for t in range(steps):
        if t == 50:  # the noise continues from the checkpoint
            state, twin = twin.state_dict(), optim.SGD(lr=lr, half="stochastic", seed=3)
            twin.load_state_dict(state)
        twin.step(again, grads)
    assert again[0].tobytes() == params[0].tobytes()
    other = [np.ones(n, BF16)]
    optim.SGD(lr=30 * lr, half="stochastic", seed=4).step(other, grads)
    third = [np.ones(n, BF16)]
    optim.SGD(lr=30 * lr, half="stochastic", seed=5).step(third, grads)
    assert other[0].tobytes() != third[0].tobytes()


def test_rounding_is_philox():
    """The rounding is checked element by element, in integers."""
    p, g = np.linspace(-2, 2, 1003).astype(BF16), np.full(1003, 0.37, BF16)
    whole = (p.astype("f4") + np.float32(-0.01) * g.astype("f4")).view("u4")
    params = {"a": np.ones(3, "f4"), "b": p.copy()}
    optim.SGD(lr=0.01, half="stochastic", seed=99).step(params, {"a": None, "b": g})
    words = np.array([draw(99, stream=1, step=1, block=i // 8) for i in range(1003)])
    drawn = [int(words[i][i % 8 // 2]) >> 16 * (i % 2) & 0xFFFF for i in range(1003)]
    expected = (whole + np.array(drawn, "u4")) >> 16
    assert (params["b"].view("u2") == expected).all()


def draw(seed, stream, step, block):
    """Computes Philox4x32-7, as in its paper."""
    c, k = [block & 0xFFFFFFFF, block >> 32, stream, step], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [high >> 32 ^ c[1] ^ k[0], high & 0xFFFFFFFF, low >> 32 ^ c[3] ^ k[1], low & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("half", ["master", "remainder", "stochastic"])
def test_a_checkpoint_goes_on(half):
    def steps(optimizer, params, begin, end):
        for t in range(begin, end):
            optimizer.step(params, arrays(BF16, t))

    straight, params = arrays(BF16, 0), arrays(BF16, 0)
    whole, begins = optim.AdamW(lr=0.01, half=half), optim.AdamW(lr=0.01, half=half)
    steps(whole, straight, 1, 9)
    steps(begins, params, 1, 5)
    state = begins.state_dict()
    assert ("params[1].master" in state) == (half == "master")
    assert ("params[1].remainder" in state) == (half == "remainder")
    goes_on = optim.AdamW(lr=0.01, half=half)
    goes_on.load_state_dict(state)
    steps(goes_on, params, 5, 9)
    assert [p.tobytes() for p in params] == [p.tobytes() for p in straight]


def test_types_beside_each_other_extras_and_bits():
    """One step has f32, f64, bf16 and bf16 bits, with all extras."""
    rng = np.random.default_rng(0)
    numbers, slopes = rng.standard_normal((2, 3000))
    params = [numbers.astype(t) for t in ("f4", "f8", BF16)]
    params.append(params[2].copy().view("u2"))
    grads = [slopes.astype(t) for t in ("f4", "f8", BF16)]
    grads.append(grads[2].copy().view("u2"))
    averages = [np.zeros(3000, t) for t in ("f4", "f8", "f4", "f4")]
    copies = [np.zeros(3000, t) for t in ("f2", BF16, "f2", BF16)]
    optimizer = optim.AdamW(lr=0.1, half="remainder")
    norm = np.sqrt(sum(np.square(g.view(BF16) if g.dtype == "u2" else g, dtype="f8").sum()
                       for g in grads))  # fmt: skip
    outcome = optimizer.step(params, grads, grad_scale=2.0, max_norm=1.0, averages=averages,
                             average_decay=0.0, copies=copies, zero_grads=True)  # fmt: skip
    assert outcome.grad_norm == pytest.approx(norm / 2, rel=1e-6)
    assert not any(g.view("u1").any() for g in grads)
    assert params[2].tobytes() == params[3].tobytes()
    held = optimizer.states["remainder"]
    assert held[0] is held[1] is None
    assert held[2].tobytes() == held[3].tobytes()
    assert (averages[2].astype("f2") == copies[2]).all()
    assert np.abs(averages[2] - params[2].astype("f4")).max() <= 2**-8 * 4
    bad = [g.copy() for g in grads]
    bad[2][7] = np.inf
    before = [p.tobytes() for p in params]
    assert optimizer.step(params, bad, grad_scale=2.0).skipped
    assert [p.tobytes() for p in params] == before


def test_what_is_written_between_steps_counts():
    """A stale master copy would undo a write to the weights."""
    for half in ("master", "remainder"):
        params = [np.ones(10, BF16)]
        optimizer = optim.SGD(lr=2.0**-12, half=half)
        optimizer.step(params, [np.ones(10, BF16)])
        params[0][3] = 5
        optimizer.step(params, [np.ones(10, BF16)])
        assert params[0][3] == 5
        assert params[0][2] == 1


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="half='float' is not one of 'master', 'remainder' and"):
        optim.AdamW(half="float")
    with pytest.raises(ValueError, match="seed"):
        optim.AdamW(half="stochastic", seed=-1)
    with pytest.raises(TypeError, match=r"params.0. is bf16; only f32 and f64 .* half="):
        optim.AdamW().step([np.ones(3, BF16)], [np.ones(3, BF16)])
    optimizer = optim.AdamW(half="master")
    with pytest.raises(ValueError, match=r"the parameter is bf16 .*, the gradient f32"):
        optimizer.step([np.ones(3, BF16)], [np.ones(3, "f4")])
    with pytest.raises(TypeError, match="half='master' needs arrays"):
        cutback.compile(lambda p: (p * p).sum(), optimizer=optim.SGD(half="master"))
    same = np.ones(3, BF16)
    with pytest.raises(ValueError, match="share memory"):
        optim.SGD(half="stochastic").step([same, same], [np.ones(3, BF16)] * 2)
    with pytest.raises(ValueError, match="has shape"):
        state = optim.AdamW(half="remainder")
        state.load_state_dict({"t": 1} | {
            f"params[0].{key}": np.zeros(3 + (key == "remainder"))
            for key in ("m", "v", "remainder")})  # fmt: skip
        state.step([np.ones(3, BF16)], [np.ones(3, BF16)])
