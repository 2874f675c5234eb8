"""Masks kept as bits and indices in few bytes: the operators, and steps whose bits and memory are
those planned."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from agreement import two_backwards
from functorch.compile import aot_function
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import cutback
import cutback.torch as ct
from cutback import _native
from cutback.torch.compiler.compiled import CompiledModule
from cutback.torch.compiler.preparing import Preparation, prepare
from cutback.torch.graph import codegen
from cutback.torch.graph.emitter import emit
from cutback.torch.graph.packed_ops import (
    KEEP_BY_BITS,
    PACK_BITS,
    PACK_INDICES,
    PACK_SIGNS,
    PACK_WINDOWS,
    UNPACK_BITS,
    UNPACK_INDICES,
    UNPACK_WINDOWS,
    keep_by_arithmetic,
    pack_by_arithmetic,
    unpack_by_arithmetic,
    windows_by_arithmetic,
)

aten = torch.ops.aten

# ---- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (), (1,), (7,), (8,), (3, 5, 7), (2, 16, 33)])
def test_bits_come_back_in_every_layout(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(shape, generator=generator) < 0.5
    for given in (x, x.t() if x.dim() == 1 else x.transpose(0, -1) if x.dim() > 1 else x):
        dense = torch.empty_strided(given.shape, given.stride(), dtype=torch.bool).copy_(given)
        packed = PACK_BITS(dense, dense.stride())
        assert packed.dtype == torch.uint8 and packed.numel() == (x.numel() + 7) // 8
        back = UNPACK_BITS(packed, dense.shape, dense.stride())
        assert torch.equal(back, dense) and back.stride() == dense.stride()
        # a tensor with other strides than those of the trace
        assert torch.equal(PACK_BITS(given.contiguous(), dense.stride()), packed)


@pytest.mark.parametrize("n", [0, 1, 8, 9, 1000])
def test_the_arithmetic_of_other_devices_gives_the_same_bits(n: int) -> None:
    x = torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.3
    packed = PACK_BITS(x, (1,))
    assert torch.equal(pack_by_arithmetic(x), packed)
    back = torch.empty(n, dtype=torch.bool)
    unpack_by_arithmetic(packed, back)
    assert torch.equal(back, x)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.uint8, 255), (torch.uint16, 65535), (torch.int32, 2**31 - 1)]
)
def test_indices_come_back(dtype: torch.dtype, most: int) -> None:
    x = torch.tensor([[0, 1, most], [most - 1, most // 2, 7]]).t()
    packed = PACK_INDICES(x, dtype)
    assert packed.dtype == dtype and torch.equal(UNPACK_INDICES(packed), x)
    assert UNPACK_INDICES(packed).stride() == x.stride()


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_positions_in_windows_come_back(axes: int, ceil_mode: bool) -> None:
    pool = (None, None, aten.max_pool2d_with_indices, aten.max_pool3d_with_indices)[axes]
    x = torch.randint(0, 3, (2, 2, 7, 11, 9)[3 - axes :]).float()  # with ties
    for kernel, stride, pad, dilation in itertools.product((2, 3), (1, 2, 3), (0, 1), (1, 2)):
        options = [[n] * axes for n in (kernel, stride, pad, dilation)]
        index = pool(x, *options, ceil_mode)[1]
        sizes = [n for part in (x.shape[-axes:], *options) for n in part]
        packed = PACK_WINDOWS(index, sizes, torch.uint8)
        assert packed.max() < kernel**axes
        assert torch.equal(UNPACK_WINDOWS(packed, sizes), index)
        for given, wanted in ((index, packed), (packed, index)):
            found = torch.empty_like(wanted)
            windows_by_arithmetic(given, sizes, found)
            assert torch.equal(found, wanted)


def test_windows_that_do_not_fit_are_refused() -> None:
    index, packed = np.zeros(6, np.int64), np.zeros(6, np.uint8)
    one, none = (1, 1, 1), (0, 0, 0)
    for windows, given, pad in (
        ((1, 2, 2), packed, none),
        ((1, 2, 3), packed[:5], none),
        ((1, 2, 3), packed, (-1, 0, 0)),
        ((0, 2, 3), packed, none),
    ):
        with pytest.raises(ValueError, match="6 indices of these windows do not fit"):
            _native.pack_windows(index, given, windows, (1, 2, 3), one, one, pad, one)
    packed.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        _native.pack_windows(index, packed, (1, 2, 3), (1, 2, 3), one, one, none, one)


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_signs_keep_what_a_threshold_keeps(dtype: torch.dtype) -> None:
    special = torch.tensor(
        [0.0, -0.0, 1e-7, -1.0, 2.0, torch.inf, -torch.inf, torch.nan, -torch.nan]
    )
    y = special.repeat(7)[:56].view(4, 2, 7).to(dtype).transpose(0, 2)
    g = torch.randn(7, 2, 4).to(dtype)
    bits = PACK_SIGNS(y, y.stride())
    kept = KEEP_BY_BITS(g, bits, y.stride())
    expected = torch.ops.aten.threshold_backward(g, y, 0)
    assert bits.nbytes == 7
    assert kept.stride() == y.stride()
    raw = {2: torch.int16, 4: torch.int32, 8: torch.int64}[y.element_size()]
    assert torch.equal(kept.contiguous().view(raw), expected.contiguous().view(raw))
    assert torch.equal(bits, pack_by_arithmetic(~(y.transpose(0, 2) <= 0).flatten()))
    flat, others = g.transpose(0, 2).flatten(), torch.empty_like(g.flatten())
    keep_by_arithmetic(flat, bits, others)
    assert torch.equal(others.view(raw), kept.transpose(0, 2).flatten().view(raw))
    buffer = torch.zeros(g.nbytes + 1, dtype=torch.uint8).numpy()
    apart = torch.frombuffer(buffer.data, dtype=dtype, offset=1).view(g.shape).copy_(g)
    assert torch.equal(KEEP_BY_BITS(apart, bits, y.stride()).view(raw), kept.view(raw))


def test_shapes_without_data() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 5, dtype=torch.bool)
        packed = PACK_BITS(x, x.stride())
        assert packed.shape == (2,) and packed.dtype == torch.uint8
        assert UNPACK_BITS(packed, x.shape, x.stride()).shape == x.shape


# ---- steps ---------------------------------------------------------------------------------------


class Drops(nn.Module):
    """Layers of a sine and a dropout. Masks are drawn once; sines can run again."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = F.dropout(torch.sin(x * scale), 0.25)
        return x.square().sum()


