"""Ops of other libraries: those registered as functions of their arguments are recomputed with
equal bits; all others run once, and the reason can be queried."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import CheckpointPolicy

import cutback.torch as ct
from cutback.torch.graph.rerunnable import held_because

LAYERS = 6
RUNS: Counter[str] = Counter()
LIBRARY = torch.library.Library("cutback_again", "DEF")
OPS = torch.ops.cutback_again


def define(
    name: str, arguments: str = "", returns: str = "Tensor", fake: bool = True, tags: Any = ()
) -> None:
    """Defines an op ``x -> 2 sin(x)`` that counts its runs, and whose derivative reads its
    result."""
    LIBRARY.define(f"{name}(Tensor x{arguments}) -> {returns}", tags=tags)

    def forward(x: Any, *rest: Any) -> Any:
        RUNS[name] += 1
        if name == "route":
            return x.argmax(-1)
        return x.sin() * 2

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.rest = len(inputs) - 1

    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y, *[None] * ctx.rest

    LIBRARY.impl(name, forward, "CPU")
    if fake:

        def made(x: Any, *rest: Any) -> Any:
            return x.new_empty(x.shape[:-1], dtype=torch.int64) if name == "route" else x.clone()

        torch.library.register_fake(f"cutback_again::{name}", made, lib=LIBRARY)
    if returns == "Tensor" and name != "route":
        torch.library.register_autograd(
            f"cutback_again::{name}", backward, setup_context=setup, lib=LIBRARY
        )


define("plain")
define("unfaked", fake=False)
define("seeded", tags=(torch.Tag.nondeterministic_seeded,))
define("unsteady", tags=(torch.Tag.nondeterministic_bitwise,))
define("add_noise")
define("attend", ", float dropout_p=0.0")
define("everyone", ", str group_name='world'")
define("all_gather_rows")
define("with_generator", ", Generator? gen=None")
define("empty_rows")
define("pointwise", tags=(torch.Tag.pointwise,))
define("acting")
torch.library._register_effectful_op(
    "cutback_again::acting", torch._library.effects.EffectType.ORDERED
)
define("route")
LIBRARY.define("lying(Tensor(a) x) -> Tensor(a)")
LIBRARY.define("filling(Tensor(a!) x) -> ()")
LIBRARY.define("telling(Tensor x) -> ()")
LIBRARY.define("making(int n) -> Tensor")
LIBRARY.impl("making", lambda n: torch.ones(n), "CompositeExplicitAutograd")
LIBRARY.define("writing_(Tensor x) -> Tensor")


@torch.library.custom_op("cutback_again::decorated", mutates_args=())
def decorated(x: torch.Tensor) -> torch.Tensor:
    RUNS["decorated"] += 1
    return x.sin() * 2


decorated.register_fake(torch.empty_like)
decorated.register_autograd(
    lambda ctx, g: g * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


@torch.library.custom_op("cutback_again::counting", mutates_args=("state",))
def counting(x: torch.Tensor, state: torch.Tensor) -> None:
    RUNS["counting"] += 1
    state.add_(x.sum())


AGAIN = {
    "plain": lambda x: OPS.plain(x),
    "decorated": lambda x: decorated(x),
    "attend": lambda x: OPS.attend(x, 0.0),
}
ONCE = {
    "seeded": lambda x: OPS.seeded(x),
    "unsteady": lambda x: OPS.unsteady(x),
    "add_noise": lambda x: OPS.add_noise(x),
    "attend": lambda x: OPS.attend(x, 0.5),
    "everyone": lambda x: OPS.everyone(x, "world"),
}
CASES = [
    *[pytest.param(name, op, True, id=name) for name, op in AGAIN.items()],
    *[pytest.param(name, op, False, id=f"{name}-once") for name, op in ONCE.items()],
]


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    yield
    for name in ("plain", "decorated", "unsteady", "unfaked", "everyone", "route"):
        ct.rerun.declare(getattr(OPS, name), rerunnable=None)


def chain(op: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for _ in range(LAYERS):
            x = op(x * 0.5).tanh()
        return x.sum()

    return f


def compiled(f: Any) -> Any:
    torch._dynamo.reset()
    return ct.compile(f, budget="min")


def in_a_region(f: Any) -> Any:
    return lambda x: ct.checkpoint(f, x)


def in_a_planned_region(f: Any) -> Any:
    return lambda x: ct.checkpoint(f, x, budget="min")


def step(call: Any, name: str) -> tuple[list[Any], int]:
    """Returns loss and gradient, and the number of runs of the op."""
    torch.manual_seed(1)
    x = torch.randn(64, 64, requires_grad=True)
    RUNS.clear()
    loss = call(x)
    loss.backward()
    return [loss.detach(), x.grad], RUNS[name]


WAYS = [compiled, in_a_region, in_a_planned_region]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "op", "again"), CASES)
def test_functions_run_again_and_others_once(
    way: Any, name: str, op: Any, again: bool, same_bits: Callable[..., bool]
) -> None:
    plain, runs = step(chain(op), name)
    assert runs == LAYERS
    found, runs = step(way(chain(op)), name)
    assert same_bits(found, plain)
    assert runs > LAYERS if again else runs == LAYERS


@pytest.mark.parametrize("way", WAYS)
def test_what_writes_runs_once(way: Any, same_bits: Callable[..., bool]) -> None:
    def counted(state: Any) -> Any:
        def op(x: Any) -> Any:
            counting(x.detach(), state)
            return x.sin()

        return chain(op)

    expected, state = torch.zeros(()), torch.zeros(())
    plain, _ = step(counted(expected), "counting")
    found, runs = step(way(counted(state)), "counting")
    assert same_bits([*found, state], [*plain, expected]) and runs == LAYERS


DECLARED = [
    ("plain", False, False), ("plain", True, True), ("plain", None, True),
    ("decorated", False, False), ("unsteady", True, True), ("everyone", True, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "name", "said", "again"),
    [
        pytest.param(way, *case, marks=() if i % len(WAYS) == k else pytest.mark.very_slow)
        for i, case in enumerate(DECLARED)
        for k, way in enumerate(WAYS)
    ],
)
def test_what_is_declared_goes_first(
    way: Any, name: str, said: bool | None, again: bool, same_bits: Callable[..., bool]
) -> None:
    op = getattr(OPS, name)
    plain, _ = step(chain(op), name)
    ct.rerun.declare(op, rerunnable=not said)
    ct.rerun.declare(decorated if name == "decorated" else op.default, rerunnable=said)
    assert (ct.rerun.why_once(op) is None) == again
    found, runs = step(way(chain(op)), name)
    assert same_bits(found, plain)
    assert runs > LAYERS if again else runs == LAYERS


@pytest.mark.parametrize("way", [in_a_region, in_a_planned_region])
def test_an_op_without_a_fake_kernel_is_held(way: Any, same_bits: Callable[..., bool]) -> None:
    """A graph cannot contain it, but an eager region can."""
    plain, _ = step(chain(OPS.unfaked), "unfaked")
    for said, again in ((None, False), (True, True)):
        ct.rerun.declare(OPS.unfaked, rerunnable=said)
        found, runs = step(way(chain(OPS.unfaked)), "unfaked")
        assert same_bits(found, plain)
        assert runs > LAYERS if again else runs == LAYERS


def test_reasons() -> None:
    reasons = {
        "plain": None, "decorated": None, "route": None,
        "unfaked": "it has no fake kernel",
        "seeded": "it draws random numbers (tag nondeterministic_seeded)",
        "unsteady": "its bits may differ from run to run (tag nondeterministic_bitwise)",
        "add_noise": "its name ('noise') says that it draws random numbers",
        "attend": "it draws random numbers if its argument dropout_p is not 0",
        "everyone": "its argument group_name says that it communicates",
        "all_gather_rows": "its name says that it communicates",
        "empty_rows": "its name says that it returns uninitialized memory",
        "with_generator": "its argument gen says that it draws random numbers",
        "acting": "it has effects",
        "lying": "its result shares memory with an argument",
        "filling": "it writes into its argument x",
        "counting": "it writes into its argument state",
        "telling": "it returns no tensor, so it is called for its effects",
        "making": "it reads no tensor, so its result comes from elsewhere",
        "writing_": "its name says that it writes into an argument",
    }  # fmt: skip
    assert {name: ct.rerun.why_once(getattr(OPS, name)) for name in reasons} == reasons
    ct.rerun.declare(OPS.plain, rerunnable=False)
    assert ct.rerun.why_once(OPS.plain) == "it is declared not to be rerunnable"
    assert ct.rerun.why_once(torch.ops._c10d_functional.wait_tensor) == "it communicates"
    opaque = held_because(torch.ops.higher_order.cond)
    assert opaque == "it is a higher-order operator, whose body is unknown"


def test_what_cannot_be_declared() -> None:
    for name in ("seeded", "acting", "lying", "filling", "counting", "telling", "writing_"):
        op = getattr(OPS, name)
        why = ct.rerun.why_once(op)
        text = re.escape(f"{name}.default cannot be declared rerunnable: {why}")
        with pytest.raises(ValueError, match=text):
            ct.rerun.declare(op, rerunnable=True)
        assert ct.rerun.why_once(op) == why
        ct.rerun.declare(op, rerunnable=False)  # which is the default
        assert ct.rerun.why_once(op) == why
        ct.rerun.declare(op, rerunnable=None)
    with pytest.raises(ValueError, match="is one of PyTorch's own"):
        ct.rerun.declare(torch.ops.aten.mm.default, rerunnable=False)
    for none in (torch.sin, "cutback_again::plain", torch.ops.higher_order.cond):
        with pytest.raises(TypeError, match="is not an op of a library"):
            ct.rerun.declare(none, rerunnable=True)
    before = ct.rerun.why_once(OPS.plain)
    for wrong in ("False", 0, 1, [], torch.tensor(True)):
        with pytest.raises(TypeError, match="is not True, False or None"):
            ct.rerun.declare(OPS.plain, rerunnable=wrong)
    assert ct.rerun.why_once(OPS.plain) == before


def test_kept_plans_ask_again() -> None:
    """PyTorch's cache of compiled code is not used across declarations."""
    partitioner = ct.Partitioner(budget="0.5x")
    before = partitioner.uuid()
    ct.rerun.declare(OPS.plain, rerunnable=False)
    assert partitioner.uuid() != before
    ct.rerun.declare(OPS.plain, rerunnable=None)
    assert partitioner.uuid() == before


