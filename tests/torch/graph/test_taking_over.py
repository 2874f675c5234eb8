"""Results that take over the memory of inputs: the variants of ops, what may not be taken over, and
steps whose memory and bits are those planned."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agreement import two_backwards
from profiles import make, outputs
from torch import nn
from torch.nn import functional as F

import cutback
import cutback.torch as ct
from cutback import budgets, devices
from cutback.planner.plan import Plan
from cutback.torch.compiler import reference
from cutback.torch.compiler.counted_scratch import with_scratch
from cutback.torch.graph import codegen, taking_over
from cutback.torch.graph.taking_over import VARIANTS
from cutback.torch.profiler.stepping import Program

aten = torch.ops.aten


# ---- variants ------------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
LAYOUTS = ("contiguous", "channels_last", "transposed")


def _sample(dtype: torch.dtype, layout: str, seed: int, positive: bool = False) -> torch.Tensor:
    """Returns numbers of all kinds, [3, 5, 7, 11]: more than a vector, and not a multiple of it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, 7, 11, generator=generator, dtype=torch.float64)
    if dtype.is_floating_point:
        x.view(-1)[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-30])
    x = (x.abs() + 0.5 if positive else x * 3).to(dtype)
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    return x.transpose(1, 3).contiguous().transpose(1, 3) if layout == "transposed" else x


_SCALARS: dict[str, tuple[Any, ...]] = {
    "elu_backward": (1.0, 1.0, 1.0, False), "hardtanh_backward": (-1.0, 1.0),
    "leaky_relu_backward": (0.1, False), "softplus_backward": (1.0, 20.0),
    "threshold_backward": (0.5,), "threshold": (0.5, 2), "clamp": (-1, 1), "clamp_max": (1,),
    "clamp_min": (-1,), "lerp.Scalar": (0.3,), "masked_fill.Scalar": (2,),
    "pow.Tensor_Scalar": (3,), "eq.Scalar": (1,),
}  # fmt: skip
_OWN_KEYWORDS: dict[str, dict[str, Any]] = {"div.Tensor_mode": {"rounding_mode": "floor"}}


