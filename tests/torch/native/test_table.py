"""Each row of the table against PyTorch's kernels, on PyTorch's operator samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's own tests need it (requirements/torch.txt)")

sys.path.insert(0, str(Path(__file__).parent))

import table_samples
from table_samples import DTYPES, EXACT, Sample, check, complaints

from cutback.torch.native.table import FOREIGN, ROWS

aten = torch.ops.aten

RANDOM = ("dropout", "rrelu", "bernoulli", "multinomial", "rand", "normal", "uniform",
          "cauchy", "exponential", "geometric", "empty", "new_empty", "attention",
          "fractional")  # fmt: skip
PARTS = 16

FAST = ("where", "nn.functional.gelu", "nn.functional.layer_norm", "softmax", "var")

OWN = {
    "log", "log1p", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "nn.functional.silu", "abs",
    "floor", "nn.functional.relu", "sqrt", "reciprocal", "maximum", "minimum", "clamp", "eq", "ne",
    "lt", "le", "gt", "ge", "logical_not", "rsub", "pow", "nn.functional.hardtanh", "where", "cat",
    "nn.functional.leaky_relu", "nn.functional.threshold", "masked_fill", "clone", "amax", "amin",
    "nn.functional.mse_loss", "nn.functional.gelu", "nn.functional.layer_norm", "softmax", "var",
    "log_softmax", "sum", "mean", "exp", "neg", "add", "sub", "mul", "div", "full_like",
    "nn.functional.batch_norm", "nn.functional.group_norm", "nn.functional.nll_loss",
    "nn.functional.cross_entropy", "stack", "select", "narrow", "split", "unsafe_split",
    "new_full", "new_zeros", "chunk", "__getitem__",
    "nn.functional.instance_norm", "nn.functional.rms_norm", "unsafe_chunk", "slice",
    "softmax_with_dtype", "nn.functional.glu", "tensor_split", "unbind", "_native_batch_norm_legit",
}  # fmt: skip


def database() -> list[Any]:
    """Returns PyTorch's operators that draw no random numbers, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    kept = [op for op in op_db if not any(word in op.name for word in RANDOM)]
    return sorted(kept, key=lambda op: op.formatted_name)


def test_some_rows() -> None:
    """Rows give PyTorch's results and gradients on a sample of some operators."""
    chosen = [op for op in database() if op.name in FAST and not op.variant_test_name]
    wrong, ran = complaints(chosen, ["bf16"], 1)
    assert wrong == []
    assert {"aten.gelu_backward", "aten.native_layer_norm_backward", "aten.where.self"} <= ran


@pytest.mark.very_slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_rows(part: int) -> None:
    """Rows give PyTorch's results on three samples of all operators."""
    wrong, _ = complaints(database()[part::PARTS], ["f32", "bf16"], 3)
    assert wrong == []


@pytest.mark.very_slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_each_type(dtype: str) -> None:
    """Operators with a separate row give PyTorch's results on six samples."""
    own = [op for op in database() if op.name in OWN]
    wrong, _ = complaints(own, [dtype], 6)
    assert wrong == []


def test_no_row_is_foreign() -> None:
    """An operation has a row or a reason, not both."""
    assert not ROWS.keys() & FOREIGN.keys()


SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 3e38, 1.0, -2.5]

UNARY = [op for op, row in ROWS.items()
         if op.namespace == "aten" and len(op._schema.arguments) == 1]  # fmt: skip


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_special_values(op: Any) -> None:
    """Results are PyTorch's for NaN, infinities, signed zeros, subnormal and huge numbers."""
    x = torch.tensor(SPECIAL)
    if op in (aten.logical_not.default, aten.bitwise_not.default):
        x = x > 0
    elif op is aten.silu.default:
        x = x[x.abs() < 1e38]  # PyTorch's vectorised kernel returns NaN for -3e38
    said, ran = check(Sample(lambda x: op(x), [x]), gradients=False)
    assert said == ""
    assert ran == {str(op).removesuffix(".default")}


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "channels last": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "repeated": lambda x: x[:1].expand(3, -1, -1, -1),
    "odd": lambda x: x[:, :1].contiguous(),
    "one": lambda x: x[:1, :1, :1, :1],
    "gaps": lambda x: torch.cat([x, x], -1)[..., ::2],
}


