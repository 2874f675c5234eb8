"""Steps that take different paths through a model with graph breaks: from the third step on a path,
its steps stay within the budget, or a warning has said that they do not."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, strategies
from small_models import Routed
from torch import nn

import cutback
import cutback.torch as ct
from cutback.torch.compiler import paths
from cutback.torch.compiler.records import Shown

pytestmark = pytest.mark.torch

WIDTH, ROWS = 48, 192


def row(layers: int) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


class Optional(nn.Module):
    """A part behind graph breaks that some steps skip."""

    def __init__(self, first: int, second: int, third: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = row(first), row(second), row(third)

    def forward(self, x: Any, heavy: bool) -> Any:
        x = self.first(x)
        torch._dynamo.graph_break()
        x = self.second(x)
        torch._dynamo.graph_break()
        if heavy:
            x = self.third(x)
        return x.square().mean()


HEAVY = [True, True, False, False, True, True, False, True, False]
ROUTES = ["01", "23", "03", "0123", "03", "0123", "01", "0123", "03", "13", "13", "13"]
EAGER = 3 * 4 * ROWS * WIDTH
"""Bytes of what the eager code of :class:`Routed` makes."""


def limit_of(model: nn.Module, budget: Any, path: Any) -> int:
    """Returns the budget in bytes of a model whose steps all take one path."""
    if isinstance(budget, int):
        return budget
    torch._dynamo.reset()
    run = ct.compile(copy.deepcopy(model), budget=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            run(torch.randn(ROWS, WIDTH), path).backward()
    (plan,) = run.plans
    limit: int = plan.numbers["budget_bytes"]
    return limit


def checked(
    model: nn.Module, budget: Any, taken: list[Any], beside: int = 0, **options: Any
) -> tuple[Any, dict[Any, list[str]]]:
    """Runs steps on these paths, which must give the plain model's bits. From the third step on a
    path, the budget must be met, unless a warning has said otherwise.

    Args:
        beside: bytes that are not planned.

    Returns:
        The compiled model, and the texts of warnings by the path of their step.
    """
    limits = {path: limit_of(model, budget, path) for path in dict.fromkeys(taken)}
    torch._dynamo.reset()
    plain = copy.deepcopy(model)
    run = ct.compile(model, budget=budget, **options)
    said: dict[Any, list[str]] = {}
    for number, path in enumerate(taken):
        x = torch.randn(ROWS, WIDTH)
        plain.zero_grad()
        plain(x, path).backward()
        model.zero_grad()
        with warnings.catch_warnings(record=True) as now, ct.MemoryTracker() as memory:
            warnings.simplefilter("always")
            run(x, path).backward()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        for p, wanted in pairs:
            assert (p.grad is None) == (wanted.grad is None)
            assert p.grad is None or torch.equal(p.grad, wanted.grad)
        said.setdefault(path, []).extend(str(w.message) for w in now)
        if taken[:number].count(path) >= 2:
            over = memory.peak_bytes > limits[path] + beside
            told = said[path] or any("different paths" in t for row in said.values() for t in row)
            assert not over or told, (number, path, memory.peak_bytes, limits)
    return run, said


@pytest.mark.very_slow
@pytest.mark.parametrize(
    "budget", [330_000, *(pytest.param(b, marks=pytest.mark.very_slow) for b in ("0.8x", 0.5))]
)
def test_an_optional_part(budget: Any, tmp_path: Path) -> None:
    run, _ = checked(Optional(4, 1, 6), budget, HEAVY)
    assert len(run.plans) == 2
    for plan in run.plans:
        assert plan.numbers["live_bytes"] <= plan.numbers["budget_bytes"]
    run.save_plans(tmp_path / "plans.json")
    torch._dynamo.reset()
    again = ct.compile(Optional(4, 1, 6), plans=tmp_path / "plans.json")
    peaks = []
    for heavy in HEAVY[1:3]:
        x = torch.randn(ROWS, WIDTH)
        again.zero_grad()
        with ct.MemoryTracker() as memory:
            again(x, heavy).backward()
        peaks.append(memory.peak_bytes)
    live = {plan.numbers["live_bytes"] for plan in run.plans}
    assert {plan.numbers["live_bytes"] for plan in again.plans} == live == set(peaks)


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", [280_000, 400_000, 0.3])
@pytest.mark.parametrize("layers", [(3, 3, 3), (6, 1, 2), (1, 6, 4)])
def test_optional_parts_of_several_sizes(layers: tuple[int, int, int], budget: Any) -> None:
    checked(Optional(*layers), budget, HEAVY)


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", [450_000, "0.7x", 0.5])
def test_paths_of_known_graphs(budget: Any) -> None:
    """A step on a path whose graphs have all run before warns that it exceeds the budget; the next
    does not exceed it."""
    run, said = checked(Routed(WIDTH), budget, ROUTES, EAGER)
    if isinstance(budget, int):
        assert len(run.plans) > 2
        told = [text for text in said["0123"] if "different paths" in text]
        assert len(told) == 1 and "From the next step on" in told[0]


@pytest.mark.very_slow
def test_a_budget_that_no_schedules_meet_on_all_paths_is_said_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each path alone meets its budget, but not with the schedules of the others."""
    monkeypatch.setattr(paths, "best", lambda choices, excess, _: max(choices, key=excess))
    run, said = checked(Optional(4, 1, 6), 330_000, HEAVY[:5], on_infeasible="min")
    over = [plan for plan in run.plans if plan.numbers["budget_bytes"] is None]
    told = [text for texts in said.values() for text in texts if "different paths" in text]
    assert len(told) == len(over) > 0
    for plan, text in zip(over, told, strict=True):
        assert re.search(rf"\({plan.numbers['live_bytes']} bytes\), over", text)
    with pytest.raises(cutback.BudgetError):
        checked(Optional(4, 1, 6), 330_000, HEAVY[:5], on_infeasible="error")


# ---- the parts that need no model ---------------------------------------------------------------

KEYS = strategies.lists(strategies.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)


@given(KEYS, strategies.lists(KEYS, max_size=5, unique_by=frozenset))
def test_paths_that_share_graphs(first: list[str], others: list[list[str]]) -> None:
    """Finds connected paths in another way: by merging sets until they are disjoint."""
    found = paths.sharing(Shown(first, None), [Shown(keys, None) for keys in others])
    groups = [set(first), *map(set, others)]
    merged = True
    while merged:
        merged = False
        for k, one in enumerate(groups):
            for other in groups[k + 1 :]:
                if not merged and one & other:
                    one |= other
                    groups.remove(other)
                    merged = True
    (mine,) = (group for group in groups if set(first) <= group)
    assert found[0].keys == first
    wanted = [set(keys) for keys in others if set(keys) <= mine and set(keys) != set(first)]
    assert sorted(map(sorted, wanted)) == sorted(sorted(path.keys) for path in found[1:])


PLANS = strategies.dictionaries(strategies.sampled_from("abcd"), strategies.integers(0, 2))


@given(strategies.lists(PLANS, min_size=1, max_size=4))
def test_mixed_choices(plans: list[Any]) -> None:
    """In each choice, one plan is used unchanged, and every graph has a schedule of some plan."""
    found = paths.mixed(plans)
    assert all(any(plan.items() <= choice.items() for choice in found) for plan in plans)
    for choice in found:
        assert set(choice) == set().union(*plans)
        assert all(any(plan.get(k) == v for plan in plans) for k, v in choice.items())
