"""PyTorch's operator samples through the table: the results of a traced call in our groups,
compared with PyTorch's kernels and with f64."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from cutback.torch.graph.codegen import compile_boxed
from cutback.torch.native.lowering import lower
from cutback.torch.native.table import ROWS

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
}  # fmt: skip
SLACK = 2.0
"""How many times PyTorch's error ours may be."""
EXACT = frozenset(str(op).removesuffix(".default") for op, row in ROWS.items() if row.exact)
"""Operations that are said to have the bits of PyTorch's kernels in f32 and f64."""

Tensors = list[torch.Tensor]


class Sample(NamedTuple):
    """A call, as a function of its tensors."""

    call: Callable[..., Any]
    inputs: Tensors


def samples_of(op: Any, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    """Yields the first samples of an operator that contain tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), most))
    for sample in made:
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        if not any(leaves[i].is_floating_point() for i in at):
            continue
        if any(leaves[i].layout is not torch.strided for i in at):
            continue

        def call(*given: torch.Tensor, leaves=leaves, spec=spec, at=at) -> Any:
            filled = list(leaves)
            for i, t in zip(at, given, strict=True):
                filled[i] = t
            args, kwargs = tree_unflatten(filled, spec)
            return op.op(*args, **kwargs)

        yield Sample(call, [leaves[i] for i in at])


def with_gradients(call: Callable[..., Any]) -> Callable[..., Tensors]:
    """Returns the floating-point results of a call, and the gradients of their weighted sum."""

    def both(*given: torch.Tensor) -> Tensors:
        inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
        results = [r for r in tree_leaves(call(*inputs)) if isinstance(r, torch.Tensor)]
        floats = [r for r in results if r.is_floating_point() and r.requires_grad]
        if not floats:
            return [r.detach() for r in results]
        loss = sum((r * torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view(r.shape)).sum()
                   for r in floats)  # fmt: skip
        leaves = [t for t in inputs if t.requires_grad]
        made = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [*(r.detach() for r in results), *(g for g in made if g is not None)]

    return both


def in_groups(gm: fx.GraphModule, inputs: Tensors) -> tuple[Tensors, set[str]] | None:
    """Returns the results of a graph in our groups, and the operations inside them. None: there are
    no groups."""
    made, note = lower(gm, "forward", everything=True)
    if not note.groups:
        return None
    run = compile_boxed(made)
    return list(run(list(inputs))), {op for group in note.groups for op in group}


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Returns the largest difference where both are finite."""
    both = found.isfinite() & wanted.isfinite()
    return float((found.double() - wanted.double())[both].abs().max()) if both.any() else 0.0


def _same_special(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """True if NaN and infinities are in the same places."""
    special = ~wanted.isfinite() | ~found.isfinite()
    return bool(torch.equal(found.isnan(), wanted.isnan())) and bool(
        ((found == wanted) | wanted.isnan())[special].all()
    )


def _same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """True if all numbers and signs of zeros are equal. Any two NaNs are equal."""
    equal = (found == wanted) & (found.signbit() == wanted.signbit())
    return bool((equal | (found.isnan() & wanted.isnan())).all())


def planned(gm: fx.GraphModule) -> list[Any]:
    """Returns the fake tensors that a graph returns."""
    (output,) = gm.graph.find_nodes(op="output")
    return [n.meta.get("val") if isinstance(n, fx.Node) else n for n in tree_leaves(output.args[0])]


def complaint(
    found: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, fake: torch.Tensor
) -> str:
    """Returns what is wrong with a result, or "". PyTorch's kernels may use another layout than its
    shape functions say."""
    same = found.numel() == 0 or found.stride() in (theirs.stride(), fake.stride())
    if not same or (found.shape, found.dtype) != (theirs.shape, theirs.dtype):
        return f"laid out as {found.shape} {found.stride()} {found.dtype}, not {theirs.stride()}"
    if not found.is_floating_point():
        return "" if torch.equal(found, theirs) else "not equal"
    if not _same_special(found, theirs):
        return "other NaN or infinities"
    error, allowed = distance(found, exact), SLACK * distance(theirs, exact)
    scale = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
    eps = torch.finfo(found.dtype).eps
    # in f64, PyTorch's own result is the reference
    rounding = {torch.float64: 16 * max(scale, 1.0), torch.float32: 4 * scale}
    allowed += eps * rounding.get(found.dtype, 2 * scale)
    return "" if error <= allowed else f"error {error:.3g}, allowed are {allowed:.3g}"


def check(sample: Sample, gradients: bool) -> tuple[str, set[str]]:
    """Returns what is wrong with one sample, and the operations that ran in groups."""
    function = with_gradients(sample.call) if gradients else _leaves_of(sample.call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gm = make_fx(function, tracing_mode="fake")(*sample.inputs)
            theirs = list(compile_boxed(gm)(list(sample.inputs)))
            doubled = [t.double() if t.is_floating_point() else t for t in sample.inputs]
            exact = function(*doubled)  # views of one memory are refused here, so each is copied
        # PyTorch refuses it or cannot trace it, for example because it depends on data
        except Exception:
            return "", set()
        if any(t.layout is not torch.strided for t in theirs):
            return "", set()
        shown = planned(gm)
        ours = in_groups(gm, sample.inputs)
        if ours is None:
            return "", set()
    for found, wanted, true, fake in zip(ours[0], theirs, exact, shown, strict=True):
        said = complaint(found, wanted, true, fake)
        if not said and ours[1] <= EXACT and found.dtype in (torch.float32, torch.float64):
            said = "" if _same_bits(found, wanted) else "other bits"
        if said:
            return f"{said} ({', '.join(sorted(ours[1]))})", ours[1]
    return "", ours[1]


def _leaves_of(call: Callable[..., Any]) -> Callable[..., Tensors]:
    def leaves(*given: torch.Tensor) -> Tensors:
        return [r for r in tree_leaves(call(*given)) if isinstance(r, torch.Tensor)]

    return leaves


def complaints(ops: Sequence[Any], dtypes: Sequence[str], most: int) -> tuple[list[str], set[str]]:
    """Returns what is wrong with some operators, and all operations that ran in groups."""
    found: list[str] = []
    seen: set[str] = set()
    for op in ops:
        for dtype in dtypes:
            if DTYPES[dtype] not in op.supported_dtypes("cpu"):
                continue
            for i, sample in enumerate(samples_of(op, DTYPES[dtype], most)):
                for gradients in (False, op.supports_autograd):
                    try:
                        said, ran = check(sample, gradients)
                    except Exception as error:
                        said, ran = f"{type(error).__name__}: {error}", set()
                    seen |= ran
                    if said:
                        found.append(f"{op.formatted_name} {dtype} {i} {gradients}: {said}")
    return found, seen
