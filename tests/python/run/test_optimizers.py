"""Compares optimizers of compiled steps with twins in NumPy, and tests their states as files."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
import threading
from collections import namedtuple

import numpy as np
import pytest

import cutback
from cutback import optim


def loss(p, x):
    return (cutback.tanh(x @ p["w"]) @ p["b"]).mean()


def make(dtype):
    rng = np.random.default_rng(1)
    params = {"w": rng.standard_normal((5, 7)).astype(dtype)}
    params["b"] = rng.standard_normal(7).astype(dtype)
    return params, rng.standard_normal((4, 5)).astype(dtype)


def sgd_twin(p, g, b, t, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """PyTorch's formula, rounded to the type of ``p`` after each operation; returns the next p and
    b."""
    number = p.dtype.type
    d = -g if maximize else g
    if weight_decay:
        d = d + number(weight_decay) * p
    if momentum:
        b = d if t == 1 else number(momentum) * b + number(1 - dampening) * d
        d = d + number(momentum) * b if nesterov else b
    return p + number(-lr) * d, b


SGD = [
    {"momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov,
     "maximize": maximize}
    for momentum, dampening, decay, nesterov, maximize in itertools.product(
        (0.0, 0.9), (0.0, 0.25), (0.0, 0.05), (False, True), (False, True))
    if not nesterov or (momentum and not dampening)
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("options", SGD)
def test_sgd_has_the_bits_of_its_twin(options, dtype):
    (params, x), (expected, _) = make(dtype), make(dtype)
    optimizer = cutback.optim.SGD(lr=0.3, **options)
    step = cutback.compile(loss, optimizer=optimizer)
    gradients = cutback.grad(loss)
    buffers = {name: np.zeros_like(p) for name, p in params.items()}
    for t in range(1, 6):
        step(params, x)
        for name, g in gradients(expected, x).items():
            expected[name], buffers[name] = sgd_twin(
                expected[name], g, buffers[name], t, 0.3, **options
            )
        for name in params:
            assert params[name].tobytes() == expected[name].tobytes()
    held = dict(zip(optimizer.names, optimizer.states["momentum_buffer"], strict=True))
    for name, buffer in buffers.items():
        array = held[f"p[{name!r}]"]
        assert (array is None) if not options["momentum"] else array.tobytes() == buffer.tobytes()


OPTIMIZERS = {
    "adamw": lambda: cutback.optim.AdamW(lr=0.01),
    "sgd": lambda: cutback.optim.SGD(lr=0.1),
    "momentum": lambda: cutback.optim.SGD(lr=0.1, momentum=0.9, dampening=0.1),
    "mixed": lambda: cutback.optim.SGD(
        groups=[{"names": ["*b*", "*z*", "params[*", "params"], "momentum": 0.9}]
    ),
}


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_state_survives_a_file(make_optimizer, taken, tmp_path):
    (straight, x), (halves, _) = make("f4"), make("f4")
    step = cutback.compile(loss, optimizer=make_optimizer())
    for _ in range(taken + 2):
        step(straight, x)
    first = make_optimizer()
    for _ in range(taken):
        cutback.compile(loss, optimizer=first)(halves, x)
    np.savez(tmp_path / "state.npz", **first.state_dict())
    second = make_optimizer()
    with np.load(tmp_path / "state.npz") as state:
        second.load_state_dict(state)
    assert second.t == taken and set(second.state_dict()) == set(first.state_dict())
    resumed = cutback.compile(loss, optimizer=second)
    for _ in range(2):
        resumed(halves, x)
    for name in straight:
        assert straight[name].tobytes() == halves[name].tobytes()


def test_states_follow_the_groups():
    params, x = make("f4")
    optimizer = cutback.optim.SGD(lr=0.1, groups=[{"names": "*w*", "momentum": 0.5}])
    step = cutback.compile(loss, optimizer=optimizer)
    step(params, x)
    assert set(optimizer.state_dict()) == {"t", "p['w'].momentum_buffer"}
    optimizer.momentum = 0.9  # a group that gets momentum later begins with zeros
    step(params, x)
    assert set(optimizer.state_dict()) == {
        "t", "p['w'].momentum_buffer", "p['b'].momentum_buffer"
    }  # fmt: skip
    gradient = cutback.grad(loss)(params, x)["b"]
    optimizer.momentum = 0.0  # existing buffers stay but are not read
    before, kept = params["b"].copy(), optimizer.states["momentum_buffer"][0].copy()
    step(params, x)
    assert params["b"].tobytes() == (before + np.float32(-0.1) * gradient).tobytes()
    assert optimizer.states["momentum_buffer"][0].tobytes() == kept.tobytes()


def test_a_budget_on_the_total_counts_the_states_there_are():
    params, x = make("f4")
    size = sum(p.nbytes for p in params.values())
    total = {
        name: cutback.compile(loss, optimizer=make()).prepare(params, x).planned.total_bytes
        for name, make in OPTIMIZERS.items()
    }
    assert total["momentum"] - total["sgd"] == size
    assert total["adamw"] - total["sgd"] == 2 * size
    assert total["mixed"] - total["sgd"] == params["b"].nbytes


@pytest.mark.parametrize(
    "name",
    sorted(
        {*optim.__all__}
        - {"LAMB", "Optimizer", "Outcome", "RecordingError", "Schedule", "foreach", "schedules"}
    ),
)
def test_the_learning_rate_comes_first(name):
    made = getattr(optim, name)(0.25)
    assert made.lr == 0.25
    assert not [f.name for f in dataclasses.fields(made) if f.name.startswith("_")]


def test_the_state_of_another_optimizer_is_refused():
    params, x = make("f4")
    adamw, sgd = cutback.optim.AdamW(), cutback.optim.SGD(momentum=0.9)
    cutback.compile(loss, optimizer=adamw)(params, x)
    cutback.compile(loss, optimizer=sgd)(params, x)
    with pytest.raises(ValueError, match=r"SGD cannot have \"p\['b'\].m\""):
        sgd.load_state_dict(adamw.state_dict())
    with pytest.raises(ValueError, match=r"<parameter>.m and <parameter>.v"):
        cutback.optim.AdamW().load_state_dict(sgd.state_dict())
    with pytest.raises(ValueError, match=r"it has no momentum_buffer of p\['b'\]"):
        sgd.load_state_dict({"t": 3})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lr": -1}, "SGD: lr=-1.0 must be finite and at least 0"),
        ({"momentum": -0.1}, "SGD: momentum=-0.1 must be finite and at least 0"),
        ({"dampening": float("nan")}, "SGD: dampening=nan is not finite"),
        ({"nesterov": True}, "nesterov needs a momentum and no dampening"),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov needs a momentum"),
        ({"nesterov": 1}, "SGD: nesterov=1 is neither True nor False"),
        ({"weight_decay": float("inf")}, "SGD: weight_decay=inf"),
        (
            {"groups": [{"names": "*", "betas": (0, 0)}]},
            "a group needs 'names' and may set lr, mom",
        ),
    ],
)
def test_hyper_parameters_of_sgd_are_refused_by_name(options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        cutback.optim.SGD(**options)


# ---- on arrays ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Layer:
    w: np.ndarray
    b: np.ndarray


Pair = namedtuple("Pair", "a b")
NESTED = {
    "array": lambda: np.ones((2, 3), "f4"),
    "list": lambda: [np.ones(3, "f4"), np.full((), 2.0), np.zeros((0, 4), "f4")],
    "dict": lambda: {"z": np.ones(2, "f4"), "a": np.full((2, 2), 0.5)},
    "deep": lambda: {"layers": [Layer(np.ones((2, 2), "f4"), np.zeros(2, "f4"))], "p": Pair(
        np.ones(1), (np.ones(4, "f4"), None))},
}  # fmt: skip


def gradients_of(params, seed):
    rng = np.random.default_rng(seed)
    return cutback.tree.map(lambda p: np.asarray(rng.standard_normal(p.shape), p.dtype), params)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("make_params", NESTED.values(), ids=NESTED.keys())
def test_a_step_on_arrays_is_the_step_of_a_compiled_one(make_params, make_optimizer):
    """The gradient of ``sum(p * g)`` is g, to the bit."""
    alone, inside = make_params(), make_params()
    optimizer, within = make_optimizer(), make_optimizer()

    def product(params, g):
        pairs = zip(cutback.tree.flatten(params)[0], cutback.tree.flatten(g)[0], strict=True)
        return sum((p * x).sum().astype("f4") for p, x in pairs)

    step = cutback.compile(product, optimizer=within)
    for seed in range(4):
        g = gradients_of(alone, seed)
        optimizer.step(alone, g)
        step(inside, g)
    for p, q in zip(cutback.tree.flatten(alone)[0], cutback.tree.flatten(inside)[0], strict=True):
        assert p.tobytes() == q.tobytes()
    assert optimizer.t == within.t == 4
    kept, other = optimizer.state_dict(), within.state_dict()
    assert sorted(kept) == sorted(other)
    assert all(np.array_equal(kept[key], other[key]) for key in kept)


def formula(p, g, m, *, lr=0.1):
    return p - lr * (m + g), 0.5 * m + g


made = optim.foreach(formula)  # pickled by the name of the formula
KINDS = [kind for kind in map(optim.__dict__.get, optim.__all__) if isinstance(kind, type)
         and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer]  # fmt: skip


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("kind", [*KINDS, made])
def test_copies_and_pickles_go_on_by_themselves(again, kind):
    rng = np.random.default_rng(5)
    params, optimizer = [rng.standard_normal((6, 4), np.float32)], kind(lr=0.01)
    grads = [[rng.standard_normal((6, 4), np.float32)] for _ in range(6)]
    for g in grads[:3]:
        optimizer.step(params, g, max_norm=1.0)
    others, other = again((params, optimizer))
    for g in grads[3:]:
        optimizer.step(params, g)
    assert (other.t, optimizer.t) == (3, 6)
    assert not np.array_equal(params[0], others[0])
    for g in grads[3:]:
        other.step(others, g)
    assert np.array_equal(params[0], others[0])
    assert other.groups is not optimizer.groups


@pytest.mark.parametrize("kind", [optim.NAdam, optim.ASGD, optim.ScheduleFreeAdamW])
def test_numbers_that_are_kept_are_part_of_the_state(kind, tmp_path):
    """The numbers are kept on arrays and in a compiled step, through a file, and for a parameter
    that gets its first gradient late."""
    (straight, x), (halves, _) = make("f4"), make("f4")
    step = cutback.compile(loss, optimizer=kind(lr=0.1))
    gradients = cutback.grad(loss)
    first, second = kind(lr=0.1), kind(lr=0.1)
    for _ in range(3):
        step(straight, x)
        first.step(halves, gradients(halves, x))
    np.savez(tmp_path / "state.npz", **first.state_dict())
    with np.load(tmp_path / "state.npz") as state:
        second.load_state_dict(state)
        short = {key: state[key] for key in state if not key.endswith(("mu_product", "mu", "max"))}
    step(straight, x)
    second.step(halves, gradients(halves, x))
    for name in straight:
        assert straight[name].tobytes() == halves[name].tobytes()
    with pytest.raises(ValueError, match="it has no"):
        second.load_state_dict(short)
    late, alone = [np.ones(3), np.ones(4)], [np.ones(4)]
    both, one = kind(lr=0.1), kind(lr=0.1)
    for t in range(5):
        g = np.full(4, 0.5 - 0.1 * t)
        both.step(late, [np.ones(3), None if t < 2 else g])
        if t >= 2:
            one.step(alone, [g])
    assert late[1].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_parameters_without_gradient_wait_and_count_for_themselves(make_optimizer):
    """A parameter that gets its first gradient late is stepped as if training began then."""
    together, late = [np.ones(3), np.ones(4)], [np.ones(4)]
    optimizer, fresh = make_optimizer(), make_optimizer()
    for seed in range(3):
        optimizer.step(together, [gradients_of(together, seed)[0], None])
        np.testing.assert_array_equal(together[1], 1)
    for seed in range(2):
        g = gradients_of(late, seed)
        optimizer.step(together, [None, g[0]] if seed else [np.ones(3), g[0]])
        fresh.step(late, g)
    assert together[1].tobytes() == late[0].tobytes()
    state = optimizer.state_dict()
    assert state["params[1].missed"] == 3 and state["params[0].missed"] == 1 and state["t"] == 5
    again = make_optimizer()
    again.load_state_dict(state)
    copies = [p.copy() for p in together]
    for o, p in ((optimizer, together), (again, copies)):
        o.step(p, gradients_of(p, 9))
    assert all(p.tobytes() == q.tobytes() for p, q in zip(together, copies, strict=True))
    with pytest.raises(ValueError, match="has taken fewer steps than the optimizer"):
        cutback.compile(lambda params: params[0].sum() + params[1].sum(), optimizer=again)(copies)


def test_none_stands_for_all_below_it():
    params = {"a": [np.ones(2), np.ones(2)], "b": np.ones(2)}
    optimizer = optim.SGD(lr=1.0)
    optimizer.step(params, {"a": None, "b": np.ones(2)})
    assert [p[0] for p in params["a"]] == [1, 1] and params["b"][0] == 0
    optimizer.step(params, None)
    assert optimizer.t == 2
    for wrong in ([None, None], {"a": [np.ones(2)], "b": None}, {"a": None}, {"a": np.ones(2)}):
        with pytest.raises(ValueError, match="not nested like the parameters"):
            optimizer.step(params, wrong)


def bad_calls():
    f4 = lambda *shape: np.ones(shape, "f4")  # noqa: E731
    shared, frozen = f4(8), f4(3)
    frozen.flags.writeable = False
    yield "not NumPy array", TypeError, [1.0, f4(2)], [f4(2), f4(2)], "params[0] is float"
    yield "half", TypeError, [np.ones(3, "f2")], [np.ones(3, "f2")], "params[0] is f16"
    yield "integers", TypeError, [np.ones(3, int)], [np.ones(3, int)], "params[0] is i64"
    yield "dtypes", ValueError, [f4(3)], [np.ones(3)], "is f32 (3,), the gradient f64 (3,)"
    yield "shapes", ValueError, [f4(3)], [f4(4)], "is f32 (3,), the gradient f32 (4,)"
    yield "read-only", ValueError, [frozen], [f4(3)], "params[0]: the parameter is read-only"
    yield "strides", ValueError, [f4(6)[::2]], [f4(3)], "is not contiguous"
    yield "gradient", ValueError, [f4(3)], [f4(6)[::2]], "the gradient is not contiguous"
    yield "twice", ValueError, [shared, shared], [f4(8), f4(8)], "share memory"
    yield "overlap", ValueError, [shared[:5], shared[4:]], [f4(5), f4(4)], "share memory"
    yield "alias", ValueError, [shared], [shared], "param and grad share memory"
    yield "aliases", ValueError, [shared, f4(8)], [f4(8), shared], "overlaps param of row 0"
    yield "names", ValueError, {"a": f4(3)}, {"b": f4(3)}, "not nested like the parameters"


BAD = list(bad_calls())


@pytest.mark.parametrize(("error", "params", "grads", "text"), [b[1:] for b in BAD],
                         ids=[b[0] for b in BAD])  # fmt: skip
@pytest.mark.parametrize("make_optimizer", [optim.AdamW, lambda: optim.SGD(momentum=0.9)])
def test_mistakes_touch_nothing(error, params, grads, text, make_optimizer):
    optimizer = make_optimizer()
    before = [p.copy() if isinstance(p, np.ndarray) else p for p in cutback.tree.flatten(params)[0]]
    with pytest.raises(error, match=re.escape(text)):
        optimizer.step(params, grads)
    assert optimizer.t == 0 and optimizer.state_dict() == {"t": 0}
    for p, old in zip(cutback.tree.flatten(params)[0], before, strict=True):
        np.testing.assert_array_equal(p, old)
    good = [np.ones(2), np.ones(3)]
    optimizer.step(good, [np.ones(2), np.ones(3)])
    assert optimizer.t == 1 and (good[0] != 1).all()


def test_the_state_of_other_parameters():
    optimizer = optim.AdamW()
    optimizer.step([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3)])
    for params in ([np.ones(2)], [np.ones(2), np.ones(4)], [np.ones(2), np.ones(3, "f4")]):
        grads = [np.ones_like(p) for p in params]
        with pytest.raises(ValueError, match=r"state of other parameters|params\[1\]"):
            optimizer.step(params, grads)
    assert optimizer.t == 1


def test_many_tensors_of_all_sizes():
    """10,000 tensors, some of them empty, give the bits of one tensor at a time."""
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(0, 60, 9_990), 0, 1, 100_000, 3, 65_537, 0, 16_384, 127, 128, 0]
    params = [rng.standard_normal(n).astype("f4" if n % 3 else "f8") for n in sizes]
    single = [p.copy() for p in params]
    optimizer, alone = optim.AdamW(lr=0.1), [optim.AdamW(lr=0.1) for _ in sizes]
    for seed in range(2):
        g = gradients_of(params, seed)
        optimizer.step(params, g)
        for o, p, x in zip(alone, single, g, strict=True):
            o.step([p], [x])
    assert all(p.tobytes() == q.tobytes() for p, q in zip(params, single, strict=True))


def test_the_bits_do_not_depend_on_threads():
    results = set()
    threads = cutback.get_num_threads()
    try:
        for n in (1, 2, 3, 5):
            cutback.set_num_threads(n)
            params = gradients_of([np.empty(size, "f4") for size in (7, 100_000, 1, 33_000)], 0)
            for optimizer in (optim.AdamW(), optim.SGD(momentum=0.9)):
                for seed in range(3):
                    optimizer.step(params, gradients_of(params, seed))
            results.add(b"".join(p.tobytes() for p in params))
    finally:
        cutback.set_num_threads(threads)
    assert len(results) == 1


def test_schedules_are_functions_of_the_steps_taken():
    seen = []

    def lr(t):
        seen.append(t)
        return 0.1 / (1 + t)

    params = [np.zeros(1)]
    optimizer = optim.SGD(lr=lr)
    for _ in range(3):
        optimizer.step(params, [np.ones(1)])
    assert seen == [0, 0, 1, 2]  # first at creation
    np.testing.assert_allclose(params[0], -(0.1 + 0.05 + 0.1 / 3))
    step = cutback.compile(lambda params: params[0].sum(), optimizer=optim.SGD(lr=lr))
    step(params)
    np.testing.assert_allclose(params[0], -(0.2 + 0.05 + 0.1 / 3))


def test_arrays_may_move_between_steps():
    """Gradients and parameters may be new arrays each time, under the same names."""
    one, optimizer, still = [np.ones(5)], optim.AdamW(), optim.AdamW()
    fixed = [np.ones(5)]
    for seed in range(6):
        g = gradients_of(one, seed)
        still.step(fixed, g)
        optimizer.step(one, [np.array(x) for x in g])
        one = [p.copy() for p in one]
    assert one[0].tobytes() == fixed[0].tobytes()


def test_a_step_allocates_nothing():
    params = [np.ones(50, "f4") for _ in range(20)]
    optimizer = optim.AdamW()
    optimizer.step(params, gradients_of(params, 0))
    before = cutback._native.memory()
    for seed in range(3):
        optimizer.step(params, gradients_of(params, seed))
    assert cutback._native.memory()["n_alloc"] == before["n_alloc"]
    del optimizer
    assert cutback._native.memory()["live_bytes"] < before["live_bytes"]


def test_two_threads_do_not_step_at_once():
    """A step is refused, or it is complete."""
    params = [np.ones(300_000, "f4")]
    optimizer, steps = optim.SGD(lr=1.0), []
    optimizer.step(params, [np.ones(300_000, "f4")])

    def loop():
        done = 0
        for _ in range(30):
            try:
                optimizer.step(params, [np.ones(300_000, "f4")])
                done += 1
            except RuntimeError as error:
                assert "already stepping" in str(error)
        steps.append(done)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optimizer.t == 1 + sum(steps)
    np.testing.assert_array_equal(params[0], 1 - optimizer.t)


def test_large_states_begin_at_a_cache_line():
    params = [np.ones((300, 100)), np.ones(3), np.ones((1000, 1000), "f4")]
    optimizer = optim.AdamW()
    optimizer.step(params, gradients_of(params, 0))
    for row in (optimizer.m, optimizer.v):
        assert [a.shape for a in row] == [p.shape for p in params]
        assert [a.dtype for a in row] == [p.dtype for p in params]
        assert row[0].ctypes.data % 64 == row[2].ctypes.data % 64 == 0
        assert all(a.flags.c_contiguous for a in row)


def test_groups_that_are_none_or_match_nothing():
    """The error names the pattern and the parameters; nothing has started."""
    for groups in ({"names": "*"}, "*", 3, [3], [None]):
        with pytest.raises(TypeError, match=r"AdamW: groups=.* must be a list of dicts"):
            optim.AdamW(groups=groups)
    params, optimizer = {"w": np.ones(3), "b": np.ones(2)}, optim.AdamW(groups=[{"names": "zzz"}])
    with pytest.raises(ValueError, match=r"names='zzz' of a group .* 2 parameters are params\['b"):
        optimizer.step(params, {"w": np.ones(3), "b": np.ones(2)})
    assert optimizer.t == 0 and (params["w"] == 1).all()
    step = cutback.compile(lambda p: (p["w"] * p["w"]).sum() + p["b"].sum(), optimizer=optimizer)
    with pytest.raises(ValueError, match="names='zzz' of a group do not match any parameter"):
        step(params)
    optimizer.groups = [{"names": ["zzz", "*b*"], "lr": 0.0}]
    optimizer.step(params, {"w": np.ones(3), "b": np.ones(2)})
    optimizer.groups = [*optimizer.groups, {"names": "yyy"}]
    with pytest.raises(ValueError, match="names='yyy'"):
        optimizer.step(params, {"w": np.ones(3), "b": np.ones(2)})
    assert optimizer.t == 1


def test_one_gradient_of_two_parameters():
    """The gradient is read twice; only zeroing it for both is impossible."""
    params, g = [np.ones(3), np.ones(3)], np.full(3, 0.5)
    optimizer = optim.SGD(lr=1.0)
    optimizer.step(params, [g, g])
    assert all((p == 0.5).all() for p in params)
    with pytest.raises(ValueError, match=r"share memory; .* as are gradients that get zeros"):
        optimizer.step(params, [g, g], zero_grads=True)
    assert (g == 0.5).all() and all((p == 0.5).all() for p in params)
