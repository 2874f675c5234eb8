"""Gradients inside traced functions, and the transformations built on them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from gradient_rows import ROWS

import cutback
import cutback.nn.functional as F
from cutback.policies import OPS

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3))
W = RNG.standard_normal((3, 4))
V = RNG.standard_normal(3)


def run(f, *args):
    return cutback.compile(f, argnums=None)(*args)


def close(x, y, digits=1e-11):
    np.testing.assert_allclose(x, y, rtol=digits, atol=digits)


# ---- gradients of gradients ----------------------------------------------------------------------


def weighted(values, seed):
    """Returns the weighted sum of the squares of all floating values."""
    rng, total = np.random.default_rng(seed), None
    for x in values if isinstance(values, tuple) else (values,):
        if x.dtype not in ("i32", "i64", "bool"):
            term = (x * x * rng.uniform(0.3, 1.4, x.shape)).sum()
            total = term if total is None else total + term
    return total


def row_functions(name):
    """Returns an operation's loss as a function of one vector, and a sum of its gradients."""
    shapes, call = ROWS[name]
    sizes = [math.prod(shape) for shape in shapes]
    ends = np.cumsum(sizes)

    def parts(p):
        return [p[e - n : e].reshape(s) for n, e, s in zip(sizes, ends, shapes, strict=True)]

    def loss(p):
        return weighted(call(p.graph.op, *parts(p)), 1)

    def second(p):
        return weighted(cutback.grad(loss)(p), 2)

    return loss, second, int(ends[-1])


@pytest.mark.parametrize("name", sorted(ROWS))
def test_second_derivatives_are_those_of_differences(name):
    loss, second, n = row_functions(name)
    rng = np.random.default_rng(3)
    p = rng.permutation(np.linspace(0.21, 0.89, n))
    along = rng.uniform(-1, 1, n)

    def all_of(p, along):
        gradient = cutback.grad(second)(p)
        value, slope = cutback.jvp(loss, (p,), (along,))
        return value, slope, second(p), (gradient * along).sum()

    step = cutback.compile(all_of, argnums=None)
    h = 1e-3 / n
    values = [step(p + k * h * along, along, rng_step=0) for k in (1, -1, 2, -2)]
    _, slope, _, curve = step(p, along, rng_step=0)
    for found, i in ((slope, 0), (curve, 2)):
        at = [row[i] for row in values]
        want = (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * h)
        assert abs(found - want) <= 2e-7 * max(1, abs(want)), (name, found, want)


def test_every_differentiable_operation_has_a_row():
    assert {name for name, *_, has in OPS.values() if has} - {"custom_vjp"} == set(ROWS)


def penalty(w, x):
    """Computes a gradient penalty: the gradients with respect to the input should have norm 1."""
    slopes = cutback.grad(lambda x: F.gelu(x @ w["a"] + w["b"]).sum())(x)
    return ((cutback.sqrt((slopes**2).sum(1)) - 1) ** 2).mean()


def test_penalty_has_the_gradient_of_differences():
    w = {"a": W, "b": RNG.standard_normal(4)}
    gradient = cutback.grad(penalty)(w, X)
    along = {"a": RNG.standard_normal((3, 4)), "b": RNG.standard_normal(4)}
    value = cutback.compile(penalty, argnums=None)
    at = [value({k: w[k] + s * 1e-4 * along[k] for k in w}, X) for s in (1, -1)]
    close((at[0] - at[1]) / 2e-4, sum((gradient[k] * along[k]).sum() for k in w), 1e-6)


def test_third_derivatives():
    x = np.linspace(0.1, 2.0, 5)
    f = cutback.sin
    for _ in range(3):
        f = (lambda g: cutback.grad(lambda x: g(x).sum()))(f)
    close(f(x), -np.cos(x))


def test_values_around_a_function_are_constants_to_its_gradients():
    def f(x):
        inner = cutback.grad(lambda y: (x * y**2).sum())(x)  # 2 x y at y = x
        return (inner * x).sum()  # 2 x^3

    close(cutback.grad(f)(V), 6 * V**2)


