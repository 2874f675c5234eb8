"""Compares vmap with a loop over examples, for each operation with a rule."""

from __future__ import annotations

import numpy as np
import pytest
from coverage_rows import NUMPY, TORCH, drawn, ours, weighted
from gradient_rows import ROWS

import cutback
import cutback.nn.functional as F
from cutback.policies import OPS

RNG = np.random.default_rng(0)
N = 3


def run(f, *args):
    return cutback.compile(f, argnums=None)(*args)


def close(x, y, digits=1e-11):
    for a, b in zip(cutback.tree.flatten(x)[0], cutback.tree.flatten(y)[0], strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=digits, atol=digits)


def looped(f, axes, *args):
    """Returns the result of vmap, computed by a loop."""
    rows = [
        run(f, *(x if a is None else np.take(x, i, a) for x, a in zip(args, axes, strict=True)))
        for i in range(N)
    ]
    leaves = [cutback.tree.flatten(row)[0] for row in rows]
    structure = cutback.tree.flatten(rows[0])[1]
    return cutback.tree.unflatten(
        structure, [np.stack(column) for column in zip(*leaves, strict=True)]
    )


WITHOUT = {
    "softmax_bwd", "log_softmax_bwd", "layer_norm_bwd", "rms_norm_bwd", "batch_norm_bwd",
    "batch_norm_stats", "cross_entropy_bwd", "attention_bwd", "conv2d_wgrad", "avg_pool2d_bwd",
    "matmul_add",
}  # fmt: skip
RANDOM = {"dropout", "uniform"}
MADE = {"input", "pack_bits", "pack_index", "unpack_bits", "unpack_index"}  # not made by functions


@pytest.mark.parametrize("name", sorted(ROWS.keys() - WITHOUT - RANDOM))
def test_rules_agree_with_a_loop(name):
    shapes, call = ROWS[name]
    kinds = [(0,) * len(shapes)]
    if len(shapes) > 1:
        kinds += [tuple(0 if k == i else None for k in range(len(shapes))) for i in range(2)]
    for axes in kinds:
        args = [
            RNG.uniform(0.2, 0.9, shape if a is None else (N, *shape))
            for a, shape in zip(axes, shapes, strict=True)
        ]

        def f(*xs):
            return call(
                lambda *given, **attrs: cutback.frontend.graph.current().op(*given, **attrs), *xs
            )

        close(cutback.vmap(f, axes)(*args), looped(f, axes, *args))


def test_every_operation_has_a_rule_or_is_listed():
    def refused(name):
        shapes, call = ROWS[name]
        with pytest.raises(NotImplementedError, match=rf"vmap: {name} has no rule"):
            cutback.vmap(lambda *xs: call(xs[0].graph.op, *xs))(
                *(RNG.uniform(0.2, 0.9, (N, *shape)) for shape in shapes)
            )

    for name in WITHOUT & {"softmax_bwd", "conv2d_wgrad"}:
        refused(name)
    known = set(cutback.frontend.batching._RULES)
    pointwise = {name for name, *_, flags, _, _, _ in OPS.values() if flags & 2}
    assert set(OPS) - known - pointwise == WITHOUT - {"batch_norm_apply"} | MADE


W = RNG.standard_normal((4, 2))
X = RNG.standard_normal((N, 4))


def loss(w, x, y):
    return ((cutback.tanh(x @ w) - y) ** 2).sum()


def test_gradients_of_each_example():
    y = RNG.standard_normal((N, 2))
    each = cutback.vmap(cutback.grad(loss), in_axes=(None, 0, 0))(W, X, y)
    close(each, np.stack([cutback.grad(loss)(W, X[i], y[i]) for i in range(N)]))


def test_gradients_of_batches_of_gradients():
    y = RNG.standard_normal((N, 2))

    def norms(w):
        each = cutback.vmap(cutback.grad(loss), in_axes=(None, 0, 0))(w, X, y)
        return (each**2).sum()

    def by_hand(w):
        return sum((cutback.grad(loss)(w, X[i], y[i]) ** 2).sum() for i in range(N))

    close(cutback.grad(norms)(W), cutback.grad(by_hand)(W))


def test_batches_of_batches():
    x, y = RNG.standard_normal((N, 4)), RNG.standard_normal((2, 4))
    outer = cutback.vmap(cutback.vmap(lambda a, b: a @ b + a.sum(), (None, 0)), (0, None))
    close(outer(x, y), x @ y.T + x.sum(1, keepdims=True))
    inner = cutback.vmap(cutback.grad(lambda a: cutback.vmap(lambda b: (a * b**2).sum())(y).sum()))
    close(inner(x), np.broadcast_to((y**2).sum(0), (N, 4)).copy())


def test_unit_vectors_of_a_pullback():
    def jacobian(x):
        _, pull = cutback.vjp(lambda x: cutback.tanh(x @ W), x)
        return cutback.vmap(pull)(cutback.eye(2))[0]

    close(run(jacobian, X[0]), cutback.jacrev(lambda x: cutback.tanh(x @ W))(X[0]))
    close(
        cutback.vmap(cutback.jacfwd(cutback.sin))(X),
        np.stack([np.diag(np.cos(x)) for x in X]),
    )
    close(cutback.vmap(cutback.hessian(lambda x: (x**3).sum()))(X)[1], np.diag(6 * X[1]))


