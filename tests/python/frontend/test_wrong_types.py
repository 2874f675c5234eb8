"""Values of the wrong type for every argument of the public functions raise the library's own kinds
of errors, never an internal one."""

from __future__ import annotations

import inspect
import math
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

import cutback
from cutback import policies
from cutback.frontend import ops
from cutback.nn import functional as F
from cutback.run.arrays import RawArray

W = {"a": np.full((4, 4), 0.5), "b": np.full((4, 4), 0.25)}
X = np.ones((4, 4))
IMAGES = np.ones((2, 4, 4, 4))
CHANNELS = np.ones(4)


def loss(params, x):
    if isinstance(params, dict) and set(params) != {"a", "b"}:
        raise ValueError("these are other parameters")
    return cutback.tanh(x @ params["a"] @ params["b"]).mean()


PROBLEM = cutback.plan(loss, W, X).problem


class Nothing:
    """An object without methods."""


class Hostile:
    """Raises ValueError for every access."""

    def _no(self, *args):
        raise ValueError("hostile")

    __float__ = __int__ = __index__ = __iter__ = __len__ = __bool__ = __fspath__ = _no
    __array__ = __getitem__ = __str__ = _no


ODD = [
    None, True, -1, 0, 7, 2**31, 2**63, 2**64, 10**40, 0.5, -0.0, float("nan"), float("inf"), 1e308,
    2j, "", "abcd", "\ud800", "a\0b", "\x1b[2J", b"abcd", [], [None], ["a", 1], (), (1, 2, 3), {},
    {"a": 1}, {1, 2}, object(), Nothing(), Hostile(), np.float32(2), np.int64(-3), np.zeros(0),
    np.ones(3), np.ones((2, 2), complex), np.array("text"), np.array([None]), np.ma.ones(2),
    np.ones((4, 4), np.float16), np.ones((4, 4), bool), len, int, np.float32, slice(1, 2), range(3),
    Ellipsis, lambda *a, **k: None, iter([1]), memoryview(b"abc"), cutback.Graph, cutback.plan,
]  # fmt: skip
FINE = (TypeError, ValueError, OverflowError, NotImplementedError, OSError, IndexError)


def traced(function, *args, **kwargs):
    """Makes a call inside a trace, with traced array arguments."""
    arrays = {k: v for k, v in enumerate(args) if isinstance(v, np.ndarray)}
    keys = list(arrays)

    def inside(*values):
        given = list(args)
        for key, value in zip(keys, values, strict=True):
            given[key] = value
        return function(*given, **kwargs)

    try:
        return cutback.trace(inside, *arrays.values())
    except cutback.BudgetError:
        return None


def graph_call(name):
    def call(*args, **kwargs):
        graph = cutback.Graph()
        x = graph.input("x", (2, 3))
        w = graph.input("w", (3, 2), role="param")
        y = graph.op("sum", graph.op("matmul", x, w))
        graph.output(y)
        return getattr(graph, name)(*args, **kwargs)

    return call


def compiled(**options):
    """Compiles a step with wrong options and calls it."""
    return cutback.compile(loss, **{"backend": "null", **options}).prepare(W, X)


def run(**options):
    return cutback.compile(loss)(*options.pop("args", (W, X)), **options)


def sgd(**options):
    step = cutback.compile(loss, optimizer=cutback.optim.SGD(**options))
    return step({name: array.copy() for name, array in W.items()}, X)


def adamw(**options):
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(**options))
    return step({k: v.copy() for k, v in W.items()}, X)


