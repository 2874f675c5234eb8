"""Whole models: the bits do not depend on the budget, and the peaks are those planned."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import CASES, make
from torch import nn

import cutback.torch as ct
from cutback import BudgetError

SLOW = ("encoder", "gpt", "resnet")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.very_slow) if n in SLOW else n for n in CASES]
)
def test_gradients_and_peaks(
    name: str, ran: Counter[str], train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    model, inputs = make(name)
    # new gradients under the same names: OptimizedModule adds no prefix
    reference = train_step(copy.deepcopy(model), *inputs)
    for budget in (None, "0.7x", "min"):
        own = copy.deepcopy(model)
        compiled = ct.compile(own, budget=budget)
        first = train_step(compiled, *inputs)
        ran.clear()
        again = train_step(compiled, *inputs)
        assert ran == {"forward": 1, "backward": 1}
        (plan,) = compiled.plans
        assert again.peak_bytes == plan.numbers["live_bytes"] == first.peak_bytes
        assert same_bits(first.loss, reference.loss)
        for key, gradient in reference.gradients.items():
            assert same_bits(first.gradients[f"_orig_mod.{key}"], gradient), (budget, key)
        for key, buffer in reference.buffers.items():
            assert same_bits(first.buffers[f"_orig_mod.{key}"], buffer), (budget, key)
        if budget is None:
            assert plan.numbers["recomputed"] == 0
        else:
            assert plan.numbers["recomputed"] > 0
            limit = plan.numbers["budget_bytes"]
            assert limit is None or again.peak_bytes <= limit


class Residual(nn.Module):
    """A net with batch norms, whose new statistics are results; with ``returns``, it also returns a
    hidden value."""

    def __init__(self, returns: bool, n: int = 6, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width if i else 3, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU()
            )
            for i in range(n)
        )
        self.head = nn.Linear(width, 5)
        self.returns = returns

    def forward(self, x: torch.Tensor) -> Any:
        hidden = []
        for i, layer in enumerate(self.layers):
            x = x + layer(x) if i else layer(x)
            hidden.append(x)
        loss = self.head(x.mean((2, 3))).square().mean()
        return (loss, hidden[2]) if self.returns else loss


def runs_again(plan: Any, kind: str) -> bool:
    """True if an op of this kind runs more than once."""
    runs = Counter(plan.document["steps"])
    return any(n > 1 and kind in plan.problem["ops"][op]["kind"] for op, n in runs.items())


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", ["min", "smallest"])
def test_batch_norms_run_again(
    budget: Any, train_step: Callable[..., Any], same_bits: Callable[..., bool]
) -> None:
    """The statistics of batch norms are updated only once; copies made by reruns are freed at once,
    so that planned and measured bytes agree."""
    torch.manual_seed(0)
    model, x = Residual(returns=False), torch.randn(8, 3, 16, 16)
    reference = train_step(copy.deepcopy(model), x)
    compiled = ct.compile(copy.deepcopy(model), budget=budget)
    found = train_step(compiled, x)
    (plan,) = compiled.plans
    assert runs_again(plan, "batch_norm")
    assert found.peak_bytes == plan.numbers["live_bytes"]
    assert same_bits(found.loss, reference.loss)
    assert same_bits(list(found.gradients.values()), list(reference.gradients.values()))
    assert same_bits(list(found.buffers.values()), list(reference.buffers.values()))
    assert all(n == 1 for key, n in found.buffers.items() if key.endswith("num_batches_tracked"))


def test_a_result_is_of_the_first_run(same_bits: Callable[..., bool]) -> None:
    """The result that the forward returned, and that others hold, is not the value that the
    backward recomputes."""
    torch.manual_seed(0)
    model, x = Residual(returns=True), torch.randn(8, 3, 16, 16)

    def step(model: nn.Module) -> list[torch.Tensor]:
        loss, hidden = model(x)
        (loss + hidden.square().mean()).backward()
        return [loss.detach(), hidden.detach(), *(p.grad for p in model.parameters())]

    reference = step(copy.deepcopy(model))
    compiled = ct.compile(copy.deepcopy(model), budget="min")
    assert same_bits(step(compiled), reference)
    assert runs_again(compiled.plans[0], "batch_norm")


def test_random_numbers_follow_the_seed(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    model, inputs = make("gpt")
    compiled = ct.compile(model, budget="0.6x")
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append(compiled(*inputs).detach())
    torch.manual_seed(1)
    assert same_bits(losses[0], losses[2]) and same_bits(losses[0], model(*inputs).detach())
    assert not same_bits(losses[0], losses[1])
    assert ran["forward"] == 3


@pytest.mark.very_slow
def test_trained_parameters_are_the_same(ran: Counter[str], same_bits: Callable[..., bool]) -> None:
    def train(budget: Any) -> dict[str, Any]:
        model, inputs = make("gpt")
        step = model if budget == "eager" else ct.compile(model, budget=budget)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(3)
        for _ in range(4):
            optimizer.zero_grad()
            step(*inputs).backward()
            optimizer.step()
        return dict(model.state_dict())

    eager = train("eager")
    assert same_bits(train(None), eager)
    assert same_bits(train(0.5), eager)
    assert ran == {"forward": 8, "backward": 8}


@pytest.mark.very_slow
def test_an_impossible_budget_says_what_is_possible() -> None:
    model, inputs = make("gpt")
    with pytest.raises(BudgetError) as told:
        ct.compile(model, budget=1000)(*inputs)
    assert told.value.smallest_bytes > told.value.budget_bytes == 1000
    assert told.value.op and told.value.location and told.value.op in str(told.value)


def test_results_that_keep_more_than_they_show(
    ran: Counter[str], train_step: Callable[..., Any]
) -> None:
    """PyTorch's fake tensors show less memory than kernels allocate: reduced losses keep the array
    that they reduced, and norms of half precision with weights in single precision store their
    statistics in single precision."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(32, 16, mode="mean")
            self.parts = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.BatchNorm1d(16))

        def forward(self, i: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.parts(self.table(i)).float()
            keeps = F.mse_loss(y, y.cos().detach()) + F.smooth_l1_loss(y, y * y, reduction="sum")
            return keeps + F.soft_margin_loss(y, y.detach().sign()) + F.huber_loss(y, y * y)

    for budget in (None, "min"):
        compiled = ct.compile(Net(), budget=budget)
        measured = train_step(compiled, torch.arange(27).view(9, 3))
        assert measured.peak_bytes == compiled.plans[0].numbers["live_bytes"]
    assert ran["forward"] == ran["backward"] == 2


def test_budget_on_saved_bytes(ran: Counter[str], train_step: Callable[..., Any]) -> None:
    model, inputs = make("gpt")
    compiled = ct.compile(model, budget="0.5x", measure="saved")
    train_step(compiled, *inputs)
    numbers = compiled.plans[0].numbers
    assert numbers["saved_bytes"] <= numbers["save_all_saved_bytes"] // 2
    assert ran["backward"] == 1


@pytest.mark.very_slow
def test_plans_explain_themselves(tmp_path: Path) -> None:
    model, inputs = make("gpt")
    compiled = ct.compile(model, budget="0.6x")
    compiled(*inputs)
    (plan,) = compiled.plans
    text = plan.explain()
    assert "small_models.py:" in text and "blocks.1" in text and "native_dropout" in text
    assert {e.decision for e in plan.entries} == {"save", "recompute"}
    plan.report(tmp_path / "plan.html")
    assert "native_dropout" in (tmp_path / "plan.html").read_text()
    masks = [e for e in plan.entries if e.type.startswith("bool[")]
    assert masks and all(e.decision == "save" for e in masks)


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["compile", "compile,name,inductor,checkpoint"])
@pytest.mark.very_slow
def test_the_example(doors: str) -> None:
    example = Path(__file__).parents[3] / "examples" / "torch_budget.py"
    options = ["--steps", "3", "--doors", doors]
    done = subprocess.run([sys.executable, str(example), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "peaks within the budget, losses as promised" in done.stdout
