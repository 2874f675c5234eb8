"""Compares the extras of a step on arrays, besides the update, with twins in NumPy, and tests
refusals."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
from cutback import optim

SIZES = [(3,), (0,), (64,), (1000,), (5, 7), (40001,), (2048,)]


@optim.foreach
def momentum(p, g, m, *, lr=1e-3):
    m = 0.9 * m + g
    return p - lr * m, m


@optim.foreach
def normed(p, g, *, lr=1e-3):
    """Steps with the norm of the gradient, which must be the clipped one."""
    return p - lr * g / (1 + g.norm())


KINDS = [
    lambda: optim.AdamW(lr=1e-2), lambda: optim.SGD(lr=1e-2, momentum=0.9, maximize=True),
    lambda: optim.Lion(lr=1e-2), lambda: momentum(lr=1e-2), lambda: normed(lr=1e-2),
]  # fmt: skip


def drawn(seed, dtype="f4"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in SIZES]


def bf16(x):
    bits = x.view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("scale, max_norm", [(None, None), (1024.0, None), (None, 1.5), (3.0, 2.0),
                                             (None, 1e6)])  # fmt: skip
def test_extras_are_their_passes(make, scale, max_norm):
    params, expected = drawn(0), drawn(0)
    ours, theirs = make(), make()
    averages, twins = drawn(1), drawn(1)
    copies = [np.zeros(p.shape, "u2" if i % 2 else "f2") for i, p in enumerate(params)]
    asked = {key: x for key, x in (("grad_scale", scale), ("max_norm", max_norm)) if x}
    for t in range(4):
        grads = drawn(10 + t)
        plain = [g / np.float32(scale or 1) for g in drawn(10 + t)]
        norm = np.sqrt(sum((g.astype("f8") ** 2).sum() for g in plain))
        if max_norm:
            plain = [g * np.float32(min(1, max_norm / (norm + 1e-6))) for g in plain]
        found = ours.step(
            params, grads, averages=averages, average_decay=0.9, copies=copies, zero_grads=True,
            **asked,
        )  # fmt: skip
        theirs.step(expected, plain)
        assert not found.skipped and all(not g.any() for g in grads)
        assert found.grad_norm == (pytest.approx(norm, rel=1e-6) if asked else None)
        for p, q, a, b, c in zip(params, expected, averages, twins, copies, strict=True):
            np.testing.assert_allclose(p, q, rtol=2e-6, atol=2e-6)
            if not asked:
                np.testing.assert_array_equal(p, q)
            b[...] = np.float32(0.9) * b + np.float32(1 - 0.9) * p
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(c, bf16(p) if c.dtype == "u2" else p.astype("f2"))


def test_a_step_without_extras_after_one_with_them_is_plain():
    params, expected, grads = drawn(0), drawn(0), drawn(1)
    ours, theirs = optim.Adam(), optim.Adam()
    ours.step(params, [g.copy() for g in grads], max_norm=1e9, zero_grads=True)
    theirs.step(expected, grads)
    assert ours.step(params, grads) == (None, False)
    theirs.step(expected, grads)
    for p, q in zip(params, expected, strict=True):
        np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("asked", [{"grad_scale": 2.0}, {"max_norm": 1.0}], ids=str)
def test_a_gradient_that_is_not_finite_skips_the_step(make, bad, asked):
    params, optimizer = drawn(0), make()
    averages = drawn(2)
    optimizer.step(params, drawn(1), grad_scale=2.0, averages=averages)
    kept, states = [p.copy() for p in params], optimizer.state_dict()
    before = [a.copy() for a in averages]
    for i in (0, 3, 5):
        grads = drawn(3)
        grads[i].flat[-1] = bad
        found = optimizer.step(params, grads, averages=averages, zero_grads=True, **asked)
        assert found.skipped and np.isnan(found.grad_norm)
        assert all(not g.any() for g in grads)
    for p, q, a, b in zip(params, kept, averages, before, strict=True):
        np.testing.assert_array_equal(p, q)
        np.testing.assert_array_equal(a, b)
    for key, x in optimizer.state_dict().items():
        np.testing.assert_array_equal(x, states[key])


def test_doubles_are_finite_where_their_squares_are_not():
    p, g = np.zeros(100), np.full(100, 1e200)
    found = optim.SGD(lr=1.0).step(p, g, grad_scale=1e10)
    assert not found.skipped and (p == -1e190).all()
    g[50] = np.nan
    assert optim.SGD(lr=1.0).step(p, g, grad_scale=1.0).skipped


def test_bits_do_not_depend_on_threads():
    threads, kept = cutback.get_num_threads(), None
    try:
        for n in (1, 2, 3):
            cutback.set_num_threads(n)
            params, averages = drawn(0), drawn(1)
            optim.AdamW().step(params, drawn(2), max_norm=1.0, averages=averages)
            bits = [x.tobytes() for x in (*params, *averages)]
            kept = kept or bits
            assert bits == kept
    finally:
        cutback.set_num_threads(threads)


def test_some_have_no_average_and_no_gradient():
    params = {"a": np.ones(5, "f4"), "b": [np.ones(3, "f4"), np.ones(2, "f4")]}
    averages = {"a": np.zeros(5, "f4"), "b": None}
    grads = {"a": None, "b": [np.ones(3, "f4"), np.ones(2, "f4")]}
    optim.SGD(lr=0.5).step(params, grads, averages=averages, average_decay=0.0)
    assert not averages["a"].any() and (params["b"][1] == 0.5).all()
    optim.SGD(lr=0.5).step(params, {**grads, "a": np.ones(5, "f4")}, averages=averages,
                           average_decay=0.0)  # fmt: skip
    assert (averages["a"] == 0.5).all()


P, G = np.ones((2, 3), "f4"), np.ones((2, 3), "f4")
FROZEN = np.ones((2, 3), "f4")
FROZEN.flags.writeable = False


@pytest.mark.parametrize("grads, options, error, text", [
    ([G], {"max_norm": 0.0}, ValueError, "max_norm=0.0 must be above 0"),
    ([G], {"max_norm": np.nan}, ValueError, "max_norm=nan"),
    ([G], {"grad_scale": -1.0}, ValueError, "grad_scale=-1.0 must be between"),
    ([G], {"grad_scale": "x"}, TypeError, "grad_scale='x'"),
    ([G], {"average_decay": 1.5}, ValueError, "average_decay=1.5"),
    ([G], {"zero_grads": 1}, TypeError, "zero_grads=1"),
    ([G], {"averages": [G.astype("f8")]}, ValueError, "average is float64.* expected float32"),
    ([G], {"averages": [G.ravel().copy()]}, ValueError, r"average is float32\[6\]"),
    ([G], {"averages": G}, ValueError, "nested"),
    ([G], {"averages": [FROZEN]}, ValueError, "average is read-only"),
    ([G], {"averages": [[1.0]]}, TypeError, "average is list, not a NumPy array"),
    ([G], {"averages": [np.ones((3, 2), "f4").T]}, ValueError, "must be contiguous"),
    ([G], {"copies": [G]}, ValueError, "copy is float32.* float16"),
    ([FROZEN], {"zero_grads": True}, ValueError, "gradient is read-only"),
    ([G], {"averages": [P]}, ValueError, "average of row 0 .* share memory|share memory"),
    ([G], {"averages": [G], "zero_grads": True}, ValueError, "share memory"),
    ([P], {"zero_grads": True}, ValueError, "share"),
])  # fmt: skip
def test_mistakes_touch_nothing(grads, options, error, text):
    with pytest.raises(error, match=text):
        optim.SGD(lr=1.0).step([P], grads, **options)
    assert (P == 1).all() and (G == 1).all()
