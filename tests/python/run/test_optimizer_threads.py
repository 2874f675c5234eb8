"""Steps one optimizer, parameter or state from two threads. The result is the bits of a serial
order, or RuntimeError for the second thread, which has written nothing."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
import threading

import numpy as np
import pytest

import cutback
from cutback import optim

REFUSED = "already stepping|being updated by another step"


def arrays(seed, n=5, shape=(48, 32)):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype("f4") for _ in range(n)]


def race(functions, times):
    """Counts how often each step succeeded; the others were refused."""
    done, wrong, go = [0] * len(functions), [], threading.Barrier(len(functions))

    def work(i):
        go.wait()
        for _ in range(times):
            try:
                functions[i]()
                done[i] += 1
            except RuntimeError as error:
                if not any(text in str(error) for text in REFUSED.split("|")):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    return done


def loss(params, x):
    return sum((w * x).sum() for w in params)


def ways(way, optimizer, params, grads):
    """Returns two functions that step the optimizer, and the number of steps taken to prepare
    them."""
    if way in ("arrays", "list and tuple"):
        other = tuple(params) if way == "list and tuple" else params
        return [lambda: optimizer.step(params, grads), lambda: optimizer.step(other, grads)]
    first = cutback.compile(loss, optimizer=optimizer)
    if way == "two compiled steps":
        second = cutback.compile(lambda params, x: loss(params, x) * 1.0, optimizer=optimizer)
        return [lambda: first(params, grads[0]), lambda: second(params, grads[0])]
    return [lambda: first(params, grads[0]), lambda: optimizer.step(params, grads)]


WAYS = ("arrays", "list and tuple", "two compiled steps", "a compiled step and arrays")


def one_round(way, seed, is_warm, times=6):
    params, x = arrays(seed), arrays(100 + seed, 1)[0]
    grads, optimizer = [x] * len(params), optim.AdamW(lr=1e-2)
    twins, other = copy.deepcopy(params), optim.AdamW(lr=1e-2)
    both = ways(way, optimizer, params, grads)
    if is_warm:
        both[0]()
    done = race(both, times)
    assert optimizer.t == is_warm + sum(done)
    for _ in range(optimizer.t):
        other.step(twins, grads)
    for p, q in zip(params, twins, strict=True):
        np.testing.assert_array_equal(p, q)
    for key in ("m", "v"):
        for a, b in zip(optimizer.states[key], other.states[key], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(autouse=True)
def often():
    """Switches threads more often than by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_two_threads_share_an_optimizer(way, is_warm):
    for seed in range(10):
        one_round(way, seed, is_warm)


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_rounds_of_sharing(part):
    for k in range(1000 * part, 1000 * (part + 1)):
        one_round(WAYS[k % 4], k, k % 8 < 4)


def large(n=1 << 20):
    return [np.zeros(n, "f4")], [np.ones(n, "f4")]


@pytest.mark.parametrize("with_step", [False, True])
def test_two_optimizers_over_one_parameter(with_step):
    """A refused step has written nothing: integers in the parameters count the steps taken."""
    params, grads = large()
    optimizers = [optim.SGD(lr=1.0, momentum=0.0) for _ in range(2)]
    functions = [lambda o=o: o.step(params, grads) for o in optimizers]
    if with_step:
        step = cutback.compile(lambda params, x: (params[0] * x).sum(), optimizer=optimizers[0])
        functions[0] = lambda: step(params, grads[0])
    for _ in range(5):
        race(functions, 10)
    taken = sum(o.t for o in optimizers)
    assert taken and (params[0] == -taken).all()


def test_two_optimizers_over_one_state():
    """A shallow copy shares the state and the count of the original."""
    params, grads = large()
    optimizer = optim.SGD(lr=1.0, momentum=0.5)
    optimizer.step(params, grads)
    twin = copy.copy(optimizer)
    others = [p.copy() for p in params]
    done = race([lambda: optimizer.step(params, grads), lambda: twin.step(others, grads)], 10)
    assert optimizer.t == twin.t == 1 + sum(done)
    buffer = optimizer.states["momentum_buffer"][0]
    assert (buffer == sum(0.5**k for k in range(optimizer.t))).all()


def test_optimizers_that_share_nothing_step_at_once():
    made = [(*large(), optim.Adam()) for _ in range(2)]
    done = race([lambda m=m: m[2].step(m[0], m[1]) for m in made], 10)
    assert done == [10, 10]


def test_copies_and_pickles_step_while_the_original_does():
    params, grads = large(1000)
    optimizer = optim.Adam()
    optimizer.step(params, grads)

    def meanwhile():
        for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            other.step(copy.deepcopy(params), grads)
            assert other.t == 2
        for refused in (optimizer, copy.copy(optimizer)):
            with pytest.raises(RuntimeError, match="already stepping"):
                refused.step(params, grads)

    optimizer.stepping().hold(meanwhile)
    optimizer.step(params, grads)


def test_a_step_inside_a_step_is_refused():
    """A schedule steps the optimizer which evaluates it."""
    params, grads = large(10)
    seen = []

    def rate(_):
        try:
            optimizer.step(params, grads)
        except RuntimeError as error:
            seen.append(str(error))
        return 1.0

    optimizer = optim.SGD(lr=1.0)
    optimizer.lr = rate
    optimizer.step(params, grads)
    assert seen and all("already stepping" in text for text in seen)
    assert optimizer.t == 1 and (params[0] == -1).all()


def test_the_mean_of_a_schedule_free_optimizer_is_not_taken_amid_a_step():
    params, grads = large(10)
    optimizer = optim.ScheduleFreeAdamW()
    optimizer.step(params, grads)
    with pytest.raises(RuntimeError, match="already stepping"):
        optimizer.stepping().hold(optimizer.eval, params)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("other_thread", [True, False])
def test_a_forked_child_steps_though_another_thread_was_stepping(other_thread):
    """In the child, claims of the parent's other threads are free; those of the forking thread
    stay."""
    params, grads = large(1000)
    optimizer = optim.SGD(lr=1.0)
    optimizer.step(params, grads)
    held, done = threading.Event(), threading.Event()

    def hold(wait):
        held.set()
        wait()

    def fork():
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(60)
        code = 1
        try:
            optimizer.step(params, grads)
            code = 0 if (params[0] == -2).all() else 2
        except RuntimeError:
            code = 3
        finally:
            os._exit(code)

    if other_thread:
        thread = threading.Thread(target=optimizer.stepping().hold, args=(hold, done.wait))
        thread.start()
        held.wait()
        code = fork()
        done.set()
        thread.join()
    else:
        code = optimizer.stepping().hold(fork)
    assert code == (0 if other_thread else 3)
    optimizer.step(params, grads)


def test_a_fork_amid_steps_of_another_thread():
    """Claims on memory end with the threads that held them."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    params, grads = large()
    optimizer, end = optim.SGD(lr=1.0), threading.Event()

    def work():
        while not end.is_set():
            optimizer.step(params, grads)

    thread = threading.Thread(target=work)
    thread.start()
    codes = []
    for _ in range(10):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                optim.Adam().step(params, grads)
                optimizer.step(params, grads)
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    end.set()
    thread.join()
    assert codes == [0] * 10
