"""Tests the host cost of a call. The number of Python and C calls per leaf does not grow with the
number of leaves, and facts remembered between calls are checked when arguments change."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutback as cb
from cutback.run.executable import Executable

Array = np.ndarray[Any, Any]
Loss = Callable[..., Any]


def two_of_them(params: Any) -> Any:
    """Returns a loss that reads two of many parameters, so that it compiles quickly."""
    leaves, _ = cb.tree.flatten(params)
    return (leaves[0] * leaves[1]).sum()


KINDS: dict[str, Callable[[Loss], Any]] = {
    "forward": lambda loss: cb.compile(loss, argnums=None),
    "value_and_grad": cb.value_and_grad,
    "SGD": lambda loss: cb.compile(loss, optimizer=cb.optim.SGD(lr=1e-3)),
    "AdamW": lambda loss: cb.compile(loss, optimizer=cb.optim.AdamW(lr=1e-3)),
}


def reshape_in_place(array: Array, shape: tuple[int, ...]) -> None:
    """Reshapes as programs do, although NumPy 2.5 warns about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.shape = shape


def flat(n: int) -> Any:
    return [np.ones(3, np.float32) for _ in range(n)]


def named(n: int) -> Any:
    return {f"w{i}": np.ones(3, np.float32) for i in range(n)}