PLAN_OPTIONS = {
    "budget": 0.9, "measure": "arena", "preset": None, "policy": None, "argnums": 0,
    "device": "cpu", "profile": None, "max_extra": None, "offload": False, "pinned": None,
    "exact": False, "time_limit": 0.0, "progress": None,
}  # fmt: skip
CALLS = {  # name: (function, positional arguments, keyword arguments)
    "plan": (cutback.plan, (loss, W, X), PLAN_OPTIONS),
    "plan of a problem": (cutback.plan, (PROBLEM,), PLAN_OPTIONS),
    "plans": (
        cutback.plans,
        (PROBLEM, [0.9, None]),
        {k: PLAN_OPTIONS[k] for k in ("measure", "preset", "policy", "device", "time_limit",
                                      "progress")},
    ),
    "frontier": (
        cutback.frontier, (loss, W, X),
        {"preset": "recompute_all", "policy": None, "argnums": 0, "device": "cpu"},
    ),
    "compile": (
        compiled, (),
        {"budget": 0.9, "measure": "arena", "policy": None, "preset": None, "optimizer": None,
         "argnums": 0, "has_aux": False, "backend": "null", "device": "cpu", "plan": None,
         "seed": 0},
    ),
    "step": (run, (), {"args": (W, X), "out": None, "rng_step": 0}),
    "value_and_grad": (cutback.value_and_grad, (loss,), {"argnums": 0, "has_aux": False}),
    "trace": (cutback.trace, (loss, W, X), {"argnums": None, "policy": None}),
    "checkpoint": (
        lambda *a, **k: cutback.trace(lambda p, x: cutback.checkpoint(*a, **k)(loss)(p, x), W, X)
        if not a else cutback.trace(cutback.checkpoint(*a, **k), W, X),
        (loss,), {"policy": None, "budget": "1MB"},
    ),
    "checkpoint_name": (lambda n: traced(cutback.checkpoint_name, X, n), ("name",), {}),
    "AdamW": (
        adamw, (),
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "groups": ()},
    ),
    "SGD": (
        sgd, (),
        {"lr": 1e-3, "momentum": 0.5, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False,
         "maximize": False, "groups": ()},
    ),
    "set_num_threads": (cutback.set_num_threads, (cutback.get_num_threads(),), {}),
    "RawArray": (RawArray, (np.zeros(3, np.uint16),), {}),
    "Graph.input": (graph_call("input"), ("z", (2,)), {"dtype": "f32", "role": "data"}),
    "Graph.op": (graph_call("op"), ("add", np.ones(2), np.ones(2)), {}),
    "Graph.op attributes": (graph_call("op"), ("sum", np.ones(2)), {"axes": (0,), "keepdims": 0}),
    "Graph.output": (graph_call("output"), (), {"value": None, "name": None}),
    "Graph.state": (graph_call("state"), (), {"argument": None, "value": None}),
    "Graph.constrain": (graph_call("constrain"), (), {"value": None, "decision": None}),
    "Graph.from_text": (cutback.Graph.from_text, ("cutback.graph 1\n",), {}),
    "Graph.from_json": (cutback.Graph.from_json, ("{}",), {}),
    "Graph.compile": (
        graph_call("compile"), (),
        {"wrt": ["w"], "budget": None, "measure": "arena", "preset": None, "backend": "null",
         "device": None, "plan": None, "keep_gradients": False, "static_bytes": 0},
    ),
    "Executable": (graph_call("compile")(["w"]), (X[:2, :3].astype("f4"), X[:3, :2].astype("f4")),
                   {"seed": 0, "rng_step": 0, "out": None}),
    "report": (cutback.plan(loss, W, X).report, ("/dev/null",), {"title": "title"}),
    "diff": (cutback.plan(loss, W, X).diff, (cutback.plan(loss, W, X),), {}),
    "Frontier.at": (cutback.frontier(PROBLEM).at, (10**6,), {}),
    "Frontier.plan": (cutback.frontier(PROBLEM).plan, (0,), {}),
    "save_only_these_names": (policies.save_only_these_names, ("a",), {}),
    "save_only_these_ops": (policies.save_only_these_ops, ("matmul",), {}),
    "save_from_both_policies": (policies.save_from_both_policies, (["matmul"],), {}),
    "mu_two": (lambda s: cutback.plan(loss, W, X, policy=policies.mu_two(s)), (2000,), {}),
    "tree.unflatten": (cutback.tree.unflatten, (cutback.tree.flatten(W)[1], [1, 2]), {}),
    "files.read_text": (cutback.files.read_text, ("/dev/null",), {}),
    "with_times": (
        cutback.files.with_times, (cutback.plan(loss, W, X).core.problem.to_json(), {}), {},
    ),
    "devices.resolve": (cutback.devices.resolve, ("cpu",), {}),
    "Step": (cutback.Step, (loss,), {
        "argnums": 0, "has_aux": False, "returns": "both", "policy": None, "optimizer": None,
        "seed": 0, "budget": None, "measure": "arena", "preset": None}),
}  # fmt: skip
EXAMPLES = {  # valid arguments of the operations
    "layer_norm": (X, (4,), CHANNELS, CHANNELS), "rms_norm": (X, (4,), CHANNELS),
    "batch_norm": (IMAGES, None, None, CHANNELS, CHANNELS, True),
    "evonorm_s0": (IMAGES, CHANNELS, CHANNELS, CHANNELS, 2), "conv2d": (IMAGES, IMAGES),
    "max_pool2d": (IMAGES, 2), "avg_pool2d": (IMAGES, 2),
    "scaled_dot_product_attention": (X, X, X), "cross_entropy": (X, np.zeros(4, int)),
    "embedding": (np.zeros(4, int), X), "one_hot": (np.zeros(4, int), 5), "linear": (X, X),
    "where": (X > 0, X, X), "concatenate": ([X, X],), "stack": ([X, X],), "reshape": (X, (2, 8)),
    "arange": (4,), "zeros": ((2,),), "ones": ((2,),), "full": ((2,), 3), "full_like": (X, 1),
    "take": (X, np.zeros(2, int)), "broadcast_to": (X, (2, 4, 4)), "clip": (X, 0, 1),
    "split": (X, 2), "transpose": (X, (1, 0)), "swapaxes": (X, 0, 1), "expand_dims": (X, 0),
    "astype": (X, "f4"), "logical_not": (X > 0,), "logical_and": (X > 0, X > 0),
    "logical_or": (X > 0, X > 0), "moveaxis": (X, 0, 1), "normal": ((2,),), "uniform": ((2,),),
}  # fmt: skip


