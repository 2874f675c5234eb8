"""Training steps with ``codegen="native"`` have gradients close to those of PyTorch's kernels,
equal bits under every budget, and peaks at most as planned."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import small_models
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import cutback.torch as ct
from cutback.torch.compiler import backends
from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native.calls import laid
from cutback.torch.native.decisions import Decisions
from cutback.torch.native.grouping import Grouping, Kinds, arguments_of, results_of
from cutback.torch.native.layouts import Meta
from cutback.torch.native.lowering import NativeNote, Planned, lower


class Norm(nn.Module):
    """EvoNorm-S0 and its successors: one chain of fusable operations."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        shape = (1, channels, 1, 1)
        self.w, self.b, self.v = (nn.Parameter(torch.rand(shape) + 0.5) for _ in range(3))
        self.mix = nn.Parameter(torch.randn(channels, channels) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            g = x.reshape(x.shape[0], 4, -1)
            std = (g.var(dim=2, unbiased=False, keepdim=True) + 1e-5).sqrt()
            y = (x * torch.sigmoid(self.v * x)).reshape_as(g) / std
            x = y.reshape_as(x) * self.w + self.b
            x = torch.einsum("bchw,cd->bdhw", x, self.mix)
        return x.square().mean()


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns an MLP with layer norms, and 16 bits in the middle."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(24, 24) for _ in range(3))
            self.norm = nn.LayerNorm(24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(F.gelu(self.a(x)))
            with torch.autocast("cpu", torch.bfloat16):
                x = torch.tanh(self.b(x)) * 0.3
            return self.c(x.float()).softmax(-1).log().mean()

    return Model(), (torch.randn(10, 24),)


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns a GPT with dropout."""
    model = small_models.GPT(layers=2)
    return model, (torch.randint(50, (2, 12)), torch.randint(50, (2, 12)))


MODELS: dict[str, Callable[[], Any]] = {
    "gpt": gpt, "mlp": mlp, "norm": lambda: (Norm(), (torch.randn(2, 8, 6, 6),)),
}  # fmt: skip


def trained(name: str, **wishes: Any) -> tuple[list[torch.Tensor], Any]:
    """Returns loss and gradients of three steps under the same random numbers, and the compiled
    model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    step = ct.compile(copy.deepcopy(model), **wishes) if wishes else model
    found = []
    for seed in range(3):
        step.zero_grad()
        torch.manual_seed(seed)
        loss = step(*inputs)
        loss.backward()
        found += [loss.detach().clone(), *(p.grad.clone() for p in step.parameters())]
    return found, step


@pytest.mark.parametrize("name", [pytest.param("gpt", marks=pytest.mark.very_slow), "mlp", "norm"])
def test_models(name: str) -> None:
    """Gradients are close to PyTorch's, bits are equal under budgets, and peaks are as planned."""
    wanted, _ = trained(name)
    found, step = trained(name, codegen="native")
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if name == "mlp" else 1e-4, atol=1e-5)
    notes = step.compiler_notes
    assert [note.graph for note in notes] == ["forward", "backward"]
    assert all(note.groups for note in notes)
    for budget in (0.5, 0) if name == "gpt" else (0,):
        again, under = trained(name, codegen="native", budget=budget)
        assert all(map(torch.equal, again, found)), budget
        planned = under.plans[0].numbers["live_bytes"]
        assert under.allocator_stats.peak_bytes <= planned * 1.02 + 4096


@pytest.mark.very_slow
def test_threads_of_pytorch() -> None:
    """Our kernels run on the threads of PyTorch's OpenMP library, with the same bits, and a forked
    child, where those do not exist, runs on its own."""
    code = """
import os, torch
from torch.fx.experimental.proxy_tensor import make_fx
from cutback import _native
from cutback.torch.native import calls
from cutback.torch.native.lowering import lower
torch.set_num_threads(3)
x = torch.randn(512, 512)
f = lambda x: (x.exp() * 2).tanh()
gm, note = lower(make_fx(f)(x), "forward")
assert note.groups
threads = lambda: len(os.listdir("/proc/self/task"))
torch.mm(x, x)
before, wanted = threads(), gm(x)
passive = os.environ.get("OMP_WAIT_POLICY") == "passive"
assert calls.join_threads() is not passive
assert (threads() > before) == (passive and _native.get_num_threads() > 1)
child = os.fork()
if child == 0:
    os._exit(0 if (gm(x).numpy() == wanted.numpy()).all() else 1)
assert os.waitpid(child, 0)[1] == 0
_native.join_team(None)
assert torch.equal(gm(x), wanted)
assert not _native.join_team("/no/library")
"""
    for policy in ({}, {"OMP_WAIT_POLICY": "passive"}):
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **policy}, check=True)


