"""Plans steps of unrolled loops whose iterations share a value that a single minimum cut cannot
drop. Budgets find plans that recompute it several times. conftest.py compares each plan with the
referee."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cutback
from cutback.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from test_positions import FEW, check

BATCH, VOCABULARY, EMBEDDED = 16, 64, 32


def recurrent(turn, gates, steps, hidden=128):
    """Returns the problem of a recurrent net's training step. `turn` makes the next state from the
    projections of the input and the state."""
    rng = np.random.default_rng(0)

    def weights(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    params = {
        "embedding": weights(VOCABULARY, EMBEDDED),
        "input": weights(EMBEDDED, gates * hidden),
        "state": weights(hidden, gates * hidden),
        "out": weights(hidden, VOCABULARY),
    }
    tokens = rng.integers(0, VOCABULARY, (BATCH, steps))

    def loss(params, tokens, labels):
        x = F.embedding(tokens, params["embedding"]) @ params["input"]
        state = (cutback.zeros((tokens.shape[0], hidden), np.float32),) * 2
        outputs = []
        for t in range(tokens.shape[1]):
            state = turn(x[:, t], state[0] @ params["state"], state)
            outputs.append(state[0])
        return F.cross_entropy(cutback.stack(outputs, 1) @ params["out"], labels)

    step = cutback.compile(loss, budget=None, optimizer=cutback.optim.SGD())
    step.prepare(params, tokens, np.roll(tokens, -1, 1))
    return step.plan.problem


def plain_turn(x, h, _):
    return (cutback.tanh(x + h),)


def lstm_turn(x, h, state):
    i, f, g, o = cutback.split(x + h, 4, axis=-1)
    c = cutback.sigmoid(f) * state[1] + cutback.sigmoid(i) * cutback.tanh(g)
    return cutback.sigmoid(o) * cutback.tanh(c), c


def gru_turn(x, h, state):
    xr, xz, xn = cutback.split(x, 3, axis=-1)
    hr, hz, hn = cutback.split(h, 3, axis=-1)
    z = cutback.sigmoid(xz + hz)
    return ((1 - z) * cutback.tanh(xn + cutback.sigmoid(xr + hr) * hn) + z * state[0],)


TURNS = {"plain": (plain_turn, 1), "lstm": (lstm_turn, 4), "gru": (gru_turn, 3)}


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", ["live", pytest.param("arena", marks=pytest.mark.very_slow)])
def test_positions_of_a_short_loop(measure):
    check(recurrent(*TURNS["lstm"], 4), measure, FEW, device="cpu")


def test_late_ops_of_a_short_loop():
    """No plan is slower at a larger budget, although some budgets favour the forward's plan."""
    problem = recurrent(*TURNS["lstm"], 4)
    del problem["fingerprint"]
    problem.update(version=3, reruns="all")
    less, more = (
        cutback.plan(problem, budget=k, measure="live", device="cpu").numbers for k in (0, 0.25)
    )
    assert less["time_ps"] >= more["time_ps"]


def test_the_descent_passes_rungs_without_plans_that_cost_nothing():
    """Between two plans that cost nothing there are several targets without a plan of their own."""
    problem = recurrent(*TURNS["plain"], 4)
    del problem["fingerprint"]
    problem.update(version=3, reruns="all")
    least, other = (
        cutback.plan(problem, budget=budget, measure="live", device="cpu").numbers["live_bytes"]
        for budget in ("min", "0.65x")
    )
    assert least <= other


def test_small_reductions_of_a_long_lstm():
    """The bound ends these searches early, once no smaller target can have a faster plan. The plans
    are as fast as the bound allows; those that the search starts from take up to 0.5 % more."""
    problem = recurrent(*TURNS["lstm"], 16)
    whole = cutback.plan(problem, device="cpu").numbers["live_bytes"]
    for share in (0.98, 0.955, 0.94):
        budget = f"{int(share * whole)}B"
        plan = cutback.plan(problem, budget=budget, measure="live", device="cpu")
        numbers = plan.numbers
        assert numbers["time_ps"] - numbers["lower_bound_ps"] < 1e-3 * numbers["once_ps"]


@pytest.mark.very_slow
@pytest.mark.parametrize("measure", ["live", "arena", "total"])
@pytest.mark.parametrize("steps", [6, 16, 32])
@pytest.mark.parametrize("kind", sorted(TURNS))
def test_positions(kind, steps, measure):
    check(recurrent(*TURNS[kind], steps), measure, [k / 20 for k in range(21)], device="cpu")


@pytest.mark.very_slow
def test_shares_of_a_long_lstm():
    """A search that first reruns each value once needed 19, 19 and 12 % more time."""
    problem = recurrent(*TURNS["lstm"], 16)
    plans = [
        cutback.plan(problem, budget=f"{share}x", measure="live", device="cpu")
        for share in (0.76, 0.78, 0.82)
    ]
    extra = [plan.numbers["time_ps"] / plan.numbers["once_ps"] - 1 for plan in plans]
    assert extra[1] < 0.17
    assert extra[2] < 0.11
    for more, less in pairwise(extra):
        assert more >= less