def operations():
    """Returns each operation of the package with valid arguments."""
    for module in (ops, F):
        for name in module.__all__:
            function = getattr(module, name)
            if not callable(function) or isinstance(function, type):
                continue
            needed = [
                p for p in inspect.signature(function).parameters.values()
                if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
            ]  # fmt: skip
            yield name, function, EXAMPLES.get(name, (X,) * len(needed))


def attempts(function, args, kwargs, n=None):
    """Returns (what is wrong, call), with one argument replaced by each odd value."""
    for i in range(len(args)):
        for value in ODD:
            yield (i, value), lambda i=i, v=value: function(*args[:i], v, *args[i + 1 :], **kwargs)
    for key in kwargs:
        for value in ODD:
            yield (key, value), lambda k=key, v=value: function(*args, **{**kwargs, k: v})


def sweep(function, args, kwargs, share):
    """Makes calls with wrong values; returns exceptions that are not the library's own kinds."""
    bad = []
    random_ = random.Random(1)
    for wrong, call in attempts(function, args, kwargs):
        if random_.random() > share:
            continue
        try:
            call()
        except FINE as error:
            said = str(error)
            if not said or "internal" in said:
                bad.append((wrong, repr(error)))
        except cutback.BudgetError:
            pass
        except Exception as error:
            bad.append((wrong[0], repr(wrong[1])[:40], repr(error)))
    return bad


