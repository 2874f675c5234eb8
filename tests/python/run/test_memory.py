"""Whichever allocation fails, the error is MemoryError and nothing has changed."""

from __future__ import annotations

import gc
import os
import tracemalloc

import numpy as np
import pytest

import cutback
import cutback.nn.functional as F
from cutback import _native
from cutback.run.arrays import RawArray
from cutback.run.executable import Executable

pytestmark = pytest.mark.plans_unchecked


def loss(params, x, y):
    h = cutback.checkpoint(lambda h: F.gelu(F.layer_norm(h @ params["w"])))(x)
    h = F.max_pool2d(h.reshape(1, 1, 4, 4), 2).reshape(4)
    return ((h - y) ** 2).mean()


PARAMS = {"w": np.arange(16.0).reshape(4, 4) / 9}
X, Y = np.arange(16.0).reshape(4, 4), np.ones(4)


def live_bytes():
    gc.collect()
    return _native.memory()["live_bytes"]


def sweep(work, dense=100):
    """Runs ``work`` with the n-th allocation failing, for n = 1, 2, ... (beyond ``dense``, in
    growing steps), until a run makes fewer than n allocations. Returns how many runs failed. If an
    allocation fails, ``work`` must raise MemoryError; it cannot have a valid result."""
    work()
    before = live_bytes()
    n = 0
    while n < 100_000:
        n += 1 + (
            6 * n // dense if n > dense else 0
        )  # each try repeats everything before its failure
        _native.fail_alloc(n)
        try:
            work()
        except MemoryError:
            raised = True
        else:
            raised = False
        failed = _native.fail_alloc(0) == 0
        assert raised == failed, f"allocation {n} failed and nobody was told"
        work()  # and everything works again
        assert live_bytes() == before, f"allocation {n} failed and something was kept"
        if not failed:
            return n - 1
    raise AssertionError("allocations without end")


# how many of the first allocations fail one by one: few by default, many in the slow tests
DENSE = [15, pytest.param(300, marks=pytest.mark.very_slow)]


def test_trace():
    assert sweep(lambda: cutback.trace(loss, PARAMS, X, Y).text()) > 3


@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("budget", [None, "min"])
def test_plan_and_lower(budget, dense):
    traced = cutback.trace(loss, PARAMS, X, Y)

    def work():
        step = Executable(traced.graph, [0], budget=budget, keep_gradients=True)
        step.text("plan")

    assert sweep(work, dense) > 50


@pytest.mark.parametrize("dense", DENSE)
def test_plan_of_a_problem(dense):
    plan = cutback.plan(loss, PARAMS, X, Y, budget="min")
    assert sweep(lambda: cutback.plan(plan.problem, budget="min").explain(), dense) > 50


@pytest.mark.skipif("CUTBACK_TEST_BACKEND" in os.environ, reason="the words are the cpu's")
def test_an_arena_that_cannot_be_had_names_a_way_out():
    """With a budget, the error suggests a lower budget."""
    graph = cutback.trace(loss, PARAMS, X, Y).graph
    arrays = [*PARAMS.values(), X, Y]
    for budget in (None, "0.9x"):
        said = [""]
        for n in range(1, 100):
            executable = Executable(graph, [0], budget=budget)
            _native.fail_alloc(n)
            try:
                executable(*arrays)
            except MemoryError as error:
                said.append(str(error))
            if _native.fail_alloc(0) != 0 or "arena" in said[-1]:
                break
        assert "a budget, or a lower one, makes it smaller" in said[-1]