def _arguments(op: Any, dtype: torch.dtype, layout: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns a call of an op: a tensor for each argument that is one, and numbers."""
    name = str(op).removeprefix("aten.").removesuffix(".default")
    args: list[Any] = []
    for k, argument in enumerate(op._schema.arguments):
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            boolean = argument.name in ("condition", "mask")
            args.append(_sample(torch.bool if boolean else dtype, layout, k, k == 1))
    if name in _SCALARS:
        at = 1 if name == "elu_backward" else len(args)
        args[at:at] = _SCALARS[name]
    elif name.endswith(".Scalar") and len(args) == 1:
        args = [2, args[0]] if name == "pow.Scalar" else [*args, 2]
    return args, _OWN_KEYWORDS.get(name, {})


def _calls(op: Any) -> Iterator[tuple[torch.dtype, list[Any], dict[str, Any], torch.Tensor]]:
    """Yields calls whose result has the layout of at least one argument, with the result."""
    for dtype in DTYPES:
        for layout in LAYOUTS:
            args, kwargs = _arguments(op, dtype, layout)
            try:
                result = op(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                continue  # no kernel for this type
            yield dtype, args, kwargs, result


def _bits(x: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(kinds[x.element_size()])


def _allocated(call: Callable[[], Any]) -> int:
    """Returns the largest allocation during a call, in bytes."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    events = profile.events() or ()
    return max((abs(e.cpu_memory_usage) for e in events), default=0)


COMMON = [
    aten.mul.Tensor, aten.add.Tensor, aten.gelu_backward.default, aten.threshold_backward.default,
    aten.relu.default, aten.where.self, aten.tanh.default, aten.pow.Tensor_Scalar,
    aten.masked_fill.Scalar, aten.elu_backward.default,
]  # fmt: skip
OPS = [
    pytest.param(op, marks=[] if op in COMMON else pytest.mark.very_slow, id=str(op))
    for op in VARIANTS
]


@pytest.mark.parametrize("op", OPS)
def test_a_variant_gives_the_bits_of_its_op_over_an_input(op: Any) -> None:
    variant, tried = VARIANTS[op], 0
    for _, args, kwargs, result in _calls(op):
        for at in range(len(args)) if variant.keyword else (0,):
            given = args[at]
            if not isinstance(given, torch.Tensor) or given.dtype is not result.dtype:
                continue
            if given.stride() != result.stride():
                continue  # pow.Scalar makes a contiguous result, so the importer refuses it
            own = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
            into = {variant.keyword: own[at]} if variant.keyword else {}
            made = variant.target(*own, **kwargs, **into)
            assert made is own[at] and torch.equal(_bits(made), _bits(result))
            tried += 1
    assert tried


@pytest.mark.parametrize("op", OPS)
def test_a_variant_allocates_nothing(op: Any) -> None:
    variant = VARIANTS[op]
    args, kwargs, given, result = next(
        (args, kwargs, x, result)
        for _, args, kwargs, result in _calls(op)
        for x in args
        if isinstance(x, torch.Tensor) and x.dtype is result.dtype
    )
    into = {variant.keyword: given} if variant.keyword else {}
    size = result.untyped_storage().nbytes()
    assert _allocated(lambda: variant.target(*args, **kwargs, **into)) < size
    assert _allocated(lambda: op(*args, **kwargs)) >= size


# ---- steps ---------------------------------------------------------------------------------------


class Texts:
    """The texts of the functions that a model compiles to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[str, str] = {}
        function = codegen._function

        def keep(gm: Any, name: str, watch: Any) -> Any:
            made = function(gm, name, watch)
            self.of[name] = made._source  # type: ignore[attr-defined]
            return made

        monkeypatch.setattr(codegen, "_function", keep)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Texts:
    return Texts(monkeypatch)


class Layers(nn.Module):
    """Layers of pointwise ops; the values of ``kept`` are returned as well."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor] = torch.tanh) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(F.gelu(self.middle(self.up(x)) * 2 - 1))).square().mean()


def test_memory_is_taken_over_and_a_second_backward_keeps_its_bits(
    texts: Texts, same_bits: Callable[..., bool], train_step: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(32, 16)
    expected = two_backwards(model, model, x)
    compiled = ct.compile(model, budget="min")
    assert same_bits(two_backwards(compiled, model, x), expected)
    assert "out=v" in texts.of["forward"] and "grad_input=v" in texts.of["backward"]
    assert train_step(compiled, x).peak_bytes == compiled.plans[0].numbers["live_bytes"]


@pytest.mark.parametrize(
    "options",
    [{"offload": True}, {"codegen": "native"}, {"budget": None}, {"budget": "fastest"}],
)
def test_other_ways_run_without(texts: Texts, options: dict[str, Any]) -> None:
    model, x = Layers(), torch.randn(32, 16)
    compiled = ct.compile(copy.deepcopy(model), **{"budget": 0.5, **options})
    compiled(x).backward()
    assert "out=v" not in texts.of["forward"] + texts.of["backward"]
    assert not any(op.over for op in compiled.plans[0].parts.ops)


@pytest.mark.filterwarnings("ignore:parts of the model are not planned")
def test_results_arguments_and_other_libraries_keep_their_memory(texts: Texts) -> None:
    last: list[torch.Tensor] = []

    @torch.library.custom_op("taking_over::cached", mutates_args=())
    def cached(x: torch.Tensor) -> torch.Tensor:
        last.append(x.sin())
        return last[-1]

    cached.register_fake(torch.empty_like)
    cached.register_autograd(lambda ctx, g: g * 2)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shown = x.exp()
        return cached(x.cos()).neg().sigmoid(), shown, shown.view(-1).tanh() * 2

    x = torch.randn(8, 16, requires_grad=True)
    given = x.detach().clone()
    compiled = ct.compile(f, budget="min")
    a, shown, b = compiled(x)
    (a.sum() + b.sum()).backward()
    assert torch.equal(x.detach(), given) and torch.equal(last[-1], given.cos().sin())
    assert torch.equal(shown, given.exp())
    assert torch.equal(b, (given.exp().view(-1).tanh() * 2))
    assert torch.equal(a, given.cos().sin().neg().sigmoid())


def test_what_users_hold_stays(same_bits: Callable[..., bool]) -> None:
    """Incoming gradients, results, and gradients that hooks and parameters hold are not
    overwritten."""

    def f(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = (x @ w).tanh() * 2
        return h.exp().neg(), (h.sin() * h).sigmoid()

    def seen(function: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        w, x = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16)
        hooked: list[torch.Tensor] = []
        w.register_hook(hooked.append)
        results = function(w, x)
        for result in results:
            result.register_hook(hooked.append)
        tangents = [torch.randn(16, 16), torch.randn(16, 16)]
        shown = [t.detach() for t in results]
        held = [*shown, *tangents]
        before = [t.clone() for t in held]
        torch.autograd.backward(results, tangents, retain_graph=True)
        first, w.grad = w.grad, None
        torch.autograd.backward(results, tangents)
        assert first is not None and w.grad is not None
        assert same_bits(held, before) and same_bits(first, w.grad)
        return [*shown, first, x, *sorted(hooked, key=lambda t: float(t.sum()))]

    compiled = ct.compile(f, budget="smallest")
    assert same_bits(seen(compiled), seen(f))
    assert any(op.over for op in compiled.plans[0].parts.ops)


@pytest.mark.parametrize("version", [4, 5])
def test_files_of_plans_say_whether_memory_is_taken_over(
    version: int, texts: Texts, tmp_path: Path, train_step: Callable[..., Any]
) -> None:
    """Files of earlier versions are for steps without."""
    model, x = Layers(), torch.randn(32, 16)
    compiled = ct.compile(model, budget="min")
    peak = train_step(compiled, x).peak_bytes
    compiled.save_plans(tmp_path / "plans.json")
    document = json.loads((tmp_path / "plans.json").read_text())
    assert document["version"] == 5 and document["takes_over"]
    if version == 4:
        del document["takes_over"]
    document["version"] = version
    (tmp_path / "plans.json").write_text(json.dumps(document))
    torch._dynamo.reset()
    texts.of.clear()
    given = ct.compile(model, plans=tmp_path / "plans.json")
    found = train_step(given, x).peak_bytes
    assert given.plans[0].numbers["live_bytes"] == found
    assert ("out=v" in texts.of["forward"]) == (version == 5) == (found == peak)


def test_the_better_search_is_used_where_plans_cost_more() -> None:
    """Memory taken over changes what searches find; a plan found without it is as good."""
    step = ct.trace(Layers(), torch.randn(32, 16))
    searched = reference.Searched.of(step.problem)
    problem, apart, in_both = searched
    assert apart is not None and in_both
    row, limits = devices.resolve("cpu"), []

    def search(given: Any, budget: Any) -> Plan:
        assert given is apart
        limits.append(budget[1])
        return Plan.of(given.plan(budget=budget, device=row))

    slow = Plan.of(problem.plan(budget=budgets.parse("smallest", "live"), device=row))
    cheap = Plan.of(problem.plan(device=row))
    whole, once = cheap.numbers["live_bytes"], cheap.numbers["once_ps"]
    limit = budgets.of_bytes(whole - 1, "live")
    question = reference.Question(problem, apart, "cpu", "live", counted=searched)
    assert question._better(cheap, limit, search) is cheap and not limits
    found = question._better(slow, limit, search)
    assert once * 1.1 <= found.numbers["time_ps"] < slow.numbers["time_ps"]
    assert any(op.over for op in found.parts.ops)
    # the first one that is tried costs less, and a larger budget must not get a slower one
    assert len(limits) > 1 and limits == sorted(limits, reverse=True)
    above = Plan.of(apart.plan(budget=budgets.of_bytes(limits[-1] + 1, "live"), device=row))
    assert above.numbers["time_ps"] < once * 1.1
    assert reference.smaller(problem, slow, found, "live") is slow


def test_large_graphs_are_searched_once() -> None:
    layers = [layer for _ in range(12) for layer in (nn.Linear(16, 16), nn.GELU())]
    step = ct.trace(nn.Sequential(*layers), torch.randn(32, 16))
    assert not reference.Searched.of(step.problem).in_both


def test_a_refused_search_with_scratch_finds_the_smallest_plan() -> None:
    problem = ct.trace(Layers(), torch.randn(32, 16)).problem
    taken = [[op, 1 << 14] for op in range(len(problem.ops) // 2, len(problem.ops), 7)]
    searched = reference.Searched.of(with_scratch(problem, taken))._replace(in_both=False)
    plain, limit = reference.Searched.of(problem), budgets.parse("smallest", "live")
    least = reference.plan_unbounded(searched, plain.base, limit, "cpu", "live")
    size = least.numbers["live_bytes"]
    question = reference.Question(plain.problem, plain.base, "cpu", "live", counted=searched)
    with pytest.raises(cutback.BudgetError) as refused:
        question.plan(budgets.of_bytes(size - 1, "live"))
    assert refused.value._smallest_plan.document == least.document
    assert refused.value.replace()._smallest_plan is None
    met = question.plan(budgets.of_bytes(size, "live"))
    assert met.numbers["live_bytes"] == size


# ---- profiles ------------------------------------------------------------------------------------


class Broken(nn.Module):
    """Two graphs; only the second one takes memory over."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), Layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(y)


@pytest.mark.parametrize(
    ("name", "budget"),
    [("layers", "min"), ("broken", "1x"),
     *[pytest.param(name, budget, marks=pytest.mark.very_slow)
       for name, budget in (("gpt", "1x"), ("gpt", "min"), ("resnet", "min"), ("unet", "min"))]],
)  # fmt: skip
def test_profiles_take_over_what_the_generated_code_does(
    name: str, budget: str, same_bits: Callable[..., bool]
) -> None:
    torch.manual_seed(0)
    own = {"layers": Layers, "broken": Broken}.get(name)
    model, inputs = (own(), (torch.randn(32, 16),)) if own else make(name, dropout=0.0)
    profile = ct.profile(model, *inputs, runs=1, warmup=0, link=1e9)
    plan = profile.step.plan(budget)
    again = profile.rerun(plan, runs=1, warmup=0)
    assert again.timeline() == plan.timeline() and any(op.over for op in plan.parts.ops)
    program = Program(profile.captured.under(plan), profile._schedule(plan))
    over = [row for row in program.instructions if row.over is not None]
    modules = [m for g in range(len(profile.graphs)) for m in profile.rewrite(plan, g)]
    taken = [t for m in modules for t in taking_over.taken(list(m.graph.nodes)).items()]
    names = [(run.meta[codegen.RUN_OF], given.meta[codegen.RUN_OF]) for run, given in taken]
    assert sorted((row.node.name, row.over.name) for row in over) == sorted(names) != []
    plain = profile.step.plan()  # without a budget nothing is taken over
    assert same_bits(outputs(profile, plan), outputs(profile, plain))
    assert profile.rerun(plain, runs=1, warmup=0).timeline() == plain.timeline()
    columns = again.by_category()
    given = sum(v.bytes for v in again.values if v.made < 0)
    for k, row in enumerate(again.rows):
        assert sum(column[k] for column in columns.values()) == row.live_bytes + given
