"""Finds operations that decide: which expert a token goes to, which elements are kept, how large a
result is.

If such an operation runs again on values that differ in one bit, it may decide differently, and
values saved under the first decision then meet values of the second. So it may run again only if
that provably gives the same bits: the same kernels run on the same inputs, as with
``codegen="eager"`` on the CPU, whose kernels add in a fixed order. A compiler that fuses a rerun
with other ops may compute its inputs with other bits, and on other devices some kernels add in any
order, unless PyTorch's deterministic algorithms are on. In these cases decisions are saved,
whatever a policy says, except for operations that read only arguments of the graph.

The name of another library's op does not show whether it decides. The op is assumed to decide if it
makes integers or booleans from floating-point numbers (routes, masks, ranks), unless it is declared
rerunnable, or if the size of its result depends on values.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import fx

from . import rerunnable
from .graphs import Reader

if TYPE_CHECKING:
    from torch.fx.node import Target

_DECIDE = frozenset({
    "topk", "sort", "argsort", "msort", "argmax", "argmin", "kthvalue", "mode", "median",
    "nanmedian", "cummax", "cummin", "bucketize", "searchsorted", "nonzero_static", "multinomial",
    "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
})  # fmt: skip
_WITH_INDICES = frozenset({"max.dim", "min.dim"})


@lru_cache(maxsize=4096)
def decides(target: Target) -> bool:
    """True if an operation chooses by comparing values, or if the size of its result depends on
    values."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.dynamic_output_shape in target.tags:
        return True
    if target.namespace != "aten":
        return False
    _, name, overload = str(target).split(".")
    return name in _DECIDE or f"{name}.{overload}" in _WITH_INDICES


def _may_decide(reader: Reader, node: fx.Node) -> bool:
    """True if a call of another library's op appears to decide."""
    if node.meta.get("unbacked_bindings"):  # a size that is known only after the call
        return True
    if rerunnable.declared(node.target):
        return False
    made = [t.val.dtype for t in reader.tensors[node]]
    read = [t.val.dtype for n in node.all_input_nodes for t in reader.tensors[n]]
    return any(not _inexact(t) for t in made) and any(_inexact(t) for t in read)


def _inexact(dtype: torch.dtype) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def same_bits(nodes: Iterable[fx.Node | None]) -> bool:
    """True if all kernels add in a fixed order, so that all runs of an op give the same bits."""
    if torch.are_deterministic_algorithms_enabled():
        return True
    made = (node.meta.get("val") for node in nodes if node is not None)
    tensors = (t for val in made for t in (val if isinstance(val, (list, tuple)) else [val]))
    return all(t.device.type == "cpu" for t in tensors if isinstance(t, torch.Tensor))


def to_pin(reader: Reader, same_kernels: bool) -> set[fx.Node]:
    """Returns the operations of a graph that must not run again because they decide.

    Args:
        same_kernels: True if reruns are separate kernels, the same as in the first run.
    """
    found = set()
    for node, kind in reader.kinds.items():
        foreign = "unknown" in kind.flags and isinstance(node.target, torch._ops.OpOverload)
        if kind.mutable or not (decides(node.target) or (foreign and _may_decide(reader, node))):
            continue
        given = [t.val.device.type for n in node.all_input_nodes for t in reader.tensors[n]]
        if same_kernels and (
            all(device == "cpu" for device in given) or torch.are_deterministic_algorithms_enabled()
        ):
            continue
        if not all(reader.static[s] for s in reader.reads[node]):
            found.add(node)
    return found