def test_axes_of_arguments_and_results():
    p = {"w": RNG.standard_normal((4, N)), "b": [np.float64(2.0)]}

    def f(p, x, *, scale):
        return {"y": p["w"] * x * scale + p["b"][0], "n": x.sum()}, p["b"][0]

    mapped = cutback.vmap(f, ({"w": 1, "b": None}, -1), ({"y": 1, "n": 0}, None))
    out, shared = mapped(p, X.T.copy(), scale=np.arange(1.0, 4))
    close(out["y"], p["w"] * X.T * np.arange(1.0, 4) + 2.0)
    close(out["n"], X.sum(1))
    assert shared == 2.0
    close(cutback.vmap(lambda x: cutback.ones(2), axis_size=5, in_axes=None)(X), np.ones((5, 2)))


def test_random_numbers_differ_between_examples():
    def f(x):
        return cutback.uniform((64,)), F.dropout(x, 0.5), cutback.random.normal((2,))

    u, d, n = cutback.vmap(f)(np.ones((N, 64)))
    for rows in (u, d, n):
        assert all((rows[i] != rows[j]).any() for i in range(N) for j in range(i))
    _, shared, _ = cutback.vmap(lambda _: f(cutback.ones(64)))(np.arange(N))
    assert (shared[0] != shared[1]).any()


def test_custom_gradients_of_each_example():
    @cutback.custom_vjp
    def clipped(x):
        return x * 1.0

    clipped.defvjp(lambda x: (x * 1.0, None), lambda _, g: (cutback.clip(g, -0.5, 0.5),))
    found = cutback.vmap(cutback.grad(lambda x: (clipped(x) ** 2).sum()))(X)
    close(found, np.clip(2 * X, -0.5, 0.5))
    shared = cutback.grad(lambda w: cutback.vmap(lambda x: (clipped(w) * x).sum())(X).sum())(X[0])
    close(shared, np.clip(X, -0.5, 0.5).sum(0))


def test_names_and_losses():
    logits, labels = RNG.standard_normal((N, 4, 5)), RNG.integers(0, 4, (N, 4))

    def f(x, y):
        each = F.cross_entropy(x, y, reduction="none")
        return F.mse_loss(x, x * 0), each, cutback.sort(x[:, 1]), x[y[0]], cutback.argmax(x, -1)

    close(cutback.vmap(f)(logits, labels), looped(f, (0, 0), logits, labels))


@pytest.mark.parametrize(
    ("f", "args", "error", "text"),
    [
        (
            cutback.vmap(lambda x, y: x),
            (X, X[:2]),
            ValueError,
            r"args\[0\] has 3, but.*args\[1\] has 2",
        ),
        (cutback.vmap(lambda x, y: x, (0, 1)), (X, X[0]), ValueError, r"args\[1\].*no axis 1"),
        (cutback.vmap(lambda x: x, None), (X,), ValueError, "axis_size="),
        (cutback.vmap(lambda x: x, (0, 0)), (X,), ValueError, "2 entries for 1 arguments"),
        (cutback.vmap(lambda x: x, ({"a": 0},)), (X,), ValueError, "in_axes=.*not nested"),
        (cutback.vmap(lambda x: x, out_axes=None), (X,), ValueError, "the same for all examples"),
        (cutback.vmap(lambda x: x, out_axes=3), (X,), ValueError, "out_axes=3"),
        (cutback.vmap(lambda x, n: x), (X, 3), ValueError, r"args\[1\].*None in in_axes"),
    ],
)
def test_mistakes(f, args, error, text):
    with pytest.raises(error, match=text) as caught:
        f(*args)
    assert str(caught.value).count("[test_vmap.py:") == 1


def test_statistics_that_examples_would_share():
    def f(m, x):
        return F.batch_norm(x, m, m * 0 + 1, training=True)

    with pytest.raises(ValueError, match="running statistics"):
        cutback.vmap(f, (None, 0))(np.zeros(4), RNG.standard_normal((N, 5, 4)))


def named(row):
    return f"{row.oracle}: {row.name}"


@pytest.mark.very_slow
@pytest.mark.parametrize("row", [*NUMPY, *TORCH], ids=named)
def test_compositions_agree_with_a_loop(row):
    """Compositions of operations with rules agree, and so do per-example gradients."""
    shape = row.shapes[0]
    x = np.stack([drawn(row, shape, np.float64) + i * 1e-3 for i in range(N)])
    if row.domain == "integers":
        x = np.round(x)

    def f(x):
        return ours(row, x)

    try:
        want = looped(f, (0,), x)
    except (TypeError, ValueError, NotImplementedError):
        pytest.skip("not of a traced array, or not of f64")
    close(cutback.vmap(f)(x), want, 1e-9)
    if row.smooth:
        gradient = cutback.grad(lambda x: weighted(f(x)))
        close(cutback.vmap(gradient)(x), looped(gradient, (0,), x), 1e-8)
