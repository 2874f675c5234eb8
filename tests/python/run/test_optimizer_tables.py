"""Tests arrays as callers have them (anywhere in a buffer, in any order, with one element or none)
and steps that are refused or interrupted. Built-in optimizers and recorded ones use different
code."""

from __future__ import annotations

import math
import re
import signal
import sys

import numpy as np
import pytest

import cutback
from cutback import optim


@optim.foreach
def recorded(p, g, m, v, t, *, lr=0.05, beta1=0.9, beta2=0.99):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr / (1 - beta1**t) * m / (np.sqrt(v / (1 - beta2**t)) + 1e-8), m, v


@optim.foreach
def scaled(p, g, m, *, lr=0.05):
    m = 0.9 * m + g
    return p - lr * p.norm() / (m.norm() + 1e-6) * m, m


KINDS = {
    "adamw": lambda: optim.AdamW(lr=0.05),
    "momentum": lambda: optim.SGD(lr=0.05, momentum=0.9),
    "nadam": lambda: optim.NAdam(lr=0.05),
    "recorded": lambda: recorded(),
    "recorded with sums": lambda: scaled(),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
SIZES = [0, 1, 3, 16, 63, 64, 65, 100, 127, 128, 1000, 5000, 16_385, 0, 70_000]


def numbers(sizes, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype("f4") for n in sizes]


def placed(arrays, offset):
    """Copies each array into its own buffer, at an offset that varies with the array, between guard
    elements that must not change."""
    views, buffers = [], []
    for i, array in enumerate(arrays):
        begin = (offset + 5 * i) % 21 + 1
        buffer = np.full(array.size + 40, -7.25, "f4")
        buffer[begin : begin + array.size] = array
        buffers.append((buffer, begin, array.size))
        views.append(buffer[begin : begin + array.size])
    return views, buffers


def is_untouched(buffer, begin, n):
    return (buffer[:begin] == -7.25).all() and (buffer[begin + n :] == -7.25).all()


@each_kind
def test_arrays_begin_anywhere(make):
    """The bits depend neither on the arrays' offsets nor on the number of threads; nothing next to
    an array is written."""
    plain, results = numbers(SIZES, 0), set()
    threads = cutback.get_num_threads()
    optimizer = make()
    for seed in range(3):
        optimizer.step(plain, numbers(SIZES, 10 + seed))
    wanted = b"".join(p.tobytes() for p in plain)
    try:
        for offset in range(6):
            cutback.set_num_threads(1 + offset % 3)
            params, kept = placed(numbers(SIZES, 0), offset)
            optimizer = make()
            for seed in range(3):
                grads, others = placed(numbers(SIZES, 10 + seed), 3 * offset + seed)
                optimizer.step(params, grads)
                assert all(is_untouched(*buffer) for buffer in (*kept, *others))
                for g, same in zip(grads, numbers(SIZES, 10 + seed), strict=True):
                    assert g.tobytes() == same.tobytes()
            results.add(b"".join(p.tobytes() for p in params))
    finally:
        cutback.set_num_threads(threads)
    assert results == {wanted}


@each_kind
def test_one_element_and_none(make):
    for shape in ((), (1,), (1, 1, 1), (0,), (3, 0, 2)):
        params, twin = [np.full(shape, 0.5, "f4")], [np.full(9, 0.5, "f4")]
        optimizer, beside = make(), make()
        for _ in range(2):
            optimizer.step(params, [np.full(shape, 0.25, "f4")])
            beside.step(twin, [np.full(9, 0.25, "f4")])
        assert params[0].shape == shape and optimizer.t == 2
        if make is not KINDS["recorded with sums"]:
            assert (params[0] == twin[0][0]).all()
    optimizer = make()
    optimizer.step([], [])
    assert optimizer.t == 1


def odd(n, dtype="f4"):
    """Returns an array at an odd address."""
    size = np.dtype(dtype).itemsize
    room = np.zeros(n * size + 64, np.uint8)
    begin = 1 + -room.ctypes.data % 64
    return room[begin : begin + n * size].view(dtype)


def misplaced():
    f4 = lambda *shape: np.ones(shape, "f4")  # noqa: E731
    yield "odd parameter", [odd(5)], [f4(5)], "params[0]: the parameter is not aligned"
    yield "odd gradient", [f4(5)], [odd(5)], "params[0]: the gradient is not aligned"
    yield "odd doubles", [odd(5, "f8")], [np.ones(5)], "params[0]: the parameter is not aligned"
    yield "transposed", [f4(3, 4).T], [f4(4, 3)], "params[0]: the parameter is not contiguous"
    yield "gradient", [f4(4, 3)], [f4(3, 4).T], "params[0]: the gradient is not contiguous"
    yield "columns", [np.asfortranarray(f4(3, 4))], [f4(3, 4)], "the parameter is not contiguous"
    yield "backwards", [f4(5)[::-1]], [f4(5)], "params[0]: the parameter is not contiguous"
    yield "expanded", [f4(5)], [np.broadcast_to(np.float32(1), (5,))], "gradient is not contiguous"
    yield "bytes", [np.ones(5, ">f4")], [np.ones(5, ">f4")], "params[0]"
    yield "second", [f4(2), f4(6)[::2]], [f4(2), f4(3)], "params[1]: the parameter is not contig"


MISPLACED = list(misplaced())


@pytest.mark.parametrize(("params", "grads", "text"), [m[1:] for m in MISPLACED],
                         ids=[m[0] for m in MISPLACED])  # fmt: skip
@each_kind
def test_what_lies_in_another_way_is_refused(make, params, grads, text):
    before = [p.copy() for p in (*params, *grads)]
    optimizer = make()
    with pytest.raises((ValueError, TypeError), match=re.escape(text)):
        optimizer.step(params, grads)
    assert optimizer.t == 0 and optimizer.state_dict() == {"t": 0}
    for array, old in zip((*params, *grads), before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_a_recorded_optimizer_names_the_type_that_it_does_not_step():
    params = [np.ones(3, "f4"), np.ones(3)]
    with pytest.raises((TypeError, NotImplementedError), match=r"params\[1\].*f64.*f32|f64"):
        recorded().step(params, [np.ones(3, "f4"), np.ones(3)])
    assert all((p == 1).all() for p in params)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@each_kind
def test_numbers_that_are_none_stop_the_step(make, bad):
    """An invalid number stops the step even if it appears between two steps, in a group or in a
    schedule. The message names the number and its value."""
    params, g = [np.ones(3, "f4"), np.ones(4, "f4")], [np.ones(3, "f4"), np.ones(4, "f4")]
    optimizer = make()
    optimizer.step(params, g)
    before = [p.copy() for p in params], optimizer.state_dict()
    text = rf"lr.*{bad}|{bad}.*lr"
    good = optimizer.lr
    optimizer.lr = bad
    with pytest.raises(ValueError, match=text):
        optimizer.step(params, g)
    optimizer.lr = lambda t: bad
    with pytest.raises(ValueError, match=text):
        optimizer.step(params, g)
    optimizer.lr, optimizer.groups = good, [{"names": "*1*", "lr": bad}]
    with pytest.raises(ValueError, match=text):
        optimizer.step(params, g)
    assert optimizer.t == 1
    for p, old in zip(params, before[0], strict=True):
        np.testing.assert_array_equal(p, old)
    now = optimizer.state_dict()
    assert all(np.array_equal(now[key], before[1][key]) for key in before[1])


# ---- interrupts


def whole(params, optimizer):
    """Returns parameters and state as bytes."""
    state = optimizer.state_dict()
    arrays = [np.asarray(state[key]).tobytes() for key in sorted(state)]
    return b"".join([*(p.tobytes() for p in params), *arrays])


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("half", [False, True])
@each_kind
def test_an_interrupt_at_each_bytecode_leaves_no_mixture(make, half, every):
    """KeyboardInterrupt is raised wherever the interpreter can. Before the core is called the step
    has not begun, and afterwards it is complete."""
    extras = {"max_norm": 1.0, "zero_grads": True} if half else {}
    twin, beside = numbers((5, 70, 0), 1), make()
    beside.step(twin, numbers((5, 70, 0), 2))
    beside.step(twin, numbers((5, 70, 0), 3), **extras)
    after = whole(twin, beside)
    number = -every
    while True:
        number += every
        params, optimizer = numbers((5, 70, 0), 1), make()
        optimizer.step(params, numbers((5, 70, 0), 2))
        before, grads = whole(params, optimizer), numbers((5, 70, 0), 3)
        left = [number]

        def tracer(frame, event, argument, left=left):
            name = frame.f_code.co_filename
            if "cutback" not in name or "tests" in name:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
            return tracer

        old, finished = sys.gettrace(), True
        try:
            sys._getframe().f_trace_opcodes = True  # 3.12 looks for one frame that has it
            sys.settrace(tracer)
            optimizer.step(params, grads, **extras)
        except KeyboardInterrupt:
            finished = False
        finally:
            sys.settrace(old)
        assert whole(params, optimizer) in (before, after), number
        if finished:
            break
    assert number > 100


@pytest.mark.usefixtures("no_collections")
@each_kind
def test_ctrl_c_waits_for_the_end_of_a_step(make):
    """SIGINT comes while the core runs, with one thread and with several."""
    params, optimizer = numbers((300_000, 50), 1), make()
    twin, beside = numbers((300_000, 50), 1), make()
    grads = numbers((300_000, 50), 2)
    states = {whole(twin, beside)}
    caught = 0
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for k in range(30):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 * (k + 1))
                for _ in range(3):
                    optimizer.step(params, grads)
            except KeyboardInterrupt:
                caught += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # the signal came late
        caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.signal(signal.SIGINT, handler)
    for _ in range(optimizer.t):
        beside.step(twin, grads)
    states.add(whole(twin, beside))
    assert caught > 0 and whole(params, optimizer) in states and optimizer.t > 0
