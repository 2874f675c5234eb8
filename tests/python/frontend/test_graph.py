"""Graphs built node by node, and their text and JSON forms."""

from __future__ import annotations

import numpy as np
import pytest

import cutback


def build():
    g = cutback.Graph()
    x = g.input("x", (4, 3), "f64")
    w = g.input("w", (3, 2), np.float64, role="param")
    y = g.op("matmul", x, w)
    h, index = g.op(
        "max_pool2d", y.reshape(1, 1, 4, 2), kernel_h=2, kernel_w=2, stride_h=2, stride_w=2
    )
    assert index.dtype == "i32"
    g.output((h * h + np.array([1.0])).sum(), "loss")
    g.output(y)
    return g


def test_a_graph_runs_and_has_gradients():
    x, w = np.arange(12.0).reshape(4, 3), np.ones((3, 2))
    (loss, y), (gw,) = build().compile(wrt=["w"])(x, w)
    np.testing.assert_array_equal(y, x @ w)
    pooled = (x @ w).reshape(2, 2, 2).max((1, 2))
    assert loss == (pooled**2 + 1).sum()
    np.testing.assert_allclose(gw[:, 0], 2 * (pooled[:, None] * x[[1, 3]]).sum(0))


@pytest.mark.parametrize("form", ["text", "json"])
def test_forms_read_back(form):
    g = build()
    write = cutback.Graph.text if form == "text" else cutback.Graph.to_json
    read = cutback.Graph.from_text if form == "text" else cutback.Graph.from_json
    again = read(write(g))
    assert write(again) == write(g)
    x, w = np.arange(12.0).reshape(4, 3), np.ones((3, 2))
    results, _ = again.compile(wrt=["w"])(
        x, w, *(value for _, value in g.inputs if value is not None)
    )
    assert results[0] == build().compile()(x, w)[0][0]


def test_states_replace_their_inputs():
    g = cutback.Graph()
    count = g.input("count", (), "i64", role="state")
    g.state(count, count + 1)
    g.output(count * 10)
    step, n = g.compile(), np.array(4)
    for expected in (40, 50, 60):
        assert step(n)[0][0] == expected
    assert n == 7


def test_regions_and_constraints_are_in_the_text():
    g = cutback.Graph()
    x = g.input("x", (3,))
    with (
        g.region("block", saved_limit=100),
        g.policy(lambda ctx, op, *a, **k: cutback.CheckpointPolicy.MUST_SAVE),
    ):
        y = g.op("exp", x)
    g.output(y)
    assert 'region 0 "block" parent=none limit=100' in g.text()
    assert "constraint=must_save" in g.text() and '@"test_graph.py:' in g.text()


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda g, x: g.op("expp", x), ValueError, "expp"),
        (lambda g, x: g.op("exp"), ValueError, "exp"),
        (lambda g, x: g.op("exp", x, x), ValueError, "exp"),
        (lambda g, x: g.op("sum", x, axis=0), TypeError, "no attribute 'axis'"),
        (lambda g, x: g.op("sum", x, axes="a"), TypeError, "str"),
        (lambda g, x: g.op("cast", x, dtype="f31"), TypeError, "f31"),
        (lambda g, x: g.op("add", x, x.astype("i32")), TypeError, "add"),
        (lambda g, x: g.op("reshape", x, shape=(1,) * 9), ValueError, "9 dimensions"),
        (lambda g, x: g.input("y", (-1,)), ValueError, "-1"),
        (lambda g, x: g.input("y", (2**62, 2**62)), ValueError, "input"),
        (lambda g, x: g.input("y", (2,), role="weight"), ValueError, "role='weight'"),
        (lambda g, x: g.input("y", (2,), dtype="c8"), TypeError, "c8"),
        (
            lambda g, x: g.output(cutback.Graph().input("z", (2,))),
            ValueError,
            "not a value of this graph",
        ),
        (lambda g, x: g.state(x * 2, x), ValueError, "only an argument"),
        (lambda g, x: g.state(x, x.sum()), ValueError, "state"),
        (lambda g, x: g.compile(wrt=["v"]), ValueError, "wrt names 'v'"),
    ],
)
def test_mistakes(build, error, text):
    g = cutback.Graph()
    x = g.input("x", (3, 2))
    before = g.text()
    with pytest.raises(error, match=text):
        build(g, x)
    if "wrt" not in text:
        assert g.text().startswith(before)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cutback.graph 2\n",
        "cutback.graph 1\n%0 = input {role=data} : f32[3]\n%1 = expp(%0) : f32[3]\n",
        "cutback.graph 1\n%0 = input {role=data} : f32[3]\n%1 = exp(%2) : f32[3]\n",
        "cutback.graph 1\n%0 = input {role=data} : f32[3]\n%0 = exp(%0) : f32[3]\n",
        "cutback.graph 1\n%0 = input {role=data} : f32[3]\n%1 = exp(%0) : f32[4]\n",
        "cutback.graph 1\n%0 = input {role=data} : f32[99999999999999999999]\n",
        "cutback.graph 1\n%0 = input {role=da",
        "\0",
    ],
)
def test_text_that_is_wrong(text):
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        cutback.Graph.from_text(text)
    with pytest.raises((ValueError, TypeError)):
        cutback.Graph.from_json(text)


def test_values_of_numpy_become_constants_once():
    g = cutback.Graph()
    x, c = g.input("x", (2,), "f64"), np.array([1.0, 2.0])
    g.output(x * c + c)
    assert len(g.inputs) == 2
    assert g.compile()(np.ones(2))[0][0].tolist() == [2, 4]


def test_a_wrong_number_of_arrays():
    with pytest.raises(ValueError, match="expected 2 arrays, got 1"):
        build().compile()(np.ones((4, 3)))


def test_wrt_names_one_input():
    g = cutback.Graph()
    x, y = g.input("weight", (3,)), g.input("other", (3,))
    g.output((x * y).sum())
    assert len(g.compile("weight")(np.ones(3, np.float32), np.ones(3, np.float32))[1]) == 1
    g.input("other", (2,))
    with pytest.raises(ValueError, match="wrt names 'other', but 2 inputs"):
        g.compile(["other"])


def test_a_joint_graph_is_not_compiled_again():
    """The graph already has its backward. The error gives a way out, for text and for JSON."""
    traced = cutback.trace(lambda w, x: (x @ w).mean(), np.ones((4, 4)), np.ones((4, 4)))
    joint = cutback.Graph.from_text(traced.joint())
    for graph in (joint, cutback.Graph.from_json(joint.to_json())):
        for wrt in ((), ("w",)):
            with pytest.raises(ValueError, match=r"joint graph.*compile the forward graph"):
                graph.compile(wrt)
    forward = cutback.Graph.from_text(traced.text()).compile(["w"])
    assert forward.text("joint") == traced.joint()