def test_gradients_inside_are_nested_like_arguments():
    def f(p, q, x):
        gradients, aux = cutback.grad(
            lambda p, q, x: ((x @ p["w"] * q[0]).sum(), x.mean()), (0, 1), has_aux=True
        )(p, q, x)
        value, by_x = cutback.value_and_grad(lambda x: (x**2).sum())(x)
        unused = cutback.grad(lambda p: (p["w"] ** 2).sum())({"w": p["w"], "z": x})
        return gradients, aux, value, by_x, unused["z"]

    (p, q), aux, value, by_x, zero = run(f, {"w": W, "name": "a"}, [np.float64(2.0), None], X)
    close(p["w"], 2 * X.T @ np.ones((5, 4)))
    assert p["name"] is None and q[1] is None
    close(q[0], (X @ W).sum())
    close(aux, X.mean())
    close(value, (X**2).sum())
    close(by_x, 2 * X)
    assert not zero.any()


def test_a_compiled_function_inside_another_is_part_of_it():
    inner = cutback.compile(lambda x: cutback.exp(x).sum(), argnums=None)
    close(cutback.grad(lambda x: inner(x) ** 2)(V), 2 * np.exp(V).sum() * np.exp(V))


def deep_penalty(layers, x):
    """Computes the penalty of a deep network."""

    def network(x):
        for w, b in layers:
            x = cutback.tanh(x @ w + b)
        return x.sum()

    slopes = cutback.grad(network)(x)
    return ((cutback.sqrt((slopes**2).sum(1)) - 1) ** 2).mean()


def equation(layers, x):
    """Returns the residual of u'' = -sin x at the points."""

    def u(x):
        for w, b in layers:
            x = cutback.tanh(x @ w + b)
        return x.sum()

    slopes = cutback.grad(lambda x: cutback.grad(u)(x).sum())(x)
    return ((slopes + cutback.sin(x)) ** 2).mean()


SCALE = 2.0


def scaled(x):
    return (x**3).sum() * SCALE


def test_variables_of_the_function_are_watched():
    for transform in (cutback.vmap, cutback.jacrev, cutback.hessian, cutback.grad):
        step = transform(scaled)
        step(X)
        try:
            globals()["SCALE"] = 3.0
            with pytest.warns(RuntimeWarning, match="SCALE was"):
                step(X)
        finally:
            globals()["SCALE"] = 2.0


def test_names_of_arguments_are_those_of_the_function():
    for transform in (cutback.grad, cutback.jacrev):
        with pytest.raises(TypeError, match=r"x(\[.*\])? is i64|primals\[0\] is i64"):
            transform(cutback.grad(scaled))(np.arange(3))


@pytest.mark.parametrize("loss", [deep_penalty, equation])
def test_losses_with_gradients_measure_what_was_planned(loss):
    rng = np.random.default_rng(1)
    sizes = (1, 32, 32, 32, 1)
    layers = [
        (rng.standard_normal((n, m)) / np.sqrt(n), rng.standard_normal(m))
        for n, m in itertools.pairwise(sizes)
    ]
    x = rng.standard_normal((256, 1))
    plain = cutback.value_and_grad(loss)
    want = plain(layers, x)
    step = cutback.value_and_grad(loss, budget=0.5)
    found = step(layers, x)
    assert step.stats.peak_bytes == step.planned.arena_bytes
    assert step.planned.arena_bytes < 0.9 * plain.planned.arena_bytes
    rows = (cutback.tree.flatten(result)[0] for result in (want, found))
    for x1, x2 in zip(*rows, strict=True):
        assert x1.tobytes() == x2.tobytes()


# ---- vjp, jvp, Jacobians -------------------------------------------------------------------------


def both(f, *args):
    """Returns the result of ``f`` outside a traced function, after comparing it with the result
    inside one."""
    outside, inside = f(*args), run(f, *args)
    for x, y in zip(cutback.tree.flatten(outside)[0], cutback.tree.flatten(inside)[0], strict=True):
        close(x, y)
    return outside


def test_vjp():
    def f(x, w):
        value, pull = cutback.vjp(lambda x, w: cutback.tanh(x @ w), x, w)
        return value, pull(value)

    value, (by_x, by_w) = both(f, X, W)
    slope = value * (1 - value**2)
    close(value, np.tanh(X @ W))
    close(by_x, slope @ W.T)
    close(by_w, X.T @ slope)


def test_vjp_of_trees():
    def f(p):
        value, pull, aux = cutback.vjp(
            lambda p: ({"s": p["a"] * 2, "t": p["b"].sum()}, p["a"].shape), p, has_aux=True
        )
        (gradient,) = pull({"s": value["s"], "t": 3.0})
        assert aux == (3,)
        return gradient, value

    gradient, _ = run(f, {"a": V, "b": X})
    close(gradient["a"], 4 * V)
    close(gradient["b"], np.full_like(X, 3.0))


