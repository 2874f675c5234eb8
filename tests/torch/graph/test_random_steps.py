"""Generated programs whose plans delay ops, repeat them and reuse memory run with the planned bytes
and the bits of eager PyTorch."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from evaluate import evaluate
from functorch.compile import aot_function
from late import Late

import cutback
import cutback.torch as ct
from cutback.torch.compiler.preparing import Preparation, prepare
from cutback.torch.graph import codegen
from cutback.torch.graph.emitter import emit
from cutback.torch.graph.moving import schedule_of

N = 12
UNARY = ("sin", "tanh", "sigmoid", "exp", "relu", "neg", "square", "erf")
BINARY = ("add", "mul", "sub", "maximum")


def generate(rng: random.Random, length: int) -> str:
    """Returns the text of a random program of ``x`` and ``w`` [12, 12] and ``b`` [12]. Values are
    [12, 12], and some are views.

    Args:
        length: number of statements.
    """
    names, lines = ["x", "w"], []

    def pick() -> str:
        return names[-1] if rng.random() < 0.6 else rng.choice(names)

    for k in range(length):
        a, b = pick(), pick()
        texts = (
            f"torch.{rng.choice(UNARY)}({a})",
            f"torch.{rng.choice(UNARY)}({a})",
            f"torch.{rng.choice(BINARY)}({a}, {b})",
            f"torch.{rng.choice(BINARY)}({a}, {b})",
            f"{a} * {rng.choice((0.5, 2, -1.5))} + b",
            f"F.gelu({a})",
            f"F.silu({a})",
            f"torch.where({a} > 0, {a}, {b})",
            f"{a} @ {b} / 12",
            f"{a}.t()",
            f"{a}.reshape(6, 24).view(12, 12)",
            f"torch.softmax({a}, -1)",
            f"F.layer_norm({a}, (12,), b, b)",
            f"torch.cat([{a}[:5], {b}[5:]])",
            f"({a} - {a}.mean(0)).clamp(-2, 2)",
        )
        lines.append(f"v{k} = {rng.choice(texts)}")
        names.append(f"v{k}")
    kept = rng.choice(names[2:])
    total = f"({kept} + x * w + b).sigmoid()"
    lines.append(f"return torch.tanh({names[-1]}).sum() + {total}.sum(), {kept}.sin()")
    return "def program(x, w, b):\n    " + "\n    ".join(lines) + "\n"


class Counts(NamedTuple):
    """Counts of decisions in a plan."""

    taken: int  # outputs that took over memory
    late: int  # runs of the backward that are out of order


def _steps(plan: Any, rng: random.Random) -> list[Any]:
    """Returns the steps of a plan with more delays and reruns in the backward."""
    starts, late = plan.document["backward_starts"], Late(plan.problem)
    steps = late.delays(plan.document["steps"], starts, rng, rng.choice((0.0, 0.3, 1.0)))
    return late.reruns(steps, starts, rng, rng.choice((0.0, 0.2)))


def check(seed: int) -> Counts:
    """Runs a random program under a random plan, twice backward, and compares bytes with the plan
    and bits with eager PyTorch."""
    rng, planned = random.Random(seed), []

    def partition(gm: Any, inputs: Any, *, num_fwd_outputs: int, **_: Any) -> Any:
        graph = prepare(gm, num_fwd_outputs, (), Preparation(takes_over=True))
        plan = cutback.plan(graph.problem, budget=rng.choice((None, 0.7, 0.3, 0.0)), device="cpu")
        document = {**plan.document, "steps": _steps(plan, rng), "budget_bytes": None}
        core = graph.problem.check().read_plan(json.dumps(document))
        planned.append(evaluate(plan.problem, document["steps"], core.backward_starts, "cpu"))
        assert core.numbers["live_bytes"] == planned[0].peak_bytes
        order = [op for op in document["steps"] if "backward" in graph.problem.ops[op].flags]
        planned.append(sum(a > b for a, b in pairwise(order)))
        return emit(gm, graph, schedule_of(core))

    text = generate(rng, rng.randrange(8, 20))
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(text, scope)
    compiled = aot_function(
        scope["program"],
        fw_compiler=lambda gm, _: codegen.compile_boxed(gm, "forward"),
        bw_compiler=lambda gm, _: codegen.compile_boxed(gm, "backward"),
        partition_fn=partition,
    )
    torch.manual_seed(seed)
    given = [torch.randn(N, N), torch.randn(N, N), torch.randn(N)]

    def run(function: Any, again: bool) -> tuple[list[Any], int]:
        leaves = [t.clone().requires_grad_() for t in given]
        with ct.MemoryTracker() as memory:
            loss, other = function(*leaves)
            loss.backward(retain_graph=again)
            peak = memory.peak_bytes
        found = [loss.detach(), other.detach(), *(t.grad.clone() for t in leaves)]
        if again:
            for t in leaves:
                t.grad = None
            loss.backward()
            found += [t.grad for t in leaves]
        return found, peak

    expected, _ = run(scope["program"], True)
    found, _ = run(compiled, True)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), (text, (a - b).abs().max())
    measured = run(compiled, False)[1]
    assert measured == planned[0].peak_bytes, (text, measured, planned[0].peak_bytes)
    return Counts(len(planned[0].over), planned[1])


@pytest.mark.very_slow
def test_nothing_runs_again_before_tangents() -> None:
    """Tangents are in memory when the backward begins, whatever the schedule does there."""
    rng = random.Random(29)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(generate(rng, rng.randrange(8, 20)), scope)
    shapes = ((N, N), (N, N), (N,))
    step = ct.trace(scope["program"], *(torch.randn(s, requires_grad=True) for s in shapes))
    plan = step.plan("smallest")
    names = [step.problem.ops[k].name for k in plan.document["steps"]]
    start = plan.document["backward_starts"]
    assert names[start : start + 2] == ["tangents_1", "tangents_2"]


@pytest.mark.parametrize(
    ("first", "end"),
    [(0, 5), *[pytest.param(k, k + 45, marks=pytest.mark.very_slow) for k in range(10, 1000, 45)]],
)
def test_steps_measure_what_is_planned(first: int, end: int) -> None:
    counts = [check(seed) for seed in range(first, end)]
    assert sum(c.taken for c in counts) > 20 and sum(c.late for c in counts) > 4