@pytest.mark.plans_unchecked
@pytest.mark.parametrize("name", sorted(CALLS))
def test_public_functions(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some odd values are file names
    function, args, kwargs = CALLS[name]
    assert not sweep(function, args, kwargs, 1.0)


@pytest.mark.plans_unchecked
@pytest.mark.parametrize("share", [0.3, pytest.param(1.0, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("name", sorted({name for name, _, _ in operations()}))
def test_operations(name, share):
    for other, function, args in operations():
        if other == name:
            assert not sweep(lambda *a, f=function: traced(f, *a), args, {}, share)


@pytest.mark.plans_unchecked
@pytest.mark.parametrize("name", ["plan", "plan of a problem", "plans", "frontier", "compile"])
def test_the_argument_is_named(name, tmp_path, monkeypatch):
    """Errors name the keyword; for a file, its path."""
    monkeypatch.chdir(tmp_path)
    function, args, kwargs = CALLS[name]
    unnamed = []
    for key in kwargs:
        for value in ODD:
            if isinstance(value, Hostile) or (callable(value) and key in ("policy", "progress")):
                continue  # their errors are their own
            try:
                function(*args, **{**kwargs, key: value})
            except cutback.BudgetError:
                pass
            except OSError as error:
                assert error.filename == value
            except FINE as error:
                if key not in str(error) and repr(value) not in str(error):
                    unnamed.append((key, repr(value)[:30], str(error)[:150]))
    assert not unnamed


@pytest.mark.parametrize("wrong", [True, False])
def test_a_bool_is_no_integer(wrong):
    """A bool is an argument in the wrong place, not 1 or 0."""
    images, kernel = X.reshape(1, 1, 4, 4), np.ones((1, 1, 2, 2))
    calls = [
        lambda x: x.sum(wrong), lambda x: x.mean(wrong), lambda x: x.transpose((wrong, not wrong)),
        lambda x: x.reshape(wrong, 16), lambda x: cutback.swapaxes(x, wrong, 0),
        lambda x: cutback.expand_dims(x, wrong), lambda x: cutback.concatenate([x, x], wrong),
        lambda x: cutback.stack([x, x], wrong), lambda x: cutback.split(x, wrong),
        lambda x: cutback.argmax(x, wrong), lambda x: F.softmax(x, wrong), lambda x: x[:, wrong],
        lambda x: cutback.broadcast_to(x, (wrong, 4, 4)), lambda x: cutback.arange(wrong) + x.sum(),
        lambda x: cutback.zeros((wrong,)) + x.sum(), lambda x: cutback.pad(x, wrong),
        lambda x: cutback.pad(x, ((0, 0), (0, wrong))), lambda x: cutback.tril(x, wrong),
        lambda x: cutback.take(x, np.array([0]), wrong), lambda x: F.layer_norm(x, (wrong,)),
        lambda x: F.one_hot(cutback.argmax(x, 0), wrong),
        lambda x: F.cross_entropy(x, np.zeros(4, int), ignore_index=wrong),
        lambda x: F.conv2d(images, kernel, stride=wrong) + x.sum(),
        lambda x: F.conv2d(images, kernel, padding=wrong) + x.sum(),
        lambda x: F.conv2d(images, kernel, groups=wrong) + x.sum(),
        lambda x: F.max_pool2d(images, wrong) + x.sum(),
    ]  # fmt: skip
    for number, call in enumerate(calls):
        try:
            cutback.trace(call, X)
        except TypeError:
            continue
        pytest.fail(f"call {number} takes {wrong} for an integer")
    optimizer = cutback.optim.AdamW()
    with pytest.raises(TypeError, match=f"t={wrong} is not an integer"):
        optimizer.load_state_dict({"t": wrong})
    for options in ({"lr": wrong}, {"betas": (wrong, 0.9)}, {"eps": wrong}):
        with pytest.raises(TypeError, match="is not a number"):
            cutback.optim.AdamW(**options)
    step = cutback.compile(loss)
    for call in (
        lambda: cutback.compile(loss, seed=wrong), lambda: step(W, X, rng_step=wrong),
        lambda: setattr(step, "rng_step", wrong), lambda: step.profile(W, X, rng_step=wrong),
        lambda: cutback.frontier(PROBLEM).plan(wrong),
        lambda: graph_call("compile")(["w"], static_bytes=wrong),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="integer"):
            call()


@pytest.mark.parametrize("wrong", ["no", 1, 0, None, [], np.ones(2, bool)])
def test_a_flag_is_true_or_false(wrong):
    calls = {
        "batch_norm: training": lambda x: F.batch_norm(x, None, None, training=wrong),
        "dropout: training": lambda x: F.dropout(x, training=wrong),
        "scaled_dot_product_attention: is_causal": lambda x: F.scaled_dot_product_attention(
            x, x, x, is_causal=wrong
        ),
    }
    for what, call in calls.items():
        with pytest.raises(TypeError, match=rf"{what}=.* is neither True nor False \[test_wrong"):
            cutback.trace(call, X)


def test_numpy_s_flags_are_flags():
    for yes in (True, np.True_):
        assert "dropout" in str(cutback.trace(lambda x, yes=yes: F.dropout(x, training=yes), X))
        assert "causal=1" in str(
            cutback.trace(
                lambda x, yes=yes: F.scaled_dot_product_attention(x, x, x, is_causal=yes), X
            )
        )
    assert "dropout" not in str(cutback.trace(lambda x: F.dropout(x, training=np.False_), X))


@pytest.mark.parametrize("huge", [10**400, -(10**5000)], ids=["400", "-5000"])
def test_integers_that_no_float_holds_are_named(huge):
    bits = huge.bit_length()
    for call in (lambda x: huge * x, lambda x: x**huge, lambda x: x < huge,
                 lambda x: cutback.maximum(x, huge), lambda x: x.astype("i64") + huge):  # fmt: skip
        with pytest.raises(OverflowError, match=rf"integer of {bits} bits does not fit .* \[test_"):
            cutback.trace(call, X)
    with pytest.raises(ValueError, match=r"layer_norm: eps is an integer too large for a float \["):
        cutback.trace(lambda x: F.layer_norm(x, (4,), eps=huge), X)


@pytest.mark.parametrize("wrong", [None, "0.1", [], object(), True, np.True_])
def test_a_numeric_option_is_a_number(wrong):
    images = X.reshape(1, 1, 4, 4)
    one = np.ones(1, X.dtype)
    calls = {
        "batch_norm: momentum": lambda x: F.batch_norm(x, None, None, momentum=wrong),
        "batch_norm: eps": lambda x: F.batch_norm(x, None, None, training=True, eps=wrong),
        "layer_norm: eps": lambda x: F.layer_norm(x, (4,), eps=wrong),
        "evonorm_s0: eps": lambda x: F.evonorm_s0(images, one, one, one, 1, wrong) + x.sum(),
        "dropout: p": lambda x: F.dropout(x, wrong),
    }
    if wrong is not None:  # the default
        calls["rms_norm: eps"] = lambda x: F.rms_norm(x, (4,), eps=wrong)
        calls["scaled_dot_product_attention: scale"] = lambda x: F.scaled_dot_product_attention(
            x, x, x, scale=wrong
        )
    for what, call in calls.items():
        with pytest.raises(TypeError, match=f"{what}=.* is not a number"):
            cutback.trace(call, X)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, np.float32("-inf")])
def test_options_that_are_not_finite(wrong):
    calls = {
        "batch_norm: momentum": lambda x: F.batch_norm(
            x, None, None, training=True, momentum=wrong
        ),
        "layer_norm: eps": lambda x: F.layer_norm(x, (4,), eps=wrong),
        "scaled_dot_product_attention: scale": lambda x: F.scaled_dot_product_attention(
            x, x, x, scale=wrong
        ),
    }
    for what, call in calls.items():
        with pytest.raises(ValueError, match=f"{what}={float(wrong)} is not finite"):
            cutback.trace(call, X)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.reshape(2**70), lambda x: x.sum(2**70), lambda x: cutback.tril(x, -(2**63) - 1),
        lambda x: cutback.zeros((2**63,)) + x.sum(), lambda x: F.conv2d(x, x, padding=2**70),
        lambda x: F.one_hot(cutback.argmax(x, 0), 2**64), lambda x: F.max_pool2d(x, 2**70),
    ],
)  # fmt: skip
def test_sizes_are_of_64_bits(call):
    """The interpreter's `OverflowError` would not name the argument."""
    with pytest.raises(ValueError, match=r"at most 64 bits|must be an integer or a pair"):
        cutback.trace(call, X.reshape(1, 1, 4, 4))


