"""An eager region holds exactly the planned bytes, including temporaries of autograd's formulas:
measured by a tracker that follows every storage from its first tensor to its end."""

from __future__ import annotations

import gc
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import small_models
import torch.nn.functional as F
from eager_tools import ResNet, Tracker, assert_same
from torch import nn

import cutback
from cutback.torch import MemoryTracker, checkpoint, checkpoint_plan
from cutback.torch.eager import plan as eager_plan

pytestmark = pytest.mark.torch


class Around(nn.Module):
    """A body between linear layers, with a loss inside: ``body(x, w)`` for ``x`` ``[32, 24]`` and
    ``w`` ``[24, 24]``."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 24), nn.Linear(24, 24)
        self.w = nn.Parameter(torch.randn(24, 24) / 5)
        self.body = body

    def forward(self, x: Any) -> Any:
        x = self.first(x).tanh()
        y = self.body(x, self.w)
        return (self.last(y.reshape(-1, 24)).sigmoid() + 0.1).square().mean()


BODIES: dict[str, Callable[..., Any]] = {
    "powers": lambda x, w: (x**3 + 1).sqrt() / (1.5 + x.pow(2)),
    "parts of one tensor": lambda x, w: torch.cat([x.sin(), x @ w, x], 0).exp(),
    "a tensor in parts": lambda x, w: sum(p.sin() for p in (x @ w).repeat(1, 3).chunk(3, 1)),
    "choices": lambda x, w: sum(torch.stack([x, x * 2, x @ w]).sin()[k] * k for k in range(3)),
    "slices": lambda x, w: (x @ w).sin()[:, :12].repeat(1, 2) + x[:, 12:].tanh().repeat(1, 2),
    "one for many": lambda x, w: (x @ w) + w.sum(0).exp() * w.mean(),
    "sums of several": lambda x, w: x.sin() + x.cos() + x.tanh() + (x @ w) * x,
    "statistics": lambda x, w: (x @ w - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1),
    "logarithms": lambda x, w: F.log_softmax(x @ w, -1) + (x @ w).logsumexp(-1, keepdim=True),
    "the largest": lambda x, w: (x @ w).sort(-1)[0] + x.max(-1, keepdim=True)[0] + x.amax(0),
    "gathered": lambda x, w: x.sin()[torch.arange(32) // 2] + (x @ w).gather(0, _rows()),
    "where": lambda x, w: torch.where(x > 0, x @ w, x.exp()).clamp(-1, 1),
    "a weight twice": lambda x, w: (x @ w).tanh() @ w.t() + w.sin().sum(),
    "turned": lambda x, w: (x @ w).t().contiguous().sin().t().reshape(24, 32).cumsum(1),
    "in place": lambda x, w: (x @ w).sigmoid_() * 2 + x.sin().add_(x),
    "parts in place": lambda x, w: _written(x @ w, x.sin()),
    "dropped": lambda x, w: F.dropout(x @ w, 0.5).exp() + F.dropout(x, 0.1),
    "doubled": lambda x, w: ((x @ w).double().sin() * 2).float() + x.bfloat16().float(),
    "products": lambda x, w: torch.einsum("ij,jk,ik->ik", x, w, x.sin()) + torch.addmm(x, x, w),
    "norms": lambda x, w: F.layer_norm(x @ w, (24,)) + F.normalize(x) + x.norm(),
}


def _rows() -> Any:
    return torch.arange(24).expand(32, 24)


def _written(x: Any, y: Any) -> Any:
    x[:, :12] = y[:, 12:] * 2
    return x.exp()


def _conv() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2),
        nn.BatchNorm2d(8), nn.GELU(), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 4, 2),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


class First(nn.Module):
    """Returns the first result of a recurrent layer: all its steps."""

    def __init__(self, inside: nn.RNNBase) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        return self.inside(x)[0]


class Last(First):
    """Adds a linear layer after the last result of the layer."""

    def __init__(self, inside: nn.RNNBase) -> None:
        super().__init__(inside)
        self.last = nn.Linear(inside.hidden_size * (1 + inside.bidirectional), 8)

    def forward(self, x: Any) -> Any:
        return self.last(super().forward(x).tanh()).tanh()


MODELS: dict[str, Any] = {
    "mlp": lambda: (
        nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU()))),
        torch.randn(64, 64),
    ),
    "wide mlp": lambda: (
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(64, 64)
    ),
    "layer": lambda: (
        nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True), torch.randn(4, 16, 32)
    ),
    "encoder": lambda: small_models.make("encoder"),
    "unet": lambda: small_models.make("unet"),
    "resnet": lambda: (ResNet(layers=3), torch.randn(2, 3, 16, 16)),
    "conv": lambda: (_conv(), torch.randn(4, 3, 12, 12)),
    "lstm": lambda: (Last(nn.LSTM(16, 32, 2, batch_first=True)), torch.randn(4, 12, 16)),
    "lstms": lambda: (Last(nn.LSTM(8, 16, 2, bidirectional=True)), torch.randn(9, 4, 8)),
    "lstm alone": lambda: (First(nn.LSTM(24, 24)), torch.randn(12, 4, 24)),
    "gru": lambda: (Last(nn.GRU(8, 16, batch_first=True)), torch.randn(4, 12, 8)),
    "rnn": lambda: (Last(nn.RNN(8, 16, batch_first=True)), torch.randn(4, 12, 8)),
}  # fmt: skip


LONGER = {"choices"}
"""A region holds more of these than the plan, because it cannot follow all of its schedule. It
still holds no more than the budget."""


def check(
    model: nn.Module, x: Any, own_loss: bool, budgets: tuple[Any, ...], as_planned: bool = True
) -> int:
    """Checks bits and bytes of steps under budgets; returns how many budgets could be met."""
    x = x[0] if isinstance(x, tuple) else x
    outside = 0 if own_loss else 8  # the loss and its gradient

    def step(run: Callable[[Any], Any], kind: Any) -> tuple[Any, list[Any]]:
        model.zero_grad(set_to_none=True)
        gc.collect()
        torch.manual_seed(3)
        with kind() as tracker:
            y = run(x)
            loss = y if own_loss else y.sum()
            loss.backward()
        return tracker, [y.detach(), *(p.grad for p in model.parameters())]

    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    _, plain = step(model, Tracker)
    met = 0
    for budget in budgets:
        try:
            plan = checkpoint_plan(model, x, budget=budget)
        except cutback.BudgetError:
            continue
        met += 1
        step(lambda x: checkpoint(model, x, budget=budget), Tracker)  # noqa: B023
        for kind in (Tracker, MemoryTracker):
            found, bits = step(lambda x: checkpoint(model, x, budget=budget), kind)  # noqa: B023
            peak = found.peak if kind is Tracker else found.peak_bytes
            assert peak <= plan.document["budget_bytes"] + outside, (budget, peak)
            if budget != "min" and as_planned:
                assert peak <= plan.numbers["live_bytes"] + outside, (budget, peak)
            assert_same(plain, bits)
    return met


def _some(names: Any, now: tuple[str, ...]) -> list[Any]:
    return [n if n in now else pytest.param(n, marks=pytest.mark.very_slow) for n in names]


@pytest.mark.parametrize("name", _some(MODELS, ("mlp", "lstm alone")))
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.train()
    assert check(model, x, name in ("encoder", "unet", "resnet"), (1.0, "0.7x", "min")) >= 2


@pytest.mark.very_slow
@pytest.mark.parametrize("name", _some(BODIES, ("powers",)))
def test_formulas_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    model = Around(BODIES[name])
    budgets = (1.0, "0.8x", "min")
    assert check(model, torch.randn(32, 24), True, budgets, name not in LONGER) >= 2


def _at(place: int, body: Callable[..., Any]) -> nn.Module:
    """Returns a model whose ``id`` is ``place``, the address of a deleted one."""
    others = []
    model = Around.__new__(Around)
    while id(model) != place:
        others.append(model)
        assert len(others) < 100_000, "nothing new comes to that place"
        model = Around.__new__(Around)
    model.__init__(body)  # type: ignore[misc]
    return model


@pytest.mark.very_slow
def test_a_model_that_took_the_place_of_another() -> None:
    """Plans are cached by model; a deleted model may leave its address to the next one."""
    torch.manual_seed(0)
    x = torch.randn(32, 24)
    model: nn.Module = Around(BODIES["where"])
    for name in ("products", "turned"):
        assert check(model, x, True, ("0.8x",)) == 1
        place = id(model)
        del model
        gc.collect()
        model = _at(place, BODIES[name])
    assert check(model, x, True, ("0.8x",)) == 1


@pytest.mark.very_slow
@pytest.mark.parametrize("around", ["region", "step"])
def test_autocast_holds_its_casts_of_weights(around: str) -> None:
    """Casts of weights that are used several times stay until the context ends, possibly after the
    region."""
    torch.manual_seed(0)
    a, b, x = nn.Linear(16, 16), nn.Linear(16, 16), torch.randn(8, 16)

    def cast() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def net(x: Any) -> Any:
        for _ in range(3):
            x = b(a(x).tanh()).sin()
        return a(x).float().square().mean()

    def within(x: Any) -> Any:
        with cast():
            return net(x)

    def run(call: Callable[..., Any], **wishes: Any) -> Any:
        if around == "region":
            return call(within, x, **wishes)
        with cast():
            return call(net, x, **wishes)

    for budget in (1.0, "0.8x", "0.7x", "min"):
        plan = run(checkpoint_plan, budget=budget)
        for _ in range(3):
            for p in (*a.parameters(), *b.parameters()):
                p.grad = None
            gc.collect()
            with Tracker() as tracker:
                run(checkpoint, budget=budget).backward()
        assert tracker.peak <= plan.document["budget_bytes"], budget


ONE: list[Callable[[Any], Any]] = [
    torch.sin, torch.tanh, torch.exp, torch.relu, lambda x: x * 2, lambda x: x**3,
    lambda x: x.t().contiguous().t(), lambda x: x.softmax(-1), lambda x: x - x.mean(),
    lambda x: F.layer_norm(x, (x.shape[-1],)), lambda x: x.cumsum(0), lambda x: x.sort(-1)[0],
    lambda x: x.norm(dim=-1, keepdim=True) * x, lambda x: x.sum(0, keepdim=True).expand_as(x),
    lambda x: x if x.is_leaf or x._is_view() else x.sigmoid_(),
    lambda x: x if x.is_leaf else x.add_(1), lambda x: F.dropout(x, 0.3),
    lambda x: x.abs().sqrt(), lambda x: x.logsumexp(-1, keepdim=True) + x,
]  # fmt: skip
TWO: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a @ b.t() @ b / 9,
    lambda a, b: a / (b.abs() + 1), lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: torch.cat([a, b], 0)[: a.shape[0]],
]  # fmt: skip


def _program(seed: int) -> Callable[[Any, Any], Any]:
    """Returns a program: a few ops on results that are dropped at random, some of them unused, and
    a loss."""

    def run(x: Any, w: Any) -> Any:
        choice = random.Random(seed)
        values = [x @ w]
        for _ in range(choice.randint(3, 14)):
            if choice.random() < 0.5:
                values.append(choice.choice(ONE)(choice.choice(values)))
            else:
                values.append(choice.choice(TWO)(choice.choice(values), choice.choice(values)))
            if len(values) > 4:
                values.pop(choice.randrange(len(values) - 1))
        if choice.random() < 0.5:
            return sum(v.mean() for v in values)
        return values[-1].square().mean()

    return run


def _runnable(seed: int) -> tuple[Callable[[Any, Any], Any], Any, Any] | None:
    """Returns a program and its inputs, which belong to the caller and are not counted."""
    choice = random.Random(seed)
    torch.manual_seed(seed)
    rows = choice.choice([1, 2, 4, 6, 16])
    x = torch.randn(rows, choice.choice([2, 5, 8]), requires_grad=True)
    w = torch.randn(x.shape[1], rows if choice.random() < 0.5 else 4, requires_grad=True)
    f = _program(seed)
    try:
        f(x, w).backward()
    except RuntimeError:  # shapes that do not match, or an overwritten value
        return None
    for t in (x, w):
        t.untyped_storage().__dict__["_tracked"] = True
    return f, x, w


def _third_run(f: Callable[[Any, Any], Any], x: Any, w: Any, seed: int, budget: Any) -> int:
    """Returns the peak of the third run. Each run has the bits of plain autograd."""
    for _ in range(3):
        x.grad = w.grad = None
        torch.manual_seed(seed)
        f(x, w).backward()
        wanted = [x.grad, w.grad]
        x.grad = w.grad = None
        torch.manual_seed(seed)
        gc.collect()
        with Tracker() as tracker:
            checkpoint(f, x, w, budget=budget).backward()
        found = [x.grad, w.grad]
        assert_same(*([t.view(torch.int32) for t in side] for side in (wanted, found)))
    return tracker.peak


PART, OVER = (8,), (84, 106, 156)


@pytest.mark.parametrize(
    "seeds", _some([PART, range(60), range(60, 110), range(110, 160), range(160, 210)], (PART,)),
    ids=lambda seeds: f"{len(seeds)} from {seeds[0]}",
)  # fmt: skip
def test_random_programs(seeds: Sequence[int]) -> None:
    """The budget "min" is always met, and so is a budget of the bytes of its plan; no region
    exceeds its budget."""
    for seed in set(seeds) - set(OVER):
        program = _runnable(seed)
        if program is None:
            continue
        for budget in ("min", "0.8x"):
            try:
                plan = checkpoint_plan(*program, budget=budget)
            except cutback.BudgetError:
                assert budget != "min"
                continue
            peak = _third_run(*program, seed, budget)
            assert peak <= plan.document["budget_bytes"], (seed, budget)
            if budget == "min":
                bytes_ = plan.numbers["live_bytes"]
                again = cutback.plan(plan.problem, budget=bytes_)
                assert again.numbers["live_bytes"] <= bytes_, seed


@pytest.mark.parametrize("seed", OVER)
def test_random_programs_that_are_over(seed: int) -> None:
    """Unused results read what these programs overwrite, so they hold up to 12 % more than the
    budget."""
    program = _runnable(seed)
    assert program is not None
    for budget in ("min", 1.0):
        limit = checkpoint_plan(*program, budget=budget).document["budget_bytes"]
        peak = _third_run(*program, seed, budget)
        assert peak <= 1.12 * limit
        assert budget != "min" or peak > limit  # otherwise the document could promise more


def figures_of(said: Sequence[Any]) -> list[int]:
    """Returns the bytes that first runs may take, as stated in warnings."""
    text = "".join(str(w.message) for w in said)
    return [int(n) for n in re.findall(r"it may take .*?\((\d+) bytes\), over", text)]


class Added(nn.Module):
    """A value added in place must stay, and a first run recomputes the rest in addition to it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 16, 1, bias=False), nn.Conv2d(8, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h += self.b(x)
        return h.relu().mean()


def written_in_place() -> dict[str, Any]:
    x = torch.linspace(-2, 2, 1000)

    def before(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.exp()
        y.sub_(1)
        return (z * z).sin().sum() + y.sum()

    def clamped(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, (1 - x).clamp_(min=0)).mean()

    def parts(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(1000)
        h[::2] = x[:500] * 2
        h[1::2] = x[500:].sin()
        return (h * h).sum()

    def view(x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        h[:500].sin_()  # saved inside another node
        h[200:].mul_(x[:800])
        return (h * h).sum()

    def twice(x: torch.Tensor) -> torch.Tensor:
        h = (x * 2).add_(1)
        y = h + 1
        h.mul_(3).add_(y)
        return (h * h.tanh()).sum()

    def between(x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        kept = h + 3
        h.add_(1)
        y = kept * h.exp()
        return (y * y).sum()

    return {f.__name__: (f, x) for f in (before, clamped, parts, view, twice, between)}


@pytest.mark.parametrize("name", written_in_place())
def test_first_runs_that_write_in_place_take_what_is_said(name: str) -> None:
    """A value read before a write can be recomputed: it counts in the step that does so."""
    f, start = written_in_place()[name]
    eager_plan.forget_plans()
    x = start.clone().requires_grad_()
    f(x).backward()
    wanted, x.grad = x.grad, None
    for wish in (1.0, "min"):
        limit = checkpoint_plan(f, x, budget=wish).document["budget_bytes"]
        budget = limit if wish == "min" else wish  # "min" gives no warning
        for _ in range(2):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with MemoryTracker() as memory:
                    checkpoint(f, x, budget=budget).backward()
            found, x.grad = x.grad, None
            assert_same([wanted], [found])
            assert memory.peak_bytes <= max([limit, *figures_of(said)])


COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda w: (w.conj().t() @ w).real.sum(),
    "square": lambda w: (w * w.conj()).real.sum(),
    "vdot": lambda w: torch.vdot(w.flatten(), w.flatten().conj() * 2).real,
    "negative": lambda w: (w.conj().imag * w.real).sum(),
    "adjoint": lambda w: ((w.mH @ w) @ w.mT.conj()).abs().sum(),
    "sum": lambda w: w.conj().sum().abs(),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_conjugates_are_resolved_into_copies(name: str) -> None:
    """Conjugated gradients are lazy, and are added up or copied for a leaf."""
    torch.manual_seed(0)
    w = torch.randn(16, 16, dtype=torch.cfloat, requires_grad=True)
    f = COMPLEX[name]
    plan = checkpoint_plan(f, w, budget=1.0)
    for _ in range(2):
        w.grad = None
        with MemoryTracker() as memory:
            checkpoint(f, w, budget=1.0).backward()
        assert memory.peak_bytes == plan.numbers["live_bytes"]


@pytest.mark.parametrize(
    "names", [("mlp", "added"), pytest.param(("unet",), marks=pytest.mark.very_slow)]
)
def test_a_first_run_over_its_budget_is_said(names: tuple[str, ...]) -> None:
    """The forward of the first run comes before there is a plan. The measured bytes do not exceed
    those in the warning, and without a warning the budget is met."""
    over = 0
    eager_plan.forget_plans()  # otherwise warnings of other tests would not repeat
    for name in names:
        torch.manual_seed(0)
        model, x = MODELS[name]() if name in MODELS else (Added(), torch.randn(4, 8, 9, 7))
        x = x[0] if isinstance(x, tuple) else x
        for share in ("1x",) if name == "added" else ("0.9x", "0.71x"):
            plan = checkpoint_plan(model, x, budget=share)
            model.zero_grad(set_to_none=True)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with MemoryTracker() as memory:
                    y = checkpoint(model, x, budget=share)
                    y.sum().backward()
            figures = figures_of(said)
            over += len(figures)
            limit = plan.document["budget_bytes"]
            assert memory.peak_bytes <= max([limit, *figures]) + 8, (name, share)
            del y
    assert over > 0