def test_jvp():
    def f(x, t):
        return cutback.jvp(lambda x: F.softmax(x, -1), (x,), (t,))

    value, tangent = both(f, X, X[::-1].copy())
    t = X[::-1]
    close(tangent, value * (t - (value * t).sum(1, keepdims=True)))


def test_jvp_of_attention_takes_six_products():
    """The forward takes two products and the tangent four."""
    given, along = (
        tuple(np.random.default_rng(k).standard_normal((2, 3, 5, 4)) for k in ks)
        for ks in ((0, 1, 2), (3, 4, 5))
    )

    def attend(*qkv):
        return F.scaled_dot_product_attention(*qkv, is_causal=True)

    step = cutback.compile(lambda p, t: cutback.jvp(attend, p, t), argnums=None)
    step(given, along)
    kinds = [op["kind"] for op in step.plan.problem["ops"]]
    assert kinds.count("matmul") == 6 and "attention" not in kinds
    value, tangent = both(lambda p, t: cutback.jvp(attend, p, t), given, along)
    close(value, cutback.compile(attend, argnums=None)(*given))
    ahead, behind = (
        cutback.compile(attend, argnums=None)(
            *(x + by * t for x, t in zip(given, along, strict=True))
        )
        for by in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(tangent, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


def test_jvp_of_numbers_and_constants():
    value, tangent = cutback.jvp(lambda x, y: x * y + y, (3.0, 2.0), (1.0, 0.5))
    assert (value, tangent) == (8.0, 4.0)
    _, tangent = cutback.jvp(lambda x: cutback.ones(3), (V,), (V,))
    assert not tangent.any()


def test_jacobians():
    def f(x):
        return cutback.stack([x[0] * x[1], x[2] ** 2, cutback.sin(x[0])])

    want = [[V[1], V[0], 0], [0, 0, 2 * V[2]], [np.cos(V[0]), 0, 0]]
    for transform in (cutback.jacrev, cutback.jacfwd):
        close(transform(f)(V), want)
        close(run(lambda x, j=transform: j(f)(x), V), want)


def test_jacobians_are_nested_as_results_and_then_arguments():
    def f(p, x):
        return {"y": x @ p["w"], "n": (p["w"] ** 2).sum()}

    for transform in (cutback.jacrev, cutback.jacfwd):
        by_p, by_x = transform(f, (0, 1))({"w": W}, V)["y"]
        close(by_x, W.T)
        close(by_p["w"], np.einsum("a,bc->cab", V, np.eye(4)))
        close(transform(f)({"w": W}, V)["n"]["w"], 2 * W)
        jacobian, aux = transform(lambda x: (x**2, x.sum()), has_aux=True)(V)
        close(jacobian, np.diag(2 * V))
        close(aux, V.sum())


def test_hessian():
    def f(x):
        return (x**3).sum() + x[0] * x[1]

    want = np.diag(6 * V)
    want[0, 1] = want[1, 0] = 1
    close(cutback.hessian(f)(V), want)
    close(cutback.jacfwd(cutback.jacrev(f))(V), want)
    close(cutback.grad(lambda x: (cutback.hessian(f)(x) ** 2).sum())(V), 72 * V)


# ---- functions with a gradient of their own ------------------------------------------------------


def test_stop_gradient():
    def f(x):
        still = cutback.stop_gradient({"a": x, "b": [x * 2]})
        return (x * still["a"] + still["b"][0]).sum()

    assert cutback.stop_gradient(V) is V
    close(cutback.grad(f)(V), V)
    close(run(f, V), (V * V + 2 * V).sum())


@cutback.custom_vjp
def clipped(x, limit):
    return x * 2


clipped.defvjp(
    lambda x, limit: (x * 2, limit),
    lambda limit, g: (cutback.clip(g * 2, -limit, limit), None),
)


def test_custom_vjp():
    close(clipped(V, 1.0), 2 * V)
    close(cutback.grad(lambda x: (clipped(x, 0.5) ** 2).sum())(V), np.clip(8 * V, -0.5, 0.5))
    inside = run(lambda x: cutback.grad(lambda x: (clipped(x, 0.5) ** 2).sum())(x), V)
    close(inside, np.clip(8 * V, -0.5, 0.5))


def test_custom_vjp_is_differentiated_again():
    @cutback.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    close(cutback.grad(lambda x: cutback.grad(lambda x: cube(x).sum())(x).sum())(V), 6 * V)
    close(cutback.jvp(cube, (V,), (V,))[1], 3 * V**3)
    close(cutback.hessian(lambda x: cube(x).sum())(V), np.diag(6 * V))


def test_custom_vjp_of_several_results():
    @cutback.custom_vjp
    def pair(p):
        return {"s": p["a"] + 1, "t": p["b"] * 2}

    # not linear: both gradients must arrive together
    pair.defvjp(
        lambda p: ({"s": p["a"] + 1, "t": p["b"] * 2}, None),
        lambda _, g: ({"a": g["s"] * g["t"], "b": g["t"]},),
    )

    def f(p):
        y = pair(p)
        return (y["s"] * 3 + y["t"] * 5).sum()

    gradient = cutback.grad(f)({"a": V, "b": V})
    close(gradient["a"], np.full(3, 15.0))
    close(gradient["b"], np.full(3, 5.0))
    only = cutback.grad(lambda p: pair(p)["t"].sum())({"a": V, "b": V})
    close(only["a"], np.zeros(3))


def test_custom_vjp_gets_gradients_in_any_layout():
    @cutback.custom_vjp
    def same(x):
        return x * 1.0

    def bwd(_, g):
        return (F.softmax(g.T.reshape(-1), 0).reshape(3, 5).T,)

    same.defvjp(lambda x: (x * 1.0, None), bwd)
    close(cutback.grad(lambda x: same(x).sum())(X), np.full_like(X, 1 / 15))
    close(cutback.grad(lambda x: same(x).T.sum())(X), np.full_like(X, 1 / 15))


def test_markers_of_a_text_that_do_not_belong_together():
    graph = cutback.Graph()
    x = graph.input("x", (3,), "f64", role="param")
    zeros = graph.op("full", shape=(3,), value=0.0, dtype="f64")
    y = graph.op("custom_vjp", x, zeros, zeros, x, x, index=0, n_outs=2)
    graph.output(graph.op("sum", y))
    with pytest.raises(ValueError, match="output 1 of 2 does not follow"):
        graph.compile(wrt=["x"])


def test_custom_vjp_with_arguments_without_gradient():
    class Scale:
        factor = 3.0

    def power(how, x):
        return x**2 * how.factor

    power = cutback.custom_vjp(power, nondiff_argnums=(0,))
    power.defvjp(
        lambda how, x: (x**2 * how.factor, x), lambda how, x, g: (g * x * how.factor * 20,)
    )
    close(cutback.grad(lambda x: power(Scale(), x).sum())(V), 60 * V)


# ---- mistakes ------------------------------------------------------------------------------------


def no_rule(x):
    return cutback.custom_vjp(lambda x: x)(x)


def wrong_rule(x):
    f = cutback.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, g: (g[:2],))
    return f(x)


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (lambda x: cutback.grad(lambda x: x)(x), ValueError, r"scalar loss.*f64\[3\]"),
        (lambda x: cutback.grad(lambda x: x.sum())(x > 0), TypeError, "is bool; gradients need"),
        (lambda x: cutback.grad(lambda x: x.sum(), 1)(x), ValueError, "argnums=1.*1 positional"),
        (lambda x: cutback.grad(lambda n: x.sum())(3), TypeError, "holds no arrays"),
        (
            lambda x: cutback.grad(lambda x: x.sum(), budget=0.5)(x),
            ValueError,
            "budget=.*enclosing",
        ),
        (
            lambda x: cutback.grad(lambda x: x.sum())(x, rng_step=1),
            ValueError,
            "rng_step=.*enclosing",
        ),
        (lambda x: cutback.vjp(cutback.sin, x)[1](x[:2]), ValueError, r"f64\[3\].*f64\[2\]"),
        (lambda x: cutback.vjp(cutback.sin, x)[1]([x]), ValueError, "nested like"),
        (lambda x: cutback.jvp(cutback.sin, x, x), TypeError, "primals must be a tuple"),
        (lambda x: cutback.jvp(cutback.sin, (x,), (x, x)), ValueError, "nested like"),
        (lambda x: cutback.jvp(cutback.sin, (x,), (x[:1],)), ValueError, r"f64\[3\].*f64\[1\]"),
        (lambda x: cutback.jvp(lambda x: x > 0, (x,), (x,)), TypeError, "bool, which has no"),
        (lambda x: cutback.jacrev(lambda x: x > 0)(x), TypeError, "bool, which has no gradient"),
        (no_rule, ValueError, "defvjp"),
        (wrong_rule, ValueError, r"f64\[2\] for an argument f64\[3\]"),
    ],
)
def test_mistakes(f, error, text):
    with pytest.raises(error, match=text) as caught:
        run(f, V)
    assert str(caught.value).count("[test_transforms.py:") == 1