@pytest.mark.parametrize("said", [None, True])
def test_routes_are_not_taken_again(said: bool | None) -> None:
    """An op that makes integers from floats may decide something: if bits may differ it runs once,
    unless the user declares otherwise."""
    ct.rerun.declare(OPS.route, rerunnable=said)

    def f(x: Any) -> Any:
        h = x.sin().exp()
        return h.cos().gather(1, OPS.route(h)[:, None]).sin()

    kinds = {}
    x = torch.randn(16, 8, requires_grad=True)
    for way in ("partitioner", "compile"):
        torch._dynamo.reset()
        if way == "compile":
            run = ct.compile(f, policy=CheckpointPolicy.MUST_RECOMPUTE)
            plans = run
        else:
            plans = ct.Partitioner(policy=CheckpointPolicy.MUST_RECOMPUTE)
            run = torch.compile(f, backend=aot_autograd(
                fw_compiler=lambda gm, inputs: make_boxed_func(gm), partition_fn=plans
            ))  # fmt: skip
        run(x).sum().backward()
        (op,) = [op for op in plans.plans[0].problem["ops"] if "route" in op["kind"]]
        kinds[way] = "unknown" in op["flags"]
    assert kinds == {"compile": False, "partitioner": said is None}


def test_cost(same_bits: Callable[..., bool]) -> None:
    """The cost of a run is given by PyTorch's formulas of arithmetic."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    from cutback.torch.graph import ops

    known = ops._kinds.pop(OPS.plain.default, None)
    try:
        register_flop_formula(OPS.plain)(lambda shape, *rest, **options: 1000 * shape[0])
        step_of = ct.trace(chain(OPS.plain), torch.randn(64, 64, requires_grad=True))
        found = [op for op in step_of.plan().problem["ops"] if "plain" in op["kind"]]
        assert len(found) == LAYERS
        assert all(op["flops"] == 64000 and op["flags"] == ["compute"] for op in found)
    finally:
        flop_registry.pop(OPS.plain)
        ops._kinds.pop(OPS.plain.default, None)
        if known is not None:
            ops._kinds[OPS.plain.default] = known


def test_graphs_of_such_ops(same_bits: Callable[..., bool]) -> None:
    """A pointwise op is not a product for presets; equal calls are not merged; compiled code
    ignores later declarations."""
    x = torch.randn(64, 64, requires_grad=True)
    document = ct.trace(
        lambda x: (OPS.pointwise(x) + OPS.plain(x) * OPS.plain(x)).sum(), x
    ).document
    flags = {op["kind"].split(".")[-2:][0]: op["flags"] for op in document["ops"]}
    assert flags["pointwise"] == ["fusible"] and flags["plain"] == ["compute"]
    assert sum("plain" in op["kind"] for op in document["ops"]) == 2
    run = compiled(chain(OPS.plain))
    before, runs = step(run, "plain")
    ct.rerun.declare(OPS.plain, rerunnable=False)
    after, same = step(run, "plain")
    assert same == runs > LAYERS and same_bits(after, before)


@pytest.mark.parametrize("name", ["unsteady", "add_noise", "everyone"])
@pytest.mark.parametrize("by", ["policy", "region"])
def test_single_calls_in_a_graph_are_a_policys(
    name: str, by: str, same_bits: Callable[..., bool]
) -> None:
    """An op that is not known to be a function is recomputed on request."""
    op = getattr(OPS, name)

    def layer(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(op, x, use_reentrant=False)

    plain, _ = step(chain(op), name)
    torch._dynamo.reset()
    if by == "policy":
        run = ct.compile(chain(op), policy=CheckpointPolicy.MUST_RECOMPUTE)
    else:
        run = ct.compile(chain(layer))
    found, runs = step(run, name)
    assert same_bits(found, plain) and runs > LAYERS
    kept = ct.compile(chain(OPS.plain), policy=[OPS.plain])
    assert step(kept, "plain")[1] == LAYERS


def test_grouped_products_of_transformers(
    ran: Counter[str], same_bits: Callable[..., bool]
) -> None:
    """A mixture of experts uses a fallback where PyTorch has no grouped product; it is recomputed,
    with the cost of a product."""
    pytest.importorskip("transformers.integrations.moe")
    grouped = torch.ops.transformers.grouped_mm_fallback
    torch.manual_seed(2)
    weights = torch.randn(LAYERS, 3, 16, 16) / 4
    ends = torch.tensor([80, 320, 512], dtype=torch.int32)

    def f(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = grouped(x, weight, ends).tanh()
        return x.sum()

    found = []
    for budget in (1.0, "min"):
        torch._dynamo.reset()
        leaves = [torch.ones(512, 16).requires_grad_(), weights.clone().requires_grad_()]
        run = ct.compile(f, budget=budget)
        run(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    assert same_bits(*found) and ran["backward"] == 2
    ops, steps = run.plans[0].problem["ops"], run.plans[0].document["steps"]
    kinds = [ops[i]["kind"] for i in steps]
    assert kinds.count("transformers.grouped_mm_fallback.default") > LAYERS
    product = 2 * 512 * 16 * 16
    assert {(op["kind"], op["flops"]) for op in ops if "grouped" in op["kind"]} == {
        ("transformers.grouped_mm_fallback.default", product),
        ("transformers.grouped_mm_fallback_backward.default", 2 * product),
    }
