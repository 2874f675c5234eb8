"""Tests batch_norm in a training step: against NumPy in f64, with the same bits under every plan,
number of threads and backend, whether or not its readers split it into two ops."""

from __future__ import annotations

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

EPS = 1e-3
SHAPES = (
    (4, 3),  # one element per plane
    (300, 5),
    (700, 256),
    (1, 4, 9),  # one image
    (1, 3, 1, 1),  # one element per channel
    (6, 1, 5),
    (40, 6, 7, 7),
    (64, 24, 4, 4),  # repeats after each image
    (10, 48, 8, 8),
    (130, 3, 5, 7),
    (3, 2, 70, 40),
    (5, 4, 28, 28),
    (2, 17, 64),
)
NUMPY = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": pytest.importorskip("ml_dtypes").bfloat16,
}
# All shapes in f32, and each in one of the others; the rest of the products is very_slow.
CASES = [
    pytest.param(
        shape,
        dtype,
        marks=() if dtype in ("f32", list(NUMPY)[1 + i % 3]) else pytest.mark.very_slow,
    )
    for dtype in NUMPY
    for i, shape in enumerate(SHAPES)
]
PLANS = (
    {"preset": "autograd"},
    {"preset": "conservative"},
    {"preset": "aggressive"},
    {"preset": "recompute_all"},
    {"preset": "aggressive", "groups": True},
    {"budget": "min"},
)


def inputs(shape, dtype):
    rng = np.random.default_rng(sum(shape))
    c = shape[1]
    arrays = (
        rng.standard_normal(shape) * 1.5 + 0.3,
        1 + 0.5 * rng.standard_normal(c),
        rng.standard_normal(c),
        rng.standard_normal(shape),
    )
    return [a.astype(NUMPY[dtype]) for a in arrays]


def loss(x, weight, bias, t):
    return (F.relu(F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)) * t).sum()


def expected(x, weight, bias, t):
    """Returns y of the norm, and the gradients of x, weight and bias, in f64."""
    x, weight, bias, t = (np.asarray(a, np.float64) for a in (x, weight, bias, t))
    axes = (0, *range(2, x.ndim))
    ones = [1] * x.ndim
    ones[1] = -1
    w, b = weight.reshape(ones), bias.reshape(ones)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    h = (x - mean) / np.sqrt(var + EPS)
    y = h * w + b
    g = np.where(y > 0, t, 0.0)
    dw, db = (g * h).sum(axes, keepdims=True), g.sum(axes, keepdims=True)
    n = x.size / x.shape[1]
    dx = w / np.sqrt(var + EPS) * (g - db / n - h * dw / n)
    return y, dx, dw.reshape(-1), db.reshape(-1)


def bits_of(options, arrays):
    value, grads = cutback.value_and_grad(loss, argnums=(0, 1, 2), **options)(*arrays)
    return [np.asarray(a).tobytes() for a in (value, *grads)], grads


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_plans_backends_and_threads_give_the_same_bits(shape, dtype):
    arrays = inputs(shape, dtype)
    want, grads = bits_of({"backend": "debug", "preset": "autograd"}, arrays)
    for options in PLANS:
        assert bits_of(options, arrays)[0] == want, options
    before = cutback.get_num_threads()
    try:
        cutback.set_num_threads(3)
        assert bits_of(PLANS[0], arrays)[0] == want
    finally:
        cutback.set_num_threads(before)
    room = {"f32": 2e-5, "f64": 1e-12, "f16": 3e-3, "bf16": 3e-2}[dtype]
    y, *exact = expected(*arrays)
    if dtype in ("f16", "bf16") and np.abs(y).min() < room:
        return  # the sign of such a y depends on rounding, and the gradient on the sign
    for got, right in zip(grads, exact, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(np.asarray(got, np.float64), right, rtol=0, atol=room * scale)


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_y_is_the_same_whoever_reads_it(shape, dtype):
    x, weight, bias, _ = inputs(shape, dtype)

    def norm(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)

    whole = cutback.compile(norm, argnums=None)
    split = cutback.compile(lambda *a: F.relu(-norm(*a)), argnums=None)
    y = np.asarray(whole(x, weight, bias))
    assert np.asarray(split(x, weight, bias)).tobytes() == np.maximum(-y, 0).tobytes()
    assert "batch_norm_apply" not in whole.executable.text("joint")
    assert "batch_norm_apply" in split.executable.text("joint")
    right = expected(x, weight, bias, x)[0]
    room = {"f32": 1e-5, "f64": 1e-12, "f16": 2e-3, "bf16": 2e-2}[dtype]
    np.testing.assert_allclose(np.asarray(y, np.float64), right, rtol=room, atol=room)


def test_a_cut_keeps_statistics_and_nothing_else():
    arrays = inputs((8, 16, 32, 32), "f32")
    step = cutback.value_and_grad(loss, argnums=(0, 1, 2), preset="aggressive")
    step(*arrays)
    assert step.planned.saved_bytes <= 1024
    program = step.executable.text("program")
    assert program.count("batch_norm_stats") == 1
    # The norm writes only one array of its size: the one that the gradient reads.
    assert "l0:f32[8,16,32,32] = batch_norm_apply" in program


def test_statistics_of_an_empty_batch_are_none():
    """The running statistics do not change, as in PyTorch."""
    mean, var, w = np.full(3, 2.0, "f4"), np.full(3, 5.0, "f4"), np.ones(3, "f4")

    def loss(w, x, mean, var):
        return F.batch_norm(x, mean, var, w, training=True).sum()

    step = cutback.value_and_grad(loss)
    value, grad = step(w, np.zeros((0, 3, 4), "f4"), mean, var)
    assert float(value) == 0 and not np.asarray(grad).any()
    assert (mean == 2).all() and (var == 5).all()
    step(w, np.ones((2, 3, 4), "f4"), mean, var)
    np.testing.assert_allclose(mean, 1.9, rtol=1e-6)