def test_weights_do_not_count() -> None:
    """A backward receives views of weights, which the caller holds, and several views of one saved
    tensor, which is there once."""
    w, x = torch.randn(64, 64), torch.randn(8, 64)

    def f(primals_1: torch.Tensor, primals_2: torch.Tensor) -> Any:
        return primals_1.t(), (y := primals_2.exp()), y.view(64, 8)

    made = make_fx(f, tracing_mode="fake")(w, x)
    vals = [n.meta["val"] for n in next(iter(reversed(made.graph.nodes))).args[0]]
    graph = fx.Graph()
    args = []
    for i, val in enumerate(vals):
        args.append(graph.placeholder(f"saved_{i}"))
        args[-1].meta["val"] = val
    tanh = graph.call_function(torch.ops.aten.tanh.default, (args[1],))
    tanh.meta["val"] = vals[1].clone()
    graph.output(tanh)
    kept = arguments_of(made.graph)
    found = Grouping(Kinds(graph, kept=kept), lambda *_: True)
    assert found.before[0] == vals[1].numel() * 4 and found.most == 2 * vals[1].numel() * 4
    assert Grouping(Kinds(graph, kept=kept), lambda *_: True, most=7).most == 7


def test_by_name_of_the_backend() -> None:
    """The backend works by name, as an option of torch.compile."""
    wanted, _ = trained("norm")
    torch.manual_seed(0)
    model, inputs = MODELS["norm"]()
    step = torch.compile(model, backend="cutback", options={"codegen": "native", "budget": 0.5})
    step(*inputs).backward()
    for p, b in zip(model.parameters(), wanted[1:], strict=False):
        torch.testing.assert_close(p.grad, b, rtol=1e-4, atol=1e-5)


def test_backward_twice_and_hooks() -> None:
    """retain_graph and parameter hooks work as with PyTorch's kernels."""
    model, inputs = MODELS["norm"]()
    step = ct.compile(model, codegen="native")
    seen = []
    model.w.register_hook(lambda g: seen.append(g.clone()))
    loss = step(*inputs)
    loss.backward(retain_graph=True)
    first = model.w.grad.clone()
    loss.backward()
    assert torch.equal(model.w.grad, 2 * first)
    assert len(seen) == 2


def test_threads_share_executables() -> None:
    """Three threads run one model without gradients: there is one graph, and no plan."""
    model, inputs = MODELS["norm"]()
    step = ct.compile(model, codegen="native")
    with torch.no_grad():
        wanted = step(*inputs)
        torch.testing.assert_close(wanted, model(*inputs))
        wrong = []

        def run() -> None:
            with torch.no_grad():
                for _ in range(50):
                    if not torch.equal(step(*inputs), wanted):
                        wrong.append(1)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong
    assert [note.graph for note in step.compiler_notes] == ["inference"]


# ---- graphs -------------------------------------------------------------------------------------