class Fills(nn.Module):
    """Masks that are computed, and read by views."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x)
        for k, scale in enumerate(self.scales):
            mask = (noise > 0.1 * k).view(-1).view(x.shape)
            x = torch.sin(x * scale).masked_fill(mask, 0.5)
        return x.square().sum()


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = F.max_pool2d(torch.sin(x * scale), 3, stride=1, padding=1)
        return x.square().sum()


class Rectifies(nn.Module):
    """Layers whose ReLUs' results only dropouts read, as in feed-forward layers."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = F.dropout(torch.relu(x * scale), 0.25)
        return x.square().sum()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Returns the operations of the graphs that a model compiles to."""
    found: dict[str, list[str]] = {}
    function = codegen._function

    def keep(gm: Any, name: str, watch: Any) -> Any:
        found[name] = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
        return function(gm, name, watch)

    monkeypatch.setattr(codegen, "_function", keep)
    return found


def _unpacked(step: Any) -> int:
    """Returns the number of values that the plan keeps packed and unpacks in the backward. A value
    that the backward makes again is packed there as well, and its readers read the value itself."""
    plan = step.plans[0]
    late = [plan.parts.ops[s.op].kind for s in plan.core.steps[plan.core.backward_starts :]]
    pairs = zip(["", *late], late, strict=False)
    return sum("cutback.unpack" in k and "cutback.pack" not in before for before, k in pairs)


def _seen(step: Any, model: nn.Module, *inputs: Any) -> list[torch.Tensor]:
    """Returns the loss, and the gradients after each of two backwards of one graph."""
    torch.manual_seed(3)
    return two_backwards(step, model, *inputs)


def _compare(
    model: nn.Module, same_bits: Callable[..., bool], *inputs: Any, **options: Any
) -> CompiledModule:
    """Compares a packed step with a plain one; returns the packed one."""
    plain = ct.compile(copy.deepcopy(model))
    packed = ct.compile(model, packed=True, **options)
    expected = _seen(plain, plain, *inputs)
    for _ in range(2):
        assert same_bits(_seen(packed, model, *inputs), expected)
    return packed


@pytest.mark.parametrize(
    ("model", "shape", "budget"),
    [
        pytest.param(Drops, (91, 97), "smallest", id="dropouts"),
        pytest.param(Fills, (91, 97), "smallest", id="fills", marks=pytest.mark.very_slow),
        pytest.param(Pools, (2, 2, 47, 45), "0.8x", id="pools", marks=pytest.mark.very_slow),
    ],
)
def test_a_packed_step_has_its_bits_and_the_memory_of_its_plan(
    model: Callable[[], nn.Module],
    shape: tuple[int, ...],
    budget: str,
    same_bits: Callable[..., bool],
    train_step: Callable[..., Any],
    calls: dict[str, list[str]],
) -> None:
    x = torch.randn(shape)
    step = _compare(model(), same_bits, x, budget=budget)
    assert _unpacked(step) >= (1 if model is Pools else 2)
    both = calls["forward"] + calls["backward"]
    assert any("cutback.pack" in name for name in both)
    assert not any("cutback.unpack" in name for name in calls["forward"])
    assert any("cutback.unpack" in name for name in calls["backward"])
    assert train_step(step, x).peak_bytes == step.plans[0].numbers["live_bytes"]


@pytest.mark.very_slow
def test_a_step_that_keeps_signs_has_its_bits_and_the_memory_of_its_plan(
    same_bits: Callable[..., bool], train_step: Callable[..., Any], calls: dict[str, list[str]]
) -> None:
    x = torch.randn(91, 97)
    step = _compare(Rectifies(), same_bits, x, budget="smallest")
    assert calls["backward"].count("cutback.keep_by_bits.default") == 2
    assert not any("threshold" in name for name in calls["backward"])
    assert train_step(step, x).peak_bytes == step.plans[0].numbers["live_bytes"]


def test_only_relus_that_nothing_else_reads_are_kept_as_signs() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ x) @ x).mul(0.5).sum()  # a product reads the first ReLU

    step = ct.compile(loss, 0.5, packed=True)
    step(torch.randn(64, 64, requires_grad=True)).backward()
    kinds = [op.kind for op in step.plans[0].parts.ops]
    assert kinds.count("cutback.keep_by_bits.default") == 1
    assert kinds.count("aten.threshold_backward.default") == 1


@pytest.mark.parametrize("again", ["unpack", "all", "apart"])
def test_a_pool_that_runs_again_in_a_plan(again: str) -> None:
    """The backward unpacks the indices, makes them again, or makes them again and unpacks those
    later than it packs them."""
    found = []

    def partition(gm: Any, inputs: Any, *, num_fwd_outputs: int, **_: Any) -> Any:
        graph = prepare(gm, num_fwd_outputs, (), Preparation(packed=True))
        ops, plan = graph.problem.ops, cutback.plan(graph.problem, device="cpu")
        at = {op.name: k for k, op in enumerate(ops)}
        chain = ["max_pool2d_with_indices", "getitem_1", "getitem_1_packed", "getitem_1_unpacked"]
        if again == "apart":
            chain.insert(3, "getitem")
        steps = list(plan.document["steps"])
        reader = steps.index(at["max_pool2d_with_indices_backward"])
        steps[reader:reader] = [at[n] for n in (chain[-1:] if again == "unpack" else chain)]
        found.extend(emit(gm, graph, (steps, plan.document["backward_starts"])))
        return tuple(found)

    compiled = aot_function(
        lambda x: F.max_pool2d(x.sin(), 3, stride=1, padding=1).square().sum(),
        fw_compiler=lambda gm, _: codegen.compile_boxed(gm, "forward"),
        bw_compiler=lambda gm, _: codegen.compile_boxed(gm, "backward"),
        partition_fn=partition,
    )
    x = torch.randn(2, 2, 47, 45, requires_grad=True)
    compiled(x).backward()
    mine, x.grad = x.grad, None
    F.max_pool2d(x.sin(), 3, stride=1, padding=1).square().sum().backward()
    assert torch.equal(mine, x.grad)
    early, late = ([n.target for n in gm.graph.nodes] for gm in found)
    assert (PACK_WINDOWS in early) is (again == "unpack") and UNPACK_WINDOWS not in early
    assert (PACK_WINDOWS in late) is (again == "apart")
    assert (UNPACK_WINDOWS in late) is (again != "all")


def test_nothing_is_packed_without_a_budget(calls: dict[str, list[str]]) -> None:
    model, x = Drops(), torch.randn(91, 97)
    plain, packed = ct.compile(copy.deepcopy(model)), ct.compile(model, packed=True)
    plain(x).backward()
    own = dict(calls)
    packed(x).backward()
    assert _unpacked(packed) == 0 and calls == own
    names = ("live_bytes", "saved_bytes")
    assert [packed.plans[0].numbers[n] for n in names] == [plain.plans[0].numbers[n] for n in names]


@pytest.mark.very_slow
def test_saved_plans_keep_packing(same_bits: Callable[..., bool], tmp_path: Path) -> None:
    model, x, path = Drops(), torch.randn(91, 97), tmp_path / "plans.json"
    copies = [copy.deepcopy(model) for _ in range(2)]
    first = ct.compile(model, "smallest", packed=True)
    expected = _seen(first, model, x)
    first.save_plans(path)
    again = ct.compile(copies[0], plans=path, packed=True)
    assert same_bits(_seen(again, copies[0], x), expected) and _unpacked(again)
    with pytest.raises(ValueError, match="no plan in it is for this graph"):
        ct.compile(copies[1], plans=path)(x)


@pytest.mark.very_slow
def test_sizes_that_change(same_bits: Callable[..., bool]) -> None:
    model = Drops()
    plain = ct.compile(copy.deepcopy(model), dynamic=True)
    packed = ct.compile(model, budget="smallest", packed=True, dynamic=True)
    for rows in (91, 92, 101):
        x = torch.randn(rows, 97)
        assert same_bits(_seen(packed, model, x), _seen(plain, plain, x))
    assert _unpacked(packed)


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype, same_bits: Callable[..., bool]) -> None:
    step = _compare(Drops().to(dtype), same_bits, torch.randn(91, 97, dtype=dtype),
                    budget="smallest")  # fmt: skip
    assert _unpacked(step)


@pytest.mark.very_slow
def test_groups_in_our_kernels(same_bits: Callable[..., bool]) -> None:
    model, x = Fills(), torch.randn(91, 97)
    plain = ct.compile(copy.deepcopy(model), codegen="native")
    packed = ct.compile(model, budget="smallest", packed=True, codegen="native")
    assert same_bits(_seen(packed, model, x), _seen(plain, plain, x))


@pytest.mark.very_slow
def test_inductor() -> None:
    model, x = Fills(), torch.randn(91, 97)
    plain = ct.compile(copy.deepcopy(model), codegen="inductor")
    packed = ct.compile(model, budget="smallest", packed=True, codegen="inductor")
    seen = zip(_seen(packed, model, x), _seen(plain, plain, x), strict=True)
    assert _unpacked(packed) and all(torch.allclose(a, b, rtol=1e-4) for a, b in seen)


def _has_packing(step: Any) -> bool:
    return any("pack" in op.kind for op in step.plans[0].parts.ops)


def test_nothing_is_packed_unless_it_is_wished() -> None:
    step = ct.compile(Drops(1), 0.5)
    step(torch.randn(91, 97)).backward()
    assert not _has_packing(step)


@pytest.mark.parametrize(
    "options",
    [
        {"offload": True},
        {"policy": "nothing_saveable"},
        {"policy": lambda ctx, op, *args, **kwargs: None},
        {"pool": True},
        {"profile": {"aten.sin.default": 1e-6}},
    ],
    ids=["offload", "policy", "function", "pool", "profile"],
)
def test_options_that_exclude_packing_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.warns(UserWarning, match=rf"packed=True has no effect with {name}="):
        partitioner = ct.Partitioner(0.5, packed=True, **options)
    assert not partitioner.preparation.packed


def test_values_that_stay_as_they_are() -> None:
    def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = x > 0.1
        return x.sin().masked_fill(mask, 0.0).sum(), mask[0]

    def written(x: torch.Tensor) -> tuple[torch.Tensor, None]:
        mask = x > 0.1
        y = x.sin().masked_fill(mask, 0.0)
        return y.sum(), None

    for f, shape, packs in ((returned, (64, 128), False), (written, (64, 128), True),
                            (written, (8, 128), False)):  # fmt: skip
        x = torch.randn(shape, requires_grad=True)
        step = ct.compile(f, 0.5, packed=True)
        step(x)[0].backward()
        assert _has_packing(step) is packs


def test_a_wrong_argument() -> None:
    with pytest.raises(TypeError, match="packed=1"):
        ct.compile(Drops(1), packed=1)(torch.randn(4, 4))  # type: ignore[arg-type]
