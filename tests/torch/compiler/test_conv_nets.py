"""Convolutional nets have kernels that need scratch. Plans count it after two measured steps, and
then the allocator's peak stays within the budget. The oracle is PyTorch's profiler."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity

import cutback.torch as ct
from cutback.torch import hooks
from cutback.torch.compiler import counted_scratch

pytestmark = pytest.mark.filterwarnings("error:kernels take scratch")

Net = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class Inverted(nn.Module):
    """A block of an EfficientNet, with squeeze and excitation."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inner
        self.widen = nn.Sequential(nn.Conv2d(inner, wide, 1), nn.BatchNorm2d(wide), nn.SiLU())
        self.deep = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(wide, inner, 1), nn.Conv2d(inner, wide, 1)
        self.narrow = nn.Sequential(nn.Conv2d(wide, outer, 1), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(self.widen(x))
        scale = self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.narrow(x * scale)


class Next(nn.Module):
    """A block of a ConvNeXt, whose layer norm has channels last."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(inner, outer, stride, stride)
        self.deep, self.norm = nn.Conv2d(outer, outer, 7, 1, 3, groups=outer), nn.LayerNorm(outer)
        self.widen, self.narrow = nn.Linear(outer, 4 * outer), nn.Linear(4 * outer, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.widen(y))).permute(0, 3, 1, 2)


class Classifier(nn.Module):
    def __init__(self, block: type[nn.Module], width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.Sequential(block(width, width, 1), block(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))), y)


def net(block: type[nn.Module], width: int = 16, size: int = 32, batch: int = 8) -> Net:
    torch.manual_seed(0)
    return Classifier(block, width), (
        torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,)),
    )  # fmt: skip


def run(step: Any, inputs: Any, n: int = 1) -> list[torch.Tensor]:
    losses = []
    for _ in range(n):
        step.zero_grad(set_to_none=True)
        loss = step(*inputs)
        loss.backward()
        losses.append(loss.detach())
    return losses


def peak_by_profiler(step: Any, inputs: Any) -> int:
    step.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step(*inputs).backward()
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(
    "block",
    [
        Residual,
        pytest.param(Inverted, marks=pytest.mark.very_slow),
        pytest.param(Next, marks=pytest.mark.very_slow),
    ],
)
def test_the_allocators_peak_keeps_to_the_budget(block: type[nn.Module]) -> None:
    model, inputs = net(block)
    plain = copy.deepcopy(model)
    compiled = ct.compile(model, budget=0.7)
    losses = run(compiled, inputs, 2)
    before = compiled.plans[0]
    limit = before.numbers["budget_bytes"]
    over = compiled.allocator_stats.peak_bytes > 1.02 * limit
    losses += run(compiled, inputs, 2)
    (plan,) = compiled.plans
    assert (plan is not before) == over
    assert (
        plan.numbers["budget_bytes"] == limit == plan.position.limit
    )  # the bytes of a position do not change
    assert plan.position == before.position
    assert compiled.allocator_stats.peak_bytes <= 1.02 * limit
    assert peak_by_profiler(compiled, inputs) <= 1.02 * limit
    losses += run(compiled, inputs)
    assert compiled.plans[0] is plan  # the plan no longer changes
    losses += run(plain, inputs, 1)
    assert all(torch.equal(losses[-1], loss) for loss in losses)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.very_slow
def test_shapes_that_take_turns_keep_to_the_budget() -> None:
    """Each shape has its own graph and its own plan."""
    model, inputs = net(Residual)
    batches = [inputs, tuple(t[:5] for t in inputs)]
    compiled = ct.compile(model, budget=0.7, dynamic=False)
    for _ in range(2):
        for batch in batches:
            run(compiled, batch)
    before = compiled.plans
    for _ in range(2):
        for batch in batches:
            run(compiled, batch)
    for batch, plan, old in zip(batches, compiled.plans, before, strict=True):
        limit = old.numbers["budget_bytes"]
        assert plan.numbers["budget_bytes"] == limit and plan.position == old.position
        assert any(op.workspace >= counted_scratch.GRAIN for op in plan.parts.ops)
        assert peak_by_profiler(compiled, batch) <= 1.02 * limit


@pytest.mark.very_slow
def test_a_plan_over_several_graphs_counts_it() -> None:
    model, (x, y) = net(Residual)

    def broken(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = model.blocks[0](model.stem(x))
        torch._dynamo.graph_break()
        return F.cross_entropy(model.head(model.blocks[1:](x).mean((2, 3))), y)

    compiled = ct.compile(broken, budget=0.8)
    compiled.zero_grad = model.zero_grad
    run(compiled, (x, y), 5)
    (plan,) = compiled.plans
    limit, stats = plan.numbers["budget_bytes"], compiled.allocator_stats
    assert max(op.workspace for op in plan.parts.ops) >= counted_scratch.GRAIN
    assert stats.tensor_bytes < stats.peak_bytes <= 1.02 * limit
    assert peak_by_profiler(compiled, (x, y)) <= 1.02 * limit


@pytest.mark.very_slow
def test_files_of_plans_hold_it(tmp_path: Path) -> None:
    model, inputs = net(Residual)
    path = tmp_path / "plans.json"
    compiled = ct.compile(model, budget=0.7)
    losses = run(compiled, inputs, 3)
    (plan,) = compiled.plans
    compiled.save_plans(path)
    document = json.loads(path.read_text())
    (graph,) = document["graphs"]
    assert graph["scratch"] and all(size % 65536 == 0 for _, size in graph["scratch"])
    torch._dynamo.reset()
    given = ct.compile(model, plans=path)
    losses += run(given, inputs, 2)
    assert given.plans[0].core.steps == plan.core.steps and given.plans[0].numbers == plan.numbers
    assert all(torch.equal(losses[0], loss) for loss in losses)
    given.save_plans(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["graphs"] == [graph]
    # the fingerprint is that of the graph without scratch, for all kinds of plans
    fresh = replace(ct.trace(model, *inputs).problem, reruns="forward", keep_saved=False)
    fresh.ops = [replace(op, over=()) for op in fresh.ops]
    assert graph["fingerprint"] == fresh.check().fingerprint
    graph["scratch"] = [[10_000, 65536]]
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"damaged, at .*scratch of 65536 bytes for op 10000"):
        ct.compile(model, plans=path)


def test_the_larger_of_two_steps_counts() -> None:
    """An op needs more scratch in its second run, like kernels that search for algorithms."""
    takes = iter([0, 4 << 20, 1 << 20])

    @torch.library.custom_op("cutback_conv_nets::rough", mutates_args=())
    def rough(x: torch.Tensor) -> torch.Tensor:
        torch.empty(next(takes, 0), dtype=torch.uint8)
        return x * 2

    rough.register_fake(lambda x: torch.empty_like(x))
    rough.register_autograd(lambda ctx, g: g * 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        a = x.sin().exp().cos()
        return (rough(a) * a.exp().sin().exp()).sum()

    x = torch.randn(1 << 16, requires_grad=True)
    compiled = ct.compile(function, budget="4MiB")
    sizes = []
    with pytest.warns(UserWarning, match="kernels take scratch"):
        for _ in range(4):
            x.grad = None
            compiled(x).backward()
            sizes.append(max(op.workspace for op in compiled.plans[0].parts.ops))
    beside = (4 << 20) - x.nbytes  # this part is freed before the result is allocated
    assert sizes == [0, 0, beside, beside]


def test_a_search_for_algorithms_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch of cuDNN's benchmark in the first step does not count."""
    monkeypatch.setattr(hooks, "searches_kernels", lambda: True)
    takes = iter([4 << 20])

    @torch.library.custom_op("cutback_conv_nets::search", mutates_args=())
    def search(x: torch.Tensor) -> torch.Tensor:
        torch.empty(next(takes, 0), dtype=torch.uint8)
        return x * 2

    search.register_fake(lambda x: torch.empty_like(x))
    search.register_autograd(lambda ctx, g: g * 2)
    x = torch.randn(1 << 16, requires_grad=True)
    compiled = ct.compile(lambda x: search(x.sin()).exp().sum(), budget="3MiB")
    for _ in range(3):
        compiled(x).backward()
    assert compiled.allocator_stats.peak_bytes < 3 << 20
    assert all(op.workspace == 0 for op in compiled.plans[0].parts.ops)


def test_little_scratch_is_not_counted() -> None:
    model, inputs = net(Residual)
    problem = ct.trace(model, *inputs).problem
    names = [op.name for op in problem.ops if "compute" in op.flags]
    grain = counted_scratch.GRAIN
    measured = {names[0]: 1, names[1]: grain + 1, names[2]: 10 * grain}
    ids = {op.name: i for i, op in enumerate(problem.ops)}
    expected = [[ids[names[1]], 2 * grain], [ids[names[2]], 10 * grain]]
    assert counted_scratch.rows_of(problem, measured, 199 * grain) == expected
    assert counted_scratch.rows_of(problem, measured, 200 * grain) == expected[1:]
    counted = counted_scratch.with_scratch(problem, expected)
    assert counted_scratch.rows_of(counted, measured, 100 * grain) == []
    assert counted.ops[ids[names[2]]].workspace == 10 * grain
    assert problem.ops[ids[names[2]]].workspace == 0
    assert counted_scratch.merged(expected, [[ids[names[2]], grain], [0, 5]]) == [
        [0, 5], *expected
    ]  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_kernels_that_are_slow_over_planes_count_as_several_passes(
    layout: torch.memory_format,
) -> None:
    """PyTorch's batch norms and pools on a CPU are not vectorized over planes."""
    model = nn.Sequential(nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.AvgPool2d(2))
    x = torch.randn(2, 8, 16, 16).to(memory_format=layout).requires_grad_()
    problem = ct.trace(model, x).plan("fastest").problem
    ops = {op["kind"]: op for op in problem["ops"]}
    size = 2 * 8 * 16 * 16 * 4

    def passes(kind: str, moved: float) -> float:
        return float(round(ops[kind]["bytes"] / moved, 1))

    found = (
        passes("aten._native_batch_norm_legit_functional.default", 2 * size),
        passes("aten.max_pool2d_with_indices.default", (1 + 3 / 4) * size),
        passes("aten.avg_pool2d.default", (1 / 4 + 1 / 16) * size),
        passes("aten.native_batch_norm_backward.default", 3 * size),
    )
    assert found == pytest.approx(
        (5, 16, 7, 1) if layout is torch.contiguous_format else (1, 1, 1, 1), rel=0.1
    )