def traced(f: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """Returns a function's graph, with fake tensors. The caller keeps ownership of its
    arguments."""
    gm = make_fx(f, tracing_mode="fake")(*inputs)
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        node.name = f"primals_{i}"
    return gm


def test_a_view_of_a_result_is_shared() -> None:
    """Views inside a group are not calls, and returned views share the group's memory."""
    x = torch.randn(64, 60)
    gm = traced(lambda x: ((y := x.exp().view(32, 120)).sum(0), y, y.t()), x)
    made, note = lower(gm, "forward")
    assert note.groups == [("aten.exp", "aten.sum.dim_IntList")]
    total, y, t = compile_boxed(made)([x])
    torch.testing.assert_close(y, x.exp().view(32, 120))
    torch.testing.assert_close(total, y.sum(0))
    assert t.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


PARTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "row": lambda x: x[1],
    "columns": lambda x: x[:, 1:4],
    "every other": lambda x: x[:, 1::2],
    "every other, reversed axes": lambda x: x.t()[1::2],
    "one": lambda x: x[2, 3],
    "repeated": lambda x: x[:, 2:3].expand(-1, 5),
    "piece of a piece": lambda x: x.view(2, 2, 6)[:, 1, 2:][:, ::3],
    "split": lambda x: x.split([2, 4], 1)[1],
    "chunk": lambda x: x.unsafe_chunk(3, 1)[2],
    "diagonal blocks": lambda x: x[:, :4].view(2, 2, 4).transpose(0, 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_tensors(name: str) -> None:
    """Parts of an argument, of a group's result and of a PyTorch result are read in place."""
    x, part = torch.randn(4, 6), PARTS[name]

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        z = x @ x.t() @ x
        return part(x).tanh() * 2, part(y).sin(), part(z).square().sum(), part(y)

    gm = traced(f, x)
    made, note = lower(gm, "forward")
    assert not [f for f in note.foreign if f.op != "aten.mm"], note
    assert len(note.groups) == 2, note
    for a, b in zip(compile_boxed(made)([x]), f(x), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_overlapping_parts_stay_pytorchs() -> None:
    """Overlapping windows are not a block of an array, so the group ends before them."""
    x = torch.randn(4, 6)
    gm = traced(lambda x: x.exp().unfold(1, 3, 1).tanh(), x)
    made, note = lower(gm, "forward", everything=True)
    assert note.groups == [("aten.exp",)]
    assert [f.reason for f in note.foreign] == ["a tensor has gaps between its elements"]
    torch.testing.assert_close(compile_boxed(made)([x]), x.exp().unfold(1, 3, 1).tanh())


class Rows(nn.Module):
    """Softmax, norms and reductions over tensors of any number of rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [rows, columns, 6] to a scalar."""
        y, gate = self.a(x).chunk(2, -1)
        x = self.norm(x + self.b(y * torch.sigmoid(gate)))
        p = (x @ x.transpose(1, 2) / x.shape[1]).softmax(-1)
        return (p * p.mean(1, keepdim=True)).sum((1, 2)).square().mean()


@pytest.mark.very_slow
@pytest.mark.parametrize("budget", [pytest.param(None, marks=pytest.mark.very_slow), 0])
def test_sizes_that_vary(budget: int | None) -> None:
    """Groups work for all sizes of a graph, without another trace."""
    torch.manual_seed(0)
    model = Rows()
    traces = []
    plain = copy.deepcopy(model)
    step = ct.compile(model, codegen="native", dynamic=True, budget=budget)
    for rows, columns in ((3, 5), (4, 9), (2, 3), (3, 5), (17, 4)):
        x = torch.randn(rows, columns, 6, requires_grad=True)
        own = x.detach().clone().requires_grad_()
        plain.zero_grad()
        step.zero_grad()
        plain(own).backward()
        step(x).backward()
        pairs = [(x, own), *zip(model.parameters(), plain.parameters(), strict=True)]
        for a, b in pairs:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
        traces.append(len(step.compiler_notes))
    note = step.compiler_notes[0]
    assert traces == [2] * 5
    assert not [f for f in note.foreign if "varies" in f.reason or "size" in f.reason]
    assert any("aten._softmax" in group for group in note.groups)


def test_sizes_that_no_row_takes() -> None:
    """PyTorch computes a mean over an axis that turns out to be empty."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2)[2:].mean(0).tanh()

    step = torch.compile(f, backend="cutback", options={"codegen": "native"}, dynamic=True)
    for rows in (5, 3, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(step(x), f(x), equal_nan=True)


def test_a_row_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node refused by our kernels stays with PyTorch, with the reason."""
    from cutback.torch.native import pointwise, table

    def refuse(*args: Any) -> Any:
        raise ValueError("not today")

    monkeypatch.setitem(table.ROWS, torch.ops.aten.tanh.default, pointwise.row(refuse))
    x = torch.randn(8, 8)
    made, note = lower(traced(lambda x: (x.exp().tanh() * 2).sin().sum(0), x), "forward")
    (foreign,) = note.foreign
    assert foreign.op == "aten.tanh" and "our kernels refuse it: not today" in foreign.reason
    torch.testing.assert_close(compile_boxed(made)([x]), (x.exp().tanh() * 2).sin().sum(0))


def test_later_readers_join() -> None:
    """A sum after a product joins the group that computes its input."""
    x, w = torch.randn(512, 8), torch.randn(8, 8)

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        z = y[:1] @ w
        return z, y.sum(0), y @ y.t()

    made, note = lower(traced(f, x, w), "forward")
    assert note.groups == [("aten.exp", "aten.sum.dim_IntList")]
    for a, b in zip(compile_boxed(made)([x, w]), f(x, w), strict=True):
        torch.testing.assert_close(a, b)


def test_readers_do_not_pass_writes() -> None:
    """Ops after a write into memory read the new content."""
    x, w = torch.randn(16, 8).double(), torch.randn(16, 8).double()

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        w.copy_(y @ y.t() @ w)
        return (y * w).tanh().sum(0)

    made, _ = lower(traced(f, x, w.clone()), "forward")
    mine, theirs = w.clone(), w.clone()
    torch.testing.assert_close(compile_boxed(made)([x, mine]), f(x, theirs))
    torch.testing.assert_close(mine, theirs)


def test_no_group_raises_the_peak() -> None:
    """Two chains whose results are added at once: a single group would hold both arguments."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = (x @ w).exp().sum()
        for _ in range(4):
            total = total + (x @ w).exp().sum()
        return total

    gm = traced(f, torch.randn(64, 64), torch.randn(64, 64))
    kinds = Kinds(gm.graph)
    grouping = Grouping(kinds, lambda nodes, room: True)
    for item in grouping.arrange():
        if isinstance(item, list):
            there = grouping.before[grouping.at[item[0]]] + results_of(item, kinds).bytes
            assert there <= grouping.most


def test_a_saved_part_holds_its_whole_tensor() -> None:
    """A backward that takes parts of one tensor holds all of it until the last one is read."""
    fused = torch.randn(8, 12)

    def f(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ v.t()) @ v

    gm = make_fx(f, tracing_mode="fake")(*fused.chunk(3, dim=1)[::2])
    grouping = Grouping(Kinds(gm.graph), lambda nodes, room: True)
    assert max(grouping.live) == fused.nbytes + 4 * (8 * 8 + 8 * 4)


def test_groups_are_cut_where_kernels_need_too_much() -> None:
    """Groups are cut down to single nodes if their kernels always need too much."""
    gm = traced(lambda x: x.exp().tanh().sin().sum(0), torch.randn(8, 8))
    whole = Grouping(Kinds(gm.graph), lambda nodes, room: True).arrange()
    cut = Grouping(Kinds(gm.graph), lambda nodes, room: len(nodes) < 3).arrange()
    assert [len(item) for item in whole if isinstance(item, list)] == [4]
    assert [len(item) for item in cut if isinstance(item, list)] == [2, 2]


def test_a_group_keeps_to_its_room() -> None:
    """If a group's kernels need more than the plan leaves, the group is planned within that."""
    x = torch.randn(8, 4096)

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = x.exp()
            x = (y / y.sum(0, keepdim=True) - y.mean(1, keepdim=True)).tanh()
        return x

    made, note = lower(traced(f, x), "forward")
    torch.testing.assert_close(compile_boxed(made)([x]), f(x))
    assert sum(map(len, note.groups)) >= 12


def test_arguments_in_another_layout() -> None:
    """Kernels whose results have another layout than PyTorch's shape function says are detected."""
    x = torch.randn(6, 4)
    gm = traced(lambda x: x.exp().sum(0), x)
    made, _ = lower(gm, "forward")
    other = torch.randn(4, 6).t()
    torch.testing.assert_close(compile_boxed(made)([other]), other.exp().sum(0))
    torch.testing.assert_close(compile_boxed(made)([x.double()]), x.exp().sum(0))
    wide = Meta((5, 4), (0, 1), torch.float32)
    given = torch.randn(1, 8)[:, ::2].expand(5, 4)
    assert torch.equal(laid(given, wide), given[:1])


def test_says_what_stays_foreign() -> None:
    """The text has counts, reasons and shares of the time, the most expensive first."""
    model, inputs = MODELS["gpt"]()
    step = ct.compile(model, codegen="native")
    step(*inputs).backward()
    forward = step.compiler_notes[0]
    assert isinstance(forward, NativeNote)
    reasons = {f.op: f.reason for f in forward.foreign}
    assert reasons["aten.addmm"] == "products stay with PyTorch"
    assert reasons["aten.native_dropout"] == "PyTorch draws its random numbers"
    assert "operations in" in str(forward) and "aten.addmm" in str(forward)
    for note in step.compiler_notes:
        shares = [f.share for f in note.foreign]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) < 1
        assert "% of the time)" in str(note)
    gm = traced(lambda x: ((x @ x).sin() @ x.half().float()).exp().sum(), torch.randn(4, 4))
    times = {"mm": 1.0, "mm_1": 5.0, "sin": 2.0, "exp": 2.0}
    _, note = lower(gm, "forward", planned=Planned(times))
    assert str(note.foreign[0]).startswith(
        "2 aten.mm (products stay with PyTorch, 60% of the time)"
    )


def test_other_devices() -> None:
    """Tensors on a GPU stay with PyTorch."""
    with FakeTensorMode():
        x = torch.empty(4, device="cuda")
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    for _ in range(2):
        node = graph.call_function(torch.ops.aten.exp.default, (node,))
        node.meta["val"] = x
    graph.output(node)
    _, note = lower(fx.GraphModule({}, graph), "forward")
    assert [(f.op, f.calls, f.reason) for f in note.foreign] == [("aten.exp", 2, "it is on cuda:0")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype: torch.dtype) -> None:
    """PyTorch draws the masks, so the bits are its own."""
    x = torch.randn(40, 50, dtype=dtype)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, mask = torch.native_dropout(x, 0.3, True)
        return (y + x).exp(), mask

    gm = traced(f, x)
    made, note = lower(gm, "forward")
    assert [(f.op, f.reason) for f in note.foreign] == [
        ("aten.native_dropout", "PyTorch draws its random numbers")
    ]
    assert note.groups == [("aten.native_dropout_backward", "aten.add.Tensor", "aten.exp")]
    torch.manual_seed(3)
    wanted, mask = f(x)
    torch.manual_seed(3)
    found, drawn = compile_boxed(made)([x])
    assert torch.equal(drawn, mask)
    torch.testing.assert_close(found, wanted)


def test_scratch_of_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose kernels need too much scratch stays with PyTorch."""
    from cutback.torch.native import choosing, table

    x = torch.randn(64, 4096)
    _, note = lower(traced(lambda x: x.exp().sum(0), x), "forward")
    assert not note.foreign
    monkeypatch.setattr(choosing, "_SCRATCH", 256)
    row = table.ROWS[torch.ops.aten.sum.dim_IntList]
    monkeypatch.setitem(table.ROWS, torch.ops.aten.sum.dim_IntList, row._replace(scratch=0.0))
    _, note = lower(traced(lambda x: x.exp().sum(0), x), "forward")
    assert note.foreign[0].op == "aten.sum.dim_IntList"
    assert "bytes of scratch" in note.foreign[0].reason
    _, note = lower(traced(lambda x: x.exp().sum(1), x), "forward")
    assert not note.foreign


def test_measured_slower() -> None:
    """Calls that PyTorch's kernels run faster stay with PyTorch; this depends on the call."""
    x = torch.randn(128, 64)
    gm = traced(lambda x: (F.gelu(x).exp(), F.gelu(x, approximate="tanh").exp()), x)
    _, note = lower(gm, "forward")
    assert [(f.op, f.reason) for f in note.foreign] == [("aten.gelu", "PyTorch's kernel is faster")]
    assert sorted(op for group in note.groups for op in group) == ["aten.exp"] * 2 + ["aten.gelu"]
    _, note = lower(gm, "forward", everything=True)
    assert note.foreign == []


def test_notes_of_replaced_plans_go() -> None:
    """Only notes of the code in use remain."""
    first = traced(lambda x: x.exp().sum(0), torch.randn(4, 4))
    second = traced(lambda x: x.tanh().sum(0), torch.randn(4, 4))
    partitioner: Any = types.SimpleNamespace(
        door=types.SimpleNamespace(native=True),
        compiler_notes=["of another graph"],
        kernels=Decisions(),
        plans=[],
    )
    latest: dict[str, NativeNote] = {}
    for gm in (first, second):
        backends._lowered(gm, "forward", partitioner, latest)
    backends._lowered(first, "backward", partitioner, latest)
    assert partitioner.compiler_notes == ["of another graph", *latest.values()]
    assert latest["forward"].groups == [("aten.tanh", "aten.sum.dim_IntList")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_several_types(dtype: torch.dtype) -> None:
    """Statistics reach PyTorch's backward in the type that its kernels expect."""
    w = torch.rand(8)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.silu(x), (8,), w)

    step = torch.compile(f, backend="cutback", options={"codegen": "native"})
    x = torch.randn(5, 8, dtype=dtype, requires_grad=True)
    own = x.detach().clone().requires_grad_()
    step(x).float().square().sum().backward()
    f(own).float().square().sum().backward()
    torch.testing.assert_close(x.grad, own.grad)


def test_unknown_codegen() -> None:
    """The error lists all valid names."""
    with pytest.raises(ValueError, match="one of eager, native, inductor"):
        ct.compile(Norm(), codegen="fast")


def test_foreign_operations_of_a_whole_step_are_few() -> None:
    """A chain without products has none."""
    gm = traced(
        lambda x, y: F.mse_loss(F.silu(x) * 2 + y, y).sqrt(), torch.randn(9), torch.randn(9)
    )
    _, note = lower(gm, "forward")
    assert note.foreign == []
