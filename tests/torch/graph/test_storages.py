"""The memory of results: plans count what kernels allocate, and views are views.

Against the kernels themselves: PyTorch's operator database, forward and backward, with inputs in
several layouts. Where a rule stands (``graph/storages.py``), the test also shows that without it
the two differ."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's own tests need it (requirements/torch.txt)")

import kernel_storages
import torch.nn.functional as F

from cutback.torch.graph import storages

aten = torch.ops.aten
PARTS = 32


def _grad(*shape: int, dtype: Any = None) -> Any:
    return torch.rand(*shape, dtype=dtype or torch.float32).requires_grad_()


def _half(*shape: int) -> Any:
    return _grad(*shape, dtype=torch.bfloat16)


def _slices(x: Any) -> Any:
    o = torch.zeros(3, 2, *x.shape)
    o[1][0] = x
    o[2, 1, 1:3] = x[:2]
    return [o.sin()]


def _batch_norm(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
    return [F.batch_norm(x, mean, variance, w, b, training=True)]


NEEDED: tuple[tuple[Any, Callable[..., Any], tuple[Any, ...]], ...] = (
    (aten.mse_loss.default, lambda x, y: [F.mse_loss(x, y)], (_grad(5, 7), _grad(5, 7))),
    (aten.smooth_l1_loss.default, lambda x, y: [F.smooth_l1_loss(x, y)], (_grad(5), _grad(5))),
    (aten.binary_cross_entropy.default, lambda x, y: [F.binary_cross_entropy(x, y)],
     (_grad(5, 7), torch.rand(5, 7))),
    (aten.soft_margin_loss.default, lambda x, y: [F.soft_margin_loss(x, y)],
     (_grad(5, 7), torch.rand(5, 7))),
    (aten.native_layer_norm.default,
     lambda x, w, b: [F.layer_norm(x, [8], w, b)],
     (_half(4, 8), _grad(8), _grad(8))),
    (aten.native_group_norm.default,
     lambda x, w, b: [F.group_norm(x, 4, w, b)],
     (_half(2, 8, 3, 3), _grad(8), _grad(8))),
    (aten._native_batch_norm_legit_functional.default, _batch_norm,
     (_half(4, 8), _grad(8), _grad(8), torch.zeros(8), torch.ones(8))),
    (aten._native_batch_norm_legit_functional.default, _batch_norm,
     (_half(4, 8), _half(8), _half(8), torch.zeros(8).bfloat16(), torch.ones(8).bfloat16())),
    (aten.native_group_norm_backward.default,
     lambda x, w, b: [F.group_norm(x, 4, w, b)], (_half(2, 8, 3, 3), _grad(8), _grad(8))),
    (aten._embedding_bag.default,
     lambda w: [F.embedding_bag(torch.tensor([1, 2, 3, 1]), w, torch.tensor([0, 2]))],
     (_grad(5, 6),)),
    (aten._embedding_bag.default,
     lambda w: [F.embedding_bag(torch.tensor([1, 2, 3, 1]), w, torch.tensor([0, 2]), mode="sum")],
     (_half(5, 6),)),
    (aten.copy.default, _slices, (_grad(6, 5),)),
    (aten.slice_scatter.default, _slices, (_grad(6, 5),)),
    (aten.select_scatter.default, _slices, (_grad(6, 5),)),
    (aten.diagonal_scatter.default,
     lambda x: [torch.diagonal_scatter(x.sin()[1:], torch.ones(5))], (_grad(6, 5),)),
    (aten.as_strided_scatter.default,
     lambda x: [torch.as_strided_scatter(x.sin()[1:], torch.ones(3), [3], [1], 6)],
     (_grad(6, 5),)),
    (aten.col2im.default, lambda x: [F.fold(x.sin(), (6, 6), 3)], (_grad(2, 9, 16),)),
    (aten.im2col.default, lambda x: [F.unfold(x.sin(), 1, stride=2)], (_grad(2, 3, 6, 6),)),
    (aten.uniform.default, lambda x: [aten.uniform.default(x.sin()[:, ::2])],
     (torch.rand(6, 10).t(),)),
    *[(getattr(torch.ops.aten, f"{name}_window").default,
       lambda x, name=name: [getattr(torch, f"{name}_window")(9) * x], (_grad(9),))
      for name in ("hann", "hamming", "bartlett", "blackman", "kaiser")],
    *[(getattr(torch.ops.aten, f"{name}_window").periodic,
       lambda x, name=name: [getattr(torch, f"{name}_window")(9, periodic=True) * x], (_grad(9),))
      for name in ("hann", "hamming", "bartlett", "blackman", "kaiser")],
    (aten.hamming_window.periodic_alpha, lambda x: [torch.hamming_window(9, True, 0.5) * x],
     (_grad(9),)),
    (aten.hamming_window.periodic_alpha_beta,
     lambda x: [torch.hamming_window(9, True, 0.5, 0.4) * x], (_grad(9),)),
    (aten.kaiser_window.beta, lambda x: [torch.kaiser_window(9, True, 8.0) * x], (_grad(9),)),
)  # fmt: skip


@pytest.mark.parametrize(("op", "function", "inputs"), NEEDED, ids=[str(op) for op, _, _ in NEEDED])
def test_each_rule_is_right_and_needed(
    op: Any, function: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, kinds = kernel_storages.compare(function, inputs)
    assert str(op) in kinds
    assert found == {}
    monkeypatch.delitem(storages.RULES, op)
    found, _ = kernel_storages.compare(function, inputs)
    assert any(where.startswith(f"{op}[") for where in found)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_windows_of_all_sizes(n: int, periodic: bool) -> None:
    for name in ("hann", "hamming", "bartlett", "blackman", "kaiser"):
        make = getattr(torch, f"{name}_window")
        found, kinds = kernel_storages.compare(
            lambda x, make=make: [make(n, periodic=periodic) * x], [torch.ones(n)]
        )
        assert found == {} and any("window" in kind for kind in kinds)


@cache
def database() -> list[Any]:
    """Returns PyTorch's list of operators, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted(op_db, key=lambda op: op.formatted_name)


