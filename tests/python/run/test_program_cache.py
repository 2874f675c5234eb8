"""Compiled programs are kept within a number of bytes, and dropped ones are compiled again."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import cutback as cb
from cutback import _native
from cutback.frontend.program_cache import ProgramCache

pytestmark = pytest.mark.plans_unchecked
WIDTH = 16


def params_of(layers=6):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(layers)]


def data(rows):
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)


def loss(params, x):
    for w in params:
        x = cb.tanh(x @ w)
    return (x * x).mean()


class Program:
    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_the_least_recently_used_is_dropped_first():
    cache = ProgramCache(100)
    a, b, c, d = (Program(40) for _ in range(4))
    assert cache.add("a", a) == [] and cache.add("b", b) == []
    assert cache.get("a") is a and cache.get("x") is None
    assert cache.add("c", c) == [b]
    assert cache.nbytes == 80 and len(cache) == 2
    a.nbytes = 60  # a program may grow
    assert cache.add("d", d) == [a]
    assert cache.add("d", Program(500)) == [d, c] and len(cache) == 1
    cache.clear()
    assert len(cache) == 0 and cache.nbytes == 0


@pytest.mark.parametrize("backend", ["cpu", "debug"])
@pytest.mark.parametrize("budget", [None, 0.5])
def test_bytes_are_those_of_the_allocator(backend, budget):
    step, params = cb.value_and_grad(loss, budget=budget, backend=backend), params_of()
    step.prepare(params, data(3))
    gc.collect()
    before, held = _native.memory()["live_bytes"], step.program_bytes
    step.prepare(params, data(4))
    added = step.program_bytes - held
    core = _native.memory()["live_bytes"] - before
    assert 0 < core <= added < core + 64 * 1024  # the rest are Python objects
    if backend == "cpu":  # debug keeps a run's gradients
        step(params, data(4))
        gc.collect()
        core = _native.memory()["live_bytes"] - before - step.planned.arena_bytes
        assert core <= step.program_bytes - held < core + 64 * 1024


def test_bytes_of_python_objects_are_about_those_measured():
    table = np.zeros((300, 500), np.float32)

    def lookup(params, x):
        return loss(params, x) + (params[0][0, 0] * table).sum()

    for function, layers in ((loss, 2), (loss, 60), (lookup, 2)):
        step, params = cb.value_and_grad(function), params_of(layers)
        inputs = [data(rows) for rows in range(2, 8)]
        step.prepare(params, inputs[0])
        gc.collect()
        tracemalloc.start()
        for x in inputs[1:]:
            step.prepare(params, x)
        gc.collect()
        measured = tracemalloc.get_traced_memory()[0] / 5
        tracemalloc.stop()
        spec = step._compiled
        native = spec.run.native.nbytes + spec.traced.graph._native.nbytes()
        assert measured / 2 < spec.nbytes - native < measured * 2


def test_programs_are_dropped_by_bytes_and_compiled_again():
    params = params_of()
    inputs = [data(rows) for rows in range(1, 31)]
    keeps = cb.value_and_grad(loss)
    wanted = [keeps(params, x) for x in inputs]
    one = keeps.program_bytes // len(inputs)
    few = cb.value_and_grad(loss, program_cache=10 * one)
    for turn in range(2):
        for x, (value, gradients) in zip(inputs, wanted, strict=True):
            got, others = few(params, x)
            assert got == value, turn
            for a, b in zip(others, gradients, strict=True):
                assert np.array_equal(a, b)
            assert few.program_bytes <= 10 * one
    assert few.n_compiled == 60 and keeps.n_compiled == 30
    for x in inputs[-5:] + inputs[-5:]:  # still cached
        few(params, x)
    assert few.n_compiled == 60


def test_a_cache_of_no_bytes_keeps_the_latest():
    step, params = cb.value_and_grad(loss, program_cache=0), params_of()
    step(params, data(2))
    first = weakref.ref(step._compiled)
    step(params, data(2))
    assert step.n_compiled == 1
    step(params, data(3))
    gc.collect()
    assert first() is None and step.n_compiled == 2 and step.plan is not None
    step(params, data(2))
    assert step.n_compiled == 3


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "much", None])
def test_sizes_of_a_cache_that_are_none(wrong):
    with pytest.raises((ValueError, TypeError), match="program_cache"):
        cb.compile(loss, optimizer=cb.optim.AdamW(), program_cache=wrong)
