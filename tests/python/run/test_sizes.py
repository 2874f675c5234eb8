"""Shapes that differ only in sizes are planned at canonical sizes. There are few plans, they do not
depend on the order of the shapes, and the bits are the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutback as cb
import cutback.nn.functional as F
from cutback.frontend.sizes import rounded
from cutback.octaves import rounded_up

pytestmark = pytest.mark.plans_unchecked
WIDTH = 16


def params_of(layers=6):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(layers)]


def data(rows, width=WIDTH):
    return np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)


def loss(params, x):
    for w in params:
        x = F.gelu(x @ w)
    return (x * x).mean()


def attention(params, x, mask):
    """Computes attention whose batch and length vary."""
    for w in params:
        scores = F.softmax(x @ cb.swapaxes(x, 1, 2) + mask, -1)
        x = x + scores @ F.gelu(x @ w)
    return (x * x).mean()


def batch(n, length):
    rng = np.random.default_rng(n * 1000 + length)
    x = rng.standard_normal((n, length, WIDTH)).astype(np.float32) / 4
    return x, np.triu(np.full((length, length), -1e9, np.float32), 1)


def decisions(step):
    """Returns the latest plan's decision for each value, and its order of ops."""
    return step.plan.core.steps, step.planned.budget_bytes


def same_bits(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        assert np.array_equal(a, b)


def test_canonical_sizes_are_eight_an_octave():
    for size in range(17):
        assert rounded_up(size) == size
    found = {rounded_up(size) for size in range(1, 4097)}
    for octave in range(4, 12):
        assert sum(2**octave < n <= 2 ** (octave + 1) for n in found) == 8
    for size in range(1, 4097):
        assert size <= rounded_up(size) <= size * 1.125 and rounded_up(rounded_up(size)) == (
            rounded_up(size)
        )
    assert rounded([100, 101, 33], linked=False) == {33: 36, 100: 104, 101: 104}
    assert rounded([100, 101, 33], linked=True) == {33: 36, 100: 104, 101: 105}


@pytest.mark.parametrize("budget", [0.5, "0.6x", "min", 0, "smallest"])
def test_shapes_follow_few_plans_and_no_bit_changes(budget):
    step, eager, params = (
        cb.value_and_grad(loss, budget=budget),
        cb.value_and_grad(loss),
        (params_of()),
    )
    sizes = [*range(100, 130), 100]
    for rows in sizes:
        same_bits(step(params, data(rows)), eager(params, data(rows)))
        planned = step.planned
        assert planned.budget_bytes is None or planned.arena_bytes <= planned.budget_bytes
        assert step.executable.native.follows == (step.n_compiled > 1)
    # the first shape as it came, then canonical sizes
    assert step.n_planned == 1 + len({rounded_up(rows) for rows in sizes})
    assert step.n_compiled == len(sizes)  # 100 again, now that rows are known to vary


@pytest.mark.parametrize("groups", [None, pytest.param(True, marks=pytest.mark.very_slow), False])
def test_a_plan_follows_from_its_shape_and_not_from_the_order(groups):
    params = params_of(2)
    shapes = [(2, 20), (3, 21), (17, 20), (1, 9)]
    found = {}
    for order in range(2):
        step = cb.value_and_grad(attention, budget=0.4, groups=groups)
        random.Random(order).shuffle(shapes)
        for shape in shapes:
            step(params, *batch(*shape))
        for shape in shapes:
            step.prepare(params, *batch(*shape))
            assert found.setdefault(shape, decisions(step)) == decisions(step), (order, shape)
        compiled = step.n_compiled
        for shape in shapes:
            step(params, *batch(*shape))
        assert step.n_compiled == compiled


def check_bits(shapes):
    params = params_of(2)
    step, eager = cb.value_and_grad(attention, budget=0.3), cb.value_and_grad(attention)
    for shape in shapes * 2:
        same_bits(step(params, *batch(*shape)), eager(params, *batch(*shape)))
        assert step.planned.arena_bytes <= step.planned.budget_bytes


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=2, max_size=4)


@settings(max_examples=3, deadline=None)
@given(SHAPES)
def test_random_sizes_give_the_same_bits(shapes):
    check_bits(shapes)


@pytest.mark.very_slow
@settings(max_examples=100, deadline=None)
@given(SHAPES)
def test_many_random_sizes_give_the_same_bits(shapes):
    check_bits(shapes)


def test_one_shape_is_planned_exactly():
    step, params = cb.value_and_grad(loss, budget=0.5), params_of()
    for _ in range(3):
        step(params, data(101))
    assert step.n_planned == step.n_compiled == 1
    twin = cb.value_and_grad(loss, budget=0.5)
    twin(params, data(101))
    assert decisions(twin) == decisions(step)


def test_bytes_are_kept_at_the_actual_size():
    """The budget is exceeded by the canonical size but met by the actual one."""
    params = params_of()
    smallest = [
        cb.value_and_grad(loss, budget="smallest").prepare(params, data(n)).planned.arena_bytes
        for n in (130, 144)
    ]
    budget = sum(smallest) // 2
    step = cb.value_and_grad(loss, budget=budget)
    eager = cb.value_and_grad(loss)
    for rows in (100, 130, 101):
        same_bits(step(params, data(rows)), eager(params, data(rows)))
        assert step.planned.arena_bytes <= budget
        assert step.executable.native.follows == (rows == 101)
    with pytest.raises(cb.BudgetError):
        step(params, data(144))