def layered(n: int) -> Any:
    return {
        "layers": [
            {"w": np.ones(3, np.float32), "b": np.ones(3, np.float32)} for _ in range(n // 2)
        ]
    }


def calls(run: Callable[[], Any]) -> Counter[str]:
    """Counts calls of functions in Python and C, by name."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            found[frame.f_code.co_name] += 1
        elif event == "c_call":
            found[getattr(arg, "__qualname__", repr(arg))] += 1

    gc.disable()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def calls_of_a_step(kind: str, make: Callable[[int], Any], n: int) -> Counter[str]:
    """Counts calls during the third call of a step with n arrays, when everything is cached."""
    params = make(n)
    step = KINDS[kind](two_of_them)
    before = cb.get_num_threads()
    cb.set_num_threads(1)  # more threads would not help with arrays of three elements
    try:
        for _ in range(2):
            step(params)
        return calls(lambda: step(params))
    finally:
        cb.set_num_threads(before)


@pytest.mark.parametrize("most", [2000, pytest.param(16000, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [flat, named])
def test_calls_do_not_grow_with_leaves(kind: str, make: Callable[[int], Any], most: int) -> None:
    few, many = (calls_of_a_step(kind, make, n) for n in (1000, most))
    assert few == many
    assert few.total() < 300


@pytest.mark.parametrize("kind", ["value_and_grad", "AdamW"])
def test_calls_grow_with_containers_alone(kind: str) -> None:
    """A layer of two arrays costs as many calls among 200 layers as among 50."""
    totals = [calls_of_a_step(kind, layered, n).total() for n in (100, 200, 400)]
    assert totals[2] - totals[1] == 2 * (totals[1] - totals[0])


def test_reading_in_full_is_linear() -> None:
    """The call matches nothing cached, because a constant differs each time."""

    def calls_of(n: int) -> int:
        params, step = flat(n), cb.compile(lambda p, c: two_of_them(p) * c, argnums=None)
        step(params, 1.5)
        step(params, float("1.25"))
        return calls(lambda: step(params, float("1.5"))).total()

    small, middle, large = (calls_of(n) for n in (500, 1000, 2000))
    assert large - middle == 2 * (middle - small)


def test_arrays_of_other_types_are_read_in_linear_time() -> None:
    """NumPy scalars and subclasses are read one by one, other arrays as usual."""

    class Sub(np.ndarray[Any, Any]):
        pass

    def calls_of(n: int) -> int:
        params = [np.ones(3, np.float32).view(Sub) for _ in range(n)]
        step = cb.compile(two_of_them, argnums=None)
        for _ in range(2):
            step(params)
        return calls(lambda: step(params)).total()

    small, middle, large = (calls_of(n) for n in (100, 200, 400))
    assert large - middle == 2 * (middle - small)


def test_many_positional_arguments_trace_in_linear_time() -> None:
    def calls_of(n: int) -> int:
        args = flat(n)
        step = cb.compile(lambda *p: (p[0] * p[1]).sum(), argnums=None)
        return calls(lambda: step.prepare(*args)).total()

    small, middle, large = (calls_of(n) for n in (100, 200, 400))
    assert large - middle <= 2.1 * (middle - small)


# ---- what is remembered -----------------------------------------------------------------------


def sums(p: Any, x: Any) -> Any:
    return (p["w"] * x).sum() + (p["b"] * x[0, 0]).sum()


def step_of_sums() -> Any:
    return cb.compile(sums, optimizer=cb.optim.SGD(lr=1))


def some_params() -> dict[str, Array]:
    return {"w": np.ones((4, 6), np.float32), "b": np.ones(5, np.float32)}


X = np.full((4, 6), 2, np.float32)


@pytest.fixture
def warm() -> tuple[Any, dict[str, Array]]:
    """Returns a step that was called before, and its parameters."""
    step, params = step_of_sums(), some_params()
    for _ in range(2):
        step(params, X)
    return step, params


def refused(step: Any, params: Any, *words: str, x: Any = X) -> None:
    """Checks that the call fails with this text and changes none of the arrays that it could
    write."""
    before = {name: np.array(value) for name, value in params.items()}
    with pytest.raises((TypeError, ValueError)) as caught:
        step(params, x)
    for word in words:
        assert word in str(caught.value)
    for name, value in params.items():
        assert np.array_equal(np.array(value), before[name])


def test_an_array_that_became_read_only(warm: Any) -> None:
    step, params = warm
    params["w"].setflags(write=False)
    refused(step, params, "p['w']", "read-only")
    params["w"].setflags(write=True)
    step(params, X)


def test_an_array_that_became_strided(warm: Any) -> None:
    step, params = warm
    whole = np.ones((4, 12), np.float32)
    refused(step, {**params, "w": whole[:, ::2]}, "p['w']", "contiguous", "(48, 8)")
    refused(step, {**params, "w": np.ones((6, 4), np.float32).T}, "p['w']", "contiguous")
    step(params, X)


def test_the_same_memory_as_another_dtype_or_shape(warm: Any) -> None:
    """The arrays reuse the memory of those of the previous call."""
    step, params = warm
    w = params["w"]
    refused(step, {**params, "w": w.view(np.int32)}, "p['w']", "i32")
    # Another shape is another graph, which does not broadcast:
    refused(step, {**params, "w": w.reshape(6, 4)}, "6")
    refused(step, {**params, "w": w.view(">f4")}, "p['w']", ">f4")
    raw = np.zeros(4 * 24 + 1, np.uint8)[1:].view(np.uint8)
    odd = np.ndarray((4, 6), np.float32, raw.data)
    refused(step, {**params, "w": odd}, "p['w']", "aligned")
    assert step(params, X) is not None and step.n_compiled == 1


def test_an_array_that_changed_its_shape_in_place() -> None:
    step, params = cb.value_and_grad(sums), some_params()
    step(params, X)
    for shape, n in (((5, 1), 2), ((5,), 2), ((1, 5), 3)):
        reshape_in_place(params["b"], shape)
        assert step(params, X)[1]["b"].shape == shape
        assert step.n_compiled == n


def test_two_arguments_that_became_one(warm: Any) -> None:
    """Overlaps are detected although the step has accepted its arguments before, and again after
    the valid arguments have returned."""
    step, params = warm
    whole = np.ones(24 + 5, np.float32)
    for _ in range(2):
        refused(step, {"w": whole[:24].reshape(4, 6), "b": whole[20:25]}, "overlap")
        refused(step, params, "overlap", x=params["w"])
        step(params, X)
    step({"w": whole[:24].reshape(4, 6), "b": whole[24:]}, X)


def test_the_same_parameter_twice() -> None:
    step = cb.compile(two_of_them, optimizer=cb.optim.AdamW(lr=1e-3))
    good = flat(3)
    step(good)
    for _ in range(2):
        with pytest.raises(ValueError, match="overlap"):
            step([good[0], good[0], good[2]])
        step(good)


def test_memory_that_was_freed_and_came_back() -> None:
    """Arrays of many kinds at addresses of freed arrays give the results of new ones."""
    rng = np.random.default_rng(0)
    step = cb.value_and_grad(lambda p: sum((q * q).sum() for q in p))
    for turn in range(60):
        kinds = [((4,), np.float32), ((2, 2), np.float32), ((2,), np.float64)]
        shape, dtype = kinds[int(rng.integers(3))]
        params = [rng.standard_normal(shape).astype(dtype) for _ in range(8)]
        value, gradients = step(params)
        assert float(value) == pytest.approx(sum(float((p * p).sum()) for p in params), rel=1e-5)
        for p, g in zip(params, gradients, strict=True):
            assert g.dtype == dtype and np.array_equal(g, 2 * p), turn
        del params, gradients
    assert step.n_compiled == 3


def test_equal_constants_are_one_specialisation() -> None:
    step = cb.compile(lambda x, c, name: x.sum() * c, argnums=None)
    for number in ("1.5", "1.5", "2.5", "1.5"):
        step(X, float(number), "".join(["mo", "de"]))
    assert step.n_compiled == 2
    assert float(step(X, 1.5, "mode")) == 1.5 * X.sum()
    step(X, True, "mode")
    step(X, 1, "mode")
    assert step.n_compiled == 4


def test_many_specialisations_in_turn() -> None:
    """There are more specialisations than are compared before a call is read in full."""
    step = cb.compile(lambda x, c: x.sum() * c, argnums=None)
    for turn in range(3):
        for n in range(1, 12):
            got = step(np.ones(n, np.float32), n)
            assert float(got) == n * n, turn
    assert step.n_compiled == 11


def test_numbers_where_a_step_writes() -> None:
    step, params = step_of_sums(), some_params()
    step(params, X)
    refused(step, {**params, "b": np.float32(1)}, "p['b']", "float32")
    for _ in range(2):
        refused(step, {**params, "b": 1.5}, "p['b']", "1.5")
    step(params, X)
    step({**params}, X)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Layer:
    w: Any
    rest: Any


def nested() -> Any:
    return {
        "a": Layer(np.ones(3, np.float32), Pair(np.ones(2, np.float32), None)),
        "b": [np.ones(1, np.float32), (), {}, (np.ones((), np.float32),)],
    }


def test_nested_arguments() -> None:
    def loss(p: Any) -> Any:
        leaves, _ = cb.tree.flatten(p)
        return sum((q * q).sum() for q in leaves)

    step = cb.value_and_grad(loss)
    for _ in range(3):
        _, gradients = step(nested())
    assert isinstance(gradients["a"], Layer) and isinstance(gradients["a"].rest, Pair)
    assert gradients["a"].rest.right is None and gradients["b"][1:3] == [(), {}]
    assert np.array_equal(gradients["b"][3][0], 2)
    other = nested()
    other["b"][1] = []  # a list instead of a tuple
    step(other)
    assert step.n_compiled == 2


def test_names_in_errors_are_those_of_the_leaf() -> None:
    step = cb.compile(two_of_them, optimizer=cb.optim.SGD(lr=1e-3))
    params = layered(200)
    step(params)
    params["layers"][77]["w"] = object()
    with pytest.raises(TypeError, match=r"params\['layers'\]\[77\]\['w'\]: expected a NumPy array"):
        step(params)
    frozen = np.ones(3, np.float32)
    frozen.setflags(write=False)
    params["layers"][77]["w"] = frozen
    with pytest.raises(ValueError, match=r"params\['layers'\]\[77\]\['w'\]: .* read-only"):
        step(params)


# ---- optimizers -------------------------------------------------------------------------------


def test_a_state_that_was_loaded_between_calls() -> None:
    """Two runs from one state give the same bits, also with other states in between."""
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(two_of_them, optimizer=optimizer)
    params = flat(5)
    for _ in range(3):
        step(params)
    state, start = optimizer.state_dict(), [p.copy() for p in params]
    results = []
    for other in (1.0, 2.0):
        for _ in range(2):
            optimizer.load_state_dict({k: v * other if k != "t" else v for k, v in state.items()})
            step([p.copy() for p in start])
        optimizer.load_state_dict(state)
        params = [p.copy() for p in start]
        step(params)
        results.append(params)
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


def test_groups_that_change_between_calls() -> None:
    optimizer = cb.optim.SGD(lr=1.0, groups=[{"names": "*[0]", "lr": 0.0}])
    step = cb.compile(two_of_them, optimizer=optimizer)
    params = [np.array([2.0], np.float32), np.array([3.0], np.float32)]
    step(params)
    assert params[0][0] == 2 and params[1][0] == 1
    optimizer.groups[0]["names"] = "*[1]"
    step(params)
    assert params[0][0] == 1 and params[1][0] == 1
    optimizer.groups[0]["lr"] = 1.0
    step(params)
    assert params[1][0] == 0


def test_steps_outside_of_the_compiled_one() -> None:
    """A parameter that missed a step is refused, although the step accepted it before."""
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(two_of_them, optimizer=optimizer)
    params = flat(3)
    for _ in range(2):
        step(params)
    optimizer.step(params, [None, np.ones(3, np.float32), np.ones(3, np.float32)])
    with pytest.raises(ValueError, match=r"params\[0\] has taken fewer steps"):
        step(params)


def test_one_optimizer_of_other_parameters() -> None:
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(two_of_them, optimizer=optimizer)
    for _ in range(2):
        step(flat(3))
    with pytest.raises(ValueError, match="other parameters"):
        step(flat(4))
    step(flat(3))


def test_states_that_were_replaced_by_others() -> None:
    """A state's arrays are checked in every call."""
    optimizer = cb.optim.AdamW(lr=0.1)
    step = cb.compile(two_of_them, optimizer=optimizer)
    params = flat(3)
    for _ in range(2):
        step(params)
    optimizer.states["m"][1].setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        step(params)
    optimizer.states["m"][1].setflags(write=True)
    reshape_in_place(optimizer.states["m"][1], (3, 1))
    with pytest.raises(ValueError, match=r"m: expected f32"):
        step(params)


# ---- stats, threads ---------------------------------------------------------------------------


def test_stats_tell_what_the_call_took() -> None:
    step = cb.value_and_grad(two_of_them)
    assert step.prepare(flat(100)).stats is None
    step(flat(100))
    assert 0 < step.stats.seconds <= step.stats.call_seconds
    run = Executable(step.traced.graph, [0], backend="cpu")
    run(*flat(100))
    assert 0 < run.stats.seconds <= run.stats.call_seconds


@pytest.mark.parametrize("kind", ["value_and_grad", "AdamW"])
def test_threads_call_one_step(kind: str) -> None:
    """Calls from several threads, with several kinds of arguments, give the results of a single
    thread."""
    step = KINDS[kind](two_of_them)
    failed: list[str] = []

    def work(number: int) -> None:
        for turn in range(40):
            n = 2 if kind == "AdamW" else 2 + (number + turn) % 6
            params = [np.full(3, 1 + number, np.float32) for _ in range(n)]
            got = step(params)
            value = got if kind == "AdamW" else got[0]
            if float(value) != 3 * (1 + number) ** 2:
                failed.append(f"thread {number}, turn {turn}: {float(value)}")
            if kind != "AdamW" and not np.array_equal(got[1][0], params[1]):
                failed.append(f"thread {number}, turn {turn}: {got[1][0]}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[:5]