def test_seeds_are_64_bits():
    """Distinct seeds give distinct results, or one is refused; a negative seed counts down from
    2**64, as in PyTorch."""

    def noisy(params, x):
        return F.dropout(x @ params["a"], 0.5).sum()

    value = lambda seed: cutback.compile(noisy, seed=seed)(W, X)[0].tobytes()  # noqa: E731
    assert value(-1) == value(2**64 - 1) and value(1) == value(np.int64(1))
    executable = graph_call("compile")(["w"])
    arrays = np.ones((2, 3), "f4"), np.ones((3, 2), "f4"), np.ones((2, 2), "f4")
    for seed in (2**64, 2**64 + 1, -(2**63) - 1, 10**40):
        with pytest.raises(ValueError, match=r"seed=.* is not in -2\*\*63 .. 2\*\*64 - 1"):
            cutback.compile(noisy, seed=seed)
        with pytest.raises(ValueError, match=r"seed=.* is not in -2\*\*63 .. 2\*\*64 - 1"):
            executable(*arrays[: len(executable.names)], seed=seed)
    for step in (2**63 - 1, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"rng_step=.* is not in -2\*\*63 .. 2\*\*63 - 2"):
            cutback.compile(noisy).profile(W, X, rng_step=step)


def test_moments_are_not_assigned():
    """Elements may be written, but the attribute cannot be replaced by anything that is not an
    array."""
    optimizer = cutback.optim.AdamW()
    cutback.compile(loss, optimizer=optimizer)({k: v.copy() for k, v in W.items()}, X)
    before = optimizer.state_dict()
    for key in ("m", "v"):
        with pytest.raises(TypeError, match=f"AdamW.{key} cannot be assigned"):
            setattr(optimizer, key, "abcd")
        with pytest.raises(TypeError):
            getattr(optimizer, key)[0] = "abcd"
        entry = f"params['a'].{key}"
        for wrong in ("abcd", {"a": 3}, None):
            with pytest.raises(TypeError, match=re.escape(entry)):
                optimizer.load_state_dict({**before, entry: wrong})
        for entry in (key, f"params['a'].{key}2", "params['a']", ""):
            with pytest.raises(ValueError, match=re.escape(f"cannot have {entry!r}")):
                optimizer.load_state_dict({**before, entry: before[f"params['a'].{key}"]})
    for state in ("abcd", 3, None):
        with pytest.raises(TypeError, match="the state of AdamW"):
            optimizer.load_state_dict(state)
    assert all(np.array_equal(optimizer.state_dict()[key], before[key]) for key in before)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"argnums": True}, "argnums=True is neither"),
        ({"argnums": (0, False)}, "is neither an integer nor"),
        ({"optimizer": cutback.optim.AdamW}, "AdamW is a class; pass one of its instances"),
    ],
)
def test_a_step_refuses_what_only_looks_like_an_option(options, error):
    with pytest.raises(TypeError, match=error):
        cutback.compile(loss, **options)


