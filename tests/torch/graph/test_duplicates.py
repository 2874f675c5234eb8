"""A value that a graph computes twice is computed once, and nothing else changes."""

from __future__ import annotations

import copy
import operator
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from small_models import make
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import cutback.torch as ct
from cutback import _native
from cutback.torch.graph.duplicates import merge_duplicates

aten = torch.ops.aten


# ---- the search ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_search_agrees_with_written_out_expressions(seed: int) -> None:
    rng = random.Random(seed)
    keys: list[int] = []
    starts, inputs, texts = [0], [], []
    for i in range(400):
        reads = [rng.randrange(max(0, i - 12), i) for _ in range(rng.randrange(3))] if i else []
        key = rng.choice((0, 1, 2, 3, 2**32 - 1))
        keys.append(key)
        inputs += reads
        starts.append(len(inputs))
        name = f"only{i}" if key == 2**32 - 1 else str(key)
        text = f"{name}({' '.join(texts[r] for r in reads)})"
        texts.append(text if len(text) < 10000 else f"only{i}")
        keys[i] = 2**32 - 1 if texts[i] == f"only{i}" else key
    found = _native.find_duplicates(keys, starts, inputs)
    assert found == [texts.index(t) for t in texts]
    assert any(f != i for i, f in enumerate(found))


def test_bad_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="node 0: input 0 is not an earlier node"):
        _native.find_duplicates([1], [0, 1], [0])
    with pytest.raises(ValueError, match="1 starts for 1 nodes"):
        _native.find_duplicates([1], [0], [])
    with pytest.raises(TypeError):
        _native.find_duplicates([1.5], [0, 0], [])  # type: ignore[list-item]


# ---- graphs ----------------------------------------------------------------------------------

OPERATORS: list[tuple[Any, Callable[[random.Random], tuple[Any, ...]], int]] = [
    (aten.sin.default, lambda r: (), 1),
    (aten.mul.Tensor, lambda r: (), 2),
    (aten.sub.Tensor, lambda r: (), 2),
    (aten.mul.Scalar, lambda r: (r.choice([1, 1.0, True, 0.0, -0.0, float("nan"), 2]),), 1),
    (aten.view.default, lambda r: (r.choice([[4, 4], [16], [2, 8]]),), 1),
    (aten.sum.dim_IntList, lambda r: ([0], True), 1),
    (aten.clone.default, lambda r: (), 1),
]


def random_graph(seed: int) -> fx.GraphModule:
    rng = random.Random(seed)
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(2)]
    with FakeTensorMode():
        for node in nodes:
            node.meta["val"] = torch.empty(4, 4)
        while len(nodes) < 60:
            target, constants, n = rng.choice(OPERATORS)
            args = (*(rng.choice(nodes[-15:]) for _ in range(n)), *constants(rng))
            try:
                val = target(*fx.map_arg(args, lambda a: a.meta["val"]))
            except RuntimeError:
                continue  # shapes that do not match
            node = graph.call_function(target, args)
            node.meta["val"] = val
            nodes.append(node)
    graph.output(tuple(nodes[-4:]))
    return fx.GraphModule({}, graph)


def equal_expressions(gm: fx.GraphModule) -> int:
    """Returns the number of nodes that could be removed, compared as text, except outputs and their
    memory."""
    (end,) = gm.graph.find_nodes(op="output")
    held = {n.meta["val"].untyped_storage()._cdata for n in end.args[0]}
    seen: dict[Any, None] = {}
    numbers: dict[fx.Node, int] = {}
    merged = 0
    for i, node in enumerate(gm.graph.nodes):
        if node is end:
            continue
        alone = node.op == "placeholder" or node.meta["val"].untyped_storage()._cdata in held
        row: tuple[Any, ...] = (i,)
        if not alone:
            args = [("node", numbers[a]) if isinstance(a, fx.Node) else (str(type(a)), str(a))
                    for a in node.args]  # fmt: skip
            row = (str(node.target), *args)
        merged += row in seen
        seen.setdefault(row)
        numbers[node] = list(seen).index(row)
    return merged


