"""All shapes of a step run in one block of memory, and so do steps that share a Memory. The error
of its bound lists who holds what, before anything changes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial

import numpy as np
import pytest

import cutback
from cutback import _native
from cutback.run.memory import LEAST

pytestmark = pytest.mark.plans_unchecked

RNG = np.random.default_rng(0)
MIB = 2**20


def layers(n=3, width=64, dtype=np.float32):
    return [RNG.standard_normal((width, width)).astype(dtype) / 8 for _ in range(n)]


def batch(rows, width=64):
    return RNG.standard_normal((rows, width)).astype(np.float32)


def loss(params, x):
    for w in params:
        x = cutback.tanh(x @ w)
    return (x * x).mean()


def total(params, x):
    return (x @ params[0]).sum()


def arenas(held):
    return sum(held.arenas.values())


def of_steps(held):
    """Returns the bytes of this file's steps; those compiled by other tests may still be alive."""
    return {name: size for name, size in held.arenas.items() if name == "step `loss`"}


@pytest.fixture(autouse=True)
def nothing_held(no_failures_held):
    cutback.release_memory()
    assert cutback.memory().total == 0
    yield
    assert cutback.memory().limit is None
    gc.collect()
    cutback.release_memory()


def python(code, timeout=120):
    """Runs a program in a fresh interpreter that finds the same package; returns its standard
    output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env=env, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- sharing -------------------------------------------------------------------------------------


def test_sixty_shapes_take_what_the_largest_takes():
    params = layers(2)
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(), budget=0.5)
    largest, sizes = 0, [500 + 7 * i for i in range(60)]
    RNG.shuffle(sizes)
    for n in sizes:
        step(params, batch(n))
        largest = max(largest, step.planned.arena_bytes)
        assert arenas(cutback.memory()) == largest
    assert of_steps(cutback.memory()) == {"step `loss`": largest}


def test_a_run_allocates_only_if_it_is_the_first_or_the_largest():
    step = cutback.compile(loss, optimizer=cutback.optim.SGD())
    params, data = layers(), {n: batch(n) for n in (300, 100, 200)}
    for n in data:
        step(params, data[n])  # the first step of its program
    for n in data:
        before = _native.memory()["n_alloc"]
        step(params, data[n])
        assert step.stats.n_alloc == 0 and _native.memory()["n_alloc"] == before
    cutback.release_memory()
    for n, allocates in ((100, 1), (300, 1), (200, 0)):
        step(params, data[n])
        assert step.stats.n_alloc == allocates


@pytest.mark.parametrize("backend", ["cpu", "debug", "ref"])
def test_sharing_changes_no_bit(backend):
    memory = cutback.Memory()
    x = {n: batch(n) for n in (40, 9, 25)}
    apart = cutback.value_and_grad(loss, backend=backend)
    sums = cutback.compile(total, argnums=None, backend=backend)
    together = cutback.value_and_grad(loss, backend=backend, memory=memory)
    others = cutback.compile(total, argnums=None, backend=backend, memory=memory)
    params = layers()
    for n in (40, 9, 25, 9, 40, 25):
        value, gradients = together(params, x[n])
        assert others(params, x[n]) == sums(params, x[n])
        expected, wanted = apart(params, x[n])
        assert value == expected
        for one, other in zip(gradients, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    if backend == "cpu":
        names = {"step `loss` and step `total`"}
        assert set(memory.held().arenas) == names
        assert arenas(memory.held()) == max(
            spec.run.planned.arena_bytes
            for s in (together, others)
            for spec in s._known._programs.values()
        )


@pytest.mark.skipif("CUTBACK_TEST_BACKEND" in os.environ, reason="offloads nothing")
def test_offloaded_values_lie_in_the_block_too():
    memory = cutback.Memory()
    params, x = layers(6), batch(100)
    offload = cutback.CheckpointPolicy.MUST_OFFLOAD
    step = cutback.value_and_grad(loss, policy=lambda *_, **__: offload, memory=memory)
    expected, wanted = cutback.value_and_grad(loss)(params, x)
    before = _native.memory()["live_bytes"]
    step.prepare(params, x)
    assert memory.held().total == 0 and _native.memory()["live_bytes"] - before < MIB
    for _ in range(2):
        value, gradients = step(params, x)
        assert value == expected
        np.testing.assert_array_equal(np.stack(gradients), np.stack(wanted))
    assert arenas(memory.held()) > step.planned.arena_bytes


def test_a_block_is_freed_with_its_step():
    step = cutback.compile(loss, argnums=None)
    step(layers(), batch(200))
    assert cutback.memory().total > 0
    gc.disable()
    try:
        del step
        assert cutback.memory().total == 0
    finally:
        gc.enable()


def test_clear():
    params = layers()
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=0.1))
    twin = cutback.compile(loss, optimizer=cutback.optim.AdamW(lr=0.1))
    same, x, live = [w.copy() for w in params], batch(50), _native.memory()["live_bytes"]
    for n in (1, 2):
        step(params, x[:n])
        twin(same, x[:n])
    assert step.n_compiled == 2
    step.clear()
    gc.collect()
    assert step.program_bytes == 0 and step.optimizer.t == 2 and step.rng_step == 2
    twin.clear()
    gc.collect()
    assert arenas(cutback.memory()) == 0 and _native.memory()["live_bytes"] < live + 50_000
    with pytest.raises(ValueError, match="not compiled yet"):
        step.planned  # noqa: B018
    np.testing.assert_array_equal(step(params, x), twin(same, x))
    np.testing.assert_array_equal(np.stack(params), np.stack(same))
    step.clear()
    step.clear()


def test_mistakes():
    with pytest.raises(TypeError, match=r"is not a cutback\.Memory"):
        cutback.compile(loss, memory="10GiB")
    with pytest.raises(TypeError, match="a size must be an int"):
        cutback.Memory(0.5)
    with pytest.raises(ValueError, match="not a size"):
        cutback.memory("much")
    with pytest.raises(TypeError, match="memory must be a RunMemory"):
        cutback.trace(total, layers(), batch(2)).graph._native.compile((0,), memory=3)
    with pytest.raises(TypeError, match="admit must be a function"):
        _native.RunMemory(None, 3)
    with pytest.raises(TypeError, match="like must be a RunMemory"):
        _native.RunMemory(3)


# ---- what comes in between -----------------------------------------------------------------------


def long_loss(x):
    for _ in range(60):
        x = cutback.sin(x @ x)
    return x.mean()


def test_threads_take_turns():
    memory = cutback.Memory()
    params, sizes = layers(), (60, 20, 90, 45)
    data = [batch(n) for n in sizes]
    expected = [cutback.grad(loss)(params, x) for x in data]
    shared = cutback.grad(loss, memory=memory)
    steps = [cutback.grad(loss, memory=memory) for _ in data]
    wrong = []

    def work(i):
        for _ in range(20):
            for step in (steps[i], shared):
                if not np.array_equal(np.stack(step(params, data[i])), np.stack(expected[i])):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(data))]
    for thread in threads:
        thread.start()
    for _ in range(200):
        memory.release()
        memory.held()
    for thread in threads:
        thread.join()
    assert not wrong


def during(handler, step, *args):
    """Calls the step until ``handler`` has seen a wanted result; returns the step's last result.

    The signal comes earlier with each call, so that it also hits a run on a fast machine.
    """
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(100):
            signal.setitimer(signal.ITIMER_REAL, 0.02 * 0.93**number)
            result = step(*args)
            if any(map(handler.wanted, handler.seen)):
                return result
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("no signal came during a run")


class Handler:
    """Calls a function from a signal handler during a run.

    ``wanted`` tells a result that the core gives during a run from one given just before or after.
    """

    def __init__(self, function, wanted=lambda result: True):
        self.function, self.wanted = function, wanted
        self.seen = []

    def __call__(self, number, frame):
        names = set()
        while frame:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if {"run", "_train"} & names:
            self.seen.append(self.function())


def outcome(step, *args):
    try:
        return step(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.within_the_call
def test_a_handler_that_calls_steps_inside_a_run():
    memory = cutback.Memory()
    x, params, y = np.eye(250) * 0.5, layers(), batch(20)
    step = cutback.compile(long_loss, argnums=None, memory=memory).prepare(x)
    same_memory = cutback.compile(loss, argnums=None, memory=memory).prepare(params, y)
    own_memory = cutback.compile(loss, argnums=None).prepare(params, y)
    expected, value = step(x), own_memory(params, y)

    def says(text):
        return lambda result: text in str(result)

    call = partial(outcome, same_memory, params, y)
    refused = Handler(call, says("already running in this step's memory"))
    assert during(refused, step, x) == expected

    itself = Handler(partial(outcome, step.executable, x), says("this step is already running"))
    assert during(itself, step, x) == expected

    works = Handler(lambda: outcome(own_memory, params, y))
    assert during(works, step, x) == expected
    assert works.seen[0] == value


@pytest.mark.within_the_call
def test_releasing_and_clearing_inside_a_run():
    x = np.eye(250) * 0.5
    step = cutback.compile(long_loss, argnums=None).prepare(x)
    expected = step(x)
    block = step.planned.arena_bytes
    releases = Handler(cutback.release_memory, lambda released: released == 0)
    assert during(releases, step, x) == expected
    assert arenas(cutback.memory()) == block
    clears = Handler(step.clear)
    assert during(clears, step, x) == expected
    assert step(x) == expected
    step.clear()
    assert arenas(cutback.memory()) == 0


@pytest.mark.within_the_call
def test_an_exception_inside_a_run_leaves_the_memory_usable():
    class AlarmError(Exception):
        pass

    def handler(number, frame):
        raise AlarmError

    memory = cutback.Memory()
    x, params, y = np.eye(250) * 0.5, layers(), batch(20)
    step = cutback.compile(long_loss, argnums=None, memory=memory).prepare(x)
    other = cutback.grad(loss, memory=memory)
    expected, wanted = step(x), cutback.grad(loss)(params, y)
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(AlarmError):
            for _ in range(100):
                step(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(np.stack(other(params, y)), np.stack(wanted))
    assert step(x) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_runs():
    """In the child the running step is refused, and the others in its memory run."""
    out = python(
        """
        import os, threading, time, warnings, numpy as np, cutback
        warnings.simplefilter("ignore")
        memory = cutback.Memory("1GiB")
        def long(x):
            for _ in range(60):
                x = cutback.sin(x @ x)
            return x.mean()
        x, y = np.eye(250) * 0.5, np.ones((30, 30))
        ran = cutback.compile(long, argnums=None, memory=memory).prepare(x)
        other = cutback.compile(lambda y: cutback.tanh(y @ y).sum(), argnums=None, memory=memory)
        expected, value = ran(x), other(y)
        going, stop = threading.Event(), threading.Event()
        def work():
            while not stop.is_set():
                going.set()
                ran(x)
        thread = threading.Thread(target=work)
        thread.start()
        going.wait()
        time.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            assert other(y) == value and memory.release() > 0 and other(y) == value
            refused = []
            for argument in (x[:20, :20], x, x[:30, :30]):  # other programs of the step as well
                try:
                    ran(argument)
                except RuntimeError as error:
                    refused.append("forked while another thread ran this step" in str(error))
                ran.clear()
            os._exit({0: 0, 3: 7}.get(len(refused), 1) if all(refused) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stop.set()
        thread.join()
        assert ran(x) == expected and other(y) == value
        print(code in (0, 7))
        """
    )
    assert out.strip() == "True"


def test_a_block_that_cannot_grow():
    """Parameters are unchanged, and the next call allocates again."""
    params, small, large = layers(), batch(20), batch(200)
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    for x in (small, large):
        step(params, x)
    cutback.release_memory()
    step(params, small)
    before, t = [w.copy() for w in params], step.optimizer.t
    _native.fail_alloc(1)
    with pytest.raises(MemoryError, match="no memory for the arena"):
        step(params, large)
    assert _native.fail_alloc(0) == 0
    assert of_steps(cutback.memory()) == {"step `loss`": 0} and step.optimizer.t == t
    np.testing.assert_array_equal(np.stack(params), np.stack(before))
    step(params, large)
    assert arenas(cutback.memory()) == step.planned.arena_bytes


# ---- a bound -------------------------------------------------------------------------------------


def unchanged(params, optimizer):
    before, t = [w.copy() for w in params], optimizer.t

    def check():
        np.testing.assert_array_equal(np.stack(params), np.stack(before))
        assert optimizer.t == t

    return check


def test_an_arena_above_the_bound():
    params = layers()
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    with cutback.memory("1MiB") as memory:
        step(params, batch(100))
        check = unchanged(params, step.optimizer)
        with pytest.raises(cutback.MemoryLimitError) as caught:
            step(params, batch(4000))
        check()
        said, held = str(caught.value), caught.value.held
        assert isinstance(caught.value, MemoryError)
        assert (
            "the arena of step `loss` would take" in said and "bound on memory is 1.00 MiB" in said
        )
        assert "states of AdamW 96.00 KiB" in said and "lower the budget of a step" in said
        assert caught.value.limit == MIB and caught.value.wanted + held.total > MIB
        assert held.states == {"AdamW": 2 * sum(w.nbytes for w in params)}
        step(params, batch(100))
        assert memory.held().total <= MIB
    step(params, batch(4000))
    assert cutback.memory().total > MIB


def test_states_above_the_bound():
    params = layers(8)
    optimizer = cutback.optim.AdamW()
    step = cutback.compile(loss, optimizer=optimizer)
    with cutback.memory("200KiB"):
        with pytest.raises(cutback.MemoryLimitError, match=r"states of AdamW would take 256\.00"):
            step(params, batch(4))
        assert optimizer.state_dict() == {"t": 0}
    step(params, batch(4))
    assert optimizer.t == 1


def test_states_whose_arena_does_not_fit_are_not_made():
    """The bound has space for the states only. None of them remain after the call is refused."""
    params, memory = layers(), cutback.Memory()
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW(), memory=memory)
    step.prepare(params, batch(1000))
    arena, states = step.planned.arena_bytes, 2 * sum(w.nbytes for w in params)
    memory.bound(states + arena // 2)
    with pytest.raises(cutback.MemoryLimitError, match="the states of AdamW and the arena of step"):
        step(params, batch(1000))
    assert step.optimizer.state_dict() == {"t": 0} and memory.held().total == 0
    memory.bound(states + 2 * arena)
    step(params, batch(1000))


def test_results_above_the_bound():
    x = np.ones(LEAST // 4, np.float32)
    step = cutback.grad(lambda x: (x * x).sum())
    with cutback.memory(5 * x.nbytes + 1000):
        kept = [step(x) for _ in range(5)]
        with pytest.raises(cutback.MemoryLimitError, match=r"a step would take 64\.00 KiB"):
            step(x)
        assert len({id(k) for k in kept}) == 5 and all((k == 2).all() for k in kept)
        for _ in range(10):
            del kept[2:]
            kept += [step(x) for _ in range(3)]
        assert cutback.memory().results == 5 * x.nbytes
    del kept


def test_what_is_kept_for_later_makes_room():
    """Kept results are freed first, then blocks of idle steps."""
    params, x = layers(), batch(400)
    one, two = cutback.compile(loss, argnums=0), cutback.compile(loss, argnums=0)
    for step in (one, two):
        expected = step(params, x)[0]
    each = one.planned.arena_bytes
    with cutback.memory(each + each // 2):
        for _ in range(3):
            assert one(params, x)[0] == expected and two(params, x)[0] == expected
        assert arenas(cutback.memory()) == each
    del step, one, two


def test_a_bound_that_is_exceeded_already():
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    step(layers(), batch(300))
    states = cutback.memory().states["AdamW"]
    with pytest.raises(cutback.MemoryLimitError, match="cannot be set") as caught:
        cutback.memory(states - 1)
    assert str(caught.value).endswith("Raise the bound or delete optimizers that are not needed")
    assert cutback.memory().limit is None
    with cutback.memory(states):
        assert cutback.memory().total == states
        with pytest.raises(cutback.MemoryLimitError), cutback.memory(states - 1):
            pass
        assert cutback.memory().limit == states
        assert cutback.memory(None) and cutback.memory().limit is None
        cutback.memory(10 * MIB)
        assert cutback.memory().limit == 10 * MIB
    assert cutback.memory().limit is None


def test_memories_have_bounds_of_their_own():
    params, memory = layers(), cutback.Memory("1MiB")
    step = cutback.grad(loss, memory=memory)
    with pytest.raises(cutback.MemoryLimitError, match="the arena of step `loss`"):
        step(params, batch(4000))
    assert cutback.memory().total == 0 and memory.limit == MIB
    with memory.bound(None):
        gradients = step(params, batch(4000))
        assert memory.held().total > MIB and cutback.memory().total == 0
        with memory.bound("1KiB"):
            assert memory.held().total == 0  # the block was freed
    assert memory.limit == MIB and memory.release() == 0
    step(params, batch(10))
    assert memory.release() > 0
    assert "of at most 1.00 MiB" in repr(memory) and str(memory.held()).startswith("0 B")
    del gradients


def test_a_bound_that_comes_back_frees_idle_blocks():
    memory = cutback.Memory("64KiB")
    step = cutback.value_and_grad(loss, memory=memory)
    with memory.bound(None):
        step(layers(), batch(4000))
        assert memory.held().total > 64 << 10
    assert memory.held().total == 0 and memory.limit == 64 << 10
    step(layers(), batch(10))


def test_errors_can_be_pickled_and_copied():
    step = cutback.grad(loss, memory=cutback.Memory("1KiB"))
    with pytest.raises(cutback.MemoryLimitError) as caught:
        step(layers(), batch(100))
    error = caught.value
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(same) is type(error) and str(same) == str(error)
        assert (same.limit, same.wanted, same.held) == (1024, error.wanted, error.held)


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
def test_memory_is_not_pickled(make):
    with pytest.raises(TypeError, match=r"<cutback.Memory, .* cannot be pickled or copied"):
        make(cutback.Memory("1KiB"))


def test_sizes_may_be_integers_of_numpy():
    assert cutback.Memory(np.int64(5000)).limit == 5000
    step = cutback.grad(loss, program_cache=np.int32(5000), budget=np.int64(1 << 20))
    step(layers(), batch(10))
    for wrong in (np.float32(5.0), np.bool_(True), np.ones(3, int)):
        with pytest.raises(TypeError, match="a size must be an int"):
            cutback.Memory(wrong)


def test_a_report():
    params, x = layers(), batch(200)
    step = cutback.value_and_grad(loss, memory=(memory := cutback.Memory()))
    assert str(memory.held()) == "0 B: nothing"
    gradients = step([w.astype(np.float64).repeat(4, 0).repeat(4, 1) for w in params],
                     x.astype(np.float64).repeat(4, 1))[1]  # fmt: skip
    held = memory.held()
    assert held.results == sum(g.nbytes for g in gradients)
    assert of_steps(held) == {"step `loss`": step.planned.arena_bytes}
    assert "arena of step `loss`" in held.describe() and "results 1.50 MiB" in held.describe()
    del gradients
    assert memory.held().results == 0 and memory.held().kept == held.results


@pytest.mark.very_slow
def test_two_hundred_shapes_for_three_epochs():
    """Shapes come in random order. Memory is flat from the second epoch on, and the third compiles
    nothing. The first shape had an exact plan; when it returns it follows the common decisions."""
    out = python(
        """
        import numpy as np, cutback
        rng = np.random.default_rng(0)
        params = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(3)]
        def loss(params, x):
            for w in params:
                x = cutback.tanh(x @ w)
            return (x * x).mean()
        step = cutback.compile(loss, optimizer=cutback.optim.AdamW(), budget=0.5)
        rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
        data = [rng.standard_normal((500 + 11 * i, 64)).astype(np.float32) for i in range(200)]
        found = []
        for epoch in range(3):
            for i in rng.permutation(200):
                step(params, data[i])
            found.append((rss(), step.n_compiled))
        print(found)
        (_, one), (second, two), (third, three) = found
        assert (one, two, three) == (200, 201, 201) and third < second + 2, found
        """,
        timeout=600,
    )
    assert out