def test_a_function_that_refuses_other_sizes():
    table = np.ones((50, WIDTH), np.float32)

    def only(params, x):
        if x.shape[0] > 50 or x.shape[0] % 2:
            raise RuntimeError("not these")
        return loss(params, x + table[: x.shape[0]])

    step, eager, params = cb.value_and_grad(only, budget=0.5), cb.value_and_grad(only), params_of(3)
    for rows in (20, 50, 34, 50, 34):
        same_bits(step(params, data(rows)), eager(params, data(rows)))
        assert step.executable.native.follows == (rows == 34), rows
    planned = step.n_planned
    step(params, data(50))
    assert step.n_planned == planned
    with pytest.raises(RuntimeError, match="not these"):
        step(params, data(52))


@pytest.mark.very_slow
def test_loops_over_a_size_are_other_graphs():
    def unrolled(params, x):
        h = x[0]
        for t in range(1, x.shape[0]):
            h = cb.tanh(h @ params[0] + x[t])
        return (h * h).mean()

    step, eager, params = (
        cb.value_and_grad(unrolled, budget=0.3),
        cb.value_and_grad(unrolled),
        (params_of(1)),
    )
    for length in (18, 19, 20, 18):
        x = np.random.default_rng(0).standard_normal((length, 8, WIDTH)).astype(np.float32)
        same_bits(step(params, x), eager(params, x))
        assert step.executable.native.follows == (length == 20)


def test_sizes_of_one_broadcast_and_constants_that_depend_on_sizes():
    def scaled(params, x, weights):
        positions = np.arange(x.shape[0], dtype=np.float32)[:, None] / x.shape[0]
        return loss(params, (x + positions) * weights)

    step, eager = cb.value_and_grad(scaled, budget=0.4), cb.value_and_grad(scaled)
    params = params_of(3)
    for rows, n in ((30, 1), (30, 30), (1, 1), (33, 1), (34, 34), (36, 1), (31, 31)):
        args = params, data(rows), data(n, 1)
        same_bits(step(*args), eager(*args))


def test_lengths_that_differ_by_one_stay_together():
    def shifted(params, x, target):
        return ((loss(params, x) - target[1:].mean()) ** 2) + (x - target[1:]).mean()

    step, eager = cb.value_and_grad(shifted, budget=0.5), cb.value_and_grad(shifted)
    params = params_of(3)
    for rows in (64, 65, 66, 70, 71, 72):
        args = params, data(rows), data(rows + 1)
        same_bits(step(*args), eager(*args))
        assert step.executable.native.follows == (rows > 64)
    assert step.n_planned == 2


def test_shapes_of_parameters_are_planned_for_themselves():
    step = cb.value_and_grad(lambda w, x: loss([w, w.T], x[:, : w.shape[0]]), budget=0.5)
    for n in (8, 9, 8):
        step(params_of(1)[0][:n, :n].copy(), data(20))
    assert step.n_planned == step.n_compiled == 2


def test_dropped_programs_follow_the_same_plans():
    params = params_of()
    step = cb.value_and_grad(loss, budget=0.5)
    step(params, data(100))
    few = cb.value_and_grad(loss, budget=0.5, program_cache=4 * step.program_bytes)
    sizes = [*range(97, 113)]
    wanted = [step(params, data(rows)) for rows in sizes]
    for _ in range(3):
        for rows, want in zip(sizes, wanted, strict=True):
            same_bits(few(params, data(rows)), want)
    assert few.n_compiled == 48  # every time
    assert few.n_planned == 3  # the first on its own, then at 104 and 112


def test_a_step_with_an_optimizer_trains_the_same():
    steps = [cb.compile(loss, optimizer=cb.optim.AdamW(), budget=b) for b in (None, 0.4)]
    params = [params_of(), params_of()]
    for rows in (20, 21, 30, 22, 20, 50):
        one, other = (step(p, data(rows)) for step, p in zip(steps, params, strict=True))
        assert one == other
    for a, b in zip(*params, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.very_slow
@pytest.mark.parametrize("n", [60, pytest.param(200, marks=pytest.mark.very_slow)])
def test_three_epochs_of_many_shapes(n):
    step, params = cb.compile(loss, optimizer=cb.optim.AdamW(), budget=0.5), params_of(4)
    sizes, counts = list(range(20, 20 + n)), []
    for epoch in range(3):
        random.Random(epoch).shuffle(sizes)
        for rows in sizes:
            step(params, data(rows))
        counts.append((step.n_compiled, step.n_planned, step.program_bytes))
    canonicals = len({rounded_up(rows) for rows in sizes})
    assert counts[0][1] <= 1 + canonicals
    assert counts[1] == counts[2]  # the third epoch compiles nothing, and nothing grows
    assert counts[2][0] <= n + 1