def _chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = (x.sigmoid() * y).clone()
    w = z.transpose(0, 1).exp()
    return z, w.sum((0, 2), keepdim=True), w.square().mean(-1) if w.numel() else w


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_layouts(name: str, other: str) -> None:
    """A chain with reductions and a copy runs on two arguments in several layouts."""
    base = torch.randn(3, 5, 7, 9, generator=torch.Generator().manual_seed(1))
    inputs = [LAYOUTS[name](base), LAYOUTS[other](base)]
    said, ran = check(Sample(_chain, inputs), gradients=False)
    assert said == ""
    assert "aten.sum.dim_IntList" in ran


ORDERS: dict[str, Any] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "one sample": lambda x: x[:1],
    "two axes": lambda x: x[:, :, 0, 0].contiguous(),
    "one channel": lambda x: x[:, :1].contiguous(),
}


PLANES = ("contiguous", "one sample", "one channel")
"""Those in which an axis that norms reduce is the fastest."""


def _batch_normed(training: bool) -> Any:
    def call(*given: torch.Tensor) -> Any:
        x, w, b, mean, var, g = given
        made = aten._native_batch_norm_legit_functional(x, w, b, mean, var, training, 0.3, 1e-3)
        y, *kept = made
        back = aten.native_batch_norm_backward(
            g, x, w, mean, var, kept[0], kept[1], training, 1e-3, [True, True, True]
        )
        return y, *back, *(kept if training else kept[2:])

    return call


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ORDERS)
def test_batch_norm(name: str, training: bool, dtype: str) -> None:
    """Forward and backward agree. PyTorch computes them if channels are the fastest axis, and for
    16 bits, where statistics are f32 although its shape function says 16 bits."""
    g = torch.Generator().manual_seed(3)
    x, dy = (ORDERS[name](torch.randn(3, 6, 4, 5, generator=g)).to(DTYPES[dtype]) for _ in "xg")
    channels = [torch.rand(x.shape[1], generator=g) + 0.5 for _ in range(4)]
    said, ran = check(Sample(_batch_normed(training), [x, *channels, dy]), gradients=False)
    assert said == ""
    assert len(ran) == (2 if dtype == "f32" and name in PLANES else 0)


@pytest.mark.parametrize("name", ORDERS)
def test_group_norm(name: str) -> None:
    """Forward and backward agree in each order of strides."""
    g = torch.Generator().manual_seed(4)
    x = ORDERS[name](torch.randn(3, 6, 4, 5, generator=g))
    channels = [torch.rand(x.shape[1], generator=g) + 0.5 for _ in range(2)]
    groups = min(3, x.shape[1])

    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.group_norm(x, groups, w, b)

    said, ran = check(Sample(call, [x, *channels]), gradients=True)
    assert said == ""
    assert ("aten.native_group_norm" in ran) == (name in PLANES)


def test_empty_tensors() -> None:
    """The same chain runs on empty tensors."""
    x = torch.empty(0, 5, 7, 9)
    said, ran = check(Sample(_chain, [x, x[:, :1]]), gradients=False)
    assert said == ""
    assert "aten.sum.dim_IntList" in ran


def test_exact_rows_are_told_apart() -> None:
    """Operations that round differently are not exact rows."""
    assert "aten.add.Tensor" in EXACT
    assert not EXACT & {"aten.exp", "aten.gelu", "aten.sum.dim_IntList", "aten._softmax"}


def test_a_wrong_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the comparison can fail."""
    from cutback.torch.native import pointwise, table

    wrong = pointwise.row(lambda g, x: x.op("exp") * 1.001)
    monkeypatch.setitem(table.ROWS, aten.exp.default, wrong)
    said, _ = check(Sample(torch.exp, [torch.randn(8)]), gradients=False)
    assert said.startswith("error ")
    assert table_samples.SLACK == 2.0
