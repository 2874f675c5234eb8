"""Deep-learning operations against plain NumPy, and their gradients against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 6))
IMAGES = RNG.standard_normal((2, 4, 5, 6))


def erf(x):
    return np.vectorize(math.erf)(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def windows(x, kernel, stride, pad, fill):
    """Returns x[n, c, oh, ow, kh, kw] of each pooling or convolution window."""
    (kh, kw), (sh, sw), (ph, pw) = kernel, stride, pad
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (2, 3))[:, :, ::sh, ::sw]


def conv2d(x, w, stride=(1, 1), pad=(0, 0), dilation=(1, 1), groups=1):
    o, cg, kh, kw = w.shape
    spread = np.zeros((o, cg, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1))
    spread[:, :, :: dilation[0], :: dilation[1]] = w
    parts = []
    for g in range(groups):
        view = windows(x[:, g * cg : (g + 1) * cg], spread.shape[2:], stride, pad, 0.0)
        parts.append(
            np.einsum(
                "ncyxhw,ochw->noyx", view, spread[g * (o // groups) : (g + 1) * (o // groups)]
            )
        )
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (F.relu, lambda x: np.maximum(x, 0)),
        (F.gelu, lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2)))),
        (
            lambda x: F.gelu(x, approximate="tanh"),
            lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
        (F.silu, lambda x: x / (1 + np.exp(-x))),
        (F.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (F.softmax, softmax),
        (lambda x: F.softmax(x, axis=0), lambda x: softmax(x, 0)),
        (F.log_softmax, lambda x: np.log(softmax(x))),
        (
            lambda x: F.softmax(F.causal_mask(x[:, :4])),
            lambda x: softmax(np.where(np.tri(4, dtype=bool), x[:, :4], -np.inf)),
        ),
        (cutback.erf, erf),
        (cutback.rsqrt, None),
    ],
)
def test_activations(ours, reference, run, check_grad):
    x = X if reference is not None else np.abs(X) + 0.5
    expected = reference(x) if reference is not None else 1 / np.sqrt(x)
    np.testing.assert_allclose(run(ours, x), expected, rtol=1e-11, atol=1e-13)
    check_grad(ours, x)


def test_layer_norm(run, check_grad):
    w, b = RNG.standard_normal(6), RNG.standard_normal(6)
    expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(lambda x: F.layer_norm(x), X), expected, rtol=1e-10, atol=1e-12)
    got = run(lambda x, w, b: F.layer_norm(x, w, b, eps=1e-5), X, w, b)
    np.testing.assert_allclose(got, expected * w + b, rtol=1e-10, atol=1e-12)
    check_grad(lambda x, w, b: F.layer_norm(x, w, b), X, w, b)


def test_rms_norm(run, check_grad):
    w = RNG.standard_normal(6)
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(run(lambda x, w: F.rms_norm(x, w), X, w), expected, rtol=1e-10)
    check_grad(lambda x, w: F.rms_norm(x, w), X, w)


def test_linear_and_embedding(run, check_grad):
    w, b = RNG.standard_normal((3, 6)), RNG.standard_normal(3)
    np.testing.assert_allclose(
        run(lambda x, w, b: F.linear(x, w, b), X, w, b), X @ w.T + b, rtol=1e-12
    )
    index = np.array([[0, 2], [2, 1]])
    np.testing.assert_array_equal(run(lambda w: F.embedding(index, w), w), w[index])
    check_grad(lambda w: F.embedding(index, w), w)
    np.testing.assert_array_equal(
        run(lambda i: F.one_hot(i, 4), index), np.eye(4, dtype=int)[index]
    )


@pytest.mark.parametrize("stride", [1, (2, 1)])
@pytest.mark.parametrize("padding", [0, (1, 2)])
@pytest.mark.parametrize(("dilation", "groups"), [(1, 1), (2, 1), (1, 2), (1, 4)])
def test_conv2d(run, stride, padding, dilation, groups):
    w = RNG.standard_normal((4, 4 // groups, 3, 2))
    pair = lambda v: (v, v) if isinstance(v, int) else v  # noqa: E731
    expected = conv2d(IMAGES, w, pair(stride), pair(padding), pair(dilation), groups)
    got = run(lambda x, w: F.conv2d(x, w, None, stride, padding, dilation, groups), IMAGES, w)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_conv2d_gradient(check_grad):
    x, w, b = IMAGES[:1, :2, :4, :4], RNG.standard_normal((2, 1, 3, 2)), RNG.standard_normal(2)
    check_grad(lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, groups=2), x, w, b)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), ((3, 2), (2, 1), 1)])
def test_pooling(run, check_grad, kernel, stride, padding):
    pair = lambda v: (v, v) if isinstance(v, int) else v  # noqa: E731
    k, p = pair(kernel), pair(padding)
    s = k if stride is None else pair(stride)
    expected = windows(IMAGES, k, s, p, -np.inf).max((-2, -1))
    np.testing.assert_array_equal(
        run(lambda x: F.max_pool2d(x, kernel, stride, padding), IMAGES), expected
    )
    expected = windows(IMAGES, k, s, p, 0.0).mean((-2, -1))
    np.testing.assert_allclose(
        run(lambda x: F.avg_pool2d(x, kernel, stride, padding), IMAGES), expected, rtol=1e-12
    )
    check_grad(lambda x: F.max_pool2d(x, kernel, stride, padding), IMAGES[:1, :1])
    check_grad(lambda x: F.avg_pool2d(x, kernel, stride, padding), IMAGES[:1, :1])


def normalised(x, mean, var, w, b, eps=1e-5):
    c = lambda v: v[None, :, None, None]  # noqa: E731
    return (x - c(mean)) / np.sqrt(c(var) + eps) * c(w) + c(b)


def test_batch_norm_updates_running_statistics():
    w, b = RNG.standard_normal(4), RNG.standard_normal(4)
    running_mean, running_var = np.zeros(4), np.ones(4)
    step = cutback.compile(
        lambda x, m, v: F.batch_norm(x, m, v, w, b, training=True, momentum=0.3), argnums=None
    )
    got = step(IMAGES, running_mean, running_var)
    mean, var = IMAGES.mean((0, 2, 3)), IMAGES.var((0, 2, 3))
    np.testing.assert_allclose(got, normalised(IMAGES, mean, var, w, b), rtol=1e-9, atol=1e-12)
    n = IMAGES.size // 4
    np.testing.assert_allclose(running_mean, 0.3 * mean, rtol=1e-12)
    np.testing.assert_allclose(running_var, 0.7 + 0.3 * var * n / (n - 1), rtol=1e-12)
    got = cutback.compile(lambda x, m, v: F.batch_norm(x, m, v, w, b), argnums=None)(
        IMAGES, running_mean, running_var
    )
    np.testing.assert_allclose(
        got, normalised(IMAGES, running_mean, running_var, w, b), rtol=1e-9, atol=1e-12
    )


def test_batch_norm_gradient(check_grad):
    w, b = RNG.standard_normal(2), RNG.standard_normal(2)
    check_grad(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        IMAGES[:, :2, :2, :2],
        w,
        b,
    )


def test_evonorm_s0(run, check_grad):
    v, g, b = (RNG.standard_normal(4) for _ in range(3))
    c = lambda a: a[None, :, None, None]  # noqa: E731
    std = np.sqrt(IMAGES.reshape(2, 2, -1).var(-1) + 1e-5).repeat(2, axis=1)[:, :, None, None]
    expected = IMAGES / (1 + np.exp(-c(v) * IMAGES)) / std * c(g) + c(b)
    got = run(lambda x, v, g, b: F.evonorm_s0(x, v, g, b, groups=2), IMAGES, v, g, b)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    check_grad(
        lambda x, v, g, b: F.evonorm_s0(x, v[:2], g[:2], b[:2], groups=1),
        IMAGES[:1, :2, :2, :2],
        v,
        g,
        b,
    )


def test_classes_on_axis_1(run, check_grad):
    """Images are laid out as in PyTorch: scores[n, c, h, w] and labels[n, h, w]."""
    scores = np.random.default_rng(3).standard_normal((2, 5, 3, 4))
    labels = np.random.default_rng(4).integers(0, 5, (2, 3, 4))
    labels[0, 0] = 2
    last = np.moveaxis(scores, 1, -1).copy()
    for f in (F.cross_entropy, F.nll_loss):
        options = {"reduction": "none", "ignore_index": 2}
        got = run(lambda x, y, f=f, o=options: f(x, y, **o), scores, labels)
        expected = run(lambda x, y, f=f, o=options: f(x, y, **o), last, labels)
        assert np.array_equal(got, expected) and not got[0, 0].any()
        check_grad(lambda x, f=f: f(x, labels), scores)
        with pytest.raises(ValueError, match=r"\(2, 5, 3\), or \(2, 3, 4\) with classes on axis 1"):
            run(lambda x, f=f: f(x, labels[:, :2]), scores)


def test_padding_gets_no_gradient(run):
    table, index = np.arange(8.0).reshape(4, 2), np.array([[0, 3], [3, 1]])

    def loss(w):
        return (F.embedding(index, w, padding_idx=-1) ** 2).sum()

    assert run(lambda w: F.embedding(index, w, padding_idx=3), table).tolist() == (
        table[index].tolist()
    )
    expected = 2 * table * [[1], [1], [0], [0]]
    assert cutback.grad(loss)(table).tolist() == expected.tolist()
    with pytest.raises(ValueError, match="padding_idx=4 is not one of 4 rows"):
        run(lambda w: F.embedding(index, w, padding_idx=4), table)


def test_nothing_is_in_place(run):
    with pytest.raises(NotImplementedError, match=r"relu: inplace=True .* as in x = f\(x\)"):
        run(lambda x: F.relu(x, inplace=True), X)


def test_cross_entropy(run, check_grad):
    labels = np.array([1, 5, -100, 0])
    rows = -np.log(softmax(X))[np.arange(4), labels % 6]
    rows[2] = 0
    for reduction, expected in (("none", rows), ("sum", rows.sum()), ("mean", rows.sum() / 3)):
        got = run(lambda x, y, r=reduction: F.cross_entropy(x, y, reduction=r), X, labels)
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-14)
    check_grad(lambda x: F.cross_entropy(x, labels), X)
    got = run(lambda x, y: F.cross_entropy(x, y), X, np.array([1, 5, 2, 0], np.uint8))
    np.testing.assert_allclose(
        got, -np.log(softmax(X))[np.arange(4), [1, 5, 2, 0]].mean(), rtol=1e-11
    )


def test_attention(run, check_grad):
    q, k, v = (RNG.standard_normal((2, 3, 4, 5)) for _ in range(3))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(5)
    np.testing.assert_allclose(
        run(F.scaled_dot_product_attention, q, k, v), softmax(scores) @ v, rtol=1e-10
    )
    causal = np.where(np.tri(4, dtype=bool), scores, -np.inf)
    expected = softmax(causal) @ v
    attend = F.scaled_dot_product_attention
    np.testing.assert_allclose(
        run(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v), expected, rtol=1e-10
    )
    mask = np.tri(4, dtype=bool)
    np.testing.assert_allclose(
        run(lambda q, k, v: attend(q, k, v, mask), q, k, v), expected, rtol=1e-10
    )
    check_grad(lambda q, k, v: attend(q, k, v, is_causal=True), q[0, :1], k[0, :1], v[0, :1])


def test_dropout_statistics_and_seed():
    x = np.ones((100, 100), np.float32)
    f = cutback.compile(lambda x: F.dropout(x, 0.25), argnums=None, seed=1)
    first, second = f(x), f(x)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.02
    assert not np.array_equal(first, second)
    again = cutback.compile(lambda x: F.dropout(x, 0.25), argnums=None, seed=1)
    np.testing.assert_array_equal(again(x), first)
    np.testing.assert_array_equal(f(x, rng_step=0), first)
    other = cutback.compile(lambda x: F.dropout(x, 0.25), argnums=None, seed=2)
    assert not np.array_equal(other(x), first)
    two = cutback.compile(lambda x: (F.dropout(x, 0.25), F.dropout(x, 0.25)), argnums=None)(x)
    assert not np.array_equal(*two)
    np.testing.assert_array_equal(
        cutback.compile(lambda x: F.dropout(x, 0.5, training=False), argnums=None)(x), x
    )


def test_dropout_gradient_uses_the_same_mask():
    x = np.random.default_rng(0).standard_normal((50, 50))
    (y, g) = cutback.value_and_grad(
        lambda x: (F.dropout(x, 0.5).sum(), F.dropout(x, 0.0)), has_aux=True
    )(x)
    kept = g != 0
    assert set(np.unique(g)) == {0.0, 2.0}
    np.testing.assert_allclose(y[0], 2 * x[kept].sum())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: F.gelu(x, "erf"), "approximate='erf'"),
        (lambda x: F.dropout(x, 1.5), "p=1.5"),
        (lambda x: F.layer_norm(x, np.ones(3)), r"weight has shape \(3,\), expected \(6,\)"),
        (lambda x: F.conv2d(x, x), r"expects x\[n, c, h, w\], got shape \(4, 6\)"),
        (lambda x: F.cross_entropy(x, np.zeros(3, int)), r"labels of shape \(4,\), got \(3,\)"),
        (lambda x: F.cross_entropy(x, np.zeros(4, int), reduction="avg"), "reduction='avg'"),
        (lambda x: F.batch_norm(x, None, None), "running_mean"),
        (
            lambda x: F.evonorm_s0(x.reshape(1, 4, 6, 1), x, x, x, groups=3),
            "do not divide into 3 groups",
        ),
        (lambda x: F.softmax(x, axis=2), "axis 2 is out of bounds"),
    ],
)
def test_mistakes_name_the_thing_and_the_line(call, text):
    with pytest.raises(ValueError, match=text + r".*\[test_functional.py:\d+\]"):
        cutback.trace(call, X)


@pytest.mark.parametrize("kind", ["bool", "float", "none closed"])
def test_queries_that_may_attend_to_nothing_give_zeros(kind, run, check_grad):
    """Gradients do not depend on these queries, as in PyTorch (`_safe_softmax`)."""
    q, k, v = (RNG.standard_normal((2, 4, 5)) for _ in range(3))
    mask = RNG.random((2, 4, 4)) < 0.6
    mask[:, :, 0] = True
    if kind != "none closed":
        mask[0, 2] = mask[1, 0] = False
    given = np.where(mask, 0.0, -np.inf) if kind == "float" else mask

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, given)

    scores = np.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(5), -1e30)
    expected = np.where(mask.any(-1, keepdims=True), softmax(scores) @ v, 0.0)
    np.testing.assert_allclose(run(attend, q, k, v), expected, rtol=1e-10)
    grads = cutback.value_and_grad(lambda *a: (attend(*a) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(g).all() for g in grads[1])
    check_grad(attend, q, k, v)


def test_a_mask_of_integers_is_refused(run):
    q = RNG.standard_normal((2, 4, 5))
    with pytest.raises(TypeError, match="attn_mask must be bool or floating, not i64"):
        run(lambda q: F.scaled_dot_product_attention(q, q, q, np.ones((4, 4), np.int64)), q)


def test_sizes_may_be_numbers_of_numpy(run):
    x = RNG.standard_normal((3, 5))
    plain = run(lambda x: F.layer_norm(x, 5), x)
    np.testing.assert_array_equal(run(lambda x: F.layer_norm(x, np.int64(5)), x), plain)
    plain = run(lambda x: F.rms_norm(x, 5), x)
    np.testing.assert_array_equal(run(lambda x: F.rms_norm(x, np.int64(5)), x), plain)


@pytest.mark.parametrize(
    ("subscripts", "copies"),
    [
        ("nd,edh->enh", False), ("edh,nd->enh", False), ("nmd,efdh->efnmh", False),
        ("nd,edh->neh", True), ("dn,edh->enh", True),
    ],
)  # fmt: skip
def test_einsum_with_a_stack_of_matrices(subscripts, copies):
    rng = np.random.default_rng(0)
    sizes = dict(zip("ndmefh", (5, 3, 2, 4, 2, 6), strict=True))
    first, second = subscripts.partition("->")[0].split(",")
    x, y = (rng.standard_normal([sizes[c] for c in term]) for term in (first, second))
    made = cutback.compile(lambda x, y: cutback.einsum(subscripts, x, y), argnums=None)
    np.testing.assert_allclose(made(x, y), np.einsum(subscripts, x, y), rtol=0, atol=1e-14)
    graph = str(cutback.trace(lambda x, y: cutback.einsum(subscripts, x, y), x, y))
    assert ("contiguous" in graph or "transpose" in graph) == copies