def chain_problem(n):
    """Returns a chain of n ops and its backward, each gradient read twice. Up to n = 18 a budget on
    live bytes is solved exactly; beyond that it is searched."""
    flags = [["placeholder"], *[["fusible"], ["compute"]] * (n // 2)]
    ops = [
        {"name": f"f{i}", "in": [i - 1] * (i > 0), "flags": row, "bytes": 1000 * i, "flops": 1e6}
        for i, row in enumerate(flags)
    ]
    reads = [[n, n - 1], *([n + i, n - i] for i in range(1, n))]
    ops += [{"name": "g", "in": row, "flags": ["backward"], "bytes": 10} for row in reads]
    for s, op in enumerate(ops):
        op["out"] = [{"storage": s}]
    return {
        "format": "cutback.problem",
        "version": 1,
        "backward_starts": n + 1,
        "forward_outputs": [n],
        "backward_outputs": [2 * n],
        "storages": [{"bytes": 0, "flags": ["static"]}]
        + [{"bytes": 64 * (1 + 7 * s % 11)} for s in range(1, 2 * n + 1)],
        "ops": ops,
    }


@pytest.fixture
def threads():
    before = cutback.get_num_threads()
    yield cutback.set_num_threads
    cutback.set_num_threads(before)


def sweep_budgets(n, dense):
    problem = chain_problem(n)
    for measure in ("live", "arena", "saved", "total"):
        for budget in ("0.8x", "min"):
            failed = sweep(
                lambda m=measure, b=budget: cutback.plan(problem, budget=b, measure=m), dense
            )
            assert failed > 20


def test_budgets(threads):
    """Out of memory never changes the plan, and is never reported as 'nothing fits'."""
    threads(2)
    sweep_budgets(4, dense=3)


@pytest.mark.very_slow
@pytest.mark.parametrize("n_thread", [1, 2, 4])
@pytest.mark.parametrize("n", [4, 6, 20])
def test_budgets_one_by_one(threads, n, n_thread):
    threads(n_thread)
    sweep_budgets(n, dense=100_000)


@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("backend", ["cpu", "debug", "ref"])
def test_a_step(backend, dense):
    params = {"w": PARAMS["w"].copy()}
    optimizer = cutback.optim.AdamW(lr=0.1)
    step = cutback.compile(loss, optimizer=optimizer, backend=backend)
    step(params, X, Y)

    def work():
        before, t = params["w"].copy(), optimizer.t
        try:
            step(params, X, Y)
        except MemoryError:
            np.testing.assert_array_equal(params["w"], before)
            assert optimizer.t == t
            raise

    failures = sweep(work, dense)
    assert failures > 0 if backend == "debug" else failures == 0


@pytest.mark.parametrize("dense", DENSE)
def test_text_and_json(dense):
    graph = cutback.trace(loss, PARAMS, X, Y).graph
    text, json = graph.text(), graph.to_json()
    assert sweep(lambda: cutback.Graph.from_text(text).text(), dense) > 3
    assert sweep(lambda: cutback.Graph.from_json(json).to_json(), dense) > 3


def test_threads():
    n = cutback.get_num_threads()
    sweep(lambda: cutback.set_num_threads(n))
    assert cutback.get_num_threads() == n


def test_nothing_is_kept_after_use():
    before = live_bytes()
    step = cutback.compile(loss, optimizer=cutback.optim.AdamW())
    step({"w": PARAMS["w"].copy()}, X, Y)
    assert live_bytes() > before
    del step
    assert live_bytes() == before


def mistakes():
    """Calls the extension with valid and invalid arguments; each call must free what it
    allocated."""
    graph = cutback.Graph()
    x = graph.input("x", (2, 3), "f64")
    array = np.ones((2, 3))
    for bad in (
        lambda: graph.op("sum", x, axes=(0, "a")),
        lambda: graph.op("sum", x, wrong=1),
        lambda: graph.op("nothing", x),
        lambda: graph._native.op("add", (0, "x"), None, None, 0, None),
        lambda: graph._native.compile((0, -1)),
        lambda: graph._native.compile((), budget=(9, 0, 0.0, 0)),
        lambda: graph._native.compile((), backend="abacus"),
        lambda: graph.compile()(np.ones((3, 2))),
        lambda: graph.compile()(array.T),
        lambda: _native.Problem.read("{").plan().to_json(),
        lambda: _native.from_dlpack(3, "x"),
    ):
        with pytest.raises((ValueError, TypeError, AttributeError, OverflowError)):
            bad()
    _native.from_dlpack(array, "x")
    RawArray(np.zeros(3, np.uint16)).__dlpack__()
    cutback.value_and_grad(lambda w: (w * w).sum(), optimizer=None)(array)
    _native.op_table(), _native.machine(), _native.memory()


def test_the_extension_gives_everything_back():
    for _ in range(3):
        mistakes()
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            mistakes()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - start < 20_000  # 50 bytes per call
    finally:
        tracemalloc.stop()