def test_random_graphs_compute_the_same() -> None:
    total = 0
    for seed in range(30):
        gm = random_graph(seed)
        x = [torch.randn(4, 4), torch.tensor([0.0, -0.0, torch.inf, 1.0]).repeat(4, 1)]
        before = [t.contiguous().view(torch.int32) for t in gm(*x)]
        expected = equal_expressions(gm)
        assert merge_duplicates(gm, 0)[0] == expected
        gm.graph.lint()
        gm.recompile()
        after = [t.contiguous().view(torch.int32) for t in gm(*x)]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert merge_duplicates(gm, 0)[0] == 0
        total += expected
    assert total > 50


# ---- steps -----------------------------------------------------------------------------------


def kinds_of(compiled: Any) -> Counter[str]:
    (plan,) = compiled.plans
    return Counter(op["kind"] for op in plan.problem["ops"])


def both(f: Callable[..., Any], *inputs: Any, loss: Any = torch.sum, **options: Any) -> list[Any]:
    """Compiles with and without merging; checks that outputs and gradients have eager mode's
    bits."""
    results, compiled = [], []
    for cse in (None, True, False):
        own = [t.clone().requires_grad_(t.requires_grad) for t in inputs]
        call = f
        if cse is not None:
            torch._dynamo.reset()
            call = ct.compile(f, cse=cse, **options)
            compiled.append(call)
        torch.manual_seed(5)
        out = call(*own)
        loss(out).backward()
        results.append((out, [t.grad for t in own], own))
    flat = [torch.utils._pytree.tree_leaves(r) for r in results]
    for other in flat[1:]:
        for a, b in zip(flat[0], other, strict=True):
            assert a is b or torch.equal(a, b)
    return compiled


def test_a_derivatives_copy_of_a_forward_value(ran: Counter[str]) -> None:
    x = torch.randn(32, 32, requires_grad=True)
    merged, plain = both(lambda x: (torch.sin(x) * torch.cos(x)).sum(), x)
    assert kinds_of(plain)["aten.cos.default"] == 2 and kinds_of(merged)["aten.cos.default"] == 1
    assert kinds_of(plain)["aten.sin.default"] == 2 and kinds_of(merged)["aten.sin.default"] == 1
    assert ran == {"forward": 2, "backward": 2}


def test_outputs_stay_apart(ran: Counter[str]) -> None:
    """Two equal outputs stay two tensors, and one may be overwritten before the backward."""

    def loss(out: Any) -> Any:
        a, b = out
        with torch.no_grad():
            a.mul_(2)
        return (a + b).sum()

    x = torch.randn(32, requires_grad=True)
    for compiled in both(lambda x: (torch.cos(x), torch.cos(x) + 0), x, loss=loss):
        assert kinds_of(compiled)["aten.cos.default"] == 2
    both(lambda x: (torch.cos(x), torch.cos(x)), x, loss=loss)
    # the sine's derivative must not read the cosine that the user overwrites
    both(lambda x: (torch.cos(x), torch.sin(x)), x, loss=loss)
    assert ran == {"forward": 6, "backward": 6}


def test_written_memory_is_left_alone(ran: Counter[str]) -> None:
    def f(x: Any, state: Any) -> Any:
        before = torch.sin(state)
        state.add_(1)
        return (x * before * torch.sin(state)).sum()

    both(f, torch.randn(16, requires_grad=True), torch.randn(16))
    assert ran == {"forward": 2, "backward": 2}


def test_draws_and_unfilled_memory_stay_apart(ran: Counter[str]) -> None:
    def f(x: Any) -> Any:
        a, b = F.dropout(x, 0.5), F.dropout(x, 0.5)
        return (a * b + torch.rand(64) * torch.rand(64)).sum()

    merged, plain = both(f, torch.ones(64, requires_grad=True))
    assert kinds_of(merged)["aten.native_dropout.default"] == 2
    assert kinds_of(merged)["aten.rand.default"] == 2 == kinds_of(plain)["aten.rand.default"]
    graph = fx.Graph()
    with FakeTensorMode():
        empties = [graph.call_function(aten.empty.memory_format, ([4],)) for _ in range(2)]
        for node in empties:
            node.meta["val"] = torch.empty(4)
        total = graph.call_function(aten.add.Tensor, tuple(empties))
        total.meta["val"] = torch.empty(4)
    graph.output((total,))
    assert merge_duplicates(fx.GraphModule({}, graph), 0) == (0, [])


