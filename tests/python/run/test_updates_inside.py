"""Tests updates inside the backward: the bits of a separate step, peaks, and all or nothing on
failure."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import cutback as cb
from cutback import tree
from cutback.nn import functional as F
from cutback.run.executable import Executable

pytestmark = pytest.mark.skipif(
    "CUTBACK_TEST_BACKEND" in os.environ, reason="about a CPU, which updates inside"
)
VOCABULARY, WIDTH, BATCH = 11, 8, 6


def load_reference(name):
    path = Path(__file__).parents[2] / "reference" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def parameters(seed=0):
    random = np.random.default_rng(seed)
    shapes = {"token": (VOCABULARY, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    params = {k: random.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    return params | {"bias": np.zeros(WIDTH, np.float32), "gain": np.ones(WIDTH, np.float32)}


def batch(seed=1):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, VOCABULARY, (2, BATCH))
    return tokens[0], tokens[1]


def loss(p, tokens, labels):
    """Reads the embedding twice, so its gradient is a sum that is complete only at the end."""
    x = F.embedding(tokens, p["token"])
    for _ in range(2):  # tied layers
        x = x + F.gelu(x @ p["up"]) @ p["down"] + p["bias"]
        x = F.layer_norm(x, p["gain"], p["bias"])
    return F.cross_entropy(x @ p["token"].T, labels)


def bits(params):
    return [np.asarray(leaf).tobytes() for leaf in tree.flatten(params)[0]]


def compiled(optimizer, updates, budget=None, **options):
    return cb.compile(loss, optimizer=optimizer, updates=updates, budget=budget, **options)


@cb.optim.foreach
def scaled(p, g, m, *, lr=0.01, beta=0.9):
    m = beta * m + g
    return p - lr * m / (1 + m.norm()), m


OPTIMIZERS = {
    "Adam": lambda: cb.optim.Adam(amsgrad=True),
    "AdamW": lambda: cb.optim.AdamW(groups=[{"names": "*bias*", "lr": 0.1}]),
    "SGD": lambda: cb.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda: cb.optim.SGD(lr=0.1),
    "RAdam": cb.optim.RAdam,
    "Adamax": cb.optim.Adamax,
    "Adagrad": cb.optim.Adagrad,
    "Adadelta": cb.optim.Adadelta,
    "RMSprop": lambda: cb.optim.RMSprop(centered=True, momentum=0.5),
    "NAdam": cb.optim.NAdam,
    "ASGD": cb.optim.ASGD,
    "Rprop": cb.optim.Rprop,
    "ScheduleFreeAdamW": cb.optim.ScheduleFreeAdamW,
    "ADOPT": cb.optim.ADOPT,
    "AdEMAMix": cb.optim.AdEMAMix,
    "LAMB": cb.optim.LAMB,
    "Lion": cb.optim.Lion,
    "a formula": scaled,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_are_those_of_the_separate_step(name):
    runs = []
    for updates in ("after", "inside"):
        params, optimizer = parameters(), OPTIMIZERS[name]()
        searches = updates == "inside" and name == "AdamW"
        step = compiled(optimizer, updates, budget="smallest" if searches else None)
        losses = [step(params, *batch(i % 3)).tobytes() for i in range(20)]
        assert step.updates_inside is (updates == "inside")
        assert step.updates_reason == ""
        state = {k: np.asarray(v).tobytes() for k, v in step.state_dict(params).items()}
        runs.append((losses, bits(params), state))
    assert runs[0] == runs[1]


BUDGETS = [None, 1.0, 0.5, 0.0, "min", "smallest"]


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("groups", [None, True])
def test_measured_peaks_are_planned_under_any_budget(budget, groups):
    check_peaks(budget, groups)


@pytest.mark.parametrize("budget", [None, "smallest"])
def test_measured_peaks_are_planned(budget):
    check_peaks(budget, None)


def check_peaks(budget, groups):
    evaluate = load_reference("evaluate")
    after, inside = (
        compiled(cb.optim.AdamW(), updates, budget, groups=groups)
        for updates in ("after", "inside")
    )
    params = parameters()
    after(params, *batch())
    wanted = bits(params)
    params = parameters()
    inside(params, *batch())
    assert bits(params) == wanted
    assert inside.stats.peak_bytes == inside.planned.arena_bytes
    problem = inside.plan.problem
    assert sum("updates" in s for s in problem["storages"]) == len(params)
    evaluate.check_plan(problem, inside.plan.document)
    if budget == "smallest":
        assert inside.planned.arena_bytes < after.planned.arena_bytes


@pytest.mark.parametrize("bad", [0, 1])
def test_a_step_that_fails_changes_nothing(bad):
    """An index out of range is found before the first update, whichever op reads it."""
    params, optimizer = parameters(), cb.optim.AdamW()
    step = compiled(optimizer, "inside")
    step(params, *batch())
    before = bits(params), step.state_dict(params)
    arrays = [array.copy() for array in batch()]
    arrays[bad][-1] = VOCABULARY
    with pytest.raises(ValueError, match=r"out of range|is not one of"):
        step(params, *arrays)
    after = bits(params), step.state_dict(params)
    assert before[0] == after[0]
    assert all(np.array_equal(after[1][k], v) for k, v in before[1].items())


def random_loss(seed):
    """Returns a small program: parameters read by several ops in any order, and results besides the
    loss."""
    random = np.random.default_rng(seed)
    choices = [(int(random.integers(0, 6)), int(random.integers(0, 3))) for _ in range(6)]

    def program(p, tokens, labels):
        x = F.embedding(tokens, p["token"])
        beside = []
        for kind, which in choices:
            w = p[("a", "b", "token")[which]]
            if kind == 0:
                x = F.gelu(x @ w.T @ w)
            elif kind == 1:
                x = x + (x * p["gain"]) @ (w.T @ w)
            elif kind == 2:
                x = F.layer_norm(x, p["gain"], p["bias"])
            elif kind == 3:
                x = cb.tanh(x) * p["gain"] + w.mean(0)
            elif kind == 4:
                x = x + F.embedding(tokens, p["token"])
            else:
                beside.append(w * 2)
        return F.cross_entropy(x @ p["token"].T, labels), beside

    return program


def check_program(seed, budget):
    evaluate = load_reference("evaluate")
    random = np.random.default_rng(seed)
    runs = []
    made = parameters(seed) | {
        name: random.standard_normal((5, WIDTH)).astype(np.float32) for name in "ab"
    }
    for updates in ("after", "inside"):
        params = {name: array.copy() for name, array in made.items()}
        step = cb.compile(
            random_loss(seed), optimizer=cb.optim.AdamW(), has_aux=True, updates=updates,
            budget=budget,
        )  # fmt: skip
        found = [bits(step(params, *batch(i))) for i in range(2)]
        runs.append((found, bits(params)))
    assert step.updates_inside
    assert runs[0] == runs[1]
    assert step.stats.peak_bytes == step.planned.arena_bytes
    evaluate.check_plan(step.plan.problem, step.plan.document)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed):
    check_program(seed, None)


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", range(100))
def test_many_random_programs(seed):
    check_program(seed, [None, 1.0, 0.7, 0.3, 0.0][seed % 5])


def test_extras_use_the_separate_step():
    runs = []
    for updates in ("after", "inside"):
        params = parameters()
        step = compiled(cb.optim.AdamW(), updates)
        for i in range(4):
            step(params, *batch(i), extras={"max_norm": 0.1} if i % 2 else None)
        runs.append((bits(params), step.outcome.skipped))
    assert runs[0] == runs[1]


def test_results_show_parameters_before_the_update():
    def both(p, x):
        return ((x @ p["w"]) ** 2).mean(), {"w": p["w"], "more": p["w"] + 1}

    found = []
    for updates in ("after", "inside"):
        params = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
        step = cb.compile(both, optimizer=cb.optim.SGD(lr=0.1), has_aux=True, updates=updates)
        _, aux = step(params, np.ones((2, 4), np.float32))
        found.append((bits(aux), bits(params)))
    assert found[0] == found[1]
    assert found[0][0][1] == np.arange(12, dtype=np.float32).tobytes()


def test_an_argument_that_is_also_a_parameter_is_refused():
    params = {"up": parameters()["up"]}
    step = cb.compile(
        lambda p, x: ((x * p["up"]) ** 2).mean(), optimizer=cb.optim.SGD(lr=0.1), updates="inside"
    )
    before = bits(params)
    with pytest.raises(ValueError, match="overlap"):
        step(params, params["up"])
    assert bits(params) == before


def test_indices_that_the_step_computes_keep_the_separate_step():
    def picks(p, x):
        return (F.embedding((0 * (x @ p["up"]).sum(-1)).astype(np.int32), p["token"]) ** 2).mean()

    names = ("token", "up")
    params = {name: parameters()[name][:, :WIDTH].copy() for name in names}
    step = cb.compile(picks, optimizer=cb.optim.SGD(lr=0.1), updates="inside")
    step(params, np.ones((2, WIDTH), np.float32))
    assert not step.updates_inside
    assert "embedding" in step.updates_reason


def test_other_backends_update_after_their_runs():
    runs = []
    for backend in ("cpu", "debug"):
        params = parameters()
        step = compiled(cb.optim.AdamW(), "inside", backend=backend)
        step(params, *batch())
        assert step.updates_inside is (backend == "cpu")
        runs.append(bits(params))
    assert runs[0] == runs[1]


def test_options_are_checked():
    with pytest.raises(ValueError, match="updates"):
        cb.compile(loss, optimizer=cb.optim.SGD(lr=0.1), updates="before")
    with pytest.raises(ValueError, match="needs an optimizer"):
        cb.compile(loss, updates="inside")


def test_other_sizes():
    runs = []
    for updates in ("after", "inside"):
        params = parameters()
        step = compiled(cb.optim.AdamW(), updates, budget="0.8x")
        random = np.random.default_rng(5)
        for n in (6, 12, 6):
            step(params, *random.integers(0, VOCABULARY, (2, n)))
            assert step.stats.peak_bytes <= step.planned.arena_bytes
        runs.append((bits(params), step.n_planned))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("groups", [None, True])
def test_parameters_that_nothing_reads_and_empty_ones(groups):
    def two(p, q, x):
        return ((cb.tanh(x @ p["w"]) @ q["v"]) ** 2).mean()

    runs = []
    for updates in ("after", "inside"):
        random = np.random.default_rng(0)
        p = {"w": random.standard_normal((16, 32)).astype(np.float32), "unread": np.ones((64, 64))}
        q = {"v": random.standard_normal((32, 8)).astype(np.float32), "empty": np.zeros((0, 3))}
        optimizer = cb.optim.AdamW(weight_decay=0.1)
        step = cb.compile(two, optimizer=optimizer, argnums=(0, 1), updates=updates, groups=groups)
        for _ in range(3):
            step(p, q, np.ones((4, 16), np.float32))
        runs.append(bits((p, q)))
    assert step.updates_inside
    assert runs[0] == runs[1]


def test_indices_that_no_input_changes():
    """Labels made of constants are checked in the forward, so that the backward cannot fail."""

    def contrastive(w, x):
        z = F.normalize(x @ w, dim=-1)
        half = z.shape[0] // 2
        labels = cb.concatenate([cb.arange(half) + half, cb.arange(half)])
        return F.cross_entropy(z @ z.T - 1e9 * cb.eye(2 * half, dtype="f32"), labels)

    x = np.random.default_rng(0).standard_normal((8, WIDTH)).astype(np.float32)
    found = []
    for updates in ("inside", "after"):
        w = np.eye(WIDTH, dtype=np.float32)
        step = cb.compile(contrastive, optimizer=cb.optim.Adam(lr=0.1), updates=updates)
        found.append(([float(step(w, x)) for _ in range(3)], w.tobytes()))
        assert step.updates_inside == (updates == "inside")
    assert found[0] == found[1]


def recurrence():
    """Returns a step that stacks the states of a recurrence; its gradients take 48 KiB."""

    def states(p, x):
        s, kept = x[0], []
        for t in range(12):
            s = cb.tanh(x[t] @ p["w"] + s @ p["u"])
            kept.append(s)
        return (cb.concatenate(kept) @ p["o"]).mean()

    params = {k: np.full((64, 64), 0.01, np.float32) for k in "wuo"}
    step = cb.compile(states, optimizer=cb.optim.SGD(0.1))
    step.prepare(params, np.ones((12, 2, 64), np.float32))
    return step.traced.graph, step.traced.wrt_positions


def test_a_hopeless_budget_is_refused_without_the_smallest_plan():
    """Gradients that stay exceed the budget, so the smallest plan need not be found first."""
    graph, wrt = recurrence()
    with pytest.raises(cb.BudgetError) as caught:
        Executable(graph, wrt, budget=(48 << 10) - 64, keep_gradients=True, brief=True)
    assert caught.value.smallest_bytes is None
    assert caught.value.budget_bytes == (48 << 10) - 64


@pytest.mark.very_slow
@pytest.mark.parametrize("groups", [None, True, False])
def test_only_hopeless_budgets_are_refused_so(groups):
    graph, wrt = recurrence()
    options = {"keep_gradients": True, "groups": groups, "measure": "live"}
    with pytest.raises(cb.BudgetError) as whole:
        Executable(graph, wrt, budget=1024, **options)
    smallest = whole.value.smallest_bytes
    for budget in range(48 << 10, smallest, 2048):
        with pytest.raises(cb.BudgetError):
            Executable(graph, wrt, budget=budget, brief=True, time_limit=1e-3, **options)
    run = Executable(graph, wrt, budget=smallest, brief=True, **options)
    assert run.planned.live_bytes <= smallest