def test_traced_arrays_where_elements_are_needed():
    """The error is one sentence with a way out, whatever receives the array."""
    graph = cutback.Graph()
    a = graph.input("a", (4, 4))
    graph.output(graph.op("sum", a * a))
    run = graph.compile()
    step = cutback.compile(lambda w: (w["k"][0] ** 2).sum(), optimizer=cutback.optim.SGD(lr=0.1))
    takers = {"a": run, r"w\['k'\]\[0\]": lambda x: step({"k": [x]}), "w": step}
    for name, taker in takers.items():
        said = rf"^{name} is a traced array.*Call the function that it was compiled from \["
        with pytest.raises(TypeError, match=said):
            cutback.compile(taker, argnums=None)(X)


def test_an_index_out_of_range_names_one_line():
    """The error names the line of the operation, not that of the surrounding call."""
    labels = cutback.compile(lambda x, t: F.cross_entropy(x, t), argnums=None)
    rows = cutback.compile(lambda w, i: F.embedding(i, w), argnums=None)
    for call in (lambda: labels(X, np.array([0, 1, 2, 7])), lambda: rows(X, np.array([9]))):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).count("test_wrong_types.py:") == 1, caught.value


def test_memory_of_a_gpu_without_a_driver():
    """The error used to be about contexts. Runs in its own process, because a process keeps the
    driver it has found."""
    script = """
import cutback

class There:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False)}

cutback.compile(lambda x: x * 2, argnums=None)(There())
"""
    variables = os.environ | {"CUTBACK_CUDA_DRIVER": "/nowhere/libcuda.so.1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith("TypeError: x: the array is in a GPU's memory, but no NVIDIA driver was")