def test_regions_stay_apart(ran: Counter[str]) -> None:
    """A checkpoint's values are not merged with saved values outside it."""

    def block(x: Any) -> Any:
        return torch.exp(torch.sin(x)) * 2

    def f(x: Any) -> Any:
        return (checkpoint(block, x, use_reentrant=False) * block(x)).sum()

    merged, _ = both(f, torch.randn(64, requires_grad=True))
    assert kinds_of(merged)["aten.exp.default"] == 2


def test_tuples_merge_with_their_parts(ran: Counter[str]) -> None:
    def f(x: Any) -> Any:
        return (F.layer_norm(x, (32,)) * F.layer_norm(x, (32,))).sum()

    merged, plain = both(f, torch.randn(8, 32, requires_grad=True), budget="min")
    name = "aten.native_layer_norm.default"
    assert kinds_of(merged)[name] == 1 and kinds_of(plain)[name] == 2
    getitem = f"{operator.getitem.__module__}.getitem"
    assert kinds_of(merged)[getitem] < kinds_of(plain)[getitem]


def test_views_of_what_was_merged_take_no_memory(ran: Counter[str]) -> None:
    """The fake value of a view of a merged value refers to the memory of the removed node."""

    def f(x: Any) -> Any:
        row, column = x.cos().unsqueeze(0), x.cos().unsqueeze(1)  # one cosine, two views
        left, right = x.sigmoid().split(32), x.sigmoid().split(32)  # parts of two tuples
        return (row - column).exp().sum() + (left[0] * right[1]).exp().sum()

    x = torch.randn(64, requires_grad=True)
    for budget in (None, "min"):
        merged, _ = both(f, x, budget=budget)
        (plan,) = merged.plans
        views = [op for op in plan.problem["ops"] if "unsqueeze" in op["kind"]]
        assert len(views) == 2 and all("view" in op["flags"] for op in views)
        with ct.MemoryTracker() as memory:
            merged(x).backward()
        assert memory.peak_bytes == plan.numbers["live_bytes"]


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("gpt", "0.7x"),
        ("resnet", None),
        pytest.param("resnet", "0.7x", marks=pytest.mark.very_slow),
        pytest.param("gpt", None, marks=pytest.mark.very_slow),
    ],
)
def test_models_keep_their_bits(
    name: str, budget: Any, ran: Counter[str], train_step: Callable[..., Any],
    same_bits: Callable[..., bool],
) -> None:  # fmt: skip
    model, inputs = make(name)
    steps = []
    for cse in (True, False):
        torch._dynamo.reset()
        compiled = ct.compile(copy.deepcopy(model), budget=budget, cse=cse)
        steps.append((train_step(compiled, *inputs), len(compiled.plans[0].problem["ops"])))
        assert steps[-1][0].peak_bytes == compiled.plans[0].numbers["live_bytes"]
    (merged, n_merged), (plain, n_plain) = steps
    assert same_bits(merged.loss, plain.loss) and same_bits(merged.gradients, plain.gradients)
    assert same_bits(merged.buffers, plain.buffers)
    assert n_merged < n_plain if name == "gpt" else n_merged <= n_plain
    assert merged.peak_bytes <= plain.peak_bytes
    assert ran == {"forward": 2, "backward": 2}


def test_sizes_that_change(ran: Counter[str]) -> None:
    def f(x: Any) -> Any:
        a = torch.ones(x.shape[0], x.shape[0]).tril() @ x
        return (a * (torch.ones(x.shape[0], x.shape[0]).tril() @ x.cos())).sum()

    for n in (5, 9):
        both(f, torch.randn(n, 8, requires_grad=True), dynamic=True)
    assert ran["backward"] == 4