def complaints(
    ops: list[Any], dtypes: list[Any], most: int, layouts: tuple[str, ...] = kernel_storages.GIVEN
) -> tuple[list[str], int]:
    """Returns where kernels allocate other memory than planned, and the number of graphs compared.

    Skips what PyTorch does not trace or does not run in a layout."""
    said, compared = [], 0
    for op in ops:
        for dtype in dtypes:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            try:
                functions = kernel_storages.functions_of(op, dtype, most, 7)
            except Exception:  # samples for other devices
                continue
            for function, tensors in functions:
                for how in layouts:
                    try:
                        found, _ = kernel_storages.compare(function, tensors, how)
                    except (RuntimeError, ValueError, NotImplementedError, AssertionError):
                        continue
                    compared += 1
                    said += [
                        f"{op.formatted_name} {dtype} {how}: {k}: {v}" for k, v in found.items()
                    ]
    return said, compared


@pytest.mark.filterwarnings("ignore")
def test_some_operators() -> None:
    """The operators are drawn once with a fixed seed, with one sample of each in two layouts."""
    some = random.Random(29).sample(database(), 4)
    said, compared = complaints(some, [torch.float32], 1, ("as it is", "transposed"))
    assert said == []
    assert compared >= 5


@pytest.mark.very_slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_part_of_all_operators(part: int) -> None:
    """Each operator has three samples in four layouts, in single, half and complex types."""
    dtypes = [torch.float32, torch.bfloat16, torch.complex64]
    said, compared = complaints(database()[part::PARTS], dtypes, 3)
    assert said == []
    assert compared >= 50
